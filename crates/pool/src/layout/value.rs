//! Values of keyspaces: key = keyspace, user's key; value = where and what the bytes are.
//!
//! Invariants:
//!  * A value is wholly in its entry or wholly in data blocks that nothing else uses.
//!  * Times are kept in 48 bits, in units of 2^16 ns since 1970; those of expiry are exact.
//!  * Every value that expires has an entry in the index, under keyspace 0. The index may have
//!    more: what left the tree in one piece is not looked at key by key.

use super::dirent::name_hash;
use super::fields::Reading;
use super::{BLOCK, BadValue, BlockAddr, bad};
use crate::tree::KEY_MAX;
use alloc::vec;
use alloc::vec::Vec;

/// No key of a keyspace is longer.
pub const USER_KEY_MAX: usize = 1024;
/// A key and its value together have at most so many bytes where the value is in the entry: two
/// of them fit one node, whether they expire or not.
pub const ENTRY_MAX: usize = 1920;
/// Bytes before the value, or before the length of one in blocks, unless it expires.
pub const HEAD: usize = 7;
/// The same of a value that expires.
pub const HEAD_MAX: usize = HEAD + EXPIRES;
/// Bytes of the time at which a value expires, where it has one.
pub const EXPIRES: usize = 8;
/// `Head::expires` of a value that does not expire.
pub const NEVER: i64 = 0;
/// The number in the place of a keyspace's under which the index of expiry is: no object has it.
pub const INDEX: u64 = 0;
/// Runs of blocks of one value.
pub const RUNS_MAX: usize = 32;
/// Bytes of an encoded run.
pub const RUN: usize = 16;
/// The longest encoded value in blocks.
pub const IN_BLOCKS_MAX: usize = HEAD_MAX + 8 + RUNS_MAX * RUN;

/// Inode numbers of values are from here on, and below twice of it: above those of all objects
/// that were made as files.
pub const NUMBERS: u64 = 1 << 56;

const INLINE: u8 = 1;
const IN_BLOCKS: u8 = 2;
/// What the kind of a value that expires is above that of another.
const EXPIRING: u8 = 2;
const TIME_SHIFT: u32 = 16;

/// The inode number under which a value of `key` is shown, and that it takes along when it becomes
/// a file: another one for each value. `bytes` are those behind the head of its entry, runs without
/// epochs. Two values may share one, but hardly ever do.
pub fn number(keyspace: u64, key: &[u8], mtime: i64, bytes: &[u8]) -> u64 {
    let put = Head::rounded(mtime) as u64 >> TIME_SHIFT;
    let content = name_hash(put.wrapping_mul(NUMBER_SEED), bytes);
    NUMBERS | name_hash(keyspace.wrapping_mul(NUMBER_SEED) ^ content, key)
}

const NUMBER_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Whether a number is one of those that values have.
pub fn is_number(ino: u64) -> bool {
    ino & !(NUMBERS - 1) == NUMBERS
}

/// Whether a value may be in its entry.
#[inline]
pub fn fits_entry(key_len: usize, value_len: usize) -> bool {
    key_len + value_len <= ENTRY_MAX
}

/// Whether what expires at `expires` is gone at `now`.
#[inline]
pub fn is_over(expires: i64, now: i64) -> bool {
    expires != NEVER && expires <= now
}

/// What the first bytes of an entry say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Nanoseconds since 1970.
    pub mtime: i64,
    /// The value's bytes follow; else its length and its runs.
    pub inline: bool,
    /// From then on there is no value: nanoseconds since 1970, or `NEVER`.
    pub expires: i64,
}

/// An encoded head.
pub struct HeadBytes {
    bytes: [u8; HEAD_MAX],
    len: usize,
}

impl core::ops::Deref for HeadBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Head {
    /// Of a value that does not expire.
    #[inline]
    pub fn lasting(mtime: i64, inline: bool) -> Head {
        let expires = NEVER;
        Head {
            mtime,
            inline,
            expires,
        }
    }

    /// The bytes.
    #[inline]
    pub fn encode(&self) -> HeadBytes {
        let mut kind = if self.inline { INLINE } else { IN_BLOCKS };
        let time = (self.mtime.max(0) as u64) >> TIME_SHIFT;
        let t = time.to_le_bytes();
        let (mut bytes, mut len) = ([0; HEAD_MAX], HEAD);
        if self.expires != NEVER {
            (kind, len) = (kind + EXPIRING, HEAD_MAX);
            bytes[HEAD..].copy_from_slice(&self.expires.to_le_bytes());
        }
        bytes[..HEAD].copy_from_slice(&[kind, t[0], t[1], t[2], t[3], t[4], t[5]]);
        HeadBytes { bytes, len }
    }

