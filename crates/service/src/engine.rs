//! The writer of a pool: applies journal records in batches and commits them.
//!
//! Invariants:
//!  * A record is applied only from a private copy, only with blocks that were granted, and in
//!    the order that `Order` gives.
//!  * `done` says for each lane what the trees have; it becomes durable with the trees.
//!  * After a store failure nothing more is applied: what is on the medium stays right.

use crate::backing::Backing;
use crate::checkpoint::Checkpoints;
use crate::compaction::Compaction;
use crate::error::{Error, Result};
use crate::files::{self, Files};
use crate::lane::{Buffers, Entry, Lane};
use crate::order::{Next, Order};
use crate::process;
use crate::recover;
use crate::replay::Replay;
use crate::room::HostRoom;
use crate::runs::Runs;
use crate::store::Held;
use holdfast_pmem::{Access, Medium, Region, SegmentFile};
use holdfast_pool::apply::{
    Applier, Failure, Messages, Outcome, PoolStore, ROOM_TO_GROW, Reject, Why, are_unseen,
};
use holdfast_pool::checksum::crc32c;
use holdfast_pool::directory::LANE_LEN;
use holdfast_pool::format::superblock::{self, Superblock};
use holdfast_pool::format::{LANES, PAGE_LEN};
use holdfast_pool::journal::{self, Record};
use holdfast_pool::layout::value::InBlocks;
use holdfast_pool::segment::tree_share;
use holdfast_pool::session::{TREES_FULL, TREES_OVER, TREES_ROOMY, TREES_SHORT};
use holdfast_pool::space::Run;
use holdfast_pool::{Pool, WriteToken};
use rustix::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Records of one commit.
const BATCH_MAX: usize = 128 * 1024;
/// A commit is not put off for longer.
const BATCH_TIME: Duration = Duration::from_millis(5);
/// The same while changes of keyspaces are collected: the more of them there are, the fewer nodes
/// each of them costs.
const BATCH_TIME_VALUES: Duration = Duration::from_millis(20);
/// Changes of keyspaces that one commit makes: each may copy a leaf, and what is copied takes room
/// twice for a while. So not more than a part of the pages in use, but where those are few, and no
/// more than we have memory for.
const VALUES_PART: usize = 2;
const VALUES_MIN: usize = 8 * 1024;
const VALUES_MAX: usize = 64 * 1024;
/// Pages that are kept for records that are journaled and not applied yet.
const ROOM_KEPT_MAX: u64 = 24 * 1024;
/// Pages beyond those that lanes full of changes of keyspaces can use up.
const ROOM_AHEAD_MAX: u64 = 96 * 1024;
/// Blocks of a free run that are given back to the medium when a session ends.
const WORTH_PUNCHING: u64 = 128;
/// Bytes of the changes of one record that are not in the journal.
const SPILLED_MAX: u64 = 1 << 30;
/// Records of one lane that are read ahead of what is applied; of their bytes never more than the
/// lane has room for, so that clients cannot fill our memory.
pub const AHEAD_MAX: usize = 4 * 1024;

/// The pool as its writer has it.
pub struct Engine {
    pub files: Files,
    pub pool: Pool,
    pub journal: Region,
    pub data: Arc<Region>,
    token: WriteToken,
    pub granted: Runs,
    lanes: Vec<Lane>,
    pub order: Order,
    done: [superblock::Lane; LANES],
    buffers: Buffers,
    messages: Messages,
    /// The highest number of a record that is in the trees.
    newest: u64,
    backing: Backing,
    compaction: Compaction,
    pub(crate) checkpoints: Checkpoints,
    room: HostRoom,
    /// While the pool is recovered.
    pub replay: Option<Replay>,
    failed: bool,
}

/// What one call of `Engine::apply` did.
#[derive(Debug, Default)]
pub struct Progress {
    /// Records that were applied and committed.
    pub applied: usize,
    /// Numbers that hold everything up: `first..bound` are missing.
    pub missing: Option<(u64, u64)>,
    /// A record that is not finished by its writer.
    pub unfinished: Option<u64>,
    /// The host has no room for what would be written: nothing was done.
    pub short: bool,
    /// The record that was refused, and why: nothing after it was applied.
    pub rejected: Option<(u64, Reject)>,
    /// The last record that was refused and passed over.
    pub refused: Option<(u64, Reject)>,
    /// There is no room before the next checkpoint, or a record speaks of blocks that are used
    /// again as soon as it is applied.
    checkpoint: bool,
}

