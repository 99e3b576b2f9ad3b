//! Hash buckets, whose number grows with the entries of their table.
//!
//! Invariants:
//!  * An entry is in the chain of the bucket with the low bits of its hash or, while that is not in
//!    use, of its nearest ancestor in use: a bucket's parent is the bucket without its highest bit.
//!    The first `FIRST_BUCKETS` are always in use.
//!  * A chain changes under its bucket's lock; while entries leave it, `version` is odd. The lock
//!    also covers all descendants that are not in use.
//!  * A bucket comes into use when it is split off its parent: each entry that belongs to it moves,
//!    and is named in `split` meanwhile. A death in between leaves the parent locked and odd, and
//!    the process that takes the lock over completes the split (`mend`).
//!  * A reader that found nothing without the lock looks up the bucket again: entries may have
//!    moved out of the one that it looked at.

use crate::base::error::Result;
use crate::session::Session;
use crate::session::lock::{self, Changing, Guard, Rank};
use pmem::atomic::{AtomicU32, Ordering::*};
use pool::session::{BUCKETS, Bucket, FIRST_BUCKETS};

/// Chains are short; a longer one is damage.
pub(super) const CHAIN_MAX: usize = 4096;
/// Values of `Bucket::split` beside the link of the entry that is moving.
const NOT_IN_USE: u32 = 0;
const IN_USE: u32 = u32::MAX;

/// A table whose entries are in chains.
pub(super) trait Chains<'s>: Copy {
    /// How many buckets there are: a power of two.
    fn count(self) -> &'s AtomicU32;
    fn bucket(self, index: u32) -> Result<&'s Bucket>;
    /// Starts loading a bucket.
    fn expect(self, index: u32);
    /// The hash of an entry that is in a chain.
    fn hash(self, link: u32) -> Result<u64>;
    fn next(self, link: u32) -> Result<&'s AtomicU32>;
}

/// A bucket and its number.
#[derive(Clone, Copy)]
pub(super) struct Chosen<'s> {
    pub index: u32,
    pub bucket: &'s Bucket,
}

/// The bucket that has the entries with this hash now.
#[inline]
pub(super) fn choose<'s>(t: impl Chains<'s>, hash: u64) -> Result<Chosen<'s>> {
    let mut index = last(t, hash);
    loop {
        let bucket = t.bucket(index)?;
        if index < FIRST_BUCKETS || bucket.split.load(Acquire) == IN_USE {
            return Ok(Chosen { index, bucket });
        }
        index = parent_of(index);
    }
}

/// The bucket of this hash is looked at soon.
#[inline]
pub(super) fn expect<'s>(t: impl Chains<'s>, hash: u64) {
    t.expect(last(t, hash));
}

/// Whether the bucket still is that of the hash.
#[inline]
pub(super) fn is_right<'s>(t: impl Chains<'s>, hash: u64, chosen: Chosen<'_>) -> bool {
    choose(t, hash).is_ok_and(|now| now.index == chosen.index)
}

/// The bucket that the hash will have when all are in use.
#[inline]
fn last<'s>(t: impl Chains<'s>, hash: u64) -> u32 {
    hash as u32 & t.count().load(Relaxed).wrapping_sub(1)
}

#[inline]
fn parent_of(index: u32) -> u32 {
    index & !(1 << index.ilog2())
}

/// Locks the bucket of a hash. What a dead process left half-done there is done.
pub(super) fn lock<'s>(
    s: &'s Session,
    t: impl Chains<'s>,
    hash: u64,
    rank: Rank,
) -> Result<(Chosen<'s>, Guard<'s>)> {
    loop {
        let chosen = choose(t, hash)?;
        let guard = lock::acquire_as(s, &chosen.bucket.lock, rank)?;
        mend(t, chosen)?;
        if is_right(t, hash, chosen) {
            return Ok((chosen, guard));
        }
    }
}

/// As `lock` if the lock is free now.
pub(super) fn try_lock<'s>(
    s: &'s Session,
    t: impl Chains<'s>,
    hash: u64,
) -> Option<(Chosen<'s>, Guard<'s>)> {
    let chosen = choose(t, hash).ok()?;
    let guard = lock::try_acquire(s, &chosen.bucket.lock)?;
    mend(t, chosen).ok()?;
    is_right(t, hash, chosen).then_some((chosen, guard))
}

