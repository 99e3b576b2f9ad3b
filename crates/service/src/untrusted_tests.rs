//! What clients write into session memory and records to keep others from working.
//!
//! Invariant: none of it stops the service, and none of it stays in the pool.

use crate::session::Session;
use crate::testing::TempDir;
use crate::tests::{Client, assert_clean, drain, exists, opened, pool};
use holdfast_pool::session::SLOTS;
use std::sync::atomic::Ordering::*;

#[test]
fn no_record_uses_many_numbers_of_inodes_up() {
    let dir = TempDir::new("numbers");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let mut session = Session::create(&mut engine).unwrap();
    let memory = session.memory.clone();
    let header = memory.header();
    let client = Client {
        session: &session,
        engine: &engine,
    };
    let highest = header.ino_end.load(Relaxed) - 1;
    client.create(0, highest, b"highest");
    drain(&mut session, &mut engine);
    assert!(exists(&engine, highest) && !memory.is_poisoned());
    let client = Client {
        session: &session,
        engine: &engine,
    };
    let beyond = header.ino_end.load(Relaxed);
    assert!(beyond <= highest + 1 + (1 << 20));
    client.create(0, beyond, b"beyond");
    drain(&mut session, &mut engine);
    assert!(memory.is_poisoned() && !exists(&engine, beyond));
}

/// As after many creations that failed.
#[test]
fn numbers_that_were_taken_in_vain_are_made_up_for() {
    let dir = TempDir::new("vain");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let mut session = Session::create(&mut engine).unwrap();
    let memory = session.memory.clone();
    let header = memory.header();
    let vain = header.next_ino.fetch_add(3 << 20, Relaxed);
    let begun = std::time::Instant::now();
    while header.ino_end.load(Relaxed) <= header.next_ino.load(Relaxed) {
        session.turn(&mut engine);
        assert!(begun.elapsed().as_secs() < 10);
    }
    let client = Client {
        session: &session,
        engine: &engine,
    };
    client.create(0, header.next_ino.load(Relaxed), b"new");
    client.create(1, vain, b"old");
    drain(&mut session, &mut engine);
    assert!(exists(&engine, vain) && !memory.is_poisoned());
    session.end(&mut engine).unwrap();
    drop(engine);
    assert_clean(&path);
}

/// How far rings were filled and emptied, as no service and no client would have left it.
#[test]
fn impossible_rings_of_a_session_are_begun_anew() {
    let dir = TempDir::new("rings");
    let path = pool(&dir);
    for (put, taken) in [
        (5, 11u64.wrapping_neg()),
        (0, 1),
        (u64::MAX, u64::MAX),
        (1 << 40, 0),
    ] {
        let mut engine = opened(&path);
        let session = Session::create(&mut engine).unwrap();
        let fd = session.memory.fd().try_clone().unwrap();
        let table = session.memory.free_table();
        for ring in table.classes.iter().chain([&table.given_back]) {
            ring.put.store(put, Relaxed);
            ring.taken.store(taken, Relaxed);
        }
        // The service dies here.
        drop((session, engine));
        let mut engine = crate::tests::open(&path);
        let mut session = Session::adopt(&mut engine, fd).unwrap();
        drain(&mut session, &mut engine);
        let client = Client {
            session: &session,
            engine: &engine,
        };
        let ino = engine.store.pool.superblock().next_ino;
        client.create(0, ino, format!("file-{ino}").as_bytes());
        drain(&mut session, &mut engine);
        assert!(exists(&engine, ino));
        session.end(&mut engine).unwrap();
    }
    assert_clean(&path);
}

#[test]
fn slots_do_not_keep_a_session_that_nobody_has() {
    let dir = TempDir::new("slots");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let session = Session::create(&mut engine).unwrap();
    for index in 0..SLOTS - 1 {
        match index {
            0..16 => session.memory.pretend_to_be(index),
            _ => session.memory.slot(index).unwrap().state.store(2, Relaxed),
        }
    }
    let handed_out = session.descriptors(0).unwrap();
    assert!(!session.is_deserted(&engine).unwrap());
    drop(handed_out);
    assert!(session.is_deserted(&engine).unwrap());
    session.end(&mut engine).unwrap();
}
