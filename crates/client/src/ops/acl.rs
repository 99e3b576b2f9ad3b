//! Access control lists as what they are to programs: extended attributes, and what new objects
//! begin with.
//!
//! Invariants: a list and the mode are two records, and between them, also should the second never
//! come, nobody may do more than before or after. Ids in lists are the pool's: who lives in a user
//! namespace with others has no lists.

use crate::base::abi::*;
use crate::base::clock;
use crate::base::error::{Error, Result};
use crate::base::types::{Caller, Target};
use crate::content::acl::{self, Acl};
use crate::content::perm;
use crate::journal;
use crate::ops::client::Client;
use crate::ops::{create, xattr};
use crate::session::Session;
use crate::tables::inode_table::{self, Attrs, LockedInode};
use pmem::MutBuf;
use pool::journal::{Record, SET_CTIME, SET_MODE};
use pool::layout::XATTR_VALUE_MAX;
use pool::session::{INODE_ACL, INODE_DEFAULT_ACL};

const ACCESS: &[u8] = XATTR_NAME_POSIX_ACL_ACCESS;
const DEFAULT: &[u8] = XATTR_NAME_POSIX_ACL_DEFAULT;

/// Whether an attribute of this name is a list.
pub(crate) fn is_list(name: &[u8]) -> bool {
    matches!(name, ACCESS | DEFAULT)
}

pub(crate) fn get(
    c: &Client,
    who: &Caller,
    target: &Target,
    name: &[u8],
    out: &mut MutBuf,
) -> Result<usize> {
    let a = xattr::shown(c, who, target)?;
    check_kind(who, &a)?;
    let bit = match name {
        ACCESS => INODE_ACL,
        _ => INODE_DEFAULT_ACL,
    };
    if a.state & bit == 0 {
        return Err(Error::NoAttribute);
    }
    let list = acl::of(&c.session, a.ino, name)?.ok_or(Error::NoAttribute)?;
    let list = match name {
        ACCESS => list.with_mode(a.mode),
        _ => list,
    };
    xattr::put(&list.encode(), out)
}

/// An empty value, or one without entries, removes the list.
pub(crate) fn set(
    c: &Client,
    who: &Caller,
    target: &Target,
    name: &[u8],
    value: &[u8],
) -> Result<()> {
    let s = &c.session;
    let inode = xattr::object(c, who, target)?;
    let list = match value {
        [] => None,
        value => Acl::parse(value)?,
    };
    let time = clock::now();
    let locked = inode_table::lock_ref(s, inode)?;
    let a = inode_table::attrs(s, &locked)?;
    check_kind(who, &a)?;
    if name == DEFAULT && !perm::is_dir(&a) {
        return match list {
            Some(_) => Err(Error::Denied),
            None => Ok(()),
        };
    }
    perm::check_owner(who, &a)?;
    if let Some(list) = &list {
        list.check()?;
    }
    match name {
        ACCESS => set_access(s, who, &locked, &a, list, time),
        _ => {
            let plan = Plan::new(s, &locked, name, list.as_ref())?;
            match plan.commit(s, &locked, time)? {
                true => Ok(()),
                false => set_mode(s, &locked, a.mode, time),
            }
        }
    }
}

/// Links have no lists, and who has other ids cannot say whose they are.
fn check_kind(who: &Caller, a: &Attrs) -> Result<()> {
    match perm::file_type(a.mode) == S_IFLNK || who.ids.is_some() {
        true => Err(Error::NotSupported),
        false => Ok(()),
    }
}

fn set_access(
    s: &Session,
    who: &Caller,
    inode: &LockedInode,
    a: &Attrs,
    list: Option<Acl>,
    time: i64,
) -> Result<()> {
    let mut mode = match &list {
        Some(list) => acl::with_bits(a.mode, list.mode()),
        None => a.mode,
    };
    if !who.in_group(a.gid) && !who.overrides(a.uid, a.gid) {
        mode &= !S_ISGID;
    }
    let kept = list.filter(Acl::says_more);
    let plan = Plan::new(s, inode, ACCESS, kept.as_ref())?;
    let between = a.mode & mode;
    if between != a.mode {
        set_mode(s, inode, between, time)?;
    }
    let changed = plan.commit(s, inode, time).inspect_err(|_| {
        let _ = set_mode(s, inode, a.mode, time);
    })?;
    match changed && between == mode {
        true => Ok(()),
        false => set_mode(s, inode, mode, time),
    }
}

