//! Pools that are filled by who restores them, without a service.
//!
//! Invariants:
//!  * A new pool is made in a directory inside of its own, and moved out of it when it is complete
//!    and was found in order: the superblocks last. So whatever interrupts that leaves no pool: the
//!    next restore goes on with what is left over, or removes it.
//!  * As long as it is not complete it has a mark (`RESTORE`), and nobody else opens it. A restore
//!    of the same stream goes on behind the mark.
//!  * A pool that is there is changed only while nobody uses it, and what was in its journal is in
//!    its trees before.
//!  * Memory, or blocks of the host, are there before anything is stored to a mapping.

use crate::alone::bring_up_to_date;
use crate::base::error::{Error, Result};
use crate::base::files::{self, CreateOptions, Files};
use crate::base::lock::PoolLock;
use holdfast_pmem::{Access, Medium, Region, begin_write_back, huge_page};
use holdfast_pool::check::Severity;
use holdfast_pool::directory::{UNFINISHED, is_ours};
use holdfast_pool::format::PAGE_LEN;
use holdfast_pool::format::superblock::Superblock;
use holdfast_pool::layout::{BlockAddr, INODES, RESTORE, TreeId};
use holdfast_pool::segment::{self, Sizes};
use holdfast_pool::{Pool, WriteToken};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The file beside the segments of a pool that is not complete which says what it is filled from.
const STREAM: &str = "stream";
/// How long the host may take to have the room again that something removed had (XFS does not have
/// it at once).
const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(20);

/// A pool that is open for whoever restores it.
pub struct Restoring {
    pub pool: Pool,
    pub token: WriteToken,
    pub data: DataFile,
    directory: PathBuf,
    /// The directory was made for it.
    made: bool,
    is_new: bool,
    finished: bool,
    _lock: PoolLock,
}

impl Restoring {
    /// Makes a pool without a root directory; its names are found by `seed`, and it is filled from
    /// a stream that `stream` tells from others.
    pub fn make(
        directory: &Path,
        options: &CreateOptions,
        seed: u64,
        stream: u32,
    ) -> Result<Restoring> {
        let (made, cleared) = make_room(directory)?;
        // Another one may have begun here: what is there is its own then.
        let lock = PoolLock::take(directory)?;
        let patience = Instant::now() + if cleared { PATIENCE } else { Duration::ZERO };
        let begun = loop {
            match begin(directory, options, seed, stream) {
                Err(Error::TooLarge { .. }) if Instant::now() < patience => {
                    clear(directory, false);
                    std::thread::sleep(PAUSE);
                }
                begun => break begun,
            }
        };
        match begun {
            Err(error @ Error::NotEmpty { .. }) => Err(error),
            Ok((token, pool, data)) => Ok(Restoring {
                pool,
                token,
                data,
                directory: directory.into(),
                made,
                is_new: true,
                finished: false,
                _lock: lock,
            }),
            Err(error) => {
                clear(directory, made);
                Err(error)
            }
        }
    }

    /// Opens what an interrupted restore left in `directory` of a pool that is like this one.
    pub fn left(directory: &Path, options: &CreateOptions) -> Result<Left> {
        let part = directory.join(UNFINISHED);
        if directory.join(segment::META).exists() || !part.exists() {
            return Ok(Left::Nothing);
        }
        let lock = PoolLock::take(directory)?;
        if is_whole(&part, options) {
            return Ok(Left::Whole(Whole::of(directory, &part, lock)));
        }
        let Ok(files) = Files::open_unfinished(&part) else {
            return Ok(Left::Other("has not all of its files"));
        };
        // What asks for a medium that is not there is refused, and costs nothing.
        let medium = files::medium_of(directory, &files.meta, options.medium)?;
        if let Some(why) = is_other(&files, options, medium) {
            return Ok(Left::Other(why));
        }
        let token = WriteToken::for_offline_tool();
        let meta_len = files.superblock.meta_len;
        let meta = files::map(&files.meta, meta_len, Access::ReadWrite, files.medium)?;
        let Ok(pool) = Pool::open(meta, &token) else {
            return Ok(Left::Other("is damaged"));
        };
        let data = DataFile::open(&part, files.medium)?;
        Ok(Left::Some(Box::new(Restoring {
            pool,
            token,
            data,
            directory: directory.into(),
            made: false,
            is_new: true,
            finished: false,
            _lock: lock,
        })))
    }

