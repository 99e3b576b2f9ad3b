//! `Client`: everything that preload, the bindings and the command line may ask of a pool.
//!
//! Invariants: every function takes `&self`, may be called from any thread of the process, and
//! leaves no lock held; a read, write, stat, open or create does not allocate.
//!
//! This file is the index: the work is in the modules that it names.

use crate::LeaseSet;
use crate::base::error::Result;
use crate::base::types::*;
use crate::content::lent;
use crate::ops::blocks::BlockRun;
use crate::ops::client::Client;
use crate::ops::snapshot::{SnapshotError, SnapshotInfo, StoresStopped};
use crate::ops::{
    attr, blocks, copy_range, create, cwd, fds, flock, link, map, open, read, readdir,
};
use crate::ops::{
    quota, rename, snapshot, stat, statfs, stray, sync, transit, truncate, write, writeback, xattr,
};
use crate::session::quota::QuotaInfo;
use alloc::vec::Vec;
use pmem::{ConstBuf, MutBuf, RecordLocks};
use pool::quota::{Quota, Subject};
use rustix::fd::OwnedFd;

/// Limits.
impl Client {
    /// How much of `len` bytes the limit lets a write take, at `at` or at the file offset.
    pub fn within_limit(&self, ofd: OfdLink, at: Option<i64>, len: usize) -> Result<usize> {
        write::within_limit(self, ofd, at, len)
    }
}

/// Memory.
impl Client {
    /// What is mapped for the client's own use: address and length of each mapping.
    pub fn own_memory(&self) -> [(usize, usize); 5] {
        self.session.own_memory()
    }
}

/// Snapshots.
impl Client {
    /// Takes a snapshot of the whole pool, with all that was done before the call, as `name`.
    /// `pool` is the pool's directory.
    pub fn snapshot_create(&self, pool: &[u8], name: &[u8]) -> Result<(), SnapshotError> {
        snapshot::create(self, pool, name)
    }

    /// The first half of `snapshot_create`: from here on nobody stores into files, and everything
    /// done before is in the journal and durable.
    pub fn stop_stores(&self) -> Result<StoresStopped<'_>> {
        snapshot::stop(&self.session)
    }

    /// Deletes the snapshot `name`; EBUSY while programs run on it.
    pub fn snapshot_delete(&self, pool: &[u8], name: &[u8]) -> Result<(), SnapshotError> {
        snapshot::delete(pool, name)
    }

    /// Calls the snapshot `name` something else; EBUSY while programs run on it.
    pub fn snapshot_rename(
        &self,
        pool: &[u8],
        name: &[u8],
        to: &[u8],
    ) -> Result<(), SnapshotError> {
        snapshot::rename(pool, name, to)
    }

    /// All snapshots, the oldest first.
    pub fn snapshot_list(&self) -> Result<Vec<SnapshotInfo>> {
        snapshot::list(self)
    }
}

/// Quotas.
impl Client {
    /// All quotas and what is taken of them, in no order.
    pub fn quotas(&self) -> Result<Vec<QuotaInfo>> {
        quota::list(&self.session)
    }

    /// Sets a quota, in place of an earlier one of the same user or directory.
    pub fn quota_set(&self, quota: Quota) -> Result<()> {
        quota::set(&self.session, quota)
    }

    /// Takes a quota away; ENOENT if there is none.
    pub fn quota_remove(&self, subject: Subject) -> Result<()> {
        quota::remove(&self.session, subject)
    }

    /// The directory at `path`.
    pub fn quota_directory(&self, who: &Caller, path: &[u8]) -> Result<Subject> {
        quota::directory(self, who, path)
    }

    /// The path of a directory with a quota; ENOENT if it is gone.
    pub fn quota_path(&self, directory: u64) -> Result<Vec<u8>> {
        quota::path_of(&self.session, directory)
    }
}

/// Names.
impl Client {
    /// open(2), openat2(2): a new description with one reference, for `bind` or `release`.
    /// `resolve` takes `RESOLVE_*` bits.
    pub fn open(
        &self,
        c: &Caller,
        base: Base,
        path: &[u8],
        oflags: u32,
        mode: u32,
        resolve: u64,
    ) -> Result<OfdLink> {
        self.durable(open::open(self, c, base, path, oflags, mode, resolve))
    }

