//! How the last run leaves a session: it waits until a service has ended the session.
//!
//! Invariants:
//!  * Unsynced changes of programs are in session memory alone until the service has ended the
//!    session. If the service dies before that, another one takes over the session; this process
//!    keeps the memory for it.
//!  * A process that has the journal's description as it was handed out, or has locked the journal,
//!    counts as a user.

use crate::failure::Failure;
use crate::session::{is_over, memory, open_again};
use crate::start;
use holdfast_client::attach::{self, AttachError, Attachment};
use holdfast_service::PoolLock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the service may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Waits until the session of `attachment`, which nobody else is in, has ended.
pub fn see_to_the_end(pool: &Path, attachment: Attachment) -> Result<(), Failure> {
    let begun = Instant::now();
    let session = memory(&attachment)?.try_clone_to_owned();
    let session = session.map_err(|e| Failure::io("the session's memory", &e))?;
    let unlocked = open_again(attachment.journal.as_fd())?;
    let mut connection = attachment.connection;
    drop((attachment.session, attachment.meta));
    drop((attachment.journal, attachment.data));
    loop {
        wait_for_end(connection, PATIENCE.saturating_sub(begun.elapsed()));
        if others_see_to_it(pool, begun) || is_over(session.as_fd())? {
            return Ok(());
        }
        // The service died first. The next one finds a user, and its memory.
        be_there(&unlocked, begun)?;
        connection = start::join_again(pool, session.as_fd())?.connection;
        flock(&unlocked, FlockOperation::Unlock).map_err(failed)?;
    }
}

/// Says goodbye, and waits until the service closes its end.
pub fn wait_for_end(connection: OwnedFd, patience: Duration) {
    if rustix::net::shutdown(&connection, rustix::net::Shutdown::Write).is_err() {
        return;
    }
    let time = Timespec {
        tv_sec: patience.as_secs() as i64,
        tv_nsec: patience.subsec_nanos().into(),
    };
    let _ = poll(&mut [PollFd::new(&connection, PollFlags::IN)], Some(&time));
}

/// Whether a service answers, or there is no more time. A service that ends closes its connections
/// first and answers nobody, but has the pool until the session has ended: before that nobody can
/// tell it from one that died.
fn others_see_to_it(pool: &Path, begun: Instant) -> bool {
    loop {
        if begun.elapsed() > PATIENCE || is_served(pool) {
            return true;
        }
        if PoolLock::holder(pool).is_none() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a service answers. If one does after it closed our connection, others came since, or
/// left last: they see to the rest.
fn is_served(pool: &Path) -> bool {
    let answer = attach::status(pool.as_os_str().as_bytes());
    !matches!(answer, Err(AttachError::NoService))
}

/// Locks the journal as users do. Others have it locked against them for a look only.
fn be_there(journal: &OwnedFd, begun: Instant) -> Result<(), Failure> {
    loop {
        match flock(journal, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(1));
            }
            done => return done.map_err(failed),
        }
    }
}

fn failed(e: Errno) -> Failure {
    Failure::io("the pool's journal", &e.into())
}
