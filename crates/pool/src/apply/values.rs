//! Records about keyspaces.
//!
//! Invariants:
//!  * Changes wait in a message buffer and reach the tree sorted by key, the last one of each key
//!    only. Nothing that could depend on them is applied before they reached it, and `settle`
//!    leaves none.
//!  * A change is validated completely when it enters the buffer. Its blocks are then taken from
//!    the grants; the blocks of a value that it replaces are freed when it leaves the buffer.
//!  * The buffer's content never needs more pages than were left when it came in.
//!  * A value that expires enters the tree and leaves it together with its entry in the index;
//!    only what a range leaves to be freed later leaves its entries behind.

use super::{
    Applier, Failure, Grants, InodeBuf, ROOM_TO_SHRINK, Reject, Result, Store, Why, ensure, radix,
};
use crate::journal::{Change, Naming, OP_HEADER, Op, Ops, Promote};
use crate::layout::inode::{FIXED, KEYSPACE};
use crate::layout::value::{
    self, ENTRY_MAX, Head, InBlocks, KEYSPACE_LEN, NEVER, RUN, TREE_KEY_MAX, TreeKey, USER_KEY_MAX,
    ValueRun,
};
use crate::layout::{BadValue, INLINE_MAX, VALUES};
use crate::quota::Taken;
use crate::tree::VALUE_MAX;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::mem::take;
use holdfast_pmem::cpu::prefetch;

/// What to do with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Put,
    PutBlocks,
    Erase,
}

/// A change that waits. Its key and then its value are in the buffer's bytes, as the tree will
/// have them.
#[derive(Clone, Copy)]
struct Message {
    /// Keyspace, and the first bytes of the key: what decides most comparisons.
    lead: u128,
    at: u32,
    key_len: u16,
    value_len: u16,
    kind: Kind,
}

impl Message {
    fn keyspace(&self) -> u64 {
        (self.lead >> 64) as u64
    }
}

/// The changes that wait.
#[derive(Default)]
pub struct Messages {
    bytes: Vec<u8>,
    list: Vec<Message>,
    /// Room for sorting.
    spare: Vec<Message>,
    /// Keyspaces and when they were changed.
    times: Vec<(u64, i64)>,
    size: Size,
    /// Known to be a keyspace: what was asked last.
    keyspace: Option<u64>,
    /// Whether values may expire, once that was looked at: then a change may also change the index.
    indexed: Option<bool>,
}

/// What a value that was replaced or erased leaves to be done.
#[derive(Default)]
struct Left {
    blocks: Option<InBlocks>,
    expires: i64,
    /// What it counted for, if all values are shown.
    taken: Taken,
}

impl Left {
    fn by(key: &[u8], bytes: &[u8]) -> core::result::Result<Left, BadValue> {
        let (blocks, expires) = (value::blocks_of(bytes)?, value::expiry_of(bytes));
        let key_len = key.len().saturating_sub(KEYSPACE_LEN);
        let taken = Taken::by_value(key_len, bytes, blocks.as_ref());
        Ok(Left {
            blocks,
            expires,
            taken,
        })
    }
}

/// How far the buffer was filled.
struct Mark {
    bytes: usize,
    changes: usize,
    keyspaces: usize,
    newest: i64,
    size: Size,
}

/// Bytes that may wait, but for those of one record.
const WAITING_MAX: usize = 1 << 31;
/// How many changes ahead a change is loaded, which sorting left in another place than those before
/// it; then the leaf of its key, and then what is looked at in it.
const AHEAD_CHANGE: usize = 16;
const AHEAD_LEAF: usize = 8;
const AHEAD_ENTRY: usize = 4;

/// Bytes of values that need a page of their own, at the worst filling of nodes.
const BYTES_PER_PAGE: usize = 1024;
/// Levels of nodes above the leaves that a change copies, at most; and the fewest nodes that one
/// node of them stands for, on average.
const LEVELS: u64 = 4;
const FANOUT: u64 = 16;

/// What a list of changes may need.
#[derive(Clone, Copy, Debug, Default)]
pub struct Size {
    changes: u64,
    puts: u64,
    bytes: usize,
}

impl Size {
    /// How many changes they are.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Of the changes of a record; of what is malformed, any.
    pub(super) fn of(ops: &[u8]) -> Size {
        Size::of_part(ops, 0)
    }

