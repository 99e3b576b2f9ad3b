//! Going back to a snapshot: the present becomes what it was then.
//!
//! Invariants:
//!  * In one commit the present gets back the entries that differ, and no node: so what is said of
//!    births holds as ever, and the work is in proportion to what changed.
//!  * It gets back blocks of the newest snapshot only, at their places and with their epochs, and
//!    while nothing is being freed. So what leaves the present again stays in use for exactly as
//!    long as that snapshot is there.

use super::{SNAPSHOT_TREES, Snapshot, find};
use crate::error::{Error, Result};
use crate::layout::extent::{self, Extent};
use crate::layout::{EXTENTS, TreeId, VALUES, value};
use crate::pool::{Pool, WriteToken};
use crate::space::Run;
use crate::tree::{Batch, Differences, Fixed};
use alloc::vec::Vec;

/// An entry that becomes what it was; `then` is `None` where there was none.
struct Change {
    key: Vec<u8>,
    now: Option<Vec<u8>>,
    then: Option<Vec<u8>>,
}

impl Pool {
    /// Makes the present what the snapshot `name` has; how many entries changed. `NotNewest`: there
    /// is a newer one, or something is still to be freed.
    pub fn roll_back(&mut self, token: &WriteToken, name: &[u8]) -> Result<u64> {
        let snapshot = find(&self.reader(), name)?.ok_or(Error::NoSnapshot)?;
        let is_newest = self.newest.is_some_and(|n| n.epoch == snapshot.epoch);
        if !is_newest || self.has_cut() {
            return Err(Error::NotNewest);
        }
        let (present, then) = (self.present(), snapshot.fixed());
        let (mut batch, mut changed) = (self.begin(token), 0);
        for tree in 0..SNAPSHOT_TREES as TreeId {
            let changes = batch.changes(tree, &present, &then)?;
            changed += changes.len() as u64;
            for change in changes {
                batch.go_back(tree, &change)?;
            }
        }
        if changed > 0 {
            batch.commit(|superblock| superblock.counts = snapshot.counts)?;
        }
        Ok(changed)
    }

    /// Snapshots that were taken after the snapshot `name`, the newest first.
    pub fn newer_snapshots(&self, name: &[u8]) -> Result<Vec<Vec<u8>>> {
        let snapshot = find(&self.reader(), name)?.ok_or(Error::NoSnapshot)?;
        let mut newer: Vec<(Vec<u8>, Snapshot)> = super::list(&self.reader())?;
        newer.retain(|(_, other)| other.epoch > snapshot.epoch);
        newer.sort_by_key(|(_, other)| core::cmp::Reverse(other.epoch));
        Ok(newer.into_iter().map(|(name, _)| name).collect())
    }
}

impl Batch<'_> {
    /// What differs in a tree. It is all read before anything changes.
    fn changes(&self, tree: TreeId, now: &Fixed, then: &Fixed) -> Result<Vec<Change>> {
        let mut differences = Differences::begin(self.meta(), tree, Some(now), then)?;
        let mut changes = Vec::new();
        while let Some(found) = differences.next_one()? {
            changes.push(Change {
                key: found.key.to_vec(),
                now: found.old.map(<[u8]>::to_vec),
                then: found.new.map(<[u8]>::to_vec),
            });
        }
        Ok(changes)
    }

    fn go_back(&mut self, tree: TreeId, change: &Change) -> Result<()> {
        match &change.then {
            Some(value) => drop(self.put(tree, &change.key, value)?),
            None => drop(self.erase(tree, &change.key)?),
        }
        let Some(gone) = &change.now else {
            return Ok(());
        };
        match tree {
            EXTENTS => {
                let (_, file_block) = extent::parse_key(&change.key)?;
                let e = Extent::decode(file_block, gone)?;
                self.drop_data(Run::of_data(e.block, e.len.into()), e.epoch)
            }
            VALUES => {
                let blocks = value::blocks_of(gone)?;
                for run in blocks.iter().flat_map(|blocks| blocks.runs()) {
                    self.drop_data(Run::of_data(run.block, run.len.into()), run.epoch)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
