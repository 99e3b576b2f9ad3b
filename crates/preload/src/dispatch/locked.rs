//! mlockall(2): everything of the program, and of the pool only what the program mapped.
//!
//! Invariant: what this process has mapped for its own calls (session memory and the segments)
//! stays unlocked. It is far larger than the program, and locking would fill what is sparse.

use super::args::{self, Errno};
use super::nr;
use super::outcome::{Outcome, Stop};
use super::process::Process;
use crate::{maps, sys};

type Args = [usize; 6];

const MCL_CURRENT: usize = 1;
const MCL_FUTURE: usize = 2;
const MCL_ONFAULT: usize = 4;
const MLOCK_ONFAULT: usize = 1;

fn kernel(nr: usize, words: [usize; 6]) -> Result<(), Errno> {
    // SAFETY: locks memory, or unlocks it, and changes nothing in it.
    args::result(unsafe { sys::raw(nr, words) }).map(drop)
}

pub fn mlockall(p: &Process, a: &Args) -> Outcome {
    // What is kept would be locked as well.
    super::mapping::stop(super::mapping::Stopped::StoppedLocked);
    let flags = a[0];
    if flags & MCL_CURRENT == 0 || flags & !(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) != 0 {
        return Err(Stop::Native);
    }
    if let Err(e) = lock_what_is_there(p, flags & MCL_ONFAULT == 0) {
        kernel(nr::MUNLOCKALL, [0; 6])?;
        return Err(e.into());
    }
    if flags & MCL_FUTURE != 0 {
        kernel(nr::MLOCKALL, [flags & !MCL_CURRENT, 0, 0, 0, 0, 0])?;
    }
    Ok(0)
}

/// Locks each mapping: first as it is, which fails only where the limit or a right is missing;
/// then, as the kernel does, it fills what can be filled.
fn lock_what_is_there(p: &Process, fill: bool) -> Result<(), Errno> {
    let own = p.client.own_memory();
    let is_own = |at: usize| {
        own.iter()
            .any(|(start, len)| at.wrapping_sub(*start) < *len)
    };
    let regions = maps::read();
    let is_kernels = |at: usize| at as isize <= 0;
    let wanted = regions
        .iter()
        .filter(|r| !is_own(r.start) && !is_kernels(r.start));
    for r in wanted.clone() {
        kernel(
            nr::MLOCK2,
            [r.start, r.end - r.start, MLOCK_ONFAULT, 0, 0, 0],
        )?;
    }
    for r in wanted.filter(|_| fill) {
        // Guard pages, and what lies behind the end of a file, cannot be.
        let _ = kernel(nr::MLOCK2, [r.start, r.end - r.start, 0, 0, 0, 0]);
    }
    Ok(())
}
