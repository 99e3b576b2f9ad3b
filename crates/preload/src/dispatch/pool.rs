//! How this process reaches the pool: mapped into its memory, or through the proxy that makes its
//! calls.
//!
//! Invariant: both answer every question of the dispatcher; what only one can do the other refuses.

use alloc::vec::Vec;
use holdfast_client::{
    Base, Caller, Client, DirentFormat, Flock, MapCount, MapPiece, MapPin, OfdLink, Result, Served,
    SetTime, Share, SlotId, Stat, StatFs, Target,
};
use holdfast_pmem::{ConstBuf, MutBuf, RecordLocks};
use rustix::fd::OwnedFd;

/// The pool.
pub enum Pool {
    Mapped(Client),
    Served(Served),
}

macro_rules! either {
    ($(fn $name:ident(&self $(, $arg:ident: $kind:ty)*) $(-> $ret:ty)?;)*) => {
        impl Pool {
            $(
                #[inline(always)]
                pub fn $name(&self $(, $arg: $kind)*) $(-> $ret)? {
                    // Out of the way of those who have the pool mapped.
                    #[cold]
                    #[inline(never)]
                    fn ask(served: &Served $(, $arg: $kind)*) $(-> $ret)? {
                        served.$name($($arg),*)
                    }
                    match self {
                        Pool::Mapped(client) => client.$name($($arg),*),
                        Pool::Served(served) => ask(served $(, $arg)*),
                    }
                }
            )*
        }
    };
}

type Owner = (Option<u32>, Option<u32>);
type Each<'a> = &'a mut dyn FnMut(MapPiece) -> Result<()>;

// Names.
either! {
    fn open(&self, c: &Caller, base: Base, path: &[u8], oflags: u32, mode: u32, resolve: u64)
        -> Result<OfdLink>;
    fn check_open(&self, oflags: u32) -> Result<()>;
    fn mkdir(&self, c: &Caller, base: Base, path: &[u8], mode: u32) -> Result<()>;
    fn mknod(&self, c: &Caller, base: Base, path: &[u8], mode: u32, rdev: u64) -> Result<()>;
    fn symlink(&self, c: &Caller, target: &[u8], base: Base, path: &[u8]) -> Result<()>;
    fn link(&self, c: &Caller, old: (Base, &[u8]), new: (Base, &[u8]), flags: u32) -> Result<()>;
    fn unlink(&self, c: &Caller, base: Base, path: &[u8]) -> Result<()>;
    fn rmdir(&self, c: &Caller, base: Base, path: &[u8]) -> Result<()>;
    fn rename(&self, c: &Caller, old: (Base, &[u8]), new: (Base, &[u8]), flags: u32) -> Result<()>;
    fn readlink(&self, c: &Caller, base: Base, path: &[u8], out: MutBuf) -> Result<usize>;
    fn access(&self, c: &Caller, base: Base, path: &[u8], mode: u32, flags: u32) -> Result<()>;
    fn chmod(&self, c: &Caller, base: Base, path: &[u8], mode: u32, flags: u32) -> Result<()>;
    fn chown(&self, c: &Caller, base: Base, path: &[u8], owner: Owner, flags: u32) -> Result<()>;
    fn utimens(&self, c: &Caller, base: Base, path: &[u8], times: [SetTime; 2], flags: u32)
        -> Result<()>;
    fn truncate(&self, c: &Caller, base: Base, path: &[u8], size: i64) -> Result<()>;
    fn stat(&self, c: &Caller, base: Base, path: &[u8], flags: u32) -> Result<Stat>;
    fn statfs_at(&self, c: &Caller, base: Base, path: &[u8], flags: u32) -> Result<StatFs>;
    fn chdir(&self, c: &Caller, base: Base, path: &[u8]) -> Result<()>;
    fn fchdir(&self, c: &Caller, ofd: OfdLink) -> Result<()>;
    fn chdir_outside(&self) -> Result<()>;
    fn cwd_inside(&self) -> bool;
    fn getcwd(&self, out: &mut [u8]) -> Result<usize>;
    fn path_of(&self, ofd: OfdLink, out: &mut [u8]) -> Result<usize>;
    fn getxattr(&self, c: &Caller, target: Target, name: &[u8], out: MutBuf) -> Result<usize>;
    fn setxattr(&self, c: &Caller, target: Target, name: &[u8], value: ConstBuf, flags: u32)
        -> Result<()>;
    fn listxattr(&self, c: &Caller, target: Target, out: MutBuf) -> Result<usize>;
    fn removexattr(&self, c: &Caller, target: Target, name: &[u8]) -> Result<()>;
    fn fstat(&self, ofd: OfdLink) -> Result<Stat>;
    fn fchmod(&self, c: &Caller, ofd: OfdLink, mode: u32) -> Result<()>;
    fn fchown(&self, c: &Caller, ofd: OfdLink, owner: Owner) -> Result<()>;
    fn futimens(&self, c: &Caller, ofd: OfdLink, times: [SetTime; 2]) -> Result<()>;
}

