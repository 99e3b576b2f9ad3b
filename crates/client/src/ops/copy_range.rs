//! copy_file_range(2) and sendfile(2) between pool files.
//!
//! Invariants: the source is read as by read(2), the destination written as by write(2); offsets
//! move by what was copied.

use crate::base::abi::{O_APPEND, O_DSYNC};
use crate::base::error::{Error, Result};
use crate::content::file::{self, File};
use crate::content::source::Source;
use crate::ops::client::Client;
use crate::ops::read::{self, TRANSFER_MAX, Target};
use crate::ops::write::{self, Place};
use crate::session::OfdLink;
use crate::session::lock;
use alloc::vec;
use pmem::atomic::Ordering::{Acquire, Release};
use pmem::{ConstBuf, MutBuf};

/// Bytes copied at a time.
const PIECE: usize = 128 * 1024;

pub(crate) fn copy_range(
    c: &Client,
    from: OfdLink,
    from_at: Option<&mut i64>,
    to: OfdLink,
    to_at: Option<&mut i64>,
    len: usize,
) -> Result<usize> {
    let s = &c.session;
    // What they are comes before how they are open.
    let (any_source, any_target) = (File::usable(s, from)?, File::usable(s, to)?);
    any_source.check_regular()?;
    any_target.check_regular()?;
    let (source, target) = (File::readable(s, from)?, File::writable(s, to)?);
    if target.flags & O_APPEND != 0 {
        return Err(Error::BadDescriptor);
    }
    let len = len.min(TRANSFER_MAX);
    // One lock orders movers of both offsets: the lower description's, then the higher one's.
    let locks = match from.raw() < to.raw() {
        true => [(&from_at, &source), (&to_at, &target)],
        false => [(&to_at, &target), (&from_at, &source)],
    };
    let needs = locks.map(|(at, file)| at.is_none().then_some(file));
    let _first = needs[0]
        .map(|file| lock::acquire(s, &file.ofd.lock))
        .transpose()?;
    let second = needs[1].filter(|_| from != to || needs[0].is_none());
    let _second = second
        .map(|file| lock::acquire(s, &file.ofd.lock))
        .transpose()?;
    let start = |at: &Option<&mut i64>, file: &File| match at {
        // As the kernel adds.
        Some(at) if (**at as u64).checked_add(len as u64).is_none() => Err(Error::Overflow),
        Some(at) => file::offset(**at),
        None => Ok(file.ofd.offset.load(Acquire)),
    };
    let (read_at, write_at) = (start(&from_at, &source)?, start(&to_at, &target)?);
    // What lies behind the end is not copied, so it may be anywhere.
    let size = source.inode.e.size.load(Acquire);
    let len = len.min(size.saturating_sub(read_at).try_into().unwrap_or(len));
    let apart = read_at.abs_diff(write_at) >= len as u64;
    if source.inode.ino == target.inode.ino && !apart {
        return Err(Error::Invalid);
    }
    let done = copy(&source, read_at, &target, write_at, len)?;
    let finish = |at: Option<&mut i64>, file: &File, start: u64| match at {
        Some(at) => *at = (start + done as u64) as i64,
        None => file.ofd.offset.store(start + done as u64, Release),
    };
    if done > 0 {
        read::accessed(&source);
    }
    finish(from_at, &source, read_at);
    finish(to_at, &target, write_at);
    Ok(done)
}

fn copy(from: &File, read_at: u64, to: &File, write_at: u64, len: usize) -> Result<usize> {
    let mut piece = vec![0; PIECE.min(len)];
    let mut done = 0;
    while done < len {
        let room = MutBuf::from(&mut piece[..]);
        let at = read_at + done as u64;
        let n = read::read_at(from, &mut Target::One(room), at)?.min(len - done);
        if n == 0 {
            break;
        }
        let bytes = [ConstBuf::from(&piece[..n])];
        let place = Place::At(write_at + done as u64);
        match write::write_to(to, &mut Source::new(&bytes), place, to.flags & O_DSYNC) {
            Ok((written, _)) => done += written,
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}
