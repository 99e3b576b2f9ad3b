//! Finding a value.
//!
//! Invariant: the result was read whole from one root, or from one change that is newer than it;
//! bytes that were reused meanwhile cause a retry. What has expired is not there, wherever it is
//! still found.

use crate::base::error::{Error, Result};
use crate::base::tree_key::with_key;
use crate::session::Session;
use crate::tables::value_index::{self, Between, Look, Out};
use alloc::vec::Vec;
use pmem::atomic::Ordering::Acquire;
use pool::Reader;
use pool::format::live::LiveRoot;
use pool::layout::VALUES;
use pool::layout::value::{
    HEAD, HEAD_MAX, Head, IN_BLOCKS_MAX, InBlocks, NEVER, is_expiring, is_over,
};

/// Roots that may pass under a reader before it gives up.
const TRIES_MAX: usize = 1000;
#[inline]
pub(crate) fn get(
    s: &Session,
    keyspace: u64,
    key: &[u8],
    out: &mut Out<'_>,
) -> Result<Option<u64>> {
    match get_any(s, keyspace, key, out)? {
        Some(_) if out.expires != NEVER && is_over(out.expires, s.moment()) => Ok(None),
        found => Ok(found),
    }
}

/// As `get`, but also what has expired and was not removed yet.
#[inline]
pub(crate) fn get_any(
    s: &Session,
    keyspace: u64,
    key: &[u8],
    out: &mut Out<'_>,
) -> Result<Option<u64>> {
    s.check()?;
    with_key(keyspace, key, |tree_key| {
        let reader = s.tree().reader();
        for _ in 0..TRIES_MAX {
            let root = reader.root(VALUES)?;
            if s.header().values_seq.load(Acquire) > root.applied {
                let between = Between {
                    applied: root.applied,
                    upto: u64::MAX,
                };
                match value_index::lookup(s, keyspace, key, between, out)? {
                    Look::Value(len) => return Ok(Some(len)),
                    Look::Erased => return Ok(None),
                    // What the index knew and passed over is in a newer root.
                    Look::Unknown if reader.seq()? == root.seq => {}
                    Look::Unknown | Look::Again | Look::Newer => continue,
                }
            }
            if let Some(found) = at_root(s, &reader, &root, tree_key, out)? {
                return Ok(found);
            }
        }
        Err(Error::Pool(pool::Error::Busy.errno()))
    })
}

/// All of a value, and when it expires.
pub(crate) fn whole(s: &Session, keyspace: u64, key: &[u8]) -> Result<Option<(Vec<u8>, i64)>> {
    let mut bytes = Vec::new();
    loop {
        let mut out = Out::copy(&mut bytes);
        let found = get(s, keyspace, key, &mut out)?;
        let expires = out.expires;
        let Some(len) = found else { return Ok(None) };
        let len = usize::try_from(len).map_err(|_| Error::NoMemory)?;
        if len <= bytes.len() {
            bytes.truncate(len);
            return Ok(Some((bytes, expires)));
        }
        let more = len - bytes.len();
        bytes.try_reserve_exact(more).map_err(|_| Error::NoMemory)?;
        bytes.resize(len, 0);
    }
}

/// When a value expires, which is not read.
pub(crate) fn expires(s: &Session, keyspace: u64, key: &[u8]) -> Result<Option<i64>> {
    let mut out = Out::locate(&mut []);
    let found = get(s, keyspace, key, &mut out)?;
    Ok(found.map(|_| out.expires))
}

/// The value below a root; `None` when the root is not intact any more.
pub(crate) fn at_root(
    s: &Session,
    reader: &Reader<'_>,
    root: &LiveRoot,
    tree_key: &[u8],
    out: &mut Out<'_>,
) -> Result<Option<Option<u64>>> {
    let found = look_once(s, reader, root, tree_key, out);
    match reader.still(root.seq)? {
        true => found.map(Some),
        false => Ok(None),
    }
}

fn look_once(
    s: &Session,
    reader: &Reader<'_>,
    root: &LiveRoot,
    tree_key: &[u8],
    out: &mut Out<'_>,
) -> Result<Option<u64>> {
    let mut head = [0; HEAD];
    let found = reader.get_split(VALUES, root, tree_key, &mut head, out.bytes)?;
    let Some(len) = found else { return Ok(None) };
    if is_expiring(head[0]) {
        return look_at_expiring(s, reader, root, tree_key, out);
    }
    let parsed = Head::decode(&head).map_err(pool::Error::from)?;
    (out.mtime, out.blocks, out.expires) = (parsed.mtime, None, NEVER);
    if parsed.inline {
        return Ok(Some(len.saturating_sub(HEAD) as u64));
    }
    in_blocks(s, (reader, root, tree_key), &mut head, len, out)
}

/// As `look_once`, of a value with a longer head.
#[cold]
fn look_at_expiring(
    s: &Session,
    reader: &Reader<'_>,
    root: &LiveRoot,
    tree_key: &[u8],
    out: &mut Out<'_>,
) -> Result<Option<u64>> {
    let mut head = [0; HEAD_MAX];
    let found = reader.get_split(VALUES, root, tree_key, &mut head, out.bytes)?;
    let Some(len) = found else { return Ok(None) };
    let parsed = Head::decode(&head).map_err(pool::Error::from)?;
    (out.mtime, out.blocks, out.expires) = (parsed.mtime, None, parsed.expires);
    if parsed.inline {
        return Ok(Some(len.saturating_sub(HEAD_MAX) as u64));
    }
    in_blocks(s, (reader, root, tree_key), &mut head, len, out)
}

/// A value in blocks, whose entry has `len` bytes, the first of which are `head`; the others are in
/// `out`, if there is room for them.
fn in_blocks(
    s: &Session,
    at: (&Reader<'_>, &LiveRoot, &[u8]),
    head: &mut [u8],
    len: usize,
    out: &mut Out<'_>,
) -> Result<Option<u64>> {
    let blocks = match out.bytes.get(..len.saturating_sub(head.len())) {
        Some(runs) => InBlocks::decode(runs),
        None => InBlocks::decode(read_runs(at, head, &mut [0; IN_BLOCKS_MAX])?),
    };
    let blocks = blocks.map_err(pool::Error::from)?;
    out.take(s, blocks).map(Some)
}

/// Where the blocks of a value are, for a caller with room for less than that.
#[cold]
fn read_runs<'r>(
    (reader, root, tree_key): (&Reader<'_>, &LiveRoot, &[u8]),
    head: &mut [u8],
    runs: &'r mut [u8; IN_BLOCKS_MAX],
) -> Result<&'r [u8]> {
    let found = reader.get_split(VALUES, root, tree_key, head, runs)?;
    let len = found.unwrap_or(0).saturating_sub(head.len());
    Ok(&runs[..len.min(IN_BLOCKS_MAX)])
}
