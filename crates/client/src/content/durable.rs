//! Making changes durable where memory alone is not: on the medium `file`.
//!
//! Invariants:
//!  * Bytes are durable, in a `Data` record or in place, by the flush after which a call returns;
//!    records that show them never count without them (`docs/spec/media.md`).
//!  * The bits of a file's dirty blocks are cleared once their bytes are in the journal or in
//!    place, with the file locked, and only if nothing was stored since. So a process that syncs
//!    the same file meanwhile, or after a process died in between, finds them set. They stay set
//!    while a file is mapped: mapped stores are not seen.
//!  * Nobody waits for a flush with an inode locked, and nobody waits for a stopped process: a
//!    process that has waited long enough flushes alone.

use crate::base::error::{Error, Result};
use crate::content::close;
use crate::journal;
use crate::session::STRICT;
use crate::session::{BLOCK, Session};
use crate::session::{drain, lock};
use crate::tables::block_map::{self, Run};
use crate::tables::dirty_range;
use crate::tables::inode_table::{self, InodeRef, LockedInode, is_file};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use core::time::Duration;
use pmem::atomic::Ordering::*;
use pmem::env::{self, ticks};
use pmem::{Region, futex};
use pool::journal::{BlockRuns, EXTENT_WHOLE, MarkLanes, Record};
use pool::layout::BlockAddr;
use pool::session::{INODE_INLINE, LANES, MEDIUM_FILE};

/// Dirty blocks that travel in the journal; more are written in their place.
const LOGGED_MAX: u64 = 16;
/// How long others are waited for before one flushes alone.
const NAP: Duration = Duration::from_millis(50);
const NAPS_MAX: u32 = 4;
/// How long a flush is put off for others who may come, in ticks: some 50 us since the last one
/// came, and some 200 us in all.
const QUIET: u64 = 1 << 17;
const GATHER: u64 = 1 << 19;
/// In `journal_suspect`: a flush failed; all of the journal is being made dirty.
const SUSPECT: u32 = 1;
const REDIRTYING: u32 = 2;

/// Dirty blocks that lie in a row.
#[derive(Clone, Copy)]
struct Dirty {
    file_block: u64,
    block: BlockAddr,
    len: u64,
}

impl Dirty {
    /// Blocks of whatever file.
    fn anywhere((block, len): (BlockAddr, u64)) -> Dirty {
        let file_block = 0;
        Dirty {
            file_block,
            block,
            len,
        }
    }

    /// Where its bytes are: segment, offset there, and how many.
    fn bytes<'s>(&self, s: &'s Session) -> Result<(&'s Region, u64, usize)> {
        let segment = s.segment(self.block)?;
        Ok((segment, self.block.offset(), (self.len * BLOCK) as usize))
    }
}

/// Blocks that have to be written in their place, and what may be said of them then.
#[derive(Default)]
pub(crate) struct Placing {
    runs: Vec<Dirty>,
    before: u64,
    /// Their file, and what of it was looked at.
    file: Option<Seen>,
}

/// What a file was when its dirty blocks were looked for.
struct Seen {
    link: u32,
    ino: u64,
    changes: (u32, u32),
    range: Range<u64>,
}

/// Whether anything has to be done here.
#[inline]
pub(crate) fn is_needed(s: &Session) -> bool {
    s.medium() == MEDIUM_FILE && !s.is_read_only()
}

/// Of records that show new blocks.
pub(crate) fn extent_flags(s: &Session) -> u32 {
    match s.consistency() == STRICT && is_needed(s) {
        true => EXTENT_WHOLE,
        false => 0,
    }
}

/// Journals what is lazy about a file, and those of its file blocks `range` that are dirty if they
/// are few. `finish`, without the lock, does the rest.
pub(crate) fn prepare(s: &Session, inode: &LockedInode, range: Range<u64>) -> Result<Placing> {
    let dirty = find_dirty(s, inode, &range)?;
    if are_few(&dirty) {
        log_few(s, inode, &dirty)?;
        narrow(inode, &range);
        return Ok(Placing::default());
    }
    close::flush(s, inode)?;
    Ok(Placing {
        runs: dirty,
        before: s.header().next_seq.load(SeqCst),
        file: Some(Seen {
            link: inode.link,
            ino: inode.ino,
            changes: changes_of(inode),
            range,
        }),
    })
}

/// After all dirty blocks in `range` were looked at, and their bits cleared.
fn narrow(inode: &LockedInode, range: &Range<u64>) {
    let dirty = dirty_range::get(inode.e);
    if range.start <= dirty.start && dirty.end <= range.end {
        dirty_range::set_empty(inode.e);
    }
}