    /// The same of a part of them, behind others of `before` bytes.
    pub(super) fn of_part(ops: &[u8], before: u64) -> Size {
        let mut size = Size::default();
        Ops::part(ops, before)
            .flatten()
            .for_each(|op| size.add(&op));
        size
    }

    /// Of the changes of a record that has `len` bytes of them: at least what they may need.
    pub(super) fn at_most(len: usize) -> Size {
        let ops = len / OP_HEADER;
        let changes = (4 * ops + len / RUN) as u64;
        Size {
            changes,
            puts: changes,
            // Twice the keys: where one is in the index, too.
            bytes: 2 * len + ops * (value::HEAD_MAX + FIXED + INLINE_MAX),
        }
    }

    /// The same where each change may also take a value's entry out of the index.
    pub(super) fn indexed(self) -> Size {
        Size {
            changes: 2 * self.changes,
            ..self
        }
    }

    fn add(&mut self, op: &Op<'_>) {
        let puts = match op.change {
            Change::Put(value) | Change::PutBlocks(value) => {
                self.bytes += op.key.len() + value.len() + value::HEAD;
                1
            }
            Change::PutUntil(_, value) | Change::PutBlocksUntil(_, value) => {
                // And into the index.
                self.changes += 1;
                self.bytes += op.key.len() + value.len() + value::HEAD_MAX;
                self.bytes += TREE_KEY_MAX - USER_KEY_MAX + op.key.len() + value::HEAD;
                2
            }
            Change::Promote(fields) | Change::Name(fields) => {
                // Of names, inodes, extents and orphans.
                self.changes += 3 + (fields.len() / RUN) as u64;
                if !op.change.is_keyed() {
                    self.changes += 1;
                    return;
                }
                self.bytes += op.key.len() + fields.len() + FIXED + INLINE_MAX;
                3 + (fields.len() / RUN) as u64
            }
            Change::Erase | Change::EraseRange(_) => 0,
        };
        self.changes += 1;
        self.puts += puts;
    }

    /// Of changes of a record that is applied in parts: so far, and `bytes` behind `before` bytes
    /// of others.
    pub fn and_part(self, bytes: &[u8], before: u64) -> Size {
        self.and(Size::of_part(bytes, before))
    }

    /// Together with others.
    pub(super) fn and(self, other: Size) -> Size {
        Size {
            changes: self.changes + other.changes,
            puts: self.puts + other.puts,
            bytes: self.bytes + other.bytes,
        }
    }

    /// Whether something is put.
    pub(super) fn adds(self) -> bool {
        self.puts > 0
    }

    /// Pages that bringing them into trees of `filled` pages may take: each change copies a leaf,
    /// each put may split one, and what is above the leaves is copied.
    pub(super) fn pages(self, filled: u64) -> u64 {
        let above = (LEVELS * self.changes).min(filled / FANOUT + LEVELS);
        let new = self.bytes / BYTES_PER_PAGE;
        self.changes.min(filled) + self.puts.min(filled) + above + new as u64
    }
}

impl Messages {
    /// Changes that wait.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// What bringing them into the tree may take.
    pub(super) fn size(&self) -> Size {
        self.size
    }

    /// What was known may have changed.
    pub(super) fn forget_keyspace(&mut self) {
        self.keyspace = None;
    }

    /// Whether no other record's changes should join them.
    fn is_full(&self) -> bool {
        self.bytes.len() >= WAITING_MAX
    }

    /// What waits now, for `go_back`.
    fn mark(&self) -> Mark {
        Mark {
            bytes: self.bytes.len(),
            changes: self.list.len(),
            keyspaces: self.times.len(),
            newest: self.times.last().map_or(0, |(_, newest)| *newest),
            size: self.size,
        }
    }

    /// What was added since then never was.
    fn go_back(&mut self, mark: Mark) {
        self.bytes.truncate(mark.bytes);
        self.list.truncate(mark.changes);
        self.times.truncate(mark.keyspaces);
        if let Some((_, newest)) = self.times.last_mut() {
            *newest = mark.newest;
        }
        self.size = mark.size;
    }

