//! `bench mapping`: what mapped files cost, by the ways of Choi, Kim and Han (HotStorage 2017):
//! read(2), mmap(2) as it is, populated, mapped ahead, with advice, from a cache of mappings, and
//! from a pool.
//!
//! Invariants: the files of the host lie on one tmpfs with pages of 4 KB, and all peers but the
//! pool share them; the peers take turns row by row, in a different order each round; a peer that
//! maps ahead has no cache, and one with a cache maps nothing ahead.

mod rows;

use crate::error::Result;
use crate::janitor::Janitor;
use crate::link::{Worker, progress};
use crate::options::Options;
use crate::peers::{create_pool, holdfast, memory_directory, run_at, served};
use crate::report::machine;
use crate::sheet::{Cell, Group, Row, Sheet, figures};
use rows::{
    ADVISED, AHEAD, CACHE, CACHE_SMALL, DEFAULT, FILES, POOL, POPULATE, RECORDS, ROWS, SINGLE,
};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(300);
const SECTIONS: &[(&str, &str)] = &[
    ("wall", "time per operation, ns"),
    ("use", "of it in mmap and copying, ns"),
    ("cpu", "CPU time of the program, ns"),
    ("map", "of it in mmap, ns"),
    ("access", "of it copying, ns"),
    ("unmap", "of it in munmap, ns"),
    ("faults", "page faults"),
];

/// How a worker is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Launch {
    Plain,
    /// `--map` with these settings.
    Mapped(&'static str),
    /// The same, with a cache of a fifth of the small files.
    SmallCache,
    Pool,
    /// The files of the pool, with `--map`.
    PoolMapped,
}

/// Something that is measured: a way to reach files, in some group or in all.
struct Peer {
    name: &'static str,
    launch: Launch,
    way: &'static str,
    groups: &'static [&'static str],
}

const PEERS: &[Peer] = &[
    Peer::new("read", Launch::Plain, "read", &[RECORDS, FILES]),
    Peer::new(DEFAULT, Launch::Plain, "default", &[RECORDS, SINGLE, FILES]),
    Peer::new(
        POPULATE,
        Launch::Plain,
        "populate",
        &[RECORDS, SINGLE, FILES],
    ),
    Peer::new("advised", Launch::Plain, "advised", &[RECORDS, SINGLE]),
    Peer::new(AHEAD, AHEAD_ONLY, "default", &[RECORDS]),
    Peer::new(ADVISED, AHEAD_ONLY, "advised", &[RECORDS]),
    Peer::new(
        CACHE,
        Launch::Mapped("ahead=off,uses=1"),
        "default",
        &[FILES],
    ),
    Peer::new(CACHE_SMALL, Launch::SmallCache, "default", &[FILES]),
    Peer::new(POOL, Launch::Pool, "default", &[RECORDS, FILES]),
    Peer::new("pool-cache", Launch::PoolMapped, "default", &[FILES]),
];
const AHEAD_ONLY: Launch = Launch::Mapped("cache=0");

impl Peer {
    const fn new(
        name: &'static str,
        launch: Launch,
        way: &'static str,
        groups: &'static [&'static str],
    ) -> Peer {
        Peer {
            name,
            launch,
            way,
            groups,
        }
    }
}

/// Everything that was set up.
struct Site {
    base: PathBuf,
    /// MiB of the large file.
    mib: usize,
    /// How many files of 1 MiB there are.
    files: usize,
    workers: Vec<(Launch, Worker)>,
    _janitor: Janitor,
}

/// Runs everything that the options ask for.
pub fn run(options: &Options) -> Result<String> {
    let started = Instant::now();
    options.check_rows(ROWS.iter().map(|row| (row.name, row.title)))?;
    let wanted = |peer: &&Peer| peer.name == DEFAULT || options.wants_peer(peer.name, false);
    let peers: Vec<&Peer> = PEERS.iter().filter(wanted).collect();
    let mut site = Site::new(options.quick)?;
    let mut about = site.about();
    for peer in &peers {
        site.start(peer.launch)?;
        if peer.launch == Launch::PoolMapped {
            // It fills the pool.
            site.start(Launch::Pool)?;
        }
    }
    if let Some(line) = site.settle()? {
        about.push(line);
    }
    let mut sheet = sheet(options, &peers, about);
    let wants = |row: &Row| options.wants_titled(row.name, row.title);
    let single = site
        .start(Launch::Plain)?
        .ask("records seq 64 default single");
    if let Err(error) = &single {
        let what = "a fault for each page";
        sheet.skipped.push((what.into(), error.to_string()));
    }
    let serves = |peer: &Peer, group| peer.groups.contains(&group);
    let can = |group| group != SINGLE || single.is_ok();
    for round in 0..sheet.rounds {
        for (at, row) in ROWS.iter().enumerate() {
            let mut order = peers.clone();
            order.rotate_left((round + at) % peers.len());
            for peer in order.into_iter().filter(|_| wants(row)) {
                let plans = rows::plans(row, site.files, peer.way);
                for (group, line) in plans {
                    if serves(peer, group) && can(group) {
                        measure(&mut site, &mut sheet, round, (row, peer), (group, &line));
                    }
                }
            }
        }
    }
    progress("");
    if let Some(served) = site.end()? {
        sheet.note_served(served);
    }
    sheet.seconds = started.elapsed().as_secs();
    sheet.finish(options)
}

