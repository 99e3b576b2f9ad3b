//! Power cuts and process deaths inside commits.
//!
//! The story: a small pool takes a few batches. The power fails at every fence, with any part of
//! what was not yet durable kept. Whoever opens the pool then must find the state before or
//! after the batch that was under way, never less than what was acknowledged, with bitmaps that
//! agree with the trees, and must be able to go on.

use super::Batch;
use super::tests::{Dice, MIB, Model, TREES, all_of, assert_is, change, model_of, params, token};
use crate::format::appends::appends_of;
use crate::layout::VALUES;
use crate::pool::Pool;
use alloc::vec;
use alloc::vec::Vec;
use holdfast_pmem::images::{Image, Images, Model as Loss, Options};
use holdfast_pmem::{Medium, Recorder, Region};

const META_LEN: u64 = MIB / 2;

fn options(model: Loss) -> Options {
    Options {
        exhaustive: 32,
        singles: 30,
        pairs: 12,
        random: 20,
        ..Options::new(model)
    }
}

fn image_of(pool: &Pool) -> Vec<u8> {
    let mut image = vec![0; pool.meta().len()];
    pool.meta().read(0, &mut image).unwrap();
    image
}

/// A recorded run: the image before it, that of commit `first`, its log, and the state after each
/// commit.
struct Run {
    base: Vec<u8>,
    first: u64,
    events: Vec<holdfast_pmem::record::Event>,
    states: Vec<Model>,
}

/// What a run changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Story {
    /// Anything, from an empty pool on.
    Any,
    /// Values far from each other in a tree of two levels, so that entries are appended to leaves
    /// and links to the node above.
    Overwrites,
}

/// Pairs that there are before a run of overwrites.
const PAIRS: u64 = 1200;

fn overwrite(batch: &mut Batch<'_>, model: &mut Model, i: u64, byte: u8) {
    let (key, value) = (i.to_be_bytes(), [byte; 50]);
    batch.put(VALUES, &key, &value).unwrap();
    model.insert((VALUES, key.to_vec()), value.to_vec());
}

/// The pool before a run, and what is in it.
fn start(pool: &mut Pool, story: Story) -> Model {
    let mut model = Model::new();
    if story == Story::Overwrites {
        for round in 0..4 {
            let mut batch = pool.begin(&token());
            for i in (round..PAIRS).step_by(4) {
                overwrite(&mut batch, &mut model, i, 1);
            }
            batch.commit(|_| {}).unwrap();
        }
        pool.reclaim().unwrap();
    }
    model
}

fn record(medium: Medium, seed: u64, story: Story) -> Run {
    let recorder = Recorder::new();
    let meta = Region::in_memory_as(META_LEN as usize, medium)
        .unwrap()
        .recorded(&recorder);
    let mut params = params(META_LEN);
    params.medium = medium;
    let mut pool = Pool::create(meta, &params, &token()).unwrap();
    let mut dice = Dice(seed);
    let mut states = vec![start(&mut pool, story)];
    recorder.take();
    let (base, first) = (image_of(&pool), pool.superblock().seq);
    let mut appended = 0;
    for op in 1..=6 {
        let mut model = states.last().cloned().unwrap_or_default();
        let mut batch = pool.begin(&token());
        for _ in 0..6 {
            match story {
                Story::Any => change(&mut batch, &mut model, &mut dice, op == 5),
                _ => overwrite(&mut batch, &mut model, dice.roll(PAIRS / 4), op as u8),
            }
        }
        let run = batch.alloc_data(op, 1).unwrap();
        batch.use_data(run).unwrap();
        recorder.begin(op);
        batch.commit(|s| s.next_ino = op).unwrap();
        recorder.ack(op);
        states.push(model);
        let root = pool.superblock().roots[usize::from(VALUES)];
        appended = appended.max(appends_of(root.addr) * usize::from(root.height > 1));
        // Pages are used again at once, so that a wrong order would show.
        pool.reclaim().unwrap();
    }
    assert_eq!(appended > 4, story == Story::Overwrites, "{appended} links");
    Run {
        base,
        first,
        events: recorder.take(),
        states,
    }
}

/// Opens what a power cut left and compares it with the states that it may have.
fn assert_recovers(run: &Run, image: &Image<'_>, medium: Medium, log: &Recorder) -> Pool {
    let acked = image.acked().max().unwrap_or(0);
    let begun = image.begun().max().unwrap_or(0);
    let meta = image.open(0, medium).unwrap().recorded(log);
    let pool = Pool::open(meta, &token()).unwrap_or_else(|e| panic!("{e}: {image:?}"));
    let at = pool.superblock().seq - run.first;
    assert!(
        (acked..=begun).contains(&at),
        "{at} of {acked} to {begun}: {image:?}"
    );
    assert_is(&pool, &run.states[at as usize]);
    assert_eq!(pool.data_space().count_used(), (1..=at).sum::<u64>());
    pool
}

