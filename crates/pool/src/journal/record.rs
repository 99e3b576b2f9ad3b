//! Encoding and checked decoding of journal records.
//!
//! Invariants: little-endian; a record starts on a 64-byte boundary and is padded to one with
//! zeroes; `decode` accepts exactly what `encode` makes and never panics on anything else.
//! `docs/spec/journal.md` states every field.

use crate::checksum::{Crc, crc32c};
use crate::format::LANES;
use crate::layout::BlockAddr;

/// Records start and end on multiples of this many bytes.
pub const RECORD_ALIGN: usize = 64;
/// "HFJR": every record starts with it.
pub const RECORD_MAGIC: u32 = 0x524a_4648;
/// Bytes before the fields of a record.
pub const RECORD_HEADER: usize = 24;
/// No record is longer, but for `Record::Batch`.
pub const RECORD_MAX: usize = 16 * 1024;
/// No record of changes of keyspaces, and none with bytes of blocks, is longer.
pub const BATCH_RECORD_MAX: usize = 256 * 1024;
/// Bytes of `Record::SyncMark::lanes`.
pub const MARK_LANES_LEN: usize = 2 * LANES * 8;
/// Bytes of header and fixed fields of any record.
pub const RECORD_HEAD_MAX: usize = 128;

/// Rename: the two names change places.
pub const RENAME_EXCHANGE: u32 = 1;
/// Unlink and rename: the object that lost its last name is open and stays as an orphan.
pub const KEEP_ORPHAN: u32 = 2;
/// Create: no name; the object starts as an orphan (O_TMPFILE).
pub const CREATE_ORPHAN: u32 = 4;
/// Unlink and rename: the values of the keyspace that loses its name go with it.
pub const DROP_VALUES: u32 = 8;

/// Create, and the mask of `Record::SetAttr` with `SET_PROJECT`: the project is above.
pub const PROJECT_SHIFT: u32 = 16;

/// Extent: a write that is whole or not at all: after a loss of power all of the blocks are there,
/// or the record does not count.
pub const EXTENT_WHOLE: u32 = 1;

/// Bits of `Record::SetAttr::mask`.
pub const SET_MODE: u32 = 1;
/// The owner changes.
pub const SET_UID: u32 = 2;
/// The group changes.
pub const SET_GID: u32 = 4;
/// The access time changes.
pub const SET_ATIME: u32 = 8;
/// The modification time changes.
pub const SET_MTIME: u32 = 16;
/// The change time changes.
pub const SET_CTIME: u32 = 32;
/// The project changes, which is in the mask itself.
pub const SET_PROJECT: u32 = 64;

