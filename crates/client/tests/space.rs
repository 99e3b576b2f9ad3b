//! Free blocks: what overwriting leaves behind is used again, long runs stay long, and a full
//! pool gives out its last block.

mod common;

use common::{Fixture, ROOT, User};
use holdfast_client::kv::{Durability, Keyspace};
use holdfast_client::{Error, drain, space};
use holdfast_pool::layout::BlockAddr;
use holdfast_pool::session::CACHED_WHOLE;
use holdfast_pool::session::free_table::{pack, unpack};
use holdfast_pool::space::Run;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const BLOCK: u64 = 4096;
const V: Durability = Durability::Volatile;

fn put(user: &User, k: Keyspace, key: u64, value: &[u8]) -> Result<(), Error> {
    user.kv_put(k, format!("key-{key}").as_bytes(), value, V)
}

/// Blocks of the data segment that have memory behind them.
fn in_memory(fixture: &Fixture) -> u64 {
    let meta = std::fs::metadata(fixture.dir.join("data-0.seg")).unwrap();
    meta.blocks() * 512 / BLOCK
}

/// The service gives back what is free little by little.
fn wait_until_in_memory(fixture: &Fixture, blocks: u64) {
    let until = Instant::now() + Duration::from_secs(20);
    while in_memory(fixture) > blocks {
        assert!(Instant::now() < until, "{} blocks", in_memory(fixture));
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Waits until the service has applied everything and handed out what that made free.
fn settle(user: &User) {
    let s = user.session();
    let last = s.header().next_seq.load(Ordering::Acquire) - 1;
    drain::wait_applied(s, last).unwrap();
    std::thread::sleep(Duration::from_millis(500));
}

/// `n` values of one block each, and then overwritten `times` times at random.
fn overwrite(user: &User, k: Keyspace, n: u64, times: u64) {
    let mut state = 88_172_645_463_325_252;
    let value = [7; BLOCK as usize];
    for key in 0..n {
        put(user, k, key, &value).unwrap();
    }
    for _ in 0..times {
        put(user, k, random(&mut state) % n, &value).unwrap();
    }
    settle(user);
}

#[test]
fn values_of_many_lengths_leave_no_remainders() {
    const KEYS: u64 = 100;
    let fixture = Fixture::new(256 << 20);
    let user = fixture.user();
    let k = user.keyspace(&ROOT, b"ks", true).unwrap();
    let value = |key: u64, turn: u64| {
        let mut state = key * 1_000_003 + turn + 1;
        let len = random(&mut state) % (24 * BLOCK) + 1;
        vec![(key + turn) as u8; len as usize]
    };
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (user, value) = (&user, &value);
            scope.spawn(move || {
                for n in 0..10_000 {
                    let (key, turn) = (2 * (n % KEYS) + thread, n / KEYS);
                    put(user, k, key, &value(key, turn)).unwrap();
                }
            });
        }
    });
    settle(&user);
    // What was left of extents is free again with what was around it, so that whole chunks are.
    // What docs/limits.md promises: how much was in use at a time depends on the service.
    wait_until_in_memory(&fixture, 2500 * 3 / 2 + 16 * 1024);
    let table = user.session().free_table().unwrap();
    let extents: u64 = table.classes.iter().map(|ring| ring.count()).sum();
    assert!(extents < 1024, "{extents} free extents");
    let mut out = vec![0; 25 * BLOCK as usize];
    for key in 0..2 * KEYS {
        let wanted = value(key, 99);
        let len = user.kv_get(k, format!("key-{key}").as_bytes(), &mut out);
        assert_eq!(len.unwrap(), Some(wanted.len() as u64));
        assert!(out[..wanted.len()] == wanted, "key {key}");
    }
}

#[test]
fn overwriting_takes_little_more_memory_than_the_values() {
    const N: u64 = 16 * 1024;
    let fixture = Fixture::new(1 << 30);
    let user = fixture.user();
    let k = user.keyspace(&ROOT, b"ks", true).unwrap();
    overwrite(&user, k, N, 8 * N);
    let there = in_memory(&fixture);
    // Nine times as many blocks were written.
    assert!(there < 4 * N, "{there} blocks for {N} values");
}

