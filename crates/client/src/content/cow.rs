//! Copy-on-write of blocks that must not change: their file gets others.
//!
//! Invariants:
//!  * A block that a snapshot shares is not stored to. The bytes go to new blocks, with the old
//!    bytes around them, and one record replaces the old blocks by these; the snapshot keeps the
//!    old ones.
//!  * A mapped file that is not lent keeps its blocks (`must_stay`), or its mappings would show
//!    old blocks: what is stored to it then is seen in the snapshots that share them. So a file
//!    gets its own copy of all blocks before it is mapped shared.

use crate::base::error::{Error, Result};
use crate::content::source::Write;
use crate::content::{close, durable, lent};
use crate::journal;
use crate::session::space;
use crate::session::{BLOCK, Session};
use crate::tables::block_map::{self, Run};
use crate::tables::inode_table::{self, LockedInode};
use core::ops::Range;
use pmem::atomic::Ordering::{Relaxed, Release};
use pool::journal::Record;
use pool::layout::BlockAddr;
use pool::session::{INODE_INLINE, INODE_LISTED};

/// Whether the file's blocks have to stay where they are. Those of a lent file nobody has mapped.
#[inline]
pub(crate) fn must_stay(inode: &LockedInode) -> bool {
    inode.e.maps.load(Relaxed) > 0 && !lent::is_lent(inode.e)
}

/// As `must_stay`, before blocks are changed that a snapshot may have: if the file stays, that is
/// said of the snapshot (`docs/spec/session-memory.md`).
pub(crate) fn stays(s: &Session, inode: &LockedInode) -> bool {
    let stays = must_stay(inode);
    if stays && s.header().epoch.load(Relaxed) > 0 {
        say_stored(s, inode);
    }
    stays
}

/// A block is stored to that a snapshot has. The snapshot's entry may name the file already.
pub(crate) fn say_stored(s: &Session, inode: &LockedInode) {
    if inode.e.state.load(Relaxed) & INODE_LISTED == 0 {
        s.header().stored_in_place.store(1, Release);
    }
}

/// Whether a snapshot has a block of bytes `offset..offset + n` of the file.
pub(crate) fn is_shared(s: &Session, inode: &LockedInode, offset: u64, n: usize) -> Result<bool> {
    let end = (offset + n as u64).div_ceil(BLOCK);
    Ok(next_shared(s, inode, offset / BLOCK, end)?.is_some())
}

/// The first run of shared blocks in file blocks `from..to`: where, which block, how many.
fn next_shared(
    s: &Session,
    inode: &LockedInode,
    from: u64,
    to: u64,
) -> Result<Option<(u64, BlockAddr, u64)>> {
    let mut at = from;
    while at < to {
        match block_map::lookup_run_locked(s, inode, at, to - at)? {
            Run::Blocks {
                block,
                len,
                shared: true,
            } => return Ok(Some((at, block, len.clamp(1, to - at)))),
            Run::Hole(len) | Run::Blocks { len, .. } => at = at.saturating_add(len.max(1)),
        }
    }
    Ok(None)
}

/// Whether the bytes are zero already; only a short range is looked at.
pub(crate) fn is_zero(s: &Session, (block, skip): (BlockAddr, u64), len: u64) -> Result<bool> {
    let mut bytes = [0; BLOCK as usize];
    let Some(bytes) = bytes.get_mut(..len as usize) else {
        return Ok(false);
    };
    s.segment(block)?.read(block.offset() + skip, bytes)?;
    Ok(bytes.iter().all(|b| *b == 0))
}

/// A write that lies in blocks which a snapshot has: how much went to new ones.
#[cold]
pub(crate) fn write(s: &Session, inode: &LockedInode, w: Write) -> Result<usize> {
    // Its record speaks of the size: what is below that has to be journaled.
    close::flush(s, inode)?;
    replace(s, inode, w)
}

/// Gives the whole file blocks of its own, unless it is mapped already.
pub(crate) fn own_all(s: &Session, inode: &LockedInode) -> Result<()> {
    if must_stay(inode) || s.header().epoch.load(Relaxed) == 0 {
        return Ok(());
    }
    own(s, inode, 0, inode.e.size.load(Relaxed).div_ceil(BLOCK))
}

/// Gives file blocks `from..to` copies of the blocks that a snapshot has.
#[cold]
pub(crate) fn own(s: &Session, inode: &LockedInode, from: u64, to: u64) -> Result<()> {
    let mut at = from;
    while let Some((first, old, len)) = next_shared(s, inode, at, to)? {
        close::flush(s, inode)?;
        let (block, got) = longest_run(s, len)?;
        let want = u64::from(got).min(len) as u32;
        let e = inode.e;
        let times = [&e.mtime, &e.ctime].map(|t| t.load(Relaxed) as i64);
        let done = copy(s, old, block, want.into()).and_then(|()| {
            let size = e.size.load(Relaxed);
            take_place(s, inode, (first, block, want), size, times)
        });
        finish(s, (block, want, got), done)?;
        at = first + u64::from(want);
    }
    Ok(())
}

