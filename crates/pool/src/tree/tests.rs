//! The trees against a sorted map that shares no code with them.

use super::{KEY_MAX, VALUE_MAX};
use crate::check::Severity;
use crate::error::Error;
use crate::format::superblock::Consistency;
use crate::layout::{ReadTrees, TreeId, VALUES};
use crate::pool::{Params, Pool, WriteToken};
use crate::segment::Sizes;
use crate::space::Run;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use holdfast_pmem::{Medium, Region};

pub(super) const MIB: u64 = 1 << 20;
/// The trees that are used, one of them with leaves that are appended to.
pub(super) const TREES: [TreeId; 3] = [0, 1, VALUES];
pub(super) type Model = BTreeMap<(TreeId, Vec<u8>), Vec<u8>>;

pub(super) fn params(meta_len: u64) -> Params {
    let data_len = 64 * MIB;
    Params {
        uuid: [1; 16],
        boot_id: [2; 16],
        medium: Medium::Memory,
        consistency: Consistency::Posix,
        sizes: Sizes {
            meta_len,
            meta_len_max: meta_len,
            data_len,
            data_len_max: data_len,
        },
        next_ino: 2,
        journal_segment: 0,
        lane_len: 1 << 20,
    }
}

pub(super) fn token() -> WriteToken {
    WriteToken::for_service()
}

pub(super) fn pool(meta_len: u64) -> Pool {
    let meta = Region::in_memory(meta_len as usize).unwrap();
    Pool::create(meta, &params(meta_len), &token()).unwrap()
}

/// The pool as it would be found by the next service.
pub(super) fn reopened(pool: &Pool) -> Pool {
    let mut image = vec![0; pool.meta().len()];
    pool.meta().read(0, &mut image).unwrap();
    let meta = Region::from_image(&image, Medium::Memory).unwrap();
    Pool::open(meta, &token()).unwrap()
}

/// Xorshift.
pub(super) struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }

    pub fn tree(&mut self) -> TreeId {
        TREES[self.roll(3) as usize]
    }

    /// Keys with many shapes: short, long, sharing prefixes, prefixes of each other.
    pub fn key(&mut self) -> Vec<u8> {
        let n = self.roll(2000);
        match self.roll(6) {
            0 => n.to_be_bytes().to_vec(),
            1 => [7, n].iter().flat_map(|n| n.to_be_bytes()).collect(),
            2 => alloc::format!("{}/{:04}", "directory/".repeat(1 + n as usize % 6), n).into(),
            3 => vec![b'z'; n as usize % KEY_MAX.min(40)],
            4 => {
                let mut key = vec![b'q'; self.roll(KEY_MAX as u64 - 8) as usize];
                key.extend((n % 50).to_be_bytes());
                key
            }
            _ => n.to_string_bytes(),
        }
    }

    pub fn value(&mut self) -> Vec<u8> {
        let len = match self.roll(8) {
            0 => self.roll(VALUE_MAX as u64 + 1),
            1 => 0,
            _ => self.roll(120),
        };
        let byte = self.roll(256) as u8;
        vec![byte; len as usize]
    }
}

trait StringBytes {
    fn to_string_bytes(&self) -> Vec<u8>;
}

impl StringBytes for u64 {
    fn to_string_bytes(&self) -> Vec<u8> {
        alloc::format!("{self}").into_bytes()
    }
}

pub(super) fn all_of(pool: &Pool, tree: TreeId) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    let see = |k: &[u8], v: &[u8]| {
        all.push((k.to_vec(), v.to_vec()));
        ControlFlow::Continue(())
    };
    pool.reader().scan(tree, &[], None, see).unwrap();
    all
}

pub(super) fn model_of(model: &Model, tree: TreeId) -> Vec<(Vec<u8>, Vec<u8>)> {
    let part = model.iter().filter(|((t, _), _)| *t == tree);
    part.map(|((_, k), v)| (k.clone(), v.clone())).collect()
}

