//! The store of a pool: trees, space, commits and checkpoints, and the memory behind them.
//!
//! Invariants: one store has the pool open for writing; after a failure nothing more is written, so
//! the content of the medium stays correct; while a batch is parked nothing else is committed.

pub mod backing;
pub mod checkpoint;
pub mod compaction;
pub mod reclaim;
pub mod room;

use crate::base::error::{Error, Result};
use crate::base::files::{self, Files};
use crate::base::process;
use backing::Backing;
use checkpoint::Checkpoints;
use compaction::Compaction;
use holdfast_pmem::{Access, Medium, Region, SegmentFile};
use holdfast_pool::apply::{INO_MAX, INO_WINDOW, PoolStore, ROOM_TO_GROW, Store as _};
use holdfast_pool::expiry::Due;
use holdfast_pool::format::PAGE_LEN;
use holdfast_pool::format::superblock::Superblock;
use holdfast_pool::segment::{self, tree_share};
use holdfast_pool::session::{TREES_FULL, TREES_OVER, TREES_RESERVED, TREES_ROOMY, TREES_SHORT};
use holdfast_pool::snapshot::{MAPPED_MAX, Stored};
use holdfast_pool::space::Run;
use holdfast_pool::{Pool, WriteToken};
use reclaim::Reclaim;
use room::HostRoom;
use rustix::fd::AsFd;
use std::sync::Arc;

/// Changes of keyspaces that one commit makes: each may copy a leaf, and what is copied takes room
/// twice for a while. So not more than a part of the pages in use, but where those are few, and no
/// more than we have memory for.
const VALUES_PART: usize = 2;
/// Entries of the index of expiry that one step looks at: some milliseconds of work.
const EXPIRED_STEP: usize = 2048;
const VALUES_MIN: usize = 8 * 1024;
const VALUES_MAX: usize = 64 * 1024;
/// Pages that are kept for records that are journaled and not applied yet.
const ROOM_KEPT_MAX: u64 = 24 * 1024;
/// Of so many pages one is left to the pool's owner and root, so that no other user can keep them
/// from working; but no more than these.
const RESERVED: u64 = 10;
const RESERVED_MAX: u64 = 16 * 1024;
/// Pages beyond those that lanes full of changes of keyspaces can use up.
const ROOM_AHEAD_MAX: u64 = 96 * 1024;

/// The pool as its writer has it.
pub struct Store {
    pub files: Files,
    pub pool: Pool,
    pub data: Arc<Region>,
    pub token: WriteToken,
    pub backing: Backing,
    pub compaction: Compaction,
    pub checkpoints: Checkpoints,
    room: HostRoom,
    pub reclaim: Reclaim,
    /// Nothing more is written, since something could not be.
    pub failed: bool,
    /// What has expired could not be removed, and that was logged.
    expiry_fails: bool,
    /// Entries of the index of expiry that the next step looks at.
    expired_step: usize,
    /// Since the newest snapshot, blocks that snapshots have may have been stored to, of files that
    /// its entry does not name. The superblock says so of every pool that is in use.
    pub in_place: bool,
}

impl Store {
    /// Opens the pool of `files` at its last commit. On an ordinary file readers are shown nothing
    /// yet: those of an earlier service may have seen more.
    pub fn open(files: Files) -> Result<Store> {
        let pool_error = |error| Error::Pool {
            path: files.directory.clone(),
            error,
        };
        let sizes = (files.superblock.meta_len, files.superblock.data_len);
        let meta = files::map(&files.meta, sizes.0, Access::ReadWrite, files.medium)?;
        let data = Arc::new(map_data(&files, sizes.1)?);
        let token = WriteToken::for_service();
        let pool = match files.medium {
            Medium::File => open_lazy(meta, &token, data.clone()),
            _ => Pool::open(meta, &token),
        };
        let mut pool = pool.map_err(pool_error)?;
        let in_place = pool.superblock().in_place;
        let room = HostRoom::find(&mut pool, &files);
        let compaction = Compaction::new(pool.meta_space().count_used());
        Ok(Store {
            files,
            pool,
            data,
            token,
            backing: Backing::default(),
            compaction,
            checkpoints: Checkpoints::default(),
            room,
            reclaim: Reclaim::default(),
            failed: false,
            expiry_fails: false,
            expired_step: EXPIRED_STEP,
            in_place,
        })
    }

    /// Shows readers the last commit.
    pub fn show(&mut self) -> Result<()> {
        let shown = self.pool.show();
        shown.map_err(|error| Error::Pool {
            path: self.files.directory.clone(),
            error,
        })
    }

