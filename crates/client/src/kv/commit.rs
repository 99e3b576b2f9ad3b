//! Changing values.
//!
//! Invariants:
//!  * The changes of one `Changes` are one journal record, so all or none of them happen.
//!  * The buckets of all keys are held from before the record has its number until it is published,
//!    so a key's changes are visible in the order of their numbers.
//!  * Changes that the index cannot hold (ranges, more changes than a record or a bucket has room
//!    for) are visible when the trees have them, and their commit waits for that.

use super::bill::{Bill, paying};
use super::{Present, check_key, expiry, slow_path};
use crate::base::clock;
use crate::base::error::{Error, Result};
use crate::base::types::Caller;
use crate::journal;
use crate::ops::client::Client;
use crate::session::lock;
use crate::session::{BLOCK, Session};
use crate::tables::value_index;
use crate::values::{Keyspace, VALUE_MAX, blocks, get};
use alloc::vec::Vec;
use pmem::atomic::Ordering::*;
use pool::checksum::crc32c;
use pool::journal::{BATCH_RECORD_MAX, Change, OP_ALIGN, OP_HEADER, OPS_AT, Op, Ops, Record};
use pool::layout::value::{IN_BLOCKS_MAX, InBlocks, NEVER, USER_KEY_MAX, fits_entry};
use pool::session::TREES_ROOMY;

/// Part of a lane that one record may take.
const LANE_PART: u64 = 4;
/// Part of the trees that the changes of one commit may take.
const TREES_PART: u64 = 16;
/// So few changes may be published before the trees have them whatever room is left.
const FEW: usize = 8;
/// More changes than this part of the pages of the trees may find no room at any time.
const FEW_PART: u64 = 16;
/// Bytes of changes that the service reads from blocks.
const SPILLED_MAX: u64 = 1 << 30;
const ENOSPC: u32 = 28;

/// Of the keys of changes, in order. One, the usual case, takes no memory from the heap.
#[derive(Default)]
struct Hashes {
    one: Option<u64>,
    more: Vec<u64>,
}

impl Hashes {
    fn push(&mut self, hash: u64) {
        match self.one {
            None if self.more.is_empty() => self.one = Some(hash),
            _ => {
                self.more.extend(self.one.take());
                self.more.push(hash);
            }
        }
    }

    fn as_slice(&self) -> &[u64] {
        match &self.one {
            Some(one) => core::slice::from_ref(one),
            None => &self.more,
        }
    }
}

/// Changes that will be made together.
#[derive(Default)]
pub struct Changes {
    ops: Vec<u8>,
    hashes: Hashes,
    blocks: Vec<InBlocks>,
    count: usize,
    ranges: bool,
    /// The keyspaces, each once.
    first: Option<Keyspace>,
    more: Vec<Keyspace>,
}

impl Changes {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Makes them such as are visible only when the trees have them, by a range without keys.
    fn make_unseen(&mut self) {
        let Some(Ok(first)) = Ops::new(&self.ops).next().filter(|_| !self.ranges) else {
            return;
        };
        let (keyspace, key) = (first.keyspace, &[0][..]);
        let change = Change::EraseRange(key);
        let op = Op {
            keyspace,
            key,
            change,
        };
        op.push(&mut self.ops);
        self.ranges = true;
    }

    /// No value that is put is longer: a longer one is a file.
    pub const VALUE_MAX: u64 = VALUE_MAX;

    fn note(&mut self, k: Keyspace) {
        match self.first {
            None => self.first = Some(k),
            Some(first) if first == k || self.more.contains(&k) => {}
            Some(_) => self.more.push(k),
        }
    }

    /// Bytes of memory that they take; values in blocks take none.
    pub fn held(&self) -> usize {
        self.ops.len()
    }

    /// The keyspaces that they are about.
    pub fn keyspaces(&self) -> impl Iterator<Item = Keyspace> {
        self.first.into_iter().chain(self.more.iter().copied())
    }

    pub(super) fn ops(&self) -> &[u8] {
        &self.ops
    }

    /// The hash of a key that is about to be changed.
    #[inline]
    fn expect(s: &Session, k: Keyspace, key: &[u8]) -> u64 {
        let hash = value_index::hash(s, k.ino(), key);
        s.expect_value_bucket(hash);
        hash
    }

    fn push(&mut self, hash: u64, op: &Op<'_>) {
        self.hashes.push(hash);
        op.push(&mut self.ops);
        self.count += 1;
    }

    /// `key` is to have `value`. A value that is large is written now, to blocks of its own.
    pub fn put(&mut self, c: &Client, k: Keyspace, key: &[u8], value: &[u8]) -> Result<()> {
        self.put_until(c, (k, key), value, NEVER)
    }

