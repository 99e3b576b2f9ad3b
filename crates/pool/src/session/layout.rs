//! The structures of session memory and their offsets.
//!
//! Invariants: offsets are constants; a reference is stored as the index plus one (`Link`), and 0
//! means none; lock words hold `owner slot + 1` in `OWNER_SLOT`, the owner's `Slot::epoch` above
//! (`OWNER_EPOCH`; 0 for the service), and bit 31 if somebody waits.

use super::Broken;
use super::quotas::{QUOTAS, Quota, QuotaUsers};
use holdfast_pmem::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};
use holdfast_pmem::{DirtyMap, Meter, shared};

pub use crate::space::WHOLE_BLOCKS;

/// Identifies the layout: HDFSES and two digits, which rise with it. A client refuses memory with
/// another value.
pub const MAGIC: u64 = 0x3432_5345_5346_4448;
/// Processes of one session.
pub const SLOTS: usize = OWNER_SLOT as usize;
/// Descriptors per process that may refer to pool files; a higher number is refused with EMFILE.
pub const FDS: usize = FD_PAGE * FD_PAGE;
/// Descriptors of one page of a descriptor table.
pub const FD_PAGE: usize = 1024;
/// What one move of references that is done adds to `Slot::fd_changes`.
pub const FD_CHANGE_DONE: u64 = 1 << 16;
/// Pages beyond the first ones of all tables.
pub const FD_PAGES: usize = 128 * 1024;
/// Bits of a lock word that hold the owner's slot plus one.
pub const OWNER_SLOT: u32 = 0x7fff;
/// Bits of a lock word that hold the low bits of the owner's `Slot::epoch`.
pub const OWNER_EPOCH: u32 = !OWNER_SLOT & !OWNER_WAITERS;
/// Bit of a lock word: somebody may sleep on it.
pub const OWNER_WAITERS: u32 = 1 << 31;
/// The last slot is the service's.
pub const SERVICE_SLOT: usize = SLOTS - 1;
/// Open-file descriptions of one session.
pub const OFDS: usize = 2 * 1024 * 1024;
/// Mapped files per process that are unpinned if it is killed; more stay until the session ends.
pub const PINS: usize = 256;
/// Inodes that are in use or cached.
pub const INODES: usize = 4 * 1024 * 1024;
/// Hash buckets of the inode table and of the dentry table, at most.
pub const BUCKETS: usize = 4 * 1024 * 1024;
/// As many are in use in a new session.
pub const FIRST_BUCKETS: u32 = 16 * 1024;
/// Cached names of at most `DENTRY_NAME` bytes.
pub const DENTRIES: usize = 4608 * 1024;
/// Cached names of up to 255 bytes.
pub const LONG_DENTRIES: usize = 384 * 1024;
/// Bytes of a name in an ordinary dentry.
pub const DENTRY_NAME: usize = 80;
/// Bytes of a name in a long dentry.
pub const LONG_DENTRY_NAME: usize = 264;
/// Pages of 512 entries for the block maps of files too large for the inode entry.
pub const MAP_PAGES: usize = 256 * 1024;
/// Marks of what was looked up, in a line of the cache.
pub const MET_LINE: usize = 64;
/// Lines of such marks.
pub const MET_LINES: usize = 16 * 1024;
/// Records whose names are noted for listings of directories.
pub const RECENT: usize = 4096;
/// Descriptions that are on their way from one process to another at the same time.
pub const TRANSITS: usize = 1024;
/// `RecentNames`: what the record made of a name only the trees will know.
pub const RECENT_UNKNOWN: u32 = u32::MAX;
/// Entries of a block map page.
pub const MAP_FANOUT: usize = 512;
/// Blocks mapped in the inode entry itself.
pub const DIRECT: usize = 6;
/// Byte-range and whole-file locks.
pub const LOCKS: usize = 1024 * 1024;
/// Those that calls for other users leave to the pool's owner and root.
pub const LOCKS_RESERVED: usize = LOCKS / 8;
/// Hash buckets of the index of changes of keyspaces.
pub const VALUE_BUCKETS: usize = 128 * 1024;
/// Changes that one of them has room for.
pub const VALUE_CELLS: usize = 7;
/// Views of one session.
pub const VIEWS: usize = 1024;
/// Those that calls for other users leave to the pool's owner and root.
pub const VIEWS_RESERVED: usize = VIEWS / 8;
/// Values that are open as files at the same time.
pub const OPEN_VALUES: usize = 1024 * 1024;
/// Words of an `OpenValue` for the key and what its entry says.
pub const OPEN_VALUE_WORDS: usize = 252;
/// Size classes of free extents: class `n` has those of `1 << n` blocks and less than twice as
/// many.
pub const CLASSES: usize = 10;
/// The class of whole extents, which has no others.
pub const WHOLE: usize = CLASSES - 1;
/// Which of a slot's cached extents is what remains of a short one.
pub const CACHED_SHORT: usize = 0;
/// Which is what remains of a whole one.
pub const CACHED_WHOLE: usize = 1;
/// Extents that the ring of one class has room for.
pub const RING_EXTENTS: usize = 16 * 1024;
/// `Header::trees_full`: there is room.
pub const TREES_ROOMY: u32 = 0;
/// Nothing may be journaled that adds to the trees.
pub const TREES_FULL: u32 = 1;
/// Nothing at all may be journaled: snapshots keep what is removed.
pub const TREES_OVER: u32 = 2;
/// There is room, but changes of keyspaces may not run far ahead of the service.
pub const TREES_SHORT: u32 = 3;
/// As `TREES_SHORT`, and only the pool's owner and root may journal what adds to the trees.
pub const TREES_RESERVED: u32 = 4;
/// `Header::data_growth`: the data segment may grow.
pub const DATA_MAY_GROW: u32 = 0;
/// It may not: a process has mapped only what there is.
pub const DATA_MAY_NOT_GROW: u32 = 1;
/// The service makes it longer just now.
pub const DATA_GROWS: u32 = 2;
/// Journal lanes.
pub const LANES: usize = 16;
/// `Header::medium` of an ordinary file.
pub const MEDIUM_FILE: u32 = 1;
/// `holdfast run` commands of one session at a time.
pub const RUNS: usize = 8 * 1024;
/// `Slot::run` of the process that the service starts to write back dirty inodes: it counts as
/// nobody.
pub const RUN_OF_HELPER: u32 = u32::MAX;
/// What is counted of the mapping caches of a run.
pub const MAP_COUNTS: usize = 11;
/// Kinds of refusals that one run's report can tell apart.
pub const REFUSALS: usize = 64;
/// Executables that one run's report can name as not instrumented.
pub const UNINSTRUMENTED: usize = 16;

