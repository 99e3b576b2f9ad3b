//! Entries of the inode table: finding them, reading them, holding them.
//!
//! Invariants:
//!  * An entry with `INODE_VALID` describes inode `ino` as of journal record `seq`; it is in the
//!    chain of its bucket.
//!  * Attributes are read as a copy under the entry's sequence word.

use crate::base::error::{Error, Result};
use crate::session::Session;
use crate::session::lock::{self, Guard, Rank};
use crate::tables::buckets::{self, CHAIN_MAX, Chains};
use core::ops::Deref;
use pmem::atomic::{AtomicU32, Ordering::*};
use pool::session::{Bucket, INODE_ACL, INODE_DIRTY, INODE_USED, INODE_VALID, Inode};

/// A copy of an inode's attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attrs {
    pub ino: u64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// The quota of a directory for which it counts.
    pub project: u16,
    pub nlink: u32,
    pub size: u64,
    pub blocks: u64,
    pub atime: i64,
    pub mtime: i64,
    pub ctime: i64,
    pub btime: i64,
    pub rdev: u64,
    pub parent: u64,
    pub entries: u64,
    /// `INODE_*` bits.
    pub state: u32,
}

impl Attrs {
    #[inline]
    pub fn rights(&self) -> Rights {
        let Attrs {
            ino,
            mode,
            uid,
            gid,
            state,
            ..
        } = *self;
        Rights {
            mode,
            uid,
            gid,
            list_of: if state & INODE_ACL != 0 { ino } else { 0 },
        }
    }
}

/// Who may do what with an object.
#[derive(Clone, Copy, Debug)]
pub struct Rights {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// The object, if it has an access control list; else 0.
    pub list_of: u64,
}

/// What a walk needs to know of a directory.
#[derive(Clone, Copy, Debug)]
pub struct Passage {
    pub rights: Rights,
    pub parent: u64,
}

/// Where an inode is cached. Unless it is pinned or locked the entry may become another inode's
/// at any time: everything that uses it re-checks `ino`.
#[derive(Clone, Copy)]
pub struct InodeRef<'s> {
    /// Index + 1 of the entry.
    pub link: u32,
    /// Which inode.
    pub ino: u64,
    /// The entry.
    pub e: &'s Inode,
}

impl InodeRef<'_> {
    /// Whether the entry still is this inode's.
    #[inline]
    pub fn is_current(&self) -> bool {
        self.e.ino.load(Acquire) == self.ino && self.e.state.load(Acquire) & INODE_VALID != 0
    }
}

/// A locked inode: nobody else changes or evicts it.
pub struct LockedInode<'s> {
    pub(super) inode: InodeRef<'s>,
    pub(super) _guard: Guard<'s>,
}

impl<'s> Deref for LockedInode<'s> {
    type Target = InodeRef<'s>;

    #[inline]
    fn deref(&self) -> &InodeRef<'s> {
        &self.inode
    }
}

/// The chains of the inode table. Numbers are given in order, so they spread by themselves, and new
/// ones are neighbours: a number is its own hash.
#[derive(Clone, Copy)]
pub(super) struct InodeChains<'s>(pub &'s Session);

impl<'s> Chains<'s> for InodeChains<'s> {
    #[inline]
    fn count(self) -> &'s AtomicU32 {
        &self.0.header().inode_buckets
    }

    #[inline]
    fn bucket(self, index: u32) -> Result<&'s Bucket> {
        self.0.inode_bucket(index)
    }

    #[inline]
    fn expect(self, index: u32) {
        self.0.expect_inode_bucket(index);
    }

    fn hash(self, link: u32) -> Result<u64> {
        Ok(self.0.inode(link)?.ino.load(Relaxed))
    }

    fn next(self, link: u32) -> Result<&'s AtomicU32> {
        Ok(&self.0.inode(link)?.next)
    }
}

/// The entry of `ino` is looked for soon.
#[inline]
pub(crate) fn expect(s: &Session, ino: u64) {
    buckets::expect(InodeChains(s), ino);
}

/// The entry of `ino` if it is cached.
#[inline]
pub fn find(s: &Session, ino: u64) -> Option<InodeRef<'_>> {
    for _ in 0..64 {
        let chosen = buckets::choose(InodeChains(s), ino).ok()?;
        let version = &chosen.bucket.version;
        let before = version.load(Acquire);
        if let Some(found) = walk(s, chosen.bucket, ino) {
            return Some(found);
        }
        let is_whole = before & 1 == 0 && version.load(Acquire) == before;
        if is_whole && buckets::is_right(InodeChains(s), ino, chosen) {
            return None;
        }
        core::hint::spin_loop();
    }
    let (chosen, _guard) = buckets::lock(s, InodeChains(s), ino, Rank::Plain).ok()?;
    walk(s, chosen.bucket, ino)
}

