//! As whom the kernel asks.
//!
//! Invariant: a request has the rights of the thread that made it, groups included, as the kernel
//! shows them while it waits.

use fuser::Request;
use holdfast::User;
use std::fs;

/// The user of a request; `umask` for one that makes something.
pub fn user(request: &Request, umask: u32) -> User {
    let privileged = request.uid() == 0;
    User {
        uid: request.uid(),
        gid: request.gid(),
        groups: match privileged {
            true => Vec::new(),
            false => groups(request.pid()),
        },
        umask,
        privileged,
    }
}

/// This program, which may do everything that the pool's owner lets the kernel ask for.
pub fn all_rights() -> User {
    User {
        uid: 0,
        gid: 0,
        groups: Vec::new(),
        umask: 0,
        privileged: true,
    }
}

/// Supplementary groups of a thread; none of one that cannot be seen from here.
fn groups(thread: u32) -> Vec<u32> {
    let Some(line) = status(thread, "Groups:") else {
        return Vec::new();
    };
    line.split_ascii_whitespace()
        .filter_map(|group| group.parse().ok())
        .collect()
}

/// Whether a signal waits for the thread, which it does not block or ignore, or it is gone: then
/// it does not want to wait any longer.
pub fn is_wanted_elsewhere(thread: u32) -> bool {
    let Ok(text) = fs::read_to_string(format!("/proc/{thread}/status")) else {
        return true;
    };
    let set = |name| {
        let line = field(&text, name);
        line.map_or(0, |line| u64::from_str_radix(line.trim(), 16).unwrap_or(0))
    };
    let pending = set("SigPnd:") | set("ShdPnd:");
    pending & !set("SigBlk:") & !set("SigIgn:") != 0
}

fn status(thread: u32, name: &str) -> Option<String> {
    if thread == 0 {
        return None;
    }
    let text = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    field(&text, name).map(str::to_string)
}

fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(name))
}
