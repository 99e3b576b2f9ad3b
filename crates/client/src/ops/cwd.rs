//! The working directory of the process, and paths of open objects.
//!
//! Invariant: a working directory in the pool is pinned, so it stays an inode even when removed.

use crate::base::abi::X_OK;
use crate::base::error::{Error, Result};
use crate::base::types::{Base, Caller};
use crate::content::close;
use crate::content::file::File;
use crate::content::perm;
use crate::content::pin;
use crate::ops::client::Client;
use crate::ops::path::{self, End, ROOT, Walk};
use crate::session::{OfdLink, Session};
use crate::tables::dentry_table;
use crate::tables::inode_table::{self, InodeRef};
use crate::values::opened;
use pmem::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use pool::layout::NAME_MAX;
use pool::session::{INODE_ORPHAN, INODE_VALUE};

pub(crate) fn chdir(c: &Client, who: &Caller, base: Base, path: &[u8]) -> Result<()> {
    let s = &c.session;
    let at = Walk::new(s, &c.at, who).walk(base, path, End::Follow)?;
    if at.value.is_some() {
        return Err(Error::NotDirectory);
    }
    let found = at.object()?;
    if let Some(open) = already_pinned(s, found.ino) {
        return enter(s, who, &open);
    }
    let inode = pin::pin(s, found.ino)?;
    let entered = enter(s, who, &inode);
    close::put_inode(s, &inode)?;
    entered
}

/// The present working directory, which may be removed but can be entered again.
fn already_pinned(s: &Session, ino: u64) -> Option<InodeRef<'_>> {
    (s.directory_slot().ok()?.cwd.load(Relaxed) == ino).then(|| inode_table::find(s, ino))?
}

pub(crate) fn fchdir(c: &Client, who: &Caller, ofd: OfdLink) -> Result<()> {
    enter(&c.session, who, &File::any(&c.session, ofd)?.inode)
}

/// The caller has `inode` pinned.
fn enter(s: &Session, who: &Caller, inode: &InodeRef) -> Result<()> {
    let a = inode_table::attrs(s, inode)?;
    if !perm::is_dir(&a) {
        return Err(Error::NotDirectory);
    }
    perm::check(s, who, &a, X_OK)?;
    inode.e.opens.fetch_add(1, SeqCst);
    replace(s, inode.ino)
}

fn replace(s: &Session, ino: u64) -> Result<()> {
    match s.directory_slot()?.cwd.swap(ino, AcqRel) {
        0 => Ok(()),
        old => match inode_table::find(s, old) {
            Some(inode) => close::put_inode(s, &inode),
            None => Ok(()),
        },
    }
}

pub(crate) fn chdir_outside(c: &Client) -> Result<()> {
    match c.session.directory_slot()?.cwd.load(Relaxed) {
        0 => Ok(()),
        _ => replace(&c.session, 0),
    }
}

pub(crate) fn cwd_inside(c: &Client) -> bool {
    let slot = c.session.directory_slot();
    slot.is_ok_and(|slot| slot.cwd.load(Relaxed) != 0)
}

pub(crate) fn getcwd(c: &Client, out: &mut [u8]) -> Result<usize> {
    let s = &c.session;
    let ino = match s.directory_slot()?.cwd.load(Relaxed) {
        0 => return Err(Error::NotFound),
        ino => ino,
    };
    let mut path = Backwards::new(out);
    if is_removed(s, ino)? {
        return Err(Error::NotFound);
    }
    whole_path(s, ino, &mut path)?;
    Ok(path.finish())
}

/// As `directory_path`, with `/` for the root.
fn whole_path(s: &Session, ino: u64, path: &mut Backwards) -> Result<()> {
    if ino == ROOT {
        path.push(b"/")
    } else {
        directory_path(s, ino, path)
    }
}

fn is_removed(s: &Session, ino: u64) -> Result<bool> {
    let (inode, a) = path::attributes(s, ino, 0)?;
    let marked = inode.e.state.load(Acquire) & INODE_ORPHAN != 0;
    Ok(a.nlink == 0 || marked && inode_table::is_gone(s, ino)?)
}

pub(crate) fn path_of(c: &Client, ofd: OfdLink, out: &mut [u8]) -> Result<usize> {
    let s = &c.session;
    let file = File::any(s, ofd)?;
    let a = inode_table::attrs(s, &file.inode)?;
    let mut path = Backwards::new(out);
    if perm::is_dir(&a) {
        if a.nlink == 0 {
            path.push(b" (deleted)")?;
        }
        whole_path(s, a.ino, &mut path)?;
        return Ok(path.finish());
    }
    let mut name = [0; NAME_MAX];
    let stored = (file.ofd.name_len.load(Relaxed) as usize).min(file.ofd.name.len());
    name.iter_mut()
        .zip(&file.ofd.name)
        .for_each(|(to, from)| *to = from.load(Relaxed));
    let (name, parent) = (&name[..stored], file.ofd.parent.load(Relaxed));
    let named = match a.state & INODE_VALUE {
        0 => leads_to(s, parent, name, a.ino),
        _ => opened::is_current(s, &file.inode)?,
    };
    if !named {
        path.push(b" (deleted)")?;
    }
    if !name.is_empty() {
        path.push(name)?;
        path.push(b"/")?;
    }
    match directory_path(s, parent, &mut path) {
        // The directory is gone, too: the name is the best there is.
        Err(Error::NotFound) => {}
        other => other?,
    }
    Ok(path.finish())
}

fn leads_to(s: &Session, parent: u64, name: &[u8], ino: u64) -> bool {
    if name.is_empty() {
        return false;
    }
    let Ok(dir) = inode_table::get(s, parent) else {
        return false;
    };
    matches!(dentry_table::lookup(s, &dir, name), Ok(Some(found)) if found.ino == ino)
}

/// Puts the absolute path of directory `ino` before what is there; nothing for the root.
fn directory_path(s: &Session, mut ino: u64, path: &mut Backwards) -> Result<()> {
    while ino != ROOT {
        let (inode, a) = path::attributes(s, ino, 0)?;
        let mut name = [0; NAME_MAX];
        let len = inode_table::dir_name(s, &inode, &mut name)?;
        path.push(name.get(..len).ok_or(Error::Range)?)?;
        path.push(b"/")?;
        ino = a.parent;
    }
    Ok(())
}

/// A path that grows to the left.
struct Backwards<'a> {
    out: &'a mut [u8],
    start: usize,
}

impl<'a> Backwards<'a> {
    fn new(out: &'a mut [u8]) -> Self {
        let start = out.len();
        Backwards { out, start }
    }

    fn push(&mut self, part: &[u8]) -> Result<()> {
        let start = self.start.checked_sub(part.len()).ok_or(Error::Range)?;
        self.out[start..self.start].copy_from_slice(part);
        self.start = start;
        Ok(())
    }

    /// Moves it to the start of the buffer; its length.
    fn finish(self) -> usize {
        let len = self.out.len() - self.start;
        self.out.copy_within(self.start.., 0);
        len
    }
}
