/* Everything that is delicate when system calls are caught inside a process. Prints one line per
 * part; the output must be the same with and without the library. Parts are named by argv[1];
 * files are made in $STRESS_DIR (default /tmp). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <immintrin.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

extern char **environ;
static const char *dir;

#define CHECK(c) \
    do { \
        if (!(c)) { \
            printf("FAILED %s:%d: %s (errno %d)\n", __func__, __LINE__, #c, errno); \
            fflush(stdout); \
            _exit(1); \
        } \
    } while (0)

static int status_of(pid_t pid) {
    int status;
    pid_t got;
    do got = waitpid(pid, &status, 0);
    while (got < 0 && errno == EINTR);
    CHECK(got == pid);
    return status;
}

/* ---- processes ---- */
static void forks(void) {
    for (int i = 0; i < 200; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) _exit(i & 0x7f);
        CHECK(WEXITSTATUS(status_of(pid)) == (i & 0x7f));
    }
    /* A child that forks, in threads of its parent's making. */
    pid_t pid = fork();
    if (pid == 0) {
        pid_t inner = fork();
        if (inner == 0) _exit(7);
        _exit(WEXITSTATUS(status_of(inner)));
    }
    CHECK(WEXITSTATUS(status_of(pid)) == 7);
}

static void vforks(void) {
    for (int i = 0; i < 200; i++) {
        volatile int mark = 0;
        pid_t pid = vfork();
        CHECK(pid >= 0);
        if (pid == 0) {
            mark = i + 1;
            if (i % 2) execl("/bin/true", "true", (char *)0);
            _exit(i & 0x7f);
        }
        CHECK(mark == i + 1);
        int want = i % 2 ? 0 : i & 0x7f;
        CHECK(WEXITSTATUS(status_of(pid)) == want);
    }
}

static void spawns(void) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t defaults;
    CHECK(!posix_spawn_file_actions_init(&actions));
    CHECK(!posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0));
    CHECK(!posix_spawnattr_init(&attr));
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGUSR1);
    sigaddset(&defaults, SIGPIPE);
    CHECK(!posix_spawnattr_setsigdefault(&attr, &defaults));
    CHECK(!posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGDEF));
    for (int i = 0; i < 50; i++) {
        pid_t pid;
        char *argv[] = {"sh", "-c", "kill -USR1 $$; exit 4", 0};
        CHECK(!posix_spawn(&pid, "/bin/sh", &actions, &attr, argv, environ));
        int status = status_of(pid);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGUSR1);
        char *bad[] = {"nothing", 0};
        CHECK(posix_spawn(&pid, "/nonexistent/nothing", &actions, &attr, bad, environ) == ENOENT);
        CHECK(system("exit 5") == 5 << 8);
        FILE *pipe = popen("echo out; exit 6", "r");
        char line[16];
        CHECK(pipe && fgets(line, sizeof line, pipe) && !strcmp(line, "out\n"));
        CHECK(pclose(pipe) == 6 << 8);
    }
}

static int on_own_stack(void *arg) {
    CHECK(syscall(SYS_getppid) > 0);
    int fd = open("/dev/null", O_RDONLY);
    CHECK(fd >= 0 && !close(fd));
    return *(int *)arg;
}

static void clones(void) {
    size_t size = 256 << 10;
    char *stack = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int code = 9;
    for (int i = 0; i < 50; i++) {
        pid_t pid = clone(on_own_stack, stack + size, SIGCHLD, &code);
        CHECK(pid > 0 && WEXITSTATUS(status_of(pid)) == 9);
        pid = clone(on_own_stack, stack + size, CLONE_VM | CLONE_VFORK | SIGCHLD, &code);
        CHECK(pid > 0 && WEXITSTATUS(status_of(pid)) == 9);
        pid = clone(on_own_stack, stack + size, CLONE_VM | SIGCHLD, &code);
        CHECK(pid > 0 && WEXITSTATUS(status_of(pid)) == 9);
        pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (pid == 0) _exit(3);
        CHECK(WEXITSTATUS(status_of(pid)) == 3);
        struct { uint64_t words[11]; } args = {{0}};
        args.words[4] = SIGCHLD;
        pid = syscall(SYS_clone3, &args, 88);
        if (pid == 0) _exit(2);
        CHECK(pid > 0 && WEXITSTATUS(status_of(pid)) == 2);
    }
}

