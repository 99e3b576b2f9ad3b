//! The requests of the kernel.
//!
//! Invariants: the kernel keeps no bytes of the file, so what was written is in the volume when a
//! write returns, and durable when an fsync does; the file has one size.

use crate::bytes::{Bytes, Wanted};
use crate::failure::say_once;
use crate::publish::Clients;
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use holdfast::{Error, Volume, Written, Zeroes};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::process::{getegid, geteuid};
use std::io;
use std::time::{Duration, SystemTime};

/// The most bytes of one write.
const WRITE_MAX: u32 = 1 << 20;
/// Asynchronous requests that the kernel has out at once.
const BACKGROUND_MAX: u16 = 128;
/// Attributes are asked for each time: how much space the volume takes changes.
const TTL: Duration = Duration::ZERO;
/// What is allocated at once, and so trimmed: loop devices tell it to file systems.
const BLOCK: u32 = 4096;

const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// The file system.
pub struct Served {
    bytes: Bytes,
    /// Those who have the file open.
    clients: Clients,
    since: SystemTime,
}

impl Served {
    pub fn new(volume: Volume, clients: Clients) -> Served {
        Served {
            clients,
            bytes: Bytes::new(volume),
            since: SystemTime::now(),
        }
    }

    fn attributes(&self) -> FileAttr {
        let size = self.bytes.size();
        let volume = self.bytes.volume();
        FileAttr {
            ino: INodeNo::ROOT,
            size,
            blocks: volume.allocated().unwrap_or(size).div_ceil(512),
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            crtime: self.since,
            kind: FileType::RegularFile,
            perm: if volume.writes() { 0o600 } else { 0o400 },
            nlink: 1,
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
            rdev: 0,
            blksize: BLOCK,
            flags: 0,
        }
    }

    fn done(&self, done: Result<(), Error>, reply: ReplyEmpty) {
        match done {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(&e)),
        }
    }
}

fn errno(error: &Error) -> Errno {
    say_once(error);
    Errno::from_i32(error.errno())
}

impl Filesystem for Served {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Each is refused only by a kernel that does without it.
        let _ = config.set_max_write(WRITE_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        Ok(())
    }

    fn getattr(&self, _: &Request, _: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attributes());
    }

    fn setattr(
        &self,
        _: &Request,
        _: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let size_stays = size.is_none_or(|size| size == self.bytes.size());
        match (mode, uid, gid) {
            // Times are nobody's business, but programs that set them must not fail.
            (None, None, None) if size_stays => reply.attr(&TTL, &self.attributes()),
            _ => reply.error(Errno::EPERM),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if flags.acc_mode() != OpenAccMode::O_RDONLY && !self.bytes.volume().writes() {
            return reply.error(Errno::EROFS);
        }
        self.clients.arrive();
        let direct = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), direct);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut reply = Some(reply);
        let read = self.bytes.read(offset, size as usize, |bytes| {
            if let Some(reply) = reply.take() {
                reply.data(bytes);
            }
        });
        if let (Err(e), Some(reply)) = (read, reply) {
            reply.error(errno(&e));
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let durable = match flags.0.cast_unsigned() & OFlags::DSYNC.bits() {
            0 => Written::AtFlush,
            _ => Written::AtReturn,
        };
        match self.bytes.write(data, offset, durable) {
            // As a disk says it of what is behind its end.
            Ok(0) if !data.is_empty() => reply.error(Errno::ENOSPC),
            Ok(len) => reply.written(len as u32),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        self.done(self.bytes.volume().flush(), reply);
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.clients.leave();
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.done(self.bytes.volume().flush(), reply);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let size = self.bytes.size();
        let allocated = self.bytes.volume().allocated().unwrap_or(size);
        let blocks = |bytes: u64| bytes / u64::from(BLOCK);
        let free = blocks(size.saturating_sub(allocated));
        reply.statfs(blocks(size), free, free, 1, 0, BLOCK, 255, BLOCK);
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let keep = FallocateFlags::KEEP_SIZE;
        let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        let zeroes = match mode.difference(keep) {
            FallocateFlags::PUNCH_HOLE if mode.contains(keep) => Zeroes::Hole,
            FallocateFlags::ZERO_RANGE => Zeroes::Blocks,
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        let end = offset.saturating_add(length);
        if !mode.contains(keep) && end > self.bytes.size() {
            return reply.error(Errno::ENOSPC);
        }
        self.done(self.bytes.zero(offset, length, zeroes), reply);
    }

    fn lseek(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let wanted = match whence {
            SEEK_DATA => Wanted::Data,
            SEEK_HOLE => Wanted::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(at) = u64::try_from(offset) else {
            return reply.error(Errno::ENXIO);
        };
        match self.bytes.seek(at, wanted) {
            Ok(Some(found)) => reply.offset(found.cast_signed()),
            Ok(None) => reply.error(Errno::ENXIO),
            Err(e) => reply.error(errno(&e)),
        }
    }
}
