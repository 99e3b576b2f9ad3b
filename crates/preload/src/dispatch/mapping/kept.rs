//! The mapping cache of this process: its list, and the calls by which kept mappings come and go.
//!
//! Invariants: while the list says that addresses are idle they are mapped, and nothing of the
//! program's is there. So an idle mapping is unmapped under the lock, and who maps something at
//! addresses of its choice has them cleared before. A forked child inherits no idle mapping. Where
//! the cache is off the lock is not touched.

use super::cache::{Cache, Key, Limits, Span, Unmapped};
use super::count::{self, What};
use super::pressure;
use crate::dispatch::mutex::{Mutex, MutexGuard};
use crate::dispatch::nr;
use crate::sys;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use holdfast_pmem::env;

const MADV_NORMAL: usize = 0;
const MADV_DONTFORK: usize = 10;
const MADV_DOFORK: usize = 11;
const MADV_POPULATE_READ: usize = 22;
pub const MAP_POPULATE: usize = 0x8000;

static CACHE: Mutex<Cache> = Mutex::new(Cache::new());
static ON: AtomicBool = AtomicBool::new(false);
/// How many mappings are idle: whether a look at them is worth the lock.
static IDLE: AtomicUsize = AtomicUsize::new(0);
/// When it was last looked for those whose time is over, in ticks of the processor.
static SWEPT: AtomicU64 = AtomicU64::new(0);
/// How often it was said that all has to go, as far as is known here.
static DROPS: AtomicU32 = AtomicU32::new(0);
/// Some tenth of a second.
const SWEEP_TICKS: u64 = 1 << 28;

/// Before the program's first instruction.
pub fn start(limits: Limits, drops: u32) {
    DROPS.store(drops, Relaxed);
    CACHE.lock().set_limits(limits);
    ON.store(limits.bytes > 0, Relaxed);
}

/// Whether mappings are kept in this process.
#[inline]
pub fn is_on() -> bool {
    ON.load(Relaxed)
}

/// Whether no mapping is idle, as far as can be said without the lock.
#[inline]
pub fn is_empty() -> bool {
    IDLE.load(Relaxed) == 0
}

