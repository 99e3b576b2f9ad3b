//! The mapped session: session memory, the segments beside it, and checked access to both.
//!
//! Invariants:
//!  * A `Link` from session memory is an index plus one and is checked on every use; a bad one is
//!    `Error::Damaged`, never a fault.
//!  * References point to atomics only; whatever is read is a copy.
//!  * `slot()` belongs to the process that runs now: a child that shares this memory is recognised.
//!    One without a slot gets a slot that belongs to nobody, and `has_place` says so.

pub mod attach;
pub mod drain;
pub(crate) mod fd_tables;
pub(crate) mod free_list;
pub(crate) mod joining;
pub mod leases;
pub(crate) mod lender;
pub mod live;
pub mod lock;
pub(crate) mod members;
pub(crate) mod place;
pub mod quota;
pub mod run;
pub mod space;
pub(crate) mod stores;

use crate::base::clock;
use crate::base::cold::Cold;
use crate::base::error::{Error, Result};
use crate::base::names_ahead::Ahead;
use crate::base::seen::Seen;
use crate::base::trees::Trees;
pub use crate::base::types::OfdLink;
use crate::base::windows::{WINDOW, Windows};
use crate::session::leases::Leases;
use crate::session::lender::Lender;
use crate::session::members::Members;
use core::panic::Location;
use core::time::Duration;
use pmem::atomic::{AtomicU32, AtomicU64, Ordering::*};
use pmem::{ConstBuf, Fault, MutBuf, RecordLocks, Region, Shared, SharedMem, TakeCell};
use pool::directory::LANE_LEN;
pub use pool::layout::BLOCK;
use pool::layout::{BlockAddr, ReadTrees};
pub(crate) use pool::session::live::NOBODY;
use pool::session::*;
use rustix::fd::BorrowedFd;

const EIO: i32 = 5;
/// How often, and how long each time, somebody waits for the service that makes the pool larger.
const GROWTH_PATIENCE: u32 = 1000;
const GROWTH_STEP: Duration = Duration::from_millis(2);

/// Finishes what dead processes committed (`journal::recover`), which is above this layer.
pub type Recover = fn(&Session) -> Result<()>;

/// What the service gave us, mapped.
pub struct Session {
    mem: SharedMem,
    /// On the file of `mem`: who lives.
    locks: RecordLocks,
    /// Lanes; lane `n` starts at `n * lane_len`.
    journal: Region,
    data: Region,
    trees: Trees,
    /// Copies of header fields that never change.
    lane_len: u64,
    consistency: u32,
    medium: u32,
    /// On a snapshot.
    read_only: bool,
    /// Who runs in this memory.
    members: Members,
    recover: Recover,
    /// RLIMIT_FSIZE of this process: no file grows beyond it.
    file_limit: AtomicU64,
    /// Calls are made for another user, whose rights are not those of this process.
    for_another: AtomicU32,
    /// Of the hashes of keys: whoever only chooses keys cannot make them collide.
    hash_seed: u64,
    lender: Lender,
    leases: Leases,
    data_windows: Windows,
    journal_windows: Windows,
    value_windows: Windows,
    cold: Cold,
    pub(crate) seen: Seen,
    /// Of the listing of a keyspace that this process is in the middle of.
    pub(crate) names_ahead: TakeCell<Ahead>,
}

