//! Why something was not copied.
//!
//! Invariant: what the host and what a pool say is said in the same words, with its errno.

use crate::failure::Failure;
use crate::kv::escape;
use rustix::io::Errno;

/// An error of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub errno: i32,
    why: String,
    fix: Option<String>,
}

pub type Result<T, E = Fault> = std::result::Result<T, E>;

impl Fault {
    pub fn new(why: impl Into<String>) -> Fault {
        Fault {
            errno: 0,
            why: why.into(),
            fix: None,
        }
    }

    pub fn fix(mut self, fix: impl Into<String>) -> Fault {
        self.fix = Some(fix.into());
        self
    }

    /// Only this attribute is not there.
    pub fn about(self, attribute: &[u8]) -> Fault {
        let name = escape::short(attribute);
        let fault = Fault {
            why: format!("it was copied without its attribute {name}: {}", self.why),
            ..self
        };
        // Where a file system has no more of them, its space does not matter.
        let limits = [Errno::OPNOTSUPP, Errno::NOSPC, Errno::TOOBIG].map(Errno::raw_os_error);
        match limits.contains(&fault.errno) {
            true => fault.fix("leave out -a, or copy to where there are such attributes"),
            false => fault,
        }
    }

    pub fn is(&self, errno: Errno) -> bool {
        self.errno == errno.raw_os_error()
    }

    /// The sentence about what is named by `path`.
    pub fn of(self, path: &[u8]) -> Failure {
        let failure = Failure::new(format!("{}: {}", escape::shown(path), self.why));
        match self.fix {
            Some(fix) => failure.fix(fix),
            None => failure,
        }
    }
}

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Fault {
        let text = std::io::Error::from(errno).to_string();
        let why = text.split(" (os error").next().unwrap_or(&text).to_owned();
        let fix = match errno {
            Errno::NOSPC => Some("free some space there, and copy the rest again"),
            Errno::MFILE => Some("raise `ulimit -n`"),
            _ => None,
        };
        Fault {
            errno: errno.raw_os_error(),
            why,
            fix: fix.map(Into::into),
        }
    }
}

impl From<holdfast::Error> for Fault {
    fn from(e: holdfast::Error) -> Fault {
        Fault {
            errno: e.errno(),
            why: e.to_string(),
            fix: e.fix(),
        }
    }
}

impl From<std::io::Error> for Fault {
    fn from(e: std::io::Error) -> Fault {
        match e.raw_os_error() {
            Some(errno) => Errno::from_raw_os_error(errno).into(),
            None => Fault::new(e.to_string()),
        }
    }
}
