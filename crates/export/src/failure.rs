//! Why an export ended.
//!
//! Invariant: a sentence with the cause, and a remedy where there is one.

use std::fmt::Display;
use std::io;
use std::sync::{Mutex, PoisonError};

pub const FAILED: u8 = 1;
pub const USAGE: u8 = 2;

#[derive(Debug)]
pub struct Failure {
    what: String,
    fix: Option<String>,
    code: u8,
}

impl Failure {
    pub fn new(what: impl Into<String>) -> Failure {
        Failure {
            what: what.into(),
            fix: None,
            code: FAILED,
        }
    }

    pub fn usage(what: impl Into<String>) -> Failure {
        let failure = Failure::new(what).fix("see holdfast export --help");
        Failure {
            code: USAGE,
            ..failure
        }
    }

    pub fn io(what: impl Display, error: &io::Error) -> Failure {
        let text = error.to_string();
        let plain = text.split(" (os error").next().unwrap_or(&text);
        Failure::new(format!("{what}: {plain}"))
    }

    pub fn fix(mut self, fix: impl Into<String>) -> Failure {
        self.fix = Some(fix.into());
        self
    }

    /// Says it on standard error; the exit status.
    pub fn say(&self) -> u8 {
        eprintln!("holdfast: {}.", self.what.trim_end_matches('.'));
        if let Some(fix) = &self.fix {
            eprintln!("Fix: {fix}");
        }
        self.code
    }
}

/// Says what a request met with, the first time for each errno: a client may go on asking.
pub fn say_once(error: &holdfast::Error) {
    static SAID: Mutex<Vec<i32>> = Mutex::new(Vec::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if !said.contains(&error.errno()) {
        said.push(error.errno());
        eprintln!("holdfast: {error}.");
    }
}

impl From<holdfast::Error> for Failure {
    fn from(error: holdfast::Error) -> Failure {
        let failure = Failure::new(error.to_string());
        match error.fix() {
            Some(fix) => failure.fix(fix),
            None => failure,
        }
    }
}
