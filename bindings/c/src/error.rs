//! Errors on their way out: a negative errno for the caller, a sentence for who asks.
//!
//! Invariant: each thread keeps the texts of its own last error, alive until its next one.

use crate::foreign::Text;
use std::cell::RefCell;
use std::ffi::{CString, c_int};

const EBADMSG: i32 = 74;
const EINVAL: i32 = 22;
const EIO: i32 = 5;
const ENOENT: i32 = 2;
const EROFS: i32 = 30;
const ESTALE: i32 = 116;
const EXDEV: i32 = 18;

/// Why a call was refused.
#[derive(Debug)]
pub struct Refusal {
    errno: i32,
    sentence: String,
    fix: Option<String>,
}

impl Refusal {
    fn new(errno: i32, sentence: impl Into<String>) -> Refusal {
        Refusal {
            errno,
            sentence: sentence.into(),
            fix: None,
        }
    }

    /// An argument makes no sense.
    pub fn invalid(sentence: &str) -> Refusal {
        Refusal::new(EINVAL, sentence)
    }

    /// The handle is none.
    pub fn handle(kind: &str) -> Refusal {
        Refusal::new(EINVAL, format!("the handle is of no open {kind}"))
    }

    /// There is no such key.
    pub fn no_key() -> Refusal {
        Refusal::new(ENOENT, "there is no such key")
    }

    /// The pool is a view.
    pub fn read_only() -> Refusal {
        Refusal::new(EROFS, "a view of a pool cannot be changed")
    }

    /// A view was given up.
    pub fn given_up() -> Refusal {
        Refusal::new(ESTALE, "the view was held for so long that it was given up")
    }

    /// The keyspace is of another pool.
    pub fn other_pool() -> Refusal {
        Refusal::new(EXDEV, "the keyspace is of another pool than the batch")
    }

    /// A name with a NUL in it cannot be given to C.
    pub fn name() -> Refusal {
        Refusal::new(EBADMSG, "a name holds a NUL byte")
    }
}

impl From<holdfast::Error> for Refusal {
    fn from(error: holdfast::Error) -> Refusal {
        Refusal {
            errno: error.errno(),
            sentence: error.to_string(),
            fix: error.fix(),
        }
    }
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Refusal {
        match error.downcast::<holdfast::Error>() {
            Ok(error) => error.into(),
            Err(error) => Refusal::new(error.raw_os_error().unwrap_or(EIO), error.to_string()),
        }
    }
}

#[derive(Default)]
struct Last {
    sentence: Option<CString>,
    fix: Option<CString>,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::new(Last::default());
}

/// Remembers the sentence; the number is for the caller, never 0 and never positive.
fn remember(refusal: Refusal) -> c_int {
    let text = |s: String| CString::new(s.replace('\0', "\\0")).ok();
    let last = Last {
        sentence: text(refusal.sentence),
        fix: refusal.fix.and_then(text),
    };
    // A thread that is ending has no place for it any more.
    let _ = LAST.try_with(|cell| cell.replace(last));
    match refusal.errno {
        1..=4095 => -refusal.errno,
        _ => -EIO,
    }
}

/// What a call returns that has nothing to count.
pub fn status(done: Result<(), Refusal>) -> c_int {
    done.map_or_else(remember, |()| 0)
}

/// What a call returns that says yes or no, or what a callback said.
pub fn number(done: Result<c_int, Refusal>) -> c_int {
    done.unwrap_or_else(remember)
}

/// What a call returns that counts bytes.
pub fn count(done: Result<u64, Refusal>) -> isize {
    match done {
        Ok(n) => isize::try_from(n).unwrap_or(isize::MAX),
        Err(refusal) => remember(refusal) as isize,
    }
}

/// The last error of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn hf_error() -> Text {
    let text = |cell: &RefCell<Last>| Text::or_null(cell.borrow().sentence.as_deref());
    LAST.try_with(text).unwrap_or(Text::or_null(None))
}

/// What helps against it.
#[unsafe(no_mangle)]
pub extern "C" fn hf_error_fix() -> Text {
    let text = |cell: &RefCell<Last>| Text::or_null(cell.borrow().fix.as_deref());
    LAST.try_with(text).unwrap_or(Text::or_null(None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_pool_keeps_its_number_on_its_way_through_a_stream() {
        let error = holdfast::Error::Key { len: 0 };
        let refusal = Refusal::from(std::io::Error::from(error.clone()));
        assert_eq!(refusal.errno, error.errno());
        assert_eq!(refusal.sentence, error.to_string());
        let refusal = Refusal::from(std::io::Error::from_raw_os_error(12));
        assert_eq!(refusal.errno, 12);
        assert_eq!(Refusal::from(std::io::Error::other("?")).errno, EIO);
    }
}
