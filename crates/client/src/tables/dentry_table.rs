//! Cached names.
//!
//! Invariants:
//!  * A `DENTRY_VALID` entry is in the chain of its bucket and says what the name refers to as of
//!    journal record `seq` (0: as in the trees). It stays while `seq` is above `applied_seq`.
//!  * Inserting is one store of the chain's head. Replacing and removing happen while the bucket's
//!    version is odd; readers check it before and after.
//!  * Anything about a name is added only under the lock of its directory.
//!  * While a directory is `INODE_COMPLETE`, every name in it has an entry; whoever evicts one
//!    clears the bit first.
//!  * An entry in no chain is on the free list, or is `DENTRY_CLAIMED` with the claimer in `spare`.
//!    A valid entry in no chain (its inserter died) is freed by the clock hand like any other.

use crate::base::error::{Error, Result};
use crate::session::Session;
use crate::session::free_list::{FreeList, count_down, recycles};
use crate::session::lock::{self, Changing, Guard, Rank, acquire_as};
use crate::tables::buckets::{self, CHAIN_MAX, Chains, Chosen};
use crate::tables::inode_table::{self, InodeRef, LockedInode};
use crate::tables::met;
use crate::tables::recent_names;
use alloc::vec::Vec;
use pmem::atomic::{AtomicU8, AtomicU32, Ordering::*};
use pool::layout::dirent::name_hash;
use pool::session::*;

/// What a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub ino: u64,
    /// d_type of dirent(5).
    pub kind: u8,
    /// Where the inode entry was last seen, for `inode_table::by_link`; 0 unknown.
    pub inode: u32,
}

/// Claimed by the process in `spare`, in no chain.
const DENTRY_CLAIMED: u16 = 4;
const EVICT_BATCH: u32 = 32;
/// So many entries ahead of the hand what an eviction needs is being loaded.
const EXPECTED: u32 = 8;
/// Entries that are looked at for one to use again.
const RECYCLE_LOOKS: u32 = 3;
/// Entries that only publication may use, so that a committed record finds room.
const RESERVE: u32 = 1024;
const READ_TRIES: u32 = 64;

/// The chains of names.
#[derive(Clone, Copy)]
struct DentryChains<'s>(&'s Session);

impl<'s> Chains<'s> for DentryChains<'s> {
    #[inline]
    fn count(self) -> &'s AtomicU32 {
        &self.0.header().dentry_buckets
    }

    #[inline]
    fn bucket(self, index: u32) -> Result<&'s Bucket> {
        self.0.dentry_bucket(index)
    }

    #[inline]
    fn expect(self, index: u32) {
        self.0.expect_dentry_bucket(index);
    }

    fn hash(self, link: u32) -> Result<u64> {
        Ok(self.0.dentry(link.wrapping_sub(1))?.hash.load(Relaxed))
    }

    fn next(self, link: u32) -> Result<&'s AtomicU32> {
        Ok(&self.0.dentry(link.wrapping_sub(1))?.next)
    }
}

/// The key of an entry.
#[derive(Clone, Copy)]
struct Key<'a> {
    parent: u64,
    hash: u64,
    name: &'a [u8],
}

impl<'a> Key<'a> {
    #[inline]
    fn new(parent: u64, name: &'a [u8]) -> Key<'a> {
        let mixed = name_hash(0, name) ^ parent.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let wide = u128::from(mixed) * 0xd6e8_feb8_6659_fd93;
        Key {
            parent,
            hash: (wide >> 64) as u64 ^ wide as u64,
            name,
        }
    }

    fn is_long(&self) -> bool {
        self.name.len() > DENTRY_NAME
    }
}

fn table(s: &Session, long: bool) -> FreeList<'_> {
    let h = s.header();
    let (free, used) = match long {
        true => (&h.long_dentry_free, &h.long_dentry_used),
        false => (&h.dentry_free, &h.dentry_used),
    };
    let limit = h.dentry_limit.load(Relaxed);
    let (capacity, base) = match long {
        true => ((limit / 12).min(LONG_DENTRIES as u32), DENTRIES as u32),
        false => (limit.min(DENTRIES as u32), 0),
    };
    FreeList {
        lock: &h.dentry_lock,
        free,
        used,
        capacity,
        base,
    }
}

fn next_of(s: &Session, index: u32) -> Result<&AtomicU32> {
    Ok(&s.dentry(index)?.next)
}

