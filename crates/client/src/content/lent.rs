//! Lent files: what is mapped by processes of other users, who may map nothing of the pool.
//!
//! A mapping needs a descriptor, and a descriptor of the data segment shows all of it. So as long
//! as such a process maps a file, the file's bytes are in a file of their own, in the host's
//! memory, which that process maps: the lent file. Whoever has the pool mapped uses it by system
//! calls. `lending` tells when that begins and ends.
//!
//! Invariants:
//!  * While a file is `INODE_STORED_TO`, what is in its lent file is its content. Its blocks have
//!    what calls wrote, and of what was stored through mappings what was written back since.
//!  * A call changes the blocks first, under the inode's lock, then the lent file, which has the
//!    length of the file. A process that has the pool mapped, but is not its owner any more, may
//!    not open lent files: it reads what the blocks have, and can change only files that nobody
//!    may store to, which are `INODE_AHEAD` then.
//!  * Readers take no lock: `truncations` rises when a file is lent, and when it is not any more.

use crate::base::error::{Error, Result};
use crate::session::lender::Lender;
use crate::session::{BLOCK, Session};
use crate::tables::block_map::{self, Run};
use crate::tables::inode_table::LockedInode;
use alloc::string::String;
use alloc::{format, vec};
use pmem::atomic::Ordering::*;
use pool::session::{INODE_AHEAD, INODE_LENT, INODE_STORED_TO, Inode, LENT_DIRECTORY, lent_prefix};
use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

/// Bytes that are copied at a time.
const PIECE: usize = 64 * 1024;
/// The part of `LENT_DIRECTORY` that is left to others: one in so many.
const LEFT: u64 = 4;

/// Whether its content is in the lent file.
#[inline]
pub(crate) fn is_stored_to(e: &Inode) -> bool {
    e.state.load(Acquire) & INODE_STORED_TO != 0
}

/// Whether it has a lent file, which follows what calls change.
#[inline]
pub(crate) fn is_lent(e: &Inode) -> bool {
    e.state.load(Acquire) & INODE_LENT != 0
}

fn failed(call: &'static str) -> impl Fn(Errno) -> Error {
    move |e| Error::Kernel {
        call,
        errno: e.raw_os_error(),
    }
}

/// `session`: what nobody could guess before the session had it, so that nobody could take the
/// name first.
fn path(s: &Session, ino: u64) -> String {
    let Lender { device, inode, .. } = s.lender();
    let session = s.header().lent_name.load(Acquire);
    let prefix = lent_prefix(device, inode);
    format!("{LENT_DIRECTORY}/{prefix}{session:x}.{ino:x}")
}

/// Opens the lent file of an inode.
pub(crate) fn open(s: &Session, ino: u64, writes: bool) -> Result<OwnedFd> {
    let access = if writes { OFlags::RDWR } else { OFlags::RDONLY };
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file =
        rustix::fs::open(path(s, ino).as_str(), flags, Mode::empty()).map_err(failed("open"))?;
    let stat = rustix::fs::fstat(&file).map_err(failed("fstat"))?;
    let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    match is_file && stat.st_uid == s.lender().owner {
        true => Ok(file),
        false => Err(failed("open")(Errno::PERM)),
    }
}

/// Reads as much of `out` as there is; what is not there is zero.
fn read_from(file: &OwnedFd, offset: u64, out: &mut [u8]) -> Result<()> {
    let mut done = 0;
    while done < out.len() {
        match rustix::io::pread(file, &mut out[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(failed("pread")(e)),
        }
    }
    out[done..].fill(0);
    Ok(())
}

fn write_to(file: &OwnedFd, offset: u64, bytes: &[u8]) -> Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pwrite(file, &bytes[done..], offset + done as u64) {
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(failed("pwrite")(e)),
        }
    }
    Ok(())
}

/// Whether processes of other users are in the session, or have been: only they need lent files.
pub(crate) fn others_came(s: &Session) -> bool {
    s.header().lent_name.load(Acquire) != 0
}

/// Others come. The first of them chooses what nobody can guess.
pub(crate) fn expect_others(s: &Session, random: u64) {
    let h = s.header();
    if let Some(device) = device() {
        h.lent_device.store(device, Release);
        let _ = h
            .lent_name
            .compare_exchange(0, random.max(1), AcqRel, Acquire);
    }
}

/// The device of what this process sees as the directory of lent files.
fn device() -> Option<u64> {
    rustix::fs::stat(LENT_DIRECTORY)
        .ok()
        .map(|stat| stat.st_dev)
}

/// Before a call changes a file: if it could not change the lent file, it changes nothing.
pub(crate) fn check(s: &Session, inode: &LockedInode) -> Result<()> {
    match is_stored_to(inode.e) {
        true => open(s, inode.ino, true).map(drop),
        false => Ok(()),
    }
}

/// The lent file is not needed any more, or was not made wholly.
pub(crate) fn remove(s: &Session, inode: &LockedInode) {
    let _ = rustix::fs::unlink(path(s, inode.ino).as_str());
}

/// Root may have made it.
fn give_to_lender(s: &Session, file: &OwnedFd) -> Result<()> {
    let owner = s.lender().owner;
    let stat = rustix::fs::fstat(file).map_err(failed("fstat"))?;
    if stat.st_uid == owner {
        return Ok(());
    }
    let owner = Some(rustix::fs::Uid::from_raw(owner));
    rustix::fs::fchown(file, owner, None).map_err(failed("fchown"))
}

