//! The crash recorder's stand-in without the feature `recording`.
//!
//! What always holds here: nothing has state or does anything, so that no instruction is left of a
//! call.

use rustix::fd::BorrowedFd;

#[derive(Clone)]
pub struct Tap;

impl Tap {
    #[inline(always)]
    pub fn silent() -> Tap {
        Tap
    }
    #[inline(always)]
    pub fn of_file(_fd: BorrowedFd<'_>, _start: u64) -> Tap {
        Tap
    }
    #[inline(always)]
    pub fn listens(&self) -> bool {
        false
    }
    #[inline(always)]
    pub fn store(&self, _off: u64, _data: &[u8], _nt: bool) {}
    #[inline(always)]
    pub fn flush(&self, _line: u64) {}
    #[inline(always)]
    pub fn fence(&self) {}
    #[inline(always)]
    pub fn sync(&self, _off: u64, _len: usize) {}
    #[inline(always)]
    pub fn zeroed(&self, _off: u64, _len: usize, _read: impl Fn(u64, &mut [u8]) -> bool) {}
}
