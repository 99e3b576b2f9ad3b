//! rename(2), renameat2(2).
//!
//! Invariants: one record moves the name, so nobody sees it twice or not at all. While a directory
//! moves, or anything moves between directories, the session's rename lock is held: no directory
//! can become its own ancestor.

use crate::base::abi::*;
use crate::base::clock;
use crate::base::error::{Error, Result};
use crate::base::types::{Base, Caller};
use crate::content::pin;
use crate::content::{close, durable, perm};
use crate::journal;
use crate::ops::client::Client;
use crate::ops::link::{Removal, commit_dropping, second, still_refers};
use crate::ops::path::{self, End, KIND_DIR, KIND_FILE, Last, ROOT, Walk, Walked};
use crate::session::RETRIES;
use crate::session::Session;
use crate::session::lock;
use crate::tables::dentry_table::{self, Found};
use crate::tables::inode_table::{self, Attrs, LockedInode, is_file};
use crate::values::files;
use pmem::atomic::Ordering::Relaxed;
use pool::apply::DEPTH_MAX;
use pool::journal::{self as records, Record};
use pool::layout::is_legal_name;

/// A rename whose two parents are known.
struct Move<'a> {
    s: &'a Session,
    who: &'a Caller<'a>,
    from: &'a Walked<'a>,
    to: &'a Walked<'a>,
    flags: u32,
    /// A keyspace that is replaced may have values, which go with it.
    drops: bool,
}

pub(crate) fn rename(
    c: &Client,
    who: &Caller,
    old: (Base, &[u8]),
    new: (Base, &[u8]),
    flags: u32,
) -> Result<()> {
    let exclusive = RENAME_NOREPLACE | RENAME_EXCHANGE;
    if flags & !exclusive != 0 || flags & exclusive == exclusive {
        return Err(Error::Invalid);
    }
    rename_any(c, who, (old, new), flags, false)
}

/// As `rename`; a keyspace that is replaced loses its values by the same record.
pub(crate) fn rename_dropping(
    c: &Client,
    who: &Caller,
    old: (Base, &[u8]),
    new: (Base, &[u8]),
) -> Result<()> {
    rename_any(c, who, (old, new), 0, true)
}

fn rename_any(
    c: &Client,
    who: &Caller,
    (old, new): ((Base, &[u8]), (Base, &[u8])),
    flags: u32,
    drops: bool,
) -> Result<()> {
    let walk = Walk::new(&c.session, &c.at, who);
    let from = walk.walk(old.0, old.1, End::Parent)?;
    let to = walk.walk(new.0, new.1, End::Parent).map_err(second)?;
    if from.last != Last::Name {
        return Err(Error::Busy);
    }
    if to.last != Last::Name {
        let taken = flags & RENAME_NOREPLACE != 0;
        return Err(if taken { Error::Exists } else { Error::Busy });
    }
    let s = &c.session;
    let moving = Move {
        s,
        who,
        from: &from,
        to: &to,
        flags,
        drops,
    };
    for _ in 0..RETRIES {
        if moving.attempt()? {
            return Ok(());
        }
    }
    Err(Error::Busy)
}

