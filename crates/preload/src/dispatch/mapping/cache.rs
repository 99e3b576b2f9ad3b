//! Which mappings of the host's files this process has, and which of them are kept although the
//! program has unmapped them (the mapping cache of Choi et al., HotStorage 2017).
//!
//! Invariants: spans do not overlap, and each is one whole mapping as mmap(2) made it. One is
//! either live, which is the program's, or idle, which nobody's is until it is taken; so an address
//! is never handed out twice. An idle span leaves this list before or with its munmap(2). This
//! module makes no system call.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// Marks of what was mapped before.
const SEEN: usize = 4096;
/// A hash has this many places for its mark, so that a few files with the same ones do not drive
/// each other out for good.
const WAYS: usize = 4;
/// More live mappings than this are not remembered.
const LIVE_MAX: usize = 4096;

/// In the place of a device, for what lies in the pool.
pub const POOL: u64 = u64::MAX;

/// Two mappings of equal keys are the same to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub dev: u64,
    pub ino: u64,
    pub offset: usize,
    /// A multiple of the page size.
    pub len: usize,
    pub flags: usize,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub addr: usize,
    pub len: usize,
}

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub bytes: usize,
    pub entries: usize,
    pub idle_ms: u64,
    /// Whether only what was mapped before is kept.
    pub again: bool,
}

#[derive(Clone, Copy)]
struct Entry {
    key: Key,
    /// When it became idle: the order of that, and the time in milliseconds.
    idle: Option<(u64, u64)>,
    /// The program gave advice that the kernel remembers.
    advised: bool,
}

/// An idle mapping that now is the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    pub addr: usize,
    /// A forked child would not inherit it.
    pub alone: bool,
}

/// What munmap(2) of a range means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmapped {
    /// The whole of a live mapping, which could be kept.
    Whole { advised: bool },
    /// Anything else.
    Other,
}

/// All mappings that are known.
pub struct Cache {
    entries: BTreeMap<usize, Entry>,
    /// The idle ones by what they map.
    by_key: BTreeSet<(Key, usize)>,
    /// The idle ones in the order in which they became so.
    by_age: BTreeMap<u64, usize>,
    idle_bytes: usize,
    /// What was mapped lately: sets of `WAYS` hashes, in each the latest first.
    seen: Vec<u32>,
    next: u64,
    /// Children that are forked do not inherit what became idle before this one.
    inherited_from: u64,
    limits: Limits,
}

