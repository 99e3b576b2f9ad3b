/* How many instructions a program executes for one call, counted one by one by a debugger: no
 * clock, and nothing that others on the machine do, changes that. The kernel's are not counted.
 *
 *   steps DIR    works in DIR; prints `NAME COUNT` for each kind of call
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 9, KINDS = 32, BLOCK = 4096, FILE_SIZE = 1 << 20, NAMES = 20 };

/* What the child works at, for the debugger. */
static struct {
    char name[32];
    long divisor;
} *kinds;

/* The instructions between these two are counted. */
extern char after_begin[], at_end[];
__asm__(".text\n"
        "begin: int3\n"
        "after_begin: ret\n"
        "end:\n"
        "at_end: int3\n"
        "ret\n");
void begin(void), end(void);

static int kind;
static char buf[64 << 10];

/* Calls `op` some times, and some more times under the debugger's eyes. */
#define COUNT(what, of, before, op)                                              \
    do {                                                                         \
        snprintf(kinds[kind].name, sizeof kinds[kind].name, "%s", what);         \
        kinds[kind++].divisor = of;                                              \
        for (int round = -3; round < ROUNDS; round++) {                          \
            before;                                                              \
            if (round >= 0) begin();                                             \
            long ret = (op);                                                     \
            if (round >= 0) end();                                               \
            if (ret < 0) perror(what), _exit(1);                                 \
        }                                                                        \
    } while (0)

static char *numbered(const char *stem, int n) {
    static char names[2][64];
    static int turn;
    char *name = names[turn ^= 1];
    snprintf(name, sizeof names[0], "%s%d", stem, n);
    return name;
}

static int made(const char *name) {
    int fd = open(name, O_CREAT | O_WRONLY, 0644);
    return fd < 0 ? -1 : close(fd);
}

static void work(void) {
    struct stat st;
    int fd = open("file", O_RDWR | O_CREAT, 0644);
    int out = open("log", O_WRONLY | O_CREAT | O_APPEND, 0644);
    for (int at = 0; at < FILE_SIZE; at += sizeof buf)
        if (write(fd, buf, sizeof buf) < 0) _exit(1);
    fsync(fd);
    int n = 0;
    COUNT("pread-512", 1, , pread(fd, buf, 512, 8 * BLOCK));
    COUNT("pread-4k", 1, , pread(fd, buf, BLOCK, 9 * BLOCK));
    lseek(fd, 0, SEEK_SET);
    COUNT("read-4k", 1, , read(fd, buf, BLOCK));
    COUNT("pwrite-512", 1, , pwrite(fd, buf, 512, 10 * BLOCK));
    COUNT("pwrite-4k", 1, , pwrite(fd, buf, BLOCK, 11 * BLOCK));
    COUNT("pwrite-4k-fsync", 1, , pwrite(fd, buf, BLOCK, 12 * BLOCK) < 0 ? -1 : fsync(fd));
    COUNT("append-512", 1, , write(out, buf, 512));
    COUNT("append-4k", 1, , write(out, buf, BLOCK));
    COUNT("stat", 1, , stat("file", &st));
    COUNT("fstat", 1, , fstat(fd, &st));
    COUNT("open-close", 1, , close(open("file", O_RDONLY)));
    char *name = 0, *other = 0;
    COUNT("create-close", 1, name = numbered("new", n++), made(name));
    n = 0;
    COUNT("rename", 1, (name = numbered("new", n), other = numbered("old", n++)),
          rename(name, other));
    n = 0;
    COUNT("unlink", 1, name = numbered("old", n++), unlink(name));
    mkdir("many", 0755);
    for (int i = 0; i < NAMES; i++) made(numbered("many/name", i));
    int dir = open("many", O_RDONLY | O_DIRECTORY);
    COUNT("readdir-entry", NAMES, lseek(dir, 0, SEEK_SET),
          syscall(SYS_getdents64, dir, buf, sizeof buf));
}

static int by_size(const void *a, const void *b) {
    return (*(long *)a > *(long *)b) - (*(long *)a < *(long *)b);
}

/* Steps from `begin` to `end`; the instructions. A repeated one counts once. */
static long steps(pid_t child) {
    struct user_regs_struct regs;
    unsigned long last = 0;
    for (long count = 0;; count++) {
        int status;
        if (ptrace(PTRACE_SINGLESTEP, child, 0, 0)) return -1;
        if (waitpid(child, &status, 0) != child) return -1;
        if (!WIFSTOPPED(status) || ptrace(PTRACE_GETREGS, child, 0, &regs)) return -1;
        if (regs.rip == (unsigned long)at_end) return count;
        if (regs.rip == last) count--;
        last = regs.rip;
    }
}

int main(int argc, char **argv) {
    if (argc != 2 || chdir(argv[1])) return perror("steps DIR"), 2;
    kinds = mmap(0, KINDS * sizeof *kinds, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                 -1, 0);
    pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0)) _exit(77);
        raise(SIGSTOP);
        work();
        _exit(0);
    }
    static long counts[KINDS][ROUNDS];
    int status, seen[KINDS] = {0};
    for (int of = -1;;) {
        if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) break;
        struct user_regs_struct regs;
        ptrace(PTRACE_GETREGS, child, 0, &regs);
        if (regs.rip == (unsigned long)after_begin) {
            for (of = 0; of + 1 < KINDS && kinds[of + 1].name[0]; of++) {}
            long count = steps(child);
            if (count < 0) return fprintf(stderr, "the child is gone\n"), 1;
            counts[of][seen[of]++] = count;
        }
        int signal = WSTOPSIG(status), ours = signal == SIGSTOP || signal == SIGTRAP;
        ptrace(PTRACE_CONT, child, 0, ours ? 0 : signal);
    }
    if (!WIFEXITED(status)) return 1;
    if (WEXITSTATUS(status)) return WEXITSTATUS(status);
    for (int of = 0; of < KINDS && kinds[of].name[0]; of++) {
        qsort(counts[of], seen[of], sizeof(long), by_size);
        printf("%s %ld\n", kinds[of].name, counts[of][seen[of] / 2] / kinds[of].divisor);
    }
    return 0;
}
