#!/usr/bin/env bash
# Calls that are missed, and a process that has lost its place: both fail, and touch no file of the
# host. Elsewhere there is nothing to lose; the text is the same.
# needs: gcc
set -eu
cd "$1"
cat >t.c <<'END'
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;
static void is(const char *what, long got, int wanted) {
    int errno_now = errno;
    if (got >= 0 || errno_now != wanted) {
        printf("%s: %ld, %s\n", what, got, got < 0 ? strerror(errno_now) : "no error");
        failures++;
    }
}
#define IS(call, wanted) (errno = 0, is(#call, (long)(call), wanted))

/* A system call in memory that nobody has patched. */
static long (*code)(long, long, long, long, long, long, long);
static long missed(long nr, long a, long b, long c, long d, long e, long f) {
    long ret = code(nr, a, b, c, d, e, f);
    return ret < 0 ? (errno = -ret, -1) : ret;
}
#define MISSED(nr, ...) missed(nr, __VA_ARGS__)

static void net(int fd, int dir) {
    struct stat before, after;
    char path[64];
    code = mmap(0, 4096, 7, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    static const unsigned char text[] = {
        0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xd6, 0x48, 0x89, 0xca, 0x4d, 0x89,
        0xc2, 0x4d, 0x89, 0xc8, 0x4c, 0x8b, 0x4c, 0x24, 8, 0x0f, 5, 0xc3};
    memcpy((void *)code, text, sizeof text);
    long cwd = AT_FDCWD;
    IS(MISSED(SYS_openat, cwd, (long)"x", O_CREAT | O_RDWR, 0600, 0, 0), ENOENT);
    IS(MISSED(SYS_openat, cwd, (long)"../x", O_CREAT | O_RDWR, 0600, 0, 0), ENOENT);
    IS(MISSED(SYS_openat, cwd, (long)"../../x", O_CREAT | O_RDWR, 0600, 0, 0), ENOENT);
    IS(MISSED(SYS_mkdirat, cwd, (long)"x", 0700, 0, 0, 0), ENOENT);
    IS(MISSED(SYS_symlinkat, (long)"to", cwd, (long)"x", 0, 0, 0), ENOENT);
    IS(MISSED(SYS_mknodat, cwd, (long)"x", S_IFREG | 0600, 0, 0, 0), ENOENT);
    IS(MISSED(SYS_openat, dir, (long)"x", O_CREAT | O_RDWR, 0600, 0, 0), ENOTDIR);
    missed(SYS_fstat, fd, (long)&before, 0, 0, 0, 0);
    IS(MISSED(SYS_write, fd, (long)"x", 1, 0, 0, 0), EBADF);
    IS(MISSED(SYS_pwrite64, fd, (long)"x", 1, 0, 0, 0), EBADF);
    IS(MISSED(SYS_read, fd, (long)path, 1, 0, 0, 0), EBADF);
    IS(MISSED(SYS_ftruncate, fd, 10, 0, 0, 0, 0), EINVAL);
    IS(MISSED(SYS_fallocate, fd, 0, 0, 10, 0, 0), EBADF);
    IS(MISSED(SYS_mmap, 0, 4096, PROT_READ, MAP_SHARED, fd, 0), EACCES);
    IS(MISSED(SYS_mmap, 0, 4096, PROT_WRITE, MAP_PRIVATE, fd, 0), EACCES);
    int source = open("/proc/self/exe", O_RDONLY), pipes[2];
    IS(MISSED(SYS_sendfile, fd, source, 0, 10, 0, 0), EBADF);
    IS(MISSED(SYS_copy_file_range, source, 0, fd, 0, 10, 0), EBADF);
    if (pipe(pipes) || write(pipes[1], "x", 1) != 1) failures++;
    IS(MISSED(SYS_splice, pipes[0], 0, fd, 0, 1, 0), EBADF);
    IS(MISSED(SYS_ioctl, fd, 0x40049409, source, 0, 0, 0), EXDEV);
    /* Whoever opens it once more can do no more. */
    sprintf(path, "/proc/self/fd/%d", fd);
    long again = missed(SYS_openat, cwd, (long)path, O_RDWR, 0, 0, 0);
    if (again >= 0) {
        IS(MISSED(SYS_write, again, (long)"x", 1, 0, 0, 0), EPERM);
        IS(MISSED(SYS_ftruncate, again, 10, 0, 0, 0, 0), EPERM);
        IS(MISSED(SYS_mmap, 0, 4096, PROT_WRITE, MAP_SHARED, again, 0), EPERM);
    }
    missed(SYS_fstat, fd, (long)&after, 0, 0, 0, 0);
    if (before.st_size || after.st_size) printf("the placeholder has bytes\n"), failures++;
}

/* Takes the place away, as a mistake of ours would: the slot's epoch is another one. */
static int lose(const char *session) {
    unsigned long version, fd, len, found = 0;
    if (sscanf(session, "%lu:%lu:%lu:", &version, &fd, &len) != 3) return 1;
    enum { SLOT = 256, STATE = 0, PID = 1, EPOCH = 22, LIVE = 2 };
    uint32_t *memory = (void *)missed(SYS_mmap, 0, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return 1;
    for (size_t at = 0; at < (2 << 20) && !found; at += SLOT) {
        uint32_t *slot = memory + at / 4;
        if (slot[STATE] == LIVE && slot[PID] == getpid()) slot[EPOCH]++, found = 1;
    }
    return !found;
}

static void lost(int fd, int dir, const char *top) {
    struct stat st;
    char path[4096];
    snprintf(path, sizeof path, "%s/x", top);
    IS(open(path, O_CREAT | O_RDWR, 0600), EIO);
    IS(open("x", O_CREAT | O_RDWR, 0600), EIO);
    IS(openat(dir, "x", O_CREAT | O_RDWR, 0600), EIO);
    IS(mkdir("x", 0700), EIO);
    IS(rename("f", "g"), EIO);
    IS(link("f", "/tmp/holdfast-second-net"), EIO);
    IS(symlink("to", "x"), EIO);
    IS(stat("f", &st), EIO);
    IS(chdir("d"), EIO);
    IS(unlink("f"), EIO);
    IS(fchdir(dir), EIO);
    IS(syscall(SYS_getcwd, path, sizeof path), EIO);
    IS(execl("./f", "f", (char *)0), EIO);
    IS(write(fd, "x", 1), EIO);
    IS(read(fd, path, 1), EIO);
    IS(fstat(fd, &st), EIO);
    IS(ftruncate(fd, 1), EIO);
    IS(fchmod(fd, 0), EIO);
    IS(mmap(0, 4096, PROT_READ, MAP_SHARED, fd, 0), EIO);
    IS(sendfile(1, fd, 0, 1), EIO);
    IS(openat(AT_FDCWD, "/proc/self/cwd/x", O_CREAT | O_RDWR, 0600), EIO);
    int null = open("/dev/null", O_RDWR), copy = dup(fd);
    if (null < 0 || write(null, "x", 1) != 1) failures++, printf("the host is gone\n");
    IS(write(copy, "x", 1), EIO);
    if (close(copy) || close(null)) failures++;
}

int main(int argc, char **argv) {
    const char *session = getenv("HOLDFAST_SESSION");
    setvbuf(stdout, 0, _IONBF, 0);
    int fd = open("f", O_RDWR | O_CREAT, 0700), dir = open("d", O_RDONLY | O_DIRECTORY);
    if (session) {
        net(fd, dir);
    }
    /* A program that is served has no session memory to lose its place in. */
    if (session && !getenv("HF_SERVED")) {
        if (lose(session)) return printf("nothing was lost\n"), 1;
        lost(fd, dir, argv[1]);
        int status = 0;
        pid_t pid = fork();
        if (pid == 0) lost(fd, dir, argv[1]), _exit(failures);
        waitpid(pid, &status, 0);
        failures += status != 0;
    }
    printf("%d failures\n", failures);
}
END
gcc -w -O1 -o /tmp/second-net.$$ t.c
mkdir d
/tmp/second-net.$$ "$1"
rm /tmp/second-net.$$
ls -A
