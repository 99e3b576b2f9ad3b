//! Cached inodes.
//!
//! Invariants:
//!  * An entry with `INODE_VALID` describes inode `ino` as of journal record `seq`; it is in the
//!    chain of its bucket. Inserting is one store of the chain's head, removing one store of the
//!    link before it.
//!  * An entry stays while it is locked or pinned (`opens`, `maps`), `INODE_DIRTY`, or newer than
//!    the trees (`seq` above `applied_seq`). An object that lost its last name stays as a tombstone
//!    (`nlink` 0) until the trees have the removal, so that nobody loads it again.
//!  * Whoever removes an entry clears `INODE_VALID` before looking at `opens`; whoever pins adds to
//!    `opens` before looking at `INODE_VALID` and `INODE_ORPHAN`. One of them sees the other.
//!  * A process that dies with an entry half-made or half-removed holds its lock: `sweep` frees
//!    such entries.

use crate::base::error::{Error, Result};
use crate::base::trees::TreeInode;
use crate::session::free_list::{FreeList, count_down, recycles};
use crate::session::lock::{self, Changing, Guard, Rank};
use crate::session::place::Place;
use crate::session::{BLOCK, Session};
use crate::session::{drain, space, stores};
use crate::tables::buckets;
pub(crate) use crate::tables::inode::expect;
pub use crate::tables::inode::{
    Attrs, InodeRef, LockedInode, Passage, Rights, attrs, by_link, find, passage,
};
use crate::tables::inode::{InodeChains, walk};
pub(crate) use crate::tables::inode::{is_dir, is_file, mark_dirty, try_lock};
use crate::tables::{block_map, met, open_values};
use pmem::atomic::{AtomicU32, Ordering::*};
use pool::layout::BlockAddr;
use pool::session::*;

/// Entries that are looked at for one to use again.
const RECYCLE_LOOKS: u32 = 3;
/// Entries that an eviction tries to free at once.
const EVICT_BATCH: u32 = 32;
/// So many entries ahead of the hand what an eviction needs is being loaded.
const EXPECTED: u32 = 8;
/// Entries that are looked at before the table grows beyond `inode_limit`.
const LOOKS: u32 = 256;
/// Packed into `direct`, a symlink's target costs no tree read.
pub(crate) const PACKED_MAX: usize = DIRECT * 8;

/// The entries that are there before unused ones are freed.
fn cached(s: &Session) -> FreeList<'_> {
    let capacity = s.header().inode_limit.load(Relaxed).min(INODES as u32);
    FreeList {
        capacity,
        ..table(s)
    }
}

fn table(s: &Session) -> FreeList<'_> {
    let h = s.header();
    FreeList {
        lock: &h.inode_lock,
        free: &h.inode_free,
        used: &h.inode_used,
        capacity: INODES as u32,
        base: 0,
    }
}

fn next_of(s: &Session, index: u32) -> Result<&AtomicU32> {
    Ok(&s.inode(index + 1)?.next)
}

/// The entry of `ino`, loaded from the trees if need be. `NotFound` if there is none.
#[inline]
pub fn get(s: &Session, ino: u64) -> Result<InodeRef<'_>> {
    match find(s, ino) {
        Some(found) => Ok(found),
        None => load(s, ino),
    }
}

#[cold]
fn load(s: &Session, ino: u64) -> Result<InodeRef<'_>> {
    if ino == 0 {
        return Err(Error::NotFound);
    }
    // The new entry comes first: making room may wait, which nobody does under a bucket lock.
    let fresh = Fresh::new(s, Rank::Normal)?;
    let (bucket, _guard) = fresh.bucket(ino)?;
    if let Some(found) = walk(s, bucket, ino) {
        return Ok(found);
    }
    let known = s.tree().inode(ino)?.ok_or(Error::NotFound)?;
    fill_from_tree(fresh.e, ino, &known);
    Ok(fresh.insert(bucket, ino))
}

