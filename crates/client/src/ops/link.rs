//! Names that are added and removed: link, unlink, rmdir.
//!
//! Invariants: directory and object are locked together, in the order of `lock_many`, and the name
//! is looked up again under the locks. An object that loses its last name while it is open stays
//! until its last close.

use crate::base::abi::*;
use crate::base::clock;
use crate::base::error::{Error, Result};
use crate::base::types::{Base, Caller};
use crate::content::perm;
use crate::journal;
use crate::ops::client::Client;
use crate::ops::path::{self, End, KIND_DIR, Last, Walk, Walked};
use crate::session::RETRIES;
use crate::session::Session;
use crate::session::{drain, lock};
use crate::tables::dentry_table::{self, Found};
use crate::tables::inode_table::{self, Attrs, LockedInode};
use crate::values::files::{self, Named};
use crate::values::opened;
use pmem::atomic::Ordering::SeqCst;
use pool::journal::{DROP_VALUES, KEEP_ORPHAN, Record};
use pool::layout::is_legal_name;
use pool::session::{INODE_LINKABLE, INODE_ORPHAN};

pub(crate) fn link(
    c: &Client,
    who: &Caller,
    old: (Base, &[u8]),
    new: (Base, &[u8]),
    flags: u32,
) -> Result<()> {
    if flags & !(AT_SYMLINK_FOLLOW | AT_EMPTY_PATH) != 0 {
        return Err(Error::Invalid);
    }
    let s = &c.session;
    let walk = Walk::new(s, &c.at, who);
    let nofollow = if flags & AT_SYMLINK_FOLLOW == 0 {
        AT_SYMLINK_NOFOLLOW
    } else {
        0
    };
    let from = walk.object(old.0, old.1, nofollow | flags & AT_EMPTY_PATH)?;
    let to = walk.walk(new.0, new.1, End::Parent).map_err(second)?;
    if to.last != Last::Name {
        return Err(Error::Exists);
    }
    let dir = path::entry(s, to.dir, to.hint)?;
    if !matches!(files::lookup(s, &dir, to.name())?, Named::Nothing) {
        return Err(Error::Exists);
    }
    if to.slash {
        return Err(Error::NotFound);
    }
    link_object(s, who, from.ino, &to)
}

/// The same error about the second path of a call.
pub(crate) fn second(e: Error) -> Error {
    match e {
        Error::Outside(path) => Error::OutsideSecond(path),
        e => e,
    }
}

fn link_object(s: &Session, who: &Caller, ino: u64, to: &Walked<'_>) -> Result<()> {
    if let Some(inode) = inode_table::find(s, ino)
        && !opened::own(s, &inode)?
    {
        return Err(Error::NotFound);
    }
    let time = clock::now();
    let [dir, object] = inode_table::lock_many(s, [to.dir, ino])?;
    let (Some(dir), Some(object)) = (&dir, &object) else {
        // A directory into itself.
        for locked in [dir, object].iter().flatten() {
            let a = inode_table::attrs(s, locked)?;
            may_link(s, who, &a)?;
            perm::may_create(s, who, &a)?;
        }
        return Err(Error::NotPermitted);
    };
    let (d, a) = (inode_table::attrs(s, dir)?, inode_table::attrs(s, object)?);
    if dentry_table::lookup_locked(s, dir, to.name())?.is_some() {
        return Err(Error::Exists);
    }
    may_link(s, who, &a)?;
    perm::may_create(s, who, &d)?;
    if perm::is_dir(&a) {
        return Err(Error::NotPermitted);
    }
    // Only a file from O_TMPFILE, which never had a name, gets one from nothing.
    if a.nlink == 0 && a.state & INODE_LINKABLE == 0 {
        return Err(Error::NotFound);
    }
    if a.project != d.project {
        return Err(Error::OtherQuota);
    }
    if a.nlink >= LINK_MAX {
        return Err(Error::TooManyLinks);
    }
    if !is_legal_name(to.name()) {
        return Err(Error::Invalid);
    }
    let (parent, name) = (to.dir, to.name());
    let _no_value = files::hold(s, dir, name)?;
    journal::commit(
        s,
        &Record::Link {
            parent,
            ino,
            time,
            name,
        },
    )
    .map(|_| ())
}

/// As with the kernel's fs.protected_hardlinks: others' files only if they could be written.
fn may_link(s: &Session, who: &Caller, a: &Attrs) -> Result<()> {
    if perm::owns(who, a) {
        return Ok(());
    }
    let group_program = a.mode & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP;
    let safe = perm::is_file(a) && a.mode & S_ISUID == 0 && !group_program;
    match safe && perm::check(s, who, a, R_OK | W_OK).is_ok() {
        true => Ok(()),
        false => Err(Error::NotPermitted),
    }
}

pub(crate) fn unlink(c: &Client, who: &Caller, base: Base, path: &[u8]) -> Result<()> {
    let at = Walk::new(&c.session, &c.at, who).walk(base, path, End::Parent)?;
    match at.last {
        Last::Name => remove(&c.session, who, &at, false),
        _ => Err(Error::IsDirectory),
    }
}

pub(crate) fn rmdir(c: &Client, who: &Caller, base: Base, path: &[u8]) -> Result<()> {
    let at = Walk::new(&c.session, &c.at, who).walk(base, path, End::Parent)?;
    match at.last {
        Last::Name => remove(&c.session, who, &at, true),
        Last::Dot => Err(Error::Invalid),
        Last::DotDot => Err(Error::NotEmpty),
        Last::Root => Err(Error::Busy),
    }
}

