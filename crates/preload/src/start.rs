//! Where the loader calls us: once, before the program's own code.
//!
//! Invariant: without HOLDFAST_SESSION in the environment nothing is changed in this process.
use crate::dispatch;
use crate::env::Env;
use crate::patch;
use crate::process;
use crate::signals;
use core::ffi::{c_char, c_int};

#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

extern "C" fn start(_argc: c_int, argv: *const *const c_char, envp: *const *const c_char) {
    // SAFETY: the loader passes the environment of the process, which stays during start-up.
    let env = unsafe { Env::new(envp) };
    if env.get(b"HOLDFAST_SESSION").is_none() {
        return;
    }
    process::init();
    if dispatch::start(&env) {
        // SAFETY: the loader passes the program's own list of arguments, too.
        unsafe { dispatch::began(argv, envp, &env) };
        signals::init();
        patch::init(&env);
    }
}

/// Asked by the loader when it was given this library as an auditor (LD_AUDIT): it is in place
/// then before any other object is mapped, and sees all of them come.
#[unsafe(no_mangle)]
pub extern "C" fn la_version(version: u32) -> u32 {
    version
}
