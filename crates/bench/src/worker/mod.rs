//! The measuring program: an ordinary one, which knows only a directory.
//!
//! Invariants: it calls the system through the standard library only; it reads one command per line
//! from standard input and answers each with one line, `ok ...` or `error ...`; it ends at end of
//! file, and a row that succeeded leaves nothing behind but the two data files.

mod content;
mod data;
pub mod disk;
pub mod mapping;
mod meter;
mod names;
mod pair;
pub mod programs;
pub mod sharing;
mod webproxy;

use crate::rows::{self, Jobs};
use crate::stats::Timing;
use content::Buffers;
use meter::{Meter, Pass};
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, Write};
use std::path::PathBuf;

/// What one operation of a row is.
#[derive(Clone, Copy, Debug)]
pub enum Body {
    Pread(usize),
    /// Size; fsync after each.
    Pwrite(usize, bool),
    /// Size; fsync after each.
    Append(usize, bool),
    Read(usize),
    Create,
    WriteFile,
    Open,
    Stat,
    Rename,
    Unlink,
    Readdir,
    Start,
}

/// Waits until all jobs are ready.
pub type Barrier = Box<dyn Fn() -> io::Result<()> + Send>;

/// One of those that measure at the same time: a directory, buffers, and a barrier.
pub struct Job {
    number: u64,
    dir: PathBuf,
    file_len: u64,
    quick: bool,
    buffers: Buffers,
    barrier: Barrier,
}

impl Job {
    /// Job `number` below `dir`.
    pub fn new(dir: PathBuf, number: u64, quick: bool, barrier: Barrier) -> io::Result<Job> {
        let dir = dir.join(format!("job{number}"));
        fs::create_dir_all(&dir)?;
        let file_len = if quick { 8 << 20 } else { 64 << 20 };
        Ok(Job {
            number,
            dir,
            file_len,
            quick,
            buffers: Buffers::new(number),
            barrier,
        })
    }

    fn seed(&self) -> u64 {
        self.number + 77
    }

    fn read_file(&self) -> io::Result<PathBuf> {
        self.data_file("read.dat")
    }

    fn write_file(&self) -> io::Result<PathBuf> {
        self.data_file("write.dat")
    }

    fn data_file(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.dir.join(name);
        if fs::metadata(&path).is_err() {
            data::prepare(self, &path)?;
        }
        Ok(path)
    }

    /// How many operations a pass makes of a row that names `ops` when `jobs` share them.
    fn count(&self, ops: usize, jobs: Jobs, pass: Pass) -> usize {
        let part = if jobs == Jobs::One { 1 } else { 2 };
        let part = if pass == Pass::Singles && ops > 100 {
            part * 2
        } else {
            part
        };
        let part = if self.quick { part * 16 } else { part };
        (ops / part).max(4)
    }

    /// One pass of a row.
    pub fn pass(&mut self, row: &rows::Row, jobs: Jobs, pass: Pass) -> io::Result<Meter> {
        let mut meter = Meter::new(pass);
        let m = &mut meter;
        let n = self.count(row.ops, jobs, pass);
        match row.body {
            Body::Pread(size) => data::pread(self, m, n, size),
            Body::Pwrite(size, sync) => data::pwrite(self, m, n, size, sync),
            Body::Append(size, sync) => data::append(self, m, n, size, sync),
            Body::Read(size) => data::read(self, m, n, size),
            Body::Create => names::create(self, m, n),
            Body::WriteFile => names::write_file(self, m, n),
            Body::Open => names::open(self, m, n),
            Body::Stat => names::stat(self, m, n),
            Body::Rename => names::rename(self, m, n),
            Body::Unlink => names::unlink(self, m, n),
            Body::Readdir => names::readdir(self, m, n),
            Body::Start => names::start(self, m, n),
        }?;
        Ok(meter)
    }
}

/// What the command line of a worker says: `files DIR [--quick] [--job N]`.
struct Plan {
    dir: PathBuf,
    quick: bool,
    job: Option<u64>,
}

impl Plan {
    fn parse(args: &[OsString]) -> Option<Plan> {
        let mut words = args.iter();
        if words.next()? != "files" {
            return None;
        }
        let mut plan = Plan {
            dir: words.next()?.into(),
            quick: false,
            job: None,
        };
        while let Some(word) = words.next() {
            match word.to_str()? {
                "--quick" => plan.quick = true,
                "--job" => plan.job = Some(words.next()?.to_str()?.parse().ok()?),
                _ => return None,
            }
        }
        Some(plan)
    }
}