/// The attributes of an object that the trees alone know, unless it is better cached: that is what
/// the table has room for, or what was asked for before. `NotFound` if there is none.
#[cold]
pub(crate) fn uncached(s: &Session, ino: u64) -> Result<Option<Attrs>> {
    let hash = ino.wrapping_mul(0xd6e8_feb8_6659_fd93);
    if ino == 0 || !cached(s).is_full(0) || find(s, ino).is_some() || met::before(s, hash) {
        return Ok(None);
    }
    // Nobody enters it meanwhile, and changes it.
    let (chosen, _guard) = buckets::lock(s, InodeChains(s), ino, Rank::Plain)?;
    if walk(s, chosen.bucket, ino).is_some() {
        return Ok(None);
    }
    let known = s.tree().inode(ino)?.ok_or(Error::NotFound)?;
    Ok(Some(attrs_of(ino, &known)))
}

/// An entry that stands for a value, pinned; `None`: something else has the number.
pub(crate) fn enter_value<'s>(
    s: &'s Session,
    ino: u64,
    value: &TreeInode,
) -> Result<Option<InodeRef<'s>>> {
    let fresh = Fresh::new(s, Rank::Normal)?;
    let (bucket, _guard) = fresh.bucket(ino)?;
    if walk(s, bucket, ino).is_some() || s.tree().inode(ino)?.is_some() {
        return Ok(None);
    }
    open_values::bind(s, value.value, fresh.link, ino)?;
    fill_from_tree(fresh.e, ino, value);
    // Others may come by with a reference to what the entry was before, and add to it as well.
    fresh.e.opens.fetch_add(1, SeqCst);
    Ok(Some(fresh.insert(bucket, ino)))
}

/// Frees the entry of a value that nobody has open any more.
#[cold]
pub(crate) fn leave_value(s: &Session, inode: &InodeRef<'_>) {
    if let Some(locked) = try_lock(s, *inode)
        && open_values::is_value(locked.e)
    {
        remove(s, locked, s.applied_seq());
    }
}

/// What an entry that was just loaded says.
fn attrs_of(ino: u64, t: &TreeInode) -> Attrs {
    let mut state = INODE_VALID | INODE_USED;
    for (bit, on) in [
        (INODE_INLINE | INODE_STORED, t.inline),
        (INODE_XATTRS, t.xattrs),
        (INODE_ACL, t.acls[0]),
        (INODE_DEFAULT_ACL, t.acls[1]),
        (INODE_KEYSPACE, t.keyspace),
        (INODE_VALUE, t.value != 0),
        (INODE_ORPHAN, t.orphan),
        (INODE_COMPLETE, t.entries == 0 && is_dir(t.mode)),
        (INODE_MAPPED, t.blocks == 0 && !t.inline),
    ] {
        state |= if on { bit } else { 0 };
    }
    Attrs {
        ino,
        mode: t.mode,
        uid: t.uid,
        gid: t.gid,
        project: t.project,
        nlink: t.nlink,
        size: t.size,
        blocks: t.blocks,
        atime: t.atime,
        mtime: t.mtime,
        ctime: t.ctime,
        btime: t.btime,
        rdev: t.rdev,
        parent: t.parent,
        entries: t.entries.max(t.value.into()),
        state,
    }
}

fn fill_from_tree(e: &Inode, ino: u64, t: &TreeInode) {
    let a = attrs_of(ino, t);
    let change = Changing::begin(&e.version);
    for (field, value) in [
        (&e.mode, a.mode),
        (&e.uid, a.uid),
        (&e.gid, a.gid),
        (&e.nlink, a.nlink),
    ] {
        field.store(value, Relaxed);
    }
    for (field, value) in [
        (&e.size, a.size),
        (&e.atime, a.atime as u64),
        (&e.mtime, a.mtime as u64),
        (&e.ctime, a.ctime as u64),
        (&e.btime, a.btime as u64),
        (&e.rdev, a.rdev),
        (&e.parent, a.parent),
        (&e.entries, a.entries),
        (&e.blocks, a.blocks),
    ] {
        field.store(value, Relaxed);
    }
    e.project.store(a.project, Relaxed);
    e.seq.store(0, Relaxed);
    e.ino.store(ino, Release);
    e.state.store(a.state, Release);
    drop(change);
}

