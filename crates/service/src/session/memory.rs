//! The service's view of session memory, every byte of which clients can write.
//!
//! Invariants: nothing read here is used before it was checked, and nothing here waits for a value
//! or loops as often as one says; accessors return `None` for an index out of range. The service
//! holds the last process slot, so that locks it takes have an owner who is alive.

use crate::base::error::{Error, Result};
use crate::base::host;
use holdfast_pmem::atomic::{AtomicU32, Ordering::*, fence};
use holdfast_pmem::{RecordLocks, Shared, SharedMem, futex, record_locks};
use holdfast_pool::layout::value::{InBlocks, ValueRun};
use holdfast_pool::session::live::{self, NOBODY, SLOT_LIVE};
use holdfast_pool::session::*;
use holdfast_pool::space;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, SealFlags};
use std::mem::offset_of;
use std::sync::Arc;

/// Slot of the service.
pub const SERVICE_SLOT: usize = SLOTS - 1;
/// A view this many commits behind is asked whether its process lives.
const VIEW_LAG: u64 = 16;

/// What a session begins with; all but `data_len` stays the same for as long as it lives.
#[derive(Clone, Copy, Debug)]
pub struct Constants {
    /// 0 posix, 1 sync, 2 strict.
    pub consistency: u32,
    /// 0 memory, 1 file, 2 dax.
    pub medium: u32,
    /// Bytes of the data segment.
    pub data_len: u64,
    /// Bytes that it may have while the session lives.
    pub data_room: u64,
    /// Bytes of one journal lane.
    pub lane_len: u64,
}

/// Session memory and its descriptors.
pub struct Memory {
    /// Closing a descriptor of the file ends the record locks that clients in this process have
    /// there, so copies of it are not made.
    fd: Arc<OwnedFd>,
    shared: SharedMem,
    locks: RecordLocks,
    /// Our own open file description, which holds the service's life and which nobody else has.
    life: OwnedFd,
}

/// How many inodes are cached on a machine with `ram` bytes: they and their names, some 600 bytes
/// each, take a sixteenth of it at most.
fn cached_inodes(ram: u64) -> u32 {
    (ram / 16 / 600).clamp(64 << 10, 3 << 20) as u32
}

impl Memory {
    /// New memory, all zero but for what `constants` say. `name` shows in /proc.
    pub fn create(name: &str, constants: &Constants) -> Result<Memory> {
        let len = session_len(constants.medium, constants.data_room);
        let (fd, shared) = SharedMem::create_memfd(name, len as usize)?;
        let memory = Memory::of(fd, shared)?;
        let header = memory.header();
        header.len.store(len, Relaxed);
        header.consistency.store(constants.consistency, Relaxed);
        header.medium.store(constants.medium, Relaxed);
        header.data_len.store(constants.data_len, Relaxed);
        header.lane_len.store(constants.lane_len, Relaxed);
        header.protected.store(host::protected(), Relaxed);
        let inodes = cached_inodes(rustix::system::sysinfo().totalram as u64);
        header.inode_limit.store(inodes, Relaxed);
        header.inode_buckets.store(FIRST_BUCKETS, Relaxed);
        header.dentry_buckets.store(FIRST_BUCKETS, Relaxed);
        header.dentry_limit.store(inodes / 2 * 3, Relaxed);
        memory.register()?;
        header.magic.store(MAGIC, Release);
        Ok(memory)
    }

