//! Reading files: no lock, no system call, and no fence unless the time of access changes.
//!
//! Invariants: bytes beyond the size and in holes are zeroes; if blocks left the file while they
//! were copied (`truncations` changed), the copy is repeated, so nobody sees another file's bytes.
//! Readers that share a file offset never get the same bytes.

use crate::base::abi::*;
use crate::base::clock;
use crate::base::cold::later;
use crate::base::error::{Error, Result};
use crate::content::data;
use crate::content::file::{self, File};
use crate::content::lent::{self, Reader};
use crate::ops::client::Client;
use crate::session::RETRIES;
use crate::session::space;
use crate::session::{BLOCK, OfdLink};
use crate::tables::block_map::{self, Run};
use crate::tables::inode::LockedInode;
use crate::tables::inode_table;
use crate::tables::leased::LeaseSet;
use crate::tables::open_values::is_value;
use alloc::vec;
use pmem::atomic::{Ordering::*, fence};
use pmem::{Fault, MutBuf};
use pool::layout::FILE_SIZE_MAX;
use pool::session::{INODE_INLINE, INODE_READ, INODE_SHADOW, INODE_STORED_TO};

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EACCES: i32 = 13;

/// The most that one call transfers, as in the kernel.
pub(crate) const TRANSFER_MAX: usize = 0x7fff_f000;

#[inline]
pub(crate) fn pread(c: &Client, ofd: OfdLink, out: MutBuf, offset: i64) -> Result<usize> {
    let offset = file::offset(offset)?;
    let file = File::readable(&c.session, ofd)?;
    file.check_regular()?;
    file.check_direct(offset, out.addr(), out.len())?;
    let n = read_at(&file, &mut Target::One(out), offset);
    accessed(&file);
    n
}

#[inline]
pub(crate) fn read(c: &Client, ofd: OfdLink, mut out: MutBuf) -> Result<usize> {
    let file = File::readable(&c.session, ofd)?;
    file.check_regular()?;
    let n = at_position(&file, |offset| {
        file.check_direct(offset, out.addr(), out.len())?;
        read_at(&file, &mut Target::One(out.reborrow()), offset)
    });
    accessed(&file);
    n
}

pub(crate) fn readv(
    c: &Client,
    ofd: OfdLink,
    out: &mut [MutBuf],
    offset: Option<i64>,
    rwf: u32,
) -> Result<usize> {
    let offset = offset.map(file::offset).transpose()?;
    let file = File::readable(&c.session, ofd)?;
    let len = out.iter().map(|part| part.len());
    if !file.takes_vectors(len.fold(0, usize::saturating_add), offset, rwf)? {
        return Ok(0);
    }
    file.check_regular()?;
    let n = match offset {
        Some(offset) => read_at(
            &file,
            &mut Target::Many {
                bufs: out,
                first: 0,
                skip: 0,
            },
            offset,
        ),
        None => at_position(&file, |offset| {
            read_at(
                &file,
                &mut Target::Many {
                    bufs: out,
                    first: 0,
                    skip: 0,
                },
                offset,
            )
        }),
    }?;
    accessed(&file);
    Ok(n)
}

/// Reads the whole file under a lease; `None`: it is longer than `out`, may change without a lock
/// of its inode, or its time of access is to move.
pub(crate) fn whole(file: &File, mut out: MutBuf, leases: &LeaseSet) -> Result<Option<usize>> {
    let e = file.inode.e;
    let can_be = |out: &MutBuf| {
        let is_plain = file.kind() == S_IFREG && file.flags & O_DIRECT == 0;
        let is_small = e.size.load(Acquire) <= out.len() as u64;
        let is_mapped = e.maps.load(SeqCst) > 0 || lent::is_stored_to(e);
        is_plain && is_small && !is_mapped && !access_moves(file)
    };
    // A read may end where one piece of the content does.
    let is_whole = |read: usize| (read as u64 == e.size.load(Acquire)).then_some(read);
    if !is_elsewhere(e.state.load(Acquire)) {
        leases.add(file.s, &file.inode);
        return match can_be(&out) {
            true => read_at(file, &mut Target::One(out), 0).map(is_whole),
            false => Ok(None),
        };
    }
    // Locking recalls what others were told: not in vain, if it can be seen.
    if !can_be(&out) {
        return Ok(None);
    }
    let locked = inode_table::lock_ref(file.s, file.inode)?;
    leases.add_locked(file.s, &locked);
    if !can_be(&out) {
        return Ok(None);
    }
    let target = &mut Target::One(out.reborrow());
    if let Some(n) = read_inline_locked(file, &locked, target, 0)? {
        return Ok(is_whole(n));
    }
    copy_runs(file, target, 0, e.size.load(Relaxed) as usize).map(is_whole)
}

