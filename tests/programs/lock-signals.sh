#!/usr/bin/env bash
# Signals that arrive while a program waits for a lock: with and without SA_RESTART, one and many.
# needs: gcc
set -eu
cd "$1"
cat >t.c <<'END'
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int hits, failed;
static void handler(int sig) {
    int saved = errno, fd = open("seen", O_RDWR | O_CREAT, 0600);
    struct stat st;
    failed += fd < 0 || write(fd, "x", 1) != 1 || fstat(fd, &st) || st.st_size != 1 || close(fd);
    hits++;
    errno = saved;
}
static void every(int us) {
    struct itimerval timer = {{0, us}, {0, us}};
    setitimer(ITIMER_REAL, &timer, 0);
}
static void on_alarm(int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigaction(SIGALRM, &action, 0);
    hits = 0;
}
static int lock(int fd, int posix) {
    struct flock wish = {.l_type = F_WRLCK};
    int got = posix ? fcntl(fd, F_SETLKW, &wish) : flock(fd, LOCK_EX);
    return got == 0 ? 0 : errno;
}
/* Another process holds the lock for `ms`; returns when it has it. */
static pid_t holder(int posix, int ms) {
    int ready[2];
    char c;
    pipe(ready);
    pid_t pid = fork();
    if (pid == 0) {
        int fd = open("lock", O_RDWR | O_CREAT, 0600);
        failed += lock(fd, posix);
        write(ready[1], "x", 1);
        usleep(ms * 1000);
        _exit(failed);
    }
    read(ready[0], &c, 1);
    close(ready[0]), close(ready[1]);
    return pid;
}
int main(void) {
    setvbuf(stdout, 0, _IONBF, 0);
    for (int posix = 0; posix < 2; posix++) {
        int fd = open("lock", O_RDWR | O_CREAT, 0600), status;
        pid_t pid = holder(posix, 100000);
        on_alarm(0);
        every(20000);
        printf("one: %s, %d\n", strerror(lock(fd, posix)), hits);
        every(300);
        int interrupted = 0;
        for (int i = 0; i < 500; i++) interrupted += lock(fd, posix) == EINTR;
        every(0);
        printf("many: %d, %d\n", interrupted, hits >= 500);
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        pid = holder(posix, 300);
        on_alarm(SA_RESTART);
        every(500);
        int got = lock(fd, posix);
        every(0);
        printf("restarted: %s, %d\n", strerror(got), hits > 20);
        waitpid(pid, &status, 0);
        printf("%d %d\n", failed, status);
        close(fd);
    }
    sigset_t now;
    sigprocmask(SIG_SETMASK, 0, &now);
    printf("blocked: %d\n", !sigisemptyset(&now));
}
END
gcc -w -O1 -o t.out t.c
./t.out
rm t.out seen