/// Every entry, every count, and that the pages in use are those that the trees reach.
pub(super) fn assert_is(pool: &Pool, model: &Model) {
    for tree in TREES {
        let expected = model_of(model, tree);
        assert_eq!(all_of(pool, tree), expected);
        assert_eq!(
            pool.superblock().roots[usize::from(tree)].keys,
            expected.len() as u64
        );
    }
    assert_eq!(
        super::check::reachable(pool).unwrap(),
        pool.meta_space().count_used()
    );
}

fn neighbours(model: &Model, tree: TreeId, key: &[u8]) -> [Option<Vec<u8>>; 2] {
    let at = (tree, key.to_vec());
    let after = model
        .range(at.clone()..)
        .next()
        .filter(|((t, _), _)| *t == tree);
    let before = model
        .range(..=at)
        .next_back()
        .filter(|((t, _), _)| *t == tree);
    [after, before].map(|e| e.map(|((_, k), _)| k.clone()))
}

fn assert_finds<T: ReadTrees<Error = Error>>(trees: &T, model: &Model, tree: TreeId, key: &[u8]) {
    let mut value = [0; VALUE_MAX];
    let found = trees.get(tree, key, &mut value).unwrap();
    let expected = model.get(&(tree, key.to_vec()));
    assert_eq!(found.map(|n| &value[..n]), expected.map(|v| &v[..]));
    let mut at = [0; KEY_MAX];
    let [after, before] = neighbours(model, tree, key);
    let found = trees.at_or_after(tree, key, &mut at, &mut value).unwrap();
    assert_eq!(found.map(|(k, _)| at[..k].to_vec()), after);
    let found = trees.at_or_before(tree, key, &mut at, &mut value).unwrap();
    assert_eq!(found.map(|(k, _)| at[..k].to_vec()), before);
}

/// One random change, in the batch and in the model.
pub(super) fn change(
    batch: &mut super::Batch<'_>,
    model: &mut Model,
    dice: &mut Dice,
    erasing: bool,
) {
    let (tree, key) = (dice.tree(), dice.key());
    match dice.roll(20) {
        0 if erasing || dice.roll(8) == 0 => {
            let to = Some(dice.key()).filter(|_| dice.roll(10) > 0);
            let gone = batch.erase_range(tree, &key, to.as_deref()).unwrap();
            let before = model.len();
            let inside = |k: &[u8]| k >= &key[..] && to.as_deref().is_none_or(|to| k < to);
            model.retain(|(t, k), _| *t != tree || !inside(k));
            assert_eq!(gone, (before - model.len()) as u64);
        }
        roll if roll < if erasing { 14 } else { 6 } => {
            let had = batch.erase(tree, &key).unwrap();
            assert_eq!(had, model.remove(&(tree, key)).is_some());
        }
        _ => {
            let value = dice.value();
            let had = batch.put(tree, &key, &value).unwrap();
            assert_eq!(had, model.insert((tree, key), value).is_some());
        }
    }
}