impl Session {
    /// Wraps mapped memory, and locks on its file; `Error::Invalid` when it is not a session of
    /// this layout.
    pub fn new(
        (mem, locks): (SharedMem, RecordLocks),
        journal: Region,
        data: Region,
        trees: Trees,
        recover: Recover,
    ) -> Result<Session> {
        let header: &Header = mem.at(HEADER_AT as u64).ok_or(Error::Invalid)?;
        if header.magic.load(Acquire) != MAGIC || mem.len() < SESSION_LEN {
            return Err(Error::Invalid);
        }
        let lane_len = header.lane_len.load(Relaxed);
        let lanes_fit = lane_len.checked_mul(LANES as u64);
        if !lane_len.is_multiple_of(64)
            || lanes_fit.is_none_or(|n| n > journal.len() as u64 || n == 0)
        {
            return Err(Error::Damaged {
                what: "journal lane length",
                index: lane_len,
            });
        }
        let (consistency, medium) = (
            header.consistency.load(Relaxed),
            header.medium.load(Relaxed),
        );
        let hash_seed = ReadTrees::name_seed(&trees.reader())?;
        let read_only = header.snapshot_seq.load(Relaxed) != 0;
        let data_windows = Windows::new(data.len() as u64);
        let journal_windows = Windows::new(journal.len() as u64);
        let value_windows = Windows::new((VALUE_BUCKETS * size_of::<ValueBucket>()) as u64);
        Ok(Session {
            mem,
            locks,
            journal,
            data,
            trees,
            lane_len,
            consistency,
            medium,
            read_only,
            members: Members::new(),
            recover,
            file_limit: AtomicU64::new(u64::MAX),
            for_another: AtomicU32::new(0),
            hash_seed,
            lender: Lender::nobody(),
            leases: Leases::new()?,
            data_windows,
            journal_windows,
            value_windows,
            cold: Cold::default(),
            seen: Seen::default(),
            names_ahead: TakeCell::default(),
        })
    }

    /// Its files are lent in the name of the pool of this meta segment.
    pub(crate) fn lends_as(mut self, meta: BorrowedFd<'_>) -> Result<Session> {
        self.lender = Lender::of(meta)?;
        Ok(self)
    }

    pub(crate) fn lender(&self) -> Lender {
        self.lender
    }

    /// The same session for another process whose calls this one makes: it has no place yet.
    pub fn another(&self) -> Session {
        Session {
            mem: self.mem.clone(),
            locks: self.locks,
            journal: self.journal.clone(),
            data: self.data.clone(),
            trees: self.trees.clone(),
            members: Members::new(),
            file_limit: AtomicU64::new(u64::MAX),
            for_another: AtomicU32::new(0),
            leases: self.leases.another(),
            data_windows: self.data_windows.another(),
            journal_windows: self.journal_windows.another(),
            value_windows: self.value_windows.another(),
            cold: Cold::default(),
            seen: Seen::default(),
            names_ahead: TakeCell::default(),
            ..*self
        }
    }

    #[inline]
    fn entry<T: Shared>(
        &self,
        base: usize,
        count: usize,
        index: u32,
        what: &'static str,
    ) -> Result<&T> {
        let off = base + index as usize * size_of::<T>();
        match self.mem.at(off as u64) {
            Some(entry) if (index as usize) < count => Ok(entry),
            _ => Err(Error::Damaged {
                what,
                index: index.into(),
            }),
        }
    }

    /// The header.
    #[inline]
    pub fn header(&self) -> &Header {
        match self.mem.at(HEADER_AT as u64) {
            Some(header) => header,
            // `new` found it there, and mappings do not shrink.
            None => unreachable!(),
        }
    }

    /// Where a lock word lies in session memory; `None`: elsewhere.
    pub(crate) fn place_of(&self, word: &AtomicU32) -> Option<u64> {
        let at = (core::ptr::from_ref(word) as usize).checked_sub(self.mem.addr())?;
        (at < self.mem.len()).then_some(at as u64)
    }

    /// Lane `index`.
    #[inline]
    pub fn lane(&self, index: u32) -> Result<&Lane> {
        self.entry(LANES_AT, LANES, index, "journal lane")
    }

    /// Slot by index.
    #[inline]
    pub fn slot_at(&self, index: u32) -> Result<&Slot> {
        self.entry(SLOTS_AT, SLOTS, index, "process slot")
    }

    /// The first page of a slot's descriptor table.
    #[inline]
    pub(crate) fn first_fd_page(&self, index: u32) -> Result<&FdPage> {
        self.entry(FD_TABLES_AT, SLOTS, index, "descriptor table")
    }

