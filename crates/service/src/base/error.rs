//! Every error of the service. Each has exactly one errno, and a remedy where there is one.

use holdfast_pool::Bytes;
use holdfast_pool::directory::UNFINISHED;
use holdfast_pool::format::superblock::VERSION;
use rustix::io::Errno;
use std::fmt;
use std::path::{Path, PathBuf};

/// What is said of a segment that was cut.
pub const SHORTER: &str = "is shorter than the pool says";

/// What this crate's functions return.
pub type Result<T> = std::result::Result<T, Error>;

/// Why the service could not do what it was asked.
#[non_exhaustive]
#[derive(Debug)]
pub enum Error {
    /// There is nothing at the path.
    Missing { path: PathBuf },
    /// The directory is not a pool.
    NotAPool { path: PathBuf },
    /// `pool create` on a directory with something in it.
    NotEmpty { path: PathBuf },
    /// A pool that was made from a stream breaks a rule of the format, and was not kept.
    Unsound { path: PathBuf, finding: String },
    /// A pool that a restore has not completed.
    Unfinished { path: PathBuf },
    /// The path exists and is not a directory.
    NotADirectory { path: PathBuf },
    /// Another service, or an offline tool, has the pool.
    InUse { path: PathBuf, pid: Option<u32> },
    /// Processes of a session outlived their service and could not be taken over.
    Orphaned { path: PathBuf },
    /// The size is out of range.
    Size { size: u64, min: u64, max: u64 },
    /// While it is in use the pool cannot have that size.
    InUseSize { size: u64, now: u64, max: u64 },
    /// A process has not mapped more of the pool's data than there is.
    MappedAsItIs,
    /// The medium has not that many bytes free.
    TooLarge { size: u64, free: u64 },
    /// The medium that was asked for is not what is there.
    Medium { path: PathBuf, wanted: &'static str },
    /// As many bytes do not fit into huge pages that are free.
    HugePages { size: u64, free: u64 },
    /// Pages of the directory's hugetlbfs are not those that a pool is made of.
    Pages { path: PathBuf, page: u64 },
    /// Somebody else's pool.
    Owner { path: PathBuf, owner: u32 },
    /// A segment is missing or shorter than the superblock says.
    Segment { path: PathBuf, what: &'static str },
    /// Something else stands in the pool's directory where a file, or a directory, belongs.
    NotOrdinary { path: PathBuf },
    /// The socket to listen at, which was given, is another one.
    Socket { path: PathBuf },
    /// The trees or superblocks.
    Pool {
        path: PathBuf,
        error: holdfast_pool::Error,
    },
    /// Records of the journal were complete once and cannot be read.
    Journal { path: PathBuf, losses: Vec<Loss> },
    /// A journal record that is not allowed.
    Rejected { seq: u64, why: String },
    /// Session memory that was offered is not this pool's.
    NotASession,
    /// Programs go on in a session that this service does not have yet.
    Awaiting,
    /// Programs run on the snapshot.
    SnapshotInUse { name: String },
    /// There are newer snapshots than the one to go back to, the oldest first.
    Newer { newer: Vec<String> },
    /// Who asks for a snapshot does not keep others from storing into files.
    NotStopped,
    /// Pool memory refused.
    Memory(holdfast_pmem::Error),
    /// A system call failed.
    Os { what: String, errno: i32 },
}

const EIO: i32 = 5;
const EUCLEAN: i32 = 117;
const RESTORE_AGAIN: &str = "restore the same stream again: that goes on with what is there";
const NAME_A_POOL: &str = "name the directory of a pool; `holdfast pool create` makes one";

impl Error {
    /// The positive errno that says the same.
    pub fn errno(&self) -> i32 {
        let errno = match self {
            Error::NotStopped | Error::Awaiting => Errno::AGAIN,
            Error::SnapshotInUse { .. } | Error::Newer { .. } => Errno::BUSY,
            Error::Missing { .. } => Errno::NOENT,
            Error::NotAPool { .. } => Errno::MEDIUMTYPE,
            Error::NotEmpty { .. } => Errno::NOTEMPTY,
            Error::Unsound { .. } => Errno::UCLEAN,
            Error::Unfinished { .. } => Errno::BUSY,
            Error::NotADirectory { .. } => Errno::NOTDIR,
            Error::InUse { .. }
            | Error::Orphaned { .. }
            | Error::InUseSize { .. }
            | Error::MappedAsItIs => Errno::BUSY,
            Error::Size { .. }
            | Error::Medium { .. }
            | Error::Pages { .. }
            | Error::NotASession
            | Error::Socket { .. } => Errno::INVAL,
            Error::TooLarge { .. } | Error::HugePages { .. } => Errno::NOSPC,
            Error::Owner { .. } => Errno::ACCESS,
            Error::Segment { .. } | Error::NotOrdinary { .. } | Error::Journal { .. } => {
                return EUCLEAN;
            }
            Error::Rejected { .. } => return EIO,
            Error::Pool { error, .. } => return error.errno(),
            Error::Memory(e) => return e.errno(),
            Error::Os { errno, .. } => return *errno,
        };
        errno.raw_os_error()
    }

    /// What the user can do about it.
    pub fn fix(&self) -> Option<String> {
        Some(match self {
            Error::NotAPool { path } if path.join(UNFINISHED).exists() => RESTORE_AGAIN.into(),
            Error::Unfinished { .. } => RESTORE_AGAIN.into(),
            Error::NotAPool { path } if !is_empty(path) => NAME_A_POOL.into(),
            Error::Missing { path } | Error::NotAPool { path } => {
                format!("holdfast pool create {}", path.display())
            }
            Error::NotADirectory { .. } => NAME_A_POOL.into(),
            Error::NotEmpty { .. } => "use a new directory, or empty this one".into(),
            Error::InUse { .. } => "wait for its programs to end, or stop them".into(),
            Error::Orphaned { .. } => "end the programs that were using the pool".into(),
            Error::Size { size, min, .. } if size < min => {
                format!("choose a size of at least {}", Bytes(*min))
            }
            Error::Size { max, .. } => format!("choose a size of at most {}", Bytes(*max)),
            Error::SnapshotInUse { .. } => "wait for them to end, or stop them".into(),
            Error::Newer { .. } => "delete them, or have --delete-newer do so".into(),
            Error::InUseSize { .. } | Error::MappedAsItIs => {
                "wait for the pool's programs to end, or stop them (holdfast lsof shows them)"
                    .into()
            }
            Error::TooLarge { .. } => "choose a smaller size, or another directory".into(),
            Error::Pool {
                error: holdfast_pool::Error::EndInUse { .. },
                ..
            } => {
                "choose at least that size, or delete snapshots: what they have is not moved".into()
            }
            Error::Pool {
                error: holdfast_pool::Error::HostFull,
                ..
            } => "free some space there".into(),
            Error::Pool {
                error: holdfast_pool::Error::Version { found },
                ..
            } => match *found > VERSION {
                true => "use a newer Holdfast".into(),
                false => "copy its files to a new pool with the older Holdfast that made it".into(),
            },
            Error::HugePages { .. } => {
                "reserve more in /proc/sys/vm/nr_hugepages, or use a smaller --size".into()
            }
            Error::Pages { .. } => "mount hugetlbfs with -o pagesize=2M".into(),
            Error::Medium { .. } => "use --medium auto, or another directory".into(),
            Error::Owner { owner, .. } => format!(
                "run as user {owner}, or ask that user to run holdfast serve, which lets others in"
            ),
            Error::NotOrdinary { path } if path.extension().is_none() => {
                format!("remove {}; it will be made again", path.display())
            }
            Error::Socket { path } => {
                format!(
                    "ListenSequentialPacket={} in the .socket unit",
                    path.display()
                )
            }
            Error::Journal { path, .. } => {
                format!("holdfast pool check --accept-loss {}", path.display())
            }
            Error::Segment { path, what } if *what == SHORTER => {
                let pool = path.parent().unwrap_or(path);
                format!("holdfast pool check --accept-loss {}", pool.display())
            }
            Error::Segment { .. } | Error::Pool { .. } if self.errno() == EUCLEAN => {
                "holdfast pool check POOL names what is damaged".into()
            }
            _ => return None,
        })
    }

    pub(crate) fn os(what: impl Into<String>) -> impl FnOnce(Errno) -> Error {
        move |e| Error::Os {
            what: what.into(),
            errno: e.raw_os_error(),
        }
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
        move |e| Error::Os {
            what: what.into(),
            errno: e.raw_os_error().unwrap_or(EIO),
        }
    }
}

/// A pool can be made there.
fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none())
}

