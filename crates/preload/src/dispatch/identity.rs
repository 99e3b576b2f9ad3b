//! Calls that change the credentials of the process.
//!
//! Invariant: the kernel decides; we look at the result.

use super::nr;
use super::outcome::{Outcome, Stop};
use super::process::Process;
use crate::sys;

type Args = [usize; 6];

pub fn umask(p: &Process, a: &Args) -> Outcome {
    // SAFETY: changes the mask only.
    let old = unsafe { sys::raw(nr::UMASK, *a) };
    p.client.set_creation_mask(a[0] as u32);
    Ok(old)
}

/// prctl(2) and seccomp(2), after which the kernel may refuse to tell us.
pub fn restrict(p: &Process, _: &Args) -> Outcome {
    p.know_credentials();
    Err(Stop::Native)
}

macro_rules! identity_calls {
    ($($name:ident = $nr:ident),* $(,)?) => { $(
        pub fn $name(p: &Process, a: &Args) -> Outcome {
            p.know_credentials();
            // SAFETY: the program's own call; it reads at most memory that the program named.
            let ret = unsafe { sys::raw(nr::$nr, *a) };
            p.refresh_credentials(nr::$nr != nr::SETGROUPS);
            Ok(ret)
        }
    )* };
}

identity_calls! {
    setuid = SETUID, setgid = SETGID, setreuid = SETREUID, setregid = SETREGID,
    setresuid = SETRESUID, setresgid = SETRESGID, setfsuid = SETFSUID, setfsgid = SETFSGID,
    setgroups = SETGROUPS, capset = CAPSET,
}
