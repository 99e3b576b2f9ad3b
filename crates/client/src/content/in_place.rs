//! Writing into the blocks that a file has, and into new ones for its holes.
//!
//! Invariant: new blocks join the file after their bytes are there (`data::adopt`), and the size
//! rises after the bytes below it are.

use crate::base::error::Result;
use crate::content::data::{self, NewRun};
use crate::content::source::Write;
use crate::content::{cow, durable};
use crate::session::{BLOCK, Session};
use crate::tables::block_map::{self, Run};
use crate::tables::dirty_range;
use crate::tables::inode_table::{self, LockedInode};
use pmem::atomic::Ordering::*;
use pool::session::INODE_INLINE;

/// Writes in place; size and times become lazy. How much was written.
pub(crate) fn write_locked(s: &Session, inode: &LockedInode, mut w: Write) -> Result<usize> {
    let e = inode.e;
    if e.state.load(Relaxed) & INODE_INLINE != 0 {
        data::leave_inline(s, inode)?;
    }
    let size = e.size.load(Relaxed);
    data::zero_gap(s, inode, size, w.offset)?;
    let (done, end) = copy_runs(s, inode, &mut w, size);
    if done == 0 {
        return end.map(|()| 0);
    }
    s.data().fence();
    let reached = w.offset + done as u64;
    if reached > size {
        e.size.store(reached, Release);
    }
    // A clean file that was written in this very tick of the clock stays clean: what would be
    // journaled is in the journal already.
    let now = w.now as u64;
    if reached > size || e.mtime.load(Relaxed) != now || e.ctime.load(Relaxed) != now {
        e.mtime.store(now, Relaxed);
        e.ctime.store(now, Relaxed);
        inode_table::mark_dirty(s, e);
    }
    Ok(done)
}

/// Copies run by run into a file of `size` bytes: how much, and why it stopped early.
fn copy_runs(s: &Session, inode: &LockedInode, w: &mut Write, size: u64) -> (usize, Result<()>) {
    let mut done = 0;
    while done < w.n {
        let (copied, end) = match copy_run(s, inode, w.part(done, usize::MAX), size) {
            Ok(copied) => copied,
            Err(e) => (0, Err(e)),
        };
        done += copied;
        if end.is_err() {
            return (done, end);
        }
    }
    (done, Ok(()))
}

/// Copies what goes to the next run: how much, and why not all that fits it.
fn copy_run(
    s: &Session,
    inode: &LockedInode,
    mut w: Write,
    size: u64,
) -> Result<(usize, Result<()>)> {
    let (file_block, skip) = (w.offset / BLOCK, w.offset % BLOCK);
    let blocks = (skip + w.n as u64).div_ceil(BLOCK);
    match block_map::lookup_run_locked(s, inode, file_block, blocks)? {
        Run::Blocks { shared, block, len } => {
            let w = w.part(0, (len * BLOCK - skip) as usize);
            if shared && !cow::must_stay(inode) {
                return cow::write(s, inode, w).map(|copied| (copied, Ok(())));
            }
            if shared {
                cow::say_stored(s, inode);
            }
            dirty_range::widen(s, inode.e, file_block, w.end().div_ceil(BLOCK));
            let (to, n) = ((block, skip), w.n);
            Ok(match w.offset < size {
                true => w.source.copy_in(s, inode, to, n, Session::copy_over),
                false => w.source.copy_in(s, inode, to, n, Session::copy_in),
            })
        }
        Run::Hole(len) => {
            let growing = w.end() >= size;
            let run = data::new_run(s, inode, file_block, len.min(blocks), growing)?;
            Ok(fill(s, inode, w, run, size))
        }
    }
}

/// Fills a new run with bytes for the file, zeroes around them, and adopts it.
fn fill(
    s: &Session,
    inode: &LockedInode,
    mut w: Write,
    run: NewRun,
    size: u64,
) -> (usize, Result<()>) {
    let start = run.file_block * BLOCK;
    let bytes = u64::from(run.len) * BLOCK;
    let skip = w.offset - start;
    let w = w.part(0, (bytes - skip) as usize);
    let to = (run.block, skip);
    let (copied, end) = w.source.copy_in(s, inode, to, w.n, Session::copy_in);
    if copied == 0 {
        data::give_up(s, inode, run);
        return (0, end);
    }
    let after = skip + copied as u64;
    // Beyond the end of the file anything may be there, unless somebody has it mapped, or a power
    // cut may bring a size back without the bytes below it.
    let shows = inode.e.maps.load(Relaxed) > 0 || durable::is_needed(s);
    let visible = start + after < size || copied < w.n || shows;
    let rest = if visible { (bytes - after) as usize } else { 0 };
    let zeroed = s.segment(run.block).and_then(|data| {
        let start = run.block.offset();
        data.zero_nt(start, skip as usize)?;
        Ok(data.zero_nt(start + after, rest)?)
    });
    match zeroed.and_then(|()| data::adopt(s, inode, run)) {
        Ok(()) => (copied, end),
        Err(e) => {
            data::give_up(s, inode, run);
            (0, Err(e))
        }
    }
}