/// Blocks that were lost, of which session memory tells the service.
pub const LOST_BLOCKS: usize = 7;

shared! {
    /// The head of session memory, at offset 0.
    pub struct Header {
        // The first line is read by every operation and almost never written.
        pub magic: AtomicU64,
        /// Non-zero errno once the session was given up, by the service or by a client that found
        /// it `broken`: all operations fail with it.
        pub poisoned: AtomicU32,
        /// Set by the service before it applies a record that a dead process did not publish in
        /// the tables: whoever is next finishes that first (and clears this).
        pub recover_wanted: AtomicU32,
        /// 0 posix, 1 sync, 2 strict.
        pub consistency: AtomicU32,
        /// 0 memory, 1 file, 2 dax.
        pub medium: AtomicU32,
        /// Bytes of the data segment. They grow; nobody goes beyond what is mapped.
        pub data_len: AtomicU64,
        /// Bytes of one journal lane.
        pub lane_len: AtomicU64,
        pub service_pid: AtomicU32,
        /// Rises with each service that adopted this session.
        pub service_generation: AtomicU32,
        /// Hash buckets of the two tables: powers of two that only grow.
        pub inode_buckets: AtomicU32,
        pub dentry_buckets: AtomicU32,
        /// Bytes of the whole mapping.
        pub len: AtomicU64,
        /// Next journal sequence number; starts above everything applied.
        pub next_seq: AtomicU64,
        /// Everything up to here is in the trees (written by the service).
        pub applied_seq: AtomicU64,
        /// Counts commits of the service; a futex word for those who wait for `applied_seq`.
        pub applied_tick: AtomicU32,
        /// Rung by clients that want the service to drain now; a futex word.
        pub doorbell: AtomicU32,
        /// 1 while the service sleeps on the doorbell, so that ringers know to wake it.
        pub service_sleeps: AtomicU32,
        /// Rises at least every 100 ms while the service is at work, however long it works at one
        /// thing.
        pub heartbeat: AtomicU32,
        /// Next inode number; never reused.
        pub next_ino: AtomicU64,
        /// Data blocks free in the pool that are not handed out (published by the service).
        pub free_blocks: AtomicU64,
        pub total_blocks: AtomicU64,
        /// Objects in the pool as of `applied_seq`.
        pub objects: AtomicU64,
        /// Set to 1 by the service when it has no free extent any more: the pool is full.
        pub out_of_space: AtomicU32,
        /// Free blocks that clients wish for; the service clears it.
        pub blocks_wanted: AtomicU32,
        /// Serialises stealing the locks of dead owners.
        pub recovery_lock: AtomicU32,
        /// Serialises directory renames (the tree must stay a tree).
        pub rename_lock: AtomicU32,
        /// Guards slot and run allocation.
        pub slots_lock: AtomicU32,
        pub ofd_lock: AtomicU32,
        pub inode_lock: AtomicU32,
        pub dentry_lock: AtomicU32,
        pub map_lock: AtomicU32,
        pub locks_lock: AtomicU32,
        /// Heads of free lists (`Link`s) and high-water marks of never-used entries.
        pub ofd_free: AtomicU32,
        pub ofd_used: AtomicU32,
        pub inode_free: AtomicU32,
        pub inode_used: AtomicU32,
        pub dentry_free: AtomicU32,
        pub dentry_used: AtomicU32,
        pub long_dentry_free: AtomicU32,
        pub long_dentry_used: AtomicU32,
        pub map_free: AtomicU32,
        pub map_used: AtomicU32,
        pub locks_free: AtomicU32,
        pub locks_used: AtomicU32,
        /// The same of the last `LOCKS_RESERVED`.
        pub reserved_locks_free: AtomicU32,
        pub reserved_locks_used: AtomicU32,
        /// How many entries say that something is gone, about: they are used again first.
        pub inode_gone: AtomicU32,
        pub dentry_gone: AtomicU32,
        /// CLOCK hands for eviction.
        pub inode_hand: AtomicU32,
        /// For block maps alone.
        pub map_hand: AtomicU32,
        /// Inode entries from which on unused ones are freed for new ones; chosen by the service.
        pub inode_limit: AtomicU32,
        /// The same for names that fit a `Dentry`; there are a twelfth as many long ones.
        pub dentry_limit: AtomicU32,
        /// Slots from this number on were never taken.
        pub slots_used: AtomicU32,
        /// Where the next free slot is looked for.
        pub slots_hand: AtomicU32,
        pub dentry_hand: AtomicU32,
        /// Processes alive, as clients count them.
        pub live_slots: AtomicU32,
        /// Lock table generation: woken when any byte-range lock is released.
        pub locks_tick: AtomicU32,
        /// How much room the trees have left, as the service sees it: `TREES_*`.
        pub trees_full: AtomicU32,
        /// Counts how often a file lost pages at its end while it was mapped somewhere.
        pub mapped_cuts: AtomicU32,
        /// Rises when all programs are to give up mappings of the host's files that they keep.
        pub map_drops: AtomicU32,
        /// Views that were ever used at once: pins 0..views_used may be in use.
        pub views_used: AtomicU32,
        /// Rises when somebody says something in `stalled`; a futex word.
        pub stalled_bell: AtomicU32,
        /// No record above this number has changes of keyspaces in the index.
        pub values_seq: AtomicU64,
        /// A lock for which somebody waits long (`Stall`); 0: none. The service clears it.
        pub stalled: AtomicU64,
        /// 1: since the newest snapshot was taken, blocks that snapshots have were stored to, of a
        /// file that its entry does not name. The service takes it back.
        pub stored_in_place: AtomicU32,
        /// How the host protects directories that everybody may write to, as the session began
        /// (`PROTECTED_*`).
        pub protected: AtomicU32,
        /// What may become of `data_len` (`DATA_*`).
        pub data_growth: AtomicU32,
        /// What follows is read by every write, and hardly ever changes.
        pub apart: [AtomicU32; 8],
        /// 1: there may be a value that expires. It is stored before the record of the first one.
        pub expiring: AtomicU32,
        /// The epoch of the pool: blocks born in an earlier one belong to a snapshot, too. The
        /// service raises it, while nobody stores into blocks.
        pub epoch: AtomicU32,
        /// Held by who has a snapshot taken: nobody begins to store into blocks meanwhile.
        pub stores_lock: AtomicU32,
        /// 1 while the service takes a snapshot: as `stores_lock`, should its holder die.
        pub stores_stopped: AtomicU32,
        /// Rises when a snapshot is gone, before anything that it had is used again.
        pub snapshots_gone: AtomicU32,
        /// 1 while anybody has a quota: what changes is counted in the `Quota`s.
        pub quotas: AtomicU32,
        pub quotas_apart: AtomicU32,
        /// Whether there are read leases (`LEASES_*`).
        pub leases: AtomicU32,
        /// In a session on a snapshot, where nothing can be changed: the commit that it keeps; else
        /// 0.
        pub snapshot_seq: AtomicU64,
        /// The moment that such a session is at, in nanoseconds since 1970; 0: the present.
        pub snapshot_time: AtomicU64,
        /// Roots of its trees: page of the root node, keys << 8 | height.
        pub snapshot_roots: [AtomicU64; 12],
        /// The last record with changes of keyspaces that the service refused and passed over,
        /// and why (an errno, which is stored first).
        pub refused_seq: AtomicU64,
        pub refused_errno: AtomicU32,
        /// Serialises records that the service may refuse, until they are applied or refused.
        pub unseen_lock: AtomicU32,
        /// The service may go on without records of numbers below this that it has not read yet:
        /// one that comes late is applied after higher numbers.
        pub void_below: AtomicU64,
        /// The service may be at work on records up to this number; it is stored before the
        /// service looks what views want.
        pub applying: AtomicU64,
        /// The service may give up roots of commits below this; it is stored before the service
        /// looks what views have pinned.
        pub giving_up: AtomicU64,
        /// Whole extents that who wants few blocks is to leave to who wants many in a row.
        pub whole_kept: AtomicU32,
        /// The last number that was given to a memory (`Slot::memory`).
        pub memories: AtomicU32,
        /// The commit after which the session began: nodes of later ones are this session's own.
        pub begun_after: AtomicU64,
        /// Medium file, from here on. Held by who flushes the journal.
        pub sync_lock: AtomicU32,
        /// Rises with each flush; a futex word for those whom it covers.
        pub sync_tick: AtomicU32,
        /// Counts flushes that failed: each open description reports each of them once.
        pub sync_errors: AtomicU32,
        /// 1 after a flush of the journal that failed, as the kernel may take its pages for clean;
        /// 2 while they are made dirty again.
        pub journal_suspect: AtomicU32,
        /// Every record up to this number is durable.
        pub synced_seq: AtomicU64,
        /// How far each lane was durable by the last flush, which covered records up to
        /// `acked_seq`.
        pub acked: [AtomicU64; LANES],
        pub acked_seq: AtomicU64,
        /// 1 while the service may have to wait for the disk.
        pub flushing: AtomicU32,
        /// Whose flush others do not wait for any more, as `sync_lock` names it.
        pub sync_stuck: AtomicU32,
        /// How many have come for a flush since the last one was begun.
        pub sync_waiting: AtomicU32,
        /// How many came for the last one, or while it went on.
        pub sync_gathered: AtomicU32,
        /// 1 while somebody waits for room in a lane that only a checkpoint frees.
        pub room_wanted: AtomicU32,
        /// 1 once an inode has come to be `INODE_DIRTY` since somebody last began to write back all
        /// that are.
        pub writeback_wanted: AtomicU32,
        /// How many wait for a byte-range lock.
        pub locks_waiting: AtomicU32,
        /// Guards `Transit` entries.
        pub transit_lock: AtomicU32,
        /// The service lets new inodes have numbers below this (it publishes that).
        pub ino_end: AtomicU64,
        /// Pages of descriptor tables, as for the tables above.
        pub fd_pages_lock: AtomicU32,
        pub fd_pages_free: AtomicU32,
        pub fd_pages_used: AtomicU32,
        /// Which `Transit` entry is judged next.
        pub transit_hand: AtomicU32,
        /// What a client found that cannot be.
        pub broken: Broken,
        /// The table of open values.
        pub open_values_lock: AtomicU32,
        pub open_values_free: AtomicU32,
        pub open_values_used: AtomicU32,
        /// How many of them are in blocks, at least: without any the service need not look.
        pub open_values_in_blocks: AtomicU32,
        /// In the names of all lent files of this session; 0: there was none.
        pub lent_name: AtomicU64,
        /// The device that they are on: who sees another one in that place lends nothing.
        pub lent_device: AtomicU64,
        /// For processes to which the pool is slower than it is.
        pub meter: Meter,
        /// Stray stores into the pool's data that were stopped in processes of this session.
        pub strays: AtomicU64,
        /// Copies that stopped because the medium has lost bytes of the pool's data.
        pub media_errors: AtomicU64,
        /// Some of the blocks that these were of, plus 1; 0: none.
        pub lost_blocks: [AtomicU64; LOST_BLOCKS],
        /// In all runs: mappings that were handed out again, their bytes, pages mapped ahead, huge
        /// pages made.
        pub mapped: [AtomicU64; 4],
    }
}