/// An entry in the making: claimed by holding its lock, `ino` 0, all fields as in a new file.
pub(crate) struct Fresh<'s> {
    s: &'s Session,
    pub e: &'s Inode,
    link: u32,
    inserted: bool,
}

impl<'s> Fresh<'s> {
    /// Takes a free entry, making room if need be; its lock is held until it is dropped.
    pub fn new(s: &'s Session, rank: Rank) -> Result<Fresh<'s>> {
        let pop = |table: FreeList<'s>| {
            let claim = |index: u32| {
                // A reader with a stale reference may hold the lock for a moment.
                core::mem::forget(lock::acquire_plain(s, &s.inode(index + 1)?.lock)?);
                Ok(())
            };
            table.pop(s, |i| next_of(s, i), claim)
        };
        if rank == Rank::Normal && recycles(&table(s), &s.header().inode_gone) {
            recycle(s);
        }
        let mut index = pop(cached(s))?;
        if index.is_none() {
            clock(s, LOOKS);
            index = pop(table(s))?;
        }
        let index = match index {
            Some(index) => index,
            None => {
                make_room(s, rank)?;
                pop(table(s))?.ok_or(Error::NoMemory)?
            }
        };
        let e = s.inode(index + 1)?;
        lock::close_change(&e.version);
        reset(e);
        let link = index + 1;
        Ok(Fresh {
            s,
            e,
            link,
            inserted: false,
        })
    }

    /// The locked bucket for the entry, once there are enough of them.
    fn bucket(&self, ino: u64) -> Result<(&'s Bucket, Guard<'s>)> {
        let s = self.s;
        buckets::make_ready(s, InodeChains(s), ino, self.link - 1, Rank::Plain)?;
        let (chosen, guard) = buckets::lock(s, InodeChains(s), ino, Rank::Plain)?;
        Ok((chosen.bucket, guard))
    }

    /// Makes the filled entry findable. The caller holds the bucket's lock.
    pub fn insert(mut self, bucket: &Bucket, ino: u64) -> InodeRef<'s> {
        let itself = bucket.head.load(Relaxed) == self.link;
        let _ = self.s.ensure(!itself, "an entry is in one chain, once");
        self.e.next.store(bucket.head.load(Relaxed), Release);
        bucket.head.store(self.link, Release);
        self.inserted = true;
        InodeRef {
            link: self.link,
            ino,
            e: self.e,
        }
    }

    /// As `insert` for the object that the record at `place` made, by who does not know what
    /// others did since; its link. 0: the trees have it, who needs it loads it.
    pub fn publish_again(self, ino: u64, place: Place) -> Result<u32> {
        let s = self.s;
        let (bucket, _guard) = self.bucket(ino)?;
        if let Some(found) = walk(s, bucket, ino) {
            return Ok(found.link);
        }
        // Looked at with the bucket locked: who loaded and changed the object before this could
        // not have let the entry go yet.
        if s.lane(place.lane)?.applied.load(Acquire) > place.position {
            return Ok(0);
        }
        Ok(self.insert(bucket, ino).link)
    }

    /// As `insert`, when `ino` is known not to be in the table.
    pub fn publish(self, ino: u64) -> Result<InodeRef<'s>> {
        let (bucket, _guard) = self.bucket(ino)?;
        Ok(self.insert(bucket, ino))
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        if !self.inserted {
            self.e.state.store(0, Release);
            self.e.ino.store(0, Release);
            let next = &self.e.next;
            // Without the table's lock (a given-up session) the entry waits for a sweep.
            let _ = table(self.s).push(self.s, self.link - 1, next, || {});
        }
        drop(Guard::adopt(&self.e.lock));
    }
}

