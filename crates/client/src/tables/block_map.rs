//! Where the blocks of a file are.
//!
//! Invariants:
//!  * A map entry is one word and changes in one store; so do the map's root and height together.
//!    Readers take no lock: what they find was true at some moment, and `truncations` tells them
//!    afterwards whether blocks have left the file since.
//!  * Entries change only under the inode's lock. `MAP_UNKNOWN` means that the trees must be asked,
//!    unless the file is `INODE_MAPPED`, where it is a hole.
//!  * A page enters and leaves a map under the table's lock (`map_lock`), and is filled before it
//!    is linked. A page that is neither in a map nor on the free list belongs to a process that
//!    died holding that lock; `sweep` finds it by marking what the maps reach.
//!  * A file whose records are all applied may lose its whole map, unless somebody maps it: the
//!    trees have the same. So when there are more than `PAGES_KEPT`, pages are taken from files
//!    that nobody has open, and a writer that finds none at all waits for the service and gives up
//!    its own (`data`). A reader without the lock that used a page of what is now another file
//!    finds that `truncations` has changed.
//!  * Entries of blocks that a snapshot may share are `MAP_SHARED`, as of the epoch `map_epoch`;
//!    whoever looks under the lock updates that first.
//!  * `Inode::blocks` counts the mapped blocks; it is stored after the entries and recounted when a
//!    dead process's lock is taken over.

use crate::base::error::{Error, Result};
use crate::session::Session;
use crate::session::lock::{self, Changing};
use crate::session::quota;
use crate::session::space;
use crate::tables::dirty_range;
use crate::tables::inode::{self, InodeRef, LockedInode};
use crate::tables::open_values;
use alloc::vec::Vec;
use pmem::atomic::{AtomicU64, Ordering::*};
use pool::layout::BlockAddr;
use pool::session::*;

use crate::base::trees;

/// What lies at a file block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// Nothing, for this many blocks.
    Hole(u64),
    /// This block and `len - 1` more after it. Snapshots may have `shared` ones, too.
    Blocks {
        block: BlockAddr,
        len: u64,
        shared: bool,
    },
}

/// Pages in use from which on idle files lose theirs.
const PAGES_KEPT: u32 = 16 * 1024;
/// Pages that are left for who has begun to enter blocks.
const PAGES_RESERVED: u32 = 1024;
/// Inode entries that are looked at for each page beyond `PAGES_KEPT`.
const RECLAIM_LOOKS: u32 = 64;

const FANOUT: u64 = MAP_FANOUT as u64;
const FANOUT_BITS: u32 = MAP_FANOUT.trailing_zeros();
const HEIGHT_MAX: u32 = 6;
const LINK_MASK: u32 = (1 << MAP_HEIGHT_SHIFT) - 1;
/// First block that no file has; a map can hold all before it.
const FILE_END: u64 = pool::layout::FILE_BLOCKS_MAX;
const _: () = assert!(FILE_END <= 1 << (HEIGHT_MAX * FANOUT_BITS));

fn block_word(block: BlockAddr, pending: bool) -> u64 {
    block.word() << MAP_SHIFT | MAP_BLOCK | if pending { MAP_PENDING } else { 0 }
}

/// The block of an entry that is one.
fn block_of(value: u64) -> BlockAddr {
    BlockAddr::from_word(value >> MAP_SHIFT)
}

/// A map entry and the file blocks it stands for.
struct Place<'s> {
    entry: &'s AtomicU64,
    value: u64,
    /// Blocks under one entry at this level.
    span: u64,
    /// Entries that follow on the same page, this one included.
    rest: &'s [AtomicU64],
}

fn span_at(level: u32) -> u64 {
    1 << (level * FANOUT_BITS)
}

