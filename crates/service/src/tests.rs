//! The service's promises, one case each: a pool in memory, a session, a client that writes records
//! (or anything else) into it, and what is in the trees afterwards.
//!
//! Invariant: every case that ends in an orderly way ends with a clean pool.

use crate::base::files::{self, CreateOptions, Files};
use crate::journal::engine::{AHEAD_MAX, Engine};
use crate::recovery::recover;
use crate::session::{Session, last_writeback};
use crate::testing::TempDir;
use holdfast_pool::directory::LANE_LEN;
use holdfast_pool::format::LANES;
use holdfast_pool::format::superblock::Consistency;
use holdfast_pool::journal::{RECORD_MAX, Record};
use holdfast_pool::layout::{BlockAddr, InodeRecord, ROOT_INO, inode};
use holdfast_pool::session::free_table::unpack;
use holdfast_pool::session::{INODE_ORPHAN, WHOLE};
use holdfast_pool::space::Run;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};

pub(crate) fn pool(dir: &TempDir) -> PathBuf {
    pool_of(dir, 64 << 20)
}

pub(crate) fn pool_of(dir: &TempDir, size: u64) -> PathBuf {
    let path = dir.path().join("pool");
    let options = CreateOptions {
        size: Some(size),
        medium: None,
        consistency: Consistency::Posix,
    };
    files::create(&path, &options).unwrap();
    path
}

/// The independent check finds nothing.
pub(crate) fn assert_clean(path: &Path) {
    let report = crate::check::check(&Files::open_read_only(path).unwrap()).unwrap();
    let damage: Vec<String> = report.damage().map(ToString::to_string).collect();
    assert!(damage.is_empty(), "{damage:?}");
}

pub(crate) fn open(path: &Path) -> Engine {
    Engine::open(Files::open(path).unwrap()).unwrap()
}

pub(crate) fn opened(path: &Path) -> Engine {
    let mut engine = open(path);
    recover::recover(&mut engine).unwrap();
    engine
}

/// A client that does what the protocol says, without caches.
pub(crate) struct Client<'a> {
    pub session: &'a Session,
    pub engine: &'a Engine,
}

impl Client<'_> {
    pub fn take_seq(&self) -> u64 {
        self.session.memory.header().next_seq.fetch_add(1, AcqRel)
    }

    pub fn write_as(&self, lane: usize, seq: u64, record: &Record<'_>) {
        let shared = self.session.memory.lane(lane).unwrap();
        let mut bytes = vec![0; RECORD_MAX];
        let n = record.encode(seq, lane as u16).copy_to(&mut bytes).unwrap() as u64;
        let lane_len = self.engine.journal.lane_len;
        let mut head = shared.head.load(Relaxed);
        if head % lane_len + n > lane_len {
            head = head - head % lane_len + lane_len;
        }
        let at = lane as u64 * lane_len + head % lane_len;
        self.engine
            .journal
            .region
            .write_nt(at, &bytes[..n as usize])
            .unwrap();
        self.engine.journal.region.fence();
        shared.head.store(head + n, Release);
    }

    pub fn write(&self, lane: usize, record: &Record<'_>) -> u64 {
        let seq = self.take_seq();
        self.write_as(lane, seq, record);
        seq
    }

    pub fn create(&self, lane: usize, ino: u64, name: &[u8]) -> u64 {
        self.write(lane, &create(ino, name))
    }
}

fn create(ino: u64, name: &[u8]) -> Record<'_> {
    create_as(0o100644, ino, name)
}

pub(crate) fn create_as(mode: u32, ino: u64, name: &[u8]) -> Record<'_> {
    Record::Create {
        parent: ROOT_INO,
        ino,
        mode,
        uid: 0,
        gid: 0,
        flags: 0,
        rdev: 0,
        time: 5,
        name,
        target: b"",
    }
}

