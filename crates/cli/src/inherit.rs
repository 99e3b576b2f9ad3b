//! The descriptors that a program and all its children inherit from `run`.
//!
//! Invariants: they are just above the limit of descriptors, where the program gets none and closes
//! none; below it if the hard limit ends there, and below 1024 if the limit is higher, so that the
//! kernel's tables stay small. Programs find the low numbers free. They survive exec.
//! By a call that Holdfast missed, the kernel may be asked to do on two of them what was meant for
//! the pool. Nothing can be read, written or created there, even by root.

use crate::args::RunArgs;
use crate::failure::Failure;
use crate::{owner, trace};
use holdfast_client::attach::Attachment;
use holdfast_client::env::{Segment, SessionEnv};
use holdfast_client::{MapSettings, TraceFilter, TraceSettings};
use holdfast_pmem::Slow;
use holdfast_pool::segment::EMPTY_DIR;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::{Errno, FdFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::path::{Path, PathBuf};

/// Above the highest descriptor that select(2) can watch nothing of ours is needed.
const TOP_MAX: u64 = 1024;
/// How many there are, with the one for a trace.
const COUNT: u64 = 7;
/// Runs inside each other for which there is room above the limit.
const RUNS_WITHIN: u64 = 8;
/// open(2): neither reading nor writing is possible.
const NO_ACCESS: u32 = 3;

/// So many times `..` leads from the parking directory to a removed one.
const DEPTH: usize = 8;

/// Session memory, meta, journal, data, base and parking, in this order; or what a program has that
/// is served. Behind them, where calls are written down.
pub struct Inherited {
    fds: Vec<OwnedFd>,
    trace: Option<TraceSettings>,
}

impl Inherited {
    /// Puts duplicates of what the service gave us where a program inherits them.
    pub fn prepare(
        attachment: &Attachment,
        pool: &Path,
        args: &RunArgs,
    ) -> Result<Inherited, Failure> {
        let (base, parking) = (open_base()?, open_parking(pool)?);
        let a = attachment;
        let memory = crate::session::memory(a)?;
        let all = [
            memory,
            a.meta.as_fd(),
            a.journal.as_fd(),
            a.data.as_fd(),
            base.as_fd(),
            parking.as_fd(),
        ];
        Inherited::of(&all, args)
    }

    fn of(all: &[BorrowedFd<'_>], args: &RunArgs) -> Result<Inherited, Failure> {
        let output = args.trace.as_deref().map(trace::output).transpose()?;
        let output = output.as_ref().map(AsFd::as_fd);
        let all: Vec<BorrowedFd<'_>> = all.iter().copied().chain(output).collect();
        let limit = getrlimit(Resource::Nofile);
        let fds = above(&all, &limit).or_else(|_| below(&all, &limit));
        let fds = fds.map_err(|e| {
            Failure::io("descriptors for the program", &e.into()).fix("raise `ulimit -n`")
        })?;
        let trace = output.and(fds.last()).map(|fd| TraceSettings {
            fd: fd.as_raw_fd().unsigned_abs(),
            filter: args.trace_filter.unwrap_or(TraceFilter::SERVED),
        });
        Ok(Inherited { fds, trace })
    }

    /// What the program is told.
    pub fn describe<'a>(
        &self,
        attachment: &Attachment,
        (run, slow): (u32, Slow),
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
            data: segment(3, answer.data_room),
            base: self.number(4),
            parking: self.number(5),
            medium: answer.medium,
            run,
            slot: 0,
            cpu: holdfast_pmem::cpu::features(),
            keep_mapped: false,
            slow,
            map: None,
            record: None,
            trace: self.trace,
            pool,
            at,
        }
    }

    /// The same for a program that is served: its connection, base and parking.
    pub fn prepare_served(
        connection: &OwnedFd,
        pool: &Path,
        args: &RunArgs,
    ) -> Result<Inherited, Failure> {
        let (base, parking) = (open_base()?, open_parking(pool)?);
        let all = [connection.as_fd(), base.as_fd(), parking.as_fd()];
        Inherited::of(&all, args)
    }

    /// What such a program is told.
    pub fn describe_served<'a>(
        &self,
        map: Option<MapSettings>,
        pool: &'a [u8],
        at: &'a [u8],
    ) -> SessionEnv<'a> {
        SessionEnv {
            trace: self.trace,
            ..SessionEnv::of_served([0, 1, 2].map(|index| self.number(index)), map, pool, at)
        }
    }

    fn number(&self, index: usize) -> i32 {
        self.fds.get(index).map_or(0, |fd| fd.as_raw_fd())
    }
}

