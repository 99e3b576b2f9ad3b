//! Volumes as block devices, judged by the programs that people use them with.
//!
//! Invariants: every exporter that a case starts has ended when the case ends; processes are found
//! by the path of the case's own pool, never by their user.

mod clients;
mod crashes;
mod disk;
mod endings;
mod engine;
mod hostile;
mod limits;
mod raw;
mod refusals;
mod sharing;
mod statistics;

use crate::bad_input::{Fixture, Stop, run_cases, wrong};
use crate::process;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

/// How long anything may take before it counts as hanging.
const PATIENCE: Duration = Duration::from_secs(30);
const NAP: Duration = Duration::from_millis(5);
const MIB: usize = 1 << 20;

/// `hf-e2e block`
pub fn main(names: &[&str]) -> ExitCode {
    let tables = [
        clients::CASES,
        sharing::CASES,
        statistics::CASES,
        endings::CASES,
        engine::CASES,
        refusals::CASES,
        hostile::CASES,
        limits::CASES,
        crashes::CASES,
        disk::CASES,
    ];
    run_cases("block", &tables.concat(), names)
}

/// Skips the case unless all of these programs are there, and nbdkit.
fn needs(fixture: &Fixture, programs: &[&str]) -> Result<(), Stop> {
    let all = ["nbdkit"].iter().chain(programs);
    if let Some(missing) = all.copied().find(|program| !process::on_path(program)) {
        return Err(Stop::Skip(format!("{missing} is not installed")));
    }
    if programs.contains(&"nbdsh") {
        let mut command = Command::new("nbdsh");
        command.args(["-c", "pass"]);
        if fixture.end_of(command)?.code() != Some(0) {
            return Err(Stop::Skip("nbdsh does not work here".into()));
        }
    }
    Ok(())
}

/// A pool with a volume `disk`; sizes as `holdfast` takes them.
fn pool_with_volume(fixture: &Fixture, pool: &str, disk: &str) -> Result<String, Stop> {
    let path = fixture.path("pool").to_string_lossy().into_owned();
    fixture.done(&["pool", "create", &path, "--size", pool])?;
    volume(fixture, &path, "disk", disk, "512")?;
    Ok(path)
}

fn volume(fixture: &Fixture, pool: &str, name: &str, size: &str, sector: &str) -> Result<(), Stop> {
    let words = [
        "volume", pool, "create", name, "--size", size, "--sector", sector,
    ];
    fixture.done(&words).map(drop)
}

/// Runs a client, which has to succeed. What it said.
fn client(fixture: &Fixture, program: &str, args: &[&str]) -> Result<String, Stop> {
    let mut command = Command::new(program);
    command.args(args);
    let ended = fixture.end_of(command)?;
    match ended.code() {
        Some(0) => Ok(ended.out),
        _ => wrong(format!(
            "{program} {}: {}: {}",
            args.join(" "),
            ended.how(),
            ended.tail().join("; ")
        )),
    }
}

/// A script of nbdsh with a connection `h`, whose first failure ends it. What it said.
fn nbdsh(fixture: &Fixture, uri: &str, script: &str) -> Result<String, Stop> {
    client(fixture, "nbdsh", &["--uri", uri, "-c", script])
}

/// `holdfast export`, running.
struct Exporter {
    child: Child,
    uri: String,
    socket: PathBuf,
    out: PathBuf,
    err: PathBuf,
}

/// A volume behind the socket `name` in the case's directory.
fn export(
    fixture: &Fixture,
    pool: &str,
    volume: &str,
    name: &str,
    options: &[&str],
) -> Result<Exporter, Stop> {
    let socket = fixture.path(name);
    let address = format!("unix:{}", socket.display());
    export_at(fixture, pool, volume, (&address, name), options)
}

/// As `export`, at an address. What it says goes into files of this name.
fn export_at(
    fixture: &Fixture,
    pool: &str,
    volume: &str,
    (address, name): (&str, &str),
    options: &[&str],
) -> Result<Exporter, Stop> {
    let (out, err) = (
        fixture.path(&format!("{name}.out")),
        fixture.path(&format!("{name}.err")),
    );
    let mut command = Command::new(&fixture.holdfast);
    command.args(["export", pool, volume, "--nbd", address]);
    command.args(options);
    process::clean(&mut command, &fixture.dir);
    command.current_dir(&fixture.dir);
    command
        .stdout(File::create(&out)?)
        .stderr(File::create(&err)?);
    let mut exporter = Exporter {
        child: command.spawn()?,
        uri: String::new(),
        socket: fixture.path(name),
        out,
        err,
    };
    exporter.uri = exporter.wait_for_uri()?;
    Ok(exporter)
}

