//! A mapped range of one segment, and every way to touch it.
//!
//! What always holds here:
//! - Offsets are checked before use; an offset out of range is an error and changes nothing.
//! - Every store goes through a method that reports it to the crash recorder, if one is built in
//!   (the feature `recording`). The exception is [`Region::word`], for words that mean nothing
//!   after a restart.
//! - A partial line is stored cached and flushed, whole lines go around the cache; both are durable
//!   only after this thread's [`Region::fence`].

use crate::buf::{ConstBuf, Fault, MutBuf};
use crate::copy::{self, CopyFn, Outcome, SIDE_SOURCE};
use crate::dirty::DirtyMap;
use crate::flush::SegmentFile;
use crate::guard::{self, Guard};
use crate::map::{Access, HUGE, MapOptions, Mapping};
use crate::medium::{Medium, caches_persistent};
use crate::persist::{self, Persistence, Registers, Routines};
use crate::protection::Protection;
#[cfg(not(feature = "recording"))]
use crate::silent::Tap;
#[cfg(feature = "recording")]
use crate::watch::Tap;
use crate::{Error, LINE, PAGE, SharedMem, sys};
use alloc::sync::Arc;
use alloc::vec;
use core::arch::asm;
use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use rustix::fd::BorrowedFd;
use rustix::mm::{Advice, MsyncFlags};
use slowed::Slowed;

/// The kernel may keep what one call writes in one folio, and a store through a mapping makes all
/// of that dirty.
const FOLIO_MAX: usize = 1024 * 1024;

/// A mapped range of one segment. A copy is the same memory once more.
#[derive(Clone)]
pub struct Region {
    base: *mut u8,
    len: usize,
    /// `len` unless reads take longer than they do, else 0, so that one comparison checks both.
    short: usize,
    /// `len` when writable, and as fast as it is, else 0.
    writable: usize,
    routines: Routines,
    medium: Medium,
    persistence: Persistence,
    record: Tap,
    /// Where stores are noted.
    dirty: Option<Arc<DirtyMap>>,
    file: Option<SegmentFile>,
    /// What all stores go through, where the mapping is for reading only.
    guard: Option<Arc<Guard>>,
    /// What makes all copies, where they take longer than they do.
    slowed: Option<Arc<Slowed>>,
    mapping: Mapping,
}