/// Duplicates just above the limit, which is raised for that; of runs within runs, too.
fn above(fds: &[BorrowedFd<'_>], limit: &Rlimit) -> rustix::io::Result<Vec<OwnedFd>> {
    let soft = limit
        .current
        .filter(|soft| *soft <= TOP_MAX)
        .ok_or(Errno::MFILE)?;
    let wanted = soft + COUNT * RUNS_WITHIN;
    let raised = Rlimit {
        current: Some(limit.maximum.map_or(wanted, |hard| hard.min(wanted))),
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised)?;
    let made = duplicates(fds, soft);
    setrlimit(Resource::Nofile, limit.clone())?;
    made
}

/// Duplicates just below the limit, or below 1024.
fn below(fds: &[BorrowedFd<'_>], limit: &Rlimit) -> rustix::io::Result<Vec<OwnedFd>> {
    let top = limit.current.unwrap_or(TOP_MAX).min(TOP_MAX);
    duplicates(fds, top.saturating_sub(fds.len() as u64))
}

fn duplicates(fds: &[BorrowedFd<'_>], first: u64) -> rustix::io::Result<Vec<OwnedFd>> {
    let first = i32::try_from(first).unwrap_or(0);
    fds.iter().map(|fd| duplicate(*fd, first)).collect()
}

fn duplicate(fd: BorrowedFd<'_>, first: i32) -> rustix::io::Result<OwnedFd> {
    let copy = rustix::io::fcntl_dupfd_cloexec(fd, first)?;
    rustix::io::fcntl_setfd(&copy, FdFlags::empty())?;
    Ok(copy)
}

/// What every descriptor of a pool file is a duplicate of: sealed, so that also who opens it once
/// more, through /proc, cannot write to it.
fn open_base() -> Result<OwnedFd, Failure> {
    let open = || -> rustix::io::Result<OwnedFd> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("holdfast-file", flags)?;
        let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&memory, seals)?;
        let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
        let flags = OFlags::from_bits_retain(NO_ACCESS) | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty())
    };
    open().map_err(|e| Failure::io("a placeholder for files of the pool", &e.into()))
}

/// The kernel's working directory of programs whose own is in the pool. In a removed directory
/// nothing is found and nothing can be made; nor in those above it, which are removed as well.
fn open_parking(pool: &Path) -> Result<OwnedFd, Failure> {
    // A full disk must not keep programs from making room on it.
    let mut places = vec![
        pool.join(EMPTY_DIR),
        "/dev/shm".into(),
        std::env::temp_dir(),
    ];
    if owner::is_foreign(pool) {
        // Whose directory it is could have led root anywhere.
        places.remove(0);
    }
    let mut opened = Err(io::ErrorKind::NotFound.into());
    for place in &places {
        opened = removed_directory(place);
        if opened.is_ok() {
            break;
        }
    }
    opened.map_err(|e| Failure::io(places[0].display(), &e))
}

fn removed_directory(place: &Path) -> io::Result<OwnedFd> {
    let top = place.join(format!("holdfast-{}", std::process::id()));
    let inner = |levels: usize| -> PathBuf {
        let below = std::iter::repeat_n("removed", levels);
        std::iter::once(top.as_path())
            .chain(below.map(Path::new))
            .collect()
    };
    // Left by one of the same number that was killed in here.
    let _ = std::fs::remove_dir_all(&top);
    std::fs::create_dir_all(inner(DEPTH))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::chmod(inner(DEPTH), Mode::from_raw_mode(0o555))
        .and_then(|()| rustix::fs::open(inner(DEPTH), flags, Mode::empty()));
    for levels in (0..=DEPTH).rev() {
        std::fs::remove_dir(inner(levels))?;
    }
    Ok(opened?)
}
