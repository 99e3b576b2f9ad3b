//! One connection: the process at the other end lives as long as it is open.
//!
//! Invariants: a thread receives what comes, and nothing but descriptors that we made is ever sent
//! or received; when the connection hangs up, the process and its channel end.

use crate::channel::Channel;
use crate::member::Member;
use crate::proxy::Shared;
use crate::rights::Rights;
use crate::run::Run;
use crate::threads;
use holdfast_client::served::wire::{NOTE_LEN, Note};
use holdfast_client::{Client, Error, Result, Share};
use holdfast_pmem::peer;
use holdfast_pool::protocol::{Answer, REQUEST_LEN, Request};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType,
};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Duration;

/// How long a connection may ask for nothing before its run begins.
const SILENCE: Duration = Duration::from_secs(10);

/// Why most requests are refused.
const OWNERS: &str = "only the pool's owner and root can do this";

/// Serves a process that the service let in.
pub fn begin(shared: &Arc<Shared>, socket: OwnedFd, rights: Rights) {
    let run = Arc::new(Run::default());
    let member = Member::new(shared, socket, rights, run);
    threads::run(move || {
        if let Some(channel) = welcome(&member) {
            serve(&member, Some(channel), None);
        }
        member.end();
    });
}

/// Answers the first request, by which a run begins.
fn welcome(member: &Arc<Member>) -> Option<Arc<Channel>> {
    let mut bytes = [0; REQUEST_LEN + 1];
    // The socket is one that does not block: the service has read nothing of it.
    rustix::io::ioctl_fionbio(&member.socket, false).ok()?;
    set_socket_timeout(&member.socket, Timeout::Recv, Some(SILENCE)).ok()?;
    let len = receive(member, &mut bytes)?;
    set_socket_timeout(&member.socket, Timeout::Recv, None).ok()?;
    let refuse = |errno: Errno, why: &str| {
        let answer = Answer::refusal(errno.raw_os_error(), why);
        let _ = rustix::net::send(&member.socket, &answer.encode(), SendFlags::NOSIGNAL);
    };
    let base = match Request::decode(&bytes[..len]) {
        Some(Request::Attach { adopt: false, .. }) => Ok(member.shared.pool.clone()),
        Some(Request::SnapshotAttach { name }) => member.shared.snapshots.get(name.as_bytes()),
        _ => Err((Errno::ACCESS.raw_os_error(), OWNERS.into())),
    };
    match base {
        Ok(base) => member.work_on(base),
        Err((errno, why)) => {
            refuse(Errno::from_raw_os_error(errno), &why);
            return None;
        }
    }
    if member.shared.is_full() {
        refuse(
            Errno::AGAIN,
            "you have as many processes on the pool as one user may",
        );
        return None;
    }
    let Some((channel, fd)) = Channel::for_program(member) else {
        refuse(Errno::NOMEM, "there is no memory for one more process");
        return None;
    };
    let answer = Answer {
        service_pid: std::process::id(),
        ..Answer::default()
    };
    give(member, &answer.encode(), channel, &fd)
}

/// Until the other end is closed. A process runs in its parent's memory, whose channel is `outer`,
/// until it says that it was born with one of its own, or executes a program.
fn serve(member: &Arc<Member>, mut channel: Option<Arc<Channel>>, mut outer: Option<Arc<Channel>>) {
    let leave = |channel: &mut Option<Arc<Channel>>| {
        if let Some(old) = channel.take() {
            // Their numbers may be files of the host by now, which the next program keeps.
            old.catch_up();
            old.leave(member);
        }
    };
    let mut bytes = [0; NOTE_LEN + 1];
    while let Some(len) = receive(member, &mut bytes) {
        let goes_on = match Note::decode(&bytes[..len]) {
            Some(Note::Line(index)) => {
                let used = outer.as_ref().or(channel.as_ref());
                used.is_some_and(|used| used.start(index as usize))
            }
            Some(Note::Renew(pid)) => {
                member.is_process(pid);
                leave(&mut outer);
                leave(&mut channel);
                channel = renew(member);
                channel.is_some()
            }
            Some(Note::Born(pid)) => {
                member.is_process(pid);
                leave(&mut outer);
                true
            }
            _ => false,
        };
        if !goes_on {
            break;
        }
    }
    leave(&mut outer);
    leave(&mut channel);
}

