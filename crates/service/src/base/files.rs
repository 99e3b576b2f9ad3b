//! The files of a pool directory: creating, opening and removing them.
//!
//! Invariants: a pool's files belong to one user and have mode 0600; symbolic links are not
//! followed; a failed creation leaves the directory as it was; only files that Holdfast made are
//! ever removed.

use crate::base::error::{Error, Result, SHORTER};
use crate::base::host;
use crate::base::lent;
use crate::base::lock::PoolLock;
use crate::base::ordinary;
use crate::base::process;
use crate::base::users;
use holdfast_pmem::{Access, MapOptions, Medium, Region, Registers, huge_page};
use holdfast_pool::apply::{PoolStore, make_root};
use holdfast_pool::directory;
use holdfast_pool::format::superblock::{Consistency, SUPERBLOCK_LEN, Superblock};
use holdfast_pool::format::{LANES, PAGE_LEN};
use holdfast_pool::layout::RESTORE;
use holdfast_pool::segment::{self, DATA_ALIGN, Sizes};
use holdfast_pool::{Params, Pool, WriteToken};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// Inode number of the first object after the root.
const FIRST_INO: u64 = holdfast_pool::layout::ROOT_INO + 1;

/// Zeroes that are written at once.
const ZEROES: usize = 1 << 20;

/// What a new pool is to be.
#[derive(Clone, Copy, Debug)]
pub struct CreateOptions {
    /// Bytes of file data; half of what is free when `None`.
    pub size: Option<u64>,
    /// The medium that must be there, or a better one; `None` and `File`: whatever is there.
    pub medium: Option<Medium>,
    /// When changes are durable.
    pub consistency: Consistency,
}

/// An open pool directory.
pub struct Files {
    pub directory: PathBuf,
    pub owner: u32,
    pub superblock: Superblock,
    /// What is under the segments now.
    pub medium: Medium,
    pub meta: OwnedFd,
    pub journal: OwnedFd,
    pub data: OwnedFd,
}

impl Files {
    /// Bytes of the data segment that everybody maps. The host takes mapping a huge page beyond its
    /// end for making it longer.
    pub fn data_room(&self) -> u64 {
        let sb = &self.superblock;
        match huge_page(self.data.as_fd()) {
            Some(_) => sb.data_len,
            None => segment::data_room(sb.data_len, sb.data_len_max),
        }
    }

    /// How many bytes of data a pool in use, of which `sb` speaks, has when it has `size`.
    pub fn check_growth(&self, sb: &Superblock, size: u64) -> Result<u64> {
        let size = data_size(size)?;
        let max = self.data_room();
        if size < sb.data_len || size > max {
            let now = sb.data_len;
            return Err(Error::InUseSize { size, now, max });
        }
        self.check_room(sb.data_len, size)?;
        Ok(size)
    }

    /// Whether the host has room for a pool that becomes larger.
    pub fn check_room(&self, old: u64, size: u64) -> Result<()> {
        let free = free_bytes(&self.directory, self.medium)?;
        match size.saturating_sub(old) > free {
            true => Err(Error::TooLarge {
                size,
                free: old + free,
            }),
            false => Ok(()),
        }
    }
}

/// What becomes of a size that somebody wishes for.
pub fn data_size(size: u64) -> Result<u64> {
    let whole = size.checked_next_multiple_of(DATA_ALIGN).unwrap_or(size);
    match directory::check_size(whole) {
        true => Ok(whole),
        false => {
            let (min, max) = (directory::SIZE_MIN, directory::SIZE_MAX);
            Err(Error::Size { size, min, max })
        }
    }
}

fn mode_private() -> Mode {
    Mode::RUSR | Mode::WUSR
}

/// Makes a pool in `directory`, which must be new or empty.
pub fn create(directory: &Path, options: &CreateOptions) -> Result<()> {
    let made = make_directory(directory)?;
    let done = fill(directory, options);
    if done.is_err() {
        let _ = remove_ours(directory);
        if made {
            let _ = std::fs::remove_dir(directory);
        }
    }
    done
}

/// True if the directory was made now.
fn make_directory(directory: &Path) -> Result<bool> {
    let what = || directory.display().to_string();
    match std::fs::create_dir(directory) {
        Ok(()) => return Ok(true),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(Error::io(what())(e)),
    }
    if !directory.is_dir() {
        return Err(Error::NotADirectory {
            path: directory.into(),
        });
    }
    match std::fs::read_dir(directory)
        .map_err(Error::io(what()))?
        .next()
    {
        None => Ok(false),
        Some(_) => Err(Error::NotEmpty {
            path: directory.into(),
        }),
    }
}

