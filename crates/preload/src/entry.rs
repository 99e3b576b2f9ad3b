//! From a trampoline into Rust and back, on the program's own stack.
//!
//! Invariants: below the red zone, every register of the program is saved before Rust runs and
//! restored before the program resumes; only rcx and r11 change, which a system call loses anyway.
//! The library is built for baseline x86-64, so saving xmm0-15 preserves all vector state. Nothing
//! of ours is on the stack any more when a native `syscall` runs. From `hf_leave` on, a signal is
//! delivered at once: its frame is rolled forward to where the program continues (`signals`);
//! before that it is held back until the hook leaves.
use core::arch::global_asm;

/// The program's registers, as the entry pushed them; its red zone lies right above.
#[repr(C)]
pub struct Regs {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rbp: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub rdx: u64,
    pub rbx: u64,
    /// The number at entry, the result afterwards.
    pub rax: u64,
    /// At entry the trampoline's native `syscall`; afterwards where to continue.
    pub target: u64,
    pub rflags: u64,
    /// The signal mask while held-back signals are sent again.
    pub mask: u64,
}

/// From the saved registers to the program's stack pointer.
pub const FRAME: u64 = 128 + 128;
/// Lengths that entry, trampolines and hook agree on.
pub const SYSCALL_LEN: u64 = 2;
/// The variant that reports afterwards starts this far before the native `syscall`.
pub const THEN_BACK: u64 = 15;

