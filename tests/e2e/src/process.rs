//! Running commands so that nothing outlives its time: each is the leader of a process group that
//! is killed as a whole when its time is up.

use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::thread::UnshareFlags;
use std::fs::File;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The end of a command: how it ended and what it said.
#[derive(Debug)]
pub struct Ended {
    /// None: its time was up and it was killed.
    pub status: Option<ExitStatus>,
    pub out: String,
    pub err: String,
}

impl Ended {
    pub fn code(&self) -> Option<i32> {
        self.status.and_then(|status| status.code())
    }

    /// How it ended, in words.
    pub fn how(&self) -> String {
        match self.status {
            None => "was still running when its time was up".into(),
            Some(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("exit status {code}"),
                (_, Some(signal)) => format!("killed by signal {signal}"),
                _ => format!("{status}"),
            },
        }
    }

    /// The last lines of what it said, for a report.
    pub fn tail(&self) -> Vec<String> {
        let last = |name: &str, text: &str| -> Vec<String> {
            let lines: Vec<&str> = text.lines().collect();
            let from = lines.len().saturating_sub(8);
            lines[from..]
                .iter()
                .map(|line| format!("{name}: {line}"))
                .collect()
        };
        [last("stdout", &self.out), last("stderr", &self.err)].concat()
    }
}

/// Where programs are looked for; HF_PATH adds to it.
pub fn search_path() -> String {
    let more = std::env::var("HF_PATH").map_or(String::new(), |path| format!(":{path}"));
    format!("/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin{more}")
}

/// The user of the tests: programs start with this environment and nothing else.
pub fn clean(command: &mut Command, home: &Path) {
    command
        .env_clear()
        .env("PATH", search_path())
        .env("HOME", home)
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .stdin(Stdio::null());
}

/// Runs the command to its end, or kills its process group when `limit` is over. What it says
/// goes through files in `scratch`, so that a process that outlives it cannot block us.
pub fn run(command: &mut Command, limit: Duration, scratch: &Path) -> io::Result<Ended> {
    let (out, err) = (unique(scratch, "out"), unique(scratch, "err"));
    command
        .stdout(File::create(&out)?)
        .stderr(File::create(&err)?)
        .process_group(0);
    let mut child = command.spawn()?;
    let status = wait(&mut child, limit)?;
    let mut waiting = String::new();
    if status.is_none() {
        waiting = group_states(&child);
        kill_group(&child);
        child.wait()?;
    }
    let text = |path: &Path| -> io::Result<String> {
        let text = String::from_utf8_lossy(&std::fs::read(path)?).into_owned();
        std::fs::remove_file(path)?;
        Ok(text)
    };
    Ok(Ended {
        status,
        out: text(&out)?,
        err: text(&err)? + &waiting,
    })
}

/// What each process of a child's group is doing, a line each, so that a command that did not end
/// in time says where it was.
fn group_states(child: &Child) -> String {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = all.filter_map(|entry| {
        let read = |name: &str| std::fs::read_to_string(entry.path().join(name)).ok();
        let stat = read("stat")?;
        // State, parent, group (proc_pid_stat(5)).
        let mut fields = stat.rsplit(") ").next()?.split(' ');
        let state = fields.next()?;
        if fields.nth(1)?.parse() != Ok(child.id()) {
            return None;
        }
        let [words, place, call] = ["cmdline", "wchan", "syscall"].map(read);
        let words: String = words?.replace('\0', " ").chars().take(90).collect();
        let number = call.unwrap_or_default();
        let number = number.split(' ').next().unwrap_or_default();
        let place = place.unwrap_or_default();
        Some(format!("{words}: {state} in {place}, call {number}\n"))
    });
    lines.collect()
}

/// Waits for the child, at most `limit`; None if it still runs.
pub fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_micros(200);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= end {
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// State letter of a process (proc_pid_stat(5)), whose name has no parentheses.
pub fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

/// Kills the child and all of its process group.
pub fn kill_group(child: &Child) {
    if let Some(pid) = Pid::from_raw(child.id().cast_signed()) {
        // It may have ended meanwhile; then there is nothing to kill.
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

fn unique(scratch: &Path, what: &str) -> PathBuf {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    scratch.join(format!("{what}.{}", NEXT.fetch_add(1, Ordering::Relaxed)))
}

/// Gives this thread, and what it starts, mounts of its own where it is root's. A namespace that
/// anybody makes later, a stage beside this one above all, copies all mounts of the one before,
/// and what is mounted there stays in use for as long as that lasts.
pub fn own_mounts() -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    // Deprecated for what it does to descriptors with a flag that is not given here.
    #[expect(deprecated, reason = "the other one is unsafe code")]
    let entered = rustix::thread::unshare(UnshareFlags::NEWNS);
    match entered {
        Err(rustix::io::Errno::PERM) => return Ok(()),
        entered => entered?,
    }
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    Ok(mount_change("/", private)?)
}

/// The `holdfast` command under test.
pub fn holdfast() -> Result<PathBuf, String> {
    let path = std::env::var_os("HOLDFAST").ok_or("HOLDFAST does not name the command to test")?;
    std::path::absolute(path).map_err(|e| e.to_string())
}

/// A scratch directory of our own in HF_WORK (default /dev/shm).
pub fn scratch(name: &str) -> io::Result<PathBuf> {
    let parent = std::env::var_os("HF_WORK").map_or("/dev/shm".into(), PathBuf::from);
    let dir = parent.join(format!("{name}.{}", std::process::id()));
    std::fs::create_dir(&dir)?;
    Ok(dir)
}

/// Whether a program is on the path of the tests.
pub fn on_path(program: &str) -> bool {
    search_path()
        .split(':')
        .any(|dir| Path::new(dir).join(program).exists())
}
