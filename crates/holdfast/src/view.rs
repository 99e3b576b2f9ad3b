//! Reading one moment.
//!
//! Invariant: a view's root is pinned until its last user is dropped.

use crate::borrowed::{self, Borrowed};
use crate::error::{Error, Result};
use crate::expiry::Expires;
use crate::inner::Reach;
use crate::keyspace::{Keyspace, whole};
use crate::kv;
use crate::pool::Pool;
use crate::scan::Scan;
use crate::served::ServedPool;
use crate::stream::ValueReader;
use crate::volume::Volume;
use holdfast_client::{Client, served};
use std::ops::Bound;
use std::sync::Arc;

/// A moment of a pool. What a view keeps from reuse is limited: one that is held while very much
/// changes is given up, and its calls fail with ESTALE.
#[derive(Clone)]
pub struct View {
    pub(crate) pinned: Arc<Pinned>,
}

/// How often keyspaces may come and go while all of them are looked up.
const TRIES_MAX: usize = 1000;

pub(crate) struct Pinned {
    pool: Pool,
    moment: Option<Moment>,
    process: u64,
}

/// The moment itself, where it is kept.
enum Moment {
    Mapped(kv::View),
    Served(served::View),
}

impl View {
    pub(crate) fn begin(pool: Pool) -> Result<View> {
        let moment = match pool.inner.reach()? {
            Reach::Mapped(client) => Moment::Mapped(client.view()?),
            Reach::Served(served) => Moment::Served(served.view(None)?),
        };
        Ok(View::of(pool, moment))
    }

    /// A view of the present, and all the keyspaces that there were at its moment, by name.
    pub(crate) fn of_all(pool: &Pool) -> Result<Vec<ViewKeyspace>> {
        for _ in 0..TRIES_MAX {
            let all = present(pool)?;
            // The view has the names of all files that a keyspace's own would have.
            for keyspace in &all {
                View::of_keyspace(keyspace)?;
            }
            let view = View::begin(pool.clone())?;
            if all
                .iter()
                .map(Keyspace::same)
                .eq(present(pool)?.iter().map(Keyspace::same))
            {
                let of = |keyspace| ViewKeyspace {
                    view: view.clone(),
                    keyspace,
                };
                return Ok(all.into_iter().map(of).collect());
            }
        }
        Err(Error::Pool(holdfast_client::Error::Busy))
    }

    /// A view that also has all files of a keyspace's directory.
    pub(crate) fn of_keyspace(keyspace: &Keyspace) -> Result<View> {
        let pool = keyspace.pool.clone();
        let moment = match pool.inner.reach()? {
            Reach::Mapped(client) => Moment::Mapped(client.view_of(keyspace.id)?),
            Reach::Served(served) => Moment::Served(served.view(Some(keyspace.named()))?),
        };
        Ok(View::of(pool, moment))
    }

    fn of(pool: Pool, moment: Moment) -> View {
        let (moment, process) = (Some(moment), pool.inner.process());
        View {
            pinned: Arc::new(Pinned {
                pool,
                moment,
                process,
            }),
        }
    }

    /// The names of all keyspaces.
    pub fn keyspaces(&self) -> Result<Vec<String>> {
        self.pinned.pool.keyspaces()
    }

    /// The pool as it was, if the view is of a snapshot; else as it is.
    pub fn pool(&self) -> &Pool {
        self.pinned.pool()
    }

    /// A volume, for reading. That of a snapshot's view is as it was; that of another view is the
    /// present one.
    pub fn volume_to_read(&self, name: &str) -> Result<Volume> {
        self.pinned.pool.volume_to_read(name)
    }

    /// A keyspace of this moment.
    pub fn keyspace(&self, name: &str) -> Result<ViewKeyspace> {
        let keyspace = self.pinned.pool.keyspace(name)?;
        Ok(self.clone().with(keyspace))
    }

    pub(crate) fn with(self, keyspace: Keyspace) -> ViewKeyspace {
        let view = self;
        ViewKeyspace { view, keyspace }
    }
}

