//! Which users are admitted, and that nobody keeps others out or makes them wait.
//!
//! Invariant: every listener here belongs to its own directory and ends with its test.

use crate::listener::admission::{Answered, Closer, Handler, Limits, Listener, Users};
use crate::listener::connection::Reply;
use crate::listener::disposal::tests::lingering;
use crate::testing::TempDir;
use holdfast_pool::protocol::{ANSWER_LEN, Answer, BUSY, Name, Request};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::{Errno, IoSlice};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::*;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const LIMITS: Limits = Limits {
    attached: 4,
    silent: 8,
    refused: 8,
    silence: Duration::from_secs(60),
    refusal: Duration::from_secs(60),
};
/// What nobody else can delay takes less.
const SOON: Duration = Duration::from_secs(4);

/// Answers everything, but the deletion of snapshots only when it is told to, and keeps the memory
/// that was offered.
struct Yes {
    offered: Arc<Mutex<Vec<OwnedFd>>>,
    later: Later,
    bell: Arc<OwnedFd>,
}

/// Where replies are to go.
type Later = Arc<Mutex<Vec<SyncSender<Reply>>>>;

impl Handler for Yes {
    fn answer(&mut self, request: Request, adopt: Option<OwnedFd>) -> Answered {
        self.offered.lock().unwrap().extend(adopt);
        if matches!(request, Request::SnapshotDelete { .. }) {
            let (reply, later) = sync_channel(1);
            self.later.lock().unwrap().push(reply);
            return Answered::Later(later);
        }
        Answered::Now(Box::new((Answer::default(), Vec::new())))
    }

    fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    fn users_changed(&mut self) {}
}

