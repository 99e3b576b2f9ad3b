//! What an idle service does with its pauses.

use crate::journal::engine::Engine;
use crate::session::Session;
use crate::store::room::BACKED;
use crate::testing::TempDir;
use crate::tests::{
    Client, assert_clean, create_as, drain, exists, extent, opened, pool, pool_of, take_whole,
    unlink,
};
use holdfast_pool::directory::LANE_LEN;
use holdfast_pool::format::LANES;
use holdfast_pool::journal::{Change, Op, Record};
use holdfast_pool::layout::VALUES;
use holdfast_pool::layout::value::{HEAD, TreeKey};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering::Relaxed;

/// Writes records through lane 0 and drains them.
pub(crate) fn write(session: &mut Session, engine: &mut Engine, record: &Record<'_>) {
    Client { session, engine }.write(0, record);
    drain(session, engine);
    assert!(!session.memory.is_poisoned());
}

/// A keyspace with `keys` values of 100 bytes that came in no order; what their keys are.
pub(crate) fn keyspace_of(
    session: &mut Session,
    engine: &mut Engine,
    ino: u64,
    keys: u64,
) -> Vec<u64> {
    let directory = create_as(0o40755, ino, b"keys");
    write(session, engine, &directory);
    write(session, engine, &Record::Keyspace { ino, time: 3 });
    put_some(session, engine, ino, 0..keys, &[5; 100])
}

/// Puts keys that come in no order; what they are.
fn put_some(
    session: &mut Session,
    engine: &mut Engine,
    ino: u64,
    keys: Range<u64>,
    value: &[u8],
) -> Vec<u64> {
    let all: Vec<u64> = keys
        .map(|i| (i * i).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i << 50)
        .collect();
    // As many as fit one record.
    for few in all.chunks(10_000 / value.len()) {
        let mut ops = Vec::new();
        for key in few {
            let op = Op {
                keyspace: ino,
                key: &key.to_be_bytes(),
                change: Change::Put(value),
            };
            op.push(&mut ops);
        }
        let ops = &ops[..];
        write(session, engine, &Record::Batch { time: 3, ops });
    }
    all
}

/// The changes that erase every key of a keyspace that `keyspace_of` made.
fn erasing_all(keyspace: u64) -> Vec<u8> {
    let erase = Op {
        keyspace,
        key: &[0],
        change: Change::EraseRange(&[]),
    };
    let mut ops = Vec::new();
    erase.push(&mut ops);
    ops
}

#[test]
fn an_idle_service_lays_the_leaves_of_keyspaces_out_anew() {
    let dir = TempDir::new("compaction");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let mut session = Session::create(&mut engine).unwrap();
    let base = engine.store.pool.meta_space().count_used();
    let ino = 5000;
    let all = keyspace_of(&mut session, &mut engine, ino, 6000);
    engine.store.pool.reclaim().unwrap();
    let before = engine.store.pool.meta_space().count_used() - base;
    while session.rest(&mut engine, false) {}
    engine.store.pool.reclaim().unwrap();
    let after = engine.store.pool.meta_space().count_used() - base;
    assert!(
        after * 9 < before * 8,
        "{before} pages before, {after} after"
    );
    let reader = engine.store.pool.reader();
    let mut value = [0; 200];
    for key in all {
        let key = TreeKey::new(ino, &key.to_be_bytes());
        let found = reader.get(VALUES, key.as_slice(), &mut value).unwrap();
        assert_eq!(found, Some(HEAD + 100));
    }
    session.end(&mut engine).unwrap();
    drop(engine);
    assert_clean(&path);
}

#[test]
fn an_idle_service_lays_leaves_of_few_large_values_out_anew() {
    let dir = TempDir::new("compaction-large");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let mut session = Session::create(&mut engine).unwrap();
    let ino = 5000;
    keyspace_of(&mut session, &mut engine, ino, 1);
    let base = engine.store.pool.meta_space().count_used();
    // No part has two changes for each page in use.
    for keys in [0..1000, 1000..2000, 2000..3000, 3000..4000] {
        let changes = keys.end - keys.start;
        put_some(&mut session, &mut engine, ino, keys, &[6; 1000]);
        assert!(changes < 2 * engine.store.pool.meta_space().count_used());
        while session.rest(&mut engine, false) {}
    }
    engine.store.pool.reclaim().unwrap();
    let used = engine.store.pool.meta_space().count_used() - base;
    // Three fit a leaf; halves of full leaves have two.
    assert!(used * 5 < 4000 * 2, "{used} pages for 4000 values");
    session.end(&mut engine).unwrap();
    drop(engine);
    assert_clean(&path);
}

#[test]
fn an_idle_service_keeps_no_memory_under_free_pages_of_the_trees() {
    let dir = TempDir::new("emptied");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let mut session = Session::create(&mut engine).unwrap();
    // It looks at all stretches once while there is nothing in them.
    while session.rest(&mut engine, true) {}
    let trees = path.join(holdfast_pool::segment::META);
    let kept = || trees.metadata().unwrap().blocks() * 512 / 4096;
    let base = engine.store.pool.meta_space().count_used() - kept();
    keyspace_of(&mut session, &mut engine, 5000, 160_000);
    assert!(kept() > 12 * 512, "{}", kept());
    // Everything is free again before it looks for the second time.
    let ops = &erasing_all(5000);
    write(&mut session, &mut engine, &Record::Batch { time: 4, ops });
    while session.rest(&mut engine, true) {}
    let used = engine.store.pool.meta_space().count_used() - base;
    // What the next changes need at once, to a whole stretch.
    let ready = 2 * 512;
    assert!(kept() <= used + ready, "{} kept for {used}", kept());
    assert!(engine.store.pool.meta_space().count_resident() >= 512);
    session.end(&mut engine).unwrap();
    drop(engine);
    assert_clean(&path);
}

