//! Volumes: files of a pool that are used as block devices.
//!
//! Invariants: a request is inside the volume and of whole sectors, or an error that changes
//! nothing; what was trimmed or zeroed reads as zeroes; one handle at a time writes to a volume.

mod attribute;
mod latency;
mod manage;
mod stats;
mod writing;

use crate::error::{Error, Result};
use crate::file::File;
use crate::pool::Pool;
use crate::sector::Sector;
use attribute::Properties;
use holdfast_client::abi;
use latency::Clock;
use stats::{Counters, Kind};
use std::sync::Arc;

pub use latency::{Latency, VolumeLatency};
pub use manage::VolumeInfo;
pub use stats::{Counted, VolumeStats};
pub use writing::VolumeWriting;

/// Zeroes are written so many bytes at a time, so that other requests come in between.
const ZEROES_AT_ONCE: u64 = 16 << 20;

/// When a write is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// With the next `flush`.
    AtFlush,
    /// When the call returns: FUA, forced unit access.
    AtReturn,
}

/// What zeroes may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zeroes {
    /// A hole, which takes no space.
    Hole,
    /// Blocks, so that a later write finds its space.
    Blocks,
}

/// A part of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it ends: the next begins there.
    pub end: u64,
    /// Whether it takes no space, and reads as zeroes.
    pub hole: bool,
}

/// A volume that is open. Handles are cheap to clone, and any thread may use them; a child of
/// fork(2) opens the volume again.
#[derive(Clone)]
pub struct Volume {
    inner: Arc<Inner>,
}

struct Inner {
    file: File,
    name: String,
    size: u64,
    properties: Properties,
    writes: bool,
    counters: Counters,
    clock: Clock,
}

impl Pool {
    /// The volume `name`, for reading and writing. While the handle or a clone of it lives, others
    /// can open the volume for reading only.
    pub fn volume(&self, name: &str) -> Result<Volume> {
        Volume::open(self, name, true)
    }

    /// The volume `name`, for reading; somebody else may write to it meanwhile.
    pub fn volume_to_read(&self, name: &str) -> Result<Volume> {
        Volume::open(self, name, false)
    }
}

impl Volume {
    pub(crate) fn open(pool: &Pool, name: &str, writes: bool) -> Result<Volume> {
        let (file, properties) = manage::open(pool, name, writes)?;
        if writes && !file.try_lock()? {
            return Err(Error::InUse { name: name.into() });
        }
        let inner = Inner {
            size: whole_sectors(file.stat()?.size, properties),
            file,
            name: name.into(),
            properties,
            writes,
            counters: Counters::default(),
            clock: Clock::default(),
        };
        Ok(Volume {
            inner: Arc::new(inner),
        })
    }

    /// The pool that it is in.
    pub fn pool(&self) -> &Pool {
        self.inner.file.pool()
    }

    /// By which it was opened.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// In bytes.
    pub fn size(&self) -> u64 {
        self.inner.size
    }

    /// The unit of requests.
    pub fn sector(&self) -> Sector {
        self.inner.properties.sector
    }

    /// How it is to be written to, as the volume kept it when it was opened.
    pub fn writing(&self) -> VolumeWriting {
        self.inner.properties.writing
    }

    /// Whether the handle can write.
    pub fn writes(&self) -> bool {
        self.inner.writes
    }

    /// Fills `room` from `offset`.
    pub fn read(&self, room: &mut [u8], offset: u64) -> Result<()> {
        self.count(Kind::Read, room.len() as u64, |inner| {
            inner.check(offset, room.len() as u64)?;
            let mut done = 0;
            while let Some(rest) = room.get_mut(done..).filter(|rest| !rest.is_empty()) {
                match inner.file.read_at(rest, offset + done as u64)? {
                    // Somebody has cut the file meanwhile.
                    0 => {
                        let (len, size) = (room.len() as u64, inner.file.stat()?.size);
                        return Err(Error::BeyondEnd { offset, len, size });
                    }
                    n => done += n,
                }
            }
            Ok(())
        })
    }

