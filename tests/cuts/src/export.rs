//! Disks as files of a small FUSE file system, for loop devices to stand on.
//!
//! Every request of a disk is answered by one thread, in the order in which they come, and nothing
//! is cached on the way: what the loop device was told is done has been logged.

use crate::disk::{Disk, Refused};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, Request, WriteFlags,
};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, UNIX_EPOCH};

pub type SharedDisk = Arc<Mutex<Disk>>;

/// The disk, for one look.
pub fn lock(disk: &SharedDisk) -> MutexGuard<'_, Disk> {
    disk.lock().expect("no thread panics while it holds a disk")
}

#[derive(Default)]
struct Disks {
    next: u64,
    by_number: HashMap<u64, SharedDisk>,
}

/// The mounted file system.
pub struct Export {
    dir: PathBuf,
    disks: Arc<Mutex<Disks>>,
    _session: BackgroundSession,
}

impl Export {
    pub fn mount(dir: &Path) -> Result<Export, String> {
        std::fs::create_dir_all(dir).map_err(|e| e.to_string())?;
        let disks = Arc::new(Mutex::new(Disks {
            next: 2,
            ..Disks::default()
        }));
        let served = Served(disks.clone());
        let session = fuser::spawn_mount(served, dir, &Config::default())
            .map_err(|e| format!("cannot mount a FUSE file system: {e}"))?;
        Ok(Export {
            dir: dir.into(),
            disks,
            _session: session,
        })
    }

    /// Shows the disk as a file. Its number is never used again, so no cache knows it.
    pub fn add(&self, disk: SharedDisk) -> PathBuf {
        let mut disks = self.disks.lock().expect("no thread panics with it");
        let number = disks.next;
        disks.next += 1;
        disks.by_number.insert(number, disk);
        self.dir.join(number.to_string())
    }

    pub fn remove(&self, path: &Path) {
        let number = path.file_name().and_then(number_of);
        let mut disks = self.disks.lock().expect("no thread panics with it");
        number.and_then(|number| disks.by_number.remove(&number));
    }
}

fn number_of(name: &OsStr) -> Option<u64> {
    name.to_str()?.parse().ok()
}

struct Served(Arc<Mutex<Disks>>);

const TTL: Duration = Duration::ZERO;

impl Served {
    fn disk(&self, number: INodeNo) -> Option<SharedDisk> {
        let disks = self.0.lock().expect("no thread panics with it");
        disks.by_number.get(&number.0).cloned()
    }

    fn attributes(&self, number: INodeNo) -> Option<FileAttr> {
        let (kind, size) = match number {
            INodeNo::ROOT => (FileType::Directory, 0),
            number => (
                FileType::RegularFile,
                lock(&self.disk(number)?).image.bytes(),
            ),
        };
        Some(FileAttr {
            ino: number,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

impl Filesystem for Served {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let number = number_of(name).map(INodeNo);
        match number.and_then(|number| self.attributes(number)) {
            Some(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(number) {
            Some(attributes) => reply.attr(&TTL, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.disk(number) {
            Some(disk) => {
                let bytes = lock(&disk).image.read(offset, size as usize);
                reply.data(&bytes);
            }
            None => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.disk(number) {
            Some(disk) => match lock(&disk).write(offset, data) {
                Ok(()) => reply.written(data.len() as u32),
                Err(Refused) => reply.error(Errno::EIO),
            },
            None => reply.error(Errno::EIO),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // Of close(2); says nothing about what is durable.
        reply.ok();
    }

    fn fsync(&self, _: &Request, number: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        if let Some(disk) = self.disk(number) {
            lock(&disk).flush();
        }
        reply.ok();
    }
}
