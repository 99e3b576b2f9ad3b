//! Root and the pools of others.
//!
//! Invariants: whatever works on the files of a pool does so as the pool's owner. Root becomes that
//! user before it opens any of them, so that nothing in a directory of somebody else can mislead
//! it, and nothing that it leaves there is beyond the owner's reach.

use crate::failure::Failure;
use holdfast_pool::segment::META;
use rustix::process::geteuid;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// User and group of the pool, if it is there.
pub fn of(pool: &Path) -> Option<(u32, u32)> {
    let found = std::fs::symlink_metadata(pool.join(META)).ok()?;
    found.is_file().then(|| (found.uid(), found.gid()))
}

/// The directory has to be that user's, too: whoever has it could have moved a file of somebody
/// else there, or a link to one.
fn check_directory(pool: &Path, user: u32) -> Result<(), Failure> {
    let found = std::fs::metadata(pool).map_err(|e| Failure::io(pool.display(), &e))?;
    if found.uid() == user {
        return Ok(());
    }
    let (path, other) = (pool.display(), found.uid());
    let what = format!("the pool {path} belongs to user {user}, and its directory to user {other}");
    Err(Failure::new(what).fix(format!("chown {user} {path}, if the pool is to be trusted")))
}

/// Whether root is about to use the pool of another user.
pub fn is_foreign(pool: &Path) -> bool {
    geteuid().is_root() && of(pool).is_some_and(|(user, _)| user != 0)
}

/// Makes root the user that the pool belongs to; nobody else is changed. The caller has no threads.
pub fn become_owner(pool: &Path) -> Result<(), Failure> {
    let Some((user, group)) = of(pool).filter(|_| geteuid().is_root()) else {
        return Ok(());
    };
    check_directory(pool, user)?;
    if user == 0 {
        return Ok(());
    }
    become_user(user, group).map_err(|e| {
        let what = format!("becoming user {user}, who owns {}", pool.display());
        Failure::io(what, &e)
    })
}

/// Makes root another user, for good. The caller has no threads.
pub fn become_user(user: u32, group: u32) -> std::io::Result<()> {
    let (uid, gid) = (
        rustix::process::Uid::from_raw(user),
        rustix::process::Gid::from_raw(group),
    );
    set_thread_groups(&[gid])?;
    set_thread_res_gid(gid, gid, gid)?;
    Ok(set_thread_res_uid(uid, uid, uid)?)
}
