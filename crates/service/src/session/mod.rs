//! One session, from its first attachment to its last process.
//!
//! `drain.rs` takes its records to the trees and `publish.rs` tells how far they are; `supply.rs`
//! keeps its table of free extents filled.
//!
//! Invariants:
//!  * `applied_seq` is published after the commit that makes it true; a lane's tail after that.
//!  * The order of sequence numbers is kept; a number that is missing holds the others up only
//!    while its writer can be at work on it, and never longer than `GAP_MAX`.
//!  * A record that is refused ends the session for its clients, not for the pool.

pub mod drain;
pub mod expiry;
pub mod extents;
pub mod granted_file;
mod granted_lines;
pub mod handout;
pub mod heartbeat;
pub mod last_writeback;
pub mod memory;
pub mod publish;
mod quotas;
pub mod search;
pub mod snapshots;
pub mod stalls;
pub mod supply;
pub mod tables;
pub mod writeback;

use crate::base::error::{Error, Result};
use crate::base::lent;
use crate::base::survivors;
use crate::journal::engine::{AHEAD_MAX, Engine};
use crate::journal::order::FLIGHT_MAX;
use drain::{Gap, is_finished};
use handout::{Handout, Sent};
use holdfast_pmem::Medium;
use holdfast_pmem::env::Instant;
use holdfast_pool::apply::{Reject, Why};
use holdfast_pool::format::{LANES, superblock};
use holdfast_pool::session::OWNER_WAITERS;
use memory::{Constants, Memory};
use quotas::Quotas;
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use supply::Supply;
use tables::Tables;

const EIO: i32 = 5;
/// What applying the rest, and giving memory back, may each take at a time once nobody is in the
/// session.
const SETTLE_TIME: Duration = Duration::from_millis(20);
/// A session and what the service remembers of it.
pub struct Session {
    pub memory: Arc<Memory>,
    pub handout: Arc<Handout>,
    supply: Supply,
    tables: Tables,
    quotas: Quotas,
    gap: Option<Gap>,
    /// The redo record that its writer has not finished, and since when we know.
    unfinished: Option<(u64, Instant)>,
    /// Nothing more of it is applied: a record was not valid, or the pool failed.
    given_up: bool,
    /// A client found session memory broken, and that was logged.
    found_broken: bool,
    /// Why the last checkpoint failed, as it was logged.
    failure: Option<String>,
    /// Flushes that failed, as far as they were seen.
    sync_errors: u32,
    /// When numbers of inodes were passed over.
    passed_over: Instant,
    /// More is applied than clients were told: the trees are full until more is freed.
    untold: bool,
    /// How far clients know the lanes to be passed.
    told: [superblock::Lane; LANES],
}

/// What is constant in a session on the pool of `engine`.
pub fn constants(engine: &Engine) -> Constants {
    handout::constants(engine.store.pool.superblock(), &engine.store.files)
}