fn go_on(mut pool: Pool, model: &Model) -> Pool {
    let mut model = model.clone();
    let mut batch = pool.begin(&token());
    change(&mut batch, &mut model, &mut Dice(77), false);
    batch.commit(|_| {}).unwrap();
    assert_is(&pool, &model);
    pool
}

fn cut_everywhere(medium: Medium, loss: Loss, seed: u64, story: Story) -> usize {
    let run = record(medium, seed, story);
    let mut images = 0;
    for image in Images::new(&[&run.base], &run.events, options(loss)) {
        let pool = assert_recovers(&run, &image, medium, &Recorder::new());
        if images % 8 == 0 {
            let at = pool.superblock().seq - run.first;
            let model = run.states[at as usize].clone();
            go_on(pool, &model);
        }
        images += 1;
    }
    images
}

#[test]
fn any_lost_words_leave_a_committed_state() {
    assert!(cut_everywhere(Medium::Memory, Loss::Words, 3, Story::Any) > 200);
}

#[test]
fn any_lost_lines_leave_a_committed_state() {
    assert!(cut_everywhere(Medium::Dax, Loss::Lines, 5, Story::Any) > 200);
}

#[test]
fn any_pages_not_written_back_leave_a_committed_state() {
    assert!(cut_everywhere(Medium::File, Loss::Pages, 7, Story::Any) > 100);
}

#[test]
fn a_death_between_any_two_stores_leaves_a_committed_state() {
    assert!(cut_everywhere(Medium::Memory, Loss::Death, 9, Story::Any) > 200);
}

#[test]
fn appended_links_are_of_a_committed_state() {
    for (medium, loss) in [
        (Medium::Memory, Loss::Words),
        (Medium::Dax, Loss::Lines),
        (Medium::File, Loss::Pages),
        (Medium::Memory, Loss::Death),
    ] {
        assert!(cut_everywhere(medium, loss, 13, Story::Overwrites) > 100);
    }
}

/// The power fails while the pool is opened after a power cut, and again the state is one of
/// those it may have; so does it after one more commit.
#[test]
fn recovery_can_be_cut_too() {
    let run = record(Medium::Memory, 11, Story::Any);
    let mut tried = 0;
    for image in Images::new(&[&run.base], &run.events, options(Loss::Words)).step_by(37) {
        let base = image.full(0);
        let log = Recorder::new();
        let pool = assert_recovers(&run, &image, Medium::Memory, &log);
        let before = pool.superblock().seq;
        let model = run.states[before as usize - 1].clone();
        let pool = go_on(pool, &model);
        let events = log.events();
        for second in Images::new(&[&base], &events, options(Loss::Words)).step_by(7) {
            let meta = second.open(0, Medium::Memory).unwrap();
            let again = Pool::open(meta, &token()).unwrap();
            let seq = again.superblock().seq;
            assert!(seq == before || seq == before + 1);
            if seq == before {
                assert_is(&again, &model);
            } else {
                TREES
                    .into_iter()
                    .for_each(|tree| assert_eq!(all_of(&again, tree), all_of(&pool, tree)));
            }
            tried += 1;
        }
        assert!(model_of(&model, 0).len() <= model.len());
    }
    assert!(tried > 100, "{tried}");
}

/// Whoever opens a pool after a torn commit makes much the same commit again: no part of it may
/// complete the torn one, whose pages it writes over.
#[test]
fn a_torn_superblock_is_never_completed() {
    for medium in [Medium::Memory, Medium::File] {
        let mut params = params(META_LEN);
        params.medium = medium;
        let meta = Region::in_memory_as(META_LEN as usize, medium).unwrap();
        let mut pool = Pool::create(meta, &params, &token()).unwrap();
        pool.begin(&token()).commit(|s| s.next_ino = 50).unwrap();
        let seq = pool.superblock().seq;
        let before = image_of(&pool);
        pool.begin(&token()).commit(|s| s.next_ino = 60).unwrap();
        let after = image_of(&pool);
        let missing = (0..2 * 4096)
            .step_by(8)
            .filter(|at| before[*at..at + 8] != after[*at..at + 8]);
        let missing: Vec<usize> = missing.collect();
        assert!(missing.len() > 2);
        for word in missing {
            let mut torn = after.clone();
            torn[word..word + 8].copy_from_slice(&before[word..word + 8]);
            let meta = Region::in_memory_as(META_LEN as usize, medium).unwrap();
            meta.write_nt(0, &torn).unwrap();
            let pool = Pool::open(meta, &token()).unwrap();
            assert_eq!(pool.superblock().next_ino, 50, "word {word}");
            let meta = pool.meta();
            meta.store(word as u64, &after[word..word + 8]).unwrap();
            if word % 4096 == 8 {
                // The checksum itself: one of another commit is another one.
                continue;
            }
            let (found, _) = crate::format::superblock::Superblock::read(meta).unwrap();
            assert_eq!(found.seq, seq, "word {word}");
        }
    }
}