/// All keyspaces, by name.
fn present(pool: &Pool) -> Result<Vec<Keyspace>> {
    let mut all = Vec::new();
    for name in pool.keyspaces()? {
        match pool.keyspace(&name) {
            // It went meanwhile.
            Err(e) if e.is_missing() => {}
            keyspace => all.push(keyspace?),
        }
    }
    Ok(all)
}

/// A view, as this process reaches it.
pub(crate) enum ViewOf<'a> {
    Mapped(&'a Client, &'a kv::View),
    Served(&'a ServedPool, served::View),
}

impl Pinned {
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The view, and the pool as this process reaches it, if this is the process that began it.
    #[inline]
    pub(crate) fn reach(&self) -> Result<ViewOf<'_>> {
        let reach = self.pool.inner.reach()?;
        if self.process != self.pool.inner.process() {
            return Err(Error::OtherProcess);
        }
        match (&self.moment, reach) {
            (Some(Moment::Mapped(view)), Reach::Mapped(client)) => Ok(ViewOf::Mapped(client, view)),
            (Some(Moment::Served(view)), Reach::Served(served)) => {
                Ok(ViewOf::Served(served, *view))
            }
            _ => Err(Error::OtherProcess),
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.process != self.pool.inner.process() {
            return;
        }
        match (self.moment.take(), self.pool.inner.reach()) {
            (Some(Moment::Mapped(view)), Ok(Reach::Mapped(client))) => client.end_view(view),
            (Some(Moment::Served(view)), Ok(Reach::Served(served))) => served.end_view(view),
            _ => {}
        }
    }
}

/// A keyspace as it was at the moment of its view.
#[derive(Clone)]
pub struct ViewKeyspace {
    view: View,
    keyspace: Keyspace,
}

impl ViewKeyspace {
    /// The name by which it was opened.
    pub fn name(&self) -> &str {
        self.keyspace.name()
    }

    /// The value of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        whole(|out| self.get_into(key, out))
    }

    /// Copies the value of `key` to the start of `out`, as much of it as fits, and returns the
    /// value's full length.
    #[inline]
    pub fn get_into(&self, key: &[u8], out: &mut [u8]) -> Result<Option<u64>> {
        match self.view.pinned.reach()? {
            ViewOf::Mapped(client, view) => {
                Ok(client.view_get(view, self.keyspace.id, key, out)?)
            }
            ViewOf::Served(served, view) => served.get(self.keyspace.named(), Some(view), key, out),
        }
    }

    fn times(&self, key: &[u8]) -> Result<Option<kv::Times>> {
        Ok(match self.view.pinned.reach()? {
            ViewOf::Mapped(client, view) => {
                client.kv_find(None, Some(view), (self.keyspace.id, key), &mut [])?
            }
            ViewOf::Served(served, view) => served.find(self.keyspace.named(), Some(view), key)?,
        })
    }

    /// When the value of `key` expires, whether or not that is past now; `None`: the view has no
    /// such key.
    pub fn expires(&self, key: &[u8]) -> Result<Option<Expires>> {
        let found = self.times(key)?;
        Ok(found.map(|found| Expires::of_word(found.expires)))
    }

    /// When the value of `key` was put: nanoseconds since 1970.
    pub fn modified_ns(&self, key: &[u8]) -> Result<Option<i64>> {
        let found = self.times(key)?;
        Ok(found.map(|found| found.mtime))
    }

    /// The value of `key` in the pool's own memory, if it is large and in one piece, else a copy of
    /// it.
    pub fn borrow(&self, key: &[u8]) -> Result<Option<Borrowed>> {
        if let Some(lent) = borrowed::borrow(&self.view, self.keyspace.id, key)? {
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
        Ok(Scan::new(self.view.clone(), &self.keyspace, from, to))
    }

    /// How many keys there were, exactly. Looks at every key and at no value.
    pub fn count(&self) -> Result<u64> {
        self.prefix(b"")?.count_keys()
    }

    /// The keys that start with `prefix`, in byte order.
    pub fn prefix(&self, prefix: &[u8]) -> Result<Scan> {
        Ok(Scan::of_prefix(self.view.clone(), &self.keyspace, prefix))
    }
}