fn assert_scans(batch: &super::Batch<'_>, model: &Model, dice: &mut Dice) {
    let (tree, from, to) = (dice.tree(), dice.key(), dice.key());
    let limit = 1 + dice.roll(50) as usize;
    let mut seen = Vec::new();
    let see = |k: &[u8], v: &[u8]| {
        seen.push((k.to_vec(), v.to_vec()));
        if seen.len() < limit {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    };
    batch.scan(tree, &from, Some(&to), see).unwrap();
    let mut expected = model_of(model, tree);
    expected.retain(|(k, _)| *k >= from && *k < to);
    expected.truncate(limit);
    assert_eq!(seen, expected);
}

fn run_model(seed: u64, batches: usize) {
    let mut dice = Dice(seed);
    let mut pool = pool(32 * MIB);
    let mut model = Model::new();
    for round in 0..batches {
        let mut next = model.clone();
        let mut batch = pool.begin(&token());
        let erasing = dice.roll(4) == 0;
        for _ in 0..dice.roll(600) {
            change(&mut batch, &mut next, &mut dice, erasing);
        }
        for _ in 0..10 {
            assert_finds(&batch, &next, dice.tree(), &dice.key());
            assert_scans(&batch, &next, &mut dice);
        }
        if dice.roll(6) == 0 {
            drop(batch);
        } else {
            let seq = batch.commit(|s| s.next_ino += 1).unwrap();
            assert_eq!(pool.reader().seq().unwrap(), seq);
            model = next;
        }
        if round % 4 == 0 {
            assert_is(&pool, &model);
            pool = reopened(&pool);
        }
        for _ in 0..10 {
            assert_finds(&pool.reader(), &model, dice.tree(), &dice.key());
        }
    }
    assert_is(&pool, &model);
}

#[test]
fn behaves_as_a_sorted_map() {
    (1..=4).for_each(|seed| run_model(seed << 32 | 0x9e37_79b9, 40));
}

#[test]
fn sorted_puts_fill_their_leaves() {
    let mut pool = pool(64 * MIB);
    let mut batch = pool.begin(&token());
    for i in 0..100_000u64 {
        assert!(!batch.put(0, &i.to_be_bytes(), &[9; 32]).unwrap());
    }
    batch.commit(|_| {}).unwrap();
    let pages = super::check::reachable(&pool).unwrap();
    let bytes = 100_000 * (8 + 32);
    assert!(
        pages * 4096 < bytes * 5 / 4,
        "{pages} pages for {bytes} bytes"
    );
    assert_eq!(all_of(&pool, 0).len(), 100_000);
}

#[test]
fn runs_of_sorted_puts_come_between_other_keys() {
    let (mut dice, mut pool, mut model) = (Dice(77 << 32 | 5), pool(64 * MIB), Model::new());
    for round in 0..60 {
        let (tree, spacing) = (dice.tree(), 1 << dice.roll(24));
        let mut next = dice.roll(1 << 30);
        let mut batch = pool.begin(&token());
        for _ in 0..dice.roll(400) {
            // Now and then another length, and another prefix than that of the leaf.
            next += 1 + dice.roll(spacing);
            let mut key = b"of all ".to_vec();
            key.extend((next << 20).to_be_bytes());
            key.resize(key.len() + dice.roll(3) as usize, 7);
            let value = vec![round as u8; dice.roll(120) as usize];
            batch.put(tree, &key, &value).unwrap();
            model.insert((tree, key), value);
        }
        batch.commit(|_| {}).unwrap();
        if round % 20 == 19 {
            assert_is(&reopened(&pool), &model);
        }
    }
    assert_is(&pool, &model);
}

#[test]
fn a_huge_range_is_erased_without_copying_its_leaves() {
    let mut pool = pool(64 * MIB);
    let mut batch = pool.begin(&token());
    for i in 0..100_000u64 {
        batch.put(0, &i.to_be_bytes(), &[9; 32]).unwrap();
    }
    batch.commit(|_| {}).unwrap();
    let mut batch = pool.begin(&token());
    let (from, to) = (500u64.to_be_bytes(), 99_000u64.to_be_bytes());
    assert_eq!(batch.erase_range(0, &from, Some(&to)).unwrap(), 98_500);
    assert!(batch.dirty_nodes() <= 8, "{}", batch.dirty_nodes());
    batch.commit(|_| {}).unwrap();
    assert_eq!(all_of(&pool, 0).len(), 1500);
    assert_eq!(
        super::check::reachable(&pool).unwrap(),
        pool.meta_space().count_used()
    );
    let mut batch = pool.begin(&token());
    assert_eq!(batch.erase_range(0, &[], None).unwrap(), 1500);
    batch.commit(|_| {}).unwrap();
    assert_eq!(pool.superblock().roots[0], Default::default());
}

#[test]
fn a_full_pool_refuses_puts_keeps_its_state_and_can_be_emptied() {
    let mut pool = pool(2 * MIB);
    let mut stored = 0u64;
    'full: loop {
        let before = all_of(&pool, 0).len();
        let mut batch = pool.begin(&token());
        for i in stored..stored + 50 {
            match batch.put(0, &i.to_be_bytes(), &[1; 900]) {
                Ok(had) => assert!(!had),
                Err(e) => {
                    assert_eq!(e, Error::NoSpace);
                    drop(batch);
                    assert_eq!(all_of(&pool, 0).len(), before);
                    break 'full;
                }
            }
        }
        batch.commit(|_| {}).unwrap();
        stored += 50;
    }
    assert!(stored > 500, "{stored}");
    for i in 0..stored {
        let mut batch = pool.begin(&token());
        assert!(batch.erase(0, &i.to_be_bytes()).unwrap());
        batch.commit(|_| {}).unwrap();
    }
    assert_is(&reopened(&pool), &Model::new());
}

