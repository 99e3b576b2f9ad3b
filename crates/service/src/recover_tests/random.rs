//! Random journals, judged by a model; hostile ones, for which recovery must end soon and leave a
//! sound pool.

use super::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// What one record of a random journal says.
#[derive(Clone, Debug)]
enum Said {
    Extent {
        file_block: u64,
        block: u64,
        len: u64,
    },
    Data {
        block: u64,
        byte: u8,
    },
    InPlace {
        before: u64,
        runs: Vec<(u64, u64)>,
    },
    Mark {
        seq: u64,
        heads: [u64; 16],
    },
}

struct Written {
    seq: u64,
    lane: usize,
    at: u64,
    end: u64,
    said: Said,
}

fn any(fixture: &Fixture, rng: &mut Rng, fresh: &mut u64) -> Said {
    let seq = fixture.seq + 1;
    match rng.below(8) {
        0..=2 => {
            let (len, file_block) = (1 + rng.below(4), rng.below(20));
            let block = *fresh;
            *fresh += len;
            Said::Extent {
                file_block,
                block,
                len,
            }
        }
        3 | 4 => Said::Data {
            block: 40 + rng.below(*fresh - 39),
            byte: rng.below(200) as u8,
        },
        5 | 6 => {
            let runs = (0..rng.below(4)).map(|_| (36 + rng.below(*fresh), 1 + rng.below(6)));
            Said::InPlace {
                runs: runs.collect(),
                before: seq - rng.below(8).min(seq - 1),
            }
        }
        _ => Said::Mark {
            seq: fixture.seq,
            heads: fixture.heads,
        },
    }
}

/// Writes records to four lanes.
fn write_random(fixture: &mut Fixture, rng: &mut Rng, count: usize) -> Vec<Written> {
    let (mut out, mut fresh) = (Vec::new(), 40);
    for _ in 0..count {
        let lane = rng.below(4) as usize;
        let said = any(fixture, rng, &mut fresh);
        let at = fixture.heads[lane];
        let seq = match &said {
            Said::Extent {
                file_block,
                block,
                len,
            } => {
                (*block..block + len).for_each(|b| fixture.fill(b, STALE));
                fixture.put(lane, &extent(*file_block, *block, *len as u32, 1 << 20))
            }
            Said::Data { block, byte } => fixture.put(lane, &data(*block, &[*byte; 4096])),
            Said::InPlace { before, runs } => fixture.put(lane, &in_place(*before, runs)),
            Said::Mark { .. } => fixture.mark(lane),
        };
        let end = fixture.heads[lane];
        out.push(Written {
            seq,
            lane,
            at,
            end,
            said,
        });
    }
    out
}

/// What of the journal can be read and counts: what each number says.
fn counting<'a>(written: &'a [Written], lost: &BTreeSet<u64>) -> BTreeMap<u64, &'a Said> {
    // Lanes end at the first record that is lost. The first record of lane 0 made the file.
    let (mut ends, mut broken) = ([0; 16], [false; 16]);
    ends[0] = 128;
    let mut read = BTreeMap::new();
    for w in written {
        broken[w.lane] |= lost.contains(&w.seq);
        if !broken[w.lane] {
            ends[w.lane] = w.end;
            read.insert(w.seq, &w.said);
        }
    }
    let mut limit = 0;
    for said in read.values() {
        if let Said::Mark { seq, heads } = said
            && heads.iter().zip(ends).all(|(head, end)| *head <= end)
        {
            limit = limit.max(*seq);
        }
    }
    let last = written.last().map_or(1, |w| w.seq);
    let ends_at = (2..=last).find(|n| !read.contains_key(n) && *n > limit);
    read.retain(|n, _| *n < ends_at.unwrap_or(last + 1));
    read
}

/// What the file shows, by the words of the specification.
fn expected(written: &[Written], lost: &BTreeSet<u64>) -> Vec<Option<u8>> {
    let read = counting(written, lost);
    let names = |runs: &[(u64, u64)], b: u64| {
        runs.is_empty() || runs.iter().any(|(at, len)| (*at..at + len).contains(&b))
    };
    let is_in_place = |n: u64, b: u64| {
        read.values().any(
            |said| matches!(said, Said::InPlace { before, runs } if *before > n && names(runs, b)),
        )
    };
    let is_copied = |n: u64, b: u64| {
        let mut later = read.range(n + 1..);
        later.any(|(_, said)| matches!(said, Said::Data { block, .. } if *block == b))
    };
    let (mut map, mut bytes) = (BTreeMap::new(), BTreeMap::new());
    for (n, said) in &read {
        match said {
            Said::Extent {
                file_block,
                block,
                len,
            } => {
                let blocks = (0..*len).map(|i| (file_block + i, block + i));
                map.extend(blocks.filter(|(_, b)| is_copied(*n, *b) || is_in_place(*n, *b)));
            }
            Said::Data { block, byte } if !is_in_place(*n, *block) => {
                bytes.insert(*block, *byte);
            }
            _ => {}
        }
    }
    let byte = |block: &u64| bytes.get(block).copied().unwrap_or(STALE);
    (0..24).map(|at| map.get(&at).map(byte)).collect()
}

