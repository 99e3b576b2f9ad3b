//! Snapshots: named roots of the whole pool.
//!
//! Invariants:
//!  * A snapshot is an entry of tree `SNAPSHOTS`: the roots of trees 0 to 5 as one commit left
//!    them. Taking one changes nothing else, so it costs the same whatever the pool holds.
//!  * Each snapshot ends an epoch. A node has the commit that wrote it, and an extent the epoch in
//!    which its blocks came into use. So one comparison tells whether the newest snapshot shares
//!    what leaves the present; what it shares stays in use.
//!  * Deleting a snapshot frees what it alone has: in the commit that removes the entry, or in
//!    steps if it is much (`delete`).
//!
//! `docs/spec/format.md` states every field.

#[cfg(test)]
mod crash_tests;
mod delete;
mod record;
mod rollback;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod values_tests;

pub(crate) use delete::{DYING_MAX, is_dying};
pub use record::{MAPPED_MAX, NAME_MAX, SNAPSHOT_TREES, Snapshot, is_legal_name};

use crate::error::{Error, Result};
use crate::layout::{ReadTrees, SNAPSHOTS};
use crate::pool::{Pool, WriteToken};
use crate::tree::{Fixed, Reader, VALUE_MAX};
use alloc::vec::Vec;
use core::ops::ControlFlow;

/// What is known about stores to blocks that snapshots have.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'m> {
    /// Since the snapshot before there may have been some, to files that its entry does not name.
    pub before: bool,
    /// Files that are mapped now: what is stored to them later may be in the snapshot.
    pub mapped: &'m [u64],
    /// There may be some, to other files, before anybody says more.
    pub after: bool,
}

/// The newest snapshot, as the writer remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newest {
    /// No node in it is younger.
    pub seq: u64,
    /// No block in it is.
    pub epoch: u32,
}

impl Newest {
    fn of(snapshot: &Snapshot) -> Newest {
        Newest {
            seq: snapshot.seq,
            epoch: snapshot.epoch,
        }
    }
}

/// The snapshot `name`.
pub fn find<R: ReadTrees>(
    trees: &R,
    name: &[u8],
) -> core::result::Result<Option<Snapshot>, R::Error> {
    Ok(find_entry(trees, name)?.map(|(snapshot, _)| snapshot))
}

/// The snapshot `name`, and the files of which what was stored later may be in it: they were mapped
/// when it was taken.
pub fn find_entry<R: ReadTrees>(
    trees: &R,
    name: &[u8],
) -> core::result::Result<Option<(Snapshot, Vec<u64>)>, R::Error> {
    let mut value = [0; VALUE_MAX];
    match trees.get(SNAPSHOTS, name, &mut value)? {
        Some(len) => Ok(Some(Snapshot::decode_entry(
            value.get(..len).unwrap_or_default(),
        )?)),
        None => Ok(None),
    }
}

/// All snapshots with their names, in the order of the names.
pub fn list(reader: &Reader<'_>) -> Result<Vec<(Vec<u8>, Snapshot)>> {
    let (mut all, mut bad) = (Vec::new(), None);
    reader.scan(SNAPSHOTS, &[], None, |name, value| {
        match Snapshot::decode_entry(value) {
            Ok((snapshot, _)) => all.push((name.to_vec(), snapshot)),
            Err(e) => bad = Some(e),
        }
        match bad {
            None => ControlFlow::Continue(()),
            Some(_) => ControlFlow::Break(()),
        }
    })?;
    match bad {
        None => Ok(all),
        Some(e) => Err(e.into()),
    }
}

impl Pool {
    /// Whether anything that leaves the present may be kept.
    pub fn has_snapshots(&self) -> bool {
        self.newest.is_some()
    }

    /// The last commit, whatever readers are shown.
    pub(crate) fn present(&self) -> Fixed {
        Fixed {
            seq: self.superblock.seq,
            roots: self.superblock.roots,
        }
    }

    pub(crate) fn find_newest(&self) -> Result<Option<Newest>> {
        let all = self.all_snapshots()?;
        let newest = all.iter().max_by_key(|s| s.epoch);
        Ok(newest.map(Newest::of))
    }

    /// Calls the snapshot `name` something else.
    pub fn rename_snapshot(&mut self, token: &WriteToken, name: &[u8], to: &[u8]) -> Result<()> {
        if !is_legal_name(to) {
            return Err(Error::SnapshotName);
        }
        let mut batch = self.begin(token);
        let mut value = [0; VALUE_MAX];
        let len = batch.get(SNAPSHOTS, name, &mut value)?;
        let len = len.ok_or(Error::NoSnapshot)?;
        if name == to {
            return Ok(());
        }
        if batch.get(SNAPSHOTS, to, &mut [])?.is_some() {
            return Err(Error::SnapshotExists);
        }
        batch.erase(SNAPSHOTS, name)?;
        batch.put(SNAPSHOTS, to, &value[..len])?;
        batch.commit(|_| {}).map(drop)
    }

    /// Keeps what the last commit left as `name`; `time` is nanoseconds since 1970.
    pub fn create_snapshot(
        &mut self,
        token: &WriteToken,
        name: &[u8],
        time: i64,
    ) -> Result<Snapshot> {
        let stored = Stored {
            before: self.superblock.in_place,
            mapped: &[],
            after: false,
        };
        self.create_snapshot_with(token, name, time, &stored)
    }

    /// As `create_snapshot`, while programs use the pool.
    pub fn create_snapshot_with(
        &mut self,
        token: &WriteToken,
        name: &[u8],
        time: i64,
        stored: &Stored<'_>,
    ) -> Result<Snapshot> {
        if !is_legal_name(name) {
            return Err(Error::SnapshotName);
        }
        let snapshot = Snapshot {
            in_place: stored.before,
            ..Snapshot::of(&self.superblock, time)
        };
        let next = snapshot.epoch.checked_add(1).ok_or(Error::NoSpace)?;
        let mut batch = self.begin(token);
        if batch.get(SNAPSHOTS, name, &mut [])?.is_some() {
            return Err(Error::SnapshotExists);
        }
        batch.put(SNAPSHOTS, name, &snapshot.encode_entry(stored.mapped))?;
        let after = stored.after || stored.mapped.len() > MAPPED_MAX;
        batch.commit(|superblock| (superblock.epoch, superblock.in_place) = (next, after))?;
        self.newest = Some(Newest::of(&snapshot));
        Ok(snapshot)
    }
}