/// The lowest entry for a file block; `None`: beyond what the map covers.
#[inline]
fn find<'s>(s: &'s Session, e: &'s Inode, file_block: u64) -> Result<Option<Place<'s>>> {
    let root = e.map_root.load(Acquire);
    if root == 0 {
        let Some(rest) = e.direct.get(file_block as usize..) else {
            return Ok(None);
        };
        let Some(entry) = rest.first() else {
            return Ok(None);
        };
        return Ok(Some(Place {
            entry,
            value: entry.load(Acquire),
            span: 1,
            rest,
        }));
    }
    let height = (root >> MAP_HEIGHT_SHIFT).min(HEIGHT_MAX);
    if file_block >> (height * FANOUT_BITS) != 0 {
        return Ok(None);
    }
    let mut page = s.map_page((root & LINK_MASK).wrapping_sub(1))?;
    let mut level = height.saturating_sub(1);
    loop {
        let at = (file_block >> (level * FANOUT_BITS)) as usize % MAP_FANOUT;
        let rest = page.entries.get(at..).unwrap_or_default();
        let entry = rest.first().ok_or(Error::Damaged {
            what: "block map",
            index: file_block,
        })?;
        let value = entry.load(Acquire);
        if level == 0 || value & MAP_PAGE == 0 {
            return Ok(Some(Place {
                entry,
                value,
                span: span_at(level),
                rest,
            }));
        }
        page = s.map_page(((value >> MAP_SHIFT) as u32).wrapping_sub(1))?;
        level -= 1;
    }
}

/// A map is memory that others write: nobody may compute with what is outside of the segment.
#[inline]
fn check_run(s: &Session, block: BlockAddr, len: u64) -> Result<()> {
    match block.is_within(len, s.data_blocks()) {
        true => Ok(()),
        false => Err(Error::Damaged {
            what: "block of a file",
            index: block.word(),
        }),
    }
}

/// What the map says about a file block: `Ok(None)` that it does not know.
#[inline(always)]
fn mapped_run(s: &Session, e: &Inode, file_block: u64, max: u64) -> Result<Option<Run>> {
    let whole = || e.state.load(Relaxed) & INODE_MAPPED != 0;
    let Some(place) = find(s, e, file_block)? else {
        return Ok(whole().then_some(Run::Hole(max)));
    };
    let skip = file_block % place.span;
    let mut len = place.span - skip;
    if place.value & MAP_BLOCK != 0 {
        let block = block_of(place.value) + skip;
        let same = place.value & (MAP_BLOCK | MAP_SHARED);
        let mut next = block + len;
        for entry in place.rest.iter().skip(1) {
            let value = entry.load(Relaxed);
            let alike = value & (MAP_BLOCK | MAP_SHARED) == same;
            if len >= max || !alike || block_of(value) != next {
                break;
            }
            next += place.span;
            len += place.span;
        }
        let len = len.min(max);
        check_run(s, block, len)?;
        return Ok(Some(Run::Blocks {
            block,
            len,
            shared: same & MAP_SHARED != 0,
        }));
    }
    if place.value == MAP_UNKNOWN && !whole() {
        return Ok(None);
    }
    for entry in place.rest.iter().skip(1) {
        if len >= max || !is_hole(entry.load(Relaxed), whole()) {
            break;
        }
        len += place.span;
    }
    Ok(Some(Run::Hole(len.min(max))))
}

fn is_hole(value: u64, whole: bool) -> bool {
    value == MAP_HOLE || whole && value == MAP_UNKNOWN
}

/// The run at `file_block`, at most `max` blocks long. Needs no lock: re-check `truncations`
/// after using it. What comes from the trees is kept if the inode's lock is free at the moment.
#[inline]
pub fn lookup_run(s: &Session, inode: &InodeRef<'_>, file_block: u64, max: u64) -> Result<Run> {
    match mapped_run(s, inode.e, file_block, max.max(1)) {
        Ok(Some(run)) => Ok(run),
        // A page that left the map meanwhile may say anything.
        Ok(None) | Err(_) => lookup_unknown(s, inode, file_block, max.max(1)),
    }
}

#[cold]
fn lookup_unknown(s: &Session, inode: &InodeRef<'_>, file_block: u64, max: u64) -> Result<Run> {
    match inode::try_lock(s, *inode) {
        Some(locked) => lookup_run_locked(s, &locked, file_block, max),
        None => {
            let epoch = s.header().epoch.load(Acquire);
            let run = in_trees(s, inode, file_block)?;
            let max = unknown_len(s, inode.e, file_block, max)?;
            Ok(clip(run, max, epoch))
        }
    }
}

/// As `lookup_run` for the holder of the lock: what comes from the trees is kept.
pub fn lookup_run_locked(
    s: &Session,
    inode: &LockedInode<'_>,
    file_block: u64,
    max: u64,
) -> Result<Run> {
    note_epoch(s, inode)?;
    if let Some(run) = mapped_run(s, inode.e, file_block, max.max(1))? {
        return Ok(run);
    }
    let run = in_trees(s, inode, file_block)?;
    let max = unknown_len(s, inode.e, file_block, max.max(1))?;
    if !has_room(s) {
        trim(s, inode);
    }
    // Without a page for it, it is asked for again next time.
    let _ = keep(s, inode, file_block, run);
    Ok(clip(run, max, inode.e.map_epoch.load(Relaxed)))
}

