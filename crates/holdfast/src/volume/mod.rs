//! Volumes: files of a pool that are used as block devices.
//!
//! Invariants: a request is inside the volume and of whole sectors, or an error that changes
//! nothing; what was trimmed or zeroed reads as zeroes; one handle at a time writes to a volume.

mod attribute;
mod barrier;
mod buffers;
mod caution;
mod content;
mod integrity;
mod latency;
mod manage;
mod stats;
mod table;
mod writing;

use crate::error::{Error, Result};
use crate::inner::Reach;
use crate::pool::Pool;
use crate::sector::Sector;
use attribute::Properties;
use barrier::Gate;
use buffers::Buffers;
use caution::Caution;
use content::Content;
use holdfast_pmem::Protection;
use latency::Clock;
use stats::{Counters, Kind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

pub(crate) use attribute::{NAME, ROOM};
pub use barrier::Barrier;
pub use integrity::Integrity;
pub use latency::{Latency, VolumeLatency};
pub use manage::{VolumeChecked, VolumeInfo, VolumeShape};
pub use stats::{Counted, VolumeStats};
pub use writing::VolumeWriting;

/// The mode in which calls are durable later.
const POSIX: u32 = 0;

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
    content: Content,
    name: String,
    size: u64,
    properties: Properties,
    writes: bool,
    counters: Counters,
    gate: Gate,
    caution: Caution,
    /// Where writes are collected, with the protection that goes with it.
    buffers: Option<Buffers>,
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
        let batches = writes && properties.table.is_none() && collects(pool)?;
        let size = match properties.table {
            Some(size) => size,
            None => file.stat()?.size,
        };
        let inner = Inner {
            size: whole_sectors(size, properties),
            content: Content::open(file, writes, properties)?,
            name: name.into(),
            properties,
            writes,
            counters: Counters::default(),
            gate: Gate::default(),
            caution: Caution::default(),
            buffers: batches.then(Buffers::new),
            clock: Clock::default(),
        };
        Ok(Volume {
            inner: Arc::new(inner),
        })
    }

    /// The pool that it is in.
    pub fn pool(&self) -> &Pool {
        self.inner.content.file().pool()
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

    /// What its sectors are kept from.
    pub fn integrity(&self) -> Integrity {
        self.inner.properties.integrity()
    }

    /// Whether each write is read back and compared (PMBD's wrverify); other bytes are EIO. Writes
    /// that go to buffers are not.
    pub fn set_verify(&self, verify: bool) {
        self.inner.caution.verifies.store(verify, Relaxed);
    }

    /// Whether a write changes only the lines of 64 bytes that are not as it wants them (PMBD's
    /// subupdate), which spares media that wear. Atomic sectors go to other blocks as a whole.
    pub fn set_sub_block(&self, sub_block: bool) {
        self.inner.caution.spares.store(sub_block, Relaxed);
    }

    /// What flushes of this handle and its clones do to writes at the same time; to be set before
    /// there are any.
    pub fn set_barrier(&self, barrier: Barrier) {
        self.inner.gate.set(barrier);
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
            let read = match &inner.buffers {
                None => inner.content.read(room, offset),
                Some(buffers) => buffers.read(&inner.content, room, offset),
            };
            match read {
                // Somebody has cut the file meanwhile.
                Err(Error::BeyondEnd { .. }) => {
                    let (len, size) = (room.len() as u64, inner.content.file().stat()?.size);
                    Err(Error::BeyondEnd { offset, len, size })
                }
                read => read,
            }
        })
    }

    /// Writes `bytes` at `offset`.
    pub fn write(&self, bytes: &[u8], offset: u64, durable: Written) -> Result<()> {
        self.count(Kind::Write, bytes.len() as u64, |inner| {
            inner.check_change(offset, bytes.len() as u64)?;
            let _held = inner.gate.change();
            match &inner.buffers {
                None if inner.caution.is_none() => inner.content.write(bytes, offset, durable),
                None => inner.caution.write(&inner.content, bytes, offset, durable),
                Some(buffers) => buffers.write(&inner.content, bytes, offset, durable),
            }
        })
    }

    /// Makes all writes durable that were complete when the call began, as far as the medium
    /// promises.
    pub fn flush(&self) -> Result<()> {
        self.count(Kind::Flush, 0, |inner| {
            let _held = inner.gate.flush();
            if let Some(buffers) = &inner.buffers {
                buffers.drain(&inner.content)?;
            }
            match inner.writes {
                true => inner.content.file().sync(),
                false => Ok(()),
            }
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
        if let Some(buffers) = &inner.buffers {
            buffers.drain(&inner.content)?;
        }
        inner.content.extent(offset, inner.size)
    }

    /// Bytes that the volume takes of the pool.
    pub fn allocated(&self) -> Result<u64> {
        Ok(self.inner.content.file().stat()?.blocks * 512)
    }

    /// Stores to the byte at `offset` in the pool's memory as a program does by mistake, without
    /// changing it. Where the pool is protected, the process gets a SIGSEGV; else the call returns.
    /// ENXIO: there is a hole. EACCES: the pool is not mapped, so there is nothing to store to.
    pub fn stray_store(&self, offset: u64) -> Result<()> {
        let inner = &self.inner;
        inner.check_change(offset, 0)?;
        let file = inner.content.file();
        let client = file.pool().inner.client()?;
        let place = i64::try_from(inner.content.place(offset)?).unwrap_or(i64::MAX);
        Ok(client.stray_store(file.ofd()?, place)?)
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

/// Whether writes may be collected: they need not be durable when they are done.
fn collects(pool: &Pool) -> Result<bool> {
    Ok(match pool.inner.reach()? {
        Reach::Mapped(client) => {
            let session = client.session();
            let batches = session.data().protection() == Protection::PageTableBatch;
            batches && session.consistency() == POSIX
        }
        Reach::Served(_) => false,
    })
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
        let _held = self.gate.change();
        let zero = || self.content.zero(offset, len, zeroes);
        match &self.buffers {
            None => zero(),
            Some(buffers) => buffers.pass(offset, len, zero),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(buffers) = &self.buffers {
            // Whoever wants to know flushes before.
            let _ = buffers.drain(&self.content);
        }
    }
}
