//! Readers beside a committing writer, each with a mapping of its own.
//!
//! The story: every commit sets all keys to its round and moves some others about, so that pages
//! are reused at once. A reader may see any committed round, but never a mixture in one value,
//! never an older round than it has seen, and in a scan never a hole.

use super::tests::{MIB, params, token};
use crate::pool::Pool;
use crate::tree::Reader;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU64, Ordering};
use holdfast_pmem::{Access, Medium, Region};
use rustix::fd::AsFd;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

const META_LEN: u64 = MIB;
const KEYS: u64 = 300;
const ROUNDS: u64 = 400;

fn write(mut pool: Pool, done: &AtomicU64) {
    for round in 1..=ROUNDS {
        let mut batch = pool.begin(&token());
        for key in 0..KEYS {
            let value = [round as u8; 64];
            batch
                .put(0, &key.to_be_bytes(), &value[..32 + (round % 32) as usize])
                .unwrap();
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

/// Both wrap at 256; rounds seen are never half of that apart.
fn assert_not_before(round: u8, seen: u8) {
    assert!(round.wrapping_sub(seen) < 128, "{round} after {seen}");
}

fn read(reader: Reader<'_>, done: &AtomicU64) -> u64 {
    let (mut looks, mut seen) = (0, 0);
    while done.load(Ordering::Acquire) < ROUNDS {
        let floor = done.load(Ordering::Acquire) as u8;
        assert_not_before(floor, seen);
        seen = floor;
        let mut value = [0; 64];
        for key in 0..KEYS {
            let Some(len) = reader.get(0, &key.to_be_bytes(), &mut value).unwrap() else {
                assert_eq!(floor, 0);
                continue;
            };
            assert!(
                value[..len].iter().all(|b| *b == value[0]),
                "torn value {value:?}"
            );
            assert_not_before(value[0], seen);
            assert_eq!(len as u8, 32 + value[0] % 32);
            seen = value[0];
        }
        let mut next = 0;
        let see = |key: &[u8], value: &[u8]| {
            assert_eq!(key, u64::to_be_bytes(next));
            assert_not_before(value[0], seen);
            seen = value[0];
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