/* ---- threads ---- */
static void *busy(void *arg) {
    char path[256];
    for (int i = 0; i < 300; i++) {
        snprintf(path, sizeof path, "%s/hf-stress-%d-%ld-%d", dir, getpid(), (long)arg, i & 3);
        int fd = open(path, O_CREAT | O_RDWR, 0600);
        CHECK(fd >= 0);
        CHECK(pwrite(fd, path, 64, 8) == 64);
        char back[64];
        CHECK(pread(fd, back, sizeof back, 8) == sizeof back && !memcmp(path, back, 64));
        struct stat st;
        CHECK(!fstat(fd, &st) && st.st_size == 72);
        CHECK(!close(fd) && !unlink(path));
        if (i % 50 == 0) {
            pid_t pid = fork();
            if (pid == 0) _exit(0);
            CHECK(status_of(pid) == 0);
        }
    }
    return arg;
}

static void threads(void) {
    pthread_t all[8];
    for (int round = 0; round < 5; round++) {
        for (long i = 0; i < 8; i++) CHECK(!pthread_create(&all[i], 0, busy, (void *)i));
        for (long i = 0; i < 8; i++) {
            void *ret;
            CHECK(!pthread_join(all[i], &ret) && ret == (void *)i);
        }
    }
}

static volatile int cleaned;
static void cleanup(void *arg) { cleaned += *(int *)arg; }

static void *cancelled(void *arg) {
    int one = 1;
    int *fds = arg;
    pthread_cleanup_push(cleanup, &one);
    char c;
    if (fds[2]) pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, 0);
    while (read(fds[0], &c, 1) >= 0) {}
    pthread_cleanup_pop(0);
    return 0;
}

static void cancels(void) {
    int fds[3];
    CHECK(!pipe(fds));
    for (int i = 0; i < 100; i++) {
        pthread_t thread;
        void *ret;
        fds[2] = i & 1;
        CHECK(!pthread_create(&thread, 0, cancelled, fds));
        if (i % 3) usleep(300);
        CHECK(!pthread_cancel(thread));
        CHECK(!pthread_join(thread, &ret) && ret == PTHREAD_CANCELED);
    }
    CHECK(cleaned == 100);
}

/* ---- signals ---- */
static volatile sig_atomic_t hits, in_handler;
static sigjmp_buf jump;
static void count(int sig) { hits++; (void)sig; }

static void with_calls(int sig, siginfo_t *info, void *context) {
    int saved = errno;
    CHECK(info->si_signo == sig && context);
    struct stat st;
    CHECK(!stat(dir, &st));
    int fd = open("/dev/null", O_WRONLY);
    CHECK(fd >= 0 && write(fd, &st, 4) == 4 && !close(fd));
    hits++;
    errno = saved;
}

static void set(int sig, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags}, old;
    CHECK(!sigaction(sig, &action, 0));
    CHECK(!sigaction(sig, 0, &old));
    CHECK(old.sa_handler == handler && (old.sa_flags & ~0x04000000) == flags);
}

static void actions(void) {
    struct sigaction old;
    for (int sig = 1; sig < 32; sig++) {
        if (sig == SIGKILL || sig == SIGSTOP) continue;
        set(sig, count, SA_RESTART);
        set(sig, SIG_IGN, 0);
        set(sig, SIG_DFL, 0);
    }
    CHECK(sigaction(SIGKILL, &(struct sigaction){.sa_handler = count}, 0) < 0 && errno == EINVAL);
    CHECK(sigaction(99, 0, &old) < 0 && errno == EINVAL);
    CHECK(syscall(SYS_rt_sigaction, SIGUSR1, 0, &old, 4) < 0 && errno == EINVAL);
    CHECK(syscall(SYS_rt_sigaction, SIGUSR1, (void *)8, 0, 8) < 0 && errno == EFAULT);
    hits = 0;
    set(SIGUSR1, count, SA_RESETHAND);
    raise(SIGUSR1);
    CHECK(hits == 1 && !sigaction(SIGUSR1, 0, &old) && old.sa_handler == SIG_DFL);
    /* What is ignored stays ignored over exec; what is handled does not. */
    signal(SIGUSR1, SIG_IGN);
    CHECK(system("kill -USR1 $$; exit 3") == 3 << 8);
    signal(SIGUSR1, count);
    CHECK(system("kill -USR1 $$; exit 3") == SIGUSR1);
    signal(SIGUSR1, SIG_DFL);
}

