//! A pool whose files were moved to another kind of file system.

use crate::base::files::{self, CreateOptions, Files};
use crate::journal::engine::Engine;
use crate::recovery::recover::recover;
use crate::session::Session;
use crate::testing::TempDir;
use crate::tests::{Client, assert_clean, drain, exists, opened, pool, pool_of};
use holdfast_pmem::Medium;
use holdfast_pool::directory::{LANE_LEN, lane_len};
use holdfast_pool::format::LANES;
use holdfast_pool::format::superblock::Consistency;
use holdfast_pool::segment;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

/// The pool as a service that found it on `medium` would have it.
fn used_on(path: &Path, medium: Medium) -> Engine {
    let mut files = Files::open(path).unwrap();
    files.medium = medium;
    let mut engine = Engine::open(files).unwrap();
    recover(&mut engine).unwrap();
    engine
}

#[test]
fn a_pool_is_judged_by_where_it_lies_now() {
    let dir = TempDir::new("moved");
    let path = pool(&dir);
    let here = Files::open(&path).unwrap().medium;
    for before in [Medium::File, Medium::Memory] {
        used_on(&path, before).close().unwrap();
        let files = Files::open(&path).unwrap();
        assert_eq!((files.superblock.medium, files.medium), (before, here));
        opened(&path).close().unwrap();
        assert_eq!(Files::open(&path).unwrap().superblock.medium, here);
        assert_clean(&path);
    }
}

#[test]
fn a_medium_that_is_asked_for_promises_no_more_than_there_is() {
    let dir = TempDir::new("asked");
    let path = dir.path().join("pool");
    let options = CreateOptions {
        size: Some(64 << 20),
        medium: Some(Medium::File),
        consistency: Consistency::Posix,
    };
    files::create(&path, &options).unwrap();
    let files = Files::open(&path).unwrap();
    let here = Medium::detect(std::os::fd::AsFd::as_fd(&files.meta));
    assert_eq!((files.superblock.medium, files.medium), (here, here));
}

/// Memory that is treated as DAX stays so, and what is not memory never becomes it.
#[test]
fn memory_is_treated_as_dax_where_that_was_asked_for() {
    let dir = TempDir::new("dax-test");
    let path = pool(&dir);
    let here = Files::open(&path).unwrap().medium;
    used_on(&path, Medium::DaxTest).close().unwrap();
    let expected = match here {
        Medium::Memory => Medium::DaxTest,
        other => other,
    };
    for _ in 0..2 {
        assert_eq!(Files::open(&path).unwrap().medium, expected);
        opened(&path).close().unwrap();
        assert_clean(&path);
    }
    assert!(!expected.survives_power_loss() || here != Medium::Memory);
}

/// The copy of a pool that lost power on an ordinary file is recovered as one, wherever it is.
#[test]
fn where_the_power_was_lost_is_not_forgotten() {
    for (medium, all) in [(Medium::File, false), (Medium::Memory, true)] {
        let dir = TempDir::new("lost");
        let path = pool(&dir);
        let mut engine = used_on(&path, medium);
        let session = Session::create(&mut engine).unwrap();
        engine.store.note(|sb| sb.boot_id = [9; 16]).unwrap();
        let client = Client {
            session: &session,
            engine: &engine,
        };
        client.create(3, 2, b"first");
        client.take_seq();
        client.create(5, 3, b"behind a number that is missing");
        drop((session, engine));
        if Files::open(&path).unwrap().medium == Medium::File && medium == Medium::Memory {
            continue;
        }
        let mut engine = Engine::open(Files::open(&path).unwrap()).unwrap();
        recover(&mut engine).unwrap();
        assert!(exists(&engine, 2));
        assert_eq!(exists(&engine, 3), all, "{medium:?}");
        engine.close().unwrap();
        assert_clean(&path);
    }
}

/// Long enough for more than the shortest lane has room for.
const MANY: u64 = 5000;

/// Creates files with long names, in one lane.
fn create_many(session: &Session, engine: &Engine, first: u64) {
    let client = Client { session, engine };
    for ino in first..first + MANY {
        client.create(3, ino, format!("{ino:0250}").as_bytes());
    }
}

fn set_journal_len(path: &Path, len: u64) {
    let journal = path.join(segment::journal(0));
    let journal = OpenOptions::new().write(true).open(journal);
    journal.unwrap().set_len(len).unwrap();
}

/// A pool with lanes of more than the shortest length, wherever its directory lies.
fn pool_with_long_lanes(dir: &TempDir) -> PathBuf {
    let path = pool_of(dir, 512 << 20);
    let files = Files::open(&path).unwrap();
    assert_eq!(files.superblock.lane_len, lane_len(512 << 20, files.medium));
    if files.superblock.lane_len == LANE_LEN {
        let mut engine = opened(&path);
        engine.store.note(|sb| sb.lane_len = 2 * LANE_LEN).unwrap();
        engine.close().unwrap();
        set_journal_len(&path, LANES as u64 * 2 * LANE_LEN);
    }
    path
}

#[test]
fn what_lies_far_behind_in_a_long_lane_is_recovered() {
    for (medium, boot) in [(Medium::Memory, None), (Medium::File, Some([9; 16]))] {
        let dir = TempDir::new("long");
        let path = pool_with_long_lanes(&dir);
        let mut engine = used_on(&path, medium);
        assert_eq!(engine.journal.lane_len, 2 * LANE_LEN);
        let mut session = Session::create(&mut engine).unwrap();
        create_many(&session, &engine, 2);
        drain(&mut session, &mut engine);
        engine.store.checkpoint().unwrap();
        if let Some(boot) = boot {
            engine.store.note(|sb| sb.boot_id = boot).unwrap();
        }
        // Once around the ring.
        create_many(&session, &engine, 2 + MANY);
        let head = session.memory.lane(3).unwrap().head.load(Relaxed);
        assert!(head > 2 * LANE_LEN);
        drop((session, engine));
        let mut engine = used_on(&path, medium);
        let lost = (2..2 + 2 * MANY).find(|ino| !exists(&engine, *ino));
        assert_eq!(lost, None, "{medium:?}");
        engine.close().unwrap();
        assert_clean(&path);
    }
}

#[test]
fn a_journal_that_was_cut_to_short_lanes_is_refused() {
    let dir = TempDir::new("cut");
    let path = pool_with_long_lanes(&dir);
    set_journal_len(&path, LANES as u64 * LANE_LEN);
    let said = Files::open(&path).err().unwrap().to_string();
    assert!(said.contains("journal-0.seg"), "{said}");
}
