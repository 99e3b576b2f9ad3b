//! The proxy of one user: it gets connections from the service, and ends when the last has gone.
//!
//! Invariants: it has one attachment to the pool, whose descriptors stay open until it ends; nobody
//! of the user takes more than a part of the session's tables.

use crate::answers::AllAnswers;
use crate::base::{Base, Snapshots};
use crate::connection;
use crate::member::Member;
use crate::rights::Rights;
use crate::tokens::{self, Tokens};
use holdfast_client::Error;
use holdfast_client::attach::Attachment;
use holdfast_pool::directory::SPECIAL;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, IoSliceMut};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Processes of one user.
const MEMBERS_MAX: u32 = 512;
/// Connections beyond that are told why they are refused; more are closed.
const REFUSED_MAX: u32 = 64;
/// Descriptors of pool files that these have.
const FILES_MAX: u32 = 256 * 1024;
/// Views that they have, of which the session has not many, and scans.
const VIEWS_MAX: u32 = 128;
const SCANS_MAX: u32 = 1024;
/// Bytes that are kept for them between two calls.
const KEPT_MAX: u32 = 512 << 20;
/// How often a proxy without a service looks for one.
const PAUSE: Duration = Duration::from_millis(20);
/// What a call may wait for the end of the dead.
const BURIAL: Duration = Duration::from_millis(20);
/// A proxy with nobody to serve ends after so long.
const IDLE: Duration = Duration::from_secs(1);

/// A limit that all processes of the user share.
#[derive(Debug)]
pub struct Quota {
    left: AtomicU32,
}

impl Quota {
    fn of(most: u32) -> Quota {
        Quota {
            left: AtomicU32::new(most),
        }
    }

    /// `TableFull`: there are not so many left.
    pub fn take(&self, n: u32) -> Result<(), Error> {
        let less = |left: u32| left.checked_sub(n);
        let taken = self.left.fetch_update(AcqRel, Acquire, less);
        taken.map(drop).map_err(|_| Error::TableFull)
    }

    pub fn give_back(&self, n: u32) {
        self.left.fetch_add(n, AcqRel);
    }
}

/// What all connections have in common.
pub struct Shared {
    /// The pool as it is.
    pub pool: Arc<Base>,
    pub snapshots: Snapshots,
    /// What is answered, and kept.
    pub answers: AllAnswers,
    /// Where the pool has the kernel's objects.
    pub special: PathBuf,
    /// Root is nobody.
    squash: bool,
    pub members: AtomicU32,
    pub files: Quota,
    pub tokens: Tokens,
    /// Views of keys and values.
    pub views: Quota,
    pub scans: Quota,
    /// Bytes kept between the calls that move large values and batches.
    pub kept: Quota,
    ids: AtomicU32,
    all: Mutex<Vec<Weak<Member>>>,
    /// Calls under way.
    calls: AtomicU32,
}

/// A call is under way while this lives.
pub struct UnderWay<'a>(&'a AtomicU32);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Release);
    }
}

/// Ids fit a child's name, and 0 is none.
const IDS: u32 = (1 << 24) - 1;

impl Shared {
    /// An id that no other process has.
    pub fn next_id(&self) -> u32 {
        self.ids.fetch_add(1, AcqRel) % IDS + 1
    }

