//! `pt`: page table entries are writable while a copy goes on.
//!
//! What always holds here: one copy at a time is open, so nobody closes the pages of another.

use super::{Closing, Open, pages};
use crate::spin::{Spin, SpinGuard};
use crate::{Error, PAGE};
use rustix::mm::{MprotectFlags, mprotect};

pub(super) struct Flip {
    base: *mut u8,
    len: usize,
    one: Spin<()>,
}

// SAFETY: `base` is only an address to change the protection of, by one thread at a time.
unsafe impl Send for Flip {}
// SAFETY: as above.
unsafe impl Sync for Flip {}

/// Pages that are open.
pub(super) struct Flipped<'a> {
    first: *mut u8,
    len: usize,
    _one: SpinGuard<'a, ()>,
}

impl Flip {
    pub fn new(base: *mut u8, len: usize) -> Flip {
        Flip {
            base,
            len,
            one: Spin::new(()),
        }
    }

    pub fn begin(&self) -> Result<(), Error> {
        self.one.release();
        protect(
            self.base,
            self.len.next_multiple_of(PAGE),
            MprotectFlags::READ,
        )
    }

    pub fn open(&self, off: u64, len: usize) -> Result<Open<'_>, Error> {
        let one = self.one.lock();
        let (first, whole) = pages(off, len);
        let first = self.base.wrapping_add(first as usize);
        protect(first, whole, MprotectFlags::READ | MprotectFlags::WRITE)?;
        let flipped = Flipped {
            first,
            len: whole,
            _one: one,
        };
        let at = self.base.wrapping_add(off as usize);
        Ok(Open::new(at, Closing::Flip(flipped)))
    }
}

impl Drop for Flipped<'_> {
    fn drop(&mut self) {
        // To give away a right is refused only where the kernel has no memory to split a mapping,
        // and these pages were split when they were opened.
        let _ = protect(self.first, self.len, MprotectFlags::READ);
    }
}

fn protect(first: *mut u8, len: usize, flags: MprotectFlags) -> Result<(), Error> {
    // SAFETY: whole pages of the region's own mapping, which the caller has checked; they can be
    // read with either protection, and Rust has no reference into them.
    unsafe { mprotect(first.cast(), len, flags) }.map_err(Error::os("mprotect"))
}
