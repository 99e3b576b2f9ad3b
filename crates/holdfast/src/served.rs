//! A pool of another user, as its proxy serves it.
//!
//! Invariants: a keyspace is known to the proxy by a name that only one process has: a child of
//! fork(2) asks for one of its own, for the same keyspace. The rights are those of the process as
//! it connected; what a call says about itself narrows them.

use crate::caller::Ids;
use crate::error::{Error, Result};
use crate::kv::{self, Durability};
use crate::link::process;
use crate::start;
use holdfast_client::attach::{Joined, join_snapshot};
use holdfast_client::served::{Batch, Scan, View};
use holdfast_client::{OfdLink, Served, SnapshotInfo};
use rustix::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The pool appears here to who has no paths of it.
const NOWHERE: &[u8] = b"";

pub(crate) struct ServedPool {
    served: Served,
    /// In a child, too, the descriptor of this number is its own connection.
    _connection: OwnedFd,
    path: PathBuf,
    snapshot: Option<String>,
    ids: Ids,
    /// The process that opened the pool.
    opener: u64,
    /// In a child: keyspaces that its parent had opened, as the proxy names them here.
    reopened: Mutex<Vec<kv::Keyspace>>,
}

/// A keyspace, and its name.
#[derive(Clone, Copy)]
pub(crate) struct Named<'a> {
    pub id: kv::Keyspace,
    pub name: &'a str,
}

impl ServedPool {
    pub fn enter(
        (path, snapshot): (PathBuf, Option<String>),
        connection: OwnedFd,
        channel: &OwnedFd,
    ) -> Result<ServedPool> {
        let served = Served::enter(channel.as_fd(), connection.as_fd(), NOWHERE);
        Ok(ServedPool {
            served: served.map_err(|e| refused(e, &path))?,
            _connection: connection,
            path,
            snapshot,
            ids: Ids::of_this_process(),
            opener: process(),
            reopened: Mutex::default(),
        })
    }

    /// In a child of fork(2): gets it a connection and a place.
    pub fn enter_again(&self) -> Result<()> {
        // These were the parent's, if that was a child itself.
        self.reopened().clear();
        let joined = match &self.snapshot {
            None => start::join(&self.path, None)?,
            Some(name) => {
                let path = self.path.as_os_str().as_bytes();
                join_snapshot(path, name.as_bytes()).map_err(Error::Attach)?
            }
        };
        match joined {
            Joined::Served {
                connection,
                channel,
            } => {
                let (connection, channel) = (connection.as_fd(), channel.as_fd());
                let entered = self.served.enter_again(channel, connection, NOWHERE);
                entered.map_err(|e| refused(e, &self.path))
            }
            Joined::Mapped(_) => Err(Error::OtherProcess),
        }
    }

    pub fn exit(&self) {
        self.served.exit(true);
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn ids(&self) -> &Ids {
        &self.ids
    }

    /// The calls that programs make of files.
    #[inline]
    pub fn calls(&self) -> &Served {
        &self.served
    }

    fn reopened(&self) -> MutexGuard<'_, Vec<kv::Keyspace>> {
        let reopened = self.reopened.lock();
        reopened.unwrap_or_else(PoisonError::into_inner)
    }

    /// A keyspace as the proxy names it to this process.
    fn known(&self, keyspace: Named<'_>) -> Result<kv::Keyspace> {
        if self.opener == process() {
            return Ok(keyspace.id);
        }
        let mut reopened = self.reopened();
        let same = |known: &&kv::Keyspace| known.ino() == keyspace.id.ino();
        if let Some(known) = reopened.iter().find(same) {
            return Ok(*known);
        }
        let found = self.keyspace(keyspace.name, false)?;
        if found.ino() != keyspace.id.ino() {
            return Err(Error::OtherProcess);
        }
        reopened.push(found);
        Ok(found)
    }

    pub fn keyspace(&self, name: &str, create: bool) -> holdfast_client::Result<kv::Keyspace> {
        let caller = self.ids.caller();
        self.served.keyspace(&caller, name.as_bytes(), create)
    }

    pub fn keyspaces(&self, each: &mut dyn FnMut(&[u8])) -> Result<()> {
        Ok(self.served.keyspaces(&self.ids.caller(), each)?)
    }

    pub fn snapshot_list(&self) -> Result<Vec<SnapshotInfo>> {
        Ok(self.served.snapshot_list(&self.ids.caller())?)
    }

    pub fn sync(&self) -> Result<()> {
        Ok(self.served.sync()?)
    }

    pub fn get(
        &self,
        keyspace: Named<'_>,
        view: Option<View>,
        key: &[u8],
        out: &mut [u8],
    ) -> Result<Option<u64>> {
        let (caller, keyspace) = (self.ids.caller(), self.known(keyspace)?);
        Ok(self.served.kv_get(&caller, keyspace, view, key, out)?)
    }

    pub fn find(
        &self,
        keyspace: Named<'_>,
        view: Option<View>,
        key: &[u8],
    ) -> Result<Option<kv::Times>> {
        let (caller, keyspace) = (self.ids.caller(), self.known(keyspace)?);
        Ok(self.served.kv_find(&caller, keyspace, view, key)?)
    }

