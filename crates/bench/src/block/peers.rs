//! What is measured in this process: volumes, mapped memory, and a file of tmpfs.

use super::rows::Plan;
use super::{SIZE, SUBJECT};
use crate::error::{Error, Result};
use crate::janitor::Janitor;
use crate::loops;
use crate::peers::create_pool;
use holdfast::{
    Barrier, Integrity, Pool, Protection, Scheme, Sector, Slow, Volume, VolumeShape, Written,
};
use holdfast_pmem::{Access, Medium, Region};
use rustix::fs::OFlags;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync;
use std::time::Instant;

/// In the order in which they are shown.
pub const NAMES: &[&str] = &[
    "memcpy",
    "memcpy-nt",
    "tmpfs",
    "loop",
    SUBJECT,
    "none",
    "pt",
    "pt-batch",
    "pmap",
    "pmap-cache",
    "fd",
    "pkey",
    "nt",
    "clwb",
    "clflushopt",
    "clflush",
    "strict",
    "atomic",
    "checksum",
    "x2",
    "x4",
    "x8",
    "x16",
];
/// Written at a time before anything is timed.
const PREPARED: usize = 1 << 20;
const PAGE: usize = 4096;
const FILLING: u8 = 0xa5;

/// Something that is measured.
pub struct Peer {
    pub name: &'static str,
    pub disk: Box<dyn Disk>,
}

/// A disk of `SIZE` bytes.
pub trait Disk {
    /// Makes the requests of a round; the time of one, in ns.
    fn time(&self, plan: &Plan, quick: bool) -> Result<f64>;

    /// Whether what it has is what was written to it.
    fn check(&self) -> Result<()>;
}

/// One that is reached by calls.
trait Calls: Sync {
    fn read(&self, room: &mut [u8], at: u64) -> Result<()>;
    fn write(&self, bytes: &[u8], at: u64) -> Result<()>;
    fn flush(&self) -> Result<()>;

    /// Makes one of so many requests, where one takes long.
    fn one_in(&self) -> usize {
        1
    }
}

/// Makes the disk of this name.
pub fn start(name: &str, janitor: &mut Janitor, base: &Path) -> Result<Box<dyn Disk>> {
    Ok(match name {
        "memcpy" => prepared(Memory::new(base, false)?)?,
        "memcpy-nt" => prepared(Memory::new(base, true)?)?,
        "tmpfs" => prepared(tmpfs(base)?)?,
        "loop" => prepared(loop_device(janitor, base)?)?,
        name => prepared(volume(name, base)?)?,
    })
}

fn prepared<C: Calls + 'static>(calls: C) -> Result<Box<dyn Disk>> {
    let mut room = Room::new(PREPARED);
    let bytes = room.bytes();
    for at in (0..SIZE).step_by(PREPARED) {
        stamp(bytes, at);
        calls.write(bytes, at)?;
    }
    Ok(Box::new(calls))
}

/// Bytes that begin where a page does, as O_DIRECT wants them.
struct Room {
    kept: Vec<u8>,
    size: usize,
}

impl Room {
    fn new(size: usize) -> Room {
        let kept = vec![FILLING; size + PAGE];
        Room { kept, size }
    }

    fn bytes(&mut self) -> &mut [u8] {
        let before = self.kept.as_ptr().addr().wrapping_neg() % PAGE;
        &mut self.kept[before..before + self.size]
    }
}

/// What each place of a disk has: its own number at the beginning of each page, so that a request
/// that went to another place is seen.
fn stamp(bytes: &mut [u8], at: u64) {
    for (n, page) in bytes.chunks_exact_mut(PAGE).enumerate() {
        page[..8].copy_from_slice(&(at + (n * PAGE) as u64).to_le_bytes());
    }
}

impl<C: Calls> Disk for C {
    fn time(&self, plan: &Plan, quick: bool) -> Result<f64> {
        let each = (plan.requests(quick) / self.one_in() / plan.depth).max(1);
        let ready = sync::Barrier::new(plan.depth);
        // A thread that is to look at the clock for all would come too late.
        let timed = |thread| {
            let mut room = Room::new(plan.bytes);
            ready.wait();
            let begun = Instant::now();
            requests(self, plan, (thread, each), room.bytes())?;
            Ok((begun, Instant::now()))
        };
        let times = std::thread::scope(|scope| {
            let timed = &timed;
            let threads: Vec<_> = (0..plan.depth)
                .map(|thread| scope.spawn(move || timed(thread)))
                .collect();
            let gone = || Error::Failed("a thread of the benchmark ended".into());
            let all = threads
                .into_iter()
                .map(|thread| thread.join().map_err(|_| gone())?);
            all.collect::<Result<Vec<_>>>()
        })?;
        let begun = times.iter().map(|(begun, _)| *begun).min();
        let ended = times.iter().map(|(_, ended)| *ended).max();
        let took = begun
            .zip(ended)
            .map_or_else(Default::default, |(begun, ended)| ended - begun);
        Ok(took.as_nanos() as f64 / (each * plan.depth) as f64)
    }

    fn check(&self) -> Result<()> {
        let (mut room, mut wanted) = (Room::new(PREPARED), vec![FILLING; PREPARED]);
        let found = room.bytes();
        found.fill(0);
        for at in (0..SIZE).step_by(PREPARED) {
            self.read(found, at)?;
            stamp(&mut wanted, at);
            if found != wanted {
                return Err(Error::Failed(format!(
                    "other bytes than were written at {at}"
                )));
            }
        }
        Ok(())
    }
}

