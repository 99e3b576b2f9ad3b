//! Why a table could not be used.

use std::fmt;

/// What went wrong.
#[derive(Debug, PartialEq, Eq)]
pub enum Error<E> {
    /// The device said so.
    Device(E),
    /// What is at this place of the device cannot be.
    Damaged {
        /// What is there.
        what: &'static str,
        /// Where.
        at: u64,
    },
    /// This sector was marked as one that cannot be read.
    Unreadable {
        /// Its number.
        sector: u64,
    },
    /// This sector has other bytes than were written to it.
    Changed {
        /// Its number.
        sector: u64,
    },
    /// Writes failed when they were half done; opening the table again completes them.
    Interrupted,
}

/// What a table's functions return.
pub type Result<T, E> = std::result::Result<T, Error<E>>;

impl<E> From<E> for Error<E> {
    fn from(e: E) -> Error<E> {
        Error::Device(e)
    }
}

impl<E: fmt::Display> fmt::Display for Error<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Device(e) => e.fmt(f),
            Error::Damaged { what, at } => write!(f, "{what} at byte {at} is damaged"),
            Error::Unreadable { sector } => write!(f, "sector {sector} is marked as unreadable"),
            Error::Changed { sector } => {
                write!(f, "sector {sector} has other bytes than were written to it")
            }
            Error::Interrupted => f.write_str("writes were interrupted; open it again"),
        }
    }
}
