//! `bench files`: runs the rounds.
//!
//! Invariants: in every round each peer has one worker, started fresh; the peers take turns row
//! by row, in another order each round, so that what disturbs the machine disturbs all alike; a
//! worker that does not answer in time is killed and its measurements count as failed.

use crate::error::{Error, Result};
use crate::options::Options;
use crate::peers::{self, Peer, Site};
use crate::report::{Cell, Extra, Report};
use crate::rows::{Jobs, ROWS, Row};
use crate::space;
use crate::stats::Timing;
use std::fs;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The longest that a worker may take for one answer.
const PATIENCE: Duration = Duration::from_secs(90);

/// Runs everything that the options ask for.
pub fn run(options: &Options) -> Result<String> {
    if let Some(dir) = &options.plot {
        fs::create_dir_all(dir).map_err(Error::io(dir.display()))?;
    }
    let started = Instant::now();
    let mut site = Site::new(options)?;
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
        match Worker::start(peer, options.quick, site.log(peer.name)) {
            Ok(worker) => workers.push((i, worker)),
            Err(error) => report.failures.push(format!("{}: {error}", peer.name)),
        }
    }
    for row in ROWS.iter().filter(|row| options.wants_row(row.name)) {
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
                let got = worker.measure(row, jobs);
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
        if let Err(error) = worker.ask("clear").and_then(|_| worker.end()) {
            report
                .failures
                .push(format!("{} at its end: {error}", site.peers[i].name));
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
        let mut worker = Worker::start(&peer, options.quick, site.log("space"))?;
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

/// A worker and the pipes to it.
struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
    log: PathBuf,
}

impl Worker {
    fn start(peer: &Peer, quick: bool, log: PathBuf) -> Result<Worker> {
        if matches!(peer.launch, peers::Launch::Plain) {
            fs::create_dir_all(&peer.dir).map_err(Error::io(peer.dir.display()))?;
        }
        let errors = fs::File::create(&log).map_err(Error::io(log.display()))?;
        let mut command = peer.worker(quick)?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors);
        let mut child = command.spawn().map_err(Error::io("start a worker"))?;
        let input = child.stdin.take();
        let output = child.stdout.take();
        let (send, answers) = channel();
        std::thread::spawn(move || {
            let lines = output.into_iter().flat_map(|o| BufReader::new(o).lines());
            lines
                .map_while(|line| line.ok())
                .try_for_each(|line| send.send(line))
        });
        Ok(Worker {
            child,
            input,
            answers,
            log,
        })
    }

    fn ask(&mut self, line: &str) -> Result<String> {
        let sent = match &mut self.input {
            Some(input) => writeln!(input, "{line}")
                .and_then(|()| input.flush())
                .is_ok(),
            None => false,
        };
        let answer = match sent {
            true => self.answers.recv_timeout(PATIENCE).ok(),
            false => None,
        };
        let Some(answer) = answer else {
            return Err(Error::Failed(self.died()));
        };
        match answer.split_once(' ') {
            Some(("ok", text)) => Ok(text.to_owned()),
            _ => Err(Error::Failed(
                answer.trim_start_matches("error ").to_owned(),
            )),
        }
    }

    fn measure(&mut self, row: &Row, jobs: Jobs) -> Result<Timing> {
        let answer = self.ask(&format!("row {} {}", row.name, jobs.name()))?;
        let figures: Vec<f64> = answer.split(' ').filter_map(|w| w.parse().ok()).collect();
        match figures[..] {
            [median, mean, p99] => Ok(Timing { median, mean, p99 }),
            _ => Err(Error::Failed(format!("an unreadable answer: {answer}"))),
        }
    }

    /// Kills the worker if it lives and says what became of it.
    fn died(&mut self) -> String {
        self.input = None;
        let late = matches!(self.child.try_wait(), Ok(None));
        let _ = self.child.kill();
        let status = self.child.wait().map(|s| s.to_string()).unwrap_or_default();
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        let last = said
            .trim()
            .lines()
            .last()
            .unwrap_or("nothing on standard error")
            .to_owned();
        match late {
            true => format!("the worker gave no answer in time ({last})"),
            false => format!("the worker ended with {status} ({last})"),
        }
    }

    /// Ends the worker in order.
    fn end(mut self) -> Result<()> {
        self.input = None;
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            match self
                .child
                .try_wait()
                .map_err(Error::io("wait for a worker"))?
            {
                Some(status) if status.success() => return Ok(()),
                Some(_) => break,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        Err(Error::Failed(self.died()))
    }
}

fn progress(text: &str) {
    let mut err = std::io::stderr();
    if err.is_terminal() {
        let _ = write!(err, "\r\x1b[K{text}");
        let _ = err.flush();
    }
}
