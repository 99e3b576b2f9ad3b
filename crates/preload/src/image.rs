//! Images: the text of an object as it is once patched, and its trampolines, kept between runs and
//! mapped in the place of the text, which then is not patched in every process anew.
//!
//! Invariants: an image is of one version of one file, known by device, inode, size and times; of a
//! file that may still be changing none is made. It is mapped only at the distance between
//! trampolines and text at which it was made, and outside its windows its text is the object's own.
//! Its bytes are trusted as the object's are: only the user can write the directory where it lies,
//! and it is durable before it has its name. A version of this library with other trampolines uses
//! none of them.
use crate::cache::{self, Cache};
use crate::elf::{Elf, u64_at};
use crate::sys::{self, Fd, PROT_EXEC, PROT_READ, PROT_WRITE, Stat, nr};
use crate::table::Unpatchable;
use crate::tramp::{self, Slot};
use core::mem::size_of;
use holdfast_pmem::crc;

const PAGE: usize = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"HFIMAGE1");
/// Larger text is patched in every process: few objects have more, and most of it is never used.
const TEXT_MAX: usize = 16 << 20;
/// A file that changed this lately (seconds) may change again with the same times.
const SETTLED: i64 = 2;
const MAP_FIXED: usize = 0x10;

/// Changes whenever what an image consists of may be different.
const CODE: u64 = {
    let sources: [&[u8]; 6] = [
        include_bytes!("image.rs"),
        include_bytes!("tramp.rs"),
        include_bytes!("entry.rs"),
        include_bytes!("calls.rs"),
        include_bytes!("scan.rs"),
        include_bytes!("patch.rs"),
    ];
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut i = 0;
    while i < sources.len() {
        let mut at = 0;
        while at < sources[i].len() {
            hash = (hash ^ sources[i][at] as u64).wrapping_mul(0x100_0000_01b3);
            at += 1;
        }
        i += 1;
    }
    hash
};

/// One version of a file, and which part of it is mapped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    dev: u64,
    ino: u64,
    size: u64,
    modified: [i64; 2],
    changed: [i64; 2],
    pub offset: u64,
    /// The first bytes of the build-id, where the mapping is older than the look at the file.
    build: u64,
}

impl Identity {
    /// Of a mapping that was just made of this file.
    pub fn of(stat: &Stat, offset: usize) -> Identity {
        Identity {
            dev: stat.dev,
            ino: stat.ino,
            size: stat.size as u64,
            modified: stat.mtime,
            changed: stat.ctime,
            offset: offset as u64,
            build: 0,
        }
    }

    /// Of the first text of an object that has been mapped before the look at its file: that may
    /// be another one by now, with another build-id.
    pub fn of_object(stat: &Stat, elf: &Elf) -> Option<Identity> {
        let text = elf.loads.iter().find(|load| load.exec)?;
        Some(Identity {
            build: u64_at(elf.build_id()?, 0)?,
            ..Identity::of(stat, text.offset as usize)
        })
    }

    /// Of the file that this process runs.
    pub fn of_program() -> Option<Identity> {
        sys::stat_path(c"/proc/self/exe").map(|stat| Identity::of(&stat, 0))
    }

    /// Different for what can exist at the same time, and almost always otherwise.
    pub fn name(&self) -> [u8; cache::IMAGE_NAME] {
        let parts = [
            self.dev,
            self.ino,
            self.changed[0] as u64,
            self.changed[1] as u64,
            self.offset ^ self.build,
        ];
        let mut name = [0; cache::IMAGE_NAME];
        for (room, part) in name.chunks_exact_mut(8).zip(parts) {
            room.copy_from_slice(&part.to_be_bytes());
        }
        name
    }

    /// Whether what is learnt of the file now stays true of what its name stands for.
    pub fn is_settled(&self) -> bool {
        sys::now().is_some_and(|now| {
            let latest = self.modified[0].max(self.changed[0]);
            latest.saturating_add(SETTLED) <= now
        })
    }
}

