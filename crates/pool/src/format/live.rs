//! The live page: the current roots for readers that take no lock.
//!
//! What always holds here: the page is volatile and rewritten whenever the pool is opened; only
//! the writer stores to it; of the two sets of roots the one that the turn names is complete and
//! is not stored to until the turn has passed on, so a writer that stops or dies anywhere leaves
//! readers working; `oldest_intact` never exceeds the current seq, never goes back, and is raised
//! before a page is reused that a root with a lower seq can reach.

use super::geometry::LIVE_PAGE;
use super::superblock::Root;
use super::{PAGE_LEN, TREES};
use crate::error::{Error, Result};
use core::sync::atomic::{AtomicU64, Ordering, fence};
use holdfast_pmem::Region;

const BASE: u64 = LIVE_PAGE * PAGE_LEN;
const MAGIC: u64 = u64::from_le_bytes(*b"HFLIVE01");
const AT_TURN: u64 = 8;
const AT_OLDEST: u64 = 16;
const AT_HIDDEN: u64 = 24;
const HIDDEN: u64 = u64::from_le_bytes(*b"HFHIDDEN");
/// The two sets: seq, applied_seq, then the roots.
const AT_SETS: [u64; 2] = [512, 1024];
const AT_APPLIED: u64 = 8;
const AT_ROOTS: u64 = 16;
/// Commits that may pass while a reader loads a few words, before it gives up.
const TRIES_MAX: usize = 1000;

/// A tree at one committed state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveRoot {
    /// The commit that this root belongs to.
    pub seq: u64,
    /// Every journal record up to this number is in it.
    pub applied: u64,
    pub root: Root,
}

fn word(meta: &Region, at: u64) -> Result<&AtomicU64> {
    let missing = Error::Geometry {
        what: "meta.seg has no live page",
    };
    meta.word(BASE + at).ok_or(missing)
}

/// The set of roots that is in force at `turn`.
#[inline]
fn set_of(turn: u64) -> u64 {
    AT_SETS[(turn & 1) as usize]
}

/// Publishes the roots of commit `seq`, which have every record up to `applied`.
pub(crate) fn publish(meta: &Region, seq: u64, applied: u64, roots: &[Root; TREES]) -> Result<()> {
    let turn = word(meta, AT_TURN)?;
    let next = turn.load(Ordering::Relaxed).wrapping_add(1);
    let set = set_of(next);
    // Readers may still look at this set by a turn of long ago: they must see that turn pass
    // before they see any of these stores.
    fence(Ordering::Release);
    word(meta, set)?.store(seq, Ordering::Relaxed);
    word(meta, set + AT_APPLIED)?.store(applied, Ordering::Relaxed);
    for (at, root) in (set + AT_ROOTS..).step_by(16).zip(roots) {
        word(meta, at)?.store(root.addr, Ordering::Relaxed);
        let packed = root.keys << 8 | u64::from(root.height);
        word(meta, at + 8)?.store(packed, Ordering::Relaxed);
    }
    turn.store(next, Ordering::Release);
    word(meta, 0)?.store(MAGIC, Ordering::Release);
    word(meta, AT_HIDDEN)?.store(0, Ordering::Release);
    Ok(())
}

/// Says that no root is intact until the next one is published: readers wait.
pub(crate) fn hide(meta: &Region) -> Result<()> {
    word(meta, AT_HIDDEN)?.store(HIDDEN, Ordering::Release);
    Ok(())
}

/// Whether readers are to wait for the next root.
#[inline]
pub(crate) fn is_hidden(meta: &Region) -> Result<bool> {
    Ok(meta.load_u64(BASE + AT_HIDDEN)? == HIDDEN)
}

/// Says that roots before `seq` are no longer intact. The caller fences before it reuses pages.
pub(crate) fn set_oldest_intact(meta: &Region, seq: u64) -> Result<()> {
    word(meta, AT_OLDEST)?.store(seq, Ordering::Release);
    Ok(())
}

