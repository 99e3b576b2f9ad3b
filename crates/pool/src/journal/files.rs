//! Changes of a keyspace that concern the files of its directory: fields behind the key.
//!
//! Invariant: `decode` accepts exactly what `encode` makes and never panics on anything else.
//! `docs/spec/journal.md` states every field.

use crate::layout::value::{RUN, RUNS_MAX};
use alloc::vec::Vec;

/// Bytes of `Promote` before its runs.
const PROMOTE_FIXED: usize = 48;
/// Bytes of `Naming`.
const NAMING: usize = 24;

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*word))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*word))
}

/// A value becomes a file of the keyspace's directory, with the key as its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promote<'a> {
    pub ino: u64,
    /// Bytes of the value.
    pub size: u64,
    /// All four times of the file.
    pub mtime: i64,
    /// For clients: the block + 1 that has the content of a file which stays inline; 0: none.
    pub shadow: u64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Where the file's blocks are, as `layout::value::InBlocks` has it: those of the value, or
    /// one that the client has filled with it. Empty: the file is inline or empty.
    pub runs: &'a [u8],
}

impl<'a> Promote<'a> {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(PROMOTE_FIXED + self.runs.len());
        for word in [self.ino, self.size, self.mtime as u64, self.shadow] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for word in [self.mode, self.uid, self.gid, 0] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(self.runs);
        out
    }

    /// What `bytes` say.
    pub fn decode(bytes: &'a [u8]) -> Option<Promote<'a>> {
        let runs = bytes.get(PROMOTE_FIXED..)?;
        if u32_at(bytes, 44)? != 0 || runs.len() > 8 + RUN * RUNS_MAX {
            return None;
        }
        Some(Promote {
            ino: u64_at(bytes, 0)?,
            size: u64_at(bytes, 8)?,
            mtime: u64_at(bytes, 16)? as i64,
            shadow: u64_at(bytes, 24)?,
            mode: u32_at(bytes, 32)?,
            uid: u32_at(bytes, 36)?,
            gid: u32_at(bytes, 40)?,
            runs,
        })
    }
}

/// The key as a name in the keyspace's directory: what loses it, and what gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Naming {
    /// A file without a name that gets it, in place of the value, too; 0: none.
    pub ino: u64,
    /// What has it now and loses it; 0: nothing.
    pub replaced: u64,
    /// `KEEP_ORPHAN`: what loses its last name is open and stays as an orphan.
    pub flags: u32,
}

impl Naming {
    /// The bytes.
    pub fn encode(&self) -> [u8; NAMING] {
        let mut out = [0; NAMING];
        out[..8].copy_from_slice(&self.ino.to_le_bytes());
        out[8..16].copy_from_slice(&self.replaced.to_le_bytes());
        out[16..20].copy_from_slice(&self.flags.to_le_bytes());
        out
    }

    /// What `bytes` say.
    pub fn decode(bytes: &[u8]) -> Option<Naming> {
        let naming = Naming {
            ino: u64_at(bytes, 0)?,
            replaced: u64_at(bytes, 8)?,
            flags: u32_at(bytes, 16)?,
        };
        let something = naming.ino != 0 || naming.replaced != 0;
        (something && bytes == naming.encode()).then_some(naming)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_and_nothing_else_is_accepted() {
        let promote = Promote {
            ino: 5,
            size: 6,
            mtime: -7,
            shadow: 8,
            mode: 0o100_644,
            uid: 9,
            gid: 10,
            runs: &[3; 24],
        };
        let bytes = promote.encode();
        assert_eq!(Promote::decode(&bytes), Some(promote));
        assert_eq!(Promote::decode(&bytes[..PROMOTE_FIXED - 1]), None);
        let (ino, replaced, flags) = (1, 2, 3);
        let naming = Naming {
            ino,
            replaced,
            flags,
        };
        let mut bytes = naming.encode();
        assert_eq!(Naming::decode(&bytes), Some(naming));
        assert_eq!(Naming::decode(&bytes[..NAMING - 1]), None);
        bytes[NAMING - 1] = 1;
        assert_eq!(Naming::decode(&bytes), None);
        assert_eq!(Naming::decode(&[0; NAMING]), None);
    }
}