fn reset(e: &Inode) {
    for field in [
        &e.maps,
        &e.map_root,
        &e.locks,
        &e.pending_len,
        &e.reserve_len,
        &e.map_epoch,
    ] {
        field.store(0, Relaxed);
    }
    for field in [
        &e.parent,
        &e.entries,
        &e.blocks,
        &e.seq,
        &e.dir_seq,
        &e.rdev,
        &e.size,
        &e.pending_block,
        &e.pending_file_block,
        &e.reserve_block,
    ] {
        field.store(0, Relaxed);
    }
    e.project.store(0, Relaxed);
    for field in e.direct.iter().chain([&e.intent_seq]) {
        field.store(0, Relaxed);
    }
}

/// Locks `ino`, loading it if need be. `NotFound`: there is no such object.
pub fn lock(s: &Session, ino: u64) -> Result<LockedInode<'_>> {
    loop {
        match lock_entry(s, get(s, ino)?)? {
            Some(locked) => return alive(locked),
            None => core::hint::spin_loop(),
        }
    }
}

/// As `lock` from a reference at hand, pinned or not.
#[inline]
pub fn lock_ref<'s>(s: &'s Session, inode: InodeRef<'s>) -> Result<LockedInode<'s>> {
    match lock_entry(s, inode)? {
        Some(locked) => alive(locked),
        None => lock(s, inode.ino),
    }
}

/// As `lock_ref` for who stores into blocks of the file: not while a snapshot is taken.
#[inline]
pub fn lock_to_store<'s>(s: &'s Session, inode: InodeRef<'s>) -> Result<LockedInode<'s>> {
    s.check_writable()?;
    loop {
        let locked = lock_ref(s, inode)?;
        if !stores::are_stopped(s) {
            return Ok(locked);
        }
        drop(locked);
        stores::wait(s)?;
    }
}

/// Locks the directory in which a name is to change; `NotFound` if it was removed.
pub(crate) fn lock_parent(s: &Session, dir: u64) -> Result<LockedInode<'_>> {
    let locked = lock(s, dir)?;
    match attrs(s, &locked)?.nlink {
        0 => Err(Error::NotFound),
        _ => Ok(locked),
    }
}

/// Whether an object that is marked as removed is that, or who wanted to remove it died before.
#[cold]
pub(crate) fn is_gone(s: &Session, ino: u64) -> Result<bool> {
    match lock(s, ino) {
        Err(Error::NotFound) => Ok(true),
        Err(e) => Err(e),
        Ok(locked) => Ok(attrs(s, &locked)?.nlink == 0),
    }
}

/// Only a tombstone is left of an object that is gone.
#[inline]
fn alive(locked: LockedInode<'_>) -> Result<LockedInode<'_>> {
    match locked.e.state.load(Relaxed) & INODE_GONE {
        0 => Ok(locked),
        _ => Err(Error::NotFound),
    }
}

#[inline]
pub(crate) fn lock_entry<'s>(
    s: &'s Session,
    inode: InodeRef<'s>,
) -> Result<Option<LockedInode<'s>>> {
    let guard = lock::acquire(s, &inode.e.lock)?;
    if guard.was_stolen() {
        repair(s, &inode);
    }
    s.recall(inode.ino);
    let locked = LockedInode {
        inode,
        _guard: guard,
    };
    Ok(inode.is_current().then_some(locked))
}

/// The last holder died. What it had committed is published (`recover::lanes`); what remains is
/// an open sequence word, a removal that was announced but not committed, blocks that were mapped
/// but did not come to be pending, and a block count that may lag behind the map.
#[cold]
fn repair(s: &Session, inode: &InodeRef<'_>) {
    let e = inode.e;
    lock::close_change(&e.version);
    if e.state.load(Relaxed) & INODE_ORPHAN != 0 && e.nlink.load(Relaxed) > 0 {
        e.state.fetch_and(!INODE_ORPHAN, AcqRel);
    }
    // On its way from shadow to block of the file (`data::leave_inline`): still a shadow.
    let pending = (
        e.pending_file_block.load(Relaxed),
        e.pending_len.load(Relaxed),
    );
    if is_file(e.mode.load(Relaxed))
        && pending == (0, 1)
        && e.state.load(Relaxed) & INODE_SHADOW != 0
    {
        e.pending_len.store(0, Relaxed);
    }
    block_map::drop_stray(s, inode);
    block_map::recount(s, inode);
}

