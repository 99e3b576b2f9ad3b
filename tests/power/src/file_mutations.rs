//! That the stories on an ordinary file can fail: each switches a rule of `docs/spec/media.md` off,
//! and an image must be found that shows it.
//!
//! Invariants: a mutation removes syncs from a log that is otherwise that of the real code, has
//! recovery take the loss of power for the death of processes, or forgets which blocks are dirty.
//! What an image is found by says what was lost.

use crate::file_stories::few;
use crate::model::Mode::{self, Posix, Strict};
use crate::model::Op::{self, *};
use crate::run::Fault::{self, *};
use crate::run::{Plan, run, run_faulty};
use crate::values::Change::Put;
use holdfast_pmem::Medium;
use holdfast_pmem::images::Model;
use holdfast_pmem::record::Event;
use holdfast_pool::directory::LANE_LEN;

const META: u32 = 0;
const JOURNAL: u32 = 1;
const DATA: u32 = 2;
/// Both superblocks are before this.
const SUPERBLOCKS_END: u64 = 8192;

fn is_sync(log: &[Event], at: usize, of: u32) -> bool {
    matches!(log[at], Event::Sync { region, .. } if region == of)
}

fn data_sync(log: &[Event], at: usize) -> bool {
    is_sync(log, at, DATA)
}

fn journal_sync(log: &[Event], at: usize) -> bool {
    is_sync(log, at, JOURNAL)
}

/// That of nodes and bitmaps, before the superblock that points to them.
fn meta_sync(log: &[Event], at: usize) -> bool {
    let stores = log[at..].iter().find_map(|event| match event {
        Event::Store { region, off, .. } => Some((*region, *off)),
        _ => None,
    });
    let superblock = stores.is_some_and(|(region, off)| region == META && off < SUPERBLOCKS_END);
    superblock && is_sync(log, at, META)
}

/// The one that makes a superblock durable.
fn superblock_sync(log: &[Event], at: usize) -> bool {
    let mut stores = log[..at].iter().rev().filter_map(|event| match event {
        Event::Store { region, off, .. } => Some((*region, *off)),
        _ => None,
    });
    let last = stores.next();
    let superblock = last.is_some_and(|(region, off)| region == META && off < SUPERBLOCKS_END);
    superblock && is_sync(log, at, META)
}

fn before() -> [Op; 5] {
    [
        Create("f"),
        Write("f", 0, 9000, 1),
        Create("small"),
        Write("small", 0, 400, 2),
        Fsync("small"),
    ]
}

fn plan(mode: Mode, images: u64) -> Plan {
    Plan {
        mode,
        medium: Medium::File,
        lane_len: LANE_LEN,
        step_every: 1,
        images: few(Model::Pages, images),
        again_every: usize::MAX,
        images_again: few(Model::Pages, 2),
    }
}

/// As it is, the story passes; with the fault something is found, and `sign` says what.
fn must_be_found(mode: Mode, ops: &[Op], fault: Fault, sign: &str) {
    let sound: Vec<Op> = ops
        .iter()
        .filter(|op| !matches!(op, ForgetDirty))
        .cloned()
        .collect();
    let unchanged = run("unchanged", &plan(mode, 2), &before(), &sound);
    assert_eq!(unchanged.failures, 0, "{unchanged:?}");
    let found = run_faulty(&plan(mode, 4), (&before(), ops), fault, sign);
    println!("found: {found:?}");
    assert!(found.is_some());
}

#[test]
fn an_fsync_in_place_without_its_flush_is_found() {
    let ops = [Create("new"), Write("new", 0, 80_000, 3), Fsync("new")];
    must_be_found(Posix, &ops, LeftOut(data_sync), "new: byte 238");
}

#[test]
fn a_strict_write_in_place_without_its_flush_is_found() {
    let ops = [Write("f", 100, 80_000, 3)];
    must_be_found(Strict, &ops, LeftOut(data_sync), "f: byte 238");
}

#[test]
fn a_checkpoint_without_its_data_is_found() {
    let ops = [
        Create("new"),
        Write("new", 0, 5000, 3),
        Fsync("new"),
        Checkpoint,
    ];
    must_be_found(Posix, &ops, LeftOut(data_sync), "new: byte 238");
}

