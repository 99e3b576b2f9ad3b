//! The number of flushes, from the device's own count or from a trace of system calls.
//!
//! Invariants: a source that cannot be read gives no number, never 0; only the standard library is
//! used, since the worker of the stores also has this file.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// The place of completed flush requests in a device's `stat` file.
const FLUSHES: usize = 15;
/// Calls in a trace that wait for a device.
const CALLS: [&str; 7] = [
    "fsync(",
    "fdatasync(",
    "msync(",
    "sync_file_range(",
    "syncfs(",
    "sync(",
    "RWF_DSYNC",
];

/// Where flushes are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counter {
    /// The `stat` files of these devices in sysfs.
    Devices(Vec<PathBuf>),
    /// What `strace -f -o` writes.
    Trace(PathBuf),
    Nothing,
}

impl Counter {
    /// `none`, `trace:FILE` or `stat:FILE,FILE`.
    pub fn parse(word: &OsStr) -> Option<Counter> {
        let word = word.to_str()?;
        match word.split_once(':') {
            Some(("trace", file)) => Some(Counter::Trace(file.into())),
            Some(("stat", files)) => Some(Counter::Devices(
                files.split(',').map(PathBuf::from).collect(),
            )),
            _ => (word == "none").then_some(Counter::Nothing),
        }
    }

    /// Flushes until now.
    pub fn read(&self) -> Option<u64> {
        match self {
            Counter::Devices(files) => files.iter().map(|file| device(file)).sum(),
            Counter::Trace(file) => {
                let text = fs::read(file).ok()?;
                let lines = String::from_utf8_lossy(&text);
                Some(lines.lines().filter(|line| waits(line)).count() as u64)
            }
            Counter::Nothing => None,
        }
    }
}

fn device(stat: &Path) -> Option<u64> {
    let text = fs::read_to_string(stat).ok()?;
    text.split_ascii_whitespace().nth(FLUSHES)?.parse().ok()
}

/// A call that is shown in two parts counts where it began.
fn waits(line: &str) -> bool {
    !line.contains(" resumed>") && CALLS.iter().any(|call| line.contains(call))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flush_field_is_read() {
        let dir = std::env::temp_dir().join(format!("holdfast-counter.{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (new, old) = (dir.join("new"), dir.join("old"));
        fs::write(&new, "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 383 24\n").unwrap();
        fs::write(&old, "1 2 3 4 5 6 7 8 9 10 11\n").unwrap();
        assert_eq!(Counter::Devices(vec![new.clone()]).read(), Some(383));
        assert_eq!(
            Counter::Devices(vec![new.clone(), new.clone()]).read(),
            Some(766)
        );
        assert_eq!(Counter::Devices(vec![new, old]).read(), None);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_trace_counts_calls_once() {
        let dir = std::env::temp_dir().join(format!("holdfast-trace.{}", std::process::id()));
        let text = "12 fsync(3) = 0\n12 fsync(4 <unfinished ...>\n13 write(1, \"a\", 1) = 1\n\
            12 <... fsync resumed>) = 0\n13 pwritev2(3, [], 1, 0, RWF_DSYNC) = 1\n\
            13 pwritev2(3, [], 1, 0, 0) = 1\n";
        fs::write(&dir, text).unwrap();
        assert_eq!(Counter::Trace(dir.clone()).read(), Some(3));
        fs::remove_file(&dir).unwrap();
        assert_eq!(Counter::Trace(dir).read(), None);
    }
}
