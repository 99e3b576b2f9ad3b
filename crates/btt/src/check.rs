//! Whether a table is whole: each block is free in one lane, or has one sector.

use crate::arena::{Arena, NEIGHBOURS};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::flog;
use crate::map::Entry;
use std::ops::Range;

/// What a check found that nobody had to mend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Sectors of the table.
    pub sectors: u64,
    /// Those that were written.
    pub written: u64,
    /// Those that are marked as unreadable.
    pub unreadable: u64,
    /// Those that have other bytes than were written to them, as far as checksums tell.
    pub changed: Vec<u64>,
}

/// Blocks that somebody has.
struct Owned {
    bits: Vec<u64>,
}

impl Owned {
    /// False if somebody has it already.
    fn take(&mut self, block: u32) -> bool {
        let (word, bit) = (block as usize / 64, 1 << (block % 64));
        let word = self.bits.get_mut(word);
        word.is_some_and(|word| {
            let free = *word & bit == 0;
            *word |= bit;
            free
        })
    }

    fn take_all(&mut self, blocks: Range<u32>) -> bool {
        let mut rest = blocks;
        let mut free = true;
        while let Some(block) = rest.next() {
            let word = self.bits.get_mut(block as usize / 64);
            match word {
                Some(word) if block.is_multiple_of(64) && rest.len() >= 63 => {
                    free &= *word == 0;
                    *word = u64::MAX;
                    rest.start = block + 64;
                }
                _ => free &= self.take(block),
            }
        }
        free
    }
}

impl Arena {
    /// Nobody writes meanwhile.
    pub fn check<D: Device>(&self, device: &D, found: &mut Checked) -> Result<(), D::Error> {
        let layout = &self.layout;
        let mut owned = Owned {
            bits: vec![0; (layout.blocks as usize).div_ceil(64)],
        };
        let twice = |what, at| Err(Error::Damaged { what, at });
        for lane in 0..layout.lanes as usize {
            let (at, mut group) = (layout.log(lane), [0; flog::LEN]);
            device.read(&mut group, at)?;
            match self.newest(&group) {
                Some((_, newest)) if owned.take(newest.old) => {}
                _ => return twice("the log", at),
            }
        }
        let mut entries = [Entry::default(); NEIGHBOURS as usize];
        let mut sector = 0;
        while sector < layout.sectors {
            let unset = self.unset(device, sector..layout.sectors)?;
            if unset > 0 {
                if !owned.take_all(sector..sector + unset) {
                    return twice("the map", layout.entry(sector));
                }
                sector += unset;
                continue;
            }
            let count = NEIGHBOURS.min(layout.sectors - sector);
            let some = &mut entries[..count as usize];
            self.entries(device, sector, some)?;
            for (entry, sector) in some.iter().zip(sector..) {
                if !owned.take(entry.block(sector)) {
                    return twice("the map", layout.entry(sector));
                }
                found.written += u64::from(!entry.is_initial() && !entry.is_zeroes());
                found.unreadable += u64::from(entry.is_error());
                // Nothing is read of it that could be seen to be another sector's.
                if entry.is_zeroes() || entry.is_error() {
                    self.owns(device, std::slice::from_ref(entry), sector)?;
                }
            }
            if layout.sums.is_some() {
                self.scrub(device, sector..sector + count, found)?;
            }
            sector += count;
        }
        found.sectors += u64::from(layout.sectors);
        Ok(())
    }

    /// Reads neighbours, and finds those that have changed.
    fn scrub<D: Device>(
        &self,
        device: &D,
        sectors: Range<u32>,
        found: &mut Checked,
    ) -> Result<(), D::Error> {
        let size = self.layout.sector as usize;
        let mut room = vec![0; sectors.len() * size];
        match self.read(device, &mut room, sectors.start) {
            Err(Error::Changed { .. } | Error::Unreadable { .. }) => {}
            read => return read,
        }
        for (room, sector) in room.chunks_exact_mut(size).zip(sectors) {
            match self.read(device, room, sector) {
                Err(Error::Changed { sector }) => found.changed.push(sector),
                Err(Error::Unreadable { .. }) | Ok(()) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}
