#!/usr/bin/env bash
# Children that share memory, descriptors or the working directory with their parent, in every
# combination, made by clone and clone3, nested, ended in different ways; and beside them programs
# that know nothing of it.
# needs: gcc
# seconds: 240
set -eu
cd "$1"
cat >t.c <<'END'
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK = 64 << 10 };
static char *stacks;
static char top[PATH_MAX];

static void *stack_of(int n) { return stacks + (size_t)n * STACK; }

/* clone3 with a stack; without one it returns twice, as fork does. */
struct args { uint64_t flags, pidfd, child_tid, parent_tid, signal, stack, size, tls; };
long clone3_on(struct args *args, size_t size, int (*fn)(void *), void *arg);
__asm__(".globl clone3_on\n.type clone3_on,@function\nclone3_on:\n.cfi_startproc\n"
        "mov %rdx, %r8\nmov %rcx, %r9\nmov $435, %eax\nsyscall\n"
        "test %eax, %eax\njz 1f\nret\n"
        "1: xor %ebp, %ebp\nmov %r9, %rdi\ncall *%r8\nmov %eax, %edi\nmov $60, %eax\nsyscall\n"
        ".cfi_endproc\n.size clone3_on, . - clone3_on\n"
        ".section .note.GNU-stack,\"\",@progbits\n.text\n");

static pid_t make(int three, uint64_t flags, int n, int (*fn)(void *), void *arg) {
    if (flags & CLONE_VM) {
        if (!three) return clone(fn, stack_of(n) + STACK, flags | SIGCHLD, arg);
        struct args args = {.flags = flags, .signal = SIGCHLD,
                            .stack = (uint64_t)stack_of(n), .size = STACK};
        return clone3_on(&args, sizeof args, fn, arg);
    }
    struct args args = {.flags = flags, .signal = SIGCHLD};
    long pid = three ? syscall(SYS_clone3, &args, sizeof args)
                     : syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) _exit(fn(arg));
    return pid;
}

static int put(const char *name, const char *text) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text)) return -1;
    return fd;
}

static int holds(int fd, const char *text) {
    char back[64] = "";
    ssize_t n = pread(fd, back, sizeof back - 1, 0);
    return n == (ssize_t)strlen(text) && !memcmp(back, text, n);
}

struct job { int end, inner, fd; uint64_t flags; };
enum { RETURNS, EXIT, EXIT_GROUP, EXEC, KILLED, ENDS };

static int child(void *arg);

static void finish(struct job *job) {
    char *shell[] = {"sh", "-c", "echo executed >executed; cat mine >copied", 0};
    switch (job->end) {
    case EXIT: syscall(SYS_exit, 7);
    case EXIT_GROUP: syscall(SYS_exit_group, 7);
    case EXEC: execv("/bin/sh", shell); syscall(SYS_exit, 9);
    case KILLED: syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
    }
}

static int child(void *arg) {
    struct job *job = arg;
    if (chdir("sub")) return 20;
    umask(0077);
    job->fd = put("mine", "of the child\n");
    if (job->fd < 0 || !holds(job->fd, "of the child\n")) return 21;
    int other = put("short", "gone\n");
    if (other < 0 || close(other) || unlink("short")) return 22;
    if (job->inner) {
        struct job inner = {RETURNS, 0, -1, job->flags};
        int status;
        mkdir("sub", 0777);
        pid_t pid = make(0, job->flags, 1, child, &inner);
        if (pid < 0 || waitpid(pid, &status, __WALL) != pid || status) return 23;
        if (!holds(job->fd, "of the child\n")) return 24;
    }
    finish(job);
    return 0;
}

static int close_rest(void) {
    int count = 0;
    for (int fd = 3; fd < 64; fd++) count += close(fd) == 0;
    return count;
}

static int one(int three, uint64_t flags, int end, int inner) {
    char cwd[PATH_MAX] = "", own[32];
    int status = -1;
    struct job *job = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *job = (struct job){end, inner, -1, flags};
    mkdir("sub", 0777);
    int before = put("before", "of the parent\n");
    pid_t pid = make(three, flags, 0, child, job);
    if (pid < 0) return printf(" errno %d", errno), 1;
    int bad = 0;
    /* The parent goes on meanwhile, by absolute names: the directory may be the child's too. */
    for (int i = 0; i < 5; i++) {
        snprintf(own, sizeof own, "%d", i);
        char name[PATH_MAX + 8];
        snprintf(name, sizeof name, "%s/p%d", top, i);
        int fd = put(name, own);
        bad += fd < 0 || !holds(fd, own) || close(fd) || unlink(name);
    }
    bad += waitpid(pid, &status, __WALL) != pid;
    int shared = job->fd >= 0 && holds(job->fd, "of the child\n");
    bad += !holds(before, "of the parent\n");
    getcwd(cwd, sizeof cwd);
    mode_t mask = umask(022);
    printf(" [%x fd %d cwd %s umask %o bad %d]", status, shared, cwd + strlen(top), mask, bad);
    if (shared) close(job->fd);
    close(before);
    munmap(job, 4096);
    if (chdir(top)) return 1;
    printf(" left %d", close_rest());
    return system("cat sub/copied sub/executed 2>/dev/null | tr '\\n' ';'; rm -rf sub before");
}

static const struct { const char *name; uint64_t flag; } FLAGS[] = {
    {"vm", CLONE_VM}, {"files", CLONE_FILES}, {"fs", CLONE_FS}, {"vfork", CLONE_VFORK},
    {"sighand", CLONE_SIGHAND},
};

int main(void) {
    setvbuf(stdout, 0, _IONBF, 0);
    getcwd(top, sizeof top);
    umask(022);
    close_rest();
    stacks = mmap(0, 4 * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int set = 0; set < 32; set++) {
        uint64_t flags = 0;
        for (int i = 0; i < 5; i++)
            if (set >> i & 1) flags |= FLAGS[i].flag, printf("%s ", FLAGS[i].name);
        if (flags & CLONE_SIGHAND && !(flags & CLONE_VM)) { printf("-\n"); continue; }
        /* Only the pool's owner has processes that share descriptors or the directory. */
        if (getenv("HF_SERVED") && flags & (CLONE_FILES | CLONE_FS)) { printf("-\n"); continue; }
        printf(":");
        for (int end = 0; end < ENDS; end++)
            for (int three = 0; three < 2; three++) one(three, flags, end, end < EXEC);
        printf("\n");
    }
}
END
gcc -w -O1 -o t.out t.c
neighbour() { # name: nothing but ordinary work, relative and absolute
    mkdir "$1" && cd "$1"
    local i
    for ((i = 0; i < 150; i++)); do
        echo $i >f$i; cat f$i >>all; rm f$i
        echo $i >"$PWD/g"; cat "$PWD/g" >>"$PWD/all"; rm "$PWD/g"
    done
    sum=$(cksum <all)
    echo "$1 $sum $(wc -l <all) $(ls)"
}
(neighbour n1) >n1.out 2>&1 &
(neighbour n2) >n2.out 2>&1 &
mkdir d; (cd d && ../t.out); ls -A d; rmdir d
wait
cat n1.out n2.out
rm t.out
