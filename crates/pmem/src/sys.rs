//! System calls that rustix has no name for, and those that take more than one call.

use crate::PAGE;
use core::arch::asm;
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

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

const SYS_PWRITE64: usize = 18;

/// pwrite(2) from memory that may not be there, which the kernel reports.
pub(crate) fn pwrite(
    fd: BorrowedFd<'_>,
    src: *const u8,
    len: usize,
    off: u64,
) -> Result<usize, Errno> {
    let ret: isize;
    // SAFETY: the kernel only reads the range, and looks itself whether it may.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") SYS_PWRITE64 as isize => ret,
            in("rdi") fd.as_raw_fd() as usize,
            in("rsi") src,
            in("rdx") len,
            in("r10") off,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    match ret {
        n if n >= 0 => Ok(n as usize),
        e => Err(Errno::from_raw_os_error(-e as i32)),
    }
}

const SYS_SYNC_FILE_RANGE: usize = 277;
/// Waits for pages that are being written, writes those that are dirty, waits for them.
const WRITE_AND_WAIT: usize = 7;

/// Writes what is dirty in a range of a file and waits until the device has taken it; nothing is
/// flushed there.
pub(crate) fn write_range(fd: BorrowedFd<'_>, off: u64, len: u64) -> Result<(), Errno> {
    let ret: isize;
    // SAFETY: sync_file_range touches no memory of ours.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") SYS_SYNC_FILE_RANGE as isize => ret,
            in("rdi") fd.as_raw_fd() as usize,
            in("rsi") off,
            in("rdx") len,
            in("r10") WRITE_AND_WAIT,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    if ret == 0 {
        Ok(())
    } else {
        Err(Errno::from_raw_os_error(-ret as i32))
    }
}

/// Asks the kernel to back a range with huge pages now. Returns the positive errno on failure.
///
/// # Safety
/// The range must be mapped by this process.
pub(crate) unsafe fn madvise_collapse(addr: usize, len: usize) -> Result<(), i32> {
    let ret: isize;
    // SAFETY: MADV_COLLAPSE does not change the contents of memory; the kernel checks the rest.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") SYS_MADVISE as isize => ret,
            in("rdi") addr,
            in("rsi") len,
            in("rdx") MADV_COLLAPSE,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    if ret == 0 { Ok(()) } else { Err(-ret as i32) }
}