/// How many blocks from `file_block` on, which is one, the map does not know: of others it may know
/// what the trees do not yet.
fn unknown_len(s: &Session, e: &Inode, file_block: u64, max: u64) -> Result<u64> {
    let mut at = file_block;
    while at - file_block < max {
        match find(s, e, at)? {
            None => return Ok(max),
            Some(place) if place.value == MAP_UNKNOWN => at += place.span - at % place.span,
            Some(_) => break,
        }
    }
    Ok((at - file_block).clamp(1, max))
}

fn in_trees(s: &Session, inode: &InodeRef<'_>, file_block: u64) -> Result<trees::Run> {
    match open_values::extent(s, inode, file_block)? {
        Some(run) => Ok(run),
        None => s.tree().extent(inode.ino, file_block),
    }
}

/// What the trees say, cut to `max` blocks, in a pool that is in `now`.
fn clip(run: trees::Run, max: u64, now: u32) -> Run {
    match run {
        trees::Run::Hole(len) => Run::Hole(len.min(max).max(1)),
        trees::Run::Blocks { block, len, epoch } => Run::Blocks {
            block,
            len: len.min(max).max(1),
            shared: epoch < now,
        },
    }
}

/// Marks what a snapshot that was taken since has. Blocks that no record mentions are in none.
#[inline]
pub(crate) fn note_epoch(s: &Session, inode: &LockedInode<'_>) -> Result<()> {
    let now = s.header().epoch.load(Acquire);
    match inode.e.map_epoch.load(Relaxed) == now {
        true => Ok(()),
        false => note_epoch_slow(s, inode, now),
    }
}

#[cold]
fn note_epoch_slow(s: &Session, inode: &LockedInode<'_>, now: u32) -> Result<()> {
    let shadow = inode.e.state.load(Relaxed) & INODE_SHADOW != 0;
    let mut at = 0;
    while let Some(place) = find(s, inode.e, at)? {
        let unsaid = place.value & MAP_PENDING != 0 || (at == 0 && shadow);
        if place.value & MAP_BLOCK != 0 && !unsaid {
            place.entry.store(place.value | MAP_SHARED, Release);
        }
        at += place.span;
    }
    inode.e.map_epoch.store(now, Release);
    Ok(())
}

/// Enters a run from the trees where nothing is known, up to the end of its 2 MiB.
fn keep(s: &Session, inode: &InodeRef<'_>, file_block: u64, run: trees::Run) -> Result<()> {
    let (start, len, shared) = match run {
        trees::Run::Hole(len) => (None, len, 0),
        trees::Run::Blocks { block, len, epoch } => {
            let shared = epoch < inode.e.map_epoch.load(Relaxed);
            (Some(block), len, if shared { MAP_SHARED } else { 0 })
        }
    };
    let end = file_block
        .saturating_add(len)
        .min((file_block / FANOUT + 1) * FANOUT);
    let mut at = file_block;
    while at < end {
        let place = entry_for(s, inode, at, 0)?;
        if place.value != MAP_UNKNOWN {
            break;
        }
        let word = start.map_or(MAP_HOLE, |block| {
            block_word(block + (at - file_block), false) | shared
        });
        place.entry.store(word, Release);
        at += 1;
    }
    Ok(())
}

/// Takes a free page while not more than `max` are in use. The caller holds `map_lock`.
fn take_page(s: &Session, max: u32) -> Result<Option<u32>> {
    let h = s.header();
    if let Some(index) = h.map_free.load(Relaxed).checked_sub(1) {
        h.map_free
            .store(list_word(s, index)?.load(Relaxed) as u32, Release);
        return Ok(Some(index));
    }
    let used = h.map_used.load(Relaxed);
    if used >= max {
        return Ok(None);
    }
    h.map_used.store(used + 1, Release);
    Ok(Some(used))
}

/// Puts a page that no map reaches on the free list. The caller holds `map_lock`.
fn free_page(s: &Session, index: u32) -> Result<()> {
    let h = s.header();
    let used = index < h.map_used.load(Relaxed) && h.map_free.load(Relaxed) != index + 1;
    s.ensure(
        used,
        "a page of a block map is freed once, after it was used",
    )?;
    list_word(s, index)?.store(h.map_free.load(Relaxed).into(), Relaxed);
    h.map_free.store(index + 1, Release);
    Ok(())
}

