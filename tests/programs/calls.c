/* A walk through the calls of files: each seed is a sequence of calls with arguments good and bad,
 * in a directory of its own, and every line says what one of them came to. Two file systems that
 * behave alike print the same lines. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define COUNT(a) ((unsigned)(sizeof(a) / sizeof *(a)))
#define PICK(a) ((a)[rnd(COUNT(a))])
/* Room for a call's data; longer ones are asked for, too. */
#define ROOM (1 << 16)

static uint64_t state;
static unsigned line;
static char data[ROOM], got[ROOM + 16];
static int fds[8], pipes[2];
static struct { char *at; size_t len; off_t from; int own, fd; } maps[4];
static sigjmp_buf fault;
/* Not the pool's owner, who alone has shared mappings there. */
static int served, mounted;
/* Whether this walk maps files. */
static int has_mapped;
static volatile int faults_expected;
/* Where a walk takes place. */
static char start[4096];

static unsigned rnd(unsigned n) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (state * 0x2545f4914f6cdd1dull >> 33) % n;
}
static int chance(unsigned percent) { return rnd(100) < percent; }

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
}
/* The line of a call: its name, its arguments, and what came of it. */
static long result(long ret) {
    int e = errno;
    if (ret < 0) say(" = %s", strerrorname_np(e) ? strerrorname_np(e) : "?");
    else say(" = %ld", ret);
    return ret;
}
#define DO(call) (errno = 0, result((long)(call)))

static uint32_t sum(const void *at, size_t len) {
    uint32_t h = 2166136261u;
    for (const unsigned char *p = at; len--; p++) h = (h ^ *p) * 16777619u;
    return h;
}

static const char *path(void) {
    static const char *names[] = {
        "a", "a", "b", "b", "c", "d", "d/a", "d/b", "d/a", "e/a", "d", "e", "e/f", "e/f/a", "l", "k",
        "l/a", "m", ".", "..", "d/..", "d/.", "d/", "a/", "l/", "./a", "d//b", "none/a", "a/a", "", "e/../a",
        "d/../d/b", "none", "dangling", "loop",
    };
    static char longest[2][300];
    if (chance(1)) return memset(longest[0], 'n', 255), longest[0];
    if (chance(1)) return memset(longest[1], 'n', 256), longest[1];
    return PICK(names);
}
/* A path of a file, as a rule. */
static const char *name(void) {
    static const char *names[] = {"a", "b", "c", "d/a", "d/b", "e/a", "e/f/a", "l"};
    return chance(70) ? PICK(names) : path();
}
static int fd(void) {
    if (chance(3)) return PICK(((int[]){-1, 999, 1 << 20, INT32_MIN}));
    for (int tries = 0; tries < 10; tries++) {
        int f = fds[rnd(COUNT(fds))];
        if (f >= 0) return f;
    }
    return -1;
}
static int dirfd_(void) {
    if (chance(60)) return AT_FDCWD;
    return fd();
}
static off_t offset(void) {
    static const off_t odd[] = {-1, 1l << 40, INT64_MAX, INT64_MIN, INT64_MAX - 4095, 1l << 31, 1l << 32};
    if (chance(4)) return PICK(odd);
    if (chance(30)) return 0;
    return chance(50) ? rnd(20000) : rnd(16) * 4096;
}
static size_t length(void) {
    if (chance(2)) return PICK(((size_t[]){SIZE_MAX, 1ul << 63, INT32_MAX, ROOM}));
    if (chance(8)) return 0;
    return chance(60) ? rnd(300) : rnd(ROOM);
}
/* At most what there is room for, unless `len` is meant to be refused. */
static size_t within(size_t len) { return len > ROOM && chance(70) ? ROOM : len; }
static void *buffer(char *good) {
    if (chance(2)) return PICK(((void *[]){0, (void *)1, (void *)0xffff800000000000}));
    return good;
}

/* What stat(2) says, as far as it is the same everywhere: new times are only known to be new. */
static ino_t stored[64];
static int is_stored(ino_t ino) {
    for (unsigned i = 0; i < COUNT(stored); i++) if (stored[i] == ino) return 1;
    return 0;
}
static void shown(const struct stat *st) {
    int64_t times[2] = {st->st_atim.tv_sec, st->st_mtim.tv_sec};
    say(" [%o %d:%d", st->st_mode, st->st_uid, st->st_gid);
    if (!S_ISDIR(st->st_mode)) say(" n%ld s%ld", (long)st->st_nlink, (long)st->st_size);
    /* Who follows a link on tmpfs has read it. */
    for (int i = S_ISLNK(st->st_mode); i < 2; i++)
        i == 1 && is_stored(st->st_ino) ? say(" ?")
        : times[i] > 1600000000         ? say(" now")
                                        : say(" %ld", (long)times[i]);
    say("]");
}
static void after_fd(int f) {
    struct stat st;
    if (!fstat(f, &st) && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))) {
        shown(&st);
        if (S_ISREG(st.st_mode)) say(" at %ld", (long)lseek(f, 0, SEEK_CUR));
    }
}
static void after_path(const char *p) {
    struct stat st;
    if (!lstat(p, &st)) shown(&st);
}

