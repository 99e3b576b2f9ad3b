//! Applying journal records in batches, and committing them.
//!
//! Invariants:
//!  * A record is applied only from a private copy, only with blocks that were granted, and in
//!    the order that `Order` gives.
//!  * One call takes some milliseconds, whatever the records say.

use super::engine::Engine;
use super::held::Held;
use super::lane::{Buffers, Entry};
use super::needs;
use super::order::{Next, Order};
use super::progress::{HONEST, Progress, note_applied, set_positions, waits_after};
use super::replay::Replay;
use super::spill;
use super::spilled::read_spilled;
use crate::base::error::Result;
use crate::store::fail;
use holdfast_pmem::Region;
use holdfast_pmem::env::Instant;
use holdfast_pool::apply::{Applier, Failure, Outcome, PoolStore, Reject, are_unseen};
use holdfast_pool::checksum::crc32c;
use holdfast_pool::format::LANES;
use holdfast_pool::format::superblock;
use holdfast_pool::journal::{self, Record};
use std::time::Duration;

/// Records of one commit.
const BATCH_MAX: usize = 128 * 1024;
/// A commit is not put off for longer.
const BATCH_TIME: Duration = Duration::from_millis(5);
/// The same while changes of keyspaces are collected: the more of them there are, the fewer nodes
/// each of them costs.
const BATCH_TIME_VALUES: Duration = Duration::from_millis(20);
/// After a record that took more looks at directories (`Applier::steps`) the time is asked for.
const STEPS_MAX: u64 = 1024;

impl Engine {
    /// Applies again, after the death of a service, what that one had shown to clients: everything
    /// up to record `upto`. Then readers, who wait meanwhile, are shown the trees.
    pub fn catch_up(&mut self, upto: u64) -> Result<()> {
        self.journal.read(usize::MAX);
        needs::grant_what_records_need(self);
        while self.journal.applied_seq() < upto {
            // Its writer was through with each of them, or they would not have been applied.
            let progress = self.apply(usize::MAX, upto, |_| true)?;
            match progress.missing {
                Some((_, bound)) => self.journal.order.declare_void(bound.min(upto + 1)),
                None if progress.applied == 0 && !progress.goes_on => break,
                None => {}
            }
        }
        self.store.show()
    }

    /// Applies what is in order, up to the first gap, at most `limit` records and none with a
    /// number above `upto`, and commits it: a piece of work that takes some milliseconds, whatever
    /// the records say.
    /// `finished` says whether the writer of a record is through with what it does outside the
    /// trees: until then other clients may still see and use what the record takes away.
    pub fn apply(
        &mut self,
        limit: usize,
        upto: u64,
        finished: impl Fn(&Entry) -> bool,
    ) -> Result<Progress> {
        if self.store.failed || self.journal.order.waiting() == 0 {
            return Ok(Progress::default());
        }
        let divided = self.is_dividing() || limit > 0 && self.begin_spill(upto, &finished);
        let mut progress = match divided {
            true => self.spill_part()?,
            false => self.apply_batch(limit, upto, &finished)?,
        };
        if progress.wants_room && progress.applied == 0 && self.store.makes_room() {
            self.store.reclaim_some()?;
            progress.goes_on = true;
        }
        if progress.checkpoint {
            self.store.checkpoint()?;
        }
        Ok(progress)
    }

    fn apply_batch(
        &mut self,
        limit: usize,
        upto: u64,
        finished: &impl Fn(&Entry) -> bool,
    ) -> Result<Progress> {
        let Engine { store, journal } = self;
        let before = journal.done.map(|lane| lane.applied);
        let again = journal.is_again();
        let (room, values_most) = store.room_to_apply()?;
        let states = (store.pool.is_loose(), store.makes_room());
        let mut batch = PoolStore::begin(&mut store.pool, &store.token);
        let mut held = Held(&mut journal.granted);
        let carry = std::mem::take(&mut journal.carry);
        let mut applier = Applier::keeping(&mut batch, &mut held, before).carrying(carry);
        applier.expect_again(again);
        applier.divide_work(journal.replay.is_none());
        let mut round = Round {
            order: &mut journal.order,
            replay: &mut journal.replay,
            places: (&mut journal.done, &mut journal.newest),
            buffers: &mut journal.buffers,
            data: &store.data,
            progress: Progress::default(),
            begun: Instant::now(),
            upto,
            states,
        };
        round.progress.short = room == 0;
        let limits = (limit.min(BATCH_MAX).min(room), values_most);
        let applied = round.run(&mut applier, limits, finished);
        let progress = round.progress;
        store.compaction.note_changes(applier.waiting() as u64);
        if let Err(error) = applied.and_then(|()| settle(&mut applier)) {
            return Err(fail(&mut store.failed, &store.files, error));
        }
        journal.carry = applier.into_carry();
        if progress.applied > 0 {
            sync_replayed(journal.replay.as_ref(), &store.data)?;
            let (done, applied) = (journal.done, journal.applied_seq());
            let committed = batch.commit(|sb| set_positions(sb, done, applied));
            store.check(committed)?;
        }
        Ok(progress)
    }
}

