//! Distinguishing damage from what a death or a loss of power may leave.

use super::*;

fn file(ino: u64) -> Body {
    create(ino, format!("name {ino}").as_bytes(), 0o100_644)
}

/// `count` files, from inode 2 on, in lanes 0 to 2, and the places of their records.
fn with_files(medium: Medium, count: u64) -> (Rig, Vec<(usize, u64)>) {
    let mut rig = Rig::new("losses", medium, Consistency::Posix);
    let mut places = Vec::new();
    for i in 0..count {
        rig.seq += 1;
        let lane = (i % 3) as usize;
        places.push((lane, rig.put_as(lane, rig.seq, &file(2 + i))));
    }
    (rig, places)
}

fn missing(engine: &Engine, mut inos: std::ops::Range<u64>) -> Vec<u64> {
    let mut out = Vec::new();
    while let Some(ino) = inos.find(|ino| !exists(engine, *ino)) {
        out.push(ino);
    }
    out
}

/// The pool is as if lane `lane` had gone on to `place`, and all up to number 20000 was applied.
fn with_lane_at(lane: usize, place: u64) -> Rig {
    let mut rig = Rig::new("laps", Medium::Memory, Consistency::Posix);
    let mut engine = rig.engine();
    engine
        .store
        .note(|sb| {
            sb.lanes[lane].start = place;
            sb.lanes.iter_mut().for_each(|lane| lane.applied = 20_000);
            sb.applied_seq = 20_000;
        })
        .unwrap();
    (rig.seq, rig.heads[lane]) = (20_000, place);
    rig
}

#[test]
fn a_flipped_bit_amid_a_lane_is_named_and_costs_one_record() {
    for medium in [Medium::Memory, Medium::File] {
        // Of the numbers in front and of the rest.
        for bit in (0..192).step_by(11).chain((192..640).step_by(97)) {
            let (rig, places) = with_files(medium, 60);
            let (lane, at) = places[8];
            rig.flip(lane, at, bit);
            let (losses, engine) = rig.lost();
            assert_eq!(losses, [(lane, 9, 9)], "bit {bit}");
            assert_eq!(missing(&engine, 2..62), [10], "bit {bit}");
        }
    }
}

#[test]
fn more_damage_is_named_as_a_whole() {
    let (rig, places) = with_files(Medium::Memory, 60);
    for i in [8, 9, 30] {
        rig.flip(places[i].0, places[i].1, 200);
    }
    let (losses, engine) = rig.lost();
    assert_eq!(losses, [(0, 9, 10), (2, 9, 10)]);
    assert_eq!(missing(&engine, 2..62), [10, 11, 32]);
}

#[test]
fn what_needs_a_lost_record_is_given_up_and_nothing_else() {
    let mut rig = Rig::new("needs", Medium::Memory, Consistency::Posix);
    rig.seq += 1;
    let at = rig.put_as(0, 1, &create(INO, b"f", 0o100_644));
    rig.put(1, &extent(0, 40, 1, 4096));
    rig.put(0, &file(3));
    rig.flip(0, at, 250);
    let (losses, engine) = rig.lost();
    assert_eq!(losses, [(0, 1, 1)]);
    assert!(!exists(&engine, INO) && exists(&engine, 3));
}

#[test]
fn a_half_written_last_record_is_no_damage() {
    for medium in [Medium::Memory, Medium::File] {
        for kept in (0..128).step_by(3) {
            let (mut rig, _) = with_files(medium, 30);
            let (kind, fields) = file(99);
            let bytes = record(kind, 1, rig.seq + 1, &fields);
            rig.write_at(1, rig.heads[1], &bytes[..kept.min(fields.len())]);
            // Others went on.
            rig.seq += 1;
            rig.put(2, &file(98));
            let (engine, _) = rig.recover_soundly();
            assert_eq!(missing(&engine, 2..32), []);
            assert!(exists(&engine, 98));
        }
    }
}

#[test]
fn older_laps_and_records_as_content_are_no_damage() {
    let mut dice = Dice(3);
    for round in 0..30 {
        let place = LANE + 64 * dice.below(8000);
        let mut rig = with_lane_at(0, place);
        // Records of the lap before, of values that look like records of this lane with numbers
        // that this lane had then.
        let mut at = 0;
        while at + 40_000 < LANE {
            let seq = 1 + at / 64;
            let content = record(1, 0, seq.saturating_sub(3), &[1; 40]);
            let content = content.repeat(1 + dice.below(300) as usize);
            // Such that they stand at multiples of 64.
            let (kind, fields) = batch(&change(1, 7, b"12345678", &content));
            let bytes = record(kind, 0, seq, &fields);
            assert!(bytes[64..].starts_with(&content[..64]));
            rig.write_at(0, at, &bytes);
            at += bytes.len() as u64;
        }
        let files = dice.below(30);
        for ino in 2..2 + files {
            rig.put(0, &file(ino));
        }
        // The last one is half there: a value that looks like records that are still to come.
        let content = record(1, 0, rig.seq + 2, &[1; 40]).repeat(9);
        let (kind, fields) = batch(&change(1, 7, b"12345678", &content));
        let bytes = record(kind, 0, rig.seq + 1, &fields);
        let kept = dice.below(bytes.len() as u64 - 64) as usize;
        rig.write_at(0, rig.heads[0], &bytes[..kept]);
        let (engine, recovered) = rig.recover_soundly();
        assert_eq!(recovered.rejected, None, "round {round}");
        assert_eq!(missing(&engine, 2..2 + files), []);
    }
}

