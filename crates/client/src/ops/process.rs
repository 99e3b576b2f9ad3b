//! A process of the session: joining, forking, ending, and its counts for the run's report.
//!
//! Invariants: a process uses exactly one slot at a time; everything it had open is released when
//! it ends, by itself or by a process that finds it dead.

use crate::base::error::{Error, Result};
use crate::journal::mapped::{self, Segments};
use crate::journal::recover;
use crate::ops::client::Client;
use crate::ops::flock;
use crate::ops::slots;
use crate::ops::slots::{Share, SlotId};
use crate::session::OfdLink;
use crate::session::fd_tables;
use crate::session::run::{self, MapCount};
use pmem::atomic::Ordering::{AcqRel, Relaxed};
use pmem::{Slow, Writing};
use pool::session::{IDS_OF_NAMESPACE, IDS_OF_POOL, IDS_UNKNOWN};

impl Client {
    /// A client of the session that the descriptors belong to; `at` is where the pool appears.
    pub fn attach(segments: &Segments, at: &[u8]) -> Result<Client> {
        Client::attach_with(segments, at, Writing::default(), Slow::NONE)
    }

    /// As `attach`; how this process writes file data, and how long its copies take, is given.
    pub fn attach_with(
        segments: &Segments,
        at: &[u8],
        writing: Writing,
        slow: Slow,
    ) -> Result<Client> {
        Ok(Client::new(mapped::map_with(segments, writing, slow)?, at))
    }

    /// Makes this process part of run `run`: takes over what the program that ran in it before
    /// exec had open, where `is_open` confirms the descriptor, or starts with nothing. What a dead
    /// process left half-published is finished first, so that nobody starts by reading it.
    pub fn join(&self, run: u32, is_open: &dyn Fn(u32) -> bool) -> Result<()> {
        let s = &self.session;
        if slots::exec_adopt(s, is_open)?.is_none() {
            slots::register(s, rustix::process::getpid().as_raw_pid() as u32, Some(run))?;
        }
        // What cannot be finished now stays locked.
        let _ = recover::lanes(s);
        Ok(())
    }

    /// Calls `each` with every descriptor that is a pool file.
    pub fn each_descriptor(&self, each: &mut dyn FnMut(u32)) {
        let s = &self.session;
        fd_tables::bound(s, s.table_index()).for_each(|(fd, _)| each(fd));
    }

    /// The lowest descriptor that is not below `from` and is a pool file.
    pub fn next_descriptor(&self, from: u32) -> Option<u32> {
        let s = &self.session;
        fd_tables::next(s, s.table_index(), from).map(|(fd, _)| fd)
    }

    /// One more reference to a description.
    pub fn retain(&self, link: OfdLink) -> Result<()> {
        let one_more = |n: u32| (n > 0).then(|| n + 1);
        let refs = &self.session.ofd(link.raw())?.refs;
        refs.fetch_update(AcqRel, Relaxed, one_more)
            .map_err(|_| Error::BadDescriptor)?;
        Ok(())
    }

    /// Whether the process has a place in the session. Without one nothing else may be asked.
    #[inline]
    pub fn has_place(&self) -> bool {
        self.session.has_place()
    }

    /// Whether another process may run in this memory.
    pub fn shares_memory(&self) -> bool {
        self.session.members().is_shared()
    }

    /// Whether another process has the same descriptors or working directory.
    pub fn shares_descriptors(&self) -> bool {
        matches!(slots::shares(&self.session), (true, _) | (_, true))
    }

    /// Before a child is made. `TableFull`: the session has no place for one more process.
    pub fn child_prepare(&self, share: Share) -> Result<SlotId> {
        slots::child_prepare(&self.session, share)
    }

    /// A slot with a copy of what this process has, for a process of our choice: whoever knows
    /// `secret`, which is not 0, can `adopt` it.
    pub fn child_offer(&self, secret: u64) -> Result<SlotId> {
        let share = Share {
            ids: true,
            ..Share::default()
        };
        let slot = self.child_prepare(share)?;
        slots::offer(&self.session, slot, secret)?;
        Ok(slot)
    }

    /// The program of process `pid` that had the pool mapped has ended, by execve(2): what it had
    /// open goes now, not when somebody finds it dead.
    pub fn reap_before(&self, pid: u32) {
        slots::reap_before(&self.session, pid);
    }

    /// What this process has locked by fcntl(2) belongs to the process of a slot that was offered
    /// and taken over; `back`: it is ours again.
    pub fn give_locks(&self, slot: SlotId, back: bool) -> Result<()> {
        let (ours, theirs) = (
            self.session.table_index(),
            slots::named(&self.session, slot)?,
        );
        match back {
            false => flock::pass_locks(&self.session, ours, theirs),
            true => flock::pass_locks(&self.session, theirs, ours),
        }
    }

    /// Takes over a slot that was offered, by its name's bits. `Denied`: it was not, or not to us.
    pub fn adopt(&self, slot: u64, secret: u64) -> Result<()> {
        let slot = SlotId::from_bits(slot).ok_or(Error::Invalid)?;
        slots::check_offer(&self.session, slot, secret)?;
        slots::fork_child(&self.session, Some(slot))
    }

