//! Process slots and descriptor tables.
//!
//! Invariants:
//!  * A slot is taken and freed under `slots_lock`. `pid` and `parent` are stored before `state`
//!    says that they mean something; a process holds its life (`live`) before the slot is its own.
//!  * `epoch` rises before a slot has a new owner, so from then on lock words and claims of the old
//!    owner are those of a dead process.
//!  * A descriptor's entry is cleared before its reference is dropped: a process that dies in
//!    between, or a reaper that does, leaves a reference too many and never one too few; `ofd`
//!    recounts when the table runs out. For the same reason a description has no particular owner
//!    (`ofd::bound`) before an entry has it.
//!  * A child gets its slot before it is born. Until the child has taken it over, the slot lives as
//!    long as the parent and is *awaited*: whoever sets that word to 0 decides about the slot. The
//!    child takes it; anybody else frees it. So a slot has one owner at a time, however late the
//!    child or the parent is; it is named together with its generation.
//!  * Only a live process itself frees its slot, and only if no thread of it but the caller runs.
//!  * A process may use the descriptor table or the working directory of another one's slot. Such a
//!    slot is not freed before all who use it have ended, whatever happened to its own process.

use crate::base::error::{Error, Result};
use crate::content::close;
use crate::content::{abandoned, pins};
use crate::journal::recover;
use crate::session::fd_tables;
use crate::session::joining::Joining;
use crate::session::live::{self, SLOT_DEAD, SLOT_FREE, SLOT_LIVE, SLOT_SETUP, own_pid};
use crate::session::lock;
use crate::session::members::NOWHERE;
use crate::session::run;
use crate::session::space;
use crate::session::{NOBODY, OfdLink, Session, owner_word};
use crate::tables::inode_table::{self, InodeRef};
use crate::tables::ofd;
use pmem::Holder;
use pmem::atomic::{AtomicU32, Ordering::*};
use pool::session::*;

/// Joins as process `pid`; `run` is the run's index. Returns the slot.
pub fn register(s: &Session, pid: u32, run: Option<u32>) -> Result<u32> {
    register_as(s, pid, run.map_or(0, |r| r + 1))
}

/// As `register` for the helper of the service, which does not count as a process of the session.
pub fn register_helper(s: &Session, pid: u32) -> Result<u32> {
    register_as(s, pid, RUN_OF_HELPER)
}

fn register_as(s: &Session, pid: u32, run: u32) -> Result<u32> {
    let _joining = Joining::begin(s)?;
    let index = take(s, pid, Taker::Process, run)?;
    let slot = s.slot_at(index)?;
    slot.awaited.store(0, Relaxed);
    slot.state.store(SLOT_LIVE, Release);
    s.set_me(index, slot.epoch.load(Relaxed));
    Ok(index)
}

/// Who takes a slot.
#[derive(Clone, Copy)]
enum Taker {
    /// The process that it is for.
    Process,
    /// A process with this life, for a child.
    Parent(u64),
}

/// A free slot, being set up for `pid`. Dying in here leaves a slot in `SLOT_SETUP` of a dead
/// process, or a free one.
fn take(s: &Session, pid: u32, taker: Taker, run: u32) -> Result<u32> {
    let mut naps = live::ORPHAN_MS_MAX / NAP_MS + 1;
    loop {
        if let Some(index) = take_free(s, pid, taker, run)? {
            return Ok(index);
        }
        if reap_dead(s) > 0 {
            continue;
        }
        // Slots whose child never came are free after a while.
        let waits = |slot: &Slot| slot.state.load(Relaxed) == SLOT_SETUP;
        let any = (0..s.slots_used()).any(|index| s.slot_at(index).is_ok_and(waits));
        if naps == 0 || !any {
            return Err(Error::TableFull);
        }
        naps -= 1;
        let nap = core::time::Duration::from_millis(NAP_MS.into());
        let word = AtomicU32::new(0);
        pmem::futex::wait(&word, 0, Some(nap));
    }
}

