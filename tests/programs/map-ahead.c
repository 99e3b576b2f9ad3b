/* What a program can notice of pages that are mapped ahead of it: `map-ahead CASE DIR`. Each case
   says `ok`, or what is wrong. Run with `holdfast run --map=cache=0,ahead-min=16M`. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, MIB = 1 << 20, BLOCK = 64 << 10 };
#define LEN (32ul * MIB)

static const char *self_path, *dir;
static char path[4096];

static void fail(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    printf(" (errno %d)\n", errno);
    fflush(stdout);
    _exit(1);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}
static void pause_us(long us) {
    struct timespec time = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&time, 0);
}

/* Each page begins with its number. */
static void make_file(void) {
    snprintf(path, sizeof path, "%s/data", dir);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    static char bytes[MIB];
    for (unsigned long at = 0; at < LEN; at += MIB) {
        for (unsigned long page = 0; page < MIB; page += PAGE) {
            *(unsigned long *)(bytes + page) = (at + page) / PAGE;
        }
        if (write(fd, bytes, MIB) != MIB) fail("write");
    }
    close(fd);
}
static char *map_with(int prot, int flags) {
    int fd = open(path, O_RDONLY);
    char *map = mmap(0, LEN, prot, flags, fd, 0);
    if (map == MAP_FAILED) fail("mmap");
    close(fd);
    return map;
}
static char *map_file(void) { return map_with(PROT_READ, MAP_SHARED); }
static char *map_ahead(void) {
    char *map = map_file();
    if (madvise(map, LEN, MADV_WILLNEED)) fail("madvise");
    return map;
}
static void check(const char *map, unsigned long from, unsigned long to) {
    for (unsigned long at = from; at < to; at += PAGE) {
        if (*(volatile unsigned long *)(map + at) != at / PAGE) fail("page %lu", at / PAGE);
    }
}

/* How many of the pages are mapped in this process. */
static unsigned long present(const char *from, unsigned long len) {
    static uint64_t entries[LEN / PAGE];
    int fd = open("/proc/self/pagemap", O_RDONLY);
    unsigned long pages = len / PAGE, count = 0;
    if (pread(fd, entries, pages * 8, (uintptr_t)from / PAGE * 8) != (long)pages * 8)
        fail("pagemap");
    close(fd);
    for (unsigned long i = 0; i < pages; i++) count += entries[i] >> 63;
    return count;
}
static int descriptors(void) {
    int count = 0;
    for (int fd = 0; fd < 200; fd++) count += fcntl(fd, F_GETFD) >= 0;
    return count;
}
/* The threads of this process, and one of them that is not the caller. */
static int tasks(pid_t *other) {
    DIR *list = opendir("/proc/self/task");
    int count = 0;
    for (struct dirent *entry; (entry = readdir(list));) {
        if (entry->d_name[0] == '.') continue;
        count++;
        pid_t task = atoi(entry->d_name);
        if (other && task != getpid()) *other = task;
    }
    closedir(list);
    return count;
}
static void await_alone(void) {
    for (double end = seconds() + 10; tasks(0) != 1;) {
        if (seconds() > end) fail("%d threads after ten seconds", tasks(0));
        pause_us(5000);
    }
}

/* All is mapped in the end, without a touch, but for what the kernel reclaims meanwhile; then the
   helper goes. */
static void whole(void) {
    int before = descriptors();
    char *map = map_ahead();
    for (double end = seconds() + 30; present(map, LEN) < LEN / PAGE * 15 / 16;) {
        if (seconds() > end) fail("%lu pages are mapped", present(map, LEN));
        if (tasks(0) > 2) fail("%d threads", tasks(0));
        if (descriptors() != before) fail("%d descriptors, not %d", descriptors(), before);
        pause_us(1000);
    }
    check(map, 0, LEN);
    await_alone();
}

