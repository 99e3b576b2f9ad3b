//! Words of shared memory under a scheduler: for tests of which stores are visible to whom, and
//! when.
//!
//! What always holds here:
//! - Threads are shuttle's, and one runs at a time. At each access another thread may continue.
//! - A relaxed store waits in the thread's buffer and becomes visible at any later point, in any
//!   order with stores to other words. What comes before a release is visible when the release is.
//!   Bytes stored around the cache wait for a fence. A thread sees its own stores at once.
//! - Loads see what is visible; early loads are not modelled.
//! - Time is virtual. Reading it and yielding take a step of it; the rest passes when all threads
//!   that take part in time ([`Part`]) wait, up to the moment when the first of them is due.
//!   Threads that do not take part return at once from every wait.

extern crate std;

use crate::futex::WaitResult;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::sync::atomic::{self as real, Ordering};
use core::time::Duration;
use std::collections::BTreeMap;

/// A store that nobody else sees yet.
struct Waiting {
    at: usize,
    bytes: Vec<u8>,
    /// Around the cache: no release waits for it, only a fence does.
    around: bool,
}

type Buffers = BTreeMap<usize, Vec<Waiting>>;

std::thread_local! {
    /// One in so many points shows a store that waits: in some runs hardly any.
    static LAG: Cell<u32> = const { Cell::new(4) };
    /// The stores of each thread that wait. All threads of a run are in one of the system's.
    static BUFFERS: RefCell<Buffers> = const { RefCell::new(BTreeMap::new()) };
}

fn me() -> usize {
    shuttle::current::me().into()
}

fn with<T>(look: impl FnOnce(&mut Vec<Waiting>) -> T) -> T {
    BUFFERS.with_borrow_mut(|buffers| look(buffers.entry(me()).or_default()))
}

/// A thread that waits.
struct Sleeper {
    /// Place of the word in its page: the same memory may be mapped at several addresses. Whoever
    /// waits for another word there is woken for no reason, as the system may do, too.
    word: Option<usize>,
    due: u64,
    woken: bool,
}

/// Nanoseconds that a look at the clock takes.
const STEP: u64 = 1000;
/// When the virtual time begins, in nanoseconds: of the clock that only grows, and since 1970.
const AGE: u64 = 1_000_000_000_000;
const EPOCH: u64 = 1_700_000_000_000_000_000;

std::thread_local! {
    static TIME: Cell<u64> = const { Cell::new(AGE) };
    /// Threads that take part in time.
    static PARTS: Cell<usize> = const { Cell::new(0) };
    static SLEEPERS: RefCell<BTreeMap<usize, Sleeper>> = const { RefCell::new(BTreeMap::new()) };
}

/// The thread that has it takes part in time until it is dropped.
pub struct Part(());

impl Part {
    /// One more. To be made before the thread begins, so that no time passes until it waits.
    pub fn new() -> Part {
        PARTS.set(PARTS.get() + 1);
        Part(())
    }
}

impl Default for Part {
    fn default() -> Part {
        Part::new()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        PARTS.set(PARTS.get() - 1);
    }
}

fn step() -> u64 {
    TIME.set(TIME.get() + STEP);
    TIME.get()
}

/// As [`crate::env::now`].
pub fn now() -> i64 {
    (EPOCH + step() - AGE) as i64
}

/// As [`crate::env::exact_now`].
pub fn exact_now() -> i64 {
    now()
}

/// As [`crate::env::monotonic_ms`].
pub fn monotonic_ms() -> u64 {
    step() / 1_000_000
}

/// As [`crate::env::ticks`].
pub fn ticks() -> u64 {
    step()
}

pub(crate) fn age() -> Duration {
    Duration::from_nanos(step())
}

/// As [`crate::env::yield_now`].
pub fn yield_now() {
    step();
    rest();
}

/// As [`crate::env::sleep`].
pub fn sleep(time: Duration) {
    pause(None, Some(time));
}

/// As [`crate::env::random`], by the scheduler's seed.
pub fn random(out: &mut [u8]) {
    use shuttle::rand::{Rng, thread_rng};
    out.iter_mut()
        .for_each(|byte| *byte = thread_rng().gen_range(0..=u8::MAX));
}

