//! Bad input: every command is given what it must refuse. Each refusal is one sentence on standard
//! error (and perhaps a line `Fix: ...`), nothing on standard output, the exit status of the
//! contract, in time, and whatever was there before is still there.

mod command_line;
mod damage;
mod hosts;
mod journal;
mod keys;
mod memory;
mod places;
mod roots;
mod strangers;
mod surroundings;

use crate::dump;
use crate::outcome::{Outcomes, Verdict};
use crate::process::{self, Ended};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// `holdfast run` failed itself.
const RUN_FAILED: i32 = 125;

/// Why a case did not pass.
pub enum Stop {
    Wrong(String),
    Skip(String),
}

impl From<io::Error> for Stop {
    fn from(e: io::Error) -> Self {
        Stop::Wrong(format!("the test itself failed: {e}"))
    }
}

pub type Case = fn(&Fixture) -> Result<(), Stop>;

/// Where a case runs: an empty directory of its own.
pub struct Fixture {
    pub holdfast: PathBuf,
    pub dir: PathBuf,
}

/// `hf-e2e bad-input`
pub fn main(names: &[&str]) -> ExitCode {
    let tables = [
        command_line::CASES,
        damage::CASES,
        journal::CASES,
        keys::CASES,
        hosts::CASES,
        places::CASES,
        roots::CASES,
        memory::CASES,
        strangers::CASES,
        surroundings::CASES,
    ];
    run_cases("bad-input", &tables.concat(), names)
}

/// Runs the cases that are named, or all.
pub fn run_cases(kind: &str, cases: &[(&str, Case)], names: &[&str]) -> ExitCode {
    let prepared = process::holdfast().and_then(|h| {
        process::scratch(kind)
            .map(|w| (h, w))
            .map_err(|e| e.to_string())
    });
    let (holdfast, work) = match prepared {
        Ok(prepared) => prepared,
        Err(why) => {
            eprintln!("{kind}: {why}");
            return ExitCode::from(2);
        }
    };
    let outcomes = Outcomes::default();
    let next = AtomicUsize::new(0);
    let is_wanted = |name: &&str| names.is_empty() || names.contains(name);
    let wanted: Vec<_> = cases.iter().filter(|(name, _)| is_wanted(name)).collect();
    // Most of what these do is wait; others are about what a machine does at once.
    let workers = if kind == "bad-input" { 2 } else { 1 };
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                process::own_mounts().expect("root may have mounts of its own");
                while let Some((name, case)) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let fixture = Fixture {
                        holdfast: holdfast.clone(),
                        dir: work.join(name.replace(' ', "-")),
                    };
                    outcomes.add(name, fixture.judge(*case));
                }
            });
        }
    });
    let _ = fs::remove_dir(&work);
    outcomes.finish()
}

