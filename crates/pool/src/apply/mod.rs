//! Validates journal records against the trees and applies them.
//!
//! Invariants:
//!  * A rejected record changed nothing: everything is validated before the first change.
//!  * After each applied record the trees satisfy every rule of `docs/spec/objects.md`, whatever
//!    the record says: `nlink`, `entries`, `blocks` and flags are computed here, never copied from
//!    it.
//!  * A record is applied at most once: its sequence number must be above the last one of its lane,
//!    so a record whose effect is already in the trees is skipped.
//!  * If a record removes much, that is cut out of the trees and freed later. So the work for one
//!    record is bounded by its length and by `DEPTH_MAX`. A record that removes part of a file
//!    needs the file's extents counted first: `Failure::Later` divides that.
//!
//! `docs/spec/journal.md` states what each record does.

mod attributes;
mod blocks;
mod files;
mod inode_cache;
mod names;
mod orphans;
mod pool_store;
mod radix;
mod reject;
mod store;
mod unmap;
mod values;

pub use blocks::Redo;
pub use pool_store::{ParkedStore, PoolStore, make_pool_root};
pub use reject::{Failure, Reject, Why};
pub use store::{Grants, Store, count};

use crate::journal::{Change, Header, Op, Ops, Record};
use crate::layout::inode::{self, InodeRecord, KEYSPACE};
use crate::layout::value::InBlocks;
use crate::layout::{BadValue, BlockAddr, INODES, InodeRecord as Inode, ROOT_INO, ino_key};
use crate::quota::{Share, Usage, payers_of};
use core::cell::Cell;
use inode_cache::InodeCache;
use unmap::{CountLimit, Counting};
use values::Messages;
pub use values::Size;

/// What `Applier` functions return.
pub type Result<T, S> = core::result::Result<T, Failure<<S as crate::layout::ReadTrees>::Error>>;

/// Journal lanes of one session.
pub const LANES: usize = 16;
/// A new inode number is less than this above the highest that the trees know, so that a hostile
/// client cannot use all numbers up.
pub const INO_WINDOW: u64 = 1 << 20;
/// The same for records of a journal that is read again, as the trees may have come to know higher
/// numbers since then and lost them.
pub const INO_WINDOW_AGAIN: u64 = 1 << 32;
/// No inode number is higher.
pub const INO_MAX: u64 = 1 << 56;
/// Pages left below which nothing is applied that adds to the trees.
pub const ROOM_TO_GROW: u64 = 768;
/// Pages left below which nothing is applied.
pub const ROOM_TO_SHRINK: u64 = 192;
/// Into directories deeper than this no directory is moved.
pub const DEPTH_MAX: usize = 1 << 14;

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The trees say what the record says.
    Applied,
    /// An earlier batch did.
    Skipped,
}

/// Applies records of one session to a store.
pub struct Applier<'a, S: Store, G: Grants> {
    store: &'a mut S,
    grants: &'a mut G,
    applied: [u64; LANES],
    kept: Option<InodeCache>,
    carry: Carry,
    /// The record that is applied.
    seq: u64,
    count_limit: CountLimit,
    steps: Cell<u64>,
    ino_window: u64,
}

/// What an applier hands on to the next one: buffers, and how far a record has come that takes
/// more than one.
#[derive(Default)]
pub struct Carry {
    messages: Messages,
    counting: Option<Counting>,
    /// What users and directories with a quota take; kept from one record to the next.
    pub usage: Usage,
}

impl<'a, S: Store, G: Grants> Applier<'a, S, G> {
    /// `applied` says for each lane the last sequence number that the trees know.
    pub fn new(store: &'a mut S, grants: &'a mut G, applied: [u64; LANES]) -> Self {
        Applier {
            store,
            grants,
            applied,
            kept: None,
            carry: Carry::default(),
            seq: 0,
            count_limit: CountLimit::NONE,
            steps: Cell::new(0),
            ino_window: INO_WINDOW,
        }
    }

