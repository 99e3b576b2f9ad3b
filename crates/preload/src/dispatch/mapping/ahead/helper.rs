//! The thread that maps ahead.
//!
//! Invariants: it belongs to the program's process, so that whatever ends that ends it as well; it
//! uses nothing of the program: not its libc, its descriptors, its thread-local storage or its
//! stacks, and takes no signal. It is made by a thread of the program when there is something to
//! do, and ends by itself when there was nothing for `IDLE_US`. `TID` is not 0 while its stack is
//! in use; the kernel sets it to 0.

use super::super::promote;
use super::stream::Turn;
use super::{PAGE, What, count, jobs, look, map, watch};
use crate::dispatch::mutex::Mutex;
use crate::dispatch::nr;
use crate::process;
use crate::sys;
use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::*};
use holdfast_pmem::env;

const CLONE_VM: usize = 0x100;
const CLONE_FS: usize = 0x200;
const CLONE_FILES: usize = 0x400;
const CLONE_SIGHAND: usize = 0x800;
const CLONE_THREAD: usize = 0x1_0000;
const CLONE_SYSVSEM: usize = 0x4_0000;
const CLONE_PARENT_SETTID: usize = 0x10_0000;
const CLONE_CHILD_CLEARTID: usize = 0x20_0000;
const FLAGS: usize = CLONE_VM
    | CLONE_FS
    | CLONE_FILES
    | CLONE_SIGHAND
    | CLONE_THREAD
    | CLONE_SYSVSEM
    | CLONE_PARENT_SETTID
    | CLONE_CHILD_CLEARTID;

/// Looks at whether a thread is gone that has left its memory.
const TURNS_MAX: u32 = 200_000;
const NANOSLEEP: usize = 35;
const SCHED_SETSCHEDULER: usize = 144;
const FUTEX: usize = 202;
const FUTEX_WAIT: usize = 128;
const FUTEX_WAKE: usize = 129;

/// Without anything to do for so long it ends.
const IDLE_US: u64 = 100_000;
/// A thread that waits for the memory's lock gets it only while the helper sleeps.
const BREATH_NS: u64 = 5_000;
/// Ready for so long without a core: there is none to spare.
const DELAY_NS: u64 = 500_000;
const REST_MIN_US: u64 = 10_000;
const REST_MAX_US: u64 = 1_000_000;
/// More than a chunk takes that is in memory.
const SLOW_US: u64 = 1_000;
/// So often it looks whether the program is still there.
const LOOK_US: u64 = 10_000;

#[repr(C, align(16))]
struct Stack(UnsafeCell<[u8; 64 << 10]>);
// SAFETY: only the helper uses it, and there is one at a time.
unsafe impl Sync for Stack {}
static STACK: Stack = Stack(UnsafeCell::new([0; 64 << 10]));

static TID: AtomicU32 = AtomicU32::new(0);
static WAKE: AtomicU32 = AtomicU32::new(0);
static STATE: Mutex<State> = Mutex::new(NONE);

struct State {
    /// It will look at the list of jobs again.
    runs: bool,
    /// Threads that wait for its end.
    ending: u32,
    /// The last one that was made, until it is known to be gone.
    last: u32,
}

const NONE: State = State {
    runs: false,
    ending: 0,
    last: 0,
};

/// The last rest: a busy machine is known to the next helper, too.
static REST_US: AtomicU64 = AtomicU64::new(REST_MIN_US);

/// Whether a helper may be made: not known, yes, no.
static ALLOWED: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

global_asm!(
    r#"
    .pushsection .text.hf_ahead,"ax",@progbits
    .p2align 4
// hf_ahead(flags rdi, stack rsi, tid rdx, tid rcx) -> rax; the new thread runs main and ends.
    .globl hf_ahead
    .hidden hf_ahead
hf_ahead:
    mov r10, rcx
    xor r8d, r8d
    mov eax, 56
    syscall
    test rax, rax
    jz 2f
    ret
2:
    xor ebp, ebp
    call {main}
    xor edi, edi
    mov eax, 60
    syscall
    ud2
    .popsection
"#,
    main = sym main,
);

