//! Process slots and descriptor tables.
//!
//! Invariants:
//!  * A slot is taken and freed under `slots_lock`. `pid` and `start_time` are stored before
//!    `state` says that they mean something.
//!  * `epoch` rises before a slot has a new owner, so lock words and claims of the old one are
//!    those of a dead process from then on.
//!  * A descriptor's entry is cleared before its reference is dropped: a process that dies in
//!    between, or a reaper that does, leaves a reference too many and never one too few; `ofd`
//!    recounts when the table runs out.
//!  * fork copies the table into a slot that names the parent until the child has taken it over.
//!    A parent may be late: by then the child may be gone and its slot another's. So a prepared
//!    slot is named together with its generation, and a parent looks at it under `slots_lock`.

use crate::error::{Error, Result};
use crate::inode_table::{self, InodeRef};
use crate::live::{self, SLOT_DEAD, SLOT_FREE, SLOT_LIVE, SLOT_SETUP};
use crate::lock;
use crate::session::{NOBODY, OfdLink, Session, owner_word};
use crate::{close, ofd, recover, run, space};
use core::sync::atomic::Ordering::*;
use pool::session::*;

/// The owner in lock words while a vfork child may be running in our memory.
#[cold]
pub(crate) fn owner_in_vfork(s: &Session) -> u32 {
    let parent = s.parent_owner();
    let pid = own_pid();
    let of = |index: u32| s.slot_at(index).ok();
    let parent_index = (parent & OWNER_SLOT).wrapping_sub(1);
    if of(parent_index).is_some_and(|slot| slot.pid.load(Relaxed) == pid) {
        return parent;
    }
    for index in 0..NOBODY {
        let Some(slot) = of(index) else { break };
        if slot.shadow_of.load(Relaxed) == parent_index + 1 && slot.pid.load(Relaxed) == pid {
            return owner_word(index, slot.epoch.load(Relaxed));
        }
    }
    parent
}

fn own_pid() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get() as u32
}

/// Joins as process `pid`; `run` is the run's index. Returns the slot.
pub fn register(s: &Session, pid: u32, run: Option<u32>) -> Result<u32> {
    let start = live::start_time(pid).unwrap_or(0);
    let index = take(s, pid, start, run.map_or(0, |r| r + 1))?;
    let slot = s.slot_at(index)?;
    slot.state.store(SLOT_LIVE, Release);
    s.set_me(index, slot.epoch.load(Relaxed));
    Ok(index)
}

/// A free slot, being set up for `pid`. Dying in here leaves a slot in `SLOT_SETUP` of a dead
/// process, or a free one.
fn take(s: &Session, pid: u32, start: u64, run: u32) -> Result<u32> {
    for round in 0..2 {
        if let Some(index) = take_free(s, pid, start, run)? {
            return Ok(index);
        }
        if round == 0 {
            reap_dead(s);
        }
    }
    Err(Error::TableFull)
}

fn take_free(s: &Session, pid: u32, start: u64, run: u32) -> Result<Option<u32>> {
    let _guard = lock::acquire_plain(s, &s.header().slots_lock)?;
    for index in 0..NOBODY {
        let slot = s.slot_at(index)?;
        if slot.state.load(Acquire) != SLOT_FREE {
            continue;
        }
        slot.epoch.fetch_add(1, AcqRel);
        slot.generation.fetch_add(1, AcqRel);
        slot.pid.store(pid, Relaxed);
        slot.start_time.store(start, Relaxed);
        for field in [
            &slot.fd_limit,
            &slot.shadow_of,
            &slot.fd_changes,
            &slot.umask,
        ] {
            field.store(0, Relaxed);
        }
        for field in [&slot.served, &slot.passed, &slot.refused, &slot.cwd] {
            field.store(0, Relaxed);
        }
        slot.lane.store(index % LANES as u32, Relaxed);
        slot.run.store(run, Relaxed);
        slot.state.store(SLOT_SETUP, Release);
        s.header().live_slots.fetch_add(1, Relaxed);
        return Ok(Some(index));
    }
    Ok(None)
}

/// Bits of a prepared slot's name for its number; its generation is above them.
const TOKEN_SHIFT: u32 = 16;

fn token(index: u32, slot: &Slot) -> u32 {
    index | slot.generation.load(Relaxed) << TOKEN_SHIFT
}

/// The number of the slot that `token` names.
pub fn index_of(token: u32) -> u32 {
    token & ((1 << TOKEN_SHIFT) - 1)
}

