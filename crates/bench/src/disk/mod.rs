//! `bench disk`: work that waits for a disk, on a pool and on the file system that holds it.
//!
//! Invariants: in every round each peer has one worker, started fresh, so that each session
//! overwrites what an earlier one wrote; the peers take turns row by row, in a different order each
//! round; before a peer's turn everything that others wrote is on the device.

mod device;
mod keys;
pub mod rows;
mod site;
mod table;
mod trace;

use crate::error::{Error, Result};
use crate::link::{Worker, progress};
use crate::options::Options;
use crate::report::machine;
use crate::sheet::{Cell, Group, Row, Sheet, figures};
use crate::worker::disk::{missing_postgres, missing_sqlite};
use rows::{Kind, ROWS, SUBJECT};
use site::{Peer, Site};
use std::path::Path;
use std::time::Instant;

/// The only group: targets name none.
const GROUP: &str = "disk";
const SECTIONS: &[(&str, &str)] = &[
    ("wall", "time per operation"),
    ("median", "median of single operations"),
    ("p99", "99th percentile of single operations"),
    ("flushes", "flushes of the device per operation"),
];

/// Everything of one run.
struct Run<'a> {
    options: &'a Options,
    site: Site,
    sheet: Sheet,
    round: usize,
    served: u64,
}

/// Runs everything that the options ask for.
pub fn run(options: &Options) -> Result<String> {
    let started = Instant::now();
    options.check_rows(ROWS.iter().map(|row| (row.name, row.title)))?;
    let site = Site::new(options)?;
    let sheet = sheet(options, &site);
    let mut run = Run {
        options,
        site,
        sheet,
        round: 0,
        served: 0,
    };
    let stores = run.stores();
    let sqlite = run.missing("SQLite", "sqlite-", missing_sqlite());
    let postgres = run.missing("PostgreSQL", "pg", missing_postgres());
    for round in 0..run.sheet.rounds {
        run.round = round;
        run.files(sqlite)?;
        run.cold();
        if !postgres {
            run.postgres();
        }
        if let Some(stores) = &stores {
            run.keys(stores);
        }
    }
    progress("");
    let Run {
        site,
        mut sheet,
        served,
        ..
    } = run;
    drop(site);
    sheet.note_served(served);
    sheet.seconds = started.elapsed().as_secs();
    sheet.finish_as(options, table::text)
}

fn sheet(options: &Options, site: &Site) -> Sheet {
    let under = &site.under;
    let flushes = match (site.traced, under.counter().read()) {
        (true, _) => "calls that sync, seen by strace in a pass of their own".into(),
        (_, Some(_)) => format!("those that {} counts", under.devices.join(" and ")),
        _ => "not counted: no device counts them and there is no strace".into(),
    };
    let shown = options.dir.clone().unwrap_or_default();
    Sheet {
        benchmark: "disk",
        subject: SUBJECT,
        base: &[rows::FS],
        about: vec![
            format!(
                "fs is {} at {}, and the pools lie on it",
                under.kind,
                shown.display()
            ),
            format!("flushes: {flushes}"),
        ],
        sections: SECTIONS,
        rounds: options.rounds(),
        quick: options.quick,
        machine: machine(),
        rows: ROWS,
        groups: vec![Group {
            name: GROUP,
            title: format!("{} and a pool on it", under.kind),
        }],
        peers: site.peers.iter().map(|peer| peer.name.to_owned()).collect(),
        skipped: Vec::new(),
        cells: Vec::new(),
        failures: Vec::new(),
        seconds: 0,
    }
}