    /// The page of descriptors that `link` refers to.
    pub fn fd_page(&self, link: u32) -> Result<&FdPage> {
        self.entry(FD_PAGES_AT, FD_PAGES, link.wrapping_sub(1), "descriptors")
    }

    /// Mapped files of a slot.
    pub(crate) fn pin_table(&self, index: u32) -> Result<&PinTable> {
        self.entry(PIN_TABLES_AT, SLOTS, index, "table of mapped files")
    }

    /// The inode entry that `link` refers to.
    #[inline]
    pub fn inode(&self, link: u32) -> Result<&Inode> {
        self.entry(INODES_AT, INODES, link.wrapping_sub(1), "inode entry")
    }

    /// The open-file description that `link` refers to.
    #[inline]
    pub fn ofd(&self, link: u32) -> Result<&Ofd> {
        self.entry(OFDS_AT, OFDS, link.wrapping_sub(1), "open file")
    }

    /// Run by index.
    pub fn run_at(&self, index: u32) -> Result<&Run> {
        self.entry(RUNS_AT, RUNS, index, "run")
    }

    /// The quota at a place.
    pub fn quota(&self, place: u32) -> Result<&Quota> {
        self.entry(QUOTAS_AT, QUOTAS, place, "quota")
    }

    /// Where the quotas of users are.
    pub(crate) fn quota_users(&self) -> Result<&QuotaUsers> {
        self.entry(QUOTA_USERS_AT, 1, 0, "quotas of users")
    }

    /// The table of free extents.
    #[inline]
    pub fn free_table(&self) -> Result<&FreeTable> {
        self.entry(FREE_AT, 1, 0, "table of free extents")
    }

    /// The byte-range lock that `link` refers to.
    #[inline]
    pub fn range_lock(&self, link: u32) -> Result<&RangeLock> {
        self.entry(LOCKS_AT, LOCKS, link.wrapping_sub(1), "byte-range lock")
    }

    #[inline]
    pub(crate) fn inode_bucket(&self, index: u32) -> Result<&Bucket> {
        self.entry(INODE_BUCKETS_AT, BUCKETS, index, "inode bucket")
    }

    #[inline]
    pub(crate) fn dentry_bucket(&self, index: u32) -> Result<&Bucket> {
        self.entry(DENTRY_BUCKETS_AT, BUCKETS, index, "dentry bucket")
    }

    #[inline]
    pub(crate) fn met(&self, line: u32) -> Result<&Met> {
        self.entry(MET_AT, MET_LINES, line, "marks")
    }

    /// The names that record `seq` changed.
    #[inline]
    pub(crate) fn recent_names(&self, seq: u64) -> Result<&RecentNames> {
        let index = seq % RECENT as u64;
        self.entry(RECENT_AT, RECENT, index as u32, "recent names")
    }

    /// What is on its way in a message with this key.
    pub(crate) fn transit(&self, key: u64) -> Result<&Transit> {
        let index = key % TRANSITS as u64;
        self.entry(
            TRANSITS_AT,
            TRANSITS,
            index as u32,
            "description in transit",
        )
    }

    /// Starts loading an inode bucket.
    #[inline]
    pub(crate) fn expect_inode_bucket(&self, index: u32) {
        let at = INODE_BUCKETS_AT + index as usize * size_of::<Bucket>();
        self.mem.prefetch(at as u64);
    }

    /// Starts loading a dentry bucket.
    #[inline]
    pub(crate) fn expect_dentry_bucket(&self, index: u32) {
        let at = DENTRY_BUCKETS_AT + index as usize * size_of::<Bucket>();
        self.mem.prefetch(at as u64);
    }

    /// Which bucket the changes of a key with this hash are in.
    #[inline]
    pub(crate) fn value_bucket_index(hash: u64) -> u32 {
        hash as u32 % VALUE_BUCKETS as u32
    }

