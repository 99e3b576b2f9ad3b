//! Mapping files: of which pieces of the data segment a mapping consists.
//!
//! Invariants: a pinned file keeps its blocks where they are (truncation zeroes them instead of
//! freeing them), so mappings stay correct; a shared mapping has blocks everywhere, so that writers
//! and mappers use the same memory.

use crate::base::abi::*;
use crate::base::clock;
use crate::base::error::{Error, Result};
use crate::base::types::{MapPiece, MapPin};
use crate::content::close;
use crate::content::file::File;
use crate::content::pins;
use crate::content::{cow, data, durable, lending, lent};
use crate::ops::client::Client;
use crate::ops::read;
use crate::session::{BLOCK, OfdLink, Session};
use crate::tables::block_map::{self, Run};
use crate::tables::dirty_range;
use crate::tables::inode_table::{self, InodeRef, LockedInode};
use crate::tables::open_values::is_value;
use pmem::atomic::Ordering::*;
use pool::session::{INODE_INLINE, INODE_SHADOW};
use rustix::fd::OwnedFd;

/// The file, if a mapping of it may be made.
fn mappable(s: &Session, ofd: OfdLink, prot: u32, shared: bool) -> Result<File<'_>> {
    let file = File::usable(s, ofd)?;
    let access = file.flags & O_ACCMODE;
    let reads = matches!(access, O_RDONLY | O_RDWR);
    if !reads || (shared && prot & PROT_WRITE != 0 && access != O_RDWR) {
        return Err(Error::Denied);
    }
    if file.kind() != S_IFREG {
        return Err(Error::NoDevice);
    }
    // As on tmpfs, mapping is a use of the file.
    read::accessed(&file);
    Ok(file)
}

/// Before a process that may map nothing of the pool maps a file shared: it is lent from now on.
/// Whether the description allows stores to it.
pub(crate) fn lend(c: &Client, ofd: OfdLink, prot: u32) -> Result<(MapPin, bool)> {
    let s = &c.session;
    let file = mappable(s, ofd, prot, true)?;
    let writes = file.flags & O_ACCMODE == O_RDWR;
    let inode = inode_table::lock_to_store(s, file.inode)?;
    may_be_stored_to(s, &file, &inode);
    lending::begin(s, &inode)?;
    Ok((count(&inode), writes))
}

/// One more mapping of a file that `lend` pinned.
pub(crate) fn lend_again(c: &Client, pin: MapPin) -> Result<()> {
    count(&pinned(&c.session, pin)?);
    Ok(())
}

/// The file that a pinned file is lent as.
pub(crate) fn lent_file(c: &Client, pin: MapPin, writes: bool) -> Result<OwnedFd> {
    let s = &c.session;
    lending::file(s, &pinned(s, pin)?, writes)
}

pub(crate) fn pin(c: &Client, ofd: OfdLink, prot: u32, shared: bool) -> Result<MapPin> {
    let s = &c.session;
    let file = mappable(s, ofd, prot, shared)?;
    if s.is_read_only() {
        // Nothing can change: there is nothing to prepare.
        let inode = inode_table::lock_ref(s, file.inode)?;
        return pin_locked(s, &inode);
    }
    let inode = inode_table::lock_to_store(s, file.inode)?;
    if shared {
        may_be_stored_to(s, &file, &inode);
    }
    // Without room for a lent file it is the pool's own pages that are mapped.
    let is_lent = lent::is_lent(inode.e)
        || lending::is_wanted(s, &inode) && lending::begin(s, &inode).is_ok();
    if is_lent {
        return pin_locked(s, &inode);
    }
    if is_value(inode.e) {
        // Should it become a file, mapping and file meet in this block, if there is one.
        match data::load_shadow(s, &inode) {
            Ok(()) | Err(Error::NoSpace) => {}
            Err(e) => return Err(e),
        }
        return pin_locked(s, &inode);
    }
    if shared {
        // From now on its blocks stay where they are, whatever is stored to them.
        cow::own_all(s, &inode)?;
        data::leave_inline(s, &inode)?;
    } else {
        data::load_shadow(s, &inode)?;
    }
    let size = inode.e.size.load(Relaxed);
    data::zero(s, &inode, size, size.next_multiple_of(BLOCK))?;
    pin_locked(s, &inode)
}

