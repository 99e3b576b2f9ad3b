//! Records of very many changes: applied in many turns, between which others are served; invisible
//! before the last turn, and without any effect if they are refused.

use crate::idle_tests::write;
use crate::journal::engine::Engine;
use crate::session::Session;
use crate::session::drain::Turn;
use crate::testing::TempDir;
use crate::tests::{Client, assert_clean, create_as, drain, exists, opened, pool_of, take_whole};
use holdfast_pool::checksum::crc32c;
use holdfast_pool::format::PAGE_LEN;
use holdfast_pool::journal::{Change, Op, Record};
use holdfast_pool::layout::value::{HEAD, InBlocks, TreeKey, ValueRun};
use holdfast_pool::layout::{BlockAddr, VALUES};
use holdfast_pool::session::WHOLE;
use holdfast_pool::space::Run;
use std::path::Path;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

const KEYSPACE: u64 = 5000;
const KEYS: u64 = 90_000;
const MIB: u64 = 1 << 20;
/// What a turn may take of the processor. One that applied the whole record would take several
/// times as long.
const TURN_MAX: Duration = Duration::from_millis(100);

fn key(i: u64) -> [u8; 8] {
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn has(engine: &Engine, i: u64) -> bool {
    let key = TreeKey::new(KEYSPACE, &key(i));
    let mut value = [0; HEAD + 16];
    let found = engine
        .store
        .pool
        .reader()
        .get(VALUES, key.as_slice(), &mut value);
    found.unwrap() == Some(HEAD + 16) && value[HEAD..] == [7; 16]
}

fn puts(keys: u64, value: &[u8]) -> Vec<u8> {
    puts_behind(keys, value, &[])
}

fn puts_behind(keys: u64, value: &[u8], before: &[u8]) -> Vec<u8> {
    let mut ops = before.to_vec();
    for i in 0..keys {
        let op = Op {
            keyspace: KEYSPACE,
            key: &key(i),
            change: Change::Put(value),
        };
        op.push(&mut ops);
    }
    ops.split_off(before.len())
}

/// A session with a keyspace.
fn begin(path: &Path) -> (Engine, Session) {
    let mut engine = opened(path);
    let mut session = Session::create(&mut engine).unwrap();
    write(
        &mut session,
        &mut engine,
        &create_as(0o40755, KEYSPACE, b"keys"),
    );
    let (ino, time) = (KEYSPACE, 3);
    write(&mut session, &mut engine, &Record::Keyspace { ino, time });
    (engine, session)
}

/// Puts the changes into blocks that were granted and writes a record of them; its number.
fn spill(session: &mut Session, engine: &mut Engine, ops: &[u8], sum: u32) -> u64 {
    let len = ops.len() as u64;
    let need = len.div_ceil(PAGE_LEN);
    let left = |session: &Session| session.memory.free_table().classes[WHOLE].blocks();
    for _ in 0..100 {
        let wanted = &session.memory.header().blocks_wanted;
        wanted.store(if left(session) < need { need as u32 } else { 0 }, Relaxed);
        session.turn(engine);
    }
    let mut blocks = InBlocks::new(len);
    let mut at = 0;
    while at < ops.len() {
        let Run { start: block, len } = take_whole(session).unwrap();
        let part = &ops[at..ops.len().min(at + (len * PAGE_LEN) as usize)];
        engine.store.data.write_nt(block * PAGE_LEN, part).unwrap();
        at += part.len();
        let n = (part.len() as u64).div_ceil(PAGE_LEN);
        let (block, len, epoch) = (BlockAddr::new(0, block), n as u32, 0);
        assert!(n == 0 || blocks.push(ValueRun { block, len, epoch }));
    }
    let mut runs = [0; 1024];
    let n = blocks.encode(&mut runs);
    let (time, runs) = (9, &runs[..n]);
    let record = Record::Spilled {
        time,
        len,
        sum,
        runs,
    };
    Client { session, engine }.write(0, &record)
}

/// What this thread has used of the processor: others do not count.
fn used() -> Duration {
    let clock = rustix::time::ClockId::ThreadCPUTime;
    Duration::try_from(rustix::time::clock_gettime(clock)).unwrap()
}

/// What turns have taken.
#[derive(Default)]
struct Taken {
    turns: u32,
    longest: Duration,
    all: Duration,
}

impl Taken {
    fn turn(&mut self, session: &mut Session, engine: &mut Engine) -> Turn {
        let begun = used();
        let turn = session.turn(engine);
        let took = used() - begun;
        self.turns += 1;
        self.longest = self.longest.max(took);
        self.all += took;
        turn
    }
}

#[test]
fn a_batch_of_very_many_changes_takes_many_turns() {
    let dir = TempDir::new("spill");
    let path = pool_of(&dir, 256 * MIB);
    let (mut engine, mut session) = begin(&path);
    let ops = puts(KEYS, &[7; 16]);
    let seq = spill(&mut session, &mut engine, &ops, crc32c(&ops));
    let client = Client {
        session: &session,
        engine: &engine,
    };
    let later = client.create(1, 20_000, b"later");
    let (mut taken, mut granted) = (Taken::default(), 0);
    while engine.journal.applied_seq() < seq {
        let turn = taken.turn(&mut session, &mut engine);
        assert!(turn.more && !session.memory.is_poisoned() && taken.turns < 10_000);
        let applied = engine.journal.applied_seq() >= seq;
        let seen = (0..KEYS).step_by(1009).filter(|i| has(&engine, *i)).count();
        assert_eq!(
            seen,
            if applied {
                KEYS.div_ceil(1009) as usize
            } else {
                0
            }
        );
        // Whoever writes data goes on: blocks are handed out meanwhile.
        granted += std::iter::from_fn(|| take_whole(&session)).count() as u64 * 512;
        session.memory.header().blocks_wanted.store(512, Relaxed);
        assert_eq!(
            exists(&engine, 20_000),
            engine.journal.applied_seq() >= later
        );
    }
    // How many turns there are depends on the machine, how long they are does not.
    let Taken {
        turns,
        longest,
        all,
    } = taken;
    assert!(
        turns > 2 && all / turns < TURN_MAX / 3,
        "{turns} in {all:?}"
    );
    assert!(longest < TURN_MAX, "a turn of {longest:?}");
    assert!(granted >= 512 * u64::from(turns - 2), "{granted} blocks");
    drain(&mut session, &mut engine);
    assert!((0..KEYS).all(|i| has(&engine, i)) && exists(&engine, 20_000));
    session.end(&mut engine).unwrap();
    drop(engine);
    assert_clean(&path);
}

/// They count as changes: leaves that they left half empty are laid out anew in the next pause.
#[test]
fn what_many_large_batches_split_is_laid_out_anew() {
    const EACH: u64 = 1500;
    let dir = TempDir::new("spill-compaction");
    let path = pool_of(&dir, 256 * MIB);
    let (mut engine, mut session) = begin(&path);
    let base = engine.store.pool.meta_space().count_used();
    for n in 0..4 {
        let mut ops = Vec::new();
        for i in n * EACH..(n + 1) * EACH {
            let op = Op {
                keyspace: KEYSPACE,
                key: &key(i),
                change: Change::Put(&[n as u8; 1000]),
            };
            op.push(&mut ops);
        }
        spill(&mut session, &mut engine, &ops, crc32c(&ops));
        drain(&mut session, &mut engine);
    }
    let pages = |engine: &mut Engine| {
        engine.store.pool.reclaim().unwrap();
        engine.store.pool.meta_space().count_used() - base
    };
    let before = pages(&mut engine);
    while session.rest(&mut engine, false) {}
    let after = pages(&mut engine);
    // Three values fit a leaf, and halves of a full one have two.
    let enough = 4 * EACH * 3 / 8;
    assert!(
        before > enough && after < enough,
        "{before} pages, {after} then"
    );
    session.end(&mut engine).unwrap();
    drop(engine);
    assert_clean(&path);
}

/// Bytes that changed after the record was written: nothing of it is there.
#[test]
fn a_batch_with_a_wrong_sum_leaves_nothing() {
    let dir = TempDir::new("spill-sum");
    let path = pool_of(&dir, 256 * MIB);
    let (mut engine, mut session) = begin(&path);
    let pages = engine.store.pool.meta_space().count_used();
    let ops = puts(KEYS, &[7; 16]);
    spill(&mut session, &mut engine, &ops, crc32c(&ops) ^ 1);
    drain(&mut session, &mut engine);
    assert!(session.memory.is_poisoned() && !engine.is_dividing());
    assert_eq!(engine.store.pool.meta_space().count_used(), pages);
    session.end(&mut engine).unwrap();
    drop(engine);
    assert_clean(&path);
}

/// What has no room is refused, its writer learns of it, and the session goes on.
#[test]
fn a_batch_that_has_no_room_is_refused() {
    let dir = TempDir::new("spill-room");
    let path = pool_of(&dir, 16 * MIB);
    let (mut engine, mut session) = begin(&path);
    let granted = engine.journal.granted.len();
    let ops = puts(9500, &[7; 1600]);
    let seq = spill(&mut session, &mut engine, &ops, crc32c(&ops));
    drain(&mut session, &mut engine);
    let header = session.memory.header();
    assert_eq!(header.refused_seq.load(Acquire), seq);
    assert!(!session.memory.is_poisoned() && !(0..9500).any(|i| has(&engine, i)));
    assert!(engine.journal.granted.len() >= granted);
    session.end(&mut engine).unwrap();
    drop(engine);
    assert_clean(&path);
}

/// The last change is not valid, after blocks of values have come into use.
#[test]
fn a_batch_that_is_refused_at_its_end_leaves_nothing() {
    let dir = TempDir::new("spill-end");
    let path = pool_of(&dir, 256 * MIB);
    let (mut engine, mut session) = begin(&path);
    let own = take_whole(&session).unwrap().start;
    let mut ops = in_blocks(0, own, 0);
    ops.extend(puts_behind(KEYS, &[7; 16], &ops));
    let foreign = engine.store.pool.data_space().len() - 1;
    ops.extend(in_blocks(1, foreign, ops.len()));
    let used = engine.store.pool.data_space().count_used();
    let pages = engine.store.pool.meta_space().count_used();
    spill(&mut session, &mut engine, &ops, crc32c(&ops));
    drain(&mut session, &mut engine);
    assert!(session.memory.is_poisoned() && !engine.is_dividing());
    assert!(engine.journal.granted.contains(own, 1));
    assert_eq!(engine.store.pool.data_space().count_used(), used);
    assert_eq!(engine.store.pool.meta_space().count_used(), pages);
    session.end(&mut engine).unwrap();
    drop(engine);
    assert_clean(&path);
}

/// A put in blocks, behind `before` bytes of other changes.
fn in_blocks(i: u64, block: u64, before: usize) -> Vec<u8> {
    let (block, len, epoch) = (BlockAddr::new(0, block), 1, 0);
    let mut value = InBlocks::new(3000);
    assert!(value.push(ValueRun { block, len, epoch }));
    let mut runs = [0; 64];
    let n = value.encode(&mut runs);
    let mut ops = vec![0; before];
    let op = Op {
        keyspace: KEYSPACE,
        key: &[i as u8],
        change: Change::PutBlocks(&runs[..n]),
    };
    op.push(&mut ops);
    ops.split_off(before)
}

/// The service dies, or the session is given up, after each number of turns.
#[test]
fn a_batch_is_there_as_a_whole_or_not_at_all() {
    for turns in [0, 1, 4, 8, 16, 24, 40] {
        let dir = TempDir::new("spill-died");
        let path = pool_of(&dir, 256 * MIB);
        let (mut engine, mut session) = begin(&path);
        let ops = puts(KEYS, &[7; 16]);
        spill(&mut session, &mut engine, &ops, crc32c(&ops));
        for _ in 0..turns {
            session.turn(&mut engine);
        }
        drop((session, engine));
        assert_clean(&path);
        let engine = opened(&path);
        assert!((0..KEYS).step_by(1009).all(|i| has(&engine, i)), "{turns}");
        drop(engine);

        let (mut engine, mut session) = begin_again(&path);
        let seq = spill(&mut session, &mut engine, &ops, crc32c(&ops));
        for _ in 0..turns {
            session.turn(&mut engine);
        }
        session.memory.poison(5);
        session.end(&mut engine).unwrap();
        assert!(!engine.is_dividing() && engine.journal.applied_seq() >= seq);
        drop(engine);
        assert_clean(&path);
    }
}

fn begin_again(path: &Path) -> (Engine, Session) {
    let mut engine = opened(path);
    let session = Session::create(&mut engine).unwrap();
    (engine, session)
}