    /// As `put`; the value expires at `expires`, unless that is `NEVER`.
    #[inline]
    pub fn put_until(
        &mut self,
        c: &Client,
        (k, key): (Keyspace, &[u8]),
        value: &[u8],
        expires: i64,
    ) -> Result<()> {
        check_key(key)?;
        if value.len() as u64 > Changes::VALUE_MAX {
            return Err(Error::FileTooLarge);
        }
        self.note(k);
        let (s, keyspace) = (c.session(), k.ino());
        let hash = Changes::expect(s, k, key);
        let op = |change| Op {
            keyspace,
            key,
            change,
        };
        if expires != NEVER {
            s.note_expiring();
        }
        if fits_entry(key.len(), value.len()) {
            self.push(hash, &op(Change::put(value, expires)));
            return Ok(());
        }
        s.check()?;
        let blocks = expiry::making_room(s, || blocks::write(s, value))?;
        if let Err(e) = blocks::count(s, &blocks) {
            blocks::give_back(s, &blocks);
            return Err(e);
        }
        let mut runs = [0; IN_BLOCKS_MAX];
        let len = blocks.encode(&mut runs);
        self.blocks.push(blocks);
        self.push(hash, &op(Change::put_blocks(&runs[..len], expires)));
        Ok(())
    }

    /// `key`, which may be missing, is to go.
    pub fn erase(&mut self, c: &Client, k: Keyspace, key: &[u8]) -> Result<()> {
        check_key(key)?;
        self.note(k);
        let (keyspace, change) = (k.ino(), Change::Erase);
        let op = Op {
            keyspace,
            key,
            change,
        };
        self.push(Changes::expect(c.session(), k, key), &op);
        Ok(())
    }

    /// All keys from `from` on are to go: to the end, or up to, not including, `to`.
    pub fn erase_range(&mut self, k: Keyspace, from: &[u8], to: Option<&[u8]>) -> Result<()> {
        if from.len().max(to.map_or(0, <[u8]>::len)) > USER_KEY_MAX {
            return Err(Error::NameTooLong);
        }
        if to.is_some_and(|to| to <= from) {
            return Ok(());
        }
        let change = Change::EraseRange(to.unwrap_or_default());
        let op = Op {
            keyspace: k.ino(),
            key: from,
            change,
        };
        self.note(k);
        op.push(&mut self.ops);
        self.count += 1;
        self.ranges = true;
        Ok(())
    }
}

pub(super) fn commit(s: &Session, mut changes: Changes) -> Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let mut work = |changes: &mut Changes, bill: Option<&Bill>| {
        let done = write(s, changes, bill);
        done.map(|()| true)
    };
    match expiry::making_room(s, || paying(s, &mut changes, &mut work)) {
        // The record may be there: its blocks are the service's to judge.
        Err(e @ (Error::ServiceGone | Error::Poisoned(_))) => Err(e),
        Err(e) => {
            give_up(s, &changes);
            Err(e)
        }
        Ok(_) => Ok(()),
    }
}

pub(super) fn give_up(s: &Session, changes: &Changes) {
    changes.blocks.iter().for_each(|b| blocks::give_back(s, b));
}

fn write(s: &Session, changes: &mut Changes, bill: Option<&Bill>) -> Result<()> {
    // Before any lock is taken.
    let time = clock::now();
    if !is_seen(s, changes)? {
        return slow_path::write(s, changes, (time, bill));
    }
    let Some(locked) = value_index::lock_all(s, changes.hashes.as_slice())? else {
        return slow_path::write(s, changes, (time, bill));
    };
    if !slow_path::is_plain(s, changes)? {
        drop(locked);
        return slow_path::write(s, changes, (time, bill));
    }
    value_index::mark_alone(s, &mut changes.ops, changes.hashes.as_slice());
    let ops = &changes.ops;
    record(s, ops, time, bill.map(|bill| (bill, &ops[..])))
}

/// Makes changes whose keys' buckets are held, and takes what is on the bill of those of them that
/// it is given with.
pub(super) fn record(
    s: &Session,
    ops: &[u8],
    time: i64,
    bill: Option<(&Bill, &[u8])>,
) -> Result<()> {
    if let Some((bill, puts)) = bill {
        bill.take_replacing(s, puts)?;
    }
    let done = journal::commit(s, &Record::Batch { time, ops }).map(drop);
    if let Some((bill, _)) = bill {
        bill.settle(s, &done.clone().map(|()| true));
    }
    done
}

/// What a change depends on.
pub(super) struct If<'a> {
    /// Whether the value itself is looked at.
    pub reads: bool,
    /// Whether the change is to be made, of a key that has this.
    pub holds: &'a mut dyn FnMut(Option<Present>) -> bool,
}

/// Makes a change of one key if what it depends on is so; nobody changes the key meanwhile. Else
/// what the change has taken is given back.
pub(super) fn commit_if(
    s: &Session,
    who: Option<&Caller>,
    mut changes: Changes,
    only: If<'_>,
) -> Result<()> {
    let mut work = |changes: &mut Changes, bill: Option<&Bill>| {
        let mut held = false;
        let mut note = |found| {
            held = (only.holds)(found);
            held
        };
        let mut only = If {
            reads: only.reads,
            holds: &mut note,
        };
        write_if(s, changes, (who, bill), &mut only)?;
        Ok(held)
    };
    let done = expiry::making_room(s, || paying(s, &mut changes, &mut work));
    match done {
        Err(Error::ServiceGone | Error::Poisoned(_)) | Ok(true) => {}
        _ => give_up(s, &changes),
    }
    done.map(drop)
}

