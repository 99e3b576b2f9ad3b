//! The enumerator against cases in which one instruction is missing, and against a second model of
//! the hardware that shares no code with it.

use super::*;
use crate::{Medium, Recorder, Region};
use std::collections::BTreeSet;
use std::{format, vec};

const LEN: usize = 8192;

fn region(log: &Recorder) -> Region {
    Region::in_memory(LEN).unwrap().recorded(log)
}

fn file(log: &Recorder) -> Region {
    Region::in_memory_as(LEN, Medium::File)
        .unwrap()
        .recorded(log)
}

fn images(log: &Recorder, model: Model) -> BTreeSet<(Vec<u8>, usize)> {
    let base = vec![0; LEN];
    let bases: [&[u8]; 1] = [&base];
    let events = log.events();
    let all: Vec<_> = Images::new(&bases, &events, Options::new(model))
        .map(|i| (i.full(0), i.acked().count()))
        .collect();
    let set: BTreeSet<_> = all.iter().cloned().collect();
    assert_eq!(set.len(), all.len(), "an image was given twice");
    set
}

/// True when an image has the flag at 64 without the data at 0, or an acknowledged
/// operation's data is gone.
fn violated(log: &Recorder, model: Model) -> bool {
    images(log, model).iter().any(|(image, acks)| {
        let (data, flag) = (image[..8] == *b"the data", image[64] == 1);
        let lost = *acks > 0 && !flag;
        lost || (flag && !data)
    })
}

#[test]
fn the_right_order_holds_in_every_image() {
    let log = Recorder::new();
    let r = region(&log);
    log.begin(1);
    r.store(0, b"the data").unwrap();
    r.persist(0, 8).unwrap();
    r.store_u64(64, 1).unwrap();
    r.persist(64, 8).unwrap();
    log.ack(1);
    for model in [Model::Lines, Model::Words, Model::Death] {
        assert!(!violated(&log, model), "{model:?}");
        assert!(images(&log, model).len() >= 3, "{model:?}");
    }
}

#[test]
fn a_missing_flush_is_caught() {
    let log = Recorder::new();
    let r = region(&log);
    r.store(0, b"the data").unwrap();
    r.fence();
    r.store_u64(64, 1).unwrap();
    r.persist(64, 8).unwrap();
    assert!(violated(&log, Model::Lines));
}

#[test]
fn a_missing_fence_is_caught() {
    let log = Recorder::new();
    let r = region(&log);
    r.store(0, b"the data").unwrap();
    r.flush(0, 8).unwrap();
    r.store_u64(64, 1).unwrap();
    r.persist(64, 8).unwrap();
    assert!(violated(&log, Model::Lines));
}

#[test]
fn a_fence_missing_before_the_acknowledgement_is_caught() {
    let log = Recorder::new();
    let r = region(&log);
    r.store(0, b"the data").unwrap();
    r.persist(0, 8).unwrap();
    r.store_u64(64, 1).unwrap();
    r.flush(64, 8).unwrap();
    log.ack(1);
    assert!(violated(&log, Model::Lines));
}

#[test]
fn the_unflushed_tail_of_an_unaligned_write_is_caught() {
    let log = Recorder::new();
    let r = region(&log);
    r.store(60, &[7; 8]).unwrap();
    // Flushes the line of the first byte only, as the classic bug does.
    r.flush(60, 4).unwrap();
    r.fence();
    log.ack(1);
    let torn = |i: &(Vec<u8>, usize)| i.1 == 1 && i.0[60..68] != [7; 8];
    assert!(images(&log, Model::Lines).iter().any(torn));

    let log = Recorder::new();
    let r = region(&log);
    r.store(60, &[7; 8]).unwrap();
    r.persist(60, 8).unwrap();
    log.ack(1);
    assert!(!images(&log, Model::Lines).iter().any(torn));
}

#[test]
fn words_around_the_cache_are_independent_until_the_fence() {
    let log = Recorder::new();
    let r = region(&log);
    r.write_nt(64, &[9; 64]).unwrap();
    assert_eq!(images(&log, Model::Lines).len(), 256);
    r.fence();
    log.ack(1);
    let acked: Vec<_> = images(&log, Model::Lines)
        .into_iter()
        .filter(|i| i.1 == 1)
        .collect();
    assert_eq!(acked.len(), 1);
    assert_eq!(acked[0].0[64..128], [9; 64]);
}

