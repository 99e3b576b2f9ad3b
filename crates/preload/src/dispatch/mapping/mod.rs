//! Mappings of files in a run with `--map`: of the host's, and of those in the pool that are one
//! piece of it.
//!
//! Invariants: without `--map` nothing here runs but `is_on`; every function that answers a call
//! gives the answer that the kernel would have given. A call that is not answered from the cache
//! runs in the kernel with the program's arguments. A mapping of executable pages is left to
//! `crate::patch`, and nothing is kept while a child runs in this memory.

mod ahead;
mod cache;
mod count;
mod file;
mod kept;
mod place;
mod pressure;
mod promote;
mod watch;

use super::args;
use super::nr;
use super::outcome::{Outcome, Stop};
use crate::hook::Call;
use crate::sys;
use cache::{Key, Limits, Span};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use file::File;
use holdfast_client::map_record::COUNT;
use holdfast_client::{Ahead, MapSettings};
use kept::Found;

pub use count::count_in;
pub use holdfast_client::map_record::Sum as Stopped;

type Args = [usize; 6];

const PAGE: usize = 4096;
const PROT_READ: usize = 1;
const PROT_EXEC: usize = 4;
const MAP_SHARED: usize = 1;
const MAP_PRIVATE: usize = 2;
const MAP_FIXED: usize = 0x10;
const MAP_ANONYMOUS: usize = 0x20;
const MAP_FIXED_NOREPLACE: usize = 0x10_0000;
const MREMAP_FIXED: usize = 2;
const ENOMEM: args::Errno = 12;

static ON: AtomicBool = AtomicBool::new(false);
/// Lengths of mappings that are kept.
static MIN: AtomicUsize = AtomicUsize::new(0);
static MAX: AtomicUsize = AtomicUsize::new(0);

/// Before the program's first instruction. `drops`: how often the session's programs were told to
/// give up what they keep.
pub fn start(settings: MapSettings, drops: u32) {
    MIN.store(settings.min as usize, Relaxed);
    MAX.store(settings.max as usize, Relaxed);
    let limits = Limits {
        bytes: settings.cache.map_or_else(default_bytes, |n| n as usize),
        entries: settings.entries as usize,
        idle_ms: settings.idle_ms,
        again: settings.uses > 1,
    };
    let mut ahead = settings.ahead;
    let mut used = limits;
    if let Some(record) = count::record().filter(|record| record.watch.load(Relaxed) != COUNT) {
        watch::start(limits, record);
    }
    if watch::is_passive() {
        // The helper sees who reads in order; it maps nothing then.
        (used.bytes, ahead) = (0, Ahead::Async);
    }
    kept::start(used, drops);
    ahead::start(ahead, settings.ahead_min as usize);
    promote::start(settings.promote && settings.ahead == Ahead::Async);
    ON.store(true, Relaxed);
}

/// At most this much is kept where nobody said how much: the limit of the paper.
const BYTES: usize = 2 << 30;
/// Of the addresses that the process may have, and of the machine's memory.
const SHARE: usize = 4;

fn default_bytes() -> usize {
    const RLIMIT_AS: usize = 9;
    let mut limit = [0u64; 2];
    let args = [0, RLIMIT_AS, 0, limit.as_mut_ptr() as usize, 0, 0];
    // SAFETY: the kernel fills a struct rlimit, two words.
    let known = unsafe { sys::raw(nr::PRLIMIT64, args) } == 0;
    let addresses = if known { limit[0] as usize } else { usize::MAX };
    // struct sysinfo has 112 bytes; its words 4 and 13 are all memory, in units, and their size.
    let mut info = [0u64; 14];
    let args = [info.as_mut_ptr() as usize, 0, 0, 0, 0, 0];
    // SAFETY: the kernel fills a struct sysinfo, which is as long.
    let known = unsafe { sys::raw(nr::SYSINFO, args) } == 0;
    let memory = match known {
        true => info[4].saturating_mul(u64::from(info[13] as u32).max(1)) as usize,
        false => usize::MAX,
    };
    BYTES.min(addresses / SHARE).min(memory / SHARE)
}

/// Whether the run has `--map`.
#[inline]
pub fn is_on() -> bool {
    ON.load(Relaxed)
}