/// Before an entry is inserted, the one with number `index` of its table: as many buckets as
/// entries, and the one of the hash in use.
pub(super) fn make_ready<'s>(
    s: &'s Session,
    t: impl Chains<'s>,
    hash: u64,
    index: u32,
    rank: Rank,
) -> Result<()> {
    let count = t.count();
    let now = count.load(Relaxed);
    if index >= now && now < BUCKETS as u32 {
        // Somebody else's doubling will do.
        let _ = count.compare_exchange(now, now.wrapping_mul(2), AcqRel, Relaxed);
    }
    // Others may add buckets and split them meanwhile; with one too few all is as right.
    for _ in 0..BUCKETS.ilog2() {
        let wanted = last(t, hash);
        if choose(t, hash)?.index == wanted {
            break;
        }
        let (chosen, _guard) = lock(s, t, hash, rank)?;
        if let Some(child) = next_below(wanted, chosen.index) {
            let _change = Changing::begin(&chosen.bucket.version);
            split_off(t, chosen.bucket, child)?;
        }
    }
    Ok(())
}

/// The child of bucket `above` on the way from `wanted` up to it; `None`: it is that itself.
fn next_below(wanted: u32, above: u32) -> Option<u32> {
    let mut child = wanted;
    while child >= FIRST_BUCKETS && parent_of(child) != above {
        child = parent_of(child);
    }
    (child >= FIRST_BUCKETS && child != above).then_some(child)
}

/// Moves the entries of bucket `child` out of their parent's chain, which is locked and odd.
fn split_off<'s>(t: impl Chains<'s>, parent: &'s Bucket, child: u32) -> Result<()> {
    let bucket = t.bucket(child)?;
    let bits = (2 << child.ilog2()) - 1;
    let mut at = &parent.head;
    for _ in 0..CHAIN_MAX {
        let link = at.load(Relaxed);
        if link == 0 {
            break;
        }
        let next = t.next(link)?;
        if t.hash(link)? as u32 & bits == child {
            bucket.split.store(link, Release);
            at.store(next.load(Relaxed), Release);
            push(bucket, link, next);
            bucket.split.store(NOT_IN_USE, Release);
        } else {
            at = next;
        }
    }
    bucket.split.store(IN_USE, Release);
    Ok(())
}

fn push(bucket: &Bucket, link: u32, next: &AtomicU32) {
    next.store(bucket.head.load(Relaxed), Release);
    bucket.head.store(link, Release);
}

/// Ends what a dead holder of the lock, which is ours now, was in the middle of.
#[inline]
pub(super) fn mend<'s>(t: impl Chains<'s>, chosen: Chosen<'s>) -> Result<()> {
    match chosen.bucket.version.load(Relaxed) & 1 {
        0 => Ok(()),
        _ => mend_slow(t, chosen),
    }
}

#[cold]
fn mend_slow<'s>(t: impl Chains<'s>, Chosen { index, bucket }: Chosen<'s>) -> Result<()> {
    let lowest = FIRST_BUCKETS.max((index + 1).next_power_of_two());
    for bit in lowest.ilog2()..BUCKETS.ilog2() {
        let child = index | 1 << bit;
        let half = t.bucket(child)?;
        let moving = half.split.load(Acquire);
        if moving == IN_USE || moving == NOT_IN_USE && half.head.load(Relaxed) == 0 {
            continue;
        }
        if moving != NOT_IN_USE {
            if !has(t, bucket, moving)? && !has(t, half, moving)? {
                push(half, moving, t.next(moving)?);
            }
            half.split.store(NOT_IN_USE, Release);
        }
        split_off(t, bucket, child)?;
    }
    lock::close_change(&bucket.version);
    Ok(())
}

fn has<'s>(t: impl Chains<'s>, bucket: &Bucket, link: u32) -> Result<bool> {
    let mut at = bucket.head.load(Relaxed);
    for _ in 0..CHAIN_MAX {
        if at == 0 || at == link {
            return Ok(at != 0);
        }
        at = t.next(at)?.load(Relaxed);
    }
    Ok(false)
}

