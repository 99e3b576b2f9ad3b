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

    /// A user of the process, as the pool names them.
    pub fn user(&self, id: u32) -> u32 {
        self.outside(id, |ids| &ids.users)
    }

    /// A group of the process, as the pool names it.
    pub fn group(&self, id: u32) -> u32 {
        self.outside(id, |ids| &ids.groups)
    }

    /// Names that differ from the pool's.
    pub fn maps(&self) -> Option<&IdMaps> {
        self.0.as_ref()
    }

    /// Calls `f` as the user of this process.
    pub fn as_caller<T>(&self, f: impl FnOnce(&Caller) -> holdfast_client::Result<T>) -> Result<T> {
        let groups = rustix::process::getgroups().map_err(Error::os("getgroups"))?;
        let groups: Vec<u32> = groups.iter().map(|g| self.group(g.as_raw())).collect();
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
            uid: self.user(user.as_raw()),
            gid: self.group(group.as_raw()),
            groups: &[],
            umask: MASK,
            privileged: user.is_root(),
            ids: self.0.as_ref(),
        }
    }
}