// SAFETY: `base` points into `mapping`, which is Send and Sync, lives as long as the region and
// is only reached through atomics and opaque copy routines.
unsafe impl Send for Region {}
// SAFETY: as above; no method changes a field.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `len` bytes of `fd` from `offset`, with the registers that a hook may use.
    pub fn map(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        access: Access,
        medium: Medium,
    ) -> Result<Region, Error> {
        Region::map_with(fd, offset, len, &MapOptions::new(access, medium))
    }

    /// Maps `len` bytes of `fd` from `offset` as `options` say.
    pub fn map_with(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        options: &MapOptions,
    ) -> Result<Region, Error> {
        let persistence = options.persistence.unwrap_or_else(|| {
            let ask = options.medium == Medium::Dax;
            Persistence::of(options.medium, ask && caches_persistent(fd))
        });
        let routines = Routines::choose(persistence, options.registers);
        let routines = routines
            .by(options.writing.scheme, persistence)
            .ok_or(Error::NotHere {
                what: "this CPU, or the pool's medium, does not know that way to write",
            })?;
        let writes = options.access == Access::ReadWrite;
        let protection = options.writing.protected()?;
        let protected = writes && protection != Protection::None;
        let mapping = match protected {
            true => Mapping::shared(fd, offset, len, &options.clone().read_only())?,
            false => Mapping::shared(fd, offset, len, options)?,
        };
        let base = mapping.ptr();
        let ours = guard::Region {
            fd,
            offset,
            len,
            base,
            options,
        };
        let guard = match protected {
            true => Guard::new(&ours, protection)?.map(Arc::new),
            false => None,
        };
        Ok(Region {
            base,
            len,
            short: len,
            writable: if writes { len } else { 0 },
            routines,
            medium: options.medium,
            persistence,
            record: Tap::of_file(fd, offset),
            dirty: None,
            file: None,
            guard,
            slowed: None,
            mapping,
        })
    }

    /// Zeroed heap memory of this process alone that behaves as [`Medium::Memory`].
    pub fn in_memory(len: usize) -> Result<Region, Error> {
        Region::in_memory_as(len, Medium::Memory)
    }

    /// Zeroed heap memory that behaves as `medium`, for tests.
    pub fn in_memory_as(len: usize, medium: Medium) -> Result<Region, Error> {
        let mapping = Mapping::heap(len)?;
        let persistence = Persistence::of(medium, false);
        Ok(Region {
            base: mapping.ptr(),
            len,
            short: len,
            writable: len,
            routines: Routines::choose(persistence, Registers::Xmm),
            medium,
            persistence,
            record: Tap::silent(),
            dirty: None,
            file: None,
            guard: None,
            slowed: None,
            mapping,
        })
    }

    /// Heap memory that starts as `image`, which the recorder does not see; for tests.
    pub fn from_image(image: &[u8], medium: Medium) -> Result<Region, Error> {
        let region = Region::in_memory_as(image.len(), medium)?;
        // SAFETY: the region was just made with image.len() bytes, so it cannot overlap image.
        unsafe { copy::holdfast_copy(region.base, image.as_ptr(), image.len()) };
        Ok(region)
    }

    /// The same region, which notes in `dirty` what is stored to.
    pub fn noting(self, dirty: DirtyMap) -> Region {
        let dirty = Some(Arc::new(dirty));
        Region { dirty, ..self }
    }

    /// The same region, which records into `log` whatever file it may be of.
    #[cfg(feature = "recording")]
    pub fn recorded(self, log: &crate::Recorder) -> Region {
        let record = Tap::into_log(log.clone());
        Region { record, ..self }
    }

    /// The same region; stray stores into it that are stopped are counted in the word at `off` of
    /// that memory. The region has no copy yet.
    pub fn counting_strays(mut self, memory: &SharedMem, off: u64) -> Region {
        if let Some(guard) = self.guard.as_mut().and_then(Arc::get_mut) {
            guard.count_strays(memory, off);
        }
        self
    }

    /// The same region, which flushes through a descriptor of its file.
    pub fn of_file(self, file: SegmentFile) -> Region {
        let file = Some(file);
        Region { file, ..self }
    }

    /// Where stores are noted, if they are.
    #[inline]
    pub fn dirty(&self) -> Option<&DirtyMap> {
        self.dirty.as_deref()
    }

    /// Before bytes are stored.
    #[inline]
    fn note(&self, off: u64, len: usize) {
        if let Some(dirty) = &self.dirty {
            dirty.mark(off, len as u64);
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub fn medium(&self) -> Medium {
        self.medium
    }

    #[inline]
    pub fn persistence(&self) -> Persistence {
        self.persistence
    }

    #[inline]
    pub fn is_writable(&self) -> bool {
        match &self.slowed {
            None => self.writable == self.len,
            Some(slowed) => slowed.region.is_writable(),
        }
    }

    /// What keeps this process from storing into the region by mistake.
    pub fn protection(&self) -> Protection {
        self.guard
            .as_ref()
            .map_or(Protection::None, |guard| guard.protection())
    }

    /// Where the region is mapped: an address to place things by, not to be followed.
    #[inline]
    pub fn addr(&self) -> usize {
        self.base as usize
    }

    #[inline]
    fn readable(&self, off: u64, len: usize) -> Result<*mut u8, Error> {
        inside(off, len, self.len)?;
        // SAFETY: off + len <= self.len, so the pointer stays inside the mapping.
        Ok(unsafe { self.base.add(off as usize) })
    }

    /// As `readable`, where a copy takes as long as it does.
    #[inline]
    fn shortly(&self, off: u64, len: usize) -> Result<*mut u8, Error> {
        inside(off, len, self.short)?;
        // SAFETY: off + len <= self.short <= self.len, so the pointer stays inside the mapping.
        Ok(unsafe { self.base.add(off as usize) })
    }

    #[inline]
    fn writable(&self, off: u64, len: usize) -> Result<*mut u8, Error> {
        if let Err(e) = inside(off, len, self.writable) {
            return Err(if self.writable == 0 {
                Error::ReadOnly
            } else {
                e
            });
        }
        // SAFETY: off + len <= self.writable <= self.len, so the pointer stays inside.
        Ok(unsafe { self.base.add(off as usize) })
    }

    /// Copies out of the region. Another process may be writing: validate the copy.
    #[inline]
    pub fn read(&self, off: u64, dst: &mut [u8]) -> Result<(), Error> {
        #[cfg(feature = "model")]
        crate::model::look();
        let src = match self.shortly(off, dst.len()) {
            Ok(src) => src,
            Err(e) => return self.read_slowly(dst.len(), e, |region| region.read(off, dst)),
        };
        // SAFETY: both ranges were checked; a fault in the source is reported by the routine.
        let out = unsafe { (self.routines.copy)(dst.as_mut_ptr(), src, dst.len()) };
        media(out, off, dst.len())
    }

    /// Loads an aligned word; later loads of this thread are not done before it.
    #[inline]
    pub fn load_u64(&self, off: u64) -> Result<u64, Error> {
        aligned(off, 8)?;
        let p = self.readable(off, 8)?;
        // SAFETY: in range and aligned (the base is page-aligned); all access is atomic or
        // hidden from the compiler. Loading is allowed on a read-only mapping.
        Ok(unsafe { AtomicU64::from_ptr(p.cast()) }.load(Ordering::Acquire))
    }

    /// Loads an aligned 32-bit word; later loads of this thread are not done before it.
    #[inline]
    pub fn load_u32(&self, off: u64) -> Result<u32, Error> {
        aligned(off, 4)?;
        let p = self.readable(off, 4)?;
        // SAFETY: as in load_u64.
        Ok(unsafe { AtomicU32::from_ptr(p.cast()) }.load(Ordering::Acquire))
    }

    /// Stores to a byte, without changing it, as a program does that has lost its way: where the
    /// region is protected, the process gets a SIGSEGV.
    pub fn stray_store(&self, off: u64) -> Result<(), Error> {
        let at = self.readable(off, 1)?;
        // SAFETY: a byte of the mapping, which is never borrowed; what is stored is what is there,
        // in one step, so that no store of anybody else is lost.
        unsafe { asm!("lock or byte ptr [{}], 0", in(reg) at, options(nostack)) };
        Ok(())
    }

    /// Starts loading the lines that the range touches; a hint that never fails.
    #[inline]
    pub fn prefetch(&self, off: u64, len: usize) {
        let Ok(first) = self.readable(off, len) else {
            return;
        };
        for at in (0..len).step_by(LINE) {
            // SAFETY: at < len, which was checked; a prefetch changes and faults nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(first.add(at).cast()) };
        }
    }

    /// A shared word that means nothing after a restart: stores to it are not recorded. A protected
    /// region has none.
    #[inline]
    pub fn word(&self, off: u64) -> Option<&AtomicU64> {
        if self.guard.is_some() {
            return None;
        }
        aligned(off, 8).ok()?;
        let Ok(p) = self.writable(off, 8) else {
            return self.slowed.as_ref()?.region.word(off);
        };
        // SAFETY: in range, aligned and writable for as long as the region is borrowed; all
        // access is atomic or hidden from the compiler.
        Some(unsafe { AtomicU64::from_ptr(p.cast()) })
    }

    /// Stores one aligned word: it is never seen or left half-written. Not yet durable. A protected
    /// region has no such stores.
    #[inline]
    pub fn store_u64(&self, off: u64, value: u64) -> Result<(), Error> {
        if self.guard.is_some() {
            return Err(Error::ReadOnly);
        }
        aligned(off, 8)?;
        let p = match self.writable(off, 8) {
            Ok(p) => p,
            Err(e) => return self.write_slowly(8, e, |region| region.store_u64(off, value)),
        };
        self.note(off, 8);
        self.record.store(off, &value.to_le_bytes(), false);
        // SAFETY: as in word.
        unsafe { AtomicU64::from_ptr(p.cast()) }.store(value.to_le(), Ordering::Release);
        Ok(())
    }

    /// Stores through the cache. Durable after [`Region::persist`] of the range.
    #[inline]
    pub fn store(&self, off: u64, src: &[u8]) -> Result<(), Error> {
        let dst = match self.writable(off, src.len()) {
            Ok(dst) => dst,
            Err(e) => return self.write_slowly(src.len(), e, |region| region.store(off, src)),
        };
        self.note(off, src.len());
        if let Some(guard) = &self.guard {
            return self.guarded(guard, off, src.into(), false);
        }
        self.record.store(off, src, false);
        // SAFETY: both ranges were checked and cannot overlap: src is not pool memory.
        let out = unsafe { (self.routines.copy)(dst, src.as_ptr(), src.len()) };
        media(out, off, src.len())
    }

    /// Copies around the cache where the medium gains by it. Durable after [`Region::fence`].
    #[inline]
    pub fn write_nt(&self, off: u64, src: &[u8]) -> Result<(), Error> {
        if let Err(e) = self.writable(off, src.len()) {
            return self.write_slowly(src.len(), e, |region| region.write_nt(off, src));
        }
        self.note(off, src.len());
        self.write_around(off, src)
    }

    /// Under a scheduler the bytes wait until somebody fences.
    #[cfg(feature = "model")]
    fn write_around(&self, off: u64, src: &[u8]) -> Result<(), Error> {
        let at = self
            .writable(off, src.len())
            .map_err(|_| self.lost(off, Fault::OutOfRange))?;
        crate::model::store_later(at as usize, src, true);
        Ok(())
    }

    #[cfg(not(feature = "model"))]
    #[inline]
    fn write_around(&self, off: u64, src: &[u8]) -> Result<(), Error> {
        if let Some(guard) = &self.guard {
            return self.guarded(guard, off, src.into(), self.routines.around_cache);
        }
        // Whole lines, the case of every journal record, take the short way.
        if (off as usize).is_multiple_of(LINE) && src.len().is_multiple_of(LINE) {
            return self
                .copy_whole(
                    self.routines.copy_lines,
                    self.here(),
                    off,
                    src.as_ptr(),
                    src.len(),
                )
                .map_err(|f| self.lost(off, f));
        }
        let copied = match self.routines.around_cache {
            true => self.copy_durable(self.here(), off, src.into()),
            false => self.copy_flushed(self.here(), off, src.as_ptr(), src.len()),
        };
        copied.map_err(|f| self.lost(off, f))
    }

    /// Zeroes around the cache. Durable after [`Region::fence`].
    pub fn zero_nt(&self, off: u64, len: usize) -> Result<(), Error> {
        if let Err(e) = self.writable(off, len) {
            return self.write_slowly(len, e, |region| region.zero_nt(off, len));
        }
        self.note(off, len);
        if let Some(guard) = &self.guard {
            return self.zero_guarded(guard, off, len);
        }
        let (head, body, tail) = split_lines(off, len);
        let zero = [0u8; LINE];
        if head > 0 {
            self.store(off, zero.get(..head).unwrap_or(&zero))?;
            self.flush(off, head)?;
        }
        let mid = off + head as u64;
        if body > 0 && self.record.listens() {
            self.record
                .store(mid, &vec![0; body], self.routines.around_cache);
        }
        let dst = self.writable(mid, body)?;
        // SAFETY: in range, on a line, and body is whole lines; there is no source.
        let out = unsafe { (self.routines.zero_lines)(dst, core::ptr::null(), body) };
        media(out, mid, body)?;
        if tail > 0 {
            let end = mid + body as u64;
            self.store(end, zero.get(..tail).unwrap_or(&zero))?;
            self.flush(end, tail)?;
        }
        Ok(())
    }

    /// Tells the recorder that the range is about to be zeroed by other means than ours, as by a
    /// hole in the file. As durable as bytes written around the cache.
    #[inline]
    pub fn note_zeroed(&self, off: u64, len: usize) {
        if self.record.listens() && self.readable(off, len).is_ok() {
            self.record
                .zeroed(off, len, |at, line| self.read(at, line).is_ok());
        }
    }

    /// Starts writing back every line that the range touches. Durable after [`Region::fence`].
    #[inline]
    pub fn flush(&self, off: u64, len: usize) -> Result<(), Error> {
        if len == 0 {
            return Ok(());
        }
        if let Err(e) = self.shortly(off, len) {
            return self.write_slowly(len, e, |region| region.flush(off, len));
        }
        let first = off as usize / LINE;
        let last = (off as usize + len - 1) / LINE;
        if self.record.listens() && self.routines.flushes {
            (first..=last).for_each(|line| self.record.flush(line as u64));
        }
        // SAFETY: both lines hold bytes of the checked range, and mappings are whole pages.
        unsafe { (self.routines.flush_lines)(self.base.add(first * LINE), last - first + 1) };
        Ok(())
    }

    /// Makes what this thread flushed or wrote around the cache durable, in every region.
    #[inline]
    pub fn fence(&self) {
        #[cfg(feature = "model")]
        crate::model::fence(Ordering::SeqCst);
        persist::fence();
        self.record.fence();
    }

    /// Flush and fence.
    #[inline]
    pub fn persist(&self, off: u64, len: usize) -> Result<(), Error> {
        self.flush(off, len)?;
        self.fence();
        Ok(())
    }

    /// The medium's point of durability for bytes already written: msync for an ordinary file,
    /// a fence where flushing is enough.
    pub fn sync(&self, off: u64, len: usize) -> Result<(), Error> {
        self.readable(off, len)?;
        if self.persistence != Persistence::Synced {
            self.fence();
            return Ok(());
        }
        let start = off as usize / PAGE * PAGE;
        let end = off as usize + len;
        if !self.mapping.is_heap() && len > 0 {
            // SAFETY: start <= off, so the pages are inside the mapping; msync changes nothing
            // in memory.
            unsafe {
                let p = self.base.add(start).cast();
                rustix::mm::msync(p, end - start, MsyncFlags::SYNC)
            }
            .map_err(Error::os("msync"))?;
        }
        self.record.sync(off, len);
        Ok(())
    }

    /// As `sync` for many ranges, with one flush for all. Only what is dirty in them is written.
    pub fn sync_ranges(
        &self,
        ranges: impl Iterator<Item = (u64, usize)> + Clone,
    ) -> Result<(), Error> {
        let Some(file) = self.file.as_ref().filter(|file| file.overwrites_in_place()) else {
            return ranges
                .into_iter()
                .try_for_each(|(off, len)| self.sync(off, len));
        };
        for (off, len) in ranges.clone() {
            self.readable(off, len)?;
            file.write_back(off, len as u64, true)?;
        }
        // One page of them stands for all: what the host's file system has to note about any of
        // them is made durable with it, and the flush is that of the device.
        if let Some((off, _)) = ranges.clone().last() {
            self.sync(off, 1)?;
        }
        ranges.for_each(|(off, len)| self.record.sync(off, len));
        Ok(())
    }

    /// Has an ordinary file write what is dirty in a range, with `wait` until that is done. Nothing
    /// becomes durable by it.
    pub fn write_back(&self, off: u64, len: usize, wait: bool) -> Result<(), Error> {
        self.readable(off, len)?;
        match &self.file {
            Some(file) if self.persistence == Persistence::Synced => {
                file.write_back(off, len as u64, wait)
            }
            _ => Ok(()),
        }
    }

    /// Makes everything durable that was stored to the file of the region, also through others.
    pub fn sync_file(&self) -> Result<(), Error> {
        if self.persistence != Persistence::Synced {
            self.fence();
            return Ok(());
        }
        match &self.file {
            None => self.sync(0, self.len),
            Some(file) => {
                file.flush()?;
                self.record.sync(0, self.len);
                Ok(())
            }
        }
    }

    /// Makes the kernel take the pages of a range for dirty again, though their bytes stay the
    /// same: a flush that failed may have left them clean. A page that was being written is mapped
    /// for reading only, so a write fault is enough, and stores to nothing.
    pub fn redirty(&self, off: u64, len: usize) -> Result<(), Error> {
        self.note(off, len);
        match &self.guard {
            None => self.prefault(off, len),
            Some(guard) => self.redirty_guarded(guard, off, len),
        }
    }

    /// Copies a caller's memory to where nothing is yet: around the cache where the medium gains by
    /// it, else cached and flushed. Durable after [`Region::fence`]. Returns the bytes copied,
    /// always `src.len()`.
    #[inline]
    pub fn copy_in(&self, off: u64, src: ConstBuf<'_>) -> Result<usize, Fault> {
        self.copy_from(off, src, self.routines.around_new)
    }

    /// As `copy_in`, over other bytes.
    #[inline]
    pub fn copy_over(&self, off: u64, src: ConstBuf<'_>) -> Result<usize, Fault> {
        self.copy_from(off, src, self.routines.around_over)
    }

    #[inline]
    fn copy_from(&self, off: u64, src: ConstBuf<'_>, around: usize) -> Result<usize, Fault> {
        let len = src.len();
        if self.writable(off, len).is_err() {
            let copy = |region: &Region| region.copy_from(off, src, around);
            return self.write_slowly(len, Fault::OutOfRange, copy);
        }
        self.note(off, len);
        if let Some(guard) = &self.guard {
            self.copy_guarded(guard, off, src, len >= around)?;
        } else if len >= around {
            self.copy_durable(self.here(), off, src)?;
        } else {
            self.copy_flushed(self.here(), off, src.as_ptr(), len)?;
        }
        Ok(len)
    }

    /// As `copy_in`, by a system call where the region has a file: for long copies to pages that
    /// may not be mapped yet, each of which would fault. The process must not have a limit for the
    /// size of files.
    pub fn write_through(&self, off: u64, src: ConstBuf<'_>) -> Result<usize, Fault> {
        let len = src.len();
        if self.writable(off, len).is_err() {
            let copy = |region: &Region| region.write_through(off, src);
            return self.write_slowly(len, Fault::OutOfRange, copy);
        }
        let Some(file) = &self.file else {
            return self.copy_in(off, src);
        };
        self.note(off, len);
        let mut done = 0;
        while done < len {
            let from = src.as_ptr().wrapping_add(done);
            let at = off + done as u64;
            match file.write(from, (len - done).min(FOLIO_MAX), at) {
                Ok(n) if n > 0 => {
                    self.record_copied(at, n, false);
                    done += n;
                }
                // Whatever it was, a store through the mapping says it again, or works: memory of
                // the program may be there only for those who take a fault.
                _ => {
                    let (_, rest) = src.split_at(done);
                    return match self.copy_in(at, rest) {
                        Ok(n) => Ok(done + n),
                        Err(fault) => Err(after(fault, done)),
                    };
                }
            }
        }
        Ok(len)
    }

    /// Copies out of the region into a caller's memory. Returns the bytes copied, always
    /// `dst.len()`.
    #[inline]
    pub fn copy_out(&self, off: u64, dst: MutBuf<'_>) -> Result<usize, Fault> {
        let n = dst.len();
        let Ok(src) = self.shortly(off, n) else {
            return self.read_slowly(n, Fault::OutOfRange, |region| region.copy_out(off, dst));
        };
        // SAFETY: the source was checked, the destination is the caller's by the contract of
        // MutBuf; a fault on either side is reported by the routine.
        let out = unsafe { (self.routines.copy)(dst.as_ptr(), src, n) };
        match (out.left, out.side) {
            (0, _) => Ok(n),
            (left, SIDE_SOURCE) => Err(Fault::Media { copied: n - left }),
            (left, _) => Err(Fault::BadAddress { copied: n - left }),
        }
    }

    /// As `copy_out`, by a system call where the region has a file: for pages that may not be in
    /// memory. The kernel reads them together, and ahead of a sequential reader.
    pub fn read_through(&self, off: u64, mut dst: MutBuf<'_>) -> Result<usize, Fault> {
        let n = dst.len();
        if self.shortly(off, n).is_err() {
            let copy = |region: &Region| region.read_through(off, dst);
            return self.read_slowly(n, Fault::OutOfRange, copy);
        }
        let Some(file) = &self.file else {
            return self.copy_out(off, dst);
        };
        let mut done = 0;
        while done < n {
            // SAFETY: what `dst` stands for is the caller's, by the contract of MutBuf.
            match unsafe { file.read(dst.as_ptr(), n - done, off + done as u64) } {
                Ok(got) if got > 0 => {
                    dst.advance(got);
                    done += got;
                }
                // A load from the mapping says what it was, or works, as in `write_through`.
                _ => {
                    return match self.copy_out(off + done as u64, dst) {
                        Ok(rest) => Ok(done + rest),
                        Err(fault) => Err(after(fault, done)),
                    };
                }
            }
        }
        Ok(n)
    }

    /// Reads pages that are not in memory alone, without those around them; a hint. For ranges of
    /// which only here and there a page is used: read with each, others would take their memory.
    pub fn expect_random(&self) {
        if self.mapping.is_heap() {
            return;
        }
        let len = self.len.next_multiple_of(PAGE);
        // SAFETY: whole pages of the mapping; the advice changes no contents.
        let _ = unsafe { rustix::mm::madvise(self.base.cast(), len, Advice::Random) };
    }

    /// Gives up the page-table entries of the region; its bytes stay in the file.
    pub fn forget(&self) -> Result<(), Error> {
        assert!(!self.mapping.is_heap(), "a region of a file");
        let len = self.len.next_multiple_of(PAGE);
        // SAFETY: whole pages of a shared mapping of a file, of which every access finds the same
        // bytes again.
        unsafe { rustix::mm::madvise(self.base.cast(), len, Advice::LinuxDontNeed) }
            .map_err(Error::os("madvise"))
    }

    /// Have the kernel read in what is not in memory by whole huge pages; a hint.
    pub fn expect_huge(&self) -> Result<(), Error> {
        let len = self.len.next_multiple_of(PAGE);
        // SAFETY: whole pages of the mapping; the advice changes no contents.
        unsafe { rustix::mm::madvise(self.base.cast(), len, Advice::LinuxHugepage) }
            .map_err(Error::os("madvise"))
    }

    /// Faults the pages of the range in now, rather than one by one on first use.
    pub fn prefault(&self, off: u64, len: usize) -> Result<(), Error> {
        self.readable(off, len)?;
        if len == 0 {
            return Ok(());
        }
        let start = off as usize / PAGE * PAGE;
        let end = (off as usize + len).next_multiple_of(PAGE);
        let writes = self.is_writable() && self.guard.is_none();
        // SAFETY: whole pages of the mapping, which is writable if it says so.
        unsafe { sys::populate(self.base.add(start), end - start, writes) }
            .map_err(Error::os("madvise"))
    }

    /// Asks for huge pages under the whole huge pages of the range; true when the kernel agreed.
    pub fn make_huge(&self, off: u64, len: usize) -> Result<bool, Error> {
        let first = self.readable(off, len)? as usize;
        let start = first.next_multiple_of(HUGE);
        let end = (first + len) / HUGE * HUGE;
        if start >= end {
            return Ok(false);
        }
        // SAFETY: start and end lie inside the checked range of the mapping.
        Ok(unsafe { sys::madvise_collapse(start, end - start) }.is_ok())
    }

    /// Where stores go that need no window.
    #[inline]
    fn here(&self) -> Base {
        Base(self.base)
    }

    /// Where a range of the region can be stored to, seen from `base`.
    #[inline]
    fn at(&self, base: Base, off: u64, len: usize) -> Result<*mut u8, Fault> {
        inside(off, len, self.writable).map_err(|_| Fault::OutOfRange)?;
        Ok(base.0.wrapping_add(off as usize))
    }

    /// Cached store and flush of a range.
    #[inline]
    fn copy_flushed(&self, base: Base, off: u64, src: *const u8, len: usize) -> Result<(), Fault> {
        let dst = self.at(base, off, len)?;
        // SAFETY: the destination was checked; the source is readable or may fault, which the
        // routine reports.
        let out = unsafe { (self.routines.copy)(dst, src, len) };
        let copied = len - out.left;
        self.record_copied(off, copied, false);
        self.flush(off, copied).map_err(|_| Fault::OutOfRange)?;
        stopped(out, copied)
    }

    /// Whole lines to a line boundary.
    #[inline]
    fn copy_whole(
        &self,
        copy: CopyFn,
        base: Base,
        off: u64,
        src: *const u8,
        len: usize,
    ) -> Result<(), Fault> {
        let dst = self.at(base, off, len)?;
        // SAFETY: as in copy_flushed; off and len are whole lines.
        let out = unsafe { copy(dst, src, len) };
        let copied = len - out.left;
        self.record_copied(off, copied, self.routines.flushes && out.left == 0);
        if out.left > 0 {
            // The fault routine went on with cached stores.
            self.flush(off, copied).map_err(|_| Fault::OutOfRange)?;
        }
        stopped(out, copied)
    }

    /// Any alignment: partial lines cached and flushed, whole lines around the cache.
    fn copy_durable(&self, base: Base, off: u64, src: ConstBuf<'_>) -> Result<(), Fault> {
        let (head, body, tail) = split_lines(off, src.len());
        let src = src.as_ptr();
        if head > 0 {
            self.copy_flushed(base, off, src, head)?;
        }
        let (mid, rest) = (off + head as u64, src.wrapping_add(head));
        self.copy_whole(self.routines.copy_around, base, mid, rest, body)
            .map_err(|f| after(f, head))?;
        if tail > 0 {
            let done = head + body;
            self.copy_flushed(base, mid + body as u64, src.wrapping_add(done), tail)
                .map_err(|f| after(f, done))?;
        }
        Ok(())
    }

    /// Tells the recorder what a copy from foreign memory left in the region.
    #[inline]
    fn record_copied(&self, off: u64, len: usize, nt: bool) {
        if len > 0 && self.record.listens() {
            let mut data = vec![0u8; len];
            // The range was just written; a recorder is only used on heap memory.
            if self.read(off, &mut data).is_ok() {
                self.record.store(off, &data, nt);
            }
        }
    }

    fn lost(&self, off: u64, fault: Fault) -> Error {
        Error::Media {
            off: off + fault.copied() as u64,
        }
    }
}

/// From where offsets of a region lead to memory that can be stored to: its own mapping, or as if
/// a window were a part of one.
#[derive(Clone, Copy)]
struct Base(*mut u8);

#[inline]
fn inside(off: u64, len: usize, limit: usize) -> Result<(), Error> {
    match (off as usize).checked_add(len) {
        Some(end) if end <= limit => Ok(()),
        _ => Err(Error::OutOfRange { off, len }),
    }
}

#[inline]
fn aligned(off: u64, align: usize) -> Result<(), Error> {
    match off as usize % align {
        0 => Ok(()),
        _ => Err(Error::Misaligned { off, align }),
    }
}

#[inline]
fn media(out: Outcome, off: u64, len: usize) -> Result<(), Error> {
    match out.left {
        0 => Ok(()),
        left => Err(Error::Media {
            off: off + (len - left) as u64,
        }),
    }
}

/// How a copy into the region from foreign memory ended.
#[inline]
fn stopped(out: Outcome, copied: usize) -> Result<(), Fault> {
    match (out.left, out.side) {
        (0, _) => Ok(()),
        (_, SIDE_SOURCE) => Err(Fault::BadAddress { copied }),
        _ => Err(Fault::Media { copied }),
    }
}

fn after(fault: Fault, before: usize) -> Fault {
    match fault {
        Fault::BadAddress { copied } => Fault::BadAddress {
            copied: copied + before,
        },
        Fault::Media { copied } => Fault::Media {
            copied: copied + before,
        },
        Fault::OutOfRange => fault,
    }
}

/// Bytes before the first line boundary, bytes in whole lines, bytes after the last.
#[inline]
fn split_lines(off: u64, len: usize) -> (usize, usize, usize) {
    let head = ((LINE - off as usize % LINE) % LINE).min(len);
    let tail = (len - head) % LINE;
    (head, len - head - tail, tail)
}

mod guarded;
mod slowed;

#[cfg(test)]
mod tests;