fn in_page(word: &AtomicU32) -> usize {
    word.at() % crate::PAGE
}

pub(crate) fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> WaitResult {
    if PARTS.get() == 0 {
        rest();
        return WaitResult::Woken;
    }
    point();
    show_all();
    match word.0.load(Ordering::SeqCst) == expected {
        true => pause(Some(in_page(word)), timeout),
        false => WaitResult::Changed,
    }
}

pub(crate) fn wake(word: &AtomicU32) -> usize {
    point();
    SLEEPERS.with_borrow_mut(|all| {
        let there = all.values_mut().filter(|s| s.word == Some(in_page(word)));
        there.map(|sleeper| sleeper.woken = true).count()
    })
}

/// Until somebody wakes the thread, or the time is over. What it stored is visible by then.
fn pause(word: Option<usize>, timeout: Option<Duration>) -> WaitResult {
    let (time, woken) = (timeout.map(|t| t.as_nanos() as u64), false);
    let due = time.map_or(u64::MAX, |t| TIME.get().saturating_add(t));
    SLEEPERS.with_borrow_mut(|all| all.insert(me(), Sleeper { word, due, woken }));
    show_all();
    let ended = loop {
        rest();
        pass_time();
        let woken = SLEEPERS.with_borrow(|all| all.get(&me()).is_some_and(|s| s.woken));
        if woken || TIME.get() >= due {
            break woken;
        }
    };
    SLEEPERS.with_borrow_mut(|all| all.remove(&me()));
    match ended {
        true => WaitResult::Woken,
        false => WaitResult::TimedOut,
    }
}

/// If nobody has anything to do, the time of the first who will have comes.
fn pass_time() {
    SLEEPERS.with_borrow(|all| {
        let idle = all.len() >= PARTS.get() && all.values().all(|s| !s.woken && s.due > TIME.get());
        if let Some(first) = all.values().map(|s| s.due).min().filter(|_| idle) {
            assert!(first < u64::MAX, "all threads wait for ever");
            TIME.set(first);
        }
    });
}

/// Forgets what a run before left behind. Called where it begins.
pub fn begin() {
    use shuttle::rand::{Rng, thread_rng};
    TIME.set(AGE);
    PARTS.set(0);
    SLEEPERS.with_borrow_mut(BTreeMap::clear);
    BUFFERS.with_borrow_mut(BTreeMap::clear);
    LAG.set([2, 6, 30, 300][thread_rng().gen_range(0..4)]);
}

/// Another thread may go on here; some of the stores that wait become visible.
pub fn point() {
    use shuttle::rand::{Rng, thread_rng};
    // Any access to a word of its own is a point for the scheduler.
    shuttle::sync::atomic::AtomicBool::new(false).load(Ordering::SeqCst);
    while with(|waiting| !waiting.is_empty()) && thread_rng().gen_range(0..LAG.get()) == 0 {
        let nth = thread_rng().gen_range(0..usize::MAX);
        with(|waiting| show(waiting, nth % waiting.len()));
    }
}

/// As `point`, of a thread that can do nothing before another one has gone on.
pub fn rest() {
    point();
    shuttle::thread::yield_now();
}

/// One store becomes visible, and before it those that touch the same bytes.
fn show(waiting: &mut Vec<Waiting>, nth: usize) {
    let end = |w: &Waiting| w.at + w.bytes.len();
    let (at, to) = (waiting[nth].at, end(&waiting[nth]));
    let first = waiting.iter().position(|w| w.at < to && at < end(w));
    let Waiting { at, bytes, .. } = waiting.remove(first.unwrap_or(nth));
    for (i, byte) in bytes.iter().enumerate() {
        // SAFETY: whoever stored was allowed to store there, and one thread runs at a time.
        unsafe { core::ptr::write_volatile((at + i) as *mut u8, *byte) };
    }
}

/// All stores of this thread become visible.
pub fn show_all() {
    with(|waiting| {
        while !waiting.is_empty() {
            show(waiting, 0);
        }
    });
}