/// The hidden command; `args` is what follows its name. Returns the exit status.
pub fn main(args: &[OsString]) -> u8 {
    if let Some((first, rest)) = args.split_first() {
        match first.to_str() {
            Some("webproxy") => return webproxy::main(rest),
            Some("programs") => return programs::main(rest),
            Some("sharing") => return sharing::main(rest),
            Some(kind @ ("disk" | "disk-job" | "disk-postgres")) => return disk::main(kind, rest),
            _ => {}
        }
    }
    let Some(plan) = Plan::parse(args) else {
        eprintln!("usage: {} files DIR [--quick] [--job N]", crate::WORKER);
        return 2;
    };
    let done = match plan.job {
        Some(number) => pair::child(plan.dir, number, plan.quick),
        None => {
            let mut pair = None;
            answer(|line| command(&plan, line, &mut pair))
        }
    };
    status(done)
}

/// The exit status; an error is said.
fn status(done: io::Result<()>) -> u8 {
    match done {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{}: {error}", crate::WORKER);
            1
        }
    }
}

/// Answers each line of standard input, until its end.
fn answer(mut command: impl FnMut(&str) -> io::Result<String>) -> io::Result<()> {
    for line in io::stdin().lock().lines() {
        let answer = match command(&line?) {
            Ok(text) => format!("ok {text}"),
            Err(error) => format!("error {}", error.to_string().replace('\n', " ")),
        };
        let mut out = io::stdout().lock();
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

fn command(plan: &Plan, line: &str, pair: &mut Option<pair::Pair>) -> io::Result<String> {
    let bad = || io::Error::other(format!("no such command: {line}"));
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let alone = || Job::new(plan.dir.clone(), 0, plan.quick, Box::new(|| Ok(())));
    match words[..] {
        ["row", name, jobs] => {
            let row = rows::find(name).ok_or_else(bad)?;
            let timing = match Jobs::find(jobs).ok_or_else(bad)? {
                Jobs::One => measure(&mut alone()?, row),
                Jobs::Threads => pair::threads(&plan.dir, plan.quick, row),
                Jobs::Processes => pair::processes(pair, &plan.dir, plan.quick, row),
            }?;
            Ok(format!("{} {} {}", timing.median, timing.mean, timing.p99))
        }
        ["fill", n] => names::fill(&alone()?, n.parse().map_err(|_| bad())?).map(|()| "".into()),
        ["clear"] => clear(&plan.dir).map(|()| "".into()),
        _ => Err(bad()),
    }
}

/// Removes everything below the directory.
fn clear(dir: &PathBuf) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("job") {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

fn measure(job: &mut Job, row: &rows::Row) -> io::Result<Timing> {
    let chunks = job.pass(row, Jobs::One, Pass::Chunks)?;
    let singles = job.pass(row, Jobs::One, Pass::Singles)?;
    meter::timing(&chunks, &singles).ok_or_else(|| io::Error::other("nothing was measured"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_measures_an_ordinary_directory() {
        let dir = std::env::temp_dir().join(format!("holdfast-bench-test.{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        for row in rows::ROWS {
            let mut job = Job::new(dir.clone(), 0, true, Box::new(|| Ok(()))).unwrap();
            let timing = measure(&mut job, row).unwrap_or_else(|e| panic!("{}: {e}", row.name));
            assert!(
                timing.median > 0.0 && timing.mean > 0.0 && timing.p99 > 0.0,
                "{}",
                row.name
            );
        }
        let timing = pair::threads(&dir, true, rows::find("create").unwrap()).unwrap();
        assert!(timing.median > 0.0);
        let left: Vec<_> = fs::read_dir(dir.join("job0")).unwrap().flatten().collect();
        assert_eq!(left.len(), 2, "{left:?}");
        clear(&dir).unwrap();
        fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn the_command_line_is_read() {
        let args = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let plan = Plan::parse(&args("files /x --quick --job 1")).unwrap();
        assert!(plan.quick && plan.job == Some(1) && plan.dir.as_os_str() == "/x");
        assert!(Plan::parse(&args("files")).is_none());
        assert!(Plan::parse(&args("files /x --fast")).is_none());
    }

    #[test]
    fn unknown_commands_are_refused() {
        let plan = Plan {
            dir: "/nowhere".into(),
            quick: true,
            job: None,
        };
        for line in ["", "row", "row nothing 1", "row stat 3", "fill x"] {
            assert!(command(&plan, line, &mut None).is_err(), "{line}");
        }
    }
}
