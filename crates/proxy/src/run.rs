//! What one `holdfast run` has counted.
//!
//! Invariants: however much is told, so much and no more is kept. A process that belongs to a run
//! of the session, because root began it and became the user since, counts there.

use holdfast_client::Client;
use holdfast_client::served::Report;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// No number of a call is as high; the session counts them plus one.
const CALL_MAX: u32 = u16::MAX as u32;
/// Kinds of refusals, and programs, that are told apart.
const KINDS_MAX: usize = 64;
const PROGRAMS_MAX: usize = 16;
const PATH_MAX: usize = 4096;

/// The counts of a run.
#[derive(Debug, Default)]
pub struct Run {
    report: Mutex<Report>,
}

impl Run {
    /// Whether what a process does belongs to a run of the session.
    pub fn is_of_session(client: &Client) -> bool {
        client.session().run().is_some()
    }

    /// Calls that a process has made.
    pub fn count(&self, client: &Client, served: u64, passed: u64) {
        if Run::is_of_session(client) {
            return client.add_counts(served, passed);
        }
        let mut report = self.report();
        report.served = report.served.wrapping_add(served);
        report.passed = report.passed.wrapping_add(passed);
    }

    /// One refusal of `call`, for the reason `why`.
    pub fn refuse(&self, client: &Client, call: u32, why: u32) {
        if Run::is_of_session(client) {
            return client.refuse(call.min(CALL_MAX), why);
        }
        let mut report = self.report();
        report.refused += 1;
        let kinds = &mut report.refusals;
        match kinds.iter().position(|r| (r.0, r.1) == (call, why)) {
            Some(known) => kinds[known].2 += 1,
            None if kinds.len() < KINDS_MAX => kinds.push((call, why, 1)),
            None => {}
        }
    }

    /// A program that the library could not enter.
    pub fn uninstrumented(&self, client: &Client, path: &[u8]) {
        if Run::is_of_session(client) {
            return client.note_uninstrumented(path);
        }
        let programs = &mut self.report().uninstrumented;
        let is_new = !programs.iter().any(|known| known == path);
        if is_new && programs.len() < PROGRAMS_MAX && path.len() <= PATH_MAX {
            programs.push(path.into());
        }
    }

    /// As of now.
    pub fn report(&self) -> MutexGuard<'_, Report> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
