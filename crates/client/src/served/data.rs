//! Data, as `Client` has it.
//!
//! Invariant: what one call of the program moves is moved by one call here if it fits a line's
//! buffer, and in several, in order, if not.

use crate::base::abi::{O_ACCMODE, O_APPEND, O_PATH, O_RDWR, O_WRONLY, SEEK_CUR};
use crate::base::error::{Error, Result};
use crate::base::types::*;
use crate::served::Served;
use crate::served::channel::{Ask, descriptor};
use crate::served::known::End;
use crate::served::life::args;
use crate::served::wire::*;
use core::sync::atomic::Ordering::Relaxed;
use pmem::{ConstBuf, MutBuf};

/// What was moved counts; only a call that moved nothing fails.
fn so_far(moved: usize, error: Error) -> Result<usize> {
    match moved {
        0 => Err(error),
        moved => Ok(moved),
    }
}

/// What is wrong with an offset is told before what is wrong with the descriptor.
fn check_offset(offset: Option<i64>) -> Result<()> {
    match offset {
        Some(..0) => Err(Error::Invalid),
        _ => Ok(()),
    }
}

impl Served {
    pub fn read(&self, ofd: OfdLink, out: MutBuf) -> Result<usize> {
        self.read_parts(ofd, &mut [out], None, None)
    }

    pub fn pread(&self, ofd: OfdLink, out: MutBuf, offset: i64) -> Result<usize> {
        self.read_parts(ofd, &mut [out], Some(offset), None)
    }

    pub fn readv(
        &self,
        ofd: OfdLink,
        out: &mut [MutBuf],
        offset: Option<i64>,
        rwf: u32,
    ) -> Result<usize> {
        self.read_parts(ofd, out, offset, Some(rwf))
    }

    /// `rwf`: the flags of preadv2(2); `None` for read(2) and pread(2), which say what is wrong
    /// also where there is nothing to read.
    fn read_parts(
        &self,
        ofd: OfdLink,
        out: &mut [MutBuf],
        offset: Option<i64>,
        rwf: Option<u32>,
    ) -> Result<usize> {
        check_offset(offset)?;
        let rwf = rwf.map_or(PLAIN_READ, u64::from);
        let total = out.iter().map(MutBuf::len).sum::<usize>();
        let own = offset.map_or_else(|| descriptor(ofd), |_| None);
        if let (Some(fd), PLAIN_READ, 1..) = (own, rwf, total)
            && self.is_at_end(fd, End::Bytes)
        {
            return Ok(0);
        }
        if let (Some(fd), PLAIN_READ, [out]) = (own, rwf, &mut *out)
            && let Some(read) = self.read_content(fd, out.reborrow())
        {
            return Ok(read);
        }
        let moving = self.begin_moving(own);
        let (mut moved, mut to) = (0, 0);
        loop {
            let len = (total - moved).min(BUFFER);
            let at = offset.map(|at| at.saturating_add(moved as i64));
            let ask = args(&[ofd.raw().into(), offset_word(at), rwf, len as u64]);
            let answered = match self.ask(Op::Read, &ask) {
                Ok(answered) => answered,
                Err(error) => return so_far(moved, error),
            };
            let got = answered.len().min(len);
            let mut skip = 0;
            while skip < got {
                let Some(part) = out.get_mut(to) else { break };
                let n = answered.take(skip, part.take(got - skip));
                let n = match n {
                    Ok(n) => n,
                    Err(error) => {
                        // What found no place was not read. Others may need the line.
                        drop(answered);
                        if offset.is_none() {
                            self.lseek(ofd, skip as i64 - got as i64, SEEK_CUR)?;
                        }
                        return so_far(moved + skip, error);
                    }
                };
                part.advance(n);
                skip += n;
                to += usize::from(part.is_empty());
            }
            moved += got;
            if got < len || moved == total {
                moving.reach(End::Bytes, &answered.words);
                return Ok(moved);
            }
        }
    }

    pub fn write(&self, ofd: OfdLink, data: ConstBuf) -> Result<usize> {
        self.writev(ofd, &[data], None, 0)
    }

    pub fn pwrite(&self, ofd: OfdLink, data: ConstBuf, offset: i64) -> Result<usize> {
        self.writev(ofd, &[data], Some(offset), 0)
    }