unsafe extern "C" {
    fn hf_ahead(
        flags: usize,
        stack: usize,
        tid: *const AtomicU32,
        clear: *const AtomicU32,
    ) -> isize;
}

/// Whether the helper's calls are sure not to be forbidden. A filter that the program was started
/// with, or gave itself, might end it for a call that it did not make.
pub fn is_allowed() -> bool {
    if ALLOWED.load(Relaxed) == UNKNOWN {
        let known = if look::is_unfiltered() { YES } else { NO };
        // Another thread may have forbidden it meanwhile.
        let _ = ALLOWED.compare_exchange(UNKNOWN, known, Relaxed, Relaxed);
    }
    ALLOWED.load(Relaxed) == YES
}

pub fn forbid() {
    ALLOWED.store(NO, Relaxed);
}

/// There is something to do.
pub fn wake() {
    let mut state = STATE.lock();
    WAKE.fetch_add(1, Release);
    if state.ending == 0 && !state.runs {
        let tid = spawn();
        state.runs = tid.is_some();
        state.last = tid.unwrap_or(state.last);
    }
    drop(state);
    rouse();
}

fn rouse() {
    // SAFETY: wakes who waits there.
    unsafe { sys::raw(FUTEX, [WAKE.as_ptr() as usize, FUTEX_WAKE, 1, 0, 0, 0]) };
}

/// Makes the helper. It takes no signal: all are blocked before it begins.
fn spawn() -> Option<u32> {
    // The stack is that of the last one until the kernel has seen it end.
    while TID.load(Acquire) != 0 {
        env::yield_now();
    }
    let (all, mut old) = (u64::MAX, 0u64);
    let set = |new: *const u64, old: *mut u64| {
        const SIG_SETMASK: usize = 2;
        let args = [SIG_SETMASK, new as usize, old as usize, 8, 0, 0];
        // SAFETY: the kernel reads one mask and writes the other, of eight bytes each.
        unsafe { sys::raw(sys::nr::RT_SIGPROCMASK, args) };
    };
    set(&raw const all, &raw mut old);
    let top = STACK.0.get() as usize + size_of::<Stack>();
    // SAFETY: the stack is nobody's, as `TID` says, and `main` returns to where the thread ends.
    let ret = unsafe { hf_ahead(FLAGS, top, &raw const TID, &raw const TID) };
    set(&raw const old, core::ptr::null_mut());
    (ret > 0).then_some(ret as u32)
}

/// When this returns, the process has no helper.
pub fn end() {
    let mut state = STATE.lock();
    let last = state.last;
    if last == 0 {
        return;
    }
    state.ending += 1;
    WAKE.fetch_add(1, Release);
    drop(state);
    jobs::clear();
    rouse();
    await_end(last);
    let mut state = STATE.lock();
    state.ending -= 1;
    if state.last == last {
        state.last = 0;
    }
}

/// Waits until the kernel has taken thread `tid` out of the process, which it does soon after it
/// has set `TID` to 0. After that another thread may get its number.
fn await_end(tid: u32) {
    let args = [process::pid() as usize, tid as usize, 0, 0, 0, 0];
    let mut turns = 0;
    // SAFETY: asks whether the thread is there.
    while turns < TURNS_MAX && unsafe { sys::raw(nr::TGKILL, args) } == 0 {
        turns += u32::from(TID.load(Acquire) != tid);
        env::yield_now();
    }
}

/// In the child of a fork, which has one thread.
pub fn forked() {
    STATE.renew(NONE);
    TID.store(0, Release);
}