    #[inline]
    pub(crate) fn value_bucket(&self, hash: u64) -> Result<&ValueBucket> {
        let index = Session::value_bucket_index(hash);
        self.entry(VALUE_BUCKETS_AT, VALUE_BUCKETS, index, "value bucket")
    }

    /// Starts loading the bucket that will be asked for.
    #[inline]
    pub(crate) fn expect_value_bucket(&self, hash: u64) {
        let index = Session::value_bucket_index(hash) as usize;
        let at = index * size_of::<ValueBucket>();
        let base = VALUE_BUCKETS_AT as u64;
        self.value_windows
            .enter(at as u64, at as u64 + 1, |window| {
                let _ = self.mem.prefault(base + window, WINDOW as usize);
            });
        self.mem.prefetch(base + at as u64);
    }

    /// These blocks are written next.
    #[inline]
    pub(crate) fn enter_blocks(&self, block: BlockAddr, len: u64) {
        let Ok(segment) = self.segment(block) else {
            return;
        };
        self.enter(segment, &self.data_windows, block.offset(), len * BLOCK);
    }

    /// This part of the journal is written next.
    #[inline]
    pub(crate) fn enter_journal(&self, at: u64, len: u64) {
        self.enter(&self.journal, &self.journal_windows, at, len);
    }

    #[inline]
    fn enter(&self, region: &Region, windows: &Windows, at: u64, len: u64) {
        // The pages of a file that have an entry are read and written back.
        if self.medium == MEDIUM_FILE {
            return;
        }
        windows.enter(at, at + len, |window| {
            let _ = region.prefault(window, WINDOW as usize);
        });
    }

    /// Pin of a view.
    pub(crate) fn view_pin(&self, index: u32) -> Result<&ViewPin> {
        self.entry(VIEWS_AT, VIEWS, index, "view")
    }

    /// The copy of an open value that `link` refers to.
    pub(crate) fn open_value(&self, link: u32) -> Result<&OpenValue> {
        let index = link.wrapping_sub(1);
        self.entry(OPEN_VALUES_AT, OPEN_VALUES, index, "open value")
    }

    #[inline]
    pub(crate) fn hash_seed(&self) -> u64 {
        self.hash_seed
    }

    #[inline]
    pub(crate) fn dentry(&self, index: u32) -> Result<&Dentry> {
        match (index as usize).checked_sub(DENTRIES) {
            None => self.entry(DENTRIES_AT, DENTRIES, index, "dentry"),
            Some(long) => Ok(&self.long_dentry(long as u32)?.head),
        }
    }

    #[inline]
    pub(crate) fn long_dentry(&self, index: u32) -> Result<&LongDentry> {
        self.entry(LONG_DENTRIES_AT, LONG_DENTRIES, index, "long dentry")
    }

    #[inline]
    pub(crate) fn map_page(&self, index: u32) -> Result<&MapPage> {
        self.entry(MAP_PAGES_AT, MAP_PAGES, index, "block map page")
    }

    /// Bytes of one journal lane.
    #[inline]
    pub fn lane_len(&self) -> u64 {
        self.lane_len
    }

    /// Bytes of a lane that may wait for the trees.
    #[inline]
    pub fn lane_ahead(&self) -> u64 {
        self.lane_len.min(LANE_LEN)
    }

    /// Blocks of the data segment that we may reach: all that there are, unless we have mapped
    /// less.
    #[inline]
    pub fn data_blocks(&self) -> u64 {
        let len = self.header().data_len.load(Relaxed);
        len.min(self.data.len() as u64) / BLOCK
    }

