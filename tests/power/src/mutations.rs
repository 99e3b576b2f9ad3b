//! That the stories can fail: each leaves out instructions without which the stack is wrong, and
//! an image must be found that shows it.
//!
//! Invariant: a mutation removes fences from a log that is otherwise the one of the real code.

use crate::model::{Mode, Op};
use crate::run::{Fault, Mutation, Plan, run, run_faulty};
use holdfast_pmem::Medium;
use holdfast_pmem::images::{Model, Options};
use holdfast_pmem::record::Event;
use holdfast_pool::directory::LANE_LEN;

const META: u32 = 0;
const JOURNAL: u32 = 1;
const DATA: u32 = 2;
/// Both superblocks are before this.
const SUPERBLOCKS_END: u64 = 8192;

fn by(event: &Event, me: u32) -> bool {
    matches!(event, Event::Store { thread, .. } | Event::Fence { thread } if *thread == me)
}

/// The region that the fence `at` makes durable what was stored to last.
fn fenced(log: &[Event], at: usize) -> Option<u32> {
    let Event::Fence { thread } = log[at] else {
        return None;
    };
    match log[..at].iter().rev().find(|e| by(e, thread)) {
        Some(Event::Store { region, .. }) => Some(*region),
        _ => None,
    }
}

/// The next store or fence of the same thread after the fence `at`.
fn next(log: &[Event], at: usize) -> Option<&Event> {
    let Event::Fence { thread } = log[at] else {
        return None;
    };
    log[at + 1..].iter().find(|e| by(e, thread))
}

fn is_superblock(event: Option<&Event>) -> bool {
    matches!(event, Some(Event::Store { region: META, off, .. }) if *off < SUPERBLOCKS_END)
}

fn must_be_found(mode: Mode, ops: &[Op], mutation: Mutation) {
    let plan = Plan {
        mode,
        medium: Medium::Memory,
        lane_len: LANE_LEN,
        step_every: 1,
        images: Options {
            model: Model::Lines,
            exhaustive: 16,
            singles: 16,
            pairs: 4,
            random: 16,
            seed: 3,
        },
        again_every: usize::MAX,
        images_again: Options::new(Model::Lines),
    };
    let before = [Op::Create("f"), Op::Write("f", 0, 9000, 1), Op::Fsync("f")];
    assert_eq!(run("unchanged", &plan, &before, ops).failures, 0);
    let found = run_faulty(&plan, (&before, ops), Fault::LeftOut(mutation), "");
    println!("found: {found:?}");
    assert!(found.is_some());
}

#[test]
fn a_record_without_its_fence_is_found() {
    let unfenced: Mutation = |log, at| fenced(log, at) == Some(JOURNAL);
    must_be_found(Mode::Posix, &[Op::Mkdir("d")], unfenced);
}

#[test]
fn a_superblock_that_overtakes_its_trees_is_found() {
    let early: Mutation = |log, at| {
        let by_superblock = is_superblock(next(log, at));
        by_superblock && fenced(log, at) == Some(META)
    };
    must_be_found(Mode::Posix, &[Op::Mkdir("d")], early);
}

#[test]
fn a_record_that_overtakes_its_data_is_found() {
    let unfenced: Mutation = |log, at| fenced(log, at) == Some(DATA);
    must_be_found(Mode::Strict, &[Op::Write("f", 100, 5000, 2)], unfenced);
}
