//! Writing files.
//!
//! Invariants:
//!  * One writer at a time holds the inode; readers hold nothing. New blocks join the file after
//!    their bytes are there (`data::adopt`), and the size rises after the bytes below it are.
//!  * `posix`: overwrites go in place, size and times are lazy. `sync`: they are journaled before
//!    the call returns. `strict`: also, each write happens as a whole or not at all.
//!  * What a call reports as written is written; bad memory of the caller ends it early.

use crate::abi::*;
use crate::api::Client;
use crate::block_map::{self, Run};
use crate::data::{self, NewRun};
use crate::error::{Error, Result};
use crate::file::{self, File};
use crate::inode_table::{self, LockedInode};
use crate::read::{TRANSFER_MAX, later};
use crate::session::{BLOCK, OfdLink, Session};
use crate::{clock, cold, cow, dirty_range, durable, journal, lock, perm, strict};
use core::sync::atomic::Ordering::*;
use pmem::{ConstBuf, Fault};
use pool::journal::{Record, SET_CTIME, SET_MODE};
use pool::layout::FILE_SIZE_MAX;
use pool::session::{INODE_DIRTY, INODE_INLINE};

/// Values of `Session::consistency`.
const SYNC: u32 = 1;
pub(crate) const STRICT: u32 = 2;

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
    let known = RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_NOWAIT | RWF_APPEND | RWF_NOAPPEND;
    if rwf & !known != 0 {
        return Err(Error::NotSupported);
    }
    let offset = offset.map(file::offset).transpose()?;
    let file = File::writable(&c.session, ofd)?;
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
    drop_privileges(s, &inode, now)?;
    let written = match s.consistency() {
        STRICT.. => strict::write(s, &inode, source, offset, n, now)?,
        _ => write_locked(s, &inode, source, offset, n, now)?,
    };
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
    if mode == a.mode || rustix::process::geteuid().is_root() {
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

/// Writes `n` bytes in place; size and times become lazy.
pub(crate) fn write_locked(
    s: &Session,
    inode: &LockedInode,
    source: &mut Source,
    offset: u64,
    n: usize,
    now: i64,
) -> Result<usize> {
    let e = inode.e;
    if e.state.load(Relaxed) & INODE_INLINE != 0 {
        data::leave_inline(s, inode)?;
    }
    let size = e.size.load(Relaxed);
    data::zero_gap(s, inode, size, offset)?;
    let (done, end) = copy_runs(s, inode, source, offset, n, (size, now));
    if done == 0 {
        return end.map(|()| 0);
    }
    s.data().fence();
    let grows = offset + done as u64 > size;
    if grows {
        e.size.store(offset + done as u64, Release);
    }
    // A clean file that was written in this very tick of the clock stays clean: what would be
    // journaled is in the journal already.
    let now = now as u64;
    if grows || e.mtime.load(Relaxed) != now || e.ctime.load(Relaxed) != now {
        e.mtime.store(now, Relaxed);
        e.ctime.store(now, Relaxed);
        if e.state.load(Relaxed) & INODE_DIRTY == 0 {
            e.state.fetch_or(INODE_DIRTY, Release);
        }
    }
    Ok(done)
}

/// Copies run by run: how much, and why it stopped early.
fn copy_runs(
    s: &Session,
    inode: &LockedInode,
    source: &mut Source,
    offset: u64,
    n: usize,
    (size, now): (u64, i64),
) -> (usize, Result<()>) {
    let mut done = 0;
    while done < n {
        let at = offset + done as u64;
        let (file_block, skip) = (at / BLOCK, at % BLOCK);
        let blocks = (skip + (n - done) as u64).div_ceil(BLOCK);
        let copied = match block_map::lookup_run_locked(s, inode, file_block, blocks) {
            Ok(Run::Blocks {
                shared: true, len, ..
            }) if !cow::must_stay(inode) => {
                let want = (n - done).min((len * BLOCK - skip) as usize);
                match cow::write(s, inode, source, at, want, now) {
                    Ok(copied) => (copied, Ok(())),
                    Err(e) => (0, Err(e)),
                }
            }
            Ok(Run::Blocks { block, len, .. }) => {
                let want = (n - done).min((len * BLOCK - skip) as usize);
                let end = (at + want as u64).div_ceil(BLOCK);
                dirty_range::widen(s, inode.e, file_block, end);
                source.copy_in(s, inode, block * BLOCK + skip, want, cold::overwrite)
            }
            Ok(Run::Hole(len)) => {
                let growing = at + (n - done) as u64 >= size;
                match data::new_run(s, inode, file_block, len.min(blocks), growing) {
                    Ok(run) => fill(s, inode, source, run, at, n - done, size),
                    Err(e) => (0, Err(e)),
                }
            }
            Err(e) => (0, Err(e)),
        };
        done += copied.0;
        if copied.1.is_err() {
            return (done, copied.1);
        }
    }
    (done, Ok(()))
}

/// Fills a new run with bytes for `at..` of the file, zeroes around them, and adopts it.
fn fill(
    s: &Session,
    inode: &LockedInode,
    source: &mut Source,
    run: NewRun,
    at: u64,
    n: usize,
    size: u64,
) -> (usize, Result<()>) {
    let start = run.file_block * BLOCK;
    let bytes = u64::from(run.len) * BLOCK;
    let skip = at - start;
    let want = n.min((bytes - skip) as usize);
    let (copied, end) = source.copy_in(s, inode, run.block * BLOCK + skip, want, cold::copy_in);
    if copied == 0 {
        data::give_up(s, run);
        return (0, end);
    }
    let after = skip + copied as u64;
    let head = s.data().zero_nt(run.block * BLOCK, skip as usize);
    // Beyond the end of the file anything may be there, unless somebody has it mapped, or a power
    // cut may bring a size back without the bytes below it.
    let shows = inode.e.maps.load(Relaxed) > 0 || durable::is_needed(s);
    let visible = start + after < size || copied < want || shows;
    let rest = if visible { (bytes - after) as usize } else { 0 };
    let tail = s.data().zero_nt(run.block * BLOCK + after, rest);
    let ready = head.and(tail).map_err(Error::from);
    match ready.and_then(|()| data::adopt(s, inode, run)) {
        Ok(()) => (copied, end),
        Err(e) => {
            data::give_up(s, run);
            (0, Err(e))
        }
    }
}

/// The caller's bytes, taken from the front.
pub(crate) struct Source<'a> {
    bufs: &'a [ConstBuf<'a>],
    /// The next buffer, and how much of it is taken.
    first: usize,
    skip: usize,
}

