//! The entry of a snapshot in tree `SNAPSHOTS`: key = its name, value = its roots.
//!
//! Invariant: `decode` accepts exactly what `encode` makes, and never panics.

use crate::format::superblock::{COUNTS, Root, Superblock};
use crate::format::{TREES, array_at, put_at, u32_at, u64_at};
use crate::layout::{BadValue, bad};
use crate::tree::{Fixed, VALUE_MAX};
use alloc::vec::Vec;

/// Trees that a snapshot has: those with the lowest numbers.
pub const SNAPSHOT_TREES: usize = 6;
/// No name of a snapshot is longer.
pub const NAME_MAX: usize = 255;
/// Bytes of an encoded snapshot.
pub(super) const ENCODED: usize = AT_ROOTS + ROOT_LEN * SNAPSHOT_TREES;
/// Files that an entry names, at most.
pub const MAPPED_MAX: usize = (VALUE_MAX - ENCODED) / 8;
const AT_COUNTS: usize = 48;
const AT_ROOTS: usize = AT_COUNTS + 8 * COUNTS;
const ROOT_LEN: usize = 24;

/// One committed state of the pool that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The epoch that it ended; no other snapshot has it.
    pub epoch: u32,
    /// Between the snapshot before and this one, blocks of that one may have been stored to, of
    /// files that its entry does not name.
    pub in_place: bool,
    /// The commit that it keeps.
    pub seq: u64,
    /// When it was taken, in nanoseconds since 1970.
    pub time: i64,
    /// Every journal record up to this number is in it.
    pub applied_seq: u64,
    /// Data blocks that were in use then, older snapshots included.
    pub used_data_blocks: u64,
    /// Objects by kind.
    pub counts: [u64; COUNTS],
    pub roots: [Root; SNAPSHOT_TREES],
}

/// Whether a snapshot can have this name.
pub fn is_legal_name(name: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len())
        && name != b"."
        && name != b".."
        && !name.iter().any(|b| *b == b'/' || b.is_ascii_control())
}

impl Snapshot {
    /// What `superblock` has, as if it were kept.
    pub fn of(superblock: &Superblock, time: i64) -> Snapshot {
        Snapshot {
            epoch: superblock.epoch,
            in_place: superblock.in_place,
            seq: superblock.seq,
            time,
            applied_seq: superblock.applied_seq,
            used_data_blocks: superblock.used_data_blocks,
            counts: superblock.counts,
            roots: core::array::from_fn(|tree| superblock.roots[tree]),
        }
    }

    /// Its roots, for a reader.
    pub fn fixed(&self) -> Fixed {
        let mut roots = [Root::default(); TREES];
        roots[..SNAPSHOT_TREES].copy_from_slice(&self.roots);
        Fixed {
            seq: self.seq,
            roots,
        }
    }

    /// Its roots in two words each, for session memory.
    pub fn pack_roots(&self) -> [u64; 2 * SNAPSHOT_TREES] {
        core::array::from_fn(|i| {
            let root = &self.roots[i / 2];
            match i % 2 {
                0 => root.addr,
                _ => root.keys << 8 | u64::from(root.height),
            }
        })
    }

    /// The value.
    pub(super) fn encode(&self) -> [u8; ENCODED] {
        let mut out = [0; ENCODED];
        put_at(&mut out, 0, &self.epoch.to_le_bytes());
        put_at(&mut out, 4, &[self.in_place as u8]);
        put_at(&mut out, 8, &self.seq.to_le_bytes());
        put_at(&mut out, 16, &self.time.to_le_bytes());
        put_at(&mut out, 24, &self.applied_seq.to_le_bytes());
        put_at(&mut out, 32, &self.used_data_blocks.to_le_bytes());
        for (i, count) in self.counts.iter().enumerate() {
            put_at(&mut out, AT_COUNTS + 8 * i, &count.to_le_bytes());
        }
        for (i, root) in self.roots.iter().enumerate() {
            let at = AT_ROOTS + ROOT_LEN * i;
            put_at(&mut out, at, &root.addr.to_le_bytes());
            put_at(&mut out, at + 8, &root.keys.to_le_bytes());
            put_at(&mut out, at + 16, &[root.height]);
        }
        out
    }

    /// The value of an entry, which also names files that were mapped: as many as it has room for.
    pub(super) fn encode_entry(&self, mapped: &[u64]) -> Vec<u8> {
        let mut out = self.encode().to_vec();
        out.extend(
            mapped
                .iter()
                .take(MAPPED_MAX)
                .flat_map(|ino| ino.to_le_bytes()),
        );
        out
    }

    /// What `encode_entry` made: the snapshot, and the files.
    pub fn decode_entry(bytes: &[u8]) -> Result<(Snapshot, Vec<u64>), BadValue> {
        let Some((fixed, names)) = bytes.split_at_checked(ENCODED) else {
            return bad("the entry of a snapshot is too short");
        };
        let (names, rest) = names.as_chunks::<8>();
        if names.len() > MAPPED_MAX || !rest.is_empty() {
            return bad("the entry of a snapshot has another length");
        }
        let names = names.iter().map(|name| u64::from_le_bytes(*name));
        Ok((Snapshot::decode(fixed)?, names.collect()))
    }

    /// The snapshot whose value is exactly `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Snapshot, BadValue> {
        let Ok(bytes) = <&[u8; ENCODED]>::try_from(bytes) else {
            return bad("the entry of a snapshot has another length");
        };
        let snapshot = Snapshot {
            epoch: u32_at(bytes, 0),
            in_place: bytes[4] == 1,
            seq: u64_at(bytes, 8),
            time: u64_at(bytes, 16) as i64,
            applied_seq: u64_at(bytes, 24),
            used_data_blocks: u64_at(bytes, 32),
            counts: core::array::from_fn(|i| u64_at(bytes, AT_COUNTS + 8 * i)),
            roots: core::array::from_fn(|i| {
                let at = AT_ROOTS + ROOT_LEN * i;
                Root {
                    addr: u64_at(bytes, at),
                    keys: u64_at(bytes, at + 8),
                    height: array_at::<1>(bytes, at + 16)[0],
                }
            }),
        };
        match snapshot.encode() == *bytes {
            true => Ok(snapshot),
            false => bad("the entry of a snapshot has an unknown form"),
        }
    }
}