#[test]
fn random_journals_become_what_the_specification_says() {
    let mut holes = 0;
    for seed in 0..50 {
        let mut rng = Rng(seed * 77 + 1);
        let mut fixture = Fixture::file("random");
        let count = 5 + rng.below(60) as usize;
        let written = write_random(&mut fixture, &mut rng, count);
        // Of what no flush has acknowledged anything may be missing.
        let (mut lost, part) = (BTreeSet::new(), rng.below(5));
        for w in &written {
            if w.end > fixture.acked[w.lane] && rng.below(8) < part {
                lost.insert(w.seq);
                let keep = 64 * rng.below((w.end - w.at) / 64);
                let zeroes = vec![0; (w.end - w.at - keep) as usize];
                fixture.write_at(w.lane, w.at + keep, &zeroes);
                // Zeroes may be what was there.
                fixture.flip(w.lane, w.at, 32);
            }
        }
        let (engine, _) = fixture.recovered();
        let want = expected(&written, &lost);
        assert_eq!(
            shown(&engine, 24),
            want,
            "seed {seed}, acked up to {}, lost {lost:?}",
            fixture.acked_seq
        );
        holes += want.iter().filter(|block| block.is_none()).count();
    }
    assert!((120..1080).contains(&holes), "not both: {holes}");
}

#[test]
fn a_journal_of_which_sectors_are_lost_is_damaged_or_not_for_both_judges() {
    let (mut sound, mut damaged) = (0, 0);
    for seed in 0..50 {
        let mut rng = Rng(seed + 900);
        let mut fixture = Fixture::file("sectors");
        let count = 10 + rng.below(80) as usize;
        write_random(&mut fixture, &mut rng, count);
        for _ in 0..1 + rng.below(4) {
            let lane = rng.below(4) as usize;
            let sectors = fixture.heads[lane].div_ceil(512).max(1);
            let noise = [rng.below(3) as u8; 512];
            fixture.write_at(lane, 512 * rng.below(sectors), &noise);
        }
        if rng.below(2) == 1 {
            fixture.lose_power();
        }
        match fixture.recover() {
            Ok(_) => {
                let found = fixture.findings();
                assert!(found.is_empty(), "seed {seed}: {found:?}");
                sound += 1;
            }
            Err(Error::Journal { .. }) => {
                fixture.lost();
                damaged += 1;
            }
            Err(e) => panic!("seed {seed}: {e}"),
        }
    }
    assert!(sound > 5 && damaged > 5, "{sound} {damaged}");
}

#[test]
fn numbers_of_records_can_be_anything() {
    let begun = Instant::now();
    let huge = [u64::MAX, 1 << 63, u64::MAX - 1, 4096, 4095, 0, 1, 40];
    for a in huge {
        for b in huge {
            let mut fixture = Fixture::file("hostile");
            fixture.put(1, &data(a, &[1; 5000]));
            fixture.put(1, &in_place(b, &[(a, b.max(1)), (b, a.max(1)), (0, 9)]));
            fixture.put(2, &mark(a, b, [a; 16], [b; 16]));
            fixture.put(3, &extent(0, 40, 1, 4096));
            fixture.put(3, &extent(a, b, u32::MAX, 1));
            fixture.put(3, &extent(0, a.min(4000), a as u32, b));
            fixture.lose_power();
            // Whatever it is: an end, and a sound pool, or one that is said to be damaged.
            let before = fixture.findings();
            let refused = fixture.recover().is_err();
            assert_eq!(refused, !before.is_empty(), "{a:x} {b:x} {before:?}");
            assert_eq!(refused, !fixture.findings().is_empty(), "{a:x} {b:x}");
        }
    }
    let taken = begun.elapsed();
    assert!(taken < Duration::from_secs(60), "{taken:?}");
}

#[test]
fn large_numbers_cost_nothing() {
    for power_lost in [true, false] {
        let mut fixture = Fixture::file("large");
        for i in 0..8000_u64 {
            let lane = i as usize % 16;
            fixture.put(lane, &extent(0, i % 3, u32::MAX - i as u32, 4096));
            fixture.put(lane, &in_place(u64::MAX, &[(i, u64::MAX - i); 8]));
        }
        if power_lost {
            fixture.lose_power();
        }
        let begun = Instant::now();
        fixture.recover().map(drop).unwrap();
        let taken = begun.elapsed();
        assert!(taken < Duration::from_secs(10), "{taken:?}");
    }
}

#[test]
fn noise_is_no_damage_and_costs_little() {
    let begun = Instant::now();
    for seed in 0..12 {
        let mut rng = Rng(seed);
        let fixture = Fixture::new("noise", Medium::File, Consistency::Posix);
        let mut bytes: Vec<u8> = (0..LANE).map(|_| rng.below(256) as u8).collect();
        // Headers without end, each of the longest record.
        for at in (0..LANE as usize).step_by(64 * (1 + seed as usize % 3)) {
            bytes[at..at + 4].copy_from_slice(&0x524a_4648_u32.to_le_bytes());
            bytes[at + 16..at + 20].copy_from_slice(&(256_u32 << 10).to_le_bytes());
            bytes[at + 22..at + 24].copy_from_slice(&[0, 0]);
        }
        fixture.write_at(0, 0, &bytes);
        fixture.recover_soundly();
    }
    let taken = begun.elapsed();
    assert!(taken < Duration::from_secs(60), "{taken:?}");
}