impl<'a> Source<'a> {
    #[inline]
    pub fn new(bufs: &'a [ConstBuf<'a>]) -> Source<'a> {
        Source {
            bufs,
            first: 0,
            skip: 0,
        }
    }

    /// Bytes left.
    #[inline]
    pub fn len(&self) -> usize {
        let rest = self.bufs.get(self.first..).unwrap_or(&[]);
        let total = rest.iter().map(|b| b.len()).fold(0, usize::saturating_add);
        total - self.skip
    }

    /// Has `copy` take the next `n` bytes to `to` in the data segment, where `inode` has or gets a
    /// block: how many, and why not all.
    #[inline]
    pub fn copy_in(
        &mut self,
        s: &Session,
        inode: &LockedInode,
        to: u64,
        n: usize,
        copy: impl Fn(&Session, u32, u64, ConstBuf) -> Result<usize, Fault>,
    ) -> (usize, Result<()>) {
        let copied = self.pieces(n, |piece, done| {
            copy(s, inode.link, to + done as u64, piece)
        });
        match copied {
            Ok(n) => (n, Ok(())),
            Err(fault) => (fault.copied(), Err(fault.into())),
        }
    }

    /// Copies the next `out.len()` bytes to private memory.
    pub fn read(&mut self, out: &mut [u8]) -> Result<()> {
        let n = out.len();
        let got = self.pieces(n, |piece, done| {
            piece.read(&mut out[done..done + piece.len()])
        })?;
        if got == n {
            Ok(())
        } else {
            Err(Error::Invalid)
        }
    }

    #[inline]
    fn pieces(
        &mut self,
        n: usize,
        mut copy: impl FnMut(ConstBuf, usize) -> Result<usize, Fault>,
    ) -> Result<usize, Fault> {
        let mut done = 0;
        while done < n {
            let Some(buf) = self.bufs.get(self.first) else {
                break;
            };
            let (_, rest) = buf.split_at(self.skip);
            let piece = rest.take(n - done);
            let copied = copy(piece, done).map_err(|f| later(f, done))?;
            done += copied;
            self.skip += copied;
            if self.skip >= buf.len() {
                (self.first, self.skip) = (self.first + 1, 0);
            }
        }
        Ok(done)
    }
}
