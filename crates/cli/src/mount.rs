//! `holdfast mount` and `umount`: the files of a pool in the kernel's own tree.
//!
//! Invariants: the program that mounts is another one, which goes on when this one ends; `mount`
//! ends well only when the files are there, and `umount` when what was written is durable.

use crate::args::{OWN, UmountArgs};
use crate::beside::{become_program, program};
use crate::default_pool;
use crate::failure::{self, Failure};
use holdfast_cli::whole::mount::{MARK, MOUNTED, Mount, PROCESS};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = "holdfast-export";
const WHAT: &str = "mounts are";
/// How such a file system is called in /proc/self/mountinfo.
const KIND: &str = "fuse.holdfast";
/// How long the program may take to end when nothing is mounted any more, and how often who else
/// has it mounted is looked for.
const ENDING: Duration = Duration::from_secs(10);
const LOOK: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// How long files may be in use before that is said, and how often it is tried.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);

/// `mount`.
pub fn mount(args: Mount) -> Result<u8, Failure> {
    let named = args.pool.clone().filter(|pool| pool.as_os_str() != OWN);
    let pool = match named {
        None => default_pool::ensure()?,
        Some(pool) => whole(&pool).map_err(|e| Failure::io(pool.display(), &e))?,
    };
    let dir = std::path::absolute(&args.dir).map_err(|e| Failure::io(args.dir.display(), &e))?;
    let words = words(&args, pool, dir);
    if args.foreground {
        return Err(become_program(PROGRAM, WHAT, &words));
    }
    let mut child = program(PROGRAM, WHAT)?
        .args(&words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| Failure::io(PROGRAM, &e))?;
    let mut line = String::new();
    if let Some(said) = child.stdout.take() {
        // What cannot be read was not said.
        let _ = BufReader::new(said).read_line(&mut line);
    }
    if line.starts_with(MOUNTED) {
        return Ok(failure::OK);
    }
    // It has said why.
    let ended = child.wait().map_err(|e| Failure::io(PROGRAM, &e))?;
    let code = ended.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.filter(|code| *code != 0).unwrap_or(failure::FAILED))
}

/// The same for the program, behind the word that says that files are to be mounted.
fn words(args: &Mount, pool: PathBuf, dir: PathBuf) -> Vec<OsString> {
    let flags = [
        ("--allow-other", args.allow_other),
        ("--read-only", args.read_only),
        ("--foreground", args.foreground),
    ];
    let flags = flags.iter().filter(|(_, is_set)| *is_set);
    let mut words: Vec<OsString> = vec![MARK.into()];
    words.extend(flags.map(|(flag, _)| OsString::from(flag)));
    if let Some(name) = &args.snapshot {
        words.push(format!("--snapshot={name}").into());
    }
    words.extend([pool.into(), dir.into()]);
    words
}

/// `umount`.
pub fn umount(args: &UmountArgs) -> Result<u8, Failure> {
    let shown = args.dir.display();
    let dir = whole(&args.dir).map_err(|e| Failure::io(&shown, &e))?;
    let device = match mounted_at(&dir)? {
        Some(there) if there.kind == KIND => there.device,
        other => {
            let what = match other {
                None => format!("nothing is mounted at {shown}"),
                Some(Mounted { kind, .. }) => {
                    format!("{shown} is not a mounted pool, but of type {kind}")
                }
            };
            return Err(Failure::new(what).fix("see findmnt -t fuse.holdfast"));
        }
    };
    let program = end_of(&dir);
    detach(&dir, args.lazy)?;
    if let (Some(program), false) = (program, args.lazy)
        && let Some(still) = wait_for(&program, &device)
    {
        eprintln!(
            "holdfast: {shown} is unmounted here; {still} still has it, and the pool with it."
        );
    }
    Ok(failure::OK)
}

/// Waits for the end of the program that mounted the device, or says who keeps it: a mount
/// namespace that was copied since has a mount of its own, which may last.
fn wait_for(program: &OwnedFd, device: &[u8]) -> Option<String> {
    let end = Instant::now() + ENDING;
    loop {
        // It is readable when the process has ended.
        let ended = poll(&mut [PollFd::new(program, PollFlags::IN)], Some(&LOOK));
        if ended.is_ok_and(|n| n > 0) {
            return None;
        }
        match elsewhere(device) {
            Some(pid) => return Some(format!("process {pid}, of another mount namespace,")),
            None if Instant::now() > end => return Some("the program that mounted it".into()),
            None => {}
        }
    }
}

/// A process that has the device mounted, of those that this user may look at.
fn elsewhere(device: &[u8]) -> Option<u32> {
    let pids = std::fs::read_dir("/proc").ok()?.flatten();
    let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(|pid: &u32| {
        let text = std::fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        let mut lines = text.split(|byte| *byte == b'\n').filter_map(Mounted::of);
        lines.any(|there| there.device == device)
    })
}