impl Run<'_> {
    /// Whether something that rows need is missing; then it is named.
    fn missing(&mut self, name: &str, rows: &str, why: Option<String>) -> bool {
        let wanted = |row: &&Row| {
            self.options.wants_titled(row.name, row.title) && row.name.starts_with(rows)
        };
        let missing = why.is_some();
        if let Some(why) = why
            && ROWS.iter().any(|row| wanted(&row))
        {
            self.sheet.skipped.push((name.into(), why));
        }
        missing
    }

    fn wanted(&self, kind: Kind) -> Vec<&'static Row> {
        rows::of(kind)
            .filter(|row| self.options.wants_titled(row.name, row.title))
            .collect()
    }

    fn failed(&mut self, what: &str, peer: &str, error: &Error) {
        self.sheet
            .failures
            .push(format!("{what} on {peer}: {error}"));
    }

    fn say(&self, row: &str, peer: &str) {
        let (round, rounds) = (self.round + 1, self.sheet.rounds);
        progress(&format!("round {round} of {rounds}: {row}, {peer}"));
    }

    fn files(&mut self, without_sqlite: bool) -> Result<()> {
        let mut rows = self.wanted(Kind::Files);
        rows.retain(|row| !(without_sqlite && row.name.starts_with("sqlite")));
        if rows.is_empty() {
            return Ok(());
        }
        let mut workers = self.start(&self.site.peers.clone(), "disk");
        for row in rows {
            self.turns(row, &mut workers);
        }
        self.end(workers);
        Ok(())
    }

    /// Reads of files that no cache holds: another session than the one that wrote them.
    fn cold(&mut self) {
        for row in self.wanted(Kind::Cold) {
            let mut peers = self.site.peers.clone();
            let n = peers.len();
            peers.rotate_left(self.round % n);
            for peer in peers {
                let mut workers = self.start(std::slice::from_ref(&peer), "disk");
                for (_, worker) in &mut workers {
                    if let Err(error) = worker.ask(&format!("prepare {}", row.name)) {
                        self.failed(row.name, peer.name, &error);
                    }
                }
                self.end(workers);
                if let Err(error) = self.site.drop_cache(&peer) {
                    self.failed(row.name, peer.name, &error);
                    continue;
                }
                let mut workers = self.start(std::slice::from_ref(&peer), "disk");
                for (peer, worker) in &mut workers {
                    self.measure(row, peer.name, peer.pool(), worker);
                }
                self.end(workers);
            }
        }
    }

    /// A server of each peer; they take turns, and only one of them runs.
    fn postgres(&mut self) {
        let rows = self.wanted(Kind::Postgres);
        if rows.is_empty() {
            return;
        }
        let mut peers = match self.site.server_peers() {
            Ok(peers) => peers,
            Err(error) => {
                self.sheet
                    .skipped
                    .push(("PostgreSQL".into(), error.to_string()));
                return;
            }
        };
        let n = peers.len();
        peers.rotate_left(self.round % n);
        for peer in peers {
            let mut workers = self.start(std::slice::from_ref(&peer), "disk-postgres");
            for row in &rows {
                self.turns(row, &mut workers);
            }
            self.end(workers);
        }
    }

    fn start(&mut self, peers: &[Peer], kind: &str) -> Vec<(Peer, Worker)> {
        let mut workers = Vec::new();
        for peer in peers {
            match self.site.start(peer, kind) {
                Ok(worker) => workers.push((peer.clone(), worker)),
                Err(error) => self.failed("the start", peer.name, &error),
            }
        }
        workers
    }

    fn end(&mut self, workers: Vec<(Peer, Worker)>) {
        for (peer, worker) in workers {
            match worker.end().and_then(|()| peer.served()) {
                Ok(served) => self.served += served.unwrap_or(0),
                Err(error) => self.failed("the end", peer.name, &error),
            }
        }
    }

    fn turns(&mut self, row: &'static Row, workers: &mut [(Peer, Worker)]) {
        let n = workers.len().max(1);
        workers.rotate_left((1 + self.round) % n);
        for (peer, worker) in workers.iter_mut() {
            self.say(row.title, peer.name);
            if let Err(error) = worker.ask(&format!("prepare {}", row.name)) {
                self.failed(row.name, peer.name, &error);
            }
        }
        for (peer, worker) in workers.iter_mut() {
            self.measure(row, peer.name, peer.pool(), worker);
        }
    }

    /// One turn of one peer.
    fn measure(&mut self, row: &'static Row, peer: &str, dir: Option<&Path>, worker: &mut Worker) {
        self.say(row.title, peer);
        let line = format!("row {}", row.name);
        let answer = self.site.settle().and_then(|()| worker.ask(&line));
        let mut figures = match answer {
            Ok(answer) => figures(&answer),
            Err(error) => return self.failed(row.name, peer, &error),
        };
        if self.site.traced {
            figures.retain(|(name, _)| name != "flushes");
            match self.traced(&line, dir, worker) {
                Ok(flushes) => figures.extend(flushes),
                Err(error) => self.failed(row.name, peer, &error),
            }
        }
        self.sheet.cells.push(Cell {
            group: GROUP,
            row: row.name,
            peer: peer.to_owned(),
            round: self.round,
            figures,
        });
    }

    /// The same again, slowly: only the flushes count. What ends its server cannot be repeated.
    fn traced(
        &self,
        line: &str,
        dir: Option<&Path>,
        worker: &mut Worker,
    ) -> Result<Option<(String, f64)>> {
        if line == "row postgres-stop" {
            return Ok(None);
        }
        let trace = trace::Trace::start(worker.id(), dir, &self.site.base.join("calls"))?;
        let answer = worker.ask(line)?;
        drop(trace);
        Ok(figures(&answer)
            .into_iter()
            .find(|(name, _)| name == "flushes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_needed() {
        assert!(matches!(run(&Options::default()), Err(Error::Usage(_))));
        let nowhere = Options {
            dir: Some("/nowhere/at/all".into()),
            ..Options::default()
        };
        assert!(matches!(run(&nowhere), Err(Error::Usage(_))));
    }
}
