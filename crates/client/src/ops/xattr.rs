//! Extended attributes.
//!
//! Invariants: they are in the trees only, so a query waits until the trees have every record about
//! the object; a change is checked and committed under the object's lock.

use crate::base::abi::*;
use crate::base::clock;
use crate::base::error::{Error, Result};
use crate::base::types::{Caller, Target};
use crate::content::file::File;
use crate::content::perm;
use crate::journal;
use crate::ops::acl;
use crate::ops::client::Client;
use crate::ops::path::{self, Walk};
use crate::session::Session;
use crate::session::drain;
use crate::tables::inode_table::{self, Attrs, InodeRef, LockedInode};
use crate::values::opened;
use alloc::vec;
use pmem::atomic::Ordering::Acquire;
use pmem::{ConstBuf, MutBuf};
use pool::journal::Record;
use pool::layout::{XATTR_VALUE_MAX, XATTRS_MAX};
use pool::quota::QUOTA_PREFIX;
use pool::session::INODE_XATTRS;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    /// None that there is.
    Unknown,
    User,
    Trusted,
    Security,
}

/// The object, which is to be changed.
pub(crate) fn object<'s>(c: &'s Client, who: &Caller, target: &Target) -> Result<InodeRef<'s>> {
    let s = &c.session;
    let inode = match *target {
        Target::Path {
            base,
            path,
            nofollow,
        } => {
            let found = Walk::new(s, &c.at, who).object(base, path, flags_of(nofollow))?;
            path::attributes(s, found.ino, found.inode)?.0
        }
        Target::Ofd(ofd) => File::usable(s, ofd)?.inode,
    };
    match opened::own(s, &inode)? {
        true => Ok(inode),
        // Nothing would be left of it.
        false => Err(Error::NotSupported),
    }
}

/// What the object, or value, looks like. A value has no attributes of this kind.
pub(crate) fn shown(c: &Client, who: &Caller, target: &Target) -> Result<Attrs> {
    let s = &c.session;
    match *target {
        Target::Path {
            base,
            path,
            nofollow,
        } => Walk::new(s, &c.at, who).attributes(base, path, flags_of(nofollow)),
        Target::Ofd(ofd) => inode_table::attrs(s, &File::usable(s, ofd)?.inode),
    }
}

fn flags_of(nofollow: bool) -> u32 {
    if nofollow { AT_SYMLINK_NOFOLLOW } else { 0 }
}

fn space_of(name: &[u8]) -> Result<Space> {
    if name.is_empty() || name.len() > XATTR_NAME_MAX {
        return Err(Error::Range);
    }
    let spaces: [(&[u8], Space); 3] = [
        (b"user.", Space::User),
        (b"trusted.", Space::Trusted),
        (b"security.", Space::Security),
    ];
    let space = spaces.iter().find(|(prefix, _)| name.starts_with(prefix));
    Ok(space.map_or(Space::Unknown, |(_, space)| *space))
}

/// There is no other name space but that of lists, and one alone is no name, which the kernel says
/// to those only who have the rights.
fn check_rest(name: &[u8]) -> Result<()> {
    if space_of(name)? == Space::Unknown {
        return Err(Error::NotSupported);
    }
    match name.ends_with(b".") && !name[..name.len() - 1].contains(&b'.') {
        true => Err(Error::Invalid),
        false => Ok(()),
    }
}

/// The rules of xattr(7) for each name space.
fn check_rights(s: &Session, who: &Caller, a: &Attrs, space: Space, write: bool) -> Result<()> {
    let refusal = if write {
        Error::NotPermitted
    } else {
        Error::NoAttribute
    };
    match space {
        Space::Unknown => perm::check(s, who, a, if write { W_OK } else { R_OK }),
        Space::Trusted if !who.is_root() => Err(refusal),
        Space::Trusted => Ok(()),
        Space::Security if write && !who.is_root() => Err(Error::NotPermitted),
        Space::Security => Ok(()),
        Space::User if !perm::is_file(a) && !perm::is_dir(a) => Err(refusal),
        Space::User => {
            let sticky = perm::is_dir(a) && a.mode & S_ISVTX != 0;
            if write && sticky && !perm::owns(who, a) {
                return Err(Error::NotPermitted);
            }
            perm::check(s, who, a, if write { W_OK } else { R_OK })
        }
    }
}

/// Waits until the trees know what the journal says about the object.
fn wait_applied(s: &Session, inode: &InodeRef) -> Result<()> {
    drain::wait_applied(s, inode.e.seq.load(Acquire))
}

pub(crate) fn get(
    c: &Client,
    who: &Caller,
    target: Target,
    name: &[u8],
    mut out: MutBuf,
) -> Result<usize> {
    if acl::is_list(name) {
        return acl::get(c, who, &target, name, &mut out);
    }
    let a = shown(c, who, &target)?;
    check_rights(&c.session, who, &a, space_of(name)?, false)?;
    check_rest(name)?;
    if a.state & INODE_XATTRS == 0 {
        return Err(Error::NoAttribute);
    }
    wait_applied(&c.session, &inode_table::get(&c.session, a.ino)?)?;
    let value = c
        .session
        .tree()
        .xattr(a.ino, name)?
        .ok_or(Error::NoAttribute)?;
    put(&value, &mut out)
}

