//! `bench sharing`: processes that work on the same files at the same time, of one user and of
//! different ones.
//!
//! Invariants: every row starts its processes anew, and they begin together; the peers take turns
//! row by row, in a different order each round; the directory in which processes of a pool work
//! exists in the pool only, so a call that does not reach it fails.

use crate::error::{Error, Result};
use crate::janitor::Janitor;
use crate::link::{Worker, progress};
use crate::options::Options;
use crate::peers::{
    BASE, OTHERS, as_user, check_others, create_pool, itself, memory_directory, quiet, run_at,
};
use crate::report::machine;
use crate::sheet::{Against, Cell, Group, Row, Sheet, Target};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of each peer's storage.
const SIZE: u64 = 512 << 20;
/// The processes belong to the pool's owner.
const SUBJECT: &str = "holdfast";
/// The first of the users who do not own the pool.
const USER: u32 = 61_000;
/// In the place of a number: who makes what the others share.
const KEEPER: usize = 1000;
const GROUP: &str = "all";

const fn of_tmpfs(at_most: f64) -> Target {
    Target::wall(&[], &[BASE], "of tmpfs", at_most)
}

/// What two that have nothing in common cost each other.
const SCALING: Target = Target {
    groups: &[],
    of: None,
    figure: "times",
    against: Against::Itself,
    whom: "of one alone",
    at_most: 2.0 / 1.8,
};

static ROWS: &[Row] = &[
    Row::new("alone", "turn, one process", &[of_tmpfs(1.0)]),
    Row::new(
        "apart",
        "turn, 2 processes, 2 directories",
        &[of_tmpfs(1.0)],
    ),
    Row::new("scaling", "the last as a multiple of the first", &[SCALING]),
    Row::new(
        "together",
        "turn, 2 processes, one directory",
        &[of_tmpfs(1.0)],
    ),
    Row::new(
        "reading",
        "open + read + close, 2 processes",
        &[of_tmpfs(1.0)],
    ),
    Row::new("written", "pread, 3 read what one writes", &[of_tmpfs(1.0)]),
    Row::new(
        "database",
        "SQLite transaction, 10 processes",
        &[of_tmpfs(1.0)],
    ),
];

/// How many processes a row has, and how many operations each makes.
fn plan(row: &str, quick: bool) -> Option<(usize, usize)> {
    let ops = |n: usize| if quick { n / 20 } else { n };
    match row {
        "alone" => Some((1, ops(4000))),
        "apart" | "together" => Some((2, ops(4000))),
        "reading" => Some((2, ops(20_000))),
        "written" => Some((4, ops(20_000))),
        "database" => Some((10, 50)),
        _ => None,
    }
}

/// Something that is measured.
struct Peer {
    name: &'static str,
    dir: PathBuf,
    pool: Option<PathBuf>,
}

/// Runs everything that the options ask for.
pub fn run(options: &Options) -> Result<String> {
    let started = Instant::now();
    options.check_rows(ROWS.iter().map(|row| (row.name, row.title)))?;
    let mut janitor = Janitor::start()?;
    let base = memory_directory(&mut janitor, 4 * SIZE)?;
    let (peers, skipped) = peers(options, &base)?;
    let mut sheet = sheet(options, &peers, skipped);
    if let Err(error) = quiet(Command::new("sqlite3").arg("--version")) {
        sheet.skipped.push(("database".into(), error.to_string()));
    }
    let keepers = peers.iter().map(|peer| keeper(peer, &base));
    let keepers = keepers.collect::<Result<Vec<_>>>()?;
    for round in 0..sheet.rounds {
        for (at, row) in ROWS.iter().enumerate() {
            let mut order: Vec<&Peer> = peers.iter().collect();
            order.rotate_left((round + at) % peers.len());
            for peer in order {
                measure(options, &base, round, row, peer, &mut sheet);
            }
        }
    }
    progress("");
    for keeper in keepers {
        keeper.end()?;
    }
    drop(janitor);
    sheet.seconds = started.elapsed().as_secs();
    sheet.finish(options)
}

/// The peers, and those that are skipped with the reason.
fn peers(options: &Options, base: &Path) -> Result<(Vec<Peer>, Vec<(String, String)>)> {
    let (mut peers, mut skipped) = (Vec::new(), Vec::new());
    for name in [BASE, SUBJECT, OTHERS] {
        if name != BASE && !options.wants_peer(name, false) {
            continue;
        }
        if name == OTHERS
            && let Err(error) = check_others()
        {
            skipped.push((name.to_owned(), error.to_string()));
            continue;
        }
        let pool = (name != BASE).then(|| base.join(format!("pool-{name}")));
        if let Some(pool) = &pool {
            create_pool(pool, SIZE)?;
        }
        let dir = base.join(name);
        if name == BASE {
            fs::create_dir(&dir).map_err(Error::io(dir.display()))?;
        }
        peers.push(Peer { name, dir, pool });
    }
    Ok((peers, skipped))
}

/// The process that makes what others share, and keeps a pool's service running between rows.
fn keeper(peer: &Peer, base: &Path) -> Result<Worker> {
    let mut keeper = start(peer, base, KEEPER, None)?;
    keeper.ask("prepare")?;
    Ok(keeper)
}

