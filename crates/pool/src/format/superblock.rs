//! The superblock: the one record that makes a commit true.
//!
//! What always holds here: of the two copies the valid one with the higher seq is the pool;
//! a commit overwrites the other one; a decoded superblock passed magic, version and checksum.

use super::geometry::{Geometry, SUPERBLOCK_PAGES};
use super::{LANES, PAGE_LEN, TREES, array_at, put_at, u32_at, u64_at};
use crate::checksum::Crc;
use crate::directory;
use crate::error::{Error, Result};
use crate::layout;
use holdfast_pmem::{Medium, Region};

/// Bytes that a superblock takes at the start of its page.
pub const SUPERBLOCK_LEN: usize = 1024;
const MAGIC: &[u8; 8] = b"HOLDFAST";
/// Version that this code reads and writes.
pub const VERSION: u32 = 1;
const AT_VERSION: usize = 8;
const AT_CRC: usize = 12;
const AT_ROOTS: usize = 192;
const ROOT_LEN: usize = 24;
const AT_LANES: usize = AT_ROOTS + TREES * ROOT_LEN;
const AT_USED_PAGES: usize = AT_LANES + LANE_LEN * LANES;
const AT_EPOCH: usize = AT_USED_PAGES + 8;
const AT_LANE_LEN: usize = AT_EPOCH + 8;
const LANE_LEN: usize = 16;
/// No pool lives to see more commits.
const SEQ_MAX: u64 = u64::MAX >> 1;
/// Object counters, indexed by object kind.
pub const COUNTS: usize = 8;

/// One tree: its root node, how many levels it has, how many keys. All zero when empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Root {
    /// Page of the root node; 0 when the tree is empty.
    pub addr: u64,
    /// Levels of nodes; 0 when the tree is empty, 1 when the root is a leaf.
    pub height: u8,
    /// Keys in the tree.
    pub keys: u64,
}

/// Where recovery of one journal lane starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lane {
    /// Position of the first record that may not be in the trees.
    pub start: u64,
    /// Sequence number of the lane's last record that is in the trees.
    pub applied: u64,
}

/// When a change is durable (see the table of media).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Consistency {
    Posix = 1,
    Sync = 2,
    Strict = 3,
}

/// One committed state of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    pub uuid: [u8; 16],
    /// Number of the commit that wrote it; rises by one with each.
    pub seq: u64,
    /// The kernel's boot id when the pool was last opened for writing.
    pub boot_id: [u8; 16],
    pub medium: Medium,
    pub consistency: Consistency,
    /// The last writer closed the pool after draining every journal.
    pub clean: bool,
    /// Blocks that snapshots have may have been stored to since the newest one was taken, of files
    /// that its entry does not name.
    pub in_place: bool,
    /// Bytes of `meta.seg` now, and at most.
    pub meta_len: u64,
    pub meta_len_max: u64,
    /// Bytes of file data now, and at most.
    pub data_len: u64,
    pub data_len_max: u64,
    /// No object has this inode number or a higher one.
    pub next_ino: u64,
    /// Every journal record up to this number is in the trees.
    pub applied_seq: u64,
    /// Data blocks in use; derived from the bitmap at each commit.
    pub used_data_blocks: u64,
    /// Number of the newest journal segment.
    pub journal_segment: u64,
    /// Objects by kind; the meaning of each index belongs to the layout.
    pub counts: [u64; COUNTS],
    pub roots: [Root; TREES],
    pub lanes: [Lane; LANES],
    /// Pages of `meta.seg` in use; derived from the bitmap at each commit.
    pub used_pages: u64,
    /// Snapshots taken so far, deleted ones among them; each ends an epoch.
    pub epoch: u32,
    /// Bytes of each lane of the journal; never changes.
    pub lane_len: u64,
}

impl Superblock {
    /// The bytes of this superblock.
    pub fn encode(&self) -> [u8; SUPERBLOCK_LEN] {
        let mut out = [0; SUPERBLOCK_LEN];
        put_at(&mut out, 0, MAGIC);
        put_at(&mut out, AT_VERSION, &VERSION.to_le_bytes());
        put_at(&mut out, 16, &self.uuid);
        put_at(&mut out, 32, &self.seq.to_le_bytes());
        put_at(&mut out, 40, &self.boot_id);
        put_at(
            &mut out,
            56,
            &[
                medium_byte(self.medium),
                self.consistency as u8,
                self.clean as u8,
                self.in_place as u8,
            ],
        );
        put_at(&mut out, 60, &(PAGE_LEN as u32).to_le_bytes());
        let numbers = [
            self.meta_len,
            self.meta_len_max,
            self.data_len,
            self.data_len_max,
            self.next_ino,
            self.applied_seq,
            self.used_data_blocks,
            self.journal_segment,
        ];
        for (i, n) in numbers.iter().chain(&self.counts).enumerate() {
            put_at(&mut out, 64 + 8 * i, &n.to_le_bytes());
        }
        for (i, root) in self.roots.iter().enumerate() {
            let at = AT_ROOTS + ROOT_LEN * i;
            put_at(&mut out, at, &root.addr.to_le_bytes());
            put_at(&mut out, at + 8, &root.keys.to_le_bytes());
            put_at(&mut out, at + 16, &[root.height]);
        }
        for (i, lane) in self.lanes.iter().enumerate() {
            let at = AT_LANES + LANE_LEN * i;
            put_at(&mut out, at, &lane.start.to_le_bytes());
            put_at(&mut out, at + 8, &lane.applied.to_le_bytes());
        }
        put_at(&mut out, AT_USED_PAGES, &self.used_pages.to_le_bytes());
        put_at(&mut out, AT_EPOCH, &self.epoch.to_le_bytes());
        put_at(&mut out, AT_LANE_LEN, &self.lane_len.to_le_bytes());
        let crc = checksum(&out);
        put_at(&mut out, AT_CRC, &crc.to_le_bytes());
        out
    }

