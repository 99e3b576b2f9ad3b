//! nbdkit, a server of network block devices, as a child of this process.
//!
//! Invariants: it ends with this process, however that ends; before it is ready, what it says is
//! part of our error, and later it goes to our standard error as it is.

use crate::address::Address;
use crate::args::Export;
use crate::failure::Failure;
use holdfast::Sector;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Threads of a connection. With several, nbdkit 1.32 fails an assertion, and ends for all clients,
/// when a client vanishes while answers are sent to it; and one is the fastest where requests
/// wait for nothing. Clients that want more open several connections.
const THREADS: &str = "1";
const FILTER: &str = "--filter=blocksize-policy";
/// Requests of this size, and aligned to it, are the fastest.
const PREFERRED: u64 = 4096;
/// The longest request.
const MAXIMUM: &str = "32M";
/// How long requests may take that are being made when the export is to end. It waits for clients
/// that ask for nothing as well, so it does not get longer.
const GRACE: Duration = Duration::from_secs(1);
const NAP: Duration = Duration::from_millis(5);

/// nbdkit itself.
pub fn program() -> Result<PathBuf, Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = Some(PathBuf::from("/usr/sbin"));
    let found = std::env::split_paths(&path).chain(usual);
    let mut found = found.map(|dir| dir.join("nbdkit"));
    found.find(|program| program.is_file()).ok_or_else(|| {
        Failure::new("nbdkit is not installed, which serves network block devices")
            .fix("apt-get install nbdkit")
    })
}

/// Our plugin: beside this program, or where `make install` puts it.
pub fn plugin() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().map_err(|e| Failure::io("this program", &e))?;
    let dir = own.parent().unwrap_or(Path::new("/"));
    let places = [
        dir.join("libholdfast_nbdkit.so"),
        dir.join("../../lib/holdfast/nbdkit-holdfast-plugin.so"),
    ];
    let found = places.into_iter().find(|place| place.is_file());
    found.ok_or_else(|| {
        let dir = dir.display();
        Failure::new(format!(
            "the plugin of nbdkit is not installed: there is no libholdfast_nbdkit.so in {dir}"
        ))
        .fix("in the source tree: cargo build --release -p holdfast-nbdkit, or make install")
    })
}

/// Its command line.
pub fn words(
    args: &Export,
    address: &Address,
    plugin: &Path,
    sector: Sector,
) -> Result<Vec<OsString>, Failure> {
    let text = |path: &Path| match path.to_str() {
        Some(text) => Ok(text.to_string()),
        None => Err(Failure::new(format!(
            "nbdkit takes only paths that are UTF-8, and {} is not",
            path.display()
        ))),
    };
    let reads = args.read_only || args.snapshot.is_some();
    let mut words: Vec<OsString> = Vec::new();
    words.extend(["--foreground", "--exit-with-parent", "--threads", THREADS].map(OsString::from));
    words.extend(reads.then(|| "--readonly".into()));
    match address {
        Address::Unix(path) => words.extend(["--unix".into(), path.into()]),
        Address::Tcp(address) => words.extend([
            "--ipaddr".into(),
            address.ip().to_string().into(),
            "--port".into(),
            address.port().to_string().into(),
        ]),
    }
    words.extend([FILTER.into(), plugin.into()]);
    let mut set = |key: &str, value: String| words.push(format!("{key}={value}").into());
    set("pool", text(&args.pool)?);
    set("volume", args.volume.clone());
    if let Some(snapshot) = &args.snapshot {
        set("snapshot", snapshot.clone());
    }
    if let Some(program) = crate::holdfast_program() {
        set("holdfast", text(&program)?);
    }
    if let Some(protect) = args.protect {
        set("protect", protect.name().into());
    }
    if let Some(persist) = args.persist {
        set("persist", persist.name().into());
    }
    set("verify", args.verify.to_string());
    set("sub-block", args.sub_block.to_string());
    set("barrier", args.barrier.name().into());
    if let Some(slow) = args.slow {
        set("slow", slow.to_string());
    }
    set("read-only", reads.to_string());
    set("parent", std::process::id().to_string());
    set("address", address.to_string());
    set("blocksize-minimum", sector.to_string());
    set("blocksize-preferred", PREFERRED.to_string());
    set("blocksize-maximum", MAXIMUM.into());
    Ok(words)
}

/// A running nbdkit.
pub struct Server {
    child: Child,
    log: Option<Log>,
}

/// What it says.
struct Log {
    ready: Arc<AtomicBool>,
    last: Arc<Mutex<String>>,
    thread: JoinHandle<()>,
}

impl Server {
    pub fn start(program: &Path, words: &[OsString]) -> Result<Server, Failure> {
        let mut child = Command::new(program)
            .args(words)
            // It is passed no sockets.
            .env_remove("LISTEN_FDS")
            .env_remove("LISTEN_PID")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| Failure::io(program.display(), &e))?;
        let log = child.stderr.take().map(Log::of);
        Ok(Server { child, log })
    }

    /// It answers clients now.
    pub fn is_ready(&self) {
        if let Some(log) = &self.log {
            log.ready.store(true, SeqCst);
        }
    }

    /// An error if it has ended.
    pub fn runs(&mut self) -> Result<(), Failure> {
        let ended = self.child.try_wait();
        let Some(status) = ended.map_err(|e| Failure::io("nbdkit", &e))? else {
            return Ok(());
        };
        let last = self.log.take().map(Log::last).unwrap_or_default();
        let why = match last.as_str() {
            "" => String::new(),
            last => format!(": {}", last.trim_start_matches("nbdkit: ")),
        };
        Err(Failure::new(format!("nbdkit has ended ({status}){why}")))
    }

    /// Ends it.
    pub fn end(&mut self) {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        let begun = Instant::now();
        while let Ok(None) = self.child.try_wait() {
            let signal = match begun.elapsed() < GRACE {
                true => Signal::TERM,
                false => Signal::KILL,
            };
            if let Some(pid) = pid {
                // It has not been waited for, so the number is still its own.
                let _ = kill_process(pid, signal);
            }
            std::thread::sleep(NAP);
        }
    }
}

impl Log {
    fn of(stderr: ChildStderr) -> Log {
        let (ready, last) = <(Arc<AtomicBool>, Arc<Mutex<String>>)>::default();
        let (seen, said) = (Arc::clone(&ready), Arc::clone(&last));
        let thread = std::thread::spawn(move || {
            let lines = BufReader::new(stderr).split(b'\n');
            for line in lines.map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                if seen.load(SeqCst) {
                    eprintln!("{line}");
                }
                *said.lock().unwrap_or_else(PoisonError::into_inner) = line;
            }
        });
        Log {
            ready,
            last,
            thread,
        }
    }

    /// The last line, once all has been said.
    fn last(self) -> String {
        // A thread that panicked has read nothing more.
        let _ = self.thread.join();
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.clone()
    }
}
