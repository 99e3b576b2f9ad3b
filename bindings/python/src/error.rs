//! Errors as exceptions.
//!
//! Invariant: `holdfast.Error` is an `OSError`, so it has an errno; `fix` says what helps, or is
//! None.

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

pyo3::create_exception!(
    holdfast,
    Error,
    PyOSError,
    "What a pool refused; errno says it as a number, fix what helps."
);

const EINVAL: i32 = 22;
const EROFS: i32 = 30;

/// Makes the exception known.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let kind = module.py().get_type::<Error>();
    kind.setattr("fix", module.py().None())?;
    module.add("Error", kind)
}

/// A failure before it is an exception, for code that runs without the interpreter.
#[derive(Debug)]
pub struct Failure {
    errno: i32,
    sentence: String,
    fix: Option<String>,
}

impl Failure {
    /// The handle was closed.
    pub fn closed(kind: &str) -> Failure {
        Failure {
            errno: EINVAL,
            sentence: format!("the {kind} is closed"),
            fix: None,
        }
    }

    /// A view cannot be changed.
    pub fn read_only() -> Failure {
        Failure {
            errno: EROFS,
            sentence: "a view of a pool cannot be changed".into(),
            fix: None,
        }
    }
}

impl From<holdfast::Error> for Failure {
    fn from(error: holdfast::Error) -> Failure {
        Failure {
            errno: error.errno(),
            sentence: error.to_string(),
            fix: error.fix(),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        match error.downcast::<holdfast::Error>() {
            Ok(error) => error.into(),
            Err(error) => Failure {
                errno: error.raw_os_error().unwrap_or(5),
                sentence: error.to_string(),
                fix: None,
            },
        }
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        let error = Error::new_err((failure.errno, failure.sentence));
        if let Some(fix) = failure.fix {
            // An exception without its remedy is still the exception.
            Python::attach(|py| error.value(py).setattr("fix", fix).ok());
        }
        error
    }
}
