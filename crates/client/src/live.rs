//! Whether a process still lives.
//!
//! Invariant: a process that runs is never taken for dead; one whose death cannot be proved (no
//! /proc) counts as alive.

use core::sync::atomic::Ordering::*;
use pool::session::Slot;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::{Pid, test_kill_process};

/// Slot states.
pub const SLOT_FREE: u32 = 0;
/// Being set up.
pub const SLOT_SETUP: u32 = 1;
/// A process.
pub const SLOT_LIVE: u32 = 2;
/// Dead and being reaped.
pub const SLOT_DEAD: u32 = 3;

/// How long a child whose parent is gone may take to say that it was born.
pub const ORPHAN_MS_MAX: u32 = 2000;

/// Whether the process in `slot` lives. A zombie does not: it will never touch memory again.
pub fn is_alive(slot: &Slot) -> bool {
    for _ in 0..LOOKS_MAX {
        let generation = slot.generation.load(Acquire);
        let state = slot.state.load(Acquire);
        let (pid, start) = (slot.pid.load(Acquire), slot.start_time.load(Acquire));
        if slot.state.load(Acquire) != state || slot.generation.load(Acquire) != generation {
            // It has just been taken, or taken over: its fields may be of two processes.
            continue;
        }
        return match state {
            SLOT_FREE | SLOT_DEAD => false,
            // A child stores when it started before it says that the slot is its own.
            SLOT_SETUP => pid == 0 || process_lives(pid, 0) || is_expected(slot),
            _ => pid == 0 || process_lives(pid, start),
        };
    }
    true
}

/// So often a slot may change hands while it is looked at.
const LOOKS_MAX: u32 = 1000;

/// Whether a child may still come for the slot, whose parent died or whose child never said a
/// word. If it comes later than this it finds the slot gone.
fn is_expected(slot: &Slot) -> bool {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let ms = (now.tv_sec as u32).wrapping_mul(1000);
    let now = ms.wrapping_add(now.tv_nsec as u32 / 1_000_000) | 1;
    match slot.orphaned.compare_exchange(0, now, AcqRel, Acquire) {
        Ok(_) => true,
        Err(since) => now.wrapping_sub(since) < ORPHAN_MS_MAX,
    }
}

/// Whether the caller is the only thread of its process.
pub fn is_single_threaded() -> bool {
    let pid = rustix::process::getpid().as_raw_nonzero().get() as u32;
    read_stat(pid).is_some_and(|stat| stat.threads == 1)
}

/// Whether process `pid` that started at `start` (0: unknown) lives.
pub fn process_lives(pid: u32, start: u64) -> bool {
    let Some(id) = Pid::from_raw(pid as i32) else {
        return false;
    };
    if test_kill_process(id) == Err(rustix::io::Errno::SRCH) {
        return false;
    }
    match read_stat(pid) {
        Some(Stat { ended: true, .. }) => false,
        Some(stat) => start == 0 || stat.start == start,
        None => test_kill_process(id) != Err(rustix::io::Errno::SRCH),
    }
}

/// Start time of a process: field 22 of its stat file.
pub fn start_time(pid: u32) -> Option<u64> {
    read_stat(pid).map(|stat| stat.start)
}

/// What proc_pid_stat(5) says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    /// It will never run a program's instruction again.
    ended: bool,
    start: u64,
    threads: u64,
}

fn read_stat(pid: u32) -> Option<Stat> {
    let mut path = [0; 32];
    let path = stat_path(pid, &mut path);
    let fd = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
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

fn stat_path(pid: u32, out: &mut [u8; 32]) -> &[u8] {
    let mut digits = [0; 10];
    let (mut n, mut count) = (pid, 0);
    loop {
        digits[count] = b'0' + (n % 10) as u8;
        n /= 10;
        count += 1;
        if n == 0 {
            break;
        }
    }
    let mut len = 0;
    let digits = digits[..count].iter().rev();
    for byte in b"/proc/".iter().chain(digits).chain(b"/stat") {
        out[len] = *byte;
        len += 1;
    }
    &out[..len]
}

/// Task flag: on its way out, never to return to user mode.
const PF_EXITING: u64 = 4;

/// The command name in parentheses may contain anything, so fields count from its last one. A
/// process whose only thread is exiting counts as ended before it is a zombie: freeing its
/// memory takes the kernel a while.
fn parse_stat(stat: &[u8]) -> Option<Stat> {
    let name_end = stat.iter().rposition(|b| *b == b')')?;
    let mut fields = stat.get(name_end + 2..)?.split(|b| *b == b' ');
    let state = *fields.next()?.first()?;
    let flags = number(fields.nth(5)?);
    let threads = number(fields.nth(10)?);
    let start = number(fields.nth(1)?);
    let exiting = flags & PF_EXITING != 0 && threads <= 1;
    let ended = matches!(state, b'Z' | b'X' | b'x') || exiting;
    Some(Stat {
        ended,
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
        assert!(start > 0 && process_lives(id(), start));
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
        let (ended, start) = (false, 4711);
        let stat = |ended, threads| Stat {
            ended,
            start,
            threads,
        };
        let running = "S 1 2 3 4 5 64 7 8 9 10 11 12 13 14 15 16 1 18 4711 20\n";
        assert_eq!(parsed(running), Some(stat(ended, 1)));
        let exiting = "R 1 2 3 4 5 68 7 8 9 10 11 12 13 14 15 16 1 18 4711 20\n";
        assert_eq!(parsed(exiting), Some(stat(true, 1)));
        let one_of_two = "R 1 2 3 4 5 68 7 8 9 10 11 12 13 14 15 16 2 18 4711 20\n";
        assert_eq!(parsed(one_of_two), Some(stat(ended, 2)));
        assert_eq!(parsed("Z").map(|s| s.ended), None);
        assert_eq!(parse_stat(b"7 (a"), None);
    }
}
