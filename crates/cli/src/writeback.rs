//! The helper that a service starts to write back dirty inodes, or to remove what has expired.
//!
//! Invariants: it joins the session that is there, as any client of the pool's user does, and
//! starts no service; it counts as no process of the session.

use crate::failure::{self, Failure};
use crate::session::memory;
use holdfast_client::attach::{Attachment, attach};
use holdfast_client::{Client, Segments, recover, slots};
use holdfast_service::Job;
use rustix::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// The hidden command.
const NAME: &str = "write-back";
/// Its option for what has expired.
const EXPIRED: &str = "--expired";
/// How long that is removed at a time.
const EXPIRED_MS: u64 = 2000;

/// The command that does a job for the pool in `directory`.
pub fn command(directory: &Path, job: Job) -> Command {
    // This program, also after its file was replaced.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("holdfast").arg(NAME);
    if job == Job::RemoveExpired {
        command.arg(EXPIRED);
    }
    command.arg("--").arg(directory);
    command
}

/// Journals what session memory alone has about objects, or removes what has `expired`.
pub fn write_back(pool: &Path, expired: bool) -> Result<u8, Failure> {
    let failed = |e: holdfast_client::Error| {
        Failure::new(match expired {
            true => format!("what has expired cannot be removed: {e}"),
            false => format!("open files cannot be written back: {e}"),
        })
    };
    let attachment = attach(pool.as_os_str().as_bytes(), None);
    let attachment = attachment.map_err(|e| Failure::new(e.to_string()))?;
    let client = Client::attach(&segments(&attachment)?, b"").map_err(failed)?;
    slots::register_helper(client.session(), std::process::id()).map_err(failed)?;
    let done = recover::lanes(client.session()).and_then(|_| {
        // What the killed had mapped need not be written back again and again.
        slots::reap_dead(client.session());
        match expired {
            true => client.kv_remove_expired(EXPIRED_MS),
            false => client.write_back().map(drop),
        }
    });
    client.exit(true);
    // What was left over is asked for again.
    done.map_err(failed)?;
    Ok(failure::OK)
}

fn segments(attachment: &Attachment) -> Result<Segments<'_>, Failure> {
    let answer = &attachment.answer;
    Ok(Segments {
        session: memory(attachment)?,
        meta: (attachment.meta.as_fd(), answer.meta_len),
        journal: (attachment.journal.as_fd(), answer.journal_len),
        data: (attachment.data.as_fd(), answer.data_room),
        medium: answer.medium,
        cpu: 0,
    })
}