/// Makes the program's own call.
fn kernel(nr: usize, a: &Args) -> isize {
    // SAFETY: the program asked for this change of its own address space; ours is never inside a
    // range that the program may name without having mapped it.
    unsafe { sys::raw(nr, *a) }
}

/// Whether nothing is mapped here that the program does not know of.
fn is_empty() -> bool {
    kept::is_empty() && promote::is_idle()
}

/// Unmaps what the program does not know of; whether there was anything.
pub fn give_way() -> bool {
    let kept = kept::give_way();
    promote::give_way() || kept
}

/// The same; where there is no room, what is kept is given up first.
fn kernel_with_room(nr: usize, a: &Args) -> isize {
    match kernel(nr, a) {
        ret if ret == -(ENOMEM as isize) && give_way() => kernel(nr, a),
        ret => ret,
    }
}

/// All pages of which a part is in the range.
fn pages(addr: usize, len: usize) -> Span {
    let start = addr & !(PAGE - 1);
    let end = addr.saturating_add(len).checked_next_multiple_of(PAGE);
    Span {
        addr: start,
        len: end.unwrap_or(usize::MAX) - start,
    }
}

/// mmap(2) of what is no pool file.
pub fn mmap(a: &Args) -> Outcome {
    if !watch::is_on() {
        return map(a).0;
    }
    let begun = watch::now_ns();
    let (done, reused) = map(a);
    if let Err(Stop::Passed(ret)) = &done
        && let Ok(addr) = args::result(*ret)
        && a[3] & MAP_ANONYMOUS == 0
    {
        watch::mapped(addr, a, watch::now_ns() - begun, reused);
    }
    done
}

/// The same; whether what was kept was given out.
fn map(a: &Args) -> (Outcome, bool) {
    let [_, len, prot, flags, fd, _] = *a;
    let file_of_host = flags & MAP_ANONYMOUS == 0;
    if prot & PROT_EXEC != 0 || !file_of_host && is_empty() {
        return (Err(Stop::Native), false);
    }
    let known = keepable(a).and_then(|len| {
        let file = file::of(fd)?;
        Some((file, file.key(a, len)))
    });
    let made = match known.map(|(file, key)| (kept::find(&key), file, key)) {
        Some((Found::Idle(addr), ..)) => return (Err(Stop::Passed(addr as isize)), true),
        Some((Found::Nothing, file, key)) => make(a, &file, key),
        Some((Found::New, ..)) | None => None,
    };
    let ret = made.unwrap_or_else(|| {
        let ret = place::map(a).unwrap_or_else(|| kernel_with_room(nr::MMAP, a));
        if let Ok(addr) = args::result(ret) {
            kept::forget(pages(addr, len));
        }
        ret
    });
    if let Ok(addr) = args::result(ret)
        && file_of_host
    {
        ahead::mapped(addr, a);
        promote::mapped(a);
    }
    (Err(Stop::Passed(ret)), false)
}

/// Makes a mapping that can be kept. `None`: it has to be made as the program asked for it.
fn make(a: &Args, file: &File, key: Key) -> Option<isize> {
    let own = file.reopened(a[4])?;
    let a = [a[0], a[1], a[2], a[3], own.0, a[5]];
    let ret = place::map(&a).unwrap_or_else(|| kernel(nr::MMAP, &a));
    let addr = args::result(ret).ok()?;
    if !file.is_of(&own) {
        // SAFETY: made above, and the program does not know of it.
        unsafe { sys::unmap(addr, key.len) };
        return None;
    }
    kept::add(addr, key);
    Some(ret)
}

/// The length of a mapping that may be kept, or taken from what is.
fn keepable(a: &Args) -> Option<usize> {
    let [addr, len, prot, flags, _, offset] = *a;
    let len = len.checked_next_multiple_of(PAGE)?;
    let may = !is_short(len) && !is_long(len) && is_plain(addr, prot, flags, offset);
    (may && kept::is_on() && !crate::process::is_shared()).then_some(len)
}

fn is_short(len: usize) -> bool {
    len < MIN.load(Relaxed)
}

fn is_long(len: usize) -> bool {
    len > MAX.load(Relaxed)
}

