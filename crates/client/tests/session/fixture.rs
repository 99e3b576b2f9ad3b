//! A pool with its real service in a thread, and clients of it in this and in other processes.
//!
//! Invariant: the pool's directory and the service go when the `TestPool` is dropped.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use holdfast_client::attach::attach;
use holdfast_client::trees::Trees;
use holdfast_client::{Caller, Client, Session, recover, run, slots};
use holdfast_pmem::record_locks::kept_open;
use holdfast_pmem::{Access, MapOptions, Medium, RecordLocks, Region, SharedMem};
use holdfast_pool::format::superblock::Consistency;
use holdfast_service::{CreateOptions, Options, Service, Stopper};
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::thread::JoinHandle;

/// A pool in /dev/shm and its service.
pub struct TestPool {
    pub path: PathBuf,
    stopper: Stopper,
    service: Option<JoinHandle<()>>,
}

impl TestPool {
    pub fn new(name: &str) -> TestPool {
        TestPool::with_size(name, 64 << 20)
    }

    pub fn with_size(name: &str, size: u64) -> TestPool {
        TestPool::with(name, size, Consistency::Posix)
    }

    pub fn with(name: &str, size: u64, consistency: Consistency) -> TestPool {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Relaxed);
        let path = format!("/dev/shm/holdfast-client-{name}-{}-{n}", std::process::id());
        let path = PathBuf::from(path);
        std::fs::create_dir(&path).unwrap();
        let options = CreateOptions {
            size: Some(size),
            medium: None,
            consistency,
        };
        holdfast_service::create(&path, &options).unwrap();
        let service = Service::open(&path, Options::default()).unwrap();
        let stopper = service.stopper();
        let service = std::thread::spawn(move || service.run().unwrap());
        TestPool {
            path,
            stopper,
            service: Some(service),
        }
    }

    /// Starts the service again after `stop`.
    pub fn start(&mut self) {
        let service = Service::open(&self.path, Options::default()).unwrap();
        self.stopper = service.stopper();
        self.service = Some(std::thread::spawn(move || service.run().unwrap()));
    }

    pub fn client(&self) -> Client {
        client(&self.path)
    }

    /// Another process that runs `role` (see `role`) on this pool.
    pub fn spawn(&self, role: &str, arg: &str) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env("HOLDFAST_TEST_ROLE", role)
            .env("HOLDFAST_TEST_ARG", arg)
            .env("HOLDFAST_TEST_POOL", &self.path)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap()
    }

    /// Ends the service, which then has written everything.
    pub fn stop(&mut self) {
        self.stopper.stop();
        if let Some(service) = self.service.take() {
            service.join().unwrap();
        }
    }
}

impl Drop for TestPool {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// What a child process is to do: role, argument, client. `None` in the test itself.
pub fn role() -> Option<(String, String, Client)> {
    let role = std::env::var("HOLDFAST_TEST_ROLE").ok()?;
    let arg = std::env::var("HOLDFAST_TEST_ARG").unwrap();
    let pool = std::env::var_os("HOLDFAST_TEST_POOL").unwrap();
    Some((role, arg, client(Path::new(&pool))))
}

/// A registered client of the pool. Its connection stays open for the life of the process.
pub fn client(pool: &Path) -> Client {
    let a = attach(pool.as_os_str().as_bytes(), None).unwrap();
    let region = |fd: BorrowedFd<'_>, len: u64, access| {
        Region::map_with(
            fd,
            0,
            len as usize,
            &MapOptions::new(access, Medium::Memory),
        )
        .unwrap()
    };
    // Closing it would end the life of all clients of this process.
    let memory = kept_open(a.session.unwrap().into_raw_fd()).unwrap();
    let mem = SharedMem::map(memory, a.answer.session_len as usize).unwrap();
    let locks = RecordLocks::new(memory).unwrap();
    let journal = region(a.journal.as_fd(), a.answer.journal_len, Access::ReadWrite);
    let data = region(a.data.as_fd(), a.answer.data_room, Access::ReadWrite);
    let meta = region(a.meta.as_fd(), a.answer.meta_len, Access::ReadOnly);
    let trees = Trees::new(meta);
    let session = Session::new((mem, locks), journal, data, trees, recover::lanes).unwrap();
    std::mem::forget(a.connection);
    let run = run::create(&session, std::process::id(), b"/hf").ok();
    slots::register(&session, std::process::id(), run).unwrap();
    Client::new(session, b"/hf")
}

pub const ROOT: Caller<'static> = Caller {
    uid: 0,
    gid: 0,
    groups: &[],
    umask: 0o22,
    privileged: true,
    ids: None,
};

/// A small generator for tests: xorshift.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}