impl Cache {
    /// Keeps nothing until it has limits.
    pub const fn new() -> Cache {
        Cache {
            entries: BTreeMap::new(),
            by_key: BTreeSet::new(),
            by_age: BTreeMap::new(),
            idle_bytes: 0,
            seen: Vec::new(),
            next: 0,
            inherited_from: 0,
            limits: Limits {
                bytes: 0,
                entries: 0,
                idle_ms: 0,
                again: false,
            },
        }
    }

    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
        self.seen.resize(if limits.again { SEEN } else { 0 }, 0);
    }

    pub fn idle_count(&self) -> usize {
        self.by_age.len()
    }

    pub fn idle_bytes(&self) -> usize {
        self.idle_bytes
    }

    /// An idle mapping of this key, the one that was used last, becomes live.
    pub fn take(&mut self, key: &Key) -> Option<Taken> {
        let of_key = (*key, 0)..=(*key, usize::MAX);
        let age = |addr: usize| self.entries.get(&addr).and_then(|e| e.idle);
        let found = self.by_key.range(of_key).max_by_key(|(_, at)| age(*at));
        let addr = found?.1;
        let (order, _) = age(addr)?;
        self.wake(addr);
        let alone = order < self.inherited_from;
        Some(Taken { addr, alone })
    }

    /// Whether a mapping of this key is to be one that can be kept. Programs that map everything
    /// once have nothing of it, and would pay for each.
    pub fn admits(&mut self, key: &Key) -> bool {
        let hash = hash_of(key);
        let set = hash as usize % (SEEN / WAYS) * WAYS;
        let Some(seen) = self.seen.get_mut(set..set + WAYS) else {
            return true;
        };
        let mark = (hash >> 32) as u32 | 1;
        let found = seen.iter().position(|s| *s == mark);
        seen[..=found.unwrap_or(WAYS - 1)].rotate_right(1);
        seen[0] = mark;
        found.is_some()
    }

    /// A new live mapping, made just now. What was known at its addresses is not there any more.
    pub fn add(&mut self, addr: usize, key: Key) {
        self.forget(Span { addr, len: key.len });
        if self.entries.len() - self.by_age.len() < LIVE_MAX {
            let entry = Entry {
                key,
                idle: None,
                advised: false,
            };
            self.entries.insert(addr, entry);
        }
    }

    /// What unmapping a range would mean.
    pub fn unmapped(&self, span: Span) -> Unmapped {
        match self.entries.get(&span.addr) {
            Some(e) if e.idle.is_none() && e.key.len == span.len && self.fits(span.len) => {
                Unmapped::Whole { advised: e.advised }
            }
            _ => Unmapped::Other,
        }
    }

    fn fits(&self, len: usize) -> bool {
        len <= self.limits.bytes && self.limits.entries > 0
    }

    /// The live mapping at `addr` becomes idle.
    pub fn keep(&mut self, addr: usize, now_ms: u64) {
        let Some(entry) = self.entries.get_mut(&addr) else {
            return;
        };
        debug_assert!(entry.idle.is_none());
        let order = self.next;
        self.next += 1;
        entry.idle = Some((order, now_ms));
        entry.advised = false;
        self.by_key.insert((entry.key, addr));
        self.by_age.insert(order, addr);
        self.idle_bytes += entry.key.len;
    }

    /// An idle mapping is idle no more.
    fn wake(&mut self, addr: usize) {
        let Some(entry) = self.entries.get_mut(&addr) else {
            return;
        };
        if let Some((order, _)) = entry.idle.take() {
            self.by_age.remove(&order);
            self.by_key.remove(&(entry.key, addr));
            self.idle_bytes -= entry.key.len;
        }
    }

    fn remove(&mut self, addr: usize) -> Option<Span> {
        let was_idle = self.entries.get(&addr)?.idle.is_some();
        self.wake(addr);
        let len = self.entries.remove(&addr)?.key.len;
        was_idle.then_some(Span { addr, len })
    }

    /// The first mapping that a part of the range belongs to and `which` is true for.
    fn within(&self, span: Span, which: impl Fn(&Entry) -> bool) -> Option<usize> {
        let end = span.addr.saturating_add(span.len);
        let before = self.entries.range(..span.addr).next_back();
        let reaching = before.filter(|(at, e)| *at + e.key.len > span.addr);
        let mut all = reaching
            .into_iter()
            .chain(self.entries.range(span.addr..end.max(span.addr)));
        all.find(|(_, e)| which(e)).map(|(at, _)| *at)
    }

    /// An idle mapping of which a part is in the range is forgotten, for the caller to unmap.
    pub fn pop_within(&mut self, span: Span) -> Option<Span> {
        let addr = self.within(span, |e| e.idle.is_some())?;
        self.remove(addr)
    }

    /// Mappings of which a part is in the range are no longer known, so that they will not be kept.
    pub fn forget(&mut self, span: Span) {
        while let Some(addr) = self.within(span, |_| true) {
            self.remove(addr);
        }
    }

    /// The program gave advice on the range that the kernel remembers with the mapping.
    pub fn advise(&mut self, span: Span) {
        let end = span.addr.saturating_add(span.len);
        let from = self.within(span, |_| true).unwrap_or(span.addr);
        for (_, entry) in self.entries.range_mut(from..end.max(from)) {
            entry.advised = true;
        }
    }

    /// The oldest idle mapping, while more than the limits allow are kept.
    pub fn pop_excess(&mut self) -> Option<Span> {
        let excess = self.idle_bytes > self.limits.bytes || self.by_age.len() > self.limits.entries;
        match excess {
            true => self.pop_oldest(),
            false => None,
        }
    }

    /// The oldest idle mapping, if its time is over.
    pub fn pop_expired(&mut self, now_ms: u64) -> Option<Span> {
        let (_, addr) = self.by_age.first_key_value()?;
        let (_, since) = self.entries.get(addr)?.idle?;
        match now_ms.saturating_sub(since) >= self.limits.idle_ms {
            true => self.pop_oldest(),
            false => None,
        }
    }

    /// The oldest idle mapping.
    pub fn pop_oldest(&mut self) -> Option<Span> {
        let (_, addr) = self.by_age.pop_first()?;
        self.remove(addr)
    }

    /// An idle mapping of a file is forgotten, for the caller to unmap.
    pub fn pop_file(&mut self, dev: u64, ino: u64) -> Option<Span> {
        let (_, addr) = *self.of_file(dev, ino)?;
        self.remove(addr)
    }

    /// Whether an idle mapping is of the file.
    fn of_file(&self, dev: u64, ino: u64) -> Option<&(Key, usize)> {
        let least = Key {
            dev,
            ino,
            offset: 0,
            len: 0,
            flags: 0,
        };
        let mut later = self.by_key.range((least, 0)..);
        later
            .next()
            .filter(|(key, _)| (key.dev, key.ino) == (dev, ino))
    }

    /// Live mappings of the file will not be kept.
    pub fn forget_file(&mut self, dev: u64, ino: u64) {
        let same = |e: &Entry| (e.key.dev, e.key.ino) == (dev, ino) && e.idle.is_none();
        self.entries.retain(|_, e| !same(e));
    }

    /// The idle mappings that a forked child would inherit; from now on it will not.
    pub fn set_apart(&mut self) -> Vec<Span> {
        let from = core::mem::replace(&mut self.inherited_from, self.next);
        let inherited = self.by_age.range(from..).map(|(_, addr)| *addr);
        let span = |addr| {
            let len = self.entries.get(&addr)?.key.len;
            Some(Span { addr, len })
        };
        inherited.filter_map(span).collect()
    }

    /// In a forked child, which has none of the idle mappings.
    pub fn forget_idle(&mut self) {
        while self.pop_oldest().is_some() {}
    }
}