    /// We have not mapped more of the data segment than there is; false: it has grown meanwhile.
    pub(crate) fn keeps_data_from_growing(&self) -> Result<bool> {
        let header = self.header();
        let growth = &header.data_growth;
        for _ in 0..GROWTH_PATIENCE {
            match growth.compare_exchange(DATA_MAY_GROW, DATA_MAY_NOT_GROW, SeqCst, SeqCst) {
                Err(DATA_GROWS) => pmem::env::sleep(GROWTH_STEP),
                _ => return Ok(header.data_len.load(SeqCst) <= self.data.len() as u64),
            }
        }
        Err(Error::Busy)
    }

    /// 0 posix, 1 sync, 2 strict.
    #[inline]
    pub fn consistency(&self) -> u32 {
        self.consistency
    }

    /// 0 memory, 1 file, 2 dax.
    #[inline]
    pub fn medium(&self) -> u32 {
        self.medium
    }

    /// `ReadOnly` in a session on a snapshot.
    #[inline]
    pub fn check_writable(&self) -> Result<()> {
        match self.read_only {
            false => Ok(()),
            true => Err(Error::ReadOnly),
        }
    }

    /// The time at which it is looked whether something has expired: in a session on a snapshot
    /// that of the snapshot.
    #[cold]
    pub fn moment(&self) -> i64 {
        match self.header().snapshot_time.load(Relaxed) {
            0 => clock::exact_now(),
            time => time as i64,
        }
    }

    /// Whether there may be a value that expires.
    #[inline]
    pub fn has_expiring(&self) -> bool {
        self.header().expiring.load(Relaxed) != 0
    }

    /// Before a record that puts a value that expires.
    pub fn note_expiring(&self) {
        if !self.has_expiring() {
            self.header().expiring.store(1, SeqCst);
        }
    }

    /// Whether the session is on a snapshot.
    #[inline]
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Everything up to here is in the trees.
    #[inline]
    pub fn applied_seq(&self) -> u64 {
        self.header().applied_seq.load(Acquire)
    }

    /// What every operation does first. `Err` once the service gave up on the session. When a
    /// dead process left a record that it had not published, this publishes it.
    #[inline]
    pub fn check(&self) -> Result<()> {
        let h = self.header();
        match h.poisoned.load(Relaxed) | h.recover_wanted.load(Relaxed) {
            0 => Ok(()),
            _ => self.check_slow(),
        }
    }

    #[cold]
    fn check_slow(&self) -> Result<()> {
        self.check_poison()?;
        // What cannot be finished now stays locked.
        let _ = self.recover();
        Ok(())
    }

    /// Finishes what dead processes committed. Fails when the session was given up, or the service
    /// is gone while it is needed.
    pub(crate) fn recover(&self) -> Result<()> {
        (self.recover)(self)
    }

    /// As `check`, where recovery has no place.
    pub(crate) fn check_poison(&self) -> Result<()> {
        match self.header().poisoned.load(Relaxed) {
            0 => Ok(()),
            errno => Err(Error::Poisoned(errno as i32)),
        }
    }

    /// The data segment, which has this block. Session memory may say anything of where a block is,
    /// so every access to one comes by here.
    #[inline]
    pub(crate) fn segment(&self, block: BlockAddr) -> Result<&Region> {
        match block.word() < self.data_blocks() {
            true => Ok(&self.data),
            false => Err(Error::Damaged {
                what: "block",
                index: block.word(),
            }),
        }
    }

    /// For what only a mistake of ours can break: where it does not hold, the session is given up
    /// for all, and the service says where.
    #[inline]
    #[track_caller]
    pub(crate) fn ensure(&self, holds: bool, what: &'static str) -> Result<()> {
        match holds {
            true => Ok(()),
            false => Err(self.give_up(what, Location::caller())),
        }
    }

    #[cold]
    fn give_up(&self, what: &'static str, place: &Location<'_>) -> Error {
        let h = self.header();
        h.broken.tell(&h.poisoned, place, what);
        Error::Poisoned(EIO)
    }