impl Engine {
    /// Opens the pool of `files` at its last commit. On an ordinary file readers are shown nothing
    /// yet: those of an earlier service may have seen more.
    pub fn open(files: Files) -> Result<Engine> {
        let pool_error = |error| Error::Pool {
            path: files.directory.clone(),
            error,
        };
        let sizes = (files.superblock.meta_len, files.superblock.data_len);
        let meta = files::map(&files.meta, sizes.0, Access::ReadWrite, files.medium)?;
        let journal_len = LANES as u64 * LANE_LEN;
        files.shed_large_folios();
        let journal = files::map(&files.journal, journal_len, Access::ReadWrite, files.medium)?;
        let data = files::map(&files.data, sizes.1, Access::ReadWrite, files.medium)?;
        let data = Arc::new(data.of_file(SegmentFile::new(files.data.as_fd())?));
        let token = WriteToken::for_service();
        let pool = match files.medium {
            Medium::File => open_lazy(meta, &token, data.clone()),
            _ => Pool::open(meta, &token),
        };
        let pool = pool.map_err(pool_error)?;
        let done = pool.superblock().lanes;
        let lanes = done.iter().enumerate();
        let lanes = lanes
            .map(|(i, l)| Lane::new(i, LANE_LEN, l.start, l.applied))
            .collect();
        let newest = pool.superblock().applied_seq;
        let order = Order::new(LANES, newest + 1);
        let granted = Runs::new(pool.data_space().len());
        let failed = false;
        Ok(Engine {
            files,
            pool,
            journal,
            data,
            token,
            granted,
            lanes,
            order,
            done,
            buffers: Buffers::default(),
            messages: Messages::default(),
            newest,
            backing: Backing::default(),
            compaction: Compaction::default(),
            checkpoints: Checkpoints::default(),
            room: HostRoom::default(),
            replay: None,
            failed,
        })
    }

    /// Shows readers the last commit.
    pub fn show(&mut self) -> Result<()> {
        let shown = self.pool.show();
        shown.map_err(|error| Error::Pool {
            path: self.files.directory.clone(),
            error,
        })
    }

    /// Applies again, after the death of a service, what that one had shown to clients: everything
    /// up to record `upto`. Then readers, who wait meanwhile, are shown the trees.
    pub fn catch_up(&mut self, upto: u64) -> Result<()> {
        self.read(usize::MAX);
        recover::grant_what_records_need(self);
        while self.applied_seq() < upto {
            // Its writer was through with each of them, or they would not have been applied.
            let progress = self.apply(usize::MAX, upto, |_| true)?;
            match progress.missing {
                Some((_, bound)) => self.order.declare_void(bound.min(upto + 1)),
                None if progress.applied == 0 => break,
                None => {}
            }
        }
        self.show()
    }

    /// Where each lane continues of which everything before is in the trees, durably.
    pub fn passed(&self) -> [superblock::Lane; LANES] {
        match self.files.medium {
            Medium::File => self.pool.durable_lanes(),
            _ => self.done,
        }
    }

    /// Where each lane continues, and what of it the trees have.
    pub fn done(&self) -> [superblock::Lane; LANES] {
        self.done
    }

    /// Everything up to here is in the trees, or void.
    pub fn applied_seq(&self) -> u64 {
        self.order.next_seq() - 1
    }