/// After a cut to `size` on an ordinary file: the last block becomes another one, with zeroes
/// behind the end. Zeroes in place could reach the disk before the record of the cut does; and what
/// was cut off would be there again after a loss of power, once the file has grown.
#[cold]
pub(crate) fn renew_tail(s: &Session, inode: &LockedInode, size: u64) -> Result<()> {
    let (file_block, used) = (size / BLOCK, (size % BLOCK) as usize);
    let inline = file_block == 0 && inode.e.state.load(Relaxed) & INODE_INLINE != 0;
    if used == 0 || inline || must_stay(inode) || !durable::is_needed(s) {
        return Ok(());
    }
    let Run::Blocks { .. } = block_map::lookup_run_locked(s, inode, file_block, 1)? else {
        return Ok(());
    };
    let times = [&inode.e.mtime, &inode.e.ctime].map(|t| t.load(Relaxed) as i64);
    let (block, got) = longest_run(s, 1)?;
    let done = keep(s, inode, file_block, block, 0..used).and_then(|()| {
        let rest = BLOCK as usize - used;
        s.segment(block)?
            .zero_nt(block.offset() + used as u64, rest)?;
        s.data().fence();
        take_place(s, inode, (file_block, block, 1), size, times)
    });
    finish(s, (block, 1, got), done)?;
    durable::blocks(s, &[(block, 1)])
}

/// Copies whole blocks.
fn copy(s: &Session, from: BlockAddr, to: BlockAddr, len: u64) -> Result<()> {
    let mut bytes = [0; BLOCK as usize];
    for i in 0..len {
        let (from, to) = (from + i, to + i);
        s.segment(from)?.read(from.offset(), &mut bytes)?;
        s.segment(to)?.write_nt(to.offset(), &bytes)?;
    }
    s.data().fence();
    Ok(())
}

/// New blocks with the old bytes around the new ones, which one record puts in the place of the
/// old blocks. How much of the write that was. The caller has seen to what lies between the end of
/// the file and the write: by now it may hold what was written before this piece.
pub(crate) fn replace(s: &Session, inode: &LockedInode, mut w: Write) -> Result<usize> {
    let size = inode.e.size.load(Relaxed);
    let (first, end) = (w.offset / BLOCK, w.end().div_ceil(BLOCK));
    let (block, got) = longest_run(s, end - first)?;
    let want = got.min((end - first) as u32);
    let w = w.part(0, (u64::from(want) * BLOCK - w.offset % BLOCK) as usize);
    let (n, now, end) = (w.n, w.now, w.end());
    let done = fill(s, inode, w, block)
        .and_then(|()| take_place(s, inode, (first, block, want), size.max(end), [now, now]));
    finish(s, (block, want, got), done)?;
    Ok(n)
}

/// One record puts `len` blocks from `block` on, whose bytes are written, at `file_block`.
fn take_place(
    s: &Session,
    inode: &LockedInode,
    (file_block, block, len): (u64, BlockAddr, u32),
    size: u64,
    [mtime, ctime]: [i64; 2],
) -> Result<()> {
    let record = Record::Extent {
        ino: inode.ino,
        file_block,
        block,
        len,
        size,
        mtime,
        ctime,
        flags: durable::extent_flags(s),
    };
    journal::commit(s, &record)?;
    inode.e.truncations.fetch_add(1, Release);
    Ok(())
}

/// Gives back what of `got` blocks is not used: none were if it failed, else `used`.
fn finish(s: &Session, (block, used, got): (BlockAddr, u32, u32), done: Result<()>) -> Result<()> {
    let used = if done.is_ok() { used } else { 0 };
    if got > used {
        space::give_back(s, block + u64::from(used), got - used);
    }
    done
}

/// Blocks in a row, as many as wanted or as few tries find; at most 2 MiB.
fn longest_run(s: &Session, want: u64) -> Result<(BlockAddr, u32)> {
    let want = want.min(space::HUGE_BLOCKS.into()) as u32;
    let mut runs = [(BlockAddr::default(), 0); TRIES];
    for run in &mut runs {
        match inode_table::alloc_blocks(s, want, None) {
            Ok(found) => *run = found,
            Err(Error::NoSpace) => break,
            Err(e) => return Err(e),
        }
        if run.1 == want {
            break;
        }
    }
    let best = runs
        .iter()
        .copied()
        .max_by_key(|run| run.1)
        .unwrap_or_default();
    for (block, len) in runs {
        if (block, len) != best {
            space::give_back(s, block, len);
        }
    }
    if best.1 == 0 {
        Err(Error::NoSpace)
    } else {
        Ok(best)
    }
}

/// Runs that are looked at for one write.
const TRIES: usize = 8;

/// Old bytes before and after the new ones in their first and last block, new bytes between them.
fn fill(s: &Session, inode: &LockedInode, w: Write, block: BlockAddr) -> Result<()> {
    let (first, last) = (w.offset / BLOCK, (w.end() - 1) / BLOCK);
    let skip = w.offset % BLOCK;
    keep(s, inode, first, block, 0..skip as usize)?;
    let used = (w.end() - last * BLOCK) as usize;
    keep(s, inode, last, block + (last - first), used..BLOCK as usize)?;
    let (_, copied) = w
        .source
        .copy_in(s, inode, (block, skip), w.n, Session::copy_in);
    copied?;
    s.data().fence();
    Ok(())
}

/// Copies the present bytes `range` of a file block to the same place in block `to`.
fn keep(
    s: &Session,
    inode: &LockedInode,
    file_block: u64,
    to: BlockAddr,
    range: Range<usize>,
) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let mut bytes = [0; BLOCK as usize];
    let (from, bytes) = (range.start as u64, &mut bytes[range]);
    if let Run::Blocks { block, .. } = block_map::lookup_run_locked(s, inode, file_block, 1)? {
        s.segment(block)?.read(block.offset() + from, bytes)?;
    }
    Ok(s.segment(to)?.write_nt(to.offset() + from, bytes)?)
}
