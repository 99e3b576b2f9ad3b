//! Read leases (`pool::session::leases`): giving them, and recalling them before a change.
//!
//! Invariants:
//!  * Whoever locks an inode recalls its leases before it changes anything; what changes without
//!    the lock (the time of access) has them recalled before and after.
//!  * A process that cannot reach the words makes nobody's answers wrong: it sees to it that no
//!    more leases are given, and waits until the last one has ended.

use crate::base::error::{Error, Result};
use crate::session::Session;
use alloc::format;
use alloc::string::String;
use core::time::Duration;
use pmem::atomic::{AtomicU32, Ordering::*};
use pmem::{Access, SharedMem};
use pool::session::*;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

/// Clocks are as coarse as the kernel's ticks.
const COARSE: Duration = Duration::from_millis(20);

/// The words as this process has them.
pub(crate) struct Leases {
    memory: SharedMem,
    state: AtomicU32,
}

/// They are not mapped.
const AWAY: u32 = 0;
const MAPPED: u32 = 1;
/// They cannot be mapped, and no lease is left.
const NEVER: u32 = 2;

impl Leases {
    pub fn new() -> Result<Leases> {
        Ok(Leases {
            memory: SharedMem::blank(LEASES_LEN).map_err(Error::Memory)?,
            state: AtomicU32::new(AWAY),
        })
    }

    /// The same memory for another session of this process.
    pub fn another(&self) -> Leases {
        Leases {
            memory: self.memory.clone(),
            state: AtomicU32::new(self.state.load(Acquire)),
        }
    }

    fn words(&self) -> Option<&LeaseWords> {
        match self.state.load(Acquire) {
            MAPPED => self.memory.at(0),
            _ => None,
        }
    }

    fn map(&self, file: &OwnedFd) -> Result<()> {
        let mapped = self.memory.replace(file.as_fd(), Access::ReadWrite);
        mapped.map_err(Error::Memory)?;
        self.state.store(MAPPED, Release);
        Ok(())
    }

    /// Where they are mapped.
    pub fn place(&self) -> (usize, usize) {
        (self.memory.addr(), self.memory.len())
    }
}

/// Leases of one answer.
pub const LEASES_MAX: usize = 8;

impl Session {
    /// Nobody who was told of the inode takes that for true from here on. The caller holds its
    /// lock, until what it changes is visible.
    #[inline]
    pub(crate) fn recall(&self, ino: u64) {
        if self.header().leases.load(SeqCst) != LEASES_NONE {
            self.recall_now(ino);
        }
    }

    fn recall_now(&self, ino: u64) {
        let index = lease_index(self.header().lent_name.load(Relaxed), ino);
        match self.leases.words() {
            Some(words) => words.recall(index),
            None => self.recall_first(index),
        }
    }

    #[cold]
    fn recall_first(&self, index: u32) {
        if self.leases.state.load(Acquire) == NEVER || self.is_read_only() {
            return;
        }
        let opened = self.open_leases(false);
        match opened.and_then(|file| self.leases.map(&file)) {
            Ok(()) => self
                .leases
                .words()
                .into_iter()
                .for_each(|w| w.recall(index)),
            Err(_) => {
                // Who gives a lease looks at this after it took the time: none lasts longer.
                self.header().leases.store(LEASES_OVER, SeqCst);
                pmem::env::sleep(Duration::from_millis(LEASE_TERM_MS) + COARSE);
                self.leases.state.store(NEVER, Release);
            }
        }
    }

    /// The kernel may not let us open anything any more after this.
    pub(crate) fn know_leases(&self) {
        let is_wanted = self.header().leases.load(SeqCst) == LEASES_GIVEN
            && self.leases.state.load(Acquire) == AWAY
            && !self.is_read_only();
        if is_wanted && let Ok(file) = self.open_leases(false) {
            let _ = self.leases.map(&file);
        }
    }

    /// Index and value of the word of the inode, of which somebody has a lease from now on. It is
    /// good if the inode is not locked after this.
    pub(crate) fn hold_lease(&self, ino: u64) -> Option<(u32, u64)> {
        let index = lease_index(self.header().lent_name.load(Relaxed), ino);
        Some((index, self.leases.words()?.hold(index)))
    }

    /// The words, once there are any.
    pub(crate) fn lease_words(&self) -> Option<&LeaseWords> {
        self.leases.words()
    }

    /// Leases can be given from now on, and are recalled by everybody; the words, to be read. Those
    /// who have not come before others (`lent::expect_others`) have none.
    pub(crate) fn give_leases(&self) -> Result<OwnedFd> {
        let leases = &self.header().leases;
        if self.header().lent_name.load(Acquire) == 0 || leases.load(SeqCst) == LEASES_OVER {
            return Err(Error::NotSupported);
        }
        if self.leases.words().is_none() {
            // Those of others are not these if the file was removed meanwhile.
            let file = self.open_leases(leases.load(SeqCst) == LEASES_NONE)?;
            let room = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, LEASES_LEN as u64);
            room.map_err(failed("fallocate"))?;
            self.leases.map(&file)?;
        }
        let _ = leases.compare_exchange(LEASES_NONE, LEASES_GIVEN, SeqCst, SeqCst);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::open(self.leases_path().as_str(), flags, Mode::empty()).map_err(failed("open"))
    }

    /// The caller's place is free already, and there is no service: removes the file of the words
    /// if nobody else is in the session. Whoever comes at this moment finds none, and makes none.
    pub(crate) fn end_leases(&self) {
        let is_free = |index| !self.is_alive(index);
        if self.header().lent_name.load(Acquire) != 0 && (0..self.slots_used()).all(is_free) {
            let _ = rustix::fs::unlink(self.leases_path().as_str());
        }
    }

    /// Whether leases are good for one more term.
    pub(crate) fn gives_leases(&self) -> bool {
        self.header().leases.load(SeqCst) == LEASES_GIVEN
    }

    fn leases_path(&self) -> String {
        let lender = self.lender();
        let session = self.header().lent_name.load(Acquire);
        let prefix = leases_prefix(lender.device, lender.inode);
        format!("{LENT_DIRECTORY}/{prefix}{session:x}")
    }

    fn open_leases(&self, create: bool) -> Result<OwnedFd> {
        let made = if create {
            OFlags::CREATE
        } else {
            OFlags::empty()
        };
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | made;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::open(self.leases_path().as_str(), flags, mode);
        let file = file.map_err(failed("open"))?;
        let stat = rustix::fs::fstat(&file).map_err(failed("fstat"))?;
        let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
        match is_file && stat.st_uid == self.lender().owner {
            true => Ok(file),
            false => Err(failed("open")(Errno::PERM)),
        }
    }
}

fn failed(call: &'static str) -> impl Fn(Errno) -> Error {
    move |e| Error::Kernel {
        call,
        errno: e.raw_os_error(),
    }
}
