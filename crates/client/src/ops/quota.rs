//! Quotas: setting them, taking them away, and having what is below a directory count for its own.
//!
//! Invariants:
//!  * The table of quotas changes under the lock of the root, as a whole attribute in one record.
//!  * A directory counts before what is in it does: what is made in it from then on counts too, and
//!    nothing leaves it. So one look at its names finds all that does not count yet.

use crate::base::clock;
use crate::base::error::{Error, Result};
use crate::base::types::{Base, Caller};
use crate::content::perm;
use crate::journal;
use crate::ops::client::Client;
use crate::ops::path::{self, KIND_DIR, ROOT, Walk};
use crate::ops::{writeback, xattr};
use crate::session::quota::{self, QuotaInfo};
use crate::session::{Session, drain};
use crate::tables::inode_table;
use alloc::vec::Vec;
use pmem::atomic::Ordering::{Acquire, Relaxed};
use pool::journal::{PROJECT_SHIFT, Record, SET_PROJECT};
use pool::quota::{self as table, QUOTA_PAGES, QUOTAS_PER_PAGE, Quota, Subject};

/// All quotas and what is taken of them, in no order, once the trees have what was set before and
/// all values.
pub(crate) fn list(s: &Session) -> Result<Vec<QuotaInfo>> {
    wait_for(s, None)?;
    quota::settles(s);
    Ok(quota::all(s).map(|(_, info)| info).collect())
}

/// Waits until the service knows record `seq`, or all there are about the root.
fn wait_for(s: &Session, seq: Option<u64>) -> Result<()> {
    let seq = match seq {
        Some(seq) => seq,
        None => inode_table::get(s, ROOT)?.e.seq.load(Acquire),
    };
    drain::wait_applied(s, seq)
}

/// What the attribute with page `page` of the table says.
fn read_page(s: &Session, page: usize) -> Result<table::Page> {
    match s.tree().xattr(ROOT, &table::page_name(page))? {
        Some(bytes) => Ok(table::decode_page(&bytes).map_err(pool::Error::from)?),
        None => Ok([None; QUOTAS_PER_PAGE]),
    }
}

/// Sets the quota, or takes that of `subject` away; its place. `TooManyQuotas`: there are as
/// many as there may be. `NotFound`: there is none to be taken away.
pub(crate) fn change(s: &Session, subject: Subject, new: Option<Quota>) -> Result<usize> {
    s.check_writable()?;
    let locked = inode_table::lock(s, ROOT)?;
    wait_for(s, Some(locked.e.seq.load(Acquire)))?;
    let (mut found, mut free) = (None, None);
    for page in 0..QUOTA_PAGES {
        for (at, quota) in read_page(s, page)?.iter().enumerate() {
            let place = page * QUOTAS_PER_PAGE + at;
            match quota {
                Some(quota) if quota.subject == subject => found = Some(place),
                None if free.is_none() => free = Some(place),
                _ => {}
            }
        }
    }
    let place = match (found, new) {
        (Some(place), _) => place,
        (None, Some(_)) => free.ok_or(Error::TooManyQuotas)?,
        (None, None) => return Err(Error::NotFound),
    };
    let page = place / QUOTAS_PER_PAGE;
    let (mut quotas, name) = (read_page(s, page)?, table::page_name(page));
    quotas[place % QUOTAS_PER_PAGE] = new;
    if !xattr::exists(s, &locked, &name)? && xattr::is_full(s, &locked)? {
        return Err(Error::TooManyQuotas);
    }
    let record = Record::SetXattr {
        ino: ROOT,
        time: clock::now(),
        name: &name,
        value: &table::encode_page(&quotas),
    };
    let seq = journal::commit(s, &record)?;
    drop(locked);
    wait_for(s, Some(seq))?;
    Ok(place)
}

/// Has the directory and all that is below it count for the quota at `place`, or, with `None`, for
/// none.
pub(crate) fn assign(s: &Session, directory: u64, place: Option<usize>) -> Result<()> {
    let project = place.map_or(0, quota::project);
    let mut left = Vec::new();
    let Some(mut applied) = assign_one(s, directory, project)? else {
        return Ok(());
    };
    left.push(directory);
    while let Some(directory) = left.pop() {
        drain::wait_applied(s, applied)?;
        let mut names = Vec::new();
        s.tree().each_dirent(directory, 0, &mut |_, entry, _| {
            names.push(entry);
            Ok(true)
        })?;
        for entry in names {
            let seq = assign_one(s, entry.ino, project)?;
            applied = seq.unwrap_or(0).max(applied);
            if entry.kind == KIND_DIR && seq.is_some() {
                left.push(entry.ino);
            }
        }
    }
    Ok(())
}

/// Has nothing count for the quota at `place` any more: also what has names only outside of the
/// directory by now, or none at all. Else it would count for the next directory whose quota is
/// there.
fn unmark(s: &Session, place: usize) -> Result<()> {
    drain::wait_applied(s, s.header().next_seq.load(Acquire).saturating_sub(1))?;
    for ino in s.tree().inodes_of(quota::project(place))? {
        assign_one(s, ino, 0)?;
    }
    Ok(())
}