fn fill(directory: &Path, options: &CreateOptions) -> Result<()> {
    let _lock = PoolLock::take(directory)?;
    let pool_error = |error| Error::Pool {
        path: directory.into(),
        error,
    };
    let token = WriteToken::for_offline_tool();
    let mut pool = make(directory, options, uuid(), &token)?;
    plant_root(&mut pool, &token).map_err(pool_error)?;
    for name in [segment::META, &segment::data(0), &segment::journal(0)] {
        sync_file(directory, name)?;
    }
    sync_file(directory, ".")
}

/// Makes the segments of a pool, which has no root directory yet.
pub(crate) fn make(
    directory: &Path,
    options: &CreateOptions,
    uuid: [u8; 16],
    token: &WriteToken,
) -> Result<Pool> {
    let meta = new_file(directory, segment::META, 0)?;
    let medium = choose_medium(directory, &meta, options.medium)?;
    let free = free_bytes(directory, medium)?;
    let huge = huge_page(meta.as_fd());
    if huge.is_some() && options.size.unwrap_or(2 * directory::SIZE_MIN) > free {
        let size = options.size.unwrap_or(directory::SIZE_MIN);
        return Err(Error::HugePages { size, free });
    }
    let size = options
        .size
        .unwrap_or((free / 2) & !(segment::DATA_ALIGN - 1));
    if !directory::check_size(size) {
        let (min, max) = (directory::SIZE_MIN, directory::SIZE_MAX);
        return Err(Error::Size { size, min, max });
    }
    if size > free {
        return Err(Error::TooLarge { size, free });
    }
    let pool_error = |error| Error::Pool {
        path: directory.into(),
        error,
    };
    let sizes = Sizes::for_pool(size).map_err(pool_error)?;
    set_len(directory, segment::META, &meta, sizes.meta_len)?;
    new_file(directory, &segment::data(0), sizes.data_len)?;
    let journal = segment::journal(0);
    let lane_len = directory::lane_len(size, medium);
    let journal_len = LANES as u64 * lane_len;
    let file = new_file(directory, &journal, journal_len)?;
    let what = directory.join(&journal).display().to_string();
    set_aside(&file, 0, journal_len).map_err(Error::os(what))?;
    if medium == Medium::File {
        write_zeroes(directory, &journal, &file, journal_len)?;
    }
    if let Some(page) = huge {
        // It has its page, so that who makes room is not refused because there is none.
        let grants = new_file(directory, directory::GRANTS, page)?;
        set_aside(&grants, 0, page).map_err(Error::os(directory::GRANTS))?;
    }
    std::fs::create_dir(directory.join(segment::EMPTY_DIR))
        .map_err(Error::io(directory.display().to_string()))?;
    let region = map(&meta, sizes.meta_len, Access::ReadWrite, medium)?;
    let params = Params {
        uuid,
        boot_id: process::boot_id()?,
        medium,
        consistency: options.consistency,
        sizes,
        next_ino: FIRST_INO,
        journal_segment: 0,
        lane_len,
    };
    Pool::create(region, &params, token).map_err(pool_error)
}

fn plant_root(pool: &mut Pool, token: &WriteToken) -> holdfast_pool::Result<()> {
    let mut store = PoolStore::begin(pool, token);
    let (uid, gid) = process::own_ids();
    let now = holdfast_pmem::env::now();
    match make_root(&mut store, 0o40755, uid, gid, now) {
        Ok(()) => store.commit(|_| {}).map(|_| ()),
        Err(holdfast_pool::apply::Failure::Store(e)) => Err(e),
        Err(_) => Err(holdfast_pool::Error::Geometry {
            what: "the root directory is not legal",
        }),
    }
}

fn uuid() -> [u8; 16] {
    let mut out = [0; 16];
    holdfast_pmem::env::random(&mut out);
    out[6] = out[6] & 0x0f | 0x40;
    out[8] = out[8] & 0x3f | 0x80;
    out
}

