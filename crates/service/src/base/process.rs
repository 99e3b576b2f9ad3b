//! What /proc says of this process and this machine.

use crate::base::error::{Error, Result};
use holdfast_pool::id_map::IdMaps;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};
use std::path::PathBuf;

/// State letter of a thread of this process, and the clock ticks that it ran.
pub fn activity(task: u32) -> Option<(u8, u64)> {
    let text = std::fs::read(format!("/proc/self/task/{task}/stat")).ok()?;
    let (state, mut fields) = fields(&text)?;
    let user: u64 = fields.nth(10)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((state, user.wrapping_add(system)))
}

/// State letter of process `pid`: of the first of its threads that is stopped, if there is one.
pub fn state(pid: u32) -> Option<u8> {
    let letter = |at: PathBuf| Some(fields(&std::fs::read(at.join("stat")).ok()?)?.0);
    let process = PathBuf::from(format!("/proc/{pid}"));
    let threads = std::fs::read_dir(process.join("task")).ok()?;
    let all = threads
        .take(THREADS_ASKED)
        .filter_map(|t| letter(t.ok()?.path()));
    all.into_iter()
        .find(|state| matches!(state, b'T' | b't'))
        .or_else(|| letter(process))
}

/// A stop stops all threads, but one that is at work in the kernel is stopped only afterwards.
const THREADS_ASKED: usize = 64;

/// State letter, and the fields behind it. The command name may hold anything, so fields count from
/// the last parenthesis.
fn fields(text: &[u8]) -> Option<(u8, std::str::Split<'_, char>)> {
    let name_end = text.iter().rposition(|b| *b == b')')?;
    let rest = std::str::from_utf8(text.get(name_end + 2..)?).ok()?;
    let mut fields = rest.split(' ');
    let state = *fields.next()?.as_bytes().first()?;
    Some((state, fields))
}

/// User and group of this process, as pools have them: by the ids of the namespace around ours.
pub fn own_ids() -> (u32, u32) {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let read = |path| std::fs::read(path).unwrap_or_default();
    match IdMaps::parse(&read("/proc/self/uid_map"), &read("/proc/self/gid_map")) {
        None => (uid, gid),
        Some(ids) => (
            ids.users.outside(uid).unwrap_or(uid),
            ids.groups.outside(gid).unwrap_or(gid),
        ),
    }
}

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// What tells this boot of the machine from any other. Without it nobody knows whether the machine
/// lost power.
pub fn boot_id() -> Result<[u8; 16]> {
    let mut text = [0; 64];
    let read = rustix::fs::open(BOOT_ID, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|file| rustix::io::read(file, &mut text))
        .map_err(Error::os(BOOT_ID))?;
    let id = str::from_utf8(&text[..read]).ok().and_then(parse_boot_id);
    id.ok_or_else(|| Error::os(BOOT_ID)(Errno::INVAL))
}

fn parse_boot_id(text: &str) -> Option<[u8; 16]> {
    let mut digits = text.trim_end().chars().filter(|c| *c != '-');
    let mut out = [0; 16];
    for byte in &mut out {
        let (high, low) = (digits.next()?.to_digit(16)?, digits.next()?.to_digit(16)?);
        *byte = (high * 16 + low) as u8;
    }
    digits.next().is_none().then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_has_a_name() {
        assert_ne!(boot_id().unwrap(), [0; 16]);
        assert_eq!(boot_id().unwrap(), boot_id().unwrap());
    }

    /// Two boots must not look like one.
    #[test]
    fn what_is_no_name_of_a_boot_is_none() {
        let text = "01234567-89ab-cdef-0123-456789abcdef\n";
        let id = parse_boot_id(text).unwrap();
        assert_eq!(id[..4], [0x01, 0x23, 0x45, 0x67]);
        let no_digit = text.replace('c', "x");
        for other in [
            "",
            "\n",
            &text[..35],
            &no_digit,
            "0123 4567",
            &text.repeat(2),
        ] {
            assert_eq!(parse_boot_id(other), None, "{other:?}");
        }
    }
}
