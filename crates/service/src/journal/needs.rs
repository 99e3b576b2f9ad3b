//! What newly read records need before they are applied: their blocks count as granted.
//!
//! Invariant: the work is proportional to what was read and to the pool, whatever records say.

use super::engine::Engine;
use super::evidence::Evidence;
use super::replay::Replay;
use super::spilled::read_spilled;
use holdfast_pool::format::PAGE_LEN;
use holdfast_pool::format::superblock::Consistency;
use holdfast_pool::journal::{self, Change, Ops, Promote, Record};
use holdfast_pool::layout::BlockAddr;
use holdfast_pool::layout::value::{self, InBlocks};

/// Notes what the records that were read need before they are applied: their blocks count as
/// granted.
pub fn prepare(engine: &mut Engine, power_lost: bool, lossy: bool, end: u64) {
    let space = engine.store.pool.data_space().len();
    let evidence = power_lost.then(|| Evidence::collect(engine.journal.order.iter(), end, space));
    let mut blocks = Vec::new();
    // Honest records name each block once.
    let mut spilled_left = space * PAGE_LEN;
    for entry in engine.journal.order.iter() {
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
                    && let Some(ops) = read_spilled(&engine.store.data, &found, len)
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
        engine.grant_again(block.word(), len);
    }
    engine.journal.replay = Some(Replay {
        evidence,
        strict: engine.store.pool.superblock().consistency == Consistency::Strict,
        lossy,
        ..Replay::default()
    });
}

/// The same blocks, each once: first and length of each run.
fn joined(mut runs: Vec<(BlockAddr, u64)>) -> Vec<(BlockAddr, u64)> {
    runs.sort_unstable();
    let mut out: Vec<(BlockAddr, u64)> = Vec::new();
    for (block, len) in runs {
        let end = block.end(len);
        match out.last_mut() {
            Some(last) if last.0.end(last.1) >= block => last.1 = last.1.max(end - last.0),
            _ => out.push((block, end - block)),
        }
    }
    out
}

/// The blocks of all records that were read and not applied count as granted.
pub fn grant_what_records_need(engine: &mut Engine) {
    prepare(engine, false, false, u64::MAX);
    engine.journal.replay = None;
}

fn blocks_of_values(ops: &[u8], out: &mut Vec<(BlockAddr, u64)>) {
    for op in Ops::new(ops).flatten() {
        match op.change {
            Change::PutBlocks(runs) | Change::PutBlocksUntil(_, runs) => runs_of(runs, out),
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

fn runs_of(runs: &[u8], out: &mut Vec<(BlockAddr, u64)>) {
    if let Ok(blocks) = InBlocks::decode(runs) {
        let runs = blocks.runs().iter();
        out.extend(runs.map(|run| (run.block, u64::from(run.len))));
    }
}
