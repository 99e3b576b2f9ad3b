//! Writing back what a session had not journaled when it ended: sizes, times and blocks of files
//! that were written and not synced.
//!
//! Invariants:
//!  * Nobody is in the session any more. What its memory says becomes ordinary records, which are
//!    validated like any other, so the worst effect of wrong values is that they are refused.
//!  * If a dead process left memory older than its last record, that record is applied to it first:
//!    the old size would undo the record.

use crate::base::error::Result;
use crate::journal::engine::Engine;
use crate::journal::lane;
use crate::session::memory::Memory;
use holdfast_pool::format::LANES;
use holdfast_pool::journal::{self, Record, SET_ATIME};
use holdfast_pool::layout::BlockAddr;
use holdfast_pool::layout::inode::{self, ENCODED_MAX, TYPE_FILE, TYPE_MASK};
use holdfast_pool::session::{INODE_DIRTY, INODE_ORPHAN, INODE_VALID, INODES, Inode};
use std::sync::atomic::Ordering::*;

/// Records of one commit.
const BATCH: usize = 512;

/// Applies what is left; returns how many records were applied and how many refused.
pub fn write_back(engine: &mut Engine, memory: &Memory) -> Result<(usize, usize)> {
    for index in 0..LANES {
        publish_last(engine, memory, index);
    }
    let used = (memory.header().inode_used.load(Acquire) as usize).min(INODES);
    let mut totals = (0, 0);
    let mut batch = Vec::new();
    for index in 0..used {
        let Some(inode) = memory.inode(index) else {
            break;
        };
        if !is_gone(engine, inode)? {
            collect(inode, &mut batch);
        }
        if batch.len() >= BATCH || index + 1 == used {
            let refused = engine.apply_own(&batch)?;
            totals = (totals.0 + batch.len() - refused, totals.1 + refused);
            batch.clear();
        }
    }
    Ok(totals)
}

/// The record that the lane's owner died with, between making it durable and publishing it.
fn publish_last(engine: &Engine, memory: &Memory, index: usize) {
    let Some(lane) = memory.lane(index) else {
        return;
    };
    let (seq, at) = (lane.busy_seq.load(Acquire), lane.busy_at.load(Acquire));
    let Some(before) = seq.checked_sub(1) else {
        return;
    };
    // Only the place in the ring counts: what a client wrote may be near the end of all numbers.
    let len = engine.journal.lane_len;
    let mut reader = lane::Lane::new(index, len, at % len, before);
    let Some(entry) = reader
        .next(&engine.journal.region, &mut lane::Buffers::default())
        .filter(|e| e.seq == seq)
    else {
        return;
    };
    if let Ok((_, record)) = journal::decode(&entry.bytes) {
        publish(memory, seq, &record);
    }
}

/// As far as `collect` looks: size, times and the pending run.
fn publish(memory: &Memory, seq: u64, record: &Record<'_>) {
    let (ino, size, mtime, ctime) = match *record {
        Record::Truncate { ino, size, time } => (ino, size, time, time),
        Record::Punch {
            ino, size, time, ..
        } => (ino, size, time, time),
        Record::Write {
            ino, size, mtime, ..
        } => (ino, size, mtime, mtime),
        Record::Inline {
            ino,
            mtime,
            ctime,
            data,
        } => (ino, data.len() as u64, mtime, ctime),
        Record::Size {
            ino,
            size,
            mtime,
            ctime,
            ..
        }
        | Record::Extent {
            ino,
            size,
            mtime,
            ctime,
            ..
        } => (ino, size, mtime, ctime),
        _ => return,
    };
    let Some(inode) = entry_of(memory, ino).filter(|e| e.seq.load(Relaxed) < seq) else {
        return;
    };
    inode.size.store(size, Relaxed);
    inode.mtime.store(mtime as u64, Relaxed);
    inode.ctime.store(ctime as u64, Relaxed);
    if matches!(record, Record::Extent { .. } | Record::Inline { .. }) {
        inode.pending_len.store(0, Relaxed);
    }
}

fn entry_of(memory: &Memory, ino: u64) -> Option<&Inode> {
    let used = (memory.header().inode_used.load(Acquire) as usize).min(INODES);
    let is_it = |e: &&Inode| e.ino.load(Relaxed) == ino && e.state.load(Relaxed) & INODE_VALID != 0;
    (0..used).filter_map(|i| memory.inode(i)).find(is_it)
}

/// Whether it lost its last name by a record that its process died with, which nothing here tells
/// of: only the trees do.
fn is_gone(engine: &mut Engine, inode: &Inode) -> Result<bool> {
    let (ino, state) = (inode.ino.load(Relaxed), inode.state.load(Relaxed));
    if ino == 0 || state & INODE_ORPHAN == 0 {
        return Ok(false);
    }
    let mut buf = [0; ENCODED_MAX];
    let found = inode::find(&engine.store.pool.reader(), ino, &mut buf).map(|i| i.is_none());
    found.map_err(|error| engine.store.fail(error))
}

fn collect(inode: &Inode, out: &mut Vec<Record<'static>>) {
    let (ino, state) = (inode.ino.load(Relaxed), inode.state.load(Relaxed));
    // Its last name, not that somebody wanted to remove it: he may have died before.
    if ino == 0 || state & INODE_VALID == 0 || inode.nlink.load(Relaxed) == 0 {
        return;
    }
    let time = |word: &holdfast_pmem::atomic::AtomicU64| word.load(Relaxed) as i64;
    let (atime, mtime, ctime) = (time(&inode.atime), time(&inode.mtime), time(&inode.ctime));
    let is_file = inode.mode.load(Relaxed) & TYPE_MASK == TYPE_FILE;
    let dirty = state & INODE_DIRTY != 0;
    if !is_file {
        let (mask, mode, uid, gid) = (SET_ATIME, 0, 0, 0);
        let record = Record::SetAttr {
            ino,
            mask,
            mode,
            uid,
            gid,
            atime,
            mtime,
            ctime,
        };
        out.extend(dirty.then_some(record));
        return;
    }
    let size = inode.size.load(Relaxed);
    let len = inode.pending_len.load(Relaxed);
    if len > 0 {
        let (file_block, block) = (
            inode.pending_file_block.load(Relaxed),
            BlockAddr::from_word(inode.pending_block.load(Relaxed)),
        );
        out.push(Record::Extent {
            ino,
            file_block,
            block,
            len,
            size,
            mtime,
            ctime,
            flags: 0,
        });
    }
    if dirty {
        out.push(Record::Size {
            ino,
            size,
            atime,
            mtime,
            ctime,
        });
    }
}
