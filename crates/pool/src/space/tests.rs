//! The bitmaps against crashes between their copies, and allocation rules.

use super::*;
use holdfast_pmem::NoRecord;

fn geometry() -> Geometry {
    Geometry::new([1 << 20, 4 << 20], [256 << 20, 1 << 30], 1 << 20).unwrap()
}

fn meta() -> Region<NoRecord> {
    Region::in_memory(1 << 20, NoRecord).unwrap()
}

#[test]
fn a_commit_that_never_happened_leaves_nothing() {
    let meta = meta();
    let mut data = Space::new(Kind::Data, &geometry());
    let run = data.alloc_run(10, 1).unwrap();
    data.mark_used(run).unwrap();
    data.write(&meta, 1).unwrap();
    let other = data.alloc_run(7, 1).unwrap();
    data.mark_used(other).unwrap();
    data.write(&meta, 2).unwrap();
    // Superblock 2 was never written: what commit 2 left must not come into force by a later
    // commit with a higher seq.
    let mut data = Space::open(Kind::Data, &geometry(), &meta, 1).unwrap();
    assert_eq!(data.count_used(), 10);
    data.write(&meta, 3).unwrap();
    let data = Space::open(Kind::Data, &geometry(), &meta, 3).unwrap();
    assert!(data.is_used(run) && data.is_free(other));
}

#[test]
fn meta_space_never_hands_out_its_own_bitmaps() {
    let mut space = Space::new(Kind::Meta, &geometry());
    let run = space.alloc_run(1, 1).unwrap();
    assert_eq!(run.start, geometry().first_node());
    assert!(space.mark_unused(Run::new(0, 1)).is_err());
    assert!(space.release(Run::new(2, 1)).is_err());
}

#[test]
fn runs_are_aligned_where_there_is_room() {
    let mut space = Space::new(Kind::Data, &geometry());
    space.alloc_run(3, 1).unwrap();
    let big = space.alloc_best(512, 512).unwrap();
    assert_eq!((big.start % 512, big.len), (0, 512));
    assert!(space.alloc_run(1 << 40, 1).is_none());
    let mut held = 0;
    while let Some(run) = space.alloc_best(512, 512) {
        held += run.len;
    }
    assert_eq!(held + 3 + 512, space.len());
    assert_eq!(space.count_free(), 0);
}

#[test]
fn only_what_is_held_can_be_given() {
    let mut space = Space::new(Kind::Data, &geometry());
    let run = space.alloc_run(8, 1).unwrap();
    assert!(space.mark_unused(run).is_err());
    space.mark_used(run).unwrap();
    assert!(space.release(run).is_err());
    assert!(space.mark_used(run).is_err());
    space.mark_unused(run).unwrap();
    space.release(run).unwrap();
    for run in [
        Run::new(u64::MAX, 2),
        Run::new(5, u64::MAX),
        Run::new(1 << 40, 1),
        Run::new(1, 0),
    ] {
        assert!(space.mark_used(run).is_err() && space.release(run).is_err());
    }
}