/// The slot that `token` names, if it is still the one that was prepared. The caller holds
/// `slots_lock` where that has to stay so.
fn prepared(s: &Session, name: u32) -> Option<&Slot> {
    let slot = s.slot_at(index_of(name)).ok()?;
    (token(index_of(name), slot) == name).then_some(slot)
}

/// Before fork: a slot for the child with a copy of the descriptor table and working directory.
pub fn fork_prepare(s: &Session) -> Result<u32> {
    let parent = s.slot();
    // The child finds out when it started; until then its slot's process is known by its number.
    let child = take(s, parent.pid.load(Relaxed), 0, parent.run.load(Relaxed))?;
    match copy_process(s, child) {
        Ok(()) => Ok(token(child, s.slot_at(child)?)),
        Err(e) => {
            drop_slot(s, child);
            Err(e)
        }
    }
}

fn copy_process(s: &Session, child: u32) -> Result<()> {
    let (from, to) = (s.slot(), s.slot_at(child)?);
    to.umask.store(from.umask.load(Relaxed), Relaxed);
    let cwd = from.cwd.load(Acquire);
    // Our own pin keeps the entry, so one more needs no look at its name: a removed directory
    // stays the working directory of children too.
    if cwd != 0
        && let Some(inode) = inode_table::find(s, cwd)
    {
        inode.e.opens.fetch_add(1, SeqCst);
        to.cwd.store(cwd, Release);
    }
    let limit = from.fd_limit.load(Acquire).min(FDS as u32);
    to.fd_limit.store(limit, Release);
    let (old, new) = (s.fd_table(s.slot_index())?, s.fd_table(child)?);
    let _changing = fd_changing(s);
    for (old, new) in old.entries.iter().zip(&new.entries).take(limit as usize) {
        let link = old.load(Acquire);
        if link == 0 {
            continue;
        }
        let refs = &s.ofd(link)?.refs;
        // One that is closing in another thread is not inherited.
        let more = |n: u32| (n > 0).then(|| n + 1);
        if refs.fetch_update(AcqRel, Relaxed, more).is_ok() {
            new.store(link, Release);
        }
    }
    Ok(())
}

/// In the child after fork, first of all: the slot is ours.
pub fn fork_child(s: &Session, child: u32) -> Result<()> {
    let child = index_of(child);
    s.vforks().store(0, Relaxed);
    settle_in(s, child)?;
    s.set_me(child, s.slot_at(child)?.epoch.load(Relaxed));
    Ok(())
}

/// In the parent after fork, with the child's number: if the child dies before `fork_child`, its
/// slot is known to be dead.
pub fn fork_parent(s: &Session, child: u32, pid: u32) -> Result<()> {
    // Both sides store the same. When it started only the child says: asking the kernel about
    // each child would cost as much as the rest.
    let _guard = lock::acquire_plain(s, &s.header().slots_lock)?;
    let Some(slot) = prepared(s, child) else {
        return Ok(());
    };
    if slot.state.load(Acquire) == SLOT_SETUP {
        slot.pid.store(pid, Release);
    }
    Ok(())
}

fn settle_in(s: &Session, child: u32) -> Result<()> {
    let (slot, pid) = (s.slot_at(child)?, own_pid());
    slot.start_time
        .store(live::start_time(pid).unwrap_or(0), Relaxed);
    slot.pid.store(pid, Release);
    slot.state.store(SLOT_LIVE, Release);
    Ok(())
}

/// In the parent after fork failed: drops the prepared slot.
pub fn fork_failed(s: &Session, child: u32) {
    drop_slot(s, index_of(child));
}

/// In the parent before vfork: a slot that the child uses while it shares our memory.
pub fn vfork_prepare(s: &Session) -> Result<u32> {
    let child = fork_prepare(s)?;
    s.slot_at(index_of(child))?
        .shadow_of
        .store(s.slot_index() + 1, Release);
    s.vforks().fetch_add(1, AcqRel);
    Ok(child)
}

/// In the vfork child, first of all.
pub fn vfork_child(s: &Session, child: u32) -> Result<()> {
    settle_in(s, index_of(child))
}

/// In the parent when it runs again: the child has called exec (and will adopt its slot), died,
/// or was never made.
pub fn vfork_done(s: &Session, child: u32) {
    s.vforks().fetch_sub(1, AcqRel);
    let Ok(guard) = lock::acquire_plain(s, &s.header().slots_lock) else {
        return;
    };
    let Some(slot) = prepared(s, child) else {
        return;
    };
    slot.shadow_of.store(0, Release);
    // Claimed by nobody: it stays ours when the lock is free again.
    let unclaimed = slot.state.load(Acquire) == SLOT_SETUP;
    drop(guard);
    if unclaimed {
        drop_slot(s, index_of(child));
    }
}