    pub fn writev(
        &self,
        ofd: OfdLink,
        data: &[ConstBuf],
        offset: Option<i64>,
        rwf: u32,
    ) -> Result<usize> {
        check_offset(offset)?;
        let total = data.iter().map(ConstBuf::len).sum::<usize>();
        if total <= BUFFER {
            return self.write_once(ofd, data, offset, rwf);
        }
        let mut moved = 0;
        for part in data {
            let mut rest = *part;
            while !rest.is_empty() {
                let at = offset.map(|at| at.saturating_add(moved as i64));
                let wanted = rest.len().min(BUFFER);
                match self.write_once(ofd, &[rest.take(wanted)], at, rwf) {
                    Ok(n) => {
                        moved += n;
                        rest.advance(n);
                        if n < wanted {
                            return Ok(moved);
                        }
                    }
                    Err(error) => return so_far(moved, error),
                }
            }
        }
        Ok(moved)
    }

    fn write_once(
        &self,
        ofd: OfdLink,
        data: &[ConstBuf],
        offset: Option<i64>,
        rwf: u32,
    ) -> Result<usize> {
        let words = [ofd.raw().into(), offset_word(offset), rwf.into()];
        let ask = Ask {
            data,
            ..args(&words)
        };
        match self.number(Op::Write, &ask) {
            // Nothing was asked yet. What the descriptor cannot do comes first.
            Err(Error::Fault(fault)) => match self.getfl(ofd)? & O_ACCMODE {
                O_WRONLY | O_RDWR => Err(Error::Fault(fault)),
                _ => Err(Error::BadDescriptor),
            },
            written => written.map(|n| n as usize),
        }
    }

    pub fn lseek(&self, ofd: OfdLink, offset: i64, whence: u32) -> Result<u64> {
        let own = descriptor(ofd);
        if let Some(at) = own.and_then(|fd| self.seek(fd, offset, whence)) {
            return Ok(at);
        }
        let words = [ofd.raw().into(), offset as u64, whence.into()];
        let moving = self.begin_moving(own);
        let moved = self.number(Op::Lseek, &args(&words));
        moving.leave();
        moved
    }

    pub fn copy_range(
        &self,
        from: OfdLink,
        from_at: Option<&mut i64>,
        to: OfdLink,
        to_at: Option<&mut i64>,
        len: usize,
    ) -> Result<usize> {
        let words = [
            from.raw().into(),
            offset_word(from_at.as_deref().copied()),
            to.raw().into(),
            offset_word(to_at.as_deref().copied()),
            len as u64,
        ];
        let own = descriptor(from).filter(|_| from_at.is_none());
        let is_at_end = own.is_some_and(|fd| self.is_at_end(fd, End::Bytes));
        if is_at_end && to_at.is_none() && self.takes_copies(to, len) {
            return Ok(0);
        }
        let moving = self.begin_moving(own);
        let words = self.ask(Op::CopyRange, &args(&words))?.words;
        // Where READ has them.
        moving.reach(End::Bytes, &words[2..]);
        if let Some(at) = from_at {
            *at = words[3] as i64;
        }
        if let Some(at) = to_at {
            *at = words[4] as i64;
        }
        Ok(words[2] as usize)
    }

    /// Whether it is known that what is copied to `to` fails for no reason of its own.
    fn takes_copies(&self, to: OfdLink, len: usize) -> bool {
        let flags = descriptor(to).and_then(|fd| self.known_flags(fd));
        let writes = |flags: u32| {
            matches!(flags & O_ACCMODE, O_WRONLY | O_RDWR) && flags & (O_APPEND | O_PATH) == 0
        };
        len > 0 && !self.limited.load(Relaxed) && flags.is_some_and(writes)
    }

    pub fn ftruncate(&self, ofd: OfdLink, size: i64) -> Result<()> {
        self.tell(Op::Ftruncate, &args(&[ofd.raw().into(), size as u64]))
    }

    pub fn fallocate(&self, ofd: OfdLink, mode: u32, offset: i64, len: i64) -> Result<()> {
        let words = [ofd.raw().into(), mode.into(), offset as u64, len as u64];
        self.tell(Op::Fallocate, &args(&words))
    }

    pub fn fsync(&self, ofd: OfdLink) -> Result<()> {
        self.tell(Op::Fsync, &args(&[ofd.raw().into()]))
    }