/// As `pin` for a shared mapping, where no piece of the pool can be mapped.
pub(crate) fn pin_lent(c: &Client, ofd: OfdLink, prot: u32) -> Result<MapPin> {
    let s = &c.session;
    let file = mappable(s, ofd, prot, true)?;
    if s.is_read_only() {
        return Err(Error::ReadOnly);
    }
    if !lent::others_came(s) {
        let mut random = [0; 8];
        pmem::env::random(&mut random);
        lent::expect_others(s, u64::from_ne_bytes(random));
    }
    let inode = inode_table::lock_to_store(s, file.inode)?;
    may_be_stored_to(s, &file, &inode);
    lending::begin(s, &inode)?;
    pin_locked(s, &inode)
}

/// Before a shared mapping that allows stores, now or later: a record will follow, so that whoever
/// compares numbers of records learns of stores that a process does not live to tell of.
fn may_be_stored_to(s: &Session, file: &File<'_>, inode: &LockedInode) {
    if file.flags & O_ACCMODE == O_RDWR && !is_value(inode.e) {
        inode_table::mark_dirty(s, inode.e);
    }
}

/// One more mapping of the file.
fn count(inode: &InodeRef) -> MapPin {
    inode.e.maps.fetch_add(1, SeqCst);
    dirty_range::forget(inode.e);
    inode.e.opens.fetch_add(1, SeqCst);
    MapPin {
        ino: inode.ino,
        inode: inode.link,
    }
}

fn pin_locked(s: &Session, inode: &LockedInode) -> Result<MapPin> {
    let pin = count(inode);
    pins::note(s, inode)?;
    Ok(pin)
}

fn pinned(s: &Session, pin: MapPin) -> Result<InodeRef<'_>> {
    let e = s.inode(pin.inode)?;
    if e.ino.load(Acquire) != pin.ino {
        return Err(Error::Stale);
    }
    Ok(InodeRef {
        link: pin.inode,
        ino: pin.ino,
        e,
    })
}

/// Holes of a shared mapping up to this many blocks get their blocks at once.
const FILL_MAX: u64 = 512;

pub(crate) fn plan(
    c: &Client,
    pin: MapPin,
    offset: u64,
    len: u64,
    shared: bool,
    each: &mut dyn FnMut(MapPiece) -> Result<()>,
) -> Result<()> {
    let end = offset.checked_add(len).ok_or(Error::Overflow)?;
    if !offset.is_multiple_of(BLOCK) || !len.is_multiple_of(BLOCK) || len == 0 {
        return Err(Error::Invalid);
    }
    let s = &c.session;
    let inode = inode_table::lock_ref(s, pinned(s, pin)?)?;
    if lent::is_lent(inode.e) {
        return each(MapPiece::Lent { offset, len });
    }
    let blocks = inode.e.size.load(Relaxed).div_ceil(BLOCK);
    let (first, last) = (offset / BLOCK, end / BLOCK);
    let inside = last.min(blocks);
    let fills = shared && !s.is_read_only() && !is_value(inode.e);
    let inline = inode.e.state.load(Relaxed) & (INODE_INLINE | INODE_SHADOW) == INODE_INLINE;
    let mut at = first;
    if inline && at == 0 && at < inside {
        each(MapPiece::Inline)?;
        at = 1;
    }
    while at < inside {
        let piece = match block_map::lookup_run_locked(s, &inode, at, inside - at)? {
            Run::Hole(len) if fills && len <= FILL_MAX => {
                data::fill_holes(s, &inode, at, at + len.clamp(1, inside - at))?;
                continue;
            }
            // Filled where it is touched: the fault asks for a plan of less.
            Run::Hole(len) if fills => {
                let len = len.min(inside - at);
                at += len;
                MapPiece::Beyond { len: len * BLOCK }
            }
            Run::Blocks { block, len, .. } => {
                at += len.max(1);
                let segment = s.segment(block)?;
                if fills && let Some(dirty) = segment.dirty() {
                    // Stores through the mapping are not seen.
                    dirty.mark(block.offset(), len.max(1) * BLOCK);
                }
                MapPiece::Data {
                    segment_offset: block.offset(),
                    len: len.max(1) * BLOCK,
                }
            }
            Run::Hole(len) => {
                let len = len.clamp(1, inside - at);
                at += len;
                MapPiece::Zero { len: len * BLOCK }
            }
        };
        each(piece)?;
    }
    match last.saturating_sub(first.max(inside)) {
        0 => Ok(()),
        beyond => each(MapPiece::Beyond {
            len: beyond * BLOCK,
        }),
    }
}

