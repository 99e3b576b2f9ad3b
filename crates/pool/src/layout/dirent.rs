//! Directory entries: key = directory, cookie; value = inode number, kind, name.
//!
//! Invariants:
//!  * cookie = `name_hash(seed, name) << 8 | n`, where `n` is the lowest number that was free among
//!    the names of the same hash when the entry was made. It never changes while the entry exists,
//!    so it is a stable position for readdir.
//!  * `name_hash` is part of the format.

use super::fields::{Reading, Writing};
use super::{BadValue, DIRENTS, NAME_MAX, ReadTrees, bad, is_legal_name, pair_key, parse_pair_key};

/// Bits of a cookie below the hash.
pub const COLLISION_BITS: u32 = 8;
/// Names of one hash that a directory can hold.
pub const COLLISIONS_MAX: u64 = 1 << COLLISION_BITS;
/// The longest encoded entry.
pub const ENCODED_MAX: usize = 10 + NAME_MAX;

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirent<'a> {
    pub ino: u64,
    /// d_type as in dirent(5).
    pub kind: u8,
    pub name: &'a [u8],
}

/// Where an entry was found and what it refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub cookie: u64,
    pub ino: u64,
    pub kind: u8,
}

const HASH_START: u64 = 0x9e37_79b9_7f4a_7c15;
const HASH_WORD: u64 = 0xa076_1d64_78bd_642f;
const HASH_END: u64 = 0xe703_7ed1_a0b4_28db;

fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    (wide >> 64) as u64 ^ wide as u64
}

/// The 54-bit hash of a name that orders directory entries.
pub fn name_hash(seed: u64, name: &[u8]) -> u64 {
    let mut hash = HASH_START ^ seed ^ name.len() as u64;
    let (words, rest) = name.as_chunks::<8>();
    for word in words {
        hash = fold(hash ^ u64::from_le_bytes(*word), HASH_WORD);
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    hash = fold(hash ^ u64::from_le_bytes(last), HASH_WORD);
    fold(hash ^ HASH_START, HASH_END) >> 10
}

/// The lowest cookie that a name can have; it ranges over `COLLISIONS_MAX` cookies.
pub fn first_cookie(seed: u64, name: &[u8]) -> u64 {
    name_hash(seed, name) << COLLISION_BITS
}

/// Key of an entry.
pub fn key(dir: u64, cookie: u64) -> [u8; 16] {
    pair_key(dir, cookie)
}

/// Directory and cookie of a key.
pub fn parse_key(bytes: &[u8]) -> Result<(u64, u64), BadValue> {
    parse_pair_key(bytes)
}

impl<'a> Dirent<'a> {
    /// Writes the entry to the start of `out` and says how long it is; `None` if it does not fit.
    pub fn encode(&self, out: &mut [u8]) -> Option<usize> {
        let mut w = Writing::new(out);
        w.u64(self.ino)?;
        w.put(&[self.kind, u8::try_from(self.name.len()).ok()?])?;
        w.put(self.name)?;
        Some(w.len())
    }

    /// The entry that is exactly `bytes`.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, BadValue> {
        let mut r = Reading(bytes);
        let (ino, kind, len) = (r.u64()?, r.u8()?, r.u8()?);
        let name = r.0;
        if usize::from(len) != name.len() || !is_legal_name(name) {
            return bad("a directory entry has an illegal name");
        }
        if ino == 0 || !matches!(kind, 1 | 2 | 4 | 6 | 8 | 10 | 12) {
            return bad("a directory entry refers to no object or to an unknown kind");
        }
        Ok(Dirent { ino, kind, name })
    }
}

const TOO_LONG: BadValue = BadValue {
    what: "a directory entry is too long",
};

/// A place for the next entry of a directory.
#[derive(Debug)]
pub struct Buffer {
    key: [u8; 16],
    value: [u8; ENCODED_MAX],
}

impl Default for Buffer {
    fn default() -> Self {
        Buffer {
            key: [0; 16],
            value: [0; ENCODED_MAX],
        }
    }
}

/// The first entry of `dir` whose cookie is at least `from`. For readdir, and for all who need
/// entries in order.
pub fn next<'b, R: ReadTrees>(
    trees: &R,
    dir: u64,
    from: u64,
    buf: &'b mut Buffer,
) -> Result<Option<(u64, Dirent<'b>)>, R::Error> {
    let found = trees.at_or_after(DIRENTS, &key(dir, from), &mut buf.key, &mut buf.value)?;
    let Some((key_len, value_len)) = found else {
        return Ok(None);
    };
    let (at, cookie) = parse_key(buf.key.get(..key_len).ok_or(TOO_LONG)?)?;
    if at != dir {
        return Ok(None);
    }
    let value = buf.value.get(..value_len).ok_or(TOO_LONG)?;
    Ok(Some((cookie, Dirent::decode(value)?)))
}

/// The entry of `dir` with this name.
pub fn find<R: ReadTrees>(trees: &R, dir: u64, name: &[u8]) -> Result<Option<Found>, R::Error> {
    // Nearly every name has the first cookie of its hash, and one key is found without a copy of
    // its leaf.
    let cookie = first_cookie(trees.name_seed()?, name);
    let mut value = [0; ENCODED_MAX];
    if let Some(len) = trees.get(DIRENTS, &key(dir, cookie), &mut value)? {
        let bytes = value.get(..len).ok_or(TOO_LONG)?;
        let Dirent { ino, kind, name: n } = Dirent::decode(bytes)?;
        if n == name {
            return Ok(Some(Found { cookie, ino, kind }));
        }
    }
    Ok(search(trees, dir, name)?.0)
}

/// The cookie for a new name; `None` if the name exists or all cookies of its hash are taken.
pub fn free_cookie<R: ReadTrees>(
    trees: &R,
    dir: u64,
    name: &[u8],
) -> Result<Option<u64>, R::Error> {
    match search(trees, dir, name)? {
        (None, free) => Ok(free),
        (Some(_), _) => Ok(None),
    }
}

/// The entry with this name, and the lowest free cookie below it or below the end of its hash.
pub fn search<R: ReadTrees>(
    trees: &R,
    dir: u64,
    name: &[u8],
) -> Result<(Option<Found>, Option<u64>), R::Error> {
    let first = first_cookie(trees.name_seed()?, name);
    let end = first + COLLISIONS_MAX;
    let mut buf = Buffer::default();
    let (mut from, mut free) = (first, None);
    while from < end {
        let Some((cookie, entry)) = next(trees, dir, from, &mut buf)? else {
            break;
        };
        if cookie > from && free.is_none() {
            free = Some(from);
        }
        if cookie >= end {
            break;
        }
        if entry.name == name {
            return Ok((
                Some(Found {
                    cookie,
                    ino: entry.ino,
                    kind: entry.kind,
                }),
                free,
            ));
        }
        from = cookie + 1;
    }
    Ok((None, free.or((from < end).then_some(from))))
}
