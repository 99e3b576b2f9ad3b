//! Opening pipes of the kernel that have a name, which waits for the other side.
//!
//! Invariants: the kernel's own call waits, so both sides meet as they do without us. A thread is
//! in the list, with what ends its wait, until that call has returned; while the list is not empty
//! one thread looks through it.

use crate::threads;
use holdfast_pmem::interrupt;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often it is looked whether a wait is to end.
const LOOK: Duration = Duration::from_millis(5);

struct Waiting {
    thread: u32,
    must_end: Box<dyn Fn() -> bool + Send>,
}

struct List {
    waiting: Vec<Waiting>,
    is_watched: bool,
}

static LIST: Mutex<List> = Mutex::new(List {
    waiting: Vec::new(),
    is_watched: false,
});

fn list() -> MutexGuard<'static, List> {
    LIST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// open(2) of a pipe. EINTR: `must_end` said so.
pub fn open(
    path: &Path,
    flags: OFlags,
    must_end: impl Fn() -> bool + Send + 'static,
) -> Result<OwnedFd, Errno> {
    let thread = interrupt::own_thread();
    let must_end = Box::new(must_end);
    let mut all = list();
    if !all.is_watched && !(interrupt::allow() && threads::run(watch)) {
        return Err(Errno::NOMEM);
    }
    all.is_watched = true;
    all.waiting.push(Waiting { thread, must_end });
    drop(all);
    let opened = rustix::fs::open(path, flags, Mode::empty());
    list().waiting.retain(|waiting| waiting.thread != thread);
    opened
}

fn watch() {
    loop {
        std::thread::sleep(LOOK);
        let mut all = list();
        if all.waiting.is_empty() {
            all.is_watched = false;
            return;
        }
        let ended = all.waiting.iter().filter(|waiting| (waiting.must_end)());
        ended.for_each(|waiting| interrupt::interrupt(waiting.thread));
    }
}
