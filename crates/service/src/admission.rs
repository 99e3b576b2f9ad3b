//! The door of the service: its socket, who may come in, and who is still there.
//!
//! Invariants: only processes of the pool's owner are let in; one request is read per turn, of a
//! fixed length, and a peer that sends anything else is shown out; a peer can make nobody else
//! wait: sockets do not block. A connection counts as a user of the session once it attached.

use crate::error::{Error, Result};
use holdfast_pool::protocol::{Answer, FDS, REQUEST_LEN, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Connections at a time; one more is closed at once.
const CONNECTIONS_MAX: usize = 1024;
const TURN: Duration = Duration::from_millis(200);

/// What a client gets: an answer, and descriptors if it was let in.
pub type Reply = (Answer, Vec<OwnedFd>);

/// The rest of the service, as the door sees it.
pub trait Desk: Send {
    /// Answers a request. `adopt` is the session memory that came with it.
    fn answer(&mut self, request: Request, adopt: Option<OwnedFd>) -> Reply;
    /// The number of attached connections changed.
    fn users_changed(&mut self);
}

/// What the door tells the rest of the service.
#[derive(Debug, Default)]
pub struct Users {
    /// Connections that attached and are still open.
    pub attached: AtomicU32,
    /// Somebody attached at some time.
    pub ever: AtomicBool,
    /// The service is to end: let nobody in.
    pub closing: AtomicBool,
    /// The service ends with its last user, whose connection is kept open until then.
    pub ending: AtomicBool,
    /// The connection of the last user, to be closed when everything is done.
    pub last: Mutex<Option<Guest>>,
}

/// The listening socket.
#[derive(Debug)]
pub struct Door {
    socket: OwnedFd,
    owner: u32,
}

/// Wakes the keeper of the door to see that it is to be closed.
#[derive(Debug)]
pub struct Closer {
    socket: OwnedFd,
}

impl Closer {
    /// Nobody can knock any more.
    pub fn close(&self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

/// A connection.
#[derive(Debug)]
pub struct Guest {
    connection: OwnedFd,
    attached: bool,
}

impl Door {
    /// Listens at `POOL/sock`. The caller holds the pool's lock, so a socket that is there is a
    /// dead one. Only user `owner` will be let in.
    pub fn open(directory: &Path, owner: u32) -> Result<Door> {
        let name = holdfast_pool::segment::SOCKET;
        let path = directory.join(name);
        let what = || path.display().to_string();
        let _ = std::fs::remove_file(&path);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .map_err(Error::os(what()))?;
        let open = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(directory, open, Mode::empty()).map_err(Error::os(what()))?;
        // A path too long for an address is reached through the directory's descriptor.
        let short = format!("/proc/self/fd/{}/{name}", dir.as_raw_fd());
        let address = SocketAddrUnix::new(&path)
            .or_else(|_| SocketAddrUnix::new(short.as_str()))
            .map_err(Error::os(what()))?;
        rustix::net::bind(&socket, &address).map_err(Error::os(what()))?;
        // Anybody may knock; who is not let in is told why.
        rustix::fs::chmod(&path, Mode::from_raw_mode(0o666)).map_err(Error::os(what()))?;
        rustix::net::listen(&socket, 128).map_err(Error::os(what()))?;
        Ok(Door { socket, owner })
    }

    /// Ends `serve`, together with `Users::closing`.
    pub fn closer(&self) -> Result<Closer> {
        let socket = self
            .socket
            .try_clone()
            .map_err(Error::io("the service's socket"))?;
        Ok(Closer { socket })
    }

    /// Serves until `users.closing`.
    pub fn serve(self, users: Arc<Users>, mut desk: impl Desk) {
        let mut guests: Vec<Guest> = Vec::new();
        let mut last: Option<Guest> = None;
        while !users.closing.load(Acquire) {
            let Some(ready) = self.wait(&guests) else {
                continue;
            };
            if ready.first() == Some(&true) {
                self.let_in(&mut guests);
            }
            let mut speaking = ready.iter().skip(1).copied();
            let mut gone = Vec::new();
            for mut guest in std::mem::take(&mut guests) {
                let speaks = speaking.next().unwrap_or(false);
                if !speaks || self.attend(&mut guest, &users, &mut desk) {
                    guests.push(guest);
                } else if guest.attached {
                    gone.push(guest);
                }
            }
            let attached = guests.iter().filter(|guest| guest.attached).count() as u32;
            // The last one may wait for the end of the service: its connection ends with that.
            let ending = attached == 0 && users.ending.load(Acquire);
            last = gone.pop().or(last).filter(|_| ending);
            if users.attached.swap(attached, AcqRel) != attached {
                desk.users_changed();
            }
        }
        users
            .last
            .lock()
            .map(|mut place| *place = last)
            .unwrap_or(());
    }

    fn wait(&self, guests: &[Guest]) -> Option<Vec<bool>> {
        let mut fds = vec![PollFd::new(&self.socket, PollFlags::IN)];
        fds.extend(
            guests
                .iter()
                .map(|guest| PollFd::new(&guest.connection, PollFlags::IN)),
        );
        let turn = Timespec::try_from(TURN).ok()?;
        match poll(&mut fds, Some(&turn)) {
            Ok(n) if n > 0 => Some(fds.iter().map(|fd| !fd.revents().is_empty()).collect()),
            _ => None,
        }
    }

    fn let_in(&self, guests: &mut Vec<Guest>) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        while let Ok(connection) = rustix::net::accept_with(&self.socket, flags) {
            if guests.len() < CONNECTIONS_MAX {
                guests.push(Guest {
                    connection,
                    attached: false,
                });
            }
        }
    }

    /// One request of one guest; false when the guest is gone.
    fn attend(&self, guest: &mut Guest, users: &Users, desk: &mut impl Desk) -> bool {
        let (request, adopt) = match receive(&guest.connection) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Err(_) => return false,
        };
        let Some(request) = request else {
            let answer = Answer::refusal(71, "the service does not understand the request");
            let _ = send(&guest.connection, &(answer, Vec::new()));
            return false;
        };
        let on_snapshot = matches!(request, Request::SnapshotAttach { .. });
        let joins = on_snapshot || matches!(request, Request::Attach { .. });
        let reply = match self.check(&guest.connection) {
            Ok(()) => {
                // Counted before it is let in, so that the session does not end under it.
                if joins {
                    users.attached.fetch_add(1, AcqRel);
                }
                desk.answer(request, adopt)
            }
            Err(answer) => (*answer, Vec::new()),
        };
        let joined = reply.0.errno == 0 && joins;
        if on_snapshot {
            // Also where there is none of that name: nobody else may have wanted us.
            users.ever.store(true, Release);
        }
        if joined {
            users.ever.store(true, Release);
            guest.attached = true;
        }
        send(&guest.connection, &reply).is_ok() && reply.0.errno == 0
    }

    fn check(&self, connection: &OwnedFd) -> std::result::Result<(), Box<Answer>> {
        let peer = sockopt::socket_peercred(connection).map_err(|e| {
            Box::new(Answer::refusal(
                e.raw_os_error(),
                "the service cannot tell who you are",
            ))
        })?;
        if peer.uid.as_raw() == self.owner {
            return Ok(());
        }
        let why = format!(
            "the pool belongs to user {}, and you are user {}",
            self.owner, peer.uid
        );
        Err(Box::new(Answer::refusal(
            Errno::ACCESS.raw_os_error(),
            &why,
        )))
    }
}

type Received = (Option<Request>, Option<OwnedFd>);

fn receive(from: &OwnedFd) -> std::result::Result<Received, Errno> {
    let mut bytes = [0; REQUEST_LEN + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let message = rustix::net::recvmsg(from, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    if message.bytes == 0 {
        return Err(Errno::PIPE);
    }
    let len = message.bytes;
    let mut adopt = None;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut rights) = part {
            adopt = rights.next();
        }
    }
    Ok((bytes.get(..len).and_then(Request::decode), adopt))
}

fn send(to: &OwnedFd, reply: &Reply) -> std::result::Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<BorrowedFd<'_>> = reply.1.iter().map(AsFd::as_fd).collect();
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Errno::INVAL);
    }
    let bytes = reply.0.encode();
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(to, &[IoSlice::new(&bytes)], &mut control, flags).map(|_| ())
}
