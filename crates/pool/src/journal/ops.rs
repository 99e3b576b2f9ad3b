//! The changes of keyspaces inside a record.
//!
//! Invariants: each change starts at a multiple of 8 bytes from the start of its record, is padded
//! with zeroes to a multiple of 8, and has the distance back to the record's start, so that the
//! record's number is found from the change's position. `Ops` accepts exactly what `push` makes and
//! never panics on anything else. `docs/spec/journal.md` states every field.

use super::files::{Naming, Promote};
use super::record::Malformed;
use crate::layout::value::{EXPIRES, NEVER, RUN, RUNS_MAX, USER_KEY_MAX};
use alloc::vec::Vec;

/// Bytes before the key of a change.
pub const OP_HEADER: usize = 24;
/// Changes start on multiples of this many bytes.
pub const OP_ALIGN: usize = 8;
/// Bytes of a record before its first change.
pub const OPS_AT: usize = super::record::RECORD_HEADER + 8;

const PUT: u8 = 1;
const PUT_BLOCKS: u8 = 2;
const ERASE: u8 = 3;
const ERASE_RANGE: u8 = 4;
const PROMOTE: u8 = 5;
const NAME: u8 = 6;
const PUT_UNTIL: u8 = 7;
const PUT_BLOCKS_UNTIL: u8 = 8;
/// Flags.
const ALONE: u8 = 1;