/// Takes an entry out of the chain of a bucket, which is locked and odd.
pub(super) fn unchain<'s>(t: impl Chains<'s>, bucket: &'s Bucket, link: u32) {
    let mut at = &bucket.head;
    for _ in 0..CHAIN_MAX {
        let here = at.load(Relaxed);
        let Ok(next) = t.next(here) else { return };
        if here == link {
            at.store(next.load(Relaxed), Release);
            return;
        }
        at = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// A table of entries that are nothing but a hash.
    struct Fake {
        count: AtomicU32,
        buckets: Vec<Bucket>,
        hashes: Vec<u64>,
        next: Vec<AtomicU32>,
    }

    impl Fake {
        fn new(hashes: Vec<u64>) -> Fake {
            let zero = || AtomicU32::new(0);
            let bucket = || Bucket {
                lock: zero(),
                version: zero(),
                head: zero(),
                split: zero(),
            };
            Fake {
                count: AtomicU32::new(FIRST_BUCKETS),
                buckets: (0..BUCKETS).map(|_| bucket()).collect(),
                next: hashes.iter().map(|_| zero()).collect(),
                hashes,
            }
        }

        fn links(&self) -> impl Iterator<Item = u32> + use<> {
            1..=self.hashes.len() as u32
        }

        fn chain(&self, bucket: &Bucket) -> Vec<u32> {
            let mut links = Vec::new();
            let mut at = bucket.head.load(Relaxed);
            while at != 0 && links.len() <= self.hashes.len() {
                links.push(at);
                at = self.next[at as usize - 1].load(Relaxed);
            }
            links
        }

        /// As `make_ready` and the insertion after it.
        fn insert(&self, link: u32) {
            let hash = self.hashes[link as usize - 1];
            loop {
                let (wanted, chosen) = (last(self, hash), choose(self, hash).unwrap());
                let Some(child) = next_below(wanted, chosen.index) else {
                    break push(chosen.bucket, link, &self.next[link as usize - 1]);
                };
                split_off(self, chosen.bucket, child).unwrap();
            }
        }

        /// Each of the first `inserted` entries is where its hash leads, and nowhere else.
        fn check(&self, inserted: u32) {
            let all = self.buckets.iter().map(|bucket| self.chain(bucket).len());
            assert_eq!(all.sum::<usize>(), inserted as usize);
            for link in 1..=inserted {
                let chosen = choose(self, self.hashes[link as usize - 1]).unwrap();
                assert!(self.chain(chosen.bucket).contains(&link), "entry {link}");
            }
        }
    }

    impl<'s> Chains<'s> for &'s Fake {
        fn count(self) -> &'s AtomicU32 {
            &self.count
        }

        fn bucket(self, index: u32) -> Result<&'s Bucket> {
            Ok(&self.buckets[index as usize])
        }

        fn expect(self, _: u32) {}

        fn hash(self, link: u32) -> Result<u64> {
            Ok(self.hashes[link as usize - 1])
        }

        fn next(self, link: u32) -> Result<&'s AtomicU32> {
            Ok(&self.next[link as usize - 1])
        }
    }

    /// Hashes without order, of which many share their low bits.
    fn hashes(n: u64) -> Vec<u64> {
        let wide = |i: u64| u128::from(i).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let mixed = |i: u64| (wide(i + 1) >> 64) as u64;
        (0..n).map(|i| (mixed(i) & !0x3ff) | (i % 3)).collect()
    }

    #[test]
    fn entries_stay_findable_while_buckets_are_added() {
        let fake = Fake::new(hashes(3000));
        for link in fake.links() {
            fake.insert(link);
            if link % 400 == 0 && fake.count.load(Relaxed) < BUCKETS as u32 {
                fake.count.fetch_add(fake.count.load(Relaxed), Relaxed);
                fake.check(link);
            }
        }
        fake.check(3000);
        let longest = fake.buckets.iter().map(|b| fake.chain(b).len()).max();
        assert!(longest < Some(30), "{longest:?}");
    }

    /// What a split does, store by store; true: it died before store number `deaths`.
    fn split_until(fake: &Fake, parent: &Bucket, child: u32, mut deaths: usize) -> bool {
        let half = &fake.buckets[child as usize];
        let mut stores = |to: &AtomicU32, value: u32| {
            deaths = deaths.checked_sub(1)?;
            to.store(value, Relaxed);
            Some(())
        };
        let bits = child.next_power_of_two() as u64 * if child.is_power_of_two() { 2 } else { 1 };
        let belongs = |link: &u32| fake.hashes[*link as usize - 1] % bits == u64::from(child);
        let mut kept: Option<u32> = None;
        let mut die = || {
            for link in fake.chain(parent) {
                let next = &fake.next[link as usize - 1];
                if !belongs(&link) {
                    kept = Some(link);
                    continue;
                }
                let before = kept.map_or(&parent.head, |kept| &fake.next[kept as usize - 1]);
                stores(&half.split, link)?;
                stores(before, next.load(Relaxed))?;
                stores(next, half.head.load(Relaxed))?;
                stores(&half.head, link)?;
                stores(&half.split, NOT_IN_USE)?;
            }
            stores(&half.split, IN_USE)
        };
        die().is_none()
    }

    #[test]
    fn a_split_that_died_anywhere_is_finished() {
        let mut deaths = 0;
        loop {
            let fake = Fake::new((0..9).map(|i| 5 | (i % 3) << 14 | i << 20).collect());
            fake.links().for_each(|link| fake.insert(link));
            fake.count.store(4 * FIRST_BUCKETS, Relaxed);
            let parent = choose(&fake, 5).unwrap();
            assert_eq!(fake.chain(parent.bucket).len(), 9);
            parent.bucket.version.store(7, Relaxed);
            let died = split_until(&fake, parent.bucket, 5 | FIRST_BUCKETS, deaths);
            mend(&fake, parent).unwrap();
            assert_eq!(parent.bucket.version.load(Relaxed), 8);
            fake.check(9);
            if !died {
                break;
            }
            deaths += 1;
        }
        // Three entries move, in five stores each.
        assert_eq!(deaths, 16);
    }
}