/// Locks several inodes in the order that avoids deadlock (ascending numbers). 0 and repeated
/// numbers give `None`.
pub fn lock_many<const N: usize>(
    s: &Session,
    inos: [u64; N],
) -> Result<[Option<LockedInode<'_>>; N]> {
    let mut locked = [const { None }; N];
    let mut done = 0;
    // Selection by ascending number; N is at most four.
    while let Some(next) = inos.iter().copied().filter(|i| *i > done).min() {
        if let Some(place) = inos.iter().position(|i| *i == next) {
            locked[place] = Some(lock(s, next)?);
        }
        done = next;
    }
    Ok(locked)
}

/// Target of a symlink; its length. Waits for the service when it is long and new.
pub fn symlink_target(s: &Session, inode: &InodeRef<'_>, out: &mut [u8]) -> Result<usize> {
    let packed = lock::read_stable(&inode.e.version, || {
        let len = inode.e.pending_len.load(Relaxed) as usize;
        let mut bytes = [0; PACKED_MAX];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(&inode.e.direct) {
            chunk.copy_from_slice(&word.load(Relaxed).to_le_bytes());
        }
        (len, bytes)
    });
    match packed {
        Some((len, bytes)) if (1..=PACKED_MAX).contains(&len) && inode.is_current() => {
            copy_to(&bytes[..len], out)
        }
        _ => tail(s, inode, out),
    }
}

/// The name of a directory in its parent; its length. Waits for the service when it is new.
pub fn dir_name(s: &Session, inode: &InodeRef<'_>, out: &mut [u8]) -> Result<usize> {
    tail(s, inode, out)
}

/// Content of an inline file that is in no block, to the start of `out`; its length. The caller
/// has the file locked.
pub fn inline_data(
    s: &Session,
    inode: &InodeRef<'_>,
    out: &mut [u8; BLOCK as usize],
) -> Result<usize> {
    match open_values::content(s, inode, out)? {
        Some(len) => Ok(len),
        // Only times may be newer than what the trees have.
        None if inode.e.state.load(Acquire) & INODE_STORED != 0 => {
            s.tree().tail(inode.ino, out)?.ok_or(Error::Stale)
        }
        None => tail(s, inode, out),
    }
}

/// The tail of the inode's record in the trees, once they know the newest record about it.
fn tail(s: &Session, inode: &InodeRef<'_>, out: &mut [u8]) -> Result<usize> {
    drain::wait_applied(s, inode.e.seq.load(Acquire))?;
    s.tree().tail(inode.ino, out)?.ok_or(Error::Stale)
}

fn copy_to(bytes: &[u8], out: &mut [u8]) -> Result<usize> {
    out.get_mut(..bytes.len())
        .ok_or(Error::Range)?
        .copy_from_slice(bytes);
    Ok(bytes.len())
}

/// Stores a symlink's target in the entry where it fits. The caller is changing the entry.
pub(crate) fn pack_target(e: &Inode, target: &[u8]) {
    if target.len() > PACKED_MAX {
        return;
    }
    for (chunk, word) in target.chunks(8).zip(&e.direct) {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        word.store(u64::from_le_bytes(bytes), Relaxed);
    }
    e.pending_len.store(target.len() as u32, Relaxed);
}

/// A number for a new inode. `NoSpace`: the service lets nobody use more of them now.
#[inline]
pub fn new_ino(s: &Session) -> Result<u64> {
    let h = s.header();
    let ino = h.next_ino.fetch_add(1, Relaxed);
    match ino < h.ino_end.load(Relaxed) || drain::wait_for_numbers(s, ino) {
        true => Ok(ino),
        false => Err(Error::NoSpace),
    }
}