fn are_few(dirty: &[Dirty]) -> bool {
    dirty.iter().map(|run| run.len).sum::<u64>() <= LOGGED_MAX
}

/// Journals what is lazy about a file, and these of its blocks.
fn log_few(s: &Session, inode: &LockedInode, dirty: &[Dirty]) -> Result<()> {
    let e = inode.e;
    let pending = BlockAddr::from_word(e.pending_block.load(Relaxed));
    let pending = pending..pending.end(e.pending_len.load(Relaxed).into());
    let (new, old) = split(dirty, &pending);
    // A record that only raises the size counts when it is there: the bytes come before it. One
    // that shows new blocks counts when their bytes are there, too, and those come after it.
    log(s, inode, &old)?;
    close::flush(s, inode)?;
    log(s, inode, &new)
}

/// fsync of a locked file, whose lock is given up before anything is waited for.
pub(crate) fn now(s: &Session, inode: LockedInode) -> Result<()> {
    if !is_needed(s) {
        close::flush(s, &inode)?;
        s.data().fence();
        return Ok(());
    }
    let placing = prepare(s, &inode, 0..u64::MAX)?;
    drop(inode);
    finish(s, placing)
}

/// Everything that `prepare` saw, and every record up to now, is durable.
pub(crate) fn finish(s: &Session, placing: Placing) -> Result<()> {
    place_unlocked(s, &placing)?;
    records(s)
}

fn place_unlocked(s: &Session, placing: &Placing) -> Result<()> {
    place(s, placing)?;
    let Some(Seen { link, ino, .. }) = placing.file else {
        return Ok(());
    };
    let e = s.inode(link)?;
    // Else it is gone, and nobody will sync it any more.
    if let Ok(inode) = inode_table::lock_ref(s, InodeRef { link, ino, e }) {
        conclude(s, &inode, placing);
    }
    Ok(())
}

/// Other numbers once a block was stored to, became another, or left the file.
fn changes_of(inode: &LockedInode) -> (u32, u32) {
    let e = inode.e;
    (e.stores.load(SeqCst), e.truncations.load(SeqCst))
}

/// What was written in its place is clean, if nothing was stored since it was looked for.
fn conclude(s: &Session, inode: &LockedInode, placing: &Placing) {
    let Some(seen) = &placing.file else { return };
    if !is_mapped(inode) && changes_of(inode) == seen.changes {
        clear(s, &placing.runs);
        narrow(inode, &seen.range);
    }
}

/// As `prepare` and what follows, but for the flush of the journal: records that follow count only
/// together with these bytes.
pub(crate) fn before_records(s: &Session, inode: &LockedInode) -> Result<()> {
    let placing = prepare(s, inode, 0..u64::MAX)?;
    place(s, &placing)?;
    conclude(s, inode, &placing);
    Ok(())
}

/// As `before_records`, but nothing stays locked while blocks are written in their place.
pub(crate) fn place_first(s: &Session, inode: &InodeRef<'_>) -> Result<()> {
    let locked = inode_table::lock_ref(s, *inode)?;
    let placing = prepare(s, &locked, 0..u64::MAX)?;
    drop(locked);
    place_unlocked(s, &placing)
}

/// As `before_records` if that costs no flush, else nothing.
pub(crate) fn before_records_if_small(s: &Session, inode: &LockedInode) -> Result<()> {
    if !is_needed(s) {
        return Ok(());
    }
    let all = 0..u64::MAX;
    let dirty = find_dirty(s, inode, &all)?;
    if are_few(&dirty) {
        log_few(s, inode, &dirty)?;
        narrow(inode, &all);
    }
    Ok(())
}

/// Has dirty blocks among the file blocks `range` written in their place; they stay dirty.
pub(crate) fn write_back(
    s: &Session,
    inode: &InodeRef<'_>,
    range: Range<u64>,
    wait: bool,
) -> Result<()> {
    let locked = inode_table::lock_ref(s, *inode)?;
    let dirty = find_dirty(s, &locked, &range)?;
    drop(locked);
    for run in dirty {
        let (segment, at, len) = run.bytes(s)?;
        let written = unless_failed(s, || segment.write_back(at, len, wait));
        if written.is_err() {
            mark(s, &[run]);
        }
        written?;
    }
    Ok(())
}

