//! `bench webproxy`: Aerie's comparison of get and put with open, read, write and close.
//!
//! Invariants: in every round each peer has one worker, started fresh; the peers take turns row by
//! row, in a different order each round; the same code reaches files of Holdfast and of tmpfs.

use crate::error::{Error, Result};
use crate::janitor::Janitor;
use crate::link::{Worker, progress};
use crate::options::Options;
use crate::peers::{BASE, create_pool, itself, memory_directory, run_in};
use crate::report::machine;
use crate::sheet::{Cell, Group, Row, Sheet, Target};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of each peer's storage.
const SIZE: u64 = 1 << 30;
const SUBJECT: &str = "keyspace";
const FILES: &str = "holdfast-files";
/// Threads that share one directory.
const THREADS: [(&str, &str); 3] = [
    ("1", "one thread"),
    ("2", "two threads"),
    ("8", "8 threads"),
];

const fn of_tmpfs(at_most: f64) -> Target {
    Target::wall(&["1"], &[BASE], "of tmpfs", at_most)
}

/// A name is what the worker is asked for, without the number of threads.
static ROWS: &[Row] = &[
    Row::new("turn mixed", "turn: 1 replaced, 5 read, 16 KB", &[]),
    Row::new("put mixed", "put, 16 KB", &[]),
    Row::new("get mixed", "get, 16 KB", &[]),
    Row::new("put 4096", "put, 4 KB", &[of_tmpfs(0.15)]),
    Row::new("get 4096", "get, 4 KB", &[]),
];

/// Runs everything that the options ask for.
pub fn run(options: &Options) -> Result<String> {
    let started = Instant::now();
    options.check_rows(ROWS.iter().map(|row| (row.name, row.title)))?;
    let mut janitor = Janitor::start()?;
    let base = memory_directory(&mut janitor, 4 * SIZE)?;
    let peers: Vec<&str> = [BASE, FILES, SUBJECT]
        .into_iter()
        .filter(|name| *name == BASE || options.wants_peer(name, false))
        .collect();
    let mut sheet = sheet(options, &peers);
    for round in 0..sheet.rounds {
        run_round(options, &base, round, &peers, &mut sheet)?;
    }
    progress("");
    drop(janitor);
    sheet.seconds = started.elapsed().as_secs();
    sheet.finish(options)
}

fn sheet(options: &Options, peers: &[&str]) -> Sheet {
    Sheet {
        benchmark: "webproxy",
        subject: SUBJECT,
        base: &[BASE],
        about: vec![
            "1000 objects in one directory or keyspace; 16 KB on average, or 4 KB each".into(),
            "files: open, write or read to the end, close, unlink; keyspace: put, get, erase"
                .into(),
        ],
        sections: &[
            ("wall", "time of each thread per operation, ns"),
            ("thread", "CPU time of each thread per operation, ns"),
        ],
        rounds: options.rounds(),
        quick: options.quick,
        machine: machine(),
        rows: ROWS,
        groups: THREADS
            .map(|(name, title)| Group {
                name,
                title: title.into(),
            })
            .to_vec(),
        peers: peers.iter().map(|peer| (*peer).to_owned()).collect(),
        skipped: Vec::new(),
        cells: Vec::new(),
        failures: Vec::new(),
        seconds: 0,
    }
}

fn run_round(
    options: &Options,
    base: &Path,
    round: usize,
    peers: &[&str],
    sheet: &mut Sheet,
) -> Result<()> {
    let mut workers = Vec::new();
    for peer in peers {
        let command = worker(peer, base, options.quick)?;
        let log = base.join(format!("{peer}.log"));
        workers.push((*peer, Worker::start(command, log, PATIENCE)?));
    }
    for (threads, _) in THREADS {
        for row in ROWS
            .iter()
            .filter(|row| options.wants_titled(row.name, row.title))
        {
            let n = workers.len();
            workers.rotate_left((1 + round) % n);
            for (peer, worker) in &mut workers {
                progress(&format!(
                    "round {} of {}: {}, {peer}",
                    round + 1,
                    sheet.rounds,
                    row.title
                ));
                let answer = worker.ask(&format!("row {} {threads}", row.name));
                match answer.and_then(|text| figures(&text)) {
                    Ok(figures) => sheet.cells.push(Cell {
                        group: threads,
                        row: row.name,
                        peer: (*peer).to_owned(),
                        round,
                        figures,
                    }),
                    Err(error) => {
                        let what = format!("{} of {peer}, {threads} threads: {error}", row.title);
                        sheet.failures.push(what);
                    }
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

/// Wall and CPU time, from an answer.
fn figures(answer: &str) -> Result<Vec<(String, f64)>> {
    let words: Vec<f64> = answer.split(' ').filter_map(|w| w.parse().ok()).collect();
    match words[..] {
        [wall, thread] => Ok(vec![("wall".into(), wall), ("thread".into(), thread)]),
        _ => Err(Error::Failed(format!("an unreadable answer: {answer}"))),
    }
}

/// The command that runs a worker of this peer.
fn worker(peer: &str, base: &Path, quick: bool) -> Result<Command> {
    let pool = base.join(format!("pool-{peer}"));
    if peer != BASE && !pool.exists() {
        create_pool(&pool, SIZE)?;
    }
    let place: PathBuf = match peer {
        BASE => base.join("tmpfs"),
        FILES => base.join("hf"),
        _ => pool.clone(),
    };
    let mut command = match peer {
        FILES => {
            let mut run = run_in(&pool, &place, "posix")?;
            run.arg("--").arg(crate::paths::own()?);
            run
        }
        _ => itself()?,
    };
    if peer == BASE {
        fs::create_dir_all(&place).map_err(Error::io(place.display()))?;
    }
    let kind = if peer == SUBJECT { "keyspace" } else { "files" };
    command.args([crate::WORKER, "webproxy", kind]).arg(place);
    if quick {
        command.arg("--quick");
    }
    Ok(command)
}