static void restarts(void) {
    int fds[2];
    char c;
    CHECK(!pipe(fds));
    struct itimerval timer = {{0, 0}, {0, 20000}};
    hits = 0;
    set(SIGALRM, count, 0);
    CHECK(!setitimer(ITIMER_REAL, &timer, 0));
    CHECK(read(fds[0], &c, 1) < 0 && errno == EINTR && hits == 1);
    set(SIGALRM, count, SA_RESTART);
    pid_t pid = fork();
    if (pid == 0) {
        usleep(100000);
        CHECK(write(fds[1], "x", 1) == 1);
        _exit(0);
    }
    CHECK(!setitimer(ITIMER_REAL, &timer, 0));
    CHECK(read(fds[0], &c, 1) == 1 && c == 'x' && hits == 2);
    CHECK(status_of(pid) == 0);
    CHECK(!setitimer(ITIMER_REAL, &timer, 0));
    CHECK(usleep(1000000) < 0 && errno == EINTR && hits == 3);
    sigset_t none, alarm_only;
    sigemptyset(&none);
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    CHECK(!sigprocmask(SIG_BLOCK, &alarm_only, 0));
    CHECK(!setitimer(ITIMER_REAL, &timer, 0));
    CHECK(sigsuspend(&none) < 0 && errno == EINTR && hits == 4);
    CHECK(!sigprocmask(SIG_SETMASK, &none, 0));
}

/* A timer that fires all the time, while every kind of call is made. */
static void storm(void) {
    struct sigaction action = {.sa_sigaction = with_calls, .sa_flags = SA_SIGINFO | SA_RESTART};
    struct itimerval timer = {{0, 200}, {0, 200}};
    CHECK(!sigaction(SIGALRM, &action, 0));
    hits = 0;
    CHECK(!setitimer(ITIMER_REAL, &timer, 0));
    char name[256], cwd[512];
    snprintf(name, sizeof name, "%s/hf-storm-%d", dir, getpid());
    for (int i = 0; i < 20000 || hits < 200; i++) {
        struct stat st;
        CHECK(!stat(dir, &st) && S_ISDIR(st.st_mode));
        int fd = open(name, O_CREAT | O_RDWR, 0600);
        CHECK(fd >= 0 && write(fd, name, 10) == 10 && lseek(fd, 0, SEEK_CUR) == 10);
        CHECK(!fstat(fd, &st) && st.st_size >= 10 && !close(fd));
        CHECK(getcwd(cwd, sizeof cwd) == cwd && access("/nonexistent", F_OK) < 0);
        if (i % 500 == 0) {
            pid_t pid = fork();
            if (pid == 0) _exit(1);
            CHECK(WEXITSTATUS(status_of(pid)) == 1);
        }
    }
    timer = (struct itimerval){{0, 0}, {0, 0}};
    CHECK(!setitimer(ITIMER_REAL, &timer, 0) && !unlink(name));
    signal(SIGALRM, SIG_DFL);
}

static pthread_t target;
static volatile int stop;
static volatile unsigned rounds;
/* In bursts, each met by some progress of the target: without a bound the kernel alone keeps a
   thread in its handlers for good, and queued signals pile up to their limit. */
static void *pester(void *arg) {
    while (!stop) {
        unsigned seen = rounds;
        for (int i = 0; i < 8; i++) {
            pthread_kill(target, SIGUSR1);
            pthread_kill(target, SIGRTMIN + 3);
        }
        while (!stop && rounds == seen) sched_yield();
    }
    return arg;
}