/// One batch of records, as far as it is not the applier's.
struct Round<'r> {
    order: &'r mut Order,
    replay: &'r mut Option<Replay>,
    places: (&'r mut [superblock::Lane; LANES], &'r mut u64),
    buffers: &'r mut Buffers,
    data: &'r Region,
    progress: Progress,
    begun: Instant,
    /// The highest number that may be applied.
    upto: u64,
    /// Whether commits are loose, and whether there is something to be freed.
    states: (bool, bool),
}

impl Round<'_> {
    /// Applies what is next, again and again: so many records, and changes of keyspaces, at most.
    fn run<'a>(
        &mut self,
        applier: &mut Applier<'a, PoolStore<'_>, Held<'a>>,
        (limit, values_most): (usize, usize),
        finished: &impl Fn(&Entry) -> bool,
    ) -> holdfast_pool::Result<()> {
        let mut steps = STEPS_MAX;
        while self.progress.applied < limit {
            let values = applier.waiting();
            let asks = applier.steps() >= steps || self.progress.applied % 64 == 63;
            if values > values_most || asks && is_late(self.begun, values) {
                break;
            }
            steps = applier.steps() + STEPS_MAX;
            let Some(entry) = next_upto(self.order, self.upto, &mut self.progress) else {
                break;
            };
            if self.waits(applier, &entry, finished)? {
                self.order.put_back(entry);
                break;
            }
            let places = (&mut *self.places.0, &mut *self.places.1);
            note_applied(&mut self.progress, places, &entry);
            self.buffers.put(entry.bytes);
        }
        Ok(())
    }

    /// Applies a record; true if it stays the next one.
    fn waits<'a>(
        &mut self,
        applier: &mut Applier<'a, PoolStore<'_>, Held<'a>>,
        entry: &Entry,
        finished: &impl Fn(&Entry) -> bool,
    ) -> holdfast_pool::Result<bool> {
        // It was decoded when it was read, from the same copy.
        let (header, record) = journal::decode_sound(&entry.bytes)
            .unwrap_or_else(|e| panic!("record {} was sound when it was read: {e:?}", entry.seq));
        if !finished(entry) {
            self.progress.unfinished = Some(entry.seq);
            return Ok(true);
        }
        if self.replay.is_none() && is_for_parts(applier, &record) {
            self.progress.goes_on = true;
            return Ok(true);
        }
        let done = apply_one(applier, self.data, (&header, &record), self.replay);
        let may = |reject: &_| may_refuse(&record, reject, self.replay);
        let waits = waits_after(&mut self.progress, done, entry.seq, self.states, may)?;
        self.progress.checkpoint |= !waits && matches!(record, Record::Spilled { .. });
        Ok(waits)
    }
}

/// Brings what the applier kept back into the trees.
fn settle<'a>(applier: &mut Applier<'a, PoolStore<'_>, Held<'a>>) -> holdfast_pool::Result<()> {
    match applier.settle() {
        Ok(()) => Ok(()),
        Err(Failure::Store(error)) => Err(error),
        // Changes are checked when they come in.
        Err(failure) => panic!("changes that were accepted are not settled: {failure:?}"),
    }
}

/// Whether a record is to be applied in parts, by a batch of its own.
fn is_for_parts(applier: &Applier<'_, PoolStore<'_>, Held<'_>>, record: &Record<'_>) -> bool {
    // One that is refused is refused with the others.
    spill::is_divided(record) && applier.spilled(record).is_ok()
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
    are_unseen(record) && HONEST.contains(&reject.why)
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