impl From<holdfast_pmem::Error> for Error {
    fn from(e: holdfast_pmem::Error) -> Error {
        Error::Memory(e)
    }
}

/// Records of one lane that were complete and cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    pub lane: usize,
    /// Position of the first of them.
    pub position: u64,
    /// Their numbers are among these.
    pub first: u64,
    pub last: u64,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Loss {
            lane,
            position,
            first,
            last,
        } = self;
        write!(f, "lane {lane} cannot be read at position {position}, ")?;
        match first == last {
            true => write!(f, "where record {first} is lost"),
            false => write!(f, "where records {first} to {last} are lost"),
        }
    }
}

/// The first few of some names.
struct Names<'n>(&'n [String]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST: usize = 5;
        let (first, rest) = self.0.split_at(self.0.len().min(MOST));
        f.write_str(&first.join(", "))?;
        match rest.len() {
            0 => Ok(()),
            n => write!(f, " and {n} more"),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Missing { path } => write!(f, "there is no pool at {}", path.display()),
            Error::NotAPool { path } => write!(f, "{} is not a Holdfast pool", path.display()),
            Error::NotEmpty { path } => write!(f, "{} is not empty", path.display()),
            Error::Unsound { path, finding } => write_unsound(f, path, finding),
            Error::Unfinished { path } => write!(f, "{} is not restored yet", path.display()),
            Error::NotADirectory { path } => write!(f, "{} is not a directory", path.display()),
            Error::InUse {
                path,
                pid: Some(pid),
            } => {
                write!(f, "the pool {} is in use by process {pid}", path.display())
            }
            Error::InUse { path, pid: None } => {
                write!(f, "the pool {} is in use", path.display())
            }
            Error::Orphaned { path } => write!(
                f,
                "programs still use the pool {} whose service died, and they cannot be taken over",
                path.display()
            ),
            Error::Size { .. }
            | Error::InUseSize { .. }
            | Error::MappedAsItIs
            | Error::TooLarge { .. }
            | Error::HugePages { .. }
            | Error::Pages { .. } => write_sizes(f, self),
            Error::Medium { path, wanted } => {
                let path = path.display();
                write!(f, "{path} is not on a medium of the kind {wanted}")
            }
            Error::Owner { path, owner } => {
                write!(f, "the pool {} belongs to user {owner}", path.display())
            }
            Error::Segment { path, what } => {
                write!(f, "the pool is damaged: {} {what}", path.display())
            }
            Error::NotOrdinary { path } => {
                let path = path.display();
                write!(f, "the pool is damaged: {path} is not what belongs there")
            }
            Error::Socket { path } => {
                let path = path.display();
                write!(f, "the socket that was passed to the service is not {path}")
            }
            Error::Pool { path, error } => write!(f, "{}: {error}", path.display()),
            Error::Journal { path, losses } => write_losses(f, path, losses),
            Error::Rejected { seq, why } => write!(f, "journal record {seq} is not valid: {why}"),
            Error::NotASession => {
                f.write_str("the session memory that was offered does not belong to this pool")
            }
            Error::Awaiting => f.write_str("programs on the pool have yet to find its new service"),
            Error::SnapshotInUse { name } => {
                let users = "programs that run on it";
                write!(f, "the snapshot {name} is in use by {users}")
            }
            Error::Newer { newer } => write!(f, "there are newer snapshots: {}", Names(newer)),
            Error::NotStopped => f.write_str(
                "the process that requested a snapshot does not keep others from writing",
            ),
            Error::Memory(e) => e.fmt(f),
            Error::Os { what, errno } => {
                let e = std::io::Error::from_raw_os_error(*errno).to_string();
                let text = e.split(" (os error").next().unwrap_or(&e);
                write!(f, "{what}: {text}")
            }
        }
    }
}