    /// As `open` for an object that was found before: by its number, and the directory and name
    /// that led there. It may have no name any more.
    pub fn open_node(
        &self,
        c: &Caller,
        ino: u64,
        named: (u64, &[u8]),
        oflags: u32,
    ) -> Result<OfdLink> {
        self.durable(open::open_node(self, c, ino, named, oflags))
    }

    /// Whether flags of open(2) make sense together; `Invalid` if not.
    pub fn check_open(&self, oflags: u32) -> Result<()> {
        open::check_flags(oflags).map(drop)
    }

    /// mkdir(2).
    pub fn mkdir(&self, c: &Caller, base: Base, path: &[u8], mode: u32) -> Result<()> {
        self.durable(create::mkdir(self, c, base, path, mode))
    }

    /// mknod(2); `mode` holds the type, `rdev` the kernel's device number.
    pub fn mknod(&self, c: &Caller, base: Base, path: &[u8], mode: u32, rdev: u64) -> Result<()> {
        self.durable(create::mknod(self, c, base, path, mode, rdev))
    }

    /// symlink(2).
    pub fn symlink(&self, c: &Caller, target: &[u8], base: Base, path: &[u8]) -> Result<()> {
        self.durable(create::symlink(self, c, target, base, path))
    }

    /// linkat(2); `flags`: `AT_SYMLINK_FOLLOW`, `AT_EMPTY_PATH`.
    pub fn link(
        &self,
        c: &Caller,
        old: (Base, &[u8]),
        new: (Base, &[u8]),
        flags: u32,
    ) -> Result<()> {
        self.durable(link::link(self, c, old, new, flags))
    }

    /// unlink(2).
    pub fn unlink(&self, c: &Caller, base: Base, path: &[u8]) -> Result<()> {
        self.durable(link::unlink(self, c, base, path))
    }

    /// rmdir(2).
    pub fn rmdir(&self, c: &Caller, base: Base, path: &[u8]) -> Result<()> {
        self.durable(link::rmdir(self, c, base, path))
    }

    /// renameat2(2).
    pub fn rename(
        &self,
        c: &Caller,
        old: (Base, &[u8]),
        new: (Base, &[u8]),
        flags: u32,
    ) -> Result<()> {
        self.durable(rename::rename(self, c, old, new, flags))
    }

    /// readlink(2). An empty path reads the link that `base` is (`O_PATH | O_NOFOLLOW`).
    pub fn readlink(&self, c: &Caller, base: Base, path: &[u8], out: MutBuf) -> Result<usize> {
        attr::readlink(self, c, base, path, out)
    }

    /// faccessat2(2); `c` already holds real or effective ids as the flags say.
    pub fn access(&self, c: &Caller, base: Base, path: &[u8], mode: u32, flags: u32) -> Result<()> {
        attr::access(self, c, base, path, mode, flags)
    }

    /// fchmodat2(2); `flags`: `AT_SYMLINK_NOFOLLOW`, `AT_EMPTY_PATH`.
    pub fn chmod(&self, c: &Caller, base: Base, path: &[u8], mode: u32, flags: u32) -> Result<()> {
        self.durable(attr::chmod(self, c, base, path, mode, flags))
    }

    /// fchownat(2); `None` leaves an id as it is.
    pub fn chown(
        &self,
        c: &Caller,
        base: Base,
        path: &[u8],
        owner: (Option<u32>, Option<u32>),
        flags: u32,
    ) -> Result<()> {
        self.durable(attr::chown(self, c, base, path, owner, flags))
    }

    /// utimensat(2): access and modification time.
    pub fn utimens(
        &self,
        c: &Caller,
        base: Base,
        path: &[u8],
        times: [SetTime; 2],
        flags: u32,
    ) -> Result<()> {
        self.durable(attr::utimens(self, c, base, path, times, flags))
    }

    /// truncate(2).
    pub fn truncate(&self, c: &Caller, base: Base, path: &[u8], size: i64) -> Result<()> {
        self.durable(truncate::truncate(self, c, base, path, size))
    }