/// A uuid that gives names this seed: a pool that is made from another one keeps their places.
pub(crate) fn uuid_with_seed(seed: u64) -> [u8; 16] {
    let mut out = uuid();
    let half = u64::from_le_bytes(out[..8].try_into().unwrap_or_default());
    out[8..].copy_from_slice(&(half ^ seed).to_le_bytes());
    out
}

fn choose_medium(directory: &Path, meta: &OwnedFd, wanted: Option<Medium>) -> Result<Medium> {
    if let Some(page) = huge_page(meta.as_fd())
        && page != segment::DATA_ALIGN
    {
        let path = directory.into();
        return Err(Error::Pages { path, page });
    }
    set_len(directory, segment::META, meta, segment::DATA_ALIGN)?;
    medium_of(directory, meta, wanted)
}

/// What a pool becomes whose superblocks lie in this file.
pub(crate) fn medium_of(
    directory: &Path,
    meta: &OwnedFd,
    wanted: Option<Medium>,
) -> Result<Medium> {
    let found = Medium::detect(meta.as_fd());
    let wrong = |wanted| {
        Err(Error::Medium {
            path: directory.into(),
            wanted,
        })
    };
    match (wanted, found) {
        (Some(Medium::Dax), Medium::Memory | Medium::File) => wrong("dax"),
        (Some(Medium::Memory | Medium::DaxTest), Medium::File | Medium::Dax) => wrong("memory"),
        (Some(Medium::DaxTest), Medium::Memory) => Ok(Medium::DaxTest),
        (_, found) => Ok(found),
    }
}

/// Bytes that may still be written under `directory`.
pub(crate) fn free_bytes(directory: &Path, medium: Medium) -> Result<u64> {
    if let Some(free) = free_in_huge_pages(directory) {
        return Ok(free.saturating_sub(BESIDE_DATA));
    }
    let stat =
        rustix::fs::statvfs(directory).map_err(Error::os(directory.display().to_string()))?;
    let there = stat.f_bavail.saturating_mul(stat.f_frsize);
    let memory = (!medium.survives_power_loss())
        .then(memory_available)
        .flatten();
    // A tmpfs without a limit says that it has no blocks at all.
    let there = if stat.f_blocks == 0 { u64::MAX } else { there };
    Ok(memory.map_or(there, |m| m.min(there)))
}

/// What a pool on hugetlbfs takes beside its data: trees at their smallest, the journal, grants.
const BESIDE_DATA: u64 = 96 << 20;

/// Bytes in huge pages that nobody has, if `directory` is of hugetlbfs; it tells nothing of them
/// itself but for its own limit.
fn free_in_huge_pages(directory: &Path) -> Option<u64> {
    let opened = std::fs::File::open(directory).ok()?;
    let page = huge_page(opened.as_fd())?;
    let pool = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", page >> 10);
    let count = |name: &str| -> Option<u64> {
        let text = std::fs::read_to_string(format!("{pool}/{name}")).ok()?;
        text.trim().parse().ok()
    };
    let free = count("free_hugepages")?.saturating_sub(count("resv_hugepages")?);
    let free = free.saturating_mul(page);
    let stat = rustix::fs::statvfs(directory).ok()?;
    Some(match stat.f_blocks {
        0 => free,
        _ => free.min(stat.f_bavail.saturating_mul(stat.f_bsize)),
    })
}

fn memory_available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim()
        .strip_suffix(" kB")?
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

fn new_file(directory: &Path, name: &str, len: u64) -> Result<OwnedFd> {
    let path = directory.join(name);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(&path, flags, mode_private())
        .map_err(Error::os(path.display().to_string()))?;
    set_len(directory, name, &file, len)?;
    Ok(file)
}

fn set_len(directory: &Path, name: &str, file: &OwnedFd, len: u64) -> Result<()> {
    let what = directory.join(name).display().to_string();
    rustix::fs::ftruncate(file, len).map_err(Error::os(what))
}

/// Writes a journal of a length: blocks that are only reserved would cost every flush of it a
/// change of the host's metadata.
fn write_zeroes(directory: &Path, name: &str, file: &OwnedFd, len: u64) -> Result<()> {
    let what = || directory.join(name).display().to_string();
    let zeroes = vec![0; ZEROES];
    let mut at = 0;
    while at < len {
        let piece = ZEROES.min((len - at) as usize);
        match rustix::io::pwrite(file, &zeroes[..piece], at) {
            Ok(0) => return Err(Error::os(what())(Errno::IO)),
            Ok(n) => at += n as u64,
            Err(Errno::INTR) => {}
            Err(e) => return Err(Error::os(what())(e)),
        }
    }
    Ok(())
}

