//! The measuring program of `bench disk`: an ordinary one, which knows only a directory.
//!
//! Invariants: as for the worker of `bench files`; between two readings of the clock there is only
//! what a row names, and the flushes of a row are those between its first and its last operation;
//! what a row wrote is read back and compared afterwards; a row ends after its operations or its
//! time, whichever comes first.

pub mod counter;
mod data;
mod many;
mod names;
mod postgres;
mod sql;
mod sync;

use super::content::Buffers;
use super::{answer, status};
use crate::stats::{median, quantile};
use counter::Counter;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The least that a row does, however long it takes.
const OPS_MIN: usize = 4;

pub use postgres::missing as missing_postgres;
pub use sql::missing as missing_sqlite;

/// What the command line says:
/// `KIND DIR [--quick] [--flushes COUNTER] [--large BYTES] [--dense]`.
#[derive(Clone)]
pub struct Plan {
    dir: PathBuf,
    quick: bool,
    counter: Counter,
    large: u64,
    dense: bool,
}

impl Plan {
    fn parse(args: &[OsString]) -> Option<Plan> {
        let mut words = args.iter();
        let mut plan = Plan {
            dir: words.next()?.into(),
            quick: false,
            counter: Counter::Nothing,
            large: 10 << 30,
            dense: false,
        };
        while let Some(word) = words.next() {
            match word.to_str()? {
                "--quick" => plan.quick = true,
                "--dense" => plan.dense = true,
                "--flushes" => plan.counter = Counter::parse(words.next()?)?,
                "--large" => plan.large = words.next()?.to_str()?.parse().ok()?,
                _ => return None,
            }
        }
        Some(plan)
    }

    fn ops(&self, full: usize) -> usize {
        let ops = if self.quick { full / 20 } else { full };
        ops.max(OPS_MIN)
    }

    fn limit(&self) -> Duration {
        Duration::from_millis(if self.quick { 500 } else { 4000 })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn buffers(&self) -> Buffers {
        // Another content in each round.
        Buffers::new(u64::from(std::process::id()))
    }

    /// Runs `op` for 0, 1, 2 and so on, and times `step` of them at once.
    fn timed(
        &self,
        ops: usize,
        step: usize,
        mut op: impl FnMut(usize) -> io::Result<()>,
    ) -> io::Result<Took> {
        let limit = self.limit();
        let mut took = Took::default();
        took.ns.reserve(ops / step + 1);
        let before = self.counter.read();
        let start = Instant::now();
        while took.ops < ops && (took.ops < OPS_MIN || start.elapsed() < limit) {
            let some = step.min(ops - took.ops);
            let chunk = Instant::now();
            for i in took.ops..took.ops + some {
                op(i)?;
            }
            took.add(chunk.elapsed(), some);
        }
        took.flushed(before, self.counter.read());
        Ok(took)
    }
}

/// What the operations of a row took.
#[derive(Clone, Debug, Default)]
pub struct Took {
    /// Nanoseconds per operation, one value per reading of the clock.
    ns: Vec<f64>,
    total_ns: f64,
    ops: usize,
    flushes: Option<u64>,
}

impl Took {
    fn add(&mut self, time: Duration, ops: usize) {
        let ns = time.as_nanos() as f64;
        self.ns.push(ns / ops.max(1) as f64);
        self.total_ns += ns;
        self.ops += ops;
    }

    fn flushed(&mut self, before: Option<u64>, after: Option<u64>) {
        self.flushes = before.zip(after).map(|(b, a)| a.saturating_sub(b));
    }

    /// `wall=1.5 median=1.4 p99=2 flushes=1 ops=400`, per operation.
    fn text(&self) -> io::Result<String> {
        let nothing = || io::Error::other("nothing was measured");
        let n = self.ops.max(1) as f64;
        let mut text = format!(
            "wall={} median={} p99={} ops={}",
            self.total_ns / n,
            median(&self.ns).ok_or_else(nothing)?,
            quantile(&self.ns, 0.99).ok_or_else(nothing)?,
            self.ops
        );
        if let Some(flushes) = self.flushes {
            text.push_str(&format!(" flushes={}", flushes as f64 / n));
        }
        Ok(text)
    }
}

/// The hidden command; `args` is what follows `disk` or one of its helpers. Its exit status.
pub fn main(kind: &str, args: &[OsString]) -> u8 {
    let done = match (kind, Plan::parse(args)) {
        ("disk-job", _) => many::child(args),
        ("disk", Some(plan)) => serve(&plan.dir.clone(), |line| command(&plan, line)),
        ("disk-postgres", Some(plan)) => {
            let mut server = postgres::Server::new(plan.clone());
            serve(&plan.dir, |line| server.command(line))
        }
        _ => Err(io::Error::other("disk DIR [--quick] [--flushes COUNTER]")),
    };
    status(done)
}

fn serve(dir: &Path, command: impl FnMut(&str) -> io::Result<String>) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    answer(command)
}

