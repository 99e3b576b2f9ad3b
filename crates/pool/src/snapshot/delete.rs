//! Deleting snapshots: what only one of them has is freed at once or, if it is much, in steps.
//!
//! Invariants:
//!  * A snapshot that is freed in steps is visible to the writer only: its entry is in tree
//!    `RECLAIM` instead of `SNAPSHOTS`. For what leaves the present it exists until the last step.
//!  * Steps compare two states that do not change. The newest snapshot is followed by the present,
//!    which does change. So the commit that deletes it also keeps the present, as a snapshot
//!    without a name that is freed next. What only that one has is what changed meanwhile.
//!  * They are freed in the order in which they were deleted, and after all subtrees that were cut
//!    out: so the neighbours of one stay as they are while it is freed.

use super::{Newest, SNAPSHOT_TREES, Snapshot, find_entry, list, record};
use crate::error::{Error, Result};
use crate::format::put_at;
use crate::layout::{BadValue, RECLAIM, SNAPSHOTS, bad};
use crate::pool::{Pool, WriteToken};
use crate::reclaim::{self, KEY};
use crate::tree::{Between, Fixed, Garbage, KEY_MAX, Place, Reader};
use alloc::vec::Vec;
use core::ops::ControlFlow;

/// Work that is done in one step where the present comes next: more than a look at its roots takes,
/// or it would be kept again and again.
const AT_ONCE: usize = SNAPSHOT_TREES + 2;
/// Set in the first byte of the key: so they come after subtrees.
const DYING: u8 = 0x80;
/// Bytes of an entry.
const AT_TREE: usize = record::ENCODED;
const AT_FROM: usize = AT_TREE + 8;
pub(crate) const DYING_MAX: usize = AT_FROM + KEY_MAX;

/// Whether an entry of tree `RECLAIM` is a snapshot.
pub(crate) fn is_dying(key: &[u8]) -> bool {
    key.first().is_some_and(|first| first & DYING != 0)
}

/// The key of the `n`th that commit `seq` deletes.
fn key(seq: u64, n: u32) -> [u8; KEY] {
    let mut key = reclaim::key(seq, n);
    key[0] |= DYING;
    key
}

fn encode(snapshot: &Snapshot, place: &Place) -> Vec<u8> {
    let mut out = alloc::vec![0; AT_FROM + place.from.len()];
    put_at(&mut out, 0, &snapshot.encode());
    put_at(&mut out, AT_TREE, &[place.tree]);
    put_at(&mut out, AT_FROM, &place.from);
    out
}

fn decode(bytes: &[u8]) -> core::result::Result<(Snapshot, Place), BadValue> {
    let Some((fixed, from)) = bytes.split_at_checked(AT_FROM) else {
        return bad("the entry of a deleted snapshot is too short");
    };
    let snapshot = Snapshot::decode(&fixed[..AT_TREE])?;
    let (tree, from) = (fixed[AT_TREE], from.to_vec());
    let place = Place { tree, from };
    match encode(&snapshot, &place) == bytes {
        true => Ok((snapshot, place)),
        false => bad("the entry of a deleted snapshot has an unknown form"),
    }
}

impl Pool {
    /// All snapshots that are there or still to be freed.
    pub(super) fn all_snapshots(&self) -> Result<Vec<Snapshot>> {
        let present = self.present();
        let reader = Reader::of_snapshot(&self.meta, &present);
        let mut all: Vec<_> = list(&reader)?.into_iter().map(|(_, s)| s).collect();
        let (mut bad, first) = (None, key(0, 0));
        reader.scan(RECLAIM, &first, None, |_, value| match decode(value) {
            Ok((snapshot, _)) => {
                all.push(snapshot);
                ControlFlow::Continue(())
            }
            Err(e) => {
                bad = Some(e);
                ControlFlow::Break(())
            }
        })?;
        match bad {
            None => Ok(all),
            Some(e) => Err(e.into()),
        }
    }

    /// The neighbours of a snapshot; `None`: after it comes the present.
    fn neighbours(&self, snapshot: &Snapshot) -> Result<(Option<Newest>, Option<Fixed>)> {
        let all = self.all_snapshots()?;
        let before = all.iter().filter(|s| s.epoch < snapshot.epoch);
        let before = before.max_by_key(|s| s.epoch).map(Newest::of);
        let after = all.iter().filter(|s| s.epoch > snapshot.epoch);
        let after = after.min_by_key(|s| s.epoch).map(Snapshot::fixed);
        Ok((before, after))
    }

    /// Whether the present comes after the snapshot `name`, and has to remember what its entry says
    /// of stores to blocks that snapshots have.
    pub fn is_last_in_doubt(&self, name: &[u8]) -> Result<bool> {
        let Some((snapshot, mapped)) = find_entry(&self.reader(), name)? else {
            return Ok(false);
        };
        let all = list(&self.reader())?;
        let is_last = all.iter().all(|(_, other)| other.epoch <= snapshot.epoch);
        Ok(is_last && (snapshot.in_place || !mapped.is_empty()))
    }