pub(crate) fn sync_file(directory: &Path, name: &str) -> Result<()> {
    let path = directory.join(name);
    let what = path.display().to_string();
    let file = std::fs::File::open(&path).map_err(Error::io(what.clone()))?;
    match file.sync_all() {
        // Directories of some file systems cannot be synced.
        Err(e) if e.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(()),
        done => done.map_err(Error::io(what)),
    }
}

/// Maps a whole segment.
pub fn map(file: &OwnedFd, len: u64, access: Access, medium: Medium) -> Result<Region> {
    let options = MapOptions::new(access, medium).registers(Registers::Ymm);
    Ok(Region::map_with(file.as_fd(), 0, len as usize, &options)?)
}

/// Takes the memory, or the blocks of the host, from under a range of a segment, which reads as
/// zeroes then; false: the host cannot do that, and the bytes are as they were.
pub fn punch(file: &OwnedFd, map: &Region, at: u64, len: u64) -> bool {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if let Some(page) = huge_page(file.as_fd())
        && (at % page != 0 || len % page != 0)
    {
        // Kernels before 6.0 leave parts of pages as they are, and say nothing.
        return false;
    }
    map.note_zeroed(at, len as usize);
    rustix::fs::fallocate(file, flags, at, len).is_ok()
}

/// Has the host set memory, or blocks, aside for a range of a segment, so that a store to it cannot
/// fail later; hosts that cannot do that are believed to need it not.
pub fn set_aside(file: &OwnedFd, at: u64, len: u64) -> rustix::io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), at, len) {
        Err(Errno::OPNOTSUPP) => Ok(()),
        done => done,
    }
}

/// Where the next byte with memory, or a block, is from `at` on; a file system that cannot tell
/// says there. Finding where that ends would take a look at each page of it.
pub fn next_data(file: &OwnedFd, at: u64) -> Option<u64> {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => Some(data),
        Err(Errno::NXIO) => None,
        Err(_) => Some(at),
    }
}

/// Where the next byte without memory, or a block, is from `at` on.
pub fn next_hole(file: &OwnedFd, at: u64) -> Option<u64> {
    rustix::fs::seek(file, SeekFrom::Hole(at)).ok()
}

impl Files {
    /// Opens the segments of a pool for writing.
    pub fn open(directory: &Path) -> Result<Files> {
        Files::open_as(directory, OFlags::RDWR)
    }

    /// Opens the segments of a pool for reading.
    pub fn open_read_only(directory: &Path) -> Result<Files> {
        Files::open_as(directory, OFlags::RDONLY)
    }

    /// The same of what a restore has not completed yet.
    pub(crate) fn open_unfinished(directory: &Path) -> Result<Files> {
        Files::open_any(directory, OFlags::RDWR)
    }

    fn open_as(directory: &Path, flags: OFlags) -> Result<Files> {
        let files = Files::open_any(directory, flags)?;
        match files.superblock.roots[usize::from(RESTORE)].keys {
            0 => Ok(files),
            _ => Err(Error::Unfinished {
                path: directory.into(),
            }),
        }
    }

    fn open_any(directory: &Path, flags: OFlags) -> Result<Files> {
        let meta = open_meta(directory, flags)?;
        let superblock = read_superblock(directory, &meta)?;
        ordinary::check(directory)?;
        let journal_name = segment::journal(superblock.journal_segment);
        let data = open_segment(directory, &segment::data(0), flags)?;
        let journal = open_segment(directory, &journal_name, flags)?;
        let journal_len = LANES as u64 * superblock.lane_len;
        check_len(directory, &segment::data(0), &data, superblock.data_len)?;
        check_len(directory, &journal_name, &journal, journal_len)?;
        check_len(directory, segment::META, &meta, superblock.meta_len)?;
        let stat = rustix::fs::fstat(&meta).map_err(Error::os(segment::META))?;
        // What it was when the pool was made or last used promises nothing here; that memory is to
        // be treated as DAX is kept.
        let medium = match (Medium::detect(meta.as_fd()), superblock.medium) {
            (Medium::Memory, Medium::DaxTest) => Medium::DaxTest,
            (found, _) => found,
        };
        let (directory, owner) = (directory.into(), stat.st_uid);
        Ok(Files {
            directory,
            owner,
            superblock,
            medium,
            meta,
            journal,
            data,
        })
    }

