//! The service's view of session memory, every byte of which clients can write.
//!
//! Invariants: nothing read here is used before it was checked, and nothing here waits for a
//! value or loops as often as one says; accessors answer `None` where an index is out of range.
//! The service holds the last process slot, so that locks it takes have an owner who is alive.

use crate::error::{Error, Result};
use crate::process;
use holdfast_pmem::{Shared, SharedMem, futex};
use holdfast_pool::session::*;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::SealFlags;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*, fence};

/// Slot of the service.
pub const SERVICE_SLOT: usize = SLOTS - 1;
/// How lock words name the service.
const OWNER: u32 = SERVICE_SLOT as u32 + 1;
/// Somebody may sleep on a lock word.
const WAITERS: u32 = 1 << 31;
/// A view this many commits behind is asked whether its process lives.
const VIEW_LAG: u64 = 16;
/// A slot that is a process.
const SLOT_SETUP: u32 = 1;
const SLOT_LIVE: u32 = 2;

/// What stays the same for as long as a session lives.
#[derive(Clone, Copy, Debug)]
pub struct Constants {
    /// 0 posix, 1 sync, 2 strict.
    pub consistency: u32,
    /// 0 memory, 1 file, 2 dax.
    pub medium: u32,
    /// Bytes of the data segment.
    pub data_len: u64,
    /// Bytes of one journal lane.
    pub lane_len: u64,
}

/// Session memory and its descriptor.
pub struct Memory {
    fd: OwnedFd,
    shared: SharedMem,
}

impl Memory {
    /// New memory, all zero but for what `constants` say. `name` shows in /proc.
    pub fn create(name: &str, constants: &Constants) -> Result<Memory> {
        let len = session_len(constants.medium, constants.data_len);
        let (fd, shared) = SharedMem::create_memfd(name, len as usize)?;
        let memory = Memory { fd, shared };
        let header = memory.header();
        header.len.store(len, Relaxed);
        header.consistency.store(constants.consistency, Relaxed);
        header.medium.store(constants.medium, Relaxed);
        header.data_len.store(constants.data_len, Relaxed);
        header.lane_len.store(constants.lane_len, Relaxed);
        memory.register();
        header.magic.store(MAGIC, Release);
        Ok(memory)
    }