#[inline]
pub(super) fn walk<'s>(s: &'s Session, bucket: &Bucket, ino: u64) -> Option<InodeRef<'s>> {
    let mut link = bucket.head.load(Acquire);
    for _ in 0..CHAIN_MAX {
        if link == 0 {
            return None;
        }
        let e = s.inode(link).ok()?;
        if e.ino.load(Acquire) == ino && e.state.load(Acquire) & INODE_VALID != 0 {
            return Some(InodeRef { link, ino, e });
        }
        link = e.next.load(Acquire);
    }
    None
}

/// The entry at `link` if it still holds `ino`.
#[inline]
pub fn by_link(s: &Session, link: u32, ino: u64) -> Option<InodeRef<'_>> {
    let e = s.inode(link).ok()?;
    let found = InodeRef { link, ino, e };
    found.is_current().then_some(found)
}

/// From here on session memory alone has something about the object: it is journaled at the last
/// close, by a sync, or by the writeback that is asked for here. The caller holds the lock, or only
/// moves the time of access.
#[inline]
pub(crate) fn mark_dirty(s: &Session, e: &Inode) {
    if e.state.load(Relaxed) & INODE_DIRTY != 0 {
        return;
    }
    e.state.fetch_or(INODE_DIRTY, SeqCst);
    // Whoever clears the word looks at the inodes afterwards: either it sees this one, or we see
    // that it was cleared.
    let wanted = &s.header().writeback_wanted;
    if wanted.load(SeqCst) == 0 {
        wanted.store(1, SeqCst);
    }
}

/// Whether a mode is a directory's.
pub(crate) fn is_dir(mode: u32) -> bool {
    mode & 0o170_000 == 0o040_000
}

/// Whether a mode is a regular file's.
pub(crate) fn is_file(mode: u32) -> bool {
    mode & 0o170_000 == 0o100_000
}

/// A consistent copy of the attributes. `Stale`: the entry is another inode's now, `get` again.
#[inline]
pub fn attrs(s: &Session, inode: &InodeRef<'_>) -> Result<Attrs> {
    let copy = match lock::read_stable(&inode.e.version, || copy_attrs(inode.e)) {
        Some(copy) => copy,
        None => attrs_locked(s, inode)?,
    };
    if copy.ino != inode.ino || copy.state & INODE_VALID == 0 {
        return Err(Error::Stale);
    }
    if copy.state & INODE_USED == 0 {
        inode.e.state.fetch_or(INODE_USED, Relaxed);
    }
    Ok(copy)
}

/// As `attrs` for who passes through a directory: fewer bytes to copy, and to move about.
#[inline]
pub fn passage(s: &Session, inode: &InodeRef<'_>) -> Result<Passage> {
    let e = inode.e;
    let read = || {
        let passage = Passage {
            rights: Rights {
                mode: e.mode.load(Relaxed),
                uid: e.uid.load(Relaxed),
                gid: e.gid.load(Relaxed),
                list_of: 0,
            },
            parent: e.parent.load(Relaxed),
        };
        (e.ino.load(Relaxed), e.state.load(Relaxed), passage)
    };
    let bits = INODE_VALID | INODE_USED;
    let is_plain = |state: u32| state & (bits | INODE_ACL) == bits;
    match lock::read_stable(&e.version, read) {
        Some((ino, state, copy)) if ino == inode.ino && is_plain(state) => Ok(copy),
        _ => attrs(s, inode).map(|a| Passage {
            rights: a.rights(),
            parent: a.parent,
        }),
    }
}

/// The writer is slow or dead: wait for it under the lock.
#[cold]
fn attrs_locked(s: &Session, inode: &InodeRef<'_>) -> Result<Attrs> {
    let _guard = lock::acquire(s, &inode.e.lock)?;
    lock::close_change(&inode.e.version);
    Ok(copy_attrs(inode.e))
}

#[inline]
fn copy_attrs(e: &Inode) -> Attrs {
    Attrs {
        ino: e.ino.load(Relaxed),
        mode: e.mode.load(Relaxed),
        uid: e.uid.load(Relaxed),
        gid: e.gid.load(Relaxed),
        project: e.project.load(Relaxed),
        nlink: e.nlink.load(Relaxed),
        size: e.size.load(Relaxed),
        blocks: e.blocks.load(Relaxed),
        atime: e.atime.load(Relaxed) as i64,
        mtime: e.mtime.load(Relaxed) as i64,
        ctime: e.ctime.load(Relaxed) as i64,
        btime: e.btime.load(Relaxed) as i64,
        rdev: e.rdev.load(Relaxed),
        parent: e.parent.load(Relaxed),
        entries: e.entries.load(Relaxed),
        state: e.state.load(Relaxed),
    }
}

/// As `lock` if the lock is free now and the entry still `ino`'s.
pub(crate) fn try_lock<'s>(s: &'s Session, inode: InodeRef<'s>) -> Option<LockedInode<'s>> {
    let guard = lock::try_acquire(s, &inode.e.lock)?;
    lock::close_change(&inode.e.version);
    s.recall(inode.ino);
    let locked = LockedInode {
        inode,
        _guard: guard,
    };
    inode.is_current().then_some(locked)
}
