//! What a run counts of its mappings where no pool's session does: memory that `holdfast run` or
//! `holdfast map explain` makes and the programs of the run map.
//!
//! Invariants: it is found by the number of a descriptor that the command has open, under /proc,
//! so programs inherit nothing; what is found there counts only if it begins with `MAGIC`. Sums
//! only grow, and `watch` stays what it was when the first program began. Programs of the run write
//! here, so what is read is numbers, and bytes of paths that prove nothing.

use pmem::atomic::{AtomicU8, AtomicU64, Ordering::*};
use pmem::shared;
use pool::session::MAP_COUNTS;

/// The first word of a record.
pub const MAGIC: u64 = u64::from_le_bytes(*b"hfmaps01");

/// What the memory is called.
pub const NAME: &str = "holdfast-maps";

/// `MapRecord::watch`: nothing but `mapping` is counted.
pub const COUNT: u64 = 0;
/// What mappings cost is counted, and nothing is done for them.
pub const WATCH: u64 = 1;
/// What they cost is counted while it is done for them what the settings say.
pub const WATCH_WORK: u64 = 2;

/// How many lengths of mappings are told apart, and where the next one begins.
pub const CLASSES: usize = 4;
pub const CLASS_ENDS: [u64; CLASSES - 1] = [64 << 10, 2 << 20, 64 << 20];
pub const FILES: usize = 16;
pub const PATH_MAX: usize = 240;

shared! {
    /// A file of memory of which more than a huge page was mapped by small pages.
    pub struct MapFile {
        /// Of device and inode, not 0; 0: free.
        pub key: AtomicU64,
        pub maps: AtomicU64,
        /// As `Sum::Faults`.
        pub faults: AtomicU64,
        /// 0 until the path is there.
        pub path_len: AtomicU64,
        pub path: [AtomicU8; PATH_MAX],
    }
}

shared! {
    /// Sums over all programs of a run.
    pub struct MapRecord {
        pub magic: AtomicU64,
        pub watch: AtomicU64,
        /// By `MapCount`.
        pub mapping: [AtomicU64; MAP_COUNTS],
        /// By `Sum`.
        pub sums: [AtomicU64; SUMS],
        pub files: [MapFile; FILES],
    }
}

/// What is counted while mappings are watched, by its place in `MapRecord::sums`. Mappings are
/// those of files of the host that a program may read, but for what the loader maps. Times are in
/// nanoseconds of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Sum {
    /// Programs that were looked at, each exec counted.
    Programs,
    Maps,
    MapNs,
    Unmaps,
    UnmapNs,
    Bytes,
    /// Mappings by length, shortest first.
    Class0,
    Class1,
    Class2,
    Class3,
    /// Mappings whose pages were looked at when they went, their pages, and those with an entry.
    Looked,
    Pages,
    Mapped,
    /// At least so many faults made these entries: one maps no more than a block of 64 KiB, or a
    /// huge page.
    Faults,
    HugePages,
    /// Of the faults, those in mappings of more than 2 MiB of files of memory, by small pages.
    FaultsSmall,
    /// Mappings of what the same program had unmapped before.
    Repeats,
    /// What a mapping cache would have given out again, its time and its faults: one of the
    /// run's limits, and one without any.
    Hits,
    HitNs,
    HitFaults,
    AllHits,
    AllHitNs,
    AllHitFaults,
    /// The most that the cache without limits had idle in one program.
    IdleBytes,
    IdleMappings,
    /// Long mappings that were read in order, their bytes, and those that were not.
    InOrder,
    InOrderBytes,
    NotInOrder,
    /// Mappings that a cache cannot keep: open for writing, on another file system, made in
    /// another way, too short, too long.
    UnfitWriter,
    UnfitSystem,
    UnfitManner,
    UnfitShort,
    UnfitLong,
    /// Calls of madvise on mappings: sequential, willneed, random, dontneed.
    Sequential,
    WillNeed,
    Random,
    DontNeed,
    /// Programs for which nothing can be done, because of a filter of calls, memory that is locked
    /// or watched, or system calls that are not seen.
    StoppedFilter,
    StoppedLocked,
    StoppedWatched,
    StoppedUnseen,
}

/// How many there are.
pub const SUMS: usize = Sum::StoppedUnseen as usize + 1;

impl MapRecord {
    /// What was counted, by `MapCount`.
    pub fn mapping(&self) -> [u64; MAP_COUNTS] {
        core::array::from_fn(|i| self.mapping[i].load(Relaxed))
    }

    /// What was counted, by `Sum`.
    pub fn sums(&self) -> [u64; SUMS] {
        core::array::from_fn(|i| self.sums[i].load(Relaxed))
    }

    pub fn add(&self, sum: Sum, n: u64) {
        self.sums[sum as usize].fetch_add(n, Relaxed);
    }

    /// Keeps the largest.
    pub fn most(&self, sum: Sum, n: u64) {
        self.sums[sum as usize].fetch_max(n, Relaxed);
    }

    /// One more mapping of a file, while there is room; `path` is asked once.
    pub fn add_file(&self, key: u64, path: impl FnOnce(&mut [u8]) -> usize) {
        let key = key.max(1);
        for file in &self.files {
            match file.key.compare_exchange(0, key, AcqRel, Acquire) {
                Ok(_) => file.name(path),
                Err(known) if known == key => {}
                Err(_) => continue,
            }
            file.maps.fetch_add(1, Relaxed);
            return;
        }
    }
}

impl MapRecord {
    /// So many more faults in a file that was added, if there was room for it.
    pub fn add_file_faults(&self, key: u64, faults: u64) {
        let found = self
            .files
            .iter()
            .find(|file| file.key.load(Acquire) == key.max(1));
        if let Some(file) = found {
            file.faults.fetch_add(faults, Relaxed);
        }
    }
}

impl MapFile {
    fn name(&self, path: impl FnOnce(&mut [u8]) -> usize) {
        let mut bytes = [0; PATH_MAX];
        let len = path(&mut bytes).min(PATH_MAX);
        for (to, from) in self.path.iter().zip(bytes) {
            to.store(from, Relaxed);
        }
        self.path_len.store(len as u64, Release);
    }

    /// The bytes of the path, if it is there.
    pub fn path(&self) -> Option<([u8; PATH_MAX], usize)> {
        let len = (self.path_len.load(Acquire) as usize).min(PATH_MAX);
        let bytes = core::array::from_fn(|i| self.path[i].load(Relaxed));
        (len > 0).then_some((bytes, len))
    }
}

/// Where programs find the record: a descriptor of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordAt {
    /// The process, not 0.
    pub pid: u32,
    pub fd: u32,
}