// Descriptors and data.
either! {
    fn lookup(&self, fd: u32) -> Option<OfdLink>;
    fn bind(&self, fd: u32, ofd: OfdLink) -> Result<()>;
    fn dup(&self, old: u32, new: u32) -> Result<()>;
    fn unbind(&self, fd: u32) -> Result<bool>;
    fn retain(&self, ofd: OfdLink) -> Result<()>;
    fn release(&self, ofd: OfdLink) -> Result<()>;
    fn receive(&self, offset: u64) -> Option<OfdLink>;
    fn settle(&self, offset: u64, placeholder: &RecordLocks) -> Result<()>;
    fn each_descriptor(&self, each: &mut dyn FnMut(u32));
    fn next_descriptor(&self, from: u32) -> Option<u32>;
    fn getfl(&self, ofd: OfdLink) -> Result<u32>;
    fn is_kernels(&self, ofd: OfdLink) -> bool;
    fn setfl(&self, ofd: OfdLink, flags: u32) -> Result<()>;
    fn ino_of(&self, ofd: OfdLink) -> Result<u64>;
    fn within_limit(&self, ofd: OfdLink, at: Option<i64>, len: usize) -> Result<usize>;
    fn set_file_limit(&self, bytes: u64);
    fn read(&self, ofd: OfdLink, out: MutBuf) -> Result<usize>;
    fn pread(&self, ofd: OfdLink, out: MutBuf, offset: i64) -> Result<usize>;
    fn readv(&self, ofd: OfdLink, out: &mut [MutBuf], offset: Option<i64>, rwf: u32)
        -> Result<usize>;
    fn write(&self, ofd: OfdLink, data: ConstBuf) -> Result<usize>;
    fn pwrite(&self, ofd: OfdLink, data: ConstBuf, offset: i64) -> Result<usize>;
    fn writev(&self, ofd: OfdLink, data: &[ConstBuf], offset: Option<i64>, rwf: u32)
        -> Result<usize>;
    fn lseek(&self, ofd: OfdLink, offset: i64, whence: u32) -> Result<u64>;
    fn copy_range(
        &self,
        from: OfdLink,
        from_at: Option<&mut i64>,
        to: OfdLink,
        to_at: Option<&mut i64>,
        len: usize
    ) -> Result<usize>;
    fn ftruncate(&self, ofd: OfdLink, size: i64) -> Result<()>;
    fn fallocate(&self, ofd: OfdLink, mode: u32, offset: i64, len: i64) -> Result<()>;
    fn fsync(&self, ofd: OfdLink) -> Result<()>;
    fn fdatasync(&self, ofd: OfdLink) -> Result<()>;
    fn sync_file_range(&self, ofd: OfdLink, offset: i64, len: i64, flags: u32) -> Result<()>;
    fn sync(&self) -> Result<()>;
    fn getdents(&self, ofd: OfdLink, out: MutBuf, format: DirentFormat) -> Result<usize>;
    fn fcntl_lock(&self, ofd: OfdLink, cmd: u32, lock: &mut Flock) -> Result<()>;
    fn flock(&self, ofd: OfdLink, op: u32) -> Result<()>;
}

