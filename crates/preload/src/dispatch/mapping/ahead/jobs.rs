//! The mappings that the helper looks after.
//!
//! Invariants: jobs do not overlap, and lie in mappings of files that are there. The helper maps a
//! chunk only while it is `BUSY` with it, which it becomes under the lock, and only if the chunk
//! still belongs to the job; who removes addresses waits until it is not busy with them. So nothing
//! is mapped where `remove` has returned. A job that loses addresses gets another number, so that
//! what the helper still knows of it is forgotten.

use super::stream::{Expect, Stream};
use crate::dispatch::mutex::Mutex;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};
use holdfast_pmem::env;

/// More mappings than a program reads at a time.
const JOBS_MAX: usize = 16;
/// Mappings of files that advice may be given for.
const KNOWN_MAX: usize = 64;

/// Addresses at which a file is mapped.
#[derive(Clone, Copy)]
pub struct Range {
    pub start: usize,
    pub end: usize,
    /// Nothing of the file is read from anywhere.
    pub is_memory: bool,
}

impl Range {
    fn is_some(&self) -> bool {
        self.start < self.end
    }

    /// As much of it as lies between these.
    fn between(self, from: usize, to: usize) -> Range {
        Range {
            start: self.start.max(from),
            end: self.end.min(to),
            ..self
        }
    }
}

const NOWHERE: Range = Range {
    start: 0,
    end: 0,
    is_memory: false,
};

#[derive(Clone, Copy)]
pub struct Job {
    pub number: u32,
    /// The first chunk showed that its pages are small.
    pub is_small: bool,
    pub is_memory: bool,
    pub stream: Stream,
    /// When it is looked at next, in microseconds.
    due_us: u64,
}

struct Jobs {
    list: [Option<Job>; JOBS_MAX],
    /// What was mapped, also if nothing is to be done there.
    known: [Range; KNOWN_MAX],
    number: u32,
}

const NONE: Jobs = Jobs {
    list: [None; JOBS_MAX],
    known: [NOWHERE; KNOWN_MAX],
    number: 0,
};

static JOBS: Mutex<Jobs> = Mutex::new(NONE);
/// Entries of `known`, which has one for each job.
static KNOWN: AtomicU32 = AtomicU32::new(0);
/// The chunk that is being mapped; length 0: none.
static BUSY: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// What the helper does next.
pub enum Next {
    Serve(Job),
    /// Nothing before this time.
    Later(u64),
    Nothing,
}

impl Jobs {
    fn take_number(&mut self) -> u32 {
        self.number = self.number.wrapping_add(1);
        self.number
    }

    fn push(&mut self, job: Job) {
        let number = self.take_number();
        let free = self.list.iter_mut().find(|slot| slot.is_none());
        // Without room it is mapped by its faults, as without us.
        if let Some(slot) = free {
            *slot = Some(Job { number, ..job });
        }
    }

    fn cut(&mut self, from: usize, to: usize) {
        for i in 0..JOBS_MAX {
            let hit = self.list[i].filter(|job| job.stream.start() < to && from < job.stream.end());
            let Some(job) = hit else { continue };
            self.list[i] = None;
            for stream in job.stream.without(from, to).into_iter().flatten() {
                self.push(Job { stream, ..job });
            }
        }
    }

    fn forget(&mut self, from: usize, to: usize) {
        for i in 0..KNOWN_MAX {
            let range = self.known[i];
            if range.between(from, to).is_some() {
                self.known[i] = range.between(0, from);
                self.know(range.between(to, usize::MAX));
            }
        }
        self.count();
    }

    fn know(&mut self, range: Range) {
        let free = self.known.iter_mut().find(|range| !range.is_some());
        if let Some(slot) = free.filter(|_| range.is_some()) {
            *slot = range;
        }
    }

    fn count(&self) {
        let known = self.known.iter().filter(|range| range.is_some());
        KNOWN.store(known.count() as u32, Release);
    }

    fn find(&mut self, number: u32) -> Option<&mut Option<Job>> {
        let is_it = |slot: &&mut Option<Job>| slot.is_some_and(|job| job.number == number);
        self.list.iter_mut().find(is_it)
    }
}

/// Whether nothing of what is mapped is known here.
#[inline]
pub fn is_empty() -> bool {
    KNOWN.load(Acquire) == 0
}

/// A job for these addresses, in place of what was there.
pub fn add(range: Range, how: Expect) {
    let Range {
        start,
        end,
        is_memory,
    } = range;
    let mut jobs = JOBS.lock();
    jobs.cut(start, end);
    jobs.push(Job {
        number: 0,
        is_small: false,
        is_memory,
        stream: Stream::new(start, end, how),
        due_us: 0,
    });
    jobs.forget(start, end);
    jobs.know(range);
    jobs.count();
}