    /// newfstatat(2), statx(2); `flags`: `AT_SYMLINK_NOFOLLOW`, `AT_EMPTY_PATH`.
    pub fn stat(&self, c: &Caller, base: Base, path: &[u8], flags: u32) -> Result<Stat> {
        stat::stat(self, c, base, path, flags)
    }

    /// Figures of the whole pool, as statfs(2) has them.
    pub fn statfs(&self) -> Result<StatFs> {
        statfs::statfs(self)
    }

    /// statfs(2): of the pool, or of the directory with a quota that the object counts for; `flags`
    /// as for `stat`.
    pub fn statfs_at(&self, c: &Caller, base: Base, path: &[u8], flags: u32) -> Result<StatFs> {
        statfs::statfs_at(self, c, base, path, flags)
    }

    /// chdir(2): the working directory of this process is in the pool from now on.
    pub fn chdir(&self, c: &Caller, base: Base, path: &[u8]) -> Result<()> {
        cwd::chdir(self, c, base, path)
    }

    /// fchdir(2).
    pub fn fchdir(&self, c: &Caller, ofd: OfdLink) -> Result<()> {
        cwd::fchdir(self, c, ofd)
    }

    /// The working directory of this process is outside from now on.
    pub fn chdir_outside(&self) -> Result<()> {
        cwd::chdir_outside(self)
    }

    /// Whether the working directory of this process is in the pool.
    pub fn cwd_inside(&self) -> bool {
        cwd::cwd_inside(self)
    }

    /// The working directory as an absolute path inside the pool, without NUL; ENOENT if removed,
    /// ERANGE if `out` is too small.
    pub fn getcwd(&self, out: &mut [u8]) -> Result<usize> {
        cwd::getcwd(self, out)
    }

    /// The path inside the pool by which a description was opened, as /proc/self/fd shows it
    /// (with ` (deleted)` when it has no name any more).
    pub fn path_of(&self, ofd: OfdLink, out: &mut [u8]) -> Result<usize> {
        cwd::path_of(self, ofd, out)
    }
}

/// Extended attributes.
impl Client {
    /// getxattr(2); with an empty `out` the length of the value.
    pub fn getxattr(&self, c: &Caller, target: Target, name: &[u8], out: MutBuf) -> Result<usize> {
        xattr::get(self, c, target, name, out)
    }

    /// setxattr(2).
    pub fn setxattr(
        &self,
        c: &Caller,
        target: Target,
        name: &[u8],
        value: ConstBuf,
        flags: u32,
    ) -> Result<()> {
        self.durable(xattr::set(self, c, target, name, value, flags))
    }

    /// listxattr(2); with an empty `out` the length of the list.
    pub fn listxattr(&self, c: &Caller, target: Target, out: MutBuf) -> Result<usize> {
        xattr::list(self, c, target, out)
    }

    /// removexattr(2).
    pub fn removexattr(&self, c: &Caller, target: Target, name: &[u8]) -> Result<()> {
        self.durable(xattr::remove(self, c, target, name))
    }
}

/// Descriptors.
impl Client {
    /// The description behind a descriptor of this process. No lock, no system call.
    pub fn lookup(&self, fd: u32) -> Option<OfdLink> {
        fds::lookup(self, fd)
    }

    /// Descriptor `fd` takes over one reference to `ofd`; what it referred to before is dropped.
    pub fn bind(&self, fd: u32, ofd: OfdLink) -> Result<()> {
        fds::bind(self, fd, ofd)
    }

    /// `new` becomes a duplicate of the pool descriptor `old`; EBADF if `old` is none.
    pub fn dup(&self, old: u32, new: u32) -> Result<()> {
        fds::dup(self, old, new)
    }

    /// Descriptor `fd` was closed (or reused by the kernel): true if it was a pool file. Drops the
    /// process's byte-range locks on it; at the last reference writes what is still lazy.
    pub fn unbind(&self, fd: u32) -> Result<bool> {
        fds::unbind(self, fd)
    }

    /// Drops a reference that was never bound.
    pub fn release(&self, ofd: OfdLink) -> Result<()> {
        fds::release(self, ofd)
    }