    /// Writes `bytes` at `offset`.
    pub fn write(&self, bytes: &[u8], offset: u64, durable: Written) -> Result<()> {
        self.count(Kind::Write, bytes.len() as u64, |inner| {
            inner.check_change(offset, bytes.len() as u64)?;
            let mut done = 0;
            while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
                let at = offset + done as u64;
                done += match durable {
                    Written::AtFlush => inner.file.write_at(rest, at)?,
                    Written::AtReturn => inner.file.write_durably_at(rest, at)?,
                };
            }
            Ok(())
        })
    }

    /// Makes all writes durable that were complete when the call began, as far as the medium
    /// promises.
    pub fn flush(&self) -> Result<()> {
        self.count(Kind::Flush, 0, |inner| match inner.writes {
            true => inner.file.sync(),
            false => Ok(()),
        })
    }

    /// Gives the space of a range back; it reads as zeroes. Durable with the next `flush`.
    pub fn trim(&self, offset: u64, len: u64) -> Result<()> {
        self.count(Kind::Trim, len, |inner| {
            inner.check_change(offset, len)?;
            inner.zero(offset, len, Zeroes::Hole)
        })
    }

    /// Zeroes a range. Durable with the next `flush`.
    pub fn write_zeroes(&self, offset: u64, len: u64, zeroes: Zeroes) -> Result<()> {
        self.count(Kind::Zero, len, |inner| {
            inner.check_change(offset, len)?;
            inner.zero(offset, len, zeroes)
        })
    }

    /// What is at `offset`: bytes that take space, or a hole.
    pub fn extent(&self, offset: u64) -> Result<Extent> {
        let inner = &self.inner;
        inner.check(offset, 0)?;
        let end = |found: Option<u64>| found.unwrap_or(inner.size).min(inner.size);
        let data = end(inner.file.seek(offset, abi::SEEK_DATA)?);
        if data > offset {
            let hole = true;
            return Ok(Extent { end: data, hole });
        }
        Ok(Extent {
            end: end(inner.file.seek(offset, abi::SEEK_HOLE)?),
            hole: false,
        })
    }

    /// Bytes that the volume takes of the pool.
    pub fn allocated(&self) -> Result<u64> {
        Ok(self.inner.file.stat()?.blocks * 512)
    }

    /// Stores to the byte at `offset` in the pool's memory as a program does by mistake, without
    /// changing it. Where the pool is protected, the process gets a SIGSEGV; else the call returns.
    /// ENXIO: there is a hole. EACCES: the pool is not mapped, so there is nothing to store to.
    pub fn stray_store(&self, offset: u64) -> Result<()> {
        let inner = &self.inner;
        inner.check_change(offset, 0)?;
        let ofd = inner.file.ofd()?;
        let client = inner.file.pool().inner.client()?;
        Ok(client.stray_store(ofd, i64::try_from(offset).unwrap_or(i64::MAX))?)
    }

    /// What was done by this handle and its clones.
    pub fn stats(&self) -> VolumeStats {
        self.inner.counters.stats()
    }

    /// From now on the time of each request of this handle and its clones is taken, which costs
    /// two looks at the clock.
    pub fn measure_latency(&self) {
        self.inner.clock.start();
    }

    /// How long requests took since `measure_latency`.
    pub fn latency(&self) -> VolumeLatency {
        self.inner.clock.latency()
    }

    #[inline]
    fn count(&self, kind: Kind, len: u64, f: impl FnOnce(&Inner) -> Result<()>) -> Result<()> {
        let begun = self.inner.clock.begin(kind);
        let done = f(&self.inner);
        self.inner.counters.count(kind, len, done.is_ok());
        if done.is_ok() {
            begun.done();
        }
        done
    }
}

/// A file that programs gave another size may end in a part of a sector.
fn whole_sectors(size: u64, properties: Properties) -> u64 {
    size & !(properties.sector.bytes() - 1)
}

impl Inner {
    #[inline]
    fn check(&self, offset: u64, len: u64) -> Result<()> {
        let sector = self.properties.sector.bytes();
        if (offset | len) & (sector - 1) != 0 {
            let sector = self.properties.sector;
            return Err(Error::NoSectors {
                offset,
                len,
                sector,
            });
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(self.beyond(offset, len)),
        }
    }

    #[inline]
    fn check_change(&self, offset: u64, len: u64) -> Result<()> {
        match self.writes {
            true => self.check(offset, len),
            false => Err(Error::OpenToRead {
                name: self.name.clone(),
            }),
        }
    }

    #[cold]
    fn beyond(&self, offset: u64, len: u64) -> Error {
        let size = self.size;
        Error::BeyondEnd { offset, len, size }
    }

    fn zero(&self, offset: u64, len: u64, zeroes: Zeroes) -> Result<()> {
        let (mode, at_once) = match zeroes {
            Zeroes::Hole => (abi::FALLOC_FL_PUNCH_HOLE, u64::MAX),
            Zeroes::Blocks => (abi::FALLOC_FL_ZERO_RANGE, ZEROES_AT_ONCE),
        };
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let part = (end - at).min(at_once);
            self.file
                .allocate(mode | abi::FALLOC_FL_KEEP_SIZE, at, part)?;
            at += part;
        }
        Ok(())
    }
}
