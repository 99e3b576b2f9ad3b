//! Attributes that callers change or query: chmod, chown, utimens, access, readlink.
//!
//! Invariants: permission is checked and the change is committed under the object's lock; a change
//! is one record with absolute values.

use crate::base::abi::*;
use crate::base::clock;
use crate::base::error::{Error, Result};
use crate::base::types::{Base, Caller, SetTime};
use crate::content::file::File;
use crate::content::perm;
use crate::journal;
use crate::ops::client::Client;
use crate::ops::path::{self, End, Walk};
use crate::session::RETRIES;
use crate::session::lock::Changing;
use crate::session::{OfdLink, Session};
use crate::tables::inode_table::{self, Attrs, LockedInode};
use crate::values::opened;
use pmem::MutBuf;
use pmem::atomic::Ordering::Relaxed;
use pool::journal::*;
use pool::session::INODE_VALUE;

/// New owner and group, each if it is to change.
type Owner = (Option<u32>, Option<u32>);

/// A change of attributes.
#[derive(Clone, Copy)]
enum Change {
    Mode(u32),
    Owner(Owner),
    Times([SetTime; 2]),
}

pub(crate) fn chmod(
    c: &Client,
    who: &Caller,
    base: Base,
    path: &[u8],
    mode: u32,
    flags: u32,
) -> Result<()> {
    by_name(c, who, base, path, flags, &Change::Mode(mode))
}

pub(crate) fn chown(
    c: &Client,
    who: &Caller,
    base: Base,
    path: &[u8],
    owner: Owner,
    flags: u32,
) -> Result<()> {
    by_name(c, who, base, path, flags, &Change::Owner(owner))
}

pub(crate) fn utimens(
    c: &Client,
    who: &Caller,
    base: Base,
    path: &[u8],
    times: [SetTime; 2],
    flags: u32,
) -> Result<()> {
    by_name(c, who, base, path, flags, &Change::Times(times))
}

pub(crate) fn fchmod(c: &Client, who: &Caller, ofd: OfdLink, mode: u32) -> Result<()> {
    by_ofd(c, who, ofd, &Change::Mode(mode))
}

pub(crate) fn fchown(c: &Client, who: &Caller, ofd: OfdLink, owner: Owner) -> Result<()> {
    by_ofd(c, who, ofd, &Change::Owner(owner))
}

pub(crate) fn futimens(c: &Client, who: &Caller, ofd: OfdLink, times: [SetTime; 2]) -> Result<()> {
    by_ofd(c, who, ofd, &Change::Times(times))
}

fn by_name(
    c: &Client,
    who: &Caller,
    base: Base,
    path: &[u8],
    flags: u32,
    change: &Change,
) -> Result<()> {
    if flags & !(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) != 0 {
        return Err(Error::Invalid);
    }
    let walk = Walk::new(&c.session, &c.at, who);
    for _ in 0..RETRIES {
        let found = walk.object(base, path, flags)?;
        if let Some(inode) = inode_table::find(&c.session, found.ino) {
            opened::own(&c.session, &inode)?;
        }
        let now = clock::now();
        match inode_table::lock(&c.session, found.ino) {
            Ok(inode) => return apply(&c.session, who, &inode, change, now),
            Err(Error::NotFound) => {}
            Err(e) => return Err(e),
        }
    }
    Err(Error::NotFound)
}

fn by_ofd(c: &Client, who: &Caller, ofd: OfdLink, change: &Change) -> Result<()> {
    let file = File::usable(&c.session, ofd)?;
    opened::own(&c.session, &file.inode)?;
    let now = clock::now();
    let inode = inode_table::lock_ref(&c.session, file.inode)?;
    apply(&c.session, who, &inode, change, now)
}

fn apply(s: &Session, who: &Caller, inode: &LockedInode, change: &Change, now: i64) -> Result<()> {
    let a = inode_table::attrs(s, inode)?;
    let (mask, next) = match *change {
        Change::Mode(mode) => change_mode(who, &a, mode)?,
        Change::Owner(owner) => change_owner(who, &a, owner)?,
        Change::Times([SetTime::Omit, SetTime::Omit]) => return Ok(()),
        Change::Times(times) => change_times(s, who, &a, times, now)?,
    };
    if a.state & INODE_VALUE != 0 {
        // No key has it any more: this, too, is gone when it is closed.
        return set_in_memory(inode, &Attrs { ctime: now, ..next });
    }
    let record = Record::SetAttr {
        ino: inode.ino,
        mask: mask | SET_CTIME,
        mode: next.mode,
        uid: next.uid,
        gid: next.gid,
        atime: next.atime,
        mtime: next.mtime,
        ctime: now,
    };
    journal::commit(s, &record).map(|_| ())
}

