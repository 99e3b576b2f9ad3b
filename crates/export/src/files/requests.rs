//! The requests of the kernel.
//!
//! Invariant: each is answered once, with what the call of its name says in the pool.

use super::args::PROCESS;
use super::listing::{Entry, entries};
use super::locks::{Part, Wish};
use super::nodes::Place;
use super::tree::{Changes, Tree, description};
use super::who;
use crate::failure::say_once;
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, FileType,
    Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};
use holdfast::{Error, FileStat};
use holdfast_client::abi::{AT_EACCESS, AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW};
use holdfast_client::{Base, DirentFormat, SetTime};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The most bytes of one read or write.
const TRANSFER_MAX: u32 = 1 << 20;
/// Asynchronous requests that the kernel has out at once.
const BACKGROUND_MAX: u16 = 128;
/// Nothing is kept: programs in the pool change it without the kernel's knowledge.
const TTL: Duration = Duration::ZERO;
/// Numbers are not used twice.
const GENERATION: Generation = Generation(0);
/// What a directory is read by.
const LISTING: usize = 32 << 10;
const ENOENT: i32 = 2;
const EIO: i32 = 5;
const EUCLEAN: i32 = 117;

/// What the kernel may ask for, beside the usual.
const ABILITIES: [InitFlags; 8] = [
    InitFlags::FUSE_ATOMIC_O_TRUNC,
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_POSIX_LOCKS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_HANDLE_KILLPRIV,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
];

thread_local! {
    /// What is read, on its way to the kernel.
    static ROOM: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with this thread's room for so many bytes, which hold anything.
fn with_room<T>(len: usize, f: impl FnOnce(&mut [u8]) -> T) -> T {
    ROOM.with_borrow_mut(|room| {
        if room.len() < len {
            room.resize(len, 0);
        }
        f(room.get_mut(..len).unwrap_or_default())
    })
}

/// The file system.
pub struct Requests(pub Arc<Tree>);

fn errno(error: &Error) -> Errno {
    let code = error.errno();
    if matches!(code, EIO | EUCLEAN) {
        say_once(error);
    }
    Errno::from_i32(code)
}

/// The same about an object that the kernel found before: if it is gone, it looks again.
fn stale(error: &Error) -> Errno {
    match error.errno() {
        ENOENT => Errno::ESTALE,
        _ => errno(error),
    }
}

fn time(ns: i64) -> SystemTime {
    let since = Duration::from_nanos(ns.unsigned_abs());
    match ns < 0 {
        true => UNIX_EPOCH - since,
        false => UNIX_EPOCH + since,
    }
}

fn set_time(time: TimeOrNow) -> SetTime {
    let ns = |since: Duration| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(match time.duration_since(UNIX_EPOCH) {
            Ok(since) => ns(since),
            Err(before) => -ns(before.duration()),
        }),
    }
}

/// By its `DT_*`.
fn kind(kind: u8) -> FileType {
    match kind {
        1 => FileType::NamedPipe,
        2 => FileType::CharDevice,
        4 => FileType::Directory,
        6 => FileType::BlockDevice,
        10 => FileType::Symlink,
        12 => FileType::Socket,
        _ => FileType::RegularFile,
    }
}

fn attributes(stat: &FileStat) -> FileAttr {
    FileAttr {
        ino: INodeNo(stat.ino),
        size: stat.size,
        blocks: stat.blocks,
        atime: time(stat.atime),
        mtime: time(stat.mtime),
        ctime: time(stat.ctime),
        crtime: time(stat.btime),
        kind: kind((stat.mode >> 12 & 15) as u8),
        perm: (stat.mode & 0o7777) as u16,
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        rdev: stat.rdev as u32,
        blksize: stat.block_size,
        flags: 0,
    }
}

fn answer(done: Result<(), Error>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(errno(&e)),
    }
}

fn entry(found: Result<FileStat, Error>, reply: ReplyEntry) {
    match found {
        Ok(stat) => reply.entry(&TTL, &attributes(&stat), GENERATION),
        Err(e) => reply.error(errno(&e)),
    }
}

/// With the length alone, or with the bytes, as the kernel asked.
fn sized(found: Result<Vec<u8>, Error>, room: u32, reply: ReplyXattr) {
    match found {
        Err(e) => reply.error(errno(&e)),
        Ok(bytes) if room == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) if bytes.len() > room as usize => reply.error(Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
    }
}