/// Bytes for the name of entry `index`.
#[inline]
fn name_of(s: &Session, index: u32) -> Result<&[AtomicU8]> {
    match (index as usize).checked_sub(DENTRIES) {
        None => Ok(&s.dentry(index)?.name),
        Some(long) => Ok(&s.long_dentry(long as u32)?.name),
    }
}

#[inline]
fn is_match(s: &Session, index: u32, e: &Dentry, key: &Key<'_>) -> bool {
    e.hash.load(Relaxed) == key.hash
        && e.parent.load(Relaxed) == key.parent
        && e.state.load(Relaxed) & DENTRY_VALID != 0
        && usize::from(e.name_len.load(Relaxed)) == key.name.len()
        && name_of(s, index).is_ok_and(|stored| {
            key.name.len() <= stored.len()
                && key
                    .name
                    .iter()
                    .zip(stored)
                    .all(|(a, b)| *a == b.load(Relaxed))
        })
}

#[inline]
fn walk<'s>(s: &'s Session, bucket: &Bucket, key: &Key<'_>) -> Option<(u32, &'s Dentry)> {
    let mut link = bucket.head.load(Acquire);
    for _ in 0..CHAIN_MAX {
        let index = link.checked_sub(1)?;
        let e = s.dentry(index).ok()?;
        if is_match(s, index, e, key) {
            return Some((index, e));
        }
        link = e.next.load(Acquire);
    }
    None
}

fn copy(e: &Dentry) -> Found {
    Found {
        ino: e.ino.load(Relaxed),
        kind: e.kind.load(Relaxed),
        inode: e.inode.load(Relaxed),
    }
}

/// What is cached: `None` nothing, `Some(None)` that the name does not exist.
#[inline(always)]
fn cached(s: &Session, key: &Key<'_>) -> Result<Option<Option<Found>>> {
    for _ in 0..READ_TRIES {
        let chosen = buckets::choose(DentryChains(s), key.hash)?;
        let version = &chosen.bucket.version;
        let before = version.load(Acquire);
        if before & 1 == 0 {
            let found = walk(s, chosen.bucket, key).map(|(_, e)| (e, copy(e)));
            pmem::atomic::fence(Acquire);
            let is_right = || buckets::is_right(DentryChains(s), key.hash, chosen);
            if version.load(Relaxed) == before && (found.is_some() || is_right()) {
                return Ok(found.map(|(e, found)| used(e, found)));
            }
        }
        core::hint::spin_loop();
    }
    let (bucket, _guard) = lock_bucket(s, key.hash, Rank::Normal)?;
    Ok(walk(s, bucket, key).map(|(_, e)| used(e, copy(e))))
}

#[inline]
fn used(e: &Dentry, found: Found) -> Option<Found> {
    let state = e.state.load(Relaxed);
    if state & DENTRY_USED == 0 {
        e.state.fetch_or(DENTRY_USED, Relaxed);
    }
    (found.ino != 0).then_some(found)
}

/// A replacement that a dead process left half-done is of a record that recovery redid.
fn lock_bucket(s: &Session, hash: u64, rank: Rank) -> Result<(&Bucket, Guard<'_>)> {
    let (chosen, guard) = buckets::lock(s, DentryChains(s), hash, rank)?;
    Ok((chosen.bucket, guard))
}

/// What `name` in `dir` leads to; `None`: it does not exist. Locks the directory only when
/// nothing is cached about the name.
#[inline]
pub fn lookup(s: &Session, dir: &InodeRef<'_>, name: &[u8]) -> Result<Option<Found>> {
    s.check()?;
    match cached(s, &Key::new(dir.ino, name))? {
        Some(found) => Ok(found),
        None if is_complete(dir) => Ok(None),
        None => lookup_locked(s, &inode_table::lock(s, dir.ino)?, name),
    }
}

/// Notes where the entry of the inode lies that `name` leads to. Only a hint, which whoever uses
/// it checks: it may be of another inode by the time that it is stored.
#[cold]
pub(crate) fn locate(s: &Session, dir: &InodeRef<'_>, name: &[u8], inode: u32) {
    let key = Key::new(dir.ino, name);
    let chosen = buckets::choose(DentryChains(s), key.hash);
    if let Some((_, e)) = chosen.ok().and_then(|chosen| walk(s, chosen.bucket, &key)) {
        e.inode.store(inode, Relaxed);
    }
}