    /// Reads what the lanes have to offer, up to `ahead` records of each that wait to be applied;
    /// says whether there was anything. A lane with something to read always has its next record
    /// waiting, so the lowest number that exists is never overlooked.
    pub fn read(&mut self, ahead: usize) -> bool {
        let before = self.order.waiting();
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            let start = self.done[index].start;
            let within = |lane: &Lane| lane.position().saturating_sub(start) < LANE_LEN;
            while self.order.waiting_in(index) < ahead && within(lane) {
                let Some(entry) = lane.next(&self.journal, &mut self.buffers) else {
                    break;
                };
                self.order.push(entry);
            }
        }
        self.order.waiting() > before
    }

    /// Where the reading of a lane has come to.
    pub fn lane(&self, index: usize) -> Option<&Lane> {
        self.lanes.get(index)
    }

    /// Reads the rest of a lane from a position ahead, where a record was found behind damage;
    /// where it ends then.
    pub fn read_on(&mut self, index: usize, position: u64) -> u64 {
        let Some(lane) = self.lanes.get_mut(index) else {
            return position;
        };
        lane.skip_to(position);
        self.read(usize::MAX);
        self.lanes.get(index).map_or(position, Lane::position)
    }

    /// Pages that the trees may have without taking the place of data.
    fn tree_share(&self) -> u64 {
        let sb = self.pool.superblock();
        tree_share(sb.data_len, sb.data_len_max) / PAGE_LEN
    }

    /// Pages that are in use or that readers may still look at.
    fn pages_taken(&self) -> u64 {
        self.pool.meta_space().len() - self.pool.pages_left()
    }

    /// Data blocks that may still come into use: trees and data together have the pool's size, and
    /// the share of the trees.
    pub fn blocks_left(&self) -> u64 {
        let beyond = self.pages_taken().saturating_sub(self.tree_share());
        self.pool.blocks_left().saturating_sub(beyond)
    }

    /// How much room the trees have left, as `TREES_*`. They are full when clients must not add to
    /// them: what they have journaled already has to fit.
    pub fn trees_full(&self) -> u32 {
        let all = self.pool.meta_space().len();
        let all = all.min(self.tree_share() + self.pool.blocks_left());
        let kept = (all / 4).min(ROOM_KEPT_MAX);
        if self.room.is_short() {
            return TREES_FULL;
        }
        match all.saturating_sub(self.pages_taken() + ROOM_TO_GROW) {
            left if left < kept / 2 && self.pool.has_snapshots() => TREES_OVER,
            left if left < kept => TREES_FULL,
            left if left < kept + (all / 2).min(ROOM_AHEAD_MAX) => TREES_SHORT,
            _ => TREES_ROOMY,
        }
    }

    /// The highest number of a record that is in the trees.
    pub fn newest_applied(&self) -> u64 {
        self.newest
    }

    /// How many changes of keyspaces one commit makes.
    fn values_most(&self) -> usize {
        let in_use = self.pool.meta_space().count_used() as usize;
        (in_use / VALUES_PART).clamp(VALUES_MIN, VALUES_MAX)
    }

    /// How many records, and changes of keyspaces, one commit may take now.
    fn room_to_apply(&mut self, limit: usize, progress: &mut Progress) -> Result<(usize, usize)> {
        if self.pool.is_loose() && self.pool.pages_ready() < self.pool.pages_left() / 2 {
            self.checkpoint()?;
        }
        let room = self.room.for_apply(&mut self.pool);
        progress.short = room == 0;
        Ok((limit.min(BATCH_MAX).min(room), self.values_most().min(room)))
    }

    /// Applies what is in order, up to the first gap, at most `limit` records and none with a
    /// number above `upto`, and commits it.
    /// `finished` says whether the writer of a record is through with what it does outside the
    /// trees: until then other clients may still see and use what the record takes away.
    pub fn apply(
        &mut self,
        limit: usize,
        upto: u64,
        finished: impl Fn(&Entry) -> bool,
    ) -> Result<Progress> {
        if self.failed || self.order.waiting() == 0 {
            return Ok(Progress::default());
        }
        let progress = self.apply_batch(limit, upto, finished)?;
        if progress.checkpoint {
            self.checkpoint()?;
        }
        Ok(progress)
    }

    fn apply_batch(
        &mut self,
        limit: usize,
        upto: u64,
        finished: impl Fn(&Entry) -> bool,
    ) -> Result<Progress> {
        let mut progress = Progress::default();
        let before = self.done.map(|lane| lane.applied);
        let (limit, values_most) = self.room_to_apply(limit, &mut progress)?;
        let (start, loose) = (Instant::now(), self.pool.is_loose());
        let mut store = PoolStore::begin(&mut self.pool, &self.token);
        let mut held = Held(&mut self.granted);
        let messages = std::mem::take(&mut self.messages);
        let mut applier = Applier::keeping(&mut store, &mut held, before).reusing(messages);
        while progress.applied < limit {
            let values = applier.waiting();
            if values > values_most || progress.applied % 64 == 63 && is_late(start, values) {
                break;
            }
            let Some(entry) = next_upto(&mut self.order, upto, &mut progress) else {
                break;
            };
            let Ok((header, record)) = journal::decode_sound(&entry.bytes) else {
                continue;
            };
            if !finished(&entry) {
                progress.unfinished = Some(entry.seq);
                self.order.put_back(entry);
                break;
            }
            let what = (&header, &record);
            match apply_one(&mut applier, &self.data, what, &mut self.replay) {
                Ok(_) => {}
                Err(Failure::Rejected(reject)) => {
                    // What was applied makes room when it is committed, or at the checkpoint.
                    progress.checkpoint |= reject.why == Why::NoRoom && loose;
                    let later = reject.why == Why::NoRoom && (progress.applied > 0 || loose);
                    if !later && may_refuse(&record, &reject, &mut self.replay) {
                        progress.refused = Some((entry.seq, reject));
                        note_applied(&mut progress, (&mut self.done, &mut self.newest), &entry);
                        continue;
                    }
                    progress.rejected = (!later).then_some((entry.seq, reject));
                    self.order.put_back(entry);
                    break;
                }
                Err(Failure::Store(error)) => {
                    return Err(store_failed(&mut self.failed, &self.files, error));
                }
            }
            note_applied(&mut progress, (&mut self.done, &mut self.newest), &entry);
            progress.checkpoint |= matches!(record, Record::Spilled { .. });
            self.buffers.put(entry.bytes);
        }
        self.compaction.note_changes(applier.waiting());
        if let Err(Failure::Store(error)) = applier.settle() {
            return Err(store_failed(&mut self.failed, &self.files, error));
        }
        self.messages = applier.into_buffers();
        if progress.applied > 0 {
            sync_replayed(self.replay.as_ref(), &self.data)?;
            let done = store.commit(|sb| note_place(sb, self.done, self.order.next_seq() - 1));
            self.check(done)?;
        }
        Ok(progress)
    }

    /// A chunk is about to be handed out.
    pub fn prepare(&mut self, chunk: Run) {
        if self.files.medium == Medium::Memory {
            let space = self.pool.data_space();
            self.backing.prepare(chunk, space, &self.data);
        }
    }

    /// Does a little of what can be done while there is nothing to do, some of it only if that is
    /// so for `long`; whether there is more.
    pub fn rest(&mut self, long: bool) -> Result<bool> {
        if self.failed {
            return Ok(false);
        }
        let compacted = self.compaction.go_on(&mut self.pool, &self.token);
        match compacted {
            // What it frees is given back only then.
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(error) => return Err(store_failed(&mut self.failed, &self.files, error)),
        }
        let data = long.then_some(&*self.data);
        Ok(self.backing.go_on(&mut self.pool, data, &self.files))
    }

    /// Applies records that come from the service itself, in one commit; those that are refused
    /// change nothing and are counted.
    pub fn apply_own(&mut self, records: &[Record<'_>]) -> Result<usize> {
        if self.failed {
            return Ok(records.len());
        }
        let applied = [0; LANES];
        let mut store = PoolStore::begin(&mut self.pool, &self.token);
        let mut held = Held(&mut self.granted);
        let mut applier = Applier::new(&mut store, &mut held, applied);
        let mut refused = 0;
        for (i, record) in records.iter().enumerate() {
            let header = journal::Header {
                seq: i as u64 + 1,
                len: 0,
                lane: 0,
            };
            match applier.apply(&header, record) {
                Ok(_) => {}
                Err(Failure::Rejected(_)) => refused += 1,
                Err(Failure::Store(error)) => {
                    return Err(store_failed(&mut self.failed, &self.files, error));
                }
            }
        }
        let committed = store.commit(|sb| sb.clean = false);
        self.check(committed)?;
        Ok(refused)
    }

    /// Frees objects without a name that nobody can have open.
    pub fn free_orphans(&mut self) -> Result<u64> {
        let mut total = 0;
        while !self.failed {
            let mut store = PoolStore::begin(&mut self.pool, &self.token);
            let mut held = Held(&mut self.granted);
            let freed = Applier::new(&mut store, &mut held, [0; LANES]).free_orphans(256);
            let freed = match freed {
                Ok(freed) => freed,
                Err(Failure::Rejected(_)) => break,
                Err(Failure::Store(error)) => {
                    return Err(store_failed(&mut self.failed, &self.files, error));
                }
            };
            if freed == 0 {
                break;
            }
            total += freed as u64;
            let committed = store.commit(|sb| sb.clean = false);
            self.check(committed)?;
        }
        Ok(total)
    }

    /// Copies the bytes of the redo record that comes next into the blocks that the trees say.
    pub fn redo_next(&mut self) -> Result<()> {
        let Next::Record(entry) = self.order.next() else {
            return Ok(());
        };
        let done = self.redo(&entry.bytes);
        self.order.put_back(entry);
        done
    }

    fn redo(&mut self, bytes: &[u8]) -> Result<()> {
        let Ok((_, record)) = journal::decode(bytes) else {
            return Ok(());
        };
        let mut store = PoolStore::begin(&mut self.pool, &self.token);
        let mut held = Held(&mut self.granted);
        let pieces = Applier::new(&mut store, &mut held, [0; LANES]).redo(&record);
        let Ok(pieces) = pieces else { return Ok(()) };
        for piece in pieces {
            let at = piece.block.saturating_mul(PAGE_LEN) + piece.offset_in_block as u64;
            self.data.write_nt(at, piece.data)?;
            self.data.fence();
            self.data.sync(at, piece.data.len())?;
        }
        Ok(())
    }

    /// Keeps what is in the trees now as the snapshot `name`.
    pub fn snapshot_create(&mut self, name: &[u8]) -> Result<()> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let time = now.map_or(0, |t| i64::try_from(t.as_nanos()).unwrap_or(i64::MAX));
        self.snapshots_change(|pool, token| pool.create_snapshot(token, name, time).map(drop))
    }

    /// Removes the snapshot `name` and frees what it alone has.
    pub fn snapshot_delete(&mut self, name: &[u8]) -> Result<()> {
        self.snapshots_change(|pool, token| pool.delete_snapshot(token, name).map(drop))
    }

    fn snapshots_change(
        &mut self,
        change: impl FnOnce(&mut Pool, &WriteToken) -> holdfast_pool::Result<()>,
    ) -> Result<()> {
        if self.failed {
            return Err(Error::Pool {
                path: self.files.directory.clone(),
                error: holdfast_pool::Error::Poisoned,
            });
        }
        let changed = change(&mut self.pool, &self.token);
        changed.and_then(|()| self.flush_pool()).map_err(|error| {
            // A name that is taken, or no room: the pool is as before.
            self.failed |= error == holdfast_pool::Error::Poisoned;
            Error::Pool {
                path: self.files.directory.clone(),
                error,
            }
        })
    }

    /// A commit without changes of the trees, which is durable at once.
    pub fn note(&mut self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        if self.failed {
            return Ok(());
        }
        let store = PoolStore::begin(&mut self.pool, &self.token);
        let committed = store.commit(change);
        self.check(committed)?;
        self.checkpoint()
    }

    /// Makes durable how far the lanes are behind us.
    pub fn keep_place(&mut self) -> Result<()> {
        let (done, applied) = (self.done, self.applied_seq());
        self.note(|sb| note_place(sb, done, applied))
    }

    /// Closes the pool: nothing is in any journal.
    pub fn close(&mut self) -> Result<()> {
        let (done, applied) = (self.done, self.applied_seq());
        self.note(|sb| {
            sb.lanes = done;
            sb.applied_seq = applied;
            sb.clean = true;
        })
    }

    /// Marks the pool as opened by this boot of the machine.
    pub fn begin(&mut self) -> Result<()> {
        self.note(|sb| {
            sb.boot_id = process::boot_id();
            sb.clean = false;
        })
    }

    /// Empties the journal, so that no record of a dead session is ever read again. Everything
    /// in it must be applied or given up.
    /// On an ordinary file the blocks of the journal stay its own: a flush of the journal must have
    /// nothing to do but to write pages.
    pub fn wipe_journal(&mut self) -> Result<()> {
        let len = LANES as u64 * LANE_LEN;
        let keeps = self.files.medium == Medium::File;
        if keeps || !files::punch(&self.files.journal, &self.journal, 0, len) {
            self.journal.zero_nt(0, len as usize)?;
        }
        self.journal.fence();
        self.journal.sync(0, len as usize)?;
        Ok(())
    }

    /// All numbers below `next` are behind us, in every lane.
    pub fn leap(&mut self, next: u64) {
        self.order = Order::new(LANES, next.max(self.order.next_seq()));
        let last = self.order.next_seq() - 1;
        for (i, lane) in self.lanes.iter_mut().enumerate() {
            self.done[i] = superblock::Lane {
                start: lane.position(),
                applied: last,
            };
            *lane = Lane::new(i, LANE_LEN, lane.position(), last);
        }
    }

    /// Makes the free ones of these blocks a grant: they were one before a restart.
    pub fn grant_again(&mut self, block: u64, len: u64) {
        let end = block.saturating_add(len);
        let mut at = block;
        while let Some(run) = self.pool.data_space().next_free(at, end) {
            if self.pool.grant_again(run).is_ok() {
                self.granted.insert(run.start, run.len);
            }
            at = run.end();
        }
    }

    /// Takes a grant back that was not used.
    pub fn ungrant(&mut self, run: Run) {
        if self.granted.contains(run.start, run.len) {
            self.granted.remove(run.start, run.len);
            let _ = self.pool.ungrant(run);
        }
    }

    /// Takes every grant back; the memory behind it goes back to the medium, but for single blocks
    /// amid others: for those a huge page would be broken up.
    pub fn ungrant_all(&mut self) {
        let none = Runs::new(self.pool.data_space().len());
        let granted = std::mem::replace(&mut self.granted, none);
        for (block, len) in granted.iter() {
            let run = Run::new(block, len);
            let _ = self.pool.ungrant(run);
            if len >= WORTH_PUNCHING {
                self.punch(run);
            }
        }
    }

    /// Gives the memory behind free blocks back to the medium.
    fn punch(&mut self, run: Run) {
        let (at, len) = (run.start * PAGE_LEN, run.len * PAGE_LEN);
        files::punch(&self.files.data, &self.data, at, len);
        self.backing.split(run);
        self.pool.cool(run);
    }

    /// How far a lane is, if of what was read of it everything is in the trees.
    pub fn drained_lane(&self, index: usize) -> Option<u64> {
        let (lane, done) = (self.lanes.get(index)?, self.done.get(index)?);
        let all = !self.failed && done.start == lane.position();
        all.then_some(done.start)
    }

    /// Takes the memory from under a part of the journal that has nothing of use; not the blocks
    /// of an ordinary file.
    pub fn punch_journal(&self, at: u64, len: u64) {
        if self.files.medium == Medium::File {
            return;
        }
        files::punch(&self.files.journal, &self.journal, at, len);
    }

    fn check(&mut self, committed: holdfast_pool::Result<u64>) -> Result<()> {
        match committed {
            Ok(_) => Ok(()),
            Err(error) => {
                self.failed = true;
                Err(Error::Pool {
                    path: self.files.directory.clone(),
                    error,
                })
            }
        }
    }
}

