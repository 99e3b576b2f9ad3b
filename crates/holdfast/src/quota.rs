//! Quotas of users, directories and keyspaces.
//!
//! Invariant: only processes of the pool's owner, and root's, see or change them.

use crate::error::{Error, Result};
use crate::pool::Pool;
use holdfast_client::{Client, Error as ClientError, QuotaInfo};
use holdfast_pool::quota::{Quota as Limits, Subject};

/// Whom a quota limits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QuotaOf {
    /// All files, directories and other objects that the user with this number owns.
    User(u32),
    /// The directory with this path from the root of the pool, and all below it.
    Directory(Vec<u8>),
    /// The keyspace with this name: its keys and values, and what else its directory has.
    Keyspace(Vec<u8>),
}

impl QuotaOf {
    /// What it is: "user", "directory" or "keyspace".
    pub fn kind(&self) -> &'static str {
        match self {
            QuotaOf::User(_) => "user",
            QuotaOf::Directory(_) => "directory",
            QuotaOf::Keyspace(_) => "keyspace",
        }
    }

    /// Its name: a number in decimal, a path, or the name of the keyspace.
    pub fn name(&self) -> Vec<u8> {
        match self {
            QuotaOf::User(uid) => uid.to_string().into_bytes(),
            QuotaOf::Directory(path) => path.clone(),
            QuotaOf::Keyspace(name) => name.clone(),
        }
    }

    /// The one with this kind and name, if they make sense.
    pub fn named(kind: &str, name: &[u8]) -> Option<QuotaOf> {
        match kind {
            "user" => {
                let digits = Some(name).filter(|name| name.iter().all(u8::is_ascii_digit));
                let uid = str::from_utf8(digits?).ok()?.parse().ok()?;
                (uid != u32::MAX).then_some(QuotaOf::User(uid))
            }
            "directory" => Some(QuotaOf::Directory(name.to_vec())),
            "keyspace" => Some(QuotaOf::Keyspace(name.to_vec())),
            _ => None,
        }
    }
}

/// A quota, and how much of it is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quota {
    pub of: QuotaOf,
    /// Bytes that may be taken.
    pub bytes: Option<u64>,
    /// Objects that may be there: files, directories, links and others.
    pub files: Option<u64>,
    /// Bytes that are taken: the blocks of files, as `st_blocks` has them, and keys and values.
    pub bytes_taken: u64,
    pub files_taken: u64,
    /// All that is below the directory counts; false while it is being set, or if who set it was
    /// interrupted.
    pub complete: bool,
}

impl Pool {
    /// All quotas, those of users first.
    pub fn quotas(&self) -> Result<Vec<Quota>> {
        let client = self.inner.client()?;
        let keyspaces = self.keyspaces()?;
        let mut all = Vec::new();
        for info in client.quotas()? {
            let of = match info.quota.subject {
                Subject::User(uid) => QuotaOf::User(uid),
                Subject::Directory(ino) => match client.quota_path(ino) {
                    Ok(path) => match path.get(1..) {
                        Some(name) if keyspaces.iter().any(|k| k.as_bytes() == name) => {
                            QuotaOf::Keyspace(name.to_vec())
                        }
                        _ => QuotaOf::Directory(path),
                    },
                    // The directory was removed.
                    Err(ClientError::NotFound) => continue,
                    Err(e) => return Err(e.into()),
                },
            };
            all.push(shown(of, &info));
        }
        all.sort_by(|a, b| a.of.cmp(&b.of));
        Ok(all)
    }

    /// Limits what may be taken, in place of an earlier quota, durably. What is taken already may
    /// be more: then nothing is added until enough is gone.
    pub fn quota_set(&self, of: &QuotaOf, bytes: Option<u64>, files: Option<u64>) -> Result<()> {
        let client = self.inner.client()?;
        let none = [bytes, files].iter().flatten().any(|limit| *limit == 0);
        if none || (bytes, files) == (None, None) {
            return Err(ClientError::Invalid.into());
        }
        let limits = Limits {
            subject: self.subject(client, of)?,
            partial: false,
            bytes: bytes.unwrap_or(0),
            files: files.unwrap_or(0),
        };
        client.quota_set(limits)?;
        self.sync()
    }

    /// Takes a quota away, durably.
    pub fn quota_remove(&self, of: &QuotaOf) -> Result<()> {
        let client = self.inner.client()?;
        let removed = client.quota_remove(self.subject(client, of)?);
        removed.map_err(|e| match e {
            ClientError::NotFound => Error::Missing {
                what: "quota",
                name: name_of(of),
            },
            e => e.into(),
        })?;
        self.sync()
    }

    fn subject(&self, client: &Client, of: &QuotaOf) -> Result<Subject> {
        match of {
            QuotaOf::User(uid) => Ok(Subject::User(*uid)),
            QuotaOf::Keyspace(name) => {
                let found = self.as_caller(|caller| client.keyspace(caller, name, false));
                let found = found.map_err(|e| match e {
                    Error::Pool(ClientError::NotFound | ClientError::NotDirectory) => {
                        Error::missing_keyspace(&String::from_utf8_lossy(name))
                    }
                    e => e,
                });
                Ok(Subject::Directory(found?.ino()))
            }
            QuotaOf::Directory(path) => {
                let found = self.as_caller(|caller| client.quota_directory(caller, path));
                found.map_err(|e| match e {
                    Error::Pool(ClientError::NotFound | ClientError::NotDirectory) => {
                        Error::Missing {
                            what: "directory",
                            name: name_of(of),
                        }
                    }
                    e => e,
                })
            }
        }
    }
}

fn name_of(of: &QuotaOf) -> String {
    let name = String::from_utf8_lossy(&of.name()).into_owned();
    match of {
        QuotaOf::User(_) => format!("user {name}"),
        QuotaOf::Directory(_) => name,
        QuotaOf::Keyspace(_) => format!("keyspace {name}"),
    }
}

fn shown(of: QuotaOf, info: &QuotaInfo) -> Quota {
    let limit = |n| Some(n).filter(|n| *n != 0);
    Quota {
        of,
        bytes: limit(info.quota.bytes),
        files: limit(info.quota.files),
        bytes_taken: info.bytes,
        files_taken: info.files,
        complete: !info.quota.partial,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_and_name_are_whole() {
        for of in [
            QuotaOf::User(7),
            QuotaOf::Directory(b"/a b\xff".to_vec()),
            QuotaOf::Keyspace(b"k".to_vec()),
        ] {
            assert_eq!(QuotaOf::named(of.kind(), &of.name()), Some(of));
        }
        for name in ["", "+1", "-1", "1x", "4294967295", "99999999999"] {
            assert_eq!(QuotaOf::named("user", name.as_bytes()), None, "{name}");
        }
        assert_eq!(QuotaOf::named("group", b"1"), None);
    }
}
