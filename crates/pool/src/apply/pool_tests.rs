//! Random records on a real pool: after each commit and after reopening it equals the model and the
//! checker finds nothing; after a crash it equals the model at some commit.

use super::compare::{State, compare, copy_trees};
use super::generate::{Generator, Material};
use super::model::Model;
use super::*;
use crate::check;
use crate::checksum::crc32c;
use crate::format::superblock::{Consistency, Lane};
use crate::journal;
use crate::layout::BlockAddr;
use crate::pool::{Params, Pool, WriteToken};
use crate::segment::Sizes;
use crate::space::Run;
use holdfast_pmem::{Medium, Recorder, Region, images};
use std::collections::BTreeSet;
use std::vec;
use std::vec::Vec;

const MIB: u64 = 1 << 20;
pub const DATA_LEN: u64 = 16 * MIB;
pub const UUID: [u8; 16] = *b"a pool for tests";
pub const ROOT_MODE: u32 = 0o040_755;
pub const BLOCKS: u64 = DATA_LEN / 4096;

fn params(meta_len: u64) -> Params {
    let sizes = Sizes {
        meta_len,
        meta_len_max: meta_len,
        data_len: DATA_LEN,
        data_len_max: DATA_LEN,
    };
    Params {
        uuid: UUID,
        boot_id: [2; 16],
        medium: Medium::Memory,
        consistency: Consistency::Posix,
        sizes,
        next_ino: 2,
        journal_segment: 0,
        lane_len: 1 << 20,
    }
}

/// A pool with a root directory, and blocks granted from it.
pub fn new_pool(meta: Region, blocks: u64) -> (Pool, BTreeSet<u64>) {
    let token = WriteToken::for_service();
    let mut pool = Pool::create(meta, &params(8 * MIB), &token).unwrap();
    make_pool_root(&mut pool, &token, [0, 0], ROOT_MODE, 0).unwrap();
    let run = pool.grant(blocks, 1).unwrap();
    assert_eq!(run.len, blocks);
    (pool, (run.start..run.end()).collect())
}

/// Applies and commits `n` random records, and frees what they remove.
pub fn commit_some(
    pool: &mut Pool,
    grants: &mut BTreeSet<u64>,
    model: &mut Model,
    generator: &mut Generator<'_>,
    n: u64,
) {
    commit_only(pool, grants, model, generator, n);
    free_cuts(pool);
}

/// As `commit_some`; some of what they remove may still wait to be freed.
pub fn commit_only(
    pool: &mut Pool,
    grants: &mut BTreeSet<u64>,
    model: &mut Model,
    generator: &mut Generator<'_>,
    n: u64,
) {
    let lanes = pool.superblock().lanes;
    let first = lanes[1].applied;
    let mut store = PoolStore::new(pool.begin(&WriteToken::for_service()));
    let mut applier = Applier::keeping(&mut store, grants, lanes.map(|l| l.applied));
    applier.count_limit = CountLimit(2);
    for seq in first + 1..=first + n {
        let record = generator.record(model);
        let header = Header {
            seq,
            len: 64,
            lane: 1,
        };
        let mut done = applier.apply(&header, &record);
        while done == Err(Failure::Later) {
            done = applier.apply(&header, &record);
        }
        match done {
            Ok(outcome) => assert_eq!(outcome, Outcome::Applied),
            Err(Failure::Rejected(_)) => applier.skip(&header),
            Err(failure) => panic!("{failure:?}: {record:?}"),
        }
        model.apply(&record);
    }
    applier.settle().unwrap();
    let applied = applier.applied();
    store
        .commit(|sb| {
            let lane = |i: usize| Lane {
                applied: applied[i],
                ..sb.lanes[i]
            };
            sb.lanes = core::array::from_fn(lane);
            sb.applied_seq = first + n;
        })
        .unwrap();
}

/// Frees what was cut out of trees, in small steps.
pub fn free_cuts(pool: &mut Pool) {
    while pool.has_cut() {
        let more = pool.reclaim_some(&WriteToken::for_service(), 3).unwrap();
        assert_eq!(more, pool.has_cut());
    }
}

