//! A pool on memory, its service in a thread of the test, and clients of it.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use holdfast_client::attach::{self, Attachment};
use holdfast_client::trees::Trees;
use holdfast_client::{
    Base, Caller, Client, Error, OfdLink, Session, abi, live, mapped, recover, slots,
};
use holdfast_pmem::{Access, ConstBuf, Medium, MutBuf, RecordLocks, Region, SharedMem};
use holdfast_pool::format::superblock::Consistency;
use holdfast_service::{CreateOptions, Options, Service, Stopper};
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd};
use rustix::fs::FallocateFlags;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A pool directory that is removed in the end.
pub struct Fixture {
    pub dir: PathBuf,
    service: Option<(Stopper, JoinHandle<holdfast_service::Result<()>>)>,
}

/// A client with the connection that keeps it in the session.
pub struct User {
    pub client: Client,
    attachment: Attachment,
    memory: BorrowedFd<'static>,
}

impl std::ops::Deref for User {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Fixture {
    pub fn new(size: u64) -> Fixture {
        Fixture::with(size, Consistency::Posix)
    }

    pub fn with(size: u64, consistency: Consistency) -> Fixture {
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = PathBuf::from(format!("/dev/shm/hf-client-{}-{n}", std::process::id()));
        let options = CreateOptions {
            size: Some(size),
            medium: None,
            consistency,
        };
        holdfast_service::create(&dir, &options).unwrap();
        let mut fixture = Fixture { dir, service: None };
        fixture.start();
        fixture
    }

    pub fn start(&mut self) {
        let service = Service::open(&self.dir, Options::default()).unwrap();
        let stopper = service.stopper();
        self.service = Some((stopper, std::thread::spawn(move || service.run())));
    }

    pub fn stop(&mut self) {
        if let Some((stopper, thread)) = self.service.take() {
            stopper.stop();
            thread.join().unwrap().unwrap();
        }
    }

    /// The pool, which no service has open, is without damage.
    pub fn check(&self) {
        assert!(self.service.is_none(), "the service is writing the pool");
        let meta = std::fs::read(self.dir.join("meta.seg")).unwrap();
        let data = std::fs::metadata(self.dir.join("data-0.seg"))
            .unwrap()
            .len();
        let report = holdfast_pool::check::check(&&meta[..], data, None);
        let damage: Vec<_> = report.damage().collect();
        assert!(damage.is_empty(), "{damage:?}");
    }

    /// A client that sees the pool under `at` in the host.
    pub fn user_at(&self, at: &[u8]) -> User {
        let user = self.user();
        let session = map(&user.attachment, user.memory);
        slots::register(&session, std::process::id(), None).unwrap();
        User {
            client: Client::new(session, at),
            ..user
        }
    }

    pub fn user(&self) -> User {
        join(&self.dir)
    }
}

/// Joins the session of the pool in `dir` as this process.
pub fn join(dir: &Path) -> User {
    let mut attachment = attach::attach(dir.as_os_str().as_encoded_bytes(), None).unwrap();
    // Closing it would end the life of all clients of this process.
    let memory = attachment.session.take().unwrap().into_raw_fd();
    let memory = holdfast_pmem::record_locks::kept_open(memory).unwrap();
    let session = map(&attachment, memory);
    slots::register(&session, std::process::id(), None).unwrap();
    User {
        client: Client::new(session, b""),
        attachment,
        memory,
    }
}

/// Memory of a session that has ended: it stays open, but has nothing in it any more.
pub fn forget(memory: BorrowedFd<'static>) {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let len = rustix::fs::fstat(memory).unwrap().st_size as u64;
    rustix::fs::fallocate(memory, flags, 0, len).unwrap();
}

impl User {
    /// Bytes of session memory that are there.
    #[allow(dead_code, reason = "only some tests look at it")]
    pub fn memory_taken(&self) -> u64 {
        rustix::fs::fstat(self.memory).unwrap().st_blocks as u64 * 512
    }

    /// The memory of its session.
    pub fn memory(&self) -> BorrowedFd<'static> {
        self.memory
    }

    /// Takes the session to the service that follows one that went away.
    pub fn rejoin(&mut self, dir: &Path) {
        let again = attach::rejoin(dir.as_os_str().as_encoded_bytes(), self.memory);
        self.attachment = again.unwrap();
    }