    /// Pages that the trees may have without taking the place of data.
    fn tree_share(&self) -> u64 {
        let sb = self.pool.superblock();
        tree_share(sb.data_len, sb.data_len_max) / PAGE_LEN
    }

    /// Pages that are in use or that readers may still look at.
    fn pages_taken(&self) -> u64 {
        self.pool.meta_space().len() - self.pool.pages_left()
    }

    /// Data blocks that may still come into use: trees and data together have the pool's size, and
    /// the share of the trees.
    pub fn blocks_left(&self) -> u64 {
        let beyond = self.pages_taken().saturating_sub(self.tree_share());
        self.pool.blocks_left().saturating_sub(beyond)
    }

    /// How much room the trees have left, as `TREES_*`. They are full when clients must not add to
    /// them: what they have journaled already has to fit.
    pub fn trees_full(&self) -> u32 {
        let all = self.pool.meta_space().len();
        let all = all.min(self.tree_share() + self.pool.blocks_left());
        let kept = (all / 4).min(ROOM_KEPT_MAX);
        if self.room.is_short() {
            return TREES_FULL;
        }
        match all.saturating_sub(self.pages_taken() + ROOM_TO_GROW) {
            left if left < kept / 2 && self.pool.has_snapshots() => TREES_OVER,
            left if left < kept => TREES_FULL,
            left if left < kept + (all / RESERVED).min(RESERVED_MAX) => TREES_RESERVED,
            left if left < kept + (all / 2).min(ROOM_AHEAD_MAX) => TREES_SHORT,
            _ => TREES_ROOMY,
        }
    }

    /// The end of the numbers that new inodes may have.
    pub fn ino_end(&self) -> u64 {
        let next = self.pool.superblock().next_ino;
        next.saturating_add(INO_WINDOW).min(INO_MAX)
    }

    /// Numbers up to `taken` were taken, some of them in vain: others may be used instead. Of all
    /// numbers that takes a part so small that it may be done for ever.
    pub fn pass_over_numbers(&mut self, taken: u64) -> Result<()> {
        let next = self.pool.superblock().next_ino;
        let to = taken.min(next.saturating_add(INO_WINDOW / 2)).min(INO_MAX);
        if self.failed || self.pool.is_parked() || to <= next {
            return Ok(());
        }
        let mut store = PoolStore::begin(&mut self.pool, &self.token);
        store.set_next_ino(to);
        let committed = store.commit(|sb| sb.clean = false);
        self.check(committed)
    }

    /// How many changes of keyspaces one commit makes.
    pub fn values_most(&self) -> usize {
        let in_use = self.pool.meta_space().count_used() as usize;
        (in_use / VALUES_PART).clamp(VALUES_MIN, VALUES_MAX)
    }

    /// How many records, and changes of keyspaces, one commit may take now; 0: it has to wait for
    /// room of the host.
    pub fn room_to_apply(&mut self) -> Result<(usize, usize)> {
        if self.pool.is_loose() && self.pool.pages_ready() < self.pool.pages_left() / 2 {
            self.checkpoint()?;
        }
        let room = self.host_room();
        Ok((room, self.values_most().min(room)))
    }

    /// Whether the host may be asked for memory that is not for the trees.
    pub fn may_set_aside(&self) -> bool {
        !self.room.is_short()
    }

    /// How many records, or changes of keyspaces, one commit may take, for which the host has room.
    fn host_room(&mut self) -> usize {
        let enough = self.room.is_enough(&mut self.pool)
            || self.release() && self.room.is_enough(&mut self.pool);
        match enough {
            true => usize::MAX,
            false => self.room.rest(&self.pool),
        }
    }

    /// Gives up all older roots, so that what they alone have is free. On an ordinary file that
    /// needs a checkpoint: if it fails, as much is in doubt as after any other, and nothing is
    /// given up.
    pub fn release(&mut self) -> bool {
        let flushed = match self.pool.is_parked() {
            true => Ok(()),
            false => self.flush_pool(),
        };
        let done = flushed.and_then(|()| self.pool.reclaim());
        if let Err(error) = &done {
            tracing::error!("what was freed cannot be used again: {error}");
        }
        done.is_ok()
    }

    /// Takes granted blocks back that are not in use.
    pub fn take_back(&mut self, run: Run) {
        let taken = self.pool.ungrant(run);
        assert!(taken.is_ok(), "{run:?} was granted: {taken:?}");
    }

    /// Nobody has anything open any more that the trees have freed.
    pub fn end_use(&mut self) -> Result<()> {
        let ended = self.pool.end_use();
        ended.map_err(|error| self.fail(error))
    }

    /// An extent is about to be handed out.
    pub fn prepare(&mut self, extent: Run) {
        if self.files.medium == Medium::Memory {
            let space = self.pool.data_space();
            self.backing.prepare(extent, space, &self.data);
        }
    }

