//! Copies from and to the program's memory that survive bad addresses.
//!
//! Invariant: a fault inside `hf_copy` resumes at its landing, which reports failure; so a wrong
//! pointer of the program becomes EFAULT, as it would in the kernel.
use core::arch::global_asm;
use core::mem::{MaybeUninit, size_of};

global_asm!(
    ".pushsection .text.holdfast_user,\"ax\",@progbits",
    ".hidden hf_copy, hf_copy_end, hf_copy_landing",
    ".globl hf_copy, hf_copy_end, hf_copy_landing",
    ".type hf_copy,@function",
    "hf_copy:",
    "mov rcx, rdx",
    "rep movsb",
    "xor eax, eax",
    "ret",
    "hf_copy_end:",
    "hf_copy_landing:",
    "mov eax, 14",
    "ret",
    ".size hf_copy, . - hf_copy",
    ".popsection",
);

unsafe extern "C" {
    fn hf_copy(to: usize, from: usize, len: usize) -> i32;
    fn hf_copy_end();
    fn hf_copy_landing();
}

/// Where to resume when `ip` faulted while copying.
pub fn landing_for(ip: usize) -> Option<usize> {
    let start = hf_copy as *const () as usize;
    let end = hf_copy_end as *const () as usize;
    (start..end)
        .contains(&ip)
        .then_some(hf_copy_landing as *const () as usize)
}

/// A plain value that any bytes are valid for.
///
/// # Safety
/// Only for types of which every bit pattern is a value.
pub unsafe trait Plain: Copy {}

pub fn read<T: Plain>(from: usize) -> Option<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: writes inside `value`; a fault on the source ends at the landing.
    let failed = unsafe { hf_copy(value.as_mut_ptr() as usize, from, size_of::<T>()) };
    // SAFETY: initialised, and any bytes are a valid `T` (`Plain`).
    (failed == 0).then(|| unsafe { value.assume_init() })
}

/// Writes `value` for the program at `to`; false when it cannot be written.
pub fn write<T: Plain>(to: usize, value: &T) -> bool {
    // SAFETY: the program asked for its memory at `to` to be written, as the kernel would; a
    // fault ends at the landing.
    let failed = unsafe { hf_copy(to, core::ptr::from_ref(value) as usize, size_of::<T>()) };
    failed == 0
}