    /// Memory that an earlier service made. It must be sealed and be of this layout and pool, which
    /// that service may have made larger before it could say so there.
    pub fn adopt(fd: OwnedFd, constants: &Constants) -> Result<Memory> {
        let stat = rustix::fs::fstat(&fd).map_err(Error::os("session memory"))?;
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|_| Error::NotASession)?;
        let sealed = seals.contains(SealFlags::SHRINK | SealFlags::GROW);
        let len = session_len(constants.medium, constants.data_room);
        if !sealed || (stat.st_size as u64) < len {
            return Err(Error::NotASession);
        }
        let shared = SharedMem::map(fd.as_fd(), SESSION_LEN)?;
        let memory = Memory::of(fd, shared)?;
        let header = memory.header();
        let same = header.magic.load(Acquire) == MAGIC
            && header.lane_len.load(Relaxed) == constants.lane_len
            && header.data_len.load(Relaxed) <= constants.data_len;
        if !same {
            return Err(Error::NotASession);
        }
        memory.data_grew(constants.data_len);
        memory.register()?;
        Ok(memory)
    }

    fn of(fd: OwnedFd, shared: SharedMem) -> Result<Memory> {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let life = rustix::fs::open(path, flags, Mode::empty());
        Ok(Memory {
            locks: RecordLocks::new(fd.as_fd())?,
            life: life.map_err(Error::os("session memory"))?,
            fd: Arc::new(fd),
            shared,
        })
    }

    /// Makes this process the service of the session.
    fn register(&self) -> Result<()> {
        let (header, pid) = (self.header(), std::process::id());
        if let Some(slot) = self.slot(SERVICE_SLOT) {
            let generation = slot.generation.load(Relaxed).wrapping_add(1);
            let life = live::life_of(SERVICE_SLOT as u32, generation);
            record_locks::hold_by_description(self.life.as_fd(), life)
                .map_err(Error::os("session memory"))?;
            slot.pid.store(pid, Relaxed);
            slot.generation.store(generation, Release);
            slot.state.store(SLOT_LIVE, Release);
        }
        header.service_sleeps.store(0, Relaxed);
        header.service_pid.store(pid, Release);
        header.service_generation.fetch_add(1, Release);
        Ok(())
    }

    /// The descriptor, to send to clients.
    pub fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// What tells it from other memory.
    pub fn number(&self) -> Result<u64> {
        let stat = rustix::fs::fstat(&self.fd).map_err(Error::os("session memory"))?;
        Ok(stat.st_ino)
    }

    /// True for a descriptor of the same memory.
    pub fn is_same(&self, fd: &OwnedFd) -> bool {
        let id = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|s| (s.st_dev, s.st_ino)).ok();
        id(fd).is_some() && id(fd) == id(&self.fd)
    }

    /// The header.
    pub fn header(&self) -> &Header {
        match self.shared.at(HEADER_AT as u64) {
            Some(header) => header,
            // The mapping has SESSION_LEN bytes and does not shrink.
            None => unreachable!(),
        }
    }

    /// Asks for huge pages under the range.
    pub fn make_huge(&self, at: u64, len: usize) {
        let _ = self.shared.make_huge(at, len);
    }

    fn entry<T: Shared>(&self, base: usize, count: usize, index: usize) -> Option<&T> {
        if index >= count {
            return None;
        }
        self.shared.at((base + index * size_of::<T>()) as u64)
    }

    /// Journal lane `index`.
    pub fn lane(&self, index: usize) -> Option<&Lane> {
        self.entry(LANES_AT, LANES, index)
    }

    /// Process slot `index`.
    pub fn slot(&self, index: usize) -> Option<&Slot> {
        self.entry(SLOTS_AT, SLOTS, index)
    }

    /// Inode entry `index`.
    pub fn inode(&self, index: usize) -> Option<&Inode> {
        self.entry(INODES_AT, INODES, index)
    }

    /// The quota at `place`.
    pub fn quota(&self, place: usize) -> Option<&Quota> {
        self.entry(QUOTAS_AT, QUOTAS, place)
    }

    /// Where the quotas of users are.
    pub fn quota_users(&self) -> Option<&QuotaUsers> {
        self.entry(QUOTA_USERS_AT, 1, 0)
    }

    /// The table of free extents.
    pub fn free_table(&self) -> &FreeTable {
        match self.shared.at(FREE_AT as u64) {
            Some(table) => table,
            // As for the header.
            None => unreachable!(),
        }
    }

    /// Slots that were ever taken, but the service's.
    pub fn used_slots(&self) -> impl Iterator<Item = &Slot> {
        let used = self.header().slots_used.load(Acquire) as usize;
        (0..used.min(SERVICE_SLOT)).filter_map(|index| self.slot(index))
    }

    /// Whether the owner that a lock word names may still be at work.
    pub fn owner_lives(&self, word: u32) -> bool {
        let index = ((word & OWNER_SLOT) as usize).wrapping_sub(1);
        if index == NOBODY as usize {
            return live::joining_lives(&self.locks, word);
        }
        let Some(slot) = self.slot(index) else {
            return false;
        };
        let epoch = slot.epoch.load(Acquire) << OWNER_SLOT.count_ones();
        let same = index == SERVICE_SLOT || (word ^ epoch) & OWNER_EPOCH == 0;
        same && live::is_alive(&self.locks, index as u32, slot)
    }

    /// Has `Stalls` look after the writer that has lane `index` locked, if there is one.
    pub fn tell_stalled(&self, index: usize) {
        let Some(lane) = self.lane(index) else {
            return;
        };
        let at = (LANES_AT + index * size_of::<Lane>() + offset_of!(Lane, lock)) as u64;
        if let Some(stall) = Stall::of(lane.lock.load(Relaxed), at) {
            stall.tell(self.header());
        }
    }

    /// The lock word at `at`.
    pub fn lock_word(&self, at: u64) -> Option<&AtomicU32> {
        self.shared.at(at)
    }

    /// The process that a lock word names, as this PID namespace has it (0: it has no number in
    /// it); `None`: it is dead, or the service itself.
    pub fn owner_pid(&self, word: u32) -> Option<u32> {
        let index = ((word & OWNER_SLOT) as usize).wrapping_sub(1);
        let slot = self.slot(index).filter(|_| index != SERVICE_SLOT)?;
        let pid = match live::joining_life_of(word) {
            Some(life) => live::pid_of(&self.locks, life),
            None => live::shown_pid(&self.locks, index as u32, slot),
        };
        self.owner_lives(word).then_some(pid)
    }

    /// Live processes apart from the service and its helper.
    pub fn live_processes(&self) -> u32 {
        let used = self.header().slots_used.load(Acquire) as usize;
        let is_alive = |index: &usize| {
            let slot = self.slot(*index);
            let users = slot.filter(|slot| slot.run.load(Relaxed) != RUN_OF_HELPER);
            users.is_some_and(|slot| live::is_alive(&self.locks, *index as u32, slot))
        };
        (0..used.min(SERVICE_SLOT)).filter(is_alive).count() as u32
    }

    /// This process has slot `index`, too.
    #[cfg(test)]
    pub fn pretend_to_be(&self, index: usize) {
        let slot = self.slot(index).unwrap();
        let life = live::life_of(index as u32, slot.generation.load(Relaxed));
        self.locks.hold(life).unwrap();
        slot.state.store(SLOT_LIVE, Relaxed);
    }

    /// Ends the session for all that are in it: their operations fail with `errno`.
    pub fn poison(&self, errno: i32) {
        let header = self.header();
        header.poisoned.store(errno.unsigned_abs().max(1), Release);
        self.tick();
    }

    /// The oldest root that a view of a living process reads, of those that are to be given up:
    /// what is below `bound`; `bound`: there is none. Who pins one later sees that and takes
    /// another. Pins that lag far behind and whose owners are dead go.
    pub fn oldest_view(&self, bound: u64) -> u64 {
        self.header().giving_up.store(bound, SeqCst);
        // Views store what they pin and then look at that.
        fence(SeqCst);
        let mut oldest = bound;
        for pin in self.views() {
            let (owner, seq) = (pin.owner.load(Acquire), pin.seq.load(SeqCst));
            if owner == 0 || seq == 0 {
                continue;
            }
            if bound.saturating_sub(seq) > VIEW_LAG && self.reap_view(pin, owner) {
                continue;
            }
            oldest = seq.min(oldest);
        }
        oldest
    }

    /// Frees the pins of dead processes.
    pub fn reap_views(&self) {
        for pin in self.views() {
            let owner = pin.owner.load(Acquire);
            if owner != 0 {
                self.reap_view(pin, owner);
            }
        }
    }

    /// Frees a pin if its owner is dead.
    fn reap_view(&self, pin: &ViewPin, owner: u32) -> bool {
        let dead = !self.owner_lives(owner);
        if dead {
            // Who takes it, also before that, clears the rest.
            let _ = pin.owner.compare_exchange(owner, 0, AcqRel, Relaxed);
        }
        dead
    }

    /// The files that are mapped, not counting lent ones. They alone are marked: who stores to
    /// blocks of theirs that a snapshot has need not say so.
    pub fn list_mapped(&self) -> Vec<u64> {
        let used = (self.header().inode_used.load(Acquire) as usize).min(INODES);
        let mut listed = Vec::new();
        for inode in (0..used).filter_map(|index| self.inode(index)) {
            let (ino, state) = (inode.ino.load(Relaxed), inode.state.load(Relaxed));
            let is_mapped = inode.maps.load(Relaxed) > 0 && state & INODE_LENT == 0;
            if ino != 0 && is_mapped && state & INODE_VALID != 0 {
                inode.state.fetch_or(INODE_LISTED, Relaxed);
                listed.push(ino);
            } else if state & INODE_LISTED != 0 {
                inode.state.fetch_and(!INODE_LISTED, Relaxed);
            }
        }
        listed
    }

    /// Whether there are files that may be stored to through mappings that no process sees.
    pub fn has_stored_to(&self) -> bool {
        let header = self.header();
        if header.lent_name.load(Acquire) == 0 {
            return false;
        }
        let used = (header.inode_used.load(Acquire) as usize).min(INODES);
        let both = INODE_VALID | INODE_STORED_TO;
        let is_one = |inode: &Inode| inode.state.load(Relaxed) & both == both;
        (0..used).filter_map(|index| self.inode(index)).any(is_one)
    }

    /// Blocks of values that are open as files, in order and apart from each other: the trees may
    /// free them.
    pub fn open_blocks(&self) -> Vec<space::Run> {
        let header = self.header();
        if header.open_values_in_blocks.load(SeqCst) == 0 {
            return Vec::new();
        }
        let used = (header.open_values_used.load(Acquire) as usize).min(OPEN_VALUES);
        let mut runs = Vec::new();
        for index in 0..used {
            if let Some(value) = self.entry::<OpenValue>(OPEN_VALUES_AT, OPEN_VALUES, index) {
                self.add_open(value, &mut runs);
            }
        }
        runs.sort_unstable_by_key(|run: &space::Run| run.start);
        runs.dedup_by(|next, run| {
            let joins = next.start <= run.end();
            if joins {
                run.len = run.end().max(next.end()) - run.start;
            }
            joins
        });
        runs
    }

    fn add_open(&self, value: &OpenValue, runs: &mut Vec<space::Run>) {
        let link = value.inode.load(Acquire);
        if link == 0 || value.in_blocks.load(Relaxed) == 0 {
            return;
        }
        let inode = self.inode((link as usize).wrapping_sub(1));
        let ino = value.ino.load(Relaxed);
        let is_open = |e: &Inode| e.ino.load(Relaxed) == ino && e.opens.load(SeqCst) > 0;
        if !inode.is_some_and(is_open) {
            return;
        }
        let key_len = usize::from(value.key_len.load(Relaxed));
        let end = key_len + usize::from(value.len.load(Relaxed));
        let words = value.words.iter().take(end.div_ceil(8));
        let bytes: Vec<u8> = words.flat_map(|w| w.load(Relaxed).to_le_bytes()).collect();
        // What makes no sense is nobody's value.
        let found = bytes.get(key_len..end).map(InBlocks::decode);
        if let Some(Ok(found)) = found {
            let run = |run: &ValueRun| space::Run::of_data(run.block, run.len.into());
            runs.extend(found.runs().iter().map(run));
        }
    }

    pub fn views(&self) -> impl Iterator<Item = &ViewPin> {
        let used = (self.header().views_used.load(Acquire) as usize).min(VIEWS);
        (0..used).filter_map(|index| self.entry::<ViewPin>(VIEWS_AT, VIEWS, index))
    }

    /// The lowest number above `applied` of which a view wants a root with all records up to it
    /// and none above it.
    pub fn wanted_root(&self, applied: u64) -> u64 {
        let header = self.header();
        let taken = header.next_seq.load(SeqCst).saturating_sub(1);
        header.applying.store(taken, SeqCst);
        // Views store what they want and then look at that.
        fence(SeqCst);
        let wanted = self.views().map(|pin| pin.wanted.load(SeqCst));
        let wanted = wanted.filter(|wanted| *wanted > applied).min();
        wanted.unwrap_or(u64::MAX)
    }

    /// Gives these roots, of the commit `seq`, to the views that want what they have: every record
    /// up to `applied`, of which `newest` is the last one that exists.
    pub fn serve_views(&self, (newest, applied): (u64, u64), seq: u64, roots: [u64; 4]) {
        let mut served = false;
        for pin in self.views() {
            let wanted = pin.wanted.load(Acquire);
            if (newest..=applied).contains(&wanted)
                && wanted != 0
                && pin.served.load(Relaxed) != wanted
            {
                pin.served_seq.store(seq, Relaxed);
                for (word, root) in pin.served_roots.iter().zip(roots) {
                    word.store(root, Relaxed);
                }
                pin.served.store(wanted, Release);
                served = true;
            }
        }
        if served {
            self.tick();
        }
    }

    /// Wakes all who wait for something that the service does.
    pub fn tick(&self) {
        let tick = &self.header().applied_tick;
        tick.fetch_add(1, Release);
        futex::wake(tick, u32::MAX);
    }

    /// What a client found in session memory that cannot be.
    pub fn finding(&self) -> Option<Finding> {
        self.header().broken.finding()
    }

    /// Stray stores that were stopped, as processes have counted them.
    pub fn strays(&self) -> u64 {
        self.header().strays.load(Relaxed)
    }

    /// Copies that stopped because the medium has lost bytes, as processes have counted them.
    pub fn media_errors(&self) -> u64 {
        self.header().media_errors.load(Relaxed)
    }

    /// What mapping caches and map-ahead did, as processes have counted it.
    pub fn mapped(&self) -> [u64; 4] {
        let mapped = &self.header().mapped;
        core::array::from_fn(|n| mapped[n].load(Relaxed))
    }

    /// Blocks that were lost, as processes say.
    pub fn lost_blocks(&self) -> [u64; LOST_BLOCKS] {
        self.header()
            .lost_blocks
            .each_ref()
            .map(|lost| lost.load(Relaxed))
    }

    /// Nobody may map less of the data segment than it may have, until `data_grew` is called;
    /// false: somebody does already.
    pub fn let_data_grow(&self) -> bool {
        let growth = &self.header().data_growth;
        let now = growth.compare_exchange(DATA_MAY_GROW, DATA_GROWS, SeqCst, SeqCst);
        now != Err(DATA_MAY_NOT_GROW)
    }

    /// The data segment has this length.
    pub fn data_grew(&self, len: u64) {
        let header = self.header();
        header.data_len.store(len, SeqCst);
        let growth = &header.data_growth;
        let _ = growth.compare_exchange(DATA_GROWS, DATA_MAY_GROW, SeqCst, SeqCst);
    }

    /// Whether the session was given up, by us or by a client.
    pub fn is_poisoned(&self) -> bool {
        self.header().poisoned.load(Acquire) != 0
    }

    /// Wakes the service out of its sleep.
    pub fn ring(&self) {
        let header = self.header();
        header.doorbell.fetch_add(1, Release);
        futex::wake(&header.doorbell, u32::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONSTANTS: Constants = Constants {
        consistency: 0,
        medium: 0,
        data_len: 1 << 24,
        data_room: 1 << 28,
        lane_len: 1 << 20,
    };

    #[test]
    fn what_a_service_was_growing_when_it_died_may_grow_again() {
        let memory = Memory::create("test", &CONSTANTS).unwrap();
        assert!(memory.let_data_grow());
        let larger = Constants {
            data_len: 1 << 26,
            ..CONSTANTS
        };
        let again = memory.fd().try_clone().unwrap();
        let adopted = Memory::adopt(again, &larger).unwrap();
        let header = adopted.header();
        assert_eq!(header.data_len.load(Relaxed), 1 << 26);
        assert_eq!(header.data_growth.load(Relaxed), DATA_MAY_GROW);
        header.data_growth.store(DATA_MAY_NOT_GROW, Relaxed);
        assert!(!adopted.let_data_grow());
        adopted.data_grew(1 << 26);
        assert_eq!(header.data_growth.load(Relaxed), DATA_MAY_NOT_GROW);
    }

    #[test]
    fn memory_can_be_adopted_and_other_files_cannot() {
        let memory = Memory::create("test", &CONSTANTS).unwrap();
        let again = memory.fd().try_clone().unwrap();
        assert!(memory.is_same(&again));
        let adopted = Memory::adopt(again, &CONSTANTS).unwrap();
        assert_eq!(adopted.header().service_generation.load(Relaxed), 2);
        let other = Constants {
            data_len: 4096,
            ..CONSTANTS
        };
        let fd = memory.fd().try_clone().unwrap();
        assert!(matches!(Memory::adopt(fd, &other), Err(Error::NotASession)));
        let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
        assert!(Memory::adopt(file, &CONSTANTS).is_err());
        let unsealed = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&unsealed, SESSION_LEN as u64).unwrap();
        assert!(matches!(
            Memory::adopt(unsealed, &CONSTANTS),
            Err(Error::NotASession)
        ));
    }

    #[test]
    fn the_service_is_alive_but_not_counted() {
        let memory = Memory::create("test", &CONSTANTS).unwrap();
        assert_eq!(memory.live_processes(), 0);
        let service = SERVICE_SLOT as u32 + 1;
        let waited_for = service | 1 << 31;
        assert!(memory.owner_lives(service) && memory.owner_lives(waited_for));
        assert!(!memory.owner_lives(0) && !memory.owner_lives(1) && !memory.owner_lives(9999));
        memory.slot(3).unwrap().state.store(SLOT_LIVE, Relaxed);
        memory.header().slots_used.store(4, Relaxed);
        assert_eq!(memory.live_processes(), 0);
        memory.pretend_to_be(3);
        assert_eq!(memory.live_processes(), 1);
        memory.locks.leave(live::life_of(3, 0));
        assert_eq!(memory.live_processes(), 0);
        // Copies that others had of the descriptor do not matter to the service.
        drop(memory.fd().try_clone().unwrap());
        assert!(memory.owner_lives(service));
    }
}