    /// The superblock in `bytes`; an error says what is wrong with it.
    pub fn decode(bytes: &[u8; SUPERBLOCK_LEN]) -> Result<Superblock> {
        if &array_at::<8>(bytes, 0) != MAGIC {
            return Err(Error::NotAPool);
        }
        if u32_at(bytes, AT_CRC) != checksum(bytes) {
            return Err(Error::Damaged {
                what: "superblock checksum",
                page: 0,
            });
        }
        let version = u32_at(bytes, AT_VERSION);
        if version != VERSION || u32_at(bytes, 60) != PAGE_LEN as u32 {
            return Err(Error::Version { found: version });
        }
        if u64_at(bytes, 32) > SEQ_MAX {
            return Err(Error::Damaged {
                what: "seq of the superblock",
                page: 0,
            });
        }
        let number = |i: usize| u64_at(bytes, 64 + 8 * i);
        Ok(Superblock {
            uuid: array_at(bytes, 16),
            seq: u64_at(bytes, 32),
            boot_id: array_at(bytes, 40),
            medium: medium(bytes[56])?,
            consistency: consistency(bytes[57])?,
            clean: bytes[58] == 1,
            in_place: bytes[59] == 1,
            meta_len: number(0),
            meta_len_max: number(1),
            data_len: number(2),
            data_len_max: number(3),
            next_ino: number(4),
            applied_seq: number(5),
            used_data_blocks: number(6),
            journal_segment: number(7),
            counts: core::array::from_fn(|i| number(8 + i)),
            roots: core::array::from_fn(|i| root_at(bytes, AT_ROOTS + ROOT_LEN * i)),
            lanes: core::array::from_fn(|i| lane_at(bytes, AT_LANES + LANE_LEN * i)),
            used_pages: u64_at(bytes, AT_USED_PAGES),
            epoch: u32_at(bytes, AT_EPOCH),
            lane_len: lane_len(bytes)?,
        })
    }

    /// The newest valid superblock of a `meta.seg` and the index of its copy.
    pub fn read(meta: &Region) -> Result<(Superblock, usize)> {
        let mut best: Result<(Superblock, usize)> = Err(Error::NotAPool);
        for (copy, page) in SUPERBLOCK_PAGES.iter().enumerate() {
            let mut bytes = [0; SUPERBLOCK_LEN];
            if meta.read(page * PAGE_LEN, &mut bytes).is_err() {
                continue;
            }
            best = match (best, Superblock::decode(&bytes)) {
                (Ok(old), Ok(new)) if old.0.seq >= new.seq => Ok(old),
                (_, Ok(new)) => Ok((new, copy)),
                (Err(Error::NotAPool), Err(e)) => Err(e),
                (old, Err(_)) => old,
            };
        }
        best
    }

    /// Takes the checksum from a copy that is not valid. Else the next commit, which writes to the
    /// same place and has much in common with one that was torn, could make that one whole while it
    /// is being written itself. Durable with the next fence or sync.
    pub fn forget_torn(meta: &Region, copy: usize) -> Result<()> {
        let Some(page) = SUPERBLOCK_PAGES.get(copy) else {
            return Ok(());
        };
        let mut bytes = [0; SUPERBLOCK_LEN];
        meta.read(page * PAGE_LEN, &mut bytes)?;
        let torn = matches!(
            Superblock::decode(&bytes),
            Err(Error::NotAPool | Error::Damaged { .. })
        );
        let at = page * PAGE_LEN + AT_VERSION as u64;
        if torn && meta.load_u64(at)? != 0 {
            meta.store_u64(at, 0)?;
            meta.flush(at, 8)?;
        }
        Ok(())
    }

    /// The checked sizes; `region_len` is what is mapped of `meta.seg`.
    pub fn geometry(&self, region_len: u64) -> Result<Geometry> {
        let meta = [self.meta_len, self.meta_len_max];
        Geometry::new(meta, [self.data_len, self.data_len_max], region_len)
    }
}