/// `row NAME`, or `prepare NAME` for what the row needs and does not measure.
fn command(plan: &Plan, line: &str) -> io::Result<String> {
    let bad = || io::Error::other(format!("no such command: {line}"));
    let (word, name) = line.split_once(' ').ok_or_else(bad)?;
    match word {
        "prepare" => prepare(plan, name).map(|()| String::new()),
        "row" => row(plan, name)?.ok_or_else(bad)?.text(),
        _ => Err(bad()),
    }
}

fn prepare(plan: &Plan, name: &str) -> io::Result<()> {
    match name {
        "overwrite-4k" => data::whole(&plan.path("small"), sync::small_len(plan)),
        "page-192m" => data::whole(&plan.path("middle"), sync::middle_len(plan)),
        "page-large" => data::large(&plan.path("large"), plan.large, plan.dense),
        "page-800-runs" => data::runs(&plan.path("runs"), sync::runs(plan)),
        "cold-read" => data::numbered(&plan.path("cold"), sync::bulk_len(plan)),
        _ => Ok(()),
    }
}

/// What a row took; nothing where there is no such row.
fn row(plan: &Plan, name: &str) -> io::Result<Option<Took>> {
    let took = match name {
        "overwrite-4k" => sync::overwrite(plan),
        "append-100" => sync::append(plan, 100),
        "append-4k" => sync::append(plan, 4096),
        "new-file" => sync::new_file(plan),
        "save-rename" => sync::save(plan),
        "page-192m" => sync::page(plan, &plan.path("middle"), data::anywhere),
        "page-large" => sync::page(plan, &plan.path("large"), data::at_the_ends),
        "page-800-runs" => sync::page(plan, &plan.path("runs"), data::in_runs),
        "bulk" => sync::bulk(plan),
        "cold-read" => sync::cold_read(plan),
        "create" => names::create(plan),
        "stat" => names::stat(plan),
        "unlink" => names::unlink(plan),
        "sqlite-wal" => sql::run(plan, "wal"),
        "sqlite-delete" => sql::run(plan, "delete"),
        _ => match name.strip_prefix("processes-").map(str::parse) {
            Some(Ok(n)) => many::run(plan, n),
            _ => return Ok(None),
        },
    };
    took.map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::rows::{self, Kind};

    fn plan() -> Plan {
        let name = format!("holdfast-bench-disk.{}", std::process::id());
        Plan {
            dir: std::env::temp_dir().join(name),
            quick: true,
            counter: Counter::Nothing,
            large: 64 << 20,
            dense: false,
        }
    }

    #[test]
    fn every_row_measures_an_ordinary_directory() {
        let plan = plan();
        fs::create_dir_all(&plan.dir).unwrap();
        // The rows that need other programs or this very one are left to tests of the command.
        let own = |name: &str| !name.starts_with("sqlite") && !name.starts_with("processes");
        for row in rows::of(Kind::Files).filter(|row| own(row.name)) {
            command(&plan, &format!("prepare {}", row.name)).unwrap();
            let got = command(&plan, &format!("row {}", row.name));
            let got = got.unwrap_or_else(|e| panic!("{}: {e}", row.name));
            assert!(
                got.starts_with("wall=") && !got.contains("flushes"),
                "{got}"
            );
        }
        for line in ["", "row", "row nothing", "prepare", "row processes-x"] {
            assert!(command(&plan, line).is_err(), "{line}");
        }
        fs::remove_dir_all(&plan.dir).unwrap();
    }

    #[test]
    fn a_row_ends_when_its_time_is_up() {
        let slow = |_| {
            std::thread::sleep(Duration::from_millis(120));
            Ok(())
        };
        let took = plan().timed(1000, 1, slow).unwrap();
        assert!((OPS_MIN..10).contains(&took.ops), "{}", took.ops);
        assert!(took.total_ns >= 120e6 * took.ops as f64);
    }

    #[test]
    fn the_command_line_is_read() {
        let args = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let line = "/x --quick --flushes stat:/s --large 5 --dense";
        let plan = Plan::parse(&args(line)).unwrap();
        assert!(plan.quick && plan.dense && plan.large == 5);
        assert_eq!(plan.counter, Counter::Devices(vec!["/s".into()]));
        assert!(Plan::parse(&args("/x --fast")).is_none());
        assert!(Plan::parse(&args("/x --large")).is_none());
    }
}
