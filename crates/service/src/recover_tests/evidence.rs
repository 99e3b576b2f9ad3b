//! What recovery applies after a loss of power, rule by rule, with evidence and without.

use super::*;

/// What may prove something, whether it lies behind the record in question, a record made from
/// its own number, and what the block shows then.
type Proof = (&'static str, bool, fn(u64) -> Body, Option<u8>);

const PROOFS: &[Proof] = &[
    ("nothing", true, |_| create(9, b"other", 0o100_644), None),
    ("data", true, |_| data(40, &[5; 4096]), Some(5)),
    ("data before", false, |_| data(40, &[5; 4096]), None),
    ("data elsewhere", true, |_| data(41, &[5; 4096]), None),
    ("in place", true, |n| in_place(n, &[(38, 5)]), Some(STALE)),
    ("all in place", true, |n| in_place(n, &[]), Some(STALE)),
    ("too old", true, |_| in_place(2, &[(38, 5)]), None),
    ("beside", true, |n| in_place(n, &[(41, 5), (0, 40)]), None),
    ("in place before", false, |_| in_place(9, &[(40, 1)]), None),
    ("a promise", false, |_| in_place(u64::MAX, &[]), None),
];

#[test]
fn only_blocks_with_evidence_are_mapped_after_a_loss_of_power() {
    for (what, behind, proof, want) in PROOFS {
        for power_lost in [true, false] {
            let mut fixture = Fixture::file("evidence");
            fixture.fill(40, STALE);
            if *behind {
                fixture.put(1, &extent(0, 40, 1, 4096));
                fixture.put(2, &proof(fixture.seq + 1));
            } else {
                fixture.put(2, &proof(fixture.seq + 1));
                fixture.put(1, &extent(0, 40, 1, 4096));
            }
            fixture.mark(3);
            let (engine, _) = match power_lost {
                true => fixture.recovered(),
                false => fixture.recover_soundly(),
            };
            // The death of processes alone loses nothing, and nothing is copied for it.
            let want = if power_lost { *want } else { Some(STALE) };
            let what = format!("{what}, power lost: {power_lost}");
            assert_eq!(shown(&engine, 2), [want, None], "{what}");
            let size = if want.is_some() { 4096 } else { 0 };
            assert_eq!(size_and_times(&engine), (size, 7, 8), "{what}");
        }
    }
}

#[test]
fn an_extent_is_split_where_a_part_has_evidence_but_not_in_a_strict_pool() {
    for consistency in [Consistency::Posix, Consistency::Strict] {
        let strict = consistency == Consistency::Strict;
        let mut fixture = Fixture::new("parts", Medium::File, consistency);
        fixture.put(0, &create(INO, b"f", 0o100_644));
        fixture.put(0, &extent(0, 30, 6, 6 * 4096));
        fixture.put(0, &in_place(3, &[(30, 6)]));
        (30..46).for_each(|block| fixture.fill(block, block as u8));
        fixture.put(0, &extent(0, 40, 6, 5 * 4096 + 9));
        fixture.put(1, &data(41, &[1; 5000]));
        fixture.put(1, &in_place(6, &[(44, 1)]));
        fixture.mark(2);
        let (engine, recovered) = fixture.recovered();
        let want = match strict {
            true => [30, 31, 32, 33, 34, 35],
            false => [30, 1, 1, 33, 44, 35],
        };
        assert_eq!(shown(&engine, 6), want.map(Some));
        assert_eq!(recovered.skipped, u64::from(strict));
        let size = if strict { 6 * 4096 } else { 5 * 4096 + 9 };
        assert_eq!(size_and_times(&engine).0, size);
        // Zeroes follow the bytes to the end of their last block.
        let mut end = [9; 2];
        engine.store.data.read(42 * BLOCK + 903, &mut end).unwrap();
        assert_eq!(end, [1, 0]);
    }
}

#[test]
fn an_extent_with_evidence_for_all_is_taken_over_in_a_strict_pool() {
    let mut fixture = Fixture::new("strict", Medium::File, Consistency::Strict);
    fixture.put(0, &create(INO, b"f", 0o100_644));
    fixture.put(0, &extent(0, 40, 3, 3 * 4096));
    fixture.put(1, &data(42, &[1; 1]));
    fixture.put(1, &in_place(4, &[(40, 1), (41, 1)]));
    (40..43).for_each(|block| fixture.fill(block, block as u8));
    fixture.mark(2);
    let (engine, recovered) = fixture.recovered();
    assert_eq!(shown(&engine, 3), [Some(40), Some(41), Some(1)]);
    assert_eq!(recovered.skipped, 0);
}

#[test]
fn bytes_are_copied_unless_newer_ones_are_in_place() {
    for (before, runs, want) in [
        (4, &[(40, 2)][..], STALE),
        (4, &[], STALE),
        (3, &[(40, 2)], 5),
        (3, &[], 5),
        (9, &[(41, 100)], 5),
        (9, &[(0, u64::MAX)], STALE),
        (u64::MAX, &[(40, 1)], STALE),
    ] {
        let mut fixture = Fixture::file("superseded");
        fixture.fill(40, STALE);
        fixture.put(1, &extent(0, 40, 1, 4096));
        fixture.put(1, &data(40, &[5; 4096]));
        fixture.seq = 9;
        fixture.put(1, &in_place(before, runs));
        fixture.mark(1);
        let (engine, _) = fixture.recovered();
        assert_eq!(shown(&engine, 1), [Some(want)], "{before} {runs:?}");
    }
}

#[test]
fn the_last_bytes_of_a_block_win() {
    let mut fixture = Fixture::file("order");
    fixture.put(3, &extent(0, 40, 1, 4096));
    fixture.put(2, &data(40, &[1; 4096]));
    fixture.put(1, &data(40, &[2; 10]));
    fixture.mark(0);
    let (engine, _) = fixture.recovered();
    let mut bytes = [9; 11];
    engine.store.data.read(40 * BLOCK, &mut bytes).unwrap();
    assert_eq!(bytes, [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0]);
}

fn in_blocks(len: u64, block: u64) -> Vec<u8> {
    let mut f = words(&[len, block]);
    f.extend(1_u32.to_le_bytes());
    f.extend(0_u32.to_le_bytes());
    f
}

fn spilled(block: u64, changes: &[u8]) -> Body {
    let len = changes.len() as u64;
    let mut f = words(&[9, len]);
    f.extend(crc32c(changes).to_le_bytes());
    f.extend(in_blocks(len, block));
    (18, f)
}

fn has_value(engine: &Engine, key: &[u8]) -> bool {
    let key = [&INO.to_be_bytes()[..], key].concat();
    let mut value = [0; 4096];
    let found = engine
        .store
        .pool
        .reader()
        .get(holdfast_pool::layout::VALUES, &key, &mut value);
    found.unwrap().is_some()
}

#[test]
fn values_in_blocks_come_before_their_records_and_spilled_changes_need_their_bytes() {
    let put = |key: &[u8], block| change(2, INO, key, &in_blocks(4096, block));
    for proved in [false, true] {
        let mut fixture = Fixture::new("values", Medium::File, Consistency::Posix);
        fixture.put(0, &create(INO, b"k", 0o040_755));
        fixture.put(0, &(16, words(&[INO, 5])));
        // What has the bytes of a value comes before the record that names it: if it is not in the
        // journal any more, a checkpoint has put them in place.
        fixture.put(0, &batch(&put(b"key", 40)));
        // Changes in block 41: in place if proved, else as the loss of power left it.
        let changes = change(1, INO, b"spilled", b"value");
        if proved {
            fixture.data.write_all_at(&changes, 41 * BLOCK).unwrap();
        }
        fixture.put(2, &spilled(41, &changes));
        // These are there, and name a value whose bytes are older than the journal.
        let named = put(b"named", 43);
        fixture.data.write_all_at(&named, 42 * BLOCK).unwrap();
        fixture.put(2, &spilled(42, &named));
        // The bytes of this one are in the journal alone.
        let other = change(1, INO, b"journaled", b"value");
        fixture.put(2, &spilled(44, &other));
        if proved {
            fixture.put(3, &data(44, &other));
        }
        fixture.put(0, &batch(&change(1, INO, b"plain", b"v")));
        fixture.mark(0);
        let (engine, recovered) = fixture.recovered();
        for key in [&b"plain"[..], b"key", b"named"] {
            assert!(has_value(&engine, key), "{}", key.escape_ascii());
        }
        for key in [&b"spilled"[..], b"journaled"] {
            assert_eq!(has_value(&engine, key), proved, "{}", key.escape_ascii());
        }
        assert_eq!(recovered.rejected, None);
        assert_eq!(recovered.skipped, if proved { 0 } else { 2 });
    }
}

#[test]
fn a_write_to_blocks_that_are_not_mapped_is_skipped() {
    let write = |offset: u64, byte: u8| {
        let fields = words(&[INO, offset, 8192, 9]);
        (14, [fields, vec![byte; 16]].concat())
    };
    let mut fixture = Fixture::file("write");
    fixture.put(0, &extent(0, 40, 1, 8192));
    fixture.put(0, &in_place(3, &[]));
    fixture.put(0, &extent(1, 41, 1, 8192));
    fixture.put(0, &write(0, 3));
    fixture.put(0, &write(4096, 4));
    fixture.put(0, &create(3, b"later", 0o100_644));
    fixture.mark(0);
    let (engine, recovered) = fixture.recovered();
    assert_eq!(shown(&engine, 2), [Some(3), None]);
    assert!(exists(&engine, 3));
    assert_eq!((recovered.skipped, recovered.rejected), (1, None));
}

#[test]
fn missing_numbers_are_void_below_a_sound_mark_and_end_recovery_above() {
    for (sound, want) in [(true, [true, true, false]), (false, [true, false, false])] {
        let mut fixture = Fixture::file("void");
        fixture.put(1, &create(3, b"3", 0o100_644));
        fixture.seq += 1;
        fixture.put(2, &create(4, b"4", 0o100_644));
        let mut claimed = fixture.heads;
        // A lane that could not be read as far as it was makes a mark unsound.
        claimed[5] = if sound { 0 } else { 64 };
        fixture.put(3, &mark(fixture.seq, 0, claimed, [0; 16]));
        fixture.seq += 1;
        fixture.put(1, &create(5, b"5", 0o100_644));
        let (engine, _) = fixture.recovered();
        assert_eq!([3, 4, 5].map(|ino| exists(&engine, ino)), want);
    }
    let mut fixture = Fixture::file("void");
    fixture.seq += 1;
    fixture.put(1, &create(3, b"3", 0o100_644));
    let (engine, _) = fixture.recover_soundly();
    assert!(exists(&engine, 3), "dead writers leave void numbers");
}

#[test]
fn recovery_that_was_interrupted_still_knows_that_power_was_lost() {
    let mut fixture = Fixture::file("again");
    fixture.fill(40, STALE);
    fixture.put(0, &extent(0, 40, 1, 4096));
    fixture.mark(0);
    fixture.lose_power();
    // The first record was applied by one that died.
    let mut engine = fixture.engine();
    engine.journal.read(usize::MAX);
    engine.apply(1, u64::MAX, |_| true).unwrap();
    engine.store.checkpoint().unwrap();
    drop(engine);
    let (engine, recovered) = fixture.recover().unwrap();
    assert_eq!(shown(&engine, 1), [None]);
    assert_eq!(recovered.records, 2);
    drop(engine);
    let engine = fixture.engine();
    assert_eq!(
        engine.store.pool.superblock().boot_id,
        crate::base::process::boot_id().unwrap(),
        "it is noted at the end"
    );
}
