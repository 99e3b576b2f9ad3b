//! Stopped processes that hold what others wait for.
//!
//! The kernel delays a stop (SIGSTOP, Ctrl-Z) until a system call is over. The calls that Holdfast
//! serves end in the program itself, where a stop may find it with locks held. So the service makes
//! the process continue until the lock that others wait for is free, and stops it again.
//!
//! Invariants:
//!  * Only a process that is stopped, and that holds a lock of the session, is made to continue; it
//!    is stopped again, at the latest after `GOES_ON_MAX`.
//!  * Clients say what they wait for. That is checked, and costs a look each `PAUSE`.
//!  * A process that a debugger or a frozen control group holds cannot be helped: others wait, and
//!    `pool status` names the process that they wait for.

use crate::base::process;
use crate::session::memory::Memory;
use holdfast_pmem::env::{self, Instant};
use holdfast_pmem::futex;
use holdfast_pool::session::{OWNER_WAITERS, Stall};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two looks at what clients say.
const PAUSE: Duration = Duration::from_millis(10);
/// Between two looks at the lock of a process that was made to go on.
const STEP: Duration = Duration::from_micros(200);
/// So long a stopped process may go on.
const GOES_ON_MAX: Duration = Duration::from_secs(1);
/// Who keeps others waiting for longer is named.
const WORTH_NAMING: Duration = Duration::from_millis(500);
/// Who waits says so more often than this.
const FORGOTTEN: Duration = Duration::from_millis(500);
/// The bell is asked for as often, should a client have silenced it.
const BELL_MAX: Duration = Duration::from_secs(1);

/// Somebody who keeps others waiting.
#[derive(Clone, Copy, Debug)]
struct Holder {
    stall: Stall,
    pid: u32,
    state: u8,
    since: Instant,
    /// When a client said so last.
    said: Instant,
}

struct Watch {
    memory: Arc<Memory>,
    holder: Mutex<Option<Holder>>,
    ended: AtomicBool,
}

/// Looks after the stopped processes of a session.
pub struct Stalls {
    watch: Arc<Watch>,
    thread: Option<JoinHandle<()>>,
}