impl Exporter {
    fn wait_for_uri(&mut self) -> Result<String, Stop> {
        let begun = Instant::now();
        loop {
            let said = fs::read_to_string(&self.out)?;
            if let Some(line) = said.strip_suffix('\n') {
                return Ok(line.into());
            }
            if let Some(status) = self.child.try_wait()? {
                return wrong(format!("the export ended ({status}): {}", self.said()));
            }
            if begun.elapsed() > PATIENCE {
                return wrong("the export says no address");
            }
            std::thread::sleep(NAP);
        }
    }

    /// What it wrote to standard error.
    fn said(&self) -> String {
        fs::read_to_string(&self.err).unwrap_or_default()
    }

    fn signal(&self, signal: Signal) -> Result<(), Stop> {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        match pid.map(|pid| kill_process(pid, signal)) {
            Some(Ok(())) => Ok(()),
            _ => wrong("the export has ended already"),
        }
    }

    fn wait(&mut self) -> Result<ExitStatus, Stop> {
        match process::wait(&mut self.child, PATIENCE)? {
            Some(status) => Ok(status),
            None => wrong("the export does not end"),
        }
    }

    /// Ends it as people do; it has to leave nothing behind.
    fn end(mut self) -> Result<(), Stop> {
        self.signal(Signal::TERM)?;
        let status = self.wait()?;
        if status.code() != Some(0) {
            return wrong(format!("the export ended with {status}: {}", self.said()));
        }
        match self.socket.exists() {
            true => wrong("the export left its socket"),
            false => Ok(()),
        }
    }

    /// Kills it and, with it, its server.
    fn kill(&mut self) -> Result<(), Stop> {
        self.signal(Signal::KILL)?;
        self.wait().map(drop)
    }

    /// The process that serves clients.
    fn server(&self) -> Result<Pid, Stop> {
        let parent = format!("parent={}", self.child.id());
        let found = processes(|words| words.contains(&parent.as_str()));
        match found.as_slice() {
            [one] => Ok(*one),
            _ => wrong(format!("the export has {} servers", found.len())),
        }
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processes by what their command lines are.
fn processes(wanted: impl Fn(&[&str]) -> bool) -> Vec<Pid> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8(line).ok()?;
        let words: Vec<&str> = line.split('\0').collect();
        wanted(&words).then(|| Pid::from_raw(pid)).flatten()
    })
    .collect()
}

/// The pool's service, and what works for it.
fn service(pool: &str) -> Vec<Pid> {
    let ours = ["serve", "proxy", "write-back"];
    processes(|words| words.contains(&pool) && ours.iter().any(|word| words.contains(word)))
}

/// Waits for something that has to become true.
fn wait_until(what: &str, mut done: impl FnMut() -> bool) -> Result<(), Stop> {
    let begun = Instant::now();
    while !done() {
        if begun.elapsed() > PATIENCE {
            return wrong(format!("waited in vain: {what}"));
        }
        std::thread::sleep(NAP);
    }
    Ok(())
}

/// Bytes without a pattern, the same for the same seed.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut word = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes: Vec<u8> = std::iter::repeat_with(&mut word)
        .take(len.div_ceil(8))
        .flatten()
        .collect();
    bytes.truncate(len);
    bytes
}

/// Says so unless two files have the same bytes.
fn same(what: &str, one: &Path, other: &Path) -> Result<(), Stop> {
    let (one, other) = (fs::read(one)?, fs::read(other)?);
    if one.len() != other.len() {
        return wrong(format!("{what}: {} bytes, not {}", one.len(), other.len()));
    }
    match one.iter().zip(&other).position(|(a, b)| a != b) {
        Some(at) => wrong(format!("{what}: the first difference is at {at}")),
        None => Ok(()),
    }
}
