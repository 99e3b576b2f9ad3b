//! Keys and values.
//!
//! Invariants:
//!  * A change is one journal record (`commit`); it is found through the index in session memory
//!    (`value_index`) until the trees have it, and in the trees from then on.
//!  * A lookup takes one root, then asks the index for changes newer than that root, then reads the
//!    root's tree: so the answer is as of one moment (`get`).
//!  * A view reads one root that has everything committed before the view began (`view`).
//!
//! Keys have 1 to 1024 bytes. A value of up to about 1900 bytes is in the tree's entry, a larger
//! one in data blocks of its own.

mod bill;
mod commit;
mod expiry;
mod keyspace;
mod rights;
mod slow_path;
mod whole;

pub use crate::values::Keyspace;
pub use crate::values::view::{Entry, Found, Scan, View};
pub use commit::Changes;
pub use pool::layout::value::NEVER;
pub use rights::Right;

use crate::base::error::{Error, Result};
use crate::base::types::Caller;
use crate::content::durable;
use crate::content::file::File;
use crate::ops::client::Client;
use crate::ops::sync;
use crate::session::OfdLink;
use crate::tables::value_index::Out;
use crate::values::files;
use alloc::vec::Vec;
use pool::layout::is_legal_name;
use pool::layout::value::{Head, USER_KEY_MAX};

/// When a change is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When the call returns, as far as the medium promises.
    #[default]
    Durable,
    /// Not before what was changed earlier; after the next durable change or sync at the latest.
    Ordered,
    /// As `Ordered`, without any promise that it ever is before the pool is closed.
    Volatile,
}

/// What became of a change that depended on the value of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swapped {
    /// It was made.
    Done,
    /// It was not: the key has this, or there is no such key.
    Other(Option<Present>),
}

/// What a key has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// Its value; empty if the change did not depend on it.
    pub value: Vec<u8>,
    /// When it expires, or `NEVER`.
    pub expires: i64,
}

/// What a change of a key depends on.
#[derive(Clone, Copy, Debug)]
pub enum Expected<'a> {
    /// That it has this value; `None`: that it has none.
    Value(Option<&'a [u8]>),
    /// That it expires: at this time, or at any.
    Expiry(Option<i64>),
    /// Both.
    Both(&'a [u8], Option<i64>),
}

impl<'a> Expected<'a> {
    /// The value, if the change depends on it.
    pub fn value(self) -> Option<Option<&'a [u8]>> {
        match self {
            Expected::Value(value) => Some(value),
            Expected::Both(value, _) => Some(Some(value)),
            Expected::Expiry(_) => None,
        }
    }

    /// The time, if the change depends on it.
    pub fn expiry(self) -> Option<Option<i64>> {
        match self {
            Expected::Value(_) => None,
            Expected::Expiry(at) | Expected::Both(_, at) => Some(at),
        }
    }

    fn is(self, found: Option<&Present>) -> bool {
        let value = found.map(|present| &present.value[..]);
        let expires = found.map_or(NEVER, |present| present.expires);
        let is_then = |at: Option<i64>| expires != NEVER && at.is_none_or(|at| at == expires);
        self.value().is_none_or(|wanted| wanted == value) && self.expiry().is_none_or(is_then)
    }
}

/// What is known of a value besides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Its length.
    pub len: u64,
    /// When it was put.
    pub mtime: i64,
    /// When it expires, or `NEVER`.
    pub expires: i64,
}

/// Keys that can be put.
pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    match key.len() {
        1..=USER_KEY_MAX => Ok(()),
        0 => Err(Error::Invalid),
        _ => Err(Error::NameTooLong),
    }
}

/// Keyspaces.
impl Client {
    /// The keyspace of this name, which is a directory below the pool's root. `create`: makes it
    /// if there is nothing of this name, and makes a directory one.
    pub fn keyspace(&self, c: &Caller, name: &[u8], create: bool) -> Result<Keyspace> {
        let found = keyspace::open(self, c, name, create);
        match create {
            true => self.durable(found),
            false => found,
        }
    }

    /// Shows the names of all keyspaces to `each`.
    pub fn keyspaces(&self, each: &mut dyn FnMut(&[u8])) -> Result<()> {
        keyspace::list(self, each)
    }

    /// Copies the value of `key` to the start of `out`, as much as there is room for; its length.
    #[inline]
    pub fn kv_get(&self, keyspace: Keyspace, key: &[u8], out: &mut [u8]) -> Result<Option<u64>> {
        self.kv_get_as(None, keyspace, key, out)
    }

    /// As `kv_get`; if the key is a file, `who` must be permitted to read it (`None`: may read
    /// all).
    #[inline]
    pub fn kv_get_as(
        &self,
        who: Option<&Caller>,
        keyspace: Keyspace,
        key: &[u8],
        out: &mut [u8],
    ) -> Result<Option<u64>> {
        if key.is_empty() || key.len() > USER_KEY_MAX {
            return Ok(None);
        }
        files::get_any(&self.session, keyspace, key, &mut Out::copy(out), who)
    }

    /// Sets `key` to `value`. A value for which the
    /// free blocks are in too many pieces is `FileTooLarge`.
    #[inline]
    pub fn kv_put(
        &self,
        keyspace: Keyspace,
        key: &[u8],
        value: &[u8],
        durability: Durability,
    ) -> Result<()> {
        let mut changes = Changes::default();
        changes.put(self, keyspace, key, value)?;
        self.kv_commit(changes, durability)
    }

