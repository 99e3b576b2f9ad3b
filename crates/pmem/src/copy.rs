//! The machine code that moves bytes to, from and inside pool memory.
//!
//! What always holds here:
//! - At every instruction that may fault, rdi, rsi and rdx describe what is left to copy, so after
//!   a fault the copy can continue byte by byte from there (`landing` in `fault.rs`) and stop at
//!   the exact byte. The byte loop has one load and one store, so the faulting side is known.
//! - Only `holdfast_copy_nt_ymm` and `holdfast_zero_nt_ymm` touch ymm registers; the others use
//!   only xmm0-xmm3, which a hook may use freely.
//! - No routine calls anything or uses the stack beyond its return address.

use core::arch::global_asm;

/// What a copy routine returns: bytes not done, and which side stopped it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub left: usize,
    pub side: usize,
}

pub(crate) const SIDE_SOURCE: usize = 1;

global_asm!(
    r#"
    .pushsection .text.holdfast_copy,"ax",@progbits
    .macro hf_global name
    .globl \name
    .hidden \name
    \name:
    .endm
    .macro hf_func name
    .p2align 6
    .globl \name
    .hidden \name
    .type \name,@function
    \name:
    .endm

hf_global holdfast_bulk_start
// holdfast_copy(dst rdi, src rsi, len rdx): cached copy, any alignment.
hf_func holdfast_copy
    cmp rdx, 64
    jb 3f
2:
    movdqu xmm0, [rsi]
    movdqu xmm1, [rsi + 16]
    movdqu xmm2, [rsi + 32]
    movdqu xmm3, [rsi + 48]
    movdqu [rdi], xmm0
    movdqu [rdi + 16], xmm1
    movdqu [rdi + 32], xmm2
    movdqu [rdi + 48], xmm3
    add rsi, 64
    add rdi, 64
    sub rdx, 64
    cmp rdx, 64
    jae 2b
3:
    cmp rdx, 16
    jb 5f
4:
    movdqu xmm0, [rsi]
    movdqu [rdi], xmm0
    add rsi, 16
    add rdi, 16
    sub rdx, 16
    cmp rdx, 16
    jae 4b
5:
    cmp rdx, 8
    jb 6f
    mov rax, [rsi]
    mov [rdi], rax
    add rsi, 8
    add rdi, 8
    sub rdx, 8
6:
    cmp rdx, 4
    jb 7f
    mov eax, [rsi]
    mov [rdi], eax
    add rsi, 4
    add rdi, 4
    sub rdx, 4
7:
    jmp holdfast_bytes

// holdfast_copy_nt(dst, src, len): dst on a line, len whole lines, around the cache.
hf_func holdfast_copy_nt
    test rdx, rdx
    jz holdfast_bytes
2:
    movdqu xmm0, [rsi]
    movdqu xmm1, [rsi + 16]
    movdqu xmm2, [rsi + 32]
    movdqu xmm3, [rsi + 48]
    movntdq [rdi], xmm0
    movntdq [rdi + 16], xmm1
    movntdq [rdi + 32], xmm2
    movntdq [rdi + 48], xmm3
    add rsi, 64
    add rdi, 64
    sub rdx, 64
    jnz 2b
    xor eax, eax
    xor edx, edx
    ret
hf_global holdfast_bulk_end

// holdfast_copy_auto(dst, src, len): holdfast_copy when short, holdfast_copy_rep when long.
hf_func holdfast_copy_auto
    cmp rdx, 1024
    jb holdfast_copy
    // The string unit asks for one line after the other: ask for the first page at once.
    mov ecx, 4096
    cmp rdx, rcx
    cmovb rcx, rdx
    lea rax, [rsi + rcx]
    neg rcx
2:
    prefetcht0 [rax + rcx]
    add rcx, 64
    jl 2b
    jmp holdfast_copy_rep

// holdfast_copy_rep(dst, src, len): cached copy of a long run by the string unit.
hf_func holdfast_copy_rep
    mov rcx, rdx
hf_global holdfast_rep_start
    rep movsb
hf_global holdfast_rep_end
    xor eax, eax
    xor edx, edx
    ret

hf_global holdfast_ymm_start
// holdfast_copy_nt_ymm(dst, src, len): as holdfast_copy_nt with 32-byte registers.
hf_func holdfast_copy_nt_ymm
    test rdx, rdx
    jz 3f
2:
    vmovdqu ymm0, [rsi]
    vmovdqu ymm1, [rsi + 32]
    vmovntdq [rdi], ymm0
    vmovntdq [rdi + 32], ymm1
    add rsi, 64
    add rdi, 64
    sub rdx, 64
    jnz 2b
3:
    vzeroupper
    xor eax, eax
    xor edx, edx
    ret
hf_global holdfast_ymm_end

hf_global holdfast_zero_start
// holdfast_zero_nt(dst rdi, unused rsi, len rdx): dst on a line, whole lines.
hf_func holdfast_zero_nt
    pxor xmm0, xmm0
    test rdx, rdx
    jz 3f
2:
    movntdq [rdi], xmm0
    movntdq [rdi + 16], xmm0
    movntdq [rdi + 32], xmm0
    movntdq [rdi + 48], xmm0
    add rdi, 64
    sub rdx, 64
    jnz 2b
3:
    xor eax, eax
    xor edx, edx
    ret
// holdfast_zero(dst rdi, unused rsi, len rdx): cached, any alignment.
hf_func holdfast_zero
    pxor xmm0, xmm0
    cmp rdx, 16
    jb 3f
2:
    movdqu [rdi], xmm0
    add rdi, 16
    sub rdx, 16
    cmp rdx, 16
    jae 2b
3:
    test rdx, rdx
    jz 4f
    mov byte ptr [rdi], 0
    inc rdi
    dec rdx
    jmp 3b
4:
    xor eax, eax
    xor edx, edx
    ret
hf_global holdfast_zero_end

// The byte loop: the tail of every copy, and where a faulted bulk copy goes on.
hf_func holdfast_bytes
    test rdx, rdx
    jz 3f
hf_global holdfast_byte_load
    mov al, [rsi]
hf_global holdfast_byte_store
    mov [rdi], al
    inc rsi
    inc rdi
    dec rdx
    jmp holdfast_bytes
3:
    xor eax, eax
    xor edx, edx
    ret
hf_global holdfast_land_ymm
    vzeroupper
    jmp holdfast_bytes
hf_global holdfast_land_rep
    mov rdx, rcx
    jmp holdfast_bytes
hf_global holdfast_land_load
    mov rax, rdx
    mov edx, 1
    ret
hf_global holdfast_land_store
    mov rax, rdx
    mov edx, 2
    ret

// holdfast_cstr(dst rdi, src rsi, cap rdx): copies up to and including a NUL.
// rax = bytes copied without the NUL, rdx = 0 found, 1 source faulted, 3 no NUL in cap bytes.
hf_func holdfast_cstr
    xor ecx, ecx
2:
    cmp rcx, rdx
    jae 4f
hf_global holdfast_cstr_load
    mov al, [rsi + rcx]
    mov [rdi + rcx], al
    test al, al
    jz 3f
    inc rcx
    jmp 2b
3:
    mov rax, rcx
    xor edx, edx
    ret
4:
    mov rax, rcx
    mov edx, 3
    ret
hf_global holdfast_land_cstr
    mov rax, rcx
    mov edx, 1
    ret
    .purgem hf_global
    .purgem hf_func
    .popsection
"#
);

