//! The service's socket: which users are admitted, their connections, and what each may request.
//!
//! Invariants:
//!  * The user of a connection is known before anything is received. Other users than the pool's
//!    owner and root are told so; nothing is received from them.
//!  * No peer makes another one wait: sockets do not block, each turn reads one request of fixed
//!    length, and what others sent is closed elsewhere. What takes long is answered later; after
//!    `TELL_AFTER` the peer is told that it does.
//!  * No peer keeps another one out: a connection that requests nothing is closed after
//!    `Limits::silence`, and each kind has a limited number: the oldest makes room.
//!  * A connection counts as a user of the session once it attached.

use crate::base::error::{Error, Result};
use crate::listener::connection::{Asks, Awaited, Connection, Reply, Standing, Trouble};
use crate::listener::disposal::Disposal;
use crate::listener::proxies::Proxies;
use holdfast_pmem::env::{self, Instant};
use holdfast_pool::protocol::{Answer, BUSY, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const ROOT: u32 = 0;
const TURN: Duration = Duration::from_millis(200);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// Connections that are accepted before requests are read again.
const ACCEPTED_MAX: usize = 64;
/// Accepting goes on after so long when there are no descriptors left.
const RESPITE: Duration = Duration::from_millis(10);
const EPROTO: i32 = 71;
/// Who waits for an answer is told so after so long, and then again and again.
const TELL_AFTER: Duration = Duration::from_millis(20);
const TELL_AGAIN: Duration = Duration::from_secs(1);

/// How many connections there are, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Users of sessions. One more is told to try again.
    pub attached: usize,
    /// Connections of the owner that are not users of a session.
    pub silent: usize,
    /// Connections of others, until they have read why they are refused.
    pub refused: usize,
    /// A connection that asks for nothing is closed after so long.
    pub silence: Duration,
    /// One that was refused is closed after so long.
    pub refusal: Duration,
}

/// All of them need fewer descriptors than a service asks the system for.
const LIMITS: Limits = Limits {
    attached: 3072,
    silent: 256,
    refused: 256,
    silence: Duration::from_secs(5),
    refusal: Duration::from_secs(1),
};

/// What becomes of a request.
pub enum Answered {
    Now(Box<Reply>),
    /// The reply comes, after which the bell rings.
    Later(Receiver<Reply>),
}

/// What answers requests. It makes nobody wait.
pub trait Handler: Send {
    /// Answers a request. `adopt` is the session memory that came with it.
    fn answer(&mut self, request: Request, adopt: Option<OwnedFd>) -> Answered;
    /// Can be read when a reply is there that comes later.
    fn bell(&self) -> &OwnedFd;
    /// The number of attached connections changed.
    fn users_changed(&mut self);
}

/// What the listener tells the rest of the service.
#[derive(Debug, Default)]
pub struct Users {
    /// Connections that attached and are still open.
    pub attached: AtomicU32,
    /// Users beside the owner and root whose programs are served.
    pub others: AtomicU32,
    /// The process that writes back dirty inodes, which is no user; 0: there is none.
    pub helper: Arc<AtomicU32>,
    /// Somebody attached at some time.
    pub ever: AtomicBool,
    /// The service is to end: let nobody in.
    pub closing: AtomicBool,
    /// The service ends with its last user, whose connection is kept open until then.
    pub ending: AtomicBool,
    /// The connection of the last user, to be closed when everything is done.
    pub last: Mutex<Option<Connection>>,
}

/// The listening socket.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    /// Somebody else made it, and keeps it when the service ends.
    is_given: bool,
    owner: u32,
    /// Root is let in as well.
    pub root_enters: bool,
    /// Who serves everybody else.
    pub proxies: Proxies,
    pub limits: Limits,
    pub disposal: Disposal,
}

/// Wakes `Listener::serve` to see that it is to end; one whose socket was given sees it by itself
/// after a turn.
#[derive(Debug)]
pub struct Closer {
    socket: Option<OwnedFd>,
}

