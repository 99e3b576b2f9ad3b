//! A process's finding in session memory that only a mistake of Holdfast can cause.
//!
//! Invariants: the first finding stays, and ends the session for its clients. Any process may have
//! written its text, so only printable characters of it are shown.

use core::fmt::{self, Display, Write};
use core::panic::Location;
use holdfast_pmem::atomic::{AtomicU8, AtomicU32, Ordering::*};
use holdfast_pmem::shared;

const LEN: usize = 248;
const EIO: u32 = 5;
const WRITING: u32 = 1;
const SAID: u32 = 2;

shared! {
    /// The finding; all zero: there is none.
    pub struct Broken {
        /// 0 nothing, 1 being written, 2 said.
        pub state: AtomicU32,
        pub len: AtomicU32,
        pub text: [AtomicU8; LEN],
    }
}

/// A copy of the text.
#[derive(Clone, Copy, Debug)]
pub struct Finding {
    text: [u8; LEN],
    len: usize,
}

impl Broken {
    /// Says that `what`, which always holds, did not at `place`; then ends the session.
    pub fn tell(&self, poisoned: &AtomicU32, place: &Location<'_>, what: &str) {
        if self
            .state
            .compare_exchange(0, WRITING, AcqRel, Relaxed)
            .is_ok()
        {
            let mut out = Out { to: self, len: 0 };
            let _ = write!(out, "{}:{}: {what}", place.file(), place.line());
            self.len.store(out.len as u32, Relaxed);
            self.state.store(SAID, Release);
        }
        let _ = poisoned.compare_exchange(0, EIO, AcqRel, Relaxed);
    }

    /// What was said.
    pub fn finding(&self) -> Option<Finding> {
        if self.state.load(Acquire) != SAID {
            return None;
        }
        let len = (self.len.load(Relaxed) as usize).min(LEN);
        let text = core::array::from_fn(|i| match self.text[i].load(Relaxed) {
            printable @ b' '..=b'~' => printable,
            _ => b'?',
        });
        Some(Finding { text, len })
    }
}

struct Out<'a> {
    to: &'a Broken,
    len: usize,
}

impl Write for Out<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for byte in s.bytes() {
            let place = self.to.text.get(self.len).ok_or(fmt::Error)?;
            place.store(byte, Relaxed);
            self.len += 1;
        }
        Ok(())
    }
}

impl Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text[..self.len]
            .iter()
            .try_for_each(|byte| f.write_char((*byte).into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::ToString;
    use holdfast_pmem::Shared;

    #[test]
    fn the_first_finding_is_kept() {
        let (broken, poisoned) = (Broken::zeroed(), AtomicU32::new(0));
        assert!(broken.finding().is_none());
        let here = Location::caller();
        broken.tell(&poisoned, here, "blocks are counted");
        broken.tell(&poisoned, here, "later");
        let said = broken.finding().unwrap().to_string();
        assert_eq!(
            said,
            format!("{}:{}: blocks are counted", here.file(), here.line())
        );
        assert_eq!(poisoned.load(Relaxed), EIO);
    }

    #[test]
    fn any_text_can_be_shown() {
        let (broken, poisoned) = (Broken::zeroed(), AtomicU32::new(7));
        broken.tell(&poisoned, Location::caller(), &"x".repeat(1000));
        assert_eq!(broken.finding().unwrap().to_string().len(), LEN);
        broken.len.store(u32::MAX, Relaxed);
        broken.text[0].store(27, Relaxed);
        let said = broken.finding().unwrap().to_string();
        assert!(said.len() == LEN && said.starts_with('?'));
        assert_eq!(poisoned.load(Relaxed), 7);
    }
}