const NAP_MS: u32 = 20;
/// Slots that are taken in turn: a lock word names its owner by a slot and the low bits of an
/// epoch, which the same slot must not go through soon.
const TURN: u32 = 64;

fn take_free(s: &Session, pid: u32, taker: Taker, run: u32) -> Result<Option<u32>> {
    let h = s.header();
    let _guard = lock::acquire_plain(s, &h.slots_lock)?;
    let (used, hand) = (s.slots_used(), h.slots_hand.load(Relaxed));
    let turn = used.max(TURN);
    for index in (0..turn)
        .map(|n| hand.wrapping_add(n) % turn)
        .chain(turn..NOBODY)
    {
        let slot = s.slot_at(index)?;
        if slot.state.load(Acquire) != SLOT_FREE {
            continue;
        }
        h.slots_hand.store(index + 1, Relaxed);
        h.slots_used.fetch_max(index + 1, AcqRel);
        slot.epoch.fetch_add(1, AcqRel);
        let generation = slot.generation.fetch_add(1, AcqRel).wrapping_add(1).max(1);
        slot.generation.store(generation, Relaxed);
        let parent = match taker {
            Taker::Parent(life) => life,
            Taker::Process => {
                hold(s, live::life_of(index, generation))?;
                0
            }
        };
        slot.parent.store(parent, Relaxed);
        slot.awaited.store(generation, Relaxed);
        slot.pid.store(pid, Relaxed);
        for field in [
            &slot.fd_limit,
            &slot.memory,
            &slot.files,
            &slot.directory,
            &slot.lent,
            &slot.creation_mask,
            &slot.orphaned,
            &slot.successor,
            &slot.umask,
        ] {
            field.store(0, Relaxed);
        }
        let (counts, lives) = (
            [&slot.served, &slot.passed, &slot.refused],
            [&slot.namespace, &slot.fd_changes],
        );
        for field in counts.iter().chain(&lives).chain(&[
            &slot.cwd,
            &slot.start_time,
            &slot.ids,
            &slot.offer,
            &slot.shown,
            &slot.blocker,
            &slot.waits_for,
        ]) {
            field.store(0, Relaxed);
        }
        slot.lane.store(index % LANES as u32, Relaxed);
        slot.run.store(run, Relaxed);
        slot.state.store(SLOT_SETUP, Release);
        h.live_slots.fetch_add(1, Relaxed);
        return Ok(Some(index));
    }
    Ok(None)
}

/// Locks a life for the caller. `TableFull`: the kernel has no memory for the lock.
fn hold(s: &Session, life: u64) -> Result<()> {
    s.locks().hold(life).map_err(|_| Error::TableFull)
}

/// Bits of a prepared slot's name for its number; its generation is above them.
const TOKEN_SHIFT: u32 = 16;

fn token(index: u32, slot: &Slot) -> u32 {
    index | slot.generation.load(Relaxed) << TOKEN_SHIFT
}

/// The number of the slot that `token` names.
fn index_of(token: u32) -> u32 {
    token & ((1 << TOKEN_SHIFT) - 1)
}

/// A slot that was made for a child: its name, and its owner in lock words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotId {
    name: u32,
    owner: u32,
}

impl SlotId {
    fn of(index: u32, slot: &Slot) -> SlotId {
        SlotId {
            name: token(index, slot),
            owner: owner_word(index, slot.epoch.load(Relaxed)),
        }
    }

    /// As one number, which is not 0.
    pub fn to_bits(self) -> u64 {
        u64::from(self.owner) << 32 | u64::from(self.name)
    }

    /// What `to_bits` made of it; `None` for 0.
    pub fn from_bits(bits: u64) -> Option<SlotId> {
        let (name, owner) = (bits as u32, (bits >> 32) as u32);
        (bits != 0).then_some(SlotId { name, owner })
    }
}

/// The slot that `name` names, if it still is the one that was prepared.
fn prepared(s: &Session, name: u32) -> Option<&Slot> {
    let slot = s.slot_at(index_of(name)).ok()?;
    (token(index_of(name), slot) == name).then_some(slot)
}

