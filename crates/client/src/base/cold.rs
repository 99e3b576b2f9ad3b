//! Copies from and to file data that may not be in memory.
//!
//! On an ordinary file a copy through the mapping is fastest for pages that are in memory. For
//! others it is the slowest way: each page faults on its own, or the kernel guesses what to read
//! around it, and a store first reads what it is going to replace. A system call tells the kernel
//! at once what is wanted, and the kernel reads ahead of it as for any file.
//!
//! Invariants:
//!  * This is only for speed: both ways lead to the same pages.
//!  * One copy that took as long as a device shows that a file is cold. `STREAK` fast copies in a
//!    row show that it is not, however long they are: if they had fewer bytes than the kernel reads
//!    ahead, they would show nothing. A process treats every file as cold at first, because it has
//!    no page of it mapped.

use pmem::atomic::{AtomicU32, Ordering::*};
use pmem::env::ticks;
use pmem::{ConstBuf, Fault, MutBuf, Region};

/// Longer writes are always made by the kernel: the first store to each page faults.
const WRITE_THROUGH_MIN: usize = 32 * 1024;
/// Bytes that are read before it is asked whether they were in memory.
const PIECE: usize = 64 * 1024;
/// A copy of no bytes that takes so many ticks, some 10 us, waited for something.
const SLOW: u64 = 1 << 15;
/// Fast copies after which the mapping is used again.
const STREAK: u32 = 64;
/// Files that share no state.
const FILES: usize = 64;
/// The clock is read for copies that include one of so many blocks: it is cheap, not free.
const WATCHED: u64 = 4;

const BLOCK: u64 = 4096;

/// The file of all values in keyspaces.
pub(crate) const VALUES: u32 = 0;

/// For each file, how many more copies are made by system calls.
pub(crate) struct Cold([AtomicU32; FILES]);

impl Default for Cold {
    fn default() -> Cold {
        Cold([const { AtomicU32::new(STREAK) }; FILES])
    }
}

impl Cold {
    #[inline]
    fn of(&self, file: u32) -> &AtomicU32 {
        &self.0[file as usize % FILES]
    }

    /// Copies out of the data segment, for the file with this number.
    #[inline]
    pub fn copy_out(&self, data: &Region, file: u32, off: u64, to: MutBuf) -> Result<usize, Fault> {
        let (n, left) = (to.len(), self.of(file));
        if left.load(Relaxed) > 0 || n > PIECE {
            return copy_out_pieces(data, left, off, to);
        }
        match is_watched(off, n) {
            false => data.copy_out(off, to),
            true => watched(left, n, || data.copy_out(off, to)),
        }
    }

    /// Copies into the data segment, whose dirty blocks are noted, for the file with this number.
    /// A store through the mapping to a page that is clean faults, and the kernel takes all of its
    /// folio for dirty, which may be much longer.
    #[inline]
    pub fn copy_in(
        &self,
        data: &Region,
        file: u32,
        off: u64,
        from: ConstBuf,
    ) -> Result<usize, Fault> {
        let n = from.len();
        let is_dirty = || data.dirty().is_none_or(|dirty| dirty.has(off / BLOCK));
        if n >= WRITE_THROUGH_MIN || !is_dirty() {
            return data.write_through(off, from);
        }
        let left = self.of(file);
        if left.load(Relaxed) > 0 {
            return in_streak(left, n, || data.write_through(off, from));
        }
        match is_watched(off, n) {
            false => data.copy_in(off, from),
            true => watched(left, n, || data.copy_in(off, from)),
        }
    }
}

/// Piece by piece through the mapping until one is slow, and all that is left by a system call.
#[cold]
fn copy_out_pieces(
    data: &Region,
    left: &AtomicU32,
    off: u64,
    mut to: MutBuf,
) -> Result<usize, Fault> {
    let n = to.len();
    let mut done = 0;
    while done < n {
        let at = off + done as u64;
        let copied = match left.load(Relaxed) {
            0 => {
                let mut rest = to.reborrow();
                let piece = rest.take(PIECE.min(n - done));
                watched(left, piece.len(), || data.copy_out(at, piece))
            }
            _ => in_streak(left, n - done, || data.read_through(at, to.reborrow())),
        };
        let copied = copied.map_err(|fault| later(fault, done))?;
        to.advance(copied);
        done += copied;
    }
    Ok(n)
}

/// The same fault when `before` bytes were copied by earlier pieces.
pub(crate) fn later(fault: Fault, before: usize) -> Fault {
    match fault {
        Fault::BadAddress { copied } => Fault::BadAddress {
            copied: copied + before,
        },
        Fault::Media { copied } => Fault::Media {
            copied: copied + before,
        },
        Fault::OutOfRange => Fault::OutOfRange,
    }
}

#[inline]
fn is_watched(off: u64, n: usize) -> bool {
    let first = (off / BLOCK).next_multiple_of(WATCHED);
    first * BLOCK < off + n as u64
}

/// Runs `copy`; whether it waited for something.
#[inline]
fn timed<T>(n: usize, copy: impl FnOnce() -> T) -> (T, bool) {
    let begun = ticks();
    let done = copy();
    (done, ticks().wrapping_sub(begun) > SLOW + n as u64)
}

#[inline]
fn watched<T>(left: &AtomicU32, n: usize, copy: impl FnOnce() -> T) -> T {
    let (done, slow) = timed(n, copy);
    if slow {
        left.store(STREAK, Relaxed);
    }
    done
}

#[cold]
fn in_streak<T>(left: &AtomicU32, n: usize, copy: impl FnOnce() -> T) -> T {
    let (done, slow) = timed(n, copy);
    let next = match slow {
        true => STREAK,
        false => left.load(Relaxed).saturating_sub(1),
    };
    left.store(next, Relaxed);
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    fn sleep() {
        std::thread::sleep(Duration::from_millis(2));
    }

    #[test]
    fn copies_of_several_blocks_and_some_of_single_ones_are_watched() {
        let single = |block: u64| is_watched(block * BLOCK, BLOCK as usize);
        assert_eq!((0..64).filter(|block| single(*block)).count(), 16);
        assert!((0..64).all(|block| is_watched(block * BLOCK, (WATCHED * BLOCK) as usize)));
        assert!(is_watched(WATCHED * BLOCK - 1, 2));
        assert!(!is_watched(BLOCK, 0));
    }

    #[test]
    fn a_wait_begins_a_streak_and_fast_copies_end_it() {
        let left = AtomicU32::new(0);
        watched(&left, 4096, sleep);
        assert_eq!(left.load(Relaxed), STREAK);
        // A thread that has to yield the processor looks as if it had waited.
        let calls = (1..100_000).find(|_| {
            in_streak(&left, 4096, || ());
            left.load(Relaxed) == 0
        });
        assert!(calls.is_some_and(|n| n >= STREAK));
        watched(&left, 4096, sleep);
        in_streak(&left, 4096, sleep);
        assert_eq!(left.load(Relaxed), STREAK);
        // Long copies count as short ones.
        in_streak(&left, 1 << 30, || ());
        assert_eq!(left.load(Relaxed), STREAK - 1);
    }
}
