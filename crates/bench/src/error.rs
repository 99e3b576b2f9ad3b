//! Why a benchmark could not be run.
//!
//! Invariant: every variant is a sentence and has an errno.

use std::fmt;
use std::io;

/// Why a benchmark could not be made.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// There is no benchmark of that name.
    Unknown(String),
    /// An option makes no sense.
    Usage(String),
    /// Something is not installed; the second text says what to do.
    Missing(String, String),
    /// The system refused something.
    Io(String, io::Error),
    /// A worker or a command said that it failed, or died.
    Failed(String),
    /// Some rows have no result; the text is what there is to print.
    Incomplete(String, Vec<String>),
}

/// What benchmarks return.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// For `map_err`: adds what was being done.
    pub fn io(what: impl fmt::Display) -> impl FnOnce(io::Error) -> Error {
        move |error| Error::Io(what.to_string(), error)
    }

    /// What to do about it, where that is known.
    pub fn fix(&self) -> Option<&str> {
        match self {
            Error::Missing(_, fix) => Some(fix),
            _ => None,
        }
    }

    /// The errno that comes nearest.
    pub fn errno(&self) -> i32 {
        const ENOENT: i32 = 2;
        const EIO: i32 = 5;
        const EINVAL: i32 = 22;
        match self {
            Error::Unknown(_) | Error::Missing(..) => ENOENT,
            Error::Usage(_) => EINVAL,
            Error::Io(_, error) => error.raw_os_error().unwrap_or(EIO),
            Error::Failed(_) | Error::Incomplete(..) => EIO,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unknown(name) => write!(f, "there is no benchmark named {name}"),
            Error::Missing(what, _) => f.write_str(what),
            Error::Usage(what) => f.write_str(what),
            Error::Io(what, error) => write!(f, "{what}: {error}"),
            Error::Failed(what) => f.write_str(what),
            Error::Incomplete(_, failures) => {
                write!(f, "{} measurements failed: ", failures.len())?;
                f.write_str(failures.first().map_or("", String::as_str))
            }
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_is_a_sentence_with_an_errno() {
        let gone = || io::Error::from_raw_os_error(2);
        let all = [
            Error::Unknown("x".into()),
            Error::Usage("rounds must be 1 or more".into()),
            Error::Io("open x".into(), gone()),
            Error::Failed("mkfs failed".into()),
            Error::Missing("x is not there".into(), "make x".into()),
            Error::Incomplete(String::new(), vec!["a".into(), "b".into()]),
        ];
        for error in &all {
            assert!(error.errno() > 0);
            assert!(error.to_string().len() > 8, "{error}");
        }
        assert!(all.iter().filter(|e| e.fix().is_some()).count() == 1);
        assert_eq!(Error::io("x")(gone()).errno(), 2);
    }
}