static void keep(long f) {
    if (f < 0) return;
    unsigned slot = rnd(COUNT(fds));
    if (fds[slot] >= 0) close(fds[slot]);
    fds[slot] = f;
}
static int open_flags(void) {
    static const int modes[] = {O_RDONLY, O_WRONLY, O_RDWR, O_RDWR, O_RDWR, 3};
    static const int more[] = {O_CREAT, O_CREAT, O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_DIRECTORY, O_NOFOLLOW,
                               O_PATH, O_CLOEXEC, O_NONBLOCK, O_SYNC, O_DSYNC, O_NOATIME, O_TMPFILE, O_NOCTTY};
    int flags = PICK(modes);
    if (chance(50)) flags |= O_CREAT;
    for (unsigned n = rnd(3); n--;) flags |= PICK(more);
    /* The file system of a mount makes no files without names. */
    if (mounted) flags &= ~(O_TMPFILE & ~O_DIRECTORY);
    return flags;
}
static mode_t mode(void) {
    static const mode_t modes[] = {0644, 0600, 0755, 0777, 0000, 0400, 0200, 04755, 02755, 01777, 06644, 0100644, 070000};
    return PICK(modes);
}

static void a_open(void) {
    const char *p = path();
    int flags = open_flags(), at = dirfd_();
    mode_t m = mode();
    int kind = rnd(5);
    if (flags & O_TMPFILE & ~O_DIRECTORY && chance(80)) p = ".";
    if (kind == 0) {
        struct { struct open_how how; char more[40]; } large = {{.flags = flags & (chance(90) ? ~0u : 0), .resolve = chance(60) ? 0 : 1u << PICK(((int[]){0, 1, 2, 3, 4, 6}))}, {0}};
        if (flags & O_CREAT) large.how.mode = m & 07777;
        if (chance(5)) large.how.mode = m;
        if (chance(50)) large.more[3] = 1;
        size_t size = chance(95) ? sizeof large.how : rnd(40);
        struct open_how how = large.how;
        say("openat2 %d %s %x %o resolve %x", at, p, (int)how.flags, (int)how.mode, (int)how.resolve);
        keep(DO(syscall(SYS_openat2, at, p, &large, size)));
    } else if (kind == 1) {
        say("openat %d %s %x %o", at, p, flags, m);
        keep(DO(openat(at, p, flags, m)));
    } else {
        say("open %s %x %o", p, flags, m);
        keep(DO(open(p, flags, m)));
    }
    after_path(p);
}
static void a_close(void) {
    unsigned slot = rnd(COUNT(fds));
    say("close %d", fds[slot]);
    DO(close(fds[slot]));
    fds[slot] = -1;
}
static void a_read(void) {
    int f = fd(), kind = rnd(6);
    size_t len = within(length());
    off_t at = offset();
    char *to = buffer(got);
    struct iovec two[2] = {{got, len > ROOM ? ROOM : len / 3}, {got + ROOM / 2, len / 2 > ROOM / 2 ? ROOM / 2 : len / 2}};
    int flags = chance(70) ? 0 : PICK(((int[]){RWF_HIPRI, RWF_APPEND, RWF_SYNC, 1 << 20}));
    memset(got, 0, sizeof got);
    if (len > ROOM && to == got) len = ROOM;
    switch (kind) {
    case 0: say("pread %d %zu %ld", f, len, (long)at), DO(pread(f, to, len, at)); break;
    case 1: say("readv %d", f), DO(readv(f, two, chance(95) ? 2 : PICK(((int[]){0, -1, 2000})))); break;
    case 2: say("preadv2 %d %ld %x", f, (long)at, flags), DO(preadv2(f, two, 2, at, flags)); break;
    default: say("read %d %zu", f, len), DO(read(f, to, len));
    }
    say(" #%08x", sum(got, sizeof got));
    after_fd(f);
}
static void a_write(void) {
    int f = fd(), kind = rnd(6);
    size_t len = length();
    off_t at = offset();
    char *from = buffer(data + rnd(64));
    struct iovec two[2] = {{data, rnd(5000)}, {data + 5000, rnd(300)}};
    int flags = chance(70) ? 0 : PICK(((int[]){RWF_HIPRI, RWF_DSYNC, RWF_APPEND, RWF_SYNC, 1 << 20}));
    if (len > ROOM - 64) len = ROOM - 64;
    if (at > 1 << 24 && kind != 0) at = 1 << 24;
    if (at > 1 << 24 && at < 1l << 41) at = 1 << 24;
    /* A write behind the end that fails for its buffer makes a file of tmpfs longer. */
    struct stat st;
    if ((from < data || from >= data + ROOM) && !fstat(f, &st) && S_ISREG(st.st_mode)) kind = 3, lseek(f, 0, SEEK_SET);
    switch (kind) {
    case 0: say("pwrite %d %zu %ld", f, len, (long)at), DO(pwrite(f, from, len, at)); break;
    case 1: say("writev %d", f), DO(writev(f, two, chance(95) ? 2 : PICK(((int[]){0, -1, 2000})))); break;
    case 2: say("pwritev2 %d %ld %x", f, (long)at, flags), DO(pwritev2(f, two, 2, at, flags)); break;
    default: say("write %d %zu", f, len), DO(write(f, from, len));
    }
    /* Whether a write that could not read its buffer changed the file is nobody's business. */
    if (errno == EFAULT) {
        struct stat st;
        if (served && !fstat(f, &st) && S_ISREG(st.st_mode)) fchmod(f, st.st_mode & 0777);
        futimens(f, (struct timespec[]){{5, 0}, {6, 0}});
    }
    after_fd(f);
}
static void a_seek(void) {
    /* Not SEEK_DATA and SEEK_HOLE: what is allocated and not written is data here, a hole there. */
    int f = fd(), whence = chance(95) ? rnd(3) : 5 + rnd(3);
    off_t at = chance(70) ? offset() : -(off_t)rnd(5000);
    if (at > 1 << 24) at = 4096;
    say("lseek %d %ld %d", f, (long)at, whence);
    struct stat st;
    /* Positions in a directory are each file system's own. */
    if (!fstat(f, &st) && S_ISDIR(st.st_mode)) at = 0, whence = SEEK_SET;
    DO(lseek(f, at, whence));
}
static void a_size(void) {
    off_t to = chance(95) ? rnd(100000) : offset() % (1l << 41);
    int f = fd(), keep_ = 0, kind = rnd(4);
    if (kind == 0) {
        const char *p = name();
        struct stat st;
        /* To the size that it has: tmpfs leaves its times alone then. */
        if (!stat(p, &st) && st.st_size == to) to++;
        say("truncate %s %ld", p, (long)to), DO(truncate(p, to)), after_path(p);
        return;
    }
    if (kind == 1) {
        /* Not 0x10: tmpfs cannot zero a range, a pool can. */
        static const int modes[] = {0, 0, 1, 3, 2, 8, 0x20, 0x40, 1 << 20};
        off_t len = chance(90) ? rnd(60000) : offset();
        keep_ = PICK(modes);
        if (len > 1 << 24) len = 1 << 24;
        if (to > 1 << 24) to = 0;
        say("fallocate %d %x %ld %ld", f, keep_, (long)to, (long)len), DO(fallocate(f, keep_, to, len));
    } else {
        say("ftruncate %d %ld", f, (long)to), DO(ftruncate(f, to));
    }
    after_fd(f);
}
static void a_sync(void) {
    int f = fd();
    switch (rnd(5)) {
    case 0: say("fsync %d", f), DO(fsync(f)); break;
    case 1: say("fdatasync %d", f), DO(fdatasync(f)); break;
    case 2: say("syncfs %d", f), DO(syncfs(f)); break;
    case 3: say("sync_file_range %d", f), DO(sync_file_range(f, chance(90) ? 0 : -1, rnd(5000), rnd(chance(90) ? 8 : 20))); break;
    default: say("fadvise %d", f), say(" = %d", posix_fadvise(f, offset(), rnd(9000), rnd(8)));
    }
}
static void a_dup(void) {
    int f = fd(), to = chance(70) ? 20 + (int)rnd(10) : fd();
    switch (rnd(5)) {
    case 0: say("dup %d", f), keep(DO(dup(f))); break;
    case 1:
        say("dup2 %d %d", f, to);
        if (to > 2 && to < 1000) {
            long new = DO(dup2(f, to));
            for (unsigned i = 0; new >= 0 && i < COUNT(fds); i++) if (fds[i] == to && f != to) fds[i] = -1;
            keep(new);
        }
        break;
    case 2:
        say("dup3 %d %d", f, to);
        if (to > 2 && to < 1000) {
            long new = DO(dup3(f, to, chance(50) ? O_CLOEXEC : PICK(((int[]){0, 1, O_APPEND}))));
            for (unsigned i = 0; new >= 0 && i < COUNT(fds); i++) if (fds[i] == to && f != to) fds[i] = -1;
            keep(new);
        }
        break;
    case 3: {
        int cmd = PICK(((int[]){F_DUPFD, F_DUPFD_CLOEXEC})), least = chance(90) ? (int)rnd(40) : PICK(((int[]){-1, 1 << 30}));
        say("fcntl %d dupfd %d", f, least), keep(DO(fcntl(f, cmd, least)));
        break;
    }
    default: {
        static const int cmds[] = {F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETOWN, 1024 + 9, 1024 + 10, 77, F_GETPIPE_SZ};
        int cmd = PICK(cmds), arg = chance(50) ? 0 : PICK(((int[]){1, O_APPEND, O_NONBLOCK, O_APPEND | O_NONBLOCK, O_NOATIME, O_SYNC, O_DIRECT}));
        if (cmd == F_SETFL && arg == O_DIRECT) arg = O_APPEND;
        say("fcntl %d %d %x", f, cmd, arg), DO(fcntl(f, cmd, arg));
    }
    }
}
static void a_lock(void) {
    int f = fd();
    /* On Linux a mapping, too, keeps a description and so its lock: a walk has the one or the other. */
    if (chance(40) && !has_mapped) {
        int how = PICK(((int[]){LOCK_SH, LOCK_EX, LOCK_UN, LOCK_MAND, 0, 77})) | LOCK_NB;
        say("flock %d %x", f, how), DO(flock(f, how));
        return;
    }
    if (chance(50) && has_mapped) return;
    struct flock l = {.l_type = rnd(chance(95) ? 3 : 6), .l_whence = chance(95) ? rnd(2) : 5, .l_start = chance(90) ? rnd(100) : offset(), .l_len = chance(80) ? (long)rnd(100) : offset()};
    int cmd = has_mapped ? F_SETLK : PICK(((int[]){F_SETLK, F_GETLK, F_OFD_SETLK, F_OFD_GETLK}));
    say("fcntl %d lock %d %d %d %ld %ld", f, cmd, l.l_type, l.l_whence, (long)l.l_start, (long)l.l_len);
    if (!DO(fcntl(f, cmd, &l)) && (cmd == F_GETLK || cmd == F_OFD_GETLK))
        say(" %d %d %ld %ld %d", l.l_type, l.l_whence, (long)l.l_start, (long)l.l_len, l.l_pid == getpid());
}
static void a_names(void) {
    const char *p = path(), *q = path();
    /* Which of two names is looked at first where one is too long is nobody's business. */
    while (strlen(p) > 255 || strlen(q) > 255) p = path(), q = path();
    int at = dirfd_(), to = dirfd_(), flags;
    /* Whether the second directory or the first path is looked at first depends on the path. */
    if (fcntl(to, F_GETFD) < 0) to = AT_FDCWD;
    if (!*p && fcntl(at, F_GETFD) < 0) at = AT_FDCWD;
    switch (rnd(14)) {
    case 0: say("mkdir %s", p), DO(mkdir(p, mode())), after_path(p); break;
    case 1: say("mkdirat %d %s", at, p), DO(mkdirat(at, p, mode())); break;
    case 2: say("rmdir %s", p), DO(rmdir(p)); break;
    case 3: say("unlink %s", p), DO(unlink(p)); break;
    case 4: flags = PICK(((int[]){0, 0, AT_REMOVEDIR, 1 << 20, AT_SYMLINK_NOFOLLOW})); say("unlinkat %d %s %x", at, p, flags), DO(unlinkat(at, p, flags)); break;
    case 5: case 6: say("rename %s %s", p, q), DO(rename(p, q)), after_path(q); break;
    case 7: flags = PICK(((int[]){0, 1, 1, 2, 2, 3, 8})); say("renameat2 %d %s %d %s %x", at, p, to, q, flags), DO(syscall(SYS_renameat2, at, p, to, q, flags)), after_path(q); break;
    case 8: say("link %s %s", p, q), DO(link(p, q)), after_path(q); break;
    case 9: flags = PICK(((int[]){0, AT_SYMLINK_FOLLOW, AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW})); say("linkat %d %s %d %s %x", at, p, to, q, flags), DO(linkat(at, p, to, q, flags)), after_path(q); break;
    case 10: say("symlink %s %s", p, q), DO(symlink(p, q)), after_path(q); break;
    case 11: say("symlinkat %s %d %s", p, at, q), DO(symlinkat(p, at, q)); break;
    case 12: {
        size_t room = chance(80) ? 100 : rnd(3);
        memset(got, 0, 200);
        say("readlinkat %d %s", at, p), DO(readlinkat(at, p, buffer(got), room)), say(" '%s'", got);
        break;
    }
    default: {
        mode_t m = mode() & 0777;
        m |= PICK(((mode_t[]){S_IFREG, S_IFSOCK, 0, S_IFDIR, S_IFLNK}));
        say("mknodat %d %s %o", at, p, m), DO(mknodat(at, p, m, 0)), after_path(p);
    }
    }
}
static void a_attributes(void) {
    const char *p = name();
    int f = fd(), at = dirfd_(), flags = PICK(((int[]){0, 0, AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH, 1 << 20}));
    mode_t m = mode();
    struct stat st;
    switch (rnd(13)) {
    case 0: say("chmod %s %o", p, m), DO(chmod(p, m)), after_path(p); break;
    case 1: say("fchmod %d %o", f, m), DO(fchmod(f, m)), after_fd(f); break;
    case 2: say("fchmodat2 %d %s %o %x", at, p, m, flags), DO(syscall(452, at, p, m, flags)), after_path(p); break;
    case 3: case 4: {
        uid_t u = PICK(((uid_t[]){-1, 0, 1000, 65534})), g = PICK(((gid_t[]){-1, 0, 1000, 65534}));
        say("fchownat %d %s %d %d %x", at, p, u, g, flags), DO(fchownat(at, p, u, g, flags)), after_path(p);
        break;
    }
    case 5: say("fchown %d", f), DO(fchown(f, PICK(((uid_t[]){-1, 0, 1000})), -1)), after_fd(f); break;
    case 6: case 7: case 8: {
        struct timespec t[2] = {{rnd(1000000), 5}, {rnd(1000000), 7}};
        for (int i = 0; i < 2; i++) if (chance(30)) t[i].tv_nsec = PICK(((long[]){UTIME_NOW, UTIME_OMIT, -1, 1000000000, 999999999}));
        int none = chance(15);
        if (chance(50)) say("utimensat %d %s %x", at, p, flags), DO(utimensat(at, p, none ? 0 : t, flags)), after_path(p);
        else say("futimens %d", f), DO(futimens(f, none ? 0 : t)), after_fd(f);
        break;
    }
    case 9: say("faccessat2 %d %s", at, p), DO(syscall(439, at, p, rnd(chance(95) ? 8 : 20), PICK(((int[]){0, AT_EACCESS, AT_SYMLINK_NOFOLLOW, 1 << 20})))); break;
    case 10: say("stat %s", p); if (!DO(stat(p, &st))) shown(&st); break;
    case 11: say("newfstatat %d %s %x", at, p, flags); if (!DO(fstatat(at, p, &st, flags))) shown(&st); break;
    default: {
        struct statx x;
        unsigned mask = PICK(((unsigned[]){0, 0x7ff, 0xfff, 1u << 31}));
        say("statx %d %s %x %x", at, p, flags, mask);
        if (!DO(statx(at, p, flags | PICK(((int[]){0, 0x2000, 0x4000, 0x6000})), mask, &x)))
            say(" %o %ld", x.stx_mode, S_ISREG(x.stx_mode) ? (long)x.stx_size : 0);
    }
    }
}
static int by_name(const void *a, const void *b) { return strcmp(*(char **)a, *(char **)b); }
static void a_list(void) {
    static const char *dirs[] = {".", "d", "e", "e/f", "l", "a", "none", "d/.."};
    const char *p = PICK(dirs);
    char *names[300];
    unsigned n = 0;
    say("list %s", p);
    errno = 0;
    DIR *dir = opendir(p);
    if (!dir) { result(-1); return; }
    for (struct dirent *e; n < 300 && (e = readdir(dir));) {
        char text[300];
        snprintf(text, sizeof text, "%s:%d", e->d_name, e->d_type);
        names[n++] = strdup(text);
    }
    closedir(dir);
    qsort(names, n, sizeof *names, by_name);
    for (unsigned i = 0; i < n; i++) {
        say(" %.40s", names[i]);
        free(names[i]);
    }
}
static void a_getdents(void) {
    int f = fd();
    struct stat st;
    size_t len = chance(80) ? ROOM : rnd(100);
    say("getdents %d %zu", f, len);
    if (!fstat(f, &st) && S_ISDIR(st.st_mode)) {
        /* How many entries fit at a time is the file system's business. */
        lseek(f, 0, SEEK_SET);
        long ret = syscall(SYS_getdents64, f, got, ROOM);
        result(ret > 0 ? 1 : ret);
        long again = syscall(SYS_getdents64, f, got, ROOM);
        result(again);
    } else DO(syscall(SYS_getdents64, f, buffer(got), len));
}
static void a_xattr(void) {
    static const char *keys[] = {"user.a", "user.b", "user.", "trusted.x", "security.y", "none", "", "user.a"};
    const char *p = name(), *key = PICK(keys);
    int f = fd();
    size_t len = chance(90) ? rnd(60) : PICK(((size_t[]){0, 65537, 4000}));
    memset(got, 0, 300);
    if (len > ROOM && chance(50)) len = ROOM;
    switch (rnd(6)) {
    case 0: say("setxattr %s %s %zu", p, key, len), DO(setxattr(p, key, data, len > ROOM ? ROOM + 1 : len > 4000 ? 4000 : len, rnd(chance(95) ? 3 : 8))); break;
    case 1: say("fsetxattr %d %s %zu", f, key, len), DO(fsetxattr(f, key, data, len > 4000 ? 4000 : len, 0)); break;
    case 2: say("getxattr %s %s", p, key), DO(getxattr(p, key, got, chance(70) ? ROOM : rnd(20))), say(" #%08x", sum(got, 300)); break;
    case 3: say("fgetxattr %d %s", f, key), DO(fgetxattr(f, key, got, ROOM)), say(" #%08x", sum(got, 300)); break;
    case 4: say("removexattr %s %s", p, key), DO(lremovexattr(p, key)); break;
    default: say("llistxattr %s", p), DO(llistxattr(p, got, chance(80) ? ROOM : rnd(10)));
    }
}
static void on_fault(int sig) {
    if (!faults_expected) {
        say(" KILLED by %d\n", sig);
        _exit(1);
    }
    siglongjmp(fault, sig);
}
static void a_map(void) {
    unsigned slot = rnd(COUNT(maps));
    int f = fd(), prot = rnd(4), sig;
    if (maps[slot].at && chance(75)) {
        char *at = maps[slot].at;
        size_t len = maps[slot].len, from = rnd(len), n = rnd(200);
        if (from + n > len) n = len - from;
        switch (rnd(7)) {
        case 0: case 1:
            /* What a private mapping shows of later changes is nobody's business. */
            if (maps[slot].own) n = 0;
            say("load %u %zu %zu", slot, from, n);
            faults_expected = 1;
            if ((sig = sigsetjmp(fault, 1))) say(" signal %d", sig);
            else say(" #%08x", sum(at + from, n));
            faults_expected = 0;
            break;
        case 2: case 3: {
            /* Bytes that are stored behind the end may show when a file of tmpfs grows. */
            struct stat st;
            if (fstat(maps[slot].fd, &st) || maps[slot].from + (off_t)(from + n) > st.st_size) n = 0;
            /* A copy ends where the file ended when it was mapped. */
            if (served && maps[slot].own) n = 0;
            say("store %u %zu %zu", slot, from, n);
            faults_expected = 1;
            if ((sig = sigsetjmp(fault, 1))) say(" signal %d", sig);
            else memcpy(at + from, data + 100, n);
            faults_expected = 0;
            /* New times show then at the latest. */
            DO(msync(at, len, MS_SYNC));
            break;
        }
        case 4: {
            size_t part = (rnd(len / 4096 + 1) * 4096);
            say("mprotect %u %zu %d", slot, part, prot), DO(mprotect(at, part, prot));
            break;
        }
        case 5: say("msync %u", slot), DO(msync(at + (chance(95) ? 0 : 7), len, chance(90) ? PICK(((int[]){MS_SYNC, MS_ASYNC, MS_SYNC | MS_INVALIDATE})) : 77)); break;
        default: say("munmap %u", slot), DO(munmap(at, len)), maps[slot].at = 0, close(maps[slot].fd);
        }
        return;
    }
    if (maps[slot].at) munmap(maps[slot].at, maps[slot].len), maps[slot].at = 0, close(maps[slot].fd);
    size_t len = chance(95) ? rnd(60000) + 1 : PICK(((size_t[]){0, 1ul << 50}));
    off_t at = chance(90) ? rnd(8) * 4096 : rnd(30000);
    int flags = PICK(((int[]){MAP_SHARED, MAP_SHARED, MAP_PRIVATE, MAP_SHARED_VALIDATE, 0, MAP_SHARED_VALIDATE | 1 << 25}));
    if (served) flags &= MAP_PRIVATE;
    say("mmap %u %zu %d %x %d %ld", slot, len, prot, flags, f, (long)at);
    errno = 0;
    char *got_ = mmap(0, len, prot, flags, f, at);
    result(got_ == MAP_FAILED ? -1 : 0);
    struct stat st;
    /* msync of a mapping that can be stored to gives a pool file a new time, stored to or not. */
    static unsigned mapped;
    if (got_ != MAP_FAILED && flags != MAP_PRIVATE && !fstat(f, &st)) stored[mapped++ % COUNT(stored)] = st.st_ino;
    if (got_ != MAP_FAILED) maps[slot].at = got_, maps[slot].len = len, maps[slot].from = at, maps[slot].own = flags == MAP_PRIVATE, maps[slot].fd = fcntl(f, F_DUPFD_CLOEXEC, 60);
}
static void a_move(void) {
    int f = fd(), g = fd();
    off_t a = chance(90) ? rnd(9000) : offset(), b = chance(90) ? rnd(9000) : offset();
    size_t len = chance(90) ? rnd(20000) : length();
    off_t *pa = chance(50) ? &a : 0, *pb = chance(50) ? &b : 0;
    struct stat from, to;
    if (b > 1 << 24) b = 0;
    /* Not sendfile of a file to itself: what it reads there may be what it has just written. */
    int same = !fstat(f, &from) && !fstat(g, &to) && from.st_ino == to.st_ino;
    if (!same && !fstat(f, &from) && !S_ISREG(from.st_mode)) same = 1;
    switch (same ? 2 + rnd(3) : rnd(5)) {
    case 0: say("copy_file_range %d %ld %d %ld %zu", f, pa ? (long)a : -9, g, pb ? (long)b : -9, len), DO(copy_file_range(f, pa, g, pb, len, chance(98) ? 0 : 1)); break;
    case 1:
        if (a < 0 || a > 1 << 24) a = 0;
        len = len ? len : 1;
        say("sendfile %d %d %ld %zu", g, f, pa ? (long)a : -9, len), DO(sendfile(g, f, pa, len)); break;
    case 2: say("splice to pipe %d %ld %zu", f, pa ? (long)a : -9, len), DO(splice(f, pa, pipes[1], chance(95) ? 0 : &b, len, SPLICE_F_NONBLOCK)); break;
    case 3: say("splice from pipe %d %ld %zu", f, pa ? (long)a : -9, len), DO(splice(pipes[0], 0, f, pa, len, SPLICE_F_NONBLOCK)); break;
    default: say("splice %d %d", f, g), DO(splice(f, pa, g, pb, len, 0));
    }
    say(" %ld %ld", (long)a, (long)b);
    while (read(pipes[0], got, ROOM) > 0) say(" #%08x", sum(got, ROOM));
    after_fd(f), after_fd(g);
}
static void a_directory(void) {
    char here[4096] = "";
    const char *p = path();
    int f = fd();
    if (chance(50)) say("chdir %s", p), DO(chdir(p));
    else say("fchdir %d", f), DO(fchdir(f));
    errno = 0;
    say(" getcwd"), result(syscall(SYS_getcwd, here, chance(90) ? sizeof here : rnd(3)) > 0 ? 0 : -1);
    size_t n = strlen(start);
    say(" '%s'", strncmp(here, start, n) ? "elsewhere" : here + n);
    after_path("a");
    if (chdir(start)) _exit(3);
}
static void a_ioctl(void) {
    int f = fd(), n = 0;
    static const unsigned long what[] = {0x541b /* FIONREAD */, 0x5451, 0x5450, 0x5421, 0x40049409, 0x5401, 0x1260};
    unsigned long w = PICK(what);
    say("ioctl %d %lx", f, w);
    if (w == 0x40049409) DO(ioctl(f, w, fd()));
    else DO(ioctl(f, w, buffer((char *)&n)));
}
static void a_limit(void) {
    struct rlimit old, new = {rnd(30000), RLIM_INFINITY};
    getrlimit(RLIMIT_FSIZE, &old);
    new.rlim_max = old.rlim_max;
    setrlimit(RLIMIT_FSIZE, &new);
    say("limit %ld ", (long)new.rlim_cur);
    chance(50) ? a_write() : a_size();
    setrlimit(RLIMIT_FSIZE, &old);
}
static void a_child(void) {
    int f = fd(), exits = rnd(3), status = 0;
    say("child %d:", f);
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        say(" "), DO(write(f, data, 100)), DO(lseek(f, 10, SEEK_SET)), has_mapped ? 0 : DO(flock(f, LOCK_EX | LOCK_NB));
        struct flock l = {.l_type = F_WRLCK, .l_len = 50};
        DO(fcntl(f, F_SETLK, &l));
        if (exits == 1) DO(close(f));
        fflush(stdout);
        exits == 2 ? kill(getpid(), SIGKILL), 0 : 0;
        _exit(7);
    }
    waitpid(child, &status, 0);
    say(" status %x", status);
    after_fd(f);
}
static void a_rest(void) {
    struct statfs s;
    int f = fd();
    mode_t m;
    switch (rnd(4)) {
    case 0: m = mode() & 077; say("umask %o = %o", m, umask(m)); break;
    case 1: say("fstatfs %d", f); if (!DO(fstatfs(f, &s))) say(" %ld %ld", (long)s.f_bsize, (long)s.f_namelen); break;
    case 2: say("readahead %d", f), DO(readahead(f, 0, 4096)); break;
    default: {
        int first = 30 + rnd(20), last = chance(95) ? first + (int)rnd(9) : 5;
        say("close_range %d %d", first, last), DO(syscall(SYS_close_range, first, last, PICK(((int[]){0, 0, 4, 1}))));
        for (unsigned i = 0; i < COUNT(fds); i++) if (fds[i] >= 0 && fcntl(fds[i], F_GETFD) < 0) fds[i] = -1;
    }
    }
}

