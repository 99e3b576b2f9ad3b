//! `bench kv`: Holdfast's keyspaces and other embedded stores, in one program and one run.
//!
//! Invariants: a separate program, `holdfast-bench-kv`, measures, so that ordinary builds do not
//! build the peers; in every round each peer has one worker, started fresh on the same tmpfs; the
//! peers take turns row by row, in a different order each round.

mod rows;

use crate::error::{Error, Result};
use crate::janitor::Janitor;
use crate::link::{Worker, progress};
use crate::options::Options;
use crate::peers::{memory_directory, quiet};
use crate::report::machine;
use crate::sheet::{Cell, Group, Sheet};
use rows::{COMMANDS, PEERS, ROWS, SUBJECT};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The longest that a worker may take for one answer.
const PATIENCE: Duration = Duration::from_secs(400);
/// The program that measures.
const PROGRAM: &str = "holdfast-bench-kv";
/// Names and bytes of values.
const SIZES: [(&str, usize); 3] = [("100b", 100), ("1k", 1000), ("4k", 4096)];
/// Bytes of a key, on average.
const KEY: usize = 24;
const SECTIONS: &[(&str, &str)] = &[
    ("wall", "time per operation, ns"),
    (
        "thread",
        "CPU time of the thread that calls, per operation, ns",
    ),
    ("all", "CPU time of all processes per operation, ns"),
    ("p99", "99th percentile of a commit, ns"),
    ("ratio", "bytes in files, a multiple of keys and values"),
];

/// What stays the same over all rounds.
struct Run<'a> {
    options: &'a Options,
    program: PathBuf,
    base: PathBuf,
    peers: Vec<String>,
}

/// One size of values.
#[derive(Clone, Copy)]
struct Size {
    name: &'static str,
    value: usize,
    keys: usize,
}

/// Runs everything that the options ask for.
pub fn run(options: &Options) -> Result<String> {
    let program = program()?;
    let known = quiet(Command::new(&program).arg("peers"))?;
    let peers: Vec<String> = known
        .lines()
        .filter(|name| options.wants_peer(name, false))
        .map(String::from)
        .collect();
    if peers.is_empty() {
        return Err(Error::Usage(format!(
            "no peer has such a name; there are {}",
            known.split_whitespace().collect::<Vec<_>>().join(", ")
        )));
    }
    let missing: Vec<(String, String)> = PEERS
        .iter()
        .filter(|name| !known.lines().any(|line| line == **name))
        .map(|name| ((*name).into(), format!("not built into {PROGRAM}")))
        .collect();
    let started = Instant::now();
    let room = memory_available()?;
    let sizes = SIZES.map(|(name, value)| Size {
        name,
        value,
        keys: keys(value, room, options.quick),
    });
    let mut janitor = Janitor::start()?;
    let base = memory_directory(&mut janitor, room / 10 * 8)?;
    let run = Run {
        options,
        program,
        base,
        peers,
    };
    let mut sheet = run.sheet(&sizes);
    sheet.skipped = missing;
    for round in 0..sheet.rounds {
        for size in sizes.iter().filter(|size| run.wants(size, "")) {
            run.round(round, size, &mut sheet)?;
        }
    }
    progress("");
    drop(janitor);
    sheet.seconds = started.elapsed().as_secs();
    sheet.finish(options)
}

