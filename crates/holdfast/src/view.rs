//! Reading one moment.
//!
//! Invariant: a view's root is pinned until its last user is dropped.

use crate::borrowed::{self, Borrowed};
use crate::error::{Error, Result};
use crate::keyspace::whole;
use crate::kv;
use crate::pool::Pool;
use crate::scan::Scan;
use crate::stream::ValueReader;
use std::ops::Bound;
use std::sync::Arc;

/// A moment of a pool. What a view keeps from reuse is limited: one that is held while very much
/// changes is given up, and its calls fail with ESTALE.
#[derive(Clone)]
pub struct View {
    pub(crate) pinned: Arc<Pinned>,
}

pub(crate) struct Pinned {
    pool: Pool,
    view: Option<kv::View>,
    process: u64,
}

impl View {
    pub(crate) fn begin(pool: Pool) -> Result<View> {
        let view = pool.inner.client()?.view()?;
        View::of(pool, view)
    }

    /// A view that also has all files of a keyspace's directory.
    pub(crate) fn of_keyspace(pool: Pool, keyspace: kv::Keyspace) -> Result<View> {
        let view = pool.inner.client()?.view_of(keyspace)?;
        View::of(pool, view)
    }

    fn of(pool: Pool, view: kv::View) -> Result<View> {
        let view = Some(view);
        let process = pool.inner.process();
        Ok(View {
            pinned: Arc::new(Pinned {
                pool,
                view,
                process,
            }),
        })
    }

    /// The names of all keyspaces.
    pub fn keyspaces(&self) -> Result<Vec<String>> {
        self.pinned.pool.keyspaces()
    }

    /// A keyspace of this moment.
    pub fn keyspace(&self, name: &str) -> Result<ViewKeyspace> {
        let id = self.pinned.pool.keyspace(name)?.id;
        Ok(ViewKeyspace {
            view: self.clone(),
            id,
        })
    }
}

impl Pinned {
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The view, if this is the process that began it.
    pub(crate) fn view(&self) -> Result<&kv::View> {
        match &self.view {
            Some(view) if self.process == self.pool.inner.process() => Ok(view),
            _ => Err(Error::OtherProcess),
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.process == self.pool.inner.process()
            && let (Some(view), Ok(client)) = (self.view.take(), self.pool.inner.client())
        {
            client.end_view(view);
        }
    }
}

/// A keyspace as it was at the moment of its view.
#[derive(Clone)]
pub struct ViewKeyspace {
    view: View,
    id: kv::Keyspace,
}

impl ViewKeyspace {
    /// The value of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        whole(|out| self.get_into(key, out))
    }

    /// Copies the value of `key` to the start of `out`, as much of it as fits, and returns the
    /// value's full length.
    #[inline]
    pub fn get_into(&self, key: &[u8], out: &mut [u8]) -> Result<Option<u64>> {
        let pinned = &self.view.pinned;
        let client = pinned.pool.inner.client()?;
        Ok(client.view_get(pinned.view()?, self.id, key, out)?)
    }

    /// The value of `key` in the pool's own memory, if it is large and in one piece, else a copy of
    /// it.
    pub fn borrow(&self, key: &[u8]) -> Result<Option<Borrowed>> {
        if let Some(lent) = borrowed::borrow(&self.view, self.id, key)? {
            return Ok(Some(lent));
        }
        let copy = self.get(key)?;
        Ok(copy.map(|copy| Borrowed::copied(self.view.clone(), copy)))
    }

    /// Reads the value of `key` piece by piece.
    pub fn reader(&self, key: &[u8]) -> Result<Option<ValueReader>> {
        Ok(self.get(key)?.map(ValueReader::new))
    }

    /// The keys of a range and their values, in byte order.
    pub fn scan(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Result<Scan> {
        Ok(Scan::new(self.view.clone(), self.id, from, to))
    }

    /// The keys that start with `prefix`, in byte order.
    pub fn prefix(&self, prefix: &[u8]) -> Result<Scan> {
        Ok(Scan::of_prefix(self.view.clone(), self.id, prefix))
    }
}
