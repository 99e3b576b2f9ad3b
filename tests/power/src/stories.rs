//! The stories: every operation that changes a pool, in every consistency mode.
//!
//! Invariant: a story fails if any of its images does.

use crate::model::Mode::{self, *};
use crate::model::Op::{self, *};
use crate::run::{Plan, run};
use crate::values::Change::*;
use crate::values::{LATE, LATER, NEVER, PAST};
use holdfast_pmem::Medium;
use holdfast_pmem::images::{Model, Options};
use holdfast_pool::directory::LANE_LEN;

const LONG: &str = "a-name-that-is-so-long-that-its-record-needs-several-lines-of-the-journal-and-\
    so-a-power-cut-may-leave-any-part-of-it-behind-without-the-others-as-it-pleases-the-cpu";

/// What is there before the recording.
pub fn before() -> Vec<Op> {
    vec![
        Mkdir("old"),
        Create("old/f"),
        Write("old/f", 0, 9000, 1),
        Fsync("old/f"),
        Create("old/small"),
        Write("old/small", 0, 200, 2),
        Fsync("old/small"),
        Mkdir("old/empty"),
    ]
}

fn names() -> Vec<Op> {
    vec![
        Mkdir("d"),
        Create("d/a"),
        Create("d/b"),
        Link("old/f", "d/linked"),
        Rename("d/a", "d/b"),
        Rename("d/b", "old/small"),
        Symlink("../old/f", "d/s"),
        Create(LONG),
        Rename(LONG, "d/short"),
        Chmod("d/short", 0o600),
        Exchange("d/short", "old/f"),
        Unlink("d/linked"),
        Unlink("old/small"),
        Rename("old/empty", "d/empty"),
        Rmdir("d/empty"),
        Mkdir("e"),
        Rename("d", "e"),
        Unlink("e/short"),
    ]
}

fn data() -> Vec<Op> {
    vec![
        Create("f"),
        Write("f", 0, 300, 3),
        Append("f", 100, 4),
        Write("f", 50, 100, 5),
        Fsync("f"),
        Write("f", 5000, 300, 6),
        Append("f", 3000, 7),
        Write("old/f", 4000, 300, 8),
        Write("old/f", 1000, 5000, 9),
        Fsync("old/f"),
        Truncate("old/f", 3000),
        Truncate("old/f", 6000),
        Append("old/f", 5000, 10),
        Truncate("old/small", 0),
        Write("old/small", 10, 60, 11),
        Fsync("old/small"),
    ]
}

/// Files stay open, also without a name.
fn open_files() -> Vec<Op> {
    vec![
        Hold("old/f"),
        Append("old/f", 2000, 3),
        Write("old/f", 100, 50, 4),
        Fsync("old/f"),
        Append("old/f", 6000, 5),
        Rename("old/small", "moved"),
        Unlink("old/f"),
        Append("old/f", 300, 6),
        Create("old/f"),
        Release("old/f"),
        Write("old/f", 0, 100, 7),
        Unlink("old/f"),
    ]
}

/// A log that stays open and that nobody syncs.
pub fn log() -> Vec<Op> {
    vec![
        Create("log"),
        Hold("log"),
        Hold("old/small"),
        Append("log", 300, 3),
        Append("old/small", 100, 4),
        WriteBack,
        Append("log", 5000, 5),
        Create("other"),
        WriteBack,
        Write("log", 200, 4000, 6),
        Append("log", 90, 7),
        Unlink("old/small"),
        Append("old/small", 200, 8),
        WriteBack,
        Append("log", 9000, 9),
        WriteBack,
        Append("log", 10, 10),
        Release("old/small"),
        Release("log"),
    ]
}

/// Small and large values, alone and together.
fn values() -> Vec<Op> {
    vec![
        Keyspace("k"),
        Change(&[Put("k", "a", 10, 1)]),
        Change(&[Put("k", "b", 5000, 2)]),
        Change(&[Put("k", "a", 1500, 3)]),
        Keyspace("l"),
        Change(&[
            Put("k", "a", 300, 4),
            Put("l", "a", 9000, 5),
            Erase("k", "b"),
            Put("l", "c", 0, 0),
            Put("k", "d", 700, 6),
        ]),
        Change(&[Put("l", "a", 4096, 7)]),
        Change(&[
            Erase("k", "a"),
            Put("k", "b", 100, 8),
            Put("k", "b", 200, 9),
        ]),
        Append("old/f", 100, 7),
        Change(&[Many("k", "many", 40, 60, 10)]),
        Change(&[Erase("l", "nothing")]),
        Change(&[Put("k", "d", 8000, 11), Erase("l", "a")]),
    ]
}

/// Changes that wait for the trees: ranges, and more than the journal has room for.
fn waiting() -> Vec<Op> {
    vec![
        Keyspace("k"),
        Change(&[Many("k", "b", 30, 200, 1), Put("k", "c", 5000, 2)]),
        Change(&[Range("k", "b00003", "b00020")]),
        Change(&[
            Put("k", "b00007", 10, 3),
            Range("k", "b00005", "b1"),
            Put("k", "b00008", 9, 4),
        ]),
        Change(&[
            Many("k", "large", 170, 1700, 5),
            Put("k", "block", 6000, 6),
            Erase("k", "c"),
        ]),
        Change(&[Put("k", "c", 20, 7)]),
        Change(&[Range("k", "", "z")]),
        Change(&[Put("k", "a", 20, 7)]),
    ]
}