    /// The entry that says of the snapshot's time what its own one, which goes, has said: name and
    /// value.
    fn heir(&self, name: &[u8], gone: &Snapshot) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let said = find_entry(&self.reader(), name)?;
        if said.is_none_or(|(snapshot, mapped)| !snapshot.in_place && mapped.is_empty()) {
            return Ok(None);
        }
        let all = list(&self.reader())?;
        let later = all.into_iter().filter(|(_, s)| s.epoch > gone.epoch);
        let Some((name, _)) = later.min_by_key(|(_, s)| s.epoch) else {
            return Ok(None);
        };
        let Some((snapshot, mapped)) = find_entry(&self.reader(), &name)? else {
            return Ok(None);
        };
        let in_place = true;
        let value = Snapshot {
            in_place,
            ..snapshot
        }
        .encode_entry(&mapped);
        Ok(Some((name, value)))
    }

    /// Removes the snapshot `name` and frees what it alone has: pages and blocks; how many. If that
    /// takes more than `work`, `reclaim_some` frees them.
    pub fn delete_snapshot(
        &mut self,
        token: &WriteToken,
        name: &[u8],
        work: usize,
    ) -> Result<(u64, u64)> {
        let all = list(&self.reader())?;
        let found = all.iter().find(|(n, _)| n == name);
        let snapshot = found.ok_or(Error::NoSnapshot)?.1;
        // What was cut out may hang on leaves of the snapshot.
        let garbage = match self.has_cut() {
            true => Garbage::default(),
            false => self.find_garbage(&snapshot, &mut Place::default(), work)?,
        };
        if !garbage.is_all {
            self.delete_later(token, name, &snapshot)?;
            return Ok((0, 0));
        }
        let (before, after) = self.neighbours(&snapshot)?;
        let heir = self.heir(name, &snapshot)?;
        let mut batch = self.begin(token);
        batch.erase(SNAPSHOTS, name)?;
        if let Some((name, value)) = heir {
            batch.put(SNAPSHOTS, &name, &value)?;
        }
        let blocks = garbage.data.iter().map(|run| run.len).sum();
        batch.free_garbage(&garbage)?;
        batch.commit(|_| {})?;
        if after.is_none() {
            self.newest = before;
        }
        Ok((garbage.pages.len() as u64, blocks))
    }

    fn find_garbage(&self, s: &Snapshot, place: &mut Place, mut left: usize) -> Result<Garbage> {
        let (before, after) = self.neighbours(s)?;
        if after.is_none() {
            left = left.max(AT_ONCE);
        }
        let after = &after.unwrap_or(self.present());
        let between = Between { before, after };
        Garbage::find_some(&self.meta, &s.fixed(), place, between, &mut left)
    }

    /// The snapshot is gone, and what it has is freed in steps.
    fn delete_later(&mut self, token: &WriteToken, name: &[u8], s: &Snapshot) -> Result<()> {
        let is_newest = self.neighbours(s)?.1.is_none();
        let seq = self.superblock.seq + 1;
        let heir = self.heir(name, s)?;
        let mut batch = self.begin(token);
        batch.erase(SNAPSHOTS, name)?;
        if let Some((name, value)) = heir {
            batch.put(SNAPSHOTS, &name, &value)?;
        }
        batch.put(RECLAIM, &key(seq, 0), &encode(s, &Place::default()))?;
        if !is_newest {
            return batch.commit(|_| {}).map(drop);
        }
        let now = Snapshot::of(batch.superblock(), 0);
        let next = now.epoch.checked_add(1).ok_or(Error::NoSpace)?;
        batch.put(RECLAIM, &key(seq, 1), &encode(&now, &Place::default()))?;
        batch.commit(|superblock| superblock.epoch = next)?;
        self.newest = Some(Newest::of(&now));
        Ok(())
    }

    /// A step for a snapshot: the first entry of all.
    pub(crate) fn reclaim_snapshot(
        &mut self,
        token: &WriteToken,
        (entry, value): (&[u8; KEY], &[u8]),
        work: usize,
    ) -> Result<bool> {
        let (snapshot, mut place) = decode(value)?;
        let (before, after) = self.neighbours(&snapshot)?;
        let garbage = self.find_garbage(&snapshot, &mut place, work)?;
        if after.is_none() && !garbage.is_all {
            return self.keep_present(token);
        }
        let mut batch = self.begin(token);
        match garbage.is_all {
            true => drop(batch.erase(RECLAIM, entry)?),
            false => drop(batch.put(RECLAIM, entry, &encode(&snapshot, &place))?),
        }
        batch.free_garbage(&garbage)?;
        batch.commit(|superblock| superblock.clean = false)?;
        if after.is_none() {
            self.newest = before;
        }
        Ok(self.has_cut())
    }

    /// What changed since the newest snapshot takes more than one step: the present of now comes
    /// after it.
    fn keep_present(&mut self, token: &WriteToken) -> Result<bool> {
        let now = Snapshot::of(&self.superblock, 0);
        let next = now.epoch.checked_add(1).ok_or(Error::NoSpace)?;
        let entry = key(self.superblock.seq + 1, 0);
        let mut batch = self.begin(token);
        batch.put(RECLAIM, &entry, &encode(&now, &Place::default()))?;
        batch.commit(|superblock| (superblock.epoch, superblock.clean) = (next, false))?;
        self.newest = Some(Newest::of(&now));
        Ok(true)
    }
}