fn now_us() -> u64 {
    const CLOCK_MONOTONIC: usize = 1;
    let mut time = [0u64; 2];
    let args = [CLOCK_MONOTONIC, time.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: the kernel writes a struct timespec, which is as long.
    unsafe { sys::raw(sys::nr::CLOCK_GETTIME, args) };
    time[0] * 1_000_000 + time[1] / 1000
}

fn sleep(ns: u64) {
    let time = [0, ns];
    // SAFETY: the kernel reads a struct timespec.
    unsafe { sys::raw(NANOSLEEP, [time.as_ptr() as usize, 0, 0, 0, 0, 0]) };
}

/// Sleeps until it is woken, `seen` is old, or the time is over.
fn wait(seen: u32, us: u64) {
    let time = [us / 1_000_000, us % 1_000_000 * 1000];
    let at = time.as_ptr() as usize;
    let args = [WAKE.as_ptr() as usize, FUTEX_WAIT, seen as usize, at, 0, 0];
    // SAFETY: the kernel reads the word and a struct timespec.
    unsafe { sys::raw(FUTEX, args) };
}

/// The helper.
struct Helper {
    pages: look::Pagemap,
    delay: look::Delay,
    company: look::Company,
    looked_us: u64,
    /// It has rested since the last chunk.
    has_rested: bool,
    /// The last chunk took longer than one that is in memory does.
    was_slow: bool,
}

extern "C" fn main() {
    prepare();
    if let Some(mut helper) = Helper::open() {
        helper.run();
    } else {
        // Nothing can be seen here, today or later.
        forbid();
        jobs::clear();
        promote::stop();
        STATE.lock().runs = false;
    }
}

/// Descriptors of its own, none of the program's; exact timers, and the place of who has time.
fn prepare() {
    const CLOSE_RANGE_UNSHARE: usize = 2;
    const PR_SET_TIMERSLACK: usize = 29;
    const SCHED_BATCH: usize = 3;
    let none = 0u32;
    let calls = [
        (nr::CLOSE_RANGE, [0, u32::MAX as usize, CLOSE_RANGE_UNSHARE]),
        (nr::PRCTL, [PR_SET_TIMERSLACK, 1, 0]),
        (
            SCHED_SETSCHEDULER,
            [0, SCHED_BATCH, &raw const none as usize],
        ),
    ];
    for (number, [a, b, c]) in calls {
        // SAFETY: touches only the helper's own descriptors and place; reads one word.
        unsafe { sys::raw(number, [a, b, c, 0, 0, 0]) };
    }
}

impl Helper {
    fn open() -> Option<Helper> {
        Some(Helper {
            pages: look::Pagemap::open()?,
            delay: look::Delay::open()?,
            company: look::Company::open()?,
            looked_us: now_us(),
            has_rested: false,
            was_slow: true,
        })
    }

    fn run(&mut self) {
        let mut idle_from = now_us();
        loop {
            let seen = WAKE.load(Acquire);
            let now = now_us();
            if self.is_over(now) {
                return;
            }
            match jobs::next(now) {
                jobs::Next::Serve(job) => {
                    self.serve(job, now);
                    idle_from = now;
                }
                jobs::Next::Later(due_us) => {
                    self.promote();
                    wait(seen, due_us.saturating_sub(now_us()).min(LOOK_US));
                    idle_from = now;
                }
                jobs::Next::Nothing if !promote::is_idle() => {
                    self.promote();
                    wait(seen, LOOK_US);
                    idle_from = now;
                }
                jobs::Next::Nothing if now - idle_from < IDLE_US => wait(seen, LOOK_US),
                jobs::Next::Nothing => {
                    let mut state = STATE.lock();
                    // Who adds a job wakes it afterwards, under this lock.
                    if WAKE.load(Acquire) == seen {
                        state.runs = false;
                        return;
                    }
                }
            }
        }
    }

    /// One piece of work on huge pages, unless it had to wait for a core.
    fn promote(&mut self) {
        if promote::is_idle() {
            return;
        }
        match self.delay.since() > DELAY_NS {
            true => promote::give_up(),
            false => promote::work(&self.pages, now_us),
        }
    }

    /// Whether it is to end, or alone in its process.
    fn is_over(&mut self, now: u64) -> bool {
        let mut state = STATE.lock();
        let is_over = state.ending > 0 || {
            let looks = now - self.looked_us >= LOOK_US;
            if looks {
                self.looked_us = now;
            }
            looks && self.company.is_gone()
        };
        state.runs &= !is_over;
        is_over
    }

    fn serve(&mut self, mut job: jobs::Job, now: u64) {
        let turn = job.stream.turn(&self.pages);
        if watch::is_passive() && !matches!(turn, Turn::Wait { .. }) {
            watch::order(self.read_in_order(&job, turn));
            return jobs::put_back(&job, None);
        }
        if matches!(turn, Turn::Map { .. }) && self.is_contended() {
            count::add(What::AheadRests, 1);
            // The turn is taken again later: nothing of it was done.
            return jobs::delay(job.number, now_us() + REST_US.load(Relaxed));
        }
        let (windows, reached) = job.stream.take_counts();
        count::add(What::AheadWindows, windows.into());
        count::add(What::AheadReached, reached.into());
        let due_us = match turn {
            Turn::Map { addr, len } => self.map(&mut job, addr, len),
            Turn::Wait { us } => Some(now + u64::from(us)),
            Turn::End => None,
        };
        if due_us.is_none() {
            count::add(What::AheadEnded, 1);
        }
        jobs::put_back(&job, due_us);
    }

    /// The bytes of a mapping that the program has begun to read in order: where it has not come
    /// yet, almost nothing is mapped. So near to the end that a program that reads at random would
    /// have left few marks, too, nothing can be said.
    fn read_in_order(&self, job: &jobs::Job, turn: Turn) -> Option<usize> {
        const FEW: u64 = 8;
        let Turn::Map { addr, .. } = turn else {
            return None;
        };
        let (start, end) = (job.stream.start(), job.stream.end());
        let faults = |from, to| self.pages.count(from, to).faults;
        let (read, beyond) = (faults(start, addr), faults(addr, end));
        let [before, left] = [addr - start, end - addr].map(|len| (len / PAGE) as u64);
        let at_random = read.saturating_mul(left) / before.max(1);
        (at_random >= FEW && beyond * FEW <= at_random).then_some(end - start)
    }

    /// When the job is to be looked at again.
    fn map(&mut self, job: &mut jobs::Job, addr: usize, len: usize) -> Option<u64> {
        if !job.is_memory && !self.is_resident(addr, len) {
            return match job.stream.refused(addr) {
                Turn::Wait { us } => Some(now_us() + u64::from(us)),
                _ => None,
            };
        }
        // An error says that the file ends here, or that the program may not read.
        let begun = now_us();
        let mapped = jobs::with_chunk(job.number, addr, len, || map(addr, len))? == 0;
        self.was_slow = now_us() - begun > SLOW_US;
        if !mapped || !job.is_small && self.pages.has_huge(addr, addr + len) {
            return None;
        }
        job.is_small = true;
        sleep(BREATH_NS);
        Some(0)
    }

    /// Whether the chunk is in memory. Each page is asked for only after a chunk that took so long
    /// that some of it may have been read from a disk.
    fn is_resident(&self, addr: usize, len: usize) -> bool {
        let from = if self.was_slow { addr } else { addr + len - 1 };
        look::is_resident(from & !(PAGE - 1), addr + len - (from & !(PAGE - 1)))
    }

    /// Whether it had to wait for a core. Then it rests, longer each time, and maps one chunk after
    /// each rest, so that it comes on where cores are never free.
    fn is_contended(&mut self) -> bool {
        let is_delayed = self.delay.since() > DELAY_NS;
        let has_rested = core::mem::take(&mut self.has_rested);
        let rest = REST_US.load(Relaxed);
        if !is_delayed {
            REST_US.store((rest - rest / 64).max(REST_MIN_US), Relaxed);
        } else if !has_rested {
            REST_US.store((rest * 4).min(REST_MAX_US), Relaxed);
            self.has_rested = true;
        }
        self.has_rested
    }
}