fn hash_of(key: &Key) -> u64 {
    let parts = [
        key.dev,
        key.ino,
        key.offset as u64,
        key.len as u64,
        key.flags as u64,
    ];
    parts.into_iter().fold(0, |hash: u64, part| {
        (hash ^ part)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    fn key(ino: u64, pages: usize) -> Key {
        Key {
            dev: 1,
            ino,
            offset: 0,
            len: pages * PAGE,
            flags: 1,
        }
    }

    fn span(page: usize, pages: usize) -> Span {
        Span {
            addr: page * PAGE,
            len: pages * PAGE,
        }
    }

    fn cache(bytes: usize, entries: usize) -> Cache {
        let mut cache = Cache::new();
        cache.set_limits(Limits {
            bytes,
            entries,
            idle_ms: 1000,
            again: false,
        });
        cache
    }

    /// Mapped at a page, and unmapped as a whole.
    fn kept(cache: &mut Cache, page: usize, key: Key, now: u64) {
        cache.add(page * PAGE, key);
        let whole = Unmapped::Whole { advised: false };
        assert_eq!(cache.unmapped(span(page, key.len / PAGE)), whole);
        cache.keep(page * PAGE, now);
    }

    #[test]
    fn an_address_is_handed_out_once() {
        let mut cache = cache(1 << 30, 100);
        kept(&mut cache, 100, key(7, 4), 0);
        kept(&mut cache, 200, key(7, 4), 0);
        assert_eq!((cache.idle_count(), cache.idle_bytes()), (2, 8 * PAGE));
        for other in [
            key(8, 4),
            key(7, 5),
            Key {
                dev: 2,
                ..key(7, 4)
            },
            Key {
                offset: PAGE,
                ..key(7, 4)
            },
            Key {
                flags: 2,
                ..key(7, 4)
            },
        ] {
            assert_eq!(cache.take(&other), None);
        }
        // The one that was used last comes first.
        let taken = |page: usize| {
            Some(Taken {
                addr: page * PAGE,
                alone: false,
            })
        };
        assert_eq!(cache.take(&key(7, 4)), taken(200));
        assert_eq!(cache.take(&key(7, 4)), taken(100));
        assert_eq!(cache.take(&key(7, 4)), None);
        assert_eq!((cache.idle_count(), cache.idle_bytes()), (0, 0));
        // It is live: it can be kept again.
        cache.keep(100 * PAGE, 5);
        assert_eq!(cache.take(&key(7, 4)), taken(100));
    }

    #[test]
    fn what_is_mapped_once_is_not_for_keeping() {
        let mut cache = cache(1 << 30, 100);
        assert!(cache.admits(&key(1, 4)));
        cache.set_limits(Limits {
            bytes: 1 << 30,
            entries: 100,
            idle_ms: 1000,
            again: true,
        });
        let admitted = |cache: &mut Cache| (0..200).filter(|i| cache.admits(&key(*i, 4))).count();
        assert_eq!(admitted(&mut cache), 0);
        // A few may have lost their places to others.
        assert!(admitted(&mut cache) > 180);
        assert!(!cache.admits(&key(1, 5)));
        // Those of long ago are forgotten.
        for i in 1000..200_000 {
            cache.admits(&key(i, 4));
        }
        assert!(admitted(&mut cache) < 5);
    }

    #[test]
    fn files_with_the_same_places_for_their_marks_are_kept() {
        let mut cache = cache(1 << 20, 10);
        cache.set_limits(Limits {
            again: true,
            ..cache.limits
        });
        let set = |key: &Key| hash_of(key) as usize % (SEEN / WAYS);
        let first = key(1, 4);
        let same = (1..)
            .map(|ino| key(ino, 4))
            .filter(|k| set(k) == set(&first));
        let same: Vec<Key> = same.take(WAYS + 1).collect();
        let mut admitted = |few: usize| same[..few].iter().filter(|key| cache.admits(key)).count();
        assert_eq!(admitted(WAYS), 0);
        assert_eq!((admitted(WAYS), admitted(WAYS)), (WAYS, WAYS));
        // More than there is room for.
        assert_eq!((admitted(WAYS + 1), admitted(WAYS + 1)), (WAYS, 0));
    }

    #[test]
    fn only_whole_live_mappings_can_be_kept() {
        let mut cache = cache(8 * PAGE, 100);
        cache.add(100 * PAGE, key(7, 4));
        for part in [span(100, 3), span(101, 3), span(100, 5), span(99, 5)] {
            assert_eq!(cache.unmapped(part), Unmapped::Other);
        }
        cache.advise(span(103, 10));
        let whole = Unmapped::Whole { advised: true };
        assert_eq!(cache.unmapped(span(100, 4)), whole);
        cache.forget(span(103, 1));
        assert_eq!(cache.unmapped(span(100, 4)), Unmapped::Other);
        cache.add(200 * PAGE, key(7, 9));
        assert_eq!(cache.unmapped(span(200, 9)), Unmapped::Other, "too large");
        kept(&mut cache, 300, key(7, 8), 0);
        assert_eq!(cache.unmapped(span(300, 8)), Unmapped::Other, "idle");
    }

    #[test]
    fn the_oldest_go_first_when_too_much_is_kept() {
        let mut cache = cache(10 * PAGE, 3);
        for (i, page) in [100, 200, 300].into_iter().enumerate() {
            kept(&mut cache, page, key(i as u64, 3), 0);
            assert_eq!(cache.pop_excess(), None);
        }
        kept(&mut cache, 400, key(9, 1), 0);
        assert_eq!(cache.pop_excess(), Some(span(100, 3)));
        assert_eq!(cache.pop_excess(), None);
        // Used again, so it is not the oldest any more.
        assert!(cache.take(&key(1, 3)).is_some());
        cache.keep(200 * PAGE, 0);
        kept(&mut cache, 500, key(10, 5), 0);
        assert_eq!(cache.pop_excess(), Some(span(300, 3)));
        assert_eq!(cache.pop_excess(), None);
        assert_eq!(cache.idle_bytes(), 9 * PAGE);
    }

    #[test]
    fn what_nobody_uses_goes_in_time() {
        let mut cache = cache(1 << 30, 100);
        kept(&mut cache, 100, key(1, 1), 500);
        kept(&mut cache, 200, key(2, 1), 900);
        assert_eq!(cache.pop_expired(1499), None);
        assert_eq!(cache.pop_expired(1500), Some(span(100, 1)));
        assert_eq!(cache.pop_expired(1500), None);
        // A clock that went back is no reason.
        assert_eq!(cache.pop_expired(0), None);
        assert_eq!(cache.pop_expired(1900), Some(span(200, 1)));
    }

    #[test]
    fn addresses_that_others_use_are_given_up() {
        let mut cache = cache(1 << 30, 100);
        kept(&mut cache, 100, key(1, 4), 0);
        kept(&mut cache, 104, key(2, 4), 0);
        cache.add(108 * PAGE, key(3, 4));
        assert_eq!(cache.pop_within(span(90, 10)), None);
        assert_eq!(cache.pop_within(span(112, 10)), None);
        assert_eq!(cache.pop_within(span(103, 9)), Some(span(100, 4)));
        assert_eq!(cache.pop_within(span(103, 9)), Some(span(104, 4)));
        assert_eq!(cache.pop_within(span(103, 9)), None);
        let whole = Unmapped::Whole { advised: false };
        assert_eq!(cache.unmapped(span(108, 4)), whole, "it is live");
        // The rest of all addresses, and nothing of it.
        cache.forget(Span {
            addr: 111 * PAGE,
            len: usize::MAX,
        });
        assert_eq!(cache.unmapped(span(108, 4)), Unmapped::Other);
        kept(&mut cache, 100, key(1, 4), 0);
        assert_eq!(
            cache.pop_within(Span {
                addr: 100 * PAGE,
                len: 0
            }),
            None
        );
        // A mapping that was made there tells that the old one is gone.
        cache.add(102 * PAGE, key(5, 8));
        assert_eq!(cache.idle_count(), 0);
        assert_eq!(cache.take(&key(1, 4)), None);
    }

    #[test]
    fn a_file_that_is_deleted_is_let_go() {
        let mut cache = cache(1 << 30, 100);
        kept(&mut cache, 100, key(1, 4), 0);
        kept(
            &mut cache,
            200,
            Key {
                offset: PAGE,
                ..key(1, 4)
            },
            0,
        );
        kept(&mut cache, 300, key(2, 4), 0);
        cache.add(400 * PAGE, key(1, 4));
        cache.forget_file(1, 1);
        assert!(cache.pop_file(1, 1).is_some() && cache.pop_file(1, 1).is_some());
        assert_eq!(cache.pop_file(1, 1), None);
        assert_eq!(cache.pop_file(2, 1), None);
        assert_eq!(cache.unmapped(span(400, 4)), Unmapped::Other);
        assert_eq!(cache.idle_count(), 1);
    }

    #[test]
    fn children_inherit_what_is_live() {
        let mut cache = cache(1 << 30, 100);
        kept(&mut cache, 100, key(1, 4), 0);
        kept(&mut cache, 200, key(2, 4), 0);
        assert_eq!(cache.set_apart(), [span(100, 4), span(200, 4)]);
        assert_eq!(cache.set_apart(), []);
        let taken = cache.take(&key(1, 4));
        assert_eq!(
            taken,
            Some(Taken {
                addr: 100 * PAGE,
                alone: true
            })
        );
        cache.keep(100 * PAGE, 0);
        assert_eq!(cache.set_apart(), [span(100, 4)]);
        assert!(cache.take(&key(2, 4)).is_some_and(|t| t.alone));
        cache.forget_idle();
        assert_eq!((cache.idle_count(), cache.idle_bytes()), (0, 0));
        let whole = Unmapped::Whole { advised: false };
        assert_eq!(cache.unmapped(span(200, 4)), whole);
    }
}
