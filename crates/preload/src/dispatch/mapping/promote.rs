//! Huge pages for files in memory that a program maps again and again (`promote`).
//!
//! Invariants: no byte of a file changes, and no memory is made of its holes: a file with holes is
//! left alone, and so is a huge page of which a page is not in memory. The helper works in a
//! mapping of our own, one file at a time; it is gone before anything of the program is mapped at
//! its addresses, before a call that would see it, and once the file is done. Of the time, no more
//! than one part in `REST` goes into it. What it costs a file it has cost already to map it by
//! small pages.

use super::ahead::{self, Pagemap, is_resident};
use super::file::{TMPFS, kind_of_system};
use super::{Args, Span, count, watch};
use crate::dispatch::mutex::Mutex;
use crate::dispatch::nr;
use crate::sys;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use holdfast_pmem::env;

const HUGE: usize = 2 << 20;
/// Larger files are left as they are.
const LEN_MAX: usize = 1 << 30;
/// A file that was mapped as often as this by small pages has cost what huge ones do: 4.4 ms for
/// each, where mapping, touching and unmapping 2 MiB takes some 0.15 ms.
const TIMES: usize = 32;
/// Files whose mappings are counted.
const FILES: usize = 16;
/// After each piece of work, so many times as long without any.
const REST: u64 = 9;
const MADV_DONTFORK: usize = 10;
const MADV_POPULATE_READ: usize = 22;
const MADV_COLLAPSE: usize = 25;
const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;

static ON: AtomicBool = AtomicBool::new(false);
static STATE: Mutex<State> = Mutex::new(State::new());
/// Where the mapping of our own is; length 0: there is none.
static OWN: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// The helper works at the job, without the lock: one piece takes some milliseconds.
static BUSY: AtomicBool = AtomicBool::new(false);

struct State {
    files: [File; FILES],
    /// The file that is counted in the place of another next.
    next: usize,
    job: Option<Job>,
}

/// A file, and the bytes of it that were mapped.
#[derive(Clone, Copy)]
struct File {
    dev: u64,
    ino: u64,
    mapped: usize,
}

/// The mapping of our own.
#[derive(Clone, Copy)]
struct Job {
    /// Its place among `State::files`.
    file: usize,
    start: usize,
    at: usize,
    end: usize,
    /// No work before.
    due_us: u64,
}

impl State {
    const fn new() -> State {
        State {
            files: [File {
                dev: 0,
                ino: 0,
                mapped: 0,
            }; FILES],
            next: 0,
            job: None,
        }
    }

    /// Counts bytes that were mapped of a file; its place, if they are `TIMES` its size for the
    /// first time.
    fn count(&mut self, (dev, ino): (u64, u64), len: usize, size: usize) -> Option<usize> {
        let known = self.files.iter().position(|f| (f.dev, f.ino) == (dev, ino));
        let at = known.unwrap_or(self.next);
        if known.is_none() {
            self.next = (self.next + 1) % FILES;
            self.files[at] = File {
                dev,
                ino,
                mapped: 0,
            };
        }
        let file = &mut self.files[at];
        let before = file.mapped / size;
        file.mapped = file.mapped.saturating_add(len);
        (before < TIMES && file.mapped / size >= TIMES).then_some(at)
    }
}

/// Before the program's first instruction.
pub fn start(on: bool) {
    ON.store(on, Relaxed);
}

/// A file of the host was mapped anew.
pub fn mapped(a: &Args) {
    let [_, len, _, _, fd, _] = *a;
    if len < HUGE || !ON.load(Relaxed) || watch::is_passive() || crate::process::is_shared() {
        return;
    }
    if kind_of_system(fd) != Some(TMPFS) || !ahead::has_helper() {
        return;
    }
    let Some(stat) = sys::stat_fd(fd) else { return };
    let size = stat.size as usize / HUGE * HUGE;
    let whole = (stat.blocks as usize).saturating_mul(512) >= stat.size as usize;
    if stat.mode & S_IFMT != S_IFREG || !whole || !(HUGE..=LEN_MAX).contains(&size) {
        return;
    }
    let mut state = STATE.lock();
    if state.job.is_some() {
        return;
    }
    if let Some(file) = state.count((stat.dev, stat.ino), len.min(size), size) {
        state.job = own_mapping(fd, size, file);
        drop(state);
        ahead::wake();
    }
}

