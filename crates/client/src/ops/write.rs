//! Writing files.
//!
//! Invariants:
//!  * One writer at a time holds the inode; readers hold nothing. New blocks join the file after
//!    their bytes are there (`data::adopt`), and the size rises after the bytes below it are.
//!  * `posix`: overwrites are in place; size and times become dirty. `sync`: both are journaled
//!    before the call returns. `strict`: in addition, each write happens as a whole or not at all.
//!  * What a call reports as written is written; bad memory of the caller ends it early.

use crate::base::abi::*;
use crate::base::clock;
use crate::base::error::{Error, Result};
use crate::content::file::{self, File};
use crate::content::in_place::write_locked;
use crate::content::source::{Source, Write};
use crate::content::{durable, lent, perm, strict};
use crate::journal;
use crate::ops::client::Client;
use crate::ops::read::TRANSFER_MAX;
use crate::session::lock;
use crate::session::{OfdLink, STRICT, SYNC, Session};
use crate::tables::inode_table::{self, LockedInode};
use pmem::ConstBuf;
use pmem::atomic::Ordering::*;
use pool::journal::{Record, SET_CTIME, SET_MODE};
use pool::layout::FILE_SIZE_MAX;

/// Where a write begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    At(u64),
    End,
}

#[inline]
pub(crate) fn pwrite(c: &Client, ofd: OfdLink, bytes: ConstBuf, offset: i64) -> Result<usize> {
    let offset = file::offset(offset)?;
    let file = File::writable(&c.session, ofd)?;
    file.check_regular()?;
    file.check_direct(offset, bytes.addr(), bytes.len())?;
    // As on Linux, O_APPEND wins over the offset.
    let place = if file.flags & O_APPEND == 0 {
        Place::At(offset)
    } else {
        Place::End
    };
    Ok(write_to(&file, &mut Source::new(&[bytes]), place, file.flags)?.0)
}

#[inline]
pub(crate) fn write(c: &Client, ofd: OfdLink, bytes: ConstBuf) -> Result<usize> {
    let file = File::writable(&c.session, ofd)?;
    file.check_regular()?;
    file.check_direct(0, bytes.addr(), bytes.len())?;
    at_position(&file, &mut Source::new(&[bytes]), file.flags)
}

pub(crate) fn writev(
    c: &Client,
    ofd: OfdLink,
    bytes: &[ConstBuf],
    offset: Option<i64>,
    rwf: u32,
) -> Result<usize> {
    let offset = offset.map(file::offset).transpose()?;
    let file = File::writable(&c.session, ofd)?;
    let len = bytes.iter().map(|part| part.len());
    if !file.takes_vectors(len.fold(0, usize::saturating_add), offset, rwf)? {
        return Ok(0);
    }
    file.check_regular()?;
    let mut flags = file.flags;
    flags |= if rwf & RWF_APPEND != 0 { O_APPEND } else { 0 };
    flags &= if rwf & RWF_NOAPPEND != 0 {
        !O_APPEND
    } else {
        !0
    };
    flags |= if rwf & (RWF_DSYNC | RWF_SYNC) != 0 {
        O_DSYNC
    } else {
        0
    };
    let mut source = Source::new(bytes);
    match offset {
        None => at_position(&file, &mut source, flags),
        Some(_) if flags & O_APPEND != 0 => Ok(write_to(&file, &mut source, Place::End, flags)?.0),
        Some(offset) => Ok(write_to(&file, &mut source, Place::At(offset), flags)?.0),
    }
}

/// Writes at the file offset and moves it.
#[inline]
pub(crate) fn at_position(file: &File, source: &mut Source, flags: u32) -> Result<usize> {
    let position = &file.ofd.offset;
    if flags & O_APPEND != 0 {
        let (n, end) = write_to(file, source, Place::End, flags)?;
        if n > 0 {
            position.store(end, Release);
        }
        return Ok(n);
    }
    let now = clock::now();
    let _moving = lock::acquire(file.s, &file.ofd.lock)?;
    let offset = position.load(Acquire);
    let (n, end) = write_at_time(file, source, Place::At(offset), flags, now)?;
    if n > 0 {
        position.store(end, Release);
    }
    Ok(n)
}

/// Writes all of `source`: how much, and the offset after it.
#[inline]
pub(crate) fn write_to(
    file: &File,
    source: &mut Source,
    place: Place,
    flags: u32,
) -> Result<(usize, u64)> {
    write_at_time(file, source, place, flags, clock::now())
}

#[inline]
fn write_at_time(
    file: &File,
    source: &mut Source,
    place: Place,
    flags: u32,
    now: i64,
) -> Result<(usize, u64)> {
    let s = file.s;
    let inode = inode_table::lock_to_store(s, file.inode)?;
    let offset = match place {
        Place::At(offset) => offset,
        Place::End => inode.e.size.load(Relaxed),
    };
    let n = source.len().min(TRANSFER_MAX);
    if n == 0 {
        return Ok((0, offset));
    }
    let limit = s.file_limit().min(FILE_SIZE_MAX);
    if offset >= limit {
        return Err(if limit < FILE_SIZE_MAX {
            Error::OverLimit
        } else {
            Error::FileTooLarge
        });
    }
    let n = (n as u64).min(limit - offset) as usize;
    lent::check(s, &inode)?;
    drop_privileges(s, &inode, now)?;
    let write = Write {
        source,
        offset,
        n,
        now,
    };
    let written = match s.consistency() {
        STRICT.. => strict::write(s, &inode, write)?,
        _ => write_locked(s, &inode, write)?,
    };
    if lent::is_lent(inode.e) {
        lent::copy_out(s, &inode, offset, offset + written as u64)?;
    }
    if s.consistency() >= SYNC || flags & O_DSYNC != 0 {
        durable::now(s, inode)?;
    }
    Ok((written, offset + written as u64))
}

/// A write by someone without privilege takes set-id bits away.
#[inline]
fn drop_privileges(s: &Session, inode: &LockedInode, now: i64) -> Result<()> {
    let mode = inode.e.mode.load(Relaxed);
    if perm::mode_after_write(mode) == mode {
        return Ok(());
    }
    drop_privileges_slow(s, inode, now)
}

#[cold]
pub(crate) fn drop_privileges_slow(s: &Session, inode: &LockedInode, now: i64) -> Result<()> {
    let a = inode_table::attrs(s, inode)?;
    let mode = perm::mode_after_write(a.mode);
    if mode == a.mode || s.is_for_root() {
        return Ok(());
    }
    let record = Record::SetAttr {
        ino: a.ino,
        mask: SET_MODE | SET_CTIME,
        mode,
        uid: a.uid,
        gid: a.gid,
        atime: a.atime,
        mtime: a.mtime,
        ctime: now,
    };
    journal::commit(s, &record).map(|_| ())
}

/// How much of `len` bytes RLIMIT_FSIZE lets a write take, at `at` or at the file offset.
pub(crate) fn within_limit(c: &Client, ofd: OfdLink, at: Option<i64>, len: usize) -> Result<usize> {
    let s = &c.session;
    let limit = s.file_limit();
    if limit == u64::MAX {
        return Ok(len);
    }
    let file = File::writable(s, ofd)?;
    let at = match at {
        _ if file.flags & O_APPEND != 0 => inode_table::attrs(s, &file.inode)?.size,
        Some(at) => file::offset(at)?,
        None => file.ofd.offset.load(Acquire),
    };
    match limit.checked_sub(at) {
        None | Some(0) => Err(Error::OverLimit),
        Some(room) => Ok(len.min(usize::try_from(room).unwrap_or(len))),
    }
}
