//! One connection to the service: its peer, requests and answers.
//!
//! Invariants:
//!  * A request is looked at before it is received. A descriptor is received only with an offer of
//!    session memory, and passed on only if it is a sealed memfd, which can be closed without
//!    waiting.
//!  * Everything that others sent is closed by `Disposal`.

use crate::listener::disposal::Disposal;
use crate::session::handout::Sent;
use holdfast_pmem::env::Instant;
use holdfast_pool::protocol::{Answer, FDS, REQUEST_LEN, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::SealFlags;
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

/// Descriptors that the kernel lets one message have.
const RIGHTS_MAX: usize = 253;

/// What a client gets: an answer, and descriptors if it may have them.
pub type Reply = (Answer, Vec<Sent>);

/// What a connection is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It asked for nothing yet, or for nothing that lasts.
    Silent,
    /// A user of a session.
    Attached,
    /// It was told why it is not let in; nothing is received from it.
    Refused,
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    /// Taken when it is dropped.
    socket: Option<OwnedFd>,
    pub standing: Standing,
    /// When it was accepted, refused, or asked something.
    pub since: Instant,
    /// What it asked for and was not told yet; nothing more is received from it until then.
    pub awaits: Option<Awaited>,
    disposal: Disposal,
    /// The session memory that was sent.
    memory: Option<Arc<OwnedFd>>,
}

/// An answer that comes later.
#[derive(Debug)]
pub struct Awaited {
    pub reply: Receiver<Reply>,
    pub asks: Asks,
    /// When it is told next that it has to wait.
    pub told_at: Instant,
}

/// What a request is about, as far as it makes a connection a user.
#[derive(Clone, Copy, Debug)]
pub struct Asks {
    /// The connection is to count as a user.
    pub joins: bool,
    pub on_snapshot: bool,
}

/// Why there is no request.
#[derive(Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing is there yet.
    Nothing,
    /// The other end is closed.
    Gone,
    /// Not a request of this protocol, or descriptors where none belong.
    Malformed,
}

impl Connection {
    /// One that was just accepted.
    pub fn new(socket: OwnedFd, disposal: Disposal) -> Connection {
        Connection {
            socket: Some(socket),
            standing: Standing::Silent,
            since: Instant::now(),
            awaits: None,
            disposal,
            memory: None,
        }
    }

    /// The descriptor, to wait for.
    pub fn socket(&self) -> &OwnedFd {
        match &self.socket {
            Some(socket) => socket,
            // Only `drop` takes it.
            None => unreachable!(),
        }
    }

    /// The user who connected.
    pub fn user(&self) -> Result<u32, Errno> {
        holdfast_pmem::peer::user(self.socket().as_fd())
    }

    /// Whether process `pid`, if that is not 0, connected.
    pub fn is_of(&self, pid: u32) -> bool {
        pid != 0 && holdfast_pmem::peer::process(self.socket().as_fd()) == Ok(pid)
    }

    /// Whether there is a request to be answered.
    pub fn waits(&self) -> bool {
        let mut fds = [PollFd::new(self.socket(), PollFlags::IN)];
        let there = poll(&mut fds, Some(&Timespec::default())).is_ok_and(|n| n > 0);
        self.awaits.is_some() || there && self.standing != Standing::Refused
    }

    /// Takes the next request, with the session memory that is offered.
    pub fn receive(&self) -> Result<(Request, Option<OwnedFd>), Trouble> {
        let (request, has_rights) = self.peek()?;
        let takes = matches!(request, Request::Attach { adopt: true, .. });
        if has_rights != takes {
            return Err(Trouble::Malformed);
        }
        let adopt = match has_rights {
            true => Some(self.take_memory()?),
            false => self.take_bytes().map(|()| None)?,
        };
        Ok((request, adopt))
    }

    /// The next request, and whether descriptors come with it. None of them is received: there is
    /// no room for them.
    fn peek(&self) -> Result<(Request, bool), Trouble> {
        let mut bytes = [0; REQUEST_LEN + 1];
        let mut control = RecvAncillaryBuffer::default();
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let message =
            rustix::net::recvmsg(self.socket(), &mut parts, &mut control, RecvFlags::PEEK)
                .map_err(trouble)?;
        let has_rights = message.flags.contains(ReturnFlags::CTRUNC);
        if message.bytes == 0 && !has_rights {
            return Err(Trouble::Gone);
        }
        let request = bytes.get(..message.bytes).and_then(Request::decode);
        request
            .map(|request| (request, has_rights))
            .ok_or(Trouble::Malformed)
    }

    fn take_bytes(&self) -> Result<(), Trouble> {
        let flags = RecvFlags::empty();
        let received = rustix::net::recv(self.socket(), &mut [0; REQUEST_LEN], flags);
        received.map(|_| ()).map_err(trouble)
    }

    fn take_memory(&self) -> Result<OwnedFd, Trouble> {
        let mut bytes = [0; REQUEST_LEN];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(RIGHTS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        rustix::net::recvmsg(self.socket(), &mut parts, &mut control, flags).map_err(trouble)?;
        let mut found = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                found.extend(rights);
            }
        }
        match found.pop() {
            Some(fd) if found.is_empty() && is_sealed(&fd) => Ok(fd),
            other => {
                found.extend(other);
                found.into_iter().for_each(|fd| self.disposal.put(fd));
                Err(Trouble::Malformed)
            }
        }
    }

    /// Sends an answer, if there is room for it.
    pub fn send(&mut self, reply: &Reply) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<BorrowedFd<'_>> = reply.1.iter().map(AsFd::as_fd).collect();
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(Errno::INVAL);
        }
        let bytes = reply.0.encode();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(self.socket(), &[IoSlice::new(&bytes)], &mut control, flags)?;
        let memory = reply.1.iter().find_map(|sent| match sent {
            Sent::Memory(fd) => Some(fd.clone()),
            Sent::Copy(_) => None,
        });
        self.memory = memory.or(self.memory.take());
        Ok(())
    }

    /// Somebody else has the socket now: closes our descriptor of it, and nothing more.
    pub fn hand_over(mut self) {
        if let Some(socket) = self.socket.take() {
            self.disposal.put(socket);
        }
    }

    /// Sends a refusal. The connection stays until that was read: nobody is to take it for one to a
    /// service that is gone.
    pub fn refuse(&mut self, errno: i32, why: &str) {
        let _ = self.send(&(Answer::refusal(errno, why), Vec::new()));
        (self.standing, self.since) = (Standing::Refused, Instant::now());
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take() {
            // The other end learns of it now, and nothing more comes.
            let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
            self.disposal.put(socket);
        }
    }
}

fn trouble(errno: Errno) -> Trouble {
    match errno {
        Errno::AGAIN | Errno::INTR => Trouble::Nothing,
        _ => Trouble::Gone,
    }
}

/// Whether it is memory that nobody can cut. The question makes nothing wait, whatever it is.
fn is_sealed(fd: &OwnedFd) -> bool {
    let seals = rustix::fs::fcntl_get_seals(fd);
    seals.is_ok_and(|seals| seals.contains(SealFlags::SHRINK | SealFlags::GROW))
}
