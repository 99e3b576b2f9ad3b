//! New objects: open with O_CREAT, mkdir, mknod, symlink.
//!
//! Invariants: the directory is locked from the last look at the name until the record is
//! published, so a name is made once; an object is complete before anyone can find it.

use crate::base::abi::*;
use crate::base::clock;
use crate::base::error::{Error, Result};
use crate::base::types::{Base, Caller};
use crate::content::perm;
use crate::journal;
use crate::ops::acl::Inherited;
use crate::ops::client::Client;
use crate::ops::path::{End, Last, Walk, Walked};
use crate::session::Session;
use crate::session::quota::NewObject;
use crate::tables::dentry_table;
use crate::tables::inode_table::{self, Attrs, LockedInode};
use crate::values::files::{self, Named};
use pool::journal::{PROJECT_SHIFT, Record};
use pool::layout::is_legal_name;

/// What is to be made.
#[derive(Clone, Copy)]
pub(crate) struct New<'a> {
    /// Type and permissions, before umask.
    pub mode: u32,
    pub rdev: u64,
    /// A symlink's target.
    pub target: &'a [u8],
}

pub(crate) fn mkdir(c: &Client, who: &Caller, base: Base, path: &[u8], mode: u32) -> Result<()> {
    let new = New {
        mode: S_IFDIR | mode & 0o1777,
        rdev: 0,
        target: &[],
    };
    make(c, who, base, path, &new)
}

pub(crate) fn mknod(
    c: &Client,
    who: &Caller,
    base: Base,
    path: &[u8],
    mode: u32,
    rdev: u64,
) -> Result<()> {
    let (kind, device) = match mode & S_IFMT {
        0 | S_IFREG => (S_IFREG, false),
        kind @ (S_IFIFO | S_IFSOCK) => (kind, false),
        kind @ (S_IFCHR | S_IFBLK) => (kind, true),
        S_IFDIR => return Err(Error::NotPermitted),
        _ => return Err(Error::Invalid),
    };
    if device && !who.is_root() {
        // The name is looked at first: what exists is EEXIST.
        parent_of_new(c, who, base, path, false)?;
        return Err(Error::NotPermitted);
    }
    let rdev = if device { rdev } else { 0 };
    make(
        c,
        who,
        base,
        path,
        &New {
            mode: kind | mode & 0o7777,
            rdev,
            target: &[],
        },
    )
}

pub(crate) fn symlink(
    c: &Client,
    who: &Caller,
    target: &[u8],
    base: Base,
    path: &[u8],
) -> Result<()> {
    match target.len() {
        0 => return Err(Error::NotFound),
        PATH_MAX.. => return Err(Error::NameTooLong),
        _ => {}
    }
    make(
        c,
        who,
        base,
        path,
        &New {
            mode: S_IFLNK | 0o777,
            rdev: 0,
            target,
        },
    )
}

fn make(c: &Client, who: &Caller, base: Base, path: &[u8], new: &New) -> Result<()> {
    let is_dir = perm::file_type(new.mode) == S_IFDIR;
    let at = parent_of_new(c, who, base, path, is_dir)?;
    let s = &c.session;
    let time = clock::now();
    let dir = inode_table::lock_parent(s, at.dir)?;
    if dentry_table::lookup_locked(s, &dir, at.name())?.is_some() {
        return Err(Error::Exists);
    }
    let (ino, inherited) = create_locked(s, who, &dir, at.name(), new, time)?;
    drop(dir);
    inherited.give(s, ino)
}

/// Where a new object is to go; `Exists` if the name is taken.
fn parent_of_new<'p>(
    c: &Client,
    who: &Caller,
    base: Base,
    path: &'p [u8],
    is_dir: bool,
) -> Result<Walked<'p>> {
    let at = Walk::new(&c.session, &c.at, who).walk(base, path, End::Parent)?;
    if at.last != Last::Name {
        return Err(Error::Exists);
    }
    let dir = crate::ops::path::entry(&c.session, at.dir, at.hint)?;
    if !matches!(files::lookup(&c.session, &dir, at.name())?, Named::Nothing) {
        return Err(Error::Exists);
    }
    if at.slash && !is_dir {
        return Err(Error::NotFound);
    }
    Ok(at)
}

/// Makes an object whose name no file has; its inode number, and what it has yet to be given.
/// `Exists`: a value has the name.
pub(crate) fn create_locked(
    s: &Session,
    who: &Caller,
    dir: &LockedInode,
    name: &[u8],
    new: &New,
    time: i64,
) -> Result<(u64, Inherited)> {
    let a = inode_table::attrs(s, dir)?;
    perm::may_create(s, who, &a)?;
    if !is_legal_name(name) {
        return Err(Error::Invalid);
    }
    if perm::file_type(new.mode) == S_IFDIR && a.nlink >= LINK_MAX {
        return Err(Error::TooManyLinks);
    }
    let _no_value = files::hold(s, dir, name)?;
    let ino = inode_table::new_ino(s)?;
    let inherited = Inherited::new(s, who, &a, new.mode)?;
    let record = Record::Create {
        parent: dir.ino,
        ino,
        mode: inherited.first_mode(),
        uid: who.uid,
        gid: inherited.gid,
        flags: u32::from(a.project) << PROJECT_SHIFT,
        rdev: new.rdev,
        time,
        name,
        target: new.target,
    };
    let counted = NewObject::take(s, who.uid, a.project)?;
    journal::commit(s, &record)?;
    counted.came();
    Ok((ino, inherited))
}

/// Mode after umask and the group, as a set-gid directory hands them on.
pub(crate) fn mode_and_group(who: &Caller, dir: &Attrs, mode: u32) -> (u32, u32) {
    let kind = perm::file_type(mode);
    let masked = if kind == S_IFLNK {
        mode
    } else {
        mode & !(who.umask & 0o777)
    };
    if dir.mode & S_ISGID == 0 {
        return (masked, who.gid);
    }
    if kind == S_IFDIR {
        return (masked | S_ISGID, dir.gid);
    }
    let runs_as_group = masked & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP;
    let foreign = !who.in_group(dir.gid) && !who.overrides(dir.uid, dir.gid);
    (
        if runs_as_group && foreign {
            masked & !S_ISGID
        } else {
            masked
        },
        dir.gid,
    )
}
