//! Which nodes a process has verified.
//!
//! Invariants: whoever reads with this relies on no node that was written before its session began
//! and that it has not verified once, checksum and every entry; what the session's own service
//! wrote it believes. What rots after it was verified is not noticed.

use crate::format::PAGE_LEN;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use holdfast_pmem::{Error, Region};

/// Nodes that were verified, by page. A copy knows of the same.
#[derive(Clone)]
pub struct Verified {
    /// The commit after which the session began.
    since: u64,
    /// A bit for each page. What was never touched takes no memory.
    bits: Region,
}

impl Verified {
    /// None, of a `meta.seg` of `meta_len` bytes, in a session that began after commit `since`.
    pub fn new(meta_len: u64, since: u64) -> Result<Verified, Error> {
        let words = (meta_len / PAGE_LEN).div_ceil(64).max(1);
        let bits = Region::in_memory(words as usize * 8)?;
        Ok(Verified { since, bits })
    }

    fn word(&self, page: u64) -> Option<&AtomicU64> {
        self.bits.word(page / 64 * 8)
    }

    /// Whether the node in `page`, of commit `birth`, needs no look.
    #[inline]
    pub(super) fn has(&self, page: u64, birth: u64) -> bool {
        let seen = |word: &AtomicU64| word.load(Relaxed) >> (page % 64) & 1 == 1;
        birth > self.since || self.word(page).is_some_and(seen)
    }

    pub(super) fn note(&self, page: u64) {
        if let Some(word) = self.word(page) {
            word.fetch_or(1 << (page % 64), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Reader;
    use super::super::tests::{MIB, pool, token};
    use super::*;
    use crate::error::Error;
    use crate::format::appends::page_of;
    use crate::layout::VALUES;
    use crate::pool::Pool;
    use alloc::vec;

    const KEY: &[u8] = b"a key";

    fn put(pool: &mut Pool, byte: u8) {
        let mut batch = pool.begin(&token());
        batch.put(VALUES, KEY, &[byte; 40]).unwrap();
        batch.put(VALUES, b"another", &[byte; 700]).unwrap();
        batch.commit(|_| {}).unwrap();
    }

    fn leaf(pool: &Pool) -> u64 {
        page_of(pool.superblock().roots[usize::from(VALUES)].addr)
    }

    /// Flips bits of each value byte in the leaf.
    fn rot(pool: &Pool, from: u8) {
        let (at, mut page) = (leaf(pool) * PAGE_LEN, vec![0; PAGE_LEN as usize]);
        pool.meta().read(at, &mut page).unwrap();
        let values = page.iter_mut().filter(|byte| **byte == from);
        values.for_each(|byte| *byte ^= 0x80);
        pool.meta().store(at, &page).unwrap();
    }

    #[test]
    fn what_rotted_before_the_session_is_never_given_out() {
        let mut pool = pool(MIB);
        put(&mut pool, 0x51);
        let since = pool.superblock().seq;
        let new = || Verified::new(pool.meta().len() as u64, since).unwrap();
        let (early, late) = (new(), new());
        let get = |verified: &Verified| {
            let mut value = [0; 40];
            let reader = Reader::new(pool.meta()).verifying(verified);
            let found = reader.get(VALUES, KEY, &mut value);
            found.map(|len| (len, value[0]))
        };
        assert_eq!(get(&early), Ok((Some(40), 0x51)));
        rot(&pool, 0x51);
        // It was verified once: what happens later is not noticed.
        assert_eq!(get(&early), Ok((Some(40), 0xd1)));
        let damaged = |found| matches!(found, Err(Error::Damaged { .. }));
        assert!(damaged(get(&late)) && damaged(get(&late)));
        let mut buf = [0; 40];
        let scan = |verified| {
            let reader = Reader::new(pool.meta()).verifying(verified);
            let root = reader.root(VALUES).unwrap();
            reader.get_split(VALUES, &root, KEY, &mut [], &mut buf)
        };
        assert!(damaged({ scan }(&late).map(|len| (len, 0))));
    }

    #[test]
    fn what_the_session_wrote_is_believed() {
        let mut pool = pool(MIB);
        put(&mut pool, 0x51);
        let since = pool.superblock().seq;
        let verified = Verified::new(pool.meta().len() as u64, since).unwrap();
        // More than is appended.
        (0..30).for_each(|byte| put(&mut pool, byte));
        put(&mut pool, 0x52);
        rot(&pool, 0x52);
        let (mut value, reader) = ([0; 40], Reader::new(pool.meta()).verifying(&verified));
        assert_eq!(reader.get(VALUES, KEY, &mut value), Ok(Some(40)));
        assert!(!verified.has(leaf(&pool), since) && verified.has(leaf(&pool), since + 1));
    }

    #[test]
    fn pages_beyond_are_never_verified() {
        let verified = Verified::new(64 * PAGE_LEN, 5).unwrap();
        for page in [0, 63, 64, 1000, u64::MAX] {
            assert!(!verified.has(page, 5));
            verified.note(page);
            assert_eq!(verified.has(page, 5), page < 64, "{page}");
        }
    }
}
