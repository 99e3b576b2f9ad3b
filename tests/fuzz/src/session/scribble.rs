//! What a hostile process changes: words of tables, records in lanes, blocks.

use crate::input::Input;
use crate::journal;
use crate::sample::sample;
use holdfast_pmem::atomic::{AtomicU32, AtomicU64, Ordering::*};
use holdfast_pmem::{Region, SharedMem};
use holdfast_pool::session::*;
use std::mem::size_of;

/// A table: where it is, bytes of an entry, and entries that a client comes to soon.
struct Table {
    at: usize,
    stride: usize,
    count: usize,
}

const fn table<T>(at: usize, count: usize) -> Table {
    let stride = size_of::<T>();
    Table { at, stride, count }
}

const TABLES: &[Table] = &[
    table::<Header>(HEADER_AT, 1),
    table::<Lane>(LANES_AT, 2),
    table::<Slot>(SLOTS_AT, 4),
    table::<RangeLock>(LOCKS_AT, 8),
    table::<Bucket>(INODE_BUCKETS_AT, 16),
    table::<Ofd>(OFDS_AT, 16),
    table::<Inode>(INODES_AT, 32),
    table::<Dentry>(DENTRIES_AT, 32),
    table::<LongDentry>(LONG_DENTRIES_AT, 4),
    table::<FdPage>(FD_TABLES_AT, 1),
    table::<FdPage>(FD_PAGES_AT, 2),
    table::<MapPage>(MAP_PAGES_AT, 8),
    table::<PinTable>(PIN_TABLES_AT, 1),
    table::<ViewPin>(VIEWS_AT, 4),
    table::<Ring>(FREE_AT, CLASSES + 1),
];
/// Tables of chains, of which each entry may be the one that is looked at.
const BUCKETS: &[(usize, usize, usize)] = &[
    (
        DENTRY_BUCKETS_AT,
        size_of::<Bucket>(),
        FIRST_BUCKETS as usize,
    ),
    (VALUE_BUCKETS_AT, size_of::<ValueBucket>(), VALUE_BUCKETS),
];
/// Bytes of an entry that mean most.
const NEAR: usize = 256;
/// The slot of a process that is dead.
const DEAD_SLOT: u32 = 40;

pub struct Scribble<'a> {
    memory: &'a SharedMem,
    journal: Region,
    /// Bytes of a lane of it.
    lane_len: u64,
    data: Region,
}

impl<'a> Scribble<'a> {
    pub fn new(
        memory: &'a SharedMem,
        (journal, lane_len): (Region, u64),
        data: Region,
    ) -> Scribble<'a> {
        Scribble {
            memory,
            journal,
            lane_len,
            data,
        }
    }

    /// One change.
    pub fn change(&self, what: u8, input: &mut Input<'_>) {
        match what {
            128..208 => self.word(what, input),
            208..216 => self.chains(what, input),
            216..236 => self.record(what, input),
            236..244 => self.block(input),
            _ => self.links(what, input),
        }
    }

    fn place(input: &mut Input<'_>) -> u64 {
        let table = &TABLES[input.below(TABLES.len())];
        let index = input.below(table.count);
        let near = match table.stride > NEAR && table.at != HEADER_AT {
            true => NEAR,
            false => table.stride,
        };
        (table.at + index * table.stride + input.below(near)) as u64
    }

    /// A word of 32 or 64 bits gets another value, or another bit.
    fn word(&self, what: u8, input: &mut Input<'_>) {
        let (at, value) = (Scribble::place(input), input.number());
        let wide: Option<&AtomicU64> = self.memory.at(at & !7);
        let narrow: Option<&AtomicU32> = self.memory.at(at & !3);
        match (what % 5, wide, narrow) {
            (0, Some(word), _) => word.store(value, Relaxed),
            (1, Some(word), _) => _ = word.fetch_xor(1 << (value % 64), Relaxed),
            (2, Some(word), _) => _ = word.fetch_add(value, Relaxed),
            (3, _, Some(word)) => word.store(value as u32, Relaxed),
            (_, _, Some(word)) => _ = word.fetch_xor(1 << (value % 32), Relaxed),
            _ => {}
        }
    }

    /// Every bucket that has something, or each of the first ones, gets something else.
    fn chains(&self, what: u8, input: &mut Input<'_>) {
        let (at, stride, count) = BUCKETS[usize::from(what) % BUCKETS.len()];
        let (field, value, every) = (input.below(stride) & !3, input.number(), input.u8() == 0);
        for index in 0..count {
            let at = (at + index * stride + field) as u64;
            let Some(word) = self.memory.at::<AtomicU32>(at) else {
                continue;
            };
            if every || word.load(Relaxed) != 0 {
                word.store(value as u32, Relaxed);
            }
        }
    }

    /// A record that its writer, who is dead, did not publish.
    fn record(&self, what: u8, input: &mut Input<'_>) {
        let lane_index = u64::from(what % 4);
        let mut record = journal::piece(input).record;
        let at = LANES_AT as u64 + lane_index * size_of::<Lane>() as u64;
        let (Some(lane), Some(header)) = (
            self.memory.at::<Lane>(at),
            self.memory.at::<Header>(HEADER_AT as u64),
        ) else {
            return;
        };
        let seq = match input.u8() {
            0 => input.number(),
            _ => header.next_seq.fetch_add(1, Relaxed),
        };
        if record.len() >= 24 {
            journal::seal(&mut record, lane_index as u16, seq);
        }
        let head = lane.head.load(Relaxed);
        let offset = lane_index * self.lane_len + head % self.lane_len;
        // What does not fit is not there.
        let _ = self.journal.store(offset & !63, &record);
        lane.busy_at.store(head, Relaxed);
        lane.busy_seq.store(seq, Relaxed);
        lane.lock.store(DEAD_SLOT + 1, Release);
        header.recover_wanted.store(1, Release);
    }

    fn block(&self, input: &mut Input<'_>) {
        let block = match input.u8() {
            0 => input.number(),
            near => sample().first_block + u64::from(near),
        };
        let _ = self.data.store(block.wrapping_mul(4096), input.string());
    }

    /// Links of chains and free lists, small, so that they lead to what is in use: also in circles.
    fn links(&self, what: u8, input: &mut Input<'_>) {
        let (index, link) = (input.below(32), u32::from(input.u8()));
        let at = match what % 4 {
            0 => INODES_AT + index * size_of::<Inode>() + 16,
            1 => DENTRIES_AT + index * size_of::<Dentry>(),
            2 => LOCKS_AT + index * size_of::<RangeLock>(),
            _ => OFDS_AT + index * size_of::<Ofd>() + 28,
        };
        if let Some(word) = self.memory.at::<AtomicU32>(at as u64) {
            word.store(link, Relaxed);
        }
    }
}
