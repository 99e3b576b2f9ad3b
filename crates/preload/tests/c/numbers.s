# What the scanner must tell of system calls: see tests/scan.rs.
    .text
    .globl jumps, far, beside, cramped
    .type jumps, @function
jumps:
    .cfi_startproc
    lea one(%rip), %rdx
    movslq (%rdx,%rdi,4), %rcx
    add %rdx, %rcx
    jmp *%rcx
1:  lea two(%rip), %rdx
    movslq (%rdx,%rdi,4), %rcx
    add %rdx, %rcx
    jmp *%rcx
2:  ret
    .cfi_endproc
    .size jumps, . - jumps

# The second table, read from the place of the first, leads to the call itself.
    .type beside, @function
beside:
    .cfi_startproc
    mov $11, %eax
    xor %edx, %edx
    xor %r10d, %r10d
    syscall
    nop
    nop
3:  ret
    .cfi_endproc
    .size beside, . - beside

# The number is set long before.
    .type far, @function
far:
    .cfi_startproc
    mov $9, %eax
    .rept 12
    mov %rdi, %r12
    mov %rdi, %r13
    .endr
    syscall
    ret
    .cfi_endproc
    .size far, . - far

# No room for a jump, behind a branch; mount(2).
    .type cramped, @function
cramped:
    .cfi_startproc
    mov $165, %eax
    test %r8, %r8
    je 4f
    syscall
    jmp 4f
    nop
4:  ret
    .cfi_endproc
    .size cramped, . - cramped

    .section .rodata
    .balign 4
one:
    .long 1b - one
two:
    .long 3b - two
    .section .note.GNU-stack, "", @progbits