/// What a release orders becomes visible.
fn show_cached() {
    with(|waiting| {
        while let Some(nth) = waiting.iter().position(|w| !w.around) {
            show(waiting, nth);
        }
    });
}

/// Before bytes are read that the thread may have stored itself.
pub(crate) fn look() {
    point();
    show_all();
}

/// The bytes will be stored at `at`, which the caller may store to for as long as the run lasts.
pub(crate) fn store_later(at: usize, bytes: &[u8], around: bool) {
    let bytes = bytes.to_vec();
    with(|waiting| waiting.push(Waiting { at, bytes, around }));
}

fn releases(order: Ordering) -> bool {
    matches!(
        order,
        Ordering::Release | Ordering::AcqRel | Ordering::SeqCst
    )
}

/// As [`core::sync::atomic::fence`].
pub fn fence(order: Ordering) {
    point();
    match order {
        Ordering::SeqCst => show_all(),
        order if releases(order) => show_cached(),
        _ => {}
    }
}

macro_rules! word {
    ($($name:ident $t:ty),*) => { $(
        /// As that of the standard library.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(real::$name);

        impl $name {
            pub const fn new(value: $t) -> $name {
                $name(real::$name::new(value))
            }

            pub const fn as_ptr(&self) -> *mut $t {
                self.0.as_ptr()
            }

            pub fn get_mut(&mut self) -> &mut $t {
                self.0.get_mut()
            }

            fn at(&self) -> usize {
                self as *const $name as usize
            }

            /// This thread's own stores to it are visible.
            fn settle(&self) {
                let at = self.at();
                let mine = |w: &Waiting| w.at < at + size_of::<$t>() && at < w.at + w.bytes.len();
                with(|waiting| {
                    while let Some(nth) = waiting.iter().position(mine) {
                        show(waiting, nth);
                    }
                });
            }

            pub fn load(&self, order: Ordering) -> $t {
                point();
                let at = self.at();
                let own = with(|waiting| {
                    let newest = waiting.iter().rev().find(|w| w.at == at);
                    newest.and_then(|w| w.bytes[..].try_into().ok().map(<$t>::from_le_bytes))
                });
                own.unwrap_or_else(|| self.0.load(order))
            }

            pub fn store(&self, value: $t, order: Ordering) {
                point();
                if releases(order) {
                    show_cached();
                    self.settle();
                    self.0.store(value, order);
                } else {
                    store_later(self.at(), &value.to_le_bytes(), false);
                }
            }

            fn change<T>(&self, order: Ordering, change: impl FnOnce(&real::$name) -> T) -> T {
                point();
                if releases(order) {
                    show_cached();
                }
                self.settle();
                change(&self.0)
            }

            pub fn swap(&self, value: $t, order: Ordering) -> $t {
                self.change(order, |word| word.swap(value, order))
            }

            pub fn compare_exchange(
                &self,
                old: $t,
                new: $t,
                good: Ordering,
                bad: Ordering,
            ) -> Result<$t, $t> {
                self.change(good, |word| word.compare_exchange(old, new, good, bad))
            }

            pub fn compare_exchange_weak(
                &self,
                old: $t,
                new: $t,
                good: Ordering,
                bad: Ordering,
            ) -> Result<$t, $t> {
                self.compare_exchange(old, new, good, bad)
            }

            pub fn fetch_update(
                &self,
                good: Ordering,
                bad: Ordering,
                change: impl FnMut($t) -> Option<$t>,
            ) -> Result<$t, $t> {
                self.change(good, |word| word.fetch_update(good, bad, change))
            }

            word!(@fetch $t: fetch_add fetch_sub fetch_or fetch_and fetch_xor fetch_max fetch_min);
        }
    )* };
    (@fetch $t:ty: $($name:ident)*) => { $(
        pub fn $name(&self, value: $t, order: Ordering) -> $t {
            self.change(order, |word| word.$name(value, order))
        }
    )* };
}

word!(
    AtomicU8 u8, AtomicU16 u16, AtomicU32 u32, AtomicU64 u64,
    AtomicI8 i8, AtomicI16 i16, AtomicI32 i32, AtomicI64 i64
);
