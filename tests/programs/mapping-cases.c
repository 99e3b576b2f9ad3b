/* What is kept of mappings that a program unmapped, and what is not: one case each, judged by
 * /proc/self/maps. A case prints what it found; the numbers are mappings of its file.
 *
 *   mapping-cases CASE DIR
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, LEN = 1 << 20, FILES = 8, THREADS = 4, PATH_LEN = 512 };

static char path[PATH_LEN], other[PATH_LEN];
static const char *dir;

static void make(const char *name, int byte, size_t len) {
    char block[PAGE];
    memset(block, byte, sizeof block);
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    for (size_t at = 0; at < len; at += PAGE)
        if (write(fd, block, PAGE) != PAGE) exit(3);
    close(fd);
}

static char *map_with(const char *name, size_t len, int oflags, int prot, int flags) {
    int fd = open(name, oflags);
    char *addr = mmap(NULL, len, prot, flags, fd, 0);
    close(fd);
    if (addr == MAP_FAILED) {
        printf("mmap: %d\n", errno);
        exit(3);
    }
    return addr;
}

static char *map(const char *name) {
    return map_with(name, LEN, O_RDONLY, PROT_READ, MAP_SHARED);
}

/* Mapped, read and unmapped. */
static void use(const char *name) {
    char *addr = map(name);
    if (*(volatile char *)addr == 0) exit(3);
    munmap(addr, LEN);
}

/* By the kernel's own list. */
static int kept(const char *name) {
    static char text[1 << 20];
    size_t len = 0;
    ssize_t n;
    int found = 0, fd = open("/proc/self/maps", O_RDONLY);
    while ((n = read(fd, text + len, sizeof text - 1 - len)) > 0) len += (size_t)n;
    close(fd);
    text[len] = 0;
    for (char *at = text; (at = strstr(at, name)); at++) found++;
    return found;
}

static void again(void) {
    char *a = map(path), *b = map(path);
    printf("%d ", a != b);
    munmap(a, LEN), munmap(b, LEN);
    printf("%d ", kept(path));
    char *c = map(path), *d = map(path);
    printf("%d %d\n", c != d, (c == a || c == b) && (d == a || d == b));
}

static void forked(void) {
    use(path);
    printf("%d ", kept(path));
    for (int round = 0; round < 3; round++) {
        if (round == 2) map(path);
        fflush(stdout);
        if (fork() == 0) {
            printf("%d ", kept(path));
            use(path);
            printf("%d ", kept(path));
            fflush(stdout);
            _exit(0);
        }
        wait(NULL);
        printf("%d ", kept(path));
    }
    printf("\n");
}

static void deleted(void) {
    use(path);
    printf("%d ", kept(path));
    unlink(path);
    printf("%d ", kept(path));
    make(path, 2, LEN), use(path);
    make(other, 3, LEN), rename(other, path);
    printf("%d ", kept(path));
    char *addr = map(path);
    printf("%d ", *addr);
    make(other, 4, LEN), rename(other, path);
    munmap(addr, LEN);
    printf("%d ", kept(path));
    /* A file with another name stays. */
    use(path), link(path, other), unlink(path);
    printf("%d\n", kept(path));
}

static void timeout(void) {
    use(path);
    printf("%d ", kept(path));
    usleep(600 * 1000);
    access("/nonexistent", F_OK);
    printf("%d\n", kept(path));
}

/* While memory is short, and after that. */
static void pressed(void) {
    use(path);
    printf("%d ", kept(path));
    system("echo 'full avg10=5.00 x' >pressure");
    usleep(1100 * 1000);
    access("/nonexistent", F_OK);
    printf("%d ", kept(path));
    use(path);
    printf("%d ", kept(path));
    system("echo 'full avg10=4.99 x' >pressure");
    usleep(1100 * 1000);
    use(path);
    printf("%d\n", kept(path));
}

/* The same where only calls on mappings are seen. */
static void timed(void) {
    use(path);
    usleep(600 * 1000);
    munmap(mmap(0, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), PAGE);
    printf("%d\n", kept(path));
}

