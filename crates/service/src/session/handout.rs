//! What clients of a session get: its descriptors, and its state.
//!
//! Invariants:
//!  * The listener answers a client that joins an existing session, so no client waits for the
//!    thread that writes the pool.
//!  * Every description of the journal that was handed out is locked in shared mode as long as a
//!    process has it; see `survivors.rs`. None is handed out while that is tested.

use crate::base::error::{Error, Result};
use crate::base::files::Files;
use crate::base::survivors;
use crate::session::memory::{Constants, Memory};
use crate::session::stalls::Stalls;
use holdfast_pmem::Medium;
use holdfast_pool::format::LANES;
use holdfast_pool::format::superblock::{Consistency, Superblock};
use holdfast_pool::protocol::Answer;
use holdfast_pool::session::session_len;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A descriptor to send.
#[derive(Debug)]
pub enum Sent {
    /// A copy for this one client.
    Copy(OwnedFd),
    /// Session memory, which stays open here for as long as the client may have a place in it:
    /// where both are one process, closing any of its descriptors would end the client's life.
    Memory(Arc<OwnedFd>),
}

impl AsFd for Sent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Sent::Copy(fd) => fd.as_fd(),
            Sent::Memory(fd) => fd.as_fd(),
        }
    }
}

/// One session's.
pub struct Handout {
    memory: Arc<Memory>,
    meta: OwnedFd,
    data: OwnedFd,
    journal: Mutex<Option<OwnedFd>>,
    form: Answer,
    applied_seq: AtomicU64,
    stalls: Stalls,
}

/// What a session on a pool begins with.
pub fn constants(superblock: &Superblock, files: &Files) -> Constants {
    Constants {
        consistency: match superblock.consistency {
            Consistency::Posix => 0,
            Consistency::Sync => 1,
            Consistency::Strict => 2,
        },
        medium: match files.medium {
            Medium::Memory => 0,
            Medium::File => 1,
            Medium::Dax => 2,
            Medium::DaxTest => 3,
        },
        data_len: superblock.data_len,
        data_room: files.data_room(),
        lane_len: superblock.lane_len,
    }
}

/// An answer without a session.
pub fn describe(superblock: &Superblock, files: &Files) -> Answer {
    let constants = constants(superblock, files);
    Answer {
        service_pid: std::process::id(),
        consistency: constants.consistency,
        medium: constants.medium,
        session_len: session_len(constants.medium, constants.data_room),
        meta_len: superblock.meta_len,
        journal_len: LANES as u64 * superblock.lane_len,
        data_room: constants.data_room,
        applied_seq: superblock.applied_seq,
        ..Answer::default()
    }
}

impl Handout {
    /// Of a session that has just begun.
    pub fn new(files: &Files, superblock: &Superblock, memory: Arc<Memory>) -> Result<Handout> {
        let journal = files.reopen(&files.journal_name(), OFlags::RDWR)?;
        survivors::mark(&journal)?;
        Ok(Handout {
            stalls: Stalls::watch(memory.clone()),
            memory,
            meta: files.reopen(holdfast_pool::segment::META, OFlags::RDONLY)?,
            data: files.reopen(&holdfast_pool::segment::data(0), OFlags::RDWR)?,
            journal: Mutex::new(Some(journal)),
            form: describe(superblock, files),
            applied_seq: AtomicU64::new(superblock.applied_seq),
        })
    }

    /// The session's memory.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Everything up to `seq` is in the trees.
    pub fn note_applied(&self, seq: u64) {
        self.applied_seq.store(seq, Relaxed);
    }

    /// How the session is doing, which has `attached` connections.
    pub fn describe(&self, attached: u32) -> Answer {
        let processes = self.memory.live_processes();
        Answer {
            generation: self.memory.header().service_generation.load(Relaxed),
            sessions: 1,
            processes,
            users: processes + attached,
            applied_seq: self.applied_seq.load(Relaxed),
            strays: self.memory.strays(),
            media_errors: self.memory.media_errors(),
            mapped: self.memory.mapped(),
            ..self.form
        }
    }

    /// The same, and what is wrong: a mistake that a client found, or who keeps others waiting.
    pub fn describe_troubles(&self, attached: u32) -> Answer {
        let broken =
            |finding| format!("the session was given up for a mistake of Holdfast: {finding}");
        let finding = self.memory.finding().map(broken);
        let trouble = finding.or_else(|| self.stalls.describe());
        self.describe(attached)
            .with_text(&trouble.unwrap_or_default())
    }

    /// The descriptors for one client: session memory, unless it has inode number `known`, meta,
    /// journal, data. `None`: they are not handed out just now. `adopt` is what the client takes
    /// for the session's memory.
    pub fn descriptors(&self, adopt: Option<&OwnedFd>, known: u64) -> Option<Result<Vec<Sent>>> {
        if adopt.is_some_and(|fd| !self.memory.is_same(fd)) {
            return Some(Err(Error::NotASession));
        }
        let journal = self.journal();
        let all = [&self.meta, journal.as_ref()?, &self.data];
        let copies = all.map(|fd| fd.try_clone().map(Sent::Copy));
        Some(self.memory.number().and_then(|number| {
            let memory = || Ok(Sent::Memory(self.memory.fd().clone()));
            let memory = (number != known).then(memory);
            let sent: std::io::Result<Vec<_>> = memory.into_iter().chain(copies).collect();
            sent.map_err(Error::io("descriptors"))
        }))
    }

    /// Whether no process has the session any more, also none that is about to join it: each
    /// inherits the description of the journal that it was handed. Slots are not asked: clients
    /// write them.
    pub fn is_deserted(&self, files: &Files) -> Result<bool> {
        // Our own copy of the description would count, too.
        drop(self.journal().take());
        let journal = files.reopen(&files.journal_name(), OFlags::RDWR)?;
        let exist = survivors::exist(&journal);
        survivors::mark(&journal)?;
        *self.journal() = Some(journal);
        Ok(!exist)
    }

    /// Nothing that panics is done with it.
    fn journal(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