#[test]
fn writing_what_is_there_is_no_choice() {
    let log = Recorder::new();
    let r = region(&log);
    let mut record = [0; 64];
    record[0] = 1;
    r.write_nt(64, &record).unwrap();
    assert_eq!(images(&log, Model::Lines).len(), 2);
}

#[test]
fn stores_to_one_line_are_kept_in_order_on_x86_only() {
    let log = Recorder::new();
    let r = region(&log);
    r.store_u64(0, 1).unwrap();
    r.store_u64(8, 2).unwrap();
    let second_alone = |i: &(Vec<u8>, usize)| i.0[0] == 0 && i.0[8] == 2;
    assert!(!images(&log, Model::Lines).iter().any(second_alone));
    assert!(images(&log, Model::Words).iter().any(second_alone));
}

#[test]
fn a_fence_of_another_thread_covers_nothing() {
    let log = Recorder::new();
    let r = region(&log);
    r.write_nt(0, &[1; 64]).unwrap();
    r.store(64, &[1; 8]).unwrap();
    r.flush(64, 8).unwrap();
    std::thread::scope(|s| {
        s.spawn(|| r.fence());
    });
    log.ack(1);
    assert!(
        images(&log, Model::Lines)
            .iter()
            .any(|i| i.1 == 1 && i.0[..128] == [0; 128])
    );
    r.fence();
    log.ack(2);
    assert!(
        !images(&log, Model::Lines)
            .iter()
            .any(|i| i.1 == 2 && i.0[0] == 0)
    );
}

#[test]
fn order_across_regions_is_explored() {
    let run = |fenced: bool| {
        let log = Recorder::new();
        let journal = Region::in_memory(LEN).unwrap().recorded(&log.region(1));
        let data = Region::in_memory(LEN).unwrap().recorded(&log.region(2));
        data.write_nt(0, &[5; 64]).unwrap();
        if fenced {
            data.fence();
        }
        journal.write_nt(0, &[6; 64]).unwrap();
        journal.fence();
        let base = vec![0; LEN];
        let bases: [&[u8]; 3] = [&[], &base, &base];
        let events = log.events();
        Images::new(&bases, &events, Options::default())
            .any(|i| i.full(1)[..64] == [6; 64] && i.full(2)[..64] != [5; 64])
    };
    assert!(run(false), "a record without its data must be found");
    assert!(!run(true));
}

#[test]
fn an_ordinary_file_is_durable_by_sync_alone() {
    let log = Recorder::new();
    let r = file(&log);
    r.store(0, b"the data").unwrap();
    r.persist(0, 8).unwrap();
    r.store_u64(4096, 1).unwrap();
    r.persist(4096, 8).unwrap();
    log.ack(1);
    let page_two_alone = |i: &(Vec<u8>, usize)| i.0[4096] == 1 && i.0[0] == 0;
    let all = images(&log, Model::Pages);
    assert!(all.iter().any(page_two_alone));
    assert!(all.iter().any(|i| i.1 == 1 && i.0 == vec![0; LEN]));

    let log = Recorder::new();
    let r = file(&log);
    r.store(0, b"the data").unwrap();
    r.sync(0, 8).unwrap();
    r.store_u64(4096, 1).unwrap();
    r.sync(4096, 8).unwrap();
    log.ack(1);
    let all = images(&log, Model::Pages);
    assert!(!all.iter().any(page_two_alone));
    assert!(!all.iter().any(|i| i.1 == 1 && i.0[4096] == 0));
}

#[test]
fn a_page_is_written_back_as_it_was_at_one_moment_unless_sectors_tear() {
    let log = Recorder::new();
    let r = file(&log);
    r.store(0, &[1; 4096]).unwrap();
    let late_without_early = |i: &(Vec<u8>, usize)| i.0[0] == 0 && i.0[4095] == 1;
    let half = |i: &(Vec<u8>, usize)| i.0[2047] == 1 && i.0[2048] == 0;
    assert!(!images(&log, Model::Pages).iter().any(late_without_early));
    assert!(images(&log, Model::Pages).iter().any(half));
    assert!(images(&log, Model::Sectors).iter().any(late_without_early));
}

