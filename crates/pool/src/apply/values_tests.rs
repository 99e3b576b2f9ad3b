//! Changes of keyspaces as a hostile client writes them, on a real pool: each record is applied as
//! a whole or refused as a whole, the tree equals a map, and the checker finds nothing.

use super::pool_tests::{BLOCKS, assert_clean, new_pool};
use super::*;
use crate::journal::{DROP_VALUES, OP_ALIGN};
use crate::layout::value::{
    self, IN_BLOCKS_MAX, InBlocks, NEVER, TreeKey, ValueRun, blocks_of, body,
};
use crate::layout::{BlockAddr, VALUES};
use crate::pool::{Pool, WriteToken};
use core::ops::ControlFlow;
use holdfast_pmem::{Medium, Region};
use std::collections::{BTreeMap, BTreeSet};
use std::vec;
use std::vec::Vec;

/// A keyspace, a directory that is none, and numbers of nothing.
pub(crate) const KEYSPACE: u64 = 2;
const DIRECTORY: u64 = 3;
const NUMBERS: [u64; 5] = [DIRECTORY, 1, 99, 0, u64::MAX];

struct Rng(u64);

impl Rng {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % sides
    }
}

/// A value as it must be found, and when it expires.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Want {
    Inline(Vec<u8>, i64),
    Blocks(Vec<(u64, u32)>, i64),
}

type Map = BTreeMap<Vec<u8>, Want>;

fn some_key(rng: &mut Rng) -> Vec<u8> {
    let len = match rng.roll(60) {
        0 => 0,
        1 => 1024,
        2 => 1025,
        n => n % 3 + 1,
    };
    (0..len)
        .map(|_| [0, 7, 255][rng.roll(3) as usize])
        .collect()
}

/// Runs of granted blocks, mostly.
fn some_runs(rng: &mut Rng, grants: &BTreeSet<u64>) -> InBlocks {
    let count = [1, 1, 2, 32][rng.roll(4) as usize];
    let mut runs = Vec::new();
    for _ in 0..count {
        let nth = rng.roll(grants.len().max(1) as u64) as usize;
        let granted = grants.iter().nth(nth).copied().unwrap_or(5);
        let block = match rng.roll(60) {
            0 => rng.roll(BLOCKS),
            1 => u64::MAX - rng.roll(3),
            2 => 1 << 51,
            _ => granted,
        };
        let len = [1, 1, 1, 2, 0, u32::MAX][rng.roll(if count == 1 { 4 } else { 3 }) as usize];
        let len = if rng.roll(200) == 0 { u32::MAX } else { len };
        let epoch = u32::from(rng.roll(80) == 0);
        let block = BlockAddr::from_word(block);
        runs.push(ValueRun { block, len, epoch });
    }
    let blocks: u64 = runs.iter().map(|run| u64::from(run.len)).sum();
    let wrong = [0, 1, 4096][rng.roll(3) as usize] * u64::from(rng.roll(40) == 0);
    let mut found = InBlocks::new((blocks * 4096).saturating_sub(rng.roll(4096)) + wrong);
    for run in runs {
        // More than there is room for are left out.
        found.push(run);
    }
    found
}

fn push_some(ops: &mut Vec<u8>, rng: &mut Rng, grants: &BTreeSet<u64>) {
    let keyspace = match rng.roll(40) {
        0 => NUMBERS[rng.roll(5) as usize],
        _ => KEYSPACE,
    };
    let (key, other) = (some_key(rng), some_key(rng));
    let value = vec![rng.roll(256) as u8; [0, 10, 900, 1919, 3000][rng.roll(5) as usize]];
    let mut runs = [0; IN_BLOCKS_MAX];
    let expires = [NEVER, NEVER, 1, 77, i64::MAX][rng.roll(5) as usize];
    let change = match rng.roll(12) {
        0 => Change::EraseRange(&other),
        1..3 => Change::Erase,
        3..6 => {
            let n = some_runs(rng, grants).encode(&mut runs);
            Change::put_blocks(&runs[..n], expires)
        }
        _ => Change::put(&value, expires),
    };
    let key = &key[..];
    let op = Op {
        keyspace,
        key,
        change,
    };
    op.push(ops);
}

