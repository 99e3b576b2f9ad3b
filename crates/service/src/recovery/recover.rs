//! Bringing the trees up to date from a journal whose session is dead.
//!
//! Invariants:
//!  * Every complete record up to the first one that cannot be valid is applied, in order.
//!  * If complete records cannot be read, nothing is changed, unless the loss was accepted.
//!  * After a power loss on an ordinary file a missing number may be a record that never reached
//!    the medium while later ones did. So above the highest sound mark nothing behind the first
//!    missing number is applied, and the result is a prefix of what happened; and only what has
//!    evidence is applied (`evidence.rs`).
//!  * The journal is emptied only when the trees are durable, and the boot is recorded only when
//!    the journal is empty: interrupted recovery is simply repeated.

use crate::base::cuts::{self, Cut};
use crate::base::error::Loss;
use crate::base::error::{Error, Result};
use crate::base::files::{self, Files};
use crate::base::lock::PoolLock;
use crate::base::ordinary;
use crate::base::process;
use crate::base::survivors;
use crate::base::users;
use crate::journal::engine::Engine;
use crate::journal::evidence;
use crate::journal::needs;
use crate::journal::order::FLIGHT_MAX;
use crate::recovery::damage::{self, Survey};
use holdfast_pmem::Medium;
use holdfast_pool::apply::Reject;
use holdfast_pool::segment;
use rustix::fs::OFlags;
use std::path::Path;

/// Records that the whole journal has room for.
const READ_MAX: u64 = 1 << 20;

/// What recovery did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Records that were applied.
    pub records: u64,
    /// Records that were passed over: what they, or others that they need, wrote is not there.
    pub skipped: u64,
    /// Objects without a name that were freed.
    pub orphans: u64,
    /// The record that ended recovery early, and why.
    pub rejected: Option<(u64, String)>,
}

/// What to do about records that were complete and cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Losses {
    Refuse,
    Accept,
}

/// Applies the journal, frees what nobody can reach, and empties the journal. Where the journal is
/// damaged, nothing is changed.
pub fn recover(engine: &mut Engine) -> Result<Recovered> {
    bring_up(engine, Losses::Refuse)
}

/// As `recover`; of a damaged journal all records that can be read are applied.
pub fn recover_what_is_left(engine: &mut Engine) -> Result<Recovered> {
    bring_up(engine, Losses::Accept)
}

/// Brings the pool in `directory`, which nobody may use, up to date if its journal is damaged or
/// segments were cut: with what can be read. `None`: that is not so, and nothing was done.
pub fn accept_loss(directory: &Path) -> Result<Option<Accepted>> {
    files::superblock_of_own(directory)?;
    let _lock = PoolLock::take_patiently(directory)?;
    let superblock = files::superblock_of_own(directory)?;
    let journal = directory.join(segment::journal(superblock.journal_segment));
    let journal = ordinary::open(&journal, OFlags::RDWR);
    let survives = matches!(&journal, Ok(Some(journal)) if survivors::exist(journal));
    if survives || users::any_in_use(directory) {
        return Err(Error::InUse {
            path: directory.into(),
            pid: None,
        });
    }
    drop(journal);
    let cuts = cuts::mend(directory, &superblock)?;
    let mut engine = Engine::open(Files::open(directory)?)?;
    let losses = losses(&mut engine)?;
    if losses.is_empty() && cuts.is_empty() {
        return Ok(None);
    }
    let recovered = recover_what_is_left(&mut engine)?;
    engine.close()?;
    Ok(Some(Accepted {
        cuts,
        losses,
        recovered,
    }))
}

/// Losses that were accepted.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// Segments that were cut.
    pub cuts: Vec<Cut>,
    /// What could not be read.
    pub losses: Vec<Loss>,
    /// What could.
    pub recovered: Recovered,
}

