#!/usr/bin/env bash
# What rare calls and arguments come to: results and errnos that other programs' tests look at.
# needs: gcc
set -eu
cd "$1"
cat >t.c <<'EOF'
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

static void say(const char *what, long got) {
    printf("%s: %ld %d\n", what, got < 0 ? -1 : got > 100 ? 100 : got, got < 0 ? errno : 0);
}
#define SAY(call) (errno = 0, say(#call, (long)(call)))
#define OPENS(call) do { errno = 0; int fd_ = (call); say(#call, fd_ < 0 ? -1 : 0); \
        if (fd_ >= 0) close(fd_); } while (0)

struct large { struct open_how how; unsigned long more; };
static long how(int at, const char *path, struct large l, size_t size) {
    return syscall(SYS_openat2, at, path, &l, size);
}
static long statx_mask(unsigned mask) {
    char b[256];
    return syscall(SYS_statx, AT_FDCWD, "f", 0, mask, b);
}

int main(void) {
    static char bytes[20000];
    struct stat st;
    struct open_how plain = {.flags = O_RDONLY};
    setvbuf(stdout, 0, _IONBF, 0);
    mkdir("d", 0755), mkdir("d/e", 0755), close(open("d/x", O_CREAT | O_WRONLY, 0600));
    symlink("x", "d/l"), symlink("/x", "d/abs"), symlink("..", "d/up");
    int f = open("f", O_RDWR | O_CREAT, 0600), d = open("d", O_RDONLY), p = open("f", O_PATH);
    int r = open("f", O_RDONLY), a = open("f", O_RDWR | O_APPEND), pipes[2];
    pipe(pipes);
    write(f, bytes, sizeof bytes);

    /* openat2, statx */
    OPENS(how(d, "x", (struct large){plain, 0}, sizeof plain));
    OPENS(how(d, "x", (struct large){plain, 0}, sizeof plain + 8));
    OPENS(how(d, "x", (struct large){plain, 1}, sizeof plain + 8));
    OPENS(how(d, "x", (struct large){plain, 0}, 8));
    plain.resolve = RESOLVE_IN_ROOT;
    OPENS(how(d, "/x", (struct large){plain, 0}, sizeof plain));
    OPENS(how(d, "abs", (struct large){plain, 0}, sizeof plain));
    OPENS(how(d, "../x", (struct large){plain, 0}, sizeof plain));
    OPENS(how(d, "up/x", (struct large){plain, 0}, sizeof plain));
    plain.resolve = RESOLVE_BENEATH;
    OPENS(how(d, "/x", (struct large){plain, 0}, sizeof plain));
    OPENS(how(d, "../f", (struct large){plain, 0}, sizeof plain));
    OPENS(how(d, "e/../x", (struct large){plain, 0}, sizeof plain));
    plain.resolve = RESOLVE_NO_SYMLINKS;
    OPENS(how(d, "l", (struct large){plain, 0}, sizeof plain));
    plain.resolve = RESOLVE_NO_MAGICLINKS;
    OPENS(how(AT_FDCWD, "/proc/self/cwd/f", (struct large){plain, 0}, sizeof plain));
    plain.resolve = 1 << 20;
    OPENS(how(d, "x", (struct large){plain, 0}, sizeof plain));
    SAY(statx_mask(STATX_BASIC_STATS));
    SAY(statx_mask(0x80000000u));

    /* Descriptors that only name a file, and directories */
    SAY(ioctl(p, FIONREAD, bytes));
    SAY(fgetxattr(p, "user.a", bytes, 10));
    SAY(fsetxattr(p, "user.a", bytes, 1, 0));
    SAY(readahead(p, 0, 10));
    SAY(readahead(d, 0, 10));
    SAY(readahead(f, 0, 10));
    SAY(fchmod(p, 0600));
    SAY(fsync(p));
    SAY(ftruncate(p, 5));
    SAY(flock(p, 1));
    SAY(posix_fadvise(p, 0, 0, 0));
    SAY(posix_fadvise(pipes[0], 0, 0, 0));
    SAY(lseek(p, 0, SEEK_SET));
    SAY(read(d, bytes, 1));
    SAY(pread(d, bytes, 1, 0));
    SAY(write(d, bytes, 1));
    SAY(ftruncate(d, 1));
    SAY(fallocate(d, 0, 0, 1));

    /* Ranges */
    SAY(sync_file_range(f, -1, 10, 2));
    SAY(sync_file_range(f, 0, -1, 2));
    SAY(sync_file_range(f, 0, 1, 8));
    SAY(sync_file_range(f, 0, 1, 2));
    SAY(sync_file_range(pipes[0], 0, 1, 2));
    SAY(fallocate(f, 0, -1, 10));
    SAY(fallocate(f, 0, 0, 0));
    SAY(fallocate(f, 0x100, 0, 1));
    SAY(fallocate(r, 0, 0, 1));
    SAY(fallocate(pipes[1], 0, 0, 1));
    SAY(lseek(f, -1, SEEK_SET));
    SAY(lseek(f, 0, 99));
    SAY(lseek(f, LONG_MAX, SEEK_END));
    SAY(lseek(f, 1 << 20, SEEK_DATA));
    SAY(pwrite(f, bytes, 10, LONG_MAX - 5));
    SAY(pwrite(f, bytes, 10, -5));
    SAY(pread(f, bytes, 10, LONG_MAX - 5));
    SAY(syscall(SYS_read, f, bytes, ~0ul));
    SAY(syscall(SYS_write, f, bytes, ~0ul));
    SAY(ftruncate(f, -1));
    SAY(truncate("f", -1));

    /* Between two descriptors */
    long in = 19000, out = 19500;
    SAY(syscall(SYS_copy_file_range, f, &in, f, &out, 5000, 0));
    in = 20000, out = 20001;
    SAY(syscall(SYS_copy_file_range, f, &in, f, &out, 10, 0));
    SAY(syscall(SYS_copy_file_range, f, &in, f, &out, 10, 1));
    SAY(syscall(SYS_copy_file_range, f, &in, r, &out, 10, 0));
    SAY(syscall(SYS_copy_file_range, f, &in, a, &out, 10, 0));
    SAY(syscall(SYS_copy_file_range, d, &in, f, &out, 10, 0));
    SAY(syscall(SYS_copy_file_range, p, &in, f, &out, 10, 0));
    SAY(tee(f, pipes[1], 10, 0));
    SAY(tee(pipes[0], f, 10, SPLICE_F_NONBLOCK));
    SAY(tee(r, f, 10, 0));

    /* Names */
    SAY(linkat(99, "x", AT_FDCWD, "y", 0));
    SAY(linkat(f, "x", AT_FDCWD, "y", 0));
    SAY(linkat(AT_FDCWD, "f", 99, "y", 0));
    SAY(linkat(AT_FDCWD, "f", AT_FDCWD, "f", 0x8000));
    SAY(readlinkat(f, "", bytes, 10));
    SAY(readlinkat(d, "", bytes, 10));
    SAY(readlinkat(d, "l", bytes, 0));
    SAY(readlinkat(d, "x", bytes, 10));
    SAY(renameat2(AT_FDCWD, "f", AT_FDCWD, "d", RENAME_NOREPLACE | RENAME_EXCHANGE));
    SAY(renameat2(AT_FDCWD, "f", AT_FDCWD, "g", 1 << 9));
    SAY(unlinkat(AT_FDCWD, "f", 1));
    SAY(unlinkat(AT_FDCWD, "f", AT_REMOVEDIR));
    SAY(faccessat(AT_FDCWD, "f", 99, 0));
    SAY(fstatat(AT_FDCWD, "f", &st, 0x20000));
    SAY(fchownat(AT_FDCWD, "f", -1, -1, 0x20000));
    SAY(utimensat(AT_FDCWD, "f", 0, 0x20000));
    SAY(mkdirat(99, "q", 0700));
    SAY(mkdirat(f, "q", 0700));
    SAY(symlink("", "s"));
    SAY(mknod("dir", S_IFDIR | 0700, 0));
    SAY(mknod("odd", 0170000 | 0700, 0));
    SAY(setxattr("f", "user.a", bytes, 70000, 0));
    SAY(setxattr("f", "nospace", bytes, 1, 0));
    SAY(setxattr("f", "user.a", bytes, 1, XATTR_REPLACE));
    SAY(setxattr("f", "user.a", bytes, 1, 9));
    SAY(getxattr("f", "", bytes, 1));

    /* Mappings */
    /* Only the pool's owner has shared mappings. */
    if (!getenv("HF_SERVED")) {
        int shared = MAP_SHARED_VALIDATE;
        SAY(mmap(0, 4096, PROT_READ, shared | 0x40000000, f, 0) == MAP_FAILED ? -1 : 0);
        SAY(mmap(0, 4096, PROT_READ, shared, f, 0) == MAP_FAILED ? -1 : 0);
    }
    SAY(mmap(0, 4096, PROT_READ, MAP_SHARED_VALIDATE | MAP_SYNC, f, 0) == MAP_FAILED ? -1 : 0);
    SAY(mmap(0, 4096, PROT_READ, MAP_SHARED, f, 1) == MAP_FAILED ? -1 : 0);
    SAY(mmap(0, 0, PROT_READ, MAP_SHARED, f, 0) == MAP_FAILED ? -1 : 0);
    SAY(mmap(0, 4096, PROT_READ, 0, f, 0) == MAP_FAILED ? -1 : 0);
    SAY(mmap(0, 4096, PROT_READ, MAP_SHARED, p, 0) == MAP_FAILED ? -1 : 0);
    SAY(mmap(0, 4096, PROT_READ, MAP_SHARED, d, 0) == MAP_FAILED ? -1 : 0);
    SAY(mmap(0, 4096, PROT_WRITE, MAP_SHARED, r, 0) == MAP_FAILED ? -1 : 0);
    SAY(mmap(0, 4096, PROT_READ, MAP_SHARED, f, LONG_MAX & ~4095) == MAP_FAILED ? -1 : 0);

    /* Commands */
    SAY(fcntl(f, F_GETPIPE_SZ));
    SAY(fcntl(f, F_GETLEASE));
    SAY(fcntl(f, F_GETOWN));
    SAY(fcntl(f, F_GETSIG));
    SAY(fcntl(f, 9999));
    SAY(fcntl(f, F_GETFD));
    SAY(fcntl(p, F_GETFL) & O_PATH ? 1 : 0);
    SAY(fcntl(p, F_SETFL, 0));
    SAY(fcntl(p, F_GETPIPE_SZ));
    SAY(ioctl(f, FIGETBSZ, bytes));
    SAY(ioctl(f, 0x5401, bytes));
    SAY(ioctl(f, 0x12345678, bytes));
    return 0;
}
EOF
gcc -w -o t t.c
./t
