//! What others than the pool's owner may do with a keyspace: as with the files of its directory.
//!
//! Invariant: values are everybody's to read and their directory's owner's to change, as their mode
//! says. A key that is a file has permissions of its own, which count when it is read.

use crate::base::abi::*;
use crate::base::error::{Error, Result};
use crate::base::types::Caller;
use crate::content::perm;
use crate::ops::client::Client;
use crate::ops::path::{ROOT, passage};
use crate::values::Keyspace;

/// What somebody wants to do with a keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// To read the value of a key: needs permission to search the directory.
    Get,
    /// To see which keys there are: needs permission to read it, too.
    Scan,
    /// To put and erase: needs permission to search it and to write to it. In a directory with the
    /// sticky bit only its owner has that.
    Change,
}

impl Client {
    /// `Denied`, `NotPermitted`: `who` may not. `NotFound`: the keyspace is gone.
    pub fn kv_check(&self, who: &Caller, keyspace: Keyspace, right: Right) -> Result<()> {
        let s = &self.session;
        let (_, dir) = passage(s, keyspace.ino(), keyspace.link)?;
        let want = match right {
            Right::Get => X_OK,
            Right::Scan => R_OK | X_OK,
            Right::Change => W_OK | X_OK,
        };
        let rights = dir.rights;
        perm::check_rights(s, who, &rights, want)?;
        let sticky = right == Right::Change && rights.mode & S_ISVTX != 0;
        let owns = who.uid == rights.uid || who.overrides(rights.uid, rights.gid);
        match sticky && !owns {
            true => Err(Error::NotPermitted),
            false => Ok(()),
        }
    }

    /// `Denied`: `who` may not see which keyspaces there are.
    pub fn kv_check_list(&self, who: &Caller) -> Result<()> {
        let (_, root) = passage(&self.session, ROOT, 0)?;
        perm::check_rights(&self.session, who, &root.rights, R_OK)
    }
}