    /// As `new`, but inodes that change often are written when they are left alone, and all of
    /// them by `settle`, which must be called before the store is committed.
    pub fn keeping(store: &'a mut S, grants: &'a mut G, applied: [u64; LANES]) -> Self {
        Applier {
            kept: Some(InodeCache::new()),
            ..Applier::new(store, grants, applied)
        }
    }

    /// Goes on with what an applier before it had.
    pub fn carrying(self, carry: Carry) -> Self {
        self.store.show_all(carry.usage.is_on());
        Applier { carry, ..self }
    }

    /// Whether a record whose work is not bounded by its length ends in `Failure::Later`, until it
    /// has been applied often enough.
    pub fn divide_work(&mut self, divide: bool) {
        self.count_limit = if divide {
            CountLimit::STEP
        } else {
            CountLimit::NONE
        };
    }

    /// Whether an earlier service may have read the records.
    pub fn expect_again(&mut self, again: bool) {
        self.ino_window = if again { INO_WINDOW_AGAIN } else { INO_WINDOW };
    }

    /// For the next one.
    pub fn into_carry(self) -> Carry {
        self.carry
    }

    /// Writes everything that was kept back: changes of keyspaces and inodes. What was accepted
    /// cannot be refused any more, so the only failures are those of the store.
    pub fn settle(&mut self) -> Result<(), S> {
        let refused = BadValue {
            what: "a change that was accepted cannot be made",
        };
        match self.settle_all() {
            Err(Failure::Rejected(_)) => Err(refused.into()),
            done => done,
        }
    }

    fn settle_all(&mut self) -> Result<(), S> {
        self.settle_values()?;
        let store = &mut *self.store;
        match &mut self.kept {
            Some(kept) => kept.settle(|ino, bytes| put_encoded(store, ino, bytes)),
            None => Ok(()),
        }
    }

    /// For each lane the last sequence number that the trees know now.
    pub fn applied(&self) -> [u64; LANES] {
        self.applied
    }

    /// Applies one record. After `Failure::Rejected` and `Failure::Later` the store is as before;
    /// after `Failure::Store` it must be dropped.
    pub fn apply(&mut self, header: &Header, record: &Record<'_>) -> Result<Outcome, S> {
        let lane = usize::from(header.lane);
        let Some(&last) = self.applied.get(lane) else {
            return Err(Reject::new(0, Why::Lane).into());
        };
        if header.seq <= last {
            return Ok(Outcome::Skipped);
        }
        if matches!(record, Record::Batch { .. }) {
            self.look_for_index()?;
        }
        match record {
            // What they need is only counted where room is short.
            Record::Batch { ops, .. } if self.has_room(record, Size::at_most(ops.len())) => {}
            Record::Batch { ops, .. } => self.check_room(record, Size::of(ops))?,
            _ if record.is_about_durability() => {}
            _ => self.check_room(record, Size::default())?,
        }
        if !matches!(record, Record::Batch { .. }) && !record.is_about_durability() {
            self.carry.messages.forget_keyspace();
        }
        self.seq = header.seq;
        self.dispatch(record)?;
        self.carry.counting = None;
        self.applied[lane] = header.seq;
        Ok(Outcome::Applied)
    }

    /// As `apply` for `Record::Spilled`, whose changes are `bytes`.
    pub fn apply_spilled(
        &mut self,
        header: &Header,
        record: &Record<'_>,
        bytes: &[u8],
    ) -> Result<Outcome, S> {
        let (Record::Spilled { time, .. }, true) = (*record, usize::from(header.lane) < LANES)
        else {
            return Err(Reject::new(0, Why::Changes).into());
        };
        let lane = usize::from(header.lane);
        if header.seq <= self.applied[lane] {
            return Ok(Outcome::Skipped);
        }
        self.look_for_index()?;
        self.check_room(record, Size::of(bytes))?;
        self.batch(bytes, time, true)?;
        self.applied[lane] = header.seq;
        Ok(Outcome::Applied)
    }

    /// Whether there is room for a record whose changes need so much.
    pub fn check_size(&self, size: Size) -> Result<(), S> {
        ensure(self.fits(size.adds(), size), 0, Why::NoRoom)
    }

