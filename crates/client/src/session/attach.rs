//! Joining the session of a pool: the client's half of the protocol on the pool's socket.
//!
//! Invariants: nothing that the service sends is used before it was decoded and its descriptors
//! were counted; every descriptor is close-on-exec; the connection stays open as long as the
//! attachment is to count as a user of the session; a silent service is waited for no longer than
//! `SILENCE_MAX` at a time.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::mem::MaybeUninit;
use core::time::Duration;
use holdfast_pool::protocol::{
    ANSWER_LEN, Answer, BUSY, FDS, Name, Request, VERSION, other_version,
};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

const SOCKET: &str = "sock";
const EPROTO: i32 = 71;
/// How long one message may take.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Why a client could not join.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// Nobody listens on the pool's socket.
    NoService,
    /// The service said no.
    Refused {
        /// As a positive errno.
        errno: i32,
        /// As a sentence.
        why: String,
    },
    /// The service did not answer in time; it may be stopped, or very busy.
    Silent,
    /// The service is of another version of Holdfast, whose protocol is another one.
    Version {
        /// The version of the protocol that it speaks.
        service: u16,
    },
    /// It is no Holdfast service.
    Protocol,
    /// A system call failed.
    Os {
        /// Which.
        call: &'static str,
        /// As a positive errno.
        errno: i32,
    },
}

/// What helps against a service that began before an upgrade.
pub const SERVICE_IS_OLDER: &str = "end the programs on the pool, and restart its service where \
    one stays (holdfast serve, systemctl restart)";
/// What helps against a program that began, or is installed, from before an upgrade.
pub const SERVICE_IS_NEWER: &str =
    "start this program again, from the installation that the service is of";

impl AttachError {
    /// The positive errno of this error.
    pub fn errno(&self) -> i32 {
        match self {
            AttachError::NoService => Errno::CONNREFUSED.raw_os_error(),
            AttachError::Refused { errno, .. } | AttachError::Os { errno, .. } => *errno,
            AttachError::Silent => Errno::TIMEDOUT.raw_os_error(),
            AttachError::Version { .. } | AttachError::Protocol => EPROTO,
        }
    }

    /// What to do about it, where that is known.
    pub fn fix(&self) -> Option<&'static str> {
        match self {
            AttachError::Version { service } if *service < VERSION => Some(SERVICE_IS_OLDER),
            AttachError::Version { .. } => Some(SERVICE_IS_NEWER),
            _ => None,
        }
    }

    fn os(call: &'static str) -> impl Fn(Errno) -> AttachError {
        move |e| match e {
            // A time-out, as sockets report it.
            Errno::AGAIN => AttachError::Silent,
            e => AttachError::Os {
                call,
                errno: e.raw_os_error(),
            },
        }
    }
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttachError::NoService => f.write_str("no service runs for the pool"),
            AttachError::Refused { why, .. } => f.write_str(why),
            AttachError::Silent => f.write_str("the pool's service does not answer"),
            AttachError::Version { service } => {
                let age = if *service < VERSION { "older" } else { "newer" };
                write!(
                    f,
                    "the pool's service is of a version of Holdfast that is {age} than this \
                     program (protocol {service}, not {VERSION})"
                )
            }
            AttachError::Protocol => f.write_str("what answers at the pool's socket is no service"),
            AttachError::Os { call, errno } => write!(f, "{call} failed with error {errno}"),
        }
    }
}

impl core::error::Error for AttachError {}

/// A place in the session.
#[derive(Debug)]
pub struct Attachment {
    /// Session memory: map `answer.session_len` bytes of it. `None`: the descriptor that the caller
    /// has is one of it. Closing any descriptor of it in a process that has a place in the session
    /// ends that process's life there.
    pub session: Option<OwnedFd>,
    /// The trees, for reading.
    pub meta: OwnedFd,
    /// The journal, for reading and writing.
    pub journal: OwnedFd,
    /// File data, for reading and writing.
    pub data: OwnedFd,
    /// Lengths and properties.
    pub answer: Answer,
    /// Counts as a user of the session until it is closed; hangs up when the service dies.
    pub connection: OwnedFd,
}