/// One change. Times are nanoseconds since 1970; blocks are 4 KiB; sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A new object with its first name (or as an orphan). `target` is a symlink's.
    Create {
        parent: u64,
        ino: u64,
        mode: u32,
        uid: u32,
        gid: u32,
        flags: u32,
        rdev: u64,
        time: i64,
        name: &'a [u8],
        target: &'a [u8],
    },
    /// One more name for `ino` (also the first name of an orphan).
    Link {
        parent: u64,
        ino: u64,
        time: i64,
        name: &'a [u8],
    },
    /// A name goes; the object with its last name, unless `KEEP_ORPHAN`. Also rmdir.
    Unlink {
        parent: u64,
        ino: u64,
        flags: u32,
        time: i64,
        name: &'a [u8],
    },
    /// `ino` moves; `replaced` (0: none) loses the new name, or takes the old one if exchanged.
    Rename {
        old_parent: u64,
        new_parent: u64,
        ino: u64,
        replaced: u64,
        flags: u32,
        time: i64,
        old_name: &'a [u8],
        new_name: &'a [u8],
    },
    /// The attributes named by `mask` take these values.
    SetAttr {
        ino: u64,
        mask: u32,
        mode: u32,
        uid: u32,
        gid: u32,
        atime: i64,
        mtime: i64,
        ctime: i64,
    },
    /// File blocks `file_block..file_block + len` are at `block..`; what was there is freed.
    /// The file has `size` bytes from now on (never fewer than needed to keep its blocks).
    Extent {
        ino: u64,
        file_block: u64,
        block: BlockAddr,
        len: u32,
        size: u64,
        mtime: i64,
        ctime: i64,
        flags: u32,
    },
    /// Size and times of a file whose blocks did not change; blocks beyond `size` stay.
    Size {
        ino: u64,
        size: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
    },
    /// The file is cut or extended to `size`; blocks wholly beyond are freed.
    Truncate { ino: u64, size: u64, time: i64 },
    /// These file blocks become a hole and are freed.
    Punch {
        ino: u64,
        file_block: u64,
        len: u64,
        size: u64,
        time: i64,
    },
    /// The whole content, kept in the inode; all blocks are freed.
    Inline {
        ino: u64,
        mtime: i64,
        ctime: i64,
        data: &'a [u8],
    },
    /// An extended attribute takes a value.
    SetXattr {
        ino: u64,
        time: i64,
        name: &'a [u8],
        value: &'a [u8],
    },
    /// An extended attribute goes.
    RemoveXattr { ino: u64, time: i64, name: &'a [u8] },
    /// The last user of an orphan closed it.
    Release { ino: u64 },
    /// Strict mode: `data` at byte `offset`, which recovery copies into the mapped blocks again.
    Write {
        ino: u64,
        offset: u64,
        size: u64,
        mtime: i64,
        data: &'a [u8],
    },
    /// File medium: everything up to `seq` that is not in the journal never will be. `lanes` is
    /// how far each lane reached when this was written, and how far each was durable before that
    /// (`MarkLanes`): all records up to `acked` were.
    SyncMark {
        seq: u64,
        acked: u64,
        lanes: &'a [u8],
    },
    /// File medium: these are the bytes of the blocks from `block` on; zeroes follow in the last
    /// one.
    Data { block: BlockAddr, bytes: &'a [u8] },
    /// File medium: what had been stored to these blocks (`BlockRuns`; none: to all blocks) before
    /// record `before` was durable in its place when this was written.
    InPlace { before: u64, runs: &'a [u8] },
    /// The directory is a keyspace from now on.
    Keyspace { ino: u64, time: i64 },
    /// Changes of keyspaces, all or none of which happen; see `Ops`.
    Batch { time: i64, ops: &'a [u8] },
    /// As `Batch`; the changes are the first `len` bytes of the blocks that `runs` says, and have
    /// the checksum `sum`. The blocks are free again afterwards.
    Spilled {
        time: i64,
        len: u64,
        sum: u32,
        runs: &'a [u8],
    },
}

impl Record<'_> {
    /// Whether it changes nothing, but says what is durable on an ordinary file.
    pub fn is_about_durability(&self) -> bool {
        matches!(
            self,
            Record::SyncMark { .. } | Record::Data { .. } | Record::InPlace { .. }
        )
    }
}

/// What precedes the fields of every record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Position in the order of all records of the session.
    pub seq: u64,
    /// Bytes without padding.
    pub len: usize,
    /// Lane that it was written to.
    pub lane: u16,
}

impl Header {
    /// Bytes that the record takes in its lane.
    pub fn padded_len(&self) -> usize {
        self.len.next_multiple_of(RECORD_ALIGN)
    }
}

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// No magic: nothing was written here yet.
    Absent,
    /// The length is impossible.
    Length,
    /// The checksum does not match.
    Checksum,
    /// Unknown kind or fields that contradict each other.
    Fields,
}

/// An encoded record: head, then `tails[0]`, then `tails[1]`, then padding to 64 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Encoded<'a> {
    head: [u8; RECORD_HEAD_MAX],
    head_len: usize,
    tails: [&'a [u8]; 2],
}

impl<'a> Encoded<'a> {
    /// The parts in order; their concatenation, padded with zeroes, is the record.
    pub fn parts(&self) -> [&[u8]; 3] {
        [&self.head[..self.head_len], self.tails[0], self.tails[1]]
    }

