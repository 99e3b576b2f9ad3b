//! Stories on an ordinary file: what waits for an fsync, across sessions, and what snapshots share.
//!
//! Invariant: a story fails if any of its images does.

use crate::model::Mode::{self, *};
use crate::model::Op::{self, *};
use crate::run::{Plan, run};
use crate::stories;
use crate::values::Change::*;
use holdfast_pmem::Medium;
use holdfast_pmem::images::{Model, Options};
use holdfast_pool::directory::LANE_LEN;

/// Files are synced by a later session than the one that wrote them, or when the session does not
/// have them in memory any more.
fn sessions() -> Vec<Op> {
    vec![
        Create("a"),
        Write("a", 0, 5000, 3),
        Rejoin,
        Fsync("a"),
        Append("a", 300, 4),
        Die,
        Fsync("a"),
        Write("old/f", 1000, 5000, 5),
        Evict,
        Fsync("old/f"),
        Append("old/small", 100, 6),
        Evict,
        Create("b"),
        Fsync("b"),
        Rejoin,
        Unlink("a"),
        Create("c"),
        Write("c", 0, 6000, 8),
        Fsync("b"),
    ]
}

/// Bytes that were synced, and small changes beside them that nobody syncs while others are.
fn beside() -> Vec<Op> {
    vec![
        Append("old/small", 700, 3),
        Create("other"),
        Write("other", 0, 100, 4),
        Fsync("other"),
        Append("old/f", 300, 5),
        Fsync("other"),
        Checkpoint,
        Write("old/f", 8900, 50, 6),
        Append("old/f", 5000, 7),
        Fsync("other"),
        Unlink("old/small"),
        Create("new"),
        Write("new", 0, 9000, 8),
        Fsync("other"),
        Append("new", 10, 9),
        SyncAll,
    ]
}

/// More than the journal takes.
fn large() -> Vec<Op> {
    vec![
        Create("f"),
        Write("f", 0, 80_000, 3),
        Fsync("f"),
        Write("f", 10_000, 70_000, 4),
        Append("f", 100, 5),
        Fsync("f"),
        Create("g"),
        Write("g", 0, 70_000, 7),
        Rename("g", "old/small"),
        Fsync("old/f"),
        Write("f", 0, 80_000, 6),
        Checkpoint,
    ]
}

/// Files take the place of others, are cut and written anew.
fn replaced() -> Vec<Op> {
    vec![
        Create("t"),
        Write("t", 0, 3000, 3),
        Rename("t", "old/f"),
        Create("u"),
        Write("u", 0, 300, 4),
        Rename("u", "old/small"),
        Replace("old/f", 2000, 5),
        Create("v"),
        Fsync("v"),
        Truncate("old/f", 1000),
        Append("old/f", 500, 6),
        Truncate("old/f", 700),
        Write("old/f", 900, 3000, 7),
        Fsync("v"),
        Exchange("old/f", "old/small"),
        Unlink("old/small"),
        Fsync("v"),
    ]
}

/// Blocks that a snapshot has are written to.
fn snapshots() -> Vec<Op> {
    vec![
        Snapshot("one"),
        Write("old/f", 1000, 300, 3),
        Fsync("old/f"),
        Write("old/f", 4000, 300, 4),
        Append("old/small", 50, 5),
        Create("b"),
        Fsync("b"),
        Snapshot("two"),
        Truncate("old/f", 5000),
        Write("old/f", 0, 100, 6),
        Fsync("b"),
        Unlink("old/small"),
        Rejoin,
        Append("old/f", 10, 7),
        Fsync("old/f"),
    ]
}

/// Values of every length, in the order of the changes.
fn values() -> Vec<Op> {
    vec![
        Keyspace("k"),
        Change(&[Put("k", "a", 10, 1)]),
        Change(&[Put("k", "b", 5000, 2)]),
        Append("old/f", 100, 7),
        Change(&[Put("k", "a", 80_000, 3), Put("k", "c", 1500, 4)]),
        Rejoin,
        Change(&[Erase("k", "b"), Put("k", "c", 9000, 5)]),
        Change(&[Put("k", "a", 300, 6)]),
    ]
}

/// Almost a whole lane of the journal.
fn almost_around(lane_len: u64) -> Vec<Op> {
    let mut ops = stories::before();
    for n in 0..(lane_len / AROUND as u64 - 2) as usize {
        ops.extend([Write("old/f", 0, AROUND, 100 + n as u8), Fsync("old/f")]);
        ops.extend((n % 8 == 7).then_some(Checkpoint));
    }
    ops
}

/// The lane of `almost_around` comes to its end, and goes on at its beginning.
fn around() -> Vec<Op> {
    let mut ops = Vec::new();
    for byte in 3..6 {
        ops.extend([Write("old/f", 0, AROUND, byte), Fsync("old/f")]);
    }
    ops.extend([Append("old/small", 100, 6), Fsync("old/small")]);
    ops
}

/// As long as a write may be that goes to the journal.
const AROUND: usize = 60_000;

