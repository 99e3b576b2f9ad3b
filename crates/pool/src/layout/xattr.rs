//! Extended attributes: key = object, name, 0, chunk number; value = total length, piece.
//!
//! Invariants:
//!  * The chunks of one attribute are numbered from 0 without gaps; all but the last are full, and
//!    each states the length of the whole value. An empty value has one empty chunk.
//!  * A name has no zero byte, so the chunks of one attribute are adjacent.
//!  * The empty name is not an attribute: it holds the long target of a symlink.

use super::fields::Reading;
use super::{BadValue, NAME_MAX, ReadTrees, XATTR_VALUE_MAX, XATTRS, bad};

/// Bytes of the value in one chunk.
pub const CHUNK: usize = 1020;
/// The longest encoded chunk.
pub const ENCODED_MAX: usize = CHUNK + 4;
/// The longest key.
pub const KEY_MAX: usize = 8 + NAME_MAX + 1 + 2;

/// A key in a private buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    bytes: [u8; KEY_MAX],
    len: usize,
}

impl Key {
    /// The bytes of the key.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Whether `name` can be the name of an attribute.
pub fn is_legal_name(name: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && !name.contains(&0)
}

/// Key of a chunk; `None` if the name is too long or has a zero byte. The empty name is allowed:
/// it is where long symlink targets are.
pub fn key(ino: u64, name: &[u8], chunk: u16) -> Option<Key> {
    if !name.is_empty() && !is_legal_name(name) {
        return None;
    }
    let mut bytes = [0; KEY_MAX];
    let n = name.len();
    bytes[..8].copy_from_slice(&ino.to_be_bytes());
    bytes[8..8 + n].copy_from_slice(name);
    bytes[9 + n..11 + n].copy_from_slice(&chunk.to_be_bytes());
    Some(Key { bytes, len: 11 + n })
}

/// Object, name and chunk number of a key.
pub fn parse_key(bytes: &[u8]) -> Result<(u64, &[u8], u16), BadValue> {
    let long_enough = bytes.split_first_chunk::<8>().and_then(|(ino, rest)| {
        let (rest, chunk) = rest.split_last_chunk::<2>()?;
        let (zero, name) = rest.split_last()?;
        Some((ino, name, zero, chunk))
    });
    match long_enough {
        Some((ino, name, 0, chunk)) if name.is_empty() || is_legal_name(name) => {
            Ok((u64::from_be_bytes(*ino), name, u16::from_be_bytes(*chunk)))
        }
        _ => bad("the key of an attribute has an unknown form"),
    }
}

/// Chunks of a value of `len` bytes.
pub fn chunks(len: usize) -> usize {
    len.div_ceil(CHUNK).max(1)
}

/// Bytes of the value in chunk number `chunk`.
fn chunk_len(total: usize, chunk: usize) -> usize {
    total.saturating_sub(chunk * CHUNK).min(CHUNK)
}

/// Writes chunk number `chunk` of `value` to `out` and says how long it is.
pub fn encode_chunk(value: &[u8], chunk: usize, out: &mut [u8; ENCODED_MAX]) -> usize {
    let start = (chunk * CHUNK).min(value.len());
    let piece = &value[start..start + chunk_len(value.len(), chunk)];
    out[..4].copy_from_slice(&(value.len() as u32).to_le_bytes());
    out[4..4 + piece.len()].copy_from_slice(piece);
    4 + piece.len()
}

/// Length of the whole value and the piece of it in chunk number `chunk`.
pub fn decode_chunk(chunk: u16, bytes: &[u8]) -> Result<(usize, &[u8]), BadValue> {
    let mut r = Reading(bytes);
    let total = r.u32()? as usize;
    let chunk = usize::from(chunk);
    if total > XATTR_VALUE_MAX || chunk >= chunks(total) || r.0.len() != chunk_len(total, chunk) {
        return bad("a piece of an attribute has another length than it says");
    }
    Ok((total, r.0))
}

/// Length of the value of an attribute, which is copied to `out` as far as it fits.
pub fn find<R: ReadTrees>(
    trees: &R,
    ino: u64,
    name: &[u8],
    out: &mut [u8],
) -> Result<Option<usize>, R::Error> {
    let mut buf = [0; ENCODED_MAX];
    let mut value_len = None;
    let mut chunk = 0u16;
    loop {
        let Some(key) = key(ino, name, chunk) else {
            return Ok(None);
        };
        let Some(len) = trees.get(XATTRS, key.as_bytes(), &mut buf)? else {
            let missing = BadValue {
                what: "an attribute lacks a piece of its value",
            };
            return if chunk == 0 {
                Ok(None)
            } else {
                Err(missing.into())
            };
        };
        let too_long = BadValue {
            what: "a piece of an attribute is too long",
        };
        let (total, piece) = decode_chunk(chunk, buf.get(..len).ok_or(too_long)?)?;
        if *value_len.get_or_insert(total) != total {
            return Err(BadValue {
                what: "pieces of an attribute disagree",
            }
            .into());
        }
        let start = usize::from(chunk) * CHUNK;
        if let Some(space) = out.get_mut(start..) {
            let n = piece.len().min(space.len());
            space[..n].copy_from_slice(&piece[..n]);
        }
        chunk += 1;
        if usize::from(chunk) >= chunks(total) {
            return Ok(value_len);
        }
    }
}

/// The name of the first attribute of `ino` after the attribute `after` (empty: from the start),
/// copied to `name`; its length.
pub fn next_name<R: ReadTrees>(
    trees: &R,
    ino: u64,
    after: &[u8],
    name: &mut [u8; NAME_MAX],
) -> Result<Option<usize>, R::Error> {
    let (mut k, mut v) = ([0; KEY_MAX], [0; ENCODED_MAX]);
    let Some(from) = key(ino, after, u16::MAX) else {
        return Ok(None);
    };
    let found = trees.at_or_after(XATTRS, from.as_bytes(), &mut k, &mut v)?;
    let Some((key_len, _)) = found else {
        return Ok(None);
    };
    let too_long = BadValue {
        what: "the key of an attribute is too long",
    };
    let (at, found, _) = parse_key(k.get(..key_len).ok_or(too_long)?)?;
    if at != ino {
        return Ok(None);
    }
    name[..found.len()].copy_from_slice(found);
    Ok(Some(found.len()))
}