#[test]
fn storing_what_a_page_has_leaves_no_other_image() {
    let log = Recorder::new();
    let r = file(&log);
    r.store(0, &[1; 64]).unwrap();
    r.store(0, &[1; 64]).unwrap();
    r.store(64, &[0; 64]).unwrap();
    r.store(64, &[2; 64]).unwrap();
    let all = images(&log, Model::Pages);
    let starts: BTreeSet<_> = all.iter().map(|i| (i.0[0], i.0[64])).collect();
    assert_eq!(starts, BTreeSet::from([(0, 0), (1, 0), (1, 2)]));
    assert_eq!(all.len(), 3);
    // Back to what is durable is a change.
    r.store(0, &[0; 64]).unwrap();
    let all = images(&log, Model::Pages);
    assert!(all.iter().any(|i| (i.0[0], i.0[64]) == (0, 2)));
}

#[test]
fn a_store_longer_than_a_word_may_be_torn() {
    let log = Recorder::new();
    let r = region(&log);
    r.store(4, &[1; 12]).unwrap();
    let all = images(&log, Model::Lines);
    let starts: BTreeSet<_> = all.iter().map(|i| (i.0[4], i.0[8])).collect();
    assert_eq!(starts, BTreeSet::from([(0, 0), (1, 0), (1, 1)]));
}

#[test]
fn a_killed_process_leaves_a_prefix_of_its_stores() {
    let log = Recorder::new();
    let r = region(&log);
    r.write_nt(0, &[1; 128]).unwrap();
    r.store_u64(512, 2).unwrap();
    r.store_u64(0, 3).unwrap();
    let all = images(&log, Model::Death);
    // Nothing, eight vectors of the first store, then one for each of the others.
    assert_eq!(all.len(), 1 + 8 + 2);
    assert!(all.iter().any(|i| i.0[..32] == [1; 32] && i.0[32] == 0));
    assert!(!all.iter().any(|i| i.0[512] == 2 && i.0[127] != 1));
}

#[test]
fn cached_and_uncached_stores_to_one_line_mix() {
    let log = Recorder::new();
    let r = region(&log);
    r.write_nt(0, &[1; 64]).unwrap();
    r.store_u64(0, 2).unwrap();
    // Word 0: nothing, 1, or 2; the other words: nothing or 1.
    let all = images(&log, Model::Lines);
    assert_eq!(all.len(), 3 * 128);
    r.fence();
    log.ack(1);
    // The cached store is still only cached.
    let acked = images(&log, Model::Lines).into_iter().filter(|i| i.1 == 1);
    let words: BTreeSet<u8> = acked.map(|i| i.0[0]).collect();
    assert_eq!(words, BTreeSet::from([1, 2]));
}

#[test]
fn too_many_pieces_are_sampled_within_the_law_and_repeatably() {
    let log = Recorder::new();
    let r = region(&log);
    r.store_u64(4096, 7).unwrap();
    r.persist(4096, 8).unwrap();
    for line in 0..40u64 {
        r.store_u64(line * 64, 1).unwrap();
        r.store_u64(line * 64 + 8, 2).unwrap();
    }
    let all = images(&log, Model::Lines);
    assert_eq!(all, images(&log, Model::Lines));
    assert!(all.len() > 500 && all.len() < 10_000, "{}", all.len());
    let legal = |i: &[u8]| (0..40).all(|l| i[l * 64 + 8] == 0 || i[l * 64] == 1);
    assert!(all.iter().all(|i| legal(&i.0)));
    let count = |i: &[u8]| (0..40).filter(|l| i[l * 64] == 1).count();
    for n in [0, 1, 2, 39, 40] {
        assert!(
            all.iter().any(|i| i.0[4096] == 7 && count(&i.0) == n),
            "{n} lines"
        );
    }
}

#[test]
fn patches_and_full_images_agree_with_the_base() {
    let log = Recorder::new();
    let r = region(&log);
    r.store(10, b"abc").unwrap();
    r.persist(10, 3).unwrap();
    r.store(72, b"def").unwrap();
    let base: Vec<u8> = (0..LEN).map(|i| i as u8).collect();
    let bases: [&[u8]; 1] = [&base];
    let events = log.events();
    let last = Images::new(&bases, &events, Options::default())
        .last()
        .unwrap();
    let mut expected = base.clone();
    expected[10..13].copy_from_slice(b"abc");
    expected[72..75].copy_from_slice(b"def");
    assert_eq!(last.full(0), expected);
    assert!(last.patches().all(|(_, _, d)| d.len() == 64));
    assert!(format!("{last:?}").contains("0:0x40+1"));
}