/// After exec: takes over what the program that ran in this process before had open, where
/// `is_open` says that the descriptor is still there. `None`: it was in no slot, so `register`.
pub fn exec_adopt(s: &Session, is_open: &dyn Fn(u32) -> bool) -> Result<Option<u32>> {
    let pid = own_pid();
    let start = live::start_time(pid).unwrap_or(0);
    let is_ours = |slot: &Slot| {
        slot.state.load(Acquire) == SLOT_LIVE
            && slot.pid.load(Acquire) == pid
            && slot.start_time.load(Acquire) == start
    };
    let mut found = (0..NOBODY).filter(|index| s.slot_at(*index).is_ok_and(is_ours));
    let Some(index) = found.next() else {
        return Ok(None);
    };
    let slot = s.slot_at(index)?;
    // From here on what threads of the old program had locked is a dead owner's.
    let epoch = slot.epoch.fetch_add(1, AcqRel).wrapping_add(1);
    slot.shadow_of.store(0, Release);
    slot.fd_changes.store(0, Release);
    s.set_me(index, epoch);
    drop_pins(s, index);
    let limit = slot.fd_limit.load(Acquire).min(FDS as u32);
    for fd in 0..limit {
        if fd_get(s, fd) != 0 && !is_open(fd) {
            close_fd(s, index, fd);
        }
    }
    Ok(Some(index))
}

/// The process ends: drops its descriptors, working directory and slot.
pub fn exit(s: &Session) {
    drop_slot(s, s.slot_index());
}

/// Cleans up after dead processes; returns how many.
pub fn reap_dead(s: &Session) -> u32 {
    let mut reaped = 0;
    for index in 0..NOBODY {
        let Ok(slot) = s.slot_at(index) else { break };
        let state = slot.state.load(Acquire);
        if state == SLOT_FREE || (state != SLOT_DEAD && live::is_alive(slot)) {
            continue;
        }
        if claim_dead(s, slot) {
            drop_slot(s, index);
            reaped += 1;
        }
    }
    reaped
}

/// One process reaps: it puts its own number into `umask`, which the dead one needs no more.
/// When the reaper dies too, the next one takes over.
fn claim_dead(s: &Session, slot: &Slot) -> bool {
    let Ok(_guard) = lock::acquire_plain(s, &s.header().slots_lock) else {
        return false;
    };
    let claimed = match slot.state.load(Acquire) {
        SLOT_FREE => false,
        SLOT_DEAD => !lock::owner_lives(s, slot.umask.load(Acquire)),
        _ => !live::is_alive(slot),
    };
    if claimed {
        // What it had committed comes first: its locks are anybody's after this.
        recover::lanes(s);
        slot.umask.store(s.owner(), Release);
        slot.state.store(SLOT_DEAD, Release);
    }
    claimed
}

/// Drops everything that a slot refers to and frees it.
fn drop_slot(s: &Session, index: u32) {
    let Ok(slot) = s.slot_at(index) else { return };
    let limit = slot.fd_limit.load(Acquire).min(FDS as u32);
    for fd in 0..limit {
        close_fd(s, index, fd);
    }
    let holder = owner_word(index, slot.epoch.load(Relaxed));
    let opened = s.header().ofd_used.load(Acquire).min(OFDS as u32);
    for link in 1..=opened {
        if let Ok(ofd) = s.ofd(link)
            && ofd.spare.load(Relaxed) == holder
            && ofd.inode.load(Acquire) != 0
        {
            ofd::abandon(s, link, ofd);
        }
    }
    drop_pins(s, index);
    set_cwd_of(s, slot, 0);
    space::return_chunk(s, slot);
    run::fold(s, slot);
    s.header().live_slots.fetch_sub(1, Relaxed);
    slot.pid.store(0, Relaxed);
    slot.state.store(SLOT_FREE, Release);
}

fn close_fd(s: &Session, index: u32, fd: u32) {
    let Ok(fds) = s.fd_table(index) else { return };
    let Some(entry) = fds.entries.get(fd as usize) else {
        return;
    };
    let _changing = fd_changing(s);
    if let Some(ofd) = OfdLink::from_raw(entry.swap(0, AcqRel)) {
        // Its errors are those of a close that nobody asked for.
        let _ = close::put_ofd(s, ofd);
    }
}