pub(crate) fn exists(engine: &Engine, ino: u64) -> bool {
    let mut buf = [0; inode::ENCODED_MAX];
    let found: Option<InodeRecord<'_>> =
        inode::find(&engine.store.pool.reader(), ino, &mut buf).unwrap();
    found.is_some()
}

fn size_of(engine: &Engine, ino: u64) -> u64 {
    let mut buf = [0; inode::ENCODED_MAX];
    inode::find(&engine.store.pool.reader(), ino, &mut buf)
        .unwrap()
        .unwrap()
        .size
}

/// Turns until nothing is left to do.
pub(crate) fn drain(session: &mut Session, engine: &mut Engine) -> usize {
    let mut applied = 0;
    for _ in 0..10_000 {
        let turn = session.turn(engine);
        applied += turn.applied;
        if !turn.more && !turn.waiting && turn.applied == 0 {
            return applied;
        }
    }
    panic!("the drain never comes to an end");
}

#[test]
fn records_of_all_lanes_reach_the_trees() {
    let dir = TempDir::new("lanes");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let mut session = Session::create(&mut engine).unwrap();
    let client = Client {
        session: &session,
        engine: &engine,
    };
    let names: Vec<String> = (0..10_000).map(|i| format!("file-{i}")).collect();
    let mut last = 0;
    for (i, name) in names.iter().enumerate() {
        last = client.create(i * 7 % LANES, 2 + i as u64, name.as_bytes());
    }
    assert_eq!(drain(&mut session, &mut engine), names.len());
    let header = session.memory.header();
    assert_eq!(header.applied_seq.load(Relaxed), last);
    assert_eq!(header.objects.load(Relaxed), 1 + names.len() as u64);
    assert!((0..names.len()).all(|i| exists(&engine, 2 + i as u64)));
    session.end(&mut engine).unwrap();
    drop(engine);
    let engine = opened(&path);
    assert!(engine.store.pool.superblock().next_ino >= 2 + names.len() as u64);
    assert!(exists(&engine, 2) && exists(&engine, 10_001) && !exists(&engine, 10_002));
}

#[test]
fn a_session_that_ends_far_behind_loses_nothing() {
    let dir = TempDir::new("behind");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let session = Session::create(&mut engine).unwrap();
    let client = Client {
        session: &session,
        engine: &engine,
    };
    // One lane holds more than is read at once, and the next numbers are in another lane.
    let many = 3 * AHEAD_MAX / 2;
    for i in 0..many {
        client.create(3, 2 + i as u64, format!("early-{i}").as_bytes());
    }
    client.write(0, &unlink(2, b"early-0"));
    let last = 2 + many as u64;
    client.write(
        0,
        &Record::Rename {
            old_parent: ROOT_INO,
            new_parent: ROOT_INO,
            ino: last - 1,
            replaced: 0,
            flags: 0,
            time: 6,
            old_name: format!("early-{}", many - 1).as_bytes(),
            new_name: b"late",
        },
    );
    session.end(&mut engine).unwrap();
    drop(engine);
    let engine = opened(&path);
    assert!(!exists(&engine, 2));
    assert!((3..last).all(|ino| exists(&engine, ino)));
    drop(engine);
    assert_clean(&path);
}

pub(crate) fn unlink(ino: u64, name: &[u8]) -> Record<'_> {
    Record::Unlink {
        parent: ROOT_INO,
        ino,
        flags: 0,
        time: 6,
        name,
    }
}

