//! What was measured, compared with the targets.
//!
//! Invariants: a ratio compares two peers in one round, never across rounds; every measurement is
//! in the JSON.

use crate::options::Options;
use crate::peers::{BASE, Site, holdfast_name};
use crate::rows::{self, Jobs, ROWS, Row};
use crate::stats::{Spread, Timing};
use serde_json::{Value, json};
use std::fs;

/// One measurement; no timing when it failed.
#[derive(Clone, Debug)]
pub struct Cell {
    pub row: &'static str,
    pub jobs: Jobs,
    pub peer: &'static str,
    pub round: usize,
    pub timing: Option<Timing>,
}

/// A figure that is no ratio to tmpfs.
#[derive(Clone, Debug)]
pub struct Extra {
    pub name: String,
    pub unit: &'static str,
    pub value: f64,
    pub target: f64,
    pub reached: bool,
}

impl Extra {
    pub fn at_most(name: impl Into<String>, unit: &'static str, value: f64, target: f64) -> Extra {
        Extra {
            name: name.into(),
            unit,
            value,
            target,
            reached: value <= target,
        }
    }

    pub fn at_least(name: impl Into<String>, unit: &'static str, value: f64, target: f64) -> Extra {
        Extra {
            name: name.into(),
            unit,
            value,
            target,
            reached: value >= target,
        }
    }
}

/// A target and what came of it.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    pub peer: &'static str,
    pub what: Figure,
    pub target: f64,
    pub got: f64,
}

impl Verdict {
    pub fn reached(&self) -> bool {
        self.got <= self.target
    }
}

/// Which figure of a timing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    Median,
    Mean,
    P99,
}

impl Figure {
    pub const ALL: [Figure; 3] = [Figure::Median, Figure::Mean, Figure::P99];

    pub fn name(self) -> &'static str {
        match self {
            Figure::Median => "median",
            Figure::Mean => "mean",
            Figure::P99 => "p99",
        }
    }

    pub fn of(self, timing: &Timing) -> f64 {
        match self {
            Figure::Median => timing.median,
            Figure::Mean => timing.mean,
            Figure::P99 => timing.p99,
        }
    }
}

/// All of it.
pub struct Report {
    pub rounds: usize,
    pub quick: bool,
    pub machine: String,
    pub peers: Vec<&'static str>,
    pub skipped: Vec<(&'static str, String)>,
    pub cells: Vec<Cell>,
    pub extras: Vec<Extra>,
    pub failures: Vec<String>,
    pub seconds: u64,
}

impl Report {
    pub fn new(options: &Options, site: &Site) -> Report {
        Report {
            rounds: options.rounds(),
            quick: options.quick,
            machine: machine(),
            peers: site.peers.iter().map(|peer| peer.name).collect(),
            skipped: site.skipped.clone(),
            cells: Vec::new(),
            extras: Vec::new(),
            failures: Vec::new(),
            seconds: 0,
        }
    }

    pub fn add(&mut self, cell: Cell) {
        self.cells.push(cell);
    }

    /// Rows that were measured.
    pub fn rows(&self, jobs: Jobs) -> impl Iterator<Item = &'static Row> {
        ROWS.iter()
            .filter(move |r| self.cells.iter().any(|c| c.row == r.name && c.jobs == jobs))
    }

    fn timings(&self, row: &str, jobs: Jobs, peer: &str) -> Vec<(usize, Timing)> {
        let mine = |c: &&Cell| c.row == row && c.jobs == jobs && c.peer == peer;
        self.cells
            .iter()
            .filter(mine)
            .filter_map(|c| Some((c.round, c.timing?)))
            .collect()
    }

    /// Nanoseconds over the rounds.
    pub fn ns(&self, row: &str, jobs: Jobs, peer: &str, figure: Figure) -> Option<Spread> {
        let all = self.timings(row, jobs, peer);
        Spread::of(&all.iter().map(|(_, t)| figure.of(t)).collect::<Vec<_>>())
    }

    /// How `peer` compares with `base`, round by round.
    pub fn ratio(
        &self,
        (row, jobs): (&str, Jobs),
        peer: &str,
        base: &str,
        figure: Figure,
    ) -> Option<Spread> {
        let base = self.timings(row, jobs, base);
        let ratios: Vec<f64> = self
            .timings(row, jobs, peer)
            .iter()
            .filter_map(|(round, mine)| {
                let (_, other) = base.iter().find(|(r, _)| r == round)?;
                Some(figure.of(mine) / figure.of(other))
            })
            .filter(|ratio| ratio.is_finite())
            .collect();
        Spread::of(&ratios)
    }

