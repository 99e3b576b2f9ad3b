//! Counts calls that wait for a device, for devices without a count of flushes.
//!
//! Invariants: a traced program is not timed; dropping a trace ends it, and the traced program
//! lives on.

use crate::error::{Error, Result};
use crate::space;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const CALLS: &str = "trace=fsync,fdatasync,msync,sync_file_range,sync,syncfs,pwritev2";

/// How long an interrupted trace has to end before it is interrupted again.
const AGAIN: Duration = Duration::from_millis(200);

/// Whether calls can be counted here.
pub fn available() -> bool {
    let mut strace = Command::new("strace");
    let quiet = strace
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// A running trace.
pub struct Trace(Child);

impl Trace {
    /// Follows a process, its descendants, and whatever has a file below `dir` mapped.
    pub fn start(process: u32, dir: Option<&Path>, out: &Path) -> Result<Trace> {
        let mut all = descendants(process);
        let number = |path: PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
        let users = dir.map(space::users).unwrap_or_default();
        all.extend(users.into_iter().filter_map(number));
        fs::write(out, "").map_err(Error::io(out.display()))?;
        let mut command = Command::new("strace");
        command
            .args(["-f", "-qq", "-e", CALLS, "-e", "signal=none", "-o"])
            .arg(out);
        for process in all {
            command.args(["-p", &process.to_string()]);
        }
        let quiet = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = quiet.spawn().map_err(Error::io("start strace"))?;
        // It says nothing when it has attached.
        std::thread::sleep(Duration::from_millis(300));
        Ok(Trace(child))
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        interrupt(&mut self.0);
    }
}

/// Interrupts a child until it has ended. Once is not enough: strace looks whether it was
/// interrupted and then waits for its programs, and a signal between the two only takes effect
/// with the next event of a program; ours are idle until the trace has ended.
fn interrupt(child: &mut Child) {
    let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else {
        return;
    };
    while let Ok(None) = child.try_wait() {
        let _ = kill_process(pid, Signal::INT);
        let sent = Instant::now();
        while sent.elapsed() < AGAIN && matches!(child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A process and all below it.
fn descendants(process: u32) -> BTreeSet<u32> {
    let parent = |pid: u32| -> Option<u32> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        text.rsplit_once(')')?
            .1
            .split_ascii_whitespace()
            .nth(1)?
            .parse()
            .ok()
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parents: Vec<(u32, u32)> = numbers
        .filter_map(|pid| Some((pid, parent(pid)?)))
        .collect();
    let mut all = BTreeSet::from([process]);
    loop {
        let known = all.len();
        let below: Vec<u32> = parents
            .iter()
            .filter(|(_, parent)| all.contains(parent))
            .map(|(pid, _)| *pid)
            .collect();
        all.extend(below);
        if all.len() == known {
            return all;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn a_lost_interrupt_is_repeated() {
        let deaf_once = "trap 'trap - INT' INT; echo; while :; do sleep 0.01; done";
        let mut shell = Command::new("sh");
        let child = shell.args(["-c", deaf_once]).stdout(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        interrupt(&mut child);
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(Signal::INT.as_raw()));
    }

    #[test]
    fn children_of_children_are_found() {
        let mut shell = Command::new("sh");
        let child = shell.args(["-c", "sh -c 'sleep 5; :'; :"]).spawn();
        let mut child = child.unwrap();
        let deep = || descendants(child.id()).len() >= 3;
        assert!((0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            deep()
        }));
        let below = descendants(child.id());
        assert!(!below.contains(&std::process::id()));
        for pid in below.into_iter().filter(|pid| *pid != child.id()) {
            let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL);
        }
        child.wait().unwrap();
    }
}