#[test]
fn a_journal_is_replayed_after_the_service_died() {
    let dir = TempDir::new("replay");
    let path = pool(&dir);
    {
        let mut engine = opened(&path);
        let mut session = Session::create(&mut engine).unwrap();
        let client = Client {
            session: &session,
            engine: &engine,
        };
        client.create(3, 2, b"applied");
        drain(&mut session, &mut engine);
        let client = Client {
            session: &session,
            engine: &engine,
        };
        client.create(3, 3, b"journaled");
        let void = client.take_seq();
        client.create(5, 4, b"behind a void number");
        assert!(void > 0 && !exists(&engine, 3));
        // Dies here: nothing is closed.
    }
    let mut engine = open(&path);
    let recovered = recover::recover(&mut engine).unwrap();
    assert_eq!((recovered.records, recovered.rejected), (2, None));
    assert!(exists(&engine, 2) && exists(&engine, 3) && exists(&engine, 4));
    let again = recover::recover(&mut engine).unwrap();
    assert_eq!(again.records, 0);
    engine.close().unwrap();
    assert_clean(&path);
}

/// With work for each block that a record names, this would take minutes.
#[test]
fn a_record_that_names_more_blocks_than_there_are_does_not_hold_recovery_up() {
    let dir = TempDir::new("huge-extent");
    let path = pool_of(&dir, 4 << 30);
    {
        let mut engine = opened(&path);
        let session = Session::create(&mut engine).unwrap();
        let client = Client {
            session: &session,
            engine: &engine,
        };
        client.create(0, 2, b"before");
        for block in [0, 1, 77, 1 << 20, u64::MAX - 5].map(BlockAddr::from_word) {
            let record = Record::Extent {
                ino: 2,
                file_block: 0,
                block,
                len: u32::MAX,
                size: 0,
                mtime: 0,
                ctime: 0,
                flags: 0,
            };
            client.write(1, &record);
        }
        // Dies here.
    }
    let mut engine = open(&path);
    let recovered = recover::recover(&mut engine).unwrap();
    assert_eq!(recovered.records, 1);
    assert!(recovered.rejected.is_some() && exists(&engine, 2));
    engine.close().unwrap();
    assert_clean(&path);
}

#[test]
fn a_number_in_flight_holds_back_what_follows() {
    let dir = TempDir::new("flight");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let mut session = Session::create(&mut engine).unwrap();
    let lane = session.memory.lane(1).unwrap();
    // Our own process holds the lane: it lives.
    session.memory.pretend_to_be(0);
    lane.lock.store(1, Relaxed);
    let client = Client {
        session: &session,
        engine: &engine,
    };
    let flying = client.take_seq();
    client.create(2, 3, b"later");
    let memory = session.memory.clone();
    assert_eq!(session.turn(&mut engine).applied, 0);
    assert!(session.turn(&mut engine).waiting && !exists(&engine, 3));
    let client = Client {
        session: &session,
        engine: &engine,
    };
    client.write_as(1, flying, &create(2, b"earlier"));
    memory.lane(1).unwrap().lock.store(0, Relaxed);
    assert_eq!(drain(&mut session, &mut engine), 2);
    assert!(exists(&engine, 2) && exists(&engine, 3));
    assert!(!memory.is_poisoned());
}

#[test]
fn a_stopped_writer_is_left_behind_and_may_come_late() {
    let dir = TempDir::new("stopped");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let mut session = Session::create(&mut engine).unwrap();
    session.memory.pretend_to_be(0);
    session.memory.lane(1).unwrap().lock.store(1, Relaxed);
    let client = Client {
        session: &session,
        engine: &engine,
    };
    let stopped = client.take_seq();
    client.create(2, 3, b"goes on");
    let begun = std::time::Instant::now();
    while !exists(&engine, 3) {
        session.turn(&mut engine);
        assert!(begun.elapsed().as_secs() < 5);
    }
    let client = Client {
        session: &session,
        engine: &engine,
    };
    client.write_as(1, stopped, &create(2, b"late"));
    session.memory.lane(1).unwrap().lock.store(0, Relaxed);
    assert_eq!(drain(&mut session, &mut engine), 1);
    assert!(exists(&engine, 2) && !session.memory.is_poisoned());
}