/// Those in `pending`, and the others; a run may be both.
fn split(dirty: &[Dirty], pending: &Range<BlockAddr>) -> (Vec<Dirty>, Vec<Dirty>) {
    let (mut new, mut old) = (Vec::new(), Vec::new());
    for run in dirty {
        let end = run.block + run.len;
        let (from, to) = (
            pending.start.clamp(run.block, end),
            pending.end.clamp(run.block, end),
        );
        let to = to.max(from);
        for (first, end, is_new) in [(run.block, from, false), (from, to, true), (to, end, false)] {
            let part = if is_new { &mut new } else { &mut old };
            if first < end {
                part.push(Dirty {
                    file_block: run.file_block + (first - run.block),
                    block: first,
                    len: end - first,
                });
            }
        }
    }
    (new, old)
}

fn is_mapped(inode: &LockedInode) -> bool {
    inode.e.maps.load(SeqCst) > 0
}

/// The dirty ones among the blocks of a file.
fn find_dirty(s: &Session, inode: &LockedInode, range: &Range<u64>) -> Result<Vec<Dirty>> {
    let mut found = Vec::new();
    let e = inode.e;
    let Some(dirty) = s.data().dirty().filter(|dirty| !dirty.is_clean()) else {
        return Ok(found);
    };
    if !is_file(e.mode.load(Relaxed)) {
        return Ok(found);
    }
    let dirty_range = dirty_range::get(e);
    let end = e.size.load(Relaxed).div_ceil(BLOCK);
    let end = end.min(range.end).min(dirty_range.end);
    // Inline content is in its record, and block 0 only a shadow of it.
    let inline = e.state.load(Relaxed) & INODE_INLINE != 0;
    let mut at = range.start.max(dirty_range.start).max(inline.into());
    while at < end {
        match block_map::lookup_run_locked(s, inode, at, end - at)? {
            Run::Hole(len) => at = at.saturating_add(len.max(1)),
            Run::Blocks { block, len, .. } => {
                let len = len.clamp(1, end - at);
                dirty.each(block.number(), len, |first, len| {
                    let skip = first - block.number();
                    found.push(Dirty {
                        file_block: at + skip,
                        block: block + skip,
                        len,
                    });
                    true
                });
                at += len;
            }
        }
    }
    Ok(found)
}

fn clear(s: &Session, runs: &[Dirty]) {
    if let Some(dirty) = s.data().dirty() {
        let clear = |run: &Dirty| dirty.clear(run.block.number(), run.len);
        runs.iter().for_each(clear);
    }
}

/// What was to be made durable is dirty still, for us and for the kernel.
#[cold]
fn mark(s: &Session, runs: &[Dirty]) {
    for run in runs {
        // Where the page is gone with its disk there is nothing left to be written.
        if let Ok((segment, at, len)) = run.bytes(s) {
            let _ = segment.redirty(at, len);
        }
    }
}

/// The bytes of a few blocks go to the journal.
fn log(s: &Session, inode: &LockedInode, runs: &[Dirty]) -> Result<()> {
    if runs.is_empty() {
        return Ok(());
    }
    let size = inode.e.size.load(Relaxed);
    let each = |run: &Dirty| {
        let end = (run.file_block + run.len) * BLOCK;
        let bytes = end.min(size).saturating_sub(run.file_block * BLOCK);
        log_run(s, run.block, bytes as usize)
    };
    runs.iter().try_for_each(each)?;
    if !is_mapped(inode) {
        clear(s, runs);
    }
    Ok(())
}

fn log_run(s: &Session, block: BlockAddr, len: usize) -> Result<()> {
    let mut bytes = vec![0; len];
    s.segment(block)?.read(block.offset(), &mut bytes)?;
    let record = Record::Data {
        block,
        bytes: &bytes,
    };
    journal::commit(s, &record).map(drop)
}

/// Writes blocks in their place, flushes, and says so in the journal.
fn place(s: &Session, placing: &Placing) -> Result<()> {
    if placing.runs.is_empty() {
        return Ok(());
    }
    let said = write_runs(s, &placing.runs).and_then(|()| say_in_place(s, placing));
    if said.is_err() {
        mark(s, &placing.runs);
    }
    said
}