/* Signals from another thread at any moment; every queued one must arrive. */
static volatile sig_atomic_t queued;
static void count_queued(int sig, siginfo_t *info, void *context) {
    (void)sig, (void)context;
    CHECK(info->si_code == SI_QUEUE && info->si_value.sival_int == 4711);
    queued++;
}

static void pestered(void) {
    struct sigaction action = {.sa_sigaction = count_queued, .sa_flags = SA_SIGINFO | SA_RESTART};
    set(SIGUSR1, count, SA_RESTART);
    set(SIGRTMIN + 3, count, SA_RESTART);
    CHECK(!sigaction(SIGRTMIN + 1, &action, 0));
    pthread_t thread;
    target = pthread_self();
    stop = 0;
    queued = 0;
    CHECK(!pthread_create(&thread, 0, pester, 0));
    int sent = 0;
    for (int i = 0; i < 30000; i++) {
        struct stat st;
        CHECK(!stat(dir, &st) && S_ISDIR(st.st_mode));
        rounds++;
        if (i % 100 == 0) {
            union sigval value = {.sival_int = 4711};
            CHECK(!sigqueue(getpid(), SIGRTMIN + 1, value));
            sent++;
        }
    }
    stop = 1;
    CHECK(!pthread_join(thread, 0));
    for (int i = 0; i < 1000 && queued < sent; i++) usleep(1000);
    CHECK(queued == sent);
}

/* The mask, and what is pending, as the kernel says. */
static uint64_t blocked(void) {
    uint64_t mask = 1;
    CHECK(!syscall(SYS_rt_sigprocmask, SIG_SETMASK, 0, &mask, 8));
    return mask;
}

static uint64_t pending(void) {
    uint64_t set = 1;
    CHECK(!syscall(SYS_rt_sigpending, &set, 8));
    return set;
}

/* A thousand queued signals for a thread that makes calls all the time, also in the handler: each
   arrives once; what is sent to the process in the order in which it was sent. */
static volatile sig_atomic_t flood_next, out_of_order;
static void flooded(int sig, siginfo_t *info, void *context) {
    struct stat st;
    (void)sig, (void)context;
    out_of_order += info->si_value.sival_int != flood_next;
    flood_next++;
    CHECK(info->si_code == SI_QUEUE && !stat(dir, &st));
}

enum { FLOOD = 1000 };
static void *flood(void *to_thread) {
    for (int i = 0; i < FLOOD; i++) {
        union sigval value = {.sival_int = i};
        while (to_thread ? pthread_sigqueue(target, SIGRTMIN + 5, value)
                         : sigqueue(getpid(), SIGRTMIN + 5, value))
            sched_yield();
        if (i % 32 == 0) usleep(50);
    }
    return 0;
}