/// As `space::alloc`. In a full pool blocks that only shadow inline data are free ones.
pub(crate) fn alloc_blocks(
    s: &Session,
    want: u32,
    near: Option<BlockAddr>,
) -> Result<(BlockAddr, u32)> {
    match space::alloc(s, want, near) {
        Err(Error::NoSpace) if !s.is_read_only() => {
            drop_shadows(s);
            space::alloc(s, 1, near)
        }
        done => done,
    }
}

/// Gives the blocks that shadow inline data of unused files back to `space`.
pub fn drop_shadows(s: &Session) {
    let applied = s.applied_seq();
    for link in 1..=table(s).used() {
        let Ok(e) = s.inode(link) else { return };
        if e.state.load(Relaxed) & INODE_SHADOW != 0 {
            evict(s, link, e, applied, true);
        }
    }
}

/// Frees every entry that nothing needs, and says how many: for tests of what comes after.
pub fn drop_unused(s: &Session) -> u32 {
    let applied = s.applied_seq();
    let mut freed = 0;
    for link in 1..=table(s).used() {
        let Ok(e) = s.inode(link) else { break };
        freed += u32::from(evict(s, link, e, applied, true));
    }
    freed
}

/// Frees entries that nothing needs: a batch at once, waiting for the service if all are needed.
#[cold]
fn make_room(s: &Session, rank: Rank) -> Result<()> {
    if rank == Rank::Plain {
        // Recovery waits for nobody; what goes was locked by nobody.
        clock(s, u32::MAX);
        return Ok(());
    }
    for round in 0..4 {
        if clock(s, u32::MAX) > 0 || (round == 1 && sweep(s)? > 0) {
            return Ok(());
        }
        drain::wait_applied(s, s.header().next_seq.load(Acquire).saturating_sub(1))?;
    }
    Err(Error::TableFull)
}

/// One pass of the CLOCK hand, at most twice around; how many entries it freed.
fn clock(s: &Session, looks: u32) -> u32 {
    let (applied, used) = (s.applied_seq(), table(s).used());
    let mut freed = 0;
    for _ in 0..used.saturating_mul(2).min(looks) {
        let hand = s.header().inode_hand.fetch_add(1, Relaxed);
        if let Ok(next) = s.inode(hand.wrapping_add(EXPECTED) % used + 1) {
            expect(s, next.ino.load(Relaxed));
        }
        let at = hand % used;
        let Ok(e) = s.inode(at + 1) else { break };
        freed += u32::from(evict(s, at + 1, e, applied, false));
        if freed >= EVICT_BATCH {
            break;
        }
    }
    freed
}

/// Frees a tombstone or two that the trees know about, so that a program which makes and removes
/// files goes round in little memory.
fn recycle(s: &Session) {
    let (applied, used) = (s.applied_seq(), table(s).used().max(1));
    for _ in 0..RECYCLE_LOOKS {
        let at = s.header().inode_hand.fetch_add(1, Relaxed) % used;
        let Ok(e) = s.inode(at + 1) else { return };
        if e.state.load(Relaxed) & INODE_GONE != 0 && evict(s, at + 1, e, applied, true) {
            return;
        }
    }
}

/// Whether the trees know everything that the entry says and nobody uses it.
fn is_clean(e: &Inode, applied: u64) -> bool {
    e.state.load(Relaxed) & INODE_DIRTY == 0
        && e.opens.load(SeqCst) == 0
        && e.maps.load(Relaxed) == 0
        && e.seq.load(Relaxed) <= applied
        && e.reserve_len.load(Relaxed) == 0
        && (e.pending_len.load(Relaxed) == 0 || !is_file(e.mode.load(Relaxed)))
}

fn evict(s: &Session, link: u32, e: &Inode, applied: u64, now: bool) -> bool {
    let ino = e.ino.load(Relaxed);
    if ino == 0 || e.lock.load(Relaxed) != 0 {
        return false;
    }
    if !now && e.state.load(Relaxed) & INODE_USED != 0 {
        e.state.fetch_and(!INODE_USED, Relaxed);
        return false;
    }
    if !is_clean(e, applied) {
        return false;
    }
    let Ok(inode) = s.inode(link).map(|e| InodeRef { link, ino, e }) else {
        return false;
    };
    let Some(locked) = try_lock(s, inode) else {
        return false;
    };
    remove(s, locked, applied)
}

