//! Keys and values.
//!
//! Invariant: a call that returned an error changed nothing.

use crate::error::{Error, Result};
use crate::expiry::Expires;
use crate::inner::Reach;
use crate::pool::Pool;
use crate::scan::Scan;
use crate::served::Named;
use crate::stream::{ValueReader, ValueWriter};
use crate::view::{View, ViewKeyspace};
use crate::{Durability, kv};
use holdfast_pool::layout::is_legal_name;
use std::ops::Bound;
use std::sync::Arc;

/// The size of a buffer into which most values fit.
const USUAL: usize = 512;

/// An ordered map from keys of 1 to 1024 bytes to values of any length. Handles are cheap to clone
/// and may be used by any thread.
#[derive(Clone)]
pub struct Keyspace {
    pub(crate) pool: Pool,
    pub(crate) id: kv::Keyspace,
    name: Arc<str>,
}

impl Keyspace {
    pub(crate) fn new(pool: Pool, name: &str, id: kv::Keyspace) -> Keyspace {
        let name = name.into();
        Keyspace { pool, id, name }
    }

    /// Its name, which is also that of its directory.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What another handle of the same keyspace, by the same name, has as well.
    pub(crate) fn same(&self) -> (u64, &str) {
        (self.id.ino(), &self.name)
    }

    pub(crate) fn named(&self) -> Named<'_> {
        let (id, name) = (self.id, &*self.name);
        Named { id, name }
    }

    /// The value of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        whole(|out| self.get_into(key, out))
    }

    /// Copies the value of `key` to the start of `out`, as much of it as fits, and returns the
    /// value's full length.
    #[inline]
    pub fn get_into(&self, key: &[u8], out: &mut [u8]) -> Result<Option<u64>> {
        match self.pool.inner.reach()? {
            Reach::Mapped(client) => Ok(client.kv_get(self.id, key, out)?),
            Reach::Served(served) => served.get(self.named(), None, key, out),
        }
    }

    /// The length of the value of `key`.
    pub fn len_of(&self, key: &[u8]) -> Result<Option<u64>> {
        self.get_into(key, &mut [])
    }

    /// When the value of `key` was put, or, if it is a file, written: nanoseconds since 1970.
    pub fn modified_ns(&self, key: &[u8]) -> Result<Option<i64>> {
        let found = match self.pool.inner.reach()? {
            Reach::Mapped(client) => client.kv_find(None, None, (self.id, key), &mut [])?,
            Reach::Served(served) => served.find(self.named(), None, key)?,
        };
        Ok(found.map(|found| found.mtime))
    }

    /// Sets `key` to `value`.
    #[inline]
    pub fn put(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        check(key)?;
        let put = match self.pool.inner.reach()? {
            Reach::Mapped(client) => client
                .kv_put(self.id, key, value, durability)
                .map_err(Error::from),
            Reach::Served(served) => served.put(self.named(), (key, value), durability),
        };
        match put {
            // Too large, or free space is in too many pieces: a file takes it as it comes.
            Err(Error::Pool(holdfast_client::Error::FileTooLarge)) if is_legal_name(key) => {
                self.put_as_file(key, value, durability)
            }
            put => put.map_err(|e| self.gone(e)),
        }
    }

    /// A change finds nothing only if the keyspace was dropped.
    pub(crate) fn gone(&self, e: Error) -> Error {
        match e {
            Error::Pool(holdfast_client::Error::NotFound) => Error::missing_keyspace(&self.name),
            e => e,
        }
    }

    #[cold]
    fn put_as_file(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        let mut writer = ValueWriter::new(self.clone(), key, Expires::Never);
        writer.spill_all(value)?;
        writer.finish(durability)
    }

    /// Removes `key`, which may be missing.
    pub fn erase(&self, key: &[u8], durability: Durability) -> Result<()> {
        check(key)?;
        let erased = match self.pool.inner.reach()? {
            Reach::Mapped(client) => client
                .kv_erase(self.id, key, durability)
                .map_err(Error::from),
            Reach::Served(served) => served.erase(self.named(), key, durability),
        };
        erased.map_err(|e| self.gone(e))
    }

    /// Removes `key`, and returns whether it existed.
    pub fn remove(&self, key: &[u8], durability: Durability) -> Result<bool> {
        check(key)?;
        let there = self.len_of(key)?.is_some();
        if there {
            self.erase(key, durability)?;
        }
        Ok(there)
    }

    /// Removes all keys from `from` on: to the end, or up to, not including, `to`. The call
    /// returns once the service has applied all earlier changes to its trees.
    pub fn erase_range(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
        durability: Durability,
    ) -> Result<()> {
        let mut batch = self.pool.batch();
        batch.erase_range(self, from, to)?;
        batch.commit(durability)
    }

    /// Writes a value piece by piece. The key gets it, as a whole, when it is finished.
    pub fn writer(&self, key: &[u8]) -> Result<ValueWriter> {
        self.writer_until(key, Expires::Never)
    }

    /// As [`writer`](Keyspace::writer); the value expires. It is held in memory until it is
    /// finished.
    pub fn writer_until(&self, key: &[u8], expires: Expires) -> Result<ValueWriter> {
        check(key)?;
        Ok(ValueWriter::new(self.clone(), key, expires))
    }

    /// Reads the value of `key` piece by piece.
    pub fn reader(&self, key: &[u8]) -> Result<Option<ValueReader>> {
        ValueReader::open(self, key)
    }

    /// The keyspace as it is at this moment, with all its keys that are files.
    pub fn read(&self) -> Result<ViewKeyspace> {
        Ok(View::of_keyspace(self)?.with(self.clone()))
    }

    /// The keys of a range and their values, in byte order, as they are now.
    pub fn scan(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Result<Scan> {
        let view = View::of_keyspace(self)?;
        Ok(Scan::new(view, self, from, to))
    }

    /// The keys that start with `prefix`, in byte order, as they are now.
    pub fn prefix(&self, prefix: &[u8]) -> Result<Scan> {
        let view = View::of_keyspace(self)?;
        Ok(Scan::of_prefix(view, self, prefix))
    }
}

/// Refuses keys that cannot be put.
#[inline]
pub(crate) fn check(key: &[u8]) -> Result<()> {
    match key.len() {
        1..=holdfast_pool::layout::value::USER_KEY_MAX => Ok(()),
        len => Err(Error::Key { len }),
    }
}

/// Reads a whole value with a call that copies as much as fits.
pub(crate) fn whole(
    mut get: impl FnMut(&mut [u8]) -> Result<Option<u64>>,
) -> Result<Option<Vec<u8>>> {
    let mut out = vec![0; USUAL];
    loop {
        let Some(len) = get(&mut out)? else {
            return Ok(None);
        };
        let len = usize::try_from(len).map_err(|_| Error::Os {
            what: "the value is too long for memory",
            errno: 12,
        })?;
        if len <= out.len() {
            out.truncate(len);
            return Ok(Some(out));
        }
        out.resize(len, 0);
    }
}