// Mappings.
either! {
    fn map_pin(&self, ofd: OfdLink, prot: u32, shared: bool) -> Result<MapPin>;
    fn map_plan(&self, pin: MapPin, offset: u64, len: u64, shared: bool, each: Each<'_>)
        -> Result<()>;
    fn lent_file(&self, pin: MapPin, writes: bool) -> Result<OwnedFd>;
    fn mapped_cuts(&self) -> u32;
    fn map_drops(&self) -> u32;
    fn map_inline(&self, pin: MapPin, out: &mut [u8; 4096]) -> Result<usize>;
    fn map_size(&self, pin: MapPin) -> Result<u64>;
    fn map_repin(&self, pin: MapPin) -> Result<()>;
    fn map_unpin(&self, pin: MapPin, written: bool) -> Result<()>;
    fn map_stored(&self, pin: MapPin) -> Result<()>;
    fn msync(&self, pin: MapPin, offset: u64, len: u64) -> Result<()>;
    fn own_memory(&self) -> [(usize, usize); 5];
}

// The process.
either! {
    fn has_place(&self) -> bool;
    fn child_prepare(&self, share: Share) -> Result<SlotId>;
    fn child_made(&self, slot: SlotId, result: isize);
    fn fork_child(&self, slot: Option<SlotId>) -> Result<()>;
    fn shared_child(&self, slot: Option<SlotId>) -> Result<()>;
    fn expect_shared_child(&self) -> Result<()>;
    fn placeless_child_gone(&self, pid: u32);
    fn shared_child_gone(&self, slot: SlotId);
    fn exec_prepare(&self) -> Result<Option<SlotId>>;
    fn exec_failed(&self, next: Option<SlotId>);
    fn part_prepare(&self, files: bool, directory: bool) -> Result<Option<SlotId>>;
    fn parted(&self, next: SlotId, result: isize) -> Result<()>;
    fn creation_mask(&self) -> u32;
    fn set_creation_mask(&self, mask: u32);
    fn has_ids_of_pool(&self) -> bool;
    fn note_ids_of_pool(&self);
    fn note_ids_of_namespace(&self);
    fn exit(&self, alone: bool);
    fn count_served(&self);
    fn count_passed(&self);
    fn count_mapping(&self, what: MapCount, n: u64);
    fn refuse(&self, call: u32, why: u32);
    fn note_uninstrumented(&self, path: &[u8]);
}

impl Pool {
    /// `None`: it is mapped.
    #[inline(always)]
    pub fn served(&self) -> Option<&Served> {
        match self {
            Pool::Mapped(_) => None,
            Pool::Served(served) => Some(served),
        }
    }

    /// See `Client::know_leases`; who is served changes nothing itself.
    pub fn know_leases(&self) {
        if let Pool::Mapped(client) = self {
            client.know_leases();
        }
    }

    /// See `Client::send`.
    pub fn send<T>(
        &self,
        ofd: OfdLink,
        placeholder: &RecordLocks,
        random: u64,
        make_token: impl FnOnce(u64, u64) -> Result<T>,
    ) -> Result<T> {
        match self {
            Pool::Mapped(client) => client.send(ofd, placeholder, random, make_token),
            Pool::Served(served) => served.send(ofd, placeholder, random, make_token),
        }
    }

    /// Opens a program that `c` may execute, to be read. Where the pool is mapped that needs no
    /// right to read it: the kernel would read the program, not its user.
    pub fn open_program(&self, c: &Caller, base: Base, path: &[u8]) -> Result<OfdLink> {
        match self {
            Pool::Mapped(client) => {
                let reader = Caller {
                    privileged: true,
                    ids: None,
                    ..*c
                };
                client.open(&reader, base, path, 0, 0, 0)
            }
            Pool::Served(served) => served.open_program(c, base, path),
        }
    }

    /// Whether a proxy makes the calls.
    pub fn is_served(&self) -> bool {
        matches!(self, Pool::Served(_))
    }

    /// The whole of a file from `offset` on, at most `len` bytes.
    pub fn read_whole(&self, ofd: OfdLink, offset: i64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = alloc::vec![0; len];
        let mut done = 0;
        while done < len {
            let to = MutBuf::from(&mut bytes[done..]);
            match self.pread(ofd, to, offset + done as i64)? {
                0 => break,
                n => done += n,
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    }
}