#[test]
fn a_superblock_that_overtakes_its_trees_is_found() {
    let ops = [Create("new"), Mkdir("d"), Checkpoint];
    must_be_found(Posix, &ops, LeftOut(meta_sync), "");
}

#[test]
fn an_fsync_without_a_flush_of_the_journal_is_found() {
    let ops = [Create("new"), Write("new", 0, 5000, 3), Fsync("new")];
    must_be_found(Posix, &ops, LeftOut(journal_sync), "names [");
}

#[test]
fn a_sync_without_its_data_is_found() {
    let ops = [Create("new"), Write("new", 0, 5000, 3), Op::SyncAll];
    must_be_found(Posix, &ops, LeftOut(data_sync), "new: byte 238");
}

#[test]
fn a_writeback_without_its_data_is_found() {
    let ops = [Hold("f"), Append("f", 5000, 3), Op::WriteBack];
    must_be_found(Posix, &ops, LeftOut(data_sync), "f: ");
}

#[test]
fn an_fsync_that_knows_nothing_of_an_earlier_session_is_found() {
    for end in [Rejoin, Die] {
        let ops = [Create("new"), Write("new", 0, 5000, 3), end, Fsync("new")];
        must_be_found(Posix, &ops, LeftOut(data_sync), "new: byte 238");
    }
}

#[test]
fn an_fsync_that_does_not_know_what_is_dirty_is_found() {
    let ops = [
        Create("new"),
        Write("new", 0, 5000, 3),
        Evict,
        ForgetDirty,
        Fsync("new"),
    ];
    must_be_found(Posix, &ops, Planted, "new: size 0");
    let ops = [Write("f", 100, 5000, 3), ForgetDirty, Fsync("f")];
    must_be_found(Posix, &ops, Planted, "f: byte 1 ");
}

#[test]
fn a_rename_before_the_content_is_found() {
    let ops = [
        Create("new"),
        Write("new", 0, 5000, 3),
        ForgetDirty,
        Rename("new", "f"),
        Fsync("small"),
    ];
    must_be_found(Posix, &ops, Planted, "f: size 0");
    let ops = [
        Create("new"),
        Write("new", 0, 70_000, 3),
        Rename("new", "f"),
        Fsync("small"),
    ];
    must_be_found(Posix, &ops, LeftOut(data_sync), "f: byte 238");
}

#[test]
fn a_new_block_without_the_bytes_that_were_synced_is_found() {
    let ops = [Append("small", 700, 3), Append("f", 9, 4), Fsync("f")];
    must_be_found(Posix, &ops, NoReboot, "small: byte 238 at 0 ");
    let ops = [
        Snapshot("one"),
        Write("f", 5000, 10, 3),
        Create("new"),
        Fsync("new"),
    ];
    must_be_found(Posix, &ops, NoReboot, "f: byte 238");
}

#[test]
fn what_others_had_in_a_block_is_found() {
    let ops = [Create("new"), Write("new", 0, 5000, 3), Fsync("small")];
    must_be_found(Posix, &ops, NoReboot, "new: byte 238");
}

#[test]
fn a_torn_strict_write_is_found() {
    must_be_found(
        Strict,
        &[Write("f", 3000, 2000, 3)],
        NoReboot,
        "f: byte 238",
    );
}

#[test]
fn a_long_value_without_its_flush_is_found() {
    let ops = [Keyspace("k"), Change(&[Put("k", "a", 80_000, 3)])];
    must_be_found(Posix, &ops, LeftOut(data_sync), "that were not put");
}

#[test]
fn a_snapshot_without_its_data_is_found() {
    let ops = [Create("new"), Write("new", 0, 5000, 3), Snapshot("one")];
    must_be_found(Posix, &ops, LeftOut(data_sync), "new: byte 238");
}

#[test]
fn a_recovery_that_keeps_no_data_is_found() {
    let ops = [Create("new"), Write("new", 0, 5000, 3), Fsync("new")];
    must_be_found(Posix, &ops, LeftOutAgain(data_sync), "new: byte 238");
}

#[test]
fn a_journal_that_is_emptied_before_the_superblock_is_found() {
    let ops = [Create("new"), Write("new", 0, 5000, 3), Fsync("new")];
    must_be_found(Posix, &ops, LeftOutAgain(superblock_sync), "names [");
}