static void walk(unsigned seed, unsigned calls) {
    static const struct { unsigned weight; void (*act)(void); } acts[] = {
        {20, a_open}, {6, a_close}, {12, a_read}, {16, a_write}, {5, a_seek}, {7, a_size}, {3, a_sync}, {5, a_dup},
        {5, a_lock}, {14, a_names}, {12, a_attributes}, {3, a_list}, {2, a_getdents}, {5, a_xattr}, {9, a_map},
        {6, a_move}, {3, a_directory}, {2, a_ioctl}, {2, a_limit}, {2, a_child}, {2, a_rest},
    };
    unsigned total = 0;
    for (unsigned i = 0; i < COUNT(acts); i++) total += acts[i].weight;
    has_mapped = seed & 1;
    state = seed * 0x9e3779b97f4a7c15ull + 12345;
    for (int i = 0; i < 10; i++) rnd(2);
    for (int i = 0; i < ROOM; i++) data[i] = rnd(256);
    for (unsigned i = 0; i < COUNT(fds); i++) fds[i] = -1;
    umask(022);
    if (!getcwd(start, sizeof start)) _exit(3);
    mkdir("d", 0755), mkdir("e", 0755), mkdir("e/f", 0755);
    symlink("d", "l"), symlink("nowhere", "dangling"), symlink("loop", "loop"), symlink("a", "k");
    close(open("a", O_CREAT | O_WRONLY, 0644)), truncate("a", 5000);
    for (line = 0; line < calls; line++) {
        unsigned n = rnd(total), i = 0;
        while (n >= acts[i].weight) n -= acts[i++].weight;
        say("%u.%u ", seed, line);
        acts[i].act == a_map && !has_mapped ? a_read() : acts[i].act();
        say("\n");
    }
}

int main(int argc, char **argv) {
    served = getenv("HF_SERVED") != 0;
    mounted = getenv("HF_MOUNTED") != 0;
    unsigned first = atoi(argv[1]), count = atoi(argv[2]), calls = atoi(argv[3]);
    /* Nothing is printed while a limit on the size of files is in force. */
    static char lines[1 << 20];
    setvbuf(stdout, lines, _IOFBF, sizeof lines);
    for (unsigned seed = first; seed < first + count; seed++) {
        char dir[32];
        snprintf(dir, sizeof dir, "w%u", seed);
        fflush(stdout);
        pid_t child = fork();
        if (!child) {
            struct sigaction on = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};
            sigaction(SIGSEGV, &on, 0), sigaction(SIGBUS, &on, 0);
            signal(SIGXFSZ, SIG_IGN), signal(SIGPIPE, SIG_IGN);
            if (mkdir(dir, 0755) || chdir(dir) || mkdir("in", 0755) || chdir("in")) _exit(2);
            if (pipe2(pipes, O_NONBLOCK)) _exit(2);
            alarm(60);
            walk(seed, calls);
            fflush(stdout);
            _exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        if (status) printf("seed %u ended with status %x\n", seed, status);
    }
    return 0;
}