/// Free pages are chained through their first entry.
fn list_word(s: &Session, index: u32) -> Result<&AtomicU64> {
    let damaged = Error::Damaged {
        what: "block map page",
        index: index.into(),
    };
    s.map_page(index)?.entries.first().ok_or(damaged)
}

/// A free page, filled by `fill` and put into the map by `link`, all under the table's lock.
fn add_page(s: &Session, fill: impl Fn(usize) -> u64, link: impl Fn(u32)) -> Result<()> {
    let take = |max: u32| -> Result<bool> {
        let _guard = lock::acquire_plain(s, &s.header().map_lock)?;
        let Some(index) = take_page(s, max)? else {
            return Ok(false);
        };
        for (i, entry) in s.map_page(index)?.entries.iter().enumerate() {
            entry.store(fill(i), Relaxed);
        }
        link(index + 1);
        Ok(true)
    };
    if take(PAGES_KEPT)? {
        return Ok(());
    }
    reclaim(s, RECLAIM_LOOKS, false);
    match take(MAP_PAGES as u32)? {
        true => Ok(()),
        false => Err(Error::NoMemory),
    }
}

/// Whether blocks can be entered wherever it is.
#[inline]
pub(crate) fn has_room(s: &Session) -> bool {
    let h = s.header();
    h.map_used.load(Relaxed) < MAP_PAGES as u32 - PAGES_RESERVED || h.map_free.load(Relaxed) != 0
}

/// Takes pages from all files that can spare theirs; whether there is room then.
pub(crate) fn make_room(s: &Session) -> Result<bool> {
    let looks = s.header().inode_used.load(Relaxed).saturating_mul(2);
    reclaim(s, looks, false);
    if !has_room(s) {
        reclaim(s, looks, true);
    }
    Ok(has_room(s) || sweep(s)? > 0)
}

/// Takes the block maps of files that were not used since this came by last, among the next `looks`
/// entries; of those that somebody has open only if `open`.
fn reclaim(s: &Session, looks: u32, open: bool) {
    let used = s.header().inode_used.load(Acquire).clamp(1, INODES as u32);
    for _ in 0..looks {
        let link = s.header().map_hand.fetch_add(1, Relaxed) % used + 1;
        let Ok(e) = s.inode(link) else { return };
        let busy = e.map_root.load(Relaxed) == 0
            || e.lock.load(Relaxed) != 0
            || !open && e.opens.load(Relaxed) != 0
            || e.seq.load(Relaxed) > s.applied_seq();
        if busy || e.state.fetch_and(!INODE_USED, Relaxed) & INODE_USED != 0 {
            continue;
        }
        let ino = e.ino.load(Relaxed);
        if let Some(locked) = inode::try_lock(s, InodeRef { link, ino, e }) {
            trim(s, &locked);
        }
    }
}

/// Forgets the map of a file if the trees know all that it says; whether there was one.
pub(crate) fn trim(s: &Session, inode: &LockedInode<'_>) -> bool {
    let e = inode.e;
    let known = e.seq.load(Relaxed) <= s.applied_seq();
    let spare = known
        && e.map_root.load(Relaxed) != 0
        && e.pending_len.load(Relaxed) == 0
        && e.maps.load(SeqCst) == 0
        && e.state.load(Relaxed) & (INODE_INLINE | INODE_SHADOW | INODE_GONE) == 0;
    if spare {
        // First of all: from here on what the map does not know is in the trees.
        e.state.fetch_and(!INODE_MAPPED, SeqCst);
        e.truncations.fetch_add(1, SeqCst);
        discard(s, inode);
    }
    spare
}

/// The entry for a file block at `level` (0: the block itself) with pages made as needed. An
/// entry above `level` that covers the block is split.
fn entry_for<'s>(
    s: &'s Session,
    inode: &InodeRef<'s>,
    file_block: u64,
    level: u32,
) -> Result<Place<'s>> {
    if file_block >= FILE_END {
        return Err(Error::FileTooLarge);
    }
    loop {
        match find(s, inode.e, file_block)? {
            Some(place) if place.span <= span_at(level) => return Ok(place),
            Some(place) => split(s, &place)?,
            None => grow(s, inode.e)?,
        }
    }
}