    /// Bytes without padding.
    pub fn len(&self) -> usize {
        self.head_len + self.tails[0].len() + self.tails[1].len()
    }

    /// Never true: a record has a header.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Bytes in the lane.
    pub fn padded_len(&self) -> usize {
        self.len().next_multiple_of(RECORD_ALIGN)
    }

    /// Gives the record its number and its checksum.
    pub fn seal(&mut self, seq: u64) {
        self.head[8..16].copy_from_slice(&seq.to_le_bytes());
        let mut crc = Crc::new();
        crc.update(&self.head[8..self.head_len]);
        for tail in self.tails.iter().filter(|tail| !tail.is_empty()) {
            crc.update(tail);
        }
        self.head[4..8].copy_from_slice(&crc.finish().to_le_bytes());
    }

    /// Copies the padded record to the start of `out` and says how long it is; `None` if it does
    /// not fit.
    pub fn copy_to(&self, out: &mut [u8]) -> Option<usize> {
        let total = self.padded_len();
        let out = out.get_mut(..total)?;
        let mut at = 0;
        for part in self.parts() {
            out[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        out[at..].fill(0);
        Some(total)
    }
}

struct Head {
    bytes: [u8; RECORD_HEAD_MAX],
    len: usize,
}

impl Head {
    fn new() -> Self {
        Head {
            bytes: [0; RECORD_HEAD_MAX],
            len: RECORD_HEADER,
        }
    }

    fn put<const N: usize>(mut self, bytes: [u8; N]) -> Self {
        self.bytes[self.len..self.len + N].copy_from_slice(&bytes);
        self.len += N;
        self
    }

    fn u16(self, v: usize) -> Self {
        self.put((v as u16).to_le_bytes())
    }

    fn u32(self, v: u32) -> Self {
        self.put(v.to_le_bytes())
    }

    fn u64(self, v: u64) -> Self {
        self.put(v.to_le_bytes())
    }

    fn addr(self, v: BlockAddr) -> Self {
        self.u64(v.word())
    }

    fn i64(self, v: i64) -> Self {
        self.put(v.to_le_bytes())
    }
}

impl<'a> Record<'a> {
    /// The record as bytes. Names are at most 255 bytes and data at most `RECORD_MAX` less the
    /// head: the caller has checked.
    pub fn encode(&self, seq: u64, lane: u16) -> Encoded<'a> {
        let mut out = self.draft(lane);
        out.seal(seq);
        out
    }

    /// As `encode`, all but the number and the checksum: they are `seal`'s.
    pub fn draft(&self, lane: u16) -> Encoded<'a> {
        let (head, tails) = self.fields(Head::new());
        let mut out = Encoded {
            head: head.bytes,
            head_len: head.len,
            tails,
        };
        let len = out.len() as u32;
        out.head[0..4].copy_from_slice(&RECORD_MAGIC.to_le_bytes());
        out.head[16..20].copy_from_slice(&len.to_le_bytes());
        out.head[20..22].copy_from_slice(&self.kind().to_le_bytes());
        out.head[22..24].copy_from_slice(&lane.to_le_bytes());
        out
    }
}

struct Fields<'a> {
    bytes: &'a [u8],
}

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (first, rest) = self
            .bytes
            .split_first_chunk::<N>()
            .ok_or(Malformed::Fields)?;
        self.bytes = rest;
        Ok(*first)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.take()?))
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    fn addr(&mut self) -> Result<BlockAddr, Malformed> {
        self.u64().map(BlockAddr::from_word)
    }

    fn i64(&mut self) -> Result<i64, Malformed> {
        Ok(i64::from_le_bytes(self.take()?))
    }

    fn bytes(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let (first, rest) = self.bytes.split_at_checked(n).ok_or(Malformed::Fields)?;
        self.bytes = rest;
        Ok(first)
    }

    fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.bytes)
    }
}

