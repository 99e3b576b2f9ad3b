//! Why a call failed.
//!
//! Invariant: each error is one sentence, has the errno that Linux gives for the same mistake, and
//! a remedy where there is one.

use crate::sector::Sector;
use holdfast_client::attach::AttachError;
use holdfast_pool::Bytes;
use holdfast_pool::layout::NAME_MAX;
use std::fmt;

const SNAPSHOTS: &str = "`holdfast snapshot POOL list` shows the pool's snapshots";

/// No pool can be made there, or only beside something else.
fn has_entries(directory: &std::path::Path) -> bool {
    match std::fs::read_dir(directory) {
        Ok(mut entries) => entries.next().is_some(),
        Err(e) => e.kind() != std::io::ErrorKind::NotFound,
    }
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// An operation of the pool failed.
    Pool(holdfast_client::Error),
    /// The session of the pool could not be joined.
    Attach(AttachError),
    /// There is no pool.
    NoPool {
        /// The directory that was looked at.
        path: std::path::PathBuf,
    },
    /// The pool's service could not be started.
    Start {
        /// The reason, as a sentence.
        why: String,
        /// The remedy.
        fix: Option<String>,
    },
    /// There is no keyspace, volume or snapshot of this name.
    Missing {
        /// What is missing.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// A key is empty or has more than 1024 bytes.
    Key {
        /// Its length.
        len: usize,
    },
    /// A keyspace cannot have this name.
    Name {
        /// The name.
        name: String,
    },
    /// The changes of a batch take more room than one commit may.
    BatchTooLarge,
    /// The two values of a change that depends on one are more than one request has room for.
    SwapTooLarge,
    /// A value is so large, or free space in so many pieces, that only a file takes it, which
    /// cannot expire.
    ExpiringTooLarge,
    /// A batch or a view from before fork(2) was used in the child.
    OtherProcess,
    /// The pool's root directory does not let this user in.
    NotLetIn {
        /// The pool.
        path: std::path::PathBuf,
    },
    /// The call needs the pool to be mapped, which it is for its owner and root alone.
    NotForOthers,
    /// Something of this name is there already.
    Exists {
        /// The name.
        name: String,
    },
    /// A keyspace cannot be dropped, because its directory has directories.
    HasDirectories {
        /// Its name.
        name: String,
    },
    /// What has this name is no volume.
    NoVolume {
        /// The name.
        name: String,
    },
    /// A volume whose attribute makes no sense.
    Properties {
        /// Its name.
        name: String,
        /// What the attribute says.
        text: String,
    },
    /// The volume is open for writing elsewhere.
    InUse {
        /// Its name.
        name: String,
    },
    /// The volume is open for reading only.
    OpenToRead {
        /// Its name.
        name: String,
    },
    /// A volume cannot have this size.
    VolumeSize {
        /// In bytes.
        size: u64,
        /// What it has to be a multiple of.
        sector: Sector,
        /// The largest one.
        most: u64,
    },
    /// A request is not of whole sectors.
    NoSectors {
        /// Where it begins.
        offset: u64,
        /// Its length.
        len: u64,
        /// What both have to be multiples of.
        sector: Sector,
    },
    /// A request does not lie inside the volume.
    BeyondEnd {
        /// Where it begins.
        offset: u64,
        /// Its length.
        len: u64,
        /// The volume's size.
        size: u64,
    },
    /// What makes the volume's sectors atomic is damaged, or one of them is unreadable.
    VolumeDamaged {
        /// What was found.
        what: String,
    },
    /// A volume whose sectors are atomic cannot become smaller.
    AtomicShrinks {
        /// Its name.
        name: String,
    },
    /// The pool cannot be as slow as it is to be.
    Slow {
        /// The reason, as a sentence.
        why: String,
    },
    /// A system call failed.
    Os {
        /// What was tried.
        what: &'static str,
        /// Its positive errno.
        errno: i32,
    },
}

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The positive errno of this error.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Pool(e) => e.errno(),
            Error::Attach(e) => e.errno(),
            Error::NoPool { .. } => 2,
            Error::Start { .. } => 111,
            Error::Missing { .. } => 2,
            Error::Name { name } if name.len() > NAME_MAX => 36,
            Error::Key { .. } | Error::Name { .. } => 22,
            Error::BatchTooLarge | Error::SwapTooLarge => 7,
            Error::ExpiringTooLarge => 27,
            Error::OtherProcess => 10,
            Error::NotLetIn { .. } | Error::NotForOthers => 13,
            Error::Exists { .. } => 17,
            Error::HasDirectories { .. } => 39,
            Error::InUse { .. } => 16,
            Error::OpenToRead { .. } => 9,
            Error::NoVolume { .. } | Error::Properties { .. } | Error::VolumeSize { .. } => 22,
            Error::VolumeDamaged { .. } => 5,
            Error::AtomicShrinks { .. } => 95,
            Error::NoSectors { .. } | Error::BeyondEnd { .. } | Error::Slow { .. } => 22,
            Error::Os { errno, .. } => *errno,
        }
    }

    /// The remedy, if there is one.
    pub fn fix(&self) -> Option<String> {
        match self {
            Error::NoPool { path } if has_entries(path) => {
                Some("name the directory of a pool; `holdfast pool create` makes one".into())
            }
            Error::NoPool { path } => Some(format!("holdfast pool create {}", path.display())),
            Error::Start { fix, .. } => fix.clone(),
            Error::Attach(refused) => refused.fix().map(Into::into),
            Error::Missing { what, .. } if *what == "keyspace" => Some(
                "open it with the option that creates it, or put something into it first".into(),
            ),
            Error::Missing {
                what: "snapshot", ..
            } => Some(SNAPSHOTS.into()),
            Error::Key { .. } => Some("keys have 1 to 1024 bytes".into()),
            Error::NotLetIn { .. } => {
                Some("ask its owner for search permission on its root directory".into())
            }
            Error::BatchTooLarge => Some("commit in several batches".into()),
            Error::ExpiringTooLarge => {
                Some("put it without an expiry, or in parts of at most 64 MiB".into())
            }
            Error::Exists { .. } => Some("choose another name, or delete what has it".into()),
            Error::HasDirectories { .. } => {
                Some("remove them with the pool's files: holdfast run -- rm -r".into())
            }
            Error::NoVolume { .. } | Error::Missing { what: "volume", .. } => {
                Some("`holdfast volume POOL list` shows the pool's volumes".into())
            }
            Error::Properties { text, .. } if text.contains("btt=") => Some(
                "correct the file's attribute user.holdfast.volume, and keep its word btt=".into(),
            ),
            Error::Properties { .. } => {
                Some("give the file's attribute user.holdfast.volume the value sector=512".into())
            }
            Error::AtomicShrinks { .. } => {
                Some("make a smaller one, and copy what it is to have".into())
            }
            Error::InUse { .. } => Some("end what has it open".into()),
            Error::VolumeSize { sector, most, .. } => {
                let most = Bytes(*most);
                Some(format!(
                    "choose a multiple of {sector} bytes of at most {most}"
                ))
            }
            Error::Name { .. } => {
                Some("names have 1 to 255 bytes, none of them a slash or NUL".into())
            }
            Error::Missing {
                what: "directory", ..
            } => Some("name it by its path from the root of the pool".into()),
            Error::Missing { what: "quota", .. } => {
                Some("`holdfast quota POOL list` shows the pool's quotas".into())
            }
            Error::Pool(e) => fix_in_pool(e).map(Into::into),
            _ => None,
        }
    }

    /// Whether the pool, keyspace, snapshot or key does not exist.
    pub fn is_missing(&self) -> bool {
        self.errno() == 2
    }

    pub(crate) fn missing_keyspace(name: &str) -> Error {
        Error::Missing {
            what: "keyspace",
            name: name.into(),
        }
    }

    pub(crate) fn os(what: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
        move |e| Error::Os {
            what,
            errno: e.raw_os_error(),
        }
    }
}