pub(crate) type CopyFn = unsafe extern "sysv64" fn(*mut u8, *const u8, usize) -> Outcome;

unsafe extern "sysv64" {
    pub(crate) fn holdfast_copy(dst: *mut u8, src: *const u8, len: usize) -> Outcome;
    pub(crate) fn holdfast_copy_auto(dst: *mut u8, src: *const u8, len: usize) -> Outcome;
    #[cfg(test)]
    pub(crate) fn holdfast_copy_rep(dst: *mut u8, src: *const u8, len: usize) -> Outcome;
    pub(crate) fn holdfast_copy_nt(dst: *mut u8, src: *const u8, len: usize) -> Outcome;
    pub(crate) fn holdfast_copy_nt_ymm(dst: *mut u8, src: *const u8, len: usize) -> Outcome;
    pub(crate) fn holdfast_zero_nt(dst: *mut u8, src: *const u8, len: usize) -> Outcome;
    pub(crate) fn holdfast_zero(dst: *mut u8, src: *const u8, len: usize) -> Outcome;
    pub(crate) fn holdfast_cstr(dst: *mut u8, src: *const u8, cap: usize) -> Outcome;
}

// Addresses inside the code above; never called.
unsafe extern "C" {
    pub(crate) static holdfast_bulk_start: u8;
    pub(crate) static holdfast_bulk_end: u8;
    pub(crate) static holdfast_rep_start: u8;
    pub(crate) static holdfast_rep_end: u8;
    pub(crate) static holdfast_ymm_start: u8;
    pub(crate) static holdfast_ymm_end: u8;
    pub(crate) static holdfast_zero_start: u8;
    pub(crate) static holdfast_zero_end: u8;
    pub(crate) static holdfast_byte_load: u8;
    pub(crate) static holdfast_byte_store: u8;
    pub(crate) static holdfast_cstr_load: u8;
    pub(crate) static holdfast_bytes: u8;
    pub(crate) static holdfast_land_ymm: u8;
    pub(crate) static holdfast_land_rep: u8;
    pub(crate) static holdfast_land_load: u8;
    pub(crate) static holdfast_land_store: u8;
    pub(crate) static holdfast_land_cstr: u8;
}