    /// Applies `parts`, of which none changes keyspaces, in place of the record that has `header`.
    /// They are to be such that one of them does not make the trees refuse another.
    pub fn apply_parts(&mut self, header: &Header, parts: &[Record<'_>]) -> Result<Outcome, S> {
        let lane = usize::from(header.lane);
        let Some(&last) = self.applied.get(lane) else {
            return Err(Reject::new(0, Why::Lane).into());
        };
        if header.seq <= last {
            return Ok(Outcome::Skipped);
        }
        // Each may split a leaf and what is above it.
        let need = ROOM_TO_GROW + 2 * parts.len() as u64;
        ensure(self.store.room() >= need, 0, Why::NoRoom)?;
        self.carry.messages.forget_keyspace();
        for part in parts {
            self.dispatch(part)?;
        }
        self.applied[lane] = header.seq;
        Ok(Outcome::Applied)
    }

    /// Whether all of the blocks are granted to the session.
    pub fn holds(&self, block: BlockAddr, len: u64) -> bool {
        self.grants.holds(block, len)
    }

    /// Takes a grant away: no record that comes may name the blocks.
    pub fn take(&mut self, block: BlockAddr, len: u64) {
        self.grants.take(block, len);
    }

    fn check_room(&self, record: &Record<'_>, changes: Size) -> Result<(), S> {
        ensure(self.has_room(record, changes), 0, Why::NoRoom)
    }

    /// Whether there are more pages left than the record, its changes of keyspaces and those that
    /// wait can use up.
    fn has_room(&self, record: &Record<'_>, changes: Size) -> bool {
        self.fits(adds(record) || changes.adds(), changes)
    }

    fn fits(&self, grows: bool, changes: Size) -> bool {
        let least = if grows { ROOM_TO_GROW } else { ROOM_TO_SHRINK };
        let mut all = changes.and(self.carry.messages.size());
        if self.is_indexed() {
            all = all.indexed();
        }
        self.store.room() >= least + all.pages(self.store.filled())
    }

    /// Whether the blocks of a `Record::Spilled` are the session's own; where they are.
    pub fn spilled(&self, record: &Record<'_>) -> Result<InBlocks, S> {
        match *record {
            Record::Spilled { len, runs, .. } => self.check_spilled(runs, len),
            _ => Err(Reject::new(0, Why::Changes).into()),
        }
    }

    /// Why a `Record::Spilled` with other bytes than it says is not applied.
    pub fn malformed(&self) -> Failure<S::Error> {
        Reject::new(0, Why::Changes).into()
    }

    /// Directories that were looked at to see that none comes to lie below itself: what a record
    /// of one length may cost more or less of.
    pub fn steps(&self) -> u64 {
        self.steps.get()
    }

    /// Changes of keyspaces that wait for `settle`.
    pub fn waiting(&self) -> usize {
        self.carry.messages.len()
    }

    /// Passes over a record that was rejected.
    pub fn skip(&mut self, header: &Header) {
        if let Some(last) = self.applied.get_mut(usize::from(header.lane)) {
            *last = header.seq.max(*last);
        }
    }

    fn dispatch(&mut self, record: &Record<'_>) -> Result<(), S> {
        match *record {
            Record::Create { .. } => self.create(record),
            Record::Link {
                parent,
                ino,
                time,
                name,
            } => self.link(parent, ino, time, name),
            Record::Unlink {
                parent,
                ino,
                flags,
                time,
                name,
            } => self.unlink(parent, ino, flags, time, name),
            Record::Rename { .. } => self.rename(record),
            Record::SetAttr { .. } => self.set_attr(record),
            Record::Extent { .. } => self.extent(record),
            Record::Size {
                ino,
                size,
                atime,
                mtime,
                ctime,
            } => self.size(ino, size, [atime, mtime, ctime]),
            Record::Truncate { ino, size, time } => self.truncate(ino, size, time),
            Record::Punch {
                ino,
                file_block,
                len,
                size,
                time,
            } => self.punch(ino, file_block, len, size, time),
            Record::Inline {
                ino,
                mtime,
                ctime,
                data,
            } => self.inline(ino, mtime, ctime, data),
            Record::SetXattr {
                ino,
                time,
                name,
                value,
            } => self.set_xattr(ino, time, name, value),
            Record::RemoveXattr { ino, time, name } => self.remove_xattr(ino, time, name),
            Record::Release { ino } => self.release(ino),
            Record::Write {
                ino,
                offset,
                size,
                mtime,
                data,
            } => self.write(ino, offset, size, mtime, data),
            Record::SyncMark { .. } | Record::Data { .. } | Record::InPlace { .. } => Ok(()),
            Record::Keyspace { ino, time } => self.make_keyspace(ino, time),
            Record::Batch { time, ops } => self.batch(ops, time, false),
            // Its changes are not in the record: see `apply_spilled`.
            Record::Spilled { .. } => Err(Reject::new(0, Why::Changes).into()),
        }
    }

    /// The object, which must exist.
    fn live<'b>(&self, ino: u64, buf: &'b mut InodeBuf) -> Result<Inode<'b>, S> {
        if let Some(bytes) = self.kept.as_ref().and_then(|kept| kept.get(ino)) {
            let copy = &mut buf.0[..bytes.len()];
            copy.copy_from_slice(bytes);
            return Ok(Inode::decode(copy)?);
        }
        let found = inode::find(&*self.store, ino, buf).map_err(Failure::Store)?;
        found.ok_or_else(|| Reject::new(ino, Why::NoObject).into())
    }

    /// Whether there is an object of this number.
    fn exists(&self, ino: u64) -> Result<bool, S> {
        if self
            .kept
            .as_ref()
            .is_some_and(|kept| kept.get(ino).is_some())
        {
            return Ok(true);
        }
        let mut buf = InodeBuf::default();
        let found = self.store.get(INODES, &ino_key(ino), &mut buf.0);
        Ok(found.map_err(Failure::Store)?.is_some())
    }

    fn erase_inode(&mut self, ino: u64) -> Result<(), S> {
        self.account(ino, None)?;
        if let Some(kept) = &mut self.kept {
            kept.forget(ino);
        }
        self.store
            .erase(INODES, &ino_key(ino))
            .map_err(Failure::Store)
    }

    /// The directory, which must have a name (or be the root).
    fn directory<'b>(&self, ino: u64, buf: &'b mut InodeBuf) -> Result<Inode<'b>, S> {
        let found = self.live(ino, buf)?;
        ensure(found.is_dir() && found.nlink > 0, ino, Why::NotADirectory)?;
        Ok(found)
    }

    /// The regular file.
    fn file<'b>(&self, ino: u64, buf: &'b mut InodeBuf) -> Result<Inode<'b>, S> {
        let found = self.live(ino, buf)?;
        ensure(found.is_file(), ino, Why::NotAFile)?;
        Ok(found)
    }

    fn put_inode(&mut self, ino: u64, record: &Inode<'_>) -> Result<(), S> {
        self.account(ino, Some(record))?;
        let mut out = InodeBuf::default();
        let len = record.encode(&mut out.0).ok_or(BadValue {
            what: "an inode is too long",
        })?;
        let store = &mut *self.store;
        let bytes = &out.0[..len];
        match &mut self.kept {
            Some(kept) => kept.put(ino, bytes, |ino, bytes| put_encoded(store, ino, bytes)),
            None => put_encoded(store, ino, bytes),
        }
    }

    /// The object is about to become this, or to go.
    #[inline]
    fn account(&mut self, ino: u64, new: Option<&Inode<'_>>) -> Result<(), S> {
        match self.carry.usage.is_on() {
            true => self.account_change(ino, new),
            false => Ok(()),
        }
    }

    #[cold]
    fn account_change(&mut self, ino: u64, new: Option<&Inode<'_>>) -> Result<(), S> {
        let mut buf = InodeBuf::default();
        let old = match self.live(ino, &mut buf) {
            Ok(old) => Some(old),
            Err(Failure::Rejected(_)) => None,
            Err(e) => return Err(e),
        };
        let usage = &mut self.carry.usage;
        usage.change(old.as_ref().map(Share::of), new.map(Share::of));
        let is_keyspace = |inode: &Inode<'_>| inode.flags & KEYSPACE != 0;
        let was = old.as_ref().is_some_and(is_keyspace);
        let new = new.filter(|new| is_keyspace(new));
        if was || new.is_some() {
            usage.keyspace(ino, new.map(payers_of), !was);
        }
        Ok(())
    }

    /// Reads, changes and writes an inode that was validated before.
    fn update(&mut self, ino: u64, change: impl FnOnce(&mut InodeRecord<'_>)) -> Result<(), S> {
        let mut buf = InodeBuf::default();
        let mut record = self.live(ino, &mut buf)?;
        change(&mut record);
        self.put_inode(ino, &record)
    }
}