/// Trampolines as they lie in memory.
#[derive(Clone, Copy, Default)]
pub struct Block {
    pub base: usize,
    pub len: usize,
    /// Bytes of gates and code, which come first.
    pub used: usize,
    /// Where in the block the slots are, and how many.
    pub slots_at: usize,
    pub count: usize,
}

/// What is known of a text.
pub struct Image {
    /// `None`: there is nothing to patch.
    pub block: Option<Block>,
    pub unpatchable: Unpatchable,
}

const WORDS: usize = 19;
const HEADER: usize = WORDS * 8;

/// The first page of an image; block and text follow.
struct Header {
    of: Identity,
    text_len: usize,
    /// From the text to the block: it lies below, or above.
    distance: isize,
    block: Block,
    unpatchable: Unpatchable,
}

impl Header {
    fn encode(&self) -> [u8; HEADER] {
        let words = [
            MAGIC,
            CODE,
            self.of.dev,
            self.of.ino,
            self.of.size,
            self.of.modified[0] as u64,
            self.of.modified[1] as u64,
            self.of.changed[0] as u64,
            self.of.changed[1] as u64,
            self.of.offset,
            self.text_len as u64,
            self.distance as u64,
            self.block.len as u64,
            self.block.used as u64,
            self.block.slots_at as u64,
            self.block.count as u64,
            self.unpatchable.to_bits(),
            self.of.build,
        ];
        let mut out = [0; HEADER];
        for (room, word) in out.chunks_exact_mut(8).zip(words) {
            room.copy_from_slice(&word.to_le_bytes());
        }
        let sum = u64::from(sum_of(&out));
        out[HEADER - 8..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// `None`: damaged, or of another version of the library.
    fn decode(bytes: &[u8; HEADER]) -> Option<Header> {
        let word = |i: usize| u64_at(bytes, i * 8).unwrap_or(0);
        if word(0) != MAGIC || word(1) != CODE || word(WORDS - 1) != u64::from(sum_of(bytes)) {
            return None;
        }
        let header = Header {
            of: Identity {
                dev: word(2),
                ino: word(3),
                size: word(4),
                modified: [word(5) as i64, word(6) as i64],
                changed: [word(7) as i64, word(8) as i64],
                offset: word(9),
                build: word(17),
            },
            text_len: word(10) as usize,
            distance: word(11) as isize,
            block: Block {
                base: 0,
                len: word(12) as usize,
                used: word(13) as usize,
                slots_at: word(14) as usize,
                count: word(15) as usize,
            },
            unpatchable: Unpatchable::from_bits(word(16)),
        };
        header.is_sane().then_some(header)
    }

    fn is_sane(&self) -> bool {
        let block = &self.block;
        let slots = block.count.checked_mul(size_of::<Slot>());
        let end = slots.and_then(|len| block.slots_at.checked_add(len));
        let pages = [block.len, self.text_len, self.distance.unsigned_abs()];
        let apart = match self.distance {
            below @ ..0 => block.len <= below.unsigned_abs(),
            above => self.text_len <= above.unsigned_abs(),
        };
        (self.text_len <= TEXT_MAX || block.len == 0)
            && pages.iter().all(|len| len.is_multiple_of(PAGE))
            && (block.len == 0
                || (tramp::GATES <= block.used
                    && block.used <= block.slots_at
                    && block.slots_at.is_multiple_of(align_of::<Slot>())
                    && apart
                    && end.is_some_and(|end| end <= block.len)))
    }

    fn file_len(&self) -> usize {
        match self.block.len {
            0 => HEADER,
            len => PAGE + len + self.text_len,
        }
    }
}

fn sum_of(header: &[u8; HEADER]) -> u32 {
    !crc::update(!0, &header[..HEADER - 8])
}

/// Why an image is not used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unused {
    /// There is none: one can be made.
    Absent,
    /// There is one, and the kernel does not map it: its place is taken, or the file system where
    /// it lies holds no programs.
    Unmappable,
}

/// Puts the image of `of` in the place of its text, which is mapped at `text` and has not run yet.
pub fn map(cache: &Cache, of: &Identity, text: (usize, usize)) -> Result<Image, Unused> {
    let (fd, header) = open(cache, of, text).ok_or(Unused::Absent)?;
    let mut image = Image {
        block: None,
        unpatchable: header.unpatchable,
    };
    if header.block.len > 0 {
        image.block = Some(map_block(&fd, &header, text.0).ok_or(Unused::Unmappable)?);
        map_text(&fd, &header, text.0, &image).ok_or(Unused::Unmappable)?;
    }
    Ok(image)
}

/// An image that is whole, and of this text.
fn open(cache: &Cache, of: &Identity, text: (usize, usize)) -> Option<(Fd, Header)> {
    let fd = cache.open_image(&of.name())?;
    let mut bytes = [0; HEADER];
    if fd.read(&mut bytes)? != HEADER {
        return None;
    }
    let header = Header::decode(&bytes)?;
    let is_whole = || Some(fd.stat()?.size as usize == header.file_len());
    let is_this = header.of == *of && header.text_len == text.1 - text.0;
    // What has no block is a header alone, which the sum is of.
    let usable = is_this && (header.block.len == 0 || is_whole()?);
    usable.then_some((fd, header))
}

fn map_block(fd: &Fd, header: &Header, text: usize) -> Option<Block> {
    let at = text.checked_add_signed(header.distance)?;
    let len = header.block.len;
    let flags = sys::MAP_PRIVATE | sys::MAP_FIXED_NOREPLACE;
    let args = [at, len, PROT_READ | PROT_WRITE, flags, fd.0, PAGE];
    // SAFETY: a new mapping that replaces nothing.
    let got = unsafe { sys::raw(nr::MMAP, args) };
    if sys::is_err(got) {
        return None;
    }
    let gates = tramp::gates();
    // SAFETY: a mapping of ours alone, if it is where it was asked for, at least a page long.
    let ready = got as usize == at
        && unsafe {
            core::ptr::copy_nonoverlapping(gates.as_ptr(), at as *mut u8, gates.len());
            sys::raw(nr::MPROTECT, [at, len, PROT_READ | PROT_EXEC, 0, 0, 0]) == 0
        };
    if !ready {
        // SAFETY: nobody knows of the mapping yet.
        unsafe { sys::unmap(got as usize, len) };
        return None;
    }
    Some(Block {
        base: at,
        ..header.block
    })
}

fn map_text(fd: &Fd, header: &Header, text: usize, image: &Image) -> Option<()> {
    let flags = sys::MAP_PRIVATE | MAP_FIXED;
    let from = PAGE + header.block.len;
    let args = [
        text,
        header.text_len,
        PROT_READ | PROT_EXEC,
        flags,
        fd.0,
        from,
    ];
    // SAFETY: replaces text that has just been mapped by the same text, but for its windows, which
    // lead to the block that is mapped already.
    let got = unsafe { sys::raw(nr::MMAP, args) };
    if got as usize == text {
        return Some(());
    }
    if let Some(block) = image.block {
        // SAFETY: no window leads there: the text is the object's own still.
        unsafe { sys::unmap(block.base, block.len) };
    }
    None
}

/// Keeps what was made of `of`: its patched text at `text`, and the block that lies below it.
pub fn keep(cache: &Cache, of: &Identity, text: (usize, usize), image: &Image) -> Option<()> {
    let (start, len) = (text.0, text.1 - text.0);
    if (len > TEXT_MAX && image.block.is_some()) || !of.is_settled() {
        return None;
    }
    let block = image.block.unwrap_or_default();
    let header = Header {
        of: *of,
        text_len: len,
        distance: block.base.wrapping_sub(start) as isize,
        block,
        unpatchable: image.unpatchable,
    };
    debug_assert!(header.is_sane(), "an image that could not be read back");
    let bytes = header.encode();
    if image.block.is_none() {
        return cache.keep_image(&of.name(), &[&bytes]);
    }
    // SAFETY: both are mapped and readable, and nobody changes them: the text has not run yet.
    let (code, text) = unsafe {
        (
            core::slice::from_raw_parts(block.base as *const u8, block.len),
            core::slice::from_raw_parts(start as *const u8, len),
        )
    };
    cache.keep_image(&of.name(), &[&bytes, &[0; PAGE - HEADER], code, text])
}