/// The seed of the hashes of names. Commits overwrite the copies, but never with another uuid, so
/// two equal copies are right; a copy that was not written yet or is damaged is not.
pub fn name_seed(meta: &Region) -> Result<u64> {
    let mut uuids = [[0; 16]; 2];
    for (uuid, page) in uuids.iter_mut().zip(SUPERBLOCK_PAGES) {
        meta.read(page * PAGE_LEN + 16, uuid)?;
    }
    match uuids[0] == uuids[1] {
        true => Ok(layout::name_seed(uuids[0])),
        false => Ok(layout::name_seed(Superblock::read(meta)?.0.uuid)),
    }
}

fn checksum(bytes: &[u8; SUPERBLOCK_LEN]) -> u32 {
    let mut crc = Crc::new();
    crc.update(&bytes[..AT_CRC]);
    crc.update(&bytes[AT_CRC + 4..]);
    crc.finish()
}

fn root_at(bytes: &[u8], at: usize) -> Root {
    Root {
        addr: u64_at(bytes, at),
        keys: u64_at(bytes, at + 8),
        height: array_at::<1>(bytes, at + 16)[0],
    }
}

/// Of a pool that says nothing about it lanes are as short as they may be.
fn lane_len(bytes: &[u8; SUPERBLOCK_LEN]) -> Result<u64> {
    match u64_at(bytes, AT_LANE_LEN) {
        0 => Ok(directory::LANE_LEN),
        len if directory::check_lane_len(len) => Ok(len),
        _ => Err(Error::Damaged {
            what: "length of the journal's lanes",
            page: 0,
        }),
    }
}

fn lane_at(bytes: &[u8], at: usize) -> Lane {
    Lane {
        start: u64_at(bytes, at),
        applied: u64_at(bytes, at + 8),
    }
}

fn medium_byte(medium: Medium) -> u8 {
    match medium {
        Medium::Dax => 1,
        Medium::File => 2,
        Medium::Memory => 3,
        Medium::DaxTest => 4,
    }
}

fn medium(byte: u8) -> Result<Medium> {
    match byte {
        1 => Ok(Medium::Dax),
        2 => Ok(Medium::File),
        3 => Ok(Medium::Memory),
        4 => Ok(Medium::DaxTest),
        _ => Err(Error::Damaged {
            what: "medium of the superblock",
            page: 0,
        }),
    }
}

fn consistency(byte: u8) -> Result<Consistency> {
    match byte {
        1 => Ok(Consistency::Posix),
        2 => Ok(Consistency::Sync),
        3 => Ok(Consistency::Strict),
        _ => Err(Error::Damaged {
            what: "consistency of the superblock",
            page: 0,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        Superblock {
            uuid: [7; 16],
            seq: 42,
            boot_id: [9; 16],
            medium: Medium::Memory,
            consistency: Consistency::Strict,
            clean: true,
            in_place: false,
            meta_len: 1 << 24,
            meta_len_max: 1 << 30,
            data_len: 1 << 28,
            data_len_max: 1 << 34,
            next_ino: 1001,
            applied_seq: 77,
            used_data_blocks: 13,
            journal_segment: 2,
            counts: core::array::from_fn(|i| i as u64),
            roots: core::array::from_fn(|i| Root {
                addr: i as u64,
                height: 3,
                keys: 5,
            }),
            lanes: core::array::from_fn(|i| Lane {
                start: i as u64,
                applied: 99,
            }),
            used_pages: 77,
            epoch: 12,
            lane_len: 3 << 20,
        }
    }

    #[test]
    fn comes_back() {
        assert_eq!(Superblock::decode(&sample().encode()).unwrap(), sample());
    }

    #[test]
    fn every_flipped_bit_is_refused() {
        let mut bytes = sample().encode();
        for bit in 0..SUPERBLOCK_LEN * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(&bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn lanes_have_a_length_that_is_possible() {
        for (len, read) in [(0, Some(1 << 20)), (1 << 20, Some(1 << 20)), (4097, None)] {
            let mut bytes = sample().encode();
            put_at(&mut bytes, AT_LANE_LEN, &u64::to_le_bytes(len));
            let crc = checksum(&bytes);
            put_at(&mut bytes, AT_CRC, &crc.to_le_bytes());
            let found = Superblock::decode(&bytes).ok().map(|sb| sb.lane_len);
            assert_eq!(found, read, "{len}");
        }
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = sample().encode();
        put_at(&mut bytes, AT_VERSION, &7u32.to_le_bytes());
        let crc = checksum(&bytes);
        put_at(&mut bytes, AT_CRC, &crc.to_le_bytes());
        let refused = Superblock::decode(&bytes);
        assert!(
            matches!(refused, Err(Error::Version { found: 7 })),
            "{refused:?}"
        );
    }
}
