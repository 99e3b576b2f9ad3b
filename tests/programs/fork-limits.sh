#!/usr/bin/env bash
# A child for which there is no room is refused with EAGAIN, by each kind of call that makes one;
# nothing else happens to its parent, and once there is room there are children again.
# needs: gcc
# unserved: a limit of descriptors below its own
set -eu
cd "$1"
cat >t.c <<'END'
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Slots of session memory, as the layout has them. */
enum { SLOTS_AT = 8192, SLOTS = 32765, SLOT = 256 };
enum { STATE = 0, PID = 1, GENERATION = 4, LIVE = 2 };
static int memory_fd, failures;
static char stack[65536] __attribute__((aligned(16)));
static char *const words[] = {"true", 0};
extern char **environ;

static uint32_t *slots(void) {
    const char *session = getenv("HOLDFAST_SESSION");
    unsigned long version, fd, len;
    if (!session || sscanf(session, "%lu:%lu:%lu:", &version, &fd, &len) != 3) return 0;
    memory_fd = fd;
    char *memory = mmap(0, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return memory == MAP_FAILED ? 0 : (uint32_t *)(memory + SLOTS_AT);
}

static void check(const char *what, int done, int wanted) {
    if (done != wanted) failures++, printf("%s: %d and not %d\n", what, done, wanted);
}

static int leave(void *unused) { return unused != 0; }

static int gone(int pid) {
    int status;
    if (pid < 0) return errno;
    return waitpid(pid, &status, __WALL) == pid && status == 0 ? 0 : -1;
}

/* Each way to make a child gives this errno; 0: a child that ends well. */
static void all(int wanted) {
    int pid = fork();
    if (pid == 0) _exit(0);
    check("fork", gone(pid), wanted);
    pid = vfork();
    if (pid == 0) _exit(0);
    check("vfork", gone(pid), wanted);
    void *top = stack + sizeof stack;
    check("clone", gone(clone(leave, top, SIGCHLD, 0)), wanted);
    check("shared", gone(clone(leave, top, CLONE_VM | SIGCHLD, 0)), wanted);
    check("files", gone(clone(leave, top, CLONE_FILES | CLONE_FS | SIGCHLD, 0)), wanted);
    int failed = posix_spawnp(&pid, "true", 0, 0, words, environ);
    check("spawn", failed ? failed : gone(pid), wanted);
    check("system", system("true") == 0, wanted == 0);
}

/* As if so many processes were there: no slot is free, and all are alive. */
static void full(uint32_t *at) {
    static char was_free[SLOTS];
    struct flock lives = {.l_type = F_WRLCK, .l_len = 2 * (SLOTS + 2)};
    int own = 0;
    for (int i = 0; i < SLOTS; i++) {
        uint32_t *slot = at + (size_t)i * (SLOT / 4);
        own += slot[STATE] == LIVE && slot[PID] == (uint32_t)getpid();
        was_free[i] = slot[STATE] == 0 && slot[GENERATION] == 0;
        if (was_free[i]) slot[STATE] = LIVE;
    }
    /* The lives of slots that were never used. */
    check("own slot", own, 1);
    check("lives", fcntl(memory_fd, F_SETLK, &lives), 0);
    /* The others were used before: they are taken one after the other. */
    int made = 0, pids[256], ends[2];
    if (pipe(ends)) exit(1);
    while (made < 256) {
        int pid = fork();
        if (pid == 0) {
            char byte;
            close(ends[1]);
            _exit(read(ends[0], &byte, 1) != 0);
        }
        if (pid < 0) break;
        pids[made++] = pid;
    }
    check("too many", errno, EAGAIN);
    all(EAGAIN);
    close(ends[0]), close(ends[1]);
    while (made--) check("child", gone(pids[made]), 0);
    for (int i = 0; i < SLOTS; i++)
        if (was_free[i]) at[(size_t)i * (SLOT / 4) + STATE] = 0;
    lives.l_type = F_UNLCK;
    check("lives", fcntl(memory_fd, F_SETLK, &lives), 0);
}

static int wait_for_end(void *unused) {
    for (;;) pause();
    return unused != 0;
}

/* Children in one memory: no more than can be told apart, and never one without a place. */
static void many_in_one_memory(void) {
    enum { MANY = 600 };
    int made = 0;
    static int pids[MANY];
    while (made < MANY) {
        char *own = mmap(0, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        int pid = clone(wait_for_end, own + 16384, CLONE_VM | SIGCHLD, 0);
        if (pid < 0) break;
        pids[made++] = pid;
    }
    if (made < 128 || (made < MANY && errno != EAGAIN)) failures++, perror("in one memory");
    if (made == MANY && getenv("HOLDFAST_SESSION")) failures++, printf("more than there is room\n");
    for (int i = 0; i < made; i++) kill(pids[i], SIGKILL);
    for (int i = 0; i < made; i++) waitpid(pids[i], 0, __WALL);
}

int main(void) {
    setvbuf(stdout, 0, _IONBF, 0);
    int fd = open("f", O_RDWR | O_CREAT, 0600);
    uint32_t *at = slots();
    all(0);
    if (at) full(at);
    all(0);
    many_in_one_memory();
    all(0);
    check("write", write(fd, "still mine", 10), 10);
    printf("%s\n", failures ? "failed" : "fine");
    return failures != 0;
}
END
gcc -O1 -Wall -Werror -o t t.c
./t
cat f; echo
rm t t.c