/// Makes the caller the one who decides about a slot that is awaited.
fn decide(slot: &Slot, generation: u32) -> bool {
    let awaited = &slot.awaited;
    generation != 0
        && awaited
            .compare_exchange(generation, 0, AcqRel, Relaxed)
            .is_ok()
}

/// As `decide`, for the slot that `name` names.
fn decide_named(s: &Session, name: u32) -> Option<&Slot> {
    let slot = s.slot_at(index_of(name)).ok()?;
    // One load: it is the generation of the slot that is decided about.
    let generation = slot.awaited.load(Acquire);
    let same = index_of(name) | generation << TOKEN_SHIFT == name;
    (same && decide(slot, generation)).then_some(slot)
}

/// What a child has in common with its parent, as the flags of clone(2) say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    pub memory: bool,
    pub files: bool,
    pub directory: bool,
    /// The user namespace.
    pub ids: bool,
}

/// Before a child is made: a slot for it, with a copy of what it does not share.
pub fn child_prepare(s: &Session, share: Share) -> Result<SlotId> {
    if !s.has_place() {
        return Err(Error::NoPlace);
    }
    let parent = s.slot();
    let life = Taker::Parent(s.life(s.slot_index()));
    let child = take(s, parent.pid.load(Relaxed), life, parent.run.load(Relaxed))?;
    let id = SlotId::of(child, s.slot_at(child)?);
    let mut prepared = copy_process(s, child, share);
    if share.memory && prepared.is_ok() {
        prepared = s.members().expect(s);
    }
    if let Err(e) = prepared {
        child_gone(s, id);
        return Err(e);
    }
    Ok(id)
}

/// Whoever knows `secret` may take over the slot that was prepared.
pub fn offer(s: &Session, child: SlotId, secret: u64) -> Result<()> {
    let slot = prepared(s, child.name).ok_or(Error::NoPlace)?;
    slot.offer.store(secret, Release);
    Ok(())
}

/// Whether the slot was offered to whoever knows `secret`.
pub fn check_offer(s: &Session, child: SlotId, secret: u64) -> Result<()> {
    let slot = prepared(s, child.name).ok_or(Error::Denied)?;
    match slot.offer.load(Acquire) {
        offered if offered != 0 && offered == secret => Ok(()),
        _ => Err(Error::Denied),
    }
}

/// The number of the slot, if it still is the one that was prepared.
pub fn named(s: &Session, slot: SlotId) -> Result<u32> {
    prepared(s, slot.name).ok_or(Error::NoPlace)?;
    Ok(index_of(slot.name))
}

fn copy_process(s: &Session, child: u32, share: Share) -> Result<()> {
    let (from, to) = (s.slot(), s.slot_at(child)?);
    if share.memory {
        to.memory.store(memory_of(s, from), Release);
    }
    let ids = match share.ids {
        true => from.ids.load(Relaxed),
        false => IDS_OF_NAMESPACE,
    };
    to.ids.store(ids, Relaxed);
    let directory = s.directory_slot()?;
    to.creation_mask
        .store(directory.creation_mask.load(Relaxed), Relaxed);
    if share.directory {
        let of = match from.directory.load(Relaxed) {
            0 => s.slot_index() + 1,
            link => link,
        };
        directory.lent.store(1, Relaxed);
        to.directory.store(of, SeqCst);
    } else {
        copy_cwd(s, directory, to);
    }
    if share.files {
        let lender = s.table_index();
        if lender == s.slot_index() {
            live::note_shared(from);
        }
        s.slot_at(lender)?.lent.store(1, Release);
        to.files.store(lender + 1, SeqCst);
        return Ok(());
    }
    copy_table(s, child)
}

/// The number of the memory that the process of `slot` runs in; it gets one.
fn memory_of(s: &Session, slot: &Slot) -> u32 {
    match slot.memory.load(Acquire) {
        0 => {
            let number = s.header().memories.fetch_add(1, Relaxed).wrapping_add(1);
            let number = number.max(1);
            let first = slot.memory.compare_exchange(0, number, AcqRel, Acquire);
            first.map_or_else(|other| other, |_| number)
        }
        number => number,
    }
}