/// Makes the lent file, with all that the blocks have.
pub(crate) fn fill(s: &Session, inode: &LockedInode) -> Result<()> {
    if device() != Some(s.header().lent_device.load(Acquire)) {
        return Err(Error::NoDevice);
    }
    let path = path(s, inode.ino);
    // One of somebody who died before the file was lent by it, or after it was not any more.
    remove(s, inode);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file =
        rustix::fs::open(path.as_str(), flags, Mode::RUSR | Mode::WUSR).map_err(failed("open"))?;
    // Whatever the program's umask.
    rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR).map_err(failed("fchmod"))?;
    give_to_lender(s, &file)?;
    let size = inode.e.size.load(Relaxed);
    let room = rustix::fs::fstatvfs(&file).map_err(failed("statfs"))?;
    let left = room.f_bavail.saturating_sub(room.f_blocks / LEFT);
    if (inode.e.blocks.load(Relaxed) * BLOCK) > left.saturating_mul(room.f_frsize) {
        return Err(Error::NoMemory);
    }
    rustix::fs::ftruncate(&file, size).map_err(failed("ftruncate"))?;
    copy(s, inode, &file, 0, size)
}

/// Copies bytes `from..to` from blocks to the lent file; holes are none there either.
fn copy(s: &Session, inode: &LockedInode, file: &OwnedFd, from: u64, to: u64) -> Result<()> {
    let mut bytes = vec![0; PIECE.min((to - from) as usize)];
    let mut at = from;
    while at < to {
        let (file_block, skip) = (at / BLOCK, at % BLOCK);
        let blocks = (skip + (to - at)).div_ceil(BLOCK);
        let run = block_map::lookup_run_locked(s, inode, file_block, blocks)?;
        let (Run::Hole(len) | Run::Blocks { len, .. }) = run;
        let mut n = (to - at).min(len.max(1).saturating_mul(BLOCK) - skip);
        if let Run::Blocks { block, .. } = run {
            n = n.min(bytes.len() as u64);
            let piece = &mut bytes[..n as usize];
            s.segment(block)?.read(block.offset() + skip, piece)?;
            write_to(file, at, piece)?;
        }
        at += n;
    }
    Ok(())
}

/// After a call changed bytes `from..to` in blocks, all of which are there.
#[cold]
pub(crate) fn copy_out(s: &Session, inode: &LockedInode, from: u64, to: u64) -> Result<()> {
    follow(s, inode, |file| copy(s, inode, file, from, to))
}

/// After a call zeroed bytes `from..to` where there are blocks.
#[cold]
pub(crate) fn zero(s: &Session, inode: &LockedInode, from: u64, to: u64) -> Result<()> {
    follow(s, inode, |file| {
        let stat = rustix::fs::fstat(file).map_err(failed("fstat"))?;
        let to = to.min(stat.st_size as u64);
        if from >= to {
            return Ok(());
        }
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(file, how, from, to - from).map_err(failed("fallocate"))
    })
}

/// After a call set the size.
#[cold]
pub(crate) fn follow_size(s: &Session, inode: &LockedInode) -> Result<()> {
    let size = inode.e.size.load(Relaxed);
    let cut = |file: &OwnedFd| rustix::fs::ftruncate(file, size).map_err(failed("ftruncate"));
    follow(s, inode, cut)
}

/// The lent file has to follow the blocks.
fn follow(
    s: &Session,
    inode: &LockedInode,
    change: impl FnOnce(&OwnedFd) -> Result<()>,
) -> Result<()> {
    match open(s, inode.ino, true).and_then(|file| change(&file)) {
        Err(_) if !is_stored_to(inode.e) => {
            inode.e.state.fetch_or(INODE_AHEAD, Release);
            Ok(())
        }
        done => done,
    }
}

/// Before somebody may store to the lent file: it gets what only the blocks have.
pub(crate) fn catch_up(s: &Session, inode: &LockedInode) -> Result<()> {
    if inode.e.state.load(Acquire) & INODE_AHEAD == 0 {
        return Ok(());
    }
    let file = open(s, inode.ino, true)?;
    let size = inode.e.size.load(Relaxed);
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, how, 0, size.max(1)).map_err(failed("fallocate"))?;
    rustix::fs::ftruncate(&file, size).map_err(failed("ftruncate"))?;
    copy(s, inode, &file, 0, size)?;
    inode.e.state.fetch_and(!INODE_AHEAD, Release);
    Ok(())
}

/// A lent file that is open.
pub(crate) struct Reader(OwnedFd);

impl Reader {
    pub fn open(s: &Session, ino: u64) -> Result<Reader> {
        open(s, ino, false).map(Reader)
    }

    /// As much at a time as `read` is to be asked for.
    pub const PIECE: usize = PIECE;

    /// What is at `offset`, and zeroes where nothing is.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        read_from(&self.0, offset, out)
    }

    /// Where the next data begin, or the next hole.
    pub fn seek(&self, offset: u64, data: bool) -> Result<u64> {
        let to = match data {
            true => SeekFrom::Data(offset),
            false => SeekFrom::Hole(offset),
        };
        rustix::fs::seek(&self.0, to).map_err(|_| Error::NoData)
    }
}
