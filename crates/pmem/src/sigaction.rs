//! sigaction(2) as the kernel has it: what runs inside other programs has no libc of its own.

use crate::sys;
use core::arch::global_asm;

pub(crate) const SA_RESTORER: u64 = 0x0400_0000;
const SYS_RT_SIGACTION: usize = 13;
/// Bytes of a set of signals.
const SET: usize = 8;

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Action {
    pub handler: usize,
    pub flags: u64,
    pub restorer: usize,
    pub mask: u64,
}

// The bytes by which debuggers and unwinders know the frame of a signal.
global_asm!(
    ".pushsection .text.holdfast_restorer,\"ax\",@progbits",
    ".globl holdfast_restorer",
    ".hidden holdfast_restorer",
    "nop",
    "holdfast_restorer:",
    "mov rax, 15",
    "syscall",
    ".popsection",
);

unsafe extern "C" {
    fn holdfast_restorer();
}

impl Action {
    pub const DEFAULT: usize = 0;

    pub fn default_action() -> Action {
        Action {
            handler: Action::DEFAULT,
            flags: SA_RESTORER,
            restorer: holdfast_restorer as *const () as usize,
            mask: 0,
        }
    }
}

/// False when the kernel refused. A handler in `new` is one that may run at any place.
pub(crate) fn sigaction(signal: i32, new: Option<&Action>, old: Option<&mut Action>) -> bool {
    let new = new.map_or(0, |action| core::ptr::from_ref(action) as usize);
    let old = old.map_or(0, |action| core::ptr::from_mut(action) as usize);
    let args = [signal as usize, new, old, SET];
    // SAFETY: both are null or values that live until the call returns, and no other memory of
    // this process is changed.
    unsafe { sys::syscall(SYS_RT_SIGACTION, args) == 0 }
}