    /// SCM_RIGHTS: makes what a message carries for `ofd`. `make_token` gets an offset and a byte:
    /// it opens the file of `placeholder` once more, moves the offset of that there, and locks the
    /// byte in its name, so that the kernel tells when the last descriptor of it is gone.
    /// `random`: what nobody can guess. ENFILE: too many are on their way.
    pub fn send<T>(
        &self,
        ofd: OfdLink,
        placeholder: &RecordLocks,
        random: u64,
        make_token: impl FnOnce(u64, u64) -> Result<T>,
    ) -> Result<T> {
        transit::send(&self.session, ofd, placeholder, random, make_token)
    }

    /// What a token with this offset stands for: one reference to it, for `bind` or `release`.
    pub fn receive(&self, offset: u64) -> Option<OfdLink> {
        transit::receive(&self.session, offset)
    }

    /// Whether a token with this offset is on its way, as far as anybody knows.
    pub fn is_on_its_way(&self, offset: u64) -> bool {
        transit::is_there(&self.session, offset)
    }

    /// The caller has closed a descriptor of a token with this offset.
    pub fn settle(&self, offset: u64, placeholder: &RecordLocks) -> Result<()> {
        transit::settle(&self.session, offset, placeholder)
    }

    /// F_GETFL.
    pub fn getfl(&self, ofd: OfdLink) -> Result<u32> {
        fds::getfl(self, ofd)
    }

    /// Whether the kernel carries the data (`O_KERNELS`).
    #[inline]
    pub fn is_kernels(&self, ofd: OfdLink) -> bool {
        fds::is_kernels(self, ofd)
    }

    /// Whether it is a regular file whose content is open.
    pub fn is_regular(&self, ofd: OfdLink) -> bool {
        fds::is_regular(self, ofd)
    }

    /// F_SETFL.
    pub fn setfl(&self, ofd: OfdLink, flags: u32) -> Result<()> {
        fds::setfl(self, ofd, flags)
    }

    /// Inode number of an open object.
    pub fn ino_of(&self, ofd: OfdLink) -> Result<u64> {
        fds::ino_of(self, ofd)
    }
}

/// Data.
impl Client {
    /// read(2).
    pub fn read(&self, ofd: OfdLink, out: MutBuf) -> Result<usize> {
        read::read(self, ofd, out)
    }

    /// pread64(2).
    pub fn pread(&self, ofd: OfdLink, out: MutBuf, offset: i64) -> Result<usize> {
        read::pread(self, ofd, out, offset)
    }

    /// readv(2), preadv2(2): at the file offset if `offset` is `None`; `rwf` takes `RWF_*` bits.
    pub fn readv(
        &self,
        ofd: OfdLink,
        out: &mut [MutBuf],
        offset: Option<i64>,
        rwf: u32,
    ) -> Result<usize> {
        read::readv(self, ofd, out, offset, rwf)
    }

    /// write(2).
    pub fn write(&self, ofd: OfdLink, data: ConstBuf) -> Result<usize> {
        write::write(self, ofd, data)
    }

    /// pwrite64(2).
    pub fn pwrite(&self, ofd: OfdLink, data: ConstBuf, offset: i64) -> Result<usize> {
        write::pwrite(self, ofd, data, offset)
    }

    /// writev(2), pwritev2(2): at the file offset if `offset` is `None`.
    pub fn writev(
        &self,
        ofd: OfdLink,
        data: &[ConstBuf],
        offset: Option<i64>,
        rwf: u32,
    ) -> Result<usize> {
        write::writev(self, ofd, data, offset, rwf)
    }

    /// Stores to a byte of a file in the pool's memory as a program does by mistake, without
    /// changing it: where that memory is protected, the process gets a SIGSEGV. ENXIO: a hole.
    pub fn stray_store(&self, ofd: OfdLink, offset: i64) -> Result<()> {
        stray::store(self, ofd, offset)
    }

    /// Where in the pool's data the blocks of a file are that begin at its block `at`: a run of at
    /// most `max`.
    pub fn block_run(&self, ofd: OfdLink, at: u64, max: u64) -> Result<BlockRun> {
        blocks::run_at(self, ofd, at, max)
    }

    /// lseek(2), with SEEK_DATA and SEEK_HOLE.
    pub fn lseek(&self, ofd: OfdLink, offset: i64, whence: u32) -> Result<u64> {
        read::lseek(self, ofd, offset, whence)
    }