    /// Why an fsync here may not survive the loss of power, in a sentence, if so.
    pub fn doubt(&self) -> Option<String> {
        host::doubt(self.meta.as_fd(), self.medium)
    }

    /// The files of a pool are for its owner alone, not even for root: what root wrote, the owner's
    /// service could not open. Root becomes the owner before.
    pub fn check_owner(&self) -> Result<()> {
        check_owner(&self.directory, self.owner)
    }

    /// Whether what the pool has was written on an ordinary file: it lies on one, or was copied
    /// from one.
    pub fn was_on_file(&self) -> bool {
        [self.superblock.medium, self.medium].contains(&Medium::File)
    }

    /// A descriptor of a segment that has nothing to do with the one that we use.
    pub fn reopen(&self, name: &str, flags: OFlags) -> Result<OwnedFd> {
        ordinary::open_or_say(&self.directory.join(name), flags)
    }

    /// Has the host set memory aside for the whole journal, as far as it does not have it already.
    pub fn set_journal_aside(&self) -> rustix::io::Result<()> {
        let len = self.journal_len();
        match rustix::fs::fstat(&self.journal)?.st_blocks as u64 * 512 {
            there if there >= len => Ok(()),
            _ => set_aside(&self.journal, 0, len),
        }
    }

    /// Has the kernel forget what it has of the journal in large folios, as a long write or a copy
    /// leaves it: a store through a mapping makes all of a folio dirty, and each flush of a few
    /// records would write a megabyte.
    pub fn shed_large_folios(&self) {
        if self.medium == Medium::File {
            // Where this is not possible everything is slower, and nothing else.
            let _ = rustix::fs::fadvise(&self.journal, 0, None, rustix::fs::Advice::DontNeed);
        }
    }

    /// Bytes of the journal.
    pub fn journal_len(&self) -> u64 {
        LANES as u64 * self.superblock.lane_len
    }

    /// File name of the journal.
    pub fn journal_name(&self) -> String {
        segment::journal(self.superblock.journal_segment)
    }
}

fn check_owner(directory: &Path, owner: u32) -> Result<()> {
    if owner == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    Err(Error::Owner {
        path: directory.into(),
        owner,
    })
}

fn open_meta(directory: &Path, flags: OFlags) -> Result<OwnedFd> {
    let what = || directory.display().to_string();
    match std::fs::metadata(directory) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => {
            return Err(Error::NotADirectory {
                path: directory.into(),
            });
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::Missing {
                path: directory.into(),
            });
        }
        Err(e) => return Err(Error::io(what())(e)),
    }
    let path = directory.join(segment::META);
    match ordinary::open(&path, flags) {
        Ok(Some(file)) => Ok(file),
        Ok(None) => Err(Error::NotOrdinary { path }),
        Err(Errno::NOENT | Errno::LOOP) => Err(Error::NotAPool {
            path: directory.into(),
        }),
        Err(Errno::ACCESS) => Err(foreign(directory, &path)),
        Err(e) => Err(Error::os(path.display().to_string())(e)),
    }
}

fn foreign(directory: &Path, meta: &Path) -> Error {
    let owner = rustix::fs::stat(meta).map(|stat| stat.st_uid);
    match owner {
        Ok(owner) if owner != rustix::process::geteuid().as_raw() => Error::Owner {
            path: directory.into(),
            owner,
        },
        _ => Error::os(meta.display().to_string())(Errno::ACCESS),
    }
}

fn open_segment(directory: &Path, name: &str, flags: OFlags) -> Result<OwnedFd> {
    let path = directory.join(name);
    match ordinary::open(&path, flags) {
        Ok(Some(file)) => Ok(file),
        Ok(None) => Err(Error::NotOrdinary { path }),
        Err(Errno::NOENT) => Err(Error::Segment {
            path,
            what: "is missing",
        }),
        Err(Errno::ACCESS) => Err(foreign(directory, &path)),
        Err(e) => Err(Error::os(path.display().to_string())(e)),
    }
}

fn check_len(directory: &Path, name: &str, file: &OwnedFd, len: u64) -> Result<()> {
    let path = directory.join(name);
    let stat = rustix::fs::fstat(file).map_err(Error::os(path.display().to_string()))?;
    if (stat.st_size as u64) < len {
        return Err(Error::Segment {
            path,
            what: SHORTER,
        });
    }
    Ok(())
}