impl Run<'_> {
    fn sheet(&self, sizes: &[Size]) -> Sheet {
        let group = |size: &Size| Group {
            name: size.name,
            title: format!("{} keys, values of {} bytes", size.keys, size.value),
        };
        Sheet {
            benchmark: "kv",
            subject: SUBJECT,
            base: &["lmdb", "lmdb-writemap"],
            about: vec![
                "keys of 16 to 32 bytes; every commit synced; all on one tmpfs; what is read is \
                 copied and compared"
                    .into(),
            ],
            sections: SECTIONS,
            rounds: match self.options.rounds {
                0 if self.options.quick => 1,
                0 => 3,
                n => n,
            },
            quick: self.options.quick,
            machine: machine(),
            rows: ROWS,
            groups: sizes.iter().map(group).collect(),
            peers: self.peers.clone(),
            skipped: Vec::new(),
            cells: Vec::new(),
            failures: Vec::new(),
            seconds: 0,
        }
    }

    /// Whether a row is wanted, or with no row named, any row.
    fn wants(&self, size: &Size, row: &str) -> bool {
        let wants = |row: &str| self.options.wants_row(&format!("{}-{row}", size.name));
        match row {
            "" => COMMANDS.iter().any(|row| wants(row)),
            row => wants(row),
        }
    }

    fn round(&self, round: usize, size: &Size, sheet: &mut Sheet) -> Result<()> {
        let mut workers = Vec::new();
        for peer in &self.peers {
            let log = self.base.join(format!("{peer}.log"));
            workers.push((
                peer,
                Worker::start(self.worker(peer, size)?, log, PATIENCE)?,
            ));
        }
        for row in COMMANDS {
            // Every row but the first works on what was loaded.
            if !self.wants(size, row) && row != "load-random" {
                continue;
            }
            let n = workers.len();
            workers.rotate_left((1 + round) % n);
            for (peer, worker) in &mut workers {
                let (rounds, name) = (sheet.rounds, size.name);
                progress(&format!(
                    "round {} of {rounds}, {name}: {row}, {peer}",
                    round + 1
                ));
                match worker.ask(&format!("row {row}")) {
                    Ok(answer) => sheet.cells.extend(cells(&answer, size, peer, round)),
                    Err(error) => {
                        let what = format!("{row} of {peer} with {name}: {error}");
                        sheet.failures.push(what);
                    }
                }
            }
        }
        for (peer, worker) in workers {
            if let Err(error) = worker.end() {
                sheet.failures.push(format!("{peer} at its end: {error}"));
            }
        }
        Ok(())
    }

    fn worker(&self, peer: &str, size: &Size) -> Result<Command> {
        let mut command = Command::new(&self.program);
        command.args(["worker", peer]).arg(self.base.join(peer));
        command.args([size.keys.to_string(), size.value.to_string()]);
        command.arg(if self.options.quick { "quick" } else { "full" });
        command.arg(crate::paths::holdfast()?);
        Ok(command)
    }
}

/// How many keys: a million, or as many as leave room for all peers at once.
fn keys(value: usize, room: u64, quick: bool) -> usize {
    if quick {
        return 2_000_000 / (value + KEY);
    }
    let fit = room as usize / 100 / (value + KEY);
    let step = 10usize.pow(fit.max(1).ilog10().saturating_sub(1));
    (fit / step * step).clamp(1000, 1_000_000)
}

/// `name wall=1.5 all=2;other ...`
fn cells(answer: &str, size: &Size, peer: &str, round: usize) -> Vec<Cell> {
    let one = |part: &str| {
        let (name, figures) = part.split_once(' ')?;
        let figure = |word: &str| {
            let (name, value) = word.split_once('=')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Some(Cell {
            group: size.name,
            row: rows::find(name)?.name,
            peer: peer.to_owned(),
            round,
            figures: figures.split(' ').filter_map(figure).collect(),
        })
    };
    answer.split(';').filter_map(one).collect()
}

/// The program beside this one.
pub fn program() -> Result<PathBuf> {
    let own = crate::paths::own()?;
    let beside = own.parent().unwrap_or(Path::new("/")).join(PROGRAM);
    if beside.exists() {
        return Ok(beside);
    }
    Err(Error::Missing(
        format!("{PROGRAM} is not beside {}", own.display()),
        "make bench builds it; alone: cargo build --release --manifest-path \
         bench/kv/Cargo.toml --target-dir target"
            .into(),
    ))
}

fn memory_available() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").map_err(Error::io("/proc/meminfo"))?;
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map(|kib| kib * 1024)
        .ok_or_else(|| Error::Failed("/proc/meminfo names no memory".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_become_cells() {
        let size = Size {
            name: "4k",
            value: 4096,
            keys: 10,
        };
        let all = cells(
            "get wall=1.5 all=2;space-loaded ratio=1.1;odd x=1;",
            &size,
            "p",
            3,
        );
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].row, all[0].group, all[0].round), ("get", "4k", 3));
        assert_eq!(all[0].figures[1], ("all".into(), 2.0));
        assert_eq!(all[1].figures, [("ratio".into(), 1.1)]);
        assert!(cells("", &size, "p", 0).is_empty());
    }

    #[test]
    fn keys_fit_into_memory() {
        assert_eq!(keys(100, 23 << 30, false), 1_000_000);
        let large = keys(4096, 23 << 30, false);
        assert!((50_000..65_000).contains(&large), "{large}");
        assert_eq!(keys(4096, 0, false), 1000);
        assert!(keys(100, 0, true) < 20_000);
    }
}
