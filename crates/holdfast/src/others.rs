//! The files of a pool for a program that acts for others: a file system that the kernel mounts.
//!
//! Invariants: each call is made as the user whom it names, with that user's rights and no others;
//! ids are those of this process's user namespace.

use crate::error::Result;
use crate::pool::Pool;
use holdfast_client::id_map::{IdMap, IdMaps};
use holdfast_client::{Caller, Client, Stat};

/// As whom a call is made.
#[derive(Clone, Debug)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    pub umask: u32,
    /// It may do everything.
    pub privileged: bool,
}

impl Pool {
    /// Makes a call as `user`. `NotForOthers` in a program that is served itself: it has no rights
    /// but its own.
    pub fn act<T>(
        &self,
        user: &User,
        call: impl FnOnce(&Client, &Caller) -> holdfast_client::Result<T>,
    ) -> Result<T> {
        let (client, ids) = (self.inner.client()?, self.inner.ids());
        let groups: Vec<u32> = user.groups.iter().map(|group| ids.group(*group)).collect();
        let caller = Caller {
            uid: ids.user(user.uid),
            gid: ids.group(user.gid),
            groups: &groups,
            umask: user.umask,
            privileged: user.privileged,
            ids: ids.maps(),
        };
        Ok(call(client, &caller)?)
    }

    /// An owner and a group, as the pool has them.
    pub fn owner_of(&self, uid: Option<u32>, gid: Option<u32>) -> (Option<u32>, Option<u32>) {
        let ids = self.inner.ids();
        (uid.map(|id| ids.user(id)), gid.map(|id| ids.group(id)))
    }

    /// What stat(2) shows in this process.
    pub fn seen(&self, stat: Stat) -> Stat {
        let ids = self.inner.ids().maps();
        let shown = |id, map: fn(&IdMaps) -> &IdMap| ids.map_or(id, |ids| map(ids).shown(id));
        Stat {
            uid: shown(stat.uid, |ids| &ids.users),
            gid: shown(stat.gid, |ids| &ids.groups),
            ..stat
        }
    }
}