fn copy_cwd(s: &Session, from: &Slot, to: &Slot) {
    let cwd = from.cwd.load(Acquire);
    // Our own pin keeps the entry, so one more needs no look at its name: a removed directory
    // stays the working directory of children too.
    if cwd != 0
        && let Some(inode) = inode_table::find(s, cwd)
    {
        inode.e.opens.fetch_add(1, SeqCst);
        to.cwd.store(cwd, Release);
    }
}

fn copy_table(s: &Session, child: u32) -> Result<()> {
    let table = s.table_index();
    let limit = fd_tables::limit(s, table);
    s.slot_at(child)?.fd_limit.store(limit, Release);
    let _changing = fd_changing(s);
    for (fd, link) in fd_tables::bound(s, table) {
        let new = fd_tables::entry_for(s, child, fd)?;
        let refs = &s.ofd(link)?.refs;
        // One that is closing in another thread is not inherited.
        let more = |n: u32| (n > 0).then(|| n + 1);
        if refs.fetch_update(AcqRel, Relaxed, more).is_ok() {
            new.store(link, Release);
        }
    }
    Ok(())
}

/// In a child with a memory of its own, first of all: the slot is ours. `NoPlace`: it is not any
/// more, because nobody knew for long that we live, or there was none.
pub fn fork_child(s: &Session, child: Option<SlotId>) -> Result<()> {
    // Not in the name of the parent from here on, whatever happens.
    s.set_me(NOBODY, 0);
    let index = settle_in(s, child.ok_or(Error::NoPlace)?.name)?;
    s.set_me(index, s.slot_at(index)?.epoch.load(Relaxed));
    Ok(())
}

/// In the parent, with the child's number: if the child dies before it has taken its slot over,
/// the parent finds that the slot is dead.
pub fn child_made(s: &Session, child: SlotId, pid: u32) -> Result<()> {
    let _guard = lock::acquire_plain(s, &s.header().slots_lock)?;
    let Some(slot) = prepared(s, child.name) else {
        return Ok(());
    };
    if slot.state.load(Acquire) == SLOT_SETUP {
        slot.pid.store(pid, Release);
    }
    Ok(())
}

/// In the child: takes no lock, which would be in the name of somebody else.
fn settle_in(s: &Session, name: u32) -> Result<u32> {
    let (pid, index) = (own_pid(), index_of(name));
    let life = live::life_of(
        index,
        prepared(s, name)
            .ok_or(Error::NoPlace)?
            .awaited
            .load(Acquire),
    );
    hold(s, life)?;
    let Some(slot) = decide_named(s, name) else {
        s.locks().leave(life);
        return Err(Error::NoPlace);
    };
    if slot.files.load(Relaxed) != 0 {
        live::note_shared(slot);
    }
    slot.orphaned.store(0, Relaxed);
    slot.pid.store(pid, Release);
    slot.state.store(SLOT_LIVE, Release);
    // The parent may have stored what it calls us in between, from another namespace.
    slot.pid.store(pid, Release);
    Ok(index)
}

/// In the parent when no child was made, or when it is gone: frees the slot if it waits still.
/// True if it did.
pub fn child_gone(s: &Session, child: SlotId) -> bool {
    let Some(slot) = decide_named(s, child.name) else {
        return false;
    };
    // If we die meanwhile somebody else goes on with it.
    slot.umask.store(s.owner(), Release);
    slot.state.store(SLOT_DEAD, Release);
    drop_slot(s, index_of(child.name));
    true
}

/// In a child that runs in its parent's memory, first of all. `NoPlace`: the slot is gone, and
/// the child is nowhere. `Exists`: it cannot be told from another process in this memory.
pub fn shared_child(s: &Session, child: Option<SlotId>) -> Result<()> {
    let settled = child.ok_or(Error::NoPlace);
    let settled = settled.and_then(|child| settle_in(s, child.name));
    let owner = match settled {
        Ok(index) => owner_word(index, s.slot_at(index)?.epoch.load(Relaxed)),
        Err(_) => NOWHERE,
    };
    if !s.members().add(owner) {
        return Err(Error::Exists);
    }
    settled.map(|_| ())
}