/// The number of the record after which the object counts so; `None`: it is gone.
fn assign_one(s: &Session, ino: u64, project: u16) -> Result<Option<u64>> {
    let locked = match inode_table::lock(s, ino) {
        Ok(locked) => locked,
        Err(Error::NotFound) => return Ok(None),
        Err(e) => return Err(e),
    };
    let e = locked.e;
    if e.project.load(Relaxed) == project {
        return Ok(Some(e.seq.load(Acquire)));
    }
    let record = Record::SetAttr {
        ino,
        mask: SET_PROJECT | u32::from(project) << PROJECT_SHIFT,
        mode: 0,
        uid: 0,
        gid: 0,
        atime: 0,
        mtime: 0,
        ctime: 0,
    };
    journal::commit(s, &record).map(Some)
}

/// A directory with a quota that is `directory`, above it or below it, but not itself.
pub(crate) fn nested(s: &Session, directory: u64) -> Result<Option<u64>> {
    let limited: Vec<u64> = quota::all(s)
        .filter_map(|(_, info)| match info.quota.subject {
            Subject::Directory(ino) if ino != directory => Some(ino),
            _ => None,
        })
        .collect();
    for &ino in &limited {
        if is_above(s, ino, directory)? || is_above(s, directory, ino)? {
            return Ok(Some(ino));
        }
    }
    Ok(None)
}

/// Whether directory `upper` is above `lower`, which may be gone.
fn is_above(s: &Session, upper: u64, lower: u64) -> Result<bool> {
    let mut at = lower;
    while at != ROOT {
        at = match path::attributes(s, at, 0) {
            Ok((_, a)) if a.parent != 0 => a.parent,
            Ok(_) | Err(Error::NotFound) => return Ok(false),
            Err(e) => return Err(e),
        };
        if at == upper {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The directory at `path`.
pub(crate) fn directory(c: &Client, who: &Caller, path: &[u8]) -> Result<Subject> {
    let a = Walk::new(&c.session, &c.at, who).attributes(Base::Root, path, 0)?;
    match perm::is_dir(&a) {
        true => Ok(Subject::Directory(a.ino)),
        false => Err(Error::NotDirectory),
    }
}

/// The path of a directory from the root of the pool; `NotFound`: it is gone.
pub(crate) fn path_of(s: &Session, directory: u64) -> Result<Vec<u8>> {
    let (mut at, mut parts) = (directory, Vec::new());
    while at != ROOT {
        let (_, a) = path::attributes(s, at, 0)?;
        if a.nlink == 0 {
            return Err(Error::NotFound);
        }
        let locked = inode_table::get(s, at)?;
        drain::wait_applied(s, locked.e.seq.load(Acquire))?;
        let mut name = [0; pool::layout::NAME_MAX];
        let len = s.tree().tail(at, &mut name)?.ok_or(Error::NotFound)?;
        parts.push(name[..len].to_vec());
        at = a.parent;
    }
    let mut path = Vec::new();
    for part in parts.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(part);
    }
    if path.is_empty() {
        path.push(b'/');
    }
    Ok(path)
}

/// Sets a quota, in place of an earlier one of the same subject.
pub(crate) fn set(s: &Session, quota: Quota) -> Result<()> {
    forget_gone(s)?;
    let partial = match quota.subject {
        Subject::User(_) => false,
        Subject::Directory(ino) => {
            if nested(s, ino)?.is_some() {
                return Err(Error::NestedQuota);
            }
            let is_whole = |info: &QuotaInfo| {
                let quota = &info.quota;
                quota.subject == Subject::Directory(ino) && !quota.partial
            };
            !quota::all(s).any(|(_, info)| is_whole(&info))
        }
    };
    // The service begins with what it knows: what is dirty now is to be in that.
    writeback::all(s)?;
    let place = change(s, quota.subject, Some(Quota { partial, ..quota }))?;
    let Subject::Directory(ino) = quota.subject else {
        return Ok(());
    };
    if !partial {
        return Ok(());
    }
    assign(s, ino, Some(place))?;
    change(s, quota.subject, Some(quota)).map(drop)
}

/// Takes a quota away. `NotFound`: there is none.
pub(crate) fn remove(s: &Session, subject: Subject) -> Result<()> {
    wait_for(s, None)?;
    let mut found = quota::all(s).map(|(_, info)| info.quota);
    let quota = found.find(|quota| quota.subject == subject);
    let quota = quota.ok_or(Error::NotFound)?;
    if let Subject::Directory(ino) = subject {
        // Should this end early, it can be set or taken away again.
        let partial = true;
        let place = change(s, subject, Some(Quota { partial, ..quota }))?;
        assign(s, ino, None)?;
        unmark(s, place)?;
    }
    change(s, subject, None).map(drop)
}

/// Takes the quotas of directories away that do not exist any more.
fn forget_gone(s: &Session) -> Result<()> {
    wait_for(s, None)?;
    let all: Vec<_> = quota::all(s).collect();
    for (place, info) in all {
        let subject = info.quota.subject;
        if let Subject::Directory(ino) = subject
            && matches!(path_of(s, ino), Err(Error::NotFound))
        {
            unmark(s, place)?;
            change(s, subject, None)?;
        }
    }
    Ok(())
}