/// Whether it is mapped to be read, where the kernel finds room.
fn is_plain(addr: usize, prot: usize, flags: usize, offset: usize) -> bool {
    let plain = matches!(flags & !kept::MAP_POPULATE, MAP_SHARED | MAP_PRIVATE);
    plain && addr == 0 && prot == PROT_READ && offset % PAGE == 0
}

/// Before mmap(2), of whatever it is: what it replaces goes.
pub fn before_mmap(a: &Args) {
    let [addr, len, _, flags, ..] = *a;
    if flags & (MAP_FIXED | MAP_FIXED_NOREPLACE) == MAP_FIXED {
        gone(addr, len);
    } else if addr != 0 {
        kept::clear(pages(addr, len));
        promote::clear(pages(addr, len));
    }
}

/// munmap(2) of what is no mapping of the pool.
pub fn munmap(a: &Args) -> Outcome {
    if let Some(going) = watch::going(a[0], a[1]) {
        let begun = watch::now_ns();
        let ret = match keep(a[0], a[1]) {
            true => 0,
            false => kernel(nr::MUNMAP, a),
        };
        watch::went(&going, watch::now_ns() - begun);
        return Err(Stop::Passed(ret));
    }
    watch::gone(a[0], a[1]);
    match keep(a[0], a[1]) {
        true => Err(Stop::Passed(0)),
        false => Err(Stop::Native),
    }
}

/// Before a range is unmapped: whether that is done, as it was a whole mapping and is kept.
pub fn keep(addr: usize, len: usize) -> bool {
    ahead::gone(addr, len);
    promote::clear(pages(addr, len));
    let whole = addr % PAGE == 0 && len > 0;
    if whole && kept::keep(pages(addr, len)) {
        return true;
    }
    kept::lose(pages(addr, len));
    false
}

/// What there is for a mapping of a file of the pool that lies in one piece at `offset` of the
/// segment. Whose piece that is does not matter: what is found is for a file that lies there now.
pub fn piece(a: &Args, offset: usize) -> Piece {
    let Some(len) = keepable(a) else {
        return Piece::Made;
    };
    let key = Key {
        dev: cache::POOL,
        ino: 0,
        offset,
        len,
        flags: a[3],
    };
    match kept::find(&key) {
        Found::Idle(addr) => Piece::Idle(addr),
        Found::Nothing => Piece::Kept(key),
        Found::New => Piece::Made,
    }
}

/// A mapping of a file of the pool.
pub enum Piece {
    /// It is there already.
    Idle(usize),
    /// It is to be made, and to be told by `add_piece`, so that it is kept once it is unmapped.
    Kept(Key),
    /// It is to be made.
    Made,
}

/// A mapping of a piece that is kept was made.
pub fn add_piece(addr: usize, key: Key) {
    kept::add(addr, key);
}

/// mremap(2) of what is no mapping of the pool.
pub fn mremap(a: &Args) -> Outcome {
    match is_empty() {
        true => Err(Stop::Native),
        false => Err(Stop::Passed(kernel_with_room(nr::MREMAP, a))),
    }
}

/// Before mremap(2), of whatever it is.
pub fn before_mremap(a: &Args) {
    gone(a[0], a[1].max(a[2]).max(1));
    if a[3] & MREMAP_FIXED != 0 {
        gone(a[4], a[2]);
    }
}

/// Before addresses are unmapped, replaced or protected.
pub fn gone(addr: usize, len: usize) {
    watch::gone(addr, len);
    ahead::gone(addr, len);
    promote::clear(pages(addr, len));
    kept::lose(pages(addr, len));
}

/// Before a call that only looks at what is mapped.
pub fn looked_at(addr: usize, len: usize) {
    promote::clear(pages(addr, len));
    kept::clear(pages(addr, len));
}

/// From now on nothing is kept, and nothing is mapped ahead: the program would see it, or calls
/// are not answered here any more.
pub fn stop(why: Stopped) {
    if is_on() {
        watch::stopped(why);
        kept::stop();
        ahead::stop();
        promote::stop();
    }
}

/// From now on nothing is mapped ahead: no call that unmaps is answered here any more.
pub fn stop_ahead() {
    if is_on() {
        ahead::stop();
        promote::stop();
    }
}

