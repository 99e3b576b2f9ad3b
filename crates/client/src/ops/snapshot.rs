//! Snapshots of the whole pool: taking them, listing them, deleting them.
//!
//! Invariants:
//!  * While one is taken, nobody stores into blocks of files (`inode_table::lock_to_store`). So it
//!    shows one moment: of the changes that a program makes one after the other, it has the first
//!    ones up to some point. Stores through mappings are not stopped.
//!  * A process that dies while it takes a snapshot stops nobody: its lock is taken over, and the
//!    service takes the snapshot only if the requesting process still holds the lock.

use crate::base::error::{Error, Result};
use crate::content::{close, lending};
use crate::ops::client::Client;
use crate::session::Session;
use crate::session::attach::{self, AttachError};
use crate::session::drain;
use crate::session::lock;
use crate::tables::inode_table::{self, InodeRef};
use alloc::vec::Vec;
use pmem::atomic::Ordering::{Acquire, SeqCst};
use pool::protocol::{Name, Request};
use pool::session::{INODE_DIRTY, INODE_LENT, INODE_VALID};

/// A snapshot, as the trees have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    pub name: Vec<u8>,
    /// When it was taken, in nanoseconds since 1970.
    pub time_ns: i64,
    /// The commit that it keeps.
    pub seq: u64,
    /// Objects in it.
    pub objects: u64,
}

/// Why a snapshot could not be taken or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotError {
    /// The session.
    Client(Error),
    /// The service.
    Service(AttachError),
}

impl SnapshotError {
    /// The positive errno of this error.
    pub fn errno(&self) -> i32 {
        match self {
            SnapshotError::Client(e) => e.errno(),
            SnapshotError::Service(e) => e.errno(),
        }
    }
}

impl core::fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            SnapshotError::Client(e) => e.fmt(f),
            SnapshotError::Service(e) => e.fmt(f),
        }
    }
}

impl core::error::Error for SnapshotError {}

impl From<Error> for SnapshotError {
    fn from(e: Error) -> Self {
        SnapshotError::Client(e)
    }
}

impl From<AttachError> for SnapshotError {
    fn from(e: AttachError) -> Self {
        SnapshotError::Service(e)
    }
}

/// Takes a snapshot of all that was done before the call. `pool` is the pool's directory.
pub(crate) fn create(
    c: &Client,
    pool: &[u8],
    name: &[u8],
) -> core::result::Result<(), SnapshotError> {
    let s = &c.session;
    s.check()?;
    let name = Name::new(name).ok_or(Error::Invalid)?;
    let stopped = stop(s)?;
    drain::wait_applied(s, s.header().next_seq.load(SeqCst).saturating_sub(1))?;
    let owner = stopped.owner;
    attach::request(pool, Request::SnapshotCreate { name, owner })?;
    Ok(())
}

/// While it lives, nobody begins to store into blocks.
pub struct StoresStopped<'s> {
    _held: lock::Guard<'s>,
    /// Who stops them, as lock words name it.
    pub owner: u32,
}

/// Stops stores, journals what is lazy and makes data durable.
pub(crate) fn stop(s: &Session) -> Result<StoresStopped<'_>> {
    let _held = lock::acquire(s, &s.header().stores_lock)?;
    flush_all(s)?;
    // The service makes all of it durable before it keeps the root.
    s.data().fence();
    let owner = s.owner();
    Ok(StoresStopped { _held, owner })
}

/// Journals what is lazy about every object, and waits for all who store into blocks now.
fn flush_all(s: &Session) -> Result<()> {
    for link in 1..=s.header().inode_used.load(Acquire) {
        let Ok(e) = s.inode(link) else { break };
        let (ino, state) = (e.ino.load(Acquire), e.state.load(Acquire));
        if ino == 0 || state & INODE_VALID == 0 {
            continue;
        }
        match inode_table::lock_ref(s, InodeRef { link, ino, e }) {
            Ok(inode) if inode.e.state.load(Acquire) & (INODE_DIRTY | INODE_LENT) != 0 => {
                lending::write_back(s, &inode, 0, u64::MAX)?;
                close::flush(s, &inode)?;
            }
            // One that went meanwhile took what was lazy about it along.
            Ok(_) | Err(Error::NotFound) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Deletes a snapshot; its space comes back. Takes as long as there is much that only it has.
pub(crate) fn delete(pool: &[u8], name: &[u8]) -> core::result::Result<(), SnapshotError> {
    let name = Name::new(name).ok_or(Error::Invalid)?;
    attach::request(pool, Request::SnapshotDelete { name })?;
    Ok(())
}

/// Calls a snapshot something else.
pub(crate) fn rename(
    pool: &[u8],
    name: &[u8],
    to: &[u8],
) -> core::result::Result<(), SnapshotError> {
    let name = Name::new(name).ok_or(Error::Invalid)?;
    let to = Name::new(to).ok_or(Error::Invalid)?;
    attach::request(pool, Request::SnapshotRename { name, to })?;
    Ok(())
}

/// All snapshots, the oldest first.
pub(crate) fn list(c: &Client) -> Result<Vec<SnapshotInfo>> {
    let mut all = c.session.tree().snapshots()?;
    all.sort_by_key(|(_, s)| s.epoch);
    let info = |(name, s): (Vec<u8>, pool::snapshot::Snapshot)| SnapshotInfo {
        name,
        time_ns: s.time,
        seq: s.seq,
        objects: pool::apply::count::objects(&s.counts),
    };
    Ok(all.into_iter().map(info).collect())
}