    /// Does a little of what can be done while there is nothing to do, some of it only if that is
    /// so for `long`; whether there is more.
    pub fn rest(&mut self, long: bool) -> Result<bool> {
        if self.failed || self.pool.is_parked() {
            return Ok(false);
        }
        let compacted = self.compaction.go_on(&mut self.pool, &self.token);
        match compacted {
            // What it frees is given back only then.
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(error) => return Err(self.fail(error)),
        }
        let data = long.then_some(&*self.data);
        Ok(self.backing.go_on(&mut self.pool, data, &self.files))
    }

    /// Gives a little of the memory under what is free back; whether there is more.
    pub fn trim(&mut self) -> bool {
        !self.pool.is_parked()
            && self.release_unread()
            && self
                .backing
                .go_on(&mut self.pool, Some(&self.data), &self.files)
    }

    /// Frees what no view reads any more, where no commit does. That fails only if what is free is
    /// not what the bitmaps say: then nothing more is written.
    pub fn release_unread(&mut self) -> bool {
        if self.failed {
            return false;
        }
        let released = self.pool.rest().map_err(|error| self.fail(error));
        if let Err(why) = &released {
            tracing::error!("{why}");
        }
        released.is_ok()
    }

    /// Keeps what is in the trees now as the snapshot `name`, while these files are mapped.
    pub fn snapshot_create(&mut self, name: &[u8], mapped: &[u64]) -> Result<()> {
        // What has expired by now is not there in the snapshot, to the nanosecond.
        let time = holdfast_pmem::env::exact_now();
        let stored = Stored {
            before: self.in_place,
            mapped,
            after: true,
        };
        self.changes_at_once(|pool, token| {
            pool.create_snapshot_with(token, name, time, &stored)
                .map(drop)
        })?;
        self.in_place = mapped.len() > MAPPED_MAX;
        Ok(())
    }

    /// Removes the snapshot `name` and frees what it alone has.
    pub fn snapshot_delete(&mut self, name: &[u8]) -> Result<()> {
        let work = self.reclaim.work();
        let mut doubt = false;
        self.changes_at_once(|pool, token| {
            doubt = pool.is_last_in_doubt(name)?;
            pool.delete_snapshot(token, name, work).map(drop)
        })?;
        self.in_place |= doubt;
        Ok(())
    }

    /// Calls the snapshot `name` something else.
    pub fn snapshot_rename(&mut self, name: &[u8], to: &[u8]) -> Result<()> {
        self.changes_at_once(|pool, token| pool.rename_snapshot(token, name, to))
    }

    /// Makes the present what the snapshot `name` has; how many entries changed.
    pub fn roll_back(&mut self, name: &[u8]) -> Result<u64> {
        let mut changed = 0;
        self.changes_at_once(|pool, token| {
            changed = pool.roll_back(token, name)?;
            Ok(())
        })?;
        Ok(changed)
    }

    /// Makes room for `len` bytes of data, more than there is. Who maps the segment sees to it that
    /// it goes no further than the pool says.
    pub fn grow(&mut self, len: u64) -> Result<()> {
        rustix::fs::ftruncate(&self.files.data, len).map_err(Error::os("data-0.seg"))?;
        // A superblock that a power cut leaves must not speak of a length that it took away.
        files::sync_file(&self.files.directory, &segment::data(0))?;
        let data = map_data(&self.files, len)?;
        self.changes_at_once(|pool, token| pool.grow(len, token))?;
        self.data = Arc::new(data);
        self.files.superblock.data_len = len;
        Ok(())
    }

    fn changes_at_once(
        &mut self,
        change: impl FnOnce(&mut Pool, &WriteToken) -> holdfast_pool::Result<()>,
    ) -> Result<()> {
        if self.failed {
            return Err(Error::Pool {
                path: self.files.directory.clone(),
                error: holdfast_pool::Error::Poisoned,
            });
        }
        let changed = change(&mut self.pool, &self.token);
        changed.and_then(|()| self.flush_pool()).map_err(|error| {
            // A name that is taken, or no room: the pool is as before.
            self.failed |= error == holdfast_pool::Error::Poisoned;
            Error::Pool {
                path: self.files.directory.clone(),
                error,
            }
        })
    }

    /// A commit without changes of the trees, which is durable at once.
    pub fn note(&mut self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        if self.failed {
            return Ok(());
        }
        let store = PoolStore::begin(&mut self.pool, &self.token);
        let committed = store.commit(change);
        self.check(committed)?;
        self.checkpoint()
    }

