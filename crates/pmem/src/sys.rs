//! System calls that rustix has no name for.

use core::arch::asm;

const SYS_MADVISE: usize = 28;
const MADV_COLLAPSE: usize = 25;

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
