#!/usr/bin/env bash
# Protections of mappings: what they forbid is SIGSEGV, and mprotect holds for its pages alone.
# needs: gcc
set -eu
cd "$1"
cat >t.c <<'EOF'
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, N = 16, RW = PROT_READ | PROT_WRITE };
static char *map;
static volatile int barriers;
static int fd;

/* What a load (r) or a store (w) does in a child. */
static const char *touch(char *at, char how) {
    static char said[40];
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(5);
        if (how == 'w') *(volatile char *)at = 9;
        else (void)*(volatile char *)at;
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) snprintf(said, sizeof said, "%s", strsignal(WTERMSIG(status)));
    else snprintf(said, sizeof said, "exit %d", WEXITSTATUS(status));
    return said;
}
static void pages(const char *what, char *at, int n) {
    for (int i = 0; i < n; i++) {
        printf("%s page %d: read %s,", what, i, touch(at + i * PAGE, 'r'));
        printf(" write %s\n", touch(at + i * PAGE, 'w'));
    }
}
static void opens(int sig, siginfo_t *info, void *context) {
    barriers++;
    char *page = (char *)((unsigned long)info->si_addr & ~(PAGE - 1ul));
    if (mprotect(page, PAGE, RW)) _exit(99);
}
static sigjmp_buf away;
static void leaves(int sig) { siglongjmp(away, sig); }

int main(void) {
    static char bytes[N * PAGE];
    memset(bytes, 'a', sizeof bytes);
    fd = open("f", O_RDWR | O_CREAT | O_TRUNC, 0600);
    write(fd, bytes, sizeof bytes);
    pages("shared, read", mmap(0, PAGE, PROT_READ, MAP_SHARED, fd, 0), 1);
    pages("private, read", mmap(0, PAGE, PROT_READ, MAP_PRIVATE, fd, 0), 1);
    pages("shared, none", mmap(0, PAGE, PROT_NONE, MAP_SHARED, fd, 0), 1);

    for (int shared = 0; shared < 2; shared++) {
        const char *what = shared ? "shared" : "private";
        map = mmap(0, N * PAGE, RW, shared ? MAP_SHARED : MAP_PRIVATE, fd, 0);
        map[PAGE] = 'b';
        printf("%d", mprotect(map + PAGE, PAGE, PROT_READ));
        printf("%d", mprotect(map + 3 * PAGE, 2 * PAGE, PROT_NONE));
        printf("%d\n", mprotect(map + 4 * PAGE, PAGE, RW));
        pages(what, map, 6);
        printf("%d\n", mprotect(map, N * PAGE, RW));
        pages("again", map, 4);

        /* A write barrier: every page once. */
        struct sigaction action = {.sa_sigaction = opens, .sa_flags = SA_SIGINFO}, old;
        sigaction(SIGSEGV, &action, &old);
        mprotect(map, N * PAGE, PROT_READ);
        barriers = 0;
        for (int turn = 0; turn < 3; turn++)
            for (int i = 0; i < N; i++) map[i * PAGE + turn] = 'c';
        printf("%s: %d barriers, %c%c\n", what, barriers, map[5 * PAGE], map[5 * PAGE + 2]);
        sigaction(SIGSEGV, &old, 0);

        /* A handler that does not come back. */
        mprotect(map, PAGE, PROT_READ);
        signal(SIGSEGV, leaves);
        int sig = sigsetjmp(away, 1);
        if (!sig) *(volatile char *)map = 1;
        printf("left by %d\n", sig);
        signal(SIGSEGV, SIG_DFL);

        /* A call that stores where nothing may be stored. */
        int other = open("f", O_RDONLY);
        printf("read: %zd", read(other, map, 10));
        printf(" %d, write: %zd\n", errno, pwrite(fd, map, 10, 0));
        close(other);
        munmap(map, N * PAGE);
    }

    /* Holes, and bytes beyond the end, next to pages of another protection. */
    int sparse = open("s", O_RDWR | O_CREAT | O_TRUNC, 0600);
    ftruncate(sparse, 2000 * PAGE);
    map = mmap(0, 2100 * PAGE, RW, MAP_SHARED, sparse, 0);
    mprotect(map + 100 * PAGE, 900 * PAGE, PROT_READ);
    map[99 * PAGE] = 1, map[1000 * PAGE] = 2;
    printf("%d %d\n", map[100 * PAGE], map[999 * PAGE]);
    pages("sparse", map + 99 * PAGE, 3);
    pages("sparse end", map + 999 * PAGE, 2);
    pages("beyond", map + 1999 * PAGE, 2);
    mprotect(map + 1990 * PAGE, 20 * PAGE, PROT_READ);
    pages("beyond, read", map + 1999 * PAGE, 2);

    /* What the description does not allow. */
    int reader = open("f", O_RDONLY);
    map = mmap(0, 2 * PAGE, PROT_READ, MAP_SHARED, reader, 0);
    printf("%d", mprotect(map, PAGE, RW));
    printf(" %d\n", errno);
    map = mmap(0, 2 * PAGE, PROT_READ, MAP_PRIVATE, reader, 0);
    printf("%d\n", mprotect(map, PAGE, RW));
    pages("private of a reader", map, 2);
    printf("%d", mprotect(map + 1, PAGE, RW));
    printf(" %d\n", errno);
    return 0;
}
EOF
gcc -w -O1 -o t t.c
./t