    /// Adds a change; `blocks` are those that it brings.
    fn push(&mut self, op: &Op<'_>, blocks: Option<&InBlocks>, time: i64) {
        self.size.add(op);
        if op.change.expires() != NEVER {
            self.indexed = Some(true);
        }
        match self.times.last_mut() {
            Some((ino, newest)) if *ino == op.keyspace => *newest = time.max(*newest),
            _ => self.times.push((op.keyspace, time)),
        }
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&op.keyspace.to_be_bytes());
        self.bytes.extend_from_slice(op.key);
        let value_at = self.bytes.len();
        let head = |inline| Head {
            mtime: time,
            inline,
            expires: op.change.expires(),
        };
        let kind = match op.change {
            Change::Put(value) | Change::PutUntil(_, value) => {
                self.bytes.extend_from_slice(&head(true).encode());
                self.bytes.extend_from_slice(value);
                Kind::Put
            }
            Change::PutBlocks(runs) | Change::PutBlocksUntil(_, runs) => {
                self.bytes.extend_from_slice(&head(false).encode());
                let at = self.bytes.len();
                self.bytes.extend_from_slice(runs);
                if let Some(blocks) = blocks {
                    blocks.encode(&mut self.bytes[at..]);
                }
                Kind::PutBlocks
            }
            _ => Kind::Erase,
        };
        self.list.push(Message {
            lead: u128::from(op.keyspace) << 64 | u128::from(lead_of(op.key)),
            at: at as u32,
            key_len: (value_at - at) as u16,
            value_len: (self.bytes.len() - value_at) as u16,
            kind,
        });
    }

    /// The tree's key.
    fn key(&self, m: &Message) -> &[u8] {
        let at = m.at as usize;
        let end = at + usize::from(m.key_len);
        &self.bytes[at..end]
    }

    /// The tree's value.
    fn value(&self, m: &Message) -> &[u8] {
        let at = m.at as usize + usize::from(m.key_len);
        let end = at + usize::from(m.value_len);
        &self.bytes[at..end]
    }

    fn key_and_value(&self, m: &Message) -> &[u8] {
        let at = m.at as usize;
        let end = at + usize::from(m.key_len) + usize::from(m.value_len);
        &self.bytes[at..end]
    }

    fn clear(&mut self) {
        self.list.clear();
        self.bytes.clear();
        self.times.clear();
        self.size = Size::default();
    }

    fn compare(&self, a: &Message, b: &Message) -> Ordering {
        a.lead
            .cmp(&b.lead)
            .then_with(|| self.key(a).cmp(self.key(b)))
    }

    /// By key, and those of one key in the order in which they came.
    fn sort(&mut self) {
        let (mut list, mut spare) = (take(&mut self.list), take(&mut self.spare));
        let order = |a: &Message, b: &Message| self.compare(a, b).then(a.at.cmp(&b.at));
        radix::sort(&mut list, &mut spare, |m| m.lead, order);
        (self.list, self.spare) = (list, spare);
    }
}

fn lead_of(key: &[u8]) -> u64 {
    let mut eight = [0; 8];
    let n = key.len().min(8);
    eight[..n].copy_from_slice(&key[..n]);
    u64::from_be_bytes(eight)
}

/// No block is in two of the runs.
fn ensure_apart(runs: &mut [ValueRun]) -> core::result::Result<(), Reject> {
    runs.sort_unstable_by_key(|run| run.block);
    let apart = |two: &[ValueRun]| two[0].block.end(two[0].len.into()) <= two[1].block;
    match runs.windows(2).all(apart) {
        true => Ok(()),
        false => Err(Reject::new(0, Why::BlocksInUse)),
    }
}

/// Whether a change was refused because its keyspace was removed.
fn is_gone(reject: &Reject, op: &Op<'_>) -> bool {
    let removed = matches!(reject.why, Why::NoObject | Why::NotADirectory);
    removed && reject.ino == op.keyspace
}

