//! Calls that change the credentials of the process.
//!
//! Invariant: the kernel decides; we look at the result.

use super::args;
use super::leaving;
use super::mapping;
use super::nr;
use super::outcome::{Outcome, Stop};
use super::process::{Process, ids};
use crate::sys;
use holdfast_client::env::INSIDE;

type Args = [usize; 6];

pub fn umask(p: &Process, a: &Args) -> Outcome {
    // SAFETY: changes the mask only.
    let old = unsafe { sys::raw(nr::UMASK, *a) };
    p.client.set_creation_mask(a[0] as u32);
    Ok(old)
}

const PR_SET_NAME: usize = 15;

/// prctl(2), after which the kernel may refuse to tell us.
pub fn prctl(p: &Process, a: &Args) -> Outcome {
    if a[0] == PR_SET_NAME {
        let name = args::read_bytes::<16>(a[1]).unwrap_or_default();
        if name == *INSIDE.to_bytes_with_nul() {
            p.show_own();
        }
        return Err(Stop::Native);
    }
    restrict(p, a)
}

/// seccomp(2), after which the kernel may refuse to tell us.
pub fn restrict(p: &Process, _: &Args) -> Outcome {
    p.know_credentials();
    Err(Stop::Native)
}

macro_rules! identity_calls {
    ($($name:ident = $nr:ident),* $(,)?) => { $(
        pub fn $name(p: &Process, a: &Args) -> Outcome {
            mapping::stand_alone();
            p.know_credentials();
            let before = ids();
            // SAFETY: the program's own call; it reads at most memory that the program named.
            let ret = unsafe { sys::raw(nr::$nr, *a) };
            p.refresh_credentials(nr::$nr != nr::SETGROUPS);
            // Many programs make sure that they are who they are.
            if matches!(nr::$nr, nr::SETGROUPS | nr::CAPSET) || ids() != before {
                p.tell_credentials();
            }
            match p.keep_mapped {
                true => Ok(ret),
                false => leaving::leave(p).map_or(Ok(ret), |old| Err(Stop::Moved(ret, old))),
            }
        }
    )* };
}

identity_calls! {
    setuid = SETUID, setgid = SETGID, setreuid = SETREUID, setregid = SETREGID,
    setresuid = SETRESUID, setresgid = SETRESGID, setfsuid = SETFSUID, setfsgid = SETFSGID,
    setgroups = SETGROUPS, capset = CAPSET,
}