    /// Marks the pool as opened by this boot of the machine.
    pub fn begin(&mut self) -> Result<()> {
        let boot_id = process::boot_id()?;
        self.note(|sb| {
            sb.boot_id = boot_id;
            sb.clean = false;
            sb.in_place = true;
        })
    }

    /// Gives the memory behind free blocks back to the medium.
    pub fn punch(&mut self, run: Run) {
        let (at, len) = (run.start * PAGE_LEN, run.len * PAGE_LEN);
        files::punch(&self.files.data, &self.data, at, len);
        self.backing.split(run);
        self.pool.punched(run);
    }

    /// Frees a part of what was cut out of trees, a bounded piece of work; whether there is more.
    pub fn reclaim_some(&mut self) -> Result<bool> {
        if self.failed || self.pool.is_parked() || !self.makes_room() {
            return Ok(false);
        }
        if self.host_room() == 0 {
            return Ok(false);
        }
        let (work, loose) = (self.reclaim.work(), self.pool.is_loose());
        match self.pool.reclaim_some(&self.token, work) {
            Ok(_) => Ok(self.makes_room()),
            Err(holdfast_pool::Error::NoSpace) if loose => self.checkpoint().map(|()| true),
            Err(holdfast_pool::Error::Poisoned) => {
                let error = holdfast_pool::Error::Poisoned;
                Err(self.fail(error))
            }
            Err(error) => {
                self.reclaim.give_up(&error);
                Ok(false)
            }
        }
    }

    /// When the first value expires; `None`: none does, or nobody can tell.
    pub fn first_expiry(&self) -> Option<i64> {
        self.pool.first_expiry().ok().flatten()
    }

    /// The same of what is worth removing.
    pub fn first_to_expire(&self) -> Option<i64> {
        let first = self.first_expiry()?;
        let kept = self.pool.keeps_all_values();
        (!kept.unwrap_or(true)).then_some(first)
    }

    /// Removes some of what has expired from the index, and the values if `values` says so; what
    /// was found. `None`: not now.
    pub fn remove_expired(&mut self, now: i64, values: bool) -> Result<Option<Due>> {
        if self.failed || self.pool.is_parked() || self.host_room() == 0 {
            return Ok(None);
        }
        let (loose, step) = (self.pool.is_loose(), self.expired_step);
        let removed = self.pool.remove_expired(&self.token, now, step, values);
        self.expired_step = (2 * step).min(EXPIRED_STEP);
        match removed {
            Ok(due) if due.removed > 0 => self.show().map(|()| Some(due)),
            Ok(due) => Ok(Some(due)),
            // Each value may be in a leaf of its own, of which there is a copy for a while.
            Err(holdfast_pool::Error::NoSpace) if step > 1 => {
                self.expired_step = (step / 4).max(1);
                match loose {
                    true => self.checkpoint().map(|()| None),
                    false => Ok(None),
                }
            }
            Err(holdfast_pool::Error::Poisoned) => {
                let error = holdfast_pool::Error::Poisoned;
                Err(self.fail(error))
            }
            Err(error) => {
                if !std::mem::replace(&mut self.expiry_fails, true) {
                    tracing::error!("what has expired is not removed: {error}");
                }
                Ok(None)
            }
        }
    }

    /// Whether something waits to be freed that was cut out of trees.
    pub fn makes_room(&self) -> bool {
        self.pool.has_cut() && !self.reclaim.is_stuck()
    }

    pub fn check(&mut self, committed: holdfast_pool::Result<u64>) -> Result<()> {
        match committed {
            Ok(_) => Ok(()),
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Nothing more is written after this.
    pub fn fail(&mut self, error: holdfast_pool::Error) -> Error {
        fail(&mut self.failed, &self.files, error)
    }
}

/// Nothing more is written after this.
pub fn fail(failed: &mut bool, files: &Files, error: holdfast_pool::Error) -> Error {
    *failed = true;
    Error::Pool {
        path: files.directory.clone(),
        error,
    }
}

/// A pool whose commits become durable with its checkpoints, which begin with the data.
/// What there is of the data segment.
fn map_data(files: &Files, len: u64) -> Result<Region> {
    let data = files::map(&files.data, len, Access::ReadWrite, files.medium)?;
    Ok(data.of_file(SegmentFile::new(files.data.as_fd())?))
}

fn open_lazy(meta: Region, token: &WriteToken, data: Arc<Region>) -> holdfast_pool::Result<Pool> {
    let mut pool = Pool::open_hidden(meta, token)?;
    // The bitmaps were read from end to end; from now on it is a page here and a page there.
    pool.meta().expect_random();
    pool.be_lazy(Box::new(move || Ok(data.sync_file()?)));
    Ok(pool)
}