/// Gives a value or list to the caller; its length if the caller only asks for that.
pub(crate) fn put(value: &[u8], out: &mut MutBuf) -> Result<usize> {
    if out.is_empty() {
        return Ok(value.len());
    }
    if out.len() < value.len() {
        return Err(Error::Range);
    }
    Ok(out.write(value)?)
}

pub(crate) fn list(c: &Client, who: &Caller, target: Target, mut out: MutBuf) -> Result<usize> {
    let a = shown(c, who, &target)?;
    if a.state & INODE_XATTRS == 0 {
        return Ok(0);
    }
    wait_applied(&c.session, &inode_table::get(&c.session, a.ino)?)?;
    let mut names = c.session.tree().xattr_names(a.ino)?;
    if a.ino == path::ROOT {
        // The limits are the pool's own.
        let shown = |n: &&[u8]| !n.starts_with(QUOTA_PREFIX);
        names = names
            .split_inclusive(|&b| b == 0)
            .filter(shown)
            .collect::<vec::Vec<_>>()
            .concat();
    }
    if !who.is_root() {
        let shown = |n: &&[u8]| !n.starts_with(b"trusted.");
        let pieces = names.split_inclusive(|&b| b == 0).filter(shown);
        names = pieces.collect::<vec::Vec<_>>().concat();
    }
    put(&names, &mut out)
}

pub(crate) fn set(
    c: &Client,
    who: &Caller,
    target: Target,
    name: &[u8],
    value: ConstBuf,
    flags: u32,
) -> Result<()> {
    let both = XATTR_CREATE | XATTR_REPLACE;
    if flags & !both != 0 {
        return Err(Error::Invalid);
    }
    if value.len() > XATTR_SIZE_MAX {
        return Err(Error::TooBig);
    }
    let mut copy = vec![0; value.len()];
    value.read(&mut copy)?;
    if acl::is_list(name) {
        return acl::set(c, who, &target, name, &copy);
    }
    let inode = object(c, who, &target)?;
    let space = space_of(name)?;
    let time = clock::now();
    let locked = lock_with_rights(&c.session, who, inode, space)?;
    check_rest(name)?;
    if value.len() > XATTR_VALUE_MAX {
        return Err(Error::NoSpace);
    }
    let exists = exists(&c.session, &locked, name)?;
    match (flags & XATTR_CREATE != 0, flags & XATTR_REPLACE != 0) {
        (true, _) if exists => return Err(Error::Exists),
        (_, true) if !exists => return Err(Error::NoAttribute),
        (_, false) if !exists && is_full(&c.session, &locked)? => return Err(Error::NoSpace),
        _ => {}
    }
    let record = Record::SetXattr {
        ino: locked.ino,
        time,
        name,
        value: &copy,
    };
    journal::commit(&c.session, &record).map(|_| ())
}

pub(crate) fn remove(c: &Client, who: &Caller, target: Target, name: &[u8]) -> Result<()> {
    if acl::is_list(name) {
        return acl::set(c, who, &target, name, &[]);
    }
    let inode = object(c, who, &target)?;
    let space = space_of(name)?;
    let time = clock::now();
    let locked = lock_with_rights(&c.session, who, inode, space)?;
    check_rest(name)?;
    if !exists(&c.session, &locked, name)? {
        return Err(Error::NoAttribute);
    }
    let record = Record::RemoveXattr {
        ino: locked.ino,
        time,
        name,
    };
    journal::commit(&c.session, &record).map(|_| ())
}

fn lock_with_rights<'s>(
    s: &'s Session,
    who: &Caller,
    inode: InodeRef<'s>,
    space: Space,
) -> Result<LockedInode<'s>> {
    let locked = inode_table::lock_ref(s, inode)?;
    check_rights(s, who, &inode_table::attrs(s, &locked)?, space, true)?;
    Ok(locked)
}

/// Whether the object has as many attributes as the service allows. `exists` came before, so the
/// trees know them all.
pub(crate) fn is_full(s: &Session, inode: &LockedInode) -> Result<bool> {
    if inode.e.state.load(Acquire) & INODE_XATTRS == 0 {
        return Ok(false);
    }
    let names = s.tree().xattr_names(inode.ino)?;
    Ok(names.split(|&b| b == 0).count() > XATTRS_MAX)
}

pub(crate) fn exists(s: &Session, inode: &LockedInode, name: &[u8]) -> Result<bool> {
    if inode.e.state.load(Acquire) & INODE_XATTRS == 0 {
        return Ok(false);
    }
    wait_applied(s, inode)?;
    Ok(s.tree().xattr(inode.ino, name)?.is_some())
}
