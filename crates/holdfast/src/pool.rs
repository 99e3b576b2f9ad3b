//! An open pool.
//!
//! Invariants: the process holds one place in the session until the last handle is dropped; a child
//! of fork(2) takes its own place with its first call; if the service dies, the session lives on
//! and the next service takes it over.

use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::keyspace::Keyspace;
use crate::memory::{self, SessionMemory};
use crate::start;
use crate::view::View;
use holdfast_client::attach::{AttachError, Attachment};
use holdfast_client::id_map::{IdMap, IdMaps, OVERFLOW};
use holdfast_client::{Caller, Client, Segments, recover, slots};
use holdfast_pmem::ForkMark;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long the thread of a child of fork(2) outlives its handles, at most.
const CHILD_NAP: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// The pauses between attempts to get a service again, which double, and after a service that did
/// its work.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(1);

/// A pool that is open in this process and its children. Handles are cheap to clone and may be
/// used by any thread.
#[derive(Clone)]
pub struct Pool {
    pub(crate) inner: Arc<Inner>,
}

/// What all handles share.
pub(crate) struct Inner {
    client: Client,
    /// Which process this is; see `client`.
    mark: ForkMark,
    joining: Mutex<()>,
    link: Arc<Link>,
    /// Why nothing can be changed; empty if the pool can be changed.
    damage: String,
    /// The user namespace, if its ids are not the pool's.
    ids: Option<IdMaps>,
}

/// The connection to the service, and what is needed to find the next service.
struct Link {
    path: PathBuf,
    /// Session memory, to offer it to the next service.
    session: SessionMemory,
    /// Journal and data: the client flushes through them.
    _segments: [OwnedFd; 2],
    connection: Mutex<OwnedFd>,
    closing: AtomicBool,
    /// The process whose connection it is.
    opener: u64,
    /// Whether the session needs a service.
    watched: AtomicBool,
}

/// As the kernel has them for this process.
fn id_maps() -> Option<IdMaps> {
    let read = |path| std::fs::read(path).ok();
    IdMaps::parse(&read("/proc/self/uid_map")?, &read("/proc/self/gid_map")?)
}

fn process() -> u64 {
    rustix::process::getpid().as_raw_nonzero().get() as u64
}

impl Pool {
    /// Opens the pool in the directory `path`. Joins the service that runs for it, or starts one
    /// that ends with its last user.
    pub fn open(path: impl AsRef<Path>) -> Result<Pool> {
        let path = std::path::absolute(path).map_err(|e| Error::Os {
            what: "the path of the pool",
            errno: e.raw_os_error().unwrap_or(22),
        })?;
        let known = memory::of(&path);
        let attachment = start::join(&path, known.as_ref().map(AsFd::as_fd))?;
        let inner = match attachment.answer.text() {
            "" => Inner::new(path, attachment, known)?,
            _ => Inner::on_snapshot(path, attachment)?,
        };
        Ok(Pool {
            inner: Arc::new(inner),
        })
    }

    /// As `open`, but creates the pool if there is none, with the size that the command
    /// `holdfast pool create` chooses.
    pub fn open_or_create(path: impl AsRef<Path>) -> Result<Pool> {
        let path = path.as_ref();
        if !path.join(holdfast_pool::segment::META).exists()
            && let Err(e) = start::create(path)
            // Somebody else may have made it meanwhile.
            && !path.join(holdfast_pool::segment::META).exists()
        {
            return Err(e);
        }
        Pool::open(path)
    }

    /// Why the pool can only be read, as a sentence, if its journal is damaged. Changes fail with
    /// EROFS until `holdfast pool check --accept-loss` has been run.
    pub fn damage(&self) -> Option<&str> {
        Some(self.inner.damage.as_str()).filter(|why| !why.is_empty())
    }

    /// Makes all earlier changes durable, as far as the medium promises.
    pub fn sync(&self) -> Result<()> {
        Ok(self.inner.client()?.kv_sync()?)
    }

    /// The keyspace `name`.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        self.open_keyspace(name, false)
    }

    /// The keyspace `name`, which is created if it does not exist. It appears as the directory
    /// `name` below the pool's root.
    pub fn keyspace_or_create(&self, name: &str) -> Result<Keyspace> {
        self.open_keyspace(name, true)
    }

    fn open_keyspace(&self, name: &str, create: bool) -> Result<Keyspace> {
        let client = self.inner.client()?;
        let found = self.as_caller(|caller| client.keyspace(caller, name.as_bytes(), create));
        match found {
            Ok(keyspace) => Ok(Keyspace::new(self.clone(), name, keyspace)),
            Err(Error::Pool(holdfast_client::Error::NotFound)) => Err(Error::Missing {
                what: "keyspace",
                name: name.into(),
            }),
            Err(e) => Err(e),
        }
    }

    /// Calls `f` as the user of this process.
    pub(crate) fn as_caller<T>(
        &self,
        f: impl FnOnce(&Caller) -> holdfast_client::Result<T>,
    ) -> Result<T> {
        let groups = rustix::process::getgroups().map_err(Error::os("getgroups"))?;
        let ids = self.inner.ids.as_ref();
        let outside = |id, map: fn(&IdMaps) -> &IdMap| match ids {
            Some(ids) => map(ids).outside(id).unwrap_or(OVERFLOW),
            None => id,
        };
        let group = |id| outside(id, |ids| &ids.groups);
        let groups: Vec<u32> = groups.iter().map(|g| group(g.as_raw())).collect();
        let caller = Caller {
            uid: outside(rustix::process::geteuid().as_raw(), |ids| &ids.users),
            gid: group(rustix::process::getegid().as_raw()),
            groups: &groups,
            umask: 0o022,
            privileged: rustix::process::geteuid().is_root(),
            ids,
        };
        Ok(f(&caller)?)
    }

    /// The names of all keyspaces.
    pub fn keyspaces(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let mut add = |name: &[u8]| names.push(String::from_utf8_lossy(name).into_owned());
        self.inner.client()?.keyspaces(&mut add)?;
        names.sort();
        Ok(names)
    }

    /// An empty batch, for changes of any keyspaces of this pool that all happen or none does.
    pub fn batch(&self) -> Batch {
        Batch::new(self.clone())
    }

    /// A view of the present: it shows all earlier changes and no later ones.
    pub fn read(&self) -> Result<View> {
        View::begin(self.clone())
    }
}

