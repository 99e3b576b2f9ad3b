//! Flushes of a client, where the pool is on an ordinary file system: kills do not show whether
//! they reach the device, but the system calls of the server do.

use super::{nbdsh, needs, volume};
use crate::bad_input::{Case, Fixture, Stop, wrong};
use crate::process;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub const CASES: &[(&str, Case)] = &[("nbd flushes on an ordinary file system", flushes)];

const TMPFS: u64 = 0x0102_1994;
const LIMIT: Duration = Duration::from_secs(30);

/// Removed in the end.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn directory() -> Result<Directory, Stop> {
    let parent = Path::new("/var/tmp");
    let fs = rustix::fs::statfs(parent).map_err(std::io::Error::from)?;
    if fs.f_type as u64 == TMPFS {
        return Err(Stop::Skip("/var/tmp is in memory".into()));
    }
    let path = parent.join(format!("holdfast-block.{}", std::process::id()));
    fs::create_dir(&path)?;
    Ok(Directory(path))
}

fn flushes(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdsh", "strace"])?;
    let directory = directory()?;
    let pool = directory.0.join("pool").to_string_lossy().into_owned();
    fixture.done(&["pool", "create", &pool, "--size", "64M"])?;
    volume(fixture, &pool, "disk", "16M", "512")?;
    // All of it is there, so that a write changes bytes alone.
    let all = "h.pwrite(bytearray(b'a' * 4194304), 0); h.flush()";
    let none = "for i in range(20): h.pwrite(bytearray(b'b' * 4096), i * 65536)";
    let flushed = "for i in range(20):\n h.pwrite(bytearray(b'c' * 4096), i * 65536)\n h.flush()";
    let forced =
        "for i in range(20):\n h.pwrite(bytearray(b'd' * 4096), i * 65536, nbd.CMD_FLAG_FUA)";
    traced(fixture, &pool, all)?;
    let counts = [none, flushed, forced].map(|script| traced(fixture, &pool, script));
    let [none, flushed, forced] = counts;
    let (none, flushed, forced) = (none?, flushed?, forced?);
    // What belongs to the export itself, such as its end, may flush as well.
    match none < 20 && flushed >= 20 && forced >= 20 {
        true => Ok(()),
        false => wrong(format!(
            "20 writes flushed {none} times, with flushes {flushed}, with FUA {forced}"
        )),
    }
}

/// How often an export flushed its files while a client ran this script.
fn traced(fixture: &Fixture, pool: &str, script: &str) -> Result<usize, Stop> {
    let (trace, said) = (fixture.path("trace"), fixture.path("uri"));
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-e", "trace=fsync,fdatasync,msync", "-o"]);
    command.arg(&trace).arg(&fixture.holdfast);
    command.args(["export", pool, "disk", "--nbd", "unix:traced"]);
    process::clean(&mut command, &fixture.dir);
    command
        .current_dir(&fixture.dir)
        .stdout(File::create(&said)?);
    let mut child = command.spawn()?;
    let end = Instant::now() + LIMIT;
    let uri = loop {
        let text = fs::read_to_string(&said)?;
        if let Some(line) = text.strip_suffix('\n') {
            break line.to_string();
        }
        if child.try_wait()?.is_some() || Instant::now() > end {
            return wrong("a traced export does not begin");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let ran = nbdsh(fixture, &uri, script);
    let flushed = fs::read_to_string(&trace)?;
    // strace passes on none of these; the export does not outlive it.
    let exporter = exporter_of(child.id());
    if let Some(pid) = exporter.and_then(|pid| Pid::from_raw(pid.cast_signed())) {
        kill_process(pid, Signal::TERM).map_err(std::io::Error::from)?;
    }
    if process::wait(&mut child, LIMIT)?.is_none() {
        child.kill()?;
        child.wait()?;
    }
    ran?;
    Ok(flushed
        .lines()
        .filter(|line| line.contains("sync("))
        .count())
}

/// The child of a process.
fn exporter_of(parent: u32) -> Option<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    fs::read_to_string(path)
        .ok()?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}