    /// The targets of a row that could be judged.
    pub fn verdicts(&self, row: &Row) -> Vec<Verdict> {
        let mut out = Vec::new();
        let mut judge = |mode, what, target| {
            let peer = holdfast_name(mode);
            if let (Some(target), Some(got)) =
                (target, self.ratio((row.name, Jobs::One), peer, BASE, what))
            {
                out.push(Verdict {
                    peer,
                    what,
                    target,
                    got: got.median,
                });
            }
        };
        judge("posix", Figure::Median, row.posix);
        judge("strict", Figure::Median, row.strict);
        judge("posix", Figure::Mean, row.posix.filter(|_| row.mean_too));
        out
    }

    /// Targets that compare with something else than plain tmpfs, and those set from outside.
    pub fn extras(&self) -> Vec<Extra> {
        let mut out = Vec::new();
        let posix = holdfast_name("posix");
        for peer in ["ext4-zram", "xfs-zram"] {
            let at = ("pwrite-fsync-4k", Jobs::One);
            if let Some(times) = self.ratio(at, peer, posix, Figure::Median) {
                let name = format!("pwrite 4 KB + fsync: times faster than {peer}");
                out.push(Extra::at_least(name, "times", times.median, 10.0));
            }
        }
        let start = |peer| self.ns("start", Jobs::One, peer, Figure::Median);
        if let (Some(with), Some(bare)) = (start(posix), start(BASE)) {
            let added = (with.median - bare.median) / 1e6;
            out.push(Extra::at_most(
                "start-up added to a program",
                "ms",
                added,
                3.0,
            ));
        }
        out.extend(self.extras.iter().cloned());
        out
    }

    /// Everything, for programs.
    pub fn json(&self) -> String {
        let mut cells = Vec::new();
        for jobs in Jobs::ALL {
            for row in self.rows(jobs) {
                cells.extend(
                    self.peers
                        .iter()
                        .map(|peer| self.json_cell(row, jobs, peer)),
                );
            }
        }
        let extras: Vec<Value> = self.extras().iter().map(json_extra).collect();
        let skipped: Vec<Value> = self
            .skipped
            .iter()
            .map(|(peer, why)| json!({"peer": peer, "why": why}))
            .collect();
        let value = json!({
            "benchmark": "files",
            "machine": self.machine,
            "rounds": self.rounds,
            "quick": self.quick,
            "seconds": self.seconds,
            "base": BASE,
            "peers": self.peers,
            "skipped": skipped,
            "rows": cells,
            "other": extras,
            "failures": self.failures,
        });
        format!("{value}\n")
    }

    fn json_cell(&self, row: &Row, jobs: Jobs, peer: &str) -> Value {
        let mut value = json!({"row": row.name, "jobs": jobs.name(), "peer": peer});
        for figure in Figure::ALL {
            let ns = self.ns(row.name, jobs, peer, figure);
            let ratio = self.ratio((row.name, jobs), peer, BASE, figure);
            value[format!("{}_ns", figure.name())] = json_spread(ns);
            value[format!("{}_ratio", figure.name())] = json_spread(ratio);
        }
        if jobs == Jobs::One {
            let mine = self.verdicts(row).into_iter().filter(|v| v.peer == peer);
            value["targets"] = mine
                .map(|v| {
                    json!({"figure": v.what.name(), "at_most": v.target, "got": v.got,
                        "reached": v.reached()})
                })
                .collect();
        }
        value
    }
}

fn json_spread(spread: Option<Spread>) -> Value {
    match spread {
        Some(s) => json!({"median": s.median, "min": s.min, "max": s.max}),
        None => Value::Null,
    }
}

fn json_extra(extra: &Extra) -> Value {
    json!({"name": extra.name, "unit": extra.unit, "value": extra.value,
        "target": extra.target, "reached": extra.reached})
}

/// One line about the machine.
pub fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|l| l.strip_prefix("model name")?.split_once(": "));
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!(
        "{}, {cpus} CPUs, Linux {}, load {} at the start",
        model.map_or("unknown CPU", |(_, name)| name),
        kernel.trim(),
        load.split(' ').next().unwrap_or("unknown"),
    )
}

/// The row of a cell.
pub fn title(name: &str) -> &'static str {
    rows::find(name).map_or("", |row| row.title)
}