    /// Leaves what is there for the next restore.
    pub fn leave(mut self) {
        self.finished = true;
    }

    /// Opens a pool that nobody uses.
    pub fn open(directory: &Path) -> Result<Restoring> {
        Files::open(directory)?.check_owner()?;
        let lock = PoolLock::take_patiently(directory)?;
        bring_up_to_date(directory)?;
        let files = Files::open(directory)?;
        let (medium, sb) = (files.medium, &files.superblock);
        let meta = files::map(&files.meta, sb.meta_len, Access::ReadWrite, medium)?;
        let data = DataFile::open(directory, medium)?;
        let token = WriteToken::for_offline_tool();
        let pool = Pool::open(meta, &token).map_err(|error| Error::Pool {
            path: directory.into(),
            error,
        })?;
        Ok(Restoring {
            pool,
            token,
            data,
            directory: directory.into(),
            made: false,
            is_new: false,
            finished: false,
            _lock: lock,
        })
    }

    /// Everything is there. A new pool is looked at as a whole, and found at its place from now on.
    pub fn finish(mut self) -> Result<()> {
        self.finished = true;
        if !self.is_new {
            return Ok(());
        }
        let done = self.publish();
        // What could not be written now can be later.
        if matches!(done, Err(Error::Unsound { .. })) {
            clear(&self.directory, self.made);
        }
        done
    }

    fn publish(&mut self) -> Result<()> {
        let part = self.directory.join(UNFINISHED);
        let report = crate::check::check_restored(&Files::open_unfinished(&part)?)?;
        if let Some(finding) = report
            .findings
            .iter()
            .find(|finding| finding.severity == Severity::Damage)
        {
            return Err(Error::Unsound {
                path: self.directory.clone(),
                finding: finding.to_string(),
            });
        }
        self.erase_mark().map_err(|error| Error::Pool {
            path: part.clone(),
            error,
        })?;
        move_out(&self.directory, &part)
    }

    /// From now on it is whole.
    fn erase_mark(&mut self) -> holdfast_pool::Result<()> {
        let mut batch = self.pool.begin(&self.token);
        batch.erase_range(RESTORE, &[], None)?;
        batch.commit(|_| {}).map(drop)
    }
}

/// Moves the files of a pool that is complete to its place, the superblocks last.
fn move_out(directory: &Path, part: &Path) -> Result<()> {
    sync_all(part)?;
    sync_all(directory)?;
    let what = || part.display().to_string();
    let mut names: Vec<_> = std::fs::read_dir(part)
        .map_err(Error::io(what()))?
        .flatten()
        .map(|entry| entry.file_name())
        .filter(|name| name != segment::LOCK && name != STREAM)
        .collect();
    names.sort_by_key(|name| name == segment::META);
    for name in names {
        std::fs::rename(part.join(&name), directory.join(&name)).map_err(Error::io(what()))?;
    }
    std::fs::remove_dir_all(part).map_err(Error::io(what()))?;
    files::sync_file(directory, ".")
}

/// What is there to go on with.
pub enum Left {
    Nothing,
    /// Something that cannot be used, and why.
    Other(&'static str),
    Some(Box<Restoring>),
    /// A pool that is complete, and was only not moved to its place.
    Whole(Whole),
}

/// A pool that is complete, but not at its place.
pub struct Whole {
    directory: PathBuf,
    /// Which stream it was filled from, if it says so.
    pub stream: Option<u32>,
    _lock: PoolLock,
}

impl Whole {
    fn of(directory: &Path, part: &Path, lock: PoolLock) -> Whole {
        let stream = std::fs::read_to_string(part.join(STREAM));
        Whole {
            directory: directory.into(),
            stream: stream.ok().and_then(|stream| stream.parse().ok()),
            _lock: lock,
        }
    }

