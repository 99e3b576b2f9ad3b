//! One session, from its first attachment to its last process.
//!
//! Invariants:
//!  * `applied_seq` is published after the commit that makes it true; a lane's tail after that.
//!  * The order of sequence numbers is kept; a number that is missing holds the others up only
//!    while its writer can be at work on it, and never longer than `GAP_MAX`.
//!  * A record that is refused ends the session for its clients, not for the pool.

use crate::drained::Drained;
use crate::engine::{AHEAD_MAX, Engine, Progress};
use crate::error::{Error, Result};
use crate::grants::Supply;
use crate::harvest;
use crate::lane::Entry;
use crate::memory::{Constants, Memory};
use crate::order::FLIGHT_MAX;
use crate::survivors;
use holdfast_pmem::Medium;
use holdfast_pool::apply::{Reject, Why};
use holdfast_pool::directory::LANE_LEN;
use holdfast_pool::format::LANES;
use holdfast_pool::format::superblock::Consistency;
use holdfast_pool::layout::{DIRENTS, TreeId, VALUES};
use holdfast_pool::session::OWNER_WAITERS;
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

const EIO: i32 = 5;
/// A writer that was stopped in the middle of a record holds the others up for this long.
const GAP_MAX: Duration = Duration::from_secs(1);
/// A writer that is not through with its record by then is dead or stopped.
const REDO_AFTER: Duration = Duration::from_millis(200);
/// After so long clients are asked to see whether it is dead, and to finish for it.
const HELP_AFTER: Duration = Duration::from_millis(4);

/// A gap in the sequence numbers.
#[derive(Clone, Copy, Debug)]
struct Gap {
    first: u64,
    bound: u64,
    since: Instant,
    /// Lanes whose writers cannot be at work on a number of the gap, one bit each.
    cleared: u32,
}

/// Descriptors that clients of the session get.
pub struct Handout {
    pub journal: OwnedFd,
    pub meta: OwnedFd,
    pub data: OwnedFd,
}

/// A session and what the service remembers of it.
pub struct Session {
    pub memory: Arc<Memory>,
    handout: Handout,
    supply: Supply,
    drained: Drained,
    gap: Option<Gap>,
    /// The redo record that its writer has not finished, and since when we know.
    unfinished: Option<(u64, Instant)>,
    /// Why the last checkpoint failed, as it was logged.
    failure: Option<String>,
    /// Flushes that failed, as far as they were seen.
    sync_errors: u32,
}

/// What one turn of the drain did.
#[derive(Debug, Default)]
pub struct Turn {
    /// Records that went to the trees.
    pub applied: usize,
    /// Something waits that cannot go on yet.
    pub waiting: bool,
    /// There is more to do at once.
    pub more: bool,
}

/// What is constant in a session on the pool of `engine`.
pub fn constants(engine: &Engine) -> Constants {
    let superblock = engine.pool.superblock();
    Constants {
        consistency: match superblock.consistency {
            Consistency::Posix => 0,
            Consistency::Sync => 1,
            Consistency::Strict => 2,
        },
        medium: match engine.files.medium {
            Medium::Memory => 0,
            Medium::File => 1,
            Medium::Dax => 2,
        },
        data_len: superblock.data_len,
        lane_len: LANE_LEN,
    }
}

impl Session {
    /// A new session.
    pub fn create(engine: &mut Engine) -> Result<Session> {
        let name = survivors::memory_name(&engine.pool.superblock().uuid);
        let memory = Memory::create(&name, &constants(engine))?;
        let header = memory.header();
        header.next_seq.store(engine.applied_seq() + 1, Relaxed);
        // Before a session begins everything is durable.
        header.synced_seq.store(engine.applied_seq(), Relaxed);
        header.acked_seq.store(engine.applied_seq(), Relaxed);
        header
            .begun_after
            .store(engine.pool.superblock().seq, Relaxed);
        header
            .next_ino
            .store(engine.pool.superblock().next_ino, Relaxed);
        for (index, done) in engine.done().iter().enumerate() {
            if let Some(lane) = memory.lane(index) {
                lane.head.store(done.start, Relaxed);
                lane.tail.store(done.start, Relaxed);
                lane.applied.store(done.start, Relaxed);
                header.acked[index].store(done.start, Relaxed);
            }
        }
        Session::assemble(engine, memory, false)
    }

