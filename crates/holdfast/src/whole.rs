//! Keyspaces as a whole, and changes that depend on a value.
//!
//! Invariant: whether a change is made, and the change, are one with regard to all other processes.

use crate::error::{Error, Result};
use crate::inner::Reach;
use crate::keyspace::{Keyspace, check};
use crate::pool::Pool;
use crate::{Durability, kv};
use holdfast_client::Error as Client;
use holdfast_pool::layout::is_legal_name;

const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const ENOTDIR: i32 = 20;
const ENOTEMPTY: i32 = 39;

/// What became of a change that was to be made only if its key had a certain value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap {
    /// Whether the change was made.
    pub done: bool,
    /// The value that the key has now: the new one, or the one for which nothing was changed.
    pub present: Option<Vec<u8>>,
}

impl Pool {
    /// Removes the keyspace `name` and all its keys at once, durably. Handles of it find no key any
    /// more, and what they change fails. Views that were begun before, and snapshots, keep it.
    pub fn keyspace_drop(&self, name: &str) -> Result<()> {
        check_name(name)?;
        let dropped = match self.inner.reach()? {
            Reach::Mapped(client) => self.as_caller(|c| client.kv_drop(c, name.as_bytes())),
            Reach::Served(served) => served.keyspace_drop(name),
        };
        dropped.map_err(|e| about(e, name, name))
    }

    /// Gives the keyspace `name` the name `new`, durably. Handles of it stay valid. Refused if
    /// something is named `new` already; with `replace`, a keyspace of that name is dropped at the
    /// same moment.
    pub fn keyspace_rename(&self, name: &str, new: &str, replace: bool) -> Result<()> {
        check_name(name)?;
        check_name(new)?;
        let (old_bytes, new_bytes) = (name.as_bytes(), new.as_bytes());
        let renamed = match self.inner.reach()? {
            Reach::Mapped(client) => {
                self.as_caller(|c| client.kv_rename(c, old_bytes, new_bytes, replace))
            }
            Reach::Served(served) => served.keyspace_rename(name, new, replace),
        };
        renamed.map_err(|e| about(e, name, new))
    }
}

fn check_name(name: &str) -> Result<()> {
    match is_legal_name(name.as_bytes()) {
        true => Ok(()),
        false => Err(Error::Name { name: name.into() }),
    }
}

/// What the error means for a keyspace and for a name that is taken.
fn about(e: Error, keyspace: &str, taken: &str) -> Error {
    match e.errno() {
        ENOENT | ENOTDIR => Error::missing_keyspace(keyspace),
        EEXIST => Error::Exists { name: taken.into() },
        ENOTEMPTY => Error::HasDirectories { name: taken.into() },
        _ => e,
    }
}

impl Keyspace {
    /// Sets `key` to `value` if its value is `expected`; `None`: if it has none.
    pub fn put_if(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        value: &[u8],
        durability: Durability,
    ) -> Result<Swap> {
        self.swap(key, expected, Some((value, kv::NEVER)), durability)
    }

    /// Removes `key` if its value is `expected`.
    pub fn erase_if(&self, key: &[u8], expected: &[u8], durability: Durability) -> Result<Swap> {
        self.swap(key, Some(expected), None, durability)
    }

    pub(crate) fn swap(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        value: Option<(&[u8], i64)>,
        durability: Durability,
    ) -> Result<Swap> {
        let present = match self.swap_as(key, kv::Expected::Value(expected), value, durability) {
            Ok(kv::Swapped::Done) => {
                let present = value.map(|(value, _)| value.to_vec());
                return Ok(Swap {
                    done: true,
                    present,
                });
            }
            Ok(kv::Swapped::Other(present)) => present.map(|present| present.value),
            // Too large to be compared as a whole, so not what is expected; or the new one is.
            Err(Error::Pool(Client::FileTooLarge)) => match self.get(key)? {
                Some(present) if present.len() as u64 > kv::Changes::VALUE_MAX => Some(present),
                _ => return Err(Error::Pool(Client::FileTooLarge)),
            },
            Err(e) => return Err(e),
        };
        let done = false;
        Ok(Swap { done, present })
    }

    /// As the client has it.
    pub(crate) fn swap_as(
        &self,
        key: &[u8],
        expected: kv::Expected<'_>,
        value: Option<(&[u8], i64)>,
        durability: Durability,
    ) -> Result<kv::Swapped> {
        check(key)?;
        let swapped = match self.pool.inner.reach()? {
            Reach::Mapped(client) => client
                .kv_swap(None, (self.id, key), expected, value, durability)
                .map_err(Error::from),
            Reach::Served(served) => served.swap((self.named(), key), expected, value, durability),
        };
        swapped.map_err(|e| match e {
            Error::Pool(Client::FileTooLarge) => e,
            e => self.gone(e),
        })
    }

    /// How many keys there are now, exactly. Looks at every key and at no value.
    pub fn count(&self) -> Result<u64> {
        self.prefix(b"")?.count_keys()
    }
}