/* Nothing is mapped ahead, and nobody but the program is there. */
static void untouched(void) {
    char *map = map_ahead();
    for (int i = 0; i < 10; i++) {
        unsigned long count = present(map, LEN);
        if (count || tasks(0) != 1) fail("%lu pages, %d threads", count, tasks(0));
        pause_us(5000);
    }
}
/* All is mapped when the call returns, by the program itself. */
static void at_once(void) {
    for (int advised = 0; advised < 2; advised++) {
        char *map = advised ? map_ahead() : map_file();
        if (present(map, LEN) != LEN / PAGE) fail("%lu pages", present(map, LEN));
        if (tasks(0) != 1) fail("%d threads", tasks(0));
        munmap(map, LEN);
    }
}

/* A program that reads in order, slowly, finds pages mapped where it has not been. */
static void in_order(void) {
    double end = seconds() + 30;
    for (int round = 0; seconds() < end; round++) {
        char *map = map_file();
        for (unsigned long at = 0; at < LEN; at += BLOCK) {
            check(map, at, at + BLOCK);
            pause_us(500);
            if (at + BLOCK < LEN && present(map + at + BLOCK, LEN - at - BLOCK)) {
                check(map, at, LEN);
                return;
            }
        }
        munmap(map, LEN);
    }
    fail("nothing was mapped ahead in thirty seconds");
}

/* Nothing but what faults is mapped for who reads at random, or says so. */
static void at_random(void) {
    for (int advised = 0; advised < 2; advised++) {
        char *map = map_file();
        if (advised && madvise(map, LEN, MADV_RANDOM)) fail("madvise");
        unsigned long touched = 0;
        for (unsigned long i = 0; i < LEN / BLOCK; i += 2) {
            /* Every second block, in an order without a run; with the advice also the others. */
            unsigned long block = i * 37 % (LEN / BLOCK);
            check(map, block * BLOCK, block * BLOCK + PAGE);
            touched++;
            if (i % 64 == 0) pause_us(2000);
        }
        for (unsigned long at = 0; advised && at < LEN; at += 2 * BLOCK, touched++)
            check(map, at + BLOCK, at + BLOCK + PAGE);
        pause_us(50000);
        unsigned long count = present(map, LEN);
        if (count > touched * BLOCK / PAGE) fail("%lu pages, %lu blocks touched", count, touched);
        munmap(map, LEN);
    }
}

/* Reading a file with holes fills them with memory: it is left to the program. */
static void holes(void) {
    truncate(path, 0);
    truncate(path, LEN);
    struct stat before, after;
    stat(path, &before);
    char *map = map_ahead();
    pause_us(100000);
    stat(path, &after);
    if (present(map, LEN) || before.st_blocks != after.st_blocks) fail("holes were filled");
}

static void absent(const char *what, char *at, unsigned long len, int round) {
    for (int i = 0; i < 4; i++) {
        unsigned long count = present(at, len);
        if (count) fail("%s, round %d: %lu pages", what, round, count);
        pause_us(100);
    }
}
/* What takes the place of pages that are being mapped ahead stays untouched. */
static void gone(void) {
    enum { N = 8 * MIB };
    int anonymous = MAP_PRIVATE | MAP_ANONYMOUS;
    srand(1);
    for (int round = 0; round < 200; round++) {
        char *map = map_ahead(), *middle = map + 8 * MIB, *back = map + 20 * MIB;
        pause_us(rand() % 300);
        if (round % 2 && munmap(middle, N)) fail("munmap");
        void *new = mmap(middle, N, PROT_READ | PROT_WRITE, anonymous | MAP_FIXED, -1, 0);
        if (new != middle) fail("mmap");
        absent("anonymous memory", middle, N, round);
        if (madvise(back, N, MADV_DONTNEED)) fail("madvise");
        absent("MADV_DONTNEED", back, N, round);
        char *moved = mremap(map, 4 * MIB, 4 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, back);
        if (moved != back) fail("mremap");
        if (mmap(map, 4 * MIB, PROT_READ, anonymous | MAP_FIXED, -1, 0) != map) fail("mmap");
        absent("in place of what moved", map, 4 * MIB, round);
        check(moved, 0, 4 * MIB);
        munmap(map, LEN);
    }
}

