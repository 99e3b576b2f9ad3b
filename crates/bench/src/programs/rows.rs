//! The programs of `bench programs`, and what they are to reach.
//!
//! Invariant: a program is a script that an ordinary user could run in any directory; what it
//! prints is the same on every peer.

use crate::peers::BASE;
use crate::sheet::{Against, Row, Target};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The peer that the targets are for.
pub const SUBJECT: &str = "holdfast-posix";
/// Every program in one session that stays.
pub const WARM: &str = "warm";
/// Every program in a session of its own, which starts and ends a service.
pub const COLD: &str = "cold";
/// What the scripts begin with.
pub const COMMON: &str = include_str!("scripts/common.sh");
const ZRAM: &[&str] = &["ext4-zram", "xfs-zram"];

/// A program, or several that belong together.
pub struct Program {
    pub name: &'static str,
    pub title: &'static str,
    /// Commands without which it is skipped.
    needs: &'static [&'static str],
    script: &'static str,
    /// A start of `true` and nothing else, measured only in sessions of its own.
    only_cold: bool,
    targets: &'static [Target],
}

impl Program {
    /// `prepare` or `work`, the two parts of its script, in a directory that `prepare` makes new.
    pub fn part(&self, part: &str, place: &Path, quick: bool) -> Vec<OsString> {
        let script = format!("N={}\n{COMMON}\n{}\n\"$1\"\n", size(quick), self.script);
        [
            "-c".into(),
            script.into(),
            "bash".into(),
            part.into(),
            place.into(),
        ]
        .to_vec()
    }

    /// Whether it has a place in a group.
    pub fn in_group(&self, group: &str) -> bool {
        group == COLD || !self.only_cold
    }

    /// Whether it is one start of a program, which a session that stays does not show.
    pub fn only_cold(&self) -> bool {
        self.only_cold
    }

    /// Commands without which it cannot run.
    pub fn needs(&self) -> &'static [&'static str] {
        self.needs
    }

    /// The command that is missing here, if one is.
    pub fn missing(&self) -> Option<&'static str> {
        self.needs.iter().find(|name| !installed(name)).copied()
    }

    fn row(&self) -> Row {
        Row {
            name: self.name,
            title: self.title,
            unit: 1.0,
            targets: self.targets,
        }
    }
}

fn size(quick: bool) -> usize {
    if quick { 1 } else { 10 }
}

/// The program of a name.
pub fn find(name: &str) -> Option<&'static Program> {
    PROGRAMS.iter().find(|program| program.name == name)
}

pub fn installed(name: &str) -> bool {
    place_of(name).is_some()
}

/// Where a command is.
pub fn place_of(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin"].map(PathBuf::from).into_iter();
    let own = std::env::split_paths(&path).chain(usual);
    let mut places = own.chain(servers()).map(|dir| dir.join(name));
    places.find(|place| place.exists())
}

/// Where Debian keeps what only PostgreSQL's own wrappers call.
fn servers() -> impl Iterator<Item = PathBuf> {
    let versions = std::fs::read_dir(Path::new("/usr/lib/postgresql"));
    let each = versions.into_iter().flatten().flatten();
    each.map(|version| version.path().join("bin"))
}

const fn warm(figure: &'static str, at_most: f64) -> Target {
    Target {
        groups: &[WARM],
        of: None,
        figure,
        against: Against::Lowest(&[BASE]),
        whom: "of tmpfs",
        at_most,
    }
}

/// Wall and CPU time as a share of tmpfs, and ahead of file systems on zram.
const fn of_tmpfs(at_most: f64) -> [Target; 3] {
    let ahead = Target {
        groups: &[WARM],
        of: None,
        figure: "wall",
        against: Against::Lowest(ZRAM),
        whom: "of the better zram",
        at_most: 1.0,
    };
    [warm("wall", at_most), warm("cpu", at_most), ahead]
}

const START: &[Target] = &[Target {
    groups: &[COLD],
    of: None,
    figure: "wall",
    against: Against::Itself,
    whom: "ms",
    at_most: 2.5,
}];

const fn program(
    name: &'static str,
    title: &'static str,
    needs: &'static [&'static str],
    script: &'static str,
    targets: &'static [Target],
) -> Program {
    Program {
        name,
        title,
        needs,
        script,
        only_cold: false,
        targets,
    }
}