/// What a change does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// The key has this value from now on.
    Put(&'a [u8]),
    /// The key has the value that lies in blocks; `layout::value::InBlocks` as bytes.
    PutBlocks(&'a [u8]),
    /// As `Put`; the value expires then.
    PutUntil(i64, &'a [u8]),
    /// As `PutBlocks`; the value expires then.
    PutBlocksUntil(i64, &'a [u8]),
    /// The key is gone.
    Erase,
    /// All keys from `key` up to, not including, this one are gone; empty: to the end.
    EraseRange(&'a [u8]),
    /// The value becomes a file; `Promote` as bytes. The only change of its record.
    Promote(&'a [u8]),
    /// The key as a name leads to another file, or to none; `Naming` as bytes. One that names a
    /// file is the only change of its record; others come before all else.
    Name(&'a [u8]),
}

impl<'a> Change<'a> {
    /// The key has this value until then (`NEVER`: for ever).
    pub fn put(value: &'a [u8], expires: i64) -> Change<'a> {
        match expires {
            NEVER => Change::Put(value),
            _ => Change::PutUntil(expires, value),
        }
    }

    /// The same of a value that lies in blocks.
    pub fn put_blocks(value: &'a [u8], expires: i64) -> Change<'a> {
        match expires {
            NEVER => Change::PutBlocks(value),
            _ => Change::PutBlocksUntil(expires, value),
        }
    }

    /// When the value that it puts expires.
    pub fn expires(&self) -> i64 {
        match self {
            Change::PutUntil(expires, _) | Change::PutBlocksUntil(expires, _) => *expires,
            _ => NEVER,
        }
    }

    /// Whether it says of one key what value that has from now on.
    pub fn is_keyed(&self) -> bool {
        match self {
            Change::EraseRange(_) => false,
            Change::Name(bytes) => Naming::decode(bytes).is_some_and(|n| n.ino != 0),
            _ => true,
        }
    }

    /// Whether it changes names of the keyspace's directory.
    pub fn is_about_files(&self) -> bool {
        matches!(self, Change::Promote(_) | Change::Name(_))
    }
}

/// A change of one keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op<'a> {
    pub keyspace: u64,
    pub key: &'a [u8],
    pub change: Change<'a>,
}

/// The numbers at the start of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpHeader {
    kind: u8,
    /// When it was made no other change of the key waited for the trees. For clients.
    pub alone: bool,
    pub key_len: usize,
    pub value_len: usize,
    /// Bytes from the start of the record to the change.
    pub back: u64,
    pub keyspace: u64,
}

impl OpHeader {
    /// Reads it; nothing of it is checked but the kind.
    #[inline]
    pub fn decode(bytes: &[u8; OP_HEADER]) -> Option<OpHeader> {
        let word = |at: usize| {
            let mut out = [0; 8];
            out.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(out)
        };
        let (first, second) = (word(0), word(8));
        let kind = first as u8;
        matches!(kind, PUT..=PUT_BLOCKS_UNTIL).then_some(OpHeader {
            kind,
            alone: (first >> 8) as u8 == ALONE,
            key_len: usize::from((first >> 16) as u16),
            value_len: (first >> 32) as u32 as usize,
            back: (second & u64::from(u32::MAX)) * OP_ALIGN as u64,
            keyspace: word(16),
        })
    }

    fn encode(&self) -> [u8; OP_HEADER] {
        let flags = if self.alone { ALONE } else { 0 };
        let first = u64::from(self.kind)
            | u64::from(flags) << 8
            | (self.key_len as u64) << 16
            | (self.value_len as u64) << 32;
        let words = [first, self.back / OP_ALIGN as u64, self.keyspace];
        let mut out = [0; OP_HEADER];
        for (place, word) in out.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Bytes of the whole change with padding.
    #[inline]
    pub fn len(&self) -> usize {
        (OP_HEADER + self.key_len + self.value_len).next_multiple_of(OP_ALIGN)
    }

    /// The change has no key, no value and no meaning.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The bytes behind the key are the value itself, `value_at` bytes behind it.
    #[inline]
    pub fn is_put(&self) -> bool {
        self.kind == PUT || self.kind == PUT_UNTIL
    }

    /// The bytes behind the key, `value_at` behind it, say in which blocks the value is.
    #[inline]
    pub fn is_put_blocks(&self) -> bool {
        self.kind == PUT_BLOCKS || self.kind == PUT_BLOCKS_UNTIL
    }

    /// Bytes between the key and what `value_len` counts as well: the time at which it expires.
    #[inline]
    pub fn value_at(&self) -> usize {
        match self.kind >= PUT_UNTIL {
            true => EXPIRES,
            false => 0,
        }
    }
}

impl<'a> Op<'a> {
    fn header(&self, back: u64) -> OpHeader {
        let (kind, value) = match self.change {
            Change::Put(value) => (PUT, value),
            Change::PutBlocks(value) => (PUT_BLOCKS, value),
            Change::PutUntil(_, value) => (PUT_UNTIL, value),
            Change::PutBlocksUntil(_, value) => (PUT_BLOCKS_UNTIL, value),
            Change::Erase => (ERASE, &[][..]),
            Change::EraseRange(to) => (ERASE_RANGE, to),
            Change::Promote(fields) => (PROMOTE, fields),
            Change::Name(fields) => (NAME, fields),
        };
        OpHeader {
            kind,
            alone: false,
            key_len: self.key.len(),
            value_len: value.len() + if kind >= PUT_UNTIL { EXPIRES } else { 0 },
            back,
            keyspace: self.keyspace,
        }
    }

    fn value(&self) -> &'a [u8] {
        match self.change {
            Change::Put(value)
            | Change::PutBlocks(value)
            | Change::PutUntil(_, value)
            | Change::PutBlocksUntil(_, value)
            | Change::EraseRange(value)
            | Change::Promote(value)
            | Change::Name(value) => value,
            Change::Erase => &[],
        }
    }

    /// Bytes that it takes.
    pub fn len(&self) -> usize {
        self.header(0).len()
    }

    /// Never: a change has a header.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Adds it to those of a record, or of a list of changes. Key and value are of legal lengths.
    pub fn push(&self, ops: &mut Vec<u8>) {
        let header = self.header((OPS_AT + ops.len()) as u64);
        let end = ops.len() + header.len();
        ops.reserve(header.len());
        ops.extend_from_slice(&header.encode());
        ops.extend_from_slice(self.key);
        if let Change::PutUntil(expires, _) | Change::PutBlocksUntil(expires, _) = self.change {
            ops.extend_from_slice(&expires.to_le_bytes());
        }
        ops.extend_from_slice(self.value());
        ops.resize(end, 0);
    }
}

/// Says of the changes of a record, which are `ops`, whether they are `alone`: it is asked for one
/// after the other.
pub fn mark_alone(ops: &mut [u8], mut alone: impl FnMut() -> bool) {
    let mut at = 0;
    while let Some(rest) = ops.get_mut(at..)
        && let Some(head) = rest.first_chunk_mut::<OP_HEADER>()
        && let Some(header) = OpHeader::decode(head)
    {
        head[1] = if alone() { ALONE } else { 0 };
        at += header.len();
    }
}

/// Goes through the changes of a record, in order.
pub struct Ops<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Bytes of changes of the record before these.
    before: u64,
}

impl<'a> Ops<'a> {
    /// Those in `bytes`, a private copy.
    pub fn new(bytes: &'a [u8]) -> Ops<'a> {
        Ops::part(bytes, 0)
    }

    /// Those in `bytes`, before which the record has others of `before` bytes.
    pub fn part(bytes: &'a [u8], before: u64) -> Ops<'a> {
        let at = 0;
        Ops { bytes, at, before }
    }

    /// Bytes of the changes at the start of `bytes` that are there from end to end. A change that
    /// is longer than `most` counts as one that is there, so that going through it fails.
    pub fn whole(bytes: &[u8], most: usize) -> usize {
        let mut at = 0;
        while let Some(head) = bytes.get(at..).and_then(|rest| rest.first_chunk()) {
            match OpHeader::decode(head).map(|header| header.len()) {
                Some(len) if len > bytes.len() - at && len <= most => break,
                Some(len) if len <= most => at += len,
                _ => return bytes.len(),
            }
        }
        at
    }

    /// Where the next one is, in bytes from the start of the record.
    pub fn place(&self) -> u64 {
        OPS_AT as u64 + self.before + self.at as u64
    }

    fn take(&mut self) -> Option<Op<'a>> {
        let rest = self.bytes.get(self.at..)?;
        let (head, body) = rest.split_first_chunk::<OP_HEADER>()?;
        let h = OpHeader::decode(head)?;
        // What `encode` would not write: an unknown flag, or a place of more than 32 bits.
        if h.back != self.place() || head[1] > ALONE || head[12..16] != [0; 4] {
            return None;
        }
        let (key, body) = body.split_at_checked(h.key_len)?;
        let (value, body) = body.split_at_checked(h.value_len)?;
        let padding = body.get(..h.len() - OP_HEADER - h.key_len - h.value_len)?;
        let change = match h.kind {
            PUT => Change::Put(value),
            PUT_BLOCKS if value.len() <= 8 + RUN * RUNS_MAX => Change::PutBlocks(value),
            PUT_UNTIL | PUT_BLOCKS_UNTIL => put_until(h.kind, value)?,
            ERASE if value.is_empty() => Change::Erase,
            ERASE_RANGE if value.len() <= USER_KEY_MAX => Change::EraseRange(value),
            PROMOTE if Promote::decode(value).is_some() => Change::Promote(value),
            NAME if Naming::decode(value).is_some() => Change::Name(value),
            _ => return None,
        };
        let keyed = matches!(change, Change::EraseRange(_)) || !key.is_empty();
        if !keyed || key.len() > USER_KEY_MAX || padding.iter().any(|b| *b != 0) {
            return None;
        }
        self.at += h.len();
        Some(Op {
            keyspace: h.keyspace,
            key,
            change,
        })
    }
}

/// A put of what expires; the time stands before the value.
fn put_until(kind: u8, value: &[u8]) -> Option<Change<'_>> {
    let (expires, value) = value.split_first_chunk()?;
    let expires = i64::from_le_bytes(*expires);
    match kind {
        _ if expires <= NEVER => None,
        PUT_UNTIL => Some(Change::PutUntil(expires, value)),
        _ if value.len() <= 8 + RUN * RUNS_MAX => Some(Change::PutBlocksUntil(expires, value)),
        _ => None,
    }
}

impl<'a> Iterator for Ops<'a> {
    type Item = Result<Op<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let found = self.take().ok_or(Malformed::Fields);
        if found.is_err() {
            self.at = self.bytes.len();
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A naming has 24 bytes, of which the last four are zero.
    const NAMING: [u8; 24] = {
        let mut bytes = [7; 24];
        let mut at = 20;
        while at < 24 {
            bytes[at] = 0;
            at += 1;
        }
        bytes
    };

    fn samples() -> [Op<'static>; 7] {
        let op = |key, change| Op {
            keyspace: 7,
            key,
            change,
        };
        [
            op(b"key", Change::Put(b"value")),
            op(&[0, 255], Change::PutBlocks(&[5; 24])),
            op(b"gone", Change::Erase),
            op(b"", Change::EraseRange(b"z")),
            op(b"name", Change::Name(&NAMING)),
            op(b"a while", Change::PutUntil(1, b"value")),
            op(b"longer", Change::PutBlocksUntil(i64::MAX, &[5; 24])),
        ]
    }

    #[test]
    fn changes_are_marked_one_by_one() {
        let mut ops = Vec::new();
        for key in [&b"a"[..], b"bb", b"c"] {
            let change = Change::Put(b"value");
            let keyspace = 7;
            Op {
                keyspace,
                key,
                change,
            }
            .push(&mut ops);
        }
        let plain = ops.clone();
        let marks = |ops: &[u8]| {
            let mut all = Ops::new(ops);
            let mut marks = Vec::new();
            loop {
                let at = all.place() as usize - OPS_AT;
                let Some(op) = all.next() else { return marks };
                let head = ops[at..at + OP_HEADER].try_into().unwrap();
                marks.push((op.unwrap().key[0], OpHeader::decode(head).unwrap().alone));
            }
        };
        let mut alone = [true, false, true].into_iter();
        mark_alone(&mut ops, || alone.next().unwrap());
        assert_eq!(marks(&ops), [(b'a', true), (b'b', false), (b'c', true)]);
        mark_alone(&mut ops, || false);
        assert_eq!(ops, plain);
        ops[1] = 2;
        assert!(Ops::new(&ops).next().unwrap().is_err());
    }

    #[test]
    fn changes_come_back() {
        let mut bytes = Vec::new();
        samples().iter().for_each(|op| op.push(&mut bytes));
        let back: Result<Vec<_>, _> = Ops::new(&bytes).collect();
        assert_eq!(back.unwrap(), samples());
    }

    /// Wherever the bytes are divided, the parts have the same changes as the whole.
    #[test]
    fn parts_have_the_same_changes() {
        let mut bytes = Vec::new();
        samples().iter().for_each(|op| op.push(&mut bytes));
        for cut in 0..bytes.len() {
            let (mut found, most) = (Vec::new(), 100);
            let first = Ops::whole(&bytes[..cut], most);
            assert!(first <= cut && cut - first < most);
            found.extend(Ops::part(&bytes[..first], 0));
            found.extend(Ops::part(&bytes[first..], first as u64));
            let found: Result<Vec<_>, _> = found.into_iter().collect();
            assert_eq!(found.unwrap(), samples(), "cut at {cut}");
        }
        let mut long = Vec::new();
        let key = &[1; 90][..];
        samples()[0].push(&mut long);
        Op {
            key,
            ..samples()[0]
        }
        .push(&mut long);
        let first = samples()[0].len();
        assert_eq!(Ops::whole(&long[..first + 30], 200), first);
        // One that is too long is to be looked at, and refused for its end.
        assert_eq!(Ops::whole(&long[..first + 30], 100), first + 30);
        assert!(Ops::new(&long[..first + 30]).any(|op| op.is_err()));
    }

    #[test]
    fn nothing_else_is_accepted() {
        let mut bytes = Vec::new();
        samples().iter().for_each(|op| op.push(&mut bytes));
        for cut in 1..bytes.len() {
            let whole: Result<Vec<_>, _> = Ops::new(&bytes[..cut]).collect();
            let rest = whole.map(|ops| ops.iter().map(Op::len).sum::<usize>());
            assert!(rest.is_err() || rest == Ok(cut), "cut at {cut}");
        }
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x11;
            // Whatever it is, it ends, and says again what was read.
            for op in Ops::new(&bad).flatten() {
                assert!(op.key.len() <= USER_KEY_MAX);
            }
        }
    }
}