    /// copy_file_range(2) inside the pool, also sendfile(2) between pool files; an offset that is
    /// `Some` is used and advanced instead of the file offset.
    pub fn copy_range(
        &self,
        from: OfdLink,
        from_at: Option<&mut i64>,
        to: OfdLink,
        to_at: Option<&mut i64>,
        len: usize,
    ) -> Result<usize> {
        self.durable(copy_range::copy_range(self, from, from_at, to, to_at, len))
    }

    /// ftruncate(2).
    pub fn ftruncate(&self, ofd: OfdLink, size: i64) -> Result<()> {
        self.durable(truncate::ftruncate(self, ofd, size))
    }

    /// fallocate(2).
    pub fn fallocate(&self, ofd: OfdLink, mode: u32, offset: i64, len: i64) -> Result<()> {
        truncate::fallocate(self, ofd, mode, offset, len)
    }

    /// fsync(2).
    pub fn fsync(&self, ofd: OfdLink) -> Result<()> {
        sync::fsync(self, ofd)
    }

    /// fdatasync(2).
    pub fn fdatasync(&self, ofd: OfdLink) -> Result<()> {
        sync::fsync(self, ofd)
    }

    /// sync_file_range(2): `len` of 0 is to the end of the file.
    pub fn sync_file_range(&self, ofd: OfdLink, offset: i64, len: i64, flags: u32) -> Result<()> {
        sync::sync_file_range(self, ofd, offset, len, flags)
    }

    /// Journals what session memory alone has about objects, whoever changed them: how many are
    /// left, because somebody has had them locked for a second. Nothing is flushed.
    pub fn write_back(&self) -> Result<usize> {
        writeback::now(self)
    }

    /// sync(2), syncfs(2).
    pub fn sync(&self) -> Result<()> {
        sync::sync(self)
    }

    /// getdents64(2), getdents(2): bytes written, 0 at the end; EINVAL if not one entry fits.
    pub fn getdents(&self, ofd: OfdLink, out: MutBuf, format: DirentFormat) -> Result<usize> {
        readdir::getdents(self, ofd, out, format)
    }
}

/// Attributes of open objects.
impl Client {
    /// fstat(2).
    pub fn fstat(&self, ofd: OfdLink) -> Result<Stat> {
        stat::fstat(self, ofd)
    }

    /// fchmod(2).
    pub fn fchmod(&self, c: &Caller, ofd: OfdLink, mode: u32) -> Result<()> {
        self.durable(attr::fchmod(self, c, ofd, mode))
    }

    /// fchown(2).
    pub fn fchown(
        &self,
        c: &Caller,
        ofd: OfdLink,
        owner: (Option<u32>, Option<u32>),
    ) -> Result<()> {
        self.durable(attr::fchown(self, c, ofd, owner))
    }

    /// futimens(3).
    pub fn futimens(&self, c: &Caller, ofd: OfdLink, times: [SetTime; 2]) -> Result<()> {
        self.durable(attr::futimens(self, c, ofd, times))
    }
}

/// Locks.
impl Client {
    /// fcntl(2) with F_GETLK, F_SETLK, F_SETLKW and the F_OFD_ variants. Waits end with EINTR when
    /// a signal arrives.
    pub fn fcntl_lock(&self, ofd: OfdLink, cmd: u32, lock: &mut Flock) -> Result<()> {
        flock::fcntl_lock(self, ofd, cmd, lock)
    }

    /// flock(2).
    pub fn flock(&self, ofd: OfdLink, op: u32) -> Result<()> {
        flock::flock(self, ofd, op)
    }
}

/// Mapping.
impl Client {
    /// Before mmap(2): checks rights (EACCES, ENODEV), and from now on truncation keeps the blocks.
    pub fn map_pin(&self, ofd: OfdLink, prot: u32, shared: bool) -> Result<MapPin> {
        map::pin(self, ofd, prot, shared)
    }

    /// As `map_pin` for a shared mapping, where the host maps no single blocks of the pool: the
    /// file is lent. `NoDevice`: it cannot be, as a value. `ReadOnly`: the session is on a
    /// snapshot.
    pub fn map_pin_lent(&self, ofd: OfdLink, prot: u32) -> Result<MapPin> {
        map::pin_lent(self, ofd, prot)
    }

