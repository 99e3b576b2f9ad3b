//! What can go wrong with a stream.

use std::fmt;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a stream could not be written or used.
#[derive(Debug)]
pub enum Error {
    /// The bytes do not begin as a stream does.
    NotAStream,
    /// A stream of a version that this program does not know.
    Version { found: u16 },
    /// A chunk, counted from 0, is not what was written.
    Damaged { chunk: u32, what: &'static str },
    /// The bytes end before the stream does; so many chunks of it are there.
    Ends { chunks: u32 },
    /// Reading or writing the stream failed.
    Stream(std::io::Error),
    /// The pool that is read or made.
    Pool(holdfast_pool::Error),
    /// The data of the pool that is made could not be written.
    Data(std::io::Error),
    /// The pool has no room for what the stream holds.
    Full,
    /// The stream continues a snapshot that the pool does not have.
    NoBase { name: String },
    /// The pool has a snapshot of that name, but it is another one.
    OtherBase { name: String },
    /// The pool was changed since the snapshot that the stream continues.
    Changed { name: String },
    /// The stream makes a pool, and continues none.
    Whole,
    /// The pool was filled from another stream, up to this chunk.
    OtherStream { chunk: u32 },
    /// A snapshot was deleted before it was saved.
    Gone { name: String },
    /// The pool has a snapshot of that name already.
    Exists { name: String },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotAStream => write!(f, "this is not a stream that `holdfast save` made"),
            Error::Version { found } => write!(
                f,
                "the stream has version {found}, and this program knows version {}",
                crate::VERSION
            ),
            Error::Damaged { chunk, what } => {
                write!(f, "the stream is damaged in chunk {chunk}: {what}")
            }
            Error::Ends { chunks } => {
                write!(f, "the stream ends too early, after {chunks} whole chunks")
            }
            Error::Stream(e) => write!(f, "the stream: {e}"),
            Error::Pool(e) => write!(f, "{e}"),
            Error::Data(e) => write!(f, "writing the pool's data: {e}"),
            Error::Full => write!(f, "the pool has no room for what the stream holds"),
            Error::NoBase { name } => {
                write!(
                    f,
                    "the stream continues snapshot {name:?}, which is not there"
                )
            }
            Error::OtherBase { name } => {
                write!(
                    f,
                    "the stream continues another snapshot {name:?} than the one that is there"
                )
            }
            Error::Changed { name } => {
                write!(
                    f,
                    "the pool was changed since snapshot {name:?}, which the stream continues"
                )
            }
            Error::Whole => write!(f, "the stream holds a whole pool, and continues none"),
            Error::OtherStream { chunk } => write!(
                f,
                "chunk {chunk} of the stream is not the one that the interrupted restore has read"
            ),
            Error::Gone { name } => {
                write!(f, "snapshot {name:?} was deleted before it was saved")
            }
            Error::Exists { name } => write!(f, "a snapshot {name:?} is there already"),
        }
    }
}

impl std::error::Error for Error {}

impl From<holdfast_pool::Error> for Error {
    fn from(error: holdfast_pool::Error) -> Error {
        match error {
            holdfast_pool::Error::NoSpace => Error::Full,
            error => Error::Pool(error),
        }
    }
}