#[test]
fn a_session_is_not_settled_before_its_last_records_gave_their_memory_back() {
    let dir = TempDir::new("settled");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let mut session = Session::create(&mut engine).unwrap();
    let trees = path.join(holdfast_pool::segment::META);
    let kept = || trees.metadata().unwrap().blocks() * 512 / 4096;
    let base = engine.store.pool.meta_space().count_used();
    keyspace_of(&mut session, &mut engine, 5000, 160_000);
    while !session.is_settled(&mut engine) {}
    let loaded = kept();
    // The program that erases everything ends right after that.
    let ops = &erasing_all(5000);
    let client = Client {
        session: &session,
        engine: &engine,
    };
    client.write(0, &Record::Batch { time: 4, ops });
    while !session.is_settled(&mut engine) {}
    let used = engine.store.pool.meta_space().count_used();
    assert!(used < base + 100, "{used} pages in use, {base} before");
    let most = loaded - 8 * 512;
    assert!(kept() < most, "{} of {loaded} pages kept", kept());
    session.end(&mut engine).unwrap();
    drop(engine);
    assert_clean(&path);
}

/// On a host that is full by now nothing could be removed otherwise.
#[test]
fn a_new_service_finds_the_memory_for_the_trees_that_an_earlier_one_had_set_aside() {
    let dir = TempDir::new("found");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let mut session = Session::create(&mut engine).unwrap();
    keyspace_of(&mut session, &mut engine, 5000, 10_000);
    session.end(&mut engine).unwrap();
    while engine.store.trim() {}
    drop(engine);
    let trees = path.join(holdfast_pool::segment::META);
    let kept = trees.metadata().unwrap().blocks();
    let mut engine = opened(&path);
    let resident = || engine.store.pool.meta_space().count_resident();
    assert!(resident() >= BACKED, "{}", resident());
    while engine.store.trim() {}
    let now = trees.metadata().unwrap().blocks();
    assert!(now >= kept, "{now} blocks of {kept}");
    drop(engine);
    assert_clean(&path);
}

/// Nor then.
#[test]
fn the_journal_keeps_its_memory_when_all_is_applied() {
    let dir = TempDir::new("drained");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let mut session = Session::create(&mut engine).unwrap();
    let journal = path.join(holdfast_pool::segment::journal(0));
    let kept = || journal.metadata().unwrap().blocks() * 512;
    let client = Client {
        session: &session,
        engine: &engine,
    };
    for number in 2..2000 {
        client.create(1, number, format!("file-{number}").as_bytes());
    }
    drain(&mut session, &mut engine);
    while session.rest(&mut engine, true) {}
    assert_eq!(kept(), LANES as u64 * LANE_LEN);
    session.end(&mut engine).unwrap();
    while engine.store.trim() {}
    assert_eq!(kept(), LANES as u64 * LANE_LEN);
    drop(engine);
    assert_clean(&path);
}

/// The same of data.
#[test]
fn a_session_that_ends_gives_back_the_blocks_that_its_last_records_free() {
    let dir = TempDir::new("settled");
    let path = pool_of(&dir, 256 << 20);
    let mut engine = opened(&path);
    let mut session = Session::create(&mut engine).unwrap();
    let ino = 2;
    write(
        &mut session,
        &mut engine,
        &create_as(0o100_644, ino, b"file"),
    );
    for n in 0..8 {
        session.memory.header().blocks_wanted.store(512, Relaxed);
        drain(&mut session, &mut engine);
        let block = take_whole(&session).unwrap().start;
        let client = Client {
            session: &session,
            engine: &engine,
        };
        client.write(0, &whole_extent(ino, n, block));
    }
    drain(&mut session, &mut engine);
    let behind = || {
        let data = path.join(holdfast_pool::segment::data(0));
        data.metadata().unwrap().blocks() * 512
    };
    let client = Client {
        session: &session,
        engine: &engine,
    };
    client.write(0, &unlink(ino, b"file"));
    // A process that was killed read an older root.
    let memory = session.memory.clone();
    memory.header().views_used.store(1, Relaxed);
    let pin = memory.views().next().unwrap();
    pin.owner.store(1, Relaxed);
    pin.seq.store(engine.store.pool.superblock().seq, Relaxed);
    while !session.is_settled(&mut engine) {}
    assert_eq!(behind(), 0);
    assert!(!exists(&engine, ino));
    session.end(&mut engine).unwrap();
    drop(engine);
    assert_clean(&path);
}

/// Whole extent number `n` of a file.
fn whole_extent(ino: u64, n: u64, block: u64) -> Record<'static> {
    let mut record = extent(ino, 512 * n, block);
    if let Record::Extent { len, size, .. } = &mut record {
        (*len, *size) = (512, 512 * 4096 * (n + 1));
    }
    record
}
