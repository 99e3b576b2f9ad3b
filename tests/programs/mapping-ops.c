/* Random calls on mappings of files, from a seed, and what each said: bytes, errno, signals, but no
 * address. Whatever keeps mappings behind this program's back must not change a word of it.
 *
 *   mapping-ops FIRST LAST STEPS DIR OTHER    seeds FIRST to LAST; files in DIR, one in OTHER
 *
 * Addresses differ from run to run, so nothing here depends on what lies beside a mapping: what is
 * free is only used right after it was unmapped.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, FILES = 5, REGIONS = 24, PAGES_MAX = 96, PATH_LEN = 512 };

static struct {
    char *addr;
    size_t len;
} regions[REGIONS];
static int count;
static char paths[FILES][PATH_LEN], spare[PATH_LEN];
static uint64_t state;
static sigjmp_buf landing;
static volatile int fault;

static unsigned pick(unsigned n) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (unsigned)((state >> 11) % n);
}

static void say(const char *format, ...) {
    char line[256];
    va_list list;
    va_start(list, format);
    int len = vsnprintf(line, sizeof line, format, list);
    va_end(list);
    if (write(1, line, len) != len) _exit(3);
}

/* The result of a call: 0 or its errno. */
static int of(long result) { return result == -1 ? errno : 0; }

static void caught(int signal, siginfo_t *info, void *context) {
    (void)context;
    fault = signal * 100 + info->si_code;
    siglongjmp(landing, 1);
}

/* One byte, or the signal that it raised. */
static int byte_at(const char *addr) {
    if (sigsetjmp(landing, 1)) return -fault;
    return *(volatile const unsigned char *)addr;
}

static int store_at(char *addr, char byte) {
    if (sigsetjmp(landing, 1)) return -fault;
    *(volatile char *)addr = byte;
    return 0;
}

static uint32_t sum_of(const char *addr, size_t len) {
    uint32_t sum = 2166136261u;
    for (size_t at = 0; at < len; at += PAGE) {
        sum = (sum ^ (uint32_t)byte_at(addr + at)) * 16777619u;
        sum = (sum ^ (uint32_t)byte_at(addr + at + 1 + (at / PAGE * 37) % 4000)) * 16777619u;
    }
    return sum;
}

static void add(char *addr, size_t len) {
    if (len == 0) return;
    if (count == REGIONS) {
        munmap(addr, len);
        return;
    }
    regions[count].addr = addr;
    regions[count++].len = len;
}

static void drop(int i) { regions[i] = regions[--count]; }

static size_t part_of(size_t len, size_t *from) {
    size_t pages = len / PAGE;
    *from = pick(3) ? 0 : pick(pages) * PAGE;
    size_t most = (len - *from) / PAGE;
    return (pick(2) ? most : 1 + pick(most)) * PAGE;
}

static void fill(const char *path, int what) {
    char block[PAGE];
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    unsigned pages = 20 + pick(100);
    for (unsigned i = 0; i < pages; i++) {
        memset(block, what * 31 + (int)i * 7 + 1, sizeof block);
        if (write(fd, block, sizeof block) != sizeof block) _exit(3);
    }
    close(fd);
}

/* Few lengths and offsets, so that the same is mapped again. */
static void map(void) {
    static const size_t lengths[] = {16, 16, 16, 16, 64, 90};
    static const int flags[] = {MAP_SHARED, MAP_SHARED, MAP_PRIVATE, MAP_PRIVATE,
                                MAP_SHARED | MAP_POPULATE, MAP_PRIVATE | MAP_NORESERVE};
    static const int prots[] = {PROT_READ | PROT_WRITE, PROT_NONE, PROT_READ | PROT_WRITE};
    static const int opens[] = {O_RDWR, O_WRONLY, O_PATH};
    int file = pick(FILES), unusual = pick(8);
    int fd = open(paths[file], unusual == 7 ? opens[pick(3)] : O_RDONLY);
    int prot = unusual < 5 ? PROT_READ : prots[pick(3)];
    size_t len = lengths[pick(6)] * PAGE - (pick(3) ? 0 : pick(PAGE));
    off_t offset = pick(8) ? 0 : pick(4) * 4 * PAGE + (pick(30) ? 0 : 5);
    char *addr = mmap(NULL, len, prot, flags[pick(pick(4) ? 1 : 6)], fd, offset);
    int error = addr == MAP_FAILED ? errno : 0;
    close(fd);
    if (error) return say("map %d: %d\n", file, error);
    say("map %d: %08x\n", file, sum_of(addr, len));
    add(addr, (len + PAGE - 1) & ~(size_t)(PAGE - 1));
}

