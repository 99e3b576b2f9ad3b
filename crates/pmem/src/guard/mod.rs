//! Write protection: a process that writes to a region and still cannot store into it by mistake.
//!
//! What always holds here:
//! - The region itself is mapped for reading only. What may be stored to at a time is a window that
//!   is open for one copy, or one of a few that are kept; or there is none, and the kernel copies.
//! - A window shows the same pages of the same file as the region.
//! - A child of fork(2) begins with everything closed, whatever threads of its parent had open.
//! - Nobody else's file is ever mapped or written: that the descriptor is still the region's is
//!   looked at first.

mod cache;
mod file;
mod flip;
mod key;
mod window;

use crate::fault::Protected;
use crate::fork::ForkMark;
use crate::map::{HUGE, MapOptions, Mapping};
use crate::medium::huge_page;
use crate::protection::Protection;
use crate::{Error, Fault, Medium, PAGE, SharedMem, sys};
use cache::Cache;
use core::marker::PhantomData;
use file::RegionFile;
use flip::Flip;
use key::Key;
use rustix::fd::BorrowedFd;
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use window::Windows;

impl Protection {
    /// What `auto` stands for: keys cost least; where write(2) cannot be, there are windows.
    pub fn best(fd: BorrowedFd<'_>, medium: Medium) -> Protection {
        match () {
            () if key::is_there() => Protection::Key,
            // What write(2) does to a file that has holes is durable after fsync(2) alone; windows
            // are mapped so that a fault makes it durable.
            () if !takes_writes(fd) || medium == Medium::Dax => Protection::WindowCache,
            () if files_are_limited() => Protection::Window,
            () => Protection::Descriptor,
        }
    }
}

/// Whether write(2) stores into the file: not where it is device DAX or of hugetlbfs.
fn takes_writes(fd: BorrowedFd<'_>) -> bool {
    let regular = rustix::fs::fstat(fd)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
    regular && huge_page(fd).is_none()
}

/// Whether write(2) to the end of a segment would raise SIGXFSZ.
fn files_are_limited() -> bool {
    getrlimit(Resource::Fsize).current.is_some()
}

/// Of one region.
pub(crate) struct Guard {
    way: Way,
    file: RegionFile,
    /// Where in the file the region begins.
    offset: u64,
    medium: Medium,
    /// Whether this process, which may be a child of fork(2), has begun.
    process: ForkMark,
    /// So that strays are reported.
    known: Protected,
}

/// Of a process.
const BEGINS: u64 = 1;
const HAS_BEGUN: u64 = 2;

enum Way {
    Flip(Flip),
    Batch(Flip),
    Window(Windows),
    Cache(Cache),
    Descriptor,
    Key(Key),
}

/// What is to be protected.
pub(crate) struct Region<'a> {
    pub fd: BorrowedFd<'a>,
    pub offset: u64,
    pub len: usize,
    /// Where it is mapped for reading.
    pub base: *mut u8,
    pub options: &'a MapOptions,
}

impl Guard {
    /// `None` where nothing is to be protected.
    pub fn new(region: &Region<'_>, protection: Protection) -> Result<Option<Guard>, Error> {
        let way = match protection {
            Protection::None => return Ok(None),
            Protection::Auto => {
                return Guard::new(region, Protection::best(region.fd, region.options.medium));
            }
            Protection::PageTable | Protection::PageTableBatch | Protection::Window
                if huge_page(region.fd).is_some() =>
            {
                return Err(Error::NotHere {
                    what: "hugetlbfs maps whole huge pages, so pt and pmap cannot protect the pool",
                });
            }
            Protection::PageTable => Way::Flip(Flip::new(region.base, region.len)),
            Protection::PageTableBatch => Way::Batch(Flip::new(region.base, region.len)),
            Protection::Window => Way::Window(Windows::new(region)?),
            Protection::WindowCache => Way::Cache(Cache::new(region)?),
            Protection::Descriptor if !takes_writes(region.fd) => {
                return Err(Error::NotHere {
                    what: "write(2) does not reach the pool's medium, so fd cannot protect it",
                });
            }
            Protection::Descriptor if files_are_limited() => {
                return Err(Error::NotHere {
                    what: "fd cannot protect the pool where files are limited in size (ulimit -f)",
                });
            }
            Protection::Descriptor => Way::Descriptor,
            Protection::Key => Way::Key(Key::new(region)?),
        };
        let process = ForkMark::new()?;
        process.set(HAS_BEGUN);
        Ok(Some(Guard {
            process,
            way,
            file: RegionFile::new(region.fd)?,
            offset: region.offset,
            medium: region.options.medium,
            known: Protected::new(region.base as usize, region.len),
        }))
    }

    /// From now on strays are counted in a word of that memory.
    pub fn count_strays(&mut self, memory: &SharedMem, off: u64) {
        self.known.count_in(memory, off);
    }

