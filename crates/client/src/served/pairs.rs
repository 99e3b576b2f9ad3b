//! The form of keys and values in a buffer: changes on their way to the proxy, and pairs of a scan
//! on their way back.
//!
//! Invariant: what is read here was copied before; lengths that do not fit the bytes are refused.

use alloc::vec::Vec;

/// The words before the key of a change: kind, keyspace, length of the key, of the value.
pub const CHANGE_HEAD: usize = 16;
/// The words before the key of a pair: length of the key, of the value; when it expires.
pub const PAIR_HEAD: usize = 16;
/// In the place of the length of a pair's value, which is the last of the answer: it did not fit.
pub const VALUE_APART: u32 = u32::MAX;

/// One of the changes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Put,
    Erase,
    /// From the key on, to the value, which is a key: empty for the end.
    EraseRange,
    /// Bytes of the value that the next put has, before those that it brings itself.
    Part,
    /// When the value of the next put expires, as eight bytes.
    Until,
}

const KINDS: [Kind; 5] = [
    Kind::Put,
    Kind::Erase,
    Kind::EraseRange,
    Kind::Part,
    Kind::Until,
];

/// A change of the keyspace that the proxy names so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    pub kind: Kind,
    pub keyspace: u32,
    pub key: &'a [u8],
    pub value: &'a [u8],
}

impl Change<'_> {
    /// What comes before the key and the value.
    pub fn head(&self) -> [u8; CHANGE_HEAD] {
        let kind = KINDS.iter().position(|kind| *kind == self.kind);
        let words = [
            kind.unwrap_or(0) as u32,
            self.keyspace,
            self.key.len() as u32,
            self.value.len() as u32,
        ];
        let mut head = [0; CHANGE_HEAD];
        for (to, word) in head.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        head
    }

    /// Bytes that it takes.
    pub fn len(&self) -> usize {
        CHANGE_HEAD + self.key.len() + self.value.len()
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The first change of `bytes`, and what follows it; `None`: it is none.
pub fn first_change(bytes: &[u8]) -> Option<(Change<'_>, &[u8])> {
    let kind = *KINDS.get(word(bytes, 0)? as usize)?;
    let keyspace = word(bytes, 4)?;
    let (key_len, value_len) = (word(bytes, 8)? as usize, word(bytes, 12)? as usize);
    let (key, rest) = bytes.get(CHANGE_HEAD..)?.split_at_checked(key_len)?;
    let (value, rest) = rest.split_at_checked(value_len)?;
    let change = Change {
        kind,
        keyspace,
        key,
        value,
    };
    Some((change, rest))
}

/// Appends a pair; `None` is a value that comes apart.
pub fn push_pair(key: &[u8], value: Option<&[u8]>, expires: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(&(key.len() as u32).to_le_bytes());
    let len = value.map_or(VALUE_APART, |value| value.len() as u32);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&expires.to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(value.unwrap_or_default());
}

/// The lengths of the first pair of `bytes`: of its key, and of its value, unless that comes apart;
/// and when it expires. `None`: there is none.
pub fn first_pair(bytes: &[u8]) -> Option<(usize, Option<usize>, i64)> {
    let (key, value) = (word(bytes, 0)? as usize, word(bytes, 4)?);
    let expires = i64::from_le_bytes(*bytes.get(8..)?.first_chunk()?);
    let value = (value != VALUE_APART).then_some(value as usize);
    let len = PAIR_HEAD
        .checked_add(key)?
        .checked_add(value.unwrap_or(0))?;
    (len <= bytes.len()).then_some((key, value, expires))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_come_back_and_cut_ones_do_not() {
        let changes = [
            (Kind::Put, &b"key"[..], &b"value"[..]),
            (Kind::Erase, b"k", b""),
            (Kind::EraseRange, b"", b"z"),
            (Kind::Part, b"", b"bytes"),
            (Kind::Until, b"", b"whenever"),
        ];
        let mut bytes = Vec::new();
        for (kind, key, value) in changes {
            let change = Change {
                kind,
                keyspace: 7,
                key,
                value,
            };
            bytes.extend_from_slice(&change.head());
            bytes.extend_from_slice(key);
            bytes.extend_from_slice(value);
        }
        let mut rest = &bytes[..];
        for (kind, key, value) in changes {
            let (change, after) = first_change(rest).unwrap();
            assert_eq!((change.kind, change.keyspace), (kind, 7));
            assert_eq!((change.key, change.value), (key, value));
            assert_eq!(rest.len() - after.len(), change.len());
            for cut in 0..change.len() {
                assert_eq!(first_change(&rest[..cut]), None);
            }
            rest = after;
        }
        assert!(rest.is_empty());
        let mut unknown = bytes.clone();
        unknown[0] = 5;
        assert_eq!(first_change(&unknown), None);
    }

    #[test]
    fn pairs_come_back_and_cut_ones_do_not() {
        let mut bytes = Vec::new();
        push_pair(b"key", Some(b"value"), 77, &mut bytes);
        assert_eq!(first_pair(&bytes), Some((3, Some(5), 77)));
        for cut in 0..bytes.len() {
            assert_eq!(first_pair(&bytes[..cut]), None);
        }
        bytes.clear();
        push_pair(b"key", None, 0, &mut bytes);
        assert_eq!(first_pair(&bytes), Some((3, None, 0)));
        assert_eq!(first_pair(&[255; 12]), None);
    }
}