    /// Address and length of each mapping of the session.
    pub(crate) fn own_memory(&self) -> [(usize, usize); 5] {
        let segment = |segment: &Region| (segment.addr(), segment.len());
        let (data, journal) = (segment(&self.data), segment(&self.journal));
        let memory = (self.mem.addr(), self.mem.len());
        let leases = self.leases.place();
        [memory, data, journal, self.trees.mapped(), leases]
    }

    /// All file data.
    #[inline]
    pub fn data(&self) -> &Region {
        &self.data
    }

    /// Copies from behind the first `skip` bytes of a block on, for the file with this number;
    /// `VALUES` is that of values.
    #[inline]
    pub(crate) fn copy_out(
        &self,
        file: u32,
        (block, skip): (BlockAddr, u64),
        to: MutBuf,
    ) -> core::result::Result<usize, Fault> {
        let data = self.segment(block).map_err(|_| Fault::OutOfRange)?;
        let off = block.offset() + skip;
        let copied = match self.medium {
            MEDIUM_FILE => self.cold.copy_out(data, file, off, to),
            _ => data.copy_out(off, to),
        };
        copied.inspect_err(|fault| self.note_fault(off, fault))
    }

    /// Copies to behind the first `skip` bytes of a block, for the file with this number.
    #[inline]
    pub(crate) fn copy_in(
        &self,
        file: u32,
        (block, skip): (BlockAddr, u64),
        from: ConstBuf,
    ) -> core::result::Result<usize, Fault> {
        let data = self.segment(block).map_err(|_| Fault::OutOfRange)?;
        let off = block.offset() + skip;
        let copied = match data.dirty() {
            Some(_) if self.file_limit() == u64::MAX => self.cold.copy_in(data, file, off, from),
            _ => data.copy_in(off, from),
        };
        copied.inspect_err(|fault| self.note_fault(off, fault))
    }

    /// As `copy_in`, over bytes that the file has.
    #[inline]
    pub(crate) fn copy_over(
        &self,
        file: u32,
        (block, skip): (BlockAddr, u64),
        from: ConstBuf,
    ) -> core::result::Result<usize, Fault> {
        let data = self.segment(block).map_err(|_| Fault::OutOfRange)?;
        let off = block.offset() + skip;
        match data.dirty() {
            Some(_) => self.copy_in(file, (block, skip), from),
            None => {
                let copied = data.copy_over(off, from);
                copied.inspect_err(|fault| self.note_fault(off, fault))
            }
        }
    }

    /// What the medium has lost of the data, from `off` on, is counted, and known to the service.
    #[cold]
    fn note_fault(&self, off: u64, fault: &Fault) {
        let Fault::Media { copied } = fault else {
            return;
        };
        let h = self.header();
        let errors = h.media_errors.fetch_add(1, Relaxed);
        let block = (off + *copied as u64) / BLOCK + 1;
        let known = h.lost_blocks.iter().any(|lost| lost.load(Relaxed) == block);
        let free = h.lost_blocks.iter().find(|lost| lost.load(Relaxed) == 0);
        let place = free.or(h.lost_blocks.get(errors as usize % LOST_BLOCKS));
        if let Some(place) = place.filter(|_| !known) {
            place.store(block, Relaxed);
        }
    }

    /// The journal segment.
    #[inline]
    pub fn journal(&self) -> &Region {
        &self.journal
    }

    /// The committed trees.
    #[inline]
    pub fn tree(&self) -> &Trees {
        &self.trees
    }

    /// Index of the caller's process slot.
    #[inline]
    pub fn slot_index(&self) -> u32 {
        (self.owner() & OWNER_SLOT).wrapping_sub(1)
    }

    /// The caller's process slot; before registration one that belongs to nobody.
    #[inline]
    pub fn slot(&self) -> &Slot {
        match self.slot_at(self.slot_index()) {
            Ok(slot) => slot,
            // `owner_word` only takes numbers of slots.
            Err(_) => unreachable!(),
        }
    }

