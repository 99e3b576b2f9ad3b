//! Data, and locks on it.

use super::{Call, Reply};
use holdfast_client::abi::{F_GETLK, F_OFD_GETLK, F_UNLCK};
use holdfast_client::served::wire::*;
use holdfast_client::{DirentFormat, Error, Flock, OfdLink, Result};
use holdfast_pmem::MutBuf;
use std::sync::atomic::Ordering::Relaxed;

/// All bytes of a place have offsets.
fn check_range(at: i64, len: u64) -> Result<()> {
    let end = u64::try_from(at).map(|at| at.saturating_add(len));
    match end {
        Ok(end) if end > i64::MAX as u64 => Err(Error::Invalid),
        _ => Ok(()),
    }
}

impl Call<'_> {
    pub(super) fn data(&self, op: Op) -> Result<Reply> {
        let client = self.client;
        match op {
            Op::Read => {
                let (ofd, at) = (self.ofd(0)?, word_offset(self.arg(1)));
                let mut room = self.room(self.arg(3))?;
                let read = match (self.arg(2), at) {
                    (PLAIN_READ, None) => return self.read_on(ofd, self.arg(3)),
                    (PLAIN_READ, Some(offset)) => {
                        check_range(offset, self.arg(3))?;
                        client.pread(ofd, room, offset)
                    }
                    _ => {
                        let room = core::slice::from_mut(&mut room);
                        client.readv(ofd, room, at, self.arg_u32(2)?)
                    }
                };
                read.map(Reply::bytes)
            }
            Op::Write => {
                let (ofd, at, flags) = (self.ofd(0)?, word_offset(self.arg(1)), self.arg_u32(2)?);
                let bytes = self.bytes()?;
                client
                    .writev(ofd, &[bytes], at, flags)
                    .map(|n| Reply::number(n as u64))
            }
            Op::Lseek => client
                .lseek(self.ofd(0)?, self.arg(1) as i64, self.arg_u32(2)?)
                .map(Reply::number),
            Op::CopyRange => self.copy_range(),
            Op::Ftruncate => Reply::done(client.ftruncate(self.ofd(0)?, self.arg(1) as i64)),
            Op::Fallocate => {
                let (at, len) = (self.arg(2) as i64, self.arg(3) as i64);
                Reply::done(client.fallocate(self.ofd(0)?, self.arg_u32(1)?, at, len))
            }
            Op::Fsync => Reply::done(client.fsync(self.ofd(0)?)),
            Op::SyncRange => {
                let (at, len) = (self.arg(1) as i64, self.arg(2) as i64);
                Reply::done(client.sync_file_range(self.ofd(0)?, at, len, self.arg_u32(3)?))
            }
            Op::Sync => Reply::done(client.sync()),
            Op::Getdents => {
                let format = match self.arg(1) {
                    0 => DirentFormat::Linux64,
                    _ => DirentFormat::Legacy,
                };
                let ofd = self.ofd(0)?;
                let list = |room: MutBuf<'_>| client.getdents(ofd, room, format);
                let listed = self.to_the_end(ofd, self.arg(2), list)?;
                if matches!(format, DirentFormat::Linux64) {
                    self.note_listed(ofd, listed.len)?;
                }
                Ok(listed)
            }
            Op::WithinLimit => {
                let len = usize::try_from(self.arg(2)).map_err(|_| Error::Invalid)?;
                client
                    .within_limit(self.ofd(0)?, word_offset(self.arg(1)), len)
                    .map(|n| Reply::number(n as u64))
            }
            Op::FileLimit => {
                client.session().set_file_limit(self.arg(0));
                Ok(Reply::default())
            }
            Op::Flock => {
                self.lock_with(|| Reply::done(client.flock(self.ofd(0)?, self.arg_u32(1)?)))
            }
            _ => self.lock_with(|| self.lock()),
        }
    }

    fn read_on(&self, ofd: OfdLink, len: u64) -> Result<Reply> {
        self.to_the_end(ofd, len, |room| self.client.read(ofd, room))
    }

    fn copy_range(&self) -> Result<Reply> {
        let (from, to) = (self.ofd(0)?, self.ofd(2)?);
        let (mut from_at, mut to_at) = (word_offset(self.arg(1)), word_offset(self.arg(3)));
        // In parts, so that the line is not away for long.
        let len = usize::try_from(self.arg(4)).unwrap_or(usize::MAX);
        let len = len.min(PART);
        let copied = self
            .client
            .copy_range(from, from_at.as_mut(), to, to_at.as_mut(), len)?;
        let mut words = [copied as u64, 0, 0, 0, 0];
        if copied < len
            && from_at.is_none()
            && let Ok(Some((index, value))) = self.lease_on(from)
        {
            let more = self
                .client
                .copy_range(from, None, to, to_at.as_mut(), len - copied);
            match more {
                Ok(0) => words[3..].copy_from_slice(&[u64::from(index) + 1, value]),
                Ok(more) => words[0] += more as u64,
                // The next call tells.
                Err(_) => {}
            }
        }
        words[1..3].copy_from_slice(&[from_at, to_at].map(offset_word));
        Ok(Reply::words(&words))
    }

    /// Makes a call about locks. Where somebody is in the way, it is made again when the dead have
    /// come to their end: by us, or by their own threads since the first call.
    fn lock_with(&self, call: impl Fn() -> Result<Reply>) -> Result<Reply> {
        self.member.locks.store(true, Relaxed);
        let made = call();
        let in_the_way = match &made {
            Err(error) => matches!(error, Error::WouldBlock),
            Ok(reply) => self.asks_for_lock() && reply.words[0] != F_UNLCK as u64,
        };
        if !in_the_way {
            return made;
        }
        self.member.shared.bury();
        call()
    }

    /// Whether the call is F_GETLK or F_OFD_GETLK, which says who is in the way.
    fn asks_for_lock(&self) -> bool {
        let lock = matches!(Op::from_raw(self.head.op), Some(Op::Lock));
        lock && matches!(self.arg_u32(1), Ok(F_GETLK | F_OFD_GETLK))
    }

    fn lock(&self) -> Result<Reply> {
        let (ofd, kind) = (self.ofd(0)?, self.arg_u32(2)?);
        let mut lock = Flock {
            kind: kind as u16 as i16,
            whence: (kind >> 16) as u16 as i16,
            start: self.arg(3) as i64,
            len: self.arg(4) as i64,
            pid: self.arg_u32(5)? as i32,
        };
        self.client.fcntl_lock(ofd, self.arg_u32(1)?, &mut lock)?;
        Ok(Reply::words(&[
            lock.kind as u16 as u64,
            lock.whence as u16 as u64,
            lock.start as u64,
            lock.len as u64,
            lock.pid as u32 as u64,
        ]))
    }
}

/// Bytes that one copy_file_range(2) copies; the kernel may copy less than it is asked to.
const PART: usize = 64 << 20;