/// In the parent: the child whose slot was `child` was not born, or runs in this memory no more.
pub fn shared_child_gone(s: &Session, child: SlotId) {
    match child_gone(s, child) {
        true => s.members().unexpect(),
        false => s.members().remove(child.owner),
    }
}

/// After exec: takes over what the program that ran in this process before had open, where
/// `is_open` says that the descriptor is still there. `None`: it was in no slot, so `register`.
pub fn exec_adopt(s: &Session, is_open: &dyn Fn(u32) -> bool) -> Result<Option<u32>> {
    let pid = own_pid();
    let mut found = (0..s.slots_used()).filter(|index| is_ours(s, *index, pid));
    let Some(old) = found.next() else {
        return Ok(None);
    };
    let slot = s.slot_at(old)?;
    let index = match slot.successor.swap(0, AcqRel) {
        0 => old,
        successor => settle_in(s, successor).unwrap_or(old),
    };
    // From here on what threads of the old program had locked is a dead owner's.
    let epoch = &s.slot_at(index)?.epoch;
    s.set_me(index, epoch.fetch_add(1, AcqRel).wrapping_add(1));
    if index == old {
        hold(s, s.life(index))?;
        slot.start_time.store(0, Release);
    }
    slot.fd_changes.store(0, Release);
    if index == old {
        pins::leave_memory(s, index);
    } else {
        drop_dead_slot(s, old);
    }
    for (fd, _) in fd_tables::bound(s, s.table_index()) {
        if !is_open(fd) {
            close_fd(s, index, fd);
        }
    }
    Ok(Some(index))
}

/// Whether the caller's process has a slot that is not the caller's.
pub fn has_other(s: &Session) -> bool {
    let (me, pid) = (s.slot_index(), own_pid());
    (0..s.slots_used()).any(|index| index != me && is_ours(s, index, pid))
}

/// Whether the slot is that of the process `pid`, which the caller's program runs in since an exec.
fn is_ours(s: &Session, index: u32, pid: u32) -> bool {
    let Ok(slot) = s.slot_at(index) else {
        return false;
    };
    if slot.state.load(Acquire) != SLOT_LIVE || slot.pid.load(Acquire) != pid {
        return false;
    }
    // Another process may have that number in another namespace.
    match s.locks().holder(s.life(index)) {
        Ok(Holder::Process(holder)) => holder == pid,
        // It shared its descriptor table until then.
        Ok(Holder::Nobody) => {
            let start = slot.start_time.load(Acquire);
            start != 0 && start == live::own_start_time()
        }
        _ => false,
    }
}

/// Whether another process uses the caller's descriptor table, or its working directory.
pub fn shares(s: &Session) -> (bool, bool) {
    let (index, slot) = (s.slot_index(), s.slot());
    let files = slot.files.load(Acquire) != 0 || fd_tables::is_used(s, index, true, false);
    let directory = slot.directory.load(Acquire) != 0 || fd_tables::is_used(s, index, false, true);
    (files, directory)
}

/// Before the caller leaves what it shares: the descriptor table, as exec does, and unshare(2) of
/// the working directory. The slot that it will have then; `None`: it shares nothing of that.
pub fn part_prepare(s: &Session, files: bool, directory: bool) -> Result<Option<SlotId>> {
    if !s.has_place() {
        return Ok(None);
    }
    let (shares_files, shares_directory) = shares(s);
    if !(files && shares_files || directory && shares_directory) {
        return Ok(None);
    }
    let share = Share {
        memory: false,
        files: shares_files && !files,
        directory: shares_directory && !directory,
        ids: true,
    };
    child_prepare(s, share).map(Some)
}