    /// No file may grow beyond so many bytes (RLIMIT_FSIZE); all bits: no limit.
    #[inline]
    pub fn file_limit(&self) -> u64 {
        self.file_limit.load(Relaxed)
    }

    /// The limit changed.
    pub fn set_file_limit(&self, bytes: u64) {
        self.file_limit.store(bytes, Relaxed);
    }

    /// From now on calls are made for another user.
    pub fn serve_another(&self) {
        self.for_another.store(1, Relaxed);
    }

    /// Whether calls are made for another user.
    #[inline]
    pub(crate) fn is_for_another(&self) -> bool {
        self.for_another.load(Relaxed) != 0
    }

    /// F_GETLK tells this number of the process, for which a proxy has the slot.
    pub fn show_as(&self, pid: u32) {
        self.slot().shown.store(pid.into(), Relaxed);
    }

    /// Whether the user that the kernel knows is privileged, and calls are made for that one.
    pub(crate) fn is_for_root(&self) -> bool {
        !self.is_for_another() && rustix::process::geteuid().is_root()
    }

    /// The run that the caller belongs to.
    pub fn run(&self) -> Option<&Run> {
        self.run_at(self.slot().run.load(Relaxed).checked_sub(1)?)
            .ok()
    }

    /// The slot whose descriptor table the caller uses.
    #[inline]
    pub fn table_index(&self) -> u32 {
        match self.slot().files.load(Relaxed) {
            0 => self.slot_index(),
            link => link - 1,
        }
    }

    /// The slot whose working directory and creation mask the caller uses.
    #[inline]
    pub(crate) fn directory_slot(&self) -> Result<&Slot> {
        match self.slot().directory.load(Relaxed) {
            0 => Ok(self.slot()),
            link => self.slot_at(link - 1),
        }
    }

    /// Locks on the file of session memory.
    #[inline]
    pub fn locks(&self) -> &RecordLocks {
        &self.locks
    }

    /// Whether the process in slot `index` lives.
    pub fn is_alive(&self, index: u32) -> bool {
        let alive = |slot| live::is_alive(&self.locks, index, slot);
        self.slot_at(index).is_ok_and(alive)
    }

    /// The life of the process in slot `index`.
    pub(crate) fn life(&self, index: u32) -> u64 {
        let generation = |slot: &Slot| slot.generation.load(Acquire);
        live::life_of(index, self.slot_at(index).map_or(0, generation))
    }

    /// Slots that were ever taken, the service's apart.
    pub(crate) fn slots_used(&self) -> u32 {
        self.header().slots_used.load(Acquire).min(NOBODY)
    }

    /// The caller as lock words name it.
    #[inline]
    pub fn owner(&self) -> u32 {
        self.members.owner(self)
    }

    /// Whether the caller has a slot and it still is its own.
    #[inline]
    pub fn has_place(&self) -> bool {
        let owner = self.owner();
        let index = (owner & OWNER_SLOT).wrapping_sub(1);
        let is_own = |slot: &Slot| owner_word(index, slot.epoch.load(Relaxed)) == owner;
        index != NOBODY && self.slot_at(index).is_ok_and(is_own)
    }

    /// From now on this memory belongs to the process in `slot`, and to it alone.
    pub(crate) fn set_me(&self, slot: u32, epoch: u32) {
        self.members.alone(owner_word(slot, epoch));
    }

    /// Who runs in this memory.
    pub(crate) fn members(&self) -> &Members {
        &self.members
    }
}

/// How lock words name the process in `slot`.
pub(crate) fn owner_word(slot: u32, epoch: u32) -> u32 {
    (slot.min(NOBODY) + 1) | (epoch << OWNER_SLOT.count_ones() & OWNER_EPOCH)
}

/// Values of `Session::consistency` beside 0, which is `posix`.
pub(crate) const SYNC: u32 = 1;
pub(crate) const STRICT: u32 = 2;

/// How often an operation starts again because what it found was gone when it looked closer.
pub(crate) const RETRIES: u32 = 100;
