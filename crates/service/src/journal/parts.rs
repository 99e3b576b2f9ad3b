//! Applying a record in parts: between them the service serves others.
//!
//! Invariant: until its commit the record stays the next one in order.

use super::engine::Engine;
use super::held::Noted;
use super::lane::Entry;
use super::progress::{HONEST, Progress, goes_on_without, note_applied, set_positions};
use super::spill::{Spill, is_divided};
use crate::base::error::Result;
use holdfast_pmem::env::Instant;
use holdfast_pool::apply::{Applier, Failure, ParkedStore, PoolStore, Reject, Why};
use holdfast_pool::format::LANES;
use holdfast_pool::journal::{self, Record};
use std::time::Duration;

/// What one part may take.
const TIME: Duration = Duration::from_millis(10);

/// What became of a part.
enum Part {
    More,
    Committed,
    Refused(Reject),
    /// The host has no room for what would be written.
    Short,
}

impl Engine {
    /// Whether a record is applied in parts now: nothing else may be committed.
    pub fn is_dividing(&self) -> bool {
        self.journal.spill.is_some()
    }

    /// Begins with the next record, if it is one to be divided and its writer is through with it.
    pub(crate) fn begin_spill(&mut self, upto: u64, finished: impl Fn(&Entry) -> bool) -> bool {
        let next = self.journal.order.peek().filter(|entry| entry.seq <= upto);
        let Some((entry, Ok((_, record)))) = next.map(|e| (e, journal::decode_sound(&e.bytes)))
        else {
            return false;
        };
        let Record::Spilled { time, len, sum, .. } = record else {
            return false;
        };
        if !is_divided(&record) || self.journal.replay.is_some() || !finished(entry) {
            return false;
        }
        let (lane, seq, taken) = (entry.lane, entry.seq, &mut Vec::new());
        let mut store = PoolStore::begin(&mut self.store.pool, &self.store.token);
        let granted = &mut self.journal.granted;
        let blocks =
            Applier::new(&mut store, &mut Noted { granted, taken }, [0; LANES]).spilled(&record);
        // One that is refused is refused as others are.
        let Ok(blocks) = blocks else { return false };
        self.journal.spill = Some(Spill::new((lane, seq), time, blocks, len, sum));
        true
    }

    /// A part of the record in hand.
    pub(crate) fn spill_part(&mut self) -> Result<Progress> {
        let mut progress = Progress::default();
        let Some(mut spill) = self.journal.spill.take() else {
            return Ok(progress);
        };
        match self.try_part(&mut spill)? {
            Part::More => {
                progress.goes_on = true;
                self.journal.spill = Some(spill);
            }
            Part::Short => {
                self.take_back(&mut spill);
                progress.short = true;
            }
            Part::Committed => {
                progress.applied = 1;
                self.store.compaction.note_changes(spill.changes);
                // Its blocks are used again at once.
                progress.checkpoint = true;
            }
            Part::Refused(reject) => {
                self.take_back(&mut spill);
                let states = (self.store.pool.is_loose(), self.store.makes_room());
                if goes_on_without(&mut progress, (spill.seq, reject), states, is_honest) {
                    self.pass(spill.lane, None)?;
                    progress.applied = 1;
                }
            }
        }
        Ok(progress)
    }

    fn try_part(&mut self, spill: &mut Spill) -> Result<Part> {
        let begun = Instant::now();
        let mut store = match spill.parked.take() {
            Some(parked) => PoolStore::resume(&mut self.store.pool, &self.store.token, parked),
            None => PoolStore::begin(&mut self.store.pool, &self.store.token),
        };
        let ready = loop {
            let done = spill.go_on(
                &mut store,
                &mut self.journal.granted,
                &mut self.journal.carry,
                &self.store.data,
            );
            match done {
                Ok(false) if begun.elapsed() < TIME => {}
                done => break done,
            }
        };
        match ready {
            Ok(false) => {
                spill.parked = Some(store.park());
                Ok(Part::More)
            }
            Ok(true) => {
                let parked = store.park();
                self.pass(spill.lane, Some(parked))
                    .map(|()| Part::Committed)
            }
            Err(Failure::Rejected(reject)) => Ok(Part::Refused(reject)),
            Err(Failure::Store(holdfast_pool::Error::NoSpace)) if !spill.is_certain() => {
                Ok(Part::Refused(Reject::new(0, Why::NoRoom)))
            }
            Err(Failure::Store(holdfast_pool::Error::HostFull)) => Ok(Part::Short),
            Err(Failure::Store(error)) => {
                drop(store);
                Err(self.store.fail(error))
            }
            // Only `divide_work` asks for it.
            Err(Failure::Later) => unreachable!(),
        }
    }

    /// Commits that the first record of a lane is behind us, with what it changed.
    fn pass(&mut self, lane: usize, parked: Option<ParkedStore>) -> Result<()> {
        if let Some(entry) = self.journal.order.take(lane) {
            let places = (&mut self.journal.done, &mut self.journal.newest);
            note_applied(&mut Progress::default(), places, &entry);
        }
        let (done, applied) = (self.journal.done, self.journal.applied_seq());
        let store = match parked {
            Some(parked) => PoolStore::resume(&mut self.store.pool, &self.store.token, parked),
            None => PoolStore::begin(&mut self.store.pool, &self.store.token),
        };
        let committed = store.commit(|sb| set_positions(sb, done, applied));
        self.store.check(committed)
    }

    /// Its changes are not made.
    fn take_back(&mut self, spill: &mut Spill) {
        for run in spill.taken.drain(..) {
            self.journal.granted.insert(run.start, run.len);
        }
        if let Some(usage) = spill.usage.take() {
            self.journal.carry.usage = usage;
        }
    }

    /// Ends what is in parts: brings it to its end, or drops it where it is not `wanted` and can be
    /// dropped.
    pub(crate) fn end_spill(&mut self, wanted: bool) -> Result<()> {
        while let Some(mut spill) = self.journal.spill.take_if(|s| !wanted && !s.is_certain()) {
            drop(self.store.pool.resume(&self.store.token));
            self.take_back(&mut spill);
        }
        while self.is_dividing() {
            self.spill_part()?;
        }
        Ok(())
    }
}

/// Whether the writer of a record that waits for it may have written it in good faith.
fn is_honest(reject: &Reject) -> bool {
    HONEST.contains(&reject.why)
}