/// What can be waited for until the program that mounted the pool there has ended.
fn end_of(dir: &Path) -> Option<OwnedFd> {
    let mut room = [0; 16];
    let len = rustix::fs::getxattr(dir, PROCESS, &mut room[..]).ok()?;
    let pid = std::str::from_utf8(room.get(..len)?).ok()?.parse().ok()?;
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// Programs that have just ended, and those that look at others, hold files for a moment.
fn detach(dir: &Path, lazy: bool) -> Result<(), Failure> {
    let patience = Instant::now() + PATIENCE;
    loop {
        match detach_now(dir, lazy)? {
            Detached::Done => return Ok(()),
            Detached::InUse if Instant::now() < patience => std::thread::sleep(PAUSE),
            Detached::InUse => return Err(in_use(dir)),
        }
    }
}

enum Detached {
    Done,
    InUse,
}

fn detach_now(dir: &Path, lazy: bool) -> Result<Detached, Failure> {
    if geteuid().is_root() {
        let flags = match lazy {
            true => UnmountFlags::DETACH,
            false => UnmountFlags::empty(),
        };
        return match rustix::mount::unmount(dir, flags) {
            Ok(()) => Ok(Detached::Done),
            Err(Errno::BUSY) => Ok(Detached::InUse),
            Err(e) => Err(Failure::io(dir.display(), &e.into())),
        };
    }
    let lazily: &[&str] = if lazy { &["-z"] } else { &[] };
    let mut command = Command::new("fusermount3");
    command.env("LC_ALL", "C").arg("-u").args(lazily);
    let done = command.arg("--").arg(dir).output().map_err(|e| {
        let failure = Failure::io("fusermount3", &e);
        failure.fix("install it (package fuse3), or unmount it as root")
    })?;
    if done.status.success() {
        return Ok(Detached::Done);
    }
    let said = String::from_utf8_lossy(&done.stderr);
    if said.contains("busy") {
        return Ok(Detached::InUse);
    }
    // It knows only what it mounted for this user.
    let failure = Failure::new(format!(
        "{} cannot be unmounted: {}",
        dir.display(),
        said.trim()
    ));
    Err(failure.fix("unmount it as the user who mounted it, or as root"))
}

fn in_use(dir: &Path) -> Failure {
    let shown = dir.display();
    Failure::new(format!("{shown} is in use")).fix(format!(
        "end the programs that fuser -vm {shown} shows, or add --lazy, and it is gone with them"
    ))
}

/// The path without links, also of a directory whose file system does not answer any more.
fn whole(dir: &Path) -> std::io::Result<PathBuf> {
    match dir.canonicalize() {
        Err(e) if e.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {
            let dir = std::path::absolute(dir)?;
            let (above, name) = (dir.parent(), dir.file_name());
            let above = above.unwrap_or(Path::new("/")).canonicalize()?;
            Ok(above.join(name.unwrap_or_default()))
        }
        found => found,
    }
}

/// What a line of mountinfo says (proc_pid_mountinfo(5)).
struct Mounted {
    device: Vec<u8>,
    at: OsString,
    kind: String,
}

impl Mounted {
    fn of(line: &[u8]) -> Option<Mounted> {
        let mut words = line.split(|byte| *byte == b' ');
        let (device, at) = (words.nth(2)?, words.nth(1)?);
        let kind = words.skip_while(|word| *word != b"-").nth(1)?;
        Some(Mounted {
            device: device.into(),
            at: plain(at),
            kind: String::from_utf8_lossy(kind).into_owned(),
        })
    }
}

/// What is mounted there on top of others.
fn mounted_at(dir: &Path) -> Result<Option<Mounted>, Failure> {
    let mounts = "/proc/self/mountinfo";
    let text = std::fs::read(mounts).map_err(|e| Failure::io(mounts, &e))?;
    let lines = text.split(|byte| *byte == b'\n').rev();
    Ok(lines.filter_map(Mounted::of).find(|there| there.at == *dir))
}

/// Without the escapes of mountinfo: a backslash and three octal digits.
fn plain(word: &[u8]) -> OsString {
    let mut bytes = Vec::new();
    let mut rest = word;
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|_| *first == b'\\');
        let code = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = behind.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn the_program_is_told_what_was_said() {
        for text in [
            "/dir",
            "pool /dir --read-only",
            "--snapshot=-x --foreground @ /dir",
        ] {
            let mount =
                Mount::try_parse_from(["mount"].into_iter().chain(text.split(' '))).unwrap();
            let words = words(&mount, "/p".into(), "/dir".into());
            assert_eq!(words[0], MARK);
            let told = Mount {
                pool: Some("/p".into()),
                ..mount
            };
            assert_eq!(Mount::try_parse_from(words).unwrap(), told);
        }
        let mount = Mount::try_parse_from(["mount", "/dir"]).unwrap();
        assert_eq!((mount.pool, mount.dir), (None, "/dir".into()));
    }

    #[test]
    fn mounts_are_found_by_their_directory() {
        let line = br"36 35 98:0 / /m\040n rw,nosuid shared:1 - fuse.holdfast /pool rw";
        let there = Mounted::of(line).unwrap();
        assert_eq!((there.at, there.kind), ("/m n".into(), KIND.into()));
        assert_eq!(there.device, b"98:0");
        assert!(Mounted::of(b"").is_none());
        assert_eq!(plain(br"a\134b\9"), OsString::from_vec(br"a\b\9".to_vec()));
    }
}