/// One more level on top.
fn grow(s: &Session, e: &Inode) -> Result<()> {
    let root = e.map_root.load(Acquire);
    let height = root >> MAP_HEIGHT_SHIFT;
    let below = u64::from(root & LINK_MASK) << MAP_SHIFT | MAP_PAGE;
    let fill = |i: usize| match (root, i) {
        (0, _) => e
            .direct
            .get(i)
            .map_or(MAP_UNKNOWN, |entry| entry.load(Relaxed)),
        (_, 0) => below,
        _ => MAP_UNKNOWN,
    };
    add_page(s, fill, |link| {
        e.map_root
            .store(link | (height + 1) << MAP_HEIGHT_SHIFT, Release);
    })
}

/// A page below `place` that says the same.
fn split(s: &Session, place: &Place<'_>) -> Result<()> {
    let below = place.span / FANOUT;
    let (value, step) = match place.value & MAP_BLOCK {
        0 => (place.value, 0),
        _ => (place.value, below << MAP_SHIFT),
    };
    add_page(
        s,
        |i| value + step * i as u64,
        |link| {
            place
                .entry
                .store(u64::from(link) << MAP_SHIFT | MAP_PAGE, Release);
        },
    )
}

/// Maps `len` file blocks to `block..`; `Inode::blocks` is the caller's. `NoMemory` may leave a
/// part mapped: of a pending run that is a part of what was asked, of a journaled one the trees
/// have the rest.
#[inline]
pub fn map(
    s: &Session,
    inode: &LockedInode<'_>,
    file_block: u64,
    block: BlockAddr,
    len: u64,
    pending: bool,
) -> Result<()> {
    map_ref(s, inode, file_block, block, len, pending).1
}

/// As `map` and counts; the caller knows that the inode's lock is held for it.
pub(crate) fn map_counted(
    s: &Session,
    inode: &InodeRef<'_>,
    file_block: u64,
    block: BlockAddr,
    len: u64,
) -> Result<()> {
    let (added, result) = map_ref(s, inode, file_block, block, len, false);
    settle_count(s, inode.e, added as i64);
    result
}

/// Enters blocks of a file that nobody knows yet and that counts them already.
pub(crate) fn map_first(
    s: &Session,
    inode: &InodeRef<'_>,
    file_block: u64,
    block: BlockAddr,
    len: u64,
) -> Result<()> {
    map_ref(s, inode, file_block, block, len, false).1
}

/// Blocks that were holes, and how it ended.
fn map_ref(
    s: &Session,
    inode: &InodeRef<'_>,
    file_block: u64,
    block: BlockAddr,
    len: u64,
    pending: bool,
) -> (u64, Result<()>) {
    dirty_range::widen(s, inode.e, file_block, file_block.saturating_add(len));
    let (mut done, mut added, mut left) = (0, 0, false);
    let mut result = Ok(());
    while done < len {
        let (at, to) = (file_block + done, block + done);
        let level = u32::from(at % FANOUT == 0 && len - done >= FANOUT);
        let place = match entry_for(s, inode, at, level) {
            Ok(place) => place,
            Err(e) => {
                result = Err(e);
                break;
            }
        };
        let old = place.value & MAP_BLOCK != 0;
        left |= old && block_of(place.value) != to;
        added += if old { 0 } else { place.span };
        place.entry.store(block_word(to, pending), Release);
        done += place.span;
    }
    if left {
        inode.e.truncations.fetch_add(1, AcqRel);
    }
    (added, result)
}

fn settle_count(s: &Session, e: &Inode, change: i64) {
    if change != 0 {
        let counted = quota::before(s, e);
        let _change = Changing::begin(&e.version);
        e.blocks.store(
            e.blocks.load(Relaxed).saturating_add_signed(change),
            Release,
        );
        quota::after(s, e, counted);
    }
}

