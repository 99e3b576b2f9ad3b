//! Stores into a protected region.
//!
//! What always holds here: what is open is closed before a call returns; flushes go by the mapping
//! for reading, because a line is the same line wherever it is mapped.

use super::{Base, Region, after};
use crate::buf::{ConstBuf, Fault};
use crate::guard::Guard;
use crate::map::{Access, MapOptions};
use crate::{Error, PAGE, sys};

/// Zeroes are copied from here.
static ZEROES: [u8; 16 * PAGE] = [0; 16 * PAGE];

impl Region {
    #[cold]
    pub(super) fn guarded(
        &self,
        guard: &Guard,
        off: u64,
        src: ConstBuf<'_>,
        around: bool,
    ) -> Result<(), Error> {
        self.copy_guarded(guard, off, src, around)
            .map_err(|fault| self.lost(off, fault))
    }

    /// Durable after the fence.
    pub(super) fn copy_guarded(
        &self,
        guard: &Guard,
        off: u64,
        src: ConstBuf<'_>,
        around: bool,
    ) -> Result<(), Fault> {
        if guard.writes() {
            let done = guard.write(src.as_ptr(), src.len(), off);
            let copied = done.map_or_else(|fault| fault.copied(), |()| src.len());
            self.record_copied(off, copied, false);
            self.flush(off, copied).map_err(|_| Fault::OutOfRange)?;
            return done;
        }
        let mut done = 0;
        while done < src.len() {
            let at = off + done as u64;
            let len = guard.within_window(at, src.len() - done);
            let (_, rest) = src.split_at(done);
            let open = guard
                .open(at, len)
                .map_err(|_| Fault::Media { copied: done })?;
            // Offsets of this part lead into the window.
            let base = Base(open.ptr().wrapping_sub(at as usize));
            let copied = match around {
                true => self.copy_durable(base, at, rest.take(len)),
                false => self.copy_flushed(base, at, rest.as_ptr(), len),
            };
            copied.map_err(|fault| after(fault, done))?;
            done += len;
        }
        Ok(())
    }

    pub(super) fn zero_guarded(&self, guard: &Guard, off: u64, len: usize) -> Result<(), Error> {
        for done in (0..len).step_by(ZEROES.len()) {
            let zeroes = ConstBuf::from(&ZEROES[..]).take(len - done);
            self.guarded(guard, off + done as u64, zeroes, true)?;
        }
        Ok(())
    }

    /// Pages are mapped for writing, and stored to by nobody, for this long.
    pub(super) fn redirty_guarded(&self, guard: &Guard, off: u64, len: usize) -> Result<(), Error> {
        self.readable(off, len)?;
        let first = off as usize / PAGE * PAGE;
        let len = (off as usize + len).next_multiple_of(PAGE) - first;
        let options = MapOptions::new(Access::ReadWrite, self.medium);
        let pages = guard.map(first as u64, len, &options)?;
        // SAFETY: all of a mapping for writing that was just made.
        unsafe { sys::populate(pages.ptr(), len, true) }.map_err(Error::os("madvise"))
    }
}
