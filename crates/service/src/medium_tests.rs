//! A pool whose files were moved to another kind of file system.

use crate::base::files::{self, CreateOptions, Files};
use crate::journal::engine::Engine;
use crate::recovery::recover::recover;
use crate::session::Session;
use crate::testing::TempDir;
use crate::tests::{Client, assert_clean, exists, opened, pool};
use holdfast_pmem::Medium;
use holdfast_pool::format::superblock::Consistency;
use std::path::Path;

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