shared! {
    /// One journal lane. `head` and `tail` are byte positions that only grow; the position in the
    /// ring is the value modulo `Header::lane_len`.
    pub struct Lane {
        pub lock: AtomicU32,
        pub pad: AtomicU32,
        /// Not above the sequence number of the record being appended or published; 0 when idle.
        /// It is set to a lower bound before the number is taken, so whoever reads `next_seq`
        /// first and the lanes then misses none that is in flight.
        pub busy_seq: AtomicU64,
        /// End of the last complete record.
        pub head: AtomicU64,
        /// Nothing before is needed any more (published by the service, which keeps its own copy).
        pub tail: AtomicU64,
        /// Position of the record numbered `busy_seq`.
        pub busy_at: AtomicU64,
        /// Everything before is in the trees that clients read; not below `tail`.
        pub applied: AtomicU64,
        /// Number of a record for which the tables have no room: whoever publishes it waits until
        /// the trees have it, so the service does not wait for that.
        pub left_to_trees: AtomicU64,
        pub spare: [AtomicU64; 9],
    }
}

shared! {
    /// One process. Its descriptor table begins with the first `FdPage` of the same number.
    pub struct Slot {
        /// 0 free, 1 being set up, 2 live, 3 dead and being reaped.
        pub state: AtomicU32,
        /// The process's number in its own PID namespace; while the slot is being set up, that of
        /// the parent, and then that of the child, in the parent's.
        pub pid: AtomicU32,
        /// When the process started (field 22 of its stat file) while it leaves a shared descriptor
        /// table by exec, which ends its lock; else 0.
        pub start_time: AtomicU64,
        /// Rises each time the slot is taken.
        pub generation: AtomicU32,
        /// `Run` index + 1; 0: no run's; or `RUN_OF_HELPER`.
        pub run: AtomicU32,
        /// The same number in all slots whose processes may run in one memory; 0: in one alone.
        pub memory: AtomicU32,
        /// Lowest number above every descriptor that was ever a pool file here.
        pub fd_limit: AtomicU32,
        /// Inode of the working directory when it lies in the pool, else 0; counted in `opens`.
        pub cwd: AtomicU64,
        pub umask: AtomicU32,
        pub lane: AtomicU32,
        /// The extents that this process has cached, as words of `FreeTable`: what remains of a
        /// short one and of a whole one.
        pub cached: [AtomicU64; 2],
        pub served: AtomicU64,
        pub passed: AtomicU64,
        pub refused: AtomicU64,
        /// Rises with `generation` and with each exec: part of the lock words of this process, so
        /// that locks of threads which an exec killed are those of a dead owner.
        pub epoch: AtomicU32,
        /// `Link` to the directory of the descriptor table: an `FdPage` that has in entry `n` the
        /// `Link` to the page of descriptors from `n * FD_PAGE` on; entry 0 is not used. 0: all
        /// descriptors are in the first page.
        pub fd_directory: AtomicU32,
        /// Guards the process's `PinTable`.
        pub pins_lock: AtomicU32,
        /// Slot + 1 whose descriptor table this process uses; 0: its own.
        pub files: AtomicU32,
        /// Slot + 1 whose `cwd` and `creation_mask` this process uses; 0: its own.
        pub directory: AtomicU32,
        /// The mask of umask(2).
        pub creation_mask: AtomicU32,
        /// `generation` while the slot waits for the child that it was made for; whoever makes it
        /// 0 decides what becomes of the slot.
        pub awaited: AtomicU32,
        /// When the slot was first seen to wait for a child whose parent is gone, in milliseconds
        /// since boot.
        pub orphaned: AtomicU32,
        /// The slot (with its generation) that the process goes to when its exec succeeds, or 0.
        pub successor: AtomicU32,
        /// 1 once another slot may have used the table or the working directory of this one.
        pub lent: AtomicU32,
        /// The life (`live::life_of`) of the process that made the slot for a child.
        pub parent: AtomicU64,
        /// PID namespace of a process that shared its descriptor table with others; 1: not known;
        /// 0: it did not.
        pub namespace: AtomicU64,
        /// Below `FD_CHANGE_DONE`: threads that are moving references between descriptors and
        /// descriptions now; above: how often one was done with that.
        pub fd_changes: AtomicU64,
        /// Whether ids mean in the process what they mean in the pool: one of `IDS_*`.
        pub ids: AtomicU64,
        /// Of a slot that was made for a child: whoever knows this number may take it over; 0:
        /// the child alone.
        pub offer: AtomicU64,
        /// The process that a proxy has the slot for, as F_GETLK tells it; 0: the slot's own.
        pub shown: AtomicU64,
        /// Slot + 1 of the process that has a POSIX lock for which this process waits; 0: none.
        pub blocker: AtomicU64,
        /// `Link` of the lock of a file for which the process waits, for those who want to know; 0:
        /// none.
        pub waits_for: AtomicU64,
        pub spare: [AtomicU64; 8],
    }
}