fn set_in_memory(inode: &LockedInode, a: &Attrs) -> Result<()> {
    let e = inode.e;
    let _change = Changing::begin(&e.version);
    for (field, value) in [(&e.mode, a.mode), (&e.uid, a.uid), (&e.gid, a.gid)] {
        field.store(value, Relaxed);
    }
    for (field, time) in [
        (&e.atime, a.atime),
        (&e.mtime, a.mtime),
        (&e.ctime, a.ctime),
    ] {
        field.store(time as u64, Relaxed);
    }
    Ok(())
}

fn change_mode(who: &Caller, a: &Attrs, mode: u32) -> Result<(u32, Attrs)> {
    if perm::file_type(a.mode) == S_IFLNK {
        return Err(Error::NotSupported);
    }
    perm::check_owner(who, a)?;
    let foreign = !who.in_group(a.gid) && !who.overrides(a.uid, a.gid);
    let kept = if foreign { 0o7777 & !S_ISGID } else { 0o7777 };
    let mode = perm::file_type(a.mode) | mode & kept;
    Ok((SET_MODE, Attrs { mode, ..*a }))
}

fn change_owner(who: &Caller, a: &Attrs, (uid, gid): Owner) -> Result<(u32, Attrs)> {
    let (owner, overrides) = (who.uid == a.uid, who.overrides(a.uid, a.gid));
    if uid.is_some_and(|uid| !(overrides || owner && uid == a.uid)) {
        return Err(Error::NotPermitted);
    }
    let joins = |gid| gid == a.gid || who.in_group(gid);
    if gid.is_some_and(|gid| !(overrides || owner && joins(gid))) {
        return Err(Error::NotPermitted);
    }
    let mut mask = if uid.is_some() { SET_UID } else { 0 };
    mask |= if gid.is_some() { SET_GID } else { 0 };
    let mut next = Attrs {
        uid: uid.unwrap_or(a.uid),
        gid: gid.unwrap_or(a.gid),
        ..*a
    };
    if !perm::is_dir(a) {
        next.mode = mode_after_chown(who, a);
        if next.mode != a.mode {
            perm::check_owner(who, a)?;
            mask |= SET_MODE;
        }
    }
    Ok((mask, next))
}

/// Set-id bits go when the owner changes, also for root.
fn mode_after_chown(who: &Caller, a: &Attrs) -> u32 {
    let runs_as_group = a.mode & S_IXGRP != 0;
    let foreign = !who.in_group(a.gid) && !who.overrides(a.uid, a.gid);
    let sgid = if runs_as_group || foreign { S_ISGID } else { 0 };
    a.mode & !(S_ISUID | sgid)
}

fn change_times(
    s: &Session,
    who: &Caller,
    a: &Attrs,
    times: [SetTime; 2],
    now: i64,
) -> Result<(u32, Attrs)> {
    if times == [SetTime::Now, SetTime::Now] {
        if !perm::owns(who, a) {
            perm::check(s, who, a, W_OK)?;
        }
    } else {
        perm::check_owner(who, a)?;
    }
    let pick = |given, old| match given {
        SetTime::Now => now,
        SetTime::At(t) => t,
        SetTime::Omit => old,
    };
    let (atime, mtime) = (pick(times[0], a.atime), pick(times[1], a.mtime));
    let bit = |given, bit| if given == SetTime::Omit { 0 } else { bit };
    let mask = bit(times[0], SET_ATIME) | bit(times[1], SET_MTIME);
    Ok((mask, Attrs { atime, mtime, ..*a }))
}

pub(crate) fn access(
    c: &Client,
    who: &Caller,
    base: Base,
    path: &[u8],
    mode: u32,
    flags: u32,
) -> Result<()> {
    if mode & !(R_OK | W_OK | X_OK) != 0
        || flags & !(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH | AT_EACCESS) != 0
    {
        return Err(Error::Invalid);
    }
    let a = Walk::new(&c.session, &c.at, who).attributes(base, path, flags)?;
    perm::check(&c.session, who, &a, mode)
}

pub(crate) fn readlink(
    c: &Client,
    who: &Caller,
    base: Base,
    path: &[u8],
    mut out: MutBuf,
) -> Result<usize> {
    if out.is_empty() {
        return Err(Error::Invalid);
    }
    let walk = Walk::new(&c.session, &c.at, who);
    let found = match path.is_empty() {
        true => walk.object(base, path, AT_EMPTY_PATH)?,
        false => {
            let at = walk.walk(base, path, End::NoFollow)?;
            // A value is no symbolic link.
            if at.value.is_some() {
                return Err(Error::Invalid);
            }
            at.object()?
        }
    };
    let target = path::symlink_target(&c.session, &found)?;
    Ok(out.write(&target)?)
}