/// Many writers at once wait for what comes back; neither they nor who wants many blocks meanwhile
/// are told that the pool is full.
#[test]
fn nobody_goes_without_while_others_overwrite() {
    const N: u64 = 4 * 1024;
    let fixture = Fixture::new(512 << 20);
    let user = fixture.user();
    let k = user.keyspace(&ROOT, b"ks", true).unwrap();
    overwrite(&user, k, N, N);
    let writers = 4;
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let user = &user;
            scope.spawn(move || {
                let mut state = 77 + writer;
                for _ in 0..10 * N {
                    put(user, k, random(&mut state) % N, &[3; BLOCK as usize]).unwrap();
                }
            });
        }
        for _ in 0..100 {
            let (block, len) = space::alloc(user.session(), 512, None).unwrap();
            std::thread::sleep(Duration::from_millis(2));
            space::give_back(user.session(), block, len);
        }
    });
    settle(&user);
    let there = in_memory(&fixture);
    assert!(there < 64 * 1024, "{there} blocks for {N} values");
}

#[test]
fn many_blocks_in_a_row_are_still_found_after_that() {
    let fixture = Fixture::new(256 << 20);
    let user = fixture.user();
    let k = user.keyspace(&ROOT, b"ks", true).unwrap();
    overwrite(&user, k, 4096, 20_000);
    for want in [512, 300, 512] {
        let (block, len) = space::alloc(user.session(), want, None).unwrap();
        assert_eq!(len, want);
        space::give_back(user.session(), block, len);
    }
}

#[test]
fn few_blocks_come_from_what_was_freed() {
    let fixture = Fixture::new(256 << 20);
    let user = fixture.user();
    let k = user.keyspace(&ROOT, b"ks", true).unwrap();
    overwrite(&user, k, 4096, 2000);
    let before = user.statfs().unwrap().free;
    let mut taken = BTreeSet::new();
    let (mut alone, mut seen) = (0, BlockAddr::default());
    for _ in 0..500 {
        let (block, len) = space::alloc(user.session(), 1, None).unwrap();
        assert!(len == 1 && taken.insert(block), "block {block:?} twice");
        alone += u64::from(block != seen + 1);
        seen = block;
    }
    assert!(alone > 400, "{alone} fragments");
    assert!(user.statfs().unwrap().free <= before - 500);
    for block in taken {
        space::give_back(user.session(), block, 1);
    }
}

/// Fills the pool with values of one block; how many there were room for.
fn fill(user: &User, k: Keyspace, from: u64) -> u64 {
    let value = [9; BLOCK as usize];
    let full = (from..).find(|n| put(user, k, *n, &value) == Err(Error::NoSpace));
    full.unwrap() - from
}

#[test]
fn a_full_pool_gives_out_what_lies_scattered() {
    let mut fixture = Fixture::new(32 << 20);
    let (all, freed) = {
        let user = fixture.user();
        let k = user.keyspace(&ROOT, b"ks", true).unwrap();
        let all = fill(&user, k, 0);
        assert!(all > 7 * 1024, "{all} values in 8192 blocks");
        let freed = (0..all).step_by(3).count() as u64;
        for key in (0..all).step_by(3) {
            user.kv_erase(k, format!("key-{key}").as_bytes(), V)
                .unwrap();
        }
        settle(&user);
        let again = fill(&user, k, all);
        assert!(again * 10 > freed * 9, "{again} of {freed} blocks");
        for key in (1..all).step_by(3) {
            user.kv_erase(k, format!("key-{key}").as_bytes(), V)
                .unwrap();
        }
        settle(&user);
        // One value of many blocks in pieces, as far as that goes; then what is left.
        let pieces = [1; 20 * BLOCK as usize];
        let large = (0..).find(|n| {
            let key = format!("large-{n}");
            user.kv_put(k, key.as_bytes(), &pieces, V).is_err()
        });
        assert!(large.unwrap() > 50, "{large:?} values of 20 blocks");
        holdfast_client::slots::exit(user.session(), true);
        (all, freed)
    };
    // A new session knows nothing of what is resident.
    fixture.stop();
    fixture.start();
    let user = fixture.user();
    let k = user.keyspace(&ROOT, b"ks", true).unwrap();
    for key in (2..all).step_by(3) {
        user.kv_erase(k, format!("key-{key}").as_bytes(), V)
            .unwrap();
    }
    settle(&user);
    let again = fill(&user, k, 4 * all);
    assert!(again * 10 > freed * 9, "{again} of {freed} blocks");
}