    /// In the parent, with the answer of the call: the child, or a negated errno.
    pub fn child_made(&self, slot: SlotId, result: isize) {
        if result < 0 {
            let _ = slots::child_gone(&self.session, slot);
        } else {
            // A slot number that we made ourselves; nothing to report to a parent of a child.
            let _ = slots::child_made(&self.session, slot, result as u32);
        }
    }

    /// In a child with a memory of its own.
    pub fn fork_child(&self, slot: Option<SlotId>) -> Result<()> {
        slots::fork_child(&self.session, slot)
    }

    /// In a child that runs in its parent's memory. `Exists`: it must end.
    pub fn shared_child(&self, slot: Option<SlotId>) -> Result<()> {
        slots::shared_child(&self.session, slot)
    }

    /// As `child_prepare` for a child that shares this memory and gets no place in the session.
    pub fn expect_shared_child(&self) -> Result<()> {
        self.session.members().expect(&self.session)
    }

    /// Such a child, the process `pid` (0: not born), runs in this memory no more.
    pub fn placeless_child_gone(&self, pid: u32) {
        self.session.members().remove_placeless(pid);
    }

    /// In the parent: the child was not born, or runs in this memory no more.
    pub fn shared_child_gone(&self, slot: SlotId) {
        slots::shared_child_gone(&self.session, slot);
    }

    /// Before exec, which leaves a shared descriptor table.
    pub fn exec_prepare(&self) -> Result<Option<SlotId>> {
        let next = slots::part_prepare(&self.session, true, false)?;
        slots::exec_prepared(&self.session, next);
        Ok(next)
    }

    /// exec failed.
    pub fn exec_failed(&self, next: Option<SlotId>) {
        slots::exec_prepared(&self.session, None);
        if let Some(next) = next {
            let _ = slots::child_gone(&self.session, next);
        }
    }

    /// Before unshare(2) of descriptors or working directory. `None`: they are not shared.
    pub fn part_prepare(&self, files: bool, directory: bool) -> Result<Option<SlotId>> {
        slots::part_prepare(&self.session, files, directory)
    }

    /// After it, with the answer of the call. No other thread of the process runs.
    pub fn parted(&self, next: SlotId, result: isize) -> Result<()> {
        match result {
            0 => slots::part(&self.session, next),
            _ => {
                let _ = slots::child_gone(&self.session, next);
                Ok(())
            }
        }
    }

    /// The mask that files are made with.
    pub fn creation_mask(&self) -> u32 {
        let slot = self.session.directory_slot();
        slot.map_or(0, |slot| slot.creation_mask.load(Relaxed))
    }

    /// umask(2).
    pub fn set_creation_mask(&self, mask: u32) {
        if let Ok(slot) = self.session.directory_slot() {
            slot.creation_mask.store(mask & 0o777, Relaxed);
        }
    }

    /// Whether the process is known to be in the first user namespace, whose ids are the pool's.
    pub fn has_ids_of_pool(&self) -> bool {
        self.session.slot().ids.load(Relaxed) == IDS_OF_POOL
    }

    /// The process was seen in the first user namespace. Its children and the programs that it
    /// executes need not look again.
    pub fn note_ids_of_pool(&self) {
        let ids = &self.session.slot().ids;
        let _ = ids.compare_exchange(IDS_UNKNOWN, IDS_OF_POOL, Relaxed, Relaxed);
    }

    /// The process enters another user namespace.
    pub fn note_ids_of_namespace(&self) {
        self.session.slot().ids.store(IDS_OF_NAMESPACE, Relaxed);
    }

    /// The process ends; `alone`: no other thread of it runs.
    pub fn exit(&self, alone: bool) {
        slots::exit(&self.session, alone);
    }

    /// Whether this process has another place in the session: by another library in it.
    pub fn is_in_session_again(&self) -> bool {
        slots::has_other(&self.session)
    }

    /// Counts a call that the pool served.
    #[inline]
    pub fn count_served(&self) {
        run::count_served(&self.session);
    }

    /// Counts a call that was left to the kernel.
    #[inline]
    pub fn count_passed(&self) {
        run::count_passed(&self.session);
    }

    /// Counts what the mapping cache of this process did.
    pub fn count_mapping(&self, what: MapCount, n: u64) {
        run::count_mapping(&self.session, what, n);
    }

    /// Counts calls of a process that counted them elsewhere.
    pub fn add_counts(&self, served: u64, passed: u64) {
        run::count(&self.session, served, passed);
    }

    /// Counts a refusal; `why` is an index into the dispatcher's reasons.
    pub fn refuse(&self, call: u32, why: u32) {
        run::refuse(&self.session, call, why);
    }

    /// Names a program that the library could not enter.
    pub fn note_uninstrumented(&self, path: &[u8]) {
        run::uninstrumented(&self.session, path);
    }
}
