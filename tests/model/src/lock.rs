//! The lock word.

use super::play;
use holdfast_client::{Client, lock};
use holdfast_pmem::model;
use std::sync::atomic::Ordering::*;

const ROUNDS: u64 = 3;

/// Counts up a word that only the lock protects.
fn count(client: &Client, _: usize) {
    let s = client.session();
    for _ in 0..ROUNDS {
        let guard = lock::acquire(s, &s.header().rename_lock).expect("a lock");
        let word = &s.header().total_blocks;
        word.store(word.load(Relaxed) + 1, Relaxed);
        drop(guard);
    }
}

/// As `count`, but does something else while the lock is not free.
fn try_to_count(client: &Client, _: usize) {
    let s = client.session();
    let mut left = ROUNDS;
    while left > 0 {
        let Some(guard) = lock::try_acquire(s, &s.header().rename_lock) else {
            model::rest();
            continue;
        };
        let word = &s.header().total_blocks;
        word.store(word.load(Relaxed) + 1, Relaxed);
        drop(guard);
        left -= 1;
    }
}

fn begin(client: &Client) {
    client.session().header().total_blocks.store(0, Relaxed);
}

fn all_counted(client: &Client) {
    let h = client.session().header();
    assert_eq!(h.total_blocks.load(Relaxed), 3 * ROUNDS, "a count was lost");
    assert_eq!(h.rename_lock.load(Relaxed), 0, "the lock is not free");
}

/// Fails when `Guard::drop` frees the word with a relaxed store.
#[test]
fn what_a_lock_protects_is_seen_by_its_next_holder() {
    play(begin, &[count, count, try_to_count], all_counted);
}