#[test]
fn a_dead_writer_holds_nobody_up() {
    let dir = TempDir::new("dead");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let mut session = Session::create(&mut engine).unwrap();
    session.memory.lane(1).unwrap().lock.store(1, Relaxed);
    let client = Client {
        session: &session,
        engine: &engine,
    };
    client.take_seq();
    client.create(2, 3, b"goes on");
    let begun = std::time::Instant::now();
    drain(&mut session, &mut engine);
    assert!(exists(&engine, 3) && begun.elapsed().as_millis() < 500);
}

#[test]
fn a_record_that_is_not_valid_ends_the_session_but_not_the_pool() {
    let dir = TempDir::new("reject");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let mut session = Session::create(&mut engine).unwrap();
    let client = Client {
        session: &session,
        engine: &engine,
    };
    client.create(0, 2, b"good");
    // Blocks that nobody granted.
    client.write(
        0,
        &Record::Extent {
            ino: 2,
            file_block: 0,
            block: BlockAddr::new(0, 9_999),
            len: 1,
            size: 4096,
            mtime: 1,
            ctime: 1,
            flags: 0,
        },
    );
    client.create(0, 3, b"after");
    drain(&mut session, &mut engine);
    assert!(session.memory.is_poisoned());
    assert!(exists(&engine, 2) && !exists(&engine, 3));
    session.end(&mut engine).unwrap();
    let mut session = Session::create(&mut engine).unwrap();
    let client = Client {
        session: &session,
        engine: &engine,
    };
    client.create(0, 3, b"in a new session");
    drain(&mut session, &mut engine);
    assert!(exists(&engine, 3) && !session.memory.is_poisoned());
    session.end(&mut engine).unwrap();
    assert_clean(&path);
}

#[test]
fn free_extents_can_be_used_and_come_back() {
    let dir = TempDir::new("grants");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let free = engine.store.pool.data_space().count_free();
    let mut session = Session::create(&mut engine).unwrap();
    drain(&mut session, &mut engine);
    let whole = take_whole(&session).unwrap();
    let (block, len) = (whole.start, whole.len);
    assert!(len > 0 && engine.journal.granted.contains(block, len));
    let client = Client {
        session: &session,
        engine: &engine,
    };
    client.create(0, 2, b"file");
    client.write(
        1,
        &Record::Extent {
            ino: 2,
            file_block: 0,
            block: BlockAddr::new(0, block),
            len: 4,
            size: 16_384,
            mtime: 1,
            ctime: 1,
            flags: 0,
        },
    );
    drain(&mut session, &mut engine);
    assert!(!session.memory.is_poisoned() && size_of(&engine, 2) == 16_384);
    session.end(&mut engine).unwrap();
    assert_eq!(engine.store.pool.data_space().count_free(), free - 4);
}

#[test]
fn what_was_not_synced_is_written_back_at_the_end() {
    let dir = TempDir::new("last-writeback");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let mut session = Session::create(&mut engine).unwrap();
    drain(&mut session, &mut engine);
    let block = take_whole(&session).unwrap().start;
    let client = Client {
        session: &session,
        engine: &engine,
    };
    client.create(0, 2, b"lazy");
    client.create(0, 3, b"liar");
    client.create(0, 4, b"kept");
    client.create(0, 5, b"removed");
    // Who wanted to remove one died before it did.
    let removing = 3 | INODE_ORPHAN;
    for (index, (ino, block, state, nlink)) in [
        (2, block, 3, 1),
        (3, 1 << 40, 3, 1),
        (4, block + 2, removing, 1),
        (5, block + 4, removing, 0),
        // Its last record says so, which its process did not publish.
        (6, block + 6, removing, 1),
    ]
    .into_iter()
    .enumerate()
    {
        let entry = session.memory.inode(index).unwrap();
        entry.ino.store(ino, Relaxed);
        entry.state.store(state, Relaxed);
        entry.nlink.store(nlink, Relaxed);
        entry.mode.store(0o100644, Relaxed);
        entry.size.store(5000, Relaxed);
        entry.pending_block.store(block, Relaxed);
        entry.pending_len.store(2, Relaxed);
    }
    session.memory.header().inode_used.store(u32::MAX, Relaxed);
    // A lane that says it is busy nowhere.
    let lane = session.memory.lane(7).unwrap();
    lane.busy_at.store(u64::MAX, Relaxed);
    lane.busy_seq.store(u64::MAX, Relaxed);
    drain(&mut session, &mut engine);
    // The blocks of the second are none that could be given.
    let written = last_writeback::write_back(&mut engine, &session.memory).unwrap();
    assert_eq!(written, (5, 1));
    session.end(&mut engine).unwrap();
    let sizes = [2, 3, 4, 5].map(|ino| size_of(&engine, ino));
    assert_eq!(sizes, [5000, 5000, 5000, 0]);
    let is_used = |at| engine.store.pool.data_space().is_used(Run::new(at, 2));
    assert_eq!([0, 2, 4].map(|at| is_used(block + at)), [true, true, false]);
}

