//! Changes that happen together.
//!
//! Invariant: nothing of a batch is visible before its commit, and all of it after; dropping a
//! batch leaves nothing.

use crate::error::{Error, Result};
use crate::keyspace::{Keyspace, check};
use crate::pool::Pool;
use crate::{Durability, kv};

/// Changes of any keyspaces of one pool. Either all of them happen or none does.
pub struct Batch {
    pool: Pool,
    changes: kv::Changes,
    process: u64,
}

impl Batch {
    pub(crate) fn new(pool: Pool) -> Batch {
        let process = pool.inner.process();
        Batch {
            pool,
            changes: kv::Changes::default(),
            process,
        }
    }

    /// Sets `key` of `keyspace` to `value`.
    pub fn put(&mut self, keyspace: &Keyspace, key: &[u8], value: &[u8]) -> Result<()> {
        check(key)?;
        self.of_this_process()?;
        let client = self.pool.inner.client()?;
        Ok(self.changes.put(client, keyspace.id, key, value)?)
    }

    /// Removes `key` of `keyspace`, which may be missing.
    pub fn erase(&mut self, keyspace: &Keyspace, key: &[u8]) -> Result<()> {
        check(key)?;
        self.of_this_process()?;
        let client = self.pool.inner.client()?;
        Ok(self.changes.erase(client, keyspace.id, key)?)
    }

    /// Removes all keys of `keyspace` from `from` on: to the end, or up to, not including, `to`.
    pub fn erase_range(
        &mut self,
        keyspace: &Keyspace,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> Result<()> {
        self.of_this_process()?;
        Ok(self.changes.erase_range(keyspace.id, from, to)?)
    }

    /// The number of changes so far.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Whether there is no change yet.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Blocks that were taken before fork(2) belong to the parent.
    fn of_this_process(&mut self) -> Result<()> {
        let now = self
            .pool
            .inner
            .client()
            .map(|_| self.pool.inner.process())?;
        if self.changes.is_empty() {
            self.process = now;
        }
        match self.process == now {
            true => Ok(()),
            false => Err(Error::OtherProcess),
        }
    }

    /// Makes all changes, as one.
    pub fn commit(mut self, durability: Durability) -> Result<()> {
        self.of_this_process()?;
        let changes = std::mem::take(&mut self.changes);
        Ok(self.pool.inner.client()?.kv_commit(changes, durability)?)
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if !self.changes.is_empty()
            && self.of_this_process().is_ok()
            && let Ok(client) = self.pool.inner.client()
        {
            client.kv_abort(std::mem::take(&mut self.changes));
        }
    }
}