    /// A session whose service died.
    pub fn adopt(engine: &mut Engine, fd: OwnedFd) -> Result<Session> {
        let memory = Memory::adopt(fd, &constants(engine))?;
        let header = memory.header();
        memory.break_own_lock(&header.grants_lock);
        let lanes = (0..LANES).filter_map(|index| memory.lane(index));
        lanes.for_each(|lane| memory.break_own_lock(&lane.lock));
        // What the service was at when it died: a snapshot that came to be is in the pool.
        header.period.store(engine.pool.superblock().period, SeqCst);
        header.snapshots_gone.fetch_add(1, SeqCst);
        header.stores_stopped.store(0, SeqCst);
        if engine.files.medium == Medium::File {
            engine.catch_up(header.applied_seq.load(Acquire))?;
        }
        Session::assemble(engine, memory, true)
    }

    fn assemble(engine: &mut Engine, memory: Memory, again: bool) -> Result<Session> {
        let files = &engine.files;
        let handout = Handout {
            journal: files.reopen(&files.journal_name(), OFlags::RDWR)?,
            meta: files.reopen(holdfast_pool::segment::META, OFlags::RDONLY)?,
            data: files.reopen(&holdfast_pool::segment::data(0), OFlags::RDWR)?,
        };
        survivors::mark(&handout.journal)?;
        if let Err(e) = engine.files.set_journal_aside() {
            let e = std::io::Error::from(e);
            say!("holdfast: the host has no room for the pool's journal: {e}");
        }
        let supply = match again {
            true => Supply::again(engine, &memory)?,
            false => Supply::start(engine)?,
        };
        let memory = Arc::new(memory);
        let mut session = Session {
            memory,
            handout,
            supply,
            drained: Drained::default(),
            gap: None,
            unfinished: None,
            failure: None,
            sync_errors: 0,
        };
        session.publish(engine);
        session.top_up(engine);
        Ok(session)
    }

    /// Whether no process has the session any more, also none that is about to join it: each
    /// inherits the description of the journal that it was handed.
    pub fn is_deserted(&mut self, engine: &Engine) -> Result<bool> {
        if self.memory.live_processes() > 0 {
            return Ok(false);
        }
        let files = &engine.files;
        let fresh = || files.reopen(&files.journal_name(), OFlags::RDWR);
        // Our own copy of the description would count, too.
        self.handout.journal = fresh()?;
        if !survivors::exist(&self.handout.journal) {
            return Ok(true);
        }
        survivors::mark(&self.handout.journal)?;
        Ok(false)
    }

    /// Copies of the descriptors for one client: session memory, meta, journal, data.
    pub fn descriptors(&self) -> std::io::Result<Vec<OwnedFd>> {
        let h = &self.handout;
        [self.memory.fd(), &h.meta, &h.journal, &h.data]
            .into_iter()
            .map(OwnedFd::try_clone)
            .collect()
    }

    /// Takes a snapshot for the process that lock words name `owner`. It has to hold the lock that
    /// keeps others from storing into blocks; should it die meanwhile, we keep them from it.
    pub fn snapshot_create(&mut self, engine: &mut Engine, name: &[u8], owner: u32) -> Result<()> {
        let memory = self.memory.clone();
        let header = memory.header();
        self.look_for_failures(engine);
        header.stores_stopped.store(1, SeqCst);
        let held = header.stores_lock.load(SeqCst) & !OWNER_WAITERS;
        let done = match owner != 0 && held == owner {
            true => engine.snapshot_create(name),
            false => Err(Error::NotStopped),
        };
        self.publish(engine);
        header.stores_stopped.store(0, SeqCst);
        memory.tick();
        done
    }

    /// Deletes a snapshot.
    pub fn snapshot_delete(&mut self, engine: &mut Engine, name: &[u8]) -> Result<()> {
        self.look_for_failures(engine);
        let done = engine.snapshot_delete(name);
        // Before anything that it had is used again: views of it find out.
        self.memory.header().snapshots_gone.fetch_add(1, SeqCst);
        self.publish(engine);
        done
    }

    /// Drains what can be drained now.
    pub fn turn(&mut self, engine: &mut Engine) -> Turn {
        let mut turn = Turn::default();
        let on_file = engine.files.medium == Medium::File;
        self.memory.header().flushing.store(on_file.into(), SeqCst);
        self.look_for_failures(engine);
        if !self.memory.is_poisoned() {
            match self.drain(engine) {
                Ok((applied, waiting, more)) => {
                    (turn.applied, turn.waiting, turn.more) = (applied, waiting, more);
                }
                Err(e) => self.give_up(&e.to_string(), e.errno()),
            }
            self.drained.take_again(engine, &self.memory);
            let more = self.supply.top_up(engine, &self.memory);
            self.publish_free(engine);
            turn.more |= more;
            self.tend_checkpoint(engine, false);
        }
        self.memory.header().flushing.store(0, SeqCst);
        turn
    }

