//! The programs of `bench block --macro`.

use crate::programs::rows::{COMMON, installed};
use crate::sheet::Row;
use std::path::Path;
use std::process::Command;

const SCRIPT: &str = include_str!("programs.sh");

const fn row(name: &'static str, title: &'static str) -> Row {
    Row {
        name,
        title,
        unit: 1e6,
        targets: &[],
    }
}

/// In an order in which each finds what the last one left.
pub static ROWS: &[Row] = &[
    row("untar", "tar -x, 6000 files, 29 MB"),
    row("tar", "tar -c of these"),
    row("search", "grep -r in these"),
    row("build", "make -j2, 31 C files"),
    row("database", "sqlite3, 100 commits of 500 rows"),
];

/// The command that a row needs and that is missing here.
pub fn missing(row: &str) -> Option<&'static str> {
    let needs: &[&str] = match row {
        "build" => &["make", "gcc"],
        "database" => &["sqlite3"],
        "search" => &["grep"],
        _ => &["tar", "diff"],
    };
    needs.iter().find(|name| !installed(name)).copied()
}

/// A function of the script, in a directory.
pub fn part(part: &str, dir: &Path, row: &str, sources: &Path, quick: bool) -> Command {
    let size = if quick { 1 } else { 10 };
    let mut bash = Command::new("bash");
    bash.args(["-c", &format!("N={size}\n{COMMON}\n{SCRIPT}"), "bash", part]);
    bash.arg(dir).arg(row).arg(sources);
    bash
}
