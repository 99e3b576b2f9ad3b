//! The table of free extents as the service keeps it, against what clients do with it.

use crate::session::Session;
use crate::testing::TempDir;
use crate::tests::{Client, assert_clean, drain, in_class, opened, pool, pool_of, take_whole};
use holdfast_pool::session::free_table::pack;
use holdfast_pool::session::{CACHED_SHORT, CACHED_WHOLE, WHOLE};
use holdfast_pool::space::Run;
use std::sync::atomic::Ordering::*;

/// Remainders are given back as clients do it; some of what is said was never granted, some twice.
#[test]
fn what_clients_give_back_is_free_again_and_handed_out_with_what_is_around_it() {
    let dir = TempDir::new("remainders");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let mut session = Session::create(&mut engine).unwrap();
    drain(&mut session, &mut engine);
    let whole = take_whole(&session).unwrap();
    let memory = session.memory.clone();
    let given_back = &memory.free_table().given_back;
    let foreign = Run::new(engine.store.pool.data_space().len() - 7, 7);
    let beyond = Run::new(foreign.end() + 9, 40);
    for extent in [foreign, beyond, Run::new(u64::MAX >> 16, 5)] {
        assert!(given_back.give_back(extent));
    }
    let free = engine.store.pool.data_space().count_free();
    let granted = engine.journal.granted.len();
    session.top_up(&mut engine);
    let now = (
        engine.store.pool.data_space().count_free(),
        engine.journal.granted.len(),
    );
    assert_eq!((now.0 + now.1, now.0 <= free), (free + granted, true));
    // All but the first block, in four parts, two of them twice.
    for start in [1, 129, 257, 385, 129, 385] {
        let len = 128.min(512 - start);
        assert!(given_back.give_back(Run::new(whole.start + start, len)));
    }
    session.top_up(&mut engine);
    assert_eq!(in_class(&session, 8), [whole.start + 1]);
    assert!(engine.journal.granted.contains(whole.start, 512));
    // So it is when its process died before it had counted what it gave back.
    let (extent, _) = session.memory.free_table().classes[8].take(1).unwrap();
    let number = given_back.put.load(Relaxed) as usize % given_back.words.len();
    given_back.words[number].store(pack(extent), Relaxed);
    session.top_up(&mut engine);
    assert_eq!(in_class(&session, 8), [extent.start]);
    session.end(&mut engine).unwrap();
    drop(engine);
    assert_clean(&path);
}

/// A session that begins has memory set aside for few of the short extents of a pool that has
/// nothing else: it may end at once.
#[test]
fn a_session_on_a_fragmented_pool_begins_with_little_memory() {
    let dir = TempDir::new("fragmented");
    let path = pool_of(&dir, 256 << 20);
    let mut engine = opened(&path);
    let pool = &mut engine.store.pool;
    while let Some(whole) = pool.grant_whole(512) {
        let rest = Run::new(whole.start + 16, whole.len - 16);
        pool.ungrant(rest).unwrap();
        pool.punched(rest);
    }
    let mut session = Session::create(&mut engine).unwrap();
    drain(&mut session, &mut engine);
    let granted = engine.journal.granted.len();
    assert!((512..=2048 + 512).contains(&granted), "{granted} blocks");
    session.end(&mut engine).unwrap();
}

/// However many processes there are, few of them keep what remains of a whole extent while they are
/// idle, and none what remains of a short one.
#[test]
fn an_idle_session_has_little_cached() {
    let dir = TempDir::new("cached");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let mut session = Session::create(&mut engine).unwrap();
    drain(&mut session, &mut engine);
    let whole = take_whole(&session).unwrap();
    let memory = session.memory.clone();
    memory.header().slots_used.store(30, Relaxed);
    let cached = |index: usize| &memory.slot(index).unwrap().cached[CACHED_WHOLE];
    let short = &memory.slot(5).unwrap().cached[CACHED_SHORT];
    // Eight of one block, and what was never granted, and the rest.
    for n in 0..8 {
        cached(2 * n).store(pack(Run::new(whole.start + n as u64, 1)), Relaxed);
    }
    short.store(pack(Run::new(whole.start + 8, 4)), Relaxed);
    let rest = Run::new(whole.start + 12, 500);
    cached(20).store(pack(Run::new(1 << 40, 77)), Relaxed);
    cached(29).store(pack(rest), Relaxed);
    let client = Client {
        session: &session,
        engine: &engine,
    };
    client.create(0, 2, b"file");
    drain(&mut session, &mut engine);
    session.rest(&mut engine, true);
    assert_eq!([20, 29].map(|index| cached(index).load(Relaxed)), [0, 0]);
    assert_eq!(short.load(Relaxed), 0);
    assert!((0..8).all(|n| cached(2 * n).load(Relaxed) != 0));
    assert_eq!(in_class(&session, 8), [whole.start + 8]);
    session.is_settled(&mut engine);
    assert!((0..30).all(|index| cached(index).load(Relaxed) == 0));
    assert!(engine.store.pool.data_space().is_free(whole));
    session.end(&mut engine).unwrap();
    drop(engine);
    assert_clean(&path);
}

/// The first ones of a session are no huge pages, those that follow are.
#[test]
fn huge_pages_come_before_other_whole_extents() {
    let dir = TempDir::new("huge");
    let path = pool_of(&dir, 256 << 20);
    let mut engine = opened(&path);
    let mut session = Session::create(&mut engine).unwrap();
    drain(&mut session, &mut engine);
    let first = in_class(&session, WHOLE);
    assert_eq!(first.len(), 2);
    take_whole(&session).unwrap();
    session.turn(&mut engine);
    let next = in_class(&session, WHOLE);
    assert_eq!((next.len(), next[1]), (2, first[1]));
    assert!(!first.contains(&next[0]));
    // In a session that rests the first ones stay.
    session
        .memory
        .header()
        .blocks_wanted
        .store(6 * 512, Relaxed);
    drain(&mut session, &mut engine);
    let many = in_class(&session, WHOLE);
    assert!(many.len() > 2, "{many:?}");
    session.rest(&mut engine, true);
    assert_eq!(in_class(&session, WHOLE), many[..2]);
    // What is no whole extent is not put among them again, whatever the session says.
    let ring = &session.memory.free_table().classes[WHOLE];
    let place = ring.taken.load(Relaxed) as usize % ring.words.len();
    ring.words[place].store(pack(Run::new(many[0], 7)), Relaxed);
    session
        .memory
        .header()
        .blocks_wanted
        .store(4 * 512, Relaxed);
    drain(&mut session, &mut engine);
    session.rest(&mut engine, true);
    assert!(in_class(&session, WHOLE).len() <= 2);
    assert!(in_class(&session, 2).is_empty());
    session.end(&mut engine).unwrap();
    drop(engine);
    assert_clean(&path);
}