/// `Slot::ids`: nobody has looked yet.
pub const IDS_UNKNOWN: u64 = 0;
/// The process is in the first user namespace.
pub const IDS_OF_POOL: u64 = 1;
/// It has entered another user namespace; it may have come back.
pub const IDS_OF_NAMESPACE: u64 = 2;

shared! {
    /// Descriptors in a row -> open-file descriptions (`Link`); or the directory of such pages. A
    /// page in use as neither is zero, but for the `Link` to the next free one in its first entry.
    pub struct FdPage {
        pub entries: [AtomicU32; FD_PAGE],
    }
}

shared! {
    /// A file that a process has mapped, and how often: to be unpinned when the process dies.
    pub struct Pin {
        /// `Link` to the inode entry.
        pub inode: AtomicU32,
        /// 0: the entry is free.
        pub count: AtomicU32,
        pub ino: AtomicU64,
    }
}

shared! {
    /// The mapped files of the process in the slot of the same number.
    pub struct PinTable {
        pub entries: [Pin; PINS],
    }
}

shared! {
    /// One open-file description: what POSIX says dup, fork and exec share.
    pub struct Ofd {
        /// `Link` to the inode entry, which is pinned by `Inode::opens`; 0 when free.
        pub inode: AtomicU32,
        /// Access mode and status flags as of open(2) and F_SETFL, plus `OFD_PATH`.
        pub flags: AtomicU32,
        /// Descriptors of all processes that refer here.
        pub refs: AtomicU32,
        pub lock: AtomicU32,
        /// File offset; for directories the readdir cookie.
        pub offset: AtomicU64,
        pub generation: AtomicU32,
        /// Free list.
        pub next: AtomicU32,
        pub ino: AtomicU64,
        /// Where it was opened, for readlink(/proc/self/fd/N): directory and name, best effort.
        pub parent: AtomicU64,
        pub name_len: AtomicU32,
        pub spare: AtomicU32,
        /// `Header::sync_errors` as it was when this description reported one, or was opened.
        pub errors_seen: AtomicU32,
        pub name: [AtomicU8; 68],
    }
}

