//! `pmap`: a window is mapped for each copy, and nothing between copies.
//!
//! What always holds here: a slot is used by one copy at a time, and is inaccessible in between.

use super::{Closing, Open, Region, pages};
use crate::map::{HUGE, Reservation, close_over, map_over};
use crate::{Error, Medium, PAGE, sys};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering::*};
use rustix::fd::BorrowedFd;

/// As many copies may go on at a time.
const SLOTS: u32 = 16;

pub(super) struct Windows {
    room: Arc<Reservation>,
    medium: Medium,
    /// Whether windows are of whole huge pages, as the file's are.
    huge: bool,
    /// A bit for each slot that is in use.
    used: AtomicU32,
}

/// A slot that is in use.
pub(super) struct Slot<'a> {
    windows: &'a Windows,
    number: u32,
    at: *mut u8,
    len: usize,
}

impl Windows {
    pub fn new(region: &Region<'_>) -> Result<Windows, Error> {
        Ok(Windows {
            room: Reservation::new(SLOTS as usize * HUGE)?,
            medium: region.options.medium,
            huge: !super::takes_writes(region.fd),
            used: AtomicU32::new(0),
        })
    }

    pub fn begin(&self) -> Result<(), Error> {
        close_over(self.room.addr() as *mut u8, self.room.len())?;
        self.used.store(0, Release);
        Ok(())
    }

    /// Opens `len` bytes at `at` of the file, which lie in one huge page.
    pub fn open(&self, fd: BorrowedFd<'_>, at: u64, len: usize) -> Result<Open<'_>, Error> {
        let number = self.take();
        let (first, whole) = match self.huge {
            true => (at / HUGE as u64 * HUGE as u64, HUGE),
            false => pages(at, len),
        };
        let place = (self.room.addr() + number as usize * HUGE) as *mut u8;
        let slot = Slot {
            windows: self,
            number,
            at: place,
            len: whole,
        };
        map_over((place, whole), fd, first, self.medium)?;
        if whole > PAGE && !self.huge {
            // SAFETY: whole pages of the window just mapped for writing.
            let _ = unsafe { sys::populate(place, whole, true) };
        }
        let byte = place.wrapping_add((at - first) as usize);
        Ok(Open::new(byte, Closing::Window(slot)))
    }

    fn take(&self) -> u32 {
        loop {
            let used = self.used.load(Relaxed);
            let number = used.trailing_ones();
            if number >= SLOTS {
                rustix::thread::sched_yield();
                continue;
            }
            let taken = used | 1 << number;
            if self
                .used
                .compare_exchange(used, taken, Acquire, Relaxed)
                .is_ok()
            {
                return number;
            }
        }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        // What cannot be closed stays taken, and open: the next copy would find it so, too.
        if close_over(self.at, self.len).is_ok() {
            self.windows.used.fetch_and(!(1 << self.number), Release);
        }
    }
}