fn state(pool: &Pool) -> State {
    let used = |b: &u64| pool.data_space().is_used(Run::new(*b, 1));
    State {
        trees: copy_trees(&pool.reader()),
        used: (0..BLOCKS).filter(used).collect(),
        counts: pool.superblock().counts,
        next_ino: pool.superblock().next_ino,
        seed: crate::layout::name_seed(UUID),
    }
}

pub fn assert_clean(meta: &Region) {
    let report = check::check(meta, DATA_LEN, None);
    let findings: Vec<_> = report.damage().map(|f| std::format!("{f}")).collect();
    assert!(report.is_clean(), "{findings:#?}");
}

pub fn image(meta: &Region) -> Vec<u8> {
    let mut bytes = vec![0; meta.len()];
    meta.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_pool_equals_the_model_and_is_clean_after_each_commit() {
    let material = Material::new();
    for seed in 1..6 {
        let meta = Region::in_memory(8 * MIB as usize).unwrap();
        let (mut pool, mut grants) = new_pool(meta, 3000);
        let mut model = Model::new(ROOT_MODE, grants.iter().copied());
        let mut generator = Generator::new(seed * 104_729, &material, BLOCKS);
        for round in 0..25 {
            commit_some(&mut pool, &mut grants, &mut model, &mut generator, 60);
            assert_clean(pool.meta());
            compare(&state(&pool), &model);
            if round % 8 == 7 {
                let copy = image(pool.meta());
                let meta = Region::from_image(&copy, Medium::Memory).unwrap();
                pool = Pool::open(meta, &WriteToken::for_service()).unwrap();
                for run in &grants {
                    pool.grant_again(Run::new(*run, 1)).unwrap();
                }
                compare(&state(&pool), &model);
            }
        }
    }
}

/// A dropped batch leaves the pool as it was, space included.
#[test]
fn a_dropped_batch_leaves_nothing() {
    let material = Material::new();
    let meta = Region::in_memory(8 * MIB as usize).unwrap();
    let (mut pool, mut grants) = new_pool(meta, 2000);
    let mut model = Model::new(ROOT_MODE, grants.iter().copied());
    let mut generator = Generator::new(77, &material, BLOCKS);
    commit_some(&mut pool, &mut grants, &mut model, &mut generator, 400);
    let (mut lost, mut lost_grants) = (model.clone(), grants.clone());
    let mut store = PoolStore::new(pool.begin(&WriteToken::for_service()));
    let mut applier = Applier::new(&mut store, &mut lost_grants, [0; LANES]);
    for seq in 1..200 {
        let record = generator.record(&lost);
        let _ = applier.apply(
            &Header {
                seq,
                len: 64,
                lane: 1,
            },
            &record,
        );
        lost.apply(&record);
    }
    drop(store);
    compare(&state(&pool), &model);
    commit_some(&mut pool, &mut grants, &mut model, &mut generator, 100);
    compare(&state(&pool), &model);
    assert_clean(pool.meta());
}

/// Power cuts at every fence of several commits: the checker accepts what is left, and it is the
/// model before or after the commit that was cut.
#[test]
fn crash_images_are_clean_and_equal_a_prefix() {
    let material = Material::new();
    for (seed, model_kind) in [(5, images::Model::Lines), (6, images::Model::Words)] {
        let recorder = Recorder::new();
        let meta = Region::in_memory(8 * MIB as usize)
            .unwrap()
            .recorded(&recorder);
        let (mut pool, mut grants) = new_pool(meta, 1500);
        let mut model = Model::new(ROOT_MODE, grants.iter().copied());
        let mut generator = Generator::new(seed, &material, BLOCKS);
        commit_some(&mut pool, &mut grants, &mut model, &mut generator, 150);
        let base = image(pool.meta());
        recorder.take();
        let mut states = vec![(pool.superblock().seq, model.clone())];
        for n in 0..4 {
            recorder.begin(n);
            commit_some(&mut pool, &mut grants, &mut model, &mut generator, 12);
            recorder.ack(n);
            states.push((pool.superblock().seq, model.clone()));
        }
        let events = recorder.take();
        let options = images::Options {
            exhaustive: 16,
            singles: 12,
            pairs: 4,
            random: 8,
            ..images::Options::new(model_kind)
        };
        let (mut images_seen, mut seqs) = (0, BTreeSet::new());
        for found in images::Images::new(&[&base], &events, options) {
            let acked = found.acked().count();
            let meta = found.open(0, Medium::Memory).unwrap();
            assert_clean(&meta);
            let mut pool = Pool::open(meta, &WriteToken::for_service()).unwrap();
            let seq = pool.superblock().seq;
            let at = states.iter().position(|(s, _)| *s >= seq).unwrap();
            assert!(at >= acked, "{found:?} lost an acknowledged commit");
            free_cuts(&mut pool);
            compare(&state(&pool), &states[at].1);
            assert_clean(pool.meta());
            seqs.insert(at);
            images_seen += 1;
        }
        assert!(
            images_seen > 100 && seqs.len() == 5,
            "{images_seen} images, {seqs:?}"
        );
    }
}

/// A record with a correct checksum: random bytes, or a sensible one with some fields replaced by
/// small and extreme numbers.
fn hostile_record(generator: &mut Generator<'_>, model: &Model) -> Vec<u8> {
    let mut bytes = vec![0; 24 + generator.rng.below(200) as usize];
    bytes[20] = 1 + generator.rng.below(16) as u8;
    bytes[24..]
        .iter_mut()
        .for_each(|byte| *byte = generator.rng.next() as u8);
    if generator.rng.below(4) > 0 {
        let record = generator.record(model).encode(1, 0);
        bytes = record.parts().concat();
    }
    let rng = &mut generator.rng;
    let fields = bytes.len().saturating_sub(32).min(80) as u64;
    for _ in 0..rng.below(3) {
        let at = 24 + rng.below(fields) as usize / 4 * 4;
        let n = match rng.below(6) {
            0..3 => rng.below(30),
            3 => u64::MAX,
            4 => 1 << rng.below(64),
            _ => (1 << 63) - rng.below(3),
        };
        let to = if fields > 0 {
            &mut bytes[at..at + 8]
        } else {
            &mut []
        };
        to.copy_from_slice(&n.to_le_bytes()[..to.len()]);
    }
    let len = bytes.len() as u32;
    bytes[0..4].copy_from_slice(&journal::RECORD_MAGIC.to_le_bytes());
    bytes[8..16].copy_from_slice(&1u64.to_le_bytes());
    bytes[16..20].copy_from_slice(&len.to_le_bytes());
    let crc = crc32c(&bytes[8..]);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Whatever a client writes into its journal: the record is rejected, or the pool stays clean.
#[test]
fn hostile_records_leave_a_clean_pool() {
    let material = Material::new();
    let meta = Region::in_memory(8 * MIB as usize).unwrap();
    let (mut pool, mut grants) = new_pool(meta, 3000);
    let mut model = Model::new(ROOT_MODE, grants.iter().copied());
    let mut generator = Generator::new(31, &material, BLOCKS);
    commit_some(&mut pool, &mut grants, &mut model, &mut generator, 300);
    let (mut decoded, mut applied) = (0, 0);
    for _ in 0..30 {
        let mut store = PoolStore::new(pool.begin(&WriteToken::for_service()));
        for _ in 0..500 {
            let bytes = hostile_record(&mut generator, &model);
            let Ok((header, record)) = journal::decode(&bytes) else {
                continue;
            };
            decoded += 1;
            let mut applier = Applier::new(&mut store, &mut grants, [0; LANES]);
            match applier.apply(&header, &record) {
                Ok(outcome) => {
                    assert_eq!(outcome, Outcome::Applied);
                    assert!(model.apply(&record), "{record:?}");
                    applied += 1;
                }
                Err(Failure::Rejected(reject)) => {
                    assert!(reject.errno() > 0 && std::format!("{reject}").len() > 10);
                    assert!(!model.apply(&record), "{record:?}");
                }
                Err(failure) => panic!("{failure:?}: {record:?}"),
            }
        }
        store.commit(|_| ()).unwrap();
        assert_clean(pool.meta());
        free_cuts(&mut pool);
        assert_clean(pool.meta());
    }
    compare(&state(&pool), &model);
    assert!(
        decoded > 5000 && applied > 100,
        "{decoded} decoded, {applied} applied"
    );
}

/// A file with that many extents, in a pool of its own.
fn fragmented(extents: u64) -> (Pool, BTreeSet<u64>) {
    let meta = Region::in_memory(8 * MIB as usize).unwrap();
    let (mut pool, mut grants) = new_pool(meta, 3000);
    let blocks: Vec<u64> = grants.iter().copied().take(extents as usize).collect();
    let mut store = PoolStore::new(pool.begin(&WriteToken::for_service()));
    let mut applier = Applier::new(&mut store, &mut grants, [0; LANES]);
    let create = Record::Create {
        parent: ROOT_INO,
        ino: FILE,
        mode: 0o100_644,
        uid: 0,
        gid: 0,
        flags: 0,
        rdev: 0,
        time: 1,
        name: b"file",
        target: b"",
    };
    applier.apply(&header(1), &create).unwrap();
    for (i, block) in (0..).zip(blocks) {
        let record = Record::Extent {
            ino: FILE,
            file_block: 2 * i,
            block: BlockAddr::new(0, block),
            len: 1,
            size: 1 << 30,
            mtime: 1,
            ctime: 1,
            flags: 0,
        };
        applier.apply(&header(2 + i), &record).unwrap();
    }
    store.commit(|_| ()).unwrap();
    (pool, grants)
}

const FILE: u64 = 2;

fn header(seq: u64) -> Header {
    let (len, lane) = (64, 1);
    Header { seq, len, lane }
}

/// What goes is counted a part at a time, each by an applier of its own; what another record began
/// to count is not believed.
#[test]
fn a_file_of_many_extents_is_counted_in_parts() {
    let (mut pool, mut grants) = fragmented(1000);
    let used = pool.data_space().count_used();
    let (ino, time, size) = (FILE, 7, 100 * 4096);
    let truncate = Record::Truncate { ino, size, time };
    let (mut parts, mut carry) = (0, Carry::default());
    for seq in [2000, 3000] {
        loop {
            let mut store = PoolStore::new(pool.begin(&WriteToken::for_service()));
            let mut applier = Applier::new(&mut store, &mut grants, [0; LANES]).carrying(carry);
            applier.count_limit = CountLimit(100);
            let done = applier.apply(&header(seq), &truncate);
            carry = applier.into_carry();
            // The first record is given up half-way.
            if done == Ok(Outcome::Applied) {
                store.commit(|_| ()).unwrap();
                break;
            }
            assert_eq!(done, Err(Failure::Later));
            store.commit(|_| ()).unwrap();
            parts += 1;
            if seq == 2000 && parts == 5 {
                break;
            }
        }
    }
    // 950 extents go: nine times a hundred were not all.
    assert_eq!(parts, 5 + 9);
    free_cuts(&mut pool);
    assert_eq!(pool.data_space().count_used(), used - 950);
    assert_clean(pool.meta());
}

/// What begins where the hole ends, or ends where it begins, stays.
#[test]
fn a_hole_in_a_file_of_many_extents_has_exact_edges() {
    let (mut pool, mut grants) = fragmented(1000);
    let used = pool.data_space().count_used();
    for (seq, file_block, end) in [(2000, 11, 400), (2001, 500, 901), (2002, 1001, 1800)] {
        let mut store = PoolStore::new(pool.begin(&WriteToken::for_service()));
        let mut applier = Applier::new(&mut store, &mut grants, [0; LANES]);
        let (ino, time, size, len) = (FILE, 7, 1 << 30, end - file_block);
        let punch = Record::Punch {
            ino,
            file_block,
            len,
            size,
            time,
        };
        assert_eq!(applier.apply(&header(seq), &punch), Ok(Outcome::Applied));
        store.commit(|_| ()).unwrap();
        free_cuts(&mut pool);
        assert_clean(pool.meta());
    }
    // The even ones of 11..400, 500..901 and 1001..1800.
    let gone = 194 + 201 + 399;
    assert_eq!(pool.data_space().count_used(), used - gone);
}