shared! {
    /// One cached inode. `lock` orders writers; readers copy and re-check `version`.
    pub struct Inode {
        pub lock: AtomicU32,
        /// Odd while attributes or blocks change; readers retry.
        pub version: AtomicU32,
        /// 0 when the entry is free.
        pub ino: AtomicU64,
        /// Hash chain (`Link`); free list when free.
        pub next: AtomicU32,
        /// `INODE_*` bits.
        pub state: AtomicU32,
        pub mode: AtomicU32,
        pub uid: AtomicU32,
        pub gid: AtomicU32,
        pub nlink: AtomicU32,
        pub size: AtomicU64,
        /// Nanoseconds since 1970, as i64 bits.
        pub atime: AtomicU64,
        pub mtime: AtomicU64,
        pub ctime: AtomicU64,
        pub btime: AtomicU64,
        pub rdev: AtomicU64,
        /// Directories: the parent.
        pub parent: AtomicU64,
        /// Directories: number of entries. Values (`INODE_VALUE`): `Link` to the `OpenValue`.
        pub entries: AtomicU64,
        /// Allocated blocks of 4 KiB.
        pub blocks: AtomicU64,
        /// Newest journal record about this object.
        pub seq: AtomicU64,
        /// Directories: newest record that changed the entries. Files, once bit 63 is set: the
        /// blocks that may be dirty, both ends in units of 16 blocks, from in bits 0-30, to in
        /// bits 31-61.
        pub dir_seq: AtomicU64,
        /// Open-file descriptions, working directories and mappings that pin the entry.
        pub opens: AtomicU32,
        /// Mappings, in any process.
        pub maps: AtomicU32,
        /// Rises whenever blocks leave the file; optimistic readers re-check it.
        pub truncations: AtomicU32,
        /// Of all blocks that were in the map before this epoch it says so (`MAP_SHARED`).
        pub map_epoch: AtomicU32,
        /// `Link` to the top block map page and `height << MAP_HEIGHT_SHIFT`, so that both change
        /// in one store; 0: only `direct`.
        pub map_root: AtomicU32,
        /// First `Link` of the byte-range locks.
        pub locks: AtomicU32,
        /// Lazy: blocks written but not yet journaled, one contiguous run.
        pub pending_file_block: AtomicU64,
        pub pending_block: AtomicU64,
        pub pending_len: AtomicU32,
        /// Blocks set aside behind the pending run for appends.
        pub reserve_len: AtomicU32,
        pub reserve_block: AtomicU64,
        /// Block map entries of the first `DIRECT` file blocks while `map_root` is 0. A symlink
        /// has its target here if it fits, with its length in `pending_len`.
        pub direct: [AtomicU64; DIRECT],
        /// What the record with this sequence number makes of `entries` and `nlink`: written
        /// before they change, so that a record is counted once even if its publisher died.
        pub intent_seq: AtomicU64,
        pub intent_entries: AtomicU64,
        pub intent_nlink: AtomicU16,
        /// The quota of a directory for which the object counts (`docs/spec/objects.md`); 0: none.
        pub project: AtomicU16,
        /// Counts stores to blocks of the file, and changes of its block map.
        pub stores: AtomicU32,
    }
}