fn put_encoded<S: Store>(store: &mut S, ino: u64, bytes: &[u8]) -> Result<(), S> {
    store
        .put(INODES, &ino_key(ino), bytes)
        .map_err(Failure::Store)
}

/// Whether a record adds to the trees. What removes something is let through for longer, so that
/// a full pool can be emptied.
fn adds(record: &Record<'_>) -> bool {
    matches!(
        record,
        Record::Create { .. }
            | Record::Link { .. }
            | Record::SetXattr { .. }
            | Record::Extent { .. }
    )
}

/// Whether changes of keyspaces put something.
pub fn adds_values(ops: &[u8]) -> bool {
    let puts = |op: &Op<'_>| match op.change {
        Change::Put(_) | Change::PutBlocks(_) | Change::Promote(_) => true,
        Change::PutUntil(..) | Change::PutBlocksUntil(..) => true,
        Change::Name(_) => op.change.is_keyed(),
        Change::Erase | Change::EraseRange(_) => false,
    };
    Ops::new(ops).flatten().any(|op| puts(&op))
}

/// Whether nobody acts on changes of keyspaces before the trees have them: those with a range, and
/// those that are not in the journal. Such a record may be refused without harm.
pub fn are_unseen(record: &Record<'_>) -> bool {
    let range = |op: Op<'_>| matches!(op.change, Change::EraseRange(_));
    match *record {
        Record::Batch { ops, .. } => Ops::new(ops).flatten().any(range),
        Record::Spilled { .. } => true,
        _ => false,
    }
}

