//! Removing blocks from files.
//!
//! Invariants:
//!  * The work for one call is bounded, however many extents are removed: a few are erased one by
//!    one; more are cut out of the tree as a range, most of which is freed later.
//!  * The number of blocks in a range is known before the first change. Counting reads each extent,
//!    so it is done `COUNT_MAX` extents at a time: a record that needs more ends in
//!    `Failure::Later`, has changed nothing, and continues counting when it is applied again.
//!  * A count is valid for the record for which it was begun, until another record is applied.

use super::{Applier, Failure, Grants, Result, Store};
use crate::layout::extent::{self, Extent};
use crate::layout::{EXTENTS, FILE_BLOCKS_MAX};
use alloc::vec::Vec;

/// Extents that are erased one by one.
const FEW: usize = 4;
/// Extents that are counted at a time: about a millisecond of work.
const COUNT_MAX: usize = 64 * 1024;

/// A count that goes on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counting {
    /// The record that it is for.
    seq: u64,
    /// The first file block that was not looked at.
    at: u64,
    blocks: u64,
}

/// How many extents an applier counts at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountLimit(pub usize);

impl CountLimit {
    pub const NONE: CountLimit = CountLimit(usize::MAX);
    pub const STEP: CountLimit = CountLimit(COUNT_MAX);
}

impl<S: Store, G: Grants> Applier<'_, S, G> {
    /// Makes the file blocks `from..to` a hole; how many blocks that freed.
    pub(super) fn unmap(&mut self, ino: u64, from: u64, to: u64) -> Result<u64, S> {
        let mut few = [None; FEW];
        let counted = match self.find_few(ino, from, to, &mut few)? {
            true => None,
            false => Some(self.count_blocks(ino, from, to)?),
        };
        let mut freed = 0;
        let covering = extent::covering(&*self.store, ino, from).map_err(Failure::Store)?;
        if let Some(e) = covering.filter(|e| e.file_block < from) {
            freed += self.cut(ino, e, from, to)?;
        }
        let Some(inside) = counted else {
            for e in few.into_iter().flatten() {
                freed += self.cut(ino, e, from, to)?;
            }
            return Ok(freed);
        };
        let last = extent::previous(&*self.store, ino, to).map_err(Failure::Store)?;
        if let Some(e) = last.filter(|e| e.file_block < to && e.end() > to) {
            self.cut(ino, e, from, to)?;
        }
        self.cut_extents(ino, from, to)?;
        Ok(freed + inside)
    }

    /// Frees all extents of a file.
    pub(super) fn drop_extents(&mut self, ino: u64) -> Result<(), S> {
        let mut few = [None; FEW];
        if !self.find_few(ino, 0, FILE_BLOCKS_MAX, &mut few)? {
            return self.cut_extents(ino, 0, FILE_BLOCKS_MAX);
        }
        for e in few.iter().flatten() {
            self.free_extent(e)?;
            self.erase_extent(ino, e.file_block)?;
        }
        Ok(())
    }

    /// The extents that start in `from..to`; false: there are more than have room.
    fn find_few(
        &self,
        ino: u64,
        from: u64,
        to: u64,
        few: &mut [Option<Extent>; FEW],
    ) -> Result<bool, S> {
        let (mut at, mut places) = (from, few.iter_mut());
        while let Some(e) = extent::next(&*self.store, ino, at).map_err(Failure::Store)? {
            if e.file_block >= to {
                break;
            }
            let Some(place) = places.next() else {
                return Ok(false);
            };
            *place = Some(e);
            at = e.end();
        }
        Ok(true)
    }

    /// The blocks inside `from..to` of the extents that start there.
    fn count_blocks(&mut self, ino: u64, from: u64, to: u64) -> Result<u64, S> {
        let seq = self.seq;
        let begun = self.carry.counting.take().filter(|c| c.seq == seq);
        let (mut at, mut blocks) = begun.map_or((from, 0), |c| (c.at, c.blocks));
        let (first, end) = (extent::key(ino, at), extent::key(ino, to));
        let (mut left, mut bad) = (self.count_limit.0, None);
        let mut see = |key: &[u8], value: &[u8]| {
            let read = extent::parse_key(key).and_then(|(_, at)| Extent::decode(at, value));
            match read {
                Ok(_) if left == 0 => return false,
                Ok(e) => (at, blocks) = (e.end(), blocks + e.end().min(to) - e.file_block),
                Err(e) => bad = Some(e),
            }
            left = left.saturating_sub(1);
            bad.is_none()
        };
        let all = self.store.each(EXTENTS, &first, &end, &mut see);
        let all = all.map_err(Failure::Store)?;
        match (bad, all) {
            (Some(bad), _) => Err(bad.into()),
            (None, true) => Ok(blocks),
            (None, false) => {
                self.carry.counting = Some(Counting { seq, at, blocks });
                Err(Failure::Later)
            }
        }
    }

    /// Takes the part inside `from..to` out of an extent, and puts the parts outside back.
    fn cut(&mut self, ino: u64, e: Extent, from: u64, to: u64) -> Result<u64, S> {
        let (start, end) = (from.max(e.file_block), to.min(e.end()));
        let block = |at: u64| e.block + (at - e.file_block);
        match start > e.file_block {
            true => {
                let len = (start - e.file_block) as u32;
                self.put_extent(ino, Extent { len, ..e })?;
            }
            false => self.erase_extent(ino, e.file_block)?,
        }
        if end < e.end() {
            let right = Extent {
                file_block: end,
                block: block(end),
                len: (e.end() - end) as u32,
                ..e
            };
            self.put_extent(ino, right)?;
        }
        self.store
            .mark_unused(block(start), end - start, e.epoch)
            .map_err(Failure::Store)?;
        Ok(end - start)
    }

    fn cut_extents(&mut self, ino: u64, from: u64, to: u64) -> Result<(), S> {
        let (first, end) = (extent::key(ino, from), extent::key(ino, to));
        let mut found = Vec::new();
        let mut see = |key: &[u8], value: &[u8]| {
            let read = extent::parse_key(key);
            found.push(read.and_then(|(_, at)| Extent::decode(at, value)));
        };
        let cut = self.store.cut_range(EXTENTS, &first, &end, &mut see);
        cut.map_err(Failure::Store)?;
        for extent in found {
            self.free_extent(&extent?)?;
        }
        Ok(())
    }

    fn free_extent(&mut self, e: &Extent) -> Result<(), S> {
        self.store
            .mark_unused(e.block, e.len.into(), e.epoch)
            .map_err(Failure::Store)
    }
}