/// Makes `len` file blocks holes (`u64::MAX`: all from there). Bumps `truncations`. The caller
/// knows that the inode's lock is held for it.
pub(crate) fn unmap(s: &Session, inode: &InodeRef<'_>, file_block: u64, len: u64) -> Result<()> {
    let e = inode.e;
    let end = file_block.saturating_add(len).min(FILE_END);
    e.truncations.fetch_add(1, AcqRel);
    if file_block == 0 && end == FILE_END {
        // First of all: from here on what the map does not know is a hole.
        e.state.fetch_or(INODE_MAPPED, AcqRel);
        discard(s, inode);
        settle_count(s, e, -(e.blocks.load(Relaxed) as i64));
        return Ok(());
    }
    let (mut at, mut removed) = (file_block, 0);
    while at < end {
        let place = match find(s, e, at)? {
            Some(place) => place,
            None if e.state.load(Relaxed) & INODE_MAPPED != 0 => break,
            // Beyond the map the trees may know blocks that are to be hidden.
            None => match s.tree().extent(inode.ino, at)? {
                trees::Run::Hole(n) => {
                    at = at.saturating_add(n.max(1));
                    continue;
                }
                trees::Run::Blocks { .. } => entry_for(s, inode, at, widest(at, end))?,
            },
        };
        at += unmap_entry(s, inode, &place, at, end, &mut removed)?;
    }
    settle_count(s, e, -(removed as i64));
    Ok(())
}

/// The highest level at which one entry stands for blocks of `at..end` only, `at` first.
fn widest(at: u64, end: u64) -> u32 {
    let fits = |level: &u32| at.is_multiple_of(span_at(*level)) && end - at >= span_at(*level);
    (0..HEIGHT_MAX).rev().find(fits).unwrap_or(0)
}

/// Makes the blocks under one entry holes; how far that goes (0: look again).
fn unmap_entry(
    s: &Session,
    inode: &InodeRef<'_>,
    place: &Place<'_>,
    at: u64,
    end: u64,
    removed: &mut u64,
) -> Result<u64> {
    let skip = at % place.span;
    if is_hole(place.value, inode.e.state.load(Relaxed) & INODE_MAPPED != 0) {
        return Ok(place.span - skip);
    }
    if skip != 0 || end - at < place.span {
        split(s, place)?;
        return Ok(0);
    }
    if place.value & MAP_BLOCK != 0 {
        *removed += place.span;
    } else if place.span == 1 {
        keep(s, inode, at, s.tree().extent(inode.ino, at)?)?;
        return Ok(0);
    } else {
        // Counted in `blocks` though only the trees know which ones they are.
        *removed += known_by_trees(s, inode.ino, at, place.span)?;
    }
    place.entry.store(MAP_HOLE, Release);
    Ok(place.span)
}

fn known_by_trees(s: &Session, ino: u64, from: u64, len: u64) -> Result<u64> {
    let (mut at, mut known) = (from, 0);
    while at < from + len {
        let rest = from + len - at;
        let n = match s.tree().extent(ino, at)? {
            trees::Run::Hole(n) => n.clamp(1, rest),
            trees::Run::Blocks { len, .. } => {
                known += len.clamp(1, rest);
                len.clamp(1, rest)
            }
        };
        at += n;
    }
    Ok(known)
}

/// Forgets the whole map. The caller removes the entry or has declared the file empty.
pub(crate) fn discard(s: &Session, inode: &InodeRef<'_>) {
    let e = inode.e;
    for entry in &e.direct {
        entry.store(MAP_UNKNOWN, Release);
    }
    let root = e.map_root.load(Relaxed);
    if root == 0 {
        return;
    }
    // Without the lock (a given-up session) the pages wait for a sweep.
    let Ok(_guard) = lock::acquire_plain(s, &s.header().map_lock) else {
        return;
    };
    e.map_root.store(0, Release);
    let height = (root >> MAP_HEIGHT_SHIFT).min(HEIGHT_MAX);
    free_below(s, root & LINK_MASK, height.saturating_sub(1));
}

fn free_below(s: &Session, link: u32, level: u32) {
    let Some(index) = link.checked_sub(1) else {
        return;
    };
    let Ok(page) = s.map_page(index) else { return };
    if level > 0 {
        for entry in &page.entries {
            let value = entry.load(Relaxed);
            if value & MAP_PAGE != 0 {
                free_below(s, (value >> MAP_SHIFT) as u32, level - 1);
            }
        }
    }
    let _ = free_page(s, index);
}

/// Where file block 0 is, if the map knows.
pub fn first_block(s: &Session, inode: &InodeRef<'_>) -> Option<BlockAddr> {
    match mapped_run(s, inode.e, 0, 1) {
        Ok(Some(Run::Blocks { block, .. })) => Some(block),
        _ => None,
    }
}