/// What a record that was applied does to the map.
fn note(map: &mut Map, ops: &[u8]) {
    for op in Ops::new(ops).flatten().filter(|op| op.keyspace == KEYSPACE) {
        let key = op.key.to_vec();
        let expires = op.change.expires();
        match op.change {
            Change::Put(value) | Change::PutUntil(_, value) => {
                map.insert(key, Want::Inline(value.to_vec(), expires));
            }
            Change::PutBlocks(runs) | Change::PutBlocksUntil(_, runs) => {
                let found = InBlocks::decode(runs).unwrap();
                let runs = found.runs().iter().map(|run| (run.block.word(), run.len));
                map.insert(key, Want::Blocks(runs.collect(), expires));
            }
            Change::Erase => drop(map.remove(&key)),
            Change::EraseRange(to) => {
                map.retain(|k, _| *k < key || !to.is_empty() && &k[..] >= to);
            }
            // These records are about values only.
            Change::Promote(_) | Change::Name(_) => {}
        }
    }
}

fn found(pool: &Pool) -> Map {
    let mut map = Map::new();
    let mut index = BTreeSet::new();
    let all = |key: &[u8], value: &[u8]| {
        if value::is_in_index(key) {
            index.insert(key.to_vec());
            return ControlFlow::Continue(());
        }
        let expires = value::expiry_of(value);
        if expires != NEVER {
            let indexed = index.remove(TreeKey::in_index(expires, key).as_slice());
            assert!(indexed, "a value that expires is not in the index");
        }
        assert_eq!(key[..8], KEYSPACE.to_be_bytes());
        let want = match blocks_of(value).unwrap() {
            None => Want::Inline(body(value).to_vec(), expires),
            Some(found) => Want::Blocks(
                found
                    .runs()
                    .iter()
                    .map(|run| (run.block.word(), run.len))
                    .collect(),
                expires,
            ),
        };
        map.insert(key[8..].to_vec(), want);
        ControlFlow::Continue(())
    };
    pool.reader().scan(VALUES, &[], None, all).unwrap();
    map
}

/// The two directories.
pub(crate) fn stage(pool: &mut Pool, grants: &mut BTreeSet<u64>) {
    let mut store = PoolStore::new(pool.begin(&WriteToken::for_service()));
    let mut applier = Applier::new(&mut store, grants, [0; LANES]);
    for (i, name) in [b"k", b"d"].iter().enumerate() {
        let (parent, ino, seq) = (1, KEYSPACE + i as u64, i as u64 + 1);
        let (mode, uid, gid, rdev, flags, time) = (0o040_755, 0, 0, 0, 0, 1);
        let target = &b""[..];
        let name = &name[..];
        let record = Record::Create {
            parent,
            ino,
            mode,
            uid,
            gid,
            flags,
            rdev,
            time,
            name,
            target,
        };
        let (len, lane) = (64, 0);
        applier.apply(&Header { seq, len, lane }, &record).unwrap();
    }
    let (seq, len, lane) = (3, 64, 0);
    let record = Record::Keyspace {
        ino: KEYSPACE,
        time: 1,
    };
    applier.apply(&Header { seq, len, lane }, &record).unwrap();
    applier.settle().unwrap();
    store.commit(|_| ()).unwrap();
}

