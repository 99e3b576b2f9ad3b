//! Bringing the trees up to date from a journal whose session is dead.
//!
//! Invariants:
//!  * Every complete record up to the first one that cannot be valid is applied, in order.
//!  * Nothing is changed where records were complete and cannot be read, unless that is wished.
//!  * After a power loss on an ordinary file a missing number may be a record that never reached
//!    the medium while later ones did: above the highest sound mark, nothing behind the first
//!    missing number is applied, so that what is there is a prefix of what happened; and only what
//!    has evidence (`evidence.rs`).
//!  * The journal is emptied only when the trees are durable, and the boot is noted only when the
//!    journal is empty: recovery that is interrupted is simply done again.

use crate::damage::{self, Loss, Survey};
use crate::engine::{Engine, read_spilled};
use crate::error::{Error, Result};
use crate::evidence::{self, Evidence};
use crate::files::Files;
use crate::lock::PoolLock;
use crate::order::FLIGHT_MAX;
use crate::replay::Replay;
use crate::{process, snapshots, survivors};
use holdfast_pmem::Medium;
use holdfast_pool::apply::Reject;
use holdfast_pool::format::PAGE_LEN;
use holdfast_pool::format::superblock::Consistency;
use holdfast_pool::journal::{self, Change, Ops, Promote, Record};
use holdfast_pool::layout::value::{self, InBlocks};
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

/// Brings the pool in `directory`, which nobody may use, up to date if its journal is damaged:
/// with the records that can be read. `None`: it is not damaged, and nothing was done.
pub fn accept_loss(directory: &Path) -> Result<Option<Accepted>> {
    Files::open(directory)?.check_owner()?;
    let _lock = PoolLock::take_patiently(directory)?;
    let files = Files::open(directory)?;
    let journal = files.reopen(&files.journal_name(), OFlags::RDWR)?;
    if survivors::exist(&journal) || snapshots::any_in_use(directory) {
        return Err(Error::InUse {
            path: directory.into(),
            pid: None,
        });
    }
    drop(journal);
    let mut engine = Engine::open(files)?;
    let losses = losses(&mut engine);
    if losses.is_empty() {
        return Ok(None);
    }
    let recovered = recover_what_is_left(&mut engine)?;
    engine.close()?;
    Ok(Some(Accepted { losses, recovered }))
}

/// A damaged journal whose losses were accepted.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// What could not be read.
    pub losses: Vec<Loss>,
    /// What could.
    pub recovered: Recovered,
}

fn bring_up(engine: &mut Engine, losses: Losses) -> Result<Recovered> {
    // There is nobody who was shown more than this.
    engine.show()?;
    let was_clean = engine.pool.superblock().clean;
    let power_lost = power_lost(engine);
    engine.read(usize::MAX);
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
    let numbers = engine.order.iter().map(|entry| entry.seq).collect();
    let next = engine.order.next_seq();
    let end = evidence::end_of_records(numbers, next, limit, FLIGHT_MAX);
    prepare(engine, power_lost, damaged, end);
    let highest = highest(engine, &survey);
    apply_all(engine, end, &mut recovered)?;
    finish(engine, highest, was_clean, &mut recovered)?;
    Ok(recovered)
}

/// Whether the machine went down with the pool in use. Also true for a second try: the boot is
/// noted when all is done.
fn power_lost(engine: &Engine) -> bool {
    let before = engine.pool.superblock();
    let other_boot = before.boot_id != process::boot_id();
    // The pool may have been copied from the file that lost power to where none does.
    engine.files.was_on_file() && other_boot && !before.clean
}

/// What the journal has lost.
fn losses(engine: &mut Engine) -> Vec<Loss> {
    if engine.pool.superblock().clean {
        return Vec::new();
    }
    engine.read(usize::MAX);
    damage::survey(engine, power_lost(engine)).losses
}

fn refusal(engine: &Engine, survey: &Survey) -> Error {
    let path = engine.files.directory.clone();
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
    let replay = engine.replay.take().unwrap_or_default();
    recovered.skipped = replay.skipped;
    recovered.records = recovered.records.saturating_sub(replay.skipped);
    if engine.files.medium == Medium::File && !was_clean {
        engine.data.sync(0, engine.data.len())?;
    }
    engine.leap(highest + 1);
    engine.keep_place()?;
    if !was_clean {
        engine.wipe_journal()?;
    }
    recovered.orphans = engine.free_orphans()?;
    engine.ungrant_all();
    for run in replay.given_up {
        // It is nobody's.
        let _ = engine.pool.ungrant(run);
    }
    engine.begin()
}