    /// As `map_pin` for a shared mapping by a process that may map nothing of the pool: the file is
    /// lent to it, and stays pinned until `map_take_back`, also if this process dies. Whether the
    /// description allows stores. `NoDevice`: it is mapped by processes that have the pool mapped.
    pub fn map_lend(&self, ofd: OfdLink, prot: u32) -> Result<(MapPin, bool)> {
        map::lend(self, ofd, prot)
    }

    /// One more mapping of what `map_lend` pinned.
    pub fn map_lend_again(&self, pin: MapPin) -> Result<()> {
        map::lend_again(self, pin)
    }

    /// A mapping of what `map_lend` pinned is gone. `written`: so times may have changed.
    pub fn map_take_back(&self, pin: MapPin, written: bool) -> Result<()> {
        map::take_back(self, pin, written)
    }

    /// Calls will be made for processes that may map nothing of the pool. `random`: what nobody
    /// can guess.
    pub fn expect_others(&self, random: u64) {
        lent::expect_others(&self.session, random);
    }

    /// Such processes may have read leases from now on; the words of all leases, to be read.
    pub fn give_leases(&self) -> Result<OwnedFd> {
        self.session.give_leases()
    }

    /// The caller, who has no more than this thread, is about to end, and there is no service: what
    /// the last one leaves outside of the pool is removed.
    pub fn leave(&self) {
        crate::ops::slots::exit(&self.session, true);
        self.session.end_leases();
    }

    /// The kernel may not let the process open files any more after this.
    pub fn know_leases(&self) {
        self.session.know_leases();
    }

    /// Whether nothing has changed since all these leases were given.
    pub fn leases_last(&self, leases: &LeaseSet) -> bool {
        leases.last(&self.session)
    }

    /// Whether leases are good for one more term.
    pub fn gives_leases(&self) -> bool {
        self.session.gives_leases()
    }

    /// The file of `MapPiece::Lent`.
    pub fn lent_file(&self, pin: MapPin, writes: bool) -> Result<OwnedFd> {
        map::lent_file(self, pin, writes)
    }

    /// The pieces that make up `offset..offset + len` of the file, in order, without gaps. Both are
    /// multiples of 4096.  A shared mapping gets blocks for its holes.
    pub fn map_plan(
        &self,
        pin: MapPin,
        offset: u64,
        len: u64,
        shared: bool,
        each: &mut dyn FnMut(MapPiece) -> Result<()>,
    ) -> Result<()> {
        map::plan(self, pin, offset, len, shared, each)
    }

    /// Rises when a file that is mapped somewhere loses pages at its end: those who map it look
    /// at `map_size` again.
    #[inline]
    pub fn mapped_cuts(&self) -> u32 {
        map::cuts(self)
    }

    /// Rises when what mapping caches keep is to be given up.
    #[inline]
    pub fn map_drops(&self) -> u32 {
        map::drops(self)
    }

    /// The content of `MapPiece::Inline`: how many bytes of `out`, zeroes behind them.
    pub fn map_inline(&self, pin: MapPin, out: &mut [u8; 4096]) -> Result<usize> {
        map::inline(self, pin, out)
    }

    /// Bytes of a pinned file.
    pub fn map_size(&self, pin: MapPin) -> Result<u64> {
        map::size(self, pin)
    }

    /// One more mapping of the same file: fork(2), or munmap(2) and mprotect(2) in the middle.
    pub fn map_repin(&self, pin: MapPin) -> Result<()> {
        map::repin(self, pin)
    }

    /// A mapping is gone. `written`: it was shared and writable, so times may have changed.
    pub fn map_unpin(&self, pin: MapPin, written: bool) -> Result<()> {
        map::unpin(self, pin, written)
    }

    /// A shared mapping may have been stored to: the file has the time of now.
    pub fn map_stored(&self, pin: MapPin) -> Result<()> {
        map::stored(self, pin)
    }

    /// msync(2) of part of a pinned file.
    pub fn msync(&self, pin: MapPin, offset: u64, len: u64) -> Result<()> {
        map::msync(self, pin, offset, len)
    }
}