#[test]
fn the_last_record_of_a_dead_process_is_not_undone_by_what_its_memory_says() {
    let dir = TempDir::new("unpublished");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let session = Session::create(&mut engine).unwrap();
    let client = Client {
        session: &session,
        engine: &engine,
    };
    let size = |size| Record::Size {
        ino: 2,
        size,
        atime: 1,
        mtime: 1,
        ctime: 1,
    };
    client.create(4, 2, b"cut");
    let known = client.write(4, &size(9000));
    let lane = session.memory.lane(4).unwrap();
    let at = lane.head.load(Relaxed);
    let seq = client.write(
        4,
        &Record::Truncate {
            ino: 2,
            size: 100,
            time: 7,
        },
    );
    // Its writer died before it published the record.
    lane.busy_at.store(at, Relaxed);
    lane.busy_seq.store(seq, Relaxed);
    let entry = session.memory.inode(0).unwrap();
    entry.ino.store(2, Relaxed);
    entry.state.store(3, Relaxed);
    entry.mode.store(0o100644, Relaxed);
    entry.nlink.store(1, Relaxed);
    entry.size.store(9000, Relaxed);
    entry.seq.store(known, Relaxed);
    session.memory.header().inode_used.store(1, Relaxed);
    session.end(&mut engine).unwrap();
    assert_eq!(size_of(&engine, 2), 100);
}

#[test]
fn a_session_is_adopted_with_its_free_extents_and_its_journal() {
    let dir = TempDir::new("adopt");
    let path = pool(&dir);
    let (fd, block) = {
        let mut engine = opened(&path);
        let mut session = Session::create(&mut engine).unwrap();
        drain(&mut session, &mut engine);
        let client = Client {
            session: &session,
            engine: &engine,
        };
        client.create(0, 2, b"before");
        let block = take_whole(&session).unwrap().start;
        (session.memory.fd().try_clone().unwrap(), block)
    };
    let mut engine = open(&path);
    let mut session = Session::adopt(&mut engine, fd).unwrap();
    let client = Client {
        session: &session,
        engine: &engine,
    };
    client.write(
        0,
        &Record::Extent {
            ino: 2,
            file_block: 0,
            block: BlockAddr::new(0, block),
            len: 1,
            size: 10,
            mtime: 1,
            ctime: 1,
            flags: 0,
        },
    );
    assert_eq!(drain(&mut session, &mut engine), 2);
    assert!(!session.memory.is_poisoned());
    assert_eq!(size_of(&engine, 2), 10);
    assert_eq!(session.memory.header().service_generation.load(Relaxed), 2);
}