    pub fn put(
        &self,
        keyspace: Named<'_>,
        pair: (&[u8], &[u8]),
        durability: Durability,
    ) -> Result<()> {
        let (caller, keyspace) = (self.ids.caller(), self.known(keyspace)?);
        Ok(self.served.kv_put(&caller, keyspace, pair, durability)?)
    }

    pub fn put_until(
        &self,
        keyspace: Named<'_>,
        pair: (&[u8], &[u8]),
        expires: i64,
        durability: Durability,
    ) -> Result<()> {
        let (caller, keyspace) = (self.ids.caller(), self.known(keyspace)?);
        let served = &self.served;
        Ok(served.kv_put_until(&caller, keyspace, pair, expires, durability)?)
    }

    pub fn erase(&self, keyspace: Named<'_>, key: &[u8], durability: Durability) -> Result<()> {
        let (caller, keyspace) = (self.ids.caller(), self.known(keyspace)?);
        Ok(self.served.kv_erase(&caller, keyspace, key, durability)?)
    }

    pub fn keyspace_drop(&self, name: &str) -> Result<()> {
        Ok(self.served.kv_drop(&self.ids.caller(), name.as_bytes())?)
    }

    pub fn keyspace_rename(&self, name: &str, new: &str, replace: bool) -> Result<()> {
        let (old, new) = (name.as_bytes(), new.as_bytes());
        Ok(self
            .served
            .kv_rename(&self.ids.caller(), old, new, replace)?)
    }

    /// `TooBig`: both values together are more than one request has room for.
    pub fn swap(
        &self,
        (keyspace, key): (Named<'_>, &[u8]),
        expected: kv::Expected<'_>,
        value: Option<(&[u8], i64)>,
        durability: Durability,
    ) -> Result<kv::Swapped> {
        let (caller, known) = (self.ids.caller(), self.known(keyspace)?);
        let key = (known, key);
        let swapped = self
            .served
            .kv_swap(&caller, key, expected, value, durability);
        swapped.map_err(|e| match e {
            holdfast_client::Error::TooBig => Error::SwapTooLarge,
            e => Error::Pool(e),
        })
    }

    /// Makes a file that has no name the value of `key`.
    pub fn name(
        &self,
        keyspace: Named<'_>,
        key: &[u8],
        file: OfdLink,
        durability: Durability,
    ) -> Result<()> {
        let (caller, keyspace) = (self.ids.caller(), self.known(keyspace)?);
        let named = self
            .served
            .kv_name(&caller, keyspace, key, file, durability);
        Ok(named?)
    }

    pub fn view(&self, keyspace: Option<Named<'_>>) -> Result<View> {
        let keyspace = keyspace.map(|keyspace| self.known(keyspace)).transpose()?;
        Ok(self.served.view(keyspace)?)
    }

    pub fn end_view(&self, view: View) {
        self.served.end_view(view);
    }
}

/// Several pairs at a time.
impl ServedPool {
    pub fn batch_put(
        &self,
        batch: &mut Batch,
        keyspace: Named<'_>,
        pair: (&[u8], &[u8]),
        expires: i64,
    ) -> Result<()> {
        let keyspace = self.known(keyspace)?;
        Ok(self
            .served
            .batch_put_until(batch, keyspace, pair, expires)?)
    }

    pub fn batch_erase(&self, batch: &mut Batch, keyspace: Named<'_>, key: &[u8]) -> Result<()> {
        let keyspace = self.known(keyspace)?;
        Ok(self.served.batch_erase(batch, keyspace, key)?)
    }

    pub fn batch_erase_range(
        &self,
        batch: &mut Batch,
        keyspace: Named<'_>,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> Result<()> {
        let keyspace = self.known(keyspace)?;
        Ok(self.served.batch_erase_range(batch, keyspace, from, to)?)
    }

    pub fn commit(&self, batch: Batch, durability: Durability) -> Result<()> {
        let caller = self.ids.caller();
        Ok(self.served.kv_commit(&caller, batch, durability)?)
    }

    pub fn abort(&self, batch: Batch) {
        self.served.kv_abort(batch);
    }

    pub fn scan(
        &self,
        (keyspace, view): (Named<'_>, View),
        range: (&[u8], Option<&[u8]>),
        backward: bool,
    ) -> Result<Scan> {
        let (caller, keyspace) = (self.ids.caller(), self.known(keyspace)?);
        Ok(self
            .served
            .scan(&caller, (keyspace, view), range, backward)?)
    }

    pub fn advance(&self, scan: &mut Scan) -> Result<bool> {
        Ok(scan.advance(&self.served, &self.ids.caller())?)
    }

    pub fn count(&self, scan: &mut Scan) -> Result<u64> {
        Ok(scan.count(&self.served, &self.ids.caller())?)
    }

    pub fn end_scan(&self, scan: &Scan) {
        self.served.end_scan(scan);
    }
}

fn refused(e: holdfast_client::Error, pool: &Path) -> Error {
    match e.errno() {
        13 => Error::NotLetIn { path: pool.into() },
        _ => Error::Pool(e),
    }
}
