//! The measuring program of `bench programs`: it runs scripts in a directory.
//!
//! Invariants: it is an ordinary program, like the worker of `bench files`; its figures are those
//! of all processes that a script started and waited for.

use super::{answer, status};
use crate::programs::rows::find;
use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What all processes of a command took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    pub wall: Duration,
    /// User and system time.
    pub cpu: Duration,
    pub faults: i64,
    /// Voluntary context switches.
    pub waits: i64,
}

fn used() -> io::Result<Usage> {
    Ok(getrusage(UsageWho::RUSAGE_CHILDREN)?)
}

fn cpu(usage: &Usage) -> Duration {
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(micros.unsigned_abs())
}

/// What a script did, for another process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Did {
    pub cost: Cost,
    /// Of what it printed.
    pub output: u64,
    /// What the cost is divided by.
    pub per: f64,
}

impl Did {
    /// Runs a command to its end.
    pub fn of(command: &mut Command) -> io::Result<Did> {
        let before = used()?;
        let start = Instant::now();
        let done = command.stdin(Stdio::null()).output()?;
        let wall = start.elapsed();
        let after = used()?;
        let said = String::from_utf8_lossy(&done.stderr);
        if !done.status.success() {
            let last = said.trim().lines().last().unwrap_or("it said nothing");
            return Err(io::Error::other(format!("{}: {last}", done.status)));
        }
        let mut hasher = DefaultHasher::new();
        done.stdout.hash(&mut hasher);
        let per = said.lines().find_map(|line| line.strip_prefix("per "));
        Ok(Did {
            cost: Cost {
                wall,
                cpu: cpu(&after).saturating_sub(cpu(&before)),
                faults: after.minor_page_faults() - before.minor_page_faults(),
                waits: after.voluntary_context_switches() - before.voluntary_context_switches(),
            },
            output: hasher.finish(),
            per: per.map_or(Ok(1.0), str::parse).map_err(io::Error::other)?,
        })
    }

    /// For another process.
    pub fn encode(&self) -> String {
        let Cost {
            wall,
            cpu,
            faults,
            waits,
        } = self.cost;
        let (wall, cpu) = (wall.as_nanos(), cpu.as_nanos());
        format!("{wall} {cpu} {faults} {waits} {} {}", self.output, self.per)
    }

    /// From another process.
    pub fn decode(text: &str) -> Option<Did> {
        let words: Vec<&str> = text.split(' ').collect();
        let [wall, cpu, faults, waits, output, per] = words[..] else {
            return None;
        };
        let nanos = |word: &str| Some(Duration::from_nanos(word.parse().ok()?));
        Some(Did {
            cost: Cost {
                wall: nanos(wall)?,
                cpu: nanos(cpu)?,
                faults: faults.parse().ok()?,
                waits: waits.parse().ok()?,
            },
            output: output.parse().ok()?,
            per: per.parse().ok()?,
        })
    }
}

/// The hidden command: `programs DIR [--quick]`.
pub fn main(args: &[OsString]) -> u8 {
    let (dir, quick) = match args {
        [dir] => (PathBuf::from(dir), false),
        [dir, flag] if flag == "--quick" => (PathBuf::from(dir), true),
        _ => {
            eprintln!("usage: {} programs DIR [--quick]", crate::WORKER);
            return 2;
        }
    };
    status(answer(|line| command(&dir, quick, line)))
}

fn command(dir: &Path, quick: bool, line: &str) -> io::Result<String> {
    let bad = || io::Error::other(format!("no such command: {line}"));
    let (verb, name) = line.split_once(' ').ok_or_else(bad)?;
    let program = find(name).ok_or_else(bad)?;
    let place = dir.join(name);
    let part = |part| Did::of(Command::new("bash").args(program.part(part, &place, quick)));
    match verb {
        "prepare" => part("prepare").map(|_| String::new()),
        "row" => part("work").map(|did| did.encode()),
        "clear" => fs::remove_dir_all(&place).map(|()| String::new()),
        _ => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_works_in_an_ordinary_directory() {
        let dir = std::env::temp_dir().join(format!("holdfast-programs.{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        for name in ["builtins", "walks", "sqlite", "python"] {
            if find(name).unwrap().missing().is_some() {
                continue;
            }
            let said = |verb: &str| command(&dir, true, &format!("{verb} {name}"));
            let run = || {
                said("prepare").unwrap();
                Did::decode(&said("row").unwrap()).unwrap()
            };
            let (one, other) = (run(), run());
            assert_eq!(
                one.output, other.output,
                "{name} prints something else each time"
            );
            assert!(one.cost.wall > Duration::ZERO && one.cost.cpu > Duration::ZERO);
            assert!(one.cost.faults > 100, "{name}: {one:?}");
            said("clear").unwrap();
        }
        assert!(command(&dir, true, "row nothing").is_err());
        assert!(
            command(&dir, true, "row git").is_err(),
            "nothing was prepared"
        );
        fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn what_a_failing_script_said_last_is_the_reason() {
        let mut bash = Command::new("bash");
        let error = Did::of(bash.args(["-c", "echo a >&2; echo why >&2; exit 3"])).unwrap_err();
        assert_eq!(error.to_string(), "exit status: 3: why");
    }

    #[test]
    fn a_script_says_how_much_it_did() {
        let did = |script: &str| Did::of(Command::new("bash").args(["-c", script]));
        assert_eq!(did("echo per 2.5 >&2").unwrap().per, 2.5);
        assert_eq!(did("echo x").unwrap().per, 1.0);
        assert!(did("echo per x >&2").is_err());
    }

    #[test]
    fn results_travel_between_processes() {
        let did = Did {
            cost: Cost {
                wall: Duration::from_nanos(5),
                cpu: Duration::from_micros(7),
                faults: 1,
                waits: 0,
            },
            output: u64::MAX,
            per: 2.5,
        };
        assert_eq!(Did::decode(&did.encode()), Some(did));
        assert_eq!(Did::decode("1 2 3"), None);
    }
}