fn read_superblock(directory: &Path, meta: &OwnedFd) -> Result<Superblock> {
    let error = |error| Error::Pool {
        path: directory.into(),
        error,
    };
    let mut best: holdfast_pool::Result<Superblock> = Err(holdfast_pool::Error::NotAPool);
    for page in 0..2 {
        let mut bytes = [0; SUPERBLOCK_LEN];
        let n = rustix::io::pread(meta, &mut bytes, page * PAGE_LEN);
        let n = n.map_err(Error::os(
            directory.join(segment::META).display().to_string(),
        ))?;
        if n < SUPERBLOCK_LEN {
            continue;
        }
        best = match (best, Superblock::decode(&bytes)) {
            (Ok(old), Ok(new)) => Ok(if new.seq > old.seq { new } else { old }),
            (_, Ok(new)) => Ok(new),
            (Err(holdfast_pool::Error::NotAPool), Err(e)) => Err(e),
            (old, Err(_)) => old,
        };
    }
    match best {
        Err(holdfast_pool::Error::NotAPool) => Err(Error::NotAPool {
            path: directory.into(),
        }),
        Err(e) => Err(error(e)),
        Ok(superblock) => {
            let stat = rustix::fs::fstat(meta).map_err(Error::os(segment::META))?;
            superblock.geometry(stat.st_size as u64).map_err(error)?;
            Ok(superblock)
        }
    }
}

/// The superblock of the pool in `directory`, which has to be the caller's; the segments may be
/// shorter than it says.
pub fn superblock_of_own(directory: &Path) -> Result<Superblock> {
    let meta = open_meta(directory, OFlags::RDWR)?;
    let stat = rustix::fs::fstat(&meta).map_err(Error::os(segment::META))?;
    check_owner(directory, stat.st_uid)?;
    read_superblock(directory, &meta)
}

/// Removes a pool that nobody uses, and its directory if nothing else is in it.
pub fn destroy(directory: &Path) -> Result<()> {
    let meta = open_meta(directory, OFlags::RDWR)?;
    let stat = rustix::fs::fstat(&meta).map_err(Error::os(segment::META))?;
    check_owner(directory, stat.st_uid)?;
    // A damaged pool may be destroyed; something that is no pool may not.
    if let Err(e @ Error::NotAPool { .. }) = read_superblock(directory, &meta) {
        return Err(e);
    }
    let lock = PoolLock::take(directory)?;
    let journal = directory.join(segment::journal(0));
    if let Ok(Some(journal)) = ordinary::open(&journal, OFlags::RDONLY)
        && crate::base::survivors::exist(&journal)
    {
        return Err(Error::InUse {
            path: directory.into(),
            pid: None,
        });
    }
    if users::any_in_use(directory) {
        return Err(Error::InUse {
            path: directory.into(),
            pid: None,
        });
    }
    remove_ours(directory)?;
    lent::remove_all(&meta);
    drop(lock);
    match std::fs::remove_dir(directory) {
        Err(e) if e.kind() != std::io::ErrorKind::DirectoryNotEmpty => {
            // What remains is an empty directory that somebody may want to keep.
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Nobody uses the pool: the kernel's pipes and sockets for names in it are made anew when they are
/// wanted, and those of names that are gone are not.
pub fn forget_special(directory: &Path) {
    let special = directory.join(directory::SPECIAL);
    if let Err(error) = std::fs::remove_dir_all(&special)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!("{}: {error}", special.display());
    }
}

pub(crate) fn remove_ours(directory: &Path) -> Result<()> {
    let what = || directory.display().to_string();
    // The superblocks go last: until then it is still a pool that can be destroyed.
    let mut names: Vec<_> = std::fs::read_dir(directory)
        .map_err(Error::io(what()))?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| directory::is_ours(name))
        .collect();
    names.sort_by_key(|name| name == segment::META);
    for name in names {
        let path = directory.join(&name);
        let done = match name.as_str() {
            segment::EMPTY_DIR | directory::SPECIAL => std::fs::remove_dir_all(&path),
            _ => std::fs::remove_file(&path),
        };
        done.map_err(Error::io(path.display().to_string()))?;
    }
    Ok(())
}