static void floods(void) {
    struct sigaction action = {.sa_sigaction = flooded, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigset_t flood_only;
    sigemptyset(&flood_only);
    sigaddset(&flood_only, SIGRTMIN + 5);
    CHECK(!sigaction(SIGRTMIN + 5, &action, 0));
    target = pthread_self();
    for (long round = 0; round < 20; round++) {
        pthread_t thread;
        flood_next = out_of_order = 0;
        CHECK(!pthread_sigmask(SIG_BLOCK, &flood_only, 0));
        CHECK(!pthread_create(&thread, 0, flood, (void *)(round % 2)));
        CHECK(!pthread_sigmask(SIG_UNBLOCK, &flood_only, 0));
        struct stat st;
        for (int i = 0; i < 1000000 && flood_next < FLOOD; i++)
            CHECK(!stat(dir, &st) && S_ISDIR(st.st_mode));
        CHECK(!pthread_join(thread, 0));
        CHECK(!stat(dir, &st) && flood_next == FLOOD);
        CHECK(round % 2 || !out_of_order);
        CHECK(!blocked() && !pending());
    }
}

/* Masks in a storm: what sigprocmask says, what forked children have, what programs start with. */
static char *self_path;
static void child_of_storm(void) {
    struct stat st;
    if (blocked() || pending()) _exit(1);
    if (stat(dir, &st) || blocked() || pending()) _exit(2);
    _exit(0);
}

static void masks(void) {
    struct itimerval timer = {{0, 60}, {0, 60}}, off = {{0, 0}, {0, 0}};
    struct stat st;
    sigset_t all, old;
    sigfillset(&all);
    set(SIGALRM, count, SA_RESTART);
    set(SIGURG, count, SA_RESTART);
    CHECK(!setitimer(ITIMER_REAL, &timer, 0));
    for (int i = 0; i < 4000; i++) {
        CHECK(!stat(dir, &st));
        CHECK(!sigprocmask(SIG_SETMASK, &all, &old) && sigisemptyset(&old));
        CHECK(!stat(dir, &st) && (blocked() & 0xffffffff) == (0xfffbfeff & blocked()));
        CHECK(blocked() & 1ull << (SIGALRM - 1));
        CHECK(!sigprocmask(SIG_SETMASK, &old, &all) && sigismember(&all, SIGALRM));
        CHECK(!blocked());
        if (i % 10 == 0) {
            pid_t pid = fork();
            if (pid == 0) child_of_storm();
            CHECK(status_of(pid) == 0);
        }
    }
    CHECK(!setitimer(ITIMER_REAL, &off, 0));
    for (int i = 0; i < 40; i++) {
        pid_t pid = i % 2 ? fork() : vfork();
        if (pid == 0) {
            if (i % 2) for (int k = 0; k < i; k++) stat(dir, &st);
            execl("/proc/self/exe", self_path, "unblocked", (char *)0);
            _exit(9);
        }
        int status;
        while (waitpid(pid, &status, WNOHANG) == 0) {
            kill(pid, SIGURG);
            usleep(20);
        }
        CHECK(status == 0);
    }
    CHECK(!blocked() && !pending());
}

static void leap(int sig) { siglongjmp(jump, sig); }

static void jumps(void) {
    set(SIGALRM, leap, 0);
    set(SIGSEGV, leap, 0);
    set(SIGFPE, leap, SA_NODEFER);
    struct itimerval timer = {{0, 0}, {0, 300}};
    for (volatile int i = 0; i < 500; i++) {
        if (sigsetjmp(jump, 1) == 0) {
            CHECK(!setitimer(ITIMER_REAL, &timer, 0));
            for (;;) {
                struct stat st;
                CHECK(!stat(dir, &st));
            }
        }
        if (sigsetjmp(jump, 1) == 0) *(volatile int *)8 = 1;
        if (sigsetjmp(jump, 1) == 0) raise(SIGFPE);
    }
    signal(SIGSEGV, SIG_DFL);
}

static void on_stack(int sig, siginfo_t *info, void *context) {
    char here;
    stack_t now;
    CHECK(!sigaltstack(0, &now) && (now.ss_flags & SS_ONSTACK));
    CHECK(&here > (char *)now.ss_sp && &here < (char *)now.ss_sp + now.ss_size);
    with_calls(sig, info, context);
}

static void fault_page(int sig, siginfo_t *info, void *context) {
    (void)sig, (void)context;
    void *page = (void *)((uintptr_t)info->si_addr & ~4095ul);
    CHECK(!mprotect(page, 4096, PROT_READ | PROT_WRITE));
    hits++;
}

static void faults(void) {
    stack_t alt = {.ss_sp = malloc(65536), .ss_size = 65536}, off = {.ss_flags = SS_DISABLE};
    CHECK(!sigaltstack(&alt, 0));
    struct sigaction action = {.sa_sigaction = on_stack, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    CHECK(!sigaction(SIGUSR2, &action, 0));
    hits = 0;
    for (int i = 0; i < 100; i++) raise(SIGUSR2);
    CHECK(hits == 100 && !sigaltstack(&off, 0));
    action.sa_sigaction = fault_page;
    action.sa_flags = SA_SIGINFO;
    CHECK(!sigaction(SIGSEGV, &action, 0));
    char *pages = mmap(0, 64 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 64; i++) pages[i * 4096] = 1;
    CHECK(hits == 164);
    /* The same on a small signal stack, which must hold no more than the handler's frame. */
    alt.ss_size = SIGSTKSZ;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    CHECK(!sigaltstack(&alt, 0) && !sigaction(SIGSEGV, &action, 0));
    CHECK(!mprotect(pages, 64 * 4096, PROT_NONE));
    for (int i = 0; i < 64; i++) pages[i * 4096] = 1;
    CHECK(hits == 228 && !sigaltstack(&off, 0));
    CHECK(read(open("/dev/zero", O_RDONLY), (void *)16, 8) < 0 && errno == EFAULT);
    CHECK(stat((char *)16, (struct stat *)pages) < 0 && errno == EFAULT);
    sigset_t all, before;
    sigfillset(&all);
    CHECK(!sigprocmask(SIG_SETMASK, &all, &before));
    CHECK(sigprocmask(99, &all, 0) < 0 && errno == EINVAL);
    CHECK(syscall(SYS_rt_sigprocmask, SIG_SETMASK, 16, 0, 8) < 0 && errno == EFAULT);
    CHECK(syscall(SYS_rt_sigaction, SIGUSR2, 16, 0, 8) < 0 && errno == EFAULT);
    CHECK(!sigprocmask(SIG_SETMASK, &before, &all) && sigismember(&all, SIGUSR1));
    signal(SIGSEGV, SIG_DFL);
    int how[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTERM};
    for (int i = 0; i < 6; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
            if (how[i] == SIGSEGV) *(volatile int *)8 = 1;
            if (how[i] == SIGBUS) {
                char name[256];
                snprintf(name, sizeof name, "%s/hf-bus-%d", dir, getpid());
                int fd = open(name, O_RDWR | O_CREAT, 0600);
                unlink(name);
                /* Only the pool's owner has shared mappings. */
                int kind = getenv("HF_SERVED") ? MAP_PRIVATE : MAP_SHARED;
                *(volatile char *)mmap(0, 4096, PROT_READ, kind, fd, 0);
            }
            if (how[i] == SIGILL) __builtin_trap();
            kill(getpid(), how[i]);
            for (;;) pause();
        }
        int status = status_of(pid);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == how[i]);
        /* Sent by somebody, not caused. */
        pid = fork();
        if (pid == 0) {
            setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
            for (;;) pause();
        }
        CHECK(!kill(pid, how[i]));
        status = status_of(pid);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == how[i]);
    }
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGSEGV, SIG_IGN);
        kill(getpid(), SIGSEGV);
        _exit(12);
    }
    CHECK(WEXITSTATUS(status_of(pid)) == 12);
}