static volatile int handled, handled_elsewhere;
static void count_signal(int sig) {
    handled++;
    if (syscall(SYS_gettid) != getpid()) handled_elsewhere++;
}
/* The program's only thread gets its signals, also while it blocks them. */
static void signals(void) {
    signal(SIGUSR1, count_signal);
    sigset_t set, pending;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    int with = 0;
    for (int round = 0; round < 200 || (with < 50 && round < 20000); round++) {
        char *map = map_ahead();
        sigprocmask(SIG_BLOCK, &set, 0);
        with += tasks(0) == 2;
        kill(getpid(), SIGUSR1);
        sigpending(&pending);
        if (!sigismember(&pending, SIGUSR1)) fail("the signal is not pending");
        sigprocmask(SIG_UNBLOCK, &set, 0);
        if (handled != round + 1 || handled_elsewhere) fail("%d signals of %d", handled, round);
        munmap(map, LEN);
    }
    if (with < 50) fail("there was a helper %d times", with);
}

/* Children of every kind, born while pages are mapped. */
static void forks(void) {
    for (int round = 0; round < 60; round++) {
        char *map = map_ahead();
        pause_us(round * 7 % 300);
        pid_t child = round % 3 ? fork() : vfork();
        if (child == 0) {
            if (round % 3 == 0) {
                char *more = mmap(0, LEN, PROT_READ, MAP_SHARED, open(path, O_RDONLY), 0);
                _exit(*(unsigned long *)(more + 5 * PAGE) != 5 || munmap(more, LEN));
            }
            if (tasks(0) != 1) fail("a child has %d threads", tasks(0));
            check(map, 0, LEN);
            char *more = map_ahead();
            check(more, 0, LEN);
            munmap(more, LEN);
            if (round % 3 == 1) syscall(SYS_exit, 0);
            _exit(0);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status) fail("round %d: %d", round, status);
        if (waitpid(-1, 0, __WALL) != -1 || errno != ECHILD) fail("another child");
        check(map, 0, LEN);
        munmap(map, LEN);
    }
}

/* The next program has one thread and no child, and nobody sends it a signal. */
static void executes(void) {
    const char *left = getenv("LEFT");
    int rounds = left ? atoi(left) : 40;
    sigset_t set, pending;
    sigfillset(&set);
    if (tasks(0) != 1) fail("%d threads", tasks(0));
    if (waitpid(-1, 0, __WALL) != -1 || errno != ECHILD) fail("a child");
    sigpending(&pending);
    if (sigismember(&pending, SIGCHLD)) fail("SIGCHLD");
    sigprocmask(SIG_BLOCK, &set, 0);
    if (rounds == 0) return;
    char next[16];
    sprintf(next, "%d", rounds - 1);
    setenv("LEFT", next, 1);
    map_ahead();
    pause_us(rounds * 11 % 300);
    execl(self_path, self_path, "exec", dir, (char *)0);
    fail("exec");
}

/* Who is killed leaves nothing: when its parent knows, no thread and no lock of it is there. */
static void kills(void) {
    int with = 0;
    for (int round = 0; round < 100 || (with < 30 && round < 3000); round++) {
        int ends[2];
        pid_t helper = 0;
        pipe(ends);
        pid_t child = fork();
        if (child == 0) {
            flock(open(path, O_RDONLY), LOCK_EX);
            map_ahead();
            if (tasks(&helper) != 2) helper = 0;
            write(ends[1], &helper, sizeof helper);
            for (;;) map_ahead();
        }
        read(ends[0], &helper, sizeof helper);
        with += helper != 0;
        pause_us(round * 13 % 500);
        kill(child, SIGKILL);
        waitpid(child, 0, 0);
        if (helper && (kill(helper, 0) == 0 || errno != ESRCH)) fail("the helper lives");
        int fd = open(path, O_RDONLY);
        if (flock(fd, LOCK_EX | LOCK_NB)) fail("the lock is held");
        close(fd), close(ends[0]), close(ends[1]);
    }
    if (with < 30) fail("there was a helper %d times", with);
}