/// A mapping of the file where huge pages fit, which no child inherits.
fn own_mapping(fd: usize, len: usize, file: usize) -> Option<Job> {
    const MAP_SHARED: usize = 1;
    let args = [0, len, super::PROT_READ, MAP_SHARED, fd, 0];
    let start = super::place::map(&args).filter(|at| *at > 0)? as usize;
    let job = Job {
        file,
        start,
        at: start,
        end: start + len,
        due_us: 0,
    };
    OWN[0].store(start, Relaxed);
    OWN[1].store(len, Release);
    // SAFETY: ours.
    let alone = unsafe { sys::raw(nr::MADVISE, [start, len, MADV_DONTFORK, 0, 0, 0]) } == 0;
    match alone {
        true => Some(job),
        false => {
            unmap(&job);
            None
        }
    }
}

fn unmap(job: &Job) {
    // SAFETY: ours, and nobody else knows of it.
    unsafe { sys::unmap(job.start, job.end - job.start) };
    OWN[1].store(0, Release);
}

/// Whether there is something to do, now or later.
pub fn is_idle() -> bool {
    OWN[1].load(Acquire) == 0
}

/// The helper's next piece of work, if it is time.
pub fn work(pages: &Pagemap, now: fn() -> u64) {
    let Some(mut job) = begin(now()) else {
        return;
    };
    let begun = now();
    let done = join(pages, job.at);
    job.at += HUGE;
    job.due_us = now() + (now() - begun) * REST;
    if done == Ok(true) {
        count::add(count::What::Promotions, 1);
    }
    // A kernel that cannot do it cannot do it later.
    if done == Err(EINVAL) {
        ON.store(false, Relaxed);
    }
    let goes_on = done.is_ok() && job.at < job.end;
    let mut state = STATE.lock();
    state.job = goes_on.then_some(job);
    if !goes_on {
        unmap(&job);
    }
    BUSY.store(false, Release);
}

/// No core is free: the file is left alone until it was mapped as often again.
pub fn give_up() {
    let mut state = STATE.lock();
    if let Some(job) = state.job.take() {
        unmap(&job);
        state.files[job.file].mapped = 0;
    }
}

/// The job, if it is due; who wants it gone waits from now on.
fn begin(now_us: u64) -> Option<Job> {
    let state = STATE.lock();
    let job = state.job.filter(|job| job.due_us <= now_us)?;
    BUSY.store(true, Relaxed);
    Some(job)
}

const EINVAL: isize = -22;

/// Joins the pages of one huge page; whether they were small before.
fn join(pages: &Pagemap, at: usize) -> Result<bool, isize> {
    if !(at..at + HUGE)
        .step_by(HUGE / 4)
        .all(|part| is_resident(part, HUGE / 4))
    {
        return Ok(false);
    }
    let advise = |len, advice| {
        // SAFETY: our own mapping; none of this advice changes what a page holds.
        unsafe { sys::raw(nr::MADVISE, [at, len, advice, 0, 0, 0]) }
    };
    if advise(super::PAGE, MADV_POPULATE_READ) == 0 && pages.has_huge(at, at + HUGE) {
        return Ok(false);
    }
    match advise(HUGE, MADV_COLLAPSE) {
        0 => Ok(true),
        // There is no memory for it now, or the kernel cannot.
        error => Err(error),
    }
}

/// Before the program uses addresses of its choice, or asks the kernel of them.
#[inline]
pub fn clear(span: Span) {
    if !is_idle() {
        clear_within(span);
    }
}

#[cold]
fn clear_within(span: Span) {
    let (start, len) = (OWN[0].load(Relaxed), OWN[1].load(Acquire));
    if start < span.addr.saturating_add(span.len) && span.addr < start + len {
        stop_job();
    }
}

/// No file is worked on when this returns.
pub fn stop_job() {
    if is_idle() {
        return;
    }
    loop {
        let mut state = STATE.lock();
        if !BUSY.load(Acquire) {
            state.job.take().iter().for_each(unmap);
            return;
        }
        drop(state);
        env::yield_now();
    }
}

/// The addresses that our mapping takes are free again; whether there was one.
pub fn give_way() -> bool {
    let some = !is_idle();
    stop_job();
    some
}

/// From now on no file is worked on.
pub fn stop() {
    ON.store(false, Relaxed);
    stop_job();
}

/// Before a fork: nobody changes the list while the value lives.
pub fn hold_still() -> impl Sized {
    STATE.lock()
}

/// In a forked child, which has not inherited the mapping.
pub fn forked() {
    STATE.renew(State::new());
    BUSY.store(false, Relaxed);
    OWN[1].store(0, Release);
}
