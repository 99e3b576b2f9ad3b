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

/// Whether root is about to use the pool of another user.
pub fn is_foreign(pool: &Path) -> bool {
    geteuid().is_root() && of(pool).is_some_and(|(user, _)| user != 0)
}

/// Makes root the user that the pool belongs to; nobody else is changed. The caller has no threads.
pub fn become_owner(pool: &Path) -> Result<(), Failure> {
    let Some((user, group)) = of(pool).filter(|_| is_foreign(pool)) else {
        return Ok(());
    };
    let (uid, gid) = (
        rustix::process::Uid::from_raw(user),
        rustix::process::Gid::from_raw(group),
    );
    set_thread_groups(&[gid])
        .and_then(|()| set_thread_res_gid(gid, gid, gid))
        .and_then(|()| set_thread_res_uid(uid, uid, uid))
        .map_err(|e| {
            let what = format!("becoming user {user}, who owns {}", pool.display());
            Failure::io(what, &e.into())
        })
}
