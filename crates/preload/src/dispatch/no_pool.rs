//! The calls of a program that runs without a pool (`holdfast run --no-pool`): its mappings alone
//! are looked at.
//!
//! Invariants: no descriptor of ours is open in the program while its own code runs; a call that
//! is not about mappings, and that no invariant of `mapping` depends on, never enters the hook. A
//! program started with another environment is an ordinary one.

use super::mapping;
use super::nr;
use super::outcome::{Outcome, Stop};
use crate::calls;
use crate::hook::{Call, Verdict};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use holdfast_client::env::SessionEnv;

static ON: AtomicBool = AtomicBool::new(false);

/// Before the program's first instruction, and before anything is patched. False: leave it alone.
pub fn start(session: &SessionEnv) -> bool {
    let Some(settings) = session.map else {
        return false;
    };
    calls::catch_without_pool();
    if let Some(at) = session.record {
        mapping::count_in(at);
    }
    mapping::start(settings, 0);
    ON.store(true, Relaxed);
    true
}

pub fn is_on() -> bool {
    ON.load(Relaxed)
}

/// One caught call.
pub fn handle(call: &Call) -> Verdict {
    if let Err(Stop::Passed(result)) = answer(call) {
        return Verdict::Handled(result);
    }
    mapping::passing(call, 0);
    Verdict::Native
}

fn answer(call: &Call) -> Outcome {
    let a = &call.args;
    match call.nr {
        nr::MMAP => {
            mapping::before_mmap(a);
            return mapping::mmap(a);
        }
        nr::MUNMAP => return mapping::munmap(a),
        nr::MREMAP => {
            mapping::before_mremap(a);
            return mapping::mremap(a);
        }
        nr::MADVISE => return Err(Stop::Passed(mapping::madvise(a))),
        nr::MPROTECT | nr::PKEY_MPROTECT | nr::REMAP_FILE_PAGES | nr::MLOCK | nr::MLOCK2 => {
            mapping::gone(a[0], a[1]);
        }
        nr::MUNLOCK | nr::MSYNC => mapping::looked_at(a[0], a[1]),
        nr::MLOCKALL => mapping::stop(mapping::Stopped::StoppedLocked),
        nr::EXIT_GROUP | nr::EXECVE | nr::EXECVEAT => mapping::ending(),
        nr::UNSHARE | nr::SETNS => mapping::stand_alone(),
        nr::SETUID..=nr::SETGID | nr::SETREUID..=nr::SETREGID | nr::SETGROUPS..=nr::CAPSET => {
            mapping::stand_alone();
        }
        _ => {
            mapping::unhandled(call);
        }
    }
    Err(Stop::Native)
}