fn bring_up(engine: &mut Engine, losses: Losses) -> Result<Recovered> {
    // There is nobody who was shown more than this.
    engine.store.show()?;
    let was_clean = engine.store.pool.superblock().clean;
    let power_lost = power_lost(engine)?;
    engine.journal.read(usize::MAX);
    let survey = match was_clean {
        true => Survey::default(),
        false => damage::survey(engine, power_lost),
    };
    let damaged = !survey.losses.is_empty();
    if damaged && losses == Losses::Refuse {
        return Err(refusal(engine, &survey));
    }
    damage::read_behind(engine, &survey);
    let limit = match (power_lost, damaged) {
        (false, _) => u64::MAX,
        (true, false) => survey.sound,
        (true, true) => survey.marked,
    };
    let mut recovered = Recovered::default();
    let numbers = engine.journal.order.iter().map(|entry| entry.seq).collect();
    let next = engine.journal.order.next_seq();
    let end = evidence::end_of_records(numbers, next, limit, FLIGHT_MAX);
    needs::prepare(engine, power_lost, damaged, end);
    let highest = highest(engine, &survey);
    apply_all(engine, end, &mut recovered)?;
    finish(engine, highest, was_clean, &mut recovered)?;
    Ok(recovered)
}

/// Whether the machine went down with the pool in use. Also true for a second try: the boot is
/// noted when all is done.
fn power_lost(engine: &Engine) -> Result<bool> {
    let before = engine.store.pool.superblock();
    let other_boot = before.boot_id != process::boot_id()?;
    // The pool may have been copied from the file that lost power to where none does.
    Ok(engine.store.files.was_on_file() && other_boot && !before.clean)
}

/// What the journal has lost.
fn losses(engine: &mut Engine) -> Result<Vec<Loss>> {
    if engine.store.pool.superblock().clean {
        return Ok(Vec::new());
    }
    engine.journal.read(usize::MAX);
    let power_lost = power_lost(engine)?;
    Ok(damage::survey(engine, power_lost).losses)
}

fn refusal(engine: &Engine, survey: &Survey) -> Error {
    let path = engine.store.files.directory.clone();
    Error::Journal {
        path,
        losses: survey.losses.clone(),
    }
}

/// Empties the journal, when everything in it is applied or given up.
fn finish(
    engine: &mut Engine,
    highest: u64,
    was_clean: bool,
    recovered: &mut Recovered,
) -> Result<()> {
    let replay = engine.journal.replay.take().unwrap_or_default();
    recovered.skipped = replay.skipped;
    recovered.records = recovered.records.saturating_sub(replay.skipped);
    if engine.store.files.medium == Medium::File && !was_clean {
        engine.store.data.sync(0, engine.store.data.len())?;
    }
    engine.journal.reset_lanes(highest + 1);
    engine.commit_positions()?;
    if !was_clean {
        engine.wipe_journal()?;
    }
    recovered.orphans = engine.free_orphans()?;
    engine.ungrant_all();
    for run in replay.given_up {
        // It is nobody's.
        let _ = engine.store.pool.ungrant(run);
    }
    engine.store.begin()
}

/// The highest number of a record that is one of this journal.
fn highest(engine: &Engine, survey: &Survey) -> u64 {
    let applied = engine.journal.applied_seq();
    let bound = applied.saturating_add(FLIGHT_MAX + READ_MAX);
    let read = engine.journal.order.iter().map(|entry| entry.seq);
    let near = read.chain([survey.highest]).filter(|seq| *seq <= bound);
    near.max().unwrap_or(0).max(applied)
}

/// Applies the records with numbers below `end`; those that are missing are void.
fn apply_all(engine: &mut Engine, end: u64, recovered: &mut Recovered) -> Result<()> {
    while engine.journal.order.waiting() > 0 {
        let progress = engine.apply(usize::MAX, end - 1, |_| true)?;
        recovered.records += progress.applied as u64;
        if progress.short {
            return Err(Error::Pool {
                path: engine.store.files.directory.clone(),
                error: holdfast_pool::Error::HostFull,
            });
        }
        if progress.rejected.is_some() {
            let why = |(seq, reject): (u64, Reject)| (seq, reject.to_string());
            recovered.rejected = progress.rejected.map(why);
            break;
        }
        match progress.missing {
            Some((_, bound)) if bound < end => engine.journal.order.declare_void(bound),
            Some(_) => break,
            None if progress.applied == 0 && !progress.goes_on => break,
            None => {}
        }
    }
    Ok(())
}