/// The highest number of a record that is one of this journal.
fn highest(engine: &Engine, survey: &Survey) -> u64 {
    let applied = engine.applied_seq();
    let bound = applied.saturating_add(FLIGHT_MAX + READ_MAX);
    let read = engine.order.iter().map(|entry| entry.seq);
    let near = read.chain([survey.highest]).filter(|seq| *seq <= bound);
    near.max().unwrap_or(0).max(applied)
}

/// Notes what the records that were read need before they are applied: their blocks count as
/// granted.
fn prepare(engine: &mut Engine, power_lost: bool, lossy: bool, end: u64) {
    let space = engine.pool.data_space().len();
    let evidence = power_lost.then(|| Evidence::collect(engine.order.iter(), end, space));
    let mut blocks = Vec::new();
    // Honest records name each block once.
    let mut spilled_left = space * PAGE_LEN;
    for entry in engine.order.iter() {
        match journal::decode_sound(&entry.bytes) {
            Ok((_, Record::Extent { block, len, .. })) => blocks.push((block, u64::from(len))),
            Ok((_, Record::Batch { ops, .. })) => blocks_of_values(ops, &mut blocks),
            Ok((_, Record::Spilled { len, sum, runs, .. })) => {
                runs_of(runs, &mut blocks);
                let Some(left) = spilled_left.checked_sub(len) else {
                    continue;
                };
                spilled_left = left;
                if let Ok(found) = InBlocks::decode(runs)
                    && let Some(ops) = read_spilled(&engine.data, &found, len)
                {
                    let ops = match &evidence {
                        Some(evidence) => evidence.spilled(entry.seq, &found, ops, sum),
                        None => Some(ops),
                    };
                    blocks_of_values(&ops.unwrap_or_default(), &mut blocks);
                }
            }
            _ => {}
        }
    }
    for (block, len) in joined(blocks) {
        engine.grant_again(block, len);
    }
    engine.replay = Some(Replay {
        evidence,
        strict: engine.pool.superblock().consistency == Consistency::Strict,
        lossy,
        ..Replay::default()
    });
}

/// The same blocks, each once: first and length of each run.
fn joined(mut runs: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    runs.sort_unstable();
    let mut out: Vec<(u64, u64)> = Vec::new();
    for (block, len) in runs {
        let end = block.saturating_add(len);
        match out.last_mut() {
            Some(last) if last.0 + last.1 >= block => last.1 = last.1.max(end - last.0),
            _ => out.push((block, end - block)),
        }
    }
    out
}

/// The blocks of all records that were read and not applied count as granted.
pub fn grant_what_records_need(engine: &mut Engine) {
    prepare(engine, false, false, u64::MAX);
    engine.replay = None;
}

fn blocks_of_values(ops: &[u8], out: &mut Vec<(u64, u64)>) {
    for op in Ops::new(ops).flatten() {
        match op.change {
            Change::PutBlocks(runs) => runs_of(runs, out),
            // One block that the client filled; others are in use already and stay so.
            Change::Promote(fields) => {
                let blocks = Promote::decode(fields).and_then(|p| InBlocks::decode(p.runs).ok());
                let filled = blocks.filter(|b| value::fits_entry(op.key.len(), b.len as usize));
                let runs = filled.iter().flat_map(|b| b.runs());
                out.extend(runs.map(|run| (run.block, u64::from(run.len))));
            }
            _ => {}
        }
    }
}

fn runs_of(runs: &[u8], out: &mut Vec<(u64, u64)>) {
    if let Ok(blocks) = InBlocks::decode(runs) {
        let runs = blocks.runs().iter();
        out.extend(runs.map(|run| (run.block, u64::from(run.len))));
    }
}

/// Applies the records with numbers below `end`; those that are missing are void.
fn apply_all(engine: &mut Engine, end: u64, recovered: &mut Recovered) -> Result<()> {
    while engine.order.waiting() > 0 {
        let progress = engine.apply(usize::MAX, end - 1, |_| true)?;
        recovered.records += progress.applied as u64;
        if progress.short {
            return Err(Error::Pool {
                path: engine.files.directory.clone(),
                error: holdfast_pool::Error::HostFull,
            });
        }
        if progress.rejected.is_some() {
            let why = |(seq, reject): (u64, Reject)| (seq, reject.to_string());
            recovered.rejected = progress.rejected.map(why);
            break;
        }
        match progress.missing {
            Some((_, bound)) if bound < end => engine.order.declare_void(bound),
            Some(_) => break,
            None if progress.applied == 0 => break,
            None => {}
        }
    }
    Ok(())
}
