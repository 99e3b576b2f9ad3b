//! What is kept between runs, in a directory of the user: the patch table of each object, a small
//! file, and images (`crate::image`).
//!
//! Invariants: a file appears whole or not at all (it is written aside, then renamed); a table that
//! does not parse, or whose sum is wrong, counts as absent. The directory is used only if it is the
//! user's own and nobody else can write it. A table read from here is still compared with the live
//! bytes before a single byte is patched.
use crate::calls;
use crate::elf::{Elf, u16_at, u32_at, u64_at};
use crate::env::Env;
use crate::sys::{self, Fd, nr};
use crate::table::{RECORD, Site, Table, Unpatchable};
use alloc::vec;
use alloc::vec::Vec;
use core::mem::size_of_val;
use holdfast_pmem::crc;

const MAGIC: &[u8; 8] = b"HFPATCH1";
const HEADER: usize = 28;
const PATH_MAX: usize = 512;
const FILE_MAX: usize = 4 << 20;
/// Bytes that name an image.
pub const IMAGE_NAME: usize = 40;
const IMAGE: &[u8] = b".img";

/// A path under construction, always with room for its final NUL.
#[derive(Clone)]
struct Path {
    bytes: [u8; PATH_MAX],
    len: usize,
    overflow: bool,
}

impl Path {
    fn new() -> Path {
        Path {
            bytes: [0; PATH_MAX],
            len: 0,
            overflow: false,
        }
    }

    fn push(&mut self, part: &[u8]) -> &mut Path {
        match self.bytes[..PATH_MAX - 1].get_mut(self.len..self.len + part.len()) {
            Some(room) => {
                room.copy_from_slice(part);
                self.len += part.len();
            }
            None => self.overflow = true,
        }
        self
    }

    fn push_hex(&mut self, bytes: &[u8]) -> &mut Path {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        for b in bytes {
            self.push(&[DIGITS[usize::from(b >> 4)], DIGITS[usize::from(b & 15)]]);
        }
        self
    }

    fn push_decimal(&mut self, mut value: u32) -> &mut Path {
        let mut digits = [0; 10];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                break;
            }
        }
        self.push(&digits[at..])
    }

    /// With the final NUL; empty (which opens nothing) when it did not fit.
    fn c_str(&mut self) -> &[u8] {
        if self.overflow {
            return &[];
        }
        self.bytes[self.len] = 0;
        &self.bytes[..=self.len]
    }
}

/// Runs without a pool patch fewer sites of the same object.
fn directory() -> &'static [u8] {
    match crate::calls::is_without_pool() {
        false => b"/patch-v1",
        true => b"/patch-v1-maps",
    }
}

/// Where this user's tables are.
pub struct Cache {
    dir: Option<Path>,
    /// Directories of `dir` that may have to be made, by their length in it.
    parents: [usize; 3],
}

impl Cache {
    /// The place named by the environment; `HOLDFAST_PATCH_CACHE=off` turns caching off. Where that
    /// cannot be used (no home, a read-only one), a directory of the user in /tmp.
    pub fn locate(env: &Env) -> Cache {
        let none = Cache {
            dir: None,
            parents: [0; 3],
        };
        if env.get(b"HOLDFAST_PATCH_CACHE") == Some(b"off") {
            return none;
        }
        let absolute = |name: &[u8]| env.get(name).filter(|v| v.first() == Some(&b'/'));
        let mut named = Path::new();
        if let Some(base) = absolute(b"XDG_CACHE_HOME") {
            named.push(base);
        } else if let Some(home) = absolute(b"HOME") {
            named.push(home).push(b"/.cache");
        }
        let mut common = Path::new();
        common.push(b"/tmp/holdfast-").push_decimal(sys::getuid());
        let named = (named.len > 0).then(|| Cache::at(named)).flatten();
        named.or_else(|| Cache::at(common)).unwrap_or(none)
    }

    /// Tables below `path`, in a directory that is ours and that nobody else can write.
    fn at(mut path: Path) -> Option<Cache> {
        let parents = [
            path.len,
            path.push(b"/holdfast").len,
            path.push(directory()).len,
        ];
        if path.overflow || path.len + 160 >= PATH_MAX {
            return None;
        }
        let cache = Cache {
            dir: Some(path.clone()),
            parents,
        };
        if cache.is_private(&path).is_none() {
            cache.make_dirs(&path);
            cache.is_private(&path)?;
        }
        Some(cache)
    }

