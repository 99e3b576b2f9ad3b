//! Snapshots of a pool.
//!
//! Invariant: a view of a snapshot is a separate session on the snapshot's roots, so it stays valid
//! until it is dropped, and until then the snapshot is in use.

use crate::error::{Error, Result};
use crate::inner::{Inner, Reach};
use crate::pool::Pool;
use crate::view::View;
use holdfast_client::SnapshotError;
use holdfast_client::attach::{AttachError, Joined, join_snapshot};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the next service may take to start if the last one has ended.
const PATIENCE: Duration = Duration::from_secs(20);
const NAP: Duration = Duration::from_millis(5);
const EAGAIN: i32 = 11;

/// A snapshot in the list of a pool's snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Its name.
    pub name: String,
    /// When it was taken, in nanoseconds since 1970.
    pub time_ns: i64,
    /// Files, directories and other objects in it; values of keyspaces do not count.
    pub objects: u64,
}

impl Pool {
    /// Keeps the present, files and keyspaces, as the snapshot `name`. Costs the same whatever the
    /// pool holds: later changes go to new places.
    pub fn snapshot_create(&self, name: &str) -> Result<()> {
        self.insist(|| {
            let client = self.inner.client()?;
            Ok(
                client
                    .snapshot_create(self.inner.path().as_os_str().as_bytes(), name.as_bytes())?,
            )
        })
    }

    /// All snapshots, the oldest first.
    pub fn snapshot_list(&self) -> Result<Vec<SnapshotInfo>> {
        let all = match self.inner.reach()? {
            Reach::Mapped(client) => client.snapshot_list()?,
            Reach::Served(served) => served.snapshot_list()?,
        };
        let info = |s: holdfast_client::SnapshotInfo| SnapshotInfo {
            name: String::from_utf8_lossy(&s.name).into_owned(),
            time_ns: s.time_ns,
            objects: s.objects,
        };
        Ok(all.into_iter().map(info).collect())
    }

    /// Deletes the snapshot `name`, and frees what only it has. Refused while programs run on it or
    /// views read it.
    pub fn snapshot_delete(&self, name: &str) -> Result<()> {
        self.insist(|| {
            let client = self.inner.client()?;
            Ok(
                client
                    .snapshot_delete(self.inner.path().as_os_str().as_bytes(), name.as_bytes())?,
            )
        })
        .map_err(|e| missing(e, name))
    }

    /// Calls the snapshot `name` something else. Refused while programs run on it or views read
    /// it, and if there is one of that name.
    pub fn snapshot_rename(&self, name: &str, to: &str) -> Result<()> {
        self.insist(|| {
            let (client, path) = (self.inner.client()?, self.inner.path());
            let path = path.as_os_str().as_bytes();
            Ok(client.snapshot_rename(path, name.as_bytes(), to.as_bytes())?)
        })
        .map_err(|e| missing(e, name))
    }

    /// A view of the snapshot `name`.
    pub fn snapshot(&self, name: &str) -> Result<View> {
        let path = self.inner.path();
        let joined = self.insist(|| {
            let joined = join_snapshot(path.as_os_str().as_bytes(), name.as_bytes());
            joined.map_err(Error::Attach)
        });
        let path = path.to_path_buf();
        let inner = match joined.map_err(|e| missing(e, name))? {
            Joined::Mapped(attachment) => Inner::on_snapshot(path, attachment, self.inner.slow())?,
            Joined::Served {
                connection,
                channel,
            } => Inner::served((path, Some(name.into())), connection, channel)?,
        };
        let inner = Arc::new(inner);
        View::begin(Pool { inner })
    }

    /// Retries while one service ends and the next one starts.
    pub(crate) fn insist<T>(&self, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
        let begun = Instant::now();
        loop {
            match ask() {
                Err(Error::Attach(
                    AttachError::NoService | AttachError::Refused { errno: EAGAIN, .. },
                )) if begun.elapsed() < PATIENCE => std::thread::sleep(NAP),
                done => return done,
            }
        }
    }
}

fn missing(e: Error, name: &str) -> Error {
    match e {
        Error::Attach(AttachError::Refused { errno: 2, .. }) => Error::Missing {
            what: "snapshot",
            name: name.into(),
        },
        e => e,
    }
}

impl From<SnapshotError> for Error {
    fn from(e: SnapshotError) -> Error {
        match e {
            SnapshotError::Client(e) => Error::Pool(e),
            SnapshotError::Service(e) => Error::Attach(e),
        }
    }
}