/// A pool whose commits become durable with its checkpoints, which begin with the data.
fn open_lazy(meta: Region, token: &WriteToken, data: Arc<Region>) -> holdfast_pool::Result<Pool> {
    let mut pool = Pool::open_hidden(meta, token)?;
    // The bitmaps were read from end to end; from now on it is a page here and a page there.
    pool.meta().expect_random();
    pool.be_lazy(Box::new(move || Ok(data.sync_file()?)));
    Ok(pool)
}

/// The next record, if it is in order and its number is not above `upto`.
fn next_upto(order: &mut Order, upto: u64, progress: &mut Progress) -> Option<Entry> {
    match order.next() {
        Next::Record(entry) | Next::Late(entry) if entry.seq <= upto => Some(entry),
        Next::Record(entry) | Next::Late(entry) => {
            order.put_back(entry);
            None
        }
        Next::Missing { first, bound } => {
            progress.missing = Some((first, bound));
            None
        }
        Next::Nothing => None,
    }
}

fn note_applied(
    progress: &mut Progress,
    (done, newest): (&mut [superblock::Lane; LANES], &mut u64),
    entry: &Entry,
) {
    progress.applied += 1;
    *newest = entry.seq.max(*newest);
    done[entry.lane] = superblock::Lane {
        start: entry.end,
        applied: entry.seq,
    };
}

