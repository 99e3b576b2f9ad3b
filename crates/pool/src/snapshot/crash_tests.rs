//! Power cuts while snapshots are taken and deleted.
//!
//! Between commits of random records snapshots are taken and deleted. The power fails at every
//! fence, with any part of what was not yet durable kept. The image has the present and all
//! snapshots as before or after the step that was cut; nothing is lost, nothing leaks.

use super::tests::{assert_all, roll_back, token};
use crate::apply::generate::{Generator, Material};
use crate::apply::model::Model;
use crate::apply::pool_tests::{
    BLOCKS, ROOT_MODE, assert_clean, commit_only, commit_some, free_cuts, image, new_pool,
};
use crate::pool::Pool;
use holdfast_pmem::{Medium, Recorder, Region, images};
use std::collections::{BTreeMap, BTreeSet};
use std::vec;
use std::vec::Vec;

type Kept = BTreeMap<Vec<u8>, Model>;

fn cut(loss: images::Model, seed: u64) {
    let material = Material::new();
    let recorder = Recorder::new();
    let meta = Region::in_memory(8 << 20).unwrap().recorded(&recorder);
    let (mut pool, mut grants) = new_pool(meta, 1500);
    let mut model = Model::new(ROOT_MODE, grants.iter().copied());
    let mut generator = Generator::new(seed, &material, BLOCKS);
    commit_some(&mut pool, &mut grants, &mut model, &mut generator, 120);
    pool.create_snapshot(&token(), b"a", 1).unwrap();
    let mut kept: Kept = BTreeMap::from([(b"a".to_vec(), model.clone())]);
    commit_some(&mut pool, &mut grants, &mut model, &mut generator, 30);
    let base = image(pool.meta());
    recorder.take();
    let mut states = vec![(pool.superblock().seq, model.clone(), kept.clone())];
    for (n, step) in ["+b", "", "-a", "", "<b", "", "+c", "-c", "-b"]
        .iter()
        .enumerate()
    {
        recorder.begin(n as u64);
        match step.split_at(step.len().min(1)) {
            ("+", name) => {
                pool.create_snapshot(&token(), name.as_bytes(), 2).unwrap();
                kept.insert(name.as_bytes().to_vec(), model.clone());
            }
            ("-", name) => {
                // The first one in steps, with changes in between.
                let work = if name == "a" { 3 } else { usize::MAX };
                pool.delete_snapshot(&token(), name.as_bytes(), work)
                    .unwrap();
                pool.reclaim_some(&token(), 20).unwrap();
                kept.remove(name.as_bytes());
            }
            ("<", name) => {
                free_cuts(&mut pool);
                roll_back(&mut pool, name.as_bytes(), &mut kept, &mut model);
            }
            _ => commit_only(&mut pool, &mut grants, &mut model, &mut generator, 12),
        }
        recorder.ack(n as u64);
        // What is free is used again at once, so that a wrong order would show.
        pool.reclaim().unwrap();
        states.push((pool.superblock().seq, model.clone(), kept.clone()));
    }
    let events = recorder.take();
    let options = images::Options {
        exhaustive: 16,
        singles: 12,
        pairs: 4,
        random: 8,
        ..images::Options::new(loss)
    };
    let (mut seen, mut seqs) = (0, BTreeSet::new());
    for found in images::Images::new(&[&base], &events, options) {
        let acked = found.acked().count();
        let meta = found.open(0, Medium::Memory).unwrap();
        let mut pool = Pool::open(meta, &token()).unwrap();
        let seq = pool.superblock().seq;
        let at = states.iter().position(|(s, ..)| *s >= seq).unwrap();
        assert_clean(pool.meta());
        free_cuts(&mut pool);
        assert!(at >= acked, "{found:?} lost an acknowledged step");
        let (_, model, kept) = &states[at];
        assert_all(&pool, model, kept);
        seqs.insert(at);
        seen += 1;
    }
    assert!(seen > 100 && seqs.len() == 10, "{seen} images, {seqs:?}");
}

#[test]
fn any_lost_lines_leave_every_snapshot_whole() {
    cut(images::Model::Lines, 21);
}

#[test]
fn any_lost_words_leave_every_snapshot_whole() {
    cut(images::Model::Words, 22);
}
