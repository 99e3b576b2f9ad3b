//! open(2), openat2(2).
//!
//! Invariants: the inode is pinned before the description exists, and the opened object still had a
//! name when it was pinned; permission is checked on the attributes of the pinned inode.

use crate::base::abi::*;
use crate::base::clock;
use crate::base::error::{Error, Result};
use crate::base::types::{Base, Caller};
use crate::content::close;
use crate::content::perm;
use crate::content::{abandoned, pin};
use crate::journal;
use crate::ops::acl::Inherited;
use crate::ops::client::Client;
use crate::ops::create::{self, New};
use crate::ops::path::{self, End, KIND_DIR, KIND_SYMLINK, Last, Walk, Walked};
use crate::ops::truncate;
use crate::session::RETRIES;
use crate::session::quota::NewObject;
use crate::session::{OfdLink, Session};
use crate::tables::dentry_table::{self, Found};
use crate::tables::inode_table::{self, Attrs, InodeRef};
use crate::values::files::{self, Meta};
use crate::values::opened;
use pmem::atomic::Ordering::{Relaxed, SeqCst};
use pool::journal::{CREATE_ORPHAN, PROJECT_SHIFT, Record};
use pool::session::{INODE_LINKABLE, PROTECTED_FIELD, PROTECTED_FIFOS, PROTECTED_REGULAR};

const RESOLVE_ALL: u64 = 0x3f;
/// Flags that O_PATH leaves in effect.
const PATH_FLAGS: u32 = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
/// Flags that only say how to open, and are not kept.
const OPEN_ONLY: u32 = O_CREAT | O_EXCL | O_NOCTTY | O_TRUNC | O_CLOEXEC | O_KERNELS;

/// An open under way.
struct Opening<'a> {
    s: &'a Session,
    who: &'a Caller<'a>,
    flags: u32,
    mode: u32,
}

pub(crate) fn open(
    c: &Client,
    who: &Caller,
    base: Base,
    path: &[u8],
    oflags: u32,
    mode: u32,
    resolve: u64,
) -> Result<OfdLink> {
    if resolve & !RESOLVE_ALL != 0 {
        return Err(Error::Invalid);
    }
    let flags = check_flags(oflags)?;
    let walk = Walk {
        resolve,
        creates: flags & O_CREAT != 0,
        ..Walk::new(&c.session, &c.at, who)
    };
    let opening = Opening {
        s: &c.session,
        who,
        flags,
        mode,
    };
    if flags & O_TMPFILE_BIT != 0 {
        let end = match flags & O_NOFOLLOW != 0 {
            true => End::NoFollow,
            false => End::Follow,
        };
        return opening.temporary(&walk.walk(base, path, end)?);
    }
    let exclusive = flags & (O_CREAT | O_EXCL) == O_CREAT | O_EXCL;
    let end = match flags & O_NOFOLLOW != 0 || exclusive {
        true => End::NoFollow,
        false => End::Follow,
    };
    for _ in 0..RETRIES {
        match opening.attempt(&walk.walk(base, path, end)?) {
            // What we found lost its name, or a name appeared where there was none.
            Err(Error::Stale) => {}
            other => return other,
        }
    }
    Err(Error::NotFound)
}

/// The object with number `ino`, which may have no name any more; `named`: by which it was found.
pub(crate) fn open_node(
    c: &Client,
    who: &Caller,
    ino: u64,
    named: (u64, &[u8]),
    oflags: u32,
) -> Result<OfdLink> {
    let flags = check_flags(oflags)?;
    if flags & (O_CREAT | O_TMPFILE_BIT) != 0 {
        return Err(Error::Invalid);
    }
    let opening = Opening {
        s: &c.session,
        who,
        flags,
        mode: 0,
    };
    let found = Walk::new(&c.session, &c.at, who).object(Base::Node(ino), b"", 0)?;
    let at = Walked {
        dir: named.0,
        hint: 0,
        last: Last::Name,
        name: named.1.into(),
        slash: false,
        found: Some(found),
        value: None,
    };
    opening.opened(&opening.pin(&found, false)?, &at)
}

/// The flags in effect; `Invalid` for those that contradict themselves.
pub(crate) fn check_flags(flags: u32) -> Result<u32> {
    if flags & O_PATH != 0 {
        return Ok(flags & PATH_FLAGS);
    }
    if flags & O_TMPFILE_BIT != 0 {
        if flags & O_DIRECTORY == 0 || flags & O_ACCMODE == O_RDONLY || flags & O_CREAT != 0 {
            return Err(Error::Invalid);
        }
    } else if flags & (O_CREAT | O_DIRECTORY) == O_CREAT | O_DIRECTORY {
        return Err(Error::Invalid);
    }
    Ok(flags)
}