/// Puts the root directory into a new pool.
pub fn make_root<S: Store>(
    store: &mut S,
    mode: u32,
    uid: u32,
    gid: u32,
    time: i64,
) -> Result<(), S> {
    let (atime, mtime, ctime, btime) = (time, time, time, time);
    let root = InodeRecord {
        mode,
        uid,
        gid,
        nlink: 2,
        atime,
        mtime,
        ctime,
        btime,
        parent: ROOT_INO,
        ..InodeRecord::default()
    };
    ensure(
        root.is_dir() && inode::is_legal_mode(mode),
        ROOT_INO,
        Why::Mode,
    )?;
    let mut out = InodeBuf::default();
    let len = root.encode(&mut out.0).ok_or(BadValue {
        what: "an inode is too long",
    })?;
    store
        .put(INODES, &ino_key(ROOT_INO), &out.0[..len])
        .map_err(Failure::Store)?;
    store.add_count(count::DIRS, 1);
    store.set_next_ino(ROOT_INO + 1);
    Ok(())
}

/// Room for an encoded inode.
pub(crate) struct InodeBuf(pub [u8; inode::ENCODED_MAX]);

impl Default for InodeBuf {
    fn default() -> Self {
        InodeBuf([0; inode::ENCODED_MAX])
    }
}

impl core::ops::Deref for InodeBuf {
    type Target = [u8; inode::ENCODED_MAX];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl core::ops::DerefMut for InodeBuf {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

fn ensure<E>(holds: bool, ino: u64, why: Why) -> core::result::Result<(), Failure<E>> {
    if holds {
        Ok(())
    } else {
        Err(Reject::new(ino, why).into())
    }
}

#[cfg(test)]
pub(crate) mod compare;
#[cfg(test)]
pub(crate) mod generate;
#[cfg(test)]
pub(crate) mod model;
#[cfg(test)]
pub(crate) mod pool_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod values_tests;