struct Fixture {
    dir: TempDir,
    users: Arc<Users>,
    closer: Closer,
    offered: Arc<Mutex<Vec<OwnedFd>>>,
    later: Later,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Fixture {
    /// A listener for user `owner`.
    fn new(owner: u32, limits: Limits) -> Fixture {
        let dir = TempDir::new("admission");
        let mut listener = Listener::open(dir.path(), owner).unwrap();
        listener.limits = limits;
        // Root, who may run this, is a stranger like any other.
        listener.root_enters = false;
        let users = Arc::new(Users::default());
        let (offered, later) = (Arc::default(), Later::default());
        let bell = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let handler = Yes {
            offered: Arc::clone(&offered),
            later: later.clone(),
            bell: bell.clone(),
        };
        let closer = listener.closer().unwrap();
        let known = users.clone();
        let thread = Some(std::thread::spawn(move || listener.serve(known, handler)));
        Fixture {
            dir,
            users,
            closer,
            offered,
            later,
            bell,
            thread,
        }
    }

    fn ours(limits: Limits) -> Fixture {
        Fixture::new(rustix::process::geteuid().as_raw(), limits)
    }

    fn connect(&self) -> OwnedFd {
        let flags = SocketFlags::CLOEXEC;
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = rustix::net::socket_with(family, kind, flags, None).unwrap();
        set_socket_timeout(&socket, Timeout::Recv, Some(SOON)).unwrap();
        let path = self.dir.path().join(holdfast_pool::segment::SOCKET);
        rustix::net::connect(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        socket
    }

    /// What the service says to a request on a new connection.
    fn ask(&self, request: Request) -> (OwnedFd, Answer) {
        let socket = self.connect();
        send(&socket, &request.encode(), &[]);
        let answer = receive(&socket).unwrap().unwrap();
        (socket, answer)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.users.closing.store(true, Release);
        self.closer.close();
        self.thread.take().map(JoinHandle::join);
    }
}

fn send(to: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    let parts = [IoSlice::new(bytes)];
    rustix::net::sendmsg(to, &parts, &mut control, SendFlags::NOSIGNAL).unwrap();
}

/// An answer; `None`: the connection was closed.
fn receive(from: &OwnedFd) -> Result<Option<Answer>, Errno> {
    let mut bytes = [0; ANSWER_LEN];
    let (_, len) = rustix::net::recv(from, &mut bytes, RecvFlags::empty())?;
    Ok(Answer::decode(&bytes[..len]))
}

fn is_closed(socket: &OwnedFd) -> bool {
    matches!(receive(socket), Ok(None) | Err(Errno::CONNRESET))
}

fn memory(seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("offer", flags).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

#[test]
fn a_stranger_is_refused_before_saying_anything() {
    let owner = rustix::process::geteuid().as_raw() + 1;
    let service = Fixture::new(owner, LIMITS);
    let socket = service.connect();
    let answer = receive(&socket).unwrap().unwrap();
    assert_eq!(answer.errno, 13);
    assert!(answer.text().contains(&format!("belongs to user {owner},")));
    // The request of a client comes after that, and changes nothing.
    send(&socket, &Request::Status.encode(), &[]);
    let (_, answer) = service.ask(Request::Attach {
        adopt: false,
        known: 0,
    });
    assert_eq!(answer.errno, 13);
    assert_eq!(service.users.attached.load(Acquire), 0);
}

#[test]
fn a_stranger_is_closed_soon() {
    let limits = Limits {
        refusal: Duration::from_millis(300),
        ..LIMITS
    };
    let service = Fixture::new(rustix::process::geteuid().as_raw() + 1, limits);
    let socket = service.connect();
    assert_eq!(receive(&socket).unwrap().unwrap().errno, 13);
    assert!(is_closed(&socket));
}

#[test]
fn silent_connections_keep_nobody_out() {
    let service = Fixture::ours(LIMITS);
    let silent: Vec<OwnedFd> = (0..100).map(|_| service.connect()).collect();
    let (_attached, answer) = service.ask(Request::Attach {
        adopt: false,
        known: 0,
    });
    assert_eq!(answer.errno, 0);
    // The oldest had to make room, the newest did not.
    assert!(silent[..80].iter().all(is_closed));
    let newest = &silent[99];
    send(newest, &Request::Status.encode(), &[]);
    assert_eq!(receive(newest).unwrap().unwrap().errno, 0);
}

#[test]
fn a_connection_that_asks_for_nothing_is_closed_and_a_user_is_not() {
    let limits = Limits {
        silence: Duration::from_millis(300),
        ..LIMITS
    };
    let service = Fixture::ours(limits);
    let (attached, answer) = service.ask(Request::Attach {
        adopt: false,
        known: 0,
    });
    assert_eq!(answer.errno, 0);
    let (asked, answer) = service.ask(Request::Status);
    assert_eq!(answer.errno, 0);
    assert!(is_closed(&service.connect()) && is_closed(&asked));
    send(&attached, &Request::Status.encode(), &[]);
    assert_eq!(receive(&attached).unwrap().unwrap().errno, 0);
}

#[test]
fn attached_connections_keep_nobody_from_asking() {
    let service = Fixture::ours(LIMITS);
    let attach = Request::Attach {
        adopt: false,
        known: 0,
    };
    let mut attached: Vec<OwnedFd> = Vec::new();
    for _ in 0..LIMITS.attached {
        let (socket, answer) = service.ask(attach);
        assert_eq!(answer.errno, 0);
        attached.push(socket);
    }
    assert_eq!(service.ask(attach).1.errno, 11);
    assert_eq!(service.ask(Request::Status).1.errno, 0);
    attached.pop();
    let begun = Instant::now();
    while service.ask(attach).1.errno != 0 {
        assert!(begun.elapsed() < SOON);
    }
}

#[test]
fn a_descriptor_that_lingers_makes_nobody_wait() {
    let service = Fixture::ours(LIMITS);
    let offer = Request::Attach {
        adopt: true,
        known: 0,
    }
    .encode();
    let plain = Request::Status.encode();
    let bytes: [&[u8]; 4] = [b"nonsense", b"", &plain, &offer];
    let mut receivers = Vec::new();
    for bytes in bytes {
        // Alone, and behind one that is well.
        for first in [None, Some(memory(SealFlags::SHRINK | SealFlags::GROW))] {
            let (sender, receiver) = lingering();
            receivers.push(receiver);
            let socket = service.connect();
            let both: Vec<_> = first
                .iter()
                .map(AsFd::as_fd)
                .chain([sender.as_fd()])
                .collect();
            send(&socket, bytes, &both);
            // Whose close is the last one does not matter.
            std::thread::spawn(move || drop(sender));
            assert!(
                receive(&socket)
                    .unwrap()
                    .is_none_or(|answer| answer.errno == 71)
            );
            assert_eq!(service.ask(Request::Status).1.errno, 0);
        }
    }
    assert!(service.offered.lock().unwrap().is_empty());
}

#[test]
fn descriptors_of_a_stranger_make_nobody_wait() {
    let service = Fixture::new(rustix::process::geteuid().as_raw() + 1, LIMITS);
    let mut receivers = Vec::new();
    // More than may stay: some are closed with what is in their queues.
    for _ in 0..2 * LIMITS.refused {
        let (sender, receiver) = lingering();
        receivers.push(receiver);
        let socket = service.connect();
        send(&socket, b"nonsense", &[sender.as_fd()]);
        std::thread::spawn(move || drop(sender));
        assert_eq!(service.ask(Request::Status).1.errno, 13);
    }
}

#[test]
fn sealed_memory_is_received_and_nothing_else() {
    let service = Fixture::ours(LIMITS);
    let offer = |fds: &[BorrowedFd<'_>]| {
        let socket = service.connect();
        send(
            &socket,
            &Request::Attach {
                adopt: true,
                known: 0,
            }
            .encode(),
            fds,
        );
        receive(&socket).unwrap().map_or(71, |answer| answer.errno)
    };
    let sealed = memory(SealFlags::SHRINK | SealFlags::GROW);
    assert_eq!(offer(&[sealed.as_fd()]), 0);
    assert_eq!(service.offered.lock().unwrap().len(), 1);
    assert_eq!(offer(&[memory(SealFlags::SHRINK).as_fd()]), 71);
    assert_eq!(
        offer(&[std::fs::File::open("/dev/null").unwrap().as_fd()]),
        71
    );
    assert_eq!(offer(&[sealed.as_fd(), sealed.as_fd()]), 71);
    assert_eq!(offer(&[]), 71);
    assert_eq!(service.offered.lock().unwrap().len(), 1);
}

/// Others are answered at once; who waits is told so, and told when it is done.
#[test]
fn who_asks_for_what_takes_long_waits_alone() {
    let service = Fixture::ours(LIMITS);
    let name = Name::new(b"s").unwrap();
    let slow: Vec<OwnedFd> = (0..3).map(|_| service.connect()).collect();
    for socket in &slow {
        send(socket, &Request::SnapshotDelete { name }.encode(), &[]);
        assert_eq!(receive(socket).unwrap().unwrap().errno, BUSY);
    }
    let (_attached, answer) = service.ask(Request::Attach {
        adopt: false,
        known: 0,
    });
    assert_eq!(answer.errno, 0);
    let later: Vec<_> = service.later.lock().unwrap().drain(..).collect();
    assert_eq!(later.len(), 3);
    // One is answered, one has gone, one is forgotten.
    let done = Answer {
        applied_seq: 77,
        ..Answer::default()
    };
    let [first, second, third] = later.try_into().unwrap();
    first.send((done, Vec::new())).unwrap();
    rustix::io::write(&service.bell, &1u64.to_ne_bytes()).unwrap();
    drop(third);
    let answer = |socket| {
        let answers = std::iter::repeat_with(|| receive(socket).unwrap().unwrap());
        answers.into_iter().find(|a| a.errno != BUSY).unwrap()
    };
    assert_eq!(answer(&slow[0]).applied_seq, 77);
    assert_eq!(answer(&slow[2]).errno, 11);
    let mut slow = slow.into_iter();
    drop(slow.nth(1));
    let begun = Instant::now();
    while second.send((done, Vec::new())).is_ok() {
        assert!(begun.elapsed() < SOON, "who has gone is still waited for");
        std::thread::sleep(Duration::from_millis(1));
    }
}
