//! Open files of a pool, wherever their calls are made.
//!
//! Invariant: a file is used and closed in the process that opened it.

use crate::error::{Error, Result};
use crate::inner::Reach;
use crate::pool::Pool;
use holdfast_client::{Base, DirentFormat, OfdLink, Stat, Target, abi};
use holdfast_pmem::{ConstBuf, MutBuf};

/// Makes a call of the pool, which is the same for those who have it mapped and for those whom a
/// proxy serves.
macro_rules! call {
    ($reach:expr, $pool:ident => $call:expr) => {
        match $reach {
            Reach::Mapped($pool) => $call,
            Reach::Served(served) => {
                let $pool = served.calls();
                $call
            }
        }
    };
}
pub(crate) use call;

/// An open file.
pub(crate) struct File {
    pool: Pool,
    ofd: OfdLink,
    process: u64,
}

impl File {
    /// open(2) below the pool's root.
    pub fn open(pool: &Pool, path: &[u8], flags: u32, mode: u32) -> Result<File> {
        let ofd = call!(pool.inner.reach()?, calls => pool.as_caller(|caller| {
            calls.open(caller, Base::Root, path, flags, mode, 0)
        }))?;
        Ok(File::of(pool, ofd))
    }

    /// An open description of this process.
    pub fn of(pool: &Pool, ofd: OfdLink) -> File {
        let (pool, process) = (pool.clone(), pool.inner.process());
        File { pool, ofd, process }
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The description; not that of the parent, in a child of fork(2).
    #[inline]
    pub fn ofd(&self) -> Result<OfdLink> {
        Ok(self.reached()?.1)
    }

    #[inline]
    fn reached(&self) -> Result<(Reach<'_>, OfdLink)> {
        let reach = self.pool.inner.reach()?;
        match self.process == self.pool.inner.process() {
            true => Ok((reach, self.ofd)),
            false => Err(Error::OtherProcess),
        }
    }

    /// Appends to what was written before.
    pub fn write_all(&self, mut part: &[u8]) -> Result<()> {
        let (reach, ofd) = self.reached()?;
        while !part.is_empty() {
            let n = call!(reach, calls => calls.write(ofd, ConstBuf::from(part)))?;
            part = part.get(n..).unwrap_or_default();
        }
        Ok(())
    }

    #[inline]
    pub fn read_at(&self, room: &mut [u8], at: u64) -> Result<usize> {
        let (reach, ofd) = self.reached()?;
        Ok(call!(reach, calls => calls.pread(ofd, MutBuf::from(room), signed(at)))?)
    }

    #[inline]
    pub fn write_at(&self, bytes: &[u8], at: u64) -> Result<usize> {
        let (reach, ofd) = self.reached()?;
        Ok(call!(reach, calls => calls.pwrite(ofd, ConstBuf::from(bytes), signed(at)))?)
    }

    /// As `write_at`, and durable when it returns.
    pub fn write_durably_at(&self, bytes: &[u8], at: u64) -> Result<usize> {
        let (reach, ofd) = self.reached()?;
        let parts = [ConstBuf::from(bytes)];
        let written =
            call!(reach, calls => calls.writev(ofd, &parts, Some(signed(at)), abi::RWF_DSYNC));
        Ok(written?)
    }

    /// All of `room`, or `BeyondEnd`.
    #[inline]
    pub fn read_all_at(&self, room: &mut [u8], at: u64) -> Result<()> {
        let mut done = 0;
        while let Some(rest) = room.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.read_at(rest, at + done as u64)? {
                0 => {
                    let (offset, len) = (at, room.len() as u64);
                    let size = offset + done as u64;
                    return Err(Error::BeyondEnd { offset, len, size });
                }
                n => done += n,
            }
        }
        Ok(())
    }