    /// A time as it comes back.
    pub fn rounded(time: i64) -> i64 {
        time.max(0) >> TIME_SHIFT << TIME_SHIFT
    }

    /// What `bytes`, the whole entry or its first `HEAD_MAX` bytes, begin with.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<Head, BadValue> {
        let Some((&[kind, a, b, c, d, e, f], rest)) = bytes.split_first_chunk::<HEAD>() else {
            return bad("a value of a keyspace is shorter than its head");
        };
        let time = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]) << TIME_SHIFT;
        let mtime = i64::try_from(time).unwrap_or(i64::MAX);
        let inline = match kind {
            INLINE => true,
            IN_BLOCKS => false,
            _ => return Head::decode_expiring(mtime, kind, rest),
        };
        Ok(Head::lasting(mtime, inline))
    }

    #[cold]
    fn decode_expiring(mtime: i64, kind: u8, rest: &[u8]) -> Result<Head, BadValue> {
        const INLINE_UNTIL: u8 = INLINE + EXPIRING;
        const IN_BLOCKS_UNTIL: u8 = IN_BLOCKS + EXPIRING;
        let inline = match kind {
            INLINE_UNTIL => true,
            IN_BLOCKS_UNTIL => false,
            _ => return bad("a value of a keyspace is of an unknown kind"),
        };
        match rest.first_chunk().map(|at| i64::from_le_bytes(*at)) {
            Some(expires) if expires > NEVER => Ok(Head {
                mtime,
                inline,
                expires,
            }),
            _ => bad("a value of a keyspace expires at an impossible time"),
        }
    }

    /// Bytes of it.
    #[inline]
    pub fn len(&self) -> usize {
        match self.expires {
            NEVER => HEAD,
            _ => HEAD_MAX,
        }
    }

    /// Never: it says what follows.
    pub fn is_empty(&self) -> bool {
        false
    }
}

/// Whether an entry that begins with this byte is one of a value that expires: more than `HEAD`
/// bytes say what there is to know of it.
#[inline]
pub fn is_expiring(kind: u8) -> bool {
    kind > EXPIRING
}

/// What follows the head of an entry.
#[inline]
pub fn body(bytes: &[u8]) -> &[u8] {
    let head = match bytes.first() {
        Some(kind) if is_expiring(*kind) => HEAD_MAX,
        _ => HEAD,
    };
    bytes.get(head..).unwrap_or_default()
}

/// When the value of an entry expires; of one that cannot be read, `NEVER`.
#[inline]
pub fn expiry_of(bytes: &[u8]) -> i64 {
    match bytes.first() {
        Some(kind) if is_expiring(*kind) => Head::decode(bytes).map_or(NEVER, |head| head.expires),
        _ => NEVER,
    }
}

/// A run of data blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ValueRun {
    pub block: BlockAddr,
    pub len: u32,
    /// Epoch of the pool in which the blocks came into use; 0 in the journal.
    pub epoch: u32,
}

/// Where the blocks of a value are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InBlocks {
    /// Bytes of the value.
    pub len: u64,
    runs: Runs,
}

/// Runs of blocks. One, the usual case, takes no memory from the heap; then it is never `Many`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Runs {
    One([ValueRun; 1]),
    Many(Vec<ValueRun>),
}

impl Runs {
    /// Adds a run; false when there are too many.
    #[inline]
    fn push(&mut self, run: ValueRun) -> bool {
        match self {
            Runs::Many(runs) if runs.is_empty() => *self = Runs::One([run]),
            Runs::Many(runs) if runs.len() == RUNS_MAX => return false,
            Runs::Many(runs) => runs.push(run),
            Runs::One([first]) => *self = Runs::Many(vec![*first, run]),
        }
        true
    }
}

impl InBlocks {
    /// A value of `len` bytes without blocks yet.
    pub fn new(len: u64) -> InBlocks {
        let runs = Runs::Many(Vec::new());
        InBlocks { len, runs }
    }

    /// Adds a run behind those there; false when there are too many.
    pub fn push(&mut self, run: ValueRun) -> bool {
        if let Some(last) = self.runs_mut().last_mut()
            && last.block.end(last.len.into()) == run.block
            && last.epoch == run.epoch
            && last.len.checked_add(run.len).is_some()
        {
            last.len += run.len;
            return true;
        }
        self.runs.push(run)
    }

    /// The runs, in order.
    #[inline]
    pub fn runs(&self) -> &[ValueRun] {
        match &self.runs {
            Runs::One(one) => one,
            Runs::Many(runs) => runs,
        }
    }

    /// All blocks came into use in `epoch`.
    pub fn be_born_in(&mut self, epoch: u32) {
        self.runs_mut().iter_mut().for_each(|run| run.epoch = epoch);
    }

