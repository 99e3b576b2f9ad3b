//! An open pool.
//!
//! Invariant: if the service dies, the session lives on and the next service takes it over.

use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::inner::{Inner, Reach};
use crate::keyspace::Keyspace;
use crate::memory;
use crate::slow;
use crate::start;
use crate::view::{View, ViewKeyspace};
use holdfast_client::attach::{self, Joined};
use holdfast_pmem::{Protection, Scheme, Slow, Writing};
use holdfast_pool::layout::is_legal_name;
use holdfast_pool::protocol::Request;
use rustix::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// How to open a pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolOptions {
    create: bool,
    writing: Writing,
    slow: Option<Slow>,
}

impl PoolOptions {
    /// Whether to create the pool if there is none.
    pub fn create(mut self, create: bool) -> PoolOptions {
        self.create = create;
        self
    }

    /// What keeps this process from changing the pool's data by stray stores: all that it writes by
    /// this handle, to keyspaces and to volumes, goes past it. By default nothing does. A process
    /// whose calls a proxy makes has no data mapped, and needs none of it.
    pub fn protection(mut self, protection: Protection) -> PoolOptions {
        self.writing.protection = protection;
        self
    }

    /// How what this process writes gets to the medium; by default as the medium needs it.
    pub fn scheme(mut self, scheme: Scheme) -> PoolOptions {
        self.writing.scheme = scheme;
        self
    }

    /// How much slower than it is the pool is to this process: each copy to it or from it takes
    /// that long, within the call that makes it. With `None`, which is the default, as
    /// [`slow_by_environment`](crate::slow_by_environment) says.
    pub fn slow(mut self, slow: impl Into<Option<Slow>>) -> PoolOptions {
        self.slow = slow.into();
        self
    }

    /// Opens the pool in the directory `path`. Joins the service that runs for it, or starts one
    /// that ends with its last user.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Pool> {
        let path = std::path::absolute(path).map_err(|e| Error::Os {
            what: "the path of the pool",
            errno: e.raw_os_error().unwrap_or(22),
        })?;
        if self.create {
            create(&path)?;
        }
        let slow = self.slow.map_or_else(slow::slow_by_environment, Ok)?;
        let known = memory::of(&path);
        let inner = match start::join(&path, known.as_ref().map(AsFd::as_fd))? {
            Joined::Served {
                connection,
                channel,
            } => match slow.is_none() {
                true => Inner::served((path, None), connection, channel)?,
                false => return Err(slow::not_for_others()),
            },
            Joined::Mapped(attachment) => match attachment.answer.text() {
                "" => Inner::mapped(path, attachment, known, (self.writing, slow))?,
                _ => Inner::on_snapshot(path, attachment, slow)?,
            },
        };
        Ok(Pool {
            inner: Arc::new(inner),
        })
    }
}

/// Creates the pool unless there is one.
fn create(path: &Path) -> Result<()> {
    let is_there = || path.join(holdfast_pool::segment::META).exists();
    if is_there() {
        return Ok(());
    }
    match start::create(path) {
        // Somebody else may have made it meanwhile.
        Err(e) if !is_there() => Err(e),
        _ => Ok(()),
    }
}

/// A pool that is open in this process and its children. Handles are cheap to clone and may be
/// used by any thread.
#[derive(Clone)]
pub struct Pool {
    pub(crate) inner: Arc<Inner>,
}

impl Pool {
    /// Opens the pool in the directory `path`. Joins the service that runs for it, or starts one
    /// that ends with its last user.
    pub fn open(path: impl AsRef<Path>) -> Result<Pool> {
        PoolOptions::default().open(path)
    }

    /// As `open`, but creates the pool if there is none, with the size that the command
    /// `holdfast pool create` chooses.
    pub fn open_or_create(path: impl AsRef<Path>) -> Result<Pool> {
        PoolOptions::default().create(true).open(path)
    }

    /// How to open a pool, other than by default.
    pub fn options() -> PoolOptions {
        PoolOptions::default()
    }

    /// Why the pool can only be read, as a sentence, if its journal is damaged. Changes fail with
    /// EROFS until `holdfast pool check --accept-loss` has been run.
    pub fn damage(&self) -> Option<&str> {
        Some(self.inner.damage()).filter(|why| !why.is_empty())
    }

    /// What keeps this process from changing the pool's data by stray stores. `None` in the place
    /// of a protection: a proxy makes the calls, and no data is mapped.
    pub fn protection(&self) -> Result<Option<Protection>> {
        Ok(match self.inner.reach()? {
            Reach::Mapped(client) => Some(client.session().data().protection()),
            Reach::Served(_) => None,
        })
    }

    /// Makes room for `size` bytes of data while the pool is in use, in whole 2 MiB. `size` is no
    /// less than the pool has; only its owner and root may.
    pub fn grow(&self, size: u64) -> Result<()> {
        self.insist(|| {
            self.inner.client()?;
            let path = self.inner.path().as_os_str().as_bytes();
            let done = attach::request(path, Request::Grow { size });
            done.map(drop).map_err(Error::Attach)
        })
    }

    /// Makes all earlier changes durable, as far as the medium promises.
    pub fn sync(&self) -> Result<()> {
        match self.inner.reach()? {
            Reach::Mapped(client) => Ok(client.kv_sync()?),
            Reach::Served(served) => served.sync(),
        }
    }

    /// The keyspace `name`.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        self.open_keyspace(name, false)
    }

    /// The keyspace `name`, which is created if it does not exist. It appears as the directory
    /// `name` below the pool's root.
    pub fn keyspace_or_create(&self, name: &str) -> Result<Keyspace> {
        self.open_keyspace(name, true)
    }

    fn open_keyspace(&self, name: &str, create: bool) -> Result<Keyspace> {
        if !is_legal_name(name.as_bytes()) {
            return Err(Error::Name { name: name.into() });
        }
        let found = match self.inner.reach()? {
            Reach::Mapped(client) => {
                self.as_caller(|caller| client.keyspace(caller, name.as_bytes(), create))
            }
            Reach::Served(served) => served.keyspace(name, create).map_err(Error::from),
        };
        match found {
            Ok(keyspace) => Ok(Keyspace::new(self.clone(), name, keyspace)),
            Err(Error::Pool(holdfast_client::Error::NotFound)) => {
                Err(Error::missing_keyspace(name))
            }
            Err(e) => Err(e),
        }
    }

    /// Calls `f` as the user of this process.
    pub(crate) fn as_caller<T>(
        &self,
        f: impl FnOnce(&holdfast_client::Caller) -> holdfast_client::Result<T>,
    ) -> Result<T> {
        self.inner.ids().as_caller(f)
    }

    /// The names of all keyspaces.
    pub fn keyspaces(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let mut add = |name: &[u8]| names.push(String::from_utf8_lossy(name).into_owned());
        match self.inner.reach()? {
            Reach::Mapped(client) => client.keyspaces(&mut add)?,
            Reach::Served(served) => served.keyspaces(&mut add)?,
        }
        names.sort();
        Ok(names)
    }

    /// An empty batch, for changes of any keyspaces of this pool that all happen or none does.
    pub fn batch(&self) -> Batch {
        Batch::new(self.clone())
    }

    /// All keyspaces as they are at one moment, by name.
    pub fn read_all(&self) -> Result<Vec<ViewKeyspace>> {
        View::of_all(self)
    }

    /// A view of the present: it shows all earlier changes of values, and no later ones. A file
    /// that came into a keyspace some milliseconds ago may be missing: `Keyspace::read` and
    /// `read_all` wait for those.
    pub fn read(&self) -> Result<View> {
        View::begin(self.clone())
    }
}