/// Runs `read` at the file offset and moves it. If someone else moved it meanwhile, the bytes are
/// theirs, and we read again from where they left it.
#[inline]
fn at_position(file: &File, mut read: impl FnMut(u64) -> Result<usize>) -> Result<usize> {
    let position = &file.ofd.offset;
    loop {
        let offset = position.load(Acquire);
        let n = read(offset)?;
        let moved = position.compare_exchange(offset, offset + n as u64, AcqRel, Relaxed);
        if n == 0 || moved.is_ok() {
            return Ok(n);
        }
    }
}

/// Where the bytes go.
pub(crate) enum Target<'t, 'a> {
    One(MutBuf<'t>),
    Many {
        bufs: &'t mut [MutBuf<'a>],
        /// The buffer to fill next, and how much of it is filled.
        first: usize,
        skip: usize,
    },
}

impl Target<'_, '_> {
    fn len(&self) -> usize {
        match self {
            Target::One(out) => out.len(),
            Target::Many { bufs, .. } => {
                bufs.iter().map(|b| b.len()).fold(0, usize::saturating_add)
            }
        }
    }

    /// Gives `fill` the place for bytes `at..at + n` of the transfer, piece by piece.
    #[inline(always)]
    fn put(
        &mut self,
        at: usize,
        n: usize,
        mut fill: impl FnMut(MutBuf, usize) -> Result<usize, Fault>,
    ) -> Result<usize, Fault> {
        let (bufs, first, skip) = match self {
            Target::One(out) => {
                let mut rest = out.reborrow();
                rest.advance(at);
                return fill(rest.take(n), 0);
            }
            Target::Many { bufs, first, skip } => (bufs, first, skip),
        };
        let mut done = 0;
        while done < n && *first < bufs.len() {
            let mut rest = bufs[*first].reborrow();
            rest.advance(*skip);
            let want = rest.len().min(n - done);
            let copied = fill(rest.take(want), done).map_err(|f| later(f, done))?;
            done += copied;
            *skip += copied;
            if *skip >= bufs[*first].len() {
                (*first, *skip) = (*first + 1, 0);
            }
        }
        Ok(done)
    }

    fn restart(&mut self) {
        if let Target::Many { first, skip, .. } = self {
            (*first, *skip) = (0, 0);
        }
    }
}

/// Copies from `offset`; how much, which is less than asked for only at the end of the file or
/// where the caller's memory ends. A part of each caller, so that what the compiler knows of `out`
/// there it knows here.
#[inline(always)]
pub(crate) fn read_at(file: &File, out: &mut Target, offset: u64) -> Result<usize> {
    let e = file.inode.e;
    for _ in 0..RETRIES {
        let truncations = e.truncations.load(Acquire);
        let size = e.size.load(Acquire);
        if offset >= size {
            return Ok(0);
        }
        let n = (size - offset).min(out.len().min(TRANSFER_MAX) as u64) as usize;
        if is_elsewhere(e.state.load(Acquire)) {
            if let Some(n) = read_elsewhere(file, out, offset)? {
                return Ok(n);
            }
            continue;
        }
        let copied = copy_runs(file, out, offset, n);
        fence(Acquire);
        if e.truncations.load(Relaxed) == truncations {
            return copied;
        }
        out.restart();
    }
    read_locked(file, out, offset)
}

/// Whether the content of a file in this state is not in blocks, or not all of it.
#[inline(always)]
fn is_elsewhere(state: u32) -> bool {
    let about = state & (INODE_INLINE | INODE_SHADOW | INODE_STORED_TO);
    about != 0 && about != INODE_INLINE | INODE_SHADOW
}

