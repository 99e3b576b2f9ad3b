//! What a program's mappings of the host's files cost, and what would help (`map explain`).
//!
//! Invariants: where no record asks for it, nothing here runs but `is_on`. What the program sees is
//! what it sees without. What a cache would have given out again is asked of the very lists that
//! the cache is made of, at addresses that nothing is at. A mapping's pages are looked at once,
//! just before it goes.

use super::ahead::{Counted, Pagemap};
use super::cache::{Cache, Key, Limits, Span, Unmapped};
use super::file::{self, TMPFS};
use super::{Args, PAGE, count};
use crate::dispatch::mutex::Mutex;
use crate::dispatch::nr;
use crate::sys;
use alloc::collections::BTreeMap;
use alloc::format;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use holdfast_client::map_record::{CLASS_ENDS, MapRecord, Sum, WATCH};
use holdfast_pmem::env;

const PROT_READ: usize = 1;
const PROT_EXEC: usize = 4;
/// The loader says this of what it maps.
const MAP_DENYWRITE: usize = 0x800;
const HUGE: usize = 2 << 20;
/// More mappings at a time are not looked at.
const LIVE_MAX: usize = 4096;
/// More mappings that went are not remembered.
const GONE_MAX: usize = 16384;
/// The cache of the run's limits, and the one without any.
const LIMITED: usize = 0;
const BOUNDLESS: usize = 1;

static ON: AtomicBool = AtomicBool::new(false);
/// Nothing is done for mappings, so that what they cost is what they cost without Holdfast.
static PASSIVE: AtomicBool = AtomicBool::new(false);
/// How many mappings are live.
static LIVE: AtomicUsize = AtomicUsize::new(0);
/// Of the first cache: bytes, mappings, milliseconds, and whether only what comes again is kept.
static LIMITS: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];
static STATE: Mutex<State> = Mutex::new(State::new());

struct State {
    live: BTreeMap<usize, Live>,
    /// What a mapping that went took in faults, by what it was of.
    gone: BTreeMap<Key, u64>,
    caches: [Cache; 2],
    /// Where the next mapping of `caches` is.
    next: usize,
    /// Nothing could be kept any more.
    stopped: bool,
}

/// A mapping of the program.
#[derive(Clone, Copy)]
struct Live {
    len: usize,
    map_ns: u64,
    /// Its entries were there when the program got it, as far as `before` says.
    reused: bool,
    /// What it could be kept as.
    key: Option<Key>,
    /// Of the file, for its sums; 0: of a file that is not memory.
    memory_file: u64,
    in_caches: [Place; 2],
    /// What the last mapping of the same took in faults.
    before: Option<u64>,
}

#[derive(Clone, Copy)]
enum Place {
    Nowhere,
    Kept(usize),
    /// It would have been given out again.
    Again(usize),
}

impl State {
    const fn new() -> State {
        State {
            live: BTreeMap::new(),
            gone: BTreeMap::new(),
            caches: [Cache::new(), Cache::new()],
            next: PAGE,
            stopped: false,
        }
    }

    fn set_limits(&mut self) {
        let [bytes, entries, idle_ms, again] = LIMITS.each_ref().map(|n| n.load(Relaxed));
        let limits = Limits {
            bytes,
            entries,
            idle_ms: idle_ms as u64,
            again: again != 0,
        };
        let all = Limits {
            bytes: usize::MAX / 2,
            entries: GONE_MAX,
            ..limits
        };
        self.caches[LIMITED].set_limits(limits);
        self.caches[BOUNDLESS].set_limits(all);
    }

    /// Where a mapping of this key would be in one of the caches.
    fn place(&mut self, which: usize, key: &Key) -> Place {
        let (at, cache) = (self.next, &mut self.caches[which]);
        if let Some(taken) = cache.take(key) {
            return Place::Again(taken.addr);
        }
        if !cache.admits(key) {
            return Place::Nowhere;
        }
        self.next += key.len + PAGE;
        cache.add(at, *key);
        Place::Kept(at)
    }

    /// A mapping of which a part is in the range is live no more.
    fn take_within(&mut self, addr: usize, end: usize) -> Option<(usize, Live)> {
        let (at, live) = self.live.range(..end).next_back()?;
        let found = (*at, *live);
        (found.0 + found.1.len > addr).then(|| {
            self.live.remove(&found.0);
            found
        })
    }

    /// The mapping goes; whole: so that it could be kept.
    fn leave(&mut self, live: &Live, whole: bool) {
        let Some(key) = live.key else { return };
        let now = env::monotonic_ms();
        for (cache, place) in self.caches.iter_mut().zip(live.in_caches) {
            let (Place::Kept(addr) | Place::Again(addr)) = place else {
                continue;
            };
            let span = Span { addr, len: key.len };
            match cache.unmapped(span) {
                Unmapped::Whole { .. } if whole && !self.stopped => cache.keep(addr, now),
                _ => cache.forget(span),
            }
            while cache
                .pop_excess()
                .or_else(|| cache.pop_expired(now))
                .is_some()
            {}
        }
    }
}