/// Before a call that acts on the calling thread alone, or that only a process with one thread may
/// make: there is none of ours when this returns.
pub fn stand_alone() {
    if is_on() {
        ahead::end();
        promote::stop_job();
    }
}

/// Before the process ends or executes another program.
pub fn ending() {
    if watch::is_on() {
        watch::ending();
    }
}

/// Before a fork: nobody changes our lists while the value lives.
pub fn hold_still() -> impl Sized {
    is_on().then(|| {
        (
            kept::hold_still(),
            ahead::hold_still(),
            promote::hold_still(),
            watch::hold_still(),
        )
    })
}

/// In a forked child. `still`: its parent held the lists.
pub fn forked(still: bool) {
    kept::forked(still);
    watch::forked();
    if is_on() {
        ahead::forked();
        promote::forked();
    }
}

/// Before the kernel does a caught call that has no handler.
#[cold]
pub fn unhandled(call: &Call) -> Option<isize> {
    const SHM_REMAP: usize = 0o40_000;
    let [addr, len, third, ..] = call.args;
    match call.nr {
        nr::MINCORE => looked_at(addr, len),
        nr::MBIND | nr::MSEAL => gone(addr, len),
        // How much it attaches it does not say.
        nr::LANDLOCK_RESTRICT_SELF => stand_alone(),
        nr::SHMAT if third & SHM_REMAP != 0 => gone(len, usize::MAX),
        nr::SHMAT if len != 0 => looked_at(len, usize::MAX),
        _ => {}
    }
    None
}

/// Makes madvise(2).
pub fn madvise(a: &Args) -> isize {
    /// What changes nothing that lasts, and what the kernel remembers until MADV_NORMAL.
    const PASSING: [usize; 4] = [3, 20, 21, 22];
    const REMEMBERED: [usize; 3] = [0, 1, 2];
    let [addr, len, advice, ..] = *a;
    let span = pages(addr, len);
    promote::clear(span);
    kept::clear(span);
    if REMEMBERED.contains(&advice) {
        kept::advise(span);
    } else if !PASSING.contains(&advice) {
        kept::lose(span);
    }
    watch::advised(advice);
    ahead::advising(addr, len, advice);
    let ret = kernel(nr::MADVISE, a);
    if ret == 0 {
        ahead::advised(addr, len, advice);
    }
    ret
}

/// Before the kernel does a call that concerns nothing of the pool.
#[cold]
pub fn passing(call: &Call, drops: u32) {
    const AT_FDCWD: usize = -100isize as usize;
    const UFFDIO_REGISTER: usize = 0xc020_aa00;
    const PR_SET_SECCOMP: usize = 22;
    /// On what each thread has of its own: keepcaps, capbset_drop, securebits, no_new_privs,
    /// cap_ambient.
    const OF_ONE_THREAD: [usize; 5] = [8, 24, 28, 38, 47];
    let a = &call.args;
    match call.nr {
        nr::UNLINK => deleted(AT_FDCWD, a[0]),
        nr::UNLINKAT => deleted(a[0], a[1]),
        nr::RENAME => deleted(AT_FDCWD, a[1]),
        nr::RENAMEAT | nr::RENAMEAT2 => deleted(a[2], a[3]),
        nr::UMOUNT2 => {
            give_way();
        }
        // Faults in it are told to the program.
        nr::IOCTL if a[1] as u32 as usize == UFFDIO_REGISTER => stop(Stopped::StoppedWatched),
        // Our own calls may be forbidden afterwards.
        nr::PRCTL if a[0] == PR_SET_SECCOMP => stop(Stopped::StoppedFilter),
        nr::PRCTL if OF_ONE_THREAD.contains(&a[0]) => stand_alone(),
        nr::SECCOMP => stop(Stopped::StoppedFilter),
        _ => {}
    }
    if !kept::is_empty() {
        kept::sweep(drops);
    }
}

/// A name is about to go, or to become that of another file.
fn deleted(dirfd: usize, path: usize) {
    if kept::is_on()
        && let Some((dev, ino)) = file::by_last_name(dirfd, path)
    {
        kept::let_go(dev, ino);
    }
}