    /// The table of an object.
    pub fn load(&self, key: &Key) -> Option<Table> {
        let mut path = self.dir.clone()?;
        let fd = Fd::open(key.push_to(&mut path).c_str(), sys::O_NOFOLLOW, 0)?;
        let mut bytes = vec![0; 1 << 10];
        let mut len = 0;
        loop {
            let n = fd.read(&mut bytes[len..])?;
            len += n;
            if n == 0 || len < bytes.len() {
                break;
            }
            if len >= FILE_MAX {
                return None;
            }
            bytes.resize(len * 2, 0);
        }
        parse(&bytes[..len])
    }

    /// Best effort: a table that cannot be kept is made again next time.
    pub fn store(&self, key: &Key, table: &Table) -> Option<()> {
        let mut target = self.dir.clone()?;
        key.push_to(&mut target);
        // A table is compared with what it is used on: one that a power cut damages does no harm.
        self.keep(target, &[&serialise(table)], false)
    }

    /// The image with this name.
    pub fn open_image(&self, name: &[u8; IMAGE_NAME]) -> Option<Fd> {
        Fd::open(self.image_path(name)?.c_str(), sys::O_NOFOLLOW, 0)
    }

    /// Best effort, as `store`.
    pub fn keep_image(&self, name: &[u8; IMAGE_NAME], parts: &[&[u8]]) -> Option<()> {
        self.keep(self.image_path(name)?, parts, true)?;
        self.remove_old();
        Some(())
    }

    fn image_path(&self, name: &[u8; IMAGE_NAME]) -> Option<Path> {
        let mut path = self.dir.clone()?;
        path.push(b"/").push_hex(name).push(IMAGE);
        Some(path)
    }

    /// Makes the file `target` of these parts, whole or not at all; `durable`: also if the power
    /// fails.
    fn keep(&self, mut target: Path, parts: &[&[u8]], durable: bool) -> Option<()> {
        let dir = self.dir.clone()?;
        self.make_dirs(&dir);
        self.is_private(&dir)?;
        let mut aside = target.clone();
        aside.push(b".").push_decimal(sys::gettid());
        let flags = sys::O_WRONLY | sys::O_CREAT | sys::O_EXCL | sys::O_NOFOLLOW;
        let fd = Fd::open(aside.c_str(), flags, 0o600)?;
        let written = parts.iter().try_for_each(|part| fd.write_all(part));
        let done = written.and_then(|()| if durable { fd.sync() } else { Some(()) });
        drop(fd);
        let from = aside.c_str().as_ptr() as usize;
        let to = target.c_str().as_ptr() as usize;
        let number = if done.is_some() {
            nr::RENAME
        } else {
            nr::UNLINK
        };
        // SAFETY: both paths are NUL-terminated and live.
        unsafe { sys::raw(number, [from, to, 0, 0, 0, 0]) };
        done
    }

    /// Removes what was made long ago: the objects may be gone, and what is missed is made anew.
    fn remove_old(&self) -> Option<()> {
        let now = sys::now()?;
        let fd = Fd::open(self.dir.clone()?.c_str(), sys::O_DIRECTORY, 0)?;
        let mut room = [0u64; 512];
        loop {
            let args = [
                fd.0,
                room.as_mut_ptr() as usize,
                size_of_val(&room),
                0,
                0,
                0,
            ];
            // SAFETY: the kernel writes at most the bytes of `room`.
            let got = unsafe { sys::raw(nr::GETDENTS64, args) };
            let len = usize::try_from(got).ok().filter(|len| *len > 0)?;
            // SAFETY: `room` has at least as many bytes, all initialised.
            let bytes = unsafe { core::slice::from_raw_parts(room.as_ptr().cast::<u8>(), len) };
            for name in names(bytes).filter(|name| name.first() != Some(&b'.')) {
                self.remove_if_old(name, now);
            }
        }
    }

    fn remove_if_old(&self, name: &[u8], now: i64) -> Option<()> {
        const OLD: i64 = 30 * 24 * 3600;
        let mut path = self.dir.clone()?;
        let path = path.push(b"/").push(name).c_str();
        let path = core::ffi::CStr::from_bytes_with_nul(path).ok()?;
        if sys::stat_path(path)?.mtime[0].saturating_add(OLD) < now {
            // SAFETY: the path is NUL-terminated and live.
            unsafe { sys::raw(nr::UNLINK, [path.as_ptr() as usize, 0, 0, 0, 0, 0]) };
        }
        Some(())
    }