/// Puts `count` blocks of an extent into file `ino`, one after the other, and frees every other
/// one; the extents of one block that clients find afterwards.
fn fragmented(session: &mut Session, engine: &mut Engine, ino: u64, count: u64) -> Vec<u64> {
    drain(session, engine);
    let block = take_whole(session).unwrap().end() - count;
    let client = Client { session, engine };
    client.create(0, ino, format!("file-{ino}").as_bytes());
    let size = count * 4096;
    let (len, mtime, ctime) = (count as u32, 1, 1);
    client.write(
        0,
        &Record::Extent {
            ino,
            file_block: 0,
            block: BlockAddr::new(0, block),
            len,
            size,
            mtime,
            ctime,
            flags: 0,
        },
    );
    for file_block in (0..count).step_by(2) {
        let client = Client { session, engine };
        let (len, time) = (1, 2);
        client.write(
            0,
            &Record::Punch {
                ino,
                file_block,
                len,
                size,
                time,
            },
        );
        drain(session, engine);
    }
    // What commits freed is held for readers until there were more of them.
    for n in 0..40 {
        let client = Client { session, engine };
        client.create(0, 1000 * ino + n, format!("{ino}-{n}").as_bytes());
        drain(session, engine);
    }
    in_class(session, 0)
}

/// Takes a whole extent, as a client does.
pub(crate) fn take_whole(session: &Session) -> Option<Run> {
    let ring = &session.memory.free_table().classes[WHOLE];
    ring.take(1).map(|(extent, _)| extent)
}

/// First blocks of what clients find in a class.
pub(crate) fn in_class(session: &Session, class: usize) -> Vec<u64> {
    let ring = &session.memory.free_table().classes[class];
    let taken = ring.taken.load(Relaxed);
    let words = (taken..taken + ring.count()).map(|n| &ring.words[n as usize % ring.words.len()]);
    words.map(|word| unpack(word.load(Relaxed)).start).collect()
}

#[test]
fn whole_extents_that_came_back_are_not_kept_from_writers() {
    let dir = TempDir::new("whole");
    let path = pool_of(&dir, 256 << 20);
    let mut engine = opened(&path);
    let mut session = Session::create(&mut engine).unwrap();
    drain(&mut session, &mut engine);
    let came_back = |engine: &mut Engine, whole: u64| {
        let runs: Vec<_> = (0..33)
            .map(|_| engine.store.pool.grant_whole(512))
            .collect();
        for run in runs.into_iter().flatten() {
            let part = Run::new(run.start, whole);
            engine.store.pool.ungrant(part).unwrap();
        }
    };
    let block = take_whole(&session).unwrap().start;
    let client = Client {
        session: &session,
        engine: &engine,
    };
    client.create(0, 2, b"file");
    client.write(0, &extent(2, 0, block));
    client.write(0, &extent(2, 1, block + 1));
    drain(&mut session, &mut engine);
    for (file_block, (whole, kept)) in (0..).zip([(511, 2), (512, 0)]) {
        came_back(&mut engine, whole);
        let client = Client {
            session: &session,
            engine: &engine,
        };
        // As if somebody overwrote.
        let (ino, len, size, time) = (2, 1, 40_960, 4);
        client.write(
            0,
            &Record::Punch {
                ino,
                file_block,
                len,
                size,
                time,
            },
        );
        session.turn(&mut engine);
        let header = session.memory.header();
        assert_eq!(header.whole_kept.load(Relaxed), kept, "{whole} of 512");
    }
}

pub(crate) fn extent(ino: u64, file_block: u64, block: u64) -> Record<'static> {
    Record::Extent {
        ino,
        file_block,
        block: BlockAddr::new(0, block),
        len: 1,
        size: 40_960,
        mtime: 3,
        ctime: 3,
        flags: 0,
    }
}