/// Writes blocks in their place and flushes. After any flush that failed the kernel may take pages
/// for clean that are not on the device, and may have yet to say so to the clients' descriptor:
/// from then on pages are made dirty first, and what fails is tried once more.
fn write_runs(s: &Session, runs: &[Dirty]) -> Result<()> {
    runs.iter().try_for_each(|run| run.bytes(s).map(drop))?;
    let ranges = runs.iter();
    let ranges = ranges.map(|run| (run.block.offset(), (run.len * BLOCK) as usize));
    let again = || {
        for (at, len) in ranges.clone() {
            // For the kernel alone; the bits are the caller's.
            s.data().prefault(at, len)?;
        }
        s.data().sync_ranges(ranges.clone())
    };
    unless_failed(s, || match s.header().sync_errors.load(SeqCst) {
        0 => s.data().sync_ranges(ranges.clone()),
        _ => again().or_else(|_| again()),
    })
}

fn say_in_place(s: &Session, placing: &Placing) -> Result<()> {
    let before = placing.before;
    for some in placing.runs.chunks(BlockRuns::MAX) {
        let mut runs = BlockRuns::new();
        some.iter().for_each(|run| {
            runs.push(run.block, run.len);
        });
        let runs = runs.as_bytes();
        journal::commit(s, &Record::InPlace { before, runs })?;
    }
    Ok(())
}

/// The bytes of these blocks (first, length), which are the caller's alone, count from now on for
/// every record that speaks of them: they are in the journal before it, or durable.
pub(crate) fn blocks(s: &Session, runs: &[(BlockAddr, u64)]) -> Result<()> {
    let runs: Vec<Dirty> = runs.iter().map(|run| Dirty::anywhere(*run)).collect();
    clear(s, &runs);
    if !are_few(&runs) {
        let placing = Placing {
            runs,
            before: s.header().next_seq.load(SeqCst),
            file: None,
        };
        return place(s, &placing);
    }
    let each = |run: &Dirty| log_run(s, run.block, (run.len * BLOCK) as usize);
    let logged = runs.iter().try_for_each(each);
    if logged.is_err() {
        mark(s, &runs);
    }
    logged
}

/// All data that was stored so far is in its place, and the journal says so.
pub(crate) fn all_data(s: &Session) -> Result<()> {
    let h = s.header();
    let before = h.next_seq.load(SeqCst);
    let dirty = s.data().dirty();
    if dirty.is_some_and(|dirty| dirty.is_clean()) {
        return Ok(());
    }
    // No bit is cleared: a block of which no record is there yet needs to be named again.
    if let Some(dirty) = dirty.filter(|_| h.sync_errors.load(SeqCst) != 0) {
        // Not all that is clean for the kernel is on the device: what is there is said by name.
        let mut placing = Placing {
            before,
            ..Placing::default()
        };
        dirty.each(0, u64::MAX, |block, len| {
            placing
                .runs
                .push(Dirty::anywhere((BlockAddr::from_word(block), len)));
            true
        });
        return place(s, &placing);
    }
    let flushed = unless_failed(s, || s.data().sync_file());
    let said = flushed.and_then(|()| {
        let record = Record::InPlace { before, runs: &[] };
        journal::commit(s, &record)
    });
    said.map(drop)
}

/// Every change of a keyspace up to now is durable, as the medium has it.
pub(crate) fn changes(s: &Session) -> Result<()> {
    s.data().fence();
    match is_needed(s) {
        true => records(s),
        false => Ok(()),
    }
}

/// Every record up to now is durable.
pub(crate) fn records(s: &Session) -> Result<()> {
    let h = s.header();
    let upto = h.next_seq.load(SeqCst).saturating_sub(1);
    let mut naps = 0;
    if h.synced_seq.load(SeqCst) < upto {
        h.sync_waiting.fetch_add(1, SeqCst);
    }
    while h.synced_seq.load(SeqCst) < upto {
        s.check_poison()?;
        let tick = h.sync_tick.load(SeqCst);
        if let Some(leads) = lock::try_acquire(s, &h.sync_lock) {
            h.sync_stuck.store(0, Relaxed);
            gather(s);
            let came = h.sync_waiting.swap(0, SeqCst);
            let flushed = flush(s);
            let more = h.sync_waiting.load(Relaxed);
            h.sync_gathered.store(came.saturating_add(more), Relaxed);
            // First the lock, so that one of those who wake leads the next flush.
            drop(leads);
            wake(s);
            return flushed;
        }
        let leader = h.sync_lock.load(SeqCst) & !lock::WAITERS;
        if leader == 0 || h.synced_seq.load(SeqCst) >= upto {
            continue;
        }
        if naps == NAPS_MAX || h.sync_stuck.load(Relaxed) == leader {
            // It is stopped, or its disk is slow: nobody else waits for it that long.
            h.sync_stuck.store(leader, Relaxed);
            let flushed = flush(s);
            wake(s);
            return flushed;
        }
        if futex::wait(&h.sync_tick, tick, Some(NAP)) == futex::WaitResult::TimedOut {
            naps += 1;
            if !lock::owner_lives(s, leader) {
                drop(lock::acquire_plain(s, &h.sync_lock)?);
            }
        }
    }
    Ok(())
}

