//! Joining the session before the program's first instruction.
//!
//! Invariant: a process that was to see the pool and cannot join ends here and says why: it would
//! work on the host's files instead.

use super::exec::EXE_VARIABLE;
use super::leaving;
use super::pool::Pool;
use super::process::{self, Parts, Process, VARIABLES};
use super::{no_pool, selftest};
use crate::calls;
use crate::env::Env;
use crate::sys;
use alloc::boxed::Box;
use alloc::vec::Vec;
use holdfast_client::env::{NO_POOL, SERVED, SessionEnv, VARIABLE};
use holdfast_client::{Client, Segments, Served};
use holdfast_pmem::Writing;
use rustix::fd::BorrowedFd;

/// Once, before any site is patched. False: leave this process alone.
pub fn start(env: &Env) -> bool {
    if selftest::start(env) {
        return true;
    }
    let Some(value) = env.get(VARIABLE.as_bytes()) else {
        return false;
    };
    let Some(session) = SessionEnv::parse(value) else {
        match SessionEnv::is_of_other_version(value) {
            true => give_up(OTHER_VERSION),
            false => {
                give_up("HOLDFAST_SESSION is not understood; start the program with holdfast run")
            }
        }
    };
    if session.medium == NO_POOL {
        return no_pool::start(&session);
    }
    match join(&session) {
        Ok(client) => {
            let p = install(env, &session, value, client);
            // A program that Holdfast does not see, such as a statically linked one, changed its
            // user and executed this one.
            if !p.may_map() {
                match leaving::leave(p) {
                    Some(retired) => drop(retired),
                    None => give_up(NOT_LET_IN),
                }
            }
            true
        }
        Err(e) if e.errno() == ENOMEM => give_up(NO_ADDRESSES),
        Err(holdfast_client::Error::Invalid) => give_up(OTHER_VERSION),
        Err(_) => give_up("the session of this run is gone; start the program with holdfast run"),
    }
}

fn join(session: &SessionEnv) -> Result<Pool, holdfast_client::Error> {
    if session.medium == SERVED {
        return Served::resume(session.session.fd, &descriptor_is_open).map(Pool::Served);
    }
    // SAFETY: inherited for as long as this process lives; the program cannot close them (`fds`),
    // and a number that is not open only makes the mapping fail.
    let borrow = |fd: i32| unsafe { BorrowedFd::borrow_raw(fd) };
    let segments = Segments {
        session: borrow(session.session.fd),
        meta: (borrow(session.meta.fd), session.meta.len),
        journal: (borrow(session.journal.fd), session.journal.len),
        data: (borrow(session.data.fd), session.data.len),
        medium: session.medium,
        cpu: session.cpu,
    };
    let writing = Writing::default();
    let client = Client::attach_with(&segments, session.at, writing, session.slow)?;
    client.join(session.run, &descriptor_is_open)?;
    Ok(Pool::Mapped(client))
}

fn descriptor_is_open(fd: u32) -> bool {
    const F_GETFD: usize = 1;
    // SAFETY: only asks for flags.
    unsafe { sys::raw(super::nr::FCNTL, [fd as usize, F_GETFD, 0, 0, 0, 0]) >= 0 }
}

/// The parts of a process of this session.
pub fn parts(
    session: &SessionEnv,
    client: Pool,
    exe: Option<Box<[u8]>>,
    env: [Box<[u8]>; VARIABLES],
) -> Parts {
    Parts {
        client,
        at: session.at.into(),
        parking_fd: session.parking as u32,
        special_dir: joined(&[session.pool, b"/special"]),
        exe,
        base_fd: session.base as u32,
        data_fd: session.data.fd as u32,
        segments: [session.session.fd, session.meta.fd, session.journal.fd].map(|fd| fd as u32),
        keep_mapped: session.keep_mapped,
        map: session.map,
        trace: session.trace,
        env,
        internal: [
            session.session.fd,
            session.meta.fd,
            session.journal.fd,
            session.data.fd,
            session.base,
            session.parking,
            session.trace.map_or(session.base, |trace| trace.fd as i32),
        ]
        .map(|fd| fd as u32),
    }
}

fn install(env: &Env, session: &SessionEnv, value: &[u8], client: Pool) -> &'static Process {
    let exe = env.get(&EXE_VARIABLE[..EXE_VARIABLE.len() - 1]);
    let variables = [
        variable(env, b"LD_AUDIT"),
        variable(env, b"GLIBC_TUNABLES"),
        joined(&[VARIABLE.as_bytes(), b"=", value, b"\0"]),
    ];
    let parts = parts(session, client, exe.map(Box::from), variables);
    super::limits::look(&parts.client);
    let p = process::install(parts);
    if let Some(at) = session.record {
        super::mapping::count_in(at);
    }
    if let Some(settings) = p.map {
        calls::catch_mappings();
        super::mapping::start(settings, p.client.map_drops());
    }
    for fd in p.internal_sorted() {
        calls::mark_fd(fd);
    }
    p.client.each_descriptor(&mut |fd| calls::mark_fd(fd));
    if let Some(settings) = p.trace {
        super::trace::start(settings);
    }
    p
}

/// `NAME=value` with NUL, as it is now.
fn variable(env: &Env, name: &[u8]) -> Box<[u8]> {
    joined(&[name, b"=", env.get(name).unwrap_or(b""), b"\0"])
}

fn joined(parts: &[&[u8]]) -> Box<[u8]> {
    let mut all = Vec::with_capacity(parts.iter().map(|p| p.len()).sum());
    for part in parts {
        all.extend_from_slice(part);
    }
    all.into_boxed_slice()
}

const ENOMEM: i32 = 12;
const NOT_LET_IN: &str = "the program that started this one changed its user, and the pool's \
    service does not let that user in\nFix: start it by a program that is not statically linked, \
    or ask the pool's owner";
const NO_ADDRESSES: &str =
    "the pool and its session need more addresses than the program may have; raise `ulimit -v`";
const OTHER_VERSION: &str = "this run began with another version of Holdfast, which is no longer \
    installed here\nFix: end the run, and start the program again with holdfast run";
/// Exit status of `holdfast run` when Holdfast itself failed.
const FAILED: usize = 125;

fn give_up(sentence: &str) -> ! {
    for text in ["holdfast: ", sentence, "\n"] {
        // SAFETY: the kernel only reads the text.
        unsafe {
            sys::raw(
                super::nr::WRITE,
                [2, text.as_ptr() as usize, text.len(), 0, 0, 0],
            )
        };
    }
    loop {
        // SAFETY: ends the process.
        unsafe { sys::raw(super::nr::EXIT_GROUP, [FAILED, 0, 0, 0, 0, 0]) };
    }
}