/// The content of a file that is in no block.
pub(crate) fn inline(c: &Client, pin: MapPin, out: &mut [u8; BLOCK as usize]) -> Result<usize> {
    let s = &c.session;
    let inode = inode_table::lock_ref(s, pinned(s, pin)?)?;
    inode_table::inline_data(s, &inode, out)
}

/// Bytes of the file.
pub(crate) fn size(c: &Client, pin: MapPin) -> Result<u64> {
    Ok(pinned(&c.session, pin)?.e.size.load(Acquire))
}

/// Counts the cuts of mapped files, in the whole session.
#[inline]
pub(crate) fn cuts(c: &Client) -> u32 {
    c.session.header().mapped_cuts.load(Acquire)
}

#[inline]
pub(crate) fn drops(c: &Client) -> u32 {
    c.session.header().map_drops.load(Acquire)
}

pub(crate) fn repin(c: &Client, pin: MapPin) -> Result<()> {
    let s = &c.session;
    let inode = pinned(s, pin)?;
    count(&inode);
    pins::note(s, &inode)
}

pub(crate) fn unpin(c: &Client, pin: MapPin, written: bool) -> Result<()> {
    pins::forget(&c.session, &pinned(&c.session, pin)?)?;
    take_back(c, pin, written)
}

/// A mapping is gone that no note speaks of.
pub(crate) fn take_back(c: &Client, pin: MapPin, written: bool) -> Result<()> {
    let s = &c.session;
    let inode = pinned(s, pin)?;
    if written {
        changed(s, &inode)?;
    }
    pins::drop_mapping(s, &inode)
}

pub(crate) fn stored(c: &Client, pin: MapPin) -> Result<()> {
    let s = &c.session;
    match s.is_read_only() {
        true => Ok(()),
        false => changed(s, &pinned(s, pin)?),
    }
}

/// Stores went through a mapping, at the latest now.
fn changed(s: &Session, inode: &InodeRef) -> Result<()> {
    let now = clock::now();
    let locked = inode_table::lock_ref(s, *inode)?;
    locked.e.mtime.store(now as u64, Relaxed);
    locked.e.ctime.store(now as u64, Relaxed);
    inode_table::mark_dirty(s, locked.e);
    Ok(())
}

pub(crate) fn msync(c: &Client, pin: MapPin, offset: u64, len: u64) -> Result<()> {
    let s = &c.session;
    let inode = pinned(s, pin)?;
    let inode = match lent::is_lent(inode.e) {
        true => lending::lock(s, inode)?,
        false => inode_table::lock_ref(s, inode)?,
    };
    lending::write_back(s, &inode, offset, offset.saturating_add(len))?;
    let size = inode.e.size.load(Relaxed);
    let end = offset.saturating_add(len).min(size.next_multiple_of(BLOCK));
    let mut at = offset;
    while at < end {
        let left = (end - at).div_ceil(BLOCK);
        let len = match block_map::lookup_run_locked(s, &inode, at / BLOCK, left)? {
            Run::Blocks { block, len, .. } => {
                let bytes = (len * BLOCK - at % BLOCK).min(end - at);
                s.segment(block)?
                    .flush(block.offset() + at % BLOCK, bytes as usize)?;
                len
            }
            Run::Hole(len) => len,
        };
        at = (at / BLOCK)
            .saturating_add(len.max(1))
            .saturating_mul(BLOCK);
    }
    s.data().fence();
    if !durable::is_needed(s) {
        return close::flush(s, &inode);
    }
    let placing = durable::prepare(s, &inode, offset / BLOCK..end.div_ceil(BLOCK))?;
    drop(inode);
    durable::finish(s, placing)
}
