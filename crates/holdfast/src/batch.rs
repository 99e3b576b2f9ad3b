//! Changes that happen together.
//!
//! Invariant: nothing of a batch is visible before its commit, and all of it after; dropping a
//! batch leaves nothing.

use crate::error::{Error, Result};
use crate::inner::Reach;
use crate::keyspace::{Keyspace, check};
use crate::pool::Pool;
use crate::{Durability, kv};
use holdfast_client::served;

/// Changes of any keyspaces of one pool. Either all of them happen or none does.
pub struct Batch {
    pool: Pool,
    changes: Changes,
    process: u64,
}

/// Where they are until they are made.
enum Changes {
    Mapped(kv::Changes),
    Served(served::Batch),
}

impl Changes {
    fn none(pool: &Pool) -> Changes {
        match pool.inner.is_served() {
            false => Changes::Mapped(kv::Changes::default()),
            true => Changes::Served(served::Batch::default()),
        }
    }
}

impl Batch {
    pub(crate) fn new(pool: Pool) -> Batch {
        let (process, changes) = (pool.inner.process(), Changes::none(&pool));
        Batch {
            pool,
            changes,
            process,
        }
    }

    /// Sets `key` of `keyspace` to `value`.
    pub fn put(&mut self, keyspace: &Keyspace, key: &[u8], value: &[u8]) -> Result<()> {
        self.put_word(keyspace, (key, value), kv::NEVER)
    }

    /// As `put`; the value expires then.
    pub(crate) fn put_word(
        &mut self,
        keyspace: &Keyspace,
        (key, value): (&[u8], &[u8]),
        expires: i64,
    ) -> Result<()> {
        check(key)?;
        self.of_this_process()?;
        match (&mut self.changes, self.pool.inner.reach()?) {
            (Changes::Mapped(changes), Reach::Mapped(client)) => {
                Ok(changes.put_until(client, (keyspace.id, key), value, expires)?)
            }
            (Changes::Served(batch), Reach::Served(served)) => {
                served.batch_put(batch, keyspace.named(), (key, value), expires)
            }
            _ => Err(Error::NotForOthers),
        }
    }

    /// Removes `key` of `keyspace`, which may be missing.
    pub fn erase(&mut self, keyspace: &Keyspace, key: &[u8]) -> Result<()> {
        check(key)?;
        self.of_this_process()?;
        match (&mut self.changes, self.pool.inner.reach()?) {
            (Changes::Mapped(changes), Reach::Mapped(client)) => {
                Ok(changes.erase(client, keyspace.id, key)?)
            }
            (Changes::Served(batch), Reach::Served(served)) => {
                served.batch_erase(batch, keyspace.named(), key)
            }
            _ => Err(Error::NotForOthers),
        }
    }

    /// Removes all keys of `keyspace` from `from` on: to the end, or up to, not including, `to`.
    pub fn erase_range(
        &mut self,
        keyspace: &Keyspace,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> Result<()> {
        self.of_this_process()?;
        match (&mut self.changes, self.pool.inner.reach()?) {
            (Changes::Mapped(changes), Reach::Mapped(_)) => {
                Ok(changes.erase_range(keyspace.id, from, to)?)
            }
            (Changes::Served(batch), Reach::Served(served)) => {
                served.batch_erase_range(batch, keyspace.named(), from, to)
            }
            _ => Err(Error::NotForOthers),
        }
    }

    /// The number of changes so far.
    pub fn len(&self) -> usize {
        match &self.changes {
            Changes::Mapped(changes) => changes.len(),
            Changes::Served(batch) => batch.len(),
        }
    }

    /// Whether there is no change yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Blocks that were taken before fork(2) belong to the parent.
    fn of_this_process(&mut self) -> Result<()> {
        let now = self.pool.inner.reach().map(|_| self.pool.inner.process())?;
        if self.is_empty() {
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
        match (self.take(), self.pool.inner.reach()?) {
            (Changes::Mapped(changes), Reach::Mapped(client)) => {
                Ok(client.kv_commit(changes, durability)?)
            }
            (Changes::Served(batch), Reach::Served(served)) => served.commit(batch, durability),
            _ => Err(Error::NotForOthers),
        }
    }

    fn take(&mut self) -> Changes {
        let none = Changes::none(&self.pool);
        std::mem::replace(&mut self.changes, none)
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if self.is_empty() || self.of_this_process().is_err() {
            return;
        }
        match (self.take(), self.pool.inner.reach()) {
            (Changes::Mapped(changes), Ok(Reach::Mapped(client))) => client.kv_abort(changes),
            (Changes::Served(batch), Ok(Reach::Served(served))) => served.abort(batch),
            _ => {}
        }
    }
}