impl Stalls {
    /// Of the session that has `memory`.
    pub fn watch(memory: Arc<Memory>) -> Stalls {
        let watch = Arc::new(Watch {
            memory,
            holder: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        let thread = Watch::start(watch.clone());
        Stalls { watch, thread }
    }

    /// A sentence about who keeps others waiting.
    pub fn describe(&self) -> Option<String> {
        let holder = (*self.watch.holder())?;
        let waited = holder.said.duration_since(holder.since);
        let still = self.watch.holds(holder.stall) && holder.said.elapsed() < FORGOTTEN;
        (still && waited > WORTH_NAMING).then(|| {
            let why = match holder.state {
                b'T' => "is stopped and may not be made to go on from here",
                b't' => "is stopped by a debugger",
                _ => "does not go on",
            };
            let who = match holder.pid {
                0 => "a process of another PID namespace".into(),
                pid => format!("process {pid}"),
            };
            let waited = waited.as_secs_f64();
            format!("others have waited {waited:.1} s for {who}, which {why}")
        })
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.watch.ended.store(true, Release);
        let bell = &self.watch.memory.header().stalled_bell;
        bell.fetch_add(1, Release);
        futex::wake(bell, u32::MAX);
        self.thread.take().map(JoinHandle::join);
    }
}

impl Watch {
    /// Without it others wait until whoever stopped the process lets it go on.
    fn start(watch: Arc<Watch>) -> Option<JoinHandle<()>> {
        // A scheduler knows nothing of threads of the system, and stops no process.
        if cfg!(feature = "model") {
            return None;
        }
        let thread = std::thread::Builder::new().name("stalls".into());
        thread.spawn(move || watch.run()).ok()
    }

    fn run(&self) {
        let header = self.memory.header();
        while !self.ended.load(Acquire) {
            let bell = header.stalled_bell.load(Acquire);
            let said = header.stalled.load(Acquire);
            let Some(stall) = Stall::decode(said) else {
                futex::wait(&header.stalled_bell, bell, Some(BELL_MAX));
                continue;
            };
            self.look_after(stall);
            // Who still waits says so again.
            let _ = header.stalled.compare_exchange(said, 0, AcqRel, Relaxed);
            env::sleep(PAUSE);
        }
    }

    fn holder(&self) -> MutexGuard<'_, Option<Holder>> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn holds(&self, stall: Stall) -> bool {
        let word = |word: &holdfast_pmem::atomic::AtomicU32| word.load(Acquire) & !OWNER_WAITERS;
        self.memory.lock_word(stall.at).map(word) == Some(stall.owner)
    }

    fn look_after(&self, stall: Stall) {
        let Some(pid) = self
            .memory
            .owner_pid(stall.owner)
            .filter(|_| self.holds(stall))
        else {
            return;
        };
        let state = process::state(pid).unwrap_or(0);
        let stopped = (state == b'T').then(|| self.open(pid, stall)).flatten();
        if !stopped.is_some_and(|process| self.let_go_on(pid, &process, stall)) {
            self.note(pid, state, stall);
        }
    }

    /// The process, if it still is the one that is meant.
    fn open(&self, pid: u32, stall: Stall) -> Option<OwnedFd> {
        let number = Pid::from_raw(pid.cast_signed())?;
        let process = pidfd_open(number, PidfdFlags::empty()).ok()?;
        // Its number may have gone to another one before that.
        (self.memory.owner_pid(stall.owner) == Some(pid)).then_some(process)
    }

    /// Lets a stopped process go on until the lock is free; whether it is.
    fn let_go_on(&self, pid: u32, process: &OwnedFd, stall: Stall) -> bool {
        let begun = Instant::now();
        if pidfd_send_signal(process, Signal::CONT).is_err() {
            return false;
        }
        while self.holds(stall) && begun.elapsed() < GOES_ON_MAX && !self.ended.load(Acquire) {
            env::sleep(STEP);
        }
        let stopped = pidfd_send_signal(process, Signal::STOP);
        let took = begun.elapsed();
        tracing::debug!("process {pid} was stopped amid a call, and went on for {took:?}");
        stopped.is_ok() && !self.holds(stall)
    }

    fn note(&self, pid: u32, state: u8, stall: Stall) {
        let (mut holder, now) = (self.holder(), Instant::now());
        let same = |h: &Holder| h.stall == stall && now.duration_since(h.said) < FORGOTTEN;
        *holder = Some(Holder {
            stall,
            pid,
            state,
            since: holder.filter(same).map_or(now, |h| h.since),
            said: now,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::memory::Constants;

    const SLOT: u32 = 3;

    fn memory() -> Arc<Memory> {
        let constants = Constants {
            consistency: 0,
            medium: 0,
            data_len: 1 << 24,
            data_room: 1 << 24,
            lane_len: 1 << 20,
        };
        let memory = Memory::create("stalls", &constants).unwrap();
        memory.pretend_to_be(SLOT as usize);
        Arc::new(memory)
    }

    /// Says that somebody waits for lane 0, until `done`.
    fn say_until(memory: &Memory, done: impl Fn() -> bool) {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed().as_secs() < 20, "nobody listens");
            memory.tell_stalled(0);
            std::thread::sleep(PAUSE);
        }
    }

    #[test]
    fn who_keeps_others_waiting_is_named_until_they_have_it() {
        let memory = memory();
        let stalls = Stalls::watch(memory.clone());
        let lock = &memory.lane(0).unwrap().lock;
        lock.store(SLOT + 1, Release);
        say_until(&memory, || stalls.describe().is_some());
        let said = stalls.describe().unwrap();
        let us = format!("process {}, which does not go on", std::process::id());
        assert!(said.contains(&us), "{said}");
        lock.store(0, Release);
        assert_eq!(stalls.describe(), None);
    }

    #[test]
    fn what_is_said_wrong_does_nothing() {
        let memory = memory();
        let stalls = Stalls::watch(memory.clone());
        let header = memory.header();
        let told = |owner, at| header.stalled.store(Stall { owner, at }.encode(), Release);
        for (owner, at) in [(SLOT + 1, u64::from(u32::MAX) * 4), (SLOT + 1, 64), (1, 8)] {
            told(owner, at);
            header.stalled_bell.fetch_add(1, Release);
            futex::wake(&header.stalled_bell, 1);
            let begun = Instant::now();
            while header.stalled.load(Acquire) != 0 {
                assert!(begun.elapsed().as_secs() < 20, "it is not cleared");
                std::thread::yield_now();
            }
        }
        assert_eq!(stalls.describe(), None);
    }
}