/// Before the program's first instruction, if the run's record asks for it.
pub fn start(limits: Limits, record: &MapRecord) {
    let watch = record.watch.load(Relaxed);
    record.add(Sum::Programs, 1);
    let words = [
        limits.bytes,
        limits.entries,
        limits.idle_ms as usize,
        limits.again.into(),
    ];
    for (limit, word) in LIMITS.iter().zip(words) {
        limit.store(word, Relaxed);
    }
    STATE.lock().set_limits();
    PASSIVE.store(watch == WATCH, Relaxed);
    ON.store(true, Relaxed);
}

#[inline]
pub fn is_on() -> bool {
    ON.load(Relaxed)
}

/// Whether nothing is to be done for mappings.
#[inline]
pub fn is_passive() -> bool {
    PASSIVE.load(Relaxed)
}

fn record() -> Option<&'static MapRecord> {
    count::record().filter(|_| is_on() && !crate::process::in_shared_child())
}

pub fn now_ns() -> u64 {
    const CLOCK_MONOTONIC: usize = 1;
    let mut time = [0u64; 2];
    let args = [CLOCK_MONOTONIC, time.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: the kernel writes a struct timespec, which is as long.
    unsafe { sys::raw(sys::nr::CLOCK_GETTIME, args) };
    time[0] * 1_000_000_000 + time[1]
}

/// A file of the host was mapped at `addr`, in `ns`; `reused`: what was kept was given out.
pub fn mapped(addr: usize, a: &Args, ns: u64, reused: bool) {
    let [_, len, prot, flags, fd, _] = *a;
    let read = prot & (PROT_READ | PROT_EXEC) == PROT_READ && flags & MAP_DENYWRITE == 0;
    let (Some(record), true) = (record(), read) else {
        return;
    };
    let class = CLASS_ENDS.iter().filter(|end| len as u64 >= **end).count();
    let class = [Sum::Class0, Sum::Class1, Sum::Class2, Sum::Class3][class];
    let sums = [
        (Sum::Maps, 1),
        (Sum::MapNs, ns),
        (Sum::Bytes, len as u64),
        (class, 1),
    ];
    sums.into_iter().for_each(|(sum, n)| record.add(sum, n));
    let key = fit(a).map_err(|why| record.add(why, 1)).ok();
    let memory = len >= HUGE && file::kind_of_system(fd) == Some(TMPFS);
    let memory_file = match sys::stat_fd(fd).filter(|_| memory) {
        Some(stat) => (stat.dev << 48 ^ stat.ino).max(1),
        None => 0,
    };
    if memory_file != 0 {
        record.add_file(memory_file, |out| name_of(fd, out));
    }
    let mut state = STATE.lock();
    // A call that unmapped it was missed.
    while state.take_within(addr, addr + len).is_some() {}
    if state.live.len() >= LIVE_MAX {
        return;
    }
    let (mut in_caches, mut before) = ([Place::Nowhere; 2], None);
    if let Some(key) = key {
        before = state.gone.get(&key).copied();
        in_caches = [LIMITED, BOUNDLESS].map(|which| state.place(which, &key));
    }
    let repeated = u64::from(before.is_some());
    record.add(Sum::Repeats, repeated);
    let live = Live {
        len: len.next_multiple_of(PAGE),
        map_ns: ns,
        reused,
        key,
        memory_file,
        in_caches,
        before,
    };
    state.live.insert(addr, live);
    LIVE.store(state.live.len(), Relaxed);
}

/// What the mapping could be kept as, or why it cannot.
fn fit(a: &Args) -> Result<Key, Sum> {
    const F_GETFL: usize = 3;
    const O_ACCMODE: isize = 3;
    let [addr, len, prot, flags, fd, offset] = *a;
    let len = len.next_multiple_of(PAGE);
    if super::is_short(len) {
        return Err(Sum::UnfitShort);
    }
    if super::is_long(len) {
        return Err(Sum::UnfitLong);
    }
    if !super::is_plain(addr, prot, flags, offset) {
        return Err(Sum::UnfitManner);
    }
    // SAFETY: asks for flags; touches no memory.
    if unsafe { sys::raw(nr::FCNTL, [fd, F_GETFL, 0, 0, 0, 0]) } & O_ACCMODE != 0 {
        return Err(Sum::UnfitWriter);
    }
    let file = file::of(fd).ok_or(Sum::UnfitSystem)?;
    Ok(file.key(a, len))
}

fn name_of(fd: usize, out: &mut [u8]) -> usize {
    let path = format!("/proc/self/fd/{fd}\0");
    let args = [
        path.as_ptr() as usize,
        out.as_mut_ptr() as usize,
        out.len(),
        0,
        0,
        0,
    ];
    // SAFETY: the kernel reads the path, which ends with NUL, and fills at most all of `out`.
    (unsafe { sys::raw(nr::READLINK, args) }).max(0) as usize
}

/// A mapping that is about to be unmapped as a whole.
#[derive(Clone, Copy)]
pub struct Going {
    live: Live,
    faults: u64,
}

/// Before a range is unmapped: the mapping, if the range is one.
pub fn going(addr: usize, len: usize) -> Option<Going> {
    if LIVE.load(Relaxed) == 0 {
        return None;
    }
    let len = len.checked_next_multiple_of(PAGE)?;
    let record = record()?;
    let mut state = STATE.lock();
    let live = *state.live.get(&addr).filter(|live| live.len == len)?;
    state.live.remove(&addr);
    LIVE.store(state.live.len(), Relaxed);
    let counted = look_at(record, addr, &live);
    state.leave(&live, true);
    if let Some(key) = live.key
        && (state.gone.len() < GONE_MAX || state.gone.contains_key(&key))
    {
        state.gone.insert(key, counted.faults);
    }
    let [idle, mappings] = [
        state.caches[BOUNDLESS].idle_bytes(),
        state.caches[BOUNDLESS].idle_count(),
    ];
    record.most(Sum::IdleBytes, idle as u64);
    record.most(Sum::IdleMappings, mappings as u64);
    Some(Going {
        live,
        faults: counted.faults,
    })
}

/// It is unmapped, by a call that took `ns`.
pub fn went(going: &Going, ns: u64) {
    let Some(record) = record() else { return };
    record.add(Sum::Unmaps, 1);
    record.add(Sum::UnmapNs, ns);
    let Going { live, faults } = going;
    let spared = live.before.unwrap_or(0).min(*faults);
    let sums = [
        (LIMITED, Sum::Hits, Sum::HitNs, Sum::HitFaults),
        (BOUNDLESS, Sum::AllHits, Sum::AllHitNs, Sum::AllHitFaults),
    ];
    for (which, hits, time, spared_faults) in sums {
        if matches!(live.in_caches[which], Place::Again(_)) {
            record.add(hits, 1);
            record.add(time, live.map_ns + ns);
            record.add(spared_faults, spared);
        }
    }
}

fn look_at(record: &MapRecord, addr: usize, live: &Live) -> Counted {
    let Some(pages) = Pagemap::open() else {
        return Counted::default();
    };
    let counted = pages.count(addr, addr + live.len);
    let known = live.before.filter(|_| live.reused).unwrap_or(0);
    let faults = counted.faults.saturating_sub(known);
    let sums = [
        (Sum::Looked, 1),
        (Sum::Pages, (live.len / PAGE) as u64),
        (Sum::Mapped, counted.pages),
        (Sum::Faults, faults),
        (Sum::HugePages, counted.huge),
    ];
    sums.into_iter().for_each(|(sum, n)| record.add(sum, n));
    if live.memory_file != 0 {
        let small = faults.saturating_sub(counted.huge);
        record.add(Sum::FaultsSmall, small);
        // The file is there already, unless there was no room.
        record.add_file_faults(live.memory_file, small);
    }
    counted
}

/// Before addresses are unmapped in part, replaced, moved or protected, or the program ends.
pub fn gone(addr: usize, len: usize) {
    if LIVE.load(Relaxed) == 0 {
        return;
    }
    let Some(record) = record() else { return };
    let end = addr.saturating_add(len.max(1));
    let mut state = STATE.lock();
    while let Some((at, live)) = state.take_within(addr, end) {
        look_at(record, at, &live);
        state.leave(&live, false);
    }
    LIVE.store(state.live.len(), Relaxed);
}

/// Before the program ends or executes another.
pub fn ending() {
    gone(0, usize::MAX);
}

/// The program gave advice on addresses.
pub fn advised(advice: usize) {
    let sum = match advice {
        1 => Sum::Random,
        2 => Sum::Sequential,
        3 => Sum::WillNeed,
        4 => Sum::DontNeed,
        _ => return,
    };
    if let Some(record) = record().filter(|_| LIVE.load(Relaxed) > 0) {
        record.add(sum, 1);
    }
}

/// A long mapping was read in order, or was seen not to be.
pub fn order(bytes: Option<usize>) {
    let Some(record) = record() else { return };
    match bytes {
        Some(bytes) => {
            record.add(Sum::InOrder, 1);
            record.add(Sum::InOrderBytes, bytes as u64);
        }
        None => record.add(Sum::NotInOrder, 1),
    }
}

/// Nothing can be done for the program's mappings from now on.
pub fn stopped(why: Sum) {
    if let Some(record) = record() {
        let mut state = STATE.lock();
        if !core::mem::replace(&mut state.stopped, true) {
            record.add(why, 1);
        }
    }
}

/// Before a fork: nobody changes the lists while the value lives.
pub fn hold_still() -> Option<impl Sized> {
    is_on().then(|| STATE.lock())
}

/// In a forked child: what its parent mapped is counted there.
pub fn forked() {
    if is_on() {
        STATE.renew(State::new());
        STATE.lock().set_limits();
        LIVE.store(0, Relaxed);
    }
}
