//! A process of the session: joining, forking, ending, and what the run's report counts.
//!
//! Invariants: a process uses exactly one slot at a time; whatever it had open is released when
//! it ends, by itself or by whoever finds it dead.

use crate::api::Client;
use crate::error::{Error, Result};
use crate::mapped::{self, Segments};
use crate::session::OfdLink;
use crate::{recover, run, slots};
use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use pool::session::FDS;

/// A process slot, by index.
pub type SlotId = u32;

impl Client {
    /// A client of the session that the descriptors belong to; `at` is where the pool appears.
    pub fn attach(segments: &Segments, at: &[u8]) -> Result<Client> {
        Ok(Client::new(mapped::map(segments)?, at))
    }

    /// Makes this process part of run `run`: takes over what the program that ran in it before
    /// exec had open, where `is_open` confirms the descriptor, or starts with nothing. What a dead
    /// process left half-published is finished first, so that nobody starts by reading it.
    pub fn join(&self, run: u32, is_open: &dyn Fn(u32) -> bool) -> Result<()> {
        let s = &self.session;
        if slots::exec_adopt(s, is_open)?.is_none() {
            slots::register(s, rustix::process::getpid().as_raw_pid() as u32, Some(run))?;
        }
        recover::lanes(s);
        Ok(())
    }

    /// Calls `each` with every descriptor that is a pool file.
    pub fn each_descriptor(&self, each: &mut dyn FnMut(u32)) {
        for fd in 0..=self.fd_limit() {
            if self.lookup(fd).is_some() {
                each(fd);
            }
        }
    }

    /// No descriptor at or above this number is a pool file.
    pub fn fd_limit(&self) -> u32 {
        self.session.slot().fd_limit.load(Relaxed).min(FDS as u32)
    }

    /// One more reference to a description.
    pub fn retain(&self, link: OfdLink) -> Result<()> {
        let one_more = |n: u32| (n > 0).then(|| n + 1);
        let refs = &self.session.ofd(link.raw())?.refs;
        refs.fetch_update(AcqRel, Relaxed, one_more)
            .map_err(|_| Error::BadDescriptor)?;
        Ok(())
    }

    /// Before fork(2).
    pub fn fork_prepare(&self) -> Result<SlotId> {
        slots::fork_prepare(&self.session)
    }

    /// In the parent after fork(2) answered `result`.
    pub fn forked(&self, slot: SlotId, result: isize) {
        if result < 0 {
            slots::fork_failed(&self.session, slot);
        } else {
            // A slot number that we made ourselves; nothing to report to a parent of a child.
            let _ = slots::fork_parent(&self.session, slot, result as u32);
        }
    }

    /// In the child.
    pub fn fork_child(&self, slot: SlotId) -> Result<()> {
        slots::fork_child(&self.session, slot)
    }

    /// Before vfork(2) and its like.
    pub fn vfork_prepare(&self) -> Result<SlotId> {
        slots::vfork_prepare(&self.session)
    }

    /// In the child that shares its parent's memory.
    pub fn vfork_child(&self, slot: SlotId) -> Result<()> {
        slots::vfork_child(&self.session, slot)
    }

    /// In the parent, once the child has left its memory.
    pub fn vfork_done(&self, slot: SlotId) {
        slots::vfork_done(&self.session, slot);
    }

    /// The process that was given `slot`, 0 while none has claimed it.
    pub fn slot_pid(&self, slot: SlotId) -> u32 {
        self.session
            .slot_at(slots::index_of(slot))
            .map_or(0, |slot| slot.pid.load(Relaxed))
    }

    /// The process ends.
    pub fn exit(&self) {
        slots::exit(&self.session);
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

    /// Counts a refusal; `why` is an index into the dispatcher's reasons.
    pub fn refuse(&self, call: u32, why: u32) {
        run::refuse(&self.session, call, why);
    }

    /// Names a program that the library could not enter.
    pub fn note_uninstrumented(&self, path: &[u8]) {
        run::uninstrumented(&self.session, path);
    }
}
