//! The bitmaps against crashes between their copies, and allocation rules.

use super::*;

fn geometry() -> Geometry {
    Geometry::new([1 << 20, 4 << 20], [256 << 20, 1 << 30], 1 << 20).unwrap()
}

fn meta() -> Region {
    Region::in_memory(1 << 20).unwrap()
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

/// Every fifth block of the first two whole extents is in use, and the third is free as a whole.
fn fragmented() -> Space {
    let mut space = Space::new(Kind::Data, &geometry());
    let all = space.alloc_run(3 * 512, 512).unwrap();
    for start in (0..1024).step_by(5) {
        space.mark_used(Run::new(start, 1)).unwrap();
    }
    for start in (0..1020).step_by(5) {
        space.release(Run::new(start + 1, 4)).unwrap();
    }
    space.release(Run::new(1021, 3)).unwrap();
    space.release(Run::new(1024, 512)).unwrap();
    assert_eq!(all.start, 0);
    space
}

fn short(space: &Space, any: bool) -> Vec<Run> {
    let mut at = 0;
    core::iter::from_fn(|| {
        let run = space.next_short(at, u64::MAX, any)?;
        at = run.end();
        Some(run)
    })
    .collect()
}

#[test]
fn short_ones_are_what_is_free_beside_what_is_not() {
    let mut space = fragmented();
    let resident = short(&space, false);
    assert_eq!(resident, short(&space, true));
    assert_eq!(resident[0], Run::new(1, 4));
    // Those that reach over the end of a whole extent come in two.
    assert!(resident.contains(&Run::new(511, 1)) && resident.contains(&Run::new(512, 3)));
    assert_eq!(resident.iter().map(|run| run.len).sum::<u64>(), 1024 - 205);
    assert_eq!(space.count_resident(), 1024 - 205 + 512);
    for run in &resident {
        space.reserve(*run).unwrap();
    }
    assert!(short(&space, true).is_empty());
    assert_eq!(space.count_resident(), 512);
    let whole = space.alloc_run(512, 512).unwrap();
    assert_eq!((whole.start, space.count_resident()), (1024, 0));
}

#[test]
fn what_lost_its_memory_is_only_found_when_asked_for() {
    let mut space = fragmented();
    space.punched(Run::new(0, 512));
    assert!(!space.is_resident(Run::new(1, 4)) && space.is_resident(Run::new(516, 4)));
    assert!(short(&space, false).iter().all(|run| run.start >= 512));
    assert_eq!(short(&space, true)[0], Run::new(1, 4));
    let none = Space::new(Kind::Data, &geometry());
    assert!(short(&none, true).is_empty() && short(&none, false).is_empty());
}