    /// As `kv_put`; from `expires` on there is no such key: nanoseconds since 1970, or `NEVER`.
    pub fn kv_put_until(
        &self,
        (keyspace, key): (Keyspace, &[u8]),
        value: &[u8],
        expires: i64,
        durability: Durability,
    ) -> Result<()> {
        let mut changes = Changes::default();
        changes.put_until(self, (keyspace, key), value, expires)?;
        self.kv_commit(changes, durability)
    }

    /// Removes what has expired: what helper processes of the service do. No longer than `most_ms`.
    pub fn kv_remove_expired(&self, most_ms: u64) -> Result<()> {
        expiry::remove_expired(&self.session, most_ms)
    }

    /// Removes `key`, which may be missing.
    pub fn kv_erase(&self, keyspace: Keyspace, key: &[u8], durability: Durability) -> Result<()> {
        let mut changes = Changes::default();
        changes.erase(self, keyspace, key)?;
        self.kv_commit(changes, durability)
    }

    /// Makes all changes or none of them.
    pub fn kv_commit(&self, changes: Changes, durability: Durability) -> Result<()> {
        let s = &self.session;
        commit::commit(s, changes)?;
        match durability {
            Durability::Durable => durable::changes(s),
            Durability::Ordered | Durability::Volatile => Ok(()),
        }
    }

    /// Sets `key` to `value`, which expires then, or erases it (`None`), if it is as `expected`, as
    /// one with regard to all others. If the key is a file, `who` must be permitted to read it
    /// (`None`: may read all).
    pub fn kv_swap(
        &self,
        who: Option<&Caller>,
        (keyspace, key): (Keyspace, &[u8]),
        expected: Expected<'_>,
        value: Option<(&[u8], i64)>,
        durability: Durability,
    ) -> Result<Swapped> {
        let s = &self.session;
        let mut changes = Changes::default();
        match value {
            Some((value, expires)) => {
                changes.put_until(self, (keyspace, key), value, expires)?;
            }
            None => changes.erase(self, keyspace, key)?,
        }
        let mut swapped = Swapped::Done;
        let mut look = |found: Option<Present>| {
            let is = expected.is(found.as_ref());
            if !is {
                swapped = Swapped::Other(found);
            }
            is
        };
        let only = commit::If {
            reads: expected.value().is_some(),
            holds: &mut look,
        };
        commit::commit_if(s, who, changes, only)?;
        if swapped == Swapped::Done && durability == Durability::Durable {
            durable::changes(s)?;
        }
        Ok(swapped)
    }

    /// Makes a file that has no name yet (O_TMPFILE), in whatever pieces it was written, the value
    /// of `key`, which must be a legal name: for values of any size.
    pub fn kv_name(
        &self,
        keyspace: Keyspace,
        key: &[u8],
        ofd: OfdLink,
        durability: Durability,
    ) -> Result<()> {
        if !is_legal_name(key) {
            return Err(Error::FileTooLarge);
        }
        let s = &self.session;
        // Before it has the name, so that a crash leaves the whole of it or nothing.
        sync::fsync(self, ofd)?;
        slow_path::name(s, keyspace, key, File::any(s, ofd)?.inode.ino)?;
        match durability {
            Durability::Durable => durable::changes(s),
            Durability::Ordered | Durability::Volatile => Ok(()),
        }
    }

    /// Gives back what changes that are not to be made have taken.
    pub fn kv_abort(&self, changes: Changes) {
        commit::give_up(&self.session, &changes);
    }

    /// Everything changed so far is durable, as far as the medium promises.
    pub fn kv_sync(&self) -> Result<()> {
        sync::sync(self)
    }

    /// A view of the present that has all names of a keyspace's directory.
    pub fn view_of(&self, keyspace: Keyspace) -> Result<View> {
        files::wait_for_names(&self.session, keyspace)?;
        View::begin(&self.session)
    }

    /// A view of the present.
    pub fn view(&self) -> Result<View> {
        View::begin(&self.session)
    }

    /// Ends a view.
    pub fn end_view(&self, view: View) {
        view.end(&self.session);
    }

    /// As `kv_get` in a view. `ViewTooOld`: its root was given up.
    pub fn view_get(
        &self,
        view: &View,
        keyspace: Keyspace,
        key: &[u8],
        out: &mut [u8],
    ) -> Result<Option<u64>> {
        self.view_get_as(None, view, (keyspace, key), out)
    }

    /// As `kv_get_as` in a view.
    pub fn view_get_as(
        &self,
        who: Option<&Caller>,
        view: &View,
        (keyspace, key): (Keyspace, &[u8]),
        out: &mut [u8],
    ) -> Result<Option<u64>> {
        view.get(&self.session, keyspace, key, &mut Out::copy(out), who)
    }

    /// As `kv_get_as`, in a view if there is one, with its times.
    pub fn kv_find(
        &self,
        who: Option<&Caller>,
        view: Option<&View>,
        (keyspace, key): (Keyspace, &[u8]),
        out: &mut [u8],
    ) -> Result<Option<Times>> {
        if key.is_empty() || key.len() > USER_KEY_MAX {
            return Ok(None);
        }
        let (s, mut out) = (&self.session, Out::copy(out));
        let len = match view {
            None => files::get_any(s, keyspace, key, &mut out, who)?,
            Some(view) => view.get(s, keyspace, key, &mut out, who)?,
        };
        Ok(len.map(|len| Times {
            len,
            // The same before and after the trees have it.
            mtime: Head::rounded(out.mtime),
            expires: out.expires,
        }))
    }
}