impl Requests {
    fn listed(
        &self,
        file: FileHandle,
        at: u64,
        each: &mut dyn FnMut(&Entry) -> bool,
    ) -> Result<(), Error> {
        let open = description(file)?;
        self.0.go_to(open, at)?;
        let mut room = vec![0; LISTING];
        loop {
            let len = self.0.inside(|client, _| {
                client.getdents(open, (&mut room[..]).into(), DirentFormat::Linux64)
            })?;
            let found = room.get(..len).unwrap_or_default();
            if len == 0 || entries(found).any(|entry| each(&entry)) {
                return Ok(());
            }
        }
    }

    fn opened(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.0.open(request, ino.0, flags.0 as u32) {
            Ok(open) => {
                reply.opened(FileHandle(open.raw().into()), FopenFlags::FOPEN_DIRECT_IO);
            }
            Err(e) => reply.error(stale(&e)),
        }
    }

    fn wish(
        &self,
        request: &Request,
        file: FileHandle,
        owner: LockOwner,
        part: Part,
    ) -> Result<Wish, Error> {
        Ok(Wish {
            open: description(file)?,
            owner: owner.0,
            user: request.uid(),
            part,
        })
    }

    fn closed(&self, file: FileHandle, reply: ReplyEmpty) {
        answer(description(file).map(|open| self.0.close(open)), reply);
    }

    fn synced(&self, file: FileHandle, data: bool, reply: ReplyEmpty) {
        let done = description(file).and_then(|open| {
            self.0.inside(|client, _| match data {
                true => client.fdatasync(open),
                false => client.fsync(open),
            })
        });
        answer(done, reply);
    }
}

#[allow(clippy::too_many_arguments)]
impl Filesystem for Requests {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for ability in ABILITIES {
            // An older kernel lacks some.
            let _ = config.add_capabilities(ability);
        }
        let _ = config.set_max_write(TRANSFER_MAX);
        let _ = config.set_max_readahead(TRANSFER_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
        let _ = config.set_time_granularity(Duration::from_nanos(1));
        Ok(())
    }

    fn lookup(&self, request: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let user = who::user(request, 0);
        entry(self.0.look_up(&user, dir.0, name.as_bytes()), reply);
    }