impl Move<'_> {
    fn exchange(&self) -> bool {
        self.flags & RENAME_EXCHANGE != 0
    }

    /// False: the names changed before they were locked.
    fn attempt(&self) -> Result<bool> {
        let (s, time) = (self.s, clock::now());
        let old_dir = path::entry(s, self.from.dir, self.from.hint)?;
        let old = files::find(s, &old_dir, self.from.name())?.ok_or(Error::NotFound)?;
        if self.flags & RENAME_NOREPLACE == 0 {
            // A value that is replaced is a file, too, before any lock is taken.
            let new_dir = path::entry(s, self.to.dir, self.to.hint)?;
            if files::is_keyspace(&new_dir) {
                files::find(s, &new_dir, self.to.name())?;
            }
        }
        self.long_content_first(&old)?;
        let topology = self.from.dir != self.to.dir || old.kind == KIND_DIR || self.exchange();
        let rename_lock = &s.header().rename_lock;
        let _renames = topology
            .then(|| lock::acquire(s, rename_lock))
            .transpose()?;
        let new_dir = path::entry(s, self.to.dir, self.to.hint)?;
        let new = dentry_table::lookup(s, &new_dir, self.to.name())?;
        self.check_names(&old, new.as_ref())?;
        self.check_ancestors(&old, new.as_ref())?;
        let new_ino = new.map_or(0, |n| n.ino);
        let inos = [self.from.dir, self.to.dir, old.ino, new_ino];
        let locked = match inode_table::lock_many(s, inos) {
            // One of them lost its last name since it was looked up.
            Err(Error::NotFound) => return Ok(false),
            other => other?,
        };
        let find = |ino| locked.iter().flatten().find(|l| l.ino == ino);
        let (Some(old_dir), Some(new_dir)) = (find(self.from.dir), find(self.to.dir)) else {
            return Err(Error::NotFound);
        };
        let now = dentry_table::lookup_locked(s, new_dir, self.to.name())?;
        if !still_refers(s, old_dir, self.from.name(), &old)? || now.map_or(0, |n| n.ino) != new_ino
        {
            return Ok(false);
        }
        let object = find(old.ino).ok_or(Error::Busy)?;
        let held = match new {
            None => files::hold(s, new_dir, self.to.name()),
            Some(_) => Ok(None),
        };
        let _no_value = match held {
            // Next time it is a file.
            Err(Error::Exists) if self.flags & RENAME_NOREPLACE == 0 => return Ok(false),
            held => held?,
        };
        self.locked(old_dir, new_dir, object, find(new_ino), time)?;
        Ok(true)
    }

    /// Existence and trailing slashes.
    fn check_names(&self, old: &Found, new: Option<&Found>) -> Result<()> {
        if self.flags & RENAME_NOREPLACE != 0 && new.is_some() {
            return Err(Error::Exists);
        }
        if self.exchange() {
            let new = new.ok_or(Error::NotFound)?;
            if self.to.slash && new.kind != KIND_DIR {
                return Err(Error::NotDirectory);
            }
        }
        if old.kind != KIND_DIR && (self.from.slash || (self.to.slash && !self.exchange())) {
            return Err(Error::NotDirectory);
        }
        Ok(())
    }

    /// Neither object may be above the other's directory.
    fn check_ancestors(&self, old: &Found, new: Option<&Found>) -> Result<()> {
        if self.from.dir == self.to.dir {
            return Ok(());
        }
        if old.kind == KIND_DIR && is_above(self.s, old.ino, self.to.dir)? {
            return Err(Error::Invalid);
        }
        match new {
            Some(new) if new.kind == KIND_DIR && is_above(self.s, new.ino, self.from.dir)? => {
                Err(if self.exchange() {
                    Error::Invalid
                } else {
                    Error::NotEmpty
                })
            }
            _ => Ok(()),
        }
    }

    fn locked(
        &self,
        old_dir: &LockedInode,
        new_dir: &LockedInode,
        object: &LockedInode,
        target: Option<&LockedInode>,
        time: i64,
    ) -> Result<()> {
        let s = self.s;
        if target.is_some_and(|t| t.ino == object.ino) {
            return Ok(());
        }
        let od = inode_table::attrs(s, old_dir)?;
        let nd = inode_table::attrs(s, new_dir)?;
        let a = inode_table::attrs(s, object)?;
        let t = target.map(|t| inode_table::attrs(s, t)).transpose()?;
        self.check_rights(&od, &nd, &a, t.as_ref())?;
        if !is_legal_name(self.to.name()) {
            return Err(Error::Invalid);
        }
        let removal = match (target, &t) {
            (Some(target), Some(t)) if !self.exchange() => {
                Some(Removal::begin(target, t.nlink, perm::is_dir(t)))
            }
            _ => None,
        };
        let drops = self.drops && target.is_some_and(|t| files::is_keyspace(t));
        let kept = match (&removal, target) {
            (Some(_), Some(_)) if drops => files::wait_for_changes(s).map(drop),
            (Some(_), Some(target)) => files::check_no_values(s, target),
            _ => Ok(()),
        };
        let flags = match self.exchange() {
            true => records::RENAME_EXCHANGE,
            false if drops => removal.as_ref().map_or(0, |r| r.flags) | records::DROP_VALUES,
            false => removal.as_ref().map_or(0, |r| r.flags),
        };
        let record = Record::Rename {
            old_parent: old_dir.ino,
            new_parent: new_dir.ino,
            ino: object.ino,
            replaced: target.map_or(0, |t| t.ino),
            flags,
            time,
            old_name: self.from.name(),
            new_name: self.to.name(),
        };
        let ready = kept.and_then(|()| self.content_first(object, target));
        let commit = |()| match drops {
            true => commit_dropping(s, &record),
            false => journal::commit(s, &record),
        };
        let committed = ready.and_then(commit);
        match removal {
            Some(removal) => removal.finish(committed),
            None => committed.map(|_| ()),
        }
    }

    /// A file that takes another one's place has its content wherever the name is found: programs
    /// rename without fsync and rely on that.
    fn content_first(&self, object: &LockedInode, target: Option<&LockedInode>) -> Result<()> {
        let replaces = target.is_some() && !self.exchange();
        match replaces && durable::is_needed(self.s) && is_file(object.e.mode.load(Relaxed)) {
            true => durable::before_records(self.s, object),
            false => Ok(()),
        }
    }

    /// The same where it may take long, before anything is locked that others wait for.
    fn long_content_first(&self, old: &Found) -> Result<()> {
        let s = self.s;
        if !durable::is_needed(s) || self.exchange() || old.kind != KIND_FILE {
            return Ok(());
        }
        let new_dir = path::entry(s, self.to.dir, self.to.hint)?;
        if dentry_table::lookup(s, &new_dir, self.to.name())?.is_none() {
            return Ok(());
        }
        match pin::pin(s, old.ino) {
            Ok(inode) => {
                let done = durable::place_first(s, &inode);
                done.and(close::put_inode(s, &inode))
            }
            // It went meanwhile.
            Err(Error::NotFound) => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn check_rights(
        &self,
        old_dir: &Attrs,
        new_dir: &Attrs,
        object: &Attrs,
        target: Option<&Attrs>,
    ) -> Result<()> {
        let (s, who, is_dir) = (self.s, self.who, perm::is_dir(object));
        perm::may_delete(s, who, old_dir, object)?;
        match target {
            None => perm::may_create(s, who, new_dir)?,
            Some(t) => {
                perm::may_delete(s, who, new_dir, t)?;
                if !self.exchange() {
                    check_replaced(is_dir, t)?;
                }
            }
        }
        if old_dir.project != new_dir.project {
            return Err(Error::OtherQuota);
        }
        if old_dir.ino != new_dir.ino {
            self.check_move(new_dir, object, target)?;
        }
        match target {
            Some(t) if !self.exchange() && perm::is_dir(t) && t.entries != 0 => {
                Err(Error::NotEmpty)
            }
            _ => Ok(()),
        }
    }

    /// What moves as a directory gets another `..`.
    fn check_move(&self, new_dir: &Attrs, object: &Attrs, target: Option<&Attrs>) -> Result<()> {
        let (s, who, is_dir) = (self.s, self.who, perm::is_dir(object));
        if is_dir {
            perm::check(s, who, object, W_OK)?;
        }
        match target {
            Some(t) if self.exchange() && perm::is_dir(t) => perm::check(s, who, t, W_OK)?,
            _ => {}
        }
        let replaces_dir = target.is_some_and(perm::is_dir);
        if is_dir && !replaces_dir && new_dir.nlink >= LINK_MAX {
            return Err(Error::TooManyLinks);
        }
        Ok(())
    }
}

fn check_replaced(is_dir: bool, target: &Attrs) -> Result<()> {
    match (is_dir, perm::is_dir(target)) {
        (true, false) => Err(Error::NotDirectory),
        (false, true) => Err(Error::IsDirectory),
        _ => Ok(()),
    }
}

/// Whether directory `upper` is `lower` or above it. The rename lock is held.
fn is_above(s: &Session, upper: u64, lower: u64) -> Result<bool> {
    let mut at = lower;
    for _ in 0..DEPTH_MAX {
        if at == upper {
            return Ok(true);
        }
        if at == ROOT || at == 0 {
            return Ok(false);
        }
        at = path::attributes(s, at, 0)?.1.parent;
    }
    // The service would refuse it.
    Err(Error::Loop)
}
