//! The end of those who serve a volume: a thread that tells everybody who asks.
//!
//! Invariants: its socket has a name exactly as long as the export runs, unless it is killed; no
//! other user than the pool's owner and root can connect to it.

use crate::report::{Report, Requests};
use crate::socket::{Directory, shut};
use holdfast::Volume;
use holdfast_pool::directory::{export_socket, is_export_socket};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long one who asked may take to read the answer, all of which its socket has room for.
const PATIENCE: Duration = Duration::from_millis(100);
/// Names that are tried.
const TRIES: u64 = 8;
/// What was made so long ago listens, if it ever will.
const NEW: Duration = Duration::from_secs(10);

/// What an export knows of itself beside its volume.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Which snapshot is exported.
    pub snapshot: Option<String>,
    /// How clients reach it.
    pub face: &'static str,
    /// Where clients find it.
    pub address: String,
    /// How many clients there are, which the export keeps up to date.
    pub clients: Arc<AtomicU64>,
}

/// An export that tells what it does until this is dropped.
pub struct Published {
    directory: Directory,
    name: String,
    socket: Arc<OwnedFd>,
    ended: Arc<AtomicBool>,
}

/// From now on `holdfast top` can ask what the handle `volume` and its clones do. `pool` is the
/// pool's directory. EACCES, EPERM: other users than the pool's owner and root cannot tell.
pub fn publish(pool: &Path, volume: &Volume, about: About) -> io::Result<Published> {
    let owner = std::fs::metadata(pool)?.uid();
    let directory = Directory::open(pool)?;
    sweep(pool, &directory);
    let (name, socket) = listen(&directory)?;
    let published = Published {
        ended: Arc::default(),
        socket: Arc::new(socket),
        directory,
        name,
    };
    published.directory.give(&published.name, owner)?;
    let listener = UnixListener::from(published.socket.try_clone()?);
    let (volume, ended) = (volume.clone(), published.ended.clone());
    volume.measure_latency();
    let since = SystemTime::now();
    let serve = move || {
        while !ended.load(Acquire) {
            match listener.accept() {
                // Nothing that one of them does keeps the next one from its answer.
                Ok((mut asks, _)) => {
                    let _ = asks.set_write_timeout(Some(PATIENCE));
                    let _ = asks.write_all(&report(&volume, &about, since).to_json());
                }
                Err(_) if ended.load(Acquire) => {}
                // Descriptors may be short for a while.
                Err(_) => std::thread::sleep(PATIENCE),
            }
        }
    };
    let thread = std::thread::Builder::new().name("status".into());
    thread.spawn(serve)?;
    Ok(published)
}

/// At a name of its own.
fn listen(directory: &Directory) -> io::Result<(String, OwnedFd)> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let first = now.map_or(0, |now| now.as_nanos() as u64);
    let mut last = io::Error::from(Errno::EXIST);
    for n in 0..TRIES {
        let name = export_socket(first.wrapping_add(n));
        match directory.listen(&name) {
            Ok(socket) => return Ok((name, socket)),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => last = e,
            Err(e) => return Err(e),
        }
    }
    Err(last)
}

/// Removes the sockets of exports that were killed.
fn sweep(pool: &Path, directory: &Directory) {
    let entries = std::fs::read_dir(pool).into_iter().flatten().flatten();
    for entry in entries {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
        let dead = || match directory.connect(&name) {
            Err(e) => e.kind() == io::ErrorKind::ConnectionRefused,
            Ok(_) => false,
        };
        if is_export_socket(&name) && age().is_some_and(|age| age > NEW) && dead() {
            directory.remove(&name);
        }
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        self.ended.store(true, Release);
        self.directory.remove(&self.name);
        shut(&*self.socket);
    }
}

/// What an export does now.
fn report(volume: &Volume, about: &About, since: SystemTime) -> Report {
    let (counted, latency) = (volume.stats(), volume.latency());
    let protection = volume.pool().protection().ok().flatten();
    let since = since.duration_since(UNIX_EPOCH).unwrap_or_default();
    Report {
        volume: volume.name().into(),
        snapshot: about.snapshot.clone(),
        face: about.face.into(),
        address: about.address.clone(),
        protection: protection.map(|protection| protection.name().into()),
        read_only: !volume.writes(),
        process: std::process::id(),
        since: since.as_secs(),
        clients: about.clients.load(Relaxed),
        reads: Requests::new(counted.reads, latency.reads),
        writes: Requests::new(counted.writes, latency.writes),
        flushes: Requests::new(counted.flushes, latency.flushes),
        trims: Requests::new(counted.trims, latency.trims),
        zeroes: Requests::new(counted.zeroes, latency.zeroes),
    }
}