impl Closer {
    /// Nobody can connect any more; at a socket that was given, who does so waits for the next
    /// service.
    pub fn close(&self) {
        if let Some(socket) = &self.socket {
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
    }
}

impl Listener {
    /// Listens at `POOL/sock`. The caller holds the pool's lock, so a socket that is there is a
    /// dead one. Only user `owner` and root will be let in.
    pub fn open(directory: &Path, owner: u32) -> Result<Listener> {
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
        // Anybody may connect; who is not let in is told why.
        rustix::fs::chmod(&path, Mode::from_raw_mode(0o666)).map_err(Error::os(what()))?;
        rustix::net::listen(&socket, BACKLOG).map_err(Error::os(what()))?;
        Ok(Listener::of(socket, false, owner))
    }

    /// Listens at a socket that somebody else made and keeps: it has to be at `POOL/sock`.
    pub fn given(directory: &Path, owner: u32, socket: OwnedFd) -> Result<Listener> {
        let path = directory.join(holdfast_pool::segment::SOCKET);
        let wrong = || Error::Socket { path: path.clone() };
        let name = rustix::net::getsockname(&socket).map_err(|_| wrong())?;
        let name = SocketAddrUnix::try_from(name).map_err(|_| wrong())?;
        let named = name
            .path_bytes()
            .map(|name| Path::new(OsStr::from_bytes(name)));
        let here = |path: &Path| std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
        let is_here = named
            .and_then(here)
            .is_some_and(|it| here(&path) == Some(it));
        let kind = sockopt::socket_type(&socket);
        let listens = sockopt::socket_acceptconn(&socket);
        if !is_here || kind != Ok(SocketType::SEQPACKET) || listens != Ok(true) {
            return Err(wrong());
        }
        rustix::io::ioctl_fionbio(&socket, true).map_err(Error::os(path.display().to_string()))?;
        Ok(Listener::of(socket, true, owner))
    }

    fn of(socket: OwnedFd, is_given: bool, owner: u32) -> Listener {
        Listener {
            socket,
            is_given,
            owner,
            root_enters: true,
            proxies: Proxies::new(None, Path::new("")),
            limits: LIMITS,
            disposal: Disposal::default(),
        }
    }

    /// Ends `serve`, together with `Users::closing`.
    pub fn closer(&self) -> Result<Closer> {
        let socket = (!self.is_given).then(|| self.socket.try_clone());
        let socket = socket.transpose();
        let socket = socket.map_err(Error::io("the service's socket"))?;
        Ok(Closer { socket })
    }

    /// Serves until `users.closing`.
    pub fn serve(self, users: Arc<Users>, mut handler: impl Handler) {
        let mut connections: Vec<Connection> = Vec::new();
        let mut last: Option<Connection> = None;
        while !users.closing.load(Acquire) {
            let ready = self.wait(handler.bell(), &connections);
            let now = Instant::now();
            let mut speaking = ready.iter().skip(2).copied();
            let mut gone = Vec::new();
            for mut connection in std::mem::take(&mut connections) {
                let speaks = speaking.next().unwrap_or(false);
                let stays = match speaks {
                    _ if connection.awaits.is_some() => tell(&mut connection, &users, speaks),
                    true => self.serve_connection(&mut connection, &users, &mut handler),
                    false => !self.is_over(&connection, now),
                };
                if stays {
                    connections.push(connection);
                } else if connection.standing == Standing::Attached {
                    gone.push(connection);
                }
            }
            if ready.first() == Some(&true) {
                self.accept(&mut connections);
            }
            let joining = |c: &&Connection| c.awaits.as_ref().is_some_and(|a| a.asks.joins);
            let joining = connections.iter().filter(joining).count();
            let attached = (count(&connections, Standing::Attached) + joining) as u32;
            // The last one may wait for the end of the service: its connection ends with that.
            let ending = attached == 0 && users.ending.load(Acquire);
            last = gone.pop().or(last).filter(|_| ending);
            if users.attached.swap(attached, AcqRel) != attached {
                handler.users_changed();
            }
            self.disposal.tend();
            users.others.store(self.proxies.tend() as u32, Release);
        }
        users
            .last
            .lock()
            .map(|mut place| *place = last)
            .unwrap_or(());
    }

