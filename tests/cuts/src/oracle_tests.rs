//! The oracle finds each kind of loss, and calls nothing a loss that may be.

use crate::disk::Position;
use crate::dump::Seen;
use crate::history::{
    Change, Commit, Event, File, History, Naming, Op, Rewrite, Snapshot, Span, Sync,
};
use crate::oracle::{Promise, Rules, content_after, judge, judge_snapshot};
use crate::pattern;

const POSIX: Rules = Rules {
    promise: Promise::Posix,
    whole: true,
};
const STRICT: Rules = Rules {
    promise: Promise::Strict,
    whole: true,
};

fn span(begun: Position, done: Position) -> Span {
    Span {
        begun,
        done: Some(done),
    }
}

fn op(change: Change, begun: Position) -> Op {
    Op {
        change,
        span: span(begun, begun + 1),
        alone: false,
        passage: "",
    }
}

fn write(at: u64, len: u64, begun: Position) -> Op {
    op(Change::Write { at, len }, begun)
}

fn sync(at: Position, covers: usize) -> Sync {
    let how = "fsync".into();
    Sync { at, covers, how }
}

/// A file `d0/a` (number 1) that is there from the beginning.
fn one(ops: Vec<Op>, syncs: Vec<Sync>) -> History {
    let mut history = History::default();
    add(&mut history, 1, "d0/a", ops, syncs);
    history
}

fn add(history: &mut History, id: u32, name: &str, ops: Vec<Op>, syncs: Vec<Sync>) {
    let name = name.to_string();
    history.events.push(Event {
        naming: Naming::Create { name, id },
        span: span(0, 0),
    });
    let file = File {
        id,
        ops,
        syncs,
        rewrites: Vec::new(),
    };
    history.files.insert(id, file);
    history.name_syncs.push((0, history.events.len()));
}

fn seen(files: &[(&str, Vec<u8>)]) -> Seen {
    let entries = files
        .iter()
        .map(|(name, bytes)| (name.to_string(), bytes.clone()));
    entries.chain([("d0/".to_string(), Vec::new())]).collect()
}

/// What is said of `d0/a` with these bytes at this cut: the class, or nothing.
fn class(history: &History, cut: Position, rules: Rules, bytes: &[u8]) -> String {
    let wrong = judge(history, cut, rules, &seen(&[("d0/a", bytes.to_vec())]));
    let first = wrong.first().cloned().unwrap_or_default();
    first.split(' ').next().unwrap_or_default().to_string()
}

#[test]
fn synced_bytes_are_missed_when_they_are_zero_cut_old_or_foreign() {
    let history = one(vec![write(0, 3000, 1), write(100, 50, 3)], vec![sync(9, 2)]);
    let good = content_after(&history.files[&1], 2);
    assert_eq!(class(&history, 9, POSIX, &good), "");
    assert_eq!(class(&history, 9, POSIX, &vec![0; 3000]), "LOST");
    assert_eq!(class(&history, 9, POSIX, &good[..2000]), "LOST");
    let old = content_after(&history.files[&1], 1);
    assert_eq!(class(&history, 9, POSIX, &old), "LOST");
    assert_eq!(class(&history, 8, POSIX, &old), "", "not acknowledged yet");
    let mut foreign = good.clone();
    foreign[800..1600].copy_from_slice(&pattern::fill(2, 0, 0, 800));
    assert_eq!(class(&history, 9, POSIX, &foreign), "FOREIGN");
    assert_eq!(class(&history, 8, POSIX, &foreign), "FOREIGN");
    foreign[800..1600].copy_from_slice(&pattern::fill(1, 0, 0, 800));
    assert_eq!(
        class(&history, 8, POSIX, &foreign),
        "FOREIGN",
        "of another place"
    );
}

#[test]
fn unsynced_changes_may_be_there_in_part() {
    let ops = vec![write(0, 400, 1), write(400, 300, 20)];
    let history = one(ops, vec![sync(9, 1)]);
    let mut bytes = content_after(&history.files[&1], 2);
    assert_eq!(class(&history, 30, POSIX, &bytes), "");
    bytes[500..700].fill(0);
    assert_eq!(class(&history, 30, POSIX, &bytes), "");
    assert_eq!(class(&history, 30, POSIX, &bytes[..400]), "");
    assert_eq!(
        class(&history, 19, POSIX, &bytes),
        "FOREIGN",
        "not begun yet"
    );
    bytes[399] = 0;
    assert_eq!(class(&history, 30, POSIX, &bytes), "LOST", "synced before");
}

#[test]
fn a_write_that_is_durable_alone_covers_its_own_bytes() {
    let mut ops = vec![write(0, 1000, 1), write(500, 100, 5)];
    ops[1].alone = true;
    let history = one(ops, Vec::new());
    let mut bytes = content_after(&history.files[&1], 2);
    bytes[..500].fill(0);
    assert_eq!(class(&history, 6, POSIX, &bytes[..600]), "");
    assert_eq!(class(&history, 6, POSIX, &bytes[..599]), "LOST");
    bytes[550] = 0;
    assert_eq!(class(&history, 6, POSIX, &bytes), "LOST");
}

#[test]
fn strict_writes_are_there_as_a_whole_or_not_at_all() {
    let history = one(vec![write(0, 2000, 1), write(0, 2000, 5)], Vec::new());
    let old = content_after(&history.files[&1], 1);
    let new = content_after(&history.files[&1], 2);
    assert_eq!(class(&history, 5, STRICT, &old), "");
    assert_eq!(class(&history, 5, STRICT, &new), "");
    let torn = [&new[..1000], &old[1000..]].concat();
    assert_eq!(class(&history, 5, STRICT, &torn), "TORN");
    assert_eq!(class(&history, 6, STRICT, &old), "LOST", "it had returned");
}

