//! A worker process and the pipes to it.
//!
//! Invariants: each command gets one line of answer; a worker that gives none in time is killed,
//! and its last words are the reason.

use crate::error::{Error, Result};
use std::fs;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// A worker and the pipes to it.
pub struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
    log: PathBuf,
    patience: Duration,
}

impl Worker {
    /// Starts it; each answer must come within `patience`.
    pub fn start(mut command: Command, log: PathBuf, patience: Duration) -> Result<Worker> {
        let errors = fs::File::create(&log).map_err(Error::io(log.display()))?;
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
            patience,
        })
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The answer to one command.
    pub fn ask(&mut self, line: &str) -> Result<String> {
        self.send(line);
        self.answer()
    }

    /// Sends a command. One that cannot be sent has an error for an answer.
    pub fn send(&mut self, line: &str) {
        let sent = self.input.as_mut().is_some_and(|input| {
            writeln!(input, "{line}")
                .and_then(|()| input.flush())
                .is_ok()
        });
        if !sent {
            self.input = None;
        }
    }

    /// The answer to the command that was sent.
    pub fn answer(&mut self) -> Result<String> {
        let answer = match self.input {
            Some(_) => self.answers.recv_timeout(self.patience).ok(),
            None => None,
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
    pub fn end(mut self) -> Result<()> {
        self.input = None;
        let start = Instant::now();
        while start.elapsed() < self.patience {
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

/// What is going on, for whoever watches.
pub fn progress(text: &str) {
    let mut err = std::io::stderr();
    if err.is_terminal() {
        let _ = write!(err, "\r\x1b[K{text}");
        let _ = err.flush();
    }
}