    /// Whether somebody connects, and which of the connections have something to be looked at;
    /// nothing of this where nothing happens for one turn.
    fn wait(&self, bell: &OwnedFd, connections: &[Connection]) -> Vec<bool> {
        let mut fds = vec![PollFd::new(&self.socket, PollFlags::IN)];
        fds.push(PollFd::new(bell, PollFlags::IN));
        fds.extend(connections.iter().map(|connection| {
            let wanted = match connection.standing {
                // That the other end is closed is always said.
                Standing::Refused => PollFlags::empty(),
                _ if connection.awaits.is_some() => PollFlags::empty(),
                _ => PollFlags::IN,
            };
            PollFd::new(connection.socket(), wanted)
        }));
        let soon = connections.iter().any(|c| c.awaits.is_some());
        let turn = if soon { TELL_AFTER } else { TURN };
        let turn = Timespec {
            tv_sec: 0,
            tv_nsec: turn.subsec_nanos().into(),
        };
        let ready: Vec<bool> = match poll(&mut fds, Some(&turn)) {
            Ok(n) if n > 0 => fds.iter().map(|fd| !fd.revents().is_empty()).collect(),
            _ => return Vec::new(),
        };
        if ready.get(1) == Some(&true)
            && let Err(e) = rustix::io::read(bell, &mut [0; 8])
        {
            // Somebody else's reading of it is none of ours.
            assert_eq!(e, Errno::AGAIN, "the bell of the listener");
        }
        ready
    }

    /// Whether its time is over, of which nothing had come at `now`.
    fn is_over(&self, connection: &Connection, now: Instant) -> bool {
        let most = match connection.standing {
            Standing::Attached => return false,
            Standing::Silent => self.limits.silence,
            Standing::Refused => self.limits.refusal,
        };
        now.duration_since(connection.since) > most
    }