/// As much of these addresses as lies in one mapping that is known.
pub fn known(from: usize, to: usize) -> Option<Range> {
    if is_empty() {
        return None;
    }
    let jobs = JOBS.lock();
    let inside = jobs.known.iter().map(|range| range.between(from, to));
    let longest = inside
        .filter(Range::is_some)
        .max_by_key(|range| range.end - range.start);
    longest
}

/// Nothing is mapped ahead at these addresses when this returns.
pub fn remove(from: usize, to: usize) {
    let mut jobs = JOBS.lock();
    jobs.cut(from, to);
    jobs.forget(from, to);
    drop(jobs);
    await_idle(from, to);
}

fn is_busy(from: usize, to: usize) -> bool {
    let len = BUSY[1].load(Acquire);
    let addr = BUSY[0].load(Acquire);
    len != 0 && addr < to && from < addr + len
}

fn await_idle(from: usize, to: usize) {
    let mut spins = 0u32;
    while is_busy(from, to) {
        core::hint::spin_loop();
        spins += 1;
        if spins.is_multiple_of(1024) {
            env::yield_now();
        }
    }
}

/// All jobs end; what is mapped stays known.
pub fn clear() {
    JOBS.lock().list = [None; JOBS_MAX];
    await_idle(0, usize::MAX);
}

/// The job that is to be looked at first.
pub fn next(now_us: u64) -> Next {
    let jobs = JOBS.lock();
    match jobs.list.iter().flatten().min_by_key(|job| job.due_us) {
        None => Next::Nothing,
        Some(job) if job.due_us > now_us => Next::Later(job.due_us),
        Some(job) => Next::Serve(*job),
    }
}

/// Calls `f` with a chunk of job `number` if that still has it. `None`: it has not.
pub fn with_chunk<T>(number: u32, addr: usize, len: usize, f: impl FnOnce() -> T) -> Option<T> {
    let mut jobs = JOBS.lock();
    jobs.find(number)?;
    BUSY[0].store(addr, Release);
    BUSY[1].store(len, Release);
    drop(jobs);
    let done = f();
    BUSY[1].store(0, Release);
    Some(done)
}

/// The job is looked at again then. `None`: never.
pub fn put_back(job: &Job, due_us: Option<u64>) {
    let mut jobs = JOBS.lock();
    if let Some(slot) = jobs.find(job.number) {
        *slot = due_us.map(|due_us| Job { due_us, ..*job });
    }
}

/// The job stays as it is until then.
pub fn delay(number: u32, due_us: u64) {
    if let Some(Some(job)) = JOBS.lock().find(number) {
        job.due_us = due_us;
    }
}

pub fn hold_still() -> impl Sized {
    JOBS.lock()
}

/// In the child of a fork, which has one thread.
pub fn forked() {
    JOBS.renew(NONE);
    KNOWN.store(0, Release);
    BUSY[1].store(0, Release);
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use core::sync::atomic::AtomicBool;
    use std::thread;
    use std::time::Duration;

    const MIB: usize = 1 << 20;

    fn take() -> Option<Job> {
        match next(u64::MAX) {
            Next::Serve(job) => Some(job),
            _ => None,
        }
    }

    /// One test, because there is one list.
    #[test]
    fn who_removes_addresses_waits_for_the_chunk_and_none_follows() {
        static DONE: AtomicBool = AtomicBool::new(false);
        let range = Range {
            start: 64 * MIB,
            end: 128 * MIB,
            is_memory: false,
        };
        assert!(is_empty() && take().is_none());
        add(range, Expect::Unknown);
        assert!(!is_empty() && known(100 * MIB, 200 * MIB).is_some_and(|r| r.end == range.end));
        let job = take().expect("the job");
        let helper = thread::spawn(move || {
            with_chunk(job.number, 70 * MIB, MIB, || {
                thread::sleep(Duration::from_millis(300));
                DONE.store(true, Release);
            })
        });
        while !is_busy(70 * MIB, 71 * MIB) {
            thread::yield_now();
        }
        remove(72 * MIB, 73 * MIB);
        assert!(!DONE.load(Acquire), "it waited for another chunk");
        remove(70 * MIB, 70 * MIB + 4096);
        assert!(DONE.load(Acquire), "it did not wait");
        assert!(helper.join().expect("no panic").is_some());
        // What the helper still knows of the job is of no use.
        assert_eq!(with_chunk(job.number, 80 * MIB, MIB, || ()), None);
        put_back(&job, Some(0));
        let mut parts = 0;
        while let Some(part) = take() {
            assert_ne!(part.number, job.number);
            put_back(&part, None);
            parts += 1;
        }
        assert_eq!(parts, 3);
        remove(0, usize::MAX);
        assert!(is_empty() && take().is_none());
    }
}