fn start(peer: &Peer, base: &Path, number: usize, user: Option<u32>) -> Result<Worker> {
    let mut command = match &peer.pool {
        None => itself()?,
        Some(pool) => {
            let mut run = run_at(pool, &peer.dir)?;
            run.arg("--").arg(crate::paths::own()?);
            run
        }
    };
    command.args([crate::WORKER, "sharing"]);
    command.arg(&peer.dir).arg(number.to_string());
    if let Some(user) = user {
        as_user(&mut command, user);
    }
    let log = base.join(format!("{}-{number}.log", peer.name));
    Worker::start(command, log, PATIENCE)
}

/// Whether the row is wanted, or one that follows from it.
fn wants(options: &Options, row: &Row) -> bool {
    let wanted = |row: &Row| options.wants_titled(row.name, row.title);
    let follows = |other: &Row| other.name == "scaling" && matches!(row.name, "alone" | "apart");
    wanted(row) || ROWS.iter().any(|other| follows(other) && wanted(other))
}

fn measure(
    options: &Options,
    base: &Path,
    round: usize,
    row: &'static Row,
    peer: &Peer,
    sheet: &mut Sheet,
) {
    let Some((processes, ops)) = plan(row.name, options.quick) else {
        return;
    };
    let skipped = sheet.skipped.iter().any(|(name, _)| name == row.name);
    if skipped || !wants(options, row) {
        return;
    }
    progress(&format!(
        "round {} of {}: {}, {}",
        round + 1,
        sheet.rounds,
        row.title,
        peer.name
    ));
    match together(peer, base, row.name, (processes, ops)) {
        Ok(wall) => {
            note(sheet, row.name, peer, round, ("wall", wall));
            note_scaling(sheet, row.name, peer, round);
        }
        Err(error) => {
            let what = format!("{} of {}: {error}", row.title, peer.name);
            sheet.failures.push(what);
        }
    }
}

/// Has so many new processes make so many operations each; the mean of their times. Where one
/// writes and others read, it is that of those.
fn together(peer: &Peer, base: &Path, row: &str, (processes, ops): (usize, usize)) -> Result<f64> {
    let user = |n: usize| {
        let n = if row == "database" { 0 } else { n as u32 };
        (peer.name == OTHERS).then_some(USER + n)
    };
    let mut workers = (0..processes)
        .map(|n| start(peer, base, n, user(n)))
        .collect::<Result<Vec<_>>>()?;
    let count = |worker: &mut Worker| -> Result<usize> {
        let said = worker.ask("count")?;
        let unreadable = || Error::Failed(format!("an unreadable answer: {said}"));
        said.parse().map_err(|_| unreadable())
    };
    let before = match row {
        "database" => count(&mut workers[0])?,
        _ => 0,
    };
    let line = format!("row {row} {ops}");
    workers.iter_mut().for_each(|worker| worker.send(&line));
    let mut times = Vec::new();
    for worker in &mut workers {
        let said = worker.answer()?;
        let time: Option<f64> = said.parse().ok();
        times.push(time.ok_or_else(|| Error::Failed(format!("an unreadable answer: {said}")))?);
    }
    if row == "database" {
        let (got, wanted) = (count(&mut workers[0])?, before + processes * ops);
        if got != wanted {
            let what = format!("the database has {got} rows in place of {wanted}");
            return Err(Error::Failed(what));
        }
    }
    workers.into_iter().try_for_each(Worker::end)?;
    let counted = &times[usize::from(row == "written")..];
    Ok(counted.iter().sum::<f64>() / counted.len() as f64)
}

fn note(sheet: &mut Sheet, row: &'static str, peer: &Peer, round: usize, figure: (&str, f64)) {
    sheet.cells.push(Cell {
        group: GROUP,
        row,
        peer: peer.name.into(),
        round,
        figures: vec![(figure.0.into(), figure.1)],
    });
}

/// What a turn beside another process costs, once both times of the round are known.
fn note_scaling(sheet: &mut Sheet, row: &str, peer: &Peer, round: usize) {
    let time = |row: &str| {
        let mut cells = sheet.cells.iter();
        let is = |c: &&Cell| c.row == row && c.peer == peer.name && c.round == round;
        cells.find(is).map(|cell| cell.figures[0].1)
    };
    if let ("apart", Some(one), Some(two)) = (row, time("alone"), time("apart")) {
        note(sheet, "scaling", peer, round, ("times", two / one));
    }
}

fn sheet(options: &Options, peers: &[Peer], skipped: Vec<(String, String)>) -> Sheet {
    Sheet {
        benchmark: "sharing",
        subject: SUBJECT,
        base: &[BASE],
        about: vec![
            "turn: create and write 4 KB, stat, open and read, rename, unlink".into(),
            "holdfast-users: each process is of another user, none of the pool's owner; those of \
             the database are of one user"
                .into(),
        ],
        sections: &[
            ("wall", "time of each process per operation, ns"),
            ("times", "multiple"),
        ],
        rounds: options.rounds(),
        quick: options.quick,
        machine: machine(),
        rows: ROWS,
        groups: vec![Group {
            name: GROUP,
            title: "processes at the same time".into(),
        }],
        peers: peers.iter().map(|peer| peer.name.to_owned()).collect(),
        skipped,
        cells: Vec::new(),
        failures: Vec::new(),
        seconds: 0,
    }
}
