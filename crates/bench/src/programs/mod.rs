//! `bench programs`: whole programs, each in one directory of each peer.
//!
//! Invariants: a program prints the same on every peer, or its row fails; the peers take turns
//! program by program, in a different order each round; before a turn whatever prepared it has
//! come to rest. In the group `warm` a peer has one worker, and so one session, for all rounds; in
//! the group `cold` each program has a session of its own, and nothing serves the pool before it,
//! so users who cannot start its service are not in it.

pub mod rows;
mod service;
mod table;

use crate::error::{Error, Result};
use crate::link::{Worker, progress};
use crate::options::Options;
use crate::peers::{BASE, Launch, OTHERS, Peer, Site};
use crate::report::machine;
use crate::sheet::{Cell, Group, Sheet};
use crate::worker::programs::Did;
use rows::{COLD, PROGRAMS, Program, SUBJECT, WARM, place_of};
use service::Service;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The longest that a worker may take for one answer.
const PATIENCE: Duration = Duration::from_secs(300);
/// The peers that are measured when none is named.
const SHOWN: &[&str] = &[BASE, SUBJECT, OTHERS, "ext4-zram", "xfs-zram"];
/// Figures and what they are, in milliseconds or numbers.
const SECTIONS: &[(&str, &str)] = &[
    ("wall", "wall time"),
    ("cpu", "CPU time"),
    ("service", "CPU time of the service"),
    ("faults", "page faults"),
    ("waits", "voluntary context switches"),
    ("execs", "programs started"),
];

/// Everything of one run.
struct Run<'a> {
    options: &'a Options,
    site: Site,
    sheet: Sheet,
    round: usize,
    served: u64,
    /// What each program printed where it ran first.
    outputs: HashMap<&'static str, u64>,
}