    fn make_dirs(&self, dir: &Path) {
        for len in self.parents {
            let mut part = dir.clone();
            part.len = len;
            let path = part.c_str().as_ptr() as usize;
            // SAFETY: the path is NUL-terminated and live.
            unsafe { sys::raw(nr::MKDIR, [path, 0o700, 0, 0, 0, 0]) };
        }
    }

    fn is_private(&self, dir: &Path) -> Option<()> {
        let fd = Fd::open(dir.clone().c_str(), sys::O_DIRECTORY | sys::O_NOFOLLOW, 0)?;
        let stat = fd.stat()?;
        (stat.uid == sys::getuid() && stat.mode & 0o022 == 0).then_some(())
    }
}

/// The names in what getdents64(2) gave.
fn names(mut entries: &[u8]) -> impl Iterator<Item = &[u8]> {
    const NAME_AT: usize = 19;
    core::iter::from_fn(move || {
        let len = usize::from(u16_at(entries, 16)?);
        let entry = entries.get(..len)?;
        entries = &entries[len..];
        let name = entry.get(NAME_AT..)?;
        Some(&name[..name.iter().position(|b| *b == 0)?])
    })
}

/// Names one version of an object.
pub enum Key<'a> {
    BuildId(&'a [u8]),
    /// A version of a file, of which no image need exist.
    File([u8; IMAGE_NAME]),
    /// A hash of its text and its length.
    Text(u64, u64),
}

impl<'a> Key<'a> {
    /// The linker's name of an object, if it gave one.
    pub fn of_build(elf: &Elf<'a>) -> Option<Key<'a>> {
        elf.build_id().map(Key::BuildId)
    }

    /// Reads all of the text, which takes a while if it is large.
    pub fn of_text(elf: &Elf) -> Key<'static> {
        let (mut hash, mut len) = (0xcbf2_9ce4_8422_2325u64, 0);
        for (vaddr, bytes) in elf.text() {
            len += bytes.len() as u64;
            hash = hash_words(hash ^ vaddr, bytes);
        }
        Key::Text(hash, len)
    }

    fn push_to<'p>(&self, path: &'p mut Path) -> &'p mut Path {
        match self {
            Key::BuildId(id) => path.push(b"/").push_hex(id),
            Key::File(name) => path.push(b"/f-").push_hex(name),
            Key::Text(hash, len) => path
                .push(b"/t-")
                .push_hex(&hash.to_be_bytes())
                .push_hex(&len.to_be_bytes()),
        }
    }
}

fn hash_words(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let word = u64::from_le_bytes(chunk.try_into().unwrap_or_default());
        hash = (hash ^ word)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
    }
    for byte in chunks.remainder() {
        hash = (hash ^ u64::from(*byte))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
    }
    hash ^ hash >> 32
}

fn serialise(table: &Table) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER + table.sites.len() * RECORD);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&calls::REVISION.to_le_bytes());
    out.extend_from_slice(&(table.sites.len() as u32).to_le_bytes());
    out.extend_from_slice(&table.unpatchable.to_bits().to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    for site in &table.sites {
        out.extend_from_slice(&site.encode());
    }
    let sum = sum_of(&out);
    out[24..28].copy_from_slice(&sum.to_le_bytes());
    out
}

fn parse(bytes: &[u8]) -> Option<Table> {
    let count = u32_at(bytes, 12)? as usize;
    let sound = bytes.starts_with(MAGIC)
        && u32_at(bytes, 8)? == calls::REVISION
        && bytes.len() == HEADER.checked_add(count.checked_mul(RECORD)?)?
        && u32_at(bytes, 24)? == sum_of(bytes);
    if !sound {
        return None;
    }
    let records = bytes[HEADER..].chunks_exact(RECORD);
    let sites: Option<Vec<Site>> = records.map(Site::decode).collect();
    Some(Table {
        sites: sites?,
        unpatchable: Unpatchable::from_bits(u64_at(bytes, 16)?),
    })
}

/// CRC-32C over everything but the sum itself.
fn sum_of(bytes: &[u8]) -> u32 {
    !crc::update(crc::update(!0, &bytes[..24]), &bytes[28..])
}
