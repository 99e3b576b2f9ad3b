//! Distinguishing damage from what a death or a loss of power may leave.

use super::*;

fn file(ino: u64) -> Body {
    create(ino, format!("name {ino}").as_bytes(), 0o100_644)
}

/// `count` files, from inode 2 on, in lanes 0 to 2, and the places of their records.
fn with_files(medium: Medium, count: u64) -> (Fixture, Vec<(usize, u64)>) {
    let mut fixture = Fixture::new("losses", medium, Consistency::Posix);
    let mut places = Vec::new();
    for i in 0..count {
        fixture.seq += 1;
        let lane = (i % 3) as usize;
        places.push((lane, fixture.put_as(lane, fixture.seq, &file(2 + i))));
    }
    (fixture, places)
}

fn missing(engine: &Engine, mut inos: std::ops::Range<u64>) -> Vec<u64> {
    let mut out = Vec::new();
    while let Some(ino) = inos.find(|ino| !exists(engine, *ino)) {
        out.push(ino);
    }
    out
}

/// The pool is as if lane `lane` had gone on to `place`, and all up to number 20000 was applied.
fn with_lane_at(lane: usize, place: u64) -> Fixture {
    let mut fixture = Fixture::new("laps", Medium::Memory, Consistency::Posix);
    let mut engine = fixture.engine();
    engine
        .store
        .note(|sb| {
            sb.lanes[lane].start = place;
            sb.lanes.iter_mut().for_each(|lane| lane.applied = 20_000);
            sb.applied_seq = 20_000;
        })
        .unwrap();
    (fixture.seq, fixture.heads[lane]) = (20_000, place);
    fixture
}

#[test]
fn a_flipped_bit_amid_a_lane_is_named_and_costs_one_record() {
    for medium in [Medium::Memory, Medium::File] {
        // Of the numbers in front and of the rest.
        for bit in (0..192).step_by(11).chain((192..640).step_by(97)) {
            let (fixture, places) = with_files(medium, 60);
            let (lane, at) = places[8];
            fixture.flip(lane, at, bit);
            let (losses, engine) = fixture.lost();
            assert_eq!(losses, [(lane, 9, 9)], "bit {bit}");
            assert_eq!(missing(&engine, 2..62), [10], "bit {bit}");
        }
    }
}

#[test]
fn more_damage_is_named_as_a_whole() {
    let (fixture, places) = with_files(Medium::Memory, 60);
    for i in [8, 9, 30] {
        fixture.flip(places[i].0, places[i].1, 200);
    }
    let (losses, engine) = fixture.lost();
    assert_eq!(losses, [(0, 9, 10), (2, 9, 10)]);
    assert_eq!(missing(&engine, 2..62), [10, 11, 32]);
}

#[test]
fn what_needs_a_lost_record_is_given_up_and_nothing_else() {
    let mut fixture = Fixture::new("needs", Medium::Memory, Consistency::Posix);
    fixture.seq += 1;
    let at = fixture.put_as(0, 1, &create(INO, b"f", 0o100_644));
    fixture.put(1, &extent(0, 40, 1, 4096));
    fixture.put(0, &file(3));
    fixture.flip(0, at, 250);
    let (losses, engine) = fixture.lost();
    assert_eq!(losses, [(0, 1, 1)]);
    assert!(!exists(&engine, INO) && exists(&engine, 3));
}

#[test]
fn a_half_written_last_record_is_no_damage() {
    for medium in [Medium::Memory, Medium::File] {
        for kept in (0..128).step_by(3) {
            let (mut fixture, _) = with_files(medium, 30);
            let (kind, fields) = file(99);
            let bytes = record(kind, 1, fixture.seq + 1, &fields);
            fixture.write_at(1, fixture.heads[1], &bytes[..kept.min(fields.len())]);
            // Others went on.
            fixture.seq += 1;
            fixture.put(2, &file(98));
            let (engine, _) = fixture.recover_soundly();
            assert_eq!(missing(&engine, 2..32), []);
            assert!(exists(&engine, 98));
        }
    }
}

#[test]
fn older_laps_and_records_as_content_are_no_damage() {
    let mut rng = Rng(3);
    for round in 0..30 {
        let place = LANE + 64 * rng.below(8000);
        let mut fixture = with_lane_at(0, place);
        // Records of the lap before, of values that look like records of this lane with numbers
        // that this lane had then.
        let mut at = 0;
        while at + 40_000 < LANE {
            let seq = 1 + at / 64;
            let content = record(1, 0, seq.saturating_sub(3), &[1; 40]);
            let content = content.repeat(1 + rng.below(300) as usize);
            // Such that they stand at multiples of 64.
            let (kind, fields) = batch(&change(1, 7, b"12345678", &content));
            let bytes = record(kind, 0, seq, &fields);
            assert!(bytes[64..].starts_with(&content[..64]));
            fixture.write_at(0, at, &bytes);
            at += bytes.len() as u64;
        }
        let files = rng.below(30);
        for ino in 2..2 + files {
            fixture.put(0, &file(ino));
        }
        // The last one is half there: a value that looks like records that are still to come.
        let content = record(1, 0, fixture.seq + 2, &[1; 40]).repeat(9);
        let (kind, fields) = batch(&change(1, 7, b"12345678", &content));
        let bytes = record(kind, 0, fixture.seq + 1, &fields);
        let kept = rng.below(bytes.len() as u64 - 64) as usize;
        fixture.write_at(0, fixture.heads[0], &bytes[..kept]);
        let (engine, recovered) = fixture.recover_soundly();
        assert_eq!(recovered.rejected, None, "round {round}");
        assert_eq!(missing(&engine, 2..2 + files), []);
    }
}