/// The seq of the roots that readers were shown last, as far as the page says.
pub(crate) fn newest(meta: &Region) -> Result<u64> {
    consistent(meta, |set| Ok(meta.load_u64(set)?))
}

/// The lowest seq whose roots are still intact.
#[inline]
pub fn oldest_intact(meta: &Region) -> Result<u64> {
    Ok(meta.load_u64(BASE + AT_OLDEST)?)
}

/// Runs `load` on the set in force until the turn did not pass meanwhile.
#[inline]
fn consistent<T>(meta: &Region, mut load: impl FnMut(u64) -> Result<T>) -> Result<T> {
    if meta.load_u64(BASE)? != MAGIC {
        let what = "magic of the live page";
        return Err(Error::Damaged {
            what,
            page: LIVE_PAGE,
        });
    }
    let mut turn = meta.load_u64(BASE + AT_TURN)?;
    for _ in 0..TRIES_MAX {
        let value = load(BASE + set_of(turn))?;
        fence(Ordering::Acquire);
        let now = meta.load_u64(BASE + AT_TURN)?;
        if now == turn {
            return Ok(value);
        }
        turn = now;
    }
    Err(Error::Busy)
}

#[inline]
fn load_root(meta: &Region, set: u64, tree: usize) -> Result<Root> {
    let at = set + AT_ROOTS + 16 * tree as u64;
    let packed = meta.load_u64(at + 8)?;
    let (height, keys) = (packed as u8, packed >> 8);
    Ok(Root {
        addr: meta.load_u64(at)?,
        height,
        keys,
    })
}

/// The current root of tree `tree` (below [`TREES`]).
#[inline]
pub fn root(meta: &Region, tree: usize) -> Result<LiveRoot> {
    consistent(meta, |set| {
        let root = load_root(meta, set, tree % TREES)?;
        Ok(LiveRoot {
            seq: meta.load_u64(set)?,
            applied: meta.load_u64(set + AT_APPLIED)?,
            root,
        })
    })
}

/// All roots of one commit, and its seq.
pub fn roots(meta: &Region) -> Result<(u64, [Root; TREES])> {
    consistent(meta, |set| {
        let mut roots = [Root::default(); TREES];
        for (i, root) in roots.iter_mut().enumerate() {
            *root = load_root(meta, set, i)?;
        }
        Ok((meta.load_u64(set)?, roots))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some_roots(addr: u64) -> [Root; TREES] {
        let keys = 5000;
        core::array::from_fn(|i| Root {
            addr: addr + i as u64,
            height: 2,
            keys,
        })
    }

    #[test]
    fn roots_come_back() {
        let meta = Region::in_memory(4 * 4096).unwrap();
        assert!(matches!(root(&meta, 0), Err(Error::Damaged { .. })));
        for seq in 9..15 {
            let all = some_roots(100 * seq);
            publish(&meta, seq, seq + 7, &all).unwrap();
            set_oldest_intact(&meta, 4).unwrap();
            let applied = seq + 7;
            let (found, root) = (root(&meta, 3).unwrap(), all[3]);
            assert_eq!(found, LiveRoot { seq, applied, root });
            assert_eq!(roots(&meta).unwrap(), (seq, all));
            assert_eq!(oldest_intact(&meta).unwrap(), 4);
        }
    }

    #[test]
    fn a_writer_that_dies_while_it_publishes_harms_no_reader() {
        let meta = Region::in_memory(4 * 4096).unwrap();
        let all = some_roots(7);
        publish(&meta, 1, 1, &all).unwrap();
        let next = set_of(word(&meta, AT_TURN).unwrap().load(Ordering::Relaxed) + 1);
        for at in (next..next + 16 + 256).step_by(8) {
            word(&meta, at).unwrap().store(u64::MAX, Ordering::Relaxed);
            assert_eq!(roots(&meta).unwrap(), (1, all));
        }
    }
}