fn set_cwd_of(s: &Session, slot: &Slot, ino: u64) {
    let old = slot.cwd.swap(ino, AcqRel);
    if old != 0
        && let Some(inode) = inode_table::find(s, old)
    {
        let _ = close::put_inode(s, &InodeRef { ..inode });
    }
}

/// Notes that the caller has pinned `inode` for one more mapping (after it has).
pub(crate) fn note_pin(s: &Session, inode: &InodeRef<'_>) -> Result<()> {
    let index = s.slot_index();
    let table = s.pin_table(index)?;
    let _guard = lock::acquire_plain(s, &s.slot_at(index)?.pins_lock)?;
    let same = |pin: &&Pin| pin.count.load(Relaxed) > 0 && pin.ino.load(Relaxed) == inode.ino;
    if let Some(pin) = table.entries.iter().find(same) {
        pin.count.fetch_add(1, Release);
    } else if let Some(pin) = table.entries.iter().find(|p| p.count.load(Relaxed) == 0) {
        pin.inode.store(inode.link, Relaxed);
        pin.ino.store(inode.ino, Relaxed);
        pin.count.store(1, Release);
    }
    Ok(())
}

/// Takes a note back (before the pin goes: dying in between leaves a pin too many).
pub(crate) fn forget_pin(s: &Session, inode: &InodeRef<'_>) -> Result<()> {
    let index = s.slot_index();
    let table = s.pin_table(index)?;
    let _guard = lock::acquire_plain(s, &s.slot_at(index)?.pins_lock)?;
    let same = |pin: &&Pin| pin.count.load(Relaxed) > 0 && pin.ino.load(Relaxed) == inode.ino;
    if let Some(pin) = table.entries.iter().find(same) {
        pin.count.fetch_sub(1, Release);
    }
    Ok(())
}

/// The mappings of a process are gone: drops their pins.
fn drop_pins(s: &Session, index: u32) {
    let Ok(table) = s.pin_table(index) else {
        return;
    };
    for pin in &table.entries {
        let count = pin.count.swap(0, AcqRel);
        let (link, ino) = (pin.inode.load(Relaxed), pin.ino.load(Relaxed));
        for _ in 0..count {
            let Some(inode) = inode_table::by_link(s, link, ino) else {
                break;
            };
            let one_less = |n: u32| n.checked_sub(1);
            let _ = inode.e.maps.fetch_update(SeqCst, SeqCst, one_less);
            let _ = s.header().maps.fetch_update(SeqCst, SeqCst, one_less);
            let _ = close::put_inode(s, &inode);
        }
    }
}

/// Whether the process that had slot `slot_plus1` when its generation was `generation` lives.
pub fn alive(s: &Session, slot_plus1: u32, generation: u32) -> bool {
    let Ok(slot) = s.slot_at(slot_plus1.wrapping_sub(1)) else {
        return false;
    };
    slot.generation.load(Acquire) == generation && live::is_alive(slot)
}

/// The link of the description behind descriptor `fd`, 0 if it is no pool file.
#[inline]
pub fn fd_get(s: &Session, fd: u32) -> u32 {
    let entry = s
        .fd_table(s.slot_index())
        .ok()
        .and_then(|t| t.entries.get(fd as usize));
    entry.map_or(0, |entry| entry.load(Acquire))
}

/// Makes `fd` refer to the description `link` (0: to nothing) and returns what it referred to.
/// References are the caller's to count, inside `fd_changing`. `TooManyFiles`: too high.
#[inline]
pub fn fd_swap(s: &Session, fd: u32, link: u32) -> Result<u32> {
    let index = s.slot_index();
    let fds = s.fd_table(index)?;
    let entry = fds.entries.get(fd as usize).ok_or(Error::TooManyFiles)?;
    let limit = &s.slot_at(index)?.fd_limit;
    if link != 0 && limit.load(Relaxed) <= fd {
        // Before the entry, so that whoever cleans up finds it.
        limit.fetch_max(fd + 1, AcqRel);
    }
    let old = entry.swap(link, AcqRel);
    if link != 0 {
        ofd::bound(s, link);
    }
    Ok(old)
}

/// Held while references move between descriptors and descriptions, so that a sweep which
/// counts them knows when not to.
pub struct FdChanging<'a> {
    slot: &'a Slot,
}

/// See `FdChanging`.
#[inline]
pub fn fd_changing(s: &Session) -> FdChanging<'_> {
    let slot = s.slot();
    slot.fd_changes.fetch_add(1, SeqCst);
    FdChanging { slot }
}

impl Drop for FdChanging<'_> {
    #[inline]
    fn drop(&mut self) {
        self.slot.fd_changes.fetch_sub(1, SeqCst);
    }
}
