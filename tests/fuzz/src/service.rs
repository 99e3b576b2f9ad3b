//! The service under session memory and a journal that a hostile process writes.
//!
//! What must hold: each turn ends; whatever the service was told, the pool that it leaves is one
//! in which the checker finds nothing, if the session ends, is taken over by the next service, or
//! is lost with all its processes.

use crate::input::Input;
use crate::session::calls::Calls;
use crate::session::scribble::Scribble;
use holdfast_client::mapped::{self, Segments};
use holdfast_client::{Base, Caller, Client, abi, slots};
use holdfast_pmem::atomic::AtomicU64;
use holdfast_pmem::{Access, Medium, Region, SharedMem};
use holdfast_pool::format::LANES;
use holdfast_pool::format::superblock::Consistency;
use holdfast_pool::session::{Header, SESSION_LEN};
use holdfast_service::stepping::{Engine, Sent, Session, recover};
use holdfast_service::{CreateOptions, Error, Files, accept_loss, check, create};
use rustix::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::*};

const SIZE: u64 = 16 << 20;
/// Changes and turns of one input at most.
const STEPS_MAX: usize = 60;
/// The header, in which words are that the service reads at each turn.
const HEADER_LEN: usize = size_of::<Header>();
const ME: Caller<'static> = Caller {
    uid: 0,
    gid: 0,
    groups: &[],
    umask: 0,
    privileged: true,
    ids: None,
};

struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Relaxed);
        let name = format!("holdfast-fuzz-{}-{n}", std::process::id());
        Dir(Path::new("/dev/shm").join(name))
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// How the session goes from here.
enum End {
    /// Its processes end, then it does.
    Orderly,
    /// The service dies, and the next one takes it over.
    Adopted,
    /// All die in one moment.
    Lost,
}

/// Changes what the service reads, and lets it work, as the bytes say.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let end = match input.u8() & 3 {
        2 => End::Adopted,
        3 => End::Lost,
        _ => End::Orderly,
    };
    let dir = Dir::new();
    let (mut engine, mut session) = begin(&dir.0);
    let fds = session.descriptors(0).expect("descriptors");
    let lane_len = session.memory.header().lane_len.load(Relaxed);
    use_it(&engine, &fds, lane_len, input.u8() & 1 == 0);
    let memory = SharedMem::map(fds[0].as_fd(), SESSION_LEN).expect("memory");
    let scribble = Scribble::new(&memory, (map(&fds[2]), lane_len), map(&fds[3]));
    for _ in 0..STEPS_MAX {
        match input.u8() {
            _ if input.is_empty() => break,
            what @ 0..96 => step(&mut engine, &mut session, what),
            what @ 96..128 => header_word(&memory, what, &mut input),
            what => scribble.change(what, &mut input),
        }
    }
    finish(&dir.0, (engine, session), end);
}

fn begin(dir: &Path) -> (Engine, Session) {
    let options = CreateOptions {
        size: Some(SIZE),
        medium: None,
        consistency: Consistency::Posix,
    };
    create(dir, &options).expect("a pool");
    let mut engine = open(dir);
    recover(&mut engine).expect("nothing to recover");
    let session = Session::create(&mut engine).expect("a session");
    (engine, session)
}

fn open(dir: &Path) -> Engine {
    Engine::open(Files::open(dir).expect("its files")).expect("it opens")
}

fn map(sent: &Sent) -> Region {
    let fd = sent.as_fd();
    let len = rustix::fs::fstat(fd).expect("a file").st_size as usize;
    Region::map(fd, 0, len, Access::ReadWrite, Medium::Memory).expect("a mapping")
}