static void left_out(void) {
    char *addr;
    addr = map_with(path, LEN, O_RDWR, PROT_READ, MAP_SHARED), munmap(addr, LEN);
    printf("%d", kept(path));
    addr = map_with(path, LEN, O_RDONLY, PROT_READ | PROT_WRITE, MAP_PRIVATE), munmap(addr, LEN);
    printf("%d", kept(path));
    addr = map_with(path, 15 * PAGE, O_RDONLY, PROT_READ, MAP_SHARED), munmap(addr, 15 * PAGE);
    printf("%d", kept(path));
    addr = map(path), madvise(addr, PAGE, MADV_DONTNEED), munmap(addr, LEN);
    printf("%d", kept(path));
    addr = map(path), mprotect(addr, LEN, PROT_READ), munmap(addr, LEN);
    printf("%d", kept(path));
    addr = map(path), mlock(addr, PAGE), munmap(addr, LEN);
    printf("%d", kept(path));
    addr = map(path), munmap(addr, PAGE), munmap(addr + PAGE, LEN - PAGE);
    printf("%d", kept(path));
    addr = mremap(map(path), LEN, LEN / 2, 0), munmap(addr, LEN / 2);
    printf("%d", kept(path));
    int fd = open(path, O_RDONLY);
    unlink(path);
    addr = mmap(NULL, LEN, PROT_READ, MAP_SHARED, fd, 0), munmap(addr, LEN);
    printf("%d\n", kept(path));
}

static int has_flag(const char *flag) {
    char line[4096];
    int here = 0, found = 0;
    FILE *maps = fopen("/proc/self/smaps", "r");
    while (fgets(line, sizeof line, maps)) {
        if (strstr(line, path)) here = 1;
        if (here && !strncmp(line, "VmFlags:", 8)) found += strstr(line, flag) != NULL, here = 0;
    }
    fclose(maps);
    return found;
}

/* Advice is for the mapping that it was given for. */
static void advice(void) {
    char *addr = map(path);
    madvise(addr, LEN / 2, MADV_RANDOM);
    printf("%d ", has_flag(" rr"));
    munmap(addr, LEN);
    printf("%d ", map(path) == addr);
    printf("%d\n", has_flag(" rr"));
}

/* What is kept takes no addresses away from the program. */
static void limit(void) {
    const size_t len = 32 << 20;
    char name[PATH_LEN];
    struct rlimit limit = {0};
    FILE *statm = fopen("/proc/self/statm", "r");
    long pages = 0;
    if (fscanf(statm, "%ld", &pages) != 1) exit(3);
    fclose(statm);
    limit.rlim_cur = limit.rlim_max = (rlim_t)pages * PAGE + (80 << 20);
    setrlimit(RLIMIT_AS, &limit);
    int fine = 0;
    for (int i = 0; i < 6; i++) {
        snprintf(name, sizeof name, "%s/large-%d", dir, i);
        int fd = open(name, O_RDWR | O_CREAT, 0644);
        if (ftruncate(fd, (off_t)len)) exit(3);
        close(fd);
        char *addr = map_with(name, len, O_RDONLY, PROT_READ, MAP_SHARED);
        fine += munmap(addr, len) == 0;
    }
    void *all = malloc(70 << 20);
    printf("%d %d\n", fine, all != NULL);
}