/// The entry describes the inode completely.
pub const INODE_VALID: u32 = 1;
/// Lazy size or times await journaling.
pub const INODE_DIRTY: u32 = 2;
/// Used since the clock hand passed.
pub const INODE_USED: u32 = 4;
/// No name refers to it any more; freed at the last close.
pub const INODE_ORPHAN: u32 = 8;
/// On media the data is inline in the inode record; blocks in memory are shadows of it.
pub const INODE_INLINE: u32 = 16;
/// `Header::protected`: fs.protected_symlinks of proc_sys_fs(5).
pub const PROTECTED_SYMLINKS: u32 = 1;
/// fs.protected_regular, two bits.
pub const PROTECTED_REGULAR: u32 = 2;
/// fs.protected_fifos, two bits.
pub const PROTECTED_FIFOS: u32 = 8;
/// What such a field of two bits may say.
pub const PROTECTED_FIELD: u32 = 3;

/// Extended attributes may exist.
pub const INODE_XATTRS: u32 = 32;
/// Block 0 is a shadow of inline data, loaded and owned by the session, not journaled.
pub const INODE_SHADOW: u32 = 64;

/// A directory whose names are all in the dentry table: what is not there does not exist.
pub const INODE_COMPLETE: u32 = 128;
/// A file whose block map is whole: `MAP_UNKNOWN` is a hole.
pub const INODE_MAPPED: u32 = 256;
/// The object is gone for good; the entry stays until the trees know, so that nobody loads it.
pub const INODE_GONE: u32 = 512;
/// Made without a name (O_TMPFILE) and not yet given one: of all orphans only it may get one.
pub const INODE_LINKABLE: u32 = 1024;
/// A directory that is a keyspace.
pub const INODE_KEYSPACE: u32 = 2048;

/// Medium file: the content was cut to nothing, and what replaces it is to be in the journal when
/// the file is closed, if it is short.
pub const INODE_REWRITTEN: u32 = 4096;

/// The object may have an access control list: an extended attribute.
pub const INODE_ACL: u32 = 1 << 16;
/// The directory may have one for what is made in it.
pub const INODE_DEFAULT_ACL: u32 = 1 << 17;
/// The trees have the inline content, whatever else of the object they do not know yet.
pub const INODE_STORED: u32 = 16384;
/// Inline content was read: who reads it again brings it into a block.
pub const INODE_READ: u32 = 32768;
/// Processes of other users map the file: it has a lent file (`docs/spec/session-memory.md`).
pub const INODE_LENT: u32 = 1 << 18;
/// The lent file may be stored to through mappings: what is in it is the file's content.
pub const INODE_STORED_TO: u32 = 1 << 19;
/// The blocks have what the lent file lacks: somebody wrote who may not open that.
pub const INODE_AHEAD: u32 = 1 << 20;
/// One of the mappings that are counted is gone: what was stored through it has no room yet.
pub const INODE_KEPT: u32 = 1 << 21;
/// The newest snapshot's entry names the file: it was mapped when that was taken.
pub const INODE_LISTED: u32 = 1 << 22;
/// No object but a value that is open as a file: the trees have no such inode.
pub const INODE_VALUE: u32 = 8192;

/// Bits of `Inode::map_root` below the height.
pub const MAP_HEIGHT_SHIFT: u32 = 24;
/// Block map entry: not looked up in the trees yet.
pub const MAP_UNKNOWN: u64 = 0;
/// Block map entry: known to be a hole.
pub const MAP_HOLE: u64 = 1;
/// Block map entry of a block: `block << MAP_SHIFT | MAP_BLOCK`. In a page above the lowest level
/// the entry covers all that is below, physically contiguous.
pub const MAP_BLOCK: u64 = 2;
/// Block map entry that refers to the next lower page: `Link << MAP_SHIFT | MAP_PAGE`.
pub const MAP_PAGE: u64 = 4;
/// With `MAP_BLOCK`: not journaled yet (inside the pending run, or a shadow).
pub const MAP_PENDING: u64 = 8;
/// With `MAP_BLOCK`: a snapshot may have the block, too, so its bytes must not change.
pub const MAP_SHARED: u64 = 16;
/// Bits below the number in a block map entry.
pub const MAP_SHIFT: u32 = 8;

shared! {
    /// A page of a block map, or a free page linked through `entries[0]`.
    pub struct MapPage {
        pub entries: [AtomicU64; MAP_FANOUT],
    }
}

shared! {
    /// Head of a hash chain. Readers re-check `version`; writers hold `lock` and make it odd.
    pub struct Bucket {
        pub lock: AtomicU32,
        pub version: AtomicU32,
        pub head: AtomicU32,
        /// Whether the bucket is in use, or what moves into it now (`client/tables/buckets.rs`).
        pub split: AtomicU32,
    }
}

shared! {
    /// A cached name; `ino` 0 says that the name does not exist.
    pub struct Dentry {
        pub next: AtomicU32,
        /// Entry kind as in dirent(5) d_type.
        pub kind: AtomicU8,
        pub name_len: AtomicU8,
        /// `DENTRY_*` bits.
        pub state: AtomicU16,
        pub parent: AtomicU64,
        pub ino: AtomicU64,
        pub hash: AtomicU64,
        /// Newest journal record about this name; pinned while above `applied_seq`.
        pub seq: AtomicU64,
        /// Where the inode entry was last seen (`Link`); check `Inode::ino`.
        pub inode: AtomicU32,
        pub spare: AtomicU32,
        pub name: [AtomicU8; DENTRY_NAME],
    }
}

shared! {
    /// A cached name that does not fit into a `Dentry`. Indexes continue after `DENTRIES`.
    pub struct LongDentry {
        pub head: Dentry,
        pub name: [AtomicU8; LONG_DENTRY_NAME],
    }
}