/* ---- registers ---- */
static long raw_call(long nr, long a, long b, long c, uint64_t *bad) {
    uint64_t in[6] = {1, 2, 3, 4, 5, 6};
    long ret;
    uint64_t rbx, r8, r9, r12, r13, r14, r15, flags, red;
    __asm__ volatile(
        "mov $0x1111, %%ebx; mov $0x8888, %%r8d; mov $0x9999, %%r9d; mov $0xcccc, %%r12d\n"
        "mov $0xdddd, %%r13d; mov $0xeeee, %%r14d; mov $0xffff, %%r15d; mov $0x1010, %%r10d\n"
        "movq $0x5a5a, -8(%%rsp); movq $0x6b6b, -128(%%rsp)\n"
        "cmp $1, %[zero]\n" /* CF SF set, ZF clear */
        "syscall\n"
        "mov %%rax, %[ret]\n"
        "lahf; seto %%al; movzwl %%ax, %%eax; mov %%rax, %[flags]\n"
        "mov -8(%%rsp), %%rax; mov %%rax, %[red]; mov -128(%%rsp), %%rax; shl $32, %%rax\n"
        "or %%rax, %[red]\n"
        "mov %%rbx, %[rbx]; mov %%r8, %[r8]; mov %%r9, %[r9]; mov %%r12, %[r12]\n"
        "mov %%r13, %[r13]; mov %%r14, %[r14]; mov %%r15, %[r15]\n"
        : [ret] "=m"(ret), [flags] "=m"(flags), [red] "=m"(red), [rbx] "=m"(rbx), [r8] "=m"(r8),
          [r9] "=m"(r9), [r12] "=m"(r12), [r13] "=m"(r13), [r14] "=m"(r14), [r15] "=m"(r15),
          "+a"(nr), "+D"(a), "+S"(b), "+d"(c)
        : [zero] "m"(in[5])
        : "rcx", "r11", "rbx", "r8", "r9", "r10", "r12", "r13", "r14", "r15", "memory", "cc");
    *bad = rbx != 0x1111 || r8 != 0x8888 || r9 != 0x9999 || r12 != 0xcccc || r13 != 0xdddd ||
           r14 != 0xeeee || r15 != 0xffff || red != 0x00006b6b00005a5aull;
    *bad |= flags;
    return ret;
}

