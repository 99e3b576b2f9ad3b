//! What the journal of an ordinary file proves about the bytes of blocks after a loss of power.
//!
//! Invariants:
//!  * Only records below the number at which recovery ends count.
//!  * A block has evidence for a record if a later `DATA` has its bytes, or a later `IN_PLACE` says
//!    that what was stored there before a number above the record's was durable.
//!  * Blocks are identified by the words of their addresses: those of another data segment than 0
//!    are beyond the limit.
//!  * All numbers come from a journal that clients wrote: runs are cut to the pool, and no work is
//!    longer than the records themselves.

use crate::journal::lane::Entry;
use holdfast_pool::checksum::crc32c;
use holdfast_pool::format::PAGE_LEN;
use holdfast_pool::journal::{self, BlockRuns, Change, Ops, Record};
use holdfast_pool::layout::BlockAddr;
use holdfast_pool::layout::value::InBlocks;
use std::collections::BTreeMap;

const PAGE: usize = PAGE_LEN as usize;

/// Bytes of a block as a `DATA` record has them.
type Copies = BTreeMap<u64, Vec<u8>>;

/// What is proved.
#[derive(Debug, Default)]
pub struct Evidence {
    /// Blocks of the pool.
    limit: u64,
    /// For each block the bytes that records have, by their numbers.
    copies: BTreeMap<u64, Copies>,
    in_place: InPlace,
}

impl Evidence {
    /// Of the records below `end`; the pool has `limit` blocks.
    pub fn collect<'a>(entries: impl Iterator<Item = &'a Entry>, end: u64, limit: u64) -> Evidence {
        let mut evidence = Evidence {
            limit,
            ..Evidence::default()
        };
        let mut runs = Vec::new();
        for entry in entries.filter(|entry| entry.seq < end) {
            match journal::decode_sound(&entry.bytes) {
                Ok((_, Record::Data { block, bytes })) => evidence.copy(entry.seq, block, bytes),
                Ok((
                    _,
                    Record::InPlace {
                        before,
                        runs: named,
                    },
                )) => {
                    // What it says of records behind it cannot be true.
                    let before = before.min(entry.seq);
                    add_runs(&mut runs, before, named, limit);
                }
                _ => {}
            }
        }
        evidence.in_place = InPlace::of(runs);
        evidence
    }

    fn copy(&mut self, seq: u64, first: BlockAddr, bytes: &[u8]) {
        for (block, piece) in (first.word()..self.limit).zip(bytes.chunks(PAGE)) {
            let copies = self.copies.entry(block).or_default();
            copies.insert(seq, piece.to_vec());
        }
    }

    /// The parts of `block..block + len`, which lie in the pool, that have evidence for record
    /// `seq`, in order; none touch.
    pub fn parts(&self, seq: u64, block: BlockAddr, len: u64) -> Vec<(BlockAddr, u64)> {
        let (block, end) = (block.word(), block.end(len).word().min(self.limit));
        let copied = self.copies.range(block..end.max(block));
        let copied = copied.filter(|(_, copies)| copies.range(seq + 1..).next().is_some());
        let mut parts: Vec<(u64, u64)> = copied.map(|(block, _)| (*block, *block + 1)).collect();
        parts.extend(self.in_place.after(seq, block, end));
        parts.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for (from, to) in parts {
            match joined.last_mut() {
                Some(last) if last.1 >= from => last.1 = last.1.max(to),
                _ => joined.push((from, to)),
            }
        }
        joined
            .into_iter()
            .map(|(from, to)| (BlockAddr::from_word(from), to - from))
            .collect()
    }

    /// Whether all of the blocks have evidence for record `seq`.
    pub fn covers(&self, seq: u64, block: BlockAddr, len: u64) -> bool {
        self.parts(seq, block, len) == [(block, len)]
    }

    /// Whether all values in blocks among these changes have evidence among the records that were
    /// read. It is older than the changes, so a checkpoint may have come between, which put the
    /// bytes in place and the evidence out of sight: only where records are lost this says
    /// anything.
    pub fn covers_values(&self, ops: &[u8]) -> bool {
        Ops::new(ops).flatten().all(|op| match op.change {
            Change::PutBlocks(runs) | Change::PutBlocksUntil(_, runs) => InBlocks::decode(runs)
                .is_ok_and(|blocks| {
                    let mut runs = blocks.runs().iter();
                    runs.all(|run| self.covers(0, run.block, run.len.into()))
                }),
            _ => true,
        })
    }

    /// Whether what is in a block is newer than what record `seq` has of it.
    pub fn is_newer_in_place(&self, seq: u64, block: BlockAddr) -> bool {
        let (block, end) = (block.word(), block.end(1).word());
        let mut after = self.in_place.after(seq, block, end);
        after.next().is_some()
    }

    /// Changes `bytes` that were read from `blocks` to what they were when record `seq` was
    /// written, as far as a later record has them; false: nothing was changed.
    pub fn restore(&self, seq: u64, blocks: &InBlocks, bytes: &mut [u8]) -> bool {
        let runs = blocks.runs().iter();
        let numbers = runs.flat_map(|run| run.block.word()..run.block.end(run.len.into()).word());
        let mut changed = false;
        for (piece, block) in bytes.chunks_mut(PAGE).zip(numbers) {
            let copies = self.copies.get(&block);
            let Some((_, copy)) = copies.and_then(|c| c.range(seq + 1..).next()) else {
                continue;
            };
            let n = copy.len().min(piece.len());
            piece[..n].copy_from_slice(&copy[..n]);
            piece[n..].fill(0);
            changed = true;
        }
        changed
    }

    /// The changes of a `SPILLED` record, whose blocks hold `bytes`; `None`: they are not there.
    pub fn spilled(
        &self,
        seq: u64,
        blocks: &InBlocks,
        mut bytes: Vec<u8>,
        sum: u32,
    ) -> Option<Vec<u8>> {
        let is_it = |bytes: &[u8]| crc32c(bytes) == sum;
        let there = is_it(&bytes) || self.restore(seq, blocks, &mut bytes) && is_it(&bytes);
        there.then_some(bytes)
    }
}