static sigjmp_buf away;
static volatile char *expected_at;
static void bus(int sig, siginfo_t *info, void *context) {
    if (info->si_addr != expected_at) {
        static const char said[] = "SIGBUS elsewhere\n";
        write(1, said, sizeof said - 1);
        _exit(1);
    }
    siglongjmp(away, 1);
}
/* The file is cut while its pages are mapped: SIGBUS behind its end, and nowhere else. */
static void truncates(void) {
    struct sigaction action = {.sa_sigaction = bus, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, 0);
    for (int round = 0; round < 30; round++) {
        make_file();
        char *map = map_ahead();
        pause_us(round * 17 % 400);
        if (truncate(path, LEN / 2)) fail("truncate");
        check(map, 0, LEN / 2);
        int signals = 0;
        for (volatile unsigned long at = LEN / 2; at < LEN; at += 128 * PAGE) {
            expected_at = map + at;
            if (sigsetjmp(away, 1)) signals++;
            else (void)*expected_at, fail("no SIGBUS at %lu", at);
        }
        if (signals != LEN / 2 / (128 * PAGE)) fail("%d signals", signals);
        expected_at = 0;
        munmap(map, LEN);
    }
}

static int in_child(int (*act)(void), int ahead) {
    pid_t child = fork();
    if (child == 0) {
        if (ahead) map_ahead();
        _exit(act());
    }
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}
static int act_user(void) { return unshare(CLONE_NEWUSER) ? errno : 0; }
static int act_vm(void) { return unshare(CLONE_VM | CLONE_SIGHAND | CLONE_THREAD) ? errno : 0; }
static int act_files(void) { return unshare(CLONE_FILES | CLONE_FS) ? errno : 0; }
static int act_space(void) {
    int fd = open("/proc/self/ns/user", O_RDONLY);
    return setns(fd, CLONE_NEWUSER) ? errno : 0;
}
/* Calls that a process with threads may not make. */
static void alone(void) {
    int (*acts[])(void) = {act_user, act_vm, act_files, act_space};
    for (int i = 0; i < 4; i++) {
        for (int round = 0; round < 15; round++) {
            int without = in_child(acts[i], 0), with = in_child(acts[i], 1);
            if (without != with) fail("call %d: %d, not %d", i, with, without);
        }
    }
}

static long status_of(int task, const char *word) {
    char name[64], line[256];
    sprintf(name, "/proc/self/task/%d/status", task);
    FILE *file = fopen(name, "r");
    long value = -1;
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, word, strlen(word))) value = atol(line + strlen(word));
    if (file) fclose(file);
    return value;
}
/* What a thread gives up, all have given up. */
static int act_drop(void) {
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 2;
    pid_t helper = 0;
    map_ahead();
    if (tasks(&helper) == 2 && status_of(helper, "NoNewPrivs:\t") == 0) return 3;
    if (getuid()) return 0;
    if (syscall(SYS_setresgid, 65534, 65534, 65534)) return 4;
    if (syscall(SYS_setresuid, 65534, 65534, 65534)) return 5;
    for (int i = 0; i < 20; i++) {
        helper = 0;
        if (tasks(&helper) == 2 && status_of(helper, "Uid:\t") == 0) return 6;
        if (helper && status_of(helper, "Gid:\t") == 0) return 7;
    }
    return 0;
}
static void drops(void) {
    for (int round = 0; round < 30; round++) {
        int ended = in_child(act_drop, 1);
        if (ended) fail("round %d: %d", round, ended);
    }
}

static int forbid(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}
static int act_forbid(void) {
    if (forbid()) return 2;
    for (int i = 0; i < 20; i++) {
        char *map = map_ahead();
        check(map, 0, LEN);
        if (tasks(0) != 1) return 3;
        munmap(map, LEN);
    }
    execl(self_path, self_path, "filtered", dir, (char *)0);
    return 4;
}
/* A program that forbids calls to itself is not ended for ours, nor is what it executes. */
static void filter(void) {
    for (int ahead = 0; ahead < 20; ahead++) {
        int ended = in_child(act_forbid, ahead % 2);
        if (ended) fail("round %d: %d", ahead, ended);
    }
}
static void filtered(void) {
    char *map = map_ahead();
    check(map, 0, LEN);
    if (tasks(0) != 1) fail("%d threads", tasks(0));
}