/// What the tables know of a name: `None` nothing, `Some(None)` that it leads to nothing.
pub(crate) fn known(s: &Session, dir: &InodeRef<'_>, name: &[u8]) -> Result<Option<Option<Found>>> {
    let found = cached(s, &Key::new(dir.ino, name))?;
    Ok(found.or_else(|| is_complete(dir).then_some(None)))
}

/// After nothing was found: no entry of the directory went before or meanwhile, so there was none.
#[inline]
fn is_complete(dir: &InodeRef<'_>) -> bool {
    let bits = INODE_COMPLETE | INODE_VALID;
    dir.e.state.load(Acquire) & bits == bits && dir.e.ino.load(Acquire) == dir.ino
}

/// As `lookup` for a caller that holds the directory's lock.
pub fn lookup_locked(s: &Session, dir: &LockedInode<'_>, name: &[u8]) -> Result<Option<Found>> {
    let key = Key::new(dir.ino, name);
    if let Some(found) = cached(s, &key)? {
        return Ok(found);
    }
    if is_complete(dir) {
        return Ok(None);
    }
    let entry = s.tree().dirent(dir.ino, name)?;
    if let Some(e) = &entry {
        inode_table::expect(s, e.ino);
    }
    let found = entry.map(|e| Found {
        ino: e.ino,
        kind: e.kind,
        inode: 0,
    });
    remember(s, &key, found);
    Ok(found)
}

/// Caches what the trees say, in a full table only what was asked for before.
fn remember(s: &Session, key: &Key<'_>, found: Option<Found>) {
    let list = table(s, key.is_long());
    if list.is_full(RESERVE) && !met::before(s, key.hash) {
        return;
    }
    if list.has_room(RESERVE) || make_room(s, key.is_long()) > 0 {
        let value = found.unwrap_or(Found {
            ino: 0,
            kind: 0,
            inode: 0,
        });
        let _ = add(s, key, value);
    }
}

fn add(s: &Session, key: &Key<'_>, value: Found) -> Result<()> {
    let spare = Spare::claim(s, key.is_long())?;
    spare.make_ready(key)?;
    let (bucket, _guard) = lock_bucket(s, key.hash, Rank::Normal)?;
    spare.insert(s, bucket, key, value, 0).map(drop)
}

/// Makes sure that publishing up to two names will find room, before their record exists.
pub(crate) fn ensure_room(s: &Session, name: &[u8]) -> Result<()> {
    let long = name.len() > DENTRY_NAME;
    if table(s, long).has_room(RESERVE) || make_room(s, long) > 0 {
        return Ok(());
    }
    for _ in 0..4 {
        crate::session::drain::wait_applied(
            s,
            s.header().next_seq.load(Acquire).saturating_sub(1),
        )?;
        if make_room(s, long) > 0 || sweep(s, long)? > 0 {
            return Ok(());
        }
    }
    Err(Error::NoMemory)
}

/// What record `seq` makes of a name: `ino` 0 means that it leads to nothing.
pub(crate) struct Put<'a> {
    pub parent: u64,
    pub name: &'a [u8],
    pub found: Found,
}