/// First block, end, and the number before which all was in place.
type Run = (u64, u64, u64);

fn add_runs(out: &mut Vec<Run>, before: u64, named: &[u8], limit: u64) {
    if named.is_empty() {
        out.push((0, limit, before));
    }
    for (block, len) in BlockRuns::decode(named).into_iter().flatten() {
        let (block, end) = (block.word(), block.end(len).word().min(limit));
        if block < end {
            out.push((block, end, before));
        }
    }
}

/// Which blocks were in place before which number: runs that do not overlap.
#[derive(Debug, Default)]
struct InPlace {
    /// First block, to end and number.
    runs: BTreeMap<u64, (u64, u64)>,
}

impl InPlace {
    /// Where runs overlap the highest number counts.
    fn of(runs: Vec<Run>) -> InPlace {
        let mut edges: Vec<(u64, bool, u64)> = Vec::with_capacity(2 * runs.len());
        for (from, to, before) in runs {
            edges.extend([(from, true, before), (to, false, before)]);
        }
        edges.sort_unstable();
        // Runs that are open at the place we have come to, each with a number of its own.
        let mut open: BTreeMap<u64, usize> = BTreeMap::new();
        let (mut found, mut at) = (InPlace::default(), 0);
        for (edge, begins, before) in edges {
            if let Some((highest, _)) = open.last_key_value()
                && at < edge
            {
                found.push(at, edge, *highest);
            }
            at = edge;
            let count = open.entry(before).or_default();
            *count = if begins {
                *count + 1
            } else {
                count.saturating_sub(1)
            };
            if *count == 0 {
                open.remove(&before);
            }
        }
        found
    }

    fn push(&mut self, from: u64, to: u64, before: u64) {
        if let Some(mut last) = self.runs.last_entry()
            && *last.get() == (from, before)
        {
            last.get_mut().0 = to;
            return;
        }
        self.runs.insert(from, (to, before));
    }

    /// The parts of `from..to` that were in place before a number above `seq`.
    fn after(&self, seq: u64, from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let first = self
            .runs
            .range(..=from)
            .next_back()
            .map_or(from, |(start, _)| *start);
        let runs = self.runs.range(first..to.max(first));
        runs.filter_map(move |(start, (end, before))| {
            let (start, end) = (from.max(*start), to.min(*end));
            (*before > seq && start < end).then_some((start, end))
        })
    }
}

/// The number at which recovery ends: the first that is missing and not void. Missing numbers are
/// void up to `limit`; `far` more of them than that at once are never.
pub fn end_of_records(mut numbers: Vec<u64>, next: u64, limit: u64, far: u64) -> u64 {
    numbers.sort_unstable();
    let mut at = next;
    for number in numbers {
        let ahead = number.saturating_sub(at);
        if ahead > far || ahead > 0 && number > limit.saturating_add(1) {
            break;
        }
        at = at.max(number.saturating_add(1));
    }
    at
}