/// The requests of one thread.
fn requests(
    disk: &impl Calls,
    plan: &Plan,
    (thread, each): (usize, usize),
    bytes: &mut [u8],
) -> Result<()> {
    let places = SIZE / plan.bytes as u64;
    let mut number = 88_172_645_463_325_252 ^ (thread as u64) << 40;
    for n in 0..each {
        number ^= number << 13;
        number ^= number >> 7;
        number ^= number << 17;
        let place = match plan.random {
            true => number % places,
            false => (thread * each + n) as u64 % places,
        };
        let at = place * plan.bytes as u64;
        match plan.writes {
            true => {
                stamp(bytes, at);
                disk.write(bytes, at)?;
            }
            false => disk.read(bytes, at)?,
        }
        if plan.flush_every > 0 && n % plan.flush_every == 0 {
            disk.flush()?;
        }
    }
    Ok(())
}

/// Mapped memory.
struct Memory {
    region: Region,
    around: bool,
    _file: File,
}

impl Memory {
    fn new(base: &Path, around: bool) -> Result<Memory> {
        let file = new_file(base, if around { "memcpy-nt" } else { "memcpy" })?;
        // As on persistent memory, or as plain memory is.
        let medium = if around {
            Medium::DaxTest
        } else {
            Medium::Memory
        };
        let region = Region::map(file.as_fd(), 0, SIZE as usize, Access::ReadWrite, medium);
        Ok(Memory {
            region: region.map_err(failed)?,
            around,
            _file: file,
        })
    }
}

impl Calls for Memory {
    fn read(&self, room: &mut [u8], at: u64) -> Result<()> {
        self.region.read(at, room).map_err(failed)
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        match self.around {
            true => {
                self.region.write_nt(at, bytes).map_err(failed)?;
                self.region.fence();
            }
            false => self.region.store(at, bytes).map_err(failed)?,
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.region.fence();
        Ok(())
    }
}

/// A file of tmpfs or a device, by system calls.
struct Opened {
    file: File,
    one_in: usize,
}

fn tmpfs(base: &Path) -> Result<Opened> {
    let file = new_file(base, "tmpfs")?;
    Ok(Opened { file, one_in: 1 })
}

/// A loop device over a file of tmpfs.
fn loop_device(janitor: &mut Janitor, base: &Path) -> Result<Opened> {
    new_file(base, "loop")?;
    let device = loops::attach(janitor, &base.join("loop"))?;
    let direct = i32::try_from(OFlags::DIRECT.bits()).unwrap_or_default();
    let mut options = File::options();
    let opened = options.read(true).write(true).custom_flags(direct);
    let file = opened.open(&device).map_err(Error::io(device.display()))?;
    // A request takes as long as some twenty in this process.
    Ok(Opened { file, one_in: 8 })
}

impl Calls for Opened {
    fn read(&self, room: &mut [u8], at: u64) -> Result<()> {
        self.file.read_exact_at(room, at).map_err(Error::io("read"))
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        self.file
            .write_all_at(bytes, at)
            .map_err(Error::io("write"))
    }

    fn flush(&self) -> Result<()> {
        self.file.sync_data().map_err(Error::io("flush"))
    }

    fn one_in(&self) -> usize {
        self.one_in
    }
}

fn new_file(base: &Path, name: &str) -> Result<File> {
    let path = base.join(name);
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path);
    let file = file.map_err(Error::io(path.display()))?;
    file.set_len(SIZE).map_err(Error::io(path.display()))?;
    Ok(file)
}

/// A volume of this name, opened as the name says.
fn volume(name: &str, base: &Path) -> Result<Volume> {
    let pool = pool(base)?;
    let options = Pool::options().slow(slowness(name)?);
    let options = match (Protection::named(name), Scheme::named(name)) {
        (Some(protection), _) => options.protection(protection),
        (_, Some(scheme)) => options.scheme(scheme),
        _ if name == SUBJECT => options.protection(Protection::Auto),
        _ => options,
    };
    let pool = options.open(pool).map_err(failed)?;
    let integrity = match name {
        "atomic" => Integrity::Atomic,
        "checksum" => Integrity::Checked,
        _ => Integrity::Plain,
    };
    let shape = VolumeShape {
        sector: Sector::Large,
        integrity,
        ..VolumeShape::default()
    };
    pool.volume_create_with(name, SIZE, shape).map_err(failed)?;
    let volume = pool.volume(name).map_err(failed)?;
    if name == "strict" {
        volume.set_barrier(Barrier::Strict);
    }
    Ok(volume)
}

/// Whether each copy takes longer than it does. Where more threads make them than there are
/// processors, a copy takes as long as it waits for one, too, and many times that.
pub fn is_slowed(name: &str) -> bool {
    name.starts_with('x')
}

/// `x8`: each copy takes eight times as long.
fn slowness(name: &str) -> Result<Slow> {
    match name.strip_prefix('x') {
        None => Ok(Slow::NONE),
        Some(times) => Slow::parse(&format!("rdsx={times},wrsx={times}")).map_err(failed),
    }
}

impl Calls for Volume {
    fn read(&self, room: &mut [u8], at: u64) -> Result<()> {
        Volume::read(self, room, at).map_err(failed)
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        Volume::write(self, bytes, at, Written::AtFlush).map_err(failed)
    }

    fn flush(&self) -> Result<()> {
        Volume::flush(self).map_err(failed)
    }
}

/// The pool in which the volumes are.
pub fn pool(base: &Path) -> Result<PathBuf> {
    let pool = base.join("pool");
    if !pool.exists() {
        create_pool(&pool, SIZE * (NAMES.len() as u64 + 1))?;
    }
    Ok(pool)
}

pub fn failed(error: impl std::fmt::Display) -> Error {
    Error::Failed(error.to_string())
}
