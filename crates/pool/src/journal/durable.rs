//! Fields of the records that say what is durable on an ordinary file.
//!
//! Invariants: `decode` accepts exactly what `encode` makes; block runs are not empty, and the sum
//! of their lengths and every end fit a `u64`.

use super::record::{MARK_LANES_LEN, RECORD_MAX};
use crate::format::LANES;
use crate::layout::BlockAddr;

/// How far each lane reached when a mark was written, and how far each was durable before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MarkLanes {
    /// Position behind the last record of each lane.
    pub heads: [u64; LANES],
    /// The same of the last mark that a flush had made durable.
    pub acked: [u64; LANES],
}

impl MarkLanes {
    /// As `Record::SyncMark::lanes`.
    pub fn encode(&self) -> [u8; MARK_LANES_LEN] {
        let mut out = [0; MARK_LANES_LEN];
        let words = self.heads.iter().chain(&self.acked);
        for (place, word) in out.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// What `encode` made.
    pub fn decode(bytes: &[u8]) -> Option<MarkLanes> {
        if bytes.len() != MARK_LANES_LEN {
            return None;
        }
        let mut lanes = MarkLanes::default();
        let places = lanes.heads.iter_mut().chain(&mut lanes.acked);
        for (place, word) in places.zip(bytes.chunks_exact(8)) {
            *place = u64::from_le_bytes(word.try_into().ok()?);
        }
        Some(lanes)
    }
}

/// Bytes of one run in `Record::InPlace::runs`: first block u64, length u64.
const RUN: usize = 16;

/// Runs of blocks for one `Record::InPlace`.
pub struct BlockRuns {
    bytes: [u8; BlockRuns::MAX * RUN],
    len: usize,
}

impl BlockRuns {
    /// Runs that one record has room for.
    pub const MAX: usize = (RECORD_MAX / 4) / RUN;

    pub fn new() -> BlockRuns {
        let bytes = [0; BlockRuns::MAX * RUN];
        BlockRuns { bytes, len: 0 }
    }

    /// False: there is no room.
    pub fn push(&mut self, block: BlockAddr, len: u64) -> bool {
        let Some(place) = self.bytes.get_mut(self.len * RUN..(self.len + 1) * RUN) else {
            return false;
        };
        place[..8].copy_from_slice(&block.word().to_le_bytes());
        place[8..].copy_from_slice(&len.to_le_bytes());
        self.len += 1;
        true
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// As `Record::InPlace::runs`.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len * RUN]
    }

    /// The runs (first block, length) in the bytes of a record; `None` where they are no runs.
    pub fn decode(bytes: &[u8]) -> Option<impl Iterator<Item = (BlockAddr, u64)> + '_> {
        let run = |run: &[u8]| {
            let word = |at: usize| run.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
            let (block, len) = (word(0)?, word(8)?);
            let sound = len > 0 && block.checked_add(len).is_some();
            sound.then_some((BlockAddr::from_word(block), len))
        };
        let sound = bytes.len().is_multiple_of(RUN) && bytes.chunks(RUN).all(|r| run(r).is_some());
        sound.then(|| bytes.chunks(RUN).filter_map(run))
    }
}

impl Default for BlockRuns {
    fn default() -> Self {
        BlockRuns::new()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    #[test]
    fn lanes_of_a_mark_come_back() {
        let mut lanes = MarkLanes::default();
        for i in 0..LANES {
            (lanes.heads[i], lanes.acked[i]) = (i as u64 * 64 + 1, i as u64 + 7);
        }
        let bytes = lanes.encode();
        assert_eq!(MarkLanes::decode(&bytes), Some(lanes));
        assert_eq!(MarkLanes::decode(&bytes[1..]), None);
    }

    #[test]
    fn runs_come_back_and_impossible_ones_are_none() {
        let mut runs = BlockRuns::new();
        for i in 0..BlockRuns::MAX as u64 {
            assert!(runs.push(BlockAddr::new(0, i * 3), i + 1));
        }
        assert!(!runs.push(BlockAddr::new(0, 1), 1));
        let back: Vec<_> = BlockRuns::decode(runs.as_bytes()).unwrap().collect();
        assert_eq!(back.len(), BlockRuns::MAX);
        assert_eq!(back[5], (BlockAddr::new(0, 15), 6));
        for (block, len) in [(0, 0), (u64::MAX, 2)] {
            let mut bad = BlockRuns::new();
            bad.push(BlockAddr::from_word(block), len);
            assert!(BlockRuns::decode(bad.as_bytes()).is_none());
        }
        assert!(BlockRuns::decode(&[0; 15]).is_none());
    }
}