/// What a client leaves in session memory and journal, and in files that are open if it is `dead`.
fn use_it(engine: &Engine, fds: &[Sent], lane_len: u64, dead: bool) {
    let superblock = engine.store.pool.superblock();
    let segments = Segments {
        session: fds[0].as_fd(),
        meta: (fds[1].as_fd(), superblock.meta_len),
        journal: (fds[2].as_fd(), LANES as u64 * lane_len),
        data: (fds[3].as_fd(), superblock.data_len),
        medium: 0,
        cpu: 0,
    };
    let mapped = mapped::map(&segments).expect("a mapped session");
    slots::register(&mapped, std::process::id(), None).expect("a slot");
    let client = Client::new(mapped, b"/hf");
    for path in [&b"dir"[..], b"dir/subdir"] {
        client.mkdir(&ME, Base::Root, path, 0o777).expect("room");
    }
    let flags = abi::O_RDWR | abi::O_CREAT;
    let file = client.open(&ME, Base::Root, b"dir/subdir/file", flags, 0o666, 0);
    client.release(file.expect("room")).expect("it is open");
    let keyspace = client.keyspace(&ME, b"values", true).expect("room");
    let ordered = holdfast_client::kv::Durability::Ordered;
    for (key, len) in [(&b"small"[..], 100), (b"long", 3000), (b"blocks", 40_000)] {
        let put = client.kv_put(keyspace, key, &vec![9; len], ordered);
        put.expect("room");
    }
    let mut calls = Calls::new(&client);
    // It asks for a keyspace that is not there, in the end.
    let _ = calls.begin();
    if !dead {
        calls.end();
        client.exit(true);
    }
}

/// One thing that the writer does between two looks at its inbox.
fn step(engine: &mut Engine, session: &mut Session, what: u8) {
    match what % 8 {
        0 => _ = session.rest(engine, what & 8 != 0),
        1 => session.top_up(engine),
        2 => _ = session.tend_checkpoint(engine, what & 8 != 0),
        3 => {
            let owner = session.memory.header().stores_lock.load(Relaxed) & 0xffff;
            let owner = if what & 8 != 0 { owner } else { what.into() };
            let _ = session.snapshot_create(engine, &[b's', what], owner);
        }
        4 => _ = session.snapshot_delete(engine, &[b's', what ^ 7]),
        5 => _ = session.memory.live_processes(),
        _ => _ = session.turn(engine),
    }
}

/// A word of the header, or of the rings, gets another value.
fn header_word(memory: &SharedMem, what: u8, input: &mut Input<'_>) {
    let (at, value) = (input.below(HEADER_LEN / 8) as u64 * 8, input.number());
    let word = memory.at::<AtomicU64>(at);
    let Some(word) = word else { return };
    match what & 1 {
        0 => word.store(value, Relaxed),
        _ => _ = word.fetch_add(value, Relaxed),
    }
}

fn finish(dir: &Path, (mut engine, session): (Engine, Session), end: End) {
    match end {
        End::Orderly => session.end(&mut engine).expect("the session ends"),
        End::Adopted => {
            let fd = session.memory.fd().try_clone().expect("a descriptor");
            drop((engine, session));
            engine = open(dir);
            match Session::adopt(&mut engine, fd) {
                Ok(mut session) => {
                    session.turn(&mut engine);
                    session.end(&mut engine).expect("the session ends");
                }
                Err(_) => _ = recovered(&mut engine),
            }
        }
        End::Lost => {
            drop((engine, session));
            engine = open(dir);
            if !recovered(&mut engine) {
                // It can be read only until somebody says that what is lost is lost.
                drop(engine);
                accept_loss(dir).expect("what is left is applied");
                engine = open(dir);
            }
        }
    }
    let _ = engine.close();
    drop(engine);
    let report = check(&Files::open(dir).expect("its files")).expect("it can be read");
    let damage: Vec<String> = report.damage().map(|d| d.to_string()).collect();
    assert!(damage.is_empty(), "{damage:#?}");
}

/// Whether the journal was sound.
fn recovered(engine: &mut Engine) -> bool {
    match recover(engine) {
        Ok(_) => true,
        Err(Error::Journal { .. }) => false,
        Err(e) => panic!("{e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else what is changed would be next to nothing.
    #[test]
    fn a_session_that_nobody_scribbles_on_leaves_its_files() {
        for how in [0, 2, 3] {
            for dead in [0, 1] {
                run(&[how, dead, 6, 1, 0, 2, 6, 3, 14, 0]);
            }
        }
    }
}