fn write_if(
    s: &Session,
    changes: &mut Changes,
    (who, bill): (Option<&Caller>, Option<&Bill>),
    only: &mut If<'_>,
) -> Result<()> {
    let time = clock::now();
    // One key is always seen; this waits where the trees have little room.
    is_seen(s, changes)?;
    s.check_writable()?;
    let locked = value_index::lock_all(s, changes.hashes.as_slice())?;
    if !slow_path::is_plain(s, changes)? {
        drop(locked);
        return slow_path::write_if(s, changes, (who, time, bill), only);
    }
    locked_if(s, changes, (time, bill), only)
}

/// As `commit_if` for a key that is no file and does not become one.
pub(super) fn alone_if(
    s: &Session,
    changes: &mut Changes,
    how: (i64, Option<&Bill>),
    only: &mut If<'_>,
) -> Result<()> {
    let _locked = value_index::lock_all(s, changes.hashes.as_slice())?;
    locked_if(s, changes, how, only)
}

/// The bucket of the key is locked.
fn locked_if(
    s: &Session,
    changes: &mut Changes,
    (time, bill): (i64, Option<&Bill>),
    only: &mut If<'_>,
) -> Result<()> {
    let Some(Ok(op)) = Ops::new(&changes.ops).next() else {
        return Err(Error::Invalid);
    };
    let found = match only.reads {
        true => get::whole(s, op.keyspace, op.key)?,
        false => get::expires(s, op.keyspace, op.key)?.map(|expires| (Vec::new(), expires)),
    };
    if !(only.holds)(found.map(|(value, expires)| Present { value, expires })) {
        return Ok(());
    }
    value_index::mark_alone(s, &mut changes.ops, changes.hashes.as_slice());
    let ops = &changes.ops;
    record(s, ops, time, bill.map(|bill| (bill, &ops[..])))
}

/// Whether a record may have changes of this length.
fn fits(s: &Session, ops: usize) -> bool {
    let longest = (s.lane_len() / LANE_PART).min(BATCH_RECORD_MAX as u64);
    // With the change that `make_unseen` may add.
    (OPS_AT + ops + OP_HEADER + OP_ALIGN) as u64 <= longest
}

/// Whether the changes are such as are visible before the trees have them.
pub(super) fn is_seen(s: &Session, changes: &Changes) -> Result<bool> {
    if !fits(s, changes.ops.len()) {
        return Ok(false);
    }
    let roomy = s.header().trees_full.load(Relaxed) == TREES_ROOMY;
    if !roomy {
        journal::keep_near(s)?;
    }
    let pages = s.tree().segment_len() / BLOCK;
    let few = changes.count <= FEW || roomy && (changes.count as u64) < pages / FEW_PART;
    Ok(few && !changes.ranges)
}

/// Makes the changes where nobody sees them before the trees have them.
pub(super) fn unseen(s: &Session, changes: &mut Changes, time: i64) -> Result<()> {
    if !fits(s, changes.ops.len()) {
        return spill(s, changes, time);
    }
    changes.make_unseen();
    let ops = &changes.ops;
    commit_unseen(s, &Record::Batch { time, ops })
}

/// Changes that the service may still refuse. Nothing is published: they are visible when the
/// trees have them, and this waits for that. One at a time, so that the answer is ours.
fn commit_unseen(s: &Session, record: &Record<'_>) -> Result<()> {
    let h = s.header();
    let _one = lock::acquire(s, &h.unseen_lock)?;
    let seq = journal::commit(s, record)?;
    if h.refused_seq.load(Acquire) != seq {
        return Ok(());
    }
    Err(match h.refused_errno.load(Relaxed) {
        ENOSPC => Error::NoSpace,
        _ => Error::NotFound,
    })
}

/// Changes that the journal or the index has no room for, in blocks.
fn spill(s: &Session, changes: &Changes, time: i64) -> Result<()> {
    let ops = &changes.ops;
    if ops.len() as u64 > (s.tree().segment_len() / TREES_PART).min(SPILLED_MAX) {
        return Err(Error::TooBig);
    }
    let blocks = blocks::write(s, ops)?;
    let mut runs = [0; IN_BLOCKS_MAX];
    let n = blocks.encode(&mut runs);
    let record = Record::Spilled {
        time,
        len: ops.len() as u64,
        sum: crc32c(ops),
        runs: &runs[..n],
    };
    let done = commit_unseen(s, &record);
    if !matches!(done, Err(Error::ServiceGone | Error::Poisoned(_))) {
        blocks::give_back(s, &blocks);
    }
    done
}