static char *guarded;
static void opens(int sig, siginfo_t *info, void *context) {
    char *page = (char *)((uintptr_t)info->si_addr & ~(PAGE - 1ul));
    if (page < guarded || page >= guarded + LEN || mprotect(page, PAGE, PROT_READ)) _exit(99);
    handled++;
}
/* Pages that the program guards raise SIGSEGV, each once. */
static void guards(void) {
    struct sigaction action = {.sa_sigaction = opens, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, 0);
    for (int round = 0; round < 50; round++) {
        guarded = map_ahead();
        for (int i = 0; i < 8; i++)
            mprotect(guarded + (i * 4 + 1) * MIB, PAGE, PROT_NONE);
        handled = 0;
        check(guarded, 0, LEN);
        if (handled != 8) fail("%d signals", handled);
        munmap(guarded, LEN);
    }
}

static void *work(void *number) {
    unsigned seed = (unsigned)(uintptr_t)number;
    for (int i = 0; i < 60; i++) {
        char *map = rand_r(&seed) % 2 ? map_ahead() : map_file();
        unsigned long half = rand_r(&seed) % 16 * MIB;
        if (rand_r(&seed) % 2) pause_us(rand_r(&seed) % 200);
        if (munmap(map + half, LEN / 2 - 8 * PAGE)) fail("munmap");
        check(map, 0, half);
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
        void *new = mmap(map + half, MIB, PROT_READ, flags, -1, 0);
        if (new != MAP_FAILED) {
            for (unsigned long at = 0; at < MIB; at += PAGE)
                if (*(volatile unsigned long *)((char *)new + at)) fail("not zero");
            munmap(new, MIB);
        }
        check(map, half + LEN / 2, LEN);
        munmap(map, half);
        munmap(map + half + LEN / 2 - 8 * PAGE, LEN / 2 - half + 8 * PAGE);
    }
    return 0;
}
static void threads(void) {
    pthread_t list[6];
    for (uintptr_t i = 0; i < 6; i++) pthread_create(list + i, 0, work, (void *)i);
    for (int i = 0; i < 6; i++) pthread_join(list[i], 0);
    await_alone();
}

static void *last(void *none) {
    map_ahead();
    return 0;
}
static int act_last(void) {
    pthread_t thread;
    pthread_create(&thread, 0, last, 0);
    pthread_exit(0);
}
static int act_exit(void) { return (int)syscall(SYS_exit, 0); }
/* A process ends with its last thread, however that ends. */
static void ends(void) {
    for (int round = 0; round < 40; round++) {
        double begun = seconds();
        int ended = in_child(round % 2 ? act_last : act_exit, 1);
        if (ended) fail("round %d: %d", round, ended);
        if (seconds() - begun > 5) fail("round %d: %f s", round, seconds() - begun);
    }
}

int main(int count, char **words) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"whole", whole},   {"in-order", in_order}, {"at-random", at_random},
                 {"holes", holes},   {"gone", gone},         {"signals", signals},
                 {"forks", forks},   {"exec", executes},     {"kills", kills},
                 {"truncates", truncates}, {"alone", alone}, {"drops", drops},
                 {"filter", filter}, {"filtered", filtered}, {"guards", guards},
                 {"threads", threads}, {"ends", ends},
                 {"untouched", untouched}, {"at-once", at_once}};
    if (count < 3) return 2;
    self_path = words[0];
    dir = words[2];
    snprintf(path, sizeof path, "%s/data", dir);
    if (!getenv("LEFT") && strcmp(words[1], "filtered")) make_file();
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(cases[i].name, words[1])) continue;
        cases[i].run();
        printf("ok\n");
        return 0;
    }
    return 2;
}