shared! {
    /// A bucket of the index of changes of keyspaces that the trees do not know yet. Readers
    /// re-check `version`; writers hold `lock` and make it odd.
    pub struct ValueBucket {
        pub lock: AtomicU32,
        pub version: AtomicU32,
        /// `tag << TAG_SHIFT | place`; a place that its lane's tail has passed means nothing.
        pub cells: [AtomicU64; VALUE_CELLS],
    }
}

shared! {
    /// A view: a root that a process reads and that should stay intact for it.
    pub struct ViewPin {
        /// The process as lock words name it; 0: free.
        pub owner: AtomicU32,
        pub unused: AtomicU32,
        /// The commit; 0: not known yet.
        pub seq: AtomicU64,
        /// The view shows every record up to this number, and the root does not: the service is
        /// to commit just these, and to say which root that was. 0: nothing is wanted.
        pub wanted: AtomicU64,
        /// The number for which the service has done so; then what follows is that commit and its
        /// roots of values and of names, each a link and keys << 8 | height.
        pub served: AtomicU64,
        pub served_seq: AtomicU64,
        pub served_roots: [AtomicU64; 4],
    }
}

shared! {
    /// A value that is open as a file: a copy of what its entry said when it was opened. It does
    /// not change until nobody has it open.
    pub struct OpenValue {
        /// `Link` to the inode entry that stands for the value; 0: none does.
        pub inode: AtomicU32,
        /// Free list.
        pub next: AtomicU32,
        /// The number of that entry.
        pub ino: AtomicU64,
        pub keyspace: AtomicU64,
        pub key_len: AtomicU16,
        /// Bytes behind the key.
        pub len: AtomicU16,
        /// 1: they are the length and the runs of a value in blocks; 0: the value itself.
        pub in_blocks: AtomicU32,
        /// The key, then the bytes.
        pub words: [AtomicU64; OPEN_VALUE_WORDS],
    }
}

/// The dentry is in use.
pub const DENTRY_VALID: u16 = 1;
/// Used since the clock hand passed.
pub const DENTRY_USED: u16 = 2;

shared! {
    /// A byte-range lock (POSIX: owner is a slot; OFD and flock: owner is an OFD).
    pub struct RangeLock {
        pub next: AtomicU32,
        /// 0 free, 1 POSIX, 2 OFD, 3 flock.
        pub kind: AtomicU32,
        /// 1 shared, 2 exclusive.
        pub mode: AtomicU32,
        /// Slot + 1 that took it (for liveness), also for OFD and flock locks.
        pub slot: AtomicU32,
        /// OFD `Link` for OFD and flock locks.
        pub ofd: AtomicU32,
        pub slot_generation: AtomicU32,
        /// First and last byte, inclusive.
        pub first: AtomicU64,
        pub last: AtomicU64,
        pub ino: AtomicU64,
        pub spare: AtomicU64,
    }
}

shared! {
    /// A ring of free extents, or of what was given back (`free_table.rs`).
    #[repr(align(64))]
    pub struct Ring {
        /// Extents put into the ring since the session began.
        pub put: AtomicU64,
        /// Extents taken from it.
        pub taken: AtomicU64,
        pub apart: [AtomicU64; 6],
        /// Extents as first block << 16 | length; number `n` is at `n` modulo `RING_EXTENTS`.
        pub words: [AtomicU64; RING_EXTENTS],
    }
}

shared! {
    /// The free extents that the session may use.
    pub struct FreeTable {
        pub classes: [Ring; CLASSES],
        /// What clients give back, for the service.
        pub given_back: Ring,
    }
}

shared! {
    /// One refusal of a run's report.
    pub struct Refusal {
        /// System call number + 1.
        pub call: AtomicU32,
        /// Reason, an index into the client's list of sentences.
        pub why: AtomicU32,
        pub count: AtomicU64,
    }
}

shared! {
    /// The path of an executable that could not be instrumented.
    pub struct ExeName {
        pub len: AtomicU32,
        pub count: AtomicU32,
        pub path: [AtomicU8; 248],
    }
}

shared! {
    /// Marks of what was looked up lately and not cached; 0: none.
    pub struct Met {
        pub marks: [AtomicU8; MET_LINE],
    }
}

shared! {
    /// Whose names a record changed: that of record `seq` is entry `seq % RECENT`. A word has the
    /// low half of `seq` above, and below the `Link` to the entry of the name, or `RECENT_UNKNOWN`;
    /// 0: none.
    pub struct RecentNames {
        pub words: [AtomicU64; 2],
    }
}

shared! {
    /// A description on its way from one process to another in a message.
    pub struct Transit {
        /// What the message carries: the index of the entry in the low bits, random above.
        pub key: AtomicU64,
        /// Number of the file by whose locks one knows whether the message still exists.
        pub placeholder: AtomicU64,
        /// The `Link` of the description, one of whose references this is; 0: the entry is free.
        pub ofd: AtomicU32,
        pub pad: [AtomicU32; 3],
    }
}

shared! {
    /// One `holdfast run`.
    pub struct Run {
        /// 0 free, 1 in use.
        pub state: AtomicU32,
        /// Process id of the `holdfast run` command.
        pub pid: AtomicU32,
        pub lock: AtomicU32,
        pub at_len: AtomicU32,
        /// Absolute, normalised path under which the pool appears.
        pub at: [AtomicU8; 1024],
        /// Sums of slots that are gone.
        pub served: AtomicU64,
        pub passed: AtomicU64,
        pub refused: AtomicU64,
        /// What mapping caches did, by `MapCount`.
        pub mapping: [AtomicU64; MAP_COUNTS],
        pub refusals: [Refusal; REFUSALS],
        pub uninstrumented: [ExeName; UNINSTRUMENTED],
    }
}

const fn page_up(offset: usize) -> usize {
    (offset + 4095) & !4095
}