#[test]
fn freed_blocks_are_handed_out_again_and_taken_over_by_the_next_service() {
    let dir = TempDir::new("short");
    let path = pool(&dir);
    let (fd, second) = {
        let mut engine = opened(&path);
        let mut session = Session::create(&mut engine).unwrap();
        let found = fragmented(&mut session, &mut engine, 2, 40);
        assert_eq!(found.len(), 20, "{found:?}");
        assert!(
            found
                .iter()
                .all(|block| engine.journal.granted.contains(*block, 1))
        );
        // The first one is taken and used.
        session.memory.free_table().classes[0].take(1).unwrap();
        let client = Client {
            session: &session,
            engine: &engine,
        };
        client.write(0, &extent(2, 0, found[0]));
        drain(&mut session, &mut engine);
        assert!(!session.memory.is_poisoned() && !engine.journal.granted.contains(found[0], 1));
        (session.memory.fd().try_clone().unwrap(), found[1])
    };
    let mut engine = open(&path);
    let mut session = Session::adopt(&mut engine, fd).unwrap();
    let left = in_class(&session, 0);
    assert!(left.len() >= 19 && left[0] == second, "{left:?}");
    session.memory.free_table().classes[0].take(1).unwrap();
    let client = Client {
        session: &session,
        engine: &engine,
    };
    client.write(0, &extent(2, 2, second));
    drain(&mut session, &mut engine);
    assert!(!session.memory.is_poisoned());
    // What is in no ring any more is nobody's, also if the counts lie.
    session.memory.free_table().classes[0]
        .taken
        .store(u64::MAX, Relaxed);
    drain(&mut session, &mut engine);
    session.rest(&mut engine, true);
    session.memory.free_table().classes[0].put.store(7, Relaxed);
    session.rest(&mut engine, true);
    session.end(&mut engine).unwrap();
    assert_eq!(engine.journal.granted.iter().count(), 0);
    drop(engine);
    assert_clean(&path);
}

#[test]
fn an_idle_session_keeps_no_part_of_what_is_free_as_a_whole() {
    let dir = TempDir::new("idle");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let mut session = Session::create(&mut engine).unwrap();
    let found = fragmented(&mut session, &mut engine, 2, 512);
    assert_eq!(found.len(), 256);
    let client = Client {
        session: &session,
        engine: &engine,
    };
    client.write(
        0,
        &Record::Truncate {
            ino: 2,
            size: 0,
            time: 4,
        },
    );
    drain(&mut session, &mut engine);
    for n in 0..40 {
        let client = Client {
            session: &session,
            engine: &engine,
        };
        client.create(0, 5000 + n, format!("more-{n}").as_bytes());
        drain(&mut session, &mut engine);
    }
    assert!(in_class(&session, 0).len() >= 256);
    session.rest(&mut engine, true);
    assert_eq!(in_class(&session, 0), []);
    let whole = Run::new(found[0] - found[0] % 512, 512);
    assert!(engine.store.pool.data_space().is_free(whole));
    assert_eq!(in_class(&session, WHOLE).len(), 2);
    session.end(&mut engine).unwrap();
}

#[test]
fn noise_neither_stops_nor_breaks_the_service() {
    let dir = TempDir::new("noise");
    let path = pool(&dir);
    let mut engine = opened(&path);
    for round in 0..5u64 {
        let mut session = Session::create(&mut engine).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let fd = session.memory.fd().try_clone().unwrap();
        let journal = engine
            .store
            .files
            .reopen("journal-0.seg", rustix::fs::OFlags::RDWR)
            .unwrap();
        let stopping = stop.clone();
        let scribbler = std::thread::spawn(move || scribble(&fd, &journal, &stopping, round));
        let begun = std::time::Instant::now();
        while begun.elapsed().as_millis() < 300 {
            session.turn(&mut engine);
        }
        stop.store(true, Relaxed);
        scribbler.join().unwrap();
        session.end(&mut engine).unwrap();
    }
    let mut session = Session::create(&mut engine).unwrap();
    let next = engine.store.pool.superblock().next_ino;
    let client = Client {
        session: &session,
        engine: &engine,
    };
    client.create(0, next, b"still at work");
    drain(&mut session, &mut engine);
    assert!(exists(&engine, next));
    session.end(&mut engine).unwrap();
    drop(engine);
    assert_clean(&path);
}