    /// Does what is due of the next checkpoint; says whether everything is durable.
    pub fn tend_checkpoint(&mut self, engine: &mut Engine, now: bool) -> bool {
        self.look_for_failures(engine);
        let before = engine.passed();
        let wanted = &self.memory.header().room_wanted;
        engine.checkpoints.room_wanted = wanted.load(SeqCst) != 0;
        let done = engine.tend_checkpoint(now);
        if matches!(done, Ok(true)) {
            wanted.store(0, SeqCst);
        }
        if engine.passed() != before {
            self.publish(engine);
        }
        match done {
            Ok(done) => done,
            Err(e) => {
                // Each open file says it, too; unless a client found the same and counted it.
                let (errors, known) = (&self.memory.header().sync_errors, self.sync_errors);
                let next = known.wrapping_add(1);
                if errors
                    .compare_exchange(known, next, AcqRel, Acquire)
                    .is_ok()
                {
                    self.sync_errors = next;
                }
                self.note_failure(&e);
                false
            }
        }
    }

    /// Before anything is made durable: whether a client's flush failed. The kernel tells us of
    /// that, too, if it was one of data.
    fn look_for_failures(&mut self, engine: &mut Engine) {
        let known = self.memory.header().sync_errors.load(Acquire);
        if std::mem::replace(&mut self.sync_errors, known) != known {
            engine.doubt_data();
        }
    }

    /// Whether ending the session would find hardly anything that is to be made durable; if not,
    /// that is begun.
    pub fn is_settled(&mut self, engine: &mut Engine) -> bool {
        self.memory.is_poisoned() || self.failure.is_some() || self.tend_checkpoint(engine, true)
    }

    /// A checkpoint failed: what it would have made durable is in the journal still.
    fn note_failure(&mut self, why: &Error) {
        let why = why.to_string();
        if self.failure.as_ref() != Some(&why) {
            eprintln!("holdfast: {why}: what is not durable yet is tried again");
            self.failure = Some(why);
        }
    }

    /// Does a little of what can be done while nobody changes anything, some of it only if that is
    /// so for `long`; whether there is more.
    pub fn rest(&mut self, engine: &mut Engine, long: bool) -> bool {
        self.supply.take_back(engine, &self.memory);
        if long {
            self.drained.give_back(engine, &self.memory);
        }
        let more = engine.rest(long);
        self.publish_free(engine);
        more.unwrap_or_else(|e| {
            self.give_up(&e.to_string(), e.errno());
            false
        })
    }

    /// Blocks that are not handed out.
    fn publish_free(&self, engine: &Engine) {
        let free = &self.memory.header().free_blocks;
        free.store(engine.blocks_left(), Relaxed);
    }

    /// Grants for a session that has just begun.
    pub fn top_up(&mut self, engine: &mut Engine) {
        self.supply.top_up(engine, &self.memory);
    }

    fn drain(&mut self, engine: &mut Engine) -> Result<(usize, bool, bool)> {
        engine.read(AHEAD_MAX);
        let memory = self.memory.clone();
        let current = engine.pool.superblock().seq;
        engine.pool.set_oldest_view(memory.oldest_view(current));
        self.serve_views(engine);
        let upto = memory.wanted_root(engine.applied_seq());
        let progress = engine.apply(usize::MAX, upto, |entry| is_finished(&memory, entry))?;
        self.tell_refused(&progress);
        if progress.applied > 0 || progress.short {
            self.publish(engine);
        }
        if progress.short {
            return Ok((0, false, false));
        }
        if let Some((seq, why)) = progress.rejected {
            self.reject(seq, &why);
            return Ok((progress.applied, false, false));
        }
        let mut more = false;
        let mut waiting = false;
        match progress.unfinished {
            Some(seq) => (waiting, more) = self.look_into_unfinished(engine, seq)?,
            None => self.unfinished = None,
        }
        match progress.missing {
            Some((first, bound)) if bound - first > FLIGHT_MAX => {
                self.give_up(&format!("sequence number {bound} is nobody's"), EIO);
            }
            Some((first, bound)) => {
                more = self.look_into_gap(engine, first, bound);
                waiting |= !more;
            }
            None if engine.order.waiting() > 0 => {
                self.gap = None;
                more = !waiting;
            }
            None => more = self.look_behind_last(engine),
        }
        Ok((progress.applied, waiting, more))
    }

