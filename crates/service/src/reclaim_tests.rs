//! Records that remove a lot: what one turn of the service does for them, counted, and what is
//! there after each turn and after the death of the service.

use crate::idle_tests::{keyspace_of, write};
use crate::journal::engine::Engine;
use crate::session::Session;
use crate::testing::TempDir;
use crate::tests::{
    Client, assert_clean, create_as, drain, exists, extent, opened, pool, take_whole, unlink,
};
use holdfast_pool::journal::{Change, Op, Record};
use holdfast_pool::layout::value::{HEAD, TreeKey};
use holdfast_pool::layout::{EXTENTS, VALUES};
use std::path::Path;
use std::sync::atomic::Ordering::*;

const KEYSPACE: u64 = 5000;
const FILE: u64 = 6000;
const EXTENTS_MIN: u64 = 6000;
/// Nodes that one step frees here.
const STEP: usize = 10;

/// A file with that many extents at least; how many blocks it has.
fn fragmented(session: &mut Session, engine: &mut Engine) -> u64 {
    write(session, engine, &create_as(0o100_644, FILE, b"file"));
    let mut at = 0;
    while at < EXTENTS_MIN {
        while let Some(whole) = take_whole(session) {
            for block in whole.start..whole.end() {
                // With holes in between, so that they do not become one.
                let client = Client { session, engine };
                client.write(0, &extent(FILE, 2 * at, block));
                at += 1;
            }
        }
        session.memory.header().blocks_wanted.store(512, Relaxed);
        drain(session, engine);
    }
    assert!(!session.memory.is_poisoned());
    at
}

fn erase_all() -> Vec<u8> {
    let mut ops = Vec::new();
    let op = Op {
        keyspace: KEYSPACE,
        key: b"",
        change: Change::EraseRange(b""),
    };
    op.push(&mut ops);
    ops
}

fn pages(engine: &Engine) -> u64 {
    engine.store.pool.meta_space().count_used()
}

/// Writes the record and takes one turn, which applies it and frees hardly anything; then turns, in
/// each of which a record of another process is applied, until everything is free.
fn remove(session: &mut Session, engine: &mut Engine, record: &Record<'_>) -> u64 {
    let number = FILE + session.memory.header().next_seq.load(Relaxed);
    Client { session, engine }.write(0, record);
    let before = pages(engine);
    let mut turn = session.turn(engine);
    assert!(turn.applied == 1 && turn.more && engine.store.makes_room());
    assert!(pages(engine) + 60 > before, "most of it is not free yet");
    let mut turns = 0;
    while engine.store.makes_room() {
        let name = format!("{number}-{turns}");
        let client = Client { session, engine };
        client.create(1 + turns as usize % 3, number + turns, name.as_bytes());
        let before = pages(engine);
        turn = session.turn(engine);
        assert!(turn.applied == 1 && exists(engine, number + turns));
        let freed = before.saturating_sub(pages(engine));
        assert!(freed <= 2 * STEP as u64, "one turn freed {freed} pages");
        turns += 1;
    }
    assert!(!session.memory.is_poisoned());
    turns
}

#[test]
fn what_removes_a_lot_takes_many_turns_and_holds_nobody_up() {
    let dir = TempDir::new("reclaim");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let mut session = Session::create(&mut engine).unwrap();
    let free = engine.store.pool.data_space().count_used();
    let all = keyspace_of(&mut session, &mut engine, KEYSPACE, 6000);
    let blocks = fragmented(&mut session, &mut engine);
    engine.store.reclaim.step = Some(STEP);
    let ops = erase_all();
    let (time, ops) = (9, &ops[..]);
    let turns = remove(&mut session, &mut engine, &Record::Batch { time, ops });
    assert!(turns > 10, "{turns} turns");
    let key = TreeKey::new(KEYSPACE, &all[0].to_be_bytes());
    let found = engine
        .store
        .pool
        .reader()
        .get(VALUES, key.as_slice(), &mut [0; HEAD]);
    assert_eq!(found, Ok(None));
    assert_eq!(engine.store.pool.data_space().count_used(), free + blocks);
    // A step of a leaf of extents.
    engine.store.reclaim.step = Some(1);
    remove(&mut session, &mut engine, &unlink(FILE, b"file"));
    assert_eq!(engine.store.pool.data_space().count_used(), free);
    session.end(&mut engine).unwrap();
    drop(engine);
    assert_clean(&path);
}

