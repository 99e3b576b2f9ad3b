//! What a session knew and had not journaled when it ended: sizes, times and blocks of files
//! that were written and not synced.
//!
//! Invariants: nobody is in the session any more; what its memory says becomes ordinary records,
//! which are validated like any other, so the worst that wrong values can do is to be refused.

use crate::engine::Engine;
use crate::error::Result;
use crate::memory::Memory;
use holdfast_pool::journal::{Record, SET_ATIME};
use holdfast_pool::layout::inode::{TYPE_FILE, TYPE_MASK};
use holdfast_pool::session::{INODE_DIRTY, INODE_ORPHAN, INODE_VALID, INODES, Inode};
use std::sync::atomic::Ordering::*;

/// Records of one commit.
const BATCH: usize = 512;

/// Applies what is left; returns how many records were applied and how many refused.
pub fn harvest(engine: &mut Engine, memory: &Memory) -> Result<(usize, usize)> {
    let used = (memory.header().inode_used.load(Acquire) as usize).min(INODES);
    let mut totals = (0, 0);
    let mut batch = Vec::new();
    for index in 0..used {
        let Some(inode) = memory.inode(index) else {
            break;
        };
        collect(inode, &mut batch);
        if batch.len() >= BATCH || index + 1 == used {
            let refused = engine.apply_own(&batch)?;
            totals = (totals.0 + batch.len() - refused, totals.1 + refused);
            batch.clear();
        }
    }
    Ok(totals)
}

fn collect(inode: &Inode, out: &mut Vec<Record<'static>>) {
    let (ino, state) = (inode.ino.load(Relaxed), inode.state.load(Relaxed));
    if ino == 0 || state & INODE_VALID == 0 || state & INODE_ORPHAN != 0 {
        return;
    }
    let time = |word: &std::sync::atomic::AtomicU64| word.load(Relaxed) as i64;
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
            inode.pending_block.load(Relaxed),
        );
        out.push(Record::Extent {
            ino,
            file_block,
            block,
            len,
            size,
            mtime,
            ctime,
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