/// Joins the session of the pool in directory `pool`. `known`: session memory that the caller has a
/// descriptor of already.
pub fn attach(pool: &[u8], known: Option<BorrowedFd<'_>>) -> Result<Attachment, AttachError> {
    attach_with(pool, known, None)
}

/// As `attach`; offers the session memory that outlived an earlier service.
pub fn rejoin(pool: &[u8], memory: BorrowedFd<'_>) -> Result<Attachment, AttachError> {
    attach_with(pool, Some(memory), Some(memory))
}

/// How a process can reach the pool.
#[derive(Debug)]
pub enum Joined {
    /// It may map it.
    Mapped(Attachment),
    /// A proxy makes its calls: the connection to it, and the channel.
    Served {
        /// Ends when it is closed.
        connection: OwnedFd,
        /// What `Served::enter` maps.
        channel: OwnedFd,
    },
}

/// As `attach`, also where the caller may not map the pool.
pub fn join(pool: &[u8], known: Option<BorrowedFd<'_>>) -> Result<Joined, AttachError> {
    join_with(pool, known, None)
}

fn attach_with(
    pool: &[u8],
    known: Option<BorrowedFd<'_>>,
    offer: Option<BorrowedFd<'_>>,
) -> Result<Attachment, AttachError> {
    join_with(pool, known, offer)?.mapped()
}

impl Joined {
    fn mapped(self) -> Result<Attachment, AttachError> {
        match self {
            Joined::Mapped(attachment) => Ok(attachment),
            Joined::Served { .. } => Err(AttachError::Refused {
                errno: Errno::ACCESS.raw_os_error(),
                why: "only the pool's owner and root can do this".to_string(),
            }),
        }
    }
}

fn join_with(
    pool: &[u8],
    known: Option<BorrowedFd<'_>>,
    offer: Option<BorrowedFd<'_>>,
) -> Result<Joined, AttachError> {
    let inode = |fd| rustix::fs::fstat(fd).map_or(0, |stat| stat.st_ino);
    let request = Request::Attach {
        adopt: offer.is_some(),
        known: known.map_or(0, inode),
    };
    joined(pool, request, offer)
}

fn joined(
    pool: &[u8],
    request: Request,
    offer: Option<BorrowedFd<'_>>,
) -> Result<Joined, AttachError> {
    let connection = connect(pool)?;
    let (answer, mut fds) = ask(&connection, request, offer)?;
    if let (1, Some(channel)) = (fds.len(), fds.pop_if(|_| answer.data_room == 0)) {
        for side in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&connection, side, None).map_err(AttachError::os("setsockopt"))?;
        }
        return Ok(Joined::Served {
            connection,
            channel,
        });
    }
    Attachment::new(connection, answer, fds).map(Joined::Mapped)
}

impl Attachment {
    /// Session memory, where the caller had no descriptor of it.
    pub fn memory(&self) -> Result<BorrowedFd<'_>, AttachError> {
        let session = self.session.as_ref().ok_or(AttachError::Protocol)?;
        Ok(session.as_fd())
    }

    fn new(
        connection: OwnedFd,
        answer: Answer,
        mut fds: Vec<OwnedFd>,
    ) -> Result<Attachment, AttachError> {
        let session = (fds.len() == FDS).then(|| fds.remove(0));
        let [meta, journal, data] = fds.try_into().map_err(|_| AttachError::Protocol)?;
        Ok(Attachment {
            session,
            meta,
            journal,
            data,
            answer,
            connection,
        })
    }
}

/// Begins a session on the snapshot `name` of the pool, in which nothing can be changed.
pub fn attach_snapshot(pool: &[u8], name: &[u8]) -> Result<Attachment, AttachError> {
    join_snapshot(pool, name)?.mapped()
}

/// As `attach_snapshot`, also where the caller may not map the pool.
pub fn join_snapshot(pool: &[u8], name: &[u8]) -> Result<Joined, AttachError> {
    let name = Name::new(name).ok_or(AttachError::Refused {
        errno: Errno::NOENT.raw_os_error(),
        why: "the pool has no snapshot of this name".to_string(),
    })?;
    joined(pool, Request::SnapshotAttach { name }, None)
}

