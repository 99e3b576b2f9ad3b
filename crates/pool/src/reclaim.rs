//! Freeing subtrees that were cut out of trees, and deleted snapshots, in bounded steps.
//!
//! Invariants:
//!  * An entry of tree `RECLAIM` is the only way to a subtree that was cut out. Pages and blocks
//!    stay in use until a step frees them; each step is one commit, which also records in the entry
//!    how far it came. So a power cut at any moment loses no step and repeats none.
//!  * Whatever a snapshot had when the subtree was cut out is freed with the snapshot. While there
//!    are such entries no snapshot is freed, so everything that a step reads still exists.
//!  * Steps free nodes from the leaves up, so the path to the rest of a subtree exists until the
//!    end.
//!
//! `docs/spec/format.md` states every field.

use crate::error::{Error, Result};
use crate::format::superblock::Root;
use crate::format::{TREES, array_at, put_at, u32_at, u64_at};
use crate::layout::{BadValue, RECLAIM, ReadTrees, TreeId, bad};
use crate::pool::{Pool, WriteToken};
use crate::snapshot::{self, Newest, SNAPSHOT_TREES};
use crate::tree::{Fixed, Garbage, Place, Reader};
use alloc::vec::Vec;

/// A subtree that was cut out of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub tree: TreeId,
    pub level: u8,
    /// What led to its topmost node.
    pub link: u64,
    /// No node in it is younger than this commit.
    pub seq: u64,
    /// The newest snapshot of that time.
    pub before: Option<Newest>,
}

const AT_LINK: usize = 8;
const AT_SEQ: usize = 16;
const AT_BEFORE_SEQ: usize = 24;
const AT_BEFORE_EPOCH: usize = 32;
const AT_HAS_BEFORE: usize = 36;
const AT_FROM: usize = 40;
/// Bytes of an entry's key.
pub(crate) const KEY: usize = 12;

/// The key of the `n`th subtree that commit `seq` cuts out.
pub(crate) fn key(seq: u64, n: u32) -> [u8; KEY] {
    let mut key = [0; KEY];
    put_at(&mut key, 0, &seq.to_be_bytes());
    put_at(&mut key, 8, &n.to_be_bytes());
    key
}

impl Cut {
    /// The value; `from`: keys below it are freed already.
    pub fn encode(&self, from: &[u8]) -> Vec<u8> {
        let mut out = alloc::vec![0; AT_FROM + from.len()];
        let before = self.before.unwrap_or(Newest { seq: 0, epoch: 0 });
        put_at(&mut out, 0, &[self.tree, self.level]);
        put_at(&mut out, AT_LINK, &self.link.to_le_bytes());
        put_at(&mut out, AT_SEQ, &self.seq.to_le_bytes());
        put_at(&mut out, AT_BEFORE_SEQ, &before.seq.to_le_bytes());
        put_at(&mut out, AT_BEFORE_EPOCH, &before.epoch.to_le_bytes());
        put_at(&mut out, AT_HAS_BEFORE, &[self.before.is_some().into()]);
        put_at(&mut out, AT_FROM, from);
        out
    }

    /// The subtree whose value is exactly `bytes`, and where it goes on.
    pub fn decode(bytes: &[u8]) -> core::result::Result<(Cut, &[u8]), BadValue> {
        let Some((fixed, from)) = bytes.split_at_checked(AT_FROM) else {
            return bad("the entry of a subtree that was cut out is too short");
        };
        let before = Newest {
            seq: u64_at(fixed, AT_BEFORE_SEQ),
            epoch: u32_at(fixed, AT_BEFORE_EPOCH),
        };
        let [tree, level] = array_at(fixed, 0);
        let cut = Cut {
            tree,
            level,
            link: u64_at(fixed, AT_LINK),
            seq: u64_at(fixed, AT_SEQ),
            before: (fixed[AT_HAS_BEFORE] != 0).then_some(before),
        };
        match cut.encode(from) == bytes && usize::from(tree) < SNAPSHOT_TREES {
            true => Ok((cut, from)),
            false => bad("the entry of a subtree that was cut out has an unknown form"),
        }
    }

    /// As if it were the only tree of a snapshot.
    fn fixed(&self) -> Fixed {
        let mut roots = [Root::default(); TREES];
        roots[usize::from(self.tree)] = Root {
            addr: self.link,
            height: self.level.saturating_add(1),
            keys: 0,
        };
        Fixed {
            seq: self.seq,
            roots,
        }
    }
}

impl Pool {
    /// Whether subtrees or snapshots wait to be freed.
    pub fn has_cut(&self) -> bool {
        self.superblock.roots[usize::from(RECLAIM)].height > 0
    }

    /// Frees a part of what left trees, or of a snapshot, in one commit: about `work` nodes and
    /// entries of blocks. Says whether there is more.
    pub fn reclaim_some(&mut self, token: &WriteToken, work: usize) -> Result<bool> {
        let present = self.present();
        let (mut left, mut found, mut after) = (work, Vec::new(), Vec::new());
        while left > 0 {
            let reader = Reader::of_snapshot(&self.meta, &present);
            let Some((key, value)) = next_entry(&reader, &after)? else {
                break;
            };
            if snapshot::is_dying(&key) {
                if found.is_empty() {
                    return self.reclaim_snapshot(token, (&key, &value), left);
                }
                break;
            }
            let (cut, from) = Cut::decode(&value)?;
            let (tree, from) = (cut.tree, from.to_vec());
            let mut place = Place { tree, from };
            let fixed = cut.fixed();
            let garbage =
                Garbage::find_in_cut(&self.meta, &fixed, &mut place, cut.before, &mut left)?;
            after = [&key[..], &[0]].concat();
            found.push((key, cut, garbage, place));
        }
        if found.is_empty() {
            return Ok(false);
        }
        let mut batch = self.begin(token);
        for (key, cut, garbage, place) in &found {
            match garbage.is_all {
                true => drop(batch.erase(RECLAIM, key)?),
                false => drop(batch.put(RECLAIM, key, &cut.encode(&place.from))?),
            }
            batch.free_garbage(garbage)?;
            batch.forget_keys(cut.tree, garbage.keys);
        }
        batch.commit(|superblock| superblock.clean = false)?;
        Ok(self.has_cut())
    }
}

/// The first entry whose key is not below `from`.
fn next_entry<T: ReadTrees<Error = Error>>(
    trees: &T,
    from: &[u8],
) -> Result<Option<([u8; KEY], Vec<u8>)>> {
    let (mut key, mut value) = ([0; KEY], [0; snapshot::DYING_MAX]);
    let found = trees.at_or_after(RECLAIM, from, &mut key, &mut value)?;
    Ok(found.map(|(_, len)| (key, value.get(..len).unwrap_or_default().to_vec())))
}

#[cfg(test)]
mod tests;
