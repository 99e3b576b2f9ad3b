//! What the kernel says about processes by their numbers, which mean something in one PID namespace
//! only.
//!
//! Invariant: /proc is believed only if it is that of the caller's PID namespace.

use crate::sys;
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::FdFlags;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit, test_kill_process};

/// The caller's number.
pub fn own_pid() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get() as u32
}

/// The processor that the caller runs on, or did a moment ago.
pub fn own_cpu() -> u32 {
    rustix::thread::sched_getcpu() as u32
}

/// A duplicate of descriptor `number`, which whoever started the program left open for it; an error
/// where there is none. No program that is started from here inherits it.
pub fn inherited(number: i32) -> rustix::io::Result<OwnedFd> {
    if number < 0 {
        return Err(rustix::io::Errno::BADF);
    }
    // SAFETY: not -1; used for two calls that fail if it is not open, and close nothing.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_setfd(fd, FdFlags::CLOEXEC)?;
    rustix::io::fcntl_dupfd_cloexec(fd, 3)
}

/// Makes descriptor `number`, which is none that anybody in this program owns, a duplicate of `fd`
/// that programs started from here inherit. Where the number is not below the limit of descriptors,
/// that is raised meanwhile, as far as it may be.
pub fn put_at(fd: BorrowedFd<'_>, number: i32) -> rustix::io::Result<()> {
    const DUP2: usize = 33;
    if number < 0 || number == fd.as_raw_fd() {
        return Err(rustix::io::Errno::BADF);
    }
    let limit = getrlimit(Resource::Nofile);
    let raised = limit.current.is_some_and(|soft| soft <= number as u64);
    if raised {
        let current = Some(number as u64 + 1);
        let maximum = limit.maximum;
        setrlimit(Resource::Nofile, Rlimit { current, maximum })?;
    }
    // SAFETY: touches no memory; that the number may be replaced the caller says.
    let ret = unsafe { sys::syscall(DUP2, [fd.as_raw_fd() as usize, number as usize, 0, 0]) };
    if raised {
        setrlimit(Resource::Nofile, limit)?;
    }
    sys::count(ret).map(drop)
}

/// Whether `put_at` can reach a number.
pub fn may_put_at(number: i32) -> bool {
    let limit = getrlimit(Resource::Nofile);
    let reaches = |limit: Option<u64>| limit.is_none_or(|limit| limit > number as u64);
    reaches(limit.current) || reaches(limit.maximum)
}

/// Takes descriptor `number`, which nobody in this program owns yet.
pub fn take(number: i32) -> rustix::io::Result<OwnedFd> {
    let is_open = crate::record_locks::kept_open(number).is_some();
    // SAFETY: open, and the caller's to own.
    let own = is_open.then(|| unsafe { OwnedFd::from_raw_fd(number) });
    own.ok_or(rustix::io::Errno::BADF)
}

/// What tells the caller's PID namespace from others; 0: not known.
pub fn namespace() -> u64 {
    let stat = rustix::fs::stat(c"/proc/self/ns/pid");
    stat.map_or(0, |stat| stat.st_ino)
}

/// Milliseconds since the machine was started, modulo 2^32; never 0.
pub fn boot_ms() -> u32 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let ms = (now.tv_sec as u32).wrapping_mul(1000);
    ms.wrapping_add(now.tv_nsec as u32 / 1_000_000) | 1
}

/// Whether the caller is the only thread of its process.
pub fn is_single_threaded() -> bool {
    read_stat(b"self").is_some_and(|stat| stat.threads == 1)
}

/// When the caller's process started, as it itself sees it; 0: not known.
pub fn own_start_time() -> u64 {
    read_stat(b"self").map_or(0, |stat| stat.start)
}

/// Whether process `pid` that started at `start` (0: unknown) lives. A zombie does not.
pub fn process_lives(pid: u32, start: u64) -> bool {
    let Some(id) = Pid::from_raw(pid as i32) else {
        return false;
    };
    let is_there = || test_kill_process(id) != Err(rustix::io::Errno::SRCH);
    if !is_there() {
        return false;
    }
    let stat = match proc_is_ours() {
        true => read_stat(decimal(pid, &mut [0; 10])),
        false => None,
    };
    match stat {
        Some(Stat { ended: true, .. }) => false,
        Some(stat) => start == 0 || stat.start == start,
        None => is_there(),
    }
}

