//! Two jobs at once: threads of this process, or two more processes.
//!
//! Invariants: both start their timed part together; a job that fails ends the other's wait, so
//! that neither hangs.

use super::meter::{self, Meter, Pass};
use super::{Barrier, Job};
use crate::rows::{self, Jobs, Row};
use crate::stats::Timing;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};

const JOBS: u64 = 2;

/// Measures with two threads.
pub fn threads(dir: &Path, quick: bool, row: &Row) -> io::Result<Timing> {
    let passes = [Pass::Chunks, Pass::Singles].map(|pass| -> io::Result<Meter> {
        let (ready, go): (Vec<_>, Vec<_>) = (0..JOBS).map(|_| channel()).unzip();
        std::thread::scope(|scope| {
            let mut ready = ready.into_iter();
            let mut go = go.into_iter();
            let (to_b, to_a) = (ready.next(), ready.next());
            let (from_a, from_b) = (go.next(), go.next());
            let a = scope.spawn(move || one_thread(dir, 0, quick, row, pass, meet(to_b, from_b)));
            let b = scope.spawn(move || one_thread(dir, 1, quick, row, pass, meet(to_a, from_a)));
            let mut sum = joined(a.join())?;
            sum.merge(&joined(b.join())?);
            Ok(sum)
        })
    });
    let [chunks, singles] = passes;
    timing(chunks?, singles?)
}

fn one_thread(
    dir: &Path,
    number: u64,
    quick: bool,
    row: &Row,
    pass: Pass,
    barrier: Barrier,
) -> io::Result<Meter> {
    Job::new(dir.to_owned(), number, quick, barrier)?.pass(row, Jobs::Threads, pass)
}

fn joined(result: std::thread::Result<io::Result<Meter>>) -> io::Result<Meter> {
    result.unwrap_or_else(|_| Err(io::Error::other("a measuring thread panicked")))
}

/// A barrier of two: tells the other, waits for the other. One that is gone counts as failed.
fn meet(other: Option<Sender<()>>, mine: Option<Receiver<()>>) -> Barrier {
    Box::new(move || {
        let gone = || io::Error::other("the other job failed");
        other
            .as_ref()
            .and_then(|o| o.send(()).ok())
            .ok_or_else(gone)?;
        mine.as_ref().and_then(|m| m.recv().ok()).ok_or_else(gone)
    })
}

fn timing(chunks: Meter, singles: Meter) -> io::Result<Timing> {
    meter::timing(&chunks, &singles).ok_or_else(|| io::Error::other("nothing was measured"))
}

/// Two processes that wait for commands.
pub struct Pair(Vec<Other>);

struct Other {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(dir: &Path, number: u64, quick: bool) -> io::Result<Other> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(crate::WORKER).arg("files").arg(dir);
        command.arg("--job").arg(number.to_string());
        if quick {
            command.arg("--quick");
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take();
        let output = child
            .stdout
            .take()
            .ok_or_else(|| io::Error::other("no pipe"))?;
        Ok(Other {
            child,
            input,
            output: BufReader::new(output),
        })
    }

    fn send(&mut self, line: &str) -> io::Result<()> {
        let input = self
            .input
            .as_mut()
            .ok_or_else(|| io::Error::other("no pipe"))?;
        writeln!(input, "{line}")?;
        input.flush()
    }

    fn answer(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err(io::Error::other("a measuring process ended early"));
        }
        match line.trim_end().strip_prefix("error ") {
            Some(text) => Err(io::Error::other(text.to_owned())),
            None => Ok(line.trim_end().to_owned()),
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // End of file ends it between two commands; within one it waits for this pipe as well.
        self.input = None;
        let _ = self.child.wait();
    }
}

/// Measures with two processes, which live on for the next row unless something failed.
pub fn processes(
    pair: &mut Option<Pair>,
    dir: &Path,
    quick: bool,
    row: &Row,
) -> io::Result<Timing> {
    let mut now = match pair.take() {
        Some(pair) => pair,
        None => Pair(
            (0..JOBS)
                .map(|n| Other::start(dir, n, quick))
                .collect::<io::Result<_>>()?,
        ),
    };
    let chunks = now.pass(row, Pass::Chunks)?;
    let singles = now.pass(row, Pass::Singles)?;
    *pair = Some(now);
    timing(chunks, singles)
}

impl Pair {
    fn pass(&mut self, row: &Row, pass: Pass) -> io::Result<Meter> {
        let word = if pass == Pass::Chunks {
            "chunks"
        } else {
            "singles"
        };
        self.0
            .iter_mut()
            .try_for_each(|other| other.send(&format!("{word} {}", row.name)))?;
        for other in &mut self.0 {
            if other.answer()? != "ready" {
                return Err(io::Error::other("a measuring process is out of step"));
            }
        }
        self.0.iter_mut().try_for_each(|other| other.send("go"))?;
        let mut sum: Option<Meter> = None;
        for other in &mut self.0 {
            let got = Meter::decode(pass, &other.answer()?);
            let got = got.ok_or_else(|| io::Error::other("unreadable measurement"))?;
            match &mut sum {
                Some(sum) => sum.merge(&got),
                None => sum = Some(got),
            }
        }
        sum.ok_or_else(|| io::Error::other("nothing was measured"))
    }
}

/// One of the two processes.
pub fn child(dir: PathBuf, number: u64, quick: bool) -> io::Result<()> {
    let barrier = || {
        say("ready")?;
        let mut line = String::new();
        match io::stdin().read_line(&mut line)? {
            0 => Err(io::Error::other("the other job failed")),
            _ => Ok(()),
        }
    };
    let mut job = Job::new(dir, number, quick, Box::new(barrier))?;
    let mut line = String::new();
    while io::stdin().read_line(&mut line)? > 0 {
        match child_command(&mut job, line.trim_end()) {
            Ok(meter) => say(&meter.encode())?,
            Err(error) => say(&format!("error {}", error.to_string().replace('\n', " ")))?,
        }
        line.clear();
    }
    Ok(())
}

fn child_command(job: &mut Job, line: &str) -> io::Result<Meter> {
    let bad = || io::Error::other(format!("no such command: {line}"));
    let (word, name) = line.split_once(' ').ok_or_else(bad)?;
    let pass = match word {
        "chunks" => Pass::Chunks,
        "singles" => Pass::Singles,
        _ => return Err(bad()),
    };
    job.pass(rows::find(name).ok_or_else(bad)?, Jobs::Processes, pass)
}

fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
