//! A process that gives up the rights by which it has the pool mapped, as daemons do that were
//! started as root: from then on it is served, in the same program.
//!
//! Invariants: when the call returns that gave the last right up, no page of the pool is mapped and
//! no descriptor of ours leads to one; what the program has open is open, with the same numbers. A
//! process of which that cannot be made true stays as it was: it has had other threads, which may
//! be in calls of their own, or is in a signal handler above a call that waits, or has another
//! process in its memory or with its descriptors, or files of the pool mapped, or reaches no proxy,
//! for instance because it has another root directory.

use super::handover;
use super::pool::Pool;
use super::process::{self, Process, Retired};
use super::ranges;
use super::start;
use crate::calls;
use holdfast_client::Served;
use holdfast_client::env::SessionEnv;
use holdfast_pmem::futex;

/// Unless the process may have the pool mapped. `Some`: there is another process state, and the one
/// that the caller has is to be dropped when it is not used any more.
pub fn leave(p: &Process) -> Option<Retired> {
    let alone = !crate::process::has_threads() && !crate::process::is_shared();
    if !alone || futex::is_within_wait() || !ranges::is_empty() {
        return None;
    }
    let handover = handover::prepare_to_leave(p).ok()??;
    let session = SessionEnv::parse(handover.value())?;
    // What exec would close stays open.
    let served = Served::resume(session.session.fd, &|_| true).ok()?;
    let env = [p.env[0].clone(), p.env[1].clone(), handover.env.clone()];
    let parts = start::parts(&session, Pool::Served(served), p.exe.clone(), env);
    super::limits::look(&parts.client);
    if let Pool::Mapped(client) = &p.client {
        // Whoever comes after it finds nothing open by it; the proxy has it all.
        client.exit(true);
    }
    handover.complete();
    let retired = process::replace(p, parts);
    if let Some(p) = process::process() {
        p.internal_sorted().into_iter().for_each(calls::mark_fd);
    }
    Some(retired)
}