    /// Moves it to its place.
    pub fn finish(self) -> Result<()> {
        move_out(&self.directory, &self.directory.join(UNFINISHED))
    }
}

/// Whether the superblocks here are of a pool like this one that was complete: it has no mark, and
/// what came into it came with one.
fn is_whole(part: &Path, options: &CreateOptions) -> bool {
    let has = |sb: &Superblock, tree: TreeId| sb.roots[usize::from(tree)].keys > 0;
    files::superblock_of_own(part)
        .is_ok_and(|sb| is_size(&sb, options) && has(&sb, INODES) && !has(&sb, RESTORE))
}

fn is_size(sb: &Superblock, options: &CreateOptions) -> bool {
    let sizes = options.size.map(Sizes::for_pool);
    matches!(sizes, Some(Ok(sizes)) if sizes.data_len == sb.data_len)
}

/// What makes a pool that is not complete another one than is wanted.
fn is_other(files: &Files, options: &CreateOptions, medium: Medium) -> Option<&'static str> {
    let sb = &files.superblock;
    if files.check_owner().is_err() {
        Some("belongs to another user")
    } else if !is_size(sb, options) {
        Some("has another size")
    } else if medium != sb.medium {
        Some("is for another medium")
    } else {
        None
    }
}

/// Makes the files durable that are here, and their names.
fn sync_all(directory: &Path) -> Result<()> {
    let names = [segment::META, &segment::data(0), &segment::journal(0)];
    for name in names.into_iter().chain([STREAM, "."]) {
        if directory.join(name).exists() {
            files::sync_file(directory, name)?;
        }
    }
    Ok(())
}

impl Drop for Restoring {
    fn drop(&mut self) {
        if self.is_new && !self.finished {
            clear(&self.directory, self.made);
        }
    }
}

/// Makes the segments.
fn begin(
    directory: &Path,
    options: &CreateOptions,
    seed: u64,
    stream: u32,
) -> Result<(WriteToken, Pool, DataFile)> {
    if directory.join(segment::META).exists() {
        let path = directory.into();
        return Err(Error::NotEmpty { path });
    }
    let (token, part) = (WriteToken::for_offline_tool(), directory.join(UNFINISHED));
    let what = || part.display().to_string();
    std::fs::create_dir(&part).map_err(Error::io(what()))?;
    std::fs::write(part.join(STREAM), stream.to_string()).map_err(Error::io(what()))?;
    let pool = files::make(&part, options, files::uuid_with_seed(seed), &token)?;
    let data = DataFile::open(&part, pool.superblock().medium)?;
    // What is restored leads nowhere if these are lost.
    sync_all(&part)?;
    files::sync_file(directory, ".")?;
    Ok((token, pool, data))
}

/// A directory that is new, or empty but for what an interrupted restore left there; whether it was
/// made, and whether that was removed.
fn make_room(directory: &Path) -> Result<(bool, bool)> {
    let what = || directory.display().to_string();
    match std::fs::create_dir(directory) {
        Ok(()) => return Ok((true, false)),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(Error::io(what())(e)),
    }
    if !directory.is_dir() {
        let path = directory.into();
        return Err(Error::NotADirectory { path });
    }
    let names: Vec<_> = std::fs::read_dir(directory)
        .map_err(Error::io(what()))?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    let is_left_over = names.iter().any(|name| name == UNFINISHED)
        && names.iter().all(|name| name == UNFINISHED || is_ours(name))
        && !names.iter().any(|name| name == segment::META);
    match (names.is_empty(), is_left_over) {
        (true, _) => Ok((false, false)),
        (_, false) => Err(Error::NotEmpty {
            path: directory.into(),
        }),
        (_, true) => {
            let _lock = PoolLock::take(directory)?;
            clear(directory, false);
            Ok((false, true))
        }
    }
}

/// Removes what is not complete.
fn clear(directory: &Path, made: bool) {
    let _ = std::fs::remove_dir_all(directory.join(UNFINISHED));
    let _ = files::remove_ours(directory);
    if made {
        let _ = std::fs::remove_dir(directory);
    }
}

/// The data segment of a pool that is restored.
pub struct DataFile {
    file: OwnedFd,
    medium: Medium,
    /// On hugetlbfs, whose files cannot be written to, and the bytes of its pages.
    mapped: Option<(Region, u64)>,
    /// On a disk, what the host does not write back yet, and how many bytes were written there.
    waiting: Cell<(u64, u64, u64)>,
}

/// Bytes of data after which the host is told to begin to write them back: the disk works then
/// while the next ones are read, and little is left to wait for.
const BEGIN_AT: u64 = 8 << 20;
/// Nothing waits.
const NONE: (u64, u64, u64) = (u64::MAX, 0, 0);