/// Publishes what record `seq` makes of up to two names, at once for all readers. Idempotent: an
/// entry that already knows `seq` is left alone. `NoMemory`: there was no room for a name, so
/// only the trees will know what it leads to; all else is done.
///
/// The buckets are locked and odd from before the first store to after the last. A death in
/// between leaves them so: readers end up waiting for the lock, whoever takes it over has
/// recovery publish again first, and `seq` is stored after the rest of an entry.
pub(crate) fn put<const N: usize>(
    s: &Session,
    puts: [Put<'_>; N],
    seq: u64,
    rank: Rank,
) -> Result<()> {
    let mut spares = [const { None::<Spare<'_>> }; N];
    let mut room = [true; N];
    let keys = puts.each_ref().map(|put| Key::new(put.parent, put.name));
    loop {
        let (chosen, guards) = lock_all(s, &keys, rank)?;
        let absent = |i: &usize| {
            room[*i] && spares[*i].is_none() && walk(s, chosen[*i].bucket, &keys[*i]).is_none()
        };
        if let Some(i) = (0..N).find(absent) {
            drop(guards);
            match Spare::claim(s, keys[i].is_long()) {
                Ok(spare) => {
                    // Recovery changes as little as it can.
                    if rank == Rank::Normal {
                        spare.make_ready(&keys[i])?;
                    }
                    spares[i] = Some(spare);
                }
                Err(Error::NoMemory) => {
                    uncover(s, puts[i].parent);
                    room[i] = false;
                }
                Err(e) => return Err(e),
            }
            continue;
        }
        let _changes = guards.each_ref().map(|g| {
            g.as_ref()
                .map(|(_, bucket)| Changing::begin(&bucket.version))
        });
        let places = keys.iter().zip(chosen.map(|chosen| chosen.bucket));
        for ((key, bucket), (put, spare)) in places.zip(puts.iter().zip(&mut spares)) {
            match walk(s, bucket, key) {
                Some((index, e)) if e.seq.load(Relaxed) < seq => {
                    if put.found.ino == 0 && e.ino.load(Relaxed) != 0 {
                        s.header().dentry_gone.fetch_add(1, Relaxed);
                    }
                    store_value(e, put.found);
                    e.seq.store(seq, Release);
                    recent_names::note(s, seq, index + 1);
                }
                Some((index, _)) => recent_names::note(s, seq, index + 1),
                None => {
                    let link = match spare.take() {
                        Some(spare) => spare.insert(s, bucket, key, put.found, seq)?,
                        None => RECENT_UNKNOWN,
                    };
                    recent_names::note(s, seq, link);
                }
            }
        }
        return match room == [true; N] {
            true => Ok(()),
            false => Err(Error::NoMemory),
        };
    }
}

/// The name of entry `index` and what it leads to, if it is one of `dir` that a record above
/// `applied` changed.
pub(crate) fn changed_in(
    s: &Session,
    dir: u64,
    index: u32,
    applied: u64,
) -> Result<Option<(Vec<u8>, Found)>> {
    let e = s.dentry(index)?;
    let read = || {
        let ours = e.parent.load(Relaxed) == dir
            && e.seq.load(Relaxed) > applied
            && e.state.load(Relaxed) & DENTRY_VALID != 0;
        let len = usize::from(e.name_len.load(Relaxed));
        let stored = name_of(s, index)?.iter().take(len);
        let name = || stored.map(|byte| byte.load(Relaxed)).collect();
        Ok(ours.then(|| (name(), copy(e))))
    };
    for _ in 0..READ_TRIES {
        let hash = e.hash.load(Relaxed);
        let chosen = buckets::choose(DentryChains(s), hash)?;
        let version = &chosen.bucket.version;
        let before = version.load(Acquire);
        if before & 1 == 0 {
            let found = read()?;
            pmem::atomic::fence(Acquire);
            let same = e.hash.load(Relaxed) == hash && version.load(Relaxed) == before;
            if same && buckets::is_right(DentryChains(s), hash, chosen) {
                return Ok(found);
            }
        }
        core::hint::spin_loop();
    }
    let hash = e.hash.load(Relaxed);
    let (_, _guard) = lock_bucket(s, hash, Rank::Normal)?;
    match e.hash.load(Relaxed) == hash {
        true => read(),
        // It is of another name now, so the trees know the old one.
        false => Ok(None),
    }
}

/// Names of a directory may be missing from now on.
fn uncover(s: &Session, parent: u64) {
    if let Some(dir) = inode_table::find(s, parent)
        && dir.e.state.load(SeqCst) & INODE_COMPLETE != 0
    {
        dir.e.state.fetch_and(!INODE_COMPLETE, SeqCst);
    }
}

/// What record `seq` makes of a name is known to the trees only: whoever looks asks them, once the
/// lock of the directory is free.
pub(crate) fn forget(s: &Session, parent: u64, name: &[u8], seq: u64, rank: Rank) -> Result<()> {
    uncover(s, parent);
    recent_names::note(s, seq, RECENT_UNKNOWN);
    let key = Key::new(parent, name);
    let (bucket, guard) = lock_bucket(s, key.hash, rank)?;
    match walk(s, bucket, &key) {
        Some((index, e)) => release(s, (bucket, guard), index, e),
        None => Ok(()),
    }
}

type Locked<'s, const N: usize> = [Option<(Guard<'s>, &'s Bucket)>; N];

/// Locks the bucket of each key, each different one once, in the order of their numbers. Whoever
/// waits for a bucket holds none: it may have to recover first, and recovery takes buckets, too.
fn lock_all<'s, const N: usize>(
    s: &'s Session,
    keys: &[Key<'_>; N],
    rank: Rank,
) -> Result<([Chosen<'s>; N], Locked<'s, N>)> {
    loop {
        let mut chosen = [buckets::choose(DentryChains(s), 0)?; N];
        for (chosen, key) in chosen.iter_mut().zip(keys) {
            *chosen = buckets::choose(DentryChains(s), key.hash)?;
        }
        match try_lock_all(s, &chosen) {
            Ok(guards) => {
                for chosen in chosen {
                    buckets::mend(DentryChains(s), chosen)?;
                }
                let is_right = |(key, at): (&Key<'_>, Chosen<'_>)| {
                    buckets::is_right(DentryChains(s), key.hash, at)
                };
                if keys.iter().zip(chosen).all(is_right) {
                    return Ok((chosen, guards));
                }
            }
            Err(taken) => {
                let _passing = acquire_as(s, &taken.bucket.lock, rank)?;
                buckets::mend(DentryChains(s), taken)?;
            }
        }
    }
}

/// The bucket that was not free, if one was not.
fn try_lock_all<'s, const N: usize>(
    s: &'s Session,
    chosen: &[Chosen<'s>; N],
) -> core::result::Result<Locked<'s, N>, Chosen<'s>> {
    let mut guards = [const { None }; N];
    let mut next = 0;
    for guard in &mut guards {
        let above = chosen.iter().filter(|chosen| chosen.index >= next);
        let Some(lowest) = above.min_by_key(|chosen| chosen.index) else {
            break;
        };
        let locked = lock::try_acquire(s, &lowest.bucket.lock).ok_or(*lowest)?;
        *guard = Some((locked, lowest.bucket));
        next = lowest.index + 1;
    }
    Ok(guards)
}

fn store_value(e: &Dentry, found: Found) {
    e.ino.store(found.ino, Release);
    e.kind.store(found.kind, Release);
    e.inode.store(found.inode, Release);
}

/// A claimed entry that is in no chain.
struct Spare<'s> {
    s: &'s Session,
    index: u32,
    e: &'s Dentry,
}

impl<'s> Spare<'s> {
    fn claim(s: &'s Session, long: bool) -> Result<Spare<'s>> {
        let claim = |index: u32| {
            let e = s.dentry(index)?;
            e.spare.store(s.owner(), Relaxed);
            e.state.store(DENTRY_CLAIMED, Release);
            Ok(())
        };
        let pop = || table(s, long).pop(s, |i| next_of(s, i), claim);
        if !long && recycles(&table(s, false), &s.header().dentry_gone) {
            recycle(s);
        }
        let mut index = pop()?;
        if index.is_none() && make_room(s, long) > 0 {
            index = pop()?;
        }
        let index = index.ok_or(Error::NoMemory)?;
        let e = s.dentry(index)?;
        Ok(Spare { s, index, e })
    }

    /// Before it is inserted: as many buckets as entries. Long names are few.
    fn make_ready(&self, key: &Key<'_>) -> Result<()> {
        let index = if key.is_long() { 0 } else { self.index };
        buckets::make_ready(self.s, DentryChains(self.s), key.hash, index, Rank::Normal)
    }

    /// Fills the entry and chains it with one store; its link. The caller holds the bucket's lock.
    fn insert(
        self,
        s: &Session,
        bucket: &Bucket,
        key: &Key<'_>,
        found: Found,
        seq: u64,
    ) -> Result<u32> {
        let e = self.e;
        for (to, from) in name_of(s, self.index)?.iter().zip(key.name) {
            to.store(*from, Relaxed);
        }
        e.name_len.store(key.name.len() as u8, Relaxed);
        e.parent.store(key.parent, Relaxed);
        e.hash.store(key.hash, Relaxed);
        e.seq.store(seq, Relaxed);
        store_value(e, found);
        e.next.store(bucket.head.load(Relaxed), Relaxed);
        e.state.store(DENTRY_VALID | DENTRY_USED, Release);
        let link = self.index + 1;
        bucket.head.store(link, Release);
        core::mem::forget(self);
        Ok(link)
    }
}

impl Drop for Spare<'_> {
    fn drop(&mut self) {
        let t = table(self.s, self.index as usize >= DENTRIES);
        // Without the table's lock (a given-up session) the entry waits for a sweep.
        let _ = t.push(self.s, self.index, &self.e.next, || {
            self.e.state.store(0, Release);
        });
    }
}

/// Frees a batch of entries that the trees know too; how many.
#[cold]
fn make_room(s: &Session, long: bool) -> u32 {
    let t = table(s, long);
    let (used, applied) = (t.used(), s.applied_seq());
    let mut freed = 0;
    for _ in 0..used.saturating_mul(2) {
        let hand = s.header().dentry_hand.fetch_add(1, Relaxed);
        if let Ok(next) = s.dentry(t.base + hand.wrapping_add(EXPECTED) % used) {
            buckets::expect(DentryChains(s), next.hash.load(Relaxed));
        }
        let at = t.base + hand % used;
        freed += u32::from(evict(s, at, applied));
        if freed >= EVICT_BATCH {
            break;
        }
    }
    freed
}

/// Frees a name or two that led to something once and to nothing now.
fn recycle(s: &Session) {
    let (applied, used) = (s.applied_seq(), table(s, false).used().max(1));
    for _ in 0..RECYCLE_LOOKS {
        let at = s.header().dentry_hand.fetch_add(1, Relaxed) % used;
        let Ok(e) = s.dentry(at) else { return };
        if e.ino.load(Relaxed) == 0 && e.seq.load(Relaxed) != 0 {
            e.state.fetch_and(!DENTRY_USED, Relaxed);
            if evict(s, at, applied) {
                return;
            }
        }
    }
}

fn evict(s: &Session, index: u32, applied: u64) -> bool {
    let Ok(e) = s.dentry(index) else { return false };
    let state = e.state.load(Acquire);
    if state & DENTRY_VALID == 0 || e.seq.load(Acquire) > applied {
        return false;
    }
    if state & DENTRY_USED != 0 {
        e.state.fetch_and(!DENTRY_USED, Relaxed);
        return false;
    }
    let (hash, parent) = (e.hash.load(Relaxed), e.parent.load(Relaxed));
    let Some((chosen, guard)) = buckets::try_lock(s, DentryChains(s), hash) else {
        return false;
    };
    let same = e.hash.load(Relaxed) == hash
        && e.parent.load(Relaxed) == parent
        && e.state.load(Relaxed) & DENTRY_VALID != 0
        && e.seq.load(Relaxed) <= applied;
    if !same {
        return false;
    }
    if e.ino.load(Relaxed) != 0 {
        uncover(s, parent);
    }
    release(s, (chosen.bucket, guard), index, e).is_ok()
}

/// Takes an entry out of its bucket, which is locked, and frees it.
fn release(
    s: &Session,
    (bucket, guard): (&Bucket, Guard<'_>),
    index: u32,
    e: &Dentry,
) -> Result<()> {
    if e.ino.load(Relaxed) == 0 && e.seq.load(Relaxed) != 0 {
        count_down(&s.header().dentry_gone);
    }
    remove(s, bucket, index, e);
    drop(guard);
    let t = table(s, index as usize >= DENTRIES);
    t.push(s, index, &e.next, || e.state.store(0, Release))
}

/// Unlinks and claims an entry. Dying in between leaves a claim of a dead process, in a chain or
/// not; `sweep` takes it out of the chain before it frees it.
fn remove(s: &Session, bucket: &Bucket, index: u32, e: &Dentry) {
    let _change = Changing::begin(&bucket.version);
    e.spare.store(s.owner(), Relaxed);
    e.state.store(DENTRY_CLAIMED, Release);
    buckets::unchain(DentryChains(s), bucket, index + 1);
}

/// Frees what dead processes had claimed; how many entries are free now.
fn sweep(s: &Session, long: bool) -> Result<u32> {
    let t = table(s, long);
    let is_lost = |e: &Dentry| {
        let claimed = e.state.load(Acquire) == DENTRY_CLAIMED;
        claimed && !lock::owner_lives(s, e.spare.load(Relaxed))
    };
    for index in t.base..t.base + t.used() {
        let e = s.dentry(index)?;
        if is_lost(e) {
            let (bucket, _guard) = lock_bucket(s, e.hash.load(Relaxed), Rank::Normal)?;
            let _change = Changing::begin(&bucket.version);
            buckets::unchain(DentryChains(s), bucket, index + 1);
        }
    }
    let is_free = |index: u32| {
        s.dentry(index)
            .is_ok_and(|e| e.state.load(Relaxed) == 0 || is_lost(e))
    };
    t.rebuild(s, |i| next_of(s, i), is_free)
}