#[test]
fn data_blocks_follow_the_batch() {
    let mut pool = pool(4 * MIB);
    let grant = pool.grant(512, 512).unwrap();
    let mut batch = pool.begin(&token());
    batch.use_data(grant).unwrap();
    let extra = batch.alloc_data(8, 1).unwrap();
    batch.use_data(extra).unwrap();
    assert!(batch.use_data(extra).is_err() && batch.free_data(Run::new(4000, 1)).is_err());
    drop(batch);
    assert_eq!(pool.data_space().count_used(), 0);
    assert!(pool.data_space().is_busy(grant) && pool.data_space().is_free(extra));
    let mut batch = pool.begin(&token());
    batch.use_data(grant).unwrap();
    batch.commit(|_| {}).unwrap();
    assert_eq!(pool.superblock().used_data_blocks, 512);
    let mut batch = pool.begin(&token());
    batch.free_data(grant).unwrap();
    batch.commit(|_| {}).unwrap();
    assert!(
        !pool.data_space().is_free(grant),
        "older roots still lead there"
    );
    pool.reclaim().unwrap();
    assert!(pool.data_space().is_free(grant));
    assert_eq!(reopened(&pool).data_space().count_free(), 64 * MIB / 4096);
}

#[test]
fn too_long_keys_and_values_are_refused() {
    let mut pool = pool(4 * MIB);
    let mut batch = pool.begin(&token());
    let long = [0; KEY_MAX + 1];
    assert!(matches!(
        batch.put(0, &long, &[]),
        Err(Error::TooLarge { .. })
    ));
    assert!(matches!(
        batch.put(0, &[], &[0; VALUE_MAX + 1]),
        Err(Error::TooLarge { .. })
    ));
    assert!(matches!(
        batch.put(16, &[], &[]),
        Err(Error::TooLarge { .. })
    ));
    for i in 0..40 {
        let mut key = long[1..].to_vec();
        key[KEY_MAX - 1] = i;
        batch.put(0, &key, &[i; VALUE_MAX]).unwrap();
    }
    batch.put(0, &[], b"the empty key").unwrap();
    batch.commit(|_| {}).unwrap();
    assert_eq!(all_of(&pool, 0).len(), 41);
}

/// The checker parses the specification's words with code of its own. It knows no use for the
/// tree that this fills, and must have nothing else to say.
#[test]
fn the_checker_agrees_with_trees_of_every_shape() {
    const NO_USE: &str = "a tree without use has entries";
    for seed in 1..=8 {
        let (mut dice, mut pool) = (Dice(seed << 40 | 99), pool(8 * MIB));
        for _ in 0..6 {
            let mut batch = pool.begin(&token());
            for _ in 0..220 {
                let (key, value) = (dice.key(), dice.value());
                let done = match dice.roll(8) {
                    0..3 => batch.erase(8, &key),
                    _ => batch.put(8, &key, &value),
                };
                done.unwrap();
            }
            batch.commit(|_| {}).unwrap();
        }
        let mut image = vec![0; pool.meta().len()];
        pool.meta().read(0, &mut image).unwrap();
        let report = crate::check::check(&&image[..], 64 * MIB, None);
        let root = pool.superblock().roots[8];
        assert!(root.height > 2, "{root:?}");
        let damage = report
            .findings
            .iter()
            .filter(|f| f.severity == Severity::Damage);
        let (expected, other): (Vec<_>, Vec<_>) = damage.partition(|f| f.what == NO_USE);
        assert_eq!((other, report.more), (vec![], 0));
        assert_eq!(expected.len() as u64, root.keys);
    }
}