impl Session {
    /// A new session.
    pub fn create(engine: &mut Engine) -> Result<Session> {
        let name = survivors::memory_name(&engine.store.pool.superblock().uuid);
        let memory = Memory::create(&name, &constants(engine))?;
        lent::remove_all(&engine.store.files.meta);
        let header = memory.header();
        header
            .next_seq
            .store(engine.journal.applied_seq() + 1, Relaxed);
        // Before a session begins everything is durable.
        header
            .synced_seq
            .store(engine.journal.applied_seq(), Relaxed);
        header
            .acked_seq
            .store(engine.journal.applied_seq(), Relaxed);
        header
            .begun_after
            .store(engine.store.pool.superblock().seq, Relaxed);
        if engine.store.first_expiry().is_some() {
            header.expiring.store(1, Relaxed);
        }
        header
            .next_ino
            .store(engine.store.pool.superblock().next_ino, Relaxed);
        for (index, done) in engine.journal.done.iter().enumerate() {
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
        // What the service was at when it died: a snapshot that came to be is in the pool.
        header
            .epoch
            .store(engine.store.pool.superblock().epoch, SeqCst);
        header.snapshots_gone.fetch_add(1, SeqCst);
        header.stores_stopped.store(0, SeqCst);
        // A helper may have died with it.
        header.writeback_wanted.store(1, SeqCst);
        let newest = header.next_seq.load(Acquire);
        engine.journal.again_below =
            newest.min(engine.journal.applied_seq().saturating_add(FLIGHT_MAX));
        if engine.store.files.medium == Medium::File {
            engine.catch_up(header.applied_seq.load(Acquire))?;
        }
        Session::assemble(engine, memory, true)
    }

    fn assemble(engine: &mut Engine, memory: Memory, again: bool) -> Result<Session> {
        let memory = Arc::new(memory);
        let handout = Handout::new(
            &engine.store.files,
            engine.store.pool.superblock(),
            memory.clone(),
        )?;
        if let Err(e) = engine.store.files.set_journal_aside() {
            let e = std::io::Error::from(e);
            tracing::warn!("the host has no room for the pool's journal: {e}");
        }
        let supply = match again {
            true => Supply::again(engine, &memory)?,
            false => Supply::start(engine, &memory)?,
        };
        // After the grants: what is open may be in a record that is not applied yet.
        let open = memory.clone();
        let in_use = Box::new(move || open.open_blocks());
        engine.store.pool.keep_in_use(in_use);
        let views = memory.clone();
        let oldest_view = Box::new(move |bound| views.oldest_view(bound));
        engine.store.pool.keep_for_views(oldest_view);
        let mut session = Session {
            memory,
            handout: Arc::new(handout),
            supply,
            tables: Tables::default(),
            quotas: Quotas::default(),
            gap: None,
            unfinished: None,
            given_up: false,
            found_broken: false,
            failure: None,
            sync_errors: 0,
            passed_over: Instant::now(),
            untold: false,
            told: [superblock::Lane::default(); LANES],
        };
        session.tend_quotas(engine, true)?;
        session.publish(engine);
        session.top_up(engine);
        Ok(session)
    }

    /// Whether no process has the session any more, also none that is about to join it.
    pub fn is_deserted(&self, engine: &Engine) -> Result<bool> {
        self.handout.is_deserted(&engine.store.files)
    }

    /// Copies of the descriptors for one client: session memory, meta, journal, data.
    pub fn descriptors(&self, known: u64) -> Result<Vec<Sent>> {
        let all = self.handout.descriptors(None, known);
        all.ok_or(Error::NotASession)?
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
            true => {
                engine.store.in_place |= header.stored_in_place.swap(0, SeqCst) != 0;
                let mapped = memory.list_mapped();
                let done = engine.snapshot_create(name, &mapped);
                // One that was mapped meanwhile may have blocks that are the snapshot's by now.
                let late = |ino: &u64| !mapped.contains(ino);
                engine.store.in_place |= memory.list_mapped().iter().any(late);
                done
            }
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

    /// Calls a snapshot something else.
    pub fn snapshot_rename(&mut self, engine: &mut Engine, name: &[u8], to: &[u8]) -> Result<()> {
        self.look_for_failures(engine);
        let done = engine.snapshot_rename(name, to);
        self.publish(engine);
        done
    }

    /// Makes room for `size` bytes of data.
    pub fn grow(&mut self, engine: &mut Engine, size: u64) -> Result<()> {
        self.look_for_failures(engine);
        if !self.memory.let_data_grow() {
            return Err(Error::MappedAsItIs);
        }
        let done = engine.grow(size);
        // Before anybody is given what is new.
        let len = engine.store.pool.superblock().data_len;
        self.memory.data_grew(len);
        self.publish(engine);
        done.map(drop)
    }

    /// Does what is due of the next checkpoint; says whether everything is durable.
    pub fn tend_checkpoint(&mut self, engine: &mut Engine, now: bool) -> bool {
        self.look_for_failures(engine);
        let before = engine.passed();
        let wanted = &self.memory.header().room_wanted;
        engine.store.checkpoints.room_wanted = wanted.load(SeqCst) != 0;
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
            engine.store.doubt_data();
        }
    }

    /// Whether ending the session would find hardly anything that is to be applied or to be made
    /// durable, and hardly any memory under what is free; if not, that is begun. Nobody is in the
    /// session.
    pub fn is_settled(&mut self, engine: &mut Engine) -> bool {
        let hopeless = self.given_up || self.failure.is_some();
        hopeless
            || self.is_drained(engine)
                && self.tend_checkpoint(engine, true)
                && self.is_trimmed(engine)
    }

    /// Whether the journal is applied, and what that cut out of the trees is free. The last records
    /// of programs are often the ones that free the most.
    fn is_drained(&mut self, engine: &mut Engine) -> bool {
        let begun = Instant::now();
        loop {
            let turn = self.turn(engine);
            if turn.applied == 0 && !turn.more {
                return !turn.waiting;
            }
            if begun.elapsed() > SETTLE_TIME {
                return false;
            }
        }
    }

    fn is_trimmed(&mut self, engine: &mut Engine) -> bool {
        self.memory.reap_views();
        self.supply.take_all_back(engine, &self.memory);
        let begun = Instant::now();
        while engine.store.trim() {
            if begun.elapsed() > SETTLE_TIME {
                return false;
            }
        }
        true
    }

    /// A checkpoint failed: what it would have made durable is in the journal still.
    fn note_failure(&mut self, why: &Error) {
        let why = why.to_string();
        if self.failure.as_ref() != Some(&why) {
            tracing::error!("{why}: what is not durable yet is tried again");
            self.failure = Some(why);
        }
    }

    /// Does a little of what can be done while nobody changes anything, some of it only if that is
    /// so for `long`; whether there is more.
    pub fn rest(&mut self, engine: &mut Engine, long: bool) -> bool {
        self.supply.take_back(engine, &self.memory);
        let tables = self.tables.go_on(&self.memory);
        let more = engine.store.rest(long);
        let unsure = self.correct_quotas(engine);
        self.publish_free(engine);
        let more = more.unwrap_or_else(|e| {
            self.give_up(&e.to_string(), e.errno());
            false
        });
        more || tables || unsure
    }

    /// Free extents for a session that has just begun.
    pub fn top_up(&mut self, engine: &mut Engine) {
        self.supply.top_up(engine, &self.memory);
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
        tracing::error!("{why}: the session ends with an error");
        self.given_up = true;
        self.memory.poison(errno);
    }

    /// A client that found session memory broken gave the session up for all clients. What is in
    /// the journal is sound, or refused: it is applied.
    fn look_for_findings(&mut self) {
        if self.found_broken || !self.memory.is_poisoned() {
            return;
        }
        if let Some(finding) = self.memory.finding() {
            tracing::error!("a program found a mistake of Holdfast: {finding}: the session ends");
            self.found_broken = true;
        }
    }

    /// Applies everything that the lanes hold. Nobody writes to them any more, so a number that
    /// is missing after all of them were read is void, and what a dead writer left to do outside
    /// the trees is done here.
    fn drain_rest(&mut self, engine: &mut Engine) -> Result<()> {
        let memory = self.memory.clone();
        while engine.journal.read(AHEAD_MAX) || engine.journal.order.waiting() > 0 {
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
            if engine.journal.read(AHEAD_MAX) {
                continue;
            }
            if bound - first > FLIGHT_MAX {
                self.give_up(&format!("sequence number {bound} is nobody's"), EIO);
                break;
            }
            engine.journal.order.declare_void(bound);
        }
        Ok(())
    }

    /// Ends the session: nobody is in it any more.
    pub fn end(mut self, engine: &mut Engine) -> Result<()> {
        self.look_for_failures(engine);
        self.look_for_findings();
        if !self.given_up {
            self.drain_rest(engine)?;
        }
        // Session memory that was found broken says nothing about files that nobody synced.
        if !self.given_up && !self.memory.is_poisoned() {
            let (_, refused) = last_writeback::write_back(engine, &self.memory)?;
            if refused > 0 {
                tracing::warn!("{refused} unsynced changes of ended programs were not valid");
            }
        }
        if self.memory.header().lent_name.load(Acquire) != 0 {
            lent::remove_all(&engine.store.files.meta);
        }
        let said = self.memory.header().stored_in_place.load(Acquire) != 0;
        engine.store.in_place |= said || self.given_up || self.memory.is_poisoned();
        let taken = self.memory.header().next_seq.load(Acquire);
        let next = taken.min(engine.journal.order.next_seq() + FLIGHT_MAX);
        engine.end_spill(false)?;
        // Should anybody be left after all, nothing of theirs is served any more.
        self.memory.poison(EIO);
        engine.free_orphans()?;
        engine.store.end_use()?;
        engine.ungrant_all();
        engine.journal.reset_lanes(next);
        engine.commit_positions()?;
        if self.given_up {
            engine.wipe_journal()?;
        }
        engine.close()
    }
}
