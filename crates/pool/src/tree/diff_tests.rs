//! Differences against those of two sorted maps.

use super::tests::{Dice, MIB, all_of, pool, token};
use super::{Difference, Differences, Fixed};
use crate::format::PAGE_LEN;
use crate::layout::{TreeId, VALUES};
use crate::pool::Pool;
use std::collections::BTreeMap;
use std::vec::Vec;

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;
type Owned = (Vec<u8>, Option<Vec<u8>>, Option<Vec<u8>>);

fn found(pool: &Pool, tree: TreeId, old: Option<&Fixed>, new: &Fixed) -> Vec<Owned> {
    let mut all = Vec::new();
    let mut differences = Differences::begin(pool.meta(), tree, old, new).unwrap();
    while let Some(Difference { key, old, new }) = differences.next_one().unwrap() {
        all.push((
            key.to_vec(),
            old.map(<[u8]>::to_vec),
            new.map(<[u8]>::to_vec),
        ));
    }
    assert!(differences.next_one().unwrap().is_none(), "after the end");
    all
}

fn expected(old: &Entries, new: &Entries) -> Vec<Owned> {
    let mut keys: Vec<_> = old.keys().chain(new.keys()).cloned().collect();
    keys.sort();
    keys.dedup();
    let both = keys.into_iter().map(|key| {
        let (old, new) = (old.get(&key).cloned(), new.get(&key).cloned());
        (key, old, new)
    });
    both.filter(|(_, old, new)| old != new).collect()
}

fn entries(pool: &Pool, tree: TreeId) -> Entries {
    all_of(pool, tree).into_iter().collect()
}

/// Changes some keys near each other, or everywhere, and commits.
fn change(pool: &mut Pool, tree: TreeId, dice: &mut Dice) {
    let (near, count) = (dice.roll(2) == 0, dice.roll(200));
    let around = dice.roll(5000);
    let mut batch = pool.begin(&token());
    for _ in 0..count {
        let n = if near {
            around + dice.roll(50)
        } else {
            dice.roll(5000)
        };
        let key = std::format!("{:06}{}", n, "x".repeat((n % 40) as usize));
        match dice.roll(3) {
            0 => drop(batch.erase(tree, key.as_bytes()).unwrap()),
            _ => {
                let value = std::vec![dice.roll(4) as u8; 1 + (n % 90) as usize];
                batch.put(tree, key.as_bytes(), &value).unwrap();
            }
        }
    }
    batch.commit(|_| {}).unwrap();
}

#[test]
fn differences_are_those_of_sorted_maps() {
    for (seed, tree) in [(3, 0), (7, VALUES), (11, 2), (13, VALUES)] {
        let mut dice = Dice(seed);
        let mut pool = pool(32 * MIB);
        let mut states: Vec<(Option<Fixed>, Entries)> = std::vec![(None, Entries::new())];
        for round in 0..40 {
            change(&mut pool, tree, &mut dice);
            let name = std::format!("s{round}");
            let snapshot = pool.create_snapshot(&token(), name.as_bytes(), 0).unwrap();
            let new = (Some(snapshot.fixed()), entries(&pool, tree));
            // Each against a neighbour, and against some that is far.
            let far = dice.roll(states.len() as u64) as usize;
            for (old, had) in [&states[far], &states[states.len() - 1]] {
                let (fixed, has) = (new.0.as_ref().unwrap(), &new.1);
                assert_eq!(found(&pool, tree, old.as_ref(), fixed), expected(had, has));
                if let Some(old) = old {
                    let back = found(&pool, tree, Some(fixed), old);
                    assert_eq!(back, expected(has, had), "the other way");
                }
            }
            states.push(new);
        }
    }
}

#[test]
fn what_both_states_share_is_not_read() {
    let mut pool = pool(32 * MIB);
    let mut batch = pool.begin(&token());
    for n in 0..20_000u32 {
        batch.put(0, &n.to_be_bytes(), &[1; 64]).unwrap();
    }
    batch.commit(|_| {}).unwrap();
    let old = pool.create_snapshot(&token(), b"old", 0).unwrap().fixed();
    let mut batch = pool.begin(&token());
    batch.put(0, &7u32.to_be_bytes(), &[2; 64]).unwrap();
    batch.commit(|_| {}).unwrap();
    let new = pool.create_snapshot(&token(), b"new", 0).unwrap().fixed();
    let reads = |old: Option<&Fixed>| {
        let mut differences = Differences::begin(pool.meta(), 0, old, &new).unwrap();
        let mut count = 0;
        loop {
            match differences.next_one() {
                Ok(Some(_)) => count += 1,
                Ok(None) => return Ok(count),
                Err(error) => return Err(error),
            }
        }
    };
    assert_eq!((reads(Some(&old)), reads(None)), (Ok(1), Ok(20_000)));
    // Every node that the old state has is damaged: only those that it shares are not missed.
    let shared = pages_below(&pool, &old);
    let mine = pages_below(&pool, &new);
    for page in shared.intersection(&mine) {
        pool.meta()
            .write_nt(page * PAGE_LEN + 100, &[0xff; 8])
            .unwrap();
    }
    assert_eq!(reads(Some(&old)), Ok(1));
    assert!(reads(None).is_err());
}

/// The pages of the leaves of tree 0.
fn pages_below(pool: &Pool, state: &Fixed) -> std::collections::BTreeSet<u64> {
    use crate::format::node;
    let mut all = std::collections::BTreeSet::new();
    let root = state.roots[0];
    let mut nodes = std::vec![(root.addr, root.height - 1)];
    while let Some((addr, level)) = nodes.pop() {
        if level == 0 {
            all.insert(addr);
            continue;
        }
        let mut page = [0; crate::format::PAGE];
        pool.meta().read(addr * PAGE_LEN, &mut page).unwrap();
        let place = node::Place::of_link(addr, 0, level, state.seq);
        let header = node::open(&page, &place).unwrap();
        let children = (0..header.count).map(|i| (node::child(&page, &header, i), level - 1));
        nodes.extend(children);
    }
    all
}