static void sandboxed(void) {
    struct sock_filter allow[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {1, allow};
    use(path);
    printf("%d ", kept(path));
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    printf("%d ", kept(path));
    use(path);
    printf("%d\n", kept(path));
}

/* In a mount namespace of its own, as root there. */
static void unmounted(void) {
    if (mount("none", dir, "tmpfs", 0, NULL)) exit(77);
    make(path, 1, LEN);
    use(path);
    printf("%d ", kept(path));
    printf("%d\n", umount(dir) ? errno : 0);
}

/* While it is mapped, its number is not given to another file. */
static void numbers(void) {
    struct stat first, stat_of;
    pid_t child;
    char *words[] = {"rm", path, NULL};
    extern char **environ;
    use(path);
    stat(path, &first);
    posix_spawnp(&child, "rm", NULL, NULL, words, environ), waitpid(child, NULL, 0);
    int same = 0, wrong = 0;
    for (int i = 0; i < 300; i++) {
        make(path, 9, 64 << 10);
        stat(path, &stat_of);
        same += stat_of.st_ino == first.st_ino;
        char *addr = map_with(path, 64 << 10, O_RDONLY, PROT_READ, MAP_SHARED);
        wrong += *addr != 9;
        munmap(addr, 64 << 10);
        posix_spawnp(&child, "rm", NULL, NULL, words, environ), waitpid(child, NULL, 0);
    }
    printf("%d %d\n", same, wrong);
}

/* A mapping grows over addresses that were unmapped, without moving. */
static void grown(void) {
    char *file = map(path);
    char *own = mmap(file - LEN, LEN, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    munmap(file, LEN);
    printf("%d ", kept(path));
    printf("%d ", own == MAP_FAILED ? errno : mremap(own, LEN, 2 * LEN, 0) == own);
    own[LEN] = 1;
    printf("%d\n", kept(path));
}

/* What is mapped once is not kept, if only what is mapped again is. */
static void once(void) {
    for (int i = 0; i < 3; i++) use(path), printf("%d ", kept(path));
    printf("\n");
}

/* Somebody says that all of it has to go. */
static void dropped(void) {
    use(path);
    printf("%d ", kept(path));
    if (system(getenv("DROP"))) exit(3);
    access("/nonexistent", F_OK);
    printf("%d ", kept(path));
    use(path);
    printf("%d\n", kept(path));
}

static sigjmp_buf landing;
static void caught(int signal) { siglongjmp(landing, signal); }

static int byte_at(const char *addr) {
    int signal = sigsetjmp(landing, 1);
    return signal ? -signal : *(volatile const char *)addr;
}

static void cut(void) {
    signal(SIGBUS, caught), signal(SIGSEGV, caught);
    use(path);
    if (truncate(path, PAGE)) exit(3);
    char *addr = map(path);
    printf("%d %d ", byte_at(addr), byte_at(addr + PAGE));
    if (truncate(path, LEN)) exit(3);
    printf("%d ", byte_at(addr + PAGE));
    munmap(addr, LEN);
    /* Shown, and documented: it does not fault while it is kept. */
    printf("%d %d\n", byte_at(addr), kept(path));
}

static void *work(void *seed) {
    unsigned state = (unsigned)(size_t)seed * 77 + 1;
    char name[PATH_LEN];
    for (int i = 0; i < 4000; i++) {
        int file = rand_r(&state) % FILES;
        size_t len = rand_r(&state) % 3 ? LEN : LEN / 2;
        snprintf(name, sizeof name, "%s/file-%d", dir, file);
        char *addr = map_with(name, len, O_RDONLY, PROT_READ, MAP_SHARED);
        for (size_t at = 0; at < len; at += 16 * PAGE)
            if (*(volatile char *)(addr + at) != file + 1) {
                printf("file %d reads %d\n", file, addr[at]);
                exit(1);
            }
        if (rand_r(&state) % 8) {
            munmap(addr, len);
            continue;
        }
        /* The addresses are somebody's own for a while. */
        char *own = mmap(addr, len, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        memset(own, 0x55, len);
        sched_yield();
        for (size_t at = 0; at < len; at += PAGE)
            if (own[at] != 0x55) printf("not mine any more\n"), exit(1);
        munmap(own, len);
    }
    return NULL;
}

static void threads(void) {
    char name[PATH_LEN];
    pthread_t all[THREADS];
    char *words[] = {"true", NULL};
    extern char **environ;
    for (int i = 0; i < FILES; i++)
        snprintf(name, sizeof name, "%s/file-%d", dir, i), make(name, i + 1, LEN);
    for (size_t i = 0; i < THREADS; i++) pthread_create(&all[i], NULL, work, (void *)i);
    for (int i = 0; i < 20; i++) {
        pid_t child;
        posix_spawnp(&child, "true", NULL, NULL, words, environ), waitpid(child, NULL, 0);
        if (fork() == 0) work((void *)(size_t)i), _exit(0);
        int status;
        wait(&status);
        if (status) printf("child: %d\n", status);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(all[i], NULL);
    printf("done\n");
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"again", again},       {"forked", forked},       {"deleted", deleted},
                 {"timeout", timeout}, {"timed", timed}, {"pressed", pressed},   {"left-out", left_out},   {"advice", advice},
                 {"limit", limit},       {"sandboxed", sandboxed}, {"unmounted", unmounted},
                 {"numbers", numbers},     {"dropped", dropped},     {"grown", grown},        {"once", once},   {"cut", cut},             {"threads", threads}};
    if (argc != 3) return 2;
    dir = argv[2];
    snprintf(path, sizeof path, "%s/the-file", dir);
    snprintf(other, sizeof other, "%s/another", dir);
    make(path, 1, LEN);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(cases[i].name, argv[1])) return cases[i].run(), 0;
    return 2;
}