    /// A writer that died, or stays away too long, between its record and what it does outside
    /// the trees. Clients are asked to do that for it; the bytes of a redo record are copied
    /// here if nobody does. Says whether there is still something to wait for, or something to
    /// do.
    fn look_into_unfinished(&mut self, engine: &mut Engine, seq: u64) -> Result<(bool, bool)> {
        let since = match self.unfinished {
            Some((known, since)) if known == seq => since,
            _ => Instant::now(),
        };
        self.unfinished = Some((seq, since));
        if since.elapsed() >= HELP_AFTER {
            // Before the record is applied: from then on what clients have cached may be wrong.
            // Those that wait for the trees look, too.
            if self.memory.header().recover_wanted.swap(1, SeqCst) == 0 {
                self.memory.tick();
            }
        }
        if since.elapsed() < REDO_AFTER {
            return Ok((true, false));
        }
        engine.redo_next()?;
        let progress = engine.apply(1, u64::MAX, |_| true)?;
        self.unfinished = None;
        self.tell_refused(&progress);
        if progress.applied > 0 {
            self.publish(engine);
        }
        Ok((false, progress.applied > 0))
    }

    /// Numbers that were taken and of which no record is there: nobody waits behind them, but
    /// somebody may wait for them. True if there is something to do at once.
    fn look_behind_last(&mut self, engine: &mut Engine) -> bool {
        let taken = self.memory.header().next_seq.load(Acquire);
        let first = engine.order.next_seq();
        if taken <= first || taken - first > FLIGHT_MAX {
            self.gap = None;
            return false;
        }
        if !self.look_into_gap(engine, first, taken) {
            return false;
        }
        if engine.order.next_seq() == taken {
            self.publish(engine);
        }
        true
    }

    /// Whether the numbers `first..bound` will never come; then they are declared void.
    ///
    /// A number is taken under the lock of a lane. All below `bound` were taken before `bound`
    /// was written, so a lane that is found unlocked, or busy with a number from `bound` on, has
    /// none of them in flight.
    fn look_into_gap(&mut self, engine: &mut Engine, first: u64, bound: u64) -> bool {
        let mut gap = match self.gap {
            Some(gap) if gap.first == first && gap.bound >= bound => gap,
            _ => Gap {
                first,
                bound,
                since: Instant::now(),
                cleared: 0,
            },
        };
        for index in (0..LANES)
            .filter(|i| gap.cleared & (1 << i) == 0)
            .collect::<Vec<_>>()
        {
            if self.is_clear(index, gap.bound) {
                gap.cleared |= 1 << index;
            }
        }
        let all = gap.cleared == (1 << LANES) - 1;
        let too_long = gap.since.elapsed() > GAP_MAX;
        self.gap = Some(gap);
        if !all && !too_long {
            return false;
        }
        // Before the last look: a writer that is not in it finds out that it is late.
        let header = self.memory.header();
        header.void_below.fetch_max(bound, SeqCst);
        // What was completed between our last look at the lanes and now.
        if engine.read(AHEAD_MAX) {
            self.gap = self.gap.filter(|_| !all);
            return true;
        }
        if !all {
            say!("holdfast: a stopped process holds record {first}: going on without it");
        }
        engine.order.declare_void(bound);
        self.gap = None;
        true
    }

    fn is_clear(&self, index: usize, bound: u64) -> bool {
        let Some(lane) = self.memory.lane(index) else {
            return true;
        };
        let busy = lane.busy_seq.load(Acquire);
        let lock = lane.lock.load(Acquire);
        lock == 0 || busy >= bound || !self.memory.owner_lives(lock)
    }

    /// Gives the roots that there are to the views that want just these.
    fn serve_views(&self, engine: &Engine) {
        let superblock = engine.pool.superblock();
        let packed = |tree: TreeId| {
            let root = &superblock.roots[usize::from(tree)];
            [root.addr, root.keys << 8 | u64::from(root.height)]
        };
        let ([v, of_v], [n, of_n]) = (packed(VALUES), packed(DIRENTS));
        let have = (engine.newest_applied(), engine.applied_seq());
        self.memory
            .serve_views(have, superblock.seq, [v, of_v, n, of_n]);
    }