/// The caller's next program starts in the slot `next`; `None`: in this one.
pub fn exec_prepared(s: &Session, next: Option<SlotId>) {
    if !s.has_place() {
        return;
    }
    let (slot, name) = (s.slot(), next.map_or(0, |next| next.name));
    slot.successor.store(name, Release);
    slot.orphaned.store(0, Relaxed);
    let start = next.map_or(0, |_| live::own_start_time());
    slot.start_time.store(start, Release);
}

/// The caller left what it shared: its slot is `next` now. No other thread of it runs.
pub fn part(s: &Session, next: SlotId) -> Result<()> {
    let (old, owner) = (s.slot_index(), s.owner());
    // The mappings go on with us.
    let memory = memory_of(s, s.slot());
    s.slot_at(index_of(next.name))?
        .memory
        .store(memory, Release);
    settle_in(s, next.name)?;
    s.members().replace(owner, next.owner);
    drop_slot(s, old);
    Ok(())
}

/// The process ends: drops its descriptors and working directory, and its slot if no other thread
/// of it runs (`alone`). Otherwise the slot is reaped when all of them have ended.
pub fn exit(s: &Session, alone: bool) {
    let index = s.slot_index();
    // In a copy of a memory of whose making we were not told the slot is that of another process.
    if !s.has_place() || s.slot().pid.load(Acquire) != own_pid() {
        return;
    }
    let (owner, used) = (s.owner(), fd_tables::is_used(s, index, true, true));
    if alone && !used {
        drop_slot(s, index);
        s.members().remove(owner);
        return;
    }
    // The rest is left to a process whose locks are not those of a dead one meanwhile.
    if !used {
        close_all(s, index);
        set_cwd_of(s, s.slot(), 0);
    }
    run::fold(s, s.slot());
}

/// Cleans up after dead processes; returns how many.
pub fn reap_dead(s: &Session) -> u32 {
    let mut reaped = 0;
    for index in 0..s.slots_used() {
        let Ok(slot) = s.slot_at(index) else { break };
        let state = slot.state.load(Acquire);
        if state == SLOT_FREE || (state != SLOT_DEAD && s.is_alive(index)) {
            continue;
        }
        if claim_dead(s, index, slot) {
            drop_dead_slot(s, index);
            reaped += 1;
        }
    }
    reaped
}

/// Cleans up after what `pid` was before it executed the program that is served in another slot.
pub fn reap_before(s: &Session, pid: u32) {
    for index in (0..s.slots_used()).filter(|index| *index != s.slot_index()) {
        let Ok(slot) = s.slot_at(index) else { break };
        let is_its = slot.state.load(Acquire) == SLOT_LIVE && slot.pid.load(Acquire) == pid;
        if is_its && !s.is_alive(index) && claim_dead(s, index, slot) {
            drop_dead_slot(s, index);
        }
    }
}

/// One process reaps: it puts its own number into `umask`, which the dead one needs no more.
/// When the reaper dies too, the next one takes over.
fn claim_dead(s: &Session, index: u32, slot: &Slot) -> bool {
    let Ok(_guard) = lock::acquire_plain(s, &s.header().slots_lock) else {
        return false;
    };
    let claimed = match slot.state.load(Acquire) {
        SLOT_FREE => false,
        SLOT_DEAD => {
            !lock::owner_lives(s, slot.umask.load(Acquire))
                && !fd_tables::is_used(s, index, true, true)
        }
        // Whoever was to take it over may still come, and finds that it is too late.
        SLOT_SETUP => {
            let awaited = slot.awaited.load(Acquire);
            // With 0 somebody decided: one who lives has its life since, and is seen.
            !s.is_alive(index) && (awaited == 0 || decide(slot, awaited))
        }
        _ => !s.is_alive(index),
    };
    if claimed {
        // What it had committed comes first: its locks are anybody's after this.
        if recover::lanes(s).is_err() {
            return false;
        }
        slot.umask.store(s.owner(), Release);
        slot.state.store(SLOT_DEAD, Release);
    }
    claimed
}

