//! Bringing the trees up to date from a journal whose session is dead.
//!
//! Invariants:
//!  * Every complete record up to the first one that cannot be valid is applied, in order.
//!  * After a power loss on an ordinary file a missing number may be a record that never reached
//!    the medium while later ones did: above the highest mark of a sync, nothing behind the first
//!    missing number is applied, so that what is there is a prefix of what happened.
//!  * Recovery that is interrupted is simply done again.

use crate::engine::{Engine, read_spilled};
use crate::error::Result;
use crate::order::FLIGHT_MAX;
use crate::process;
use holdfast_pmem::Medium;
use holdfast_pool::apply::Reject;
use holdfast_pool::journal::{self, Change, Ops, Promote, Record};
use holdfast_pool::layout::value::{self, InBlocks};

/// Records that the whole journal has room for.
const READ_MAX: u64 = 1 << 20;

/// What recovery did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Records that were applied.
    pub records: u64,
    /// Objects without a name that were freed.
    pub orphans: u64,
    /// The record that ended recovery early, and why.
    pub rejected: Option<(u64, String)>,
}

/// Applies the journal, frees what nobody can reach, and empties the journal.
pub fn recover(engine: &mut Engine) -> Result<Recovered> {
    let before = engine.pool.superblock();
    let was_clean = before.clean;
    // The pool may have been copied from the file that lost power to where none does.
    let on_file = [before.medium, engine.files.medium].contains(&Medium::File);
    let power_lost = on_file && before.boot_id != process::boot_id() && !was_clean;
    engine.begin()?;
    let mut recovered = Recovered::default();
    let mut highest = engine.applied_seq();
    engine.read(usize::MAX);
    let mark = look_ahead(engine, &mut highest);
    let limit = if power_lost { mark } else { u64::MAX };
    apply_all(engine, limit, &mut recovered)?;
    engine.leap(highest + 1);
    engine.keep_place()?;
    if !was_clean {
        engine.wipe_journal()?;
    }
    recovered.orphans = engine.free_orphans()?;
    engine.ungrant_all();
    engine.begin()?;
    Ok(recovered)
}

/// Notes what the records that were read need before they are applied: their blocks count as
/// granted. Returns the highest mark of a sync.
fn look_ahead(engine: &mut Engine, highest: &mut u64) -> u64 {
    let mut mark = 0;
    let applied = engine.applied_seq();
    let mut blocks = Vec::new();
    for entry in engine.order.iter() {
        let near = entry.seq <= applied + FLIGHT_MAX + READ_MAX;
        *highest = if near {
            entry.seq.max(*highest)
        } else {
            *highest
        };
        match journal::decode(&entry.bytes) {
            Ok((_, Record::Extent { block, len, .. })) => blocks.push((block, u64::from(len))),
            Ok((_, Record::Batch { ops, .. })) => blocks_of_values(ops, &mut blocks),
            Ok((_, Record::Spilled { len, runs, .. })) => {
                runs_of(runs, &mut blocks);
                if let Ok(found) = InBlocks::decode(runs)
                    && let Some(ops) = read_spilled(&engine.data, &found, len)
                {
                    blocks_of_values(&ops, &mut blocks);
                }
            }
            Ok((_, Record::SyncMark { seq, .. })) => mark = seq.max(mark),
            _ => {}
        }
    }
    for (block, len) in blocks {
        engine.grant_again(block, len);
    }
    mark
}

/// The blocks of all records that were read and not applied count as granted.
pub fn grant_what_records_need(engine: &mut Engine) {
    look_ahead(engine, &mut 0);
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

/// Applies everything that was read, up to where recovery ends.
fn apply_all(engine: &mut Engine, limit: u64, recovered: &mut Recovered) -> Result<()> {
    while engine.order.waiting() > 0 {
        let mut progress = engine.apply(usize::MAX, u64::MAX, |_| false)?;
        recovered.records += progress.applied as u64;
        if progress.unfinished.is_some() {
            // The bytes go where the records before this one put the file's blocks.
            engine.redo_next()?;
            progress = engine.apply(1, u64::MAX, |_| true)?;
            recovered.records += progress.applied as u64;
        }
        if progress.rejected.is_some() {
            let why = |(seq, reject): (u64, Reject)| (seq, reject.to_string());
            recovered.rejected = progress.rejected.map(why);
            break;
        }
        match progress.missing {
            Some((first, bound)) if first > limit || bound - first > FLIGHT_MAX => break,
            Some((_, bound)) => engine.order.declare_void(bound),
            None => {}
        }
    }
    Ok(())
}