#[test]
fn a_file_that_is_cut_to_nothing_has_nothing_at_once() {
    let dir = TempDir::new("reclaim-cut");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let mut session = Session::create(&mut engine).unwrap();
    let used = engine.store.pool.data_space().count_used();
    fragmented(&mut session, &mut engine);
    engine.store.reclaim.step = Some(1);
    let (ino, size, time) = (FILE, 0, 9);
    let record = Record::Truncate { ino, size, time };
    Client {
        session: &session,
        engine: &engine,
    }
    .write(0, &record);
    session.turn(&mut engine);
    assert!(engine.store.makes_room());
    // New content under the keys of the old.
    let block = take_whole(&session).unwrap().start;
    write(&mut session, &mut engine, &extent(FILE, 2, block));
    let found =
        |at| holdfast_pool::layout::extent::find(&engine.store.pool.reader(), FILE, at).unwrap();
    assert!(matches!(
        found(2),
        holdfast_pool::layout::extent::Run::Blocks { block: b, len: 1, .. }
            if b.word() == block
    ));
    assert!(!engine.store.makes_room());
    assert_eq!(engine.store.pool.data_space().count_used(), used + 1);
    assert_eq!(
        engine.store.pool.superblock().roots[usize::from(EXTENTS)].keys,
        1
    );
    session.end(&mut engine).unwrap();
    drop(engine);
    assert_clean(&path);
}

/// The service dies after each number of turns: the next one frees the rest.
#[test]
fn the_next_service_goes_on() {
    for turns in [0, 1, 5, 20] {
        let dir = TempDir::new("reclaim-died");
        let path = pool(&dir);
        let used = die_after(&path, turns);
        assert_clean(&path);
        let mut engine = opened(&path);
        let mut session = Session::create(&mut engine).unwrap();
        drain(&mut session, &mut engine);
        assert!(!engine.store.makes_room());
        assert_eq!(engine.store.pool.data_space().count_used(), used);
        assert_eq!(
            engine.store.pool.superblock().roots[usize::from(VALUES)].keys,
            0
        );
        session.end(&mut engine).unwrap();
        drop(engine);
        assert_clean(&path);
    }
}

fn die_after(path: &Path, turns: u64) -> u64 {
    let mut engine = opened(path);
    let mut session = Session::create(&mut engine).unwrap();
    let used = engine.store.pool.data_space().count_used();
    keyspace_of(&mut session, &mut engine, KEYSPACE, 3000);
    fragmented(&mut session, &mut engine);
    engine.store.reclaim.step = Some(STEP);
    let ops = erase_all();
    let (time, ops) = (9, &ops[..]);
    let client = Client {
        session: &session,
        engine: &engine,
    };
    client.write(0, &Record::Batch { time, ops });
    client.write(0, &unlink(FILE, b"file"));
    for _ in 0..turns {
        session.turn(&mut engine);
        assert!(engine.store.makes_room());
    }
    used
}

#[test]
fn a_snapshot_that_has_a_lot_is_deleted_in_many_turns() {
    let dir = TempDir::new("reclaim-snapshot");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let mut session = Session::create(&mut engine).unwrap();
    let used = engine.store.pool.data_space().count_used();
    keyspace_of(&mut session, &mut engine, KEYSPACE, 6000);
    let blocks = fragmented(&mut session, &mut engine);
    engine.snapshot_create(b"s", &[]).unwrap();
    let ops = erase_all();
    let (time, ops) = (9, &ops[..]);
    write(&mut session, &mut engine, &Record::Batch { time, ops });
    write(&mut session, &mut engine, &unlink(FILE, b"file"));
    assert!(!engine.store.makes_room());
    assert_eq!(engine.store.pool.data_space().count_used(), used + blocks);
    engine.store.reclaim.step = Some(STEP);
    session.snapshot_delete(&mut engine, b"s").unwrap();
    let gone = session.snapshot_delete(&mut engine, b"s");
    assert!(gone.is_err() && engine.store.makes_room());
    let mut turns = 0;
    while engine.store.makes_room() {
        let (before, name) = (pages(&engine), format!("{turns}"));
        let client = Client {
            session: &session,
            engine: &engine,
        };
        client.create(1, 20_000 + turns, name.as_bytes());
        let turn = session.turn(&mut engine);
        assert!(turn.applied == 1 && exists(&engine, 20_000 + turns));
        let freed = before.saturating_sub(pages(&engine));
        assert!(freed <= 2 * STEP as u64, "one turn freed {freed} pages");
        turns += 1;
    }
    assert!(turns > 20, "{turns} turns");
    assert_eq!(engine.store.pool.data_space().count_used(), used);
    assert!(!session.memory.is_poisoned() && !engine.store.pool.has_snapshots());
    session.end(&mut engine).unwrap();
    drop(engine);
    assert_clean(&path);
}
