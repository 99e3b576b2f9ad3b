//! System calls of the kernel that may wait long, made from inside the hook.
//!
//! Invariants: the caller holds no lock, for a handler of the program may run here. A thread is
//! inside [`range`] exactly while a signal may interrupt the call, from the look at the count of
//! signals that were put off to the return of the call: so none falls in between. What the call
//! returned is never lost: a signal that comes then is handled, and changes nothing.

use core::arch::global_asm;
use core::ops::Range;
use core::sync::atomic::Ordering::Acquire;
use holdfast_pmem::futex;

const EINTR: isize = 4;
/// What the routine returns when the call is to be made again.
const ERESTART: isize = 85;

global_asm!(
    r#"
    .pushsection .text.hf_waiting,"ax",@progbits
    .p2align 4
// hf_waiting(number rdi, arguments rsi, count rdx, seen ecx) -> rax
    .globl hf_waiting
    .hidden hf_waiting
hf_waiting:
    cmp dword ptr [rdx], ecx
    jne hf_waiting_again
    mov rax, rdi
    mov rdi, [rsi]
    mov rdx, [rsi + 16]
    mov r10, [rsi + 24]
    mov r8, [rsi + 32]
    mov r9, [rsi + 40]
    mov rsi, [rsi + 8]
    .globl hf_waiting_call
    .hidden hf_waiting_call
hf_waiting_call:
    syscall
    .globl hf_waiting_done
    .hidden hf_waiting_done
hf_waiting_done:
    ret
    .globl hf_waiting_interrupted
    .hidden hf_waiting_interrupted
hf_waiting_interrupted:
    mov rax, -{eintr}
    ret
    .globl hf_waiting_again
    .hidden hf_waiting_again
hf_waiting_again:
    mov rax, -{erestart}
    ret
    .popsection
"#,
    eintr = const EINTR,
    erestart = const ERESTART,
);

unsafe extern "C" {
    fn hf_waiting(nr: usize, args: *const usize, count: *const u32, seen: u32) -> isize;
    static hf_waiting_call: u8;
    static hf_waiting_done: u8;
    static hf_waiting_interrupted: u8;
    static hf_waiting_again: u8;
}

/// As `sys::raw`, but a signal of the program ends it as it would end the program's own call.
///
/// # Safety
/// As for `sys::raw`.
pub unsafe fn call(nr: usize, args: [usize; 6]) -> isize {
    // SAFETY: the caller's to answer for.
    futex::while_waiting(|| unsafe { until_made(nr, args) })
}

/// # Safety
/// As for `call`.
unsafe fn until_made(nr: usize, args: [usize; 6]) -> isize {
    loop {
        let count = futex::put_off();
        let seen = count.load(Acquire);
        if futex::must_end() {
            return -EINTR;
        }
        // SAFETY: six words and the count are alive; the call is the caller's to answer for.
        let ret = unsafe { hf_waiting(nr, args.as_ptr(), count.as_ptr(), seen) };
        if ret != -ERESTART {
            return ret;
        }
    }
}

/// Instruction pointers at which a thread is about to make the call, makes it, or comes back.
pub fn range() -> Range<usize> {
    hf_waiting as *const () as usize..(&raw const hf_waiting_done) as usize + 1
}

/// For a thread that a signal found at `ip`, where the call was not made or is to be made again:
/// where to resume so that it ends, or is made again if the signal `restarts` it.
pub fn landing(ip: usize, restarts: bool) -> Option<usize> {
    let call = (&raw const hf_waiting_call) as usize;
    let landing = match restarts {
        true => &raw const hf_waiting_again,
        false => &raw const hf_waiting_interrupted,
    };
    (range().start..=call)
        .contains(&ip)
        .then_some(landing as usize)
}