/// The list, until dropped; it tells how many are idle then.
struct Held(MutexGuard<'static, Cache>);

fn hold() -> Held {
    Held(CACHE.lock())
}

impl Drop for Held {
    fn drop(&mut self) {
        IDLE.store(self.0.idle_count(), Relaxed);
    }
}

fn madvise(span: Span, advice: usize) -> bool {
    // SAFETY: none of the advice of this module changes what the pages hold, and the span is one
    // mapping that the list has.
    unsafe { sys::raw(nr::MADVISE, [span.addr, span.len, advice, 0, 0, 0]) == 0 }
}

/// Of an idle mapping, under the lock.
fn unmap(span: Span) {
    // SAFETY: it is nobody's.
    unsafe { sys::unmap(span.addr, span.len) };
    count::add(What::Evicted, 1);
}

/// What there is for a mapping of a key.
pub enum Found {
    /// An idle mapping, which now is the program's.
    Idle(usize),
    /// Nothing; one that is made can be kept, and is to be told by `add`.
    Nothing,
    /// Nothing, and it is not worth keeping.
    New,
}

/// Looks for an idle mapping.
pub fn find(key: &Key) -> Found {
    if let Some(addr) = take(key) {
        return Found::Idle(addr);
    }
    count::add(What::Misses, 1);
    match hold().0.admits(key) {
        true => Found::Nothing,
        false => Found::New,
    }
}

fn take(key: &Key) -> Option<usize> {
    let len = key.len;
    let taken = loop {
        let mut held = hold();
        let taken = held.0.take(key)?;
        let span = Span {
            addr: taken.addr,
            len,
        };
        if !taken.alone || madvise(span, MADV_DOFORK) {
            break span;
        }
        held.0.forget(span);
        unmap(span);
    };
    if key.flags & MAP_POPULATE != 0 {
        // As with mmap(2), whose result does not depend on it.
        madvise(taken, MADV_POPULATE_READ);
    }
    count::add(What::Hits, 1);
    count::add(What::Bytes, len as u64);
    Some(taken.addr)
}

/// A new mapping that could be kept.
pub fn add(addr: usize, key: Key) {
    hold().0.add(addr, key);
}

/// The program unmaps a range: whether that is done, as it was a whole mapping and is kept.
pub fn keep(span: Span) -> bool {
    if !is_on() {
        return false;
    }
    // Before the lock: a signal may interrupt it.
    let now = env::monotonic_ms();
    let is_short = pressure::is_short(now);
    if is_short {
        give_way();
    }
    let mut held = hold();
    let Unmapped::Whole { advised } = held.0.unmapped(span) else {
        return false;
    };
    if is_short || crate::process::is_shared() || advised && !madvise(span, MADV_NORMAL) {
        return false;
    }
    held.0.keep(span.addr, now);
    count::add(What::Kept, 1);
    while let Some(span) = held.0.pop_excess().or_else(|| held.0.pop_expired(now)) {
        unmap(span);
    }
    true
}

/// Nothing is mapped at these addresses that the program does not know of.
pub fn clear(span: Span) {
    if is_empty() || !is_on() {
        return;
    }
    let mut held = hold();
    while let Some(idle) = held.0.pop_within(span) {
        unmap(idle);
    }
}

/// As `clear`; the program's own mappings there will not be kept.
pub fn lose(span: Span) {
    if is_on() {
        clear(span);
        hold().0.forget(span);
    }
}

/// What was known of these addresses is not so any more: something was just mapped there.
pub fn forget(span: Span) {
    if is_on() {
        hold().0.forget(span);
    }
}

/// The program gave advice that the kernel remembers.
pub fn advise(span: Span) {
    if is_on() {
        hold().0.advise(span);
    }
}

/// Unmaps all that is idle; whether there was anything.
pub fn give_way() -> bool {
    if is_empty() || !is_on() {
        return false;
    }
    let mut held = hold();
    let some = held.0.idle_count() > 0;
    while let Some(span) = held.0.pop_oldest() {
        unmap(span);
    }
    some
}

/// No mapping of the file is kept.
pub fn let_go(dev: u64, ino: u64) {
    if !is_on() {
        return;
    }
    let mut held = hold();
    held.0.forget_file(dev, ino);
    while let Some(span) = held.0.pop_file(dev, ino) {
        unmap(span);
    }
}

/// From now on nothing is kept in this process.
pub fn stop() {
    give_way();
    ON.store(false, Relaxed);
}

/// Now and then: what nobody used again for long goes; all of it, if `drops` has risen.
#[inline]
pub fn sweep(drops: u32) {
    if DROPS.load(Relaxed) != drops {
        DROPS.store(drops, Relaxed);
        give_way();
    }
    let ticks = env::ticks();
    if ticks.wrapping_sub(SWEPT.load(Relaxed)) > SWEEP_TICKS {
        SWEPT.store(ticks, Relaxed);
        sweep_now();
    }
}

#[cold]
fn sweep_now() {
    if is_empty() || !is_on() {
        return;
    }
    let now = env::monotonic_ms();
    if pressure::is_short(now) {
        give_way();
        return;
    }
    let mut held = hold();
    while let Some(span) = held.0.pop_expired(now) {
        unmap(span);
    }
}

/// Before a fork: no idle mapping is inherited, and the list stays as it is while the value lives.
/// Those of earlier forks are known, so a program that forks often pays for each once.
pub fn hold_still() -> Option<impl Sized> {
    if !is_on() {
        return None;
    }
    let mut held = hold();
    for span in held.0.set_apart() {
        if !madvise(span, MADV_DONTFORK) {
            held.0.forget(span);
            unmap(span);
        }
    }
    Some(held)
}

/// In a forked child. `still`: its parent held the list.
pub fn forked(still: bool) {
    match still {
        true if is_on() => hold().0.forget_idle(),
        true => {}
        // Another thread of the parent may have been at it.
        false => ON.store(false, Relaxed),
    }
}
