//! Who a process is to the pool.
//!
//! Invariant: ids are the pool's, also in a user namespace that has names of its own for them.

use crate::error::{Error, Result};
use holdfast_client::Caller;
use holdfast_client::id_map::{IdMap, IdMaps, OVERFLOW};

/// New keyspaces and files are made with this mask: a library cannot look at the process's without
/// changing it.
const MASK: u32 = 0o022;

/// How a process names users and groups.
pub(crate) struct Ids(Option<IdMaps>);

impl Ids {
    /// As the kernel has them for this process.
    pub fn of_this_process() -> Ids {
        let read = |path| std::fs::read(path).ok();
        let maps = || IdMaps::parse(&read("/proc/self/uid_map")?, &read("/proc/self/gid_map")?);
        Ids(maps())
    }

    fn outside(&self, id: u32, map: fn(&IdMaps) -> &IdMap) -> u32 {
        match &self.0 {
            Some(ids) => map(ids).outside(id).unwrap_or(OVERFLOW),
            None => id,
        }
    }

    /// Calls `f` as the user of this process.
    pub fn as_caller<T>(&self, f: impl FnOnce(&Caller) -> holdfast_client::Result<T>) -> Result<T> {
        let groups = rustix::process::getgroups().map_err(Error::os("getgroups"))?;
        let group = |id| self.outside(id, |ids| &ids.groups);
        let groups: Vec<u32> = groups.iter().map(|g| group(g.as_raw())).collect();
        let caller = Caller {
            groups: &groups,
            ..self.caller()
        };
        Ok(f(&caller)?)
    }

    /// The user of this process, without supplementary groups.
    pub fn caller(&self) -> Caller<'_> {
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        Caller {
            uid: self.outside(user.as_raw(), |ids| &ids.users),
            gid: self.outside(group.as_raw(), |ids| &ids.groups),
            groups: &[],
            umask: MASK,
            privileged: user.is_root(),
            ids: self.0.as_ref(),
        }
    }
}
