//! The live page: the current roots for readers that take no lock.
//!
//! What always holds here: the page is volatile and rewritten whenever the pool is opened; only
//! the writer stores to it; the lock word is odd while roots change; `oldest_intact` never
//! exceeds `seq`, never goes back, and is raised before a page is reused that a root with a
//! lower seq can reach.

use super::geometry::LIVE_PAGE;
use super::superblock::Root;
use super::{PAGE_LEN, TREES};
use crate::error::{Error, Result};
use core::hint::spin_loop;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use holdfast_pmem::{Record, Region};

const BASE: u64 = LIVE_PAGE * PAGE_LEN;
const MAGIC: u64 = u64::from_le_bytes(*b"HFLIVE01");
const AT_LOCK: u64 = 8;
const AT_OLDEST: u64 = 16;
const AT_SEQ: u64 = 24;
const AT_ROOTS: u64 = 64;
/// Looks at an odd lock word before a reader gives up: a writer holds it for nanoseconds.
const SPINS_MAX: usize = 1 << 20;

/// A tree at one committed state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveRoot {
    /// The commit that this root belongs to.
    pub seq: u64,
    pub root: Root,
}

fn word<R: Record>(meta: &Region<R>, at: u64) -> Result<&AtomicU64> {
    meta.word(BASE + at).ok_or(Error::Geometry {
        what: "meta.seg has no live page",
    })
}

#[inline]
fn at_root(tree: usize) -> u64 {
    AT_ROOTS + 16 * tree as u64
}

/// Publishes the roots of commit `seq`, then how far back roots are intact.
pub(crate) fn publish<R: Record>(
    meta: &Region<R>,
    seq: u64,
    oldest_intact: u64,
    roots: &[Root; TREES],
) -> Result<()> {
    let lock = word(meta, AT_LOCK)?;
    let held = lock.load(Ordering::Relaxed) | 1;
    lock.store(held, Ordering::Relaxed);
    fence(Ordering::Release);
    for (i, root) in roots.iter().enumerate() {
        word(meta, at_root(i))?.store(root.addr, Ordering::Relaxed);
        let packed = root.keys << 8 | u64::from(root.height);
        word(meta, at_root(i) + 8)?.store(packed, Ordering::Relaxed);
    }
    word(meta, AT_SEQ)?.store(seq, Ordering::Relaxed);
    lock.store(held.wrapping_add(1), Ordering::Release);
    word(meta, 0)?.store(MAGIC, Ordering::Release);
    set_oldest_intact(meta, oldest_intact)
}

/// Says that roots before `seq` are no longer intact. The caller fences before it reuses pages.
pub(crate) fn set_oldest_intact<R: Record>(meta: &Region<R>, seq: u64) -> Result<()> {
    word(meta, AT_OLDEST)?.store(seq, Ordering::Release);
    Ok(())
}

/// The lowest seq whose roots are still intact.
#[inline]
pub fn oldest_intact<R: Record>(meta: &Region<R>) -> Result<u64> {
    Ok(meta.load_u64(BASE + AT_OLDEST)?)
}

/// Runs `load` until no writer changed the roots meanwhile.
#[inline]
fn consistent<R: Record, T>(meta: &Region<R>, mut load: impl FnMut() -> Result<T>) -> Result<T> {
    if meta.load_u64(BASE)? != MAGIC {
        return Err(Error::Damaged {
            what: "magic of the live page",
            page: LIVE_PAGE,
        });
    }
    for _ in 0..SPINS_MAX {
        let before = meta.load_u64(BASE + AT_LOCK)?;
        let value = load()?;
        fence(Ordering::Acquire);
        if before & 1 == 0 && meta.load_u64(BASE + AT_LOCK)? == before {
            return Ok(value);
        }
        spin_loop();
    }
    Err(Error::Busy)
}

fn load_root<R: Record>(meta: &Region<R>, tree: usize) -> Result<Root> {
    let addr = meta.load_u64(BASE + at_root(tree))?;
    let packed = meta.load_u64(BASE + at_root(tree) + 8)?;
    Ok(Root {
        addr,
        height: packed as u8,
        keys: packed >> 8,
    })
}

/// The current root of tree `tree` (below [`TREES`]).
#[inline]
pub fn root<R: Record>(meta: &Region<R>, tree: usize) -> Result<LiveRoot> {
    consistent(meta, || {
        let root = load_root(meta, tree % TREES)?;
        Ok(LiveRoot {
            seq: meta.load_u64(BASE + AT_SEQ)?,
            root,
        })
    })
}

/// All roots of one commit, and its seq.
pub fn roots<R: Record>(meta: &Region<R>) -> Result<(u64, [Root; TREES])> {
    consistent(meta, || {
        let mut roots = [Root::default(); TREES];
        for (i, root) in roots.iter_mut().enumerate() {
            *root = load_root(meta, i)?;
        }
        Ok((meta.load_u64(BASE + AT_SEQ)?, roots))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_pmem::NoRecord;

    #[test]
    fn roots_come_back_and_an_odd_lock_is_busy() {
        let meta = Region::in_memory(4 * 4096, NoRecord).unwrap();
        assert!(matches!(root(&meta, 0), Err(Error::Damaged { .. })));
        let mut all = [Root::default(); TREES];
        all[3] = Root {
            addr: 77,
            height: 2,
            keys: 5000,
        };
        publish(&meta, 9, 4, &all).unwrap();
        assert_eq!(
            root(&meta, 3).unwrap(),
            LiveRoot {
                seq: 9,
                root: all[3]
            }
        );
        assert_eq!(roots(&meta).unwrap(), (9, all));
        assert_eq!(oldest_intact(&meta).unwrap(), 4);
        word(&meta, AT_LOCK)
            .unwrap()
            .fetch_add(1, Ordering::Relaxed);
        assert!(matches!(root(&meta, 3), Err(Error::Busy)));
    }
}