/// `None`: look again.
#[cold]
fn read_elsewhere(file: &File, out: &mut Target, offset: u64) -> Result<Option<usize>> {
    let e = file.inode.e;
    if !lent::is_stored_to(e) {
        return read_inline(file, out, offset);
    }
    let truncations = e.truncations.load(Acquire);
    let size = e.size.load(Acquire);
    let copied = read_lent(file, out, offset, size);
    if e.truncations.load(Acquire) == truncations {
        return copied.map(Some);
    }
    out.restart();
    Ok(None)
}

/// Bytes of a file of `size` bytes that is lent, or those of its blocks where that cannot be had.
fn read_lent(file: &File, out: &mut Target, offset: u64, size: u64) -> Result<usize> {
    let rest = size.saturating_sub(offset);
    let n = rest.min(out.len().min(TRANSFER_MAX) as u64) as usize;
    let reader = match Reader::open(file.s, file.inode.ino) {
        Ok(reader) => reader,
        // It is out of reach for this process.
        Err(e) if matches!(e.errno(), EACCES | EPERM | ENOENT) => {
            return copy_runs(file, out, offset, n);
        }
        Err(e) => return Err(e),
    };
    let mut bytes = vec![0; n.min(Reader::PIECE)];
    let mut done = 0;
    while done < n {
        let piece = &mut bytes[..(n - done).min(Reader::PIECE)];
        reader.read(offset + done as u64, piece)?;
        let copied = out.put(done, piece.len(), |mut to, shift| to.write(&piece[shift..]));
        match copied {
            Ok(n) => done += n,
            Err(fault) if done + fault.copied() > 0 => return Ok(done + fault.copied()),
            Err(fault) => return Err(fault.into()),
        }
    }
    Ok(n)
}

/// As `read_at` where blocks keep leaving the file.
#[cold]
fn read_locked(file: &File, out: &mut Target, offset: u64) -> Result<usize> {
    let e = file.inode.e;
    let _locked = inode_table::lock_ref(file.s, file.inode)?;
    let size = e.size.load(Relaxed);
    let n = size
        .saturating_sub(offset)
        .min(out.len().min(TRANSFER_MAX) as u64) as usize;
    match lent::is_stored_to(e) {
        true => read_lent(file, out, offset, size),
        false => copy_runs(file, out, offset, n),
    }
}

/// Copies `n` bytes run by run.
#[inline(always)]
fn copy_runs(file: &File, out: &mut Target, offset: u64, n: usize) -> Result<usize> {
    let mut done = 0;
    while done < n {
        let at = offset + done as u64;
        let (file_block, skip) = (at / BLOCK, at % BLOCK);
        let blocks = (skip + (n - done) as u64).div_ceil(BLOCK);
        let run = block_map::lookup_run(file.s, &file.inode, file_block, blocks)?;
        let copied = match run {
            Run::Blocks { block, len, .. } => {
                let want = (n - done).min((len * BLOCK - skip) as usize);
                out.put(done, want, |to, shift| {
                    let from = (block, skip + shift as u64);
                    file.s.copy_out(file.inode.link, from, to)
                })
            }
            Run::Hole(len) => {
                let room = len.saturating_mul(BLOCK) - skip;
                let want = (n - done).min(usize::try_from(room).unwrap_or(usize::MAX));
                out.put(done, want, |mut to, _| {
                    let len = to.len();
                    to.fill_zero(len)
                })
            }
        };
        match copied {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(fault) if done + fault.copied() > 0 => return Ok(done + fault.copied()),
            Err(fault) => return Err(fault.into()),
        }
    }
    Ok(done)
}

/// The content is only in the inode record. Most small files are read once, so it is copied from
/// there; who reads it again brings it into a block, unless the pool has none left. `None`: look
/// again.
#[cold]
fn read_inline(file: &File, out: &mut Target, offset: u64) -> Result<Option<usize>> {
    let locked = inode_table::lock_ref(file.s, file.inode)?;
    read_inline_locked(file, &locked, out, offset)
}