/// Where the lanes continue in a pool that is in use.
fn note_place(superblock: &mut Superblock, lanes: [superblock::Lane; LANES], applied: u64) {
    superblock.lanes = lanes;
    superblock.applied_seq = applied;
    superblock.clean = false;
}

/// What recovery has put in place must be there before anything points to it.
fn sync_replayed(replay: Option<&Replay>, data: &Region) -> Result<()> {
    match replay {
        Some(_) => Ok(data.sync(0, data.len())?),
        None => Ok(()),
    }
}

/// Whether a record that contradicts the trees may be passed over: its writer waits for it, or is
/// dead and lost what it needs.
fn may_refuse(record: &Record<'_>, reject: &Reject, replay: &mut Option<Replay>) -> bool {
    let replay = replay.as_mut();
    if replay.is_some_and(|replay| replay.passes_over(reject)) {
        return true;
    }
    let honest = [
        Why::NoRoom,
        Why::NoObject,
        Why::NotADirectory,
        Why::NotAKeyspace,
    ];
    are_unseen(record) && honest.contains(&reject.why)
}

/// Whether a commit that was begun at `start` is to be made; `values` changes of keyspaces wait.
fn is_late(start: Instant, values: usize) -> bool {
    let most = match values {
        0 => BATCH_TIME,
        _ => BATCH_TIME_VALUES,
    };
    start.elapsed() > most
}