fn scribble(
    memory: &rustix::fd::OwnedFd,
    journal: &rustix::fd::OwnedFd,
    stop: &AtomicBool,
    seed: u64,
) {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    let mut seq = 1;
    while !stop.load(Relaxed) {
        let noise = random().to_le_bytes();
        // Mostly the head of session memory, where everything that matters is.
        let at = random() % (1 << (12 + random() % 18));
        let _ = rustix::io::pwrite(memory, &noise, at);
        let _ = rustix::io::pwrite(journal, &noise, random() % (LANES as u64 * LANE_LEN));
        // Records with a right checksum and wrong contents, in all lanes.
        let record = Record::Extent {
            ino: random() % 4,
            file_block: random() % 9,
            block: BlockAddr::new((random() % 2) as u8, random() % 20_000),
            len: (random() % 600) as u32,
            size: random(),
            mtime: 0,
            ctime: 0,
            flags: 0,
        };
        seq += random() % 3;
        let lane = random() % LANES as u64;
        let mut bytes = [0; 256];
        let n = record.encode(seq, lane as u16).copy_to(&mut bytes).unwrap();
        let at = lane * LANE_LEN + random() % 64 * 64;
        let _ = rustix::io::pwrite(journal, &bytes[..n], at);
    }
}

#[test]
fn numbers_that_were_taken_and_never_written_keep_nobody_waiting() {
    let dir = TempDir::new("taken");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let mut session = Session::create(&mut engine).unwrap();
    let client = Client {
        session: &session,
        engine: &engine,
    };
    client.create(0, 2, b"file");
    let last = client.take_seq().max(client.take_seq());
    drain(&mut session, &mut engine);
    assert_eq!(session.memory.header().applied_seq.load(Relaxed), last);
    // A counter that a client turned up is not believed.
    session.memory.header().next_seq.store(1 << 40, Relaxed);
    drain(&mut session, &mut engine);
    assert_eq!(session.memory.header().applied_seq.load(Relaxed), last);
}

#[test]
fn a_number_far_ahead_does_not_use_the_numbers_up() {
    let dir = TempDir::new("ahead");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let mut session = Session::create(&mut engine).unwrap();
    let client = Client {
        session: &session,
        engine: &engine,
    };
    client.write_as(0, 1 << 50, &create(2, b"from the future"));
    drain(&mut session, &mut engine);
    assert!(session.memory.is_poisoned() && !exists(&engine, 2));
    session.end(&mut engine).unwrap();
    drop(engine);
    let engine = opened(&path);
    assert!(engine.store.pool.superblock().applied_seq < 1 << 30);
}

#[test]
fn a_session_is_deserted_when_nobody_holds_its_journal() {
    let dir = TempDir::new("deserted");
    let path = pool(&dir);
    let mut engine = opened(&path);
    let session = Session::create(&mut engine).unwrap();
    let handed_out = session.descriptors(0).unwrap();
    assert!(!session.is_deserted(&engine).unwrap());
    let later = session.descriptors(0).unwrap();
    drop(handed_out);
    assert!(!session.is_deserted(&engine).unwrap());
    drop(later);
    assert!(session.is_deserted(&engine).unwrap());
    session.end(&mut engine).unwrap();
}

#[test]
fn pipes_and_sockets_of_the_kernel_do_not_pile_up() {
    let dir = TempDir::new("special");
    let path = pool(&dir);
    let special = path.join(holdfast_pool::directory::SPECIAL);
    std::fs::create_dir(&special).unwrap();
    std::fs::write(special.join("7"), b"").unwrap();
    let outside = dir.path().join("outside");
    std::fs::write(&outside, b"kept").unwrap();
    std::os::unix::fs::symlink(&outside, special.join("8.path")).unwrap();
    drop(crate::service::Service::open(&path, crate::writer::Options::default()).unwrap());
    assert!(!special.exists());
    assert_eq!(std::fs::read(&outside).unwrap(), b"kept");
}