/// Reads the header at the start of `bytes` and checks magic and length, nothing else: enough to
/// know how many bytes to copy before `decode`.
pub fn peek(bytes: &[u8]) -> Result<Header, Malformed> {
    let head: &[u8; RECORD_HEADER] = bytes.first_chunk().ok_or(Malformed::Length)?;
    let mut f = Fields { bytes: head };
    if f.u32()? != RECORD_MAGIC {
        return Err(Malformed::Absent);
    }
    f.u32()?;
    let seq = f.u64()?;
    let len = f.u32()? as usize;
    f.u16()?;
    let lane = f.u16()?;
    if !(RECORD_HEADER..=BATCH_RECORD_MAX).contains(&len) {
        return Err(Malformed::Length);
    }
    Ok(Header { seq, len, lane })
}

/// The record at the start of `bytes`, which must be a private copy of the journal.
pub fn decode(bytes: &[u8]) -> Result<(Header, Record<'_>), Malformed> {
    let header = peek(bytes)?;
    let bytes = bytes.get(..header.len).ok_or(Malformed::Length)?;
    let stored = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    if crc32c(&bytes[8..]) != stored {
        return Err(Malformed::Checksum);
    }
    decode_sound(bytes)
}

/// As `decode`, for a private copy whose checksum was found right before.
pub fn decode_sound(bytes: &[u8]) -> Result<(Header, Record<'_>), Malformed> {
    let header = peek(bytes)?;
    let bytes = bytes.get(..header.len).ok_or(Malformed::Length)?;
    let kind = u16::from_le_bytes([bytes[20], bytes[21]]);
    let mut fields = Fields {
        bytes: &bytes[RECORD_HEADER..],
    };
    let record = decode_kind(kind, &mut fields)?;
    let may_be_long = matches!(record, Record::Batch { .. } | Record::Data { .. });
    let long = header.len > RECORD_MAX && !may_be_long;
    if long || !fields.bytes.is_empty() {
        return Err(Malformed::Fields);
    }
    Ok((header, record))
}

/// What follows the numbers of a record: nothing, the rest, or a string and the rest.
macro_rules! encode_tails {
    ($head:expr) => {
        ($head, [&[], &[]])
    };
    ($head:expr, $rest:ident) => {
        ($head, [$rest, &[]])
    };
    ($head:expr, $string:ident, $rest:ident) => {
        ($head.u16($string.len()), [$string, $rest])
    };
}

macro_rules! decode_tails {
    ($fields:ident) => {};
    ($fields:ident, $rest:ident) => {
        let $rest = $fields.rest();
    };
    ($fields:ident, $string:ident, $rest:ident) => {
        let len = $fields.u16()?;
        let ($string, $rest) = ($fields.bytes(len.into())?, $fields.rest());
    };
}

/// The one table from which records are written and read: number, numbers in order, tails.
macro_rules! kinds {
    ($($kind:literal $name:ident { $($field:ident: $ty:ident),* } $([$($tail:ident),*])?;)*) => {
        impl<'a> Record<'a> {
            fn kind(&self) -> u16 {
                match self { $(Record::$name { .. } => $kind,)* }
            }

            fn fields(&self, head: Head) -> (Head, [&'a [u8]; 2]) {
                match *self {
                    $(Record::$name { $($field,)* $($($tail,)*)? } => {
                        encode_tails!(head$(.$ty($field))* $($(, $tail)*)?)
                    })*
                }
            }
        }

        fn decode_kind<'a>(kind: u16, f: &mut Fields<'a>) -> Result<Record<'a>, Malformed> {
            Ok(match kind {
                $($kind => {
                    $(let $field = f.$ty()?;)*
                    decode_tails!(f $($(, $tail)*)?);
                    Record::$name { $($field,)* $($($tail,)*)? }
                })*
                _ => return Err(Malformed::Fields),
            })
        }
    };
}