/// What one line may hold, kept as the hardware does it: the cache may write the line back
/// after any store, and must have done so when a flush is fenced.
#[derive(Clone)]
struct HardwareLine {
    now: Vec<u8>,
    versions: Vec<Vec<u8>>,
    flushed: Option<usize>,
    oldest: usize,
}

struct Hardware(Vec<HardwareLine>);

impl Hardware {
    fn new(lines: usize) -> Hardware {
        let line = HardwareLine {
            now: vec![0; 64],
            versions: vec![vec![0; 64]],
            flushed: None,
            oldest: 0,
        };
        Hardware(vec![line; lines])
    }

    fn step(&mut self, event: &Event) {
        match event {
            Event::Store { off, data, .. } => {
                // Bytes of one aligned word arrive together.
                for (j, b) in data.iter().enumerate() {
                    let at = *off as usize + j;
                    let line = &mut self.0[at / 64];
                    line.now[at % 64] = *b;
                    if at % 8 == 7 || j + 1 == data.len() {
                        line.versions.push(line.now.clone());
                    }
                }
            }
            Event::Flush { line, .. } => {
                let line = &mut self.0[*line as usize];
                line.flushed = Some(line.versions.len() - 1);
            }
            Event::Fence { .. } => {
                for line in &mut self.0 {
                    line.oldest = line.oldest.max(line.flushed.unwrap_or(0));
                }
            }
            _ => {}
        }
    }

    fn images(&self) -> BTreeSet<Vec<u8>> {
        let mut all = BTreeSet::from([Vec::new()]);
        for line in &self.0 {
            let mut longer = BTreeSet::new();
            for image in &all {
                for v in &line.versions[line.oldest..] {
                    let mut i: Vec<u8> = image.clone();
                    i.extend_from_slice(v);
                    longer.insert(i);
                }
            }
            all = longer;
        }
        all
    }
}

#[test]
fn agrees_with_a_second_model_of_the_hardware() {
    let mut rng = 12345u64;
    let mut below = move |n: u64| {
        rng = rng
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (rng >> 33) % n
    };
    for round in 0..300 {
        let log = Recorder::new();
        for _ in 0..12 {
            match below(5) {
                0..=2 => {
                    let len = 1 + below(3) as usize;
                    let off = below(192 - len as u64);
                    log.store(off, &vec![1 + below(200) as u8; len], false);
                }
                3 => log.flush(below(3)),
                _ => log.fence(),
            }
        }
        let events = log.events();
        let mut hardware = Hardware::new(3);
        let mut expected = BTreeSet::new();
        for e in &events {
            expected.extend(hardware.images());
            hardware.step(e);
        }
        expected.extend(hardware.images());
        let base = vec![0; 192];
        let bases: [&[u8]; 1] = [&base];
        let options = Options {
            exhaustive: u64::MAX,
            ..Options::default()
        };
        let got: BTreeSet<_> = Images::new(&bases, &events, options)
            .map(|i| i.full(0))
            .collect();
        assert_eq!(got, expected, "round {round}: {events:?}");
    }
}

#[test]
fn an_image_opens_as_a_region() {
    let log = Recorder::new();
    let r = region(&log);
    r.write_nt(64, &[4; 64]).unwrap();
    r.fence();
    let base = vec![0; LEN];
    let bases: [&[u8]; 1] = [&base];
    let events = log.events();
    let last = Images::new(&bases, &events, Options::default())
        .last()
        .unwrap();
    let again = Recorder::new();
    let r = last.open(0, Medium::Memory).unwrap().recorded(&again);
    assert_eq!(r.load_u64(64), Ok(u64::from_le_bytes([4; 8])));
    r.store_u64(0, 1).unwrap();
    assert_eq!(
        again.events().len(),
        1,
        "what the image holds is not recorded, recovery is"
    );
}

#[test]
fn a_long_log_is_enumerated_in_time() {
    let log = Recorder::new();
    let r = region(&log);
    for i in 0..2000u64 {
        log.begin(i);
        r.store_u64(i % 1024 * 8, i).unwrap();
        r.persist(i % 1024 * 8, 8).unwrap();
        log.ack(i);
    }
    let base = vec![0; LEN];
    let bases: [&[u8]; 1] = [&base];
    let events = log.events();
    let start = std::time::Instant::now();
    let count = Images::new(&bases, &events, Options::default()).count();
    assert!(count >= 4000, "{count}");
    assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
}
