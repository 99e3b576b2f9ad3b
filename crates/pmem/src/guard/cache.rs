//! `pmap-cache`: a few windows stay open for the next copies (the mapping cache of Choi et al.,
//! "Efficient Memory Mapped File I/O for In-Memory File Systems", HotStorage 2017, for writing).
//!
//! What always holds here: at most `WINDOWS` windows of 2 MiB are open; one that a copy uses is not
//! mapped over; one that was not used for `IDLE` ticks is closed by the next copy, whichever it is.

use super::file::RegionFile;
use super::{Closing, Open, Region, pages};
use crate::cpu::ticks;
use crate::map::{HUGE, Reservation, close_over, map_over};
use crate::spin::Spin;
use crate::{Error, Medium, PAGE, sys};
use alloc::sync::Arc;

const WINDOWS: usize = 8;
/// About a millisecond.
const IDLE: u64 = 1 << 21;
const NOTHING: u64 = u64::MAX;

pub(super) struct Cache {
    room: Arc<Reservation>,
    medium: Medium,
    /// Where the file ends, as far as it is the region.
    end: u64,
    windows: Spin<[Window; WINDOWS]>,
}

#[derive(Clone, Copy)]
struct Window {
    /// Where in the file it begins, or `NOTHING`.
    at: u64,
    /// Copies that use it now.
    users: u32,
    /// When one last began to.
    used: u64,
}

const NONE: Window = Window {
    at: NOTHING,
    users: 0,
    used: 0,
};

/// A window that is in use.
pub(super) struct Used<'a> {
    cache: &'a Cache,
    number: usize,
}

impl Cache {
    pub fn new(region: &Region<'_>) -> Result<Cache, Error> {
        Ok(Cache {
            room: Reservation::new(WINDOWS * HUGE)?,
            medium: region.options.medium,
            end: region.offset + region.len as u64,
            windows: Spin::new([NONE; WINDOWS]),
        })
    }

    pub fn begin(&self) -> Result<(), Error> {
        self.windows.release();
        close_over(self.room.addr() as *mut u8, self.room.len())?;
        *self.windows.lock() = [NONE; WINDOWS];
        Ok(())
    }

    /// Opens `len` bytes at `at` of the file, which lie in one huge page.
    pub fn open(&self, file: &RegionFile, at: u64, len: usize) -> Result<Open<'_>, Error> {
        let begin = at / HUGE as u64 * HUGE as u64;
        loop {
            if let Some(number) = self.window(file, begin)? {
                let byte = self.place(number).wrapping_add((at - begin) as usize);
                if len > PAGE {
                    let (first, whole) = pages(at - begin, len);
                    let first = self.place(number).wrapping_add(first as usize);
                    // Each page would fault by itself; those that are mapped cost little.
                    // SAFETY: whole pages of a window that is mapped for writing, and in use.
                    let _ = unsafe { sys::populate(first, whole, true) };
                }
                let used = Used {
                    cache: self,
                    number,
                };
                return Ok(Open::new(byte, Closing::Cache(used)));
            }
            rustix::thread::sched_yield();
        }
    }

    fn place(&self, number: usize) -> *mut u8 {
        (self.room.addr() + number * HUGE) as *mut u8
    }

    /// A window that shows the huge page at `begin`, with one user more; `None` while all others
    /// are in use.
    fn window(&self, file: &RegionFile, begin: u64) -> Result<Option<usize>, Error> {
        let now = ticks();
        let mut windows = self.windows.lock();
        for (number, window) in windows.iter_mut().enumerate() {
            let idle = window.users == 0 && now.wrapping_sub(window.used) > IDLE;
            if window.at != begin && window.at != NOTHING && idle {
                close_over(self.place(number), HUGE)?;
                window.at = NOTHING;
            }
        }
        let known = windows.iter().position(|window| window.at == begin);
        let number = match known {
            Some(number) => number,
            None => {
                let free = windows.iter().enumerate().filter(|(_, w)| w.users == 0);
                let oldest = free.min_by_key(|(_, w)| if w.at == NOTHING { 0 } else { w.used });
                let Some((number, _)) = oldest else {
                    return Ok(None);
                };
                if let Some(window) = windows.get_mut(number) {
                    window.at = NOTHING;
                }
                let len = (self.end - begin).next_multiple_of(PAGE as u64);
                let len = (len as usize).min(HUGE);
                map_over(
                    (self.place(number), len),
                    file.borrow()?,
                    begin,
                    self.medium,
                )?;
                number
            }
        };
        if let Some(window) = windows.get_mut(number) {
            *window = Window {
                at: begin,
                users: window.users + 1,
                used: now,
            };
        }
        Ok(Some(number))
    }
}

impl Drop for Used<'_> {
    fn drop(&mut self) {
        if let Some(window) = self.cache.windows.lock().get_mut(self.number) {
            window.users -= 1;
        }
    }
}