    /// As if the process of this client had died.
    pub fn die(&self) {
        let s = self.session();
        let (index, slot) = (s.slot_index(), s.slot());
        let life = live::life_of(index, slot.generation.load(Ordering::Relaxed));
        s.locks().leave(life);
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
            self.check();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn map(a: &Attachment, memory: BorrowedFd<'_>) -> Session {
    let mem = SharedMem::map(memory, a.answer.session_len as usize).unwrap();
    let locks = RecordLocks::new(memory).unwrap();
    let region = |fd: &rustix::fd::OwnedFd, len: u64, access| {
        Region::map(fd.as_fd(), 0, len as usize, access, Medium::Memory).unwrap()
    };
    let meta = region(&a.meta, a.answer.meta_len, Access::ReadOnly);
    let journal = region(&a.journal, a.answer.journal_len, Access::ReadWrite);
    let data = region(&a.data, a.answer.data_room, Access::ReadWrite);
    Session::new(
        (mem, locks),
        journal,
        data,
        Trees::new(meta),
        recover::lanes,
    )
    .unwrap()
}

/// The pool's directory, as requests name it.
pub fn pool_of(fixture: &Fixture) -> &[u8] {
    fixture.dir.as_os_str().as_encoded_bytes()
}

/// A client in a session on a snapshot.
pub struct Reading {
    pub client: Client,
    _attachment: Attachment,
}

/// Joins the session on a snapshot.
pub fn read(fixture: &Fixture, name: &str) -> Reading {
    let a = attach::attach_snapshot(pool_of(fixture), name.as_bytes()).unwrap();
    let segments = mapped::Segments {
        session: a.memory().unwrap(),
        meta: (a.meta.as_fd(), a.answer.meta_len),
        journal: (a.journal.as_fd(), a.answer.journal_len),
        data: (a.data.as_fd(), a.answer.data_room),
        medium: a.answer.medium,
        cpu: 0,
    };
    let session = mapped::map(&segments).unwrap();
    slots::register(&session, std::process::id(), None).unwrap();
    Reading {
        client: Client::new(session, b""),
        _attachment: a,
    }
}

pub const ROOT: Caller<'static> = Caller {
    uid: 0,
    gid: 0,
    groups: &[],
    umask: 0o022,
    privileged: true,
    ids: None,
};

/// What tests do most, by path from the root.
impl User {
    pub fn open(&self, path: &str, flags: u32) -> Result<OfdLink, Error> {
        self.client
            .open(&ROOT, Base::Root, path.as_bytes(), flags, 0o644, 0)
    }

    pub fn create(&self, path: &str) -> OfdLink {
        self.open(path, abi::O_CREAT | abi::O_RDWR).unwrap()
    }

    pub fn pwrite_all(&self, ofd: OfdLink, bytes: &[u8], at: i64) {
        assert_eq!(
            self.client.pwrite(ofd, ConstBuf::from(bytes), at).unwrap(),
            bytes.len()
        );
    }

    pub fn pread_vec(&self, ofd: OfdLink, len: usize, at: i64) -> Vec<u8> {
        let mut out = vec![0xee; len];
        let n = self
            .client
            .pread(ofd, MutBuf::from(&mut out[..]), at)
            .unwrap();
        out.truncate(n);
        out
    }

    pub fn put(&self, path: &str, bytes: &[u8]) {
        let ofd = self
            .open(path, abi::O_CREAT | abi::O_RDWR | abi::O_TRUNC)
            .unwrap();
        self.pwrite_all(ofd, bytes, 0);
        self.client.release(ofd).unwrap();
    }

    pub fn get(&self, path: &str) -> Vec<u8> {
        let ofd = self.open(path, abi::O_RDONLY).unwrap();
        let size = self.client.fstat(ofd).unwrap().size as usize;
        let out = self.pread_vec(ofd, size + 1, 0);
        self.client.release(ofd).unwrap();
        assert_eq!(out.len(), size);
        out
    }

    pub fn names(&self, path: &str) -> Vec<String> {
        let ofd = self.open(path, abi::O_RDONLY | abi::O_DIRECTORY).unwrap();
        let names = self.names_of(ofd, 1024);
        self.client.release(ofd).unwrap();
        names
    }

    pub fn names_of(&self, ofd: OfdLink, room: usize) -> Vec<String> {
        let mut names = Vec::new();
        loop {
            let mut out = vec![0; room];
            let to = MutBuf::from(&mut out[..]);
            let format = holdfast_client::DirentFormat::Linux64;
            let n = self.client.getdents(ofd, to, format).unwrap();
            if n == 0 {
                break;
            }
            let mut at = 0;
            while at < n {
                let len = u16::from_le_bytes([out[at + 16], out[at + 17]]) as usize;
                let name = &out[at + 19..at + len];
                let end = name.iter().position(|&b| b == 0).unwrap();
                names.push(String::from_utf8(name[..end].to_vec()).unwrap());
                at += len;
            }
        }
        names
    }
}