macro_rules! script {
    ($name:literal) => {
        include_str!(concat!("scripts/", $name, ".sh"))
    };
}

/// In the order of the tables.
pub static PROGRAMS: [Program; 20] = [
    program("git", "git", &["git"], script!("git"), &of_tmpfs(1.0)),
    program(
        "tar",
        "tar, cp -r, diff",
        &["tar"],
        script!("tar"),
        &of_tmpfs(0.9),
    ),
    program(
        "rsync",
        "rsync",
        &["rsync"],
        script!("rsync"),
        &of_tmpfs(1.0),
    ),
    program(
        "sqlite",
        "sqlite3",
        &["sqlite3"],
        script!("sqlite"),
        &of_tmpfs(0.85),
    ),
    program(
        "make",
        "make -j2, gcc",
        &["make", "gcc"],
        script!("make"),
        &of_tmpfs(1.0),
    ),
    program(
        "python",
        "python3, 60 modules",
        &["python3"],
        script!("python"),
        &of_tmpfs(1.0),
    ),
    program(
        "copies",
        "shell: cp, cat",
        &[],
        script!("copies"),
        &of_tmpfs(1.1),
    ),
    program(
        "true",
        "shell: /bin/true",
        &[],
        script!("true"),
        &of_tmpfs(1.1),
    ),
    program(
        "builtins",
        "shell: no programs",
        &[],
        script!("builtins"),
        &of_tmpfs(1.05),
    ),
    program(
        "walks",
        "find, grep, du, ls",
        &[],
        script!("walks"),
        &of_tmpfs(0.9),
    ),
    program(
        "copy",
        "cp -a, cmp, rm -r",
        &[],
        script!("copy"),
        &of_tmpfs(1.05),
    ),
    program(
        "pip",
        "pip install",
        &["pip3"],
        script!("pip"),
        &of_tmpfs(1.05),
    ),
    program(
        "redis",
        "redis, AOF, each write synced",
        &["redis-server", "redis-benchmark"],
        script!("redis"),
        &of_tmpfs(1.05),
    ),
    program(
        "pgbench",
        "PostgreSQL, pgbench",
        &["postgres", "pgbench", "setpriv"],
        script!("pgbench"),
        &of_tmpfs(1.05),
    ),
    program(
        "dbench",
        "dbench, 2 clients, per MB",
        &["dbench"],
        script!("dbench"),
        &of_tmpfs(1.05),
    ),
    program("fio", "fio, mmap", &["fio"], script!("fio"), &of_tmpfs(1.0)),
    program(
        "lmdb",
        "mdb_load, mdb_dump",
        &["mdb_load"],
        script!("lmdb"),
        &of_tmpfs(1.05),
    ),
    program(
        "rocksdb",
        "RocksDB, db_bench",
        &["db_bench"],
        script!("rocksdb"),
        &of_tmpfs(1.05),
    ),
    Program {
        only_cold: true,
        ..program("start", "one start of true", &[], "", START)
    },
    program(
        "cargo",
        "cargo build, and again",
        &["cargo"],
        script!("cargo"),
        &of_tmpfs(1.05),
    ),
];

/// The same as rows of a sheet.
pub fn rows() -> &'static [Row] {
    static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| PROGRAMS.iter().map(Program::row).collect());
    &ROWS
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_scripts_have_both_parts() {
        let names: HashSet<_> = PROGRAMS.iter().map(|p| p.name).collect();
        assert_eq!(names.len(), PROGRAMS.len());
        for program in PROGRAMS.iter().filter(|p| !p.only_cold) {
            for part in ["prepare() {", "work() {"] {
                assert_eq!(
                    program.script.matches(&format!("\n{part}")).count(),
                    1,
                    "{}",
                    program.name
                );
            }
            assert!(program.in_group(WARM) && program.in_group(COLD));
        }
        assert!(!find("start").unwrap().in_group(WARM));
    }

    #[test]
    fn what_is_missing_is_named() {
        let program = Program {
            needs: &["sh", "no-such-command"],
            ..program("x", "x", &[], "", &[])
        };
        assert_eq!(program.missing(), Some("no-such-command"));
        assert_eq!(find("true").unwrap().missing(), None);
    }
}
