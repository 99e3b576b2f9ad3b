//! `bench files`: runs the rounds.
//!
//! Invariants: in every round each peer has one worker, started fresh; the peers take turns row by
//! row, in a different order each round, so that a disturbance of the machine affects all alike; a
//! worker that does not answer in time is killed and its measurements count as failed.

use crate::error::{Error, Result};
use crate::link::{Worker, progress};
use crate::options::Options;
use crate::peers::{self, Peer, Site};
use crate::report::{Cell, Extra, Report};
use crate::rows::{Jobs, ROWS, Row};
use crate::space;
use crate::stats::Timing;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The longest that a worker may take for one answer.
const PATIENCE: Duration = Duration::from_secs(90);

/// The peers that are measured when none is named.
const SHOWN: &[&str] = &[
    "tmpfs",
    "holdfast-posix",
    "holdfast-sync",
    "holdfast-strict",
    "tmpfs-huge",
    "ext4-zram",
    "xfs-zram",
];

/// Runs everything that the options ask for.
pub fn run(options: &Options) -> Result<String> {
    if let Some(dir) = &options.plot {
        fs::create_dir_all(dir).map_err(Error::io(dir.display()))?;
    }
    let started = Instant::now();
    let rows = ROWS.iter().map(|row| (row.name, row.title));
    options.check_rows(rows.chain([("space", "")]))?;
    let mut site = Site::new(options, SHOWN)?;
    let mut report = Report::new(options, &site);
    for round in 0..options.rounds() {
        run_round(options, &site, round, &mut report)?;
    }
    if options.wants_row("space") && options.wants_peer("holdfast-posix", false) {
        report
            .extras
            .extend(idle_costs(options, &mut site, &mut report.failures));
    }
    progress("");
    drop(site);
    report.seconds = started.elapsed().as_secs();
    #[cfg(feature = "plot")]
    if let Some(dir) = &options.plot {
        crate::plot::write(&report, dir)?;
    }
    #[cfg(not(feature = "plot"))]
    if options.plot.is_some() {
        return Err(Error::Usage("this program was built without plots".into()));
    }
    let text = if options.json {
        report.json()
    } else {
        crate::table::text(&report)
    };
    match report.failures.is_empty() {
        true => Ok(text),
        false => Err(Error::Incomplete(text, report.failures)),
    }
}

fn run_round(options: &Options, site: &Site, round: usize, report: &mut Report) -> Result<()> {
    let mut workers: Vec<(usize, Worker)> = Vec::new();
    for (i, peer) in site.peers.iter().enumerate() {
        match start(peer, options.quick, site.log(peer.name)) {
            Ok(worker) => workers.push((i, worker)),
            Err(error) => report.failures.push(format!("{}: {error}", peer.name)),
        }
    }
    for row in ROWS
        .iter()
        .filter(|row| options.wants_titled(row.name, row.title))
    {
        for jobs in Jobs::ALL {
            if jobs != Jobs::One && !row.parallel {
                continue;
            }
            progress(&format!(
                "round {} of {}: {}",
                round + 1,
                options.rounds(),
                row.title
            ));
            let n = workers.len().max(1);
            workers.rotate_left(1 % n);
            for (i, worker) in &mut workers {
                let peer = site.peers[*i].name;
                let got = measure(worker, row, jobs);
                if let Err(error) = &got {
                    let what = format!("{} on {peer} ({}): {error}", row.name, jobs.name());
                    report.failures.push(what);
                }
                report.add(Cell {
                    row: row.name,
                    jobs,
                    peer,
                    round,
                    timing: got.ok(),
                });
            }
        }
    }
    for (i, mut worker) in workers {
        let peer = &site.peers[i];
        let ended = worker.ask("clear").and_then(|_| worker.end());
        if let Err(error) = ended.and_then(|()| peer.served()) {
            let what = format!("{} at its end: {error}", peer.name);
            report.failures.push(what);
        }
    }
    Ok(())
}

/// Space of a small file and memory of an idle session.
fn idle_costs(options: &Options, site: &mut Site, failures: &mut Vec<String>) -> Vec<Extra> {
    let mut out = Vec::new();
    let mut measured = || -> Result<()> {
        let pool = site.pool("space")?;
        let template = site.peers.iter().find(|p| p.name == "holdfast-posix");
        let Some(template) = template else {
            return Ok(());
        };
        let launch = peers::Launch::Holdfast {
            pool: pool.clone(),
            mode: "posix",
        };
        let peer = Peer {
            launch,
            ..template.clone()
        };
        let mut worker = start(&peer, options.quick, site.log("space"))?;
        worker.ask("row stat 1")?;
        worker.ask("clear")?;
        std::thread::sleep(Duration::from_millis(500));
        let memory = space::memory(&peer)? as f64;
        out.push(Extra::at_most(
            "memory of an idle session",
            "bytes",
            memory,
            space::IDLE_TARGET,
        ));
        let before = space::used(&pool)?;
        worker.ask(&format!("fill {}", space::FILES))?;
        let after = space::used(&pool)?;
        let each = after.saturating_sub(before) as f64 / space::FILES as f64;
        let name = "pool space of a 4 KB file";
        out.push(Extra::at_most(name, "bytes", each, space::FILE_TARGET));
        worker.ask("clear")?;
        worker.end()
    };
    if let Err(error) = measured() {
        failures.push(format!("space and memory: {error}"));
    }
    out
}

/// A worker of this peer.
fn start(peer: &Peer, quick: bool, log: PathBuf) -> Result<Worker> {
    if matches!(peer.launch, peers::Launch::Plain) {
        fs::create_dir_all(&peer.dir).map_err(Error::io(peer.dir.display()))?;
    }
    Worker::start(peer.worker("files", quick)?, log, PATIENCE)
}

fn measure(worker: &mut Worker, row: &Row, jobs: Jobs) -> Result<Timing> {
    let answer = worker.ask(&format!("row {} {}", row.name, jobs.name()))?;
    let figures: Vec<f64> = answer.split(' ').filter_map(|w| w.parse().ok()).collect();
    match figures[..] {
        [median, mean, p99] => Ok(Timing { median, mean, p99 }),
        _ => Err(Error::Failed(format!("an unreadable answer: {answer}"))),
    }
}