__attribute__((noinline)) static uint64_t flags_without_call(void) {
    uint64_t six = 6, flags;
    __asm__ volatile("cmpq $1, %1; lahf; seto %%al; movzwl %%ax, %%eax; mov %%rax, %0"
                     : "=m"(flags) : "m"(six) : "rax", "cc");
    return flags;
}

__attribute__((target("avx"))) static void vectors(void) {
    float in[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out[8];
    char cwd[256];
    long ret;
    for (int i = 0; i < 1000; i++) {
        __asm__ volatile(
            "vmovups %[in], %%ymm0; vmovups %[in], %%ymm3; vmovups %[in], %%ymm7\n"
            "vmovups %[in], %%ymm15\n"
            "fldpi\n"
            "mov $79, %%eax\n"
            "syscall\n"
            "fldpi; fcomip %%st(1), %%st; fstp %%st(0); jne 1f\n"
            "vaddps %%ymm0, %%ymm3, %%ymm0; vaddps %%ymm7, %%ymm15, %%ymm7\n"
            "vaddps %%ymm0, %%ymm7, %%ymm0\n"
            "1: vmovups %%ymm0, %[out]; vzeroupper\n"
            : [out] "=m"(out), "=a"(ret)
            : [in] "m"(in), "D"(cwd), "S"(sizeof cwd)
            : "rcx", "r11", "xmm0", "xmm3", "xmm7", "xmm15", "memory", "cc");
        CHECK(ret > 0);
        for (int j = 0; j < 8; j++) CHECK(out[j] == 4 * in[j]);
    }
}

static void registers(void) {
    uint64_t bad, want = flags_without_call();
    struct stat st;
    int fd = open("/dev/null", O_RDWR);
    for (int i = 0; i < 1000; i++) {
        CHECK(raw_call(SYS_stat, (long)dir, (long)&st, 0, &bad) == 0 && bad == want);
        CHECK(raw_call(SYS_fstat, fd, (long)&st, 0, &bad) == 0 && bad == want);
        CHECK(raw_call(SYS_fstat, 999, (long)&st, 0, &bad) == -EBADF && bad == want);
        CHECK(raw_call(SYS_getppid, 0, 0, 0, &bad) > 0 && bad == want);
        CHECK(raw_call(SYS_write, fd, (long)"abc", 3, &bad) == 3 && bad == want);
        CHECK(raw_call(9999, 0, 0, 0, &bad) == -ENOSYS && bad == want);
        CHECK(raw_call(-1, 0, 0, 0, &bad) == -ENOSYS && bad == want);
    }
    if (__builtin_cpu_supports("avx")) vectors();
}

static void numbers(void) {
    /* Every number that has no effect with these arguments, through libc's syscall(). */
    for (long nr = 0; nr < 470; nr++) {
        switch (nr) {
        case SYS_read: case SYS_poll: case SYS_rt_sigreturn: case SYS_pause: case SYS_fork:
        case SYS_vfork: case SYS_clone: case SYS_exit: case SYS_exit_group: case SYS_close:
        case SYS_brk: case SYS_vhangup: case SYS_sync: case SYS_setsid: case SYS_select:
        case SYS_pselect6: case SYS_ppoll: case SYS_rt_sigsuspend: case SYS_munmap: case SYS_dup:
        case SYS_kill: case SYS_alarm: case SYS_clone3: case SYS_close_range: case SYS_umask:
        case SYS_sched_yield: case SYS_set_tid_address: case SYS_restart_syscall: case SYS_reboot:
        case SYS_waitid: case SYS_wait4: case SYS_personality: case SYS_unshare: case SYS_ptrace:
        case SYS_getpid: case SYS_gettid: case SYS_getppid: case SYS_setpgid: case SYS_time:
        case SYS_munlockall: case SYS_rseq: case SYS_iopl: case SYS_fsync: case SYS_syslog:
        case SYS_times: case SYS_epoll_create: case SYS_inotify_init: case SYS_inotify_init1:
        case SYS_eventfd: case SYS_eventfd2: case SYS_epoll_create1: case SYS_setuid:
        case SYS_setgid: case SYS_setreuid: case SYS_setregid: case SYS_setresuid:
        case SYS_setresgid: case SYS_setgroups: case SYS_setfsuid: case SYS_setfsgid:
        case SYS_sethostname: case SYS_setdomainname: case SYS_memfd_create: case SYS_userfaultfd:
        case SYS_tkill: case SYS_tgkill: case SYS_clock_nanosleep: case SYS_getrandom:
        case SYS_landlock_create_ruleset: case SYS_memfd_secret: case SYS_arch_prctl:
        case SYS_timerfd_create: case SYS_dup2: case SYS_mlockall: case SYS_acct: case SYS_swapoff:
        case SYS_getpgrp: case SYS_getsid: case SYS_getpgid: case SYS_setitimer: case SYS_mq_open:
        case SYS_shmget: case SYS_semget: case SYS_msgget: case SYS_kcmp: case SYS_nanosleep:
        case SYS_setns: case SYS_keyctl: case SYS_add_key: case SYS_request_key: case SYS_shmat:
        case SYS_semctl: case SYS_shmctl: case SYS_msgctl: case SYS_fanotify_init: case SYS_tee:
        case SYS_membarrier: case SYS_prctl: case SYS_flock: case SYS_ioctl: case SYS_futex:
        case SYS_set_robust_list: case SYS_sched_setaffinity: case SYS_capset: case 335: case 336:
        case SYS_lseek: case SYS_fcntl: case SYS_fchdir: case SYS_chdir: case SYS_chroot:
            continue;
        default:
            break;
        }
        errno = 0;
        long ret = syscall(nr, -1L, 0L, 0L, 0L, 0L, 0L);
        printf("%ld=%s%d ", nr, ret < 0 ? "-" : "", ret < 0 ? errno : 0);
    }
    printf("\n");
}

static void getpids(void) {
    long pid = getpid();
    for (int i = 0; i < 300000; i++) CHECK(syscall(SYS_getpid) == pid && getppid() > 0);
}

int main(int argc, char **argv) {
    self_path = argv[0];
    if (argc > 1 && !strcmp(argv[1], "unblocked")) return blocked() ? 3 : 0;
    static const struct { const char *name; void (*run)(void); } parts[] = {
        {"forks", forks},       {"vforks", vforks},       {"spawns", spawns},
        {"clones", clones},     {"threads", threads},     {"cancels", cancels},
        {"actions", actions},   {"restarts", restarts},   {"storm", storm},
        {"pestered", pestered}, {"jumps", jumps},         {"faults", faults},
        {"registers", registers}, {"numbers", numbers},   {"getpids", getpids},
        {"floods", floods},     {"masks", masks},
    };
    dir = getenv("STRESS_DIR") ? getenv("STRESS_DIR") : "/tmp";
    setvbuf(stdout, 0, _IOLBF, 0);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (argc > 1 && strcmp(argv[1], parts[i].name)) continue;
        parts[i].run();
        printf("%s ok\n", parts[i].name);
    }
    return 0;
}