    /// Memory that an earlier service made. It must be sealed and be of this layout and pool.
    pub fn adopt(fd: OwnedFd, constants: &Constants) -> Result<Memory> {
        let stat = rustix::fs::fstat(&fd).map_err(Error::os("session memory"))?;
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|_| Error::NotASession)?;
        let sealed = seals.contains(SealFlags::SHRINK | SealFlags::GROW);
        let len = session_len(constants.medium, constants.data_len);
        if !sealed || (stat.st_size as u64) < len {
            return Err(Error::NotASession);
        }
        let shared = SharedMem::map(fd.as_fd(), SESSION_LEN)?;
        let memory = Memory { fd, shared };
        let header = memory.header();
        let same = header.magic.load(Acquire) == MAGIC
            && header.lane_len.load(Relaxed) == constants.lane_len
            && header.data_len.load(Relaxed) == constants.data_len;
        if !same {
            return Err(Error::NotASession);
        }
        memory.register();
        Ok(memory)
    }

    /// Makes this process the service of the session.
    fn register(&self) {
        let header = self.header();
        let (pid, start) = (std::process::id(), process::start_time(std::process::id()));
        if let Some(slot) = self.slot(SERVICE_SLOT) {
            slot.pid.store(pid, Relaxed);
            slot.start_time.store(start.unwrap_or(0), Relaxed);
            slot.generation.fetch_add(1, Relaxed);
            slot.state.store(SLOT_LIVE, Release);
        }
        header.service_start.store(start.unwrap_or(0), Relaxed);
        header.service_sleeps.store(0, Relaxed);
        header.service_pid.store(pid, Release);
        header.service_generation.fetch_add(1, Release);
    }

    /// The descriptor, to send to clients.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
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

    /// Grant `index`.
    pub fn grant(&self, index: usize) -> Option<&Grant> {
        self.entry(GRANTS_AT, GRANTS, index)
    }

    /// How far the rings of fragments are filled and emptied.
    pub fn rings(&self) -> &Rings {
        match self.shared.at(RINGS_AT as u64) {
            Some(rings) => rings,
            // As for the header.
            None => unreachable!(),
        }
    }

    /// Where run number `at` of ring `index` stands.
    pub fn ring_word(&self, index: usize, at: u64) -> Option<&AtomicU64> {
        let ring: &Ring = self.entry(RING_AT, RINGS, index)?;
        ring.runs.get(at as usize % RING_RUNS)
    }

    /// Runs `f` with a lock of the session held, if nobody has it now. Never waits.
    pub fn with_lock<T>(&self, word: &AtomicU32, f: impl FnOnce() -> T) -> Option<T> {
        word.compare_exchange(0, OWNER, Acquire, Relaxed).ok()?;
        let value = f();
        if word.swap(0, Release) & WAITERS != 0 {
            futex::wake(word, u32::MAX);
        }
        Some(value)
    }

    /// Frees a lock that an earlier service of this session held when it died.
    pub fn break_own_lock(&self, word: &AtomicU32) {
        let held = word.load(Acquire);
        if held & !WAITERS == OWNER && word.compare_exchange(held, 0, AcqRel, Relaxed).is_ok() {
            futex::wake(word, u32::MAX);
        }
    }

    /// Whether the owner that a lock word names may still be at work.
    pub fn owner_lives(&self, word: u32) -> bool {
        let index = ((word & OWNER_SLOT) as usize).wrapping_sub(1);
        let Some(slot) = self.slot(index) else {
            return false;
        };
        let epoch = slot.epoch.load(Acquire) << OWNER_SLOT.count_ones();
        let same = index == SERVICE_SLOT || (word ^ epoch) & OWNER_EPOCH == 0;
        same && is_alive(slot)
    }

    /// Live processes apart from the service.
    pub fn live_processes(&self) -> u32 {
        let slots = (0..SERVICE_SLOT).filter_map(|index| self.slot(index));
        slots.filter(|slot| is_alive(slot)).count() as u32
    }

    /// Ends the session for all that are in it: their operations fail with `errno`.
    pub fn poison(&self, errno: i32) {
        let header = self.header();
        header.poisoned.store(errno.unsigned_abs().max(1), Release);
        self.tick();
    }

    /// The oldest root that a view of a living process reads; 0: there is none. Pins that lag far
    /// behind `current` and whose owners are dead go.
    pub fn oldest_view(&self, current: u64) -> u64 {
        let used = (self.header().views_used.load(Acquire) as usize).min(VIEWS);
        let mut oldest = 0;
        for index in 0..used {
            let Some(pin) = self.entry::<ViewPin>(VIEWS_AT, VIEWS, index) else {
                break;
            };
            let (owner, seq) = (pin.owner.load(Acquire), pin.seq.load(Acquire));
            if owner == 0 || seq == 0 {
                continue;
            }
            if current.saturating_sub(seq) > VIEW_LAG && !self.owner_lives(owner) {
                pin.seq.store(0, Relaxed);
                let _ = pin.owner.compare_exchange(owner, 0, AcqRel, Relaxed);
                continue;
            }
            oldest = if oldest == 0 { seq } else { seq.min(oldest) };
        }
        oldest
    }

    fn views(&self) -> impl Iterator<Item = &ViewPin> {
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

    /// Whether the session was poisoned, by us or by a client.
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

fn is_alive(slot: &Slot) -> bool {
    for _ in 0..LOOKS_MAX {
        let (generation, state) = (slot.generation.load(Acquire), slot.state.load(Acquire));
        let (pid, start) = (slot.pid.load(Acquire), slot.start_time.load(Acquire));
        if slot.state.load(Acquire) != state || slot.generation.load(Acquire) != generation {
            // It has just been taken, or taken over: its fields may be of two processes.
            continue;
        }
        return match state {
            SLOT_SETUP => pid != 0 && process::lives(pid, 0),
            SLOT_LIVE => pid != 0 && process::lives(pid, start),
            _ => false,
        };
    }
    true
}

/// So often a slot may change hands while it is looked at.
const LOOKS_MAX: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    const CONSTANTS: Constants = Constants {
        consistency: 0,
        medium: 0,
        data_len: 1 << 24,
        lane_len: 1 << 20,
    };

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
        assert!(memory.owner_lives(OWNER) && memory.owner_lives(OWNER | WAITERS));
        assert!(!memory.owner_lives(0) && !memory.owner_lives(1) && !memory.owner_lives(9999));
        let slot = memory.slot(3).unwrap();
        slot.pid.store(std::process::id(), Relaxed);
        slot.start_time
            .store(process::start_time(std::process::id()).unwrap(), Relaxed);
        slot.state.store(SLOT_LIVE, Relaxed);
        assert_eq!(memory.live_processes(), 1);
        slot.start_time.fetch_add(1, Relaxed);
        assert_eq!(memory.live_processes(), 0);
    }

    #[test]
    fn locks_are_only_tried() {
        let memory = Memory::create("test", &CONSTANTS).unwrap();
        let word = &memory.header().grants_lock;
        assert_eq!(memory.with_lock(word, || 5), Some(5));
        word.store(7, Relaxed);
        assert_eq!(memory.with_lock(word, || 5), None);
        memory.break_own_lock(word);
        assert_eq!(word.load(Relaxed), 7);
        word.store(OWNER | WAITERS, Relaxed);
        memory.break_own_lock(word);
        assert_eq!(word.load(Relaxed), 0);
    }
}