    fn forget(&self, _: &Request, ino: INodeNo, times: u64) {
        self.0.nodes.forget(ino.0, times);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, file: Option<FileHandle>, reply: ReplyAttr) {
        let found = match file.map(description) {
            Some(Ok(open)) => {
                let stat = self.0.inside(|client, _| client.fstat(open));
                stat.map(|stat| self.0.pool().seen(stat))
            }
            _ => self.0.stat(ino.0),
        };
        match found {
            Ok(stat) => reply.attr(&TTL, &attributes(&stat)),
            Err(e) => reply.error(stale(&e)),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        file: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let times = [atime, mtime].map(|time| time.map_or(SetTime::Omit, set_time));
        let changes = Changes {
            mode,
            uid,
            gid,
            size,
            times: (times != [SetTime::Omit; 2]).then_some(times),
        };
        let open = file.and_then(|file| description(file).ok());
        match self.0.change(request, (ino.0, open), &changes) {
            Ok(stat) => reply.attr(&TTL, &attributes(&stat)),
            Err(e) => reply.error(stale(&e)),
        }
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        let read = with_room(holdfast_client::abi::PATH_MAX, |room| {
            let read = self.0.act(request, |client, who| {
                client.readlink(who, Base::Node(ino.0), b"", (&mut *room).into())
            });
            read.map(|len| room.get(..len).unwrap_or_default().to_vec())
        });
        match read {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(stale(&e)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        dir: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let (user, name) = (who::user(request, umask), name.as_bytes());
        let made = self.0.pool().act(&user, |client, who| {
            client.mknod(who, Base::Node(dir.0), name, mode, device.into())
        });
        entry(
            made.and_then(|()| self.0.look_up(&user, dir.0, name)),
            reply,
        );
    }

    fn mkdir(
        &self,
        request: &Request,
        dir: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let (user, name) = (who::user(request, umask), name.as_bytes());
        let made = self.0.pool().act(&user, |client, who| {
            client.mkdir(who, Base::Node(dir.0), name, mode)
        });
        entry(
            made.and_then(|()| self.0.look_up(&user, dir.0, name)),
            reply,
        );
    }

    fn symlink(
        &self,
        request: &Request,
        dir: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (user, name) = (who::user(request, 0), name.as_bytes());
        let target = target.as_os_str().as_bytes();
        let made = self.0.pool().act(&user, |client, who| {
            client.symlink(who, target, Base::Node(dir.0), name)
        });
        entry(
            made.and_then(|()| self.0.look_up(&user, dir.0, name)),
            reply,
        );
    }

    fn link(&self, request: &Request, ino: INodeNo, dir: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (user, name) = (who::user(request, 0), name.as_bytes());
        let Place { base, path } = self.0.nodes.place(ino.0);
        let made = self.0.pool().act(&user, |client, who| {
            let new = (Base::Node(dir.0), name);
            client.link(who, (base, &path), new, AT_EMPTY_PATH)
        });
        entry(
            made.and_then(|()| self.0.look_up(&user, dir.0, name)),
            reply,
        );
    }

    fn unlink(&self, request: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self.0.act(request, |client, who| {
            client.unlink(who, Base::Node(dir.0), name.as_bytes())
        });
        answer(done, reply);
    }

    fn rmdir(&self, request: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self.0.act(request, |client, who| {
            client.rmdir(who, Base::Node(dir.0), name.as_bytes())
        });
        answer(done, reply);
    }

    fn rename(
        &self,
        request: &Request,
        dir: INodeNo,
        name: &OsStr,
        new_dir: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let done = self.0.act(request, |client, who| {
            let old = (Base::Node(dir.0), name.as_bytes());
            let new = (Base::Node(new_dir.0), new_name.as_bytes());
            client.rename(who, old, new, flags.bits())
        });
        answer(done, reply);
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.opened(request, ino, flags, reply);
    }

    fn create(
        &self,
        request: &Request,
        dir: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let user = who::user(request, umask);
        let place = (dir.0, name.as_bytes());
        match self.0.create(&user, place, mode & 0o7777, flags as u32) {
            Ok((open, stat)) => reply.created(
                &TTL,
                &attributes(&stat),
                GENERATION,
                FileHandle(open.raw().into()),
                FopenFlags::FOPEN_DIRECT_IO,
            ),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        file: FileHandle,
        offset: u64,
        len: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let at = i64::try_from(offset).unwrap_or(i64::MAX);
        with_room(len.min(TRANSFER_MAX) as usize, |room| {
            let read = description(file).and_then(|open| {
                self.0
                    .inside(|client, _| client.pread(open, (&mut *room).into(), at))
            });
            match read {
                Ok(len) => reply.data(room.get(..len).unwrap_or_default()),
                Err(e) => reply.error(errno(&e)),
            }
        });
    }

    fn write(
        &self,
        request: &Request,
        _: INodeNo,
        file: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let at = i64::try_from(offset).unwrap_or(i64::MAX);
        let written = description(file).and_then(|open| {
            self.0.store(request, (Base::Ofd(open), b""), |client, _| {
                client.pwrite(open, data.into(), at)
            })
        });
        match written {
            Ok(len) => reply.written(len as u32),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn flush(
        &self,
        _: &Request,
        _: INodeNo,
        file: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let done = description(file).map(|open| self.0.drop_locks(open, owner.0));
        answer(done, reply);
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        file: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.closed(file, reply);
    }

    fn fsync(&self, _: &Request, _: INodeNo, file: FileHandle, data: bool, reply: ReplyEmpty) {
        self.synced(file, data, reply);
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.0.open_directory(request, ino.0) {
            Ok(open) => reply.opened(FileHandle(open.raw().into()), FopenFlags::empty()),
            Err(e) => reply.error(stale(&e)),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        file: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let done = self.listed(file, offset, &mut |entry| {
            let name = OsStr::from_bytes(entry.name);
            reply.add(INodeNo(entry.ino), entry.next, kind(entry.kind), name)
        });
        match done {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn readdirplus(
        &self,
        request: &Request,
        dir: INodeNo,
        file: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let user = who::user(request, 0);
        let done = self.listed(file, offset, &mut |entry| {
            let name = OsStr::from_bytes(entry.name);
            let found = match entry.is_dots() {
                true => Err(()),
                false => self.0.look_up(&user, dir.0, entry.name).map_err(drop),
            };
            // Of these the kernel is told no more than that they are there.
            let told = found.as_ref().map_or(0, |stat| stat.ino);
            let unknown = FileStat {
                ino: entry.ino,
                mode: u32::from(entry.kind) << 12,
                ..FileStat::default()
            };
            let shown = attributes(&found.unwrap_or(unknown));
            let full = reply.add(INodeNo(told), entry.next, name, &TTL, &shown, GENERATION);
            if full && told != 0 {
                self.0.nodes.forget(told, 1);
            }
            full
        });
        match done {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        file: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.closed(file, reply);
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, file: FileHandle, data: bool, reply: ReplyEmpty) {
        self.synced(file, data, reply);
    }

    fn statfs(&self, request: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let Place { base, path } = self.0.nodes.place(ino.0);
        let flags = AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW;
        let of = self.0.act(request, |client, who| {
            client.statfs_at(who, base, &path, flags)
        });
        match of {
            Ok(of) => reply.statfs(
                of.blocks,
                of.free,
                of.available,
                of.files,
                of.files_free,
                of.block_size,
                of.name_max,
                of.block_size,
            ),
            Err(e) => reply.error(stale(&e)),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let done = self
            .0
            .with_attributes(request, ino.0, |client, who, target| {
                client.setxattr(who, target, name.as_bytes(), value.into(), flags as u32)
            });
        answer(done, reply);
    }

    fn getxattr(&self, request: &Request, ino: INodeNo, name: &OsStr, len: u32, reply: ReplyXattr) {
        if ino == INodeNo::ROOT && name == PROCESS {
            let process = std::process::id().to_string();
            return sized(Ok(process.into_bytes()), len, reply);
        }
        let found = self
            .0
            .with_attributes(request, ino.0, |client, who, target| {
                let mut room = vec![0; holdfast_client::abi::XATTR_SIZE_MAX];
                let n = client.getxattr(who, target, name.as_bytes(), (&mut room[..]).into())?;
                room.truncate(n);
                Ok(room)
            });
        sized(found, len, reply);
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, len: u32, reply: ReplyXattr) {
        let found = self
            .0
            .with_attributes(request, ino.0, |client, who, target| {
                let mut room = vec![0; holdfast_client::abi::XATTR_LIST_MAX];
                let n = client.listxattr(who, target, (&mut room[..]).into())?;
                room.truncate(n);
                Ok(room)
            });
        sized(found, len, reply);
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self
            .0
            .with_attributes(request, ino.0, |client, who, target| {
                client.removexattr(who, target, name.as_bytes())
            });
        answer(done, reply);
    }

    fn access(&self, request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let Place { base, path } = self.0.nodes.place(ino.0);
        let flags = AT_EMPTY_PATH | AT_EACCESS | AT_SYMLINK_NOFOLLOW;
        let done = self.0.act(request, |client, who| {
            client.access(who, base, &path, mask.bits() as u32, flags)
        });
        match done {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(stale(&e)),
        }
    }

    fn getlk(
        &self,
        request: &Request,
        _: INodeNo,
        file: FileHandle,
        owner: LockOwner,
        start: u64,
        last: u64,
        kind: i32,
        _: u32,
        reply: ReplyLock,
    ) {
        let kind = kind as i16;
        let wish = self.wish(request, file, owner, Part { start, last, kind });
        match wish.and_then(|wish| self.0.look_at_lock(&wish)) {
            Ok(lock) => {
                let Part { start, last, kind } = Part::of(&lock);
                let pid = u32::try_from(lock.pid).unwrap_or(0);
                reply.locked(start, last, kind.into(), pid);
            }
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn setlk(
        &self,
        request: &Request,
        _: INodeNo,
        file: FileHandle,
        owner: LockOwner,
        start: u64,
        last: u64,
        kind: i32,
        _: u32,
        waits: bool,
        reply: ReplyEmpty,
    ) {
        let kind = kind as i16;
        match self.wish(request, file, owner, Part { start, last, kind }) {
            Ok(wish) => {
                let waiting = waits.then_some(request.pid());
                self.0.answer_lock(wish, waiting, reply);
            }
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        _: INodeNo,
        file: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let done = description(file).and_then(|open| {
            self.0.store(request, (Base::Ofd(open), b""), |client, _| {
                client.fallocate(open, mode as u32, signed(offset), signed(len))
            })
        });
        answer(done, reply);
    }

    fn lseek(
        &self,
        _: &Request,
        _: INodeNo,
        file: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let found = description(file).and_then(|open| {
            self.0
                .inside(|client, _| client.lseek(open, offset, whence as u32))
        });
        match found {
            Ok(at) => reply.offset(i64::try_from(at).unwrap_or(i64::MAX)),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _: INodeNo,
        from: FileHandle,
        from_offset: u64,
        _: INodeNo,
        to: FileHandle,
        to_offset: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let (mut read, mut written) = (signed(from_offset), signed(to_offset));
        let len = usize::try_from(len.min(u32::MAX.into())).unwrap_or(usize::MAX);
        let copied = description(from).and_then(|from| Ok((from, description(to)?)));
        let copied = copied.and_then(|(from, to)| {
            self.0.store(request, (Base::Ofd(to), b""), |client, _| {
                client.copy_range(from, Some(&mut read), to, Some(&mut written), len)
            })
        });
        match copied {
            Ok(len) => reply.written(len as u32),
            Err(e) => reply.error(errno(&e)),
        }
    }
}
