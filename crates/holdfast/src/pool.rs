//! An open pool.
//!
//! Invariant: if the service dies, the session lives on and the next service takes it over.

use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::inner::{Inner, Reach};
use crate::keyspace::Keyspace;
use crate::memory;
use crate::start;
use crate::view::View;
use holdfast_client::attach::Joined;
use holdfast_pool::layout::is_legal_name;
use rustix::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

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
        let path = std::path::absolute(path).map_err(|e| Error::Os {
            what: "the path of the pool",
            errno: e.raw_os_error().unwrap_or(22),
        })?;
        let known = memory::of(&path);
        let inner = match start::join(&path, known.as_ref().map(AsFd::as_fd))? {
            Joined::Served {
                connection,
                channel,
            } => Inner::served((path, None), connection, channel)?,
            Joined::Mapped(attachment) => match attachment.answer.text() {
                "" => Inner::mapped(path, attachment, known)?,
                _ => Inner::on_snapshot(path, attachment)?,
            },
        };
        Ok(Pool {
            inner: Arc::new(inner),
        })
    }

    /// As `open`, but creates the pool if there is none, with the size that the command
    /// `holdfast pool create` chooses.
    pub fn open_or_create(path: impl AsRef<Path>) -> Result<Pool> {
        let path = path.as_ref();
        if !path.join(holdfast_pool::segment::META).exists()
            && let Err(e) = start::create(path)
            // Somebody else may have made it meanwhile.
            && !path.join(holdfast_pool::segment::META).exists()
        {
            return Err(e);
        }
        Pool::open(path)
    }

    /// Why the pool can only be read, as a sentence, if its journal is damaged. Changes fail with
    /// EROFS until `holdfast pool check --accept-loss` has been run.
    pub fn damage(&self) -> Option<&str> {
        Some(self.inner.damage()).filter(|why| !why.is_empty())
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
            Err(Error::Pool(holdfast_client::Error::NotFound)) => Err(Error::Missing {
                what: "keyspace",
                name: name.into(),
            }),
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

    /// A view of the present: it shows all earlier changes and no later ones.
    pub fn read(&self) -> Result<View> {
        View::begin(self.clone())
    }
}