#[test]
fn a_value_that_looks_like_other_records_hides_no_damage() {
    let mut fixture = Fixture::new("content", Medium::Memory, Consistency::Posix);
    fixture.put(0, &file(2));
    let content = record(1, 0, 3, &[1; 40]).repeat(20);
    fixture.seq += 1;
    let body = batch(&change(1, 7, b"12345678", &content));
    let at = fixture.put_as(0, 2, &body);
    fixture.put(0, &file(3));
    // Its length, then its content: what follows is not its content.
    for bit in [16 * 8 + 13, 50 * 8] {
        fixture.flip(0, at, bit);
        let Err(Error::Journal { losses, .. }) = fixture.recover() else {
            panic!("bit {bit} was not noticed");
        };
        assert_eq!((losses[0].first, losses[0].last), (2, 2), "bit {bit}");
        assert_eq!(fixture.findings().len(), 1);
        fixture.flip(0, at, bit);
    }
}

#[test]
fn a_record_before_the_end_of_the_ring_is_not_leapt_over() {
    // What is at the start of the ring would have fitted where the lane seems to end.
    let mut fixture = with_lane_at(4, 3 * LANE - 256);
    let at = fixture.put_as(4, 20_001, &file(2));
    fixture.put_as(4, 20_002, &file(3));
    fixture.seq = 20_002;
    let next = fixture.put(4, &file(4));
    fixture.flip(4, at, 300);
    let (losses, engine) = fixture.lost();
    assert_eq!(losses, [(4, 20_001, 20_001)]);
    assert_eq!((next, missing(&engine, 2..5)), (20_003, vec![2]));
}

#[test]
fn a_lane_that_goes_on_at_the_start_of_the_ring_is_read_and_judged() {
    for (damaged, lost) in [(None, 0), (Some(0), 20_001), (Some(1), 20_002)] {
        let mut fixture = with_lane_at(4, 3 * LANE - 192);
        let place = |i: u64, fixture: &mut Fixture| {
            fixture.seq += 1;
            let body = create(2 + i, &[b'x'; 60][..60 - i as usize], 0o100_644);
            fixture.put_as(4, fixture.seq, &body)
        };
        // The second one does not fit before the end.
        let places: Vec<u64> = (0..3).map(|i| place(i, &mut fixture)).collect();
        assert_eq!(places[..2], [3 * LANE - 192, 3 * LANE]);
        let Some(i) = damaged else {
            let (engine, _) = fixture.recover_soundly();
            assert_eq!(missing(&engine, 2..5), []);
            continue;
        };
        fixture.flip(4, places[i], 300);
        let (losses, engine) = fixture.lost();
        assert_eq!(losses, [(4, lost, lost)]);
        assert_eq!(missing(&engine, 2..5), [2 + i as u64]);
    }
}

#[test]
fn a_mark_tells_how_far_lanes_must_be_readable() {
    // The last record of its lane: nothing lies behind it.
    for (power_lost, acked, damaged) in [
        (false, false, true),
        (false, true, true),
        (true, false, false),
        (true, true, true),
    ] {
        let (mut fixture, places) = with_files(Medium::File, 30);
        fixture.mark(5);
        if acked {
            fixture.mark(6);
        }
        let (lane, at) = places[29];
        fixture.flip(lane, at, 300);
        if power_lost {
            fixture.lose_power();
        }
        if damaged {
            let (losses, engine) = fixture.lost();
            assert_eq!(losses, [(lane, 30, 30)]);
            assert_eq!(missing(&engine, 2..32), [31]);
        } else {
            let (engine, _) = fixture.recover_soundly();
            assert_eq!(missing(&engine, 2..32), [31]);
        }
    }
}

#[test]
fn a_lane_that_was_leapt_over_and_a_journal_half_emptied_are_no_damage() {
    let (fixture, places) = with_files(Medium::File, 60);
    let mut engine = fixture.engine();
    engine.journal.read(usize::MAX);
    engine.apply(20, u64::MAX, |_| true).unwrap();
    engine.journal.reset_lanes(61);
    engine.commit_positions().unwrap();
    drop(engine);
    // It died while it emptied the journal.
    fixture.write_at(0, 0, &[0; 512]);
    fixture.flip(places[40].0, places[40].1, 300);
    let (engine, recovered) = fixture.recover_soundly();
    assert_eq!(recovered.records, 0);
    assert_eq!(missing(&engine, 2..22), []);
}

#[test]
fn a_pool_that_was_closed_has_no_damaged_journal() {
    let (fixture, places) = with_files(Medium::Memory, 30);
    let (mut engine, _) = fixture.recover().unwrap();
    engine.close().unwrap();
    drop(engine);
    let (again, _) = with_files(Medium::Memory, 30);
    let bytes = std::fs::read(again.path.join("journal-0.seg")).unwrap();
    fixture.journal.write_all_at(&bytes, 0).unwrap();
    fixture.flip(places[8].0, places[8].1, 200);
    assert!(fixture.findings().is_empty());
    fixture.recover().map(drop).unwrap();
}

#[test]
fn the_journal_of_an_ordinary_file_keeps_its_blocks() {
    use std::os::unix::fs::MetadataExt;
    let mut fixture = Fixture::file("blocks");
    let blocks = |fixture: &Fixture| fixture.journal.metadata().unwrap().blocks();
    assert_eq!(blocks(&fixture), 16 * LANE / 512);
    fixture.put(3, &file(9));
    fixture.recover_soundly();
    assert_eq!(blocks(&fixture), 16 * LANE / 512);
    let mut bytes = vec![1; 16 * LANE as usize];
    fixture.journal.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|b| *b == 0));
}
