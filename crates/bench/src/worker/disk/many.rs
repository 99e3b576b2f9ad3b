//! Processes that sync at the same time, each its own file.
//!
//! Invariants: all start their timed part together; if one fails, the row fails; none outlives the
//! row.

use super::super::content::{self, Buffers, Random};
use super::data::{self, MIB, PAGE};
use super::{Plan, Took};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const SIZE: usize = PAGE as usize;
/// Bytes of the file of each.
const LEN: u64 = 4 * MIB;

struct Job {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Job {
    fn start(plan: &Plan, number: usize, ops: usize) -> io::Result<Job> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([crate::WORKER, "disk-job"]);
        command.arg(plan.path(&format!("job-{number}")));
        command.args([ops.to_string(), plan.limit().as_millis().to_string()]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or_else(no_pipe)?;
        Ok(Job {
            child,
            output: BufReader::new(output),
        })
    }

    fn answer(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.output.read_line(&mut line)? {
            0 => Err(io::Error::other("a measuring process ended early")),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    fn go(&mut self) -> io::Result<()> {
        let input = self.child.stdin.as_mut().ok_or_else(no_pipe)?;
        input.write_all(b"go\n")?;
        input.flush()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn no_pipe() -> io::Error {
    io::Error::other("no pipe")
}

/// Overwrites pages, each synced, in `jobs` processes at once. The time is that of each process.
pub fn run(plan: &Plan, jobs: usize) -> io::Result<Took> {
    let ops = plan.ops(1600) / jobs.max(1);
    let mut all = (0..jobs)
        .map(|number| Job::start(plan, number, ops.max(super::OPS_MIN)))
        .collect::<io::Result<Vec<Job>>>()?;
    for job in &mut all {
        if job.answer()? != "ready" {
            return Err(io::Error::other("a measuring process is out of step"));
        }
    }
    let before = plan.counter.read();
    all.iter_mut().try_for_each(Job::go)?;
    let mut took = Took::default();
    for job in &mut all {
        let text = job.answer()?;
        let words = text.split_ascii_whitespace().map(str::parse::<f64>);
        let ns = words.collect::<Result<Vec<f64>, _>>();
        took.ns
            .extend(ns.map_err(|_| io::Error::other(text.clone()))?);
    }
    took.flushed(before, plan.counter.read());
    took.ops = took.ns.len();
    took.total_ns = took.ns.iter().sum();
    // The comparison with what was written.
    all.iter_mut()
        .try_for_each(|job| match job.answer()?.as_str() {
            "same" => Ok(()),
            _ => Err(io::Error::other("a measuring process is out of step")),
        })?;
    Ok(took)
}

/// One of the processes: `FILE OPS MILLISECONDS`.
pub fn child(args: &[OsString]) -> io::Result<()> {
    let number = |at: usize| args.get(at)?.to_str()?.parse::<u64>().ok();
    let (Some(path), Some(ops), Some(limit)) = (args.first(), number(1), number(2)) else {
        return Err(io::Error::other("disk-job FILE OPS MILLISECONDS"));
    };
    job(Path::new(path), ops as usize, Duration::from_millis(limit))
}

fn job(path: &Path, ops: usize, limit: Duration) -> io::Result<()> {
    data::whole(path, LEN)?;
    let file = data::open(path)?;
    let seed = u64::from(std::process::id());
    let (buffers, mut random) = (Buffers::new(seed), Random::new(seed));
    let places: Vec<u64> = (0..ops).map(|_| data::anywhere(LEN, &mut random)).collect();
    let step = |i: usize| {
        file.write_all_at(buffers.nth(i, SIZE), places[i])?;
        file.sync_all()
    };
    step(0)?;
    say("ready")?;
    if io::stdin().lock().read_line(&mut String::new())? == 0 {
        return Err(io::Error::other("another measuring process failed"));
    }
    let mut ns = Vec::with_capacity(ops);
    let start = Instant::now();
    while ns.len() < ops && (ns.len() < super::OPS_MIN || start.elapsed() < limit) {
        let one = Instant::now();
        step(ns.len())?;
        ns.push(one.elapsed().as_nanos());
    }
    let words: Vec<String> = ns.iter().map(u128::to_string).collect();
    say(&words.join(" "))?;
    let mut last = std::collections::BTreeMap::new();
    last.extend((0..ns.len()).map(|i| (places[i], i)));
    let mut got = [0; SIZE];
    for (at, i) in last {
        file.read_exact_at(&mut got, at)?;
        content::same(buffers.nth(i, SIZE), &got, at)?;
    }
    say("same")
}

fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