fn read_inline_locked(
    file: &File,
    locked: &LockedInode,
    out: &mut Target,
    offset: u64,
) -> Result<Option<usize>> {
    let e = locked.e;
    let before = e.state.fetch_or(INODE_READ, Relaxed);
    if before & (INODE_INLINE | INODE_SHADOW) != INODE_INLINE {
        return Ok(None);
    }
    let size = e.size.load(Relaxed);
    // A value has its copy in session memory.
    let again = before & INODE_READ != 0 || size > BLOCK;
    if again && !is_value(e) && space::has_spare(file.s) {
        match data::load_shadow(file.s, locked) {
            Ok(()) => return Ok(None),
            Err(Error::NoSpace) => {}
            Err(e) => return Err(e),
        }
    }
    let mut content = [0; BLOCK as usize];
    inode_table::inline_data(file.s, locked, &mut content)?;
    let end = size.min(BLOCK) as usize;
    let Some(bytes) = content[..end].get(offset as usize..) else {
        let n = size.saturating_sub(offset).min(out.len() as u64) as usize;
        return copy_runs(file, out, offset, n).map(Some);
    };
    let n = bytes.len().min(out.len());
    let copied = out.put(0, n, |mut to, shift| to.write(&bytes[shift..]));
    Ok(Some(copied?))
}

/// The access time, as with relatime: it moves once after each change.
#[inline(always)]
pub(crate) fn accessed(file: &File) {
    if access_moves(file) {
        touch(file, clock::now());
    }
}

#[inline(always)]
fn access_moves(file: &File) -> bool {
    let e = file.inode.e;
    let atime = e.atime.load(Relaxed) as i64;
    atime <= e.mtime.load(Relaxed) as i64 || atime <= e.ctime.load(Relaxed) as i64
}

/// As `accessed`, with a time that was taken before any lock.
pub(crate) fn touch(file: &File, now: i64) {
    let e = file.inode.e;
    let atime = e.atime.load(Relaxed) as i64;
    let changed = (e.mtime.load(Relaxed) as i64).max(e.ctime.load(Relaxed) as i64);
    let unwanted = file.flags & O_NOATIME != 0 || file.s.is_read_only() || is_value(e);
    if unwanted || atime > changed || atime >= now {
        return;
    }
    file.s.recall(file.inode.ino);
    e.atime.store(now as u64, Relaxed);
    inode_table::mark_dirty(file.s, e);
    // Who gets a lease that is not recalled here sees the new time.
    fence(SeqCst);
    file.s.recall(file.inode.ino);
}

pub(crate) fn lseek(c: &Client, ofd: OfdLink, offset: i64, whence: u32) -> Result<u64> {
    let file = File::usable(&c.session, ofd)?;
    let is_dir = file.kind() == S_IFDIR;
    let size = file.inode.e.size.load(Acquire);
    let target = match whence {
        SEEK_SET => Some(offset),
        SEEK_CUR => (file.ofd.offset.load(Relaxed) as i64).checked_add(offset),
        SEEK_END if !is_dir => (size as i64).checked_add(offset),
        SEEK_DATA | SEEK_HOLE if !is_dir => {
            let found = seek(
                &file,
                u64::try_from(offset).map_err(|_| Error::NoData)?,
                whence,
            )?;
            Some(found as i64)
        }
        _ => return Err(Error::Invalid),
    };
    let target = target.ok_or(Error::Invalid)?;
    let position = file::offset(target)?;
    file.ofd.offset.store(position, Release);
    Ok(position)
}

/// SEEK_DATA and SEEK_HOLE.
fn seek(file: &File, offset: u64, whence: u32) -> Result<u64> {
    let e = file.inode.e;
    let size = e.size.load(Acquire).min(FILE_SIZE_MAX);
    if offset >= size {
        return Err(Error::NoData);
    }
    if lent::is_stored_to(e)
        && let Ok(reader) = Reader::open(file.s, file.inode.ino)
    {
        return reader.seek(offset, whence == SEEK_DATA);
    }
    let end = size.div_ceil(BLOCK);
    let mut block = offset / BLOCK;
    while block < end {
        let inline = block == 0 && e.state.load(Acquire) & INODE_INLINE != 0;
        let (is_data, len) = match block_map::lookup_run(file.s, &file.inode, block, end - block)? {
            _ if inline => (true, 1),
            Run::Blocks { len, .. } => (true, len),
            Run::Hole(len) => (false, len),
        };
        if is_data == (whence == SEEK_DATA) {
            return Ok(offset.max(block * BLOCK));
        }
        block = block.saturating_add(len.max(1));
    }
    if whence == SEEK_HOLE {
        Ok(size)
    } else {
        Err(Error::NoData)
    }
}