/* Right after these addresses were unmapped. */
static void use_free(char *addr, size_t len) {
    unsigned char vector[PAGES_MAX];
    size_t from, part = part_of(len, &from);
    char *at = addr + from, *got;
    int fd;
    switch (pick(12)) {
    case 0: return say("mincore: %d\n", of(mincore(at, part, vector)));
    case 1: return say("msync: %d\n", of(msync(at, part, MS_SYNC)));
    case 2: return say("mlock: %d\n", of(mlock(at, part)));
    case 3: return say("munlock: %d\n", of(munlock(at, part)));
    case 4: return say("mprotect: %d\n", of(mprotect(at, part, PROT_READ)));
    case 5: return say("madvise: %d\n", of(madvise(at, part, (int)pick(5))));
    case 6: return say("again: %d\n", of(munmap(at, part)));
    case 7:
        got = mremap(at, part, part + PAGE, MREMAP_MAYMOVE);
        return say("mremap: %d\n", got == MAP_FAILED ? errno : 0);
    case 8:
        got = mmap(at, part, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        say("noreplace: %d\n", got == MAP_FAILED ? errno : got != at);
        if (got != MAP_FAILED) add(got, part);
        return;
    case 9:
        got = mmap(at, part, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        say("hint: %d\n", got == MAP_FAILED ? errno : got != at);
        if (got != MAP_FAILED) add(got, part);
        return;
    case 10:
        fd = open(paths[pick(FILES)], O_RDONLY);
        got = mmap(at, part, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);
        close(fd);
        say("fixed: %d\n", got == MAP_FAILED ? errno : got != at);
        if (got != MAP_FAILED) say("reads %08x\n", sum_of(got, part)), add(got, part);
        return;
    default:
        /* Both ways of using one range, one after the other. */
        got = mmap(at, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        say("own: %d %d %d\n", got != at, store_at(at, 77), byte_at(at));
        add(got, part);
    }
}

static void unmap(int i, int whole) {
    char *addr = regions[i].addr;
    size_t len = regions[i].len, from = 0, part = whole ? len : part_of(len, &from);
    size_t given = part - (pick(4) ? 0 : pick(PAGE));
    say("unmap: %d\n", of(munmap(addr + from, given)));
    drop(i);
    add(addr, from);
    add(addr + from + part, len - from - part);
    if (pick(3) == 0) use_free(addr + from, part);
}

static void change(int i) {
    static const int advice[] = {MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED,
                                 MADV_DONTNEED, MADV_DOFORK, MADV_DODUMP, MADV_COLD,
                                 MADV_NOHUGEPAGE, MADV_FREE, MADV_REMOVE, 12345};
    unsigned char vector[PAGES_MAX];
    char *addr = regions[i].addr, *got;
    size_t len = regions[i].len, from, part = part_of(len, &from);
    switch (pick(8)) {
    case 0: {
        int prot = (int)pick(4);
        return say("protect: %d\n", of(mprotect(addr + from, part, prot)));
    }
    case 1:
    case 2: return say("advise: %d\n", of(madvise(addr + from, part, advice[pick(12)])));
    case 3: return say("mincore: %d\n", of(mincore(addr + from, part, vector)));
    case 4: return say("msync: %d\n", of(msync(addr + from, part, MS_ASYNC)));
    case 5:
        say("mlock: %d\n", of(mlock(addr + from, part)));
        return say("munlock: %d\n", of(munlock(addr, len)));
    case 6: return say("store: %d\n", store_at(addr + from, (char)pick(256)));
    default:
        part = (1 + pick(PAGES_MAX - 1)) * PAGE;
        got = mremap(addr, len, part, MREMAP_MAYMOVE);
        say("mremap: %d\n", got == MAP_FAILED ? errno : 0);
        if (got == MAP_FAILED) return;
        drop(i);
        add(got, part);
    }
}

/* A lock ends when its mapping and its descriptor are gone, in whatever order. */
static void locked(int file) {
    int fd = open(paths[file], O_RDONLY), first = (int)pick(2);
    char *addr = mmap(NULL, 16 * PAGE, PROT_READ, MAP_SHARED, fd, 0);
    say("lock: %d\n", of(flock(fd, LOCK_EX | LOCK_NB)));
    say("locked %08x\n", sum_of(addr, 16 * PAGE));
    if (first) close(fd);
    munmap(addr, 16 * PAGE);
    if (!first) close(fd);
}

static void change_file(void) {
    int file = pick(FILES), fd;
    char byte = (char)pick(256);
    switch (pick(5)) {
    case 0: return say("truncate: %d\n", of(truncate(paths[file], pick(120) * PAGE + pick(9))));
    case 1:
        fd = open(paths[file], O_WRONLY);
        say("write: %d\n", of(pwrite(fd, &byte, 1, pick(90) * PAGE)));
        close(fd);
        return;
    case 2:
        say("unlink: %d\n", of(unlink(paths[file])));
        return fill(paths[file], (int)pick(200));
    case 3:
        if (file == FILES - 1) return;
        fill(spare, (int)pick(200));
        return say("rename: %d\n", of(rename(spare, paths[file])));
    default: return locked(file);
    }
}

static void step(void);

static void with_child(void) {
    say("fork\n");
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 12; i++) step();
        for (int i = 0; i < count; i++) say("child %08x\n", sum_of(regions[i].addr, regions[i].len));
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    say("child: %d\n", status);
}

static void step(void) {
    unsigned what = pick(40);
    int i = count ? (int)pick((unsigned)count) : -1;
    if (what < 14 || i < 0) return map();
    if (what < 25) return unmap(i, 1);
    if (what < 28) return unmap(i, 0);
    if (what < 32) return say("sum %08x\n", sum_of(regions[i].addr, regions[i].len));
    if (what < 36) return change(i);
    if (what < 39) return change_file();
    if (pick(4) == 0) with_child();
}

static void run(unsigned seed, int steps) {
    state = seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 4; i++) pick(2);
    say("seed %u\n", seed);
    for (int i = 0; i < FILES; i++) fill(paths[i], i);
    for (int i = 0; i < steps; i++) step();
    while (count) {
        say("end %08x\n", sum_of(regions[0].addr, regions[0].len));
        unmap(0, 1);
    }
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    struct sigaction action = {.sa_sigaction = caught, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    for (int i = 0; i < FILES; i++)
        snprintf(paths[i], PATH_LEN, "%s/map-%d", argv[i == FILES - 1 ? 5 : 4], i);
    snprintf(spare, PATH_LEN, "%s/map-spare", argv[4]);
    for (unsigned seed = (unsigned)atoi(argv[1]); seed <= (unsigned)atoi(argv[2]); seed++)
        run(seed, atoi(argv[3]));
    return 0;
}
