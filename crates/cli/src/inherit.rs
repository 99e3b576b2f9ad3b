//! The descriptors that a program and all its children inherit from `run`.
//!
//! Invariants: they sit just below the limit of descriptors or below 1024, whichever is lower, so
//! that the kernel's tables stay small and programs find the low numbers free; they survive exec.

use crate::failure::Failure;
use holdfast_client::attach::Attachment;
use holdfast_client::env::{Segment, SessionEnv};
use holdfast_pool::directory::BASE;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::FdFlags;
use rustix::process::{Resource, getrlimit};
use std::path::Path;

/// Above the highest descriptor that select(2) can watch nothing of ours is needed.
const TOP_MAX: u64 = 1024;
/// How many there are.
const COUNT: u64 = 5;
/// open(2): neither reading nor writing is possible.
const NO_ACCESS: u32 = 3;

/// Session memory, meta, journal, data and base, in this order.
pub struct Inherited {
    fds: Vec<OwnedFd>,
}

impl Inherited {
    /// Puts duplicates of what the service gave us where a program inherits them.
    pub fn prepare(attachment: &Attachment, pool: &Path) -> Result<Inherited, Failure> {
        let base = open_base(pool)?;
        let limit = getrlimit(Resource::Nofile)
            .current
            .unwrap_or(TOP_MAX)
            .min(TOP_MAX);
        let first = i32::try_from(limit.saturating_sub(COUNT)).unwrap_or(0);
        let a = attachment;
        let fds = [&a.session, &a.meta, &a.journal, &a.data, &base];
        let fds = fds.into_iter().map(|fd| duplicate(fd, first));
        let fds = fds.collect::<rustix::io::Result<Vec<_>>>().map_err(|e| {
            Failure::io("descriptors for the program", &e.into()).fix("raise `ulimit -n`")
        })?;
        Ok(Inherited { fds })
    }

    /// What the program is told.
    pub fn describe<'a>(
        &self,
        attachment: &Attachment,
        run: u32,
        pool: &'a [u8],
        at: &'a [u8],
    ) -> SessionEnv<'a> {
        let answer = &attachment.answer;
        let segment = |index: usize, len| Segment {
            fd: self.number(index),
            len,
        };
        SessionEnv {
            session: segment(0, answer.session_len),
            meta: segment(1, answer.meta_len),
            journal: segment(2, answer.journal_len),
            data: segment(3, answer.data_len),
            base: self.number(4),
            medium: answer.medium,
            run,
            slot: 0,
            cpu: holdfast_pmem::cpu::features(),
            pool,
            at,
        }
    }

    fn number(&self, index: usize) -> i32 {
        self.fds.get(index).map_or(0, |fd| fd.as_raw_fd())
    }
}

fn duplicate(fd: &OwnedFd, first: i32) -> rustix::io::Result<OwnedFd> {
    let copy = rustix::io::fcntl_dupfd_cloexec(fd.as_fd(), first)?;
    rustix::io::fcntl_setfd(&copy, FdFlags::empty())?;
    Ok(copy)
}

/// What every descriptor of a pool file is a duplicate of.
fn open_base(pool: &Path) -> Result<OwnedFd, Failure> {
    let path = pool.join(BASE);
    let open = |flags| rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR);
    let flags = OFlags::from_bits_retain(NO_ACCESS) | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let base = match open(flags) {
        Err(rustix::io::Errno::NOENT) => {
            let made = open(OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW);
            made.and_then(|_| open(flags))
        }
        base => base,
    };
    base.map_err(|e| Failure::io(path.display(), &e.into()))
}
