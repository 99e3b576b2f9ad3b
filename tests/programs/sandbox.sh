#!/usr/bin/env bash
# needs: gcc
# A program that forbids itself to ask who it is, before its first file, goes on to work with files.
set -eu
cd "$1"
cat >sandbox.c <<'C'
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KILLS(nr)                                          \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1),         \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)

int main(int argc, char **argv)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        KILLS(SYS_stat), KILLS(SYS_capget), KILLS(SYS_getgroups), KILLS(SYS_setfsuid),
        KILLS(SYS_setfsgid), KILLS(SYS_getuid), KILLS(SYS_getgid), KILLS(SYS_geteuid),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    long done = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    done = done ? done : argc > 1
        ? syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)
        : prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    printf("filter: %s\n", done ? strerror(errno) : "in place");
    int fd = open("made", O_CREAT | O_WRONLY | O_TRUNC, 0640);
    printf("write: %zd\n", write(fd, "x\n", 2));
    struct stat st;
    int known = fstat(fd, &st);
    printf("fstat: %d %o %ld\n", known, st.st_mode, (long)st.st_size);
    printf("mkdir: %d\n", mkdir(argc > 1 ? "two" : "one", 0700));
    printf("rename: %d\n", rename("made", argc > 1 ? "two/kept" : "one/kept"));
    return 0;
}
C
gcc -o sandbox sandbox.c
./sandbox
./sandbox again