global_asm!(
    ".pushsection .text.holdfast_entry,\"ax\",@progbits",
    ".hidden hf_entry, hf_post, hf_gate, hf_leave, hf_leave_jump, hf_resend, hf_resend_end",
    ".globl hf_entry, hf_post, hf_gate, hf_leave, hf_leave_jump, hf_resend, hf_resend_end",
    ".macro hf_save",
    "lea rsp, [rsp - 136]",
    "pushfq",
    "push rcx",
    "push rax",
    "push rbx",
    "push rdx",
    "push rsi",
    "push rdi",
    "push rbp",
    "push r8",
    "push r9",
    "push r10",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "cld",
    "mov rbp, rsp",
    "and rsp, -64",
    "sub rsp, 256",
    "movaps [rsp], xmm0",
    "movaps [rsp + 16], xmm1",
    "movaps [rsp + 32], xmm2",
    "movaps [rsp + 48], xmm3",
    "movaps [rsp + 64], xmm4",
    "movaps [rsp + 80], xmm5",
    "movaps [rsp + 96], xmm6",
    "movaps [rsp + 112], xmm7",
    "movaps [rsp + 128], xmm8",
    "movaps [rsp + 144], xmm9",
    "movaps [rsp + 160], xmm10",
    "movaps [rsp + 176], xmm11",
    "movaps [rsp + 192], xmm12",
    "movaps [rsp + 208], xmm13",
    "movaps [rsp + 224], xmm14",
    "movaps [rsp + 240], xmm15",
    "mov rdi, rbp",
    ".endm",
    // OF by an addition, the rest by sahf: a popf would cost as much as the whole entry.
    ".macro hf_flags",
    "movzx eax, byte ptr [rsp + 113]",
    "shr eax, 3",
    "and eax, 1",
    "mov ah, byte ptr [rsp + 112]",
    "add al, 0x7f",
    "sahf",
    ".endm",
    // DF, NT or AC set: rare enough for a popf.
    ".macro hf_popf",
    "lea rsp, [rsp + 112]",
    "popfq",
    "lea rsp, [rsp - 120]",
    ".endm",
    ".p2align 6",
    ".type hf_post,@function",
    "hf_post:",
    ".cfi_startproc",
    ".cfi_undefined rip",
    "hf_save",
    "call {post}",
    "jmp 2f",
    ".p2align 4",
    ".type hf_entry,@function",
    "hf_entry:",
    "hf_save",
    "call {hook}",
    "2:",
    "movaps xmm0, [rsp]",
    "movaps xmm1, [rsp + 16]",
    "movaps xmm2, [rsp + 32]",
    "movaps xmm3, [rsp + 48]",
    "movaps xmm4, [rsp + 64]",
    "movaps xmm5, [rsp + 80]",
    "movaps xmm6, [rsp + 96]",
    "movaps xmm7, [rsp + 112]",
    "movaps xmm8, [rsp + 128]",
    "movaps xmm9, [rsp + 144]",
    "movaps xmm10, [rsp + 160]",
    "movaps xmm11, [rsp + 176]",
    "movaps xmm12, [rsp + 192]",
    "movaps xmm13, [rsp + 208]",
    "movaps xmm14, [rsp + 224]",
    "movaps xmm15, [rsp + 240]",
    "mov rsp, rbp",
    "test dword ptr [rsp + 112], 0x44400",
    "jnz 4f",
    "hf_flags",
    // No instruction below changes a flag.
    "3:",
    "mov ecx, dword ptr [rip + {pending}]",
    "hf_gate:",
    "jrcxz hf_leave",
    "jmp 5f",
    "4:",
    "hf_popf",
    "jmp 3b",
    "hf_leave:",
    "mov r15, [rsp]",
    "mov r14, [rsp + 8]",
    "mov r13, [rsp + 16]",
    "mov r12, [rsp + 24]",
    "mov r10, [rsp + 32]",
    "mov r9, [rsp + 40]",
    "mov r8, [rsp + 48]",
    "mov rbp, [rsp + 56]",
    "mov rdi, [rsp + 64]",
    "mov rsi, [rsp + 72]",
    "mov rdx, [rsp + 80]",
    "mov rbx, [rsp + 88]",
    "mov rax, [rsp + 96]",
    "mov r11, [rsp + 104]",
    "lea rsp, [rsp + 256]",
    "hf_leave_jump:",
    "jmp r11",
    // Signals were held back: block all, send them again, unblock. They arrive at the unblocking
    // call, where frames are rolled forward. xmm registers are saved anew, Rust runs again.
    "5:",
    "mov rbp, rsp",
    "and rsp, -64",
    "sub rsp, 256",
    "movaps [rsp], xmm0",
    "movaps [rsp + 16], xmm1",
    "movaps [rsp + 32], xmm2",
    "movaps [rsp + 48], xmm3",
    "movaps [rsp + 64], xmm4",
    "movaps [rsp + 80], xmm5",
    "movaps [rsp + 96], xmm6",
    "movaps [rsp + 112], xmm7",
    "movaps [rsp + 128], xmm8",
    "movaps [rsp + 144], xmm9",
    "movaps [rsp + 160], xmm10",
    "movaps [rsp + 176], xmm11",
    "movaps [rsp + 192], xmm12",
    "movaps [rsp + 208], xmm13",
    "movaps [rsp + 224], xmm14",
    "movaps [rsp + 240], xmm15",
    "lea rdi, [rbp + 120]",
    "call {resend}",
    "movaps xmm0, [rsp]",
    "movaps xmm1, [rsp + 16]",
    "movaps xmm2, [rsp + 32]",
    "movaps xmm3, [rsp + 48]",
    "movaps xmm4, [rsp + 64]",
    "movaps xmm5, [rsp + 80]",
    "movaps xmm6, [rsp + 96]",
    "movaps xmm7, [rsp + 112]",
    "movaps xmm8, [rsp + 128]",
    "movaps xmm9, [rsp + 144]",
    "movaps xmm10, [rsp + 160]",
    "movaps xmm11, [rsp + 176]",
    "movaps xmm12, [rsp + 192]",
    "movaps xmm13, [rsp + 208]",
    "movaps xmm14, [rsp + 224]",
    "movaps xmm15, [rsp + 240]",
    "mov rsp, rbp",
    "hf_resend:",
    "mov eax, 14",
    "mov edi, 2",
    "lea rsi, [rsp + 120]",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    "test dword ptr [rsp + 112], 0x44400",
    "jnz 6f",
    "hf_flags",
    "jmp hf_leave",
    "hf_resend_end:",
    "6:",
    "hf_popf",
    "jmp hf_leave",
    ".cfi_endproc",
    ".purgem hf_save",
    ".purgem hf_flags",
    ".purgem hf_popf",
    ".popsection",
    hook = sym crate::hook::hook,
    post = sym crate::hook::post,
    resend = sym crate::signals::resend,
    pending = sym crate::signals::PENDING,
);

unsafe extern "C" {
    fn hf_entry();
    fn hf_post();
    fn hf_gate();
    fn hf_leave();
    fn hf_leave_jump();
    fn hf_resend();
    fn hf_resend_end();
}

pub fn entry_address() -> usize {
    hf_entry as *const () as usize
}

pub fn post_address() -> usize {
    hf_post as *const () as usize
}

/// What the code at `ip`, on its way out of the hook, still has to do.
pub enum Leaving {
    /// The saved registers are at the stack pointer.
    WithFrame,
    /// Only the jump to r11 is left.
    JumpOnly,
}

/// `rcx` decides at the gate: whether signals were held back when it was passed.
pub fn leaving(ip: usize, rcx: u64) -> Option<Leaving> {
    let at = |f: unsafe extern "C" fn()| f as *const () as usize;
    if ip == at(hf_leave_jump) {
        Some(Leaving::JumpOnly)
    } else if (at(hf_leave)..at(hf_leave_jump)).contains(&ip)
        || (ip == at(hf_gate) && rcx == 0)
        || (at(hf_resend)..at(hf_resend_end)).contains(&ip)
    {
        Some(Leaving::WithFrame)
    } else {
        None
    }
}