const ZEROES: [u8; 1 << 20] = [0; 1 << 20];

impl DataFile {
    pub(crate) fn open(directory: &Path, medium: Medium) -> Result<DataFile> {
        let path = directory.join(segment::data(0));
        let what = path.display().to_string();
        let file = rustix::fs::open(
            &path,
            OFlags::RDWR | OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )
        .map_err(Error::os(what.clone()))?;
        let len = rustix::fs::fstat(&file).map_err(Error::os(what))?.st_size as u64;
        let mapped = match huge_page(file.as_fd()) {
            Some(page) => Some((files::map(&file, len, Access::ReadWrite, medium)?, page)),
            None => None,
        };
        Ok(DataFile {
            file,
            medium,
            mapped,
            waiting: Cell::new(NONE),
        })
    }

    /// Writes whole blocks.
    pub fn write(&self, block: BlockAddr, bytes: &[u8]) -> io::Result<()> {
        let mut at = block.offset();
        if let Some((region, page)) = &self.mapped {
            self.set_aside(at, bytes.len() as u64, *page)?;
            return region.write_nt(at, bytes).map_err(io::Error::other);
        }
        self.write_back_soon(at, bytes.len() as u64)?;
        let mut bytes = bytes;
        while !bytes.is_empty() {
            match rustix::io::pwrite(&self.file, bytes, at) {
                Ok(0) => return Err(Errno::IO.into()),
                Ok(n) => (at, bytes) = (at + n as u64, &bytes[n..]),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Bytes come to be written here; those before them may be many enough.
    fn write_back_soon(&self, at: u64, len: u64) -> io::Result<()> {
        if self.medium == Medium::Memory {
            return Ok(());
        }
        let (from, to, count) = self.waiting.get();
        let waiting = match count >= BEGIN_AT {
            true => {
                begin_write_back(self.file.as_fd(), from, to - from).map_err(io::Error::other)?;
                NONE
            }
            false => (from, to, count),
        };
        let (from, to, count) = waiting;
        self.waiting
            .set((from.min(at), to.max(at + len), count + len));
        Ok(())
    }

    /// Copies blocks to others.
    pub fn copy(&self, mut from: BlockAddr, mut to: BlockAddr, mut blocks: u64) -> io::Result<()> {
        const AT_ONCE: u64 = ZEROES.len() as u64 / PAGE_LEN;
        let mut bytes = vec![0; ZEROES.len()];
        while blocks > 0 {
            let now = blocks.min(AT_ONCE);
            let part = &mut bytes[..(now * PAGE_LEN) as usize];
            self.read(from, part)?;
            self.write(to, part)?;
            (from, to, blocks) = (from + now, to + now, blocks - now);
        }
        Ok(())
    }

    fn read(&self, block: BlockAddr, bytes: &mut [u8]) -> io::Result<()> {
        let at = block.offset();
        if let Some((region, _)) = &self.mapped {
            return region.read(at, bytes).map_err(io::Error::other);
        }
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pread(&self.file, &mut bytes[done..], at + done as u64) {
                Ok(0) => return Err(Errno::IO.into()),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Makes blocks zero; `is_new`: nobody has written to the file where there are any.
    pub fn zero(&self, block: BlockAddr, blocks: u64, is_new: bool) -> io::Result<()> {
        let len = blocks * PAGE_LEN;
        if is_new {
            let page = self.mapped.as_ref().map_or(1, |(_, page)| *page);
            return self.set_aside(block.offset(), len, page);
        }
        let (mut block, mut left) = (block, len as usize);
        while left > 0 {
            let now = left.min(ZEROES.len());
            self.write(block, &ZEROES[..now])?;
            block += now as u64 / PAGE_LEN;
            left -= now;
        }
        Ok(())
    }

    fn set_aside(&self, at: u64, len: u64, page: u64) -> io::Result<()> {
        let (from, to) = (at / page * page, (at + len).next_multiple_of(page));
        Ok(files::set_aside(&self.file, from, to - from)?)
    }

    /// Makes durable what was written, where anything is.
    pub fn sync(&self) -> io::Result<()> {
        match (self.medium, &self.mapped) {
            (_, Some((region, _))) => region.fence(),
            (Medium::Memory, None) => {}
            (_, None) => rustix::fs::fdatasync(&self.file)?,
        }
        Ok(())
    }
}
