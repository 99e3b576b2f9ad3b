//! Read leases on cached inodes (`session::leases` has their words).
//!
//! Invariant: a lease is given only on an inode that nobody has locked after its word was marked,
//! so whoever locks it later sees the mark.

use crate::session::Session;
use crate::session::leases::LEASES_MAX;
use crate::tables::inode::{InodeRef, LockedInode};
use core::cell::{Cell, RefCell};
use pmem::atomic::Ordering::*;
use pool::session::{INODE_KEYSPACE, INODE_VALUE};

/// Leases on all that one answer was made from.
#[derive(Debug, Default)]
pub struct LeaseSet {
    held: RefCell<Held>,
    /// There is something that no lease can be had on.
    is_spoiled: Cell<bool>,
}

/// Index and value of each word.
type Held = ([(u32, u64); LEASES_MAX], usize);

impl LeaseSet {
    /// The answer depends on more than inodes.
    pub(crate) fn spoil(&self) {
        self.is_spoiled.set(true);
    }

    /// What is read of an inode from here on the answer depends on.
    pub(crate) fn add(&self, s: &Session, inode: &InodeRef<'_>) {
        match lease(s, inode) {
            Some(lease) => self.put(lease),
            None => self.spoil(),
        }
    }

    fn put(&self, lease: (u32, u64)) {
        let (list, len) = &mut *self.held.borrow_mut();
        if list[..*len].contains(&lease) {
            return;
        }
        match list.get_mut(*len) {
            Some(free) => (*free, *len) = (lease, *len + 1),
            None => self.spoil(),
        }
    }

    /// As `add` for what nobody else can change meanwhile.
    pub(crate) fn add_locked(&self, s: &Session, inode: &LockedInode<'_>) {
        match s.hold_lease(inode.ino).filter(|_| !has_keys(inode)) {
            Some(lease) => self.put(lease),
            None => self.spoil(),
        }
    }

    /// The leases; `None`: the answer cannot be kept.
    pub fn leases(&self) -> Option<([(u32, u64); LEASES_MAX], usize)> {
        let held = *self.held.borrow();
        (!self.is_spoiled.get() && held.1 > 0).then_some(held)
    }

    /// Whether nothing has changed since all of them were given.
    pub(crate) fn last(&self, s: &Session) -> bool {
        let (Some(words), Some((list, len))) = (s.lease_words(), self.leases()) else {
            return false;
        };
        list[..len]
            .iter()
            .all(|(index, value)| words.now(*index) == *value)
    }
}

/// A lease on what is read of the inode from here on: index and value of its word.
fn lease(s: &Session, inode: &InodeRef<'_>) -> Option<(u32, u64)> {
    let lease = s.hold_lease(inode.ino)?;
    let is_free = inode.e.lock.load(SeqCst) == 0 && inode.is_current();
    (is_free && !has_keys(inode)).then_some(lease)
}

/// Keys come and go without the lock.
fn has_keys(inode: &InodeRef<'_>) -> bool {
    inode.e.state.load(Acquire) & (INODE_KEYSPACE | INODE_VALUE) != 0
}