/// Takes a locked entry out of the table, unless somebody came to need it.
fn remove(s: &Session, locked: LockedInode<'_>, applied: u64) -> bool {
    let e = locked.e;
    e.state.fetch_and(!INODE_VALID, SeqCst);
    if !is_clean(e, applied) || !unlink(s, locked.ino, locked.link) {
        e.state.fetch_or(INODE_VALID, SeqCst);
        return false;
    }
    block_map::drop_shadow(s, &locked);
    block_map::discard(s, &locked);
    if open_values::is_value(e) {
        open_values::leave(s, e);
    }
    release_entry(s, locked);
    true
}

/// The last steps of a removal: the entry, in no chain any more, becomes free.
fn release_entry(s: &Session, locked: LockedInode<'_>) {
    let e = locked.e;
    let unused = e.map_root.load(Relaxed) == 0 && e.state.load(Relaxed) & INODE_VALID == 0;
    if s.ensure(
        unused,
        "an entry that is freed has no map and is in no chain",
    )
    .is_err()
    {
        return;
    }
    if e.state.load(Relaxed) & INODE_GONE != 0 {
        count_down(&s.header().inode_gone);
    }
    let change = Changing::begin(&e.version);
    e.state.store(0, Release);
    e.ino.store(0, Release);
    drop(change);
    let _ = table(s).push(s, locked.link - 1, &e.next, || {});
}

/// Takes an entry out of its chain. False: the bucket is locked by somebody.
fn unlink(s: &Session, ino: u64, link: u32) -> bool {
    let Some((chosen, _guard)) = buckets::try_lock(s, InodeChains(s), ino) else {
        return false;
    };
    let _change = Changing::begin(&chosen.bucket.version);
    buckets::unchain(InodeChains(s), chosen.bucket, link);
    true
}

/// Frees entries that died with their makers or removers; how many.
fn sweep(s: &Session) -> Result<u32> {
    let dead = |word: u32| word != 0 && !lock::owner_lives(s, word);
    for link in 1..=table(s).used() {
        let e = s.inode(link)?;
        let ino = e.ino.load(Relaxed);
        if ino == 0 || !dead(e.lock.load(Relaxed)) && e.state.load(Relaxed) & INODE_VALID != 0 {
            continue;
        }
        s.recover()?;
        let guard = lock::acquire(s, &e.lock)?;
        lock::close_change(&e.version);
        let inode = InodeRef { link, ino, e };
        let valid = inode.is_current();
        if e.ino.load(Relaxed) != ino || valid && is_linked(s, &inode)? {
            continue;
        }
        e.state.fetch_and(!INODE_VALID, SeqCst);
        let (chosen, bucket_guard) = buckets::lock(s, InodeChains(s), ino, Rank::Plain)?;
        let change = Changing::begin(&chosen.bucket.version);
        buckets::unchain(InodeChains(s), chosen.bucket, link);
        drop(change);
        drop(bucket_guard);
        if open_values::is_value(e) {
            open_values::leave(s, e);
        }
        e.state.store(0, Release);
        e.ino.store(0, Release);
        drop(guard);
    }
    let is_free = |index: u32| {
        s.inode(index + 1).is_ok_and(|e| {
            let word = e.lock.load(Relaxed);
            e.ino.load(Relaxed) == 0 && (word == 0 || dead(word))
        })
    };
    table(s).rebuild(s, |i| next_of(s, i), is_free)
}

fn is_linked(s: &Session, inode: &InodeRef<'_>) -> Result<bool> {
    let (chosen, _guard) = buckets::lock(s, InodeChains(s), inode.ino, Rank::Plain)?;
    Ok(walk(s, chosen.bucket, inode.ino).is_some_and(|found| found.link == inode.link))
}