    /// Which it is.
    pub fn protection(&self) -> Protection {
        match self.way {
            Way::Flip(_) => Protection::PageTable,
            Way::Batch(_) => Protection::PageTableBatch,
            Way::Window(_) => Protection::Window,
            Way::Cache(_) => Protection::WindowCache,
            Way::Descriptor => Protection::Descriptor,
            Way::Key(_) => Protection::Key,
        }
    }

    /// Whether nothing is ever opened, and the kernel writes.
    pub fn writes(&self) -> bool {
        matches!(self.way, Way::Descriptor)
    }

    /// Where in the file a byte of the region is.
    pub fn in_file(&self, off: u64) -> u64 {
        self.offset + off
    }

    /// How many of `len` bytes from `off` on one window can show.
    pub fn within_window(&self, off: u64, len: usize) -> usize {
        match self.way {
            Way::Window(_) | Way::Cache(_) => {
                let room = HUGE as u64 - self.in_file(off) % HUGE as u64;
                len.min(room as usize)
            }
            _ => len,
        }
    }

    /// Opens a range of the region, which one window can show, to be stored to.
    pub fn open(&self, off: u64, len: usize) -> Result<Open<'_>, Error> {
        if self.process.get() != HAS_BEGUN {
            self.begin()?;
        }
        let at = self.in_file(off);
        match &self.way {
            Way::Flip(flip) | Way::Batch(flip) => flip.open(off, len),
            Way::Window(windows) => windows.open(self.file.borrow()?, at, len),
            Way::Cache(cache) => cache.open(&self.file, at, len),
            Way::Key(key) => Ok(key.open(off)),
            Way::Descriptor => Err(Error::ReadOnly),
        }
    }

    /// In a child of fork(2): what its parent's threads had open is closed, and what they held is
    /// free.
    #[cold]
    fn begin(&self) -> Result<(), Error> {
        if !self.process.set_first(BEGINS) {
            while self.process.get() == BEGINS {
                rustix::thread::sched_yield();
            }
            return match self.process.get() {
                HAS_BEGUN => Ok(()),
                _ => self.begin(),
            };
        }
        let done = match &self.way {
            Way::Flip(flip) | Way::Batch(flip) => flip.begin(),
            Way::Window(windows) => windows.begin(),
            Way::Cache(cache) => cache.begin(),
            // A thread that forks has nothing open, and the child has no other.
            Way::Descriptor | Way::Key(_) => Ok(()),
        };
        // What could not be closed is tried again by the next copy.
        self.process.set(if done.is_ok() { HAS_BEGUN } else { 0 });
        done
    }

    /// Writes by a system call, where nothing is ever opened.
    pub fn write(&self, src: *const u8, len: usize, off: u64) -> Result<(), Fault> {
        let mut copied = 0;
        while copied < len {
            let from = src.wrapping_add(copied);
            let at = self.in_file(off) + copied as u64;
            let written = match self.file.borrow() {
                Ok(fd) => sys::pwrite(fd, from, len - copied, at),
                Err(_) => Err(Errno::BADF),
            };
            match written {
                Ok(n) if n > 0 => copied += n,
                Err(Errno::INTR) => {}
                Err(Errno::FAULT) => return Err(Fault::BadAddress { copied }),
                _ => return Err(Fault::Media { copied }),
            }
        }
        // Blocks that the file got by this are the file system's to remember.
        let remembered = match self.medium {
            Medium::Dax => self
                .file
                .borrow()
                .and_then(|fd| rustix::fs::fdatasync(fd).map_err(Error::os("fdatasync"))),
            _ => Ok(()),
        };
        remembered.map_err(|_| Fault::Media { copied })
    }

    /// A mapping for writing of a range of whole pages, for a moment.
    pub fn map(&self, off: u64, len: usize, options: &MapOptions) -> Result<Mapping, Error> {
        Mapping::shared(self.file.borrow()?, self.in_file(off), len, options)
    }
}

/// A range that may be stored to until this is dropped.
pub(crate) struct Open<'a> {
    /// Where its first byte is.
    at: *mut u8,
    _closing: Closing<'a>,
    /// What a thread opened is open for that thread.
    _thread: PhantomData<*mut u8>,
}

/// What closes it.
#[expect(dead_code, reason = "they are held to be dropped")]
enum Closing<'a> {
    Flip(flip::Flipped<'a>),
    Window(window::Slot<'a>),
    Cache(cache::Used<'a>),
    Key(key::Opened<'a>),
}

impl<'a> Open<'a> {
    fn new(at: *mut u8, closing: Closing<'a>) -> Open<'a> {
        Open {
            at,
            _closing: closing,
            _thread: PhantomData,
        }
    }

    /// Where its first byte is.
    pub fn ptr(&self) -> *mut u8 {
        self.at
    }
}

/// The whole pages that a range touches: where they begin, and their length.
fn pages(at: u64, len: usize) -> (u64, usize) {
    let first = at / PAGE as u64 * PAGE as u64;
    let end = (at + len as u64).next_multiple_of(PAGE as u64);
    (first, (end - first) as usize)
}

#[cfg(test)]
mod tests;