    /// Tells clients how far the trees are.
    fn publish(&mut self, engine: &Engine) {
        self.serve_views(engine);
        let header = self.memory.header();
        for (index, (done, passed)) in engine.done().iter().zip(engine.passed()).enumerate() {
            if let Some(lane) = self.memory.lane(index) {
                lane.applied.store(done.start, Release);
                lane.tail.store(passed.start, Release);
            }
        }
        let superblock = engine.pool.superblock();
        self.publish_free(engine);
        header
            .total_blocks
            .store(engine.pool.data_space().len(), Relaxed);
        header
            .objects
            .store(superblock.counts.iter().sum(), Relaxed);
        header.trees_full.store(engine.trees_full(), Relaxed);
        header.period.store(superblock.period, Release);
        header.applied_seq.store(engine.applied_seq(), Release);
        self.memory.tick();
    }

    /// Before anybody learns that the record is behind us.
    fn tell_refused(&self, progress: &Progress) {
        if let Some((seq, why)) = &progress.refused {
            let header = self.memory.header();
            let errno = why.errno().unsigned_abs();
            header.refused_errno.store(errno, Relaxed);
            header.refused_seq.store(*seq, Release);
        }
    }

    fn reject(&mut self, seq: u64, why: &Reject) {
        let errno = if why.why == Why::NoRoom {
            why.errno()
        } else {
            EIO
        };
        self.give_up(
            &format!("journal record {seq} is not applied: {why}"),
            errno,
        );
    }

    fn give_up(&mut self, why: &str, errno: i32) {
        say!("holdfast: {why}: the session ends with an error");
        self.memory.poison(errno);
    }

    /// Applies everything that the lanes hold. Nobody writes to them any more, so a number that
    /// is missing after all of them were read is void, and what a dead writer left to do outside
    /// the trees is done here.
    fn drain_rest(&mut self, engine: &mut Engine) -> Result<()> {
        let memory = self.memory.clone();
        while engine.read(AHEAD_MAX) || engine.order.waiting() > 0 {
            let mut progress =
                engine.apply(usize::MAX, u64::MAX, |entry| is_finished(&memory, entry))?;
            if progress.unfinished.is_some() {
                engine.redo_next()?;
                progress = engine.apply(1, u64::MAX, |_| true)?;
            }
            if let Some((seq, why)) = progress.rejected {
                self.reject(seq, &why);
                break;
            }
            let Some((first, bound)) = progress.missing else {
                continue;
            };
            // What was applied made room for more of a lane: the number may be there.
            if engine.read(AHEAD_MAX) {
                continue;
            }
            if bound - first > FLIGHT_MAX {
                self.give_up(&format!("sequence number {bound} is nobody's"), EIO);
                break;
            }
            engine.order.declare_void(bound);
        }
        Ok(())
    }

    /// Ends the session: nobody is in it any more.
    pub fn end(mut self, engine: &mut Engine) -> Result<()> {
        self.look_for_failures(engine);
        if !self.memory.is_poisoned() {
            self.drain_rest(engine)?;
        }
        if !self.memory.is_poisoned() {
            let (_, refused) = harvest::harvest(engine, &self.memory)?;
            if refused > 0 {
                say!("holdfast: {refused} unsynced changes of ended programs were not valid");
            }
        }
        let taken = self.memory.header().next_seq.load(Acquire);
        let next = taken.min(engine.order.next_seq() + FLIGHT_MAX);
        let was_poisoned = self.memory.is_poisoned();
        // Should anybody be left after all, nothing of theirs is served any more.
        self.memory.poison(EIO);
        engine.free_orphans()?;
        engine.ungrant_all();
        engine.leap(next);
        engine.keep_place()?;
        if was_poisoned {
            engine.wipe_journal()?;
        }
        engine.close()
    }
}

/// A record is finished when its writer has published it (and copied the bytes of a redo record):
/// it says so by turning to something else, or by leaving the rest to us. One that died leaves it
/// to recovery.
fn is_finished(memory: &Memory, entry: &Entry) -> bool {
    let Some(lane) = memory.lane(entry.lane) else {
        return true;
    };
    let lock = lane.lock.load(Acquire);
    lane.busy_seq.load(Acquire) != entry.seq
        || lock == 0
        || lane.left_to_trees.load(Acquire) == entry.seq
}