#[test]
fn a_value_that_looks_like_other_records_hides_no_damage() {
    let mut rig = Rig::new("content", Medium::Memory, Consistency::Posix);
    rig.put(0, &file(2));
    let content = record(1, 0, 3, &[1; 40]).repeat(20);
    rig.seq += 1;
    let body = batch(&change(1, 7, b"12345678", &content));
    let at = rig.put_as(0, 2, &body);
    rig.put(0, &file(3));
    // Its length, then its content: what follows is not its content.
    for bit in [16 * 8 + 13, 50 * 8] {
        rig.flip(0, at, bit);
        let Err(Error::Journal { losses, .. }) = rig.recover() else {
            panic!("bit {bit} was not noticed");
        };
        assert_eq!((losses[0].first, losses[0].last), (2, 2), "bit {bit}");
        assert_eq!(rig.findings().len(), 1);
        rig.flip(0, at, bit);
    }
}

#[test]
fn a_record_before_the_end_of_the_ring_is_not_leapt_over() {
    // What is at the start of the ring would have fitted where the lane seems to end.
    let mut rig = with_lane_at(4, 3 * LANE - 256);
    let at = rig.put_as(4, 20_001, &file(2));
    rig.put_as(4, 20_002, &file(3));
    rig.seq = 20_002;
    let next = rig.put(4, &file(4));
    rig.flip(4, at, 300);
    let (losses, engine) = rig.lost();
    assert_eq!(losses, [(4, 20_001, 20_001)]);
    assert_eq!((next, missing(&engine, 2..5)), (20_003, vec![2]));
}

#[test]
fn a_lane_that_goes_on_at_the_start_of_the_ring_is_read_and_judged() {
    for (damaged, lost) in [(None, 0), (Some(0), 20_001), (Some(1), 20_002)] {
        let mut rig = with_lane_at(4, 3 * LANE - 192);
        let place = |i: u64, rig: &mut Rig| {
            rig.seq += 1;
            let body = create(2 + i, &[b'x'; 60][..60 - i as usize], 0o100_644);
            rig.put_as(4, rig.seq, &body)
        };
        // The second one does not fit before the end.
        let places: Vec<u64> = (0..3).map(|i| place(i, &mut rig)).collect();
        assert_eq!(places[..2], [3 * LANE - 192, 3 * LANE]);
        let Some(i) = damaged else {
            let (engine, _) = rig.recover_soundly();
            assert_eq!(missing(&engine, 2..5), []);
            continue;
        };
        rig.flip(4, places[i], 300);
        let (losses, engine) = rig.lost();
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
        let (mut rig, places) = with_files(Medium::File, 30);
        rig.mark(5);
        if acked {
            rig.mark(6);
        }
        let (lane, at) = places[29];
        rig.flip(lane, at, 300);
        if power_lost {
            rig.lose_power();
        }
        if damaged {
            let (losses, engine) = rig.lost();
            assert_eq!(losses, [(lane, 30, 30)]);
            assert_eq!(missing(&engine, 2..32), [31]);
        } else {
            let (engine, _) = rig.recover_soundly();
            assert_eq!(missing(&engine, 2..32), [31]);
        }
    }
}

#[test]
fn a_lane_that_was_leapt_over_and_a_journal_half_emptied_are_no_damage() {
    let (rig, places) = with_files(Medium::File, 60);
    let mut engine = rig.engine();
    engine.journal.read(usize::MAX);
    engine.apply(20, u64::MAX, |_| true).unwrap();
    engine.journal.reset_lanes(61);
    engine.commit_positions().unwrap();
    drop(engine);
    // It died while it emptied the journal.
    rig.write_at(0, 0, &[0; 512]);
    rig.flip(places[40].0, places[40].1, 300);
    let (engine, recovered) = rig.recover_soundly();
    assert_eq!(recovered.records, 0);
    assert_eq!(missing(&engine, 2..22), []);
}

#[test]
fn a_pool_that_was_closed_has_no_damaged_journal() {
    let (rig, places) = with_files(Medium::Memory, 30);
    let (mut engine, _) = rig.recover().unwrap();
    engine.close().unwrap();
    drop(engine);
    let (again, _) = with_files(Medium::Memory, 30);
    let bytes = std::fs::read(again.path.join("journal-0.seg")).unwrap();
    rig.journal.write_all_at(&bytes, 0).unwrap();
    rig.flip(places[8].0, places[8].1, 200);
    assert!(rig.findings().is_empty());
    rig.recover().map(drop).unwrap();
}

#[test]
fn the_journal_of_an_ordinary_file_keeps_its_blocks() {
    use std::os::unix::fs::MetadataExt;
    let mut rig = Rig::file("blocks");
    let blocks = |rig: &Rig| rig.journal.metadata().unwrap().blocks();
    assert_eq!(blocks(&rig), 16 * LANE / 512);
    rig.put(3, &file(9));
    let (engine, _) = rig.recover_soundly();
    engine.punch_journal(0, LANE);
    assert_eq!(blocks(&rig), 16 * LANE / 512);
    let mut bytes = vec![1; 16 * LANE as usize];
    rig.journal.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|b| *b == 0));
}