impl<S: Store, G: Grants> Applier<'_, S, G> {
    /// The directory becomes a keyspace.
    pub(super) fn make_keyspace(&mut self, ino: u64, time: i64) -> Result<(), S> {
        self.directory(ino, &mut InodeBuf::default())?;
        self.update(ino, |dir| {
            dir.flags |= KEYSPACE;
            dir.ctime = time;
        })
    }

    /// Takes the changes of a record into the buffer. `spilled`: they were not in the record.
    pub(super) fn batch(&mut self, bytes: &[u8], time: i64, spilled: bool) -> Result<(), S> {
        if self.carry.messages.is_full() {
            self.settle_values()?;
        }
        let mut ops = Ops::new(bytes);
        match (ops.next(), ops.next()) {
            (Some(Ok(op)), None) if !spilled => self.single(&op, time),
            _ => self.several(bytes, time, spilled),
        }
    }

    fn several(&mut self, bytes: &[u8], time: i64, spilled: bool) -> Result<(), S> {
        let mark = self.carry.messages.mark();
        let done = self.values_only(bytes, time);
        if !matches!(done, Ok(true)) {
            self.carry.messages.go_back(mark);
        }
        match done? {
            true => Ok(()),
            false => self.of_all_kinds(bytes, time, spilled),
        }
    }

    /// Changes that do nothing but put values and erase them, what most records are: they enter the
    /// buffer while they are checked. False, or a failure: what is in the buffer means nothing.
    fn values_only(&mut self, bytes: &[u8], time: i64) -> Result<bool, S> {
        let (mut runs, epoch) = (Vec::new(), self.store.epoch());
        for op in Ops::new(bytes) {
            let op = op.map_err(|_| Reject::new(0, Why::Changes))?;
            if matches!(op.change, Change::EraseRange(_)) || op.change.is_about_files() {
                return Ok(false);
            }
            let mut blocks = match self.check_op(&op) {
                // Its handles outlive a keyspace; nobody can see what they put into it.
                Err(Failure::Rejected(r)) if is_gone(&r, &op) => continue,
                checked => checked?,
            };
            if let Some(blocks) = &mut blocks {
                runs.extend_from_slice(blocks.runs());
                blocks.be_born_in(epoch);
            }
            self.carry.messages.push(&op, blocks.as_ref(), time);
        }
        ensure_apart(&mut runs)?;
        self.take_runs(&runs)?;
        Ok(true)
    }

    fn of_all_kinds(&mut self, bytes: &[u8], time: i64, spilled: bool) -> Result<(), S> {
        let (mut runs, mut gone, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for op in Ops::new(bytes) {
            let op = op.map_err(|_| Reject::new(0, Why::Changes))?;
            ensure(!spilled || !op.change.is_about_files(), 0, Why::Changes)?;
            if op.change.is_about_files() {
                names.push((op.keyspace, op.key));
            }
            match self.check_op(&op) {
                Ok(Some(blocks)) => runs.extend_from_slice(blocks.runs()),
                Ok(None) => {}
                // Its handles outlive a keyspace; nobody can see what they put into it.
                Err(Failure::Rejected(r)) if is_gone(&r, &op) => gone.push(op.keyspace),
                Err(failure) => return Err(failure),
            }
        }
        names.sort_unstable();
        ensure(
            names.windows(2).all(|two| two[0] != two[1]),
            0,
            Why::Changes,
        )?;
        ensure_apart(&mut runs)?;
        gone.sort_unstable();
        gone.dedup();
        for op in Ops::new(bytes).flatten() {
            if gone.binary_search(&op.keyspace).is_err() {
                let blocks = match op.change {
                    Change::PutBlocks(runs) | Change::PutBlocksUntil(_, runs) => {
                        Some(InBlocks::decode(runs)?)
                    }
                    _ => None,
                };
                self.make(&op, blocks, time)?;
            }
        }
        Ok(())
    }

    /// Makes changes of a record that is applied in parts, which are not in the journal: `bytes`,
    /// behind `before` bytes of others. A failure leaves some of them made: everything that the
    /// record changed is to be dropped then.
    pub fn part(&mut self, bytes: &[u8], before: u64, time: i64) -> Result<(), S> {
        for op in Ops::part(bytes, before) {
            let op = op.map_err(|_| Reject::new(0, Why::Changes))?;
            ensure(!op.change.is_about_files(), 0, Why::Changes)?;
            self.single(&op, time)?;
        }
        self.settle_values()
    }

    /// A change that is the only one of its record.
    fn single(&mut self, op: &Op<'_>, time: i64) -> Result<(), S> {
        match op.change {
            Change::Promote(fields) => {
                self.check_keyspace(op.keyspace)?;
                let fields = Promote::decode(fields);
                let fields = fields.ok_or(Reject::new(op.keyspace, Why::Changes))?;
                return self.promote(op.keyspace, op.key, &fields);
            }
            Change::Name(_) if op.change.is_keyed() => {
                self.check_keyspace(op.keyspace)?;
                return self.name_file(op, time);
            }
            _ => {}
        }
        match self.check_op(op) {
            Err(Failure::Rejected(r)) if is_gone(&r, op) => Ok(()),
            Err(failure) => Err(failure),
            Ok(blocks) => {
                if let Some(blocks) = blocks.as_ref().filter(|blocks| blocks.runs().len() > 1) {
                    ensure_apart(&mut blocks.runs().to_vec())?;
                }
                self.make(op, blocks, time)
            }
        }
    }

    /// A change that was checked, which brings these blocks.
    fn make(&mut self, op: &Op<'_>, blocks: Option<InBlocks>, time: i64) -> Result<(), S> {
        match op.change {
            Change::EraseRange(to) => {
                self.settle_values()?;
                self.erase_values(op.keyspace, op.key, to)
            }
            Change::Name(fields) => {
                if let Some(n) = Naming::decode(fields) {
                    self.unlink(op.keyspace, n.replaced, n.flags, time, op.key)?;
                    self.carry.messages.forget_keyspace();
                }
                Ok(())
            }
            _ => {
                let blocks = blocks.map(|blocks| self.take_blocks(blocks)).transpose()?;
                self.carry.messages.push(op, blocks.as_ref(), time);
                Ok(())
            }
        }
    }

    fn check_keyspace(&mut self, ino: u64) -> Result<(), S> {
        if self.carry.messages.keyspace != Some(ino) {
            let mut buf = InodeBuf::default();
            let dir = self.directory(ino, &mut buf)?;
            ensure(dir.flags & KEYSPACE != 0, ino, Why::NotAKeyspace)?;
            self.carry.messages.keyspace = Some(ino);
        }
        Ok(())
    }

    /// The value of `op`'s key goes, if it has one.
    pub(super) fn displace_value(&mut self, op: &Op<'_>, time: i64) -> Result<(), S> {
        let change = Change::Erase;
        self.carry.messages.push(&Op { change, ..*op }, None, time);
        Ok(())
    }

    /// The blocks where a record's changes are: they must be the session's own, and stay so.
    pub(super) fn check_spilled(&self, runs: &[u8], len: u64) -> Result<InBlocks, S> {
        let wrong = Reject::new(0, Why::Changes);
        let found = InBlocks::decode(runs).map_err(|_| wrong)?;
        ensure(found.len == len, 0, Why::Changes)?;
        for run in found.runs() {
            let granted = self.grants.holds(run.block, u64::from(run.len));
            ensure(granted, 0, Why::NotGranted)?;
        }
        Ok(found)
    }

    /// Checks a change; the blocks that it brings.
    fn check_op(&mut self, op: &Op<'_>) -> Result<Option<InBlocks>, S> {
        let ino = op.keyspace;
        self.check_keyspace(ino)?;
        ensure(op.key.len() <= USER_KEY_MAX, ino, Why::Changes)?;
        match op.change {
            Change::Put(value) | Change::PutUntil(_, value) => {
                let fits = value::fits_entry(op.key.len(), value.len());
                ensure(fits, ino, Why::Changes).map(|()| None)
            }
            Change::PutBlocks(runs) | Change::PutBlocksUntil(_, runs) => {
                let wrong = Reject::new(ino, Why::Changes);
                let found = InBlocks::decode(runs).map_err(|_| wrong)?;
                for run in found.runs() {
                    let (block, len) = (run.block, u64::from(run.len));
                    ensure(run.epoch == 0, ino, Why::Changes)?;
                    ensure(self.grants.holds(block, len), ino, Why::NotGranted)?;
                    ensure(self.store.is_unused(block, len), ino, Why::BlocksInUse)?;
                }
                Ok(Some(found))
            }
            Change::Name(fields) => self
                .check_unnamed(op, Naming::decode(fields))
                .map(|()| None),
            Change::Promote(_) => Err(Reject::new(ino, Why::Changes).into()),
            Change::Erase | Change::EraseRange(_) => Ok(None),
        }
    }

    /// The blocks of a value are in use from now on, and say since when.
    fn take_blocks(&mut self, mut blocks: InBlocks) -> Result<InBlocks, S> {
        self.take_runs(blocks.runs())?;
        blocks.be_born_in(self.store.epoch());
        Ok(blocks)
    }

    fn take_runs(&mut self, runs: &[ValueRun]) -> Result<(), S> {
        for run in runs {
            let (block, len) = (run.block, u64::from(run.len));
            self.store.mark_used(block, len).map_err(Failure::Store)?;
            self.grants.take(block, len);
        }
        Ok(())
    }

    fn free_blocks(&mut self, found: &InBlocks) -> Result<(), S> {
        self.free_runs(found.runs())
    }

    fn free_runs(&mut self, runs: &[ValueRun]) -> Result<(), S> {
        for run in runs {
            let freed = self
                .store
                .mark_unused(run.block, u64::from(run.len), run.epoch);
            freed.map_err(Failure::Store)?;
        }
        Ok(())
    }

    /// Brings everything that waits into the tree.
    pub(super) fn settle_values(&mut self) -> Result<(), S> {
        if self.carry.messages.list.is_empty() {
            return Ok(());
        }
        let mut messages = take(&mut self.carry.messages);
        messages.sort();
        let done = self.settle_sorted(&messages);
        messages.clear();
        self.carry.messages = messages;
        done
    }

    fn settle_sorted(&mut self, messages: &Messages) -> Result<(), S> {
        let mut leaves = [0; AHEAD_LEAF];
        for (i, m) in messages.list.iter().enumerate() {
            if let Some(later) = messages.list.get(i + AHEAD_CHANGE) {
                prefetch(messages.key_and_value(later));
            }
            if let Some(later) = messages.list.get(i + AHEAD_LEAF) {
                leaves[i % AHEAD_LEAF] = self.store.expect(VALUES, messages.key(later));
            }
            if let Some(later) = messages.list.get(i + AHEAD_ENTRY) {
                let leaf = leaves[(i + AHEAD_ENTRY) % AHEAD_LEAF];
                self.store.expect_entry(VALUES, leaf, messages.key(later));
            }
            let next = messages.list.get(i + 1);
            if next.is_none_or(|next| messages.compare(m, next).is_ne()) {
                self.settle_one(messages, m)?;
            } else if m.kind != Kind::Erase {
                self.pass_over(messages, m)?;
            }
        }
        let mut times = messages.times.clone();
        times.sort_unstable();
        for group in times.chunk_by(|a, b| a.0 == b.0) {
            self.touch_keyspace(group[group.len() - 1])?;
        }
        Ok(())
    }

    /// Another change of the same key follows.
    fn pass_over(&mut self, messages: &Messages, m: &Message) -> Result<(), S> {
        let left = Left::by(messages.key(m), messages.value(m))?;
        if self.carry.usage.is_on() {
            self.carry.usage.passed_over(m.keyspace(), left.taken);
        }
        match left.blocks {
            Some(blocks) => self.free_blocks(&blocks),
            None => Ok(()),
        }
    }

    fn settle_one(&mut self, messages: &Messages, m: &Message) -> Result<(), S> {
        let key = messages.key(m);
        let (mut left, mut expires) = (Ok(Left::default()), NEVER);
        let mut see = |bytes: &[u8]| left = Left::by(key, bytes);
        let done = match m.kind {
            Kind::Erase => self.store.take_out(VALUES, key, &mut see),
            _ => {
                let value = messages.value(m);
                expires = value::expiry_of(value);
                self.store.replace(VALUES, key, value, &mut see)
            }
        };
        done.map_err(Failure::Store)?;
        let left = left?;
        if self.carry.usage.is_on() {
            let new = match m.kind {
                Kind::Erase => Taken::default(),
                _ => Left::by(key, messages.value(m))?.taken,
            };
            self.carry.usage.value(m.keyspace(), left.taken, new);
        }
        if left.expires != expires {
            self.reindex(key, left.expires, expires)?;
        }
        match left.blocks {
            Some(found) => self.free_blocks(&found),
            None => Ok(()),
        }
    }

    /// What the index says of a value that expired at one time, and expires at another.
    #[cold]
    pub(super) fn reindex(&mut self, tree_key: &[u8], old: i64, new: i64) -> Result<(), S> {
        if old != NEVER {
            let key = TreeKey::in_index(old, tree_key);
            let erased = self.store.erase_index(key.as_slice());
            erased.map_err(Failure::Store)?;
        }
        if new != NEVER {
            let key = TreeKey::in_index(new, tree_key);
            let put = self.store.put_index(key.as_slice(), &value::in_index());
            put.map_err(Failure::Store)?;
        }
        Ok(())
    }

    /// Whether there is a value that expires, or may soon be one.
    pub(super) fn is_indexed(&self) -> bool {
        self.carry.messages.indexed != Some(false)
    }

    /// Looks whether there is one, once, before a change is counted.
    pub(super) fn look_for_index(&mut self) -> Result<(), S> {
        if self.carry.messages.indexed.is_some() {
            return Ok(());
        }
        let (mut key, mut value) = ([0; TREE_KEY_MAX], [0; VALUE_MAX]);
        let first = TreeKey::new(value::INDEX, &[]);
        let found = self
            .store
            .at_or_after(VALUES, first.as_slice(), &mut key, &mut value);
        let found = found.map_err(Failure::Store)?;
        let indexed = found.is_some_and(|_| value::is_in_index(&key));
        self.carry.messages.indexed = Some(indexed);
        Ok(())
    }

    fn touch_keyspace(&mut self, (ino, time): (u64, i64)) -> Result<(), S> {
        self.update(ino, |dir| {
            dir.mtime = dir.mtime.max(time);
            dir.ctime = dir.ctime.max(time);
        })
    }

    /// Removes all keys from `from` up to, not including, `to`; empty: to the end.
    fn erase_values(&mut self, ino: u64, from: &[u8], to: &[u8]) -> Result<(), S> {
        let first = TreeKey::new(ino, from);
        let end = match to.is_empty() {
            false => TreeKey::new(ino, to),
            true => TreeKey::new(ino.saturating_add(1), &[]),
        };
        if end.as_slice() <= first.as_slice() {
            return Ok(());
        }
        let (mut found, mut expiring) = (Vec::new(), Vec::new());
        let (mut bad, mut taken) = (None, Taken::default());
        // What all of them take is known.
        let all = from.is_empty() && to.is_empty();
        let counted = !all && self.carry.usage.counts_values(ino);
        self.store.show_all(counted);
        let mut see = |key: &[u8], bytes: &[u8]| match Left::by(key, bytes) {
            Ok(left) => {
                taken = taken.and(left.taken);
                found.extend_from_slice(left.blocks.as_ref().map_or(&[], InBlocks::runs));
                if left.expires != NEVER {
                    expiring.push((left.expires, key.to_vec()));
                }
            }
            Err(e) => bad = Some(e),
        };
        let (first, end) = (first.as_slice(), end.as_slice());
        let cut = self.store.cut_range(VALUES, first, end, &mut see);
        cut.map_err(Failure::Store)?;
        if let Some(bad) = bad {
            return Err(bad.into());
        }
        self.store.show_all(self.carry.usage.is_on());
        match all {
            true => self.carry.usage.has_values(ino, Taken::default()),
            false => self.carry.usage.value(ino, taken, Taken::default()),
        }
        for (expires, key) in expiring {
            // The room for this was not counted. What stays behind goes when it is due.
            if self.store.room() < ROOM_TO_SHRINK {
                break;
            }
            self.reindex(&key, expires, NEVER)?;
        }
        self.free_runs(&found)
    }

    /// Removes all keys, those included whose changes wait.
    pub(super) fn drop_all_values(&mut self, ino: u64) -> Result<(), S> {
        self.settle_values()?;
        self.carry.messages.forget_keyspace();
        self.erase_values(ino, &[], &[])
    }

    /// Whether a directory that is a keyspace has a value.
    pub(super) fn has_values(&mut self, ino: u64) -> Result<bool, S> {
        self.settle_values()?;
        let (mut key, mut value) = ([0; TREE_KEY_MAX], [0; VALUE_MAX]);
        let first = TreeKey::new(ino, &[]);
        let found = self
            .store
            .at_or_after(VALUES, first.as_slice(), &mut key, &mut value);
        let found = found.map_err(Failure::Store)?;
        let (owner, _) = match found {
            Some((len, _)) => value::parse_key(key.get(..len).unwrap_or_default())?,
            None => (0, &[][..]),
        };
        Ok(found.is_some() && owner == ino)
    }
}

const _: () = assert!(value::HEAD_MAX + ENTRY_MAX <= VALUE_MAX);