/// The channel of the program that begins.
fn renew(member: &Arc<Member>) -> Option<Arc<Channel>> {
    let (channel, fd) = Channel::new(member)?;
    channel.answer_ahead(member);
    if !channel.start(0) {
        channel.close();
        return None;
    }
    give(member, &Note::Channel.encode(), channel, &fd)
}

/// Sends a channel; `None`: nobody will use it.
fn give(
    member: &Member,
    bytes: &[u8],
    channel: Arc<Channel>,
    fd: &OwnedFd,
) -> Option<Arc<Channel>> {
    let sent = send(member, bytes, &[fd.as_fd()]);
    if sent.is_err() {
        channel.close();
    }
    sent.is_ok().then_some(channel)
}

/// The next message, of which no descriptor is taken; `None`: the other end is closed.
fn receive(member: &Member, bytes: &mut [u8]) -> Option<usize> {
    loop {
        match rustix::net::recv(&member.socket, &mut *bytes, RecvFlags::empty()) {
            Ok((0, _)) => return None,
            Ok((len, _)) => return Some(len.min(bytes.len())),
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

/// Sends without waiting. Who has not received what was asked for before gets no more: descriptors
/// on their way count for the pool's owner, who may have so many, in all proxies and the service.
pub fn send(member: &Member, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let parts = [IoSlice::new(bytes)];
    let _sends = member.sends();
    if !peer::has_received_all(member.socket.as_fd())? {
        return Err(Errno::AGAIN);
    }
    rustix::net::sendmsg(&member.socket, &parts, &mut control, flags).map(drop)
}

/// A child of `parent`, which asked in `channel` and has the place `client`: its connection goes to
/// the parent, and a channel if it does not share its parent's memory.
pub fn child(
    channel: &Arc<Channel>,
    parent: &Arc<Member>,
    client: &Client,
    shares_memory: bool,
) -> Result<()> {
    let (child, theirs) = settled_child(parent, client)?;
    let (own, fd) = match shares_memory {
        true => (None, None),
        false => Channel::new(&child)
            .map(|(c, fd)| (Some(c), Some(fd)))
            .ok_or(Error::NoMemory)?,
    };
    if let (Some(own), Some(place)) = (&own, child.place().as_ref()) {
        own.maps.inherit(&channel.maps, place)?;
    }
    let outer = shares_memory.then(|| channel.clone());
    if shares_memory {
        channel.adopt(&child);
    }
    let note = Note::Child(child.id).encode();
    let fds = [Some(theirs.as_fd()), fd.as_ref().map(OwnedFd::as_fd)];
    let fds: Vec<_> = fds.into_iter().flatten().collect();
    let sent = send(parent, &note, &fds);
    let begun = sent.is_ok() && {
        let (child, own, outer) = (child.clone(), own.clone(), outer.clone());
        threads::run(move || {
            serve(&child, own, outer);
            child.end();
        })
    };
    if begun {
        return Ok(());
    }
    for channel in [own, outer].into_iter().flatten() {
        channel.leave(&child);
    }
    child.end();
    Err(Error::TableFull)
}

/// A child with a place in the session, and the other end of its connection.
fn settled_child(parent: &Arc<Member>, client: &Client) -> Result<(Arc<Member>, OwnedFd)> {
    let shared = &parent.shared;
    if shared.is_full() {
        return Err(Error::TableFull);
    }
    let flags = SocketFlags::CLOEXEC;
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (ours, theirs) = pair.map_err(|_| Error::TableFull)?;
    let rights = parent.rights().clone();
    let child = Member::new(shared, ours, rights, parent.run.clone());
    let at = parent.at.get().ok_or(Error::Invalid)?;
    let _ = child.at.set(at.clone());
    child.inherit(parent)?;
    let share = Share {
        ids: true,
        ..Share::default()
    };
    let slot = client.child_prepare(share)?;
    child.work_on(parent.base().clone());
    let own = child.base().client(at);
    own.set_file_limit(client.file_limit());
    let forked = own.fork_child(Some(slot));
    match forked.and_then(|()| child.settle(own)) {
        Ok(()) => Ok((child, theirs)),
        Err(e) => {
            client.child_made(slot, -1);
            Err(e)
        }
    }
}