/// The remedy for what the client refused.
fn fix_in_pool(e: &holdfast_client::Error) -> Option<&'static str> {
    use holdfast_client::Error as Client;
    Some(match e {
        Client::ProxyGone => "open the pool again",
        Client::ViewTooOld => "begin a new view",
        Client::NoSpace => "erase something, or make a larger pool",
        Client::OverQuota => "delete something, or have the pool's owner raise the quota",
        Client::NestedQuota => "`holdfast quota POOL list` shows it; take it away first",
        Client::TooManyQuotas => "take some away, or attributes of the pool's root directory",
        Client::OtherQuota => "copy it, and delete it",
        _ => return None,
    })
}

impl From<holdfast_client::Error> for Error {
    fn from(e: holdfast_client::Error) -> Error {
        match e {
            holdfast_client::Error::TooBig => Error::BatchTooLarge,
            e => Error::Pool(e),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Pool(e) => e.fmt(f),
            Error::Attach(e) => e.fmt(f),
            Error::NoPool { path } => write!(f, "there is no pool at {}", path.display()),
            Error::Start { why, .. } | Error::Slow { why } => f.write_str(why),
            Error::Missing { what, name } => write!(f, "there is no {what} {name:?}"),
            Error::Key { len: 0 } => f.write_str("a key is empty"),
            Error::Key { len } => write!(f, "a key of {len} bytes is too long"),
            Error::Name { name } => write!(f, "{name:?} cannot be the name of a keyspace"),
            Error::SwapTooLarge => {
                f.write_str("a change that depends on a value has more than 1 MiB for the proxy")
            }
            Error::BatchTooLarge => f.write_str("the batch is too large for one commit"),
            Error::ExpiringTooLarge => f.write_str(
                "a value that expires has more than 64 MiB, or free space is too fragmented for it",
            ),
            Error::Exists { name } => write!(f, "there is something named {name:?} already"),
            Error::HasDirectories { name } => {
                write!(f, "keyspace {name:?} has directories among its values")
            }
            Error::NoVolume { name } => write!(f, "{name:?} is not a volume"),
            Error::Properties { name, text } => {
                write!(
                    f,
                    "the attribute of volume {name:?} makes no sense: {text:?}"
                )
            }
            Error::InUse { name } => {
                write!(
                    f,
                    "volume {name:?} is open for writing, or locked, elsewhere"
                )
            }
            Error::OpenToRead { name } => {
                write!(f, "volume {name:?} was opened for reading only")
            }
            Error::VolumeSize { size, .. } => write!(f, "a volume cannot have {size} bytes"),
            Error::NoSectors {
                offset,
                len,
                sector,
            } => write!(
                f,
                "{len} bytes at {offset} are not whole sectors of {sector} bytes"
            ),
            Error::BeyondEnd { offset, len, size } => write!(
                f,
                "{len} bytes at {offset} are not all within the volume's {size} bytes"
            ),
            Error::VolumeDamaged { what } => write!(f, "the volume cannot be used: {what}"),
            Error::AtomicShrinks { name } => write!(
                f,
                "volume {name:?} has atomic sectors and cannot become smaller"
            ),
            Error::OtherProcess => {
                f.write_str("it belongs to the process from which this one was forked")
            }
            Error::NotLetIn { path } => {
                write!(f, "the pool {} does not let you in", path.display())
            }
            Error::NotForOthers => f.write_str("only the pool's owner and root can do this"),
            Error::Os { what, errno } => {
                let e = std::io::Error::from_raw_os_error(*errno);
                write!(f, "{what}: {}", plain(&e))
            }
        }
    }
}

impl std::error::Error for Error {}

/// A system error without its number.
pub(crate) fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).into()
}

impl From<Error> for std::io::Error {
    fn from(e: Error) -> std::io::Error {
        let kind = std::io::Error::from_raw_os_error(e.errno()).kind();
        std::io::Error::new(kind, e)
    }
}