    fn accept(&self, connections: &mut Vec<Connection>) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for n in 0..ACCEPTED_MAX {
            match rustix::net::accept_with(&self.socket, flags) {
                Ok(socket) => {
                    let connection = Connection::new(socket, self.disposal.clone());
                    connections.extend(self.admit(connection));
                    make_room(connections, Standing::Silent, self.limits.silent);
                    make_room(connections, Standing::Refused, self.limits.refused);
                }
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    // Those who use a session keep their connections.
                    make_room(connections, Standing::Refused, 0);
                    make_room(connections, Standing::Silent, self.limits.silent / 2);
                    env::sleep(RESPITE);
                    return;
                }
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(Errno::AGAIN) if n > 0 => return,
                // It is ready and nobody is there: whoever gave it to us has shut it down.
                Err(_) => {
                    env::sleep(RESPITE);
                    return;
                }
            }
        }
    }

    /// Looks who connected, before anything is received. `None`: it is none of ours any more.
    fn admit(&self, mut connection: Connection) -> Option<Connection> {
        match connection.user() {
            Ok(user) if user == self.owner => return Some(connection),
            // It could become the owner as well.
            Ok(ROOT) if self.root_enters => return Some(connection),
            Ok(user) => match self.proxies.hand(user, connection.socket()) {
                Ok(()) => {
                    connection.hand_over();
                    return None;
                }
                Err(why) => {
                    let owner = self.owner;
                    let who = format!("the pool belongs to user {owner}, and you are user {user}");
                    connection.refuse(Errno::ACCESS.raw_os_error(), &format!("{who}: {why}"));
                }
            },
            Err(e) => connection.refuse(e.raw_os_error(), "the service cannot tell who you are"),
        }
        Some(connection)
    }

    /// One request; false when the connection is to be closed.
    fn serve_connection(
        &self,
        connection: &mut Connection,
        users: &Users,
        handler: &mut impl Handler,
    ) -> bool {
        if connection.standing == Standing::Refused {
            return false;
        }
        let (request, adopt) = match connection.receive() {
            Ok(received) => received,
            Err(Trouble::Nothing) => return true,
            Err(Trouble::Gone) => return false,
            Err(Trouble::Malformed) => {
                connection.refuse(EPROTO, "the service does not understand the request");
                return true;
            }
        };
        let on_snapshot = matches!(request, Request::SnapshotAttach { .. });
        let joins = on_snapshot || matches!(request, Request::Attach { .. });
        let joins = joins && !connection.is_of(users.helper.load(SeqCst));
        if joins && users.attached.load(Acquire) as usize >= self.limits.attached {
            let again = Errno::AGAIN.raw_os_error();
            connection.refuse(again, "too many programs are attached to the pool");
            return false;
        }
        // Counted before it is let in, so that the session does not end under it.
        if joins {
            users.attached.fetch_add(1, AcqRel);
        }
        let asks = Asks { joins, on_snapshot };
        match handler.answer(request, adopt) {
            Answered::Now(reply) => finish(connection, users, asks, &reply),
            Answered::Later(reply) => {
                let told_at = Instant::now() + TELL_AFTER;
                connection.awaits = Some(Awaited {
                    reply,
                    asks,
                    told_at,
                });
                true
            }
        }
    }
}

/// Sends the answer; false when the connection is to be closed.
fn finish(connection: &mut Connection, users: &Users, asks: Asks, reply: &Reply) -> bool {
    if asks.on_snapshot {
        // Also where there is none of that name: nobody else may have wanted us.
        users.ever.store(true, Release);
    }
    if reply.0.errno == 0 && asks.joins {
        users.ever.store(true, Release);
        connection.standing = Standing::Attached;
    }
    connection.since = Instant::now();
    connection.send(reply).is_ok() && reply.0.errno == 0
}

/// Looks after one that waits for an answer, and whose other end may be `closed`; false when the
/// connection is to be closed.
fn tell(connection: &mut Connection, users: &Users, closed: bool) -> bool {
    let Some(mut awaited) = connection.awaits.take() else {
        return !closed;
    };
    match awaited.reply.try_recv() {
        Ok(reply) => return finish(connection, users, awaited.asks, &reply),
        Err(TryRecvError::Disconnected) => {
            return finish(connection, users, awaited.asks, &ending());
        }
        Err(TryRecvError::Empty) => {}
    }
    if awaited.told_at <= Instant::now() {
        awaited.told_at = Instant::now() + TELL_AGAIN;
        let busy = Answer::refusal(BUSY as i32, "the service is at work");
        if connection.send(&(busy, Vec::new())).is_err() {
            return false;
        }
    }
    connection.awaits = Some(awaited);
    !closed
}

/// Who asks again finds the next service, or starts it.
pub fn ending() -> Reply {
    let again = Errno::AGAIN.raw_os_error();
    (Answer::refusal(again, "the service is ending"), Vec::new())
}

fn count(connections: &[Connection], standing: Standing) -> usize {
    let same = connections.iter().filter(|c| c.standing == standing);
    same.count()
}

/// Closes the oldest connections of that standing, until there are at most `most`, or all that are
/// left wait for an answer.
fn make_room(connections: &mut Vec<Connection>, standing: Standing, most: usize) {
    let mut over = count(connections, standing).saturating_sub(most);
    connections.retain(|connection| {
        let goes = over > 0 && connection.standing == standing && !connection.waits();
        over -= usize::from(goes);
        !goes
    });
}