    #[inline]
    pub fn write_all_at(&self, bytes: &[u8], at: u64) -> Result<()> {
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            done += self.write_at(rest, at + done as u64)?;
        }
        Ok(())
    }

    /// As `write_all_at`, and durable when it returns.
    pub fn write_all_durably_at(&self, bytes: &[u8], at: u64) -> Result<()> {
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            done += self.write_durably_at(rest, at + done as u64)?;
        }
        Ok(())
    }

    /// fdatasync(2).
    pub fn sync(&self) -> Result<()> {
        let (reach, ofd) = self.reached()?;
        Ok(call!(reach, calls => calls.fdatasync(ofd))?)
    }

    /// fallocate(2).
    pub fn allocate(&self, mode: u32, at: u64, len: u64) -> Result<()> {
        let (reach, ofd) = self.reached()?;
        Ok(call!(reach, calls => calls.fallocate(ofd, mode, signed(at), signed(len)))?)
    }

    /// ftruncate(2).
    pub fn set_size(&self, size: u64) -> Result<()> {
        let (reach, ofd) = self.reached()?;
        Ok(call!(reach, calls => calls.ftruncate(ofd, signed(size)))?)
    }

    /// lseek(2) with SEEK_DATA or SEEK_HOLE; `None` where there is none behind.
    pub fn seek(&self, at: u64, whence: u32) -> Result<Option<u64>> {
        let (reach, ofd) = self.reached()?;
        match call!(reach, calls => calls.lseek(ofd, signed(at), whence)) {
            Ok(found) => Ok(Some(found)),
            Err(e) if e.errno() == ENXIO => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// fstat(2).
    pub fn stat(&self) -> Result<Stat> {
        let (reach, ofd) = self.reached()?;
        Ok(call!(reach, calls => calls.fstat(ofd))?)
    }

    /// flock(2) without waiting; false if somebody else has it locked.
    pub fn try_lock(&self) -> Result<bool> {
        let (reach, ofd) = self.reached()?;
        match call!(reach, calls => calls.flock(ofd, LOCK_EX | LOCK_NB)) {
            Ok(()) => Ok(true),
            Err(e) if e.errno() == EAGAIN => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// An extended attribute of at most `room` bytes; `None` if there is none.
    pub fn attribute<'a>(&self, name: &[u8], room: &'a mut [u8]) -> Result<Option<&'a [u8]>> {
        attribute(&self.pool, Target::Ofd(self.ofd()?), name, room)
    }

    pub fn set_attribute(&self, name: &[u8], value: &[u8]) -> Result<()> {
        let (reach, ofd) = self.reached()?;
        let value = ConstBuf::from(value);
        call!(reach, calls => self.pool.as_caller(|caller| {
            calls.setxattr(caller, Target::Ofd(ofd), name, value, 0)
        }))
    }

    /// getdents64(2): how much of `room` was filled, 0 at the end.
    pub fn entries(&self, room: &mut [u8]) -> Result<usize> {
        let (reach, ofd) = self.reached()?;
        let room = MutBuf::from(room);
        Ok(call!(reach, calls => calls.getdents(ofd, room, DirentFormat::Linux64))?)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if let Ok((reach, ofd)) = self.reached() {
            // What it could say concerns nobody any more.
            let _ = call!(reach, calls => calls.release(ofd));
        }
    }
}

/// An extended attribute of at most `room` bytes; `None` if there is none.
pub(crate) fn attribute<'a>(
    pool: &Pool,
    of: Target<'_>,
    name: &[u8],
    room: &'a mut [u8],
) -> Result<Option<&'a [u8]>> {
    let out = MutBuf::from(&mut *room);
    let got = call!(pool.inner.reach()?, calls => pool.as_caller(|caller| {
        calls.getxattr(caller, of, name, out)
    }));
    match got {
        Ok(len) => Ok(room.get(..len)),
        Err(e) if e.errno() == ENODATA => Ok(None),
        Err(e) => Err(e),
    }
}

/// unlink(2) below the pool's root.
pub(crate) fn unlink(pool: &Pool, path: &[u8]) -> Result<()> {
    call!(pool.inner.reach()?, calls => pool.as_caller(|caller| {
        calls.unlink(caller, Base::Root, path)
    }))
}

/// As the calls take them; what is beyond is beyond every file.
#[inline]
fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

const LOCK_EX: u32 = 2;
const LOCK_NB: u32 = 4;
const EAGAIN: i32 = 11;
const ENXIO: i32 = 6;
const ENODATA: i32 = 61;