/// Before a flush: as many may come as came last time, and those whom the last flush woke are on
/// their way. Flushing at once would divide them into groups that wait for each other's flushes.
fn gather(s: &Session) {
    let h = s.header();
    let wanted = h.sync_gathered.load(Relaxed);
    let mut came = h.sync_waiting.load(Relaxed);
    let begun = ticks();
    let mut since = begun;
    while came < wanted {
        env::yield_now();
        let (now, waiting) = (ticks(), h.sync_waiting.load(Relaxed));
        if waiting != came {
            (came, since) = (waiting, now);
        }
        if now.wrapping_sub(since) > QUIET || now.wrapping_sub(begun) > GATHER {
            return;
        }
    }
}

/// A flush is over: those whom it covers go on, one of the others leads the next.
fn wake(s: &Session) {
    let tick = &s.header().sync_tick;
    tick.fetch_add(1, SeqCst);
    futex::wake(tick, i32::MAX.unsigned_abs());
}

/// One flush of the journal.
fn flush(s: &Session) -> Result<()> {
    let h = s.header();
    let durable = h.acked_seq.load(SeqCst).max(h.synced_seq.load(SeqCst));
    let upto = h.next_seq.load(SeqCst).saturating_sub(1);
    s.ensure(durable <= upto, "what is durable was journaled before")?;
    drain::wait_lanes(s, upto)?;
    if h.journal_suspect.load(SeqCst) != 0 {
        redirty(s)?;
    }
    let mut lanes = MarkLanes::default();
    for (index, (head, acked)) in lanes.heads.iter_mut().zip(&mut lanes.acked).enumerate() {
        *head = s.lane(index as u32)?.head.load(SeqCst);
        *acked = h.acked[index].load(SeqCst);
    }
    let mark = Record::SyncMark {
        seq: upto,
        acked: h.acked_seq.load(SeqCst),
        lanes: &lanes.encode(),
    };
    let marked = journal::commit(s, &mark)?;
    let flushed = unless_failed(s, || write_journal(s));
    match &flushed {
        Ok(()) => {
            for (acked, head) in h.acked.iter().zip(lanes.heads) {
                acked.fetch_max(head, SeqCst);
            }
            h.acked_seq.fetch_max(upto, SeqCst);
            // The mark itself, if nobody came between.
            let last = if marked == upto + 1 { marked } else { upto };
            h.synced_seq.fetch_max(last, SeqCst);
        }
        // The kernel may take the pages for clean though they are not on the device.
        Err(_) => h.journal_suspect.store(SUSPECT, SeqCst),
    }
    flushed
}

/// Flushes the file of the journal; as with `write_runs`, what fails after an earlier failure is
/// tried once more.
fn write_journal(s: &Session) -> core::result::Result<(), pmem::Error> {
    let flushed = s.journal().sync_file();
    if flushed.is_ok() || s.header().sync_errors.load(SeqCst) == 0 {
        return flushed;
    }
    redirty_lanes(s)?;
    s.journal().sync_file()
}

/// Makes the kernel write all of the journal that is needed once more.
#[cold]
fn redirty(s: &Session) -> Result<()> {
    let suspect = &s.header().journal_suspect;
    suspect.store(REDIRTYING, SeqCst);
    redirty_lanes(s)?;
    // Unless another flush failed meanwhile.
    let _ = suspect.compare_exchange(REDIRTYING, 0, SeqCst, SeqCst);
    Ok(())
}

fn redirty_lanes(s: &Session) -> core::result::Result<(), pmem::Error> {
    (0..LANES as u64).try_for_each(|index| {
        let len = s.lane_len();
        s.journal().redirty(index * len, len as usize)
    })
}

/// Flushes, and counts it if that fails, for all open descriptions to report. The kernel says it
/// to one of those who flush at the same time: for the others it failed, too.
fn unless_failed(
    s: &Session,
    flush: impl FnOnce() -> core::result::Result<(), pmem::Error>,
) -> Result<()> {
    let errors = &s.header().sync_errors;
    let before = errors.load(SeqCst);
    flush().inspect_err(|_| {
        errors.fetch_add(1, SeqCst);
    })?;
    match errors.load(SeqCst) == before {
        true => Ok(()),
        false => Err(Error::FlushFailed),
    }
}