// Where a process touches a table for the first time, the kernel makes page tables: one for each
// 2 MiB, and one more for each GiB, which costs more than the page itself. So small tables that
// every process touches stand together, and as many of the large ones as can begin in the first
// GiB; of those that most processes touch, the inodes and the block maps do not.

/// Offset of the `Header`.
pub const HEADER_AT: usize = 0;
/// Offset of the `Header`'s `meter`.
pub const METER_AT: usize = HEADER_AT + core::mem::offset_of!(Header, meter);
/// Offset of the `Lane` array.
pub const LANES_AT: usize = page_up(size_of::<Header>());
/// Offset of the `ViewPin` array.
pub const VIEWS_AT: usize = page_up(LANES_AT + LANES * size_of::<Lane>());
/// Offset of the `RecentNames` array.
pub const RECENT_AT: usize = page_up(VIEWS_AT + VIEWS * size_of::<ViewPin>());
/// Offset of the `Transit` array.
pub const TRANSITS_AT: usize = page_up(RECENT_AT + RECENT * size_of::<RecentNames>());
/// Offset of the `FreeTable`.
pub const FREE_AT: usize = page_up(TRANSITS_AT + TRANSITS * size_of::<Transit>());
/// Offset of the `Slot` array.
pub const SLOTS_AT: usize = page_up(FREE_AT + size_of::<FreeTable>());
/// Offset of the `Met` array.
pub const MET_AT: usize = page_up(SLOTS_AT + SLOTS * size_of::<Slot>());
/// Offset of the `Run` array.
pub const RUNS_AT: usize = page_up(MET_AT + MET_LINES * size_of::<Met>());
/// Offset of the `Quota` array.
pub const QUOTAS_AT: usize = page_up(RUNS_AT + RUNS * size_of::<Run>());
/// Offset of the `QuotaUsers`.
pub const QUOTA_USERS_AT: usize = page_up(QUOTAS_AT + QUOTAS * size_of::<Quota>());
/// Offset of the `ValueBucket` array.
pub const VALUE_BUCKETS_AT: usize = page_up(QUOTA_USERS_AT + size_of::<QuotaUsers>());
/// Offset of the inode `Bucket` array.
pub const INODE_BUCKETS_AT: usize =
    page_up(VALUE_BUCKETS_AT + VALUE_BUCKETS * size_of::<ValueBucket>());
/// Offset of the dentry `Bucket` array.
pub const DENTRY_BUCKETS_AT: usize = page_up(INODE_BUCKETS_AT + BUCKETS * size_of::<Bucket>());
/// Offset of the array of first `FdPage`s, one for each slot.
pub const FD_TABLES_AT: usize = page_up(DENTRY_BUCKETS_AT + BUCKETS * size_of::<Bucket>());
/// Offset of the `PinTable` array.
pub const PIN_TABLES_AT: usize = page_up(FD_TABLES_AT + SLOTS * size_of::<FdPage>());
/// Offset of the `Ofd` array.
pub const OFDS_AT: usize = page_up(PIN_TABLES_AT + SLOTS * size_of::<PinTable>());
/// Offset of the `Dentry` array.
pub const DENTRIES_AT: usize = page_up(OFDS_AT + OFDS * size_of::<Ofd>());
/// Offset of the `Inode` array.
pub const INODES_AT: usize = page_up(DENTRIES_AT + DENTRIES * size_of::<Dentry>());
/// Offset of the `MapPage` array.
pub const MAP_PAGES_AT: usize = page_up(INODES_AT + INODES * size_of::<Inode>());
/// Offset of the `RangeLock` array.
pub const LOCKS_AT: usize = page_up(MAP_PAGES_AT + MAP_PAGES * size_of::<MapPage>());
/// Offset of the `LongDentry` array.
pub const LONG_DENTRIES_AT: usize = page_up(LOCKS_AT + LOCKS * size_of::<RangeLock>());
/// Offset of the array of the other `FdPage`s.
pub const FD_PAGES_AT: usize = page_up(LONG_DENTRIES_AT + LONG_DENTRIES * size_of::<LongDentry>());
/// Offset of the `OpenValue` array.
pub const OPEN_VALUES_AT: usize = page_up(FD_PAGES_AT + FD_PAGES * size_of::<FdPage>());
/// Bytes of session memory; almost all of it is never touched and costs nothing.
pub const SESSION_LEN: usize = page_up(OPEN_VALUES_AT + OPEN_VALUES * size_of::<OpenValue>());

/// Offset of the bitmap of dirty blocks, on medium file.
pub const DIRTY_AT: usize = SESSION_LEN;

/// Bytes of session memory for a pool with room for so many bytes of data; `medium` as in the
/// header.
pub fn session_len(medium: u32, data_room: u64) -> u64 {
    let dirty = match medium {
        MEDIUM_FILE => DirtyMap::len_for(data_room),
        _ => 0,
    };
    SESSION_LEN as u64 + dirty
}

// The entries that hot paths touch keep to whole cache lines.
const _: () = assert!(size_of::<Lane>() == 128);
const _: () = assert!(size_of::<Slot>() == 256);
const _: () = assert!(size_of::<Ofd>() == 128);
const _: () = assert!(size_of::<Inode>() == 256);
const _: () = assert!(size_of::<Dentry>() == 128);
const _: () = assert!(size_of::<ValueBucket>() == 64);
const _: () = assert!(size_of::<OpenValue>() == 2048);
const _: () = assert!(size_of::<Ring>() == 64 + 8 * RING_EXTENTS);
const _: () = assert!(1 << WHOLE == WHOLE_BLOCKS);
const _: () = assert!(SLOTS_AT < 2 << 20 && DENTRIES_AT < 1 << 30);
