//! A volume as a range of bytes, for clients whose requests are of any length at any offset.
//!
//! Invariant: bytes beside a write keep their values, whatever is written there at the same time.
//! A sector of which a part changes is read and written while nobody else writes.

use holdfast::{Result, Volume, Written, Zeroes};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::{PoisonError, RwLock};

thread_local! {
    /// What a thread reads into. Its sectors are around a request, so it is hardly larger.
    static ROOM: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Data,
    Hole,
}

pub struct Bytes {
    volume: Volume,
    sector: u64,
    /// Held for writing by those who change parts of sectors, for reading by those who write
    /// whole ones.
    parts: RwLock<()>,
}

impl Bytes {
    pub fn new(volume: Volume) -> Bytes {
        Bytes {
            sector: volume.sector().bytes(),
            volume,
            parts: RwLock::new(()),
        }
    }

    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    pub fn size(&self) -> u64 {
        self.volume.size()
    }

    /// Gives `take` what there is of a range: less than `len` at the end, nothing behind it.
    pub fn read<T>(&self, at: u64, len: usize, take: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let range = self.within(at, len as u64);
        with_room(|room| {
            let around = self.around(&range);
            let bytes = fit(room, len_of(&around));
            self.volume.read(bytes, around.start)?;
            let skip = (range.start - around.start) as usize;
            let part = bytes.get(skip..skip + len_of(&range)).unwrap_or_default();
            Ok(take(part))
        })
    }

    /// Writes what the volume has room for; says how much.
    pub fn write(&self, bytes: &[u8], at: u64, durable: Written) -> Result<usize> {
        let range = self.within(at, bytes.len() as u64);
        let bytes = bytes.get(..len_of(&range)).unwrap_or_default();
        if self.around(&range) == range {
            let _whole = self.parts.read().unwrap_or_else(PoisonError::into_inner);
            self.volume.write(bytes, range.start, durable)?;
        } else {
            self.write_part(bytes, range.start, durable)?;
        }
        Ok(bytes.len())
    }

    /// Writes bytes that are not whole sectors, all of them within the volume.
    fn write_part(&self, bytes: &[u8], at: u64, durable: Written) -> Result<()> {
        let around = self.around(&(at..at + bytes.len() as u64));
        let _alone = self.parts.write().unwrap_or_else(PoisonError::into_inner);
        with_room(|room| {
            let sectors = fit(room, len_of(&around));
            self.volume.read(sectors, around.start)?;
            let skip = (at - around.start) as usize;
            if let Some(part) = sectors.get_mut(skip..skip + bytes.len()) {
                part.copy_from_slice(bytes);
            }
            self.volume.write(sectors, around.start, durable)
        })
    }

    /// Zeroes what there is of a range. `Zeroes::Hole` gives the space of whole sectors back.
    pub fn zero(&self, at: u64, len: u64, zeroes: Zeroes) -> Result<()> {
        let range = self.within(at, len);
        let start = range.start.next_multiple_of(self.sector).min(range.end);
        let end = (range.end & !(self.sector - 1)).max(start);
        let parts = [range.start..start, end..range.end];
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            let zeroes = vec![0; len_of(&part)];
            self.write_part(&zeroes, part.start, Written::AtFlush)?;
        }
        let _whole = self.parts.read().unwrap_or_else(PoisonError::into_inner);
        match zeroes {
            _ if start == end => Ok(()),
            Zeroes::Hole => self.volume.trim(start, end - start),
            Zeroes::Blocks => self.volume.write_zeroes(start, end - start, zeroes),
        }
    }

    /// Where the first data or hole is, from `at` on. The end of the volume is a hole.
    pub fn seek(&self, at: u64, wanted: Wanted) -> Result<Option<u64>> {
        let size = self.size();
        let mut here = at & !(self.sector - 1);
        while here < size {
            let extent = self.volume.extent(here)?;
            if extent.hole == (wanted == Wanted::Hole) {
                return Ok(Some(here.max(at)));
            }
            // It may end amid a sector.
            let end = extent.end & !(self.sector - 1);
            here = end.max(here + self.sector);
        }
        Ok((wanted == Wanted::Hole && at < size).then_some(size))
    }

    /// What the volume has of a range.
    fn within(&self, at: u64, len: u64) -> Range<u64> {
        let size = self.size();
        let start = at.min(size);
        start..at.saturating_add(len).min(size).max(start)
    }

    /// The whole sectors around a range.
    fn around(&self, range: &Range<u64>) -> Range<u64> {
        (range.start & !(self.sector - 1))..range.end.next_multiple_of(self.sector)
    }
}

fn len_of(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}

/// The first `len` bytes of a room that grows as needed.
pub fn fit(room: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if room.len() < len {
        room.resize(len, 0);
    }
    room.get_mut(..len).unwrap_or_default()
}

/// Lends the thread's room.
pub fn with_room<T>(f: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    ROOM.with_borrow_mut(f)
}
