//! Data, and locks on it.

use super::{Call, Reply};
use holdfast_client::served::wire::*;
use holdfast_client::{DirentFormat, Error, Flock, Result};

/// A place whose bytes have offsets.
fn check_range(at: Option<i64>, len: u64) -> Result<()> {
    let Some(at) = at else { return Ok(()) };
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
                let (ofd, at, flags) = (self.ofd(0)?, word_offset(self.arg(1)), self.arg_u32(2)?);
                check_range(at, self.arg(3))?;
                let mut room = [self.room(self.arg(3))?];
                client.readv(ofd, &mut room, at, flags).map(Reply::bytes)
            }
            Op::Write => {
                let (ofd, at, flags) = (self.ofd(0)?, word_offset(self.arg(1)), self.arg_u32(2)?);
                let bytes = self.bytes()?;
                check_range(at, bytes.len() as u64)?;
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
                let room = self.room(self.arg(2))?;
                client
                    .getdents(self.ofd(0)?, room, format)
                    .map(Reply::bytes)
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
            Op::Flock => Reply::done(client.flock(self.ofd(0)?, self.arg_u32(1)?)),
            _ => self.lock(),
        }
    }

    fn copy_range(&self) -> Result<Reply> {
        let (from, to) = (self.ofd(0)?, self.ofd(2)?);
        let (mut from_at, mut to_at) = (word_offset(self.arg(1)), word_offset(self.arg(3)));
        check_range(from_at, self.arg(4))?;
        check_range(to_at, self.arg(4))?;
        // In parts, so that the line is not away for long.
        let len = usize::try_from(self.arg(4)).unwrap_or(usize::MAX);
        let len = len.min(PART);
        let copied = self
            .client
            .copy_range(from, from_at.as_mut(), to, to_at.as_mut(), len)?;
        let [from_at, to_at] = [from_at, to_at].map(offset_word);
        Ok(Reply::words(&[copied as u64, from_at, to_at]))
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
