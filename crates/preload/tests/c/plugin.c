/* Loaded at run time: calls of its own, in shapes that compilers and people produce. */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* The plain shape. */
long plain(const char *path, struct stat *st) {
    long ret;
    __asm__ volatile("mov $4, %%eax; syscall" : "=a"(ret) : "D"(path), "S"(st)
                     : "rcx", "r11", "memory");
    return ret;
}

/* Somebody jumps to the call itself: nothing before it may be replaced. */
__attribute__((noinline)) long jumped_to(const char *path, struct stat *st, long lstat) {
    long ret = lstat ? 6 : 0;
    __asm__ volatile("test %%rax, %%rax; jnz 1f; mov $4, %%eax; 1: syscall; nop; nop; nop; nop"
                     : "+a"(ret) : "D"(path), "S"(st) : "rcx", "r11", "memory", "cc");
    return ret;
}

/* A number that is read relative to the instruction, right before the call. */
static const long stat_number = 4;
__attribute__((noinline)) long relative(const char *path, struct stat *st) {
    long ret;
    __asm__ volatile("mov %1, %%rax; syscall" : "=&a"(ret) : "m"(stat_number), "D"(path), "S"(st)
                     : "rcx", "r11", "memory");
    return ret;
}

/* Bytes of a syscall that are none: constants, and data between functions. */
__attribute__((noinline)) uint32_t constants(uint32_t x) {
    __asm__ volatile("addl $0x050f050f, %0; xorl $0x00050f00, %0" : "+r"(x) : : "cc");
    return x;
}
__asm__(".text; .byte 0x0f, 0x05, 0xb8; .quad 0x050f050f050f050f; .byte 0xb8, 4, 0, 0, 0, 0x0f, 5");
extern const unsigned char data_start[] __asm__("hf_data");
__asm__(".globl hf_data; hf_data: .byte 0xb8, 4, 0, 0, 0, 0x0f, 5, 0xc3; .text");
uint64_t data_sum(void) {
    uint64_t sum = 0;
    for (int i = 0; i < 8; i++) sum = sum * 31 + data_start[i];
    return sum;
}

/* A loop whose body starts at the call. */
long looped(const char *path, struct stat *st, long times) {
    long ret, done = 0;
    __asm__ volatile("1: mov $4, %%eax; syscall; inc %1; cmp %4, %1; jb 1b"
                     : "=&a"(ret), "+b"(done) : "D"(path), "S"(st), "r"(times)
                     : "rcx", "r11", "memory", "cc");
    return ret < 0 ? ret : done;
}
