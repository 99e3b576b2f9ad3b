//! Whether a process still lives, told apart from a later one with the same number.
//!
//! Invariant: a process that runs is never taken for dead; without /proc every process whose
//! number is in use counts as alive.

use rustix::process::{Pid, test_kill_process};

/// Start time of a process in clock ticks since boot: field 22 of its stat file.
pub fn start_time(pid: u32) -> Option<u64> {
    stat(pid).map(|(_, start)| start)
}

/// Whether process `pid` that started at `start` (0: not known) lives. A zombie does not.
pub fn lives(pid: u32, start: u64) -> bool {
    let Some(id) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    if test_kill_process(id) == Err(rustix::io::Errno::SRCH) {
        return false;
    }
    match stat(pid) {
        Some((b'Z' | b'X' | b'x', _)) => false,
        Some((_, found)) => start == 0 || found == start,
        None => test_kill_process(id) != Err(rustix::io::Errno::SRCH),
    }
}

/// State letter and start time. The command name may hold anything, so fields count from the
/// last parenthesis.
fn stat(pid: u32) -> Option<(u8, u64)> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let name_end = text.iter().rposition(|b| *b == b')')?;
    let rest = std::str::from_utf8(text.get(name_end + 2..)?).ok()?;
    let mut fields = rest.split(' ');
    let state = *fields.next()?.as_bytes().first()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// What tells this boot of the machine from any other.
pub fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let mut out = [0; 16];
    let mut digits = text.chars().filter_map(|c| c.to_digit(16));
    for byte in &mut out {
        let (high, low) = (digits.next().unwrap_or(0), digits.next().unwrap_or(0));
        *byte = (high * 16 + low) as u8;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_live_and_a_zombie_does_not() {
        let me = std::process::id();
        let start = start_time(me).unwrap();
        assert!(lives(me, start) && lives(me, 0) && !lives(me, start + 1));
        assert!(!lives(0, 0) && !lives(u32::MAX, 0));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while lives(child.id(), 0) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!lives(child.id(), 0));
    }

    #[test]
    fn the_boot_has_a_name() {
        assert_ne!(boot_id(), [0; 16]);
        assert_eq!(boot_id(), boot_id());
    }
}
