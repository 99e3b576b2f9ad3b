//! Batches that are parked again and again, against the same ones in one go.

use super::tests::{Dice, MIB, all_of, pool, token};
use crate::layout::VALUES;
use crate::pool::Pool;
use crate::space::Run;
use alloc::vec::Vec;

const KEYS: u64 = 3000;

fn key(i: u64) -> Vec<u8> {
    alloc::format!("key:{i:020}").into_bytes()
}

/// A pool with every third key, and blocks in use.
fn loaded() -> (Pool, Run) {
    let mut pool: Pool = pool(8 * MIB);
    let mut batch = pool.begin(&token());
    for i in (0..KEYS).step_by(3) {
        batch.put(VALUES, &key(i), &[1; 100]).unwrap();
    }
    let run = batch.alloc_data(8, 1).unwrap();
    batch.use_data(run).unwrap();
    batch.commit(|_| {}).unwrap();
    pool.reclaim().unwrap();
    (pool, run)
}

/// Changes in a batch that is parked after each few of them; what the tree is to have then.
fn change(pool: &mut Pool, run: Run) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (mut dice, mut want) = (Dice(5), all_of(pool, VALUES));
    let seq = pool.superblock().seq;
    pool.begin(&token()).park();
    for _ in 0..40 {
        assert!(pool.is_parked());
        // As those do who hand blocks out meanwhile.
        pool.reclaim().unwrap();
        pool.rest().unwrap();
        let granted = pool.grant(4, 1).unwrap();
        pool.ungrant(granted).unwrap();
        let mut batch = pool.resume(&token());
        for _ in 0..50 {
            let (key, byte) = (key(dice.roll(KEYS)), dice.roll(200) as u8);
            let place = want.binary_search_by(|(k, _)| k.cmp(&key));
            if byte < 50 {
                batch.erase(VALUES, &key).unwrap();
                place.map(|at| want.remove(at)).ok();
                continue;
            }
            batch.put(VALUES, &key, &[byte; 100]).unwrap();
            match place {
                Ok(at) => want[at].1 = [byte; 100].to_vec(),
                Err(at) => want.insert(at, (key, [byte; 100].to_vec())),
            }
        }
        batch.park();
    }
    let mut batch = pool.resume(&token());
    batch.free_data(run).unwrap();
    batch.park();
    assert_eq!(pool.superblock().seq, seq);
    want
}

#[test]
fn a_parked_batch_goes_on_and_is_written_in_steps() {
    let (mut pool, run) = loaded();
    let before = all_of(&pool, VALUES);
    let want = change(&mut pool, run);
    let mut steps = 0;
    loop {
        // Readers see the last commit until the next one.
        assert_eq!(all_of(&pool, VALUES), before);
        let mut batch = pool.resume(&token());
        batch.back(u64::MAX).unwrap();
        let more = batch.write_ahead(7).unwrap();
        if !more {
            batch.commit(|_| {}).unwrap();
            break;
        }
        batch.park();
        steps += 1;
    }
    assert!(steps > 5, "{steps} steps");
    assert_eq!(all_of(&pool, VALUES), want);
    pool.reclaim().unwrap();
    assert_eq!(pool.data_space().count_used(), 0);
    let reachable = super::check::reachable(&pool).unwrap();
    assert_eq!(reachable, pool.meta_space().count_used());
}

#[test]
fn a_parked_batch_that_is_dropped_leaves_nothing() {
    let (mut pool, run) = loaded();
    let (before, pages) = (all_of(&pool, VALUES), pool.meta_space().count_used());
    change(&mut pool, run);
    drop(pool.resume(&token()));
    assert!(!pool.is_parked());
    assert_eq!(all_of(&pool, VALUES), before);
    assert_eq!(pool.meta_space().count_used(), pages);
    assert_eq!(pool.data_space().count_used(), run.len);
    let mut batch = pool.begin(&token());
    batch.put(VALUES, &key(1), &[9]).unwrap();
    batch.commit(|_| {}).unwrap();
}

/// Pages were written that nothing leads to: nothing more may be written.
#[test]
fn what_was_written_ahead_is_committed_or_nothing_is() {
    let (mut pool, run) = loaded();
    change(&mut pool, run);
    let mut batch = pool.resume(&token());
    assert!(batch.write_ahead(7).unwrap());
    drop(batch);
    let mut batch = pool.begin(&token());
    batch.put(VALUES, &key(1), &[9]).unwrap();
    assert_eq!(batch.commit(|_| {}), Err(crate::Error::Poisoned));
}