/// Makes file block 0 unknown again: it was the shadow of inline data.
pub(crate) fn forget_first(s: &Session, inode: &InodeRef<'_>) {
    inode.e.truncations.fetch_add(1, AcqRel);
    if let Ok(Some(place)) = find(s, inode.e, 0)
        && place.span == 1
    {
        place.entry.store(MAP_UNKNOWN, Release);
    }
}

/// Returns the block that shadows inline data, if there is one.
pub(crate) fn drop_shadow(s: &Session, inode: &InodeRef<'_>) {
    // The bit goes first, so that the block is given back once.
    if inode.e.state.fetch_and(!INODE_SHADOW, AcqRel) & INODE_SHADOW == 0 {
        return;
    }
    if let Some(block) = first_block(s, inode) {
        forget_first(s, inode);
        space::give_back(s, block, 1);
    }
}

/// Unmaps blocks that no record mentions and that are not pending either: whoever mapped them
/// died before that, so nothing was said about what is in them.
pub(crate) fn drop_stray(s: &Session, inode: &InodeRef<'_>) {
    let e = inode.e;
    if !inode::is_file(e.mode.load(Relaxed)) {
        return;
    }
    let first = e.pending_file_block.load(Relaxed);
    let pending = first..first.saturating_add(e.pending_len.load(Relaxed).into());
    let hole = match e.state.load(Relaxed) & INODE_MAPPED {
        0 => MAP_UNKNOWN,
        _ => MAP_HOLE,
    };
    let mut at = 0;
    while let Ok(Some(place)) = find(s, e, at) {
        let shadow = at == 0 && e.state.load(Relaxed) & INODE_SHADOW != 0;
        let unsaid = place.value & (MAP_BLOCK | MAP_PENDING) == MAP_BLOCK | MAP_PENDING;
        if unsaid && !shadow && !pending.contains(&at) {
            e.truncations.fetch_add(1, AcqRel);
            place.entry.store(hole, Release);
            space::give_back(s, block_of(place.value), place.span as u32);
        }
        at += place.span;
    }
}

/// Counts the blocks of a file whose map is whole: its last locker died.
pub(crate) fn recount(s: &Session, inode: &InodeRef<'_>) {
    let e = inode.e;
    let state = e.state.load(Relaxed);
    if !inode::is_file(e.mode.load(Relaxed)) || state & INODE_MAPPED == 0 {
        return;
    }
    let (mut at, mut count) = (0, 0);
    while let Ok(Some(place)) = find(s, e, at) {
        let counts = place.value & MAP_BLOCK != 0 && !(at == 0 && state & INODE_SHADOW != 0);
        count += if counts { place.span } else { 0 };
        at += place.span;
    }
    let counted = quota::before(s, e);
    let _change = Changing::begin(&e.version);
    e.blocks.store(count, Release);
    quota::after(s, e, counted);
}

/// Rebuilds the free list from what no map reaches; how many pages are free.
#[cold]
fn sweep(s: &Session) -> Result<u32> {
    let _guard = lock::acquire_plain(s, &s.header().map_lock)?;
    let mut reached = Vec::new();
    let words = MAP_PAGES.div_ceil(64);
    reached
        .try_reserve_exact(words)
        .map_err(|_| Error::NoMemory)?;
    reached.resize(words, 0);
    let inodes = s.header().inode_used.load(Acquire).min(INODES as u32);
    for link in 1..=inodes {
        let root = s.inode(link)?.map_root.load(Acquire);
        let height = (root >> MAP_HEIGHT_SHIFT).min(HEIGHT_MAX);
        mark(s, &mut reached, root & LINK_MASK, height.saturating_sub(1));
    }
    s.header().map_free.store(0, Release);
    let used = s.header().map_used.load(Relaxed).min(MAP_PAGES as u32);
    let mut found = 0;
    for index in (0..used).rev() {
        if reached[index as usize / 64] >> (index % 64) & 1 == 0 {
            free_page(s, index)?;
            found += 1;
        }
    }
    Ok(found)
}

fn mark(s: &Session, reached: &mut [u64], link: u32, level: u32) {
    let Some(index) = link.checked_sub(1) else {
        return;
    };
    let Ok(page) = s.map_page(index) else { return };
    if let Some(word) = reached.get_mut(index as usize / 64) {
        *word |= 1 << (index % 64);
    }
    if level > 0 {
        for entry in &page.entries {
            let value = entry.load(Relaxed);
            if value & MAP_PAGE != 0 {
                mark(s, reached, (value >> MAP_SHIFT) as u32, level - 1);
            }
        }
    }
}