#[test]
fn a_file_renamed_over_another_is_old_or_new_as_a_whole() {
    let mut history = one(vec![write(0, 900, 1)], vec![sync(3, 1)]);
    add(&mut history, 2, "d0/b", vec![write(0, 700, 5)], Vec::new());
    history.events.push(Event {
        naming: Naming::Rename {
            from: "d0/b".into(),
            to: "d0/a".into(),
            over: true,
            ops: 1,
        },
        span: span(10, 11),
    });
    let (old, new) = (pattern::fill(1, 0, 0, 900), pattern::fill(2, 0, 0, 700));
    assert_eq!(class(&history, 20, POSIX, &new), "");
    assert_eq!(class(&history, 20, POSIX, &new[..300]), "LOST");
    assert_eq!(class(&history, 20, POSIX, &[0; 700]), "LOST");
    let both = |a: &[u8], b: &[u8]| seen(&[("d0/a", a.to_vec()), ("d0/b", b.to_vec())]);
    assert!(judge(&history, 20, POSIX, &both(&old, &[])).is_empty());
    assert!(!judge(&history, 20, POSIX, &both(&[0; 900], &[])).is_empty());
}

#[test]
fn a_rewritten_file_is_old_or_a_beginning_of_the_new_one() {
    let ops = vec![
        write(0, 900, 1),
        op(Change::Truncate { len: 0 }, 5),
        write(0, 600, 5),
    ];
    let mut history = one(ops, vec![sync(3, 1)]);
    if let Some(file) = history.files.get_mut(&1) {
        file.rewrites.push(Rewrite {
            op: 1,
            chunk: 200,
            span: span(5, 6),
        });
    }
    let (old, new) = (pattern::fill(1, 0, 0, 900), pattern::fill(1, 2, 0, 600));
    for good in [&old[..], &new, &new[..200], &[]] {
        assert_eq!(class(&history, 9, POSIX, good), "");
    }
    assert_eq!(class(&history, 9, POSIX, &[0; 600]), "MIXED");
    assert_eq!(class(&history, 5, POSIX, &[0; 600]), "", "not closed yet");
    // Each piece is atomic where writes are; while the pieces come, any number of them is there.
    assert_eq!(class(&history, 5, STRICT, &new[..400]), "");
    assert_eq!(class(&history, 5, STRICT, &new[..300]), "TORN");
    assert_eq!(class(&history, 9, STRICT, &new[..400]), "TORN");
}

#[test]
fn names_are_those_of_one_moment_that_is_late_enough() {
    let mut history = one(Vec::new(), Vec::new());
    add(&mut history, 2, "d0/b", Vec::new(), Vec::new());
    history.name_syncs = vec![(10, 2)];
    history.events[1].span = span(5, 6);
    let names = |list: &[&str]| {
        let files: Vec<(&str, Vec<u8>)> = list.iter().map(|name| (*name, Vec::new())).collect();
        judge(&history, 9, POSIX, &seen(&files)).len()
    };
    assert_eq!(names(&["d0/a"]), 0);
    assert_eq!(names(&["d0/a", "d0/b"]), 0);
    assert_eq!(names(&["d0/b"]), 1, "the later one without the earlier one");
    assert_eq!(names(&["d0/a", "d0/c"]), 1);
    let late = judge(&history, 10, POSIX, &seen(&[("d0/a", Vec::new())]));
    assert_eq!(late.len(), 1, "acknowledged as durable");
}

#[test]
fn keys_are_those_after_some_commit() {
    let mut history = History::default();
    for version in 1..=3 {
        history.commits.push(Commit {
            changes: vec![
                ("k0".into(), 8000, Some((version, 50))),
                ("k1".into(), 8001, Some((version, 5000))),
            ],
            durable: version == 1,
            span: span(version as usize * 10, version as usize * 10 + 1),
        });
    }
    let keys = |small: u32, large: u32| {
        seen(&[
            ("k0/8000", pattern::fill(8000, small, 0, 50)),
            ("k1/8001", pattern::fill(8001, large, 0, 5000)),
        ])
    };
    for version in 1..=3 {
        assert!(judge(&history, 50, POSIX, &keys(version, version)).is_empty());
    }
    assert_eq!(
        judge(&history, 50, POSIX, &keys(2, 1)).len(),
        1,
        "half a batch"
    );
    assert_eq!(
        judge(&history, 29, POSIX, &keys(3, 3)).len(),
        1,
        "not begun"
    );
    assert_eq!(judge(&history, 11, POSIX, &seen(&[])).len(), 1, "durable");
    assert!(judge(&history, 9, POSIX, &seen(&[])).is_empty());
}

#[test]
fn a_snapshot_has_what_was_synced_before_it() {
    let ops = vec![write(0, 900, 1), write(0, 10, 20)];
    let history = one(ops, vec![sync(3, 1)]);
    let snapshot = Snapshot {
        name: "s".into(),
        span: span(10, 11),
        events: 1,
        commits: 0,
    };
    let judge = |bytes: Vec<u8>| {
        let seen = seen(&[("d0/a", bytes)]);
        judge_snapshot(&history, &snapshot, POSIX, &seen).len()
    };
    assert_eq!(judge(content_after(&history.files[&1], 1)), 0);
    assert_eq!(
        judge(content_after(&history.files[&1], 2)),
        1,
        "written later"
    );
    assert_eq!(judge(vec![0; 900]), 1);
}