/// Anything, in any order; each write has a byte of its own.
fn anything(seed: u64, len: u8) -> Vec<Op> {
    const NAMES: [&str; 4] = ["a", "b", "old/f", "old/small"];
    let mut x = seed;
    let mut draw = move |n: usize| {
        x = x
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (x >> 33) as usize % n
    };
    let mut there = [false, false, true, true];
    let mut ops = Vec::new();
    while ops.len() < usize::from(len) {
        let (i, j, byte) = (draw(4), draw(4), ops.len() as u8 + 3);
        let (name, other) = (NAMES[i], NAMES[j]);
        let sizes = [60, 700, 5000, 20_000, 70_000];
        let (size, at) = (sizes[draw(5)], draw(9000));
        let op = match draw(20) {
            _ if !there[i] => Create(name),
            0..4 => Write(name, at, size, byte),
            4..7 => Append(name, size, byte),
            7..11 => Fsync(name),
            11 => Truncate(name, at),
            12 => Replace(name, size.min(20_000), byte),
            13 if i != j => Rename(name, other),
            14 => Unlink(name),
            15 if matches!(ops.last(), Some(Write(..) | Append(..) | Fsync(_))) => Evict,
            16 => Checkpoint,
            17 => Rejoin,
            18 => Die,
            19 => Snapshot(["s0", "s1", "s2", "s3"][there_are_snapshots(&ops)]),
            _ => continue,
        };
        match op {
            Create(_) => there[i] = true,
            Unlink(_) => there[i] = false,
            Rename(..) => (there[i], there[j]) = (false, true),
            Snapshot(_) if there_are_snapshots(&ops) == 3 => continue,
            _ => {}
        }
        ops.push(op);
    }
    ops
}

fn there_are_snapshots(ops: &[Op]) -> usize {
    ops.iter().filter(|op| matches!(op, Snapshot(_))).count()
}

pub fn few(model: Model, n: u64) -> Options {
    Options {
        model,
        exhaustive: n * 2,
        singles: n,
        pairs: n / 2,
        random: n,
        seed: 11,
    }
}

/// Each story is cut between pages in `posix`, between sectors in `strict`.
fn tell(name: &str, mode: Mode, step_every: usize, ops: &[Op]) {
    tell_in(LANE_LEN, name, mode, step_every, (&stories::before(), ops));
}

/// The same with lanes of that length; whether one of them came around.
fn tell_in(
    lane_len: u64,
    name: &str,
    mode: Mode,
    step_every: usize,
    (before, ops): (&[Op], &[Op]),
) -> bool {
    let model = match mode {
        Strict => Model::Sectors,
        _ => Model::Pages,
    };
    let plan = Plan {
        mode,
        medium: Medium::File,
        lane_len,
        step_every,
        images: few(model, 2),
        again_every: 120,
        images_again: few(model, 1),
    };
    let figures = run(name, &plan, before, ops);
    assert!(figures.images > 50, "{figures:?}");
    assert_eq!(figures.failures, 0, "{figures:?}");
    figures.came_around
}

#[test]
fn sessions_posix() {
    tell("sessions", Posix, 4, &sessions());
}

#[test]
fn sessions_strict() {
    tell("sessions", Strict, 3, &sessions());
}

#[test]
fn beside_posix() {
    tell("beside", Posix, 3, &beside());
}

#[test]
fn beside_sync() {
    tell("beside", Sync, 3, &beside());
}

#[test]
fn beside_strict() {
    tell("beside", Strict, 5, &beside());
}

#[test]
fn large_posix() {
    tell("large", Posix, 3, &large());
}

#[test]
fn large_strict() {
    tell("large", Strict, 2, &large());
}

#[test]
fn replaced_posix() {
    tell("replaced", Posix, 20, &replaced());
}

#[test]
fn replaced_strict() {
    tell("replaced", Strict, 2, &replaced());
}

#[test]
fn snapshots_posix() {
    tell("snapshots", Posix, 2, &snapshots());
}

#[test]
fn snapshots_strict() {
    tell("snapshots", Strict, 3, &snapshots());
}

#[test]
fn log_posix() {
    tell("log", Posix, 2, &stories::log());
}

#[test]
fn around_posix() {
    let story = (&almost_around(2 * LANE_LEN)[..], &around()[..]);
    assert!(tell_in(2 * LANE_LEN, "around", Posix, 4, story));
}

#[test]
fn around_strict() {
    let story = (&almost_around(LANE_LEN)[..], &around()[..]);
    assert!(tell_in(LANE_LEN, "around", Strict, 4, story));
}

#[test]
fn long_lanes_posix() {
    let story = (&stories::before()[..], &anything(3, 10)[..]);
    tell_in(2 * LANE_LEN, "long lanes", Posix, 3, story);
}

#[test]
fn values_posix() {
    tell("values", Posix, 2, &values());
}

#[test]
fn values_strict() {
    tell("values", Strict, 3, &values());
}

#[test]
fn expiring_posix() {
    tell("expiring", Posix, 4, &stories::expiring());
}

#[test]
fn expiring_strict() {
    tell("expiring", Strict, 1, &stories::expiring());
}

#[test]
fn expiring_ranges_posix() {
    tell("expiring ranges", Posix, 3, &stories::expiring_ranges());
}

#[test]
fn anything_posix() {
    tell("anything", Posix, 3, &anything(1, 20));
}

#[test]
fn anything_strict() {
    tell("anything", Strict, 4, &anything(2, 16));
}

/// `HF_POWER_SEEDS=1..20`: as many stories as one has time for.
#[test]
#[ignore = "takes as long as it is told to"]
fn anything_of_many_seeds() {
    let seeds = std::env::var("HF_POWER_SEEDS").unwrap_or_default();
    let (from, to) = seeds.split_once("..").unwrap_or(("100", "104"));
    for seed in from.parse::<u64>().unwrap()..to.parse().unwrap() {
        println!("seed {seed}: {:?}", anything(seed, 24));
        tell(
            "anything",
            Posix,
            1 + seed as usize % 7,
            &anything(seed, 24),
        );
        tell(
            "anything",
            Strict,
            1 + seed as usize % 7,
            &anything(seed, 24),
        );
    }
}