impl Inner {
    fn new(path: PathBuf, attachment: Attachment, known: Option<SessionMemory>) -> Result<Inner> {
        let inner = Inner::assemble(path, attachment, known)?;
        inner.watch()?;
        Ok(inner)
    }

    /// A session on a snapshot, which needs no service.
    pub(crate) fn on_snapshot(path: PathBuf, attachment: Attachment) -> Result<Inner> {
        Inner::assemble(path, attachment, None)
    }

    fn assemble(
        path: PathBuf,
        mut attachment: Attachment,
        known: Option<SessionMemory>,
    ) -> Result<Inner> {
        // Memory that the host has none for is an error of the operation, not the program's end.
        holdfast_pmem::fault::install();
        let received = attachment.session.take();
        let received = received.and_then(|fd| memory::received(&path, fd));
        let gone = Error::Attach(AttachError::Protocol);
        let memory = received.or(known).ok_or(gone)?;
        let answer = &attachment.answer;
        let segments = Segments {
            session: memory.as_fd(),
            meta: (attachment.meta.as_fd(), answer.meta_len),
            journal: (attachment.journal.as_fd(), answer.journal_len),
            data: (attachment.data.as_fd(), answer.data_len),
            medium: answer.medium,
            cpu: 0,
        };
        let damage = answer.text().to_string();
        let client = Client::attach(&segments, b"")?;
        let mark = ForkMark::new().map_err(holdfast_client::Error::Memory)?;
        let link = Arc::new(Link {
            path,
            session: memory,
            _segments: [attachment.journal, attachment.data],
            connection: Mutex::new(attachment.connection),
            closing: AtomicBool::new(false),
            opener: process(),
            watched: AtomicBool::new(false),
        });
        let inner = Inner {
            damage,
            ids: id_maps(),
            client,
            mark,
            joining: Mutex::new(()),
            link,
        };
        inner.join()?;
        Ok(inner)
    }

    /// The client of this process.
    #[inline]
    pub(crate) fn client(&self) -> Result<&Client> {
        if self.mark.get() == 0 {
            self.join()?;
        }
        Ok(&self.client)
    }

    /// Takes a place in the session for this process.
    #[cold]
    fn join(&self) -> Result<()> {
        let _one = self.joining.lock();
        if self.mark.get() == 0 {
            let session = self.client.session();
            slots::register(session, process() as u32, None)?;
            // What cannot be finished now stays locked.
            let _ = recover::lanes(session);
            self.mark.set(process());
            if self.link.opener != process() && self.link.watched.load(Acquire) {
                // The thread that watches is the parent's. Without one this goes on until the
                // service dies.
                let _ = self.watch();
            }
        }
        Ok(())
    }

    /// The pool's directory.
    pub(crate) fn path(&self) -> &Path {
        &self.link.path
    }

    /// The number of this process; each child has another one.
    pub(crate) fn process(&self) -> u64 {
        self.mark.get()
    }

    /// Starts a thread that looks for the next service when this one dies.
    fn watch(&self) -> Result<()> {
        self.link.watched.store(true, Release);
        let link = self.link.clone();
        let thread = std::thread::Builder::new().name("holdfast".into());
        let spawned = thread.spawn(move || link.watch());
        spawned.map(drop).map_err(|e| Error::Os {
            what: "a thread cannot be started",
            errno: e.raw_os_error().unwrap_or(11),
        })
    }
}

impl Link {
    fn watch(&self) {
        let (mut pause, mut joined) = (Duration::ZERO, Instant::now());
        while !self.closing.load(Acquire) {
            let Ok(connection) = self.connection.lock().map(|c| c.try_clone()) else {
                return;
            };
            let Ok(connection) = connection else { return };
            let mut fds = [PollFd::new(&connection, PollFlags::IN)];
            // A child cannot shut its parent's connection down: it looks now and then.
            let nap = (self.opener != process()).then_some(CHILD_NAP);
            match rustix::event::poll(&mut fds, nap.as_ref()) {
                Ok(0) => continue,
                Ok(_) if self.closing.load(Acquire) => return,
                Ok(_) => {}
                Err(_) => continue,
            }
            // One that ends soon after it starts is not started in a loop.
            if joined.elapsed() > LONG {
                pause = Duration::ZERO;
            }
            std::thread::sleep(pause);
            if self.closing.load(Acquire) {
                return;
            }
            pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            if let Ok(attachment) = start::join_again(&self.path, self.session.as_fd())
                && let Ok(mut place) = self.connection.lock()
            {
                *place = attachment.connection;
                joined = Instant::now();
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.mark.get() != 0 {
            self.client.exit(true);
            if self.client.is_in_session_again() {
                self.link.session.keep();
            }
        }
        self.link.closing.store(true, Release);
        // A child's end of the connection is its parent's, too.
        if self.link.opener == process()
            && let Ok(connection) = self.link.connection.lock()
        {
            let _ = rustix::net::shutdown(&*connection, rustix::net::Shutdown::Both);
        }
    }
}