    /// A process is served from now on.
    pub fn add(&self, member: &Arc<Member>) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|member| member.strong_count() > 0);
        all.push(Arc::downgrade(member));
    }

    /// A call begins. Those of others who died meanwhile come to their end first, as the kernel
    /// ends a process's call before its death is known. Whoever makes a call looks after this
    /// whether its own process lives: one of the two sees the other.
    pub fn begin_call(&self) -> UnderWay<'_> {
        let others = self.calls.fetch_add(1, SeqCst);
        let under_way = UnderWay(&self.calls);
        if others > 0 {
            self.bury();
        }
        under_way
    }

    /// Ends the processes that have hung up, whom their own threads may not have looked at yet:
    /// what the dead held is nobody's as soon as their parents know of their death.
    pub fn bury(&self) {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let members: Vec<_> = all.iter().filter_map(Weak::upgrade).collect();
        drop(all);
        let sockets: Vec<_> = members.iter().map(|member| &member.socket).collect();
        let hung_up = have_hung_up(&sockets);
        let dead = members.iter().zip(hung_up).filter(|(_, hung_up)| *hung_up);
        let mut dead: Vec<_> = dead.map(|(member, _)| member).collect();
        let begun = Instant::now();
        loop {
            dead.retain(|member| !member.try_end());
            if dead.is_empty() || begun.elapsed() > BURIAL {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether nobody is served.
    fn is_deserted(&self) -> bool {
        self.members.load(Acquire) == 0
    }

    /// Whether the user has as many processes as one may.
    pub fn is_full(&self) -> bool {
        self.members.load(Acquire) >= MEMBERS_MAX
    }
}

/// Serves the pool in `directory` to the connections that come through `control`, until there is
/// none and none has come for a while, or the service is gone and there is none left. `revive` is
/// called while there is no service, until it gives a connection to a new one. `squash`: root is
/// nobody.
pub fn serve(
    (directory, control): (&Path, &OwnedFd),
    attachment: Attachment,
    squash: bool,
    mut revive: impl FnMut() -> Option<OwnedFd>,
) -> Result<(), Errno> {
    let mut connection: Option<OwnedFd> = None;
    let base = Base::of(attachment).map_err(|e| Errno::from_raw_os_error(e.errno()))?;
    let random = tokens::random().map_err(|e| Errno::from_raw_os_error(e.errno()))?;
    base.expect_others(random);
    let shared = Arc::new(Shared {
        answers: base.all_answers(),
        pool: Arc::new(base),
        snapshots: Snapshots::of(directory),
        special: directory.join(SPECIAL),
        squash,
        members: AtomicU32::new(0),
        files: Quota::of(FILES_MAX),
        tokens: Tokens::new()?,
        views: Quota::of(VIEWS_MAX),
        scans: Quota::of(SCANS_MAX),
        kept: Quota::of(KEPT_MAX),
        ids: AtomicU32::new(0),
        all: Mutex::default(),
        calls: AtomicU32::new(0),
    });
    rustix::net::sockopt::set_socket_timeout(
        control,
        rustix::net::sockopt::Timeout::Recv,
        Some(IDLE),
    )?;
    loop {
        match receive(control) {
            Ok(Some(socket)) => begin(&shared, socket),
            // The service is gone. Those who are here need one, as all programs do; others it
            // hands to a proxy of its own.
            Ok(None) if shared.is_deserted() => {
                shared.pool.leave();
                return Ok(());
            }
            Ok(None) => {
                if connection.as_ref().is_none_or(has_hung_up) {
                    connection = revive();
                }
                std::thread::sleep(PAUSE);
            }
            Err(Errno::AGAIN) if shared.is_deserted() => close(control)?,
            Err(Errno::AGAIN) => {}
            Err(Errno::INTR) => continue,
            Err(e) => return Err(e),
        }
    }
}

/// The service gets no more into the queue, and starts another proxy when it has to; what is there
/// already comes first.
fn close(control: &OwnedFd) -> Result<(), Errno> {
    rustix::net::shutdown(control, rustix::net::Shutdown::Read)
}

fn begin(shared: &Arc<Shared>, socket: OwnedFd) {
    if shared.members.load(Acquire) >= MEMBERS_MAX + REFUSED_MAX {
        return;
    }
    match Rights::of_peer(socket.as_fd(), shared.squash) {
        Ok(rights) => connection::begin(shared, socket, rights),
        Err(e) => {
            tracing::warn!("a connection is closed: the kernel does not say whose it is: {e}")
        }
    }
}

/// Of which connections the other end is closed.
pub fn have_hung_up(sockets: &[&OwnedFd]) -> Vec<bool> {
    let fds = sockets.iter().map(|s| PollFd::new(*s, PollFlags::empty()));
    let mut fds: Vec<_> = fds.collect();
    // It does not wait.
    let _ = poll(&mut fds, Some(&Timespec::default()));
    let hung_up = fds.iter().map(|fd| fd.revents().contains(PollFlags::HUP));
    hung_up.collect()
}

/// Whether the other end of a connection is closed.
fn has_hung_up(connection: &OwnedFd) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match rustix::net::recv(connection, &mut [0u8; 1], flags) {
        Ok((_, len)) => len == 0,
        Err(e) => e != Errno::AGAIN && e != Errno::INTR,
    }
}

/// The next connection; `None`: no more will come.
fn receive(control: &OwnedFd) -> Result<Option<OwnedFd>, Errno> {
    let mut bytes = [0; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let message = rustix::net::recvmsg(control, &mut parts, &mut ancillary, flags)?;
    let mut found = None;
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(mut rights) = part {
            found = rights.next();
        }
    }
    match (message.bytes, found) {
        (_, Some(socket)) => Ok(Some(socket)),
        (0, None) => Ok(None),
        (_, None) => Err(Errno::AGAIN),
    }
}