fn write_unsound(f: &mut fmt::Formatter<'_>, path: &Path, finding: &str) -> fmt::Result {
    let path = path.display();
    write!(
        f,
        "the stream holds no sound pool, so none was made at {path}: {finding}"
    )
}

/// What is wrong with a size, or with the pages of a hugetlbfs.
fn write_sizes(f: &mut fmt::Formatter<'_>, error: &Error) -> fmt::Result {
    match error {
        Error::Size { size, min, max } => {
            let (size, min, max) = (Bytes(*size), Bytes(*min), Bytes(*max));
            write!(
                f,
                "a pool of {size:#} is not possible: it has {min} to {max}"
            )
        }
        Error::MappedAsItIs => f.write_str(
            "a program whose addresses are limited (ulimit -v) uses the pool: it cannot grow \
             meanwhile",
        ),
        Error::InUseSize { size, now, max } => {
            let (size, now, max) = (Bytes(*size), Bytes(*now), Bytes(*max));
            write!(
                f,
                "the pool is in use, and can have {now} to {max} meanwhile, not {size}"
            )
        }
        Error::TooLarge { size, free } => {
            let (size, free) = (Bytes(*size), Bytes(*free));
            write!(
                f,
                "a pool of {size:#} does not fit into the {free} that are free there"
            )
        }
        Error::HugePages { size, free } => {
            let (size, free) = (Bytes(*size), Bytes(*free));
            let room = format!("have room for {free} beside what else a pool takes");
            write!(
                f,
                "a pool of {size:#} does not fit: the free huge pages {room}"
            )
        }
        Error::Pages { path, page } => {
            let path = path.display();
            let page = Bytes(*page);
            write!(f, "{path} has pages of {page}, and a pool needs 2M")
        }
        _ => Ok(()),
    }
}

fn write_losses(f: &mut fmt::Formatter<'_>, pool: &Path, losses: &[Loss]) -> fmt::Result {
    let losses: Vec<String> = losses.iter().map(Loss::to_string).collect();
    let (pool, losses) = (pool.display(), losses.join("; "));
    write!(f, "the journal of {pool} is damaged: {losses}")
}

impl std::error::Error for Error {}
