#!/usr/bin/env bash
# What a program sees of descriptors that are not its own: none. It can open as many as its limit
# says, and what it closes or asks for beyond its own is not there.
# needs: gcc
set -eu
cd "$1"
cat >t.c <<'EOF'
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int count, char **args) {
    struct rlimit limit;
    /* Where the hard limit is no higher, a few of the program's numbers are taken. */
    int taken = count > 1 ? 6 : 0;
    getrlimit(RLIMIT_NOFILE, &limit);
    int seen = 0, made = 0, last = -1, fd;
    struct stat st;
    char byte;
    for (fd = 0; fd < 2000; fd++) seen += !fstat(fd, &st) || errno != EBADF;
    for (fd = 3; fd < 2000; fd++) {
        seen += fcntl(fd, F_GETFD) != -1 || fcntl(fd, F_GETFL) != -1 || read(fd, &byte, 1) != -1;
        seen += lseek(fd, 0, SEEK_CUR) != -1 || !fsync(fd) || dup(fd) != -1 || !close(fd);
    }
    printf("seen %d\n", seen);
    while ((fd = open("t.c", O_RDONLY)) >= 0) made++, last = fd;
    printf("errno %d, all of the limit: %d %d\n", errno, made >= (int)limit.rlim_cur - 3 - taken,
           last >= (int)limit.rlim_cur - 1 - taken);
    printf("beyond it: %d %d\n", dup2(0, limit.rlim_cur), errno);
    int end = limit.rlim_cur - 1 - taken;
    printf("at its end: %d\n", dup2(0, end) == end);
    close_range(3, ~0u, 0);
    printf("still there: %d\n", open("t.c", O_RDONLY));
}
EOF
gcc -O1 -o t t.c
for n in 40 256 1000; do (ulimit -S -n $n; exec ./t 3<&- 4<&- 5<&-); done
for n in 40 256 1000; do (ulimit -n $n; exec ./t hard 3<&- 4<&- 5<&-); done