/// Runs everything that the options ask for.
pub fn run(options: &Options) -> Result<String> {
    let started = Instant::now();
    options.check_rows(PROGRAMS.iter().map(|p| (p.name, p.title)))?;
    let site = Site::new(options, SHOWN)?;
    let (programs, missing) = programs(options);
    let mut run = Run {
        options,
        sheet: sheet(options, &site, missing),
        site,
        round: 0,
        served: 0,
        outputs: HashMap::new(),
    };
    run.warm(&programs);
    for round in 0..run.sheet.rounds {
        run.round = round;
        for program in &programs {
            run.cold(program);
        }
    }
    for program in programs.iter().filter(|program| program.in_group(WARM)) {
        run.count_starts(program);
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

/// What is wanted, and what of it is missing here, by name and reason.
fn programs(options: &Options) -> (Vec<&'static Program>, Vec<(String, String)>) {
    let wanted = PROGRAMS
        .iter()
        .filter(|p| options.wants_titled(p.name, p.title));
    let (there, missing): (Vec<_>, Vec<_>) = wanted.partition(|p| p.missing().is_none());
    let why = |p: &&Program| {
        let command = p.missing()?;
        Some((p.name.into(), format!("{command} is not installed")))
    };
    (there, missing.iter().filter_map(why).collect())
}

fn sheet(options: &Options, site: &Site, missing: Vec<(String, String)>) -> Sheet {
    let peers = site.skipped.iter();
    let skipped = peers.map(|(name, why)| ((*name).to_owned(), why.clone()));
    let group = |name, title: &str| Group {
        name,
        title: title.into(),
    };
    Sheet {
        benchmark: "programs",
        subject: SUBJECT,
        base: &[BASE],
        about: vec!["CPU time is that of all processes, with the service where it stays".into()],
        sections: SECTIONS,
        rounds: options.rounds(),
        quick: options.quick,
        machine: machine(),
        rows: rows::rows(),
        groups: vec![
            group(WARM, "one session for all"),
            group(COLD, "a session and a service for each"),
        ],
        peers: site.peers.iter().map(|p| p.name.to_owned()).collect(),
        skipped: skipped.chain(missing).collect(),
        cells: Vec::new(),
        failures: Vec::new(),
        seconds: 0,
    }
}

/// `bash` for one part of a program's script.
fn bash(program: &Program, part: &str, peer: &Peer, quick: bool) -> Vec<OsString> {
    let mut line = vec!["bash".into()];
    line.extend(program.part(part, &peer.dir.join(program.name), quick));
    line
}

fn io<T>(done: std::io::Result<T>) -> Result<T> {
    done.map_err(|error| Error::Failed(error.to_string()))
}

impl Run<'_> {
    fn failed(&mut self, what: &str, peer: &str, error: &Error) {
        let failure = format!("{what} on {peer}: {error}");
        self.sheet.failures.push(failure);
    }

    fn say(&self, group: &str, program: &Program, peer: &str) {
        let (round, rounds) = (self.round + 1, self.sheet.rounds);
        let name = program.name;
        progress(&format!(
            "{group}, round {round} of {rounds}: {name}, {peer}"
        ));
    }

    /// One session of each peer, for all programs and rounds.
    fn warm(&mut self, programs: &[&'static Program]) {
        let mut workers = Vec::new();
        for peer in self.site.peers.clone() {
            match self.start(&peer) {
                Ok(worker) => workers.push((peer, worker)),
                Err(error) => self.failed("the start", peer.name, &error),
            }
        }
        for round in 0..self.sheet.rounds {
            self.round = round;
            for program in programs.iter().filter(|program| program.in_group(WARM)) {
                let n = workers.len().max(1);
                workers.rotate_left((1 + round) % n);
                self.turns(program, &mut workers);
            }
        }
        for (peer, worker) in workers {
            match worker.end().and_then(|()| peer.served()) {
                Ok(served) => self.served += served.unwrap_or(0),
                Err(error) => self.failed("the end", peer.name, &error),
            }
        }
    }

    fn start(&self, peer: &Peer) -> Result<Worker> {
        let command = peer.worker("programs", self.options.quick)?;
        Worker::start(command, self.site.log(peer.name), PATIENCE)
    }

    fn turns(&mut self, program: &'static Program, workers: &mut [(Peer, Worker)]) {
        let mut able = Vec::new();
        for (peer, worker) in workers.iter_mut() {
            let mut needs = program.needs().iter().filter_map(|name| place_of(name));
            if !needs.all(|place| peer.may_execute(&place)) {
                continue;
            }
            self.say(WARM, program, peer.name);
            match worker.ask(&format!("prepare {}", program.name)) {
                Ok(_) => able.push((peer, worker)),
                Err(error) => self.failed(program.name, peer.name, &error),
            }
        }
        for (peer, worker) in &mut able {
            self.say(WARM, program, peer.name);
            match turn(program, peer, worker) {
                Ok((did, service)) => self.keep(WARM, program, peer.name, did, service),
                Err(error) => self.failed(program.name, peer.name, &error),
            }
        }
        for (peer, worker) in able {
            if let Err(error) = worker.ask(&format!("clear {}", program.name)) {
                self.failed(program.name, peer.name, &error);
            }
        }
    }

    /// A session of its own on each peer.
    fn cold(&mut self, program: &'static Program) {
        let mut peers = self.site.peers.clone();
        peers.retain(|peer| !matches!(peer.launch, Launch::Users { .. }));
        let n = peers.len();
        peers.rotate_left(self.round % n);
        for peer in peers {
            self.say(COLD, program, peer.name);
            match self.session(program, &peer) {
                Ok(did) => self.keep(COLD, program, peer.name, did, None),
                Err(error) => self.failed(program.name, peer.name, &error),
            }
        }
    }

    fn session(&mut self, program: &'static Program, peer: &Peer) -> Result<Did> {
        let quick = self.options.quick;
        if program.only_cold() {
            // Such a program may call nothing of the pool.
            return self.alone(peer, &["true".into()], false);
        }
        self.alone(peer, &bash(program, "prepare", peer, quick), true)?;
        settle(peer)?;
        let did = self.alone(peer, &bash(program, "work", peer, quick), true);
        let place = peer.dir.join(program.name).into();
        self.alone(peer, &["rm".into(), "-r".into(), place], true)?;
        did
    }

    /// A command in a session that begins and ends with it.
    fn alone(&mut self, peer: &Peer, line: &[OsString], reaches: bool) -> Result<Did> {
        let mut command = peer.command(Path::new(&line[0]))?;
        let did = io(Did::of(command.args(&line[1..])));
        match peer.served() {
            Err(error) if reaches && did.is_ok() => return Err(error),
            served => self.served += served.unwrap_or(None).unwrap_or(0),
        }
        did
    }

    /// Keeps what a turn gave, if the program did there what it did elsewhere.
    fn keep(
        &mut self,
        group: &'static str,
        program: &'static Program,
        peer: &'static str,
        did: Did,
        service: Option<Duration>,
    ) {
        let expected = *self.outputs.entry(program.name).or_insert(did.output);
        if did.output != expected {
            let error = Error::Failed("it printed something else than elsewhere".into());
            return self.failed(program.name, peer, &error);
        }
        let ms = |time: Duration| time.as_secs_f64() * 1e3 / did.per;
        let cpu = did.cost.cpu + service.unwrap_or_default();
        let mut figures = vec![
            ("wall".to_owned(), ms(did.cost.wall)),
            ("cpu".to_owned(), ms(cpu)),
            ("faults".to_owned(), did.cost.faults as f64 / did.per),
            ("waits".to_owned(), did.cost.waits as f64 / did.per),
        ];
        figures.extend(service.map(|time| ("service".to_owned(), ms(time))));
        self.add(group, program, peer, figures);
    }

    fn add(
        &mut self,
        group: &'static str,
        program: &Program,
        peer: &str,
        figures: Vec<(String, f64)>,
    ) {
        self.sheet.cells.push(Cell {
            group,
            row: program.name,
            peer: peer.to_owned(),
            round: self.round,
            figures,
        });
    }

    /// How many programs a script starts: counted once on tmpfs, where strace is installed.
    fn count_starts(&mut self, program: &'static Program) {
        let peer = self.site.peers[0].clone();
        match self.starts(program, &peer) {
            Ok(Some(n)) => self.add(WARM, program, peer.name, vec![("execs".to_owned(), n)]),
            Ok(None) => {}
            Err(error) => self.failed(program.name, "strace", &error),
        }
    }

    fn starts(&mut self, program: &Program, peer: &Peer) -> Result<Option<f64>> {
        let quick = self.options.quick;
        let calls = self.site.log("execs");
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-e", "trace=execve,execveat", "-o"]);
        strace.arg(&calls).args(bash(program, "work", peer, quick));
        let prepare = bash(program, "prepare", peer, quick);
        io(Did::of(Command::new(&prepare[0]).args(&prepare[1..])))?;
        let traced = match Did::of(&mut strace) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            done => io(done)?,
        };
        let text = fs::read_to_string(&calls).map_err(Error::io(calls.display()))?;
        let place = peer.dir.join(program.name);
        fs::remove_dir_all(&place).map_err(Error::io(place.display()))?;
        let done = text.lines().filter(|line| line.ends_with(" = 0")).count();
        Ok(Some(done as f64 / traced.per))
    }
}

/// One program in a session that stays; what it did, and the CPU time of the service for it.
fn turn(program: &Program, peer: &Peer, worker: &mut Worker) -> Result<(Did, Option<Duration>)> {
    let service = peer.pool().map(Service::of).transpose()?;
    settle(peer)?;
    let before = service.as_ref().map(Service::rest).transpose()?;
    let answer = worker.ask(&format!("row {}", program.name))?;
    let unreadable = || Error::Failed(format!("an unreadable answer: {answer}"));
    let did = Did::decode(&answer).ok_or_else(unreadable)?;
    let after = service.as_ref().map(Service::rest).transpose()?;
    let spent = before.zip(after).map(|(b, a)| a.saturating_sub(b));
    Ok((did, spent))
}

/// Writes out what a file system still holds back.
fn settle(peer: &Peer) -> Result<()> {
    if let Launch::Plain = peer.launch {
        let dir = fs::File::open(&peer.dir).map_err(Error::io(peer.dir.display()))?;
        rustix::fs::syncfs(&dir).map_err(|e| Error::Io("syncfs".into(), e.into()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_chosen_by_their_names() {
        let options = Options {
            rows: vec!["builtins".into()],
            ..Options::default()
        };
        let (there, missing) = programs(&options);
        assert_eq!(there.len(), 1);
        assert_eq!((there[0].name, missing.len()), ("builtins", 0));
    }
}