/// What was freed a moment ago comes before the whole extent that the process has begun to use: its
/// memory is there, and mapped.
#[test]
fn what_was_freed_comes_before_a_whole_extent_that_is_cached() {
    let fixture = Fixture::new(64 << 20);
    let user = fixture.user();
    let k = user.keyspace(&ROOT, b"ks", true).unwrap();
    for key in 0..600 {
        put(&user, k, key, &[7; BLOCK as usize]).unwrap();
    }
    for key in 0..100 {
        user.kv_erase(k, format!("key-{key}").as_bytes(), V)
            .unwrap();
    }
    settle(&user);
    let s = user.session();
    let whole = || s.slot().cached[CACHED_WHOLE].load(Ordering::Relaxed);
    let before = unpack(whole());
    assert!(before.len > 100, "{before:?}");
    for _ in 0..100 {
        let (block, _) = space::alloc(s, 1, None).unwrap();
        assert!(block.word() < before.start, "{block:?} is in {before:?}");
    }
    assert_eq!(unpack(whole()), before);
    // But a file that ends where it begins goes on there.
    let end = BlockAddr::from_word(before.start);
    assert_eq!(space::alloc(s, 8, Some(end)).unwrap(), (end, 8));
}

/// As long as there is anything, nobody is told that the pool is full, even if it is shorter than
/// what is wanted and of the same class.
#[test]
fn the_longest_extent_may_be_of_the_class_that_is_wanted() {
    let fixture = Fixture::new(32 << 20);
    let user = fixture.user();
    let s = user.session();
    let (block, _) = space::alloc(s, 512, None).unwrap();
    while space::alloc(s, 1, None).is_ok() {}
    let extent = Run::of_data(block + 6, 2);
    assert!(s.free_table().unwrap().given_back.give_back(extent));
    assert_eq!(space::alloc(s, 3, None).unwrap(), (block + 6, 2));
    assert!(matches!(space::alloc(s, 3, None), Err(Error::NoSpace)));
}

/// Nobody is told that the pool is full while a process has an extent cached that it does not use.
#[test]
fn a_full_pool_gives_out_what_others_have_cached() {
    let fixture = Fixture::new(32 << 20);
    let user = fixture.user();
    let s = user.session();
    let k = user.keyspace(&ROOT, b"ks", true).unwrap();
    // As if there were another process.
    let (block, len) = space::alloc(s, 512, None).unwrap();
    let [short, whole] = &s.slot_at(50).unwrap().cached;
    assert_eq!(len, 512);
    short.store(pack(Run::of_data(block, 100)), Ordering::Relaxed);
    whole.store(pack(Run::of_data(block + 100, 412)), Ordering::Relaxed);
    s.header().slots_used.fetch_max(60, Ordering::Relaxed);
    let all = fill(&user, k, 0);
    assert!(all > 7 * 1024, "{all} values in 8192 blocks");
    let cached = [short, whole].map(|word| word.load(Ordering::Relaxed));
    assert_eq!(cached, [0, 0]);
    let table = s.free_table().unwrap();
    assert_eq!((table.blocks(), user.statfs().unwrap().free), (0, 0));
}

/// Small values are in the trees, which may take the place of data; both together have a limit.
#[test]
fn small_values_may_fill_the_pool() {
    const SIZE: u64 = 256 << 20;
    let fixture = Fixture::new(SIZE);
    let user = fixture.user();
    let k = user.keyspace(&ROOT, b"ks", true).unwrap();
    let free = user.statfs().unwrap().free;
    let key = |n: u64| format!("small-{n:08}").into_bytes();
    let small = |n: u64| user.kv_put(k, &key(n), &[5; 1000], V);
    let n = (0..).find(|n| small(*n) == Err(Error::NoSpace)).unwrap();
    assert!(n * 1000 > 100 << 20, "{n} values in {SIZE} bytes");
    settle(&user);
    let left = user.statfs().unwrap().free;
    assert!(left < free * 3 / 4, "{left} of {free} blocks are free");
    let large = fill(&user, k, 0);
    let all = n * 1000 + large * BLOCK;
    assert!(
        all < SIZE + SIZE / 2,
        "{n} small values and {large} of a block"
    );
    for n in 0..n {
        user.kv_erase(k, &key(n), V).unwrap();
    }
    settle(&user);
    assert!(fill(&user, k, large) > free / 4);
}

/// Memory under what was removed goes back, also if parts of it were handed out before.
#[test]
fn what_is_empty_goes_back_to_the_host() {
    const N: u64 = 8 * 1024;
    let fixture = Fixture::new(256 << 20);
    let user = fixture.user();
    let k = user.keyspace(&ROOT, b"ks", true).unwrap();
    overwrite(&user, k, N, N);
    for key in 0..N {
        user.kv_erase(k, format!("key-{key}").as_bytes(), V)
            .unwrap();
    }
    settle(&user);
    wait_until_in_memory(&fixture, N / 4);
}