/// Removes the name at which a walk ended; `directory` says what it must lead to.
fn remove(s: &Session, who: &Caller, at: &Walked<'_>, directory: bool) -> Result<()> {
    let dir = path::entry(s, at.dir, at.hint)?;
    for _ in 0..RETRIES {
        let found = match files::lookup(s, &dir, at.name())? {
            Named::File(found) => found,
            Named::Nothing => return Err(Error::NotFound),
            Named::Value(_) if directory || at.slash => return Err(Error::NotDirectory),
            Named::Value(meta) => {
                let a = path::attributes(s, at.dir, at.hint)?.1;
                perm::may_delete(s, who, &a, &files::attributes(&a, &meta))?;
                if files::erase_value(s, &dir, at.name())? {
                    return Ok(());
                }
                continue;
            }
        };
        if at.slash && !directory {
            return Err(if found.kind == KIND_DIR {
                Error::IsDirectory
            } else {
                Error::NotDirectory
            });
        }
        let time = clock::now();
        let locked = match inode_table::lock_many(s, [at.dir, found.ino]) {
            // It lost its last name since it was looked up; another may have taken the name.
            Err(Error::NotFound) => continue,
            other => other?,
        };
        let [Some(dir), Some(child)] = locked else {
            return Err(Error::Damaged {
                what: "directory",
                index: at.dir,
            });
        };
        if still_refers(s, &dir, at.name(), &found)? {
            return remove_locked(s, who, &dir, &child, at.name(), directory, time);
        }
    }
    Err(Error::Busy)
}

/// Whether a name leads to what was found before it was locked.
pub(crate) fn still_refers(
    s: &Session,
    dir: &LockedInode,
    name: &[u8],
    found: &Found,
) -> Result<bool> {
    let now = dentry_table::lookup_locked(s, dir, name)?;
    Ok(now.is_some_and(|n| n.ino == found.ino))
}

fn remove_locked(
    s: &Session,
    who: &Caller,
    dir: &LockedInode,
    child: &LockedInode,
    name: &[u8],
    directory: bool,
    time: i64,
) -> Result<()> {
    let (d, a) = (inode_table::attrs(s, dir)?, inode_table::attrs(s, child)?);
    perm::may_delete(s, who, &d, &a)?;
    match (directory, perm::is_dir(&a)) {
        (true, false) => return Err(Error::NotDirectory),
        (false, true) => return Err(Error::IsDirectory),
        (true, true) if a.entries != 0 => return Err(Error::NotEmpty),
        _ => {}
    }
    let removal = Removal::begin(child, a.nlink, directory);
    if let Err(e) = files::check_no_values(s, child) {
        return removal.finish(Err(e));
    }
    let flags = removal.flags;
    let record = Record::Unlink {
        parent: dir.ino,
        ino: child.ino,
        flags,
        time,
        name,
    };
    removal.finish(journal::commit(s, &record))
}

/// Commits a record by which a keyspace loses its values. They are found in the index by whoever
/// takes a root that still has the keyspace, so views that begin wait until the trees have it, and
/// so does this.
pub(crate) fn commit_dropping(s: &Session, record: &Record<'_>) -> Result<u64> {
    let _unseen = lock::acquire(s, &s.header().unseen_lock)?;
    let seq = journal::commit(s, record)?;
    drain::wait_applied(s, seq)?;
    Ok(seq)
}

/// Removes a keyspace with all its values. `Stale`: it is another one, or it has names.
pub(crate) fn drop_keyspace(s: &Session, who: &Caller, ino: u64, name: &[u8]) -> Result<()> {
    let time = clock::now();
    let locked = match inode_table::lock_many(s, [path::ROOT, ino]) {
        Err(Error::NotFound) => return Err(Error::Stale),
        locked => locked?,
    };
    let [Some(root), Some(dir)] = &locked else {
        return Err(Error::Invalid);
    };
    let now = dentry_table::lookup_locked(s, root, name)?;
    let (r, a) = (inode_table::attrs(s, root)?, inode_table::attrs(s, dir)?);
    if now.is_none_or(|now| now.ino != ino) || a.entries != 0 {
        return Err(Error::Stale);
    }
    perm::may_delete(s, who, &r, &a)?;
    perm::check(s, who, &a, W_OK | X_OK)?;
    let removal = Removal::begin(dir, a.nlink, true);
    let (parent, flags) = (path::ROOT, removal.flags | DROP_VALUES);
    let record = Record::Unlink {
        parent,
        ino,
        flags,
        time,
        name,
    };
    let closed = files::wait_for_changes(s);
    removal.finish(closed.and_then(|_| commit_dropping(s, &record)))
}

/// An object that is about to lose a name, maybe its last.
pub(crate) struct Removal<'a, 's> {
    child: &'a LockedInode<'s>,
    last: bool,
    /// For the record: `KEEP_ORPHAN` if somebody has it open.
    pub flags: u32,
}

impl<'a, 's> Removal<'a, 's> {
    /// `nlink` is the number of its names now; a directory has only one.
    pub fn begin(child: &'a LockedInode<'s>, nlink: u32, directory: bool) -> Removal<'a, 's> {
        let last = directory || nlink <= 1;
        let mut flags = 0;
        if last {
            child.e.state.fetch_or(INODE_ORPHAN, SeqCst);
            if child.e.opens.load(SeqCst) > 0 {
                flags = KEEP_ORPHAN;
            }
        }
        Removal { child, last, flags }
    }

    /// After the record was committed, or not.
    pub fn finish(self, committed: Result<u64>) -> Result<()> {
        if committed.is_err() && self.last {
            self.child.e.state.fetch_and(!INODE_ORPHAN, SeqCst);
        }
        committed.map(|_| ())
    }
}