/// Applies a record. Changes of keyspaces that are not in the journal are copied first.
fn apply_one<'a>(
    applier: &mut Applier<'a, PoolStore<'_>, Held<'a>>,
    data: &Region,
    (header, record): (&journal::Header, &Record<'_>),
    replay: &mut Option<Replay>,
) -> std::result::Result<Outcome, Failure<holdfast_pool::Error>> {
    if let Some(replay) = replay {
        return replay.apply(applier, data, header, record);
    }
    let Record::Spilled { len, sum, .. } = *record else {
        return applier.apply(header, record);
    };
    let blocks = applier.spilled(record)?;
    match read_spilled(data, &blocks, len) {
        Some(bytes) if crc32c(&bytes) == sum => applier.apply_spilled(header, record, &bytes),
        _ => Err(applier.malformed()),
    }
}

/// The changes that are in blocks; `None`: they are not in the pool, or more than there may be.
pub fn read_spilled(data: &Region, blocks: &InBlocks, len: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    if len > SPILLED_MAX {
        return None;
    }
    for run in blocks.runs() {
        let at = bytes.len();
        let left = len.checked_sub(at as u64)?;
        let n = left.min(u64::from(run.len) * PAGE_LEN) as usize;
        bytes.resize(at + n, 0);
        data.read(run.block.checked_mul(PAGE_LEN)?, &mut bytes[at..])
            .ok()?;
    }
    Some(bytes)
}

/// Nothing more is applied after this.
fn store_failed(failed: &mut bool, files: &Files, error: holdfast_pool::Error) -> Error {
    *failed = true;
    Error::Pool {
        path: files.directory.clone(),
        error,
    }
}
