//! Compaction against a sorted map, and against what it is for.

use super::Compacted;
use super::tests::{Dice, MIB, Model, all_of, assert_is, model_of, pool, token};
use crate::layout::VALUES;
use crate::pool::Pool;
use alloc::vec::Vec;

/// Compacts the whole tree, one parent per commit; how many were laid out anew.
fn compact(pool: &mut Pool) -> usize {
    let (mut from, mut next, mut anew) = (Vec::new(), Vec::new(), 0);
    loop {
        let mut batch = pool.begin(&token());
        let done = batch.compact(VALUES, &from, &mut next).unwrap();
        batch.commit(|_| ()).unwrap();
        anew += usize::from(done == Compacted::Anew);
        if next.is_empty() {
            return anew;
        }
        assert!(next > from, "it goes on behind");
        core::mem::swap(&mut from, &mut next);
    }
}

#[test]
fn what_is_in_the_tree_stays_and_takes_less() {
    let (mut pool, mut model, mut dice) = (pool(64 * MIB), Model::new(), Dice(7));
    for _ in 0..40 {
        let mut batch = pool.begin(&token());
        for _ in 0..500 {
            let key = (dice.roll(u64::MAX) << 8).to_be_bytes().to_vec();
            let value = alloc::vec![9; dice.roll(150) as usize];
            batch.put(VALUES, &key, &value).unwrap();
            model.insert((VALUES, key), value);
        }
        batch.commit(|_| ()).unwrap();
    }
    pool.reclaim().unwrap();
    let before = pool.meta_space().count_used();
    assert!(compact(&mut pool) > 0);
    pool.reclaim().unwrap();
    let after = pool.meta_space().count_used();
    assert!(
        after * 9 < before * 8,
        "{before} pages before, {after} after"
    );
    assert_eq!(all_of(&pool, VALUES), model_of(&model, VALUES));
    assert_is(&pool, &model);
    assert_eq!(compact(&mut pool), 0, "it is as it best is");
}

#[test]
fn any_keys_and_values_can_be_compacted_at_any_time() {
    let (mut pool, mut model, mut dice) = (pool(64 * MIB), Model::new(), Dice(11));
    for round in 0..60 {
        let mut batch = pool.begin(&token());
        for _ in 0..dice.roll(200) {
            let key = dice.key();
            if dice.roll(4) == 0 {
                batch.erase(VALUES, &key).unwrap();
                model.remove(&(VALUES, key));
            } else {
                let value = dice.value();
                batch.put(VALUES, &key, &value).unwrap();
                model.insert((VALUES, key), value);
            }
        }
        // In the batch that changed the leaves, and in one that comes later.
        if round % 3 == 0 {
            let from = dice.key();
            batch.compact(VALUES, &from, &mut Vec::new()).unwrap();
        }
        batch.commit(|_| ()).unwrap();
        if round % 5 == 0 {
            compact(&mut pool);
        }
        assert_is(&pool, &model);
    }
}