    pub fn fdatasync(&self, ofd: OfdLink) -> Result<()> {
        self.fsync(ofd)
    }

    pub fn sync_file_range(&self, ofd: OfdLink, offset: i64, len: i64, flags: u32) -> Result<()> {
        let words = [ofd.raw().into(), offset as u64, len as u64, flags.into()];
        self.tell(Op::SyncRange, &args(&words))
    }

    pub fn sync(&self) -> Result<()> {
        self.tell(Op::Sync, &Ask::default())
    }

    pub fn getdents(&self, ofd: OfdLink, out: MutBuf, format: DirentFormat) -> Result<usize> {
        let own = descriptor(ofd);
        if own.is_some_and(|fd| self.is_at_end(fd, End::List)) {
            return Ok(0);
        }
        let moving = self.begin_moving(own);
        let legacy = matches!(format, DirentFormat::Legacy);
        let len = out.len().min(BUFFER) as u64;
        let words = [ofd.raw().into(), legacy.into(), len];
        let answered = self.ask(Op::Getdents, &args(&words))?;
        let got = answered.take(0, out)?;
        moving.reach(End::List, &answered.words);
        Ok(got)
    }

    pub fn getfl(&self, ofd: OfdLink) -> Result<u32> {
        if let Some(known) = descriptor(ofd).and_then(|fd| self.known_flags(fd)) {
            return Ok(known);
        }
        self.number(Op::Getfl, &args(&[ofd.raw().into()]))
            .map(|flags| flags as u32)
    }

    /// Whether it is a pipe with a name, whose data the kernel carries.
    #[inline]
    pub fn is_kernels(&self, ofd: OfdLink) -> bool {
        let Some(fd) = descriptor(ofd) else {
            return false;
        };
        match self.member() {
            Some((_, true)) => self.pipes.has(fd),
            Some(_) => {
                let found = self.number(Op::Lookup, &args(&[fd.into()]));
                found.is_ok_and(|found| found & u64::from(PIPE) != 0)
            }
            None => false,
        }
    }

    pub fn setfl(&self, ofd: OfdLink, flags: u32) -> Result<()> {
        if self.is_own() {
            self.known.forget_flags();
            // How it is read may change.
            self.known.begin_moving(descriptor(ofd)).leave();
        }
        self.tell(Op::Setfl, &args(&[ofd.raw().into(), flags.into()]))
    }

    pub fn ino_of(&self, ofd: OfdLink) -> Result<u64> {
        self.number(Op::InoOf, &args(&[ofd.raw().into()]))
    }

    pub fn within_limit(&self, ofd: OfdLink, at: Option<i64>, len: usize) -> Result<usize> {
        let words = [ofd.raw().into(), offset_word(at), len as u64];
        self.number(Op::WithinLimit, &args(&words))
            .map(|n| n as usize)
    }

    pub fn set_file_limit(&self, bytes: u64) {
        // Without one there is nothing to tell: that is how the proxy begins.
        if self.limited.swap(bytes != u64::MAX, Relaxed) || bytes != u64::MAX {
            let _ = self.tell(Op::FileLimit, &args(&[bytes]));
        }
    }

    pub fn fcntl_lock(&self, ofd: OfdLink, cmd: u32, lock: &mut Flock) -> Result<()> {
        self.locks.store(true, Relaxed);
        let kind = u64::from(lock.kind as u16) | u64::from(lock.whence as u16) << 16;
        let words = [
            ofd.raw().into(),
            cmd.into(),
            kind,
            lock.start as u64,
            lock.len as u64,
            lock.pid as u32 as u64,
        ];
        let ask = Ask {
            waits: true,
            ..args(&words)
        };
        let words = self.ask(Op::Lock, &ask)?.words;
        *lock = Flock {
            kind: words[2] as i16,
            whence: words[3] as i16,
            start: words[4] as i64,
            len: words[5] as i64,
            pid: words[6] as i32,
        };
        Ok(())
    }

    pub fn flock(&self, ofd: OfdLink, op: u32) -> Result<()> {
        self.locks.store(true, Relaxed);
        let ask = Ask {
            waits: true,
            ..args(&[ofd.raw().into(), op.into()])
        };
        self.tell(Op::Flock, &ask)
    }
}
