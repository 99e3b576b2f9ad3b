//! Readers beside a committing writer, each with a mapping of its own.
//!
//! The story: every commit sets all keys to its round and moves some others about, so that pages
//! are reused at once. A reader may see any committed round, but never a mixture in one value,
//! never an older round than it has seen, and in a scan never a hole.

use super::tests::{MIB, params, token};
use crate::pool::Pool;
use crate::tree::Reader;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU64, Ordering};
use holdfast_pmem::{Access, Medium, Region};
use rustix::fd::AsFd;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

const META_LEN: u64 = MIB;
const KEYS: u64 = 300;
const ROUNDS: u64 = 400;

/// The value of every key in a round: its number, repeated, of a length that tells it too.
fn value_of(round: u64) -> Vec<u8> {
    round.to_be_bytes().repeat(4 + (round % 5) as usize)
}

/// The round of a value, which must be all of one round.
fn round_of(value: &[u8]) -> u64 {
    let round = u64::from_be_bytes(*value.first_chunk().unwrap());
    assert_eq!(value, value_of(round), "torn value");
    round
}

fn write(mut pool: Pool, done: &AtomicU64) {
    for round in 1..=ROUNDS {
        let mut batch = pool.begin(&token());
        let value = value_of(round);
        for key in 0..KEYS {
            batch.put(0, &key.to_be_bytes(), &value).unwrap();
            batch
                .put(1, &(key * round % 1009).to_be_bytes(), &value)
                .unwrap();
        }
        batch
            .erase_range(1, &(round % 500).to_be_bytes(), Some(&900u64.to_be_bytes()))
            .unwrap();
        batch.commit(|_| {}).unwrap();
        if round % 3 == 0 {
            pool.reclaim().unwrap();
        }
        done.store(round, Ordering::Release);
    }
}

fn read(reader: Reader<'_>, done: &AtomicU64) -> u64 {
    let (mut looks, mut seen) = (0, 0);
    while done.load(Ordering::Acquire) < ROUNDS {
        let floor = done.load(Ordering::Acquire);
        seen = floor.max(seen);
        let mut value = [0; 64];
        for key in 0..KEYS {
            let Some(len) = reader.get(0, &key.to_be_bytes(), &mut value).unwrap() else {
                assert_eq!(floor, 0);
                continue;
            };
            let round = round_of(&value[..len]);
            assert!(round >= seen, "{round} after {seen}");
            seen = round;
        }
        let mut next = 0;
        let see = |key: &[u8], value: &[u8]| {
            let round = round_of(value);
            assert_eq!(key, u64::to_be_bytes(next));
            assert!(round >= seen, "{round} after {seen}");
            seen = round;
            next += 1;
            ControlFlow::Continue(())
        };
        reader.scan(0, &[], None, see).unwrap();
        assert!(next == KEYS || (next == 0 && floor == 0), "{next} keys");
        looks += 1;
    }
    looks
}

#[test]
fn readers_see_only_committed_states() {
    let fd = memfd_create("meta", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, META_LEN).unwrap();
    let map =
        |access| Region::map(fd.as_fd(), 0, META_LEN as usize, access, Medium::Memory).unwrap();
    let pool = Pool::create(map(Access::ReadWrite), &params(META_LEN), &token()).unwrap();
    let (first, second) = (map(Access::ReadOnly), map(Access::ReadOnly));
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let readers = [&first, &second].map(|meta| {
            let done = &done;
            scope.spawn(move || read(Reader::new(meta), done))
        });
        write(pool, &done);
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
    });
}