impl Opening<'_> {
    fn attempt(&self, at: &Walked<'_>) -> Result<OfdLink> {
        let create = self.flags & O_CREAT != 0;
        match at.found {
            Some(found) => {
                if create && self.flags & O_EXCL != 0 {
                    return Err(Error::Exists);
                }
                match &at.value {
                    Some(meta) => self.value(meta, at),
                    None => self.existing(&found, at),
                }
            }
            None if create => self.make(at),
            None => Err(Error::NotFound),
        }
    }

    /// A value, which becomes a file only if it is to be written. `Stale`: the name has none now.
    fn value(&self, meta: &Meta, at: &Walked<'_>) -> Result<OfdLink> {
        if self.flags & O_DIRECTORY != 0 {
            return Err(Error::NotDirectory);
        }
        let (dir, a) = path::attributes(self.s, at.dir, at.hint)?;
        if self.flags & O_PATH == 0 && self.flags & (O_ACCMODE | O_TRUNC) != O_RDONLY {
            self.check_rights(&files::attributes(&a, meta), at)?;
            let found = opened::promote(self.s, dir.ino, at.name())?;
            return self.existing(&found.ok_or(Error::Stale)?, at);
        }
        let inode = opened::open(self.s, &dir, at.name())?;
        self.opened(&inode.ok_or(Error::Stale)?, at)
    }

    fn existing(&self, found: &Found, at: &Walked<'_>) -> Result<OfdLink> {
        let directory = self.flags & O_DIRECTORY != 0;
        if found.kind == KIND_SYMLINK && self.flags & O_PATH == 0 {
            if self.flags & O_CREAT != 0 {
                let (_, link) = path::attributes(self.s, found.ino, found.inode)?;
                self.check_sticky(&link, at)?;
            }
            return Err(if directory {
                Error::NotDirectory
            } else {
                Error::Loop
            });
        }
        if directory && found.kind != KIND_DIR {
            return Err(Error::NotDirectory);
        }
        self.opened(&self.pin(found, at.last == Last::Name)?, at)
    }

    fn opened(&self, inode: &InodeRef, at: &Walked<'_>) -> Result<OfdLink> {
        let opened = self.pinned(inode, at);
        if opened.is_err() {
            close::put_inode(self.s, inode)?;
        }
        opened
    }

    /// `Stale` if the last name went meanwhile.
    fn pin(&self, found: &Found, named: bool) -> Result<InodeRef<'_>> {
        let s = self.s;
        if let Some(inode) = inode_table::by_link(s, found.inode, found.ino)
            && pin::pin_ref(s, &inode).is_ok()
        {
            return Ok(inode);
        }
        match pin::pin(s, found.ino) {
            Err(Error::NotFound) if named => Err(Error::Stale),
            Err(Error::NotFound) => pin::pin_in_use(s, found.ino),
            other => other,
        }
    }

    fn pinned(&self, inode: &InodeRef, at: &Walked<'_>) -> Result<OfdLink> {
        if self.flags & O_PATH != 0 {
            return self.describe(inode, at);
        }
        let a = inode_table::attrs(self.s, inode)?;
        self.check_rights(&a, at)?;
        if self.flags & O_TRUNC != 0 && perm::is_file(&a) {
            truncate::to_size(self.s, inode, 0)?;
        }
        let link = self.describe(inode, at)?;
        if perm::file_type(a.mode) == S_IFIFO {
            let flags = &self.s.ofd(link.raw())?.flags;
            flags.fetch_or(O_KERNELS, Relaxed);
        }
        Ok(link)
    }

    /// Whether O_CREAT may open what is there already: in a directory where others may make things,
    /// not theirs (fs.protected_regular, fs.protected_fifos).
    #[cold]
    fn check_sticky(&self, a: &Attrs, at: &Walked<'_>) -> Result<()> {
        let said = self.s.header().protected.load(Relaxed);
        let level = match perm::file_type(a.mode) {
            S_IFREG => said / PROTECTED_REGULAR & PROTECTED_FIELD,
            S_IFIFO => said / PROTECTED_FIFOS & PROTECTED_FIELD,
            _ => 1,
        };
        if level == 0 || at.last != Last::Name {
            return Ok(());
        }
        let (_, dir) = path::attributes(self.s, at.dir, at.hint)?;
        let safe = dir.mode & S_ISVTX == 0 || a.uid == dir.uid || a.uid == self.who.uid;
        let others = dir.mode & S_IWOTH != 0 || dir.mode & S_IWGRP != 0 && level >= 2;
        match safe || !others {
            true => Ok(()),
            false => Err(Error::Denied),
        }
    }

    fn check_rights(&self, a: &Attrs, at: &Walked<'_>) -> Result<()> {
        let wanted = match self.flags & O_ACCMODE {
            O_RDONLY => R_OK,
            O_WRONLY => W_OK,
            _ => R_OK | W_OK,
        };
        let trunc = if self.flags & O_TRUNC != 0 { W_OK } else { 0 };
        let wanted = wanted | trunc;
        if perm::is_dir(a) && (wanted & W_OK != 0 || self.flags & O_CREAT != 0) {
            return Err(Error::IsDirectory);
        }
        if self.flags & O_CREAT != 0 && a.uid != self.who.uid {
            self.check_sticky(a, at)?;
        }
        perm::check(self.s, self.who, a, wanted)?;
        if wanted & W_OK != 0 && !matches!(perm::file_type(a.mode), S_IFIFO | S_IFSOCK) {
            self.s.check_writable()?;
        }
        if self.flags & O_NOATIME != 0 {
            perm::check_owner(self.who, a)?;
        }
        match perm::file_type(a.mode) {
            S_IFREG | S_IFDIR => Ok(()),
            S_IFIFO if self.flags & O_KERNELS != 0 => Ok(()),
            S_IFIFO => Err(Error::NotSupported),
            _ => Err(Error::NoData),
        }
    }

    /// A name that does not exist yet.
    fn make(&self, at: &Walked<'_>) -> Result<OfdLink> {
        let (s, time) = (self.s, clock::now());
        let dir = inode_table::lock_parent(s, at.dir)?;
        if dentry_table::lookup_locked(s, &dir, at.name())?.is_some() {
            return Err(Error::Stale);
        }
        let new = New {
            mode: S_IFREG | self.mode & 0o7777,
            rdev: 0,
            target: &[],
        };
        let made = create::create_locked(s, self.who, &dir, at.name(), &new, time);
        let (ino, inherited) = match made {
            // A value came meanwhile.
            Err(Error::Exists) => return Err(Error::Stale),
            made => made?,
        };
        // Under the directory's lock the new name cannot go.
        let inode = pin::pin(s, ino)?;
        drop(dir);
        let given = inherited.give(s, ino);
        let described = given.and_then(|()| self.describe(&inode, at));
        described.inspect_err(|_| {
            let _ = close::put_inode(s, &inode);
        })
    }

    /// O_TMPFILE: a file without a name in directory `dir`.
    fn temporary(&self, at: &Walked<'_>) -> Result<OfdLink> {
        let s = self.s;
        if at.value.is_some() {
            return Err(Error::NotDirectory);
        }
        let dir = at.object()?;
        let a = path::attributes(s, dir.ino, dir.inode)?.1;
        if !perm::is_dir(&a) {
            return Err(Error::NotDirectory);
        }
        perm::may_create(s, self.who, &a)?;
        let inherited = Inherited::new(s, self.who, &a, S_IFREG | self.mode & 0o7777)?;
        let (mode, gid) = (inherited.first_mode(), inherited.gid);
        let ino = inode_table::new_ino(s)?;
        let (time, name) = (clock::now(), &[][..]);
        let (uid, parent, flags, rdev) = (self.who.uid, dir.ino, CREATE_ORPHAN, 0);
        let target = name;
        let record = Record::Create {
            parent,
            ino,
            mode,
            uid,
            gid,
            flags: flags | u32::from(a.project) << PROJECT_SHIFT,
            rdev,
            time,
            name,
            target,
        };
        let counted = NewObject::take(s, uid, a.project)?;
        journal::commit(s, &record)?;
        counted.came();
        let inode = pin_nameless(s, ino, self.flags & O_EXCL == 0)?;
        let given = inherited.give(s, ino);
        let ofd = given.and_then(|()| abandoned::alloc_ofd(s, &inode, self.kept_flags()));
        ofd.inspect_err(|_| {
            let _ = close::put_inode(s, &inode);
        })
    }

    fn kept_flags(&self) -> u32 {
        self.flags & !OPEN_ONLY
            | if self.flags & O_PATH == 0 {
                O_LARGEFILE
            } else {
                0
            }
    }

    /// The description of a pinned inode, which remembers by which name it was opened.
    fn describe(&self, inode: &InodeRef, at: &Walked<'_>) -> Result<OfdLink> {
        let link = abandoned::alloc_ofd(self.s, inode, self.kept_flags())?;
        let entry = self.s.ofd(link.raw())?;
        entry.parent.store(at.dir, Relaxed);
        let name = if at.last == Last::Name {
            at.name()
        } else {
            &[]
        };
        let name = if name.len() <= entry.name.len() {
            name
        } else {
            &[]
        };
        entry
            .name
            .iter()
            .zip(name)
            .for_each(|(to, from)| to.store(*from, Relaxed));
        entry.name_len.store(name.len() as u32, Relaxed);
        Ok(link)
    }
}

/// Pins a new file that has no name and that nobody else knows; `linkable`: it may get a name.
fn pin_nameless(s: &Session, ino: u64, linkable: bool) -> Result<InodeRef<'_>> {
    let locked = inode_table::lock(s, ino)?;
    if linkable {
        locked.e.state.fetch_or(INODE_LINKABLE, SeqCst);
    }
    locked.e.opens.fetch_add(1, SeqCst);
    Ok(*locked)
}