impl Fixture {
    fn judge(&self, case: Case) -> Verdict {
        let result = fs::create_dir(&self.dir)
            .map_err(Stop::from)
            .and_then(|()| case(self));
        let verdict = match result {
            Ok(()) => Verdict::Passed,
            Err(Stop::Wrong(why)) => Verdict::Failed(vec![why]),
            Err(Stop::Skip(why)) => Verdict::Skipped(why),
        };
        let failed = matches!(verdict, Verdict::Failed(_));
        if !failed || std::env::var_os("HF_KEEP").is_none() {
            let _ = fs::remove_dir_all(&self.dir);
        }
        verdict
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// `holdfast ARGS...` run to its end.
    pub fn holdfast<S: AsRef<OsStr>>(&self, args: &[S]) -> Result<Ended, Stop> {
        let mut command = Command::new(&self.holdfast);
        command.args(args);
        self.end_of(command)
    }

    pub fn end_of(&self, mut command: Command) -> Result<Ended, Stop> {
        process::clean(&mut command, &self.dir);
        command.current_dir(&self.dir);
        Ok(process::run(&mut command, LIMIT, &self.dir)?)
    }

    /// The command must be refused with one of these exit statuses, in one sentence.
    pub fn refused<S: AsRef<OsStr>>(&self, args: &[S], codes: &[i32]) -> Result<(), Stop> {
        let ended = self.holdfast(args)?;
        refusal(&ended, codes).map_err(|why| Stop::Wrong(format!("{}: {why}", words(args))))
    }

    /// The command must do its work.
    pub fn done<S: AsRef<OsStr>>(&self, args: &[S]) -> Result<Ended, Stop> {
        let ended = self.holdfast(args)?;
        if ended.code() == Some(0) {
            return Ok(ended);
        }
        let tail = ended.tail().join("; ");
        Err(Stop::Wrong(format!(
            "{}: {} ({tail})",
            words(args),
            ended.how()
        )))
    }

    /// `holdfast run` on the pool with this program.
    pub fn run(&self, pool: &Path, program: &[&str]) -> Result<Ended, Stop> {
        let pool = pool.to_string_lossy();
        self.holdfast(&[&["run", "--pool", &pool, "--"], program].concat())
    }

    /// A pool with some files in it.
    fn pool(&self, name: &str, size: &str) -> Result<PathBuf, Stop> {
        let path = self.path(name);
        self.done(&["pool", "create", &path.to_string_lossy(), "--size", size])?;
        let fill = "cd /hf; mkdir -p d/e; seq 1 3000 >d/f; echo hello >hello; ln hello d/link;
            ln -s d/f soft; for i in $(seq 1 100); do echo $i >d/e/$i; done";
        let ended = self.run(&path, &["bash", "-c", fill])?;
        if ended.code() != Some(0) {
            return wrong(format!(
                "filling a pool: {} {}",
                ended.how(),
                ended.err.trim()
            ));
        }
        Ok(path)
    }

    /// The listing of what is in the pool, by a run of its own.
    fn listing(&self, pool: &Path) -> Result<Ended, Stop> {
        let me = std::env::current_exe()?;
        self.run(pool, &[&me.to_string_lossy(), "dump", "/hf"])
    }

    /// The pool is sound and holds what `pool` put there.
    fn intact(&self, pool: &Path) -> Result<(), Stop> {
        self.done(&["pool", "check", &pool.to_string_lossy()])?;
        let ended = self.run(
            pool,
            &["bash", "-c", "cat /hf/soft /hf/d/link /hf/d/e/77 | md5sum"],
        )?;
        let content = "bash -c 'seq 1 3000; echo hello; echo 77' | md5sum";
        let mut command = Command::new("bash");
        command.args(["-c", content]);
        let expected = self.end_of(command)?;
        if ended.code() == Some(0) && ended.out == expected.out {
            return Ok(());
        }
        wrong(format!(
            "the pool lost something: {} {}",
            ended.how(),
            ended.err.trim()
        ))
    }

    /// Fails unless the case runs as root.
    pub fn need_root(&self) -> Result<(), Stop> {
        if rustix::process::geteuid().is_root() {
            return Ok(());
        }
        Err(Stop::Skip("needs root".into()))
    }
}

pub fn wrong<T>(why: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Wrong(why.into()))
}

pub fn words<S: AsRef<OsStr>>(args: &[S]) -> String {
    let words: Vec<_> = args
        .iter()
        .map(|a| a.as_ref().to_string_lossy().into_owned())
        .collect();
    format!("holdfast {}", words.join(" "))
}

/// Whether this is a refusal as it should be.
pub fn refusal(ended: &Ended, codes: &[i32]) -> Result<(), String> {
    if !ended.code().is_some_and(|code| codes.contains(&code)) {
        return Err(format!(
            "{}, not {codes:?}; stderr: {}",
            ended.how(),
            ended.err.trim()
        ));
    }
    if !ended.out.is_empty() {
        return Err(format!("it wrote to standard output: {}", ended.out.trim()));
    }
    sentence(&ended.err)
}

/// Whether the text is one sentence, perhaps followed by a line that says how to fix it.
fn sentence(text: &str) -> Result<(), String> {
    let lines: Vec<&str> = text.lines().collect();
    let (first, fix) = match lines.as_slice() {
        [first] => (*first, None),
        [first, fix] => (*first, Some(*fix)),
        _ => {
            return Err(format!(
                "{} lines instead of one sentence: {text:?}",
                lines.len()
            ));
        }
    };
    if !first.ends_with('.') || first.len() < 10 || first.len() > 400 {
        return Err(format!("not a sentence: {first:?}"));
    }
    if fix.is_some_and(|fix| !fix.starts_with("Fix: ")) {
        return Err(format!("a second line that is no `Fix: `: {text:?}"));
    }
    let leaks = [
        "panicked",
        "Os {",
        "Error(",
        "unwrap",
        "backtrace",
        "os error",
    ];
    match leaks.iter().find(|leak| text.contains(**leak)) {
        Some(leak) => Err(format!("it shows its insides ({leak}): {text:?}")),
        None => Ok(()),
    }
}

/// The listing of a host directory, to see that nothing in it changed.
fn host_tree(dir: &Path) -> Result<String, Stop> {
    Ok(dump::tree(dir)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_told_from_noise() {
        assert!(sentence("holdfast: there is no pool at /x.\n").is_ok());
        assert!(sentence("There is no pool.\nFix: holdfast pool create /x\n").is_ok());
        for bad in [
            "",
            "no full stop\n",
            "One thing.\nAnother.\n",
            "One.\nFix: a\nFix: b\n",
            "thread 'main' panicked at src/main.rs.\n",
            "It failed: Os { code: 2 }.\n",
            "It failed: No such file or directory (os error 2).\n",
        ] {
            assert!(sentence(bad).is_err(), "{bad:?}");
        }
    }
}