/// Start time of a process: field 22 of its stat file.
pub fn start_time(pid: u32) -> Option<u64> {
    read_stat(decimal(pid, &mut [0; 10])).map(|stat| stat.start)
}

/// Whether the numbers in /proc are those of the caller's PID namespace.
fn proc_is_ours() -> bool {
    read_stat(b"self").is_some_and(|stat| stat.pid == own_pid().into())
}

/// What proc_pid_stat(5) says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    pid: u64,
    /// It will never run a program's instruction again.
    ended: bool,
    start: u64,
    threads: u64,
}

fn read_stat(process: &[u8]) -> Option<Stat> {
    let mut path = [0; 32];
    let mut len = 0;
    for byte in b"/proc/".iter().chain(process).chain(b"/stat") {
        *path.get_mut(len)? = *byte;
        len += 1;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(CWD, &path[..len], flags, Mode::empty()).ok()?;
    let mut buf = [0; 1024];
    let mut len = 0;
    while len < buf.len() {
        match rustix::io::read(&fd, &mut buf[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    parse_stat(&buf[..len])
}

fn decimal(pid: u32, out: &mut [u8; 10]) -> &[u8] {
    let (mut first, mut rest) = (out.len(), pid);
    loop {
        first -= 1;
        out[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            return &out[first..];
        }
    }
}

/// Task flag: on its way out, never to return to user mode.
const PF_EXITING: u64 = 4;

/// The command name in parentheses may contain anything, so fields count from its last one. The
/// state is that of the first thread, which may end before others. One that is exiting alone counts
/// as ended before it is a zombie: freeing its memory takes the kernel a while.
fn parse_stat(stat: &[u8]) -> Option<Stat> {
    let pid = number(stat.split(|b| *b == b' ').next()?);
    let name_end = stat.iter().rposition(|b| *b == b')')?;
    let mut fields = stat.get(name_end + 2..)?.split(|b| *b == b' ');
    let state = *fields.next()?.first()?;
    let flags = number(fields.nth(5)?);
    let threads = number(fields.nth(10)?);
    let start = number(fields.nth(1)?);
    let ending = matches!(state, b'Z' | b'X' | b'x') || flags & PF_EXITING != 0;
    Some(Stat {
        pid,
        ended: ending && threads <= 1,
        start,
        threads,
    })
}

fn number(digits: &[u8]) -> u64 {
    let add = |value: u64, digit: &u8| {
        value
            .wrapping_mul(10)
            .wrapping_add(u64::from(digit.wrapping_sub(b'0')))
    };
    digits.iter().fold(0, add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;
    use std::process::{Command, id};

    #[test]
    fn we_live_and_a_zombie_does_not() {
        let start = start_time(id()).unwrap();
        assert!(start > 0 && process_lives(id(), start) && start == own_start_time());
        assert!(!process_lives(id(), start + 1));
        let mut child = Command::new("true").spawn().unwrap();
        let started = start_time(child.id()).unwrap();
        while process_lives(child.id(), started) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!process_lives(child.id(), 0));
    }

    #[test]
    fn command_names_do_not_confuse() {
        let parsed = |rest: &str| parse_stat(format!("7 (a) R 1 (b)) {rest}").as_bytes());
        let stat = |ended, threads| Stat {
            pid: 7,
            ended,
            start: 4711,
            threads,
        };
        let running = "S 1 2 3 4 5 64 7 8 9 10 11 12 13 14 15 16 1 18 4711 20\n";
        assert_eq!(parsed(running), Some(stat(false, 1)));
        let exiting = "R 1 2 3 4 5 68 7 8 9 10 11 12 13 14 15 16 1 18 4711 20\n";
        assert_eq!(parsed(exiting), Some(stat(true, 1)));
        let one_of_two = "Z 1 2 3 4 5 68 7 8 9 10 11 12 13 14 15 16 2 18 4711 20\n";
        assert_eq!(parsed(one_of_two), Some(stat(false, 2)));
        assert_eq!(parsed("Z").map(|s| s.ended), None);
        assert_eq!(parse_stat(b"7 (a"), None);
    }
}
