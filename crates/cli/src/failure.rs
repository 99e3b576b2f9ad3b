//! How a command fails: one sentence, one remedy, one exit status.
//!
//! Invariant: a sentence starts in lower case or with a name, has no line break and no full stop.

use std::fmt;
use std::io::Write;
use std::path::Path;

/// Done.
pub const OK: u8 = 0;
/// The command could not do it.
pub const FAILED: u8 = 1;
/// The command line makes no sense.
pub const USAGE: u8 = 2;
/// `run`: Holdfast failed, not the program.
pub const RUN_FAILED: u8 = 125;
/// `run`: the program cannot be executed.
pub const RUN_NOT_EXECUTABLE: u8 = 126;
/// `run`: there is no such program.
pub const RUN_NOT_FOUND: u8 = 127;
/// `pool check`: damage was found and mended.
pub const CHECK_MENDED: u8 = 1;
/// `pool check`: damage was found and left.
pub const CHECK_DAMAGED: u8 = 4;
/// `pool check`: the check could not be made.
pub const CHECK_FAILED: u8 = 8;
/// `pool check`: wrong usage.
pub const CHECK_USAGE: u8 = 16;

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    sentence: String,
    fix: Option<String>,
    code: u8,
}

impl Failure {
    /// With status 1.
    pub fn new(sentence: impl Into<String>) -> Failure {
        Failure {
            sentence: sentence.into().replace('\n', " "),
            fix: None,
            code: FAILED,
        }
    }

    /// With a remedy.
    pub fn fix(mut self, fix: impl Into<String>) -> Failure {
        self.fix = Some(fix.into());
        self
    }

    /// With another status.
    pub fn code(mut self, code: u8) -> Failure {
        self.code = code;
        self
    }

    /// The status.
    pub fn status(&self) -> u8 {
        self.code
    }

    /// For a log: the sentence and the remedy, in one line.
    pub fn in_one_line(&self) -> String {
        match &self.fix {
            Some(fix) => format!("{}; to mend it, {fix}", self.sentence),
            None => self.sentence.clone(),
        }
    }

    /// A system's error.
    pub fn io(what: impl fmt::Display, error: &std::io::Error) -> Failure {
        Failure::new(format!("{what}: {}", text(error)))
    }
}

/// What a system's error says, without its number.
pub fn text(error: &std::io::Error) -> String {
    let text = error.to_string();
    let words = text.split(" (os error").next();
    words.unwrap_or(&text).to_owned()
}

/// A line on standard error, as far as it can be written: a full disk there is no reason to end.
pub fn say(what: impl fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{what}");
}

/// Says why a pool can only be read, if `why` says so.
pub fn warn_of_damage(pool: &Path, why: &str) {
    if why.is_empty() {
        return;
    }
    let what = Failure::new(format!(
        "{why}; until that is accepted the pool can only be read"
    ));
    let fix = format!("holdfast pool check --accept-loss {}", pool.display());
    say(what.fix(fix));
}

/// Data that went to standard output, or could not. A reader that has seen enough is no failure.
pub fn printed(done: std::io::Result<()>) -> Result<(), Failure> {
    match done {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::io("standard output", &e))
        }
        _ => Ok(()),
    }
}

impl From<holdfast_client::attach::AttachError> for Failure {
    fn from(error: holdfast_client::attach::AttachError) -> Failure {
        let failure = Failure::new(error.to_string());
        match error.fix() {
            Some(fix) => failure.fix(fix),
            None => failure,
        }
    }
}

impl From<holdfast_service::Error> for Failure {
    fn from(error: holdfast_service::Error) -> Failure {
        let failure = Failure::new(error.to_string());
        match error.fix() {
            Some(fix) => failure.fix(fix),
            None => failure,
        }
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

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "holdfast: {}.", self.sentence.trim_end_matches('.'))?;
        match &self.fix {
            Some(fix) => write!(f, "\nFix: {fix}"),
            None => Ok(()),
        }
    }
}
