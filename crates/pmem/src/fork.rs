//! Distinguishing a process from its children without a system call.
//!
//! Invariant: the kernel wipes the page in every child, whichever way it was forked, and nothing
//! else does.

use crate::{Error, PAGE};
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering::*};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Memory that says whether this is still the process that set it.
#[derive(Debug)]
pub struct ForkMark {
    page: usize,
}

impl ForkMark {
    /// Not set.
    pub fn new() -> Result<ForkMark, Error> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let page =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), PAGE, prot, MapFlags::PRIVATE) };
        let page = page.map_err(Error::os("mmap"))?;
        let mark = ForkMark {
            page: page as usize,
        };
        // SAFETY: the page just mapped; a child finds zeroes in it, which is a valid AtomicU64.
        unsafe { rustix::mm::madvise(page, PAGE, Advice::LinuxWipeOnFork) }
            .map_err(Error::os("madvise"))?;
        Ok(mark)
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped until `self` is dropped, is aligned, belongs to this process
        // alone, and is only ever used as this atomic.
        unsafe { AtomicU64::from_ptr(self.page as *mut u64) }
    }

    /// What was set in this process; 0: nothing was.
    #[inline]
    pub fn get(&self) -> u64 {
        self.word().load(Acquire)
    }

    /// Sets it for this process, if it was not set; whether it did.
    pub fn set_first(&self, value: u64) -> bool {
        let done = self.word().compare_exchange(0, value, AcqRel, Acquire);
        done.is_ok()
    }

    /// Sets it for this process.
    pub fn set(&self, value: u64) {
        self.word().store(value, Release);
    }
}

impl Drop for ForkMark {
    fn drop(&mut self) {
        // SAFETY: the page that `new` mapped; nobody refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.page as *mut _, PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_finds_it_unset() {
        let mark = ForkMark::new().unwrap();
        assert_eq!(mark.get(), 0);
        mark.set(7);
        // SAFETY: the child only reads memory and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe { libc::_exit(mark.get() as i32) };
        }
        let mut status = -1;
        // SAFETY: waits for the child just made.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!((status, mark.get()), (0, 7));
    }
}