fn set_mode(s: &Session, inode: &LockedInode, mode: u32, time: i64) -> Result<()> {
    let record = Record::SetAttr {
        ino: inode.ino,
        mask: SET_MODE | SET_CTIME,
        mode,
        uid: 0,
        gid: 0,
        atime: 0,
        mtime: 0,
        ctime: time,
    };
    journal::commit(s, &record).map(drop)
}

/// What becomes of an attribute.
enum Plan<'a> {
    Nothing,
    Remove(&'a [u8]),
    Set(&'a [u8], alloc::vec::Vec<u8>),
}

impl<'a> Plan<'a> {
    /// `NoSpace`: the list is too long, or one attribute too many.
    fn new(
        s: &Session,
        inode: &LockedInode,
        name: &'a [u8],
        list: Option<&Acl>,
    ) -> Result<Plan<'a>> {
        let exists = xattr::exists(s, inode, name)?;
        let Some(list) = list else {
            return Ok(match exists {
                true => Plan::Remove(name),
                false => Plan::Nothing,
            });
        };
        let value = list.encode();
        if value.len() > XATTR_VALUE_MAX || !exists && xattr::is_full(s, inode)? {
            return Err(Error::NoSpace);
        }
        Ok(Plan::Set(name, value))
    }

    /// False: there was nothing to do.
    fn commit(&self, s: &Session, inode: &LockedInode, time: i64) -> Result<bool> {
        let ino = inode.ino;
        let record = match self {
            Plan::Nothing => return Ok(false),
            Plan::Remove(name) => Record::RemoveXattr { ino, time, name },
            Plan::Set(name, value) => Record::SetXattr {
                ino,
                time,
                name,
                value,
            },
        };
        journal::commit(s, &record).map(|_| true)
    }
}

/// What a new object is to have.
pub(crate) struct Inherited {
    pub gid: u32,
    mode: u32,
    access: Option<Acl>,
    default: Option<Acl>,
}

impl Inherited {
    /// Of one of this mode in directory `dir`.
    pub fn new(s: &Session, who: &Caller, dir: &Attrs, mode: u32) -> Result<Inherited> {
        let kind = perm::file_type(mode);
        let default = match dir.state & INODE_DEFAULT_ACL != 0 && kind != S_IFLNK {
            true => acl::of(s, dir.ino, DEFAULT)?,
            false => None,
        };
        let Some(default) = default else {
            let (mode, gid) = create::mode_and_group(who, dir, mode);
            return Ok(Inherited {
                gid,
                mode,
                access: None,
                default: None,
            });
        };
        // The list stands in for the umask.
        let who = Caller { umask: 0, ..*who };
        let (mode, gid) = create::mode_and_group(&who, dir, mode);
        let (mode, access) = default.clone().for_new(mode);
        Ok(Inherited {
            gid,
            mode,
            access,
            default: (kind == S_IFDIR).then_some(default),
        })
    }

    /// The mode that the object begins with: until it has its list nobody but the owner has rights.
    pub fn first_mode(&self) -> u32 {
        match self.access {
            Some(_) => self.mode & !0o077,
            None => self.mode,
        }
    }

    /// Gives the new object what it is to have. Its directory is not locked any more.
    pub fn give(&self, s: &Session, ino: u64) -> Result<()> {
        let lists = [(ACCESS, &self.access), (DEFAULT, &self.default)];
        if lists.iter().all(|(_, list)| list.is_none()) {
            return Ok(());
        }
        let locked = match inode_table::lock(s, ino) {
            // Somebody has removed it.
            Err(Error::NotFound) => return Ok(()),
            locked => locked?,
        };
        let time = clock::now();
        for (name, list) in lists {
            if list.is_some() {
                Plan::new(s, &locked, name, list.as_ref())?.commit(s, &locked, time)?;
            }
        }
        match self.first_mode() == self.mode {
            true => Ok(()),
            false => set_mode(s, &locked, self.mode, time),
        }
    }
}