/// As `drop_slot` for a process that may have died while it opened a file.
fn drop_dead_slot(s: &Session, index: u32) {
    if let Ok(slot) = s.slot_at(index) {
        abandon_half_open(s, owner_word(index, slot.epoch.load(Relaxed)));
    }
    drop_slot(s, index);
}

/// Drops everything that a slot refers to and frees it. A dead process's slot of which others use
/// the table or the working directory stays, without a process, until the last of them goes.
fn drop_slot(s: &Session, index: u32) {
    let Ok(slot) = s.slot_at(index) else { return };
    pins::leave_memory(s, index);
    space::return_cached(s, slot);
    run::fold(s, slot);
    for lender in [&slot.files, &slot.directory] {
        let link = lender.swap(0, SeqCst);
        drop_unused(s, link.wrapping_sub(1));
    }
    if fd_tables::is_used(s, index, true, true) {
        slot.fd_changes.store(0, Release);
        slot.epoch.fetch_add(1, AcqRel);
        slot.umask.store(0, Release);
        slot.state.store(SLOT_DEAD, SeqCst);
        // Its last user may have gone just before.
        drop_unused(s, index);
        return;
    }
    close_all(s, index);
    fd_tables::release(s, slot);
    set_cwd_of(s, slot, 0);
    s.header().live_slots.fetch_sub(1, Relaxed);
    let life = s.life(index);
    slot.pid.store(0, Relaxed);
    slot.epoch.fetch_add(1, AcqRel);
    slot.state.store(SLOT_FREE, Release);
    // A process with the same table may go on for long.
    s.locks().leave(life);
}

/// Frees a slot of a dead process that nobody uses any more.
fn drop_unused(s: &Session, index: u32) {
    let Ok(slot) = s.slot_at(index) else { return };
    let dead = match slot.state.load(SeqCst) {
        SLOT_DEAD => true,
        SLOT_LIVE => !s.is_alive(index),
        _ => false,
    };
    if index < NOBODY && dead && claim_dead(s, index, slot) {
        drop_dead_slot(s, index);
    }
}

/// Open files that the dead process `holder` had not bound to a descriptor yet.
fn abandon_half_open(s: &Session, holder: u32) {
    let opened = s.header().ofd_used.load(Acquire).min(OFDS as u32);
    for link in 1..=opened {
        if let Ok(ofd) = s.ofd(link)
            && ofd.spare.load(Acquire) == holder
        {
            abandoned::abandon(s, link, ofd);
        }
    }
}

fn close_all(s: &Session, index: u32) {
    for (fd, _) in fd_tables::bound(s, index) {
        close_fd(s, index, fd);
    }
}

fn close_fd(s: &Session, index: u32, fd: u32) {
    let Some(entry) = fd_tables::entry(s, index, fd) else {
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

/// The link of the description behind descriptor `fd`, 0 if it is no pool file.
#[inline]
pub fn fd_get(s: &Session, fd: u32) -> u32 {
    let entry = fd_tables::entry(s, s.table_index(), fd);
    entry.map_or(0, |entry| entry.load(Acquire))
}

/// Makes `fd` refer to the description `link` (0: to nothing) and returns what it referred to.
/// References are the caller's to count, inside `fd_changing`. `TooManyFiles`: too high;
/// `TableFull`: there is no memory for so many descriptors in the session.
#[inline]
pub fn fd_swap(s: &Session, fd: u32, link: u32) -> Result<u32> {
    let index = s.table_index();
    let entry = fd_tables::entry_for(s, index, fd)?;
    let limit = &s.slot_at(index)?.fd_limit;
    if link != 0 && limit.load(Relaxed) <= fd {
        // Before the entry, so that whoever cleans up finds it.
        limit.fetch_max(fd + 1, AcqRel);
    }
    if link != 0 {
        ofd::bound(s, link);
    }
    Ok(entry.swap(link, AcqRel))
}

/// Held while references move between descriptors and descriptions, so that a sweep which
/// counts them sees that one was under way, or came and went.
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
        self.slot.fd_changes.fetch_add(FD_CHANGE_DONE - 1, SeqCst);
    }
}