/// A keyspace goes with its values by one record, also with those that wait for the tree; nothing
/// else can.
#[test]
fn values_go_with_their_keyspace() {
    for by_rename in [false, true] {
        let meta = Region::in_memory(8 << 20).unwrap();
        let (mut pool, mut grants) = new_pool(meta, 3000);
        stage(&mut pool, &mut grants);
        let mut store = PoolStore::new(pool.begin(&WriteToken::for_service()));
        let mut applier = Applier::keeping(&mut store, &mut grants, [0; LANES]);
        let mut seq = 0;
        let mut apply = |record: &Record<'_>| {
            seq += 1;
            let (len, lane) = (64, 1);
            applier.apply(&Header { seq, len, lane }, record).is_ok()
        };
        let mut ops = Vec::new();
        for i in 0..900u32 {
            let (keyspace, key) = (KEYSPACE, &i.to_be_bytes()[..]);
            let change = Change::Put(&[7; 100]);
            let op = Op {
                keyspace,
                key,
                change,
            };
            op.push(&mut ops);
        }
        assert!(apply(&Record::Batch { time: 5, ops: &ops }));
        let remove = |ino, flags, name| Record::Unlink {
            parent: 1,
            ino,
            flags,
            time: 6,
            name,
        };
        let replace = |flags| Record::Rename {
            old_parent: 1,
            new_parent: 1,
            ino: DIRECTORY,
            replaced: KEYSPACE,
            flags,
            time: 6,
            old_name: b"d",
            new_name: b"k",
        };
        assert!(!apply(&remove(KEYSPACE, 0, b"k")) && !apply(&replace(0)));
        assert!(!apply(&remove(DIRECTORY, DROP_VALUES, b"d")));
        assert!(apply(&match by_rename {
            true => replace(DROP_VALUES),
            false => remove(KEYSPACE, DROP_VALUES, b"k"),
        }));
        // What others had journaled meanwhile is void.
        assert!(apply(&Record::Batch { time: 7, ops: &ops }));
        applier.settle().unwrap();
        store.commit(|_| ()).unwrap();
        assert_eq!(found(&pool), Map::new());
        assert_clean(pool.meta());
    }
}

#[test]
fn hostile_changes_are_refused_whole() {
    let (mut applied, mut refused) = (0, 0);
    for seed in 1..6 {
        let mut rng = Rng(seed);
        let meta = Region::in_memory(8 << 20).unwrap();
        let (mut pool, mut grants) = new_pool(meta, 3000);
        stage(&mut pool, &mut grants);
        let mut map = Map::new();
        for round in 0..30 {
            let mut store = PoolStore::new(pool.begin(&WriteToken::for_service()));
            let mut applier_grants = grants.clone();
            let mut applier = Applier::keeping(&mut store, &mut applier_grants, [0; LANES]);
            for seq in 1..=20 {
                let mut ops = Vec::new();
                for _ in 0..rng.roll(8) {
                    push_some(&mut ops, &mut rng, &grants);
                }
                if rng.roll(6) == 0 && !ops.is_empty() {
                    let at = rng.roll(ops.len() as u64) as usize;
                    ops[at] ^= 1 << rng.roll(8);
                    ops.truncate(ops.len() - OP_ALIGN * rng.roll(2) as usize);
                }
                let (len, lane, time) = (64, 1, 5);
                let header = Header { seq, len, lane };
                let done = if rng.roll(2) == 0 {
                    applier.apply(&header, &Record::Batch { time, ops: &ops })
                } else {
                    let (len, sum, runs) = (ops.len() as u64, 0, &[][..]);
                    let record = Record::Spilled {
                        time,
                        len,
                        sum,
                        runs,
                    };
                    applier.apply_spilled(&header, &record, &ops)
                };
                match done {
                    Ok(_) => {
                        note(&mut map, &ops);
                        applied += 1;
                    }
                    Err(Failure::Rejected(_)) => refused += 1,
                    Err(failure) => panic!("seed {seed} round {round}: {failure:?}"),
                }
            }
            applier.settle().unwrap();
            store.commit(|_| ()).unwrap();
            grants = applier_grants;
            assert_eq!(found(&pool), map, "seed {seed} round {round}");
            assert_clean(pool.meta());
        }
        let copy = super::pool_tests::image(pool.meta());
        let meta = Region::from_image(&copy, Medium::Memory).unwrap();
        let pool: Pool = Pool::open(meta, &WriteToken::for_service()).unwrap();
        assert_eq!(found(&pool), map);
    }
    assert!(applied > 300 && refused > 300, "{applied} {refused}");
}
