//! What is under test: a pool, or for comparison the file system that it lies on, without it.

use crate::device::Kind;
use crate::disk::Position;
use crate::export::{SharedDisk, lock};
use crate::oracle::Promise;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long any single thing may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The programs of a run.
#[derive(Clone, Debug)]
pub struct Programs {
    /// None: no pool, the file system itself.
    pub holdfast: Option<PathBuf>,
    /// This program.
    pub own: PathBuf,
    /// For what they write aside.
    pub scratch: PathBuf,
}

/// One subject on one mounted file system.
#[derive(Clone, Debug)]
pub struct Subject {
    pub programs: Programs,
    pub promise: Promise,
    pub kind: Kind,
    /// The pool, or the directory that stands in for its files.
    pub dir: PathBuf,
}

impl Subject {
    pub fn has_pool(&self) -> bool {
        self.programs.holdfast.is_some()
    }

    /// Whether `sync` and `syncfs` make everything durable. Those of XFS do not flush the device
    /// when there is nothing to log, as after writes in place within one tick of the clock.
    pub fn syncs_all(&self) -> bool {
        self.has_pool() || self.kind == Kind::Ext4
    }

    /// Where programs find the files.
    pub fn files(&self) -> PathBuf {
        match self.programs.holdfast {
            Some(_) => "/hf".into(),
            None => self.dir.clone(),
        }
    }

    /// The subcommand of `holdfast`, with its clean environment.
    pub fn holdfast(&self, words: &[&str]) -> Option<Command> {
        let program = self.programs.holdfast.as_ref()?;
        let mut command = Command::new(program);
        command.args(words);
        self.clean(&mut command);
        Some(command)
    }

    /// A program on the files; `more` are options of `holdfast run`.
    pub fn program(&self, more: &[&str], words: &[&str]) -> Command {
        match self.holdfast(&["run", "--at", "/hf", "--pool"]) {
            Some(mut command) => {
                command.arg(&self.dir).args(more).arg("--").args(words);
                command
            }
            None => {
                let mut command = Command::new(words[0]);
                command.args(&words[1..]);
                self.clean(&mut command);
                command
            }
        }
    }

    pub fn consistency(&self) -> &'static str {
        match self.promise {
            Promise::Posix => "posix",
            Promise::Sync => "sync",
            Promise::Strict => "strict",
        }
    }

    fn clean(&self, command: &mut Command) {
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .env("HOME", &self.programs.scratch)
            .env("LC_ALL", "C")
            .stdin(Stdio::null());
        if let Some(program) = &self.programs.holdfast {
            command.env("HOLDFAST", program);
        }
    }
}

/// Runs a command that must succeed within its time. What it says goes through files.
pub fn run(command: &mut Command, scratch: &Path) -> Result<Vec<u8>, String> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let paths = ["out", "err"].map(|what| scratch.join(format!("{what}.{number}")));
    let file = |path: &PathBuf| std::fs::File::create(path).map_err(|e| e.to_string());
    command.stdout(file(&paths[0])?).stderr(file(&paths[1])?);
    let ended = match command.spawn() {
        Ok(mut child) => wait(&mut child),
        Err(e) => Err(e.to_string()),
    };
    let [out, err] = paths.map(|path| {
        let bytes = std::fs::read(&path).unwrap_or_default();
        let _ = std::fs::remove_file(path);
        bytes
    });
    let said = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(3)..].join(" | ")
    };
    match ended {
        Ok(status) if status.success() => Ok(out),
        Ok(status) => Err(format!("{status}: {} {}", said(&err), said(&out))),
        Err(e) => Err(format!("{e}: {}", said(&err))),
    }
}

fn wait(child: &mut Child) -> Result<ExitStatus, String> {
    let end = Instant::now() + PATIENCE;
    let mut pause = Duration::from_micros(500);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if Instant::now() < end => {}
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err("was still running when its time was up".into());
            }
            Err(e) => return Err(e.to_string()),
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(5));
    }
}

/// A program that does what it is told, line by line.
pub struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    answers: Receiver<(String, Position)>,
}

impl Worker {
    pub fn start(mut command: Command, disk: &SharedDisk) -> Result<Worker, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| format!("{command:?}: {e}"))?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or("a worker without an output")?;
        let (sender, answers) = channel();
        let disk = disk.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // The position of an acknowledgement is taken when it has come.
                let position = lock(&disk).position();
                if sender.send((line, position)).is_err() {
                    break;
                }
            }
        });
        Ok(Worker {
            child,
            input,
            answers,
        })
    }

    pub fn tell(&mut self, line: &str) -> Result<(), String> {
        let input = self.input.as_mut().ok_or("a worker without an input")?;
        writeln!(input, "{line}").map_err(|e| format!("a worker ended before `{line}`: {e}"))
    }

    /// Waits for the answer `ok` and gives its position.
    pub fn answer(&mut self) -> Result<Position, String> {
        match self.any_answer()? {
            (line, position) if line == "ok" => Ok(position),
            (line, _) => Err(format!("a worker said: {line}")),
        }
    }

    /// Waits for the answer, whatever it is, and gives its position, too.
    pub fn any_answer(&mut self) -> Result<(String, Position), String> {
        match self.answers.recv_timeout(PATIENCE) {
            Ok(answer) => Ok(answer),
            Err(RecvTimeoutError::Timeout) => Err("a worker does not answer".into()),
            Err(RecvTimeoutError::Disconnected) => {
                Err(format!("a worker ended: {:?}", self.child.try_wait()))
            }
        }
    }

    /// Lets it end by itself.
    pub fn end(mut self) -> Result<(), String> {
        drop(self.input.take());
        let status = wait(&mut self.child)?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("a worker ended with {status}"))
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
