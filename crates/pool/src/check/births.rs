//! Which snapshots must have which nodes, by the commits in which the nodes were born.
//!
//! Invariants: states are walked from the newest to the oldest. A node that is not younger than a
//! snapshot, below a node that is, existed when the snapshot was taken: it is expected in the
//! newest such snapshot until the walk of that one reaches it. Below a node that is reached again
//! both states are the same, so nothing more is expected there. A snapshot that is being freed
//! already lacks some of its nodes, so none is expected in it. Memory: four bytes per page of
//! `meta.seg` if there are snapshots.

use super::bits::Set;
use super::report::Log;
use super::snapshots::Kept;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

/// What walks over trees have seen.
pub(super) struct Seen {
    /// Pages, in any state.
    pub pages: Set,
    pub births: Births,
}

impl Seen {
    /// Nothing yet, and no snapshots are known.
    pub fn new(meta_pages: u64) -> Seen {
        Seen {
            pages: Set::new(meta_pages),
            births: Births::default(),
        }
    }
}

/// A snapshot by its place among all, the newest first.
pub(super) type Nth = usize;

#[derive(Default)]
pub(super) struct Births {
    /// Those that have all their nodes, with the commit whose state they keep.
    whole: Vec<(u64, Nth)>,
    /// For each page the snapshot that must have it and was not walked yet, plus 1; or 0.
    awaited: Vec<u32>,
}

impl Births {
    /// `kept` are all snapshots, the newest first.
    pub fn new(kept: &[Kept], meta_pages: u64) -> Births {
        let whole = kept.iter().enumerate().filter(|(_, s)| !s.dying);
        let whole: Vec<_> = whole.map(|(n, s)| (s.seq, n)).collect();
        let pages = if whole.is_empty() { 0 } else { meta_pages };
        let awaited = vec![0; pages as usize];
        Births { whole, awaited }
    }

    /// A walk came to the node at `page`, born in commit `birth`, from one of commit `above`. Which
    /// snapshot had to have it.
    pub fn meet(&mut self, page: u64, above: u64, birth: u64) -> Option<Nth> {
        let place = self.awaited.get_mut(page as usize)?;
        let first = self.whole.partition_point(|(seq, _)| *seq >= above);
        let next = self.whole.get(first).filter(|(seq, _)| birth <= *seq);
        let next = next.map_or(0, |(_, n)| *n as u32 + 1);
        let before = core::mem::replace(place, next);
        before.checked_sub(1).map(|n| n as Nth)
    }

    /// After all walks: names the nodes that were not met. `cut_short` are snapshots of which
    /// damage hid some.
    pub fn finish(&self, kept: &[Kept], cut_short: &[Nth], log: &mut Log) {
        for (page, awaited) in self.awaited.iter().enumerate() {
            let n = awaited.checked_sub(1).map(|n| n as Nth);
            if let Some(n) = n.filter(|n| !cut_short.contains(n)) {
                let what = format!(
                    "a node says that it is older than snapshot {:?}, which does not have it",
                    kept[n].name
                );
                log.damage(None, Some(page as u64), what);
            }
        }
    }
}
