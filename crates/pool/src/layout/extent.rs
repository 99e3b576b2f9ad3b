//! Extents: key = file, file block; value = where the blocks are.
//!
//! Invariant: the extents of one file do not overlap, neither in the file nor on the medium; a
//! file block that no extent covers is a hole and reads as zeroes.

use super::fields::{Reading, Writing};
use super::{
    BadValue, BlockAddr, EXTENTS, FILE_BLOCKS_MAX, ReadTrees, bad, pair_key, parse_pair_key,
};

/// Bytes of an encoded extent.
pub const ENCODED: usize = 16;

/// File blocks `file_block .. file_block + len` are the blocks `block .. block + len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub file_block: u64,
    pub block: BlockAddr,
    pub len: u32,
    /// Epoch of the pool in which the blocks came into use: snapshots of it and of later epochs
    /// have them.
    pub epoch: u32,
}

/// What lies at a file block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// Nothing, for this many blocks (to the end of the largest file if nothing follows).
    Hole(u64),
    /// This block and `len - 1` more after it, in use since an epoch.
    Blocks {
        block: BlockAddr,
        len: u64,
        epoch: u32,
    },
}

/// Key of an extent.
pub fn key(ino: u64, file_block: u64) -> [u8; 16] {
    pair_key(ino, file_block)
}

/// File and file block of a key.
pub fn parse_key(bytes: &[u8]) -> Result<(u64, u64), BadValue> {
    parse_pair_key(bytes)
}

impl Extent {
    /// The first file block after it.
    pub fn end(&self) -> u64 {
        self.file_block + u64::from(self.len)
    }

    /// The value.
    pub fn encode(&self) -> [u8; ENCODED] {
        let mut out = [0; ENCODED];
        let mut w = Writing::new(&mut out);
        // The array has room for all three fields.
        let _ = w
            .u64(self.block.word())
            .and_then(|()| w.u32(self.len))
            .and_then(|()| w.u32(self.epoch));
        out
    }

    /// The extent at `file_block` whose value is exactly `bytes`.
    pub fn decode(file_block: u64, bytes: &[u8]) -> Result<Self, BadValue> {
        let mut r = Reading(bytes);
        let (block, len, epoch) = (r.u64()?, r.u32()?, r.u32()?);
        if !r.0.is_empty() || len == 0 {
            return bad("an extent has an unknown form");
        }
        let block = BlockAddr::parse(block, len)?;
        let end = file_block.checked_add(u64::from(len));
        if end.is_none_or(|end| end > FILE_BLOCKS_MAX) {
            return bad("an extent reaches beyond every file");
        }
        Ok(Extent {
            file_block,
            block,
            len,
            epoch,
        })
    }
}

fn parse<E: From<BadValue>>(
    ino: u64,
    key: &[u8],
    value: &[u8],
    lens: Option<(usize, usize)>,
) -> Result<Option<Extent>, E> {
    let Some((key_len, value_len)) = lens else {
        return Ok(None);
    };
    let too_long = BadValue {
        what: "an extent is too long",
    };
    let (file, file_block) = parse_key(key.get(..key_len).ok_or(too_long)?)?;
    if file != ino {
        return Ok(None);
    }
    let value = value.get(..value_len).ok_or(too_long)?;
    Ok(Some(Extent::decode(file_block, value)?))
}

/// The first extent of `ino` that starts at or after `file_block`.
pub fn next<R: ReadTrees>(
    trees: &R,
    ino: u64,
    file_block: u64,
) -> Result<Option<Extent>, R::Error> {
    let (mut k, mut v) = ([0; 16], [0; ENCODED]);
    let lens = trees.at_or_after(EXTENTS, &key(ino, file_block), &mut k, &mut v)?;
    parse(ino, &k, &v, lens)
}

/// The last extent of `ino` that starts at or before `file_block`; it may end before it, too.
pub fn previous<R: ReadTrees>(
    trees: &R,
    ino: u64,
    file_block: u64,
) -> Result<Option<Extent>, R::Error> {
    let (mut k, mut v) = ([0; 16], [0; ENCODED]);
    let lens = trees.at_or_before(EXTENTS, &key(ino, file_block), &mut k, &mut v)?;
    parse(ino, &k, &v, lens)
}

/// The extent that covers `file_block`.
pub fn covering<R: ReadTrees>(
    trees: &R,
    ino: u64,
    file_block: u64,
) -> Result<Option<Extent>, R::Error> {
    Ok(previous(trees, ino, file_block)?.filter(|e| file_block < e.end()))
}

/// What lies at `file_block` of `ino`, and for how long.
pub fn find<R: ReadTrees>(trees: &R, ino: u64, file_block: u64) -> Result<Run, R::Error> {
    if let Some(e) = covering(trees, ino, file_block)? {
        let skip = file_block - e.file_block;
        return Ok(Run::Blocks {
            block: e.block + skip,
            len: u64::from(e.len) - skip,
            epoch: e.epoch,
        });
    }
    let end = match next(trees, ino, file_block)? {
        Some(e) => e.file_block,
        None => FILE_BLOCKS_MAX,
    };
    Ok(Run::Hole(end.saturating_sub(file_block)))
}