    #[inline]
    fn runs_mut(&mut self) -> &mut [ValueRun] {
        match &mut self.runs {
            Runs::One(one) => one,
            Runs::Many(runs) => runs,
        }
    }

    /// Writes length and runs to the start of `out`, which has room for them, as `IN_BLOCKS_MAX`
    /// bytes always have; how many bytes.
    pub fn encode(&self, out: &mut [u8]) -> usize {
        let total = 8 + RUN * self.runs().len();
        assert!(total <= out.len(), "no room for {total} bytes of runs");
        let (len, runs) = out[..total].split_at_mut(8);
        len.copy_from_slice(&self.len.to_le_bytes());
        for (place, run) in runs.chunks_exact_mut(RUN).zip(self.runs()) {
            place[..8].copy_from_slice(&run.block.word().to_le_bytes());
            place[8..12].copy_from_slice(&run.len.to_le_bytes());
            place[12..].copy_from_slice(&run.epoch.to_le_bytes());
        }
        total
    }

    /// What `encode` made: exactly `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<InBlocks, BadValue> {
        let mut r = Reading(bytes);
        let mut found = InBlocks::new(r.u64()?);
        let mut blocks = 0u64;
        while !r.0.is_empty() {
            let (block, len, epoch) = (r.u64()?, r.u32()?, r.u32()?);
            let block = BlockAddr::parse(block, len)?;
            let run = ValueRun { block, len, epoch };
            if len == 0 || !found.runs.push(run) {
                return bad("a value of a keyspace has impossible blocks");
            }
            blocks += u64::from(len);
        }
        match blocks == found.len.div_ceil(BLOCK) && blocks > 0 {
            true => Ok(found),
            false => bad("a value of a keyspace has another length than its blocks"),
        }
    }
}

/// The blocks of an encoded value; `None`: it is in its entry.
pub fn blocks_of(bytes: &[u8]) -> Result<Option<InBlocks>, BadValue> {
    match Head::decode(bytes)?.inline {
        true => Ok(None),
        false => InBlocks::decode(body(bytes)).map(Some),
    }
}

/// Bytes of the keyspace's number, before the key.
pub const KEYSPACE_LEN: usize = 8;

/// A key of the tree without allocation.
#[derive(Clone)]
pub struct TreeKey {
    bytes: [u8; TREE_KEY_MAX],
    len: usize,
}

/// No key of the tree is longer: that of the longest one in the index.
pub const TREE_KEY_MAX: usize = INDEX_HEAD + 8 + USER_KEY_MAX;
/// Bytes before a value's own key in its key of the index: the number of the index, and the time.
const INDEX_HEAD: usize = 16;

const _: () = assert!(TREE_KEY_MAX <= KEY_MAX);

impl TreeKey {
    /// The key of `key` in keyspace `ino`; one that is too long is cut.
    #[inline]
    pub fn new(ino: u64, key: &[u8]) -> TreeKey {
        let n = key.len().min(USER_KEY_MAX);
        let mut bytes = [0; TREE_KEY_MAX];
        bytes[..8].copy_from_slice(&ino.to_be_bytes());
        bytes[8..8 + n].copy_from_slice(&key[..n]);
        TreeKey { bytes, len: 8 + n }
    }

