//! System calls that rustix does not have, and operations that take more than one call.

use crate::PAGE;
use core::arch::asm;
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

pub(crate) const SYS_FCNTL: usize = 72;
const SYS_MADVISE: usize = 28;
const MADV_COLLAPSE: usize = 25;

/// Bytes around a page that the kernel maps with it when it is read for the first time, as far as
/// they are in memory: the default of `fault_around_bytes`.
const AROUND: usize = 64 * 1024;

/// Makes the page-table entries of a range now, and finds memory for the pages that have none.
///
/// To write, too: what is in memory already is mapped with the first page of each `AROUND`, which
/// takes half as long as page by page.
///
/// # Safety
/// The range must be whole pages of a mapping of this process, writable if `write` says so.
pub(crate) unsafe fn populate(start: *mut u8, len: usize, write: bool) -> Result<(), Errno> {
    if !write {
        // SAFETY: populating changes no contents; the caller vouches for the range.
        return unsafe { madvise(start.cast(), len, Advice::LinuxPopulateRead) };
    }
    for at in (0..len).step_by(AROUND) {
        let left = (len - at).min(AROUND);
        // SAFETY: as above; `at` is below `len` and a whole number of pages.
        unsafe {
            let at = start.add(at).cast();
            madvise(at, PAGE, Advice::LinuxPopulateRead)?;
            madvise(at, left, Advice::LinuxPopulateWrite)?;
        }
    }
    Ok(())
}

const SYS_PREAD64: usize = 17;
const SYS_PWRITE64: usize = 18;

/// pwrite(2) from memory that may not be there, which the kernel reports.
pub(crate) fn pwrite(
    fd: BorrowedFd<'_>,
    src: *const u8,
    len: usize,
    off: u64,
) -> Result<usize, Errno> {
    // SAFETY: the kernel only reads the range, and looks itself whether it may.
    count(unsafe { syscall(SYS_PWRITE64, [number(fd), src as usize, len, off as usize]) })
}

/// pread(2) to memory that may not be there, which the kernel reports.
///
/// # Safety
/// What is mapped of the range must be the caller's to be written.
pub(crate) unsafe fn pread(
    fd: BorrowedFd<'_>,
    dst: *mut u8,
    len: usize,
    off: u64,
) -> Result<usize, Errno> {
    // SAFETY: the caller vouches for what is mapped; the kernel looks itself what is.
    count(unsafe { syscall(SYS_PREAD64, [number(fd), dst as usize, len, off as usize]) })
}

fn number(fd: BorrowedFd<'_>) -> usize {
    fd.as_raw_fd() as usize
}

pub(crate) fn count(ret: isize) -> Result<usize, Errno> {
    usize::try_from(ret).map_err(|_| Errno::from_raw_os_error(-ret as i32))
}

/// # Safety
/// As the call demands of its arguments.
pub(crate) unsafe fn syscall(number: usize, [a, b, c, d]: [usize; 4]) -> isize {
    // SAFETY: as the caller vouches for.
    unsafe { syscall5(number, [a, b, c, d, 0]) }
}

/// # Safety
/// As the call demands of its arguments.
pub(crate) unsafe fn syscall5(number: usize, [a, b, c, d, e]: [usize; 5]) -> isize {
    let ret: isize;
    // SAFETY: the caller vouches for the arguments; no register but these is touched.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => ret,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    ret
}

#[cfg(not(feature = "model"))]
const SYS_CLOCK_GETTIME: usize = 228;
#[cfg(not(feature = "model"))]
const CLOCK_REALTIME: usize = 0;

/// Nanoseconds since 1970.
#[cfg(not(feature = "model"))]
pub(crate) fn realtime_ns() -> i64 {
    let mut time = [0i64; 2];
    let arguments = [CLOCK_REALTIME, time.as_mut_ptr() as usize, 0, 0];
    // SAFETY: the kernel stores two words, for which there is room.
    let _ = unsafe { syscall(SYS_CLOCK_GETTIME, arguments) };
    let [seconds, nanoseconds] = time;
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(nanoseconds)
}

const SYS_SYNC_FILE_RANGE: usize = 277;
/// Begins to write those pages that are dirty,
const WRITE: usize = 2;
/// but first waits for those that are being written, and in the end for all.
const WRITE_AND_WAIT: usize = 7;

/// Writes what is dirty in a range of a file, with `wait` until the device has taken it; nothing
/// is flushed there.
pub(crate) fn write_range(fd: BorrowedFd<'_>, off: u64, len: u64, wait: bool) -> Result<(), Errno> {
    let how = if wait { WRITE_AND_WAIT } else { WRITE };
    let arguments = [number(fd), off as usize, len as usize, how];
    // SAFETY: sync_file_range touches no memory of ours.
    count(unsafe { syscall(SYS_SYNC_FILE_RANGE, arguments) }).map(drop)
}

/// Asks the kernel to back a range with huge pages now. Returns the positive errno on failure.
///
/// # Safety
/// The range must be mapped by this process.
pub(crate) unsafe fn madvise_collapse(addr: usize, len: usize) -> Result<(), i32> {
    // SAFETY: MADV_COLLAPSE does not change the contents of memory; the kernel checks the rest.
    match unsafe { syscall(SYS_MADVISE, [addr, len, MADV_COLLAPSE, 0]) } {
        0 => Ok(()),
        ret => Err(-ret as i32),
    }
}