/// Asks the service of the pool how it is doing.
pub fn status(pool: &[u8]) -> Result<Answer, AttachError> {
    let connection = connect(pool)?;
    let mut answer = ask(&connection, Request::Status, None)?.0;
    // What the service calls itself may be its number in another namespace.
    answer.service_pid = pmem::peer::process(connection.as_fd()).unwrap_or(0);
    Ok(answer)
}

/// Asks for something that may take long: the answer is waited for until the service ends.
pub fn request(pool: &[u8], request: Request) -> Result<Answer, AttachError> {
    let connection = connect(pool)?;
    set_socket_timeout(&connection, Timeout::Recv, None).map_err(AttachError::os("setsockopt"))?;
    Ok(ask(&connection, request, None)?.0)
}

fn connect(pool: &[u8]) -> Result<OwnedFd, AttachError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory =
        rustix::fs::open(pool, flags, Mode::empty()).map_err(AttachError::os("open"))?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(AttachError::os("socket"))?;
    for side in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, side, Some(SILENCE_MAX))
            .map_err(AttachError::os("setsockopt"))?;
    }
    let address = address(pool, directory.as_fd())?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => Ok(socket),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Err(AttachError::NoService),
        Err(e) => Err(AttachError::os("connect")(e)),
    }
}

/// The socket by its path, or through /proc where the path is too long for an address.
fn address(pool: &[u8], directory: BorrowedFd<'_>) -> Result<SocketAddrUnix, AttachError> {
    let direct = [pool, b"/", SOCKET.as_bytes()].concat();
    if let Ok(address) = SocketAddrUnix::new(direct.as_slice()) {
        return Ok(address);
    }
    let number = directory.as_raw_fd().to_string();
    let short = ["/proc/self/fd/", &number, "/", SOCKET].concat();
    SocketAddrUnix::new(short.as_str()).map_err(AttachError::os("connect"))
}

fn ask(
    connection: &OwnedFd,
    request: Request,
    fd: Option<BorrowedFd<'_>>,
) -> Result<(Answer, Vec<OwnedFd>), AttachError> {
    match send(connection, &request.encode(), fd) {
        Err(Errno::PIPE | Errno::CONNRESET) => return Err(AttachError::NoService),
        sent => sent.map_err(AttachError::os("sendmsg"))?,
    }
    let (mut answer, mut fds) = receive_answer(connection)?;
    // The service is at work: it says so until it can answer.
    while answer.errno == BUSY {
        (answer, fds) = receive_answer(connection)?;
    }
    match answer.errno {
        0 => Ok((answer, fds)),
        errno => {
            let why = answer.text().to_string();
            Err(AttachError::Refused {
                errno: errno as i32 & 4095,
                why,
            })
        }
    }
}

fn receive_answer(connection: &OwnedFd) -> Result<(Answer, Vec<OwnedFd>), AttachError> {
    let (bytes, len, fds) = receive(connection)?;
    if len == 0 {
        // The service went away before it answered.
        return Err(AttachError::NoService);
    }
    let bytes = &bytes[..len.min(ANSWER_LEN)];
    match (Answer::decode(bytes), other_version(bytes)) {
        (Some(answer), _) => Ok((answer, fds)),
        (None, Some(service)) => Err(AttachError::Version { service }),
        (None, None) => Err(AttachError::Protocol),
    }
}

fn send(to: &OwnedFd, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Errno::INVAL);
    }
    loop {
        let parts = [IoSlice::new(bytes)];
        match rustix::net::sendmsg(to, &parts, &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            done => return done.map(|_| ()),
        }
    }
}

type Received = ([u8; ANSWER_LEN], usize, Vec<OwnedFd>);

fn receive(from: &OwnedFd) -> Result<Received, AttachError> {
    let mut bytes = [0; ANSWER_LEN];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let len = loop {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(from, &mut parts, &mut control, flags) {
            Ok(message) => break message.bytes,
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Err(AttachError::NoService),
            Err(e) => return Err(AttachError::os("recvmsg")(e)),
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok((bytes, len, fds))
}
