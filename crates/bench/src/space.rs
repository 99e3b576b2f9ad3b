//! What Holdfast costs while idle: pool bytes for a small file, and memory of an idle session.
//!
//! Invariants: memory that holds the pool itself does not count as the session's; memory shared by
//! several processes counts once.

use crate::error::{Error, Result};
use crate::peers::{self, Peer, quiet};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// Files made to see what one costs.
pub const FILES: u64 = 10_000;
/// What a 4 KB file may cost.
pub const FILE_TARGET: f64 = 5.0 * 1024.0;
/// What an idle session may cost.
pub const IDLE_TARGET: f64 = 16.0 * 1024.0 * 1024.0;

/// Bytes of pool in use once two looks agree.
pub fn used(pool: &Path) -> Result<u64> {
    let mut last = None;
    for _ in 0..50 {
        let now = used_now(pool)?;
        if last == Some(now) {
            return Ok(now);
        }
        last = Some(now);
        sleep(Duration::from_millis(200));
    }
    Err(Error::Failed("the use of the pool does not settle".into()))
}

fn used_now(pool: &Path) -> Result<u64> {
    let text = quiet(
        peers::holdfast()?
            .args(["pool", "status", "--json"])
            .arg(pool),
    )?;
    let value: Value = serde_json::from_str(&text)
        .map_err(|e| Error::Failed(format!("pool status --json is not JSON: {e}")))?;
    let used = value.get("used").and_then(Value::as_u64);
    used.ok_or_else(|| Error::Failed("pool status --json names no use".into()))
}

/// Memory of the processes that have the pool mapped: their own, and what they share.
pub fn memory(peer: &Peer) -> Result<u64> {
    let peers::Launch::Holdfast { pool, .. } = &peer.launch else {
        return Err(Error::Failed("only Holdfast has sessions".into()));
    };
    let pool = fs::canonicalize(pool).map_err(Error::io(pool.display()))?;
    let prefix = pool.to_string_lossy().into_owned();
    let mut private = 0;
    let mut shared = BTreeMap::new();
    let mut users = 0;
    for process in processes() {
        let Ok(maps) = fs::read_to_string(process.join("smaps")) else {
            continue;
        };
        if maps.contains(&prefix) {
            users += 1;
            private += own_memory(&maps, &prefix);
            memfds(&process, &mut shared);
        }
    }
    if users == 0 {
        return Err(Error::Failed("no process has the pool mapped".into()));
    }
    Ok(private + shared.values().sum::<u64>())
}

/// The processes that have a file below the directory mapped.
pub fn users(dir: &Path) -> Vec<PathBuf> {
    let dir = fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    let prefix = format!("{}/", dir.display());
    let maps = |process: &PathBuf| fs::read_to_string(process.join("maps"));
    processes()
        .filter(|process| maps(process).is_ok_and(|maps| maps.contains(&prefix)))
        .collect()
}

fn processes() -> impl Iterator<Item = PathBuf> {
    let numbered = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|n| n.to_string_lossy().bytes().all(|b| b.is_ascii_digit()))
    };
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path())
        .filter(numbered)
}

/// Sum of the proportional sizes of all mappings but the pool's and those of memfds.
fn own_memory(maps: &str, pool: &str) -> u64 {
    let mut counts = false;
    let mut sum = 0;
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        if first == "Pss:" {
            let kib: u64 = words.next().and_then(|w| w.parse().ok()).unwrap_or(0);
            sum += if counts { kib * 1024 } else { 0 };
        } else if !first.ends_with(':') {
            counts = !line.contains(pool) && !line.contains("/memfd:");
        }
    }
    sum
}

/// Memory of the memfds that the process has open, by device and inode.
fn memfds(process: &Path, out: &mut BTreeMap<(u64, u64), u64>) {
    for entry in fs::read_dir(process.join("fd"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let link = fs::read_link(entry.path()).unwrap_or_default();
        if link.to_string_lossy().starts_with("/memfd:")
            && let Ok(meta) = fs::metadata(entry.path())
        {
            out.insert((meta.dev(), meta.ino()), meta.blocks() * 512);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_memory_counts() {
        let maps = "1000-2000 rw-p 00000000 00:00 0 [heap]\nSize: 4 kB\nPss:  3 kB\n\
            2000-3000 rw-s 0 00:01 7 /pool/data-0.seg\nPss: 100 kB\nPss_Dirty: 9 kB\n\
            3000-4000 rw-s 0 00:01 8 /memfd:session (deleted)\nPss: 50 kB\n\
            4000-5000 r-xp 0 00:01 9 /lib/x.so\nPss: 1 kB\n";
        assert_eq!(own_memory(maps, "/pool"), 4096);
        assert_eq!(own_memory("", "/pool"), 0);
    }
}