impl Site {
    fn new(quick: bool) -> Result<Site> {
        let (mib, files) = if quick { (64, 40) } else { (512, 2000) };
        let mut janitor = Janitor::start()?;
        let bytes = ((mib + files) as u64) << 20;
        let base = memory_directory(&mut janitor, 4 * bytes)?;
        let mut site = Site {
            base,
            mib,
            files,
            workers: Vec::new(),
            _janitor: janitor,
        };
        create_pool(&site.pool(), 2 * bytes)?;
        site.start(Launch::Plain)?.ask("prepare")?;
        Ok(site)
    }

    fn about(&self) -> Vec<String> {
        vec![
            format!(
                "records: a file of {} MiB is mapped, copied out by records, and unmapped; times \
                 are per record",
                self.mib
            ),
            format!(
                "files: of {} files of 1 MiB, chosen by zipf 0.99; times are per file",
                self.files
            ),
            "ahead and cache: holdfast run --map on the same files".into(),
        ]
    }

    fn pool(&self) -> PathBuf {
        self.base.join("pool")
    }

    fn report(&self) -> PathBuf {
        self.base.join("report")
    }

    /// The worker of a launch, started if there is none.
    fn start(&mut self, launch: Launch) -> Result<&mut Worker> {
        let known = self.workers.iter().position(|(known, _)| *known == launch);
        let at = match known {
            Some(at) => at,
            None => {
                let at = self.workers.len();
                let command = self.command(launch)?;
                let log = self.base.join(format!("worker-{at}.log"));
                let worker = Worker::start(command, log, PATIENCE)?;
                self.workers.push((launch, worker));
                at
            }
        };
        Ok(&mut self.workers[at].1)
    }

    fn command(&self, launch: Launch) -> Result<Command> {
        let host = self.base.join("host");
        let own = crate::paths::mapper()?;
        let mapped = |settings: &str| -> Result<Command> {
            let mut run = holdfast()?;
            run.args(["run", "--pool"]).arg(self.pool());
            run.arg(format!("--map={settings}")).arg("--").arg(&own);
            Ok(run)
        };
        let (mut command, dir) = match launch {
            Launch::Plain => (Command::new(&own), host),
            Launch::Mapped(settings) => (mapped(settings)?, host),
            Launch::SmallCache => {
                let settings = format!("ahead=off,uses=1,cache={}M", self.files / 5);
                (mapped(&settings)?, host)
            }
            Launch::Pool | Launch::PoolMapped => {
                let at = self.base.join("hf");
                let mut run = run_at(&self.pool(), &at)?;
                match launch {
                    Launch::Pool => run.arg("--report").arg(self.report()),
                    _ => run.arg("--map=ahead=off,uses=1"),
                };
                run.arg("--").arg(own);
                (run, at)
            }
        };
        command.arg(dir);
        command.args([self.mib.to_string(), self.files.to_string()]);
        Ok(command)
    }

    /// Fills the pool, if it is measured, and waits until its memory is as it will be.
    fn settle(&mut self) -> Result<Option<String>> {
        let is_pool = |(launch, _): &&mut (Launch, Worker)| *launch == Launch::Pool;
        let Some((_, worker)) = self.workers.iter_mut().find(is_pool) else {
            return Ok(None);
        };
        progress("filling the pool");
        worker.ask("prepare")?;
        let seconds = worker.ask("settle")?;
        let line = format!("pool: its memory had become huge pages {seconds} s after it was full");
        Ok(Some(line))
    }

    /// Ends all workers; how many calls the pool served, if it was measured.
    fn end(mut self) -> Result<Option<u64>> {
        let measured = self.workers.iter().any(|(l, _)| *l == Launch::Pool);
        for (_, worker) in self.workers.drain(..) {
            worker.end()?;
        }
        match measured {
            true => served(&self.pool(), &self.report()).map(Some),
            false => Ok(None),
        }
    }
}

/// One pass of a row by a peer.
fn measure(
    site: &mut Site,
    sheet: &mut Sheet,
    round: usize,
    (row, peer): (&'static Row, &Peer),
    (group, line): (&'static str, &str),
) {
    let (now, rounds) = (round + 1, sheet.rounds);
    progress(&format!(
        "round {now} of {rounds}: {}, {}",
        row.title, peer.name
    ));
    let said = site.start(peer.launch).and_then(|worker| worker.ask(line));
    match said {
        Ok(said) => sheet.cells.push(Cell {
            group,
            row: row.name,
            peer: peer.name.into(),
            round,
            figures: figures(&said),
        }),
        Err(error) => {
            let what = format!("{} of {}: {error}", row.title, peer.name);
            sheet.failures.push(what);
        }
    }
}

fn sheet(options: &Options, peers: &[&Peer], about: Vec<String>) -> Sheet {
    let group = |name, title: &str| Group {
        name,
        title: title.into(),
    };
    Sheet {
        benchmark: "mapping",
        subject: POOL,
        base: &[POPULATE],
        about,
        sections: SECTIONS,
        rounds: options.rounds(),
        quick: options.quick,
        machine: machine(),
        rows: ROWS,
        groups: vec![
            group(RECORDS, "one large file"),
            group(SINGLE, "one large file, a fault for each page"),
            group(FILES, "many files"),
        ],
        peers: peers.iter().map(|peer| peer.name.to_owned()).collect(),
        skipped: Vec::new(),
        cells: Vec::new(),
        failures: Vec::new(),
        seconds: 0,
    }
}