/// Keys expire, are put again before and after that, and leave the trees in every way.
pub fn expiring() -> Vec<Op> {
    vec![
        Keyspace("k"),
        Change(&[Until("k", "a", 10, 1, LATE)]),
        Change(&[Until("k", "b", 5000, 2, LATER), Put("k", "c", 300, 3)]),
        Change(&[Until("k", "a", 1500, 4, LATER)]),
        Expire("k", "c", LATE),
        Change(&[
            Until("k", "d", 300, 5, PAST),
            Until("k", "e", 9000, 6, PAST),
            Put("k", "f", 20, 7),
        ]),
        RemoveExpired,
        // Acknowledged: what was there is not there any more.
        Expire("k", "b", PAST),
        Change(&[
            ManyUntil("k", "m", 30, 60, 8, PAST),
            Until("k", "f", 9, 9, LATE),
        ]),
        Change(&[
            Put("k", "m00003", 10, 10),
            Until("k", "m00004", 6000, 11, LATE),
        ]),
        RemoveExpired,
        Expire("k", "a", NEVER),
        Expire("k", "f", PAST),
        Change(&[Until("k", "a", 4096, 12, LATE), Erase("k", "c")]),
        Change(&[
            Until("k", "x", 5000, 13, PAST),
            Until("k", "y", 50, 13, PAST),
        ]),
        RemoveAlone,
        Change(&[Until("k", "x", 50, 14, LATE), Erase("k", "a")]),
    ]
}

/// Ranges of what expires are erased, some of which wait, and what they leave in the index goes.
pub fn expiring_ranges() -> Vec<Op> {
    vec![
        Keyspace("k"),
        Change(&[
            ManyUntil("k", "b", 30, 200, 1, PAST),
            Until("k", "c", 5000, 2, LATE),
        ]),
        Change(&[ManyUntil("k", "d", 200, 300, 1, LATE)]),
        Change(&[
            Range("k", "b00003", "b00020"),
            Until("k", "b00005", 40, 2, LATE),
        ]),
        RemoveExpired,
        Change(&[Range("k", "d00003", "d00190")]),
        Change(&[Until("k", "d00100", 30, 3, LATER), Range("k", "d001", "d1")]),
        RemoveAlone,
        Change(&[Range("k", "", "z")]),
        Change(&[Until("k", "a", 20, 7, LATE)]),
    ]
}

fn few(model: Model, n: u64) -> Options {
    Options {
        model,
        exhaustive: n * 2,
        singles: n,
        pairs: n / 2,
        random: n,
        seed: 7,
    }
}

fn plan(mode: Mode, step_every: usize) -> Plan {
    Plan {
        mode,
        medium: Medium::Memory,
        lane_len: LANE_LEN,
        step_every,
        images: few(Model::Lines, 8),
        again_every: 150,
        images_again: few(Model::Lines, 2),
    }
}

fn tell(name: &str, plan: Plan, ops: &[Op]) {
    let figures = run(name, &plan, &before(), ops);
    assert!(figures.images > 100, "{figures:?}");
    assert_eq!(figures.failures, 0, "{figures:?}");
}

#[test]
fn names_posix() {
    tell("names", plan(Posix, 1), &names());
}

#[test]
fn names_strict() {
    tell("names", plan(Strict, 5), &names());
}

#[test]
fn data_posix() {
    tell("data", plan(Posix, 3), &data());
}

#[test]
fn data_sync() {
    tell("data", plan(Sync, 1), &data());
}

#[test]
fn data_strict() {
    tell("data", plan(Strict, 4), &data());
}

#[test]
fn open_files_posix() {
    tell("open files", plan(Posix, 2), &open_files());
}

#[test]
fn open_files_sync() {
    tell("open files", plan(Sync, 12), &open_files());
}

#[test]
fn open_files_strict() {
    tell("open files", plan(Strict, 1), &open_files());
}

#[test]
fn log_posix() {
    tell("log", fewer(Posix, 6, 3), &log());
}

fn fewer(mode: Mode, step_every: usize, n: u64) -> Plan {
    let images = few(Model::Lines, n);
    Plan {
        images,
        ..plan(mode, step_every)
    }
}

#[test]
fn values_posix() {
    tell("values", fewer(Posix, 4, 5), &values());
}

#[test]
fn values_strict() {
    tell("values", fewer(Strict, 1, 4), &values());
}

#[test]
fn values_that_wait() {
    tell("values that wait", fewer(Posix, 1, 3), &waiting());
}

#[test]
fn expiring_posix() {
    tell("expiring", fewer(Posix, 3, 1), &expiring());
}

#[test]
fn expiring_strict() {
    tell("expiring", fewer(Strict, 1, 1), &expiring());
}

#[test]
fn expiring_ranges_posix() {
    tell("expiring ranges", fewer(Posix, 2, 1), &expiring_ranges());
}
