//! Keyspaces as a whole: dropping, renaming, counting.
//!
//! Invariants:
//!  * A keyspace goes with all its values by one record: after a crash it is whole or gone. Keys
//!    that are files are values by then; only those too large for a value go before it.
//!  * While the record waits for the trees, a lookup finds no value of the keyspace, and no view
//!    begins.

use super::rights::Right;
use super::{keyspace, slow_path};
use crate::base::abi::RENAME_NOREPLACE;
use crate::base::error::{Error, Result};
use crate::base::types::{Base, Caller};
use crate::content::{durable, perm};
use crate::ops::client::Client;
use crate::ops::{link, path, rename};
use crate::session::RETRIES;
use crate::values::Keyspace;
use crate::values::view::{Scan, View};

impl Client {
    /// Removes a keyspace and all its keys, durably. Whoever has it open finds no key in it any
    /// more. `NotEmpty`: it has directories.
    pub fn kv_drop(&self, c: &Caller, name: &[u8]) -> Result<()> {
        let s = self.session();
        s.check_writable()?;
        for _ in 0..RETRIES {
            let found = keyspace::open(self, c, name, false)?;
            self.make_ready(c, found)?;
            match link::drop_keyspace(s, c, found.ino(), name) {
                Err(Error::Stale) => {}
                done => return done.and_then(|()| durable::changes(s)),
            }
        }
        Err(Error::Busy)
    }

    /// Gives a keyspace another name, durably. With `replace`, a keyspace that has that name is
    /// dropped by the same record. `Exists`: something has that name.
    pub fn kv_rename(&self, c: &Caller, old: &[u8], new: &[u8], replace: bool) -> Result<()> {
        let s = self.session();
        s.check_writable()?;
        keyspace::check_name(new)?;
        let mut last = Error::Busy;
        for _ in 0..RETRIES {
            let moved = keyspace::open(self, c, old, false)?;
            let replaced = match keyspace::open(self, c, new, false) {
                Err(Error::NotFound | Error::NotDirectory) => None,
                found => Some(found?),
            };
            let (from, to) = ((Base::Root, old), (Base::Root, new));
            let done = match replaced {
                Some(replaced) if replaced.ino() == moved.ino() => Ok(()),
                Some(replaced) if replace => {
                    self.make_ready(c, replaced)?;
                    rename::rename_dropping(self, c, from, to)
                }
                _ => rename::rename(self, c, from, to, RENAME_NOREPLACE),
            };
            match done {
                // Others were quicker, unless it is so the next time.
                Err(e @ (Error::NotEmpty | Error::NotFound)) => last = e,
                Err(e @ Error::Exists) if replace => last = e,
                done => return done.and_then(|()| durable::changes(s)),
            }
        }
        Err(last)
    }

    /// Before a keyspace is dropped: it has no names. Nothing is changed for whoever may not.
    fn make_ready(&self, c: &Caller, keyspace: Keyspace) -> Result<()> {
        let s = self.session();
        self.kv_check(c, keyspace, Right::Change)?;
        let of = |ino, link| path::attributes(s, ino, link);
        let (root, dir) = (of(path::ROOT, 0)?.1, of(keyspace.ino(), keyspace.link)?.1);
        perm::may_delete(s, c, &root, &dir)?;
        slow_path::make_values(s, keyspace)?;
        match slow_path::has_directories(s, keyspace.ino())? {
            true => Err(Error::NotEmpty),
            false => Ok(()),
        }
    }

    /// Counts keys to which a scan has not come yet, `most` of them; whether these are all.
    pub fn kv_count(&self, view: &View, scan: &mut Scan, most: u64) -> Result<(u64, bool)> {
        let mut count = 0;
        while count < most {
            if scan.advance(self.session(), view)?.is_none() {
                return Ok((count, true));
            }
            count += 1;
        }
        Ok((count, false))
    }
}