kinds! {
    1 Create {
        parent: u64, ino: u64, mode: u32, uid: u32, gid: u32, flags: u32, rdev: u64, time: i64
    } [name, target];
    2 Link { parent: u64, ino: u64, time: i64 } [name];
    3 Unlink { parent: u64, ino: u64, flags: u32, time: i64 } [name];
    4 Rename {
        old_parent: u64, new_parent: u64, ino: u64, replaced: u64, flags: u32, time: i64
    } [old_name, new_name];
    5 SetAttr {
        ino: u64, mask: u32, mode: u32, uid: u32, gid: u32, atime: i64, mtime: i64, ctime: i64
    };
    6 Extent {
        ino: u64, file_block: u64, block: addr, len: u32, size: u64, mtime: i64, ctime: i64,
        flags: u32
    };
    7 Size { ino: u64, size: u64, atime: i64, mtime: i64, ctime: i64 };
    8 Truncate { ino: u64, size: u64, time: i64 };
    9 Punch { ino: u64, file_block: u64, len: u64, size: u64, time: i64 };
    10 Inline { ino: u64, mtime: i64, ctime: i64 } [data];
    11 SetXattr { ino: u64, time: i64 } [name, value];
    12 RemoveXattr { ino: u64, time: i64 } [name];
    13 Release { ino: u64 };
    14 Write { ino: u64, offset: u64, size: u64, mtime: i64 } [data];
    15 SyncMark { seq: u64, acked: u64 } [lanes];
    16 Keyspace { ino: u64, time: i64 };
    17 Batch { time: i64 } [ops];
    18 Spilled { time: i64, len: u64, sum: u32 } [runs];
    19 Data { block: addr } [bytes];
    20 InPlace { before: u64 } [runs];
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec;

    fn samples() -> [Record<'static>; 8] {
        [
            Record::Create {
                parent: 1,
                ino: 9,
                mode: 0o100644,
                uid: 3,
                gid: 4,
                flags: 0,
                rdev: 5,
                time: -6,
                name: b"name",
                target: b"",
            },
            Record::Link {
                parent: 1,
                ino: 2,
                time: 3,
                name: b"l",
            },
            Record::Unlink {
                parent: 1,
                ino: 2,
                flags: KEEP_ORPHAN,
                time: 3,
                name: b"u",
            },
            Record::Rename {
                old_parent: 1,
                new_parent: 2,
                ino: 3,
                replaced: 4,
                flags: 0,
                time: 5,
                old_name: b"from",
                new_name: b"to",
            },
            Record::Extent {
                ino: 1,
                file_block: 2,
                block: BlockAddr::new(2, 3),
                len: 4,
                size: 5,
                mtime: 6,
                ctime: 7,
                flags: 0,
            },
            Record::Inline {
                ino: 1,
                mtime: 2,
                ctime: 3,
                data: b"data",
            },
            Record::SetXattr {
                ino: 1,
                time: 2,
                name: b"user.a",
                value: b"v",
            },
            Record::Write {
                ino: 1,
                offset: 2,
                size: 3,
                mtime: 4,
                data: &[7; 300],
            },
        ]
    }

    #[test]
    fn decode_reads_what_encode_wrote() {
        for (i, record) in samples().iter().enumerate() {
            let encoded = record.encode(77 + i as u64, 3);
            let mut bytes = vec![0xff; encoded.padded_len()];
            assert_eq!(encoded.copy_to(&mut bytes), Some(bytes.len()));
            let (header, back) = decode(&bytes).unwrap();
            assert_eq!((header.seq, header.lane), (77 + i as u64, 3));
            assert_eq!(header.padded_len(), bytes.len());
            assert_eq!(&back, record);
        }
    }

    #[test]
    fn every_damaged_byte_is_noticed() {
        for record in samples() {
            let encoded = record.encode(5, 0);
            let mut bytes = vec![0; encoded.padded_len()];
            encoded.copy_to(&mut bytes);
            for at in 0..encoded.len() {
                bytes[at] ^= 0x40;
                assert!(decode(&bytes).is_err(), "byte {at} of {record:?}");
                bytes[at] ^= 0x40;
            }
            for cut in 0..encoded.len() {
                assert!(decode(&bytes[..cut]).is_err());
            }
        }
    }
}