    /// The key in the index of what `tree_key` leads to, and which expires then.
    pub fn in_index(expires: i64, tree_key: &[u8]) -> TreeKey {
        const AT: usize = INDEX_HEAD;
        let n = tree_key.len().min(8 + USER_KEY_MAX);
        let mut bytes = [0; TREE_KEY_MAX];
        bytes[..8].copy_from_slice(&INDEX.to_be_bytes());
        bytes[8..AT].copy_from_slice(&expires.to_be_bytes());
        bytes[AT..AT + n].copy_from_slice(&tree_key[..n]);
        TreeKey { bytes, len: AT + n }
    }

    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The value of every entry of the index: an empty one, so that it is like any other entry.
pub fn in_index() -> HeadBytes {
    Head::lasting(0, true).encode()
}

/// Whether a key of the tree is one of the index.
#[inline]
pub fn is_in_index(key: &[u8]) -> bool {
    key.first_chunk() == Some(&INDEX.to_be_bytes())
}

/// When what a key of the index leads to expires, and its key in the tree.
pub fn parse_in_index(key: &[u8]) -> Result<(i64, &[u8]), BadValue> {
    let parts = key
        .strip_prefix(&INDEX.to_be_bytes())
        .and_then(<[u8]>::split_first_chunk::<8>);
    if let Some((expires, tree_key)) = parts
        && let expires @ 1.. = i64::from_be_bytes(*expires)
        && matches!(parse_key(tree_key), Ok((1.., _)))
    {
        return Ok((expires, tree_key));
    }
    bad("an entry of the index of expiry is impossible")
}

/// Keyspace and user's key of a tree key.
pub fn parse_key(key: &[u8]) -> Result<(u64, &[u8]), BadValue> {
    match key.split_first_chunk::<8>() {
        Some((ino, user)) if (1..=USER_KEY_MAX).contains(&user.len()) => {
            Ok((u64::from_be_bytes(*ino), user))
        }
        _ => bad("a key of a keyspace has an impossible length"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_come_back_with_the_precision_they_have() {
        for (mtime, inline) in [(0, true), (1_700_000_000_123_456_789, false), (-5, true)] {
            for expires in [NEVER, 1, 1_700_000_000_123_456_789, i64::MAX] {
                let head = Head {
                    mtime,
                    inline,
                    expires,
                };
                let bytes = head.encode();
                let back = Head::decode(&bytes).unwrap();
                assert_eq!((back.inline, back.expires), (inline, expires));
                assert_eq!((back.len(), expiry_of(&bytes)), (bytes.len(), expires));
                assert!((0..1 << TIME_SHIFT).contains(&(mtime.max(0) - back.mtime)));
                let entry = [&bytes[..], b"content"].concat();
                assert_eq!(body(&entry), b"content");
            }
        }
        assert!(Head::decode(&[1; 6]).is_err() && Head::decode(&[3; 7]).is_err());
        assert!(Head::decode(&[5; 15]).is_err() && Head::decode(&[0; 15]).is_err());
        assert!(Head::decode(&[3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
    }

    #[test]
    fn the_index_is_in_the_order_of_time() {
        let long = [0xff; USER_KEY_MAX];
        let mut last = TreeKey::new(INDEX, &[]).as_slice().to_vec();
        for expires in [1, 2, 255, 256, i64::MAX] {
            for (ino, key) in [(1, &b"a"[..]), (1, &long), (u64::MAX, b"\0")] {
                let tree_key = TreeKey::new(ino, key);
                let index = TreeKey::in_index(expires, tree_key.as_slice());
                let back = parse_in_index(index.as_slice()).unwrap();
                assert_eq!(back, (expires, tree_key.as_slice()));
                assert!(is_in_index(index.as_slice()) && !is_in_index(tree_key.as_slice()));
                assert!(last.as_slice() < index.as_slice());
                assert!(index.as_slice() < TreeKey::new(1, b"\0").as_slice());
                last = index.as_slice().to_vec();
            }
        }
        for bad in [&last[..16], &last[..24], &[0; 40], &[1; 40]] {
            assert!(parse_in_index(bad).is_err());
        }
        assert_eq!(blocks_of(&in_index()), Ok(None));
    }

    #[test]
    fn runs_join_and_come_back() {
        let mut value = InBlocks::new(9 * 4096 - 1);
        for (block, len) in [(5, 2), (7, 3), (100, 4)] {
            let block = BlockAddr::new(0, block);
            let epoch = 0;
            assert!(value.push(ValueRun { block, len, epoch }));
        }
        assert_eq!(value.runs().len(), 2);
        let mut bytes = [0; IN_BLOCKS_MAX];
        let n = value.encode(&mut bytes);
        assert_eq!(InBlocks::decode(&bytes[..n]), Ok(value));
        for cut in 0..n {
            assert!(InBlocks::decode(&bytes[..cut]).is_err());
        }
        bytes[0] ^= 1;
        bytes[1] ^= 0x80;
        assert!(InBlocks::decode(&bytes[..n]).is_err());
    }

    #[test]
    fn a_run_in_another_segment_is_refused_by_name() {
        for block in [BlockAddr::new(1, 5), BlockAddr::from_word(5 | 1 << 50)] {
            let (len, epoch) = (1, 0);
            let mut value = InBlocks::new(4096);
            assert!(value.push(ValueRun { block, len, epoch }));
            let mut bytes = [0; IN_BLOCKS_MAX];
            let n = value.encode(&mut bytes);
            let refused = InBlocks::decode(&bytes[..n]).unwrap_err();
            assert!(refused.what.starts_with("a block"), "{refused}");
        }
    }

    #[test]
    fn a_run_too_many_is_refused() {
        let mut value = InBlocks::new(1 << 20);
        for i in 0..RUNS_MAX as u64 {
            let (block, len, epoch) = (BlockAddr::new(0, 3 * i), 1, 0);
            assert!(value.push(ValueRun { block, len, epoch }));
        }
        let (block, len, epoch) = (BlockAddr::new(0, 1000), 1, 0);
        assert!(!value.push(ValueRun { block, len, epoch }));
    }
}
