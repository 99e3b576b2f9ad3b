#!/usr/bin/env bash
# splice(2) and sendfile(2) between files, pipes and sockets: how much goes, when they wait, what
# interrupts them, and what they refuse.
# needs: gcc
set -eu
cd "$1"
cat >t.c <<'EOF'
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static char bytes[300000], back[300000];
static int file, sink, pipes[2];
static volatile int hits;

static void say(const char *what, long got) {
    if (got < 0) printf("%s: errno %d", what, errno);
    else printf("%s: %ld", what, got);
    printf(", at %ld\n", (long)lseek(file, 0, SEEK_CUR));
}
static void fresh(int flags) {
    if (pipes[0]) close(pipes[0]), close(pipes[1]);
    pipe2(pipes, flags);
}
static long drain(void) {
    long all = 0, n;
    fcntl(pipes[0], F_SETFL, O_NONBLOCK);
    while ((n = read(pipes[0], back + all, sizeof back - all)) > 0) all += n;
    fcntl(pipes[0], F_SETFL, 0);
    return all;
}
static int same(long from, long n) { return !memcmp(bytes + from, back, n); }
static void counts(int sig) { hits++; }
static void alarms(int flags) {
    struct sigaction action = {.sa_handler = counts, .sa_flags = flags};
    struct itimerval soon = {{0, 0}, {0, 200000}};
    sigaction(SIGALRM, &action, 0);
    hits = 0;
    setitimer(ITIMER_REAL, &soon, 0);
}
/* Another process empties the pipe after a while. */
static pid_t reader(int ms) {
    pid_t child = fork();
    if (child) return child;
    usleep(ms * 1000);
    drain();
    _exit(0);
}
static pid_t writer(int ms) {
    pid_t child = fork();
    if (child) return child;
    usleep(ms * 1000);
    write(pipes[1], "late", 4);
    _exit(0);
}

int main(void) {
    setvbuf(stdout, 0, _IONBF, 0);
    for (int i = 0; i < sizeof bytes; i++) bytes[i] = i * 7 + i / 4096;
    file = open("f", O_RDWR | O_CREAT | O_TRUNC, 0600);
    write(file, bytes, sizeof bytes);
    sink = open("out", O_RDWR | O_CREAT | O_TRUNC, 0600);
    loff_t at, to;
    off_t off;

    /* To a pipe: as much as it holds. */
    fresh(0);
    at = 1000;
    say("splice", splice(file, &at, pipes[1], 0, 100000, 0));
    long n = drain();
    printf("%ld %d %ld\n", n, same(1000, n), (long)at);
    lseek(file, 5, SEEK_SET);
    say("splice at the offset", splice(file, 0, pipes[1], 0, 100000, 0));
    n = drain();
    printf("%ld %d\n", n, same(5, n));
    off = 7;
    say("sendfile", sendfile(pipes[1], file, &off, 100000));
    n = drain();
    printf("%ld %d %ld\n", n, same(7, n), (long)off);
    lseek(file, 9, SEEK_SET);
    say("sendfile at the offset", sendfile(pipes[1], file, 0, 100000));
    n = drain();
    printf("%ld %d\n", n, same(9, n));
    fcntl(pipes[1], F_SETPIPE_SZ, 1 << 18);
    at = 0;
    say("a larger pipe", splice(file, &at, pipes[1], 0, 290000, 0));
    n = drain();
    printf("%ld %d\n", n, same(0, n));
    at = sizeof bytes - 100;
    say("the end", splice(file, &at, pipes[1], 0, 1000, 0));
    printf("%ld\n", drain());
    at = sizeof bytes + 100;
    say("behind the end", splice(file, &at, pipes[1], 0, 1000, 0));

    /* A limit of the sizes of files is none of pipes. */
    struct rlimit limit = {1000, RLIM_INFINITY}, none = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
    at = 0;
    say("with a limit", splice(file, &at, pipes[1], 0, 5000, 0));
    n = drain();
    printf("%ld %d\n", n, same(0, n));
    setrlimit(RLIMIT_FSIZE, &none);

    /* Bytes in the pipe are those of the moment, or of the file. */
    int brief = open("brief", O_RDWR | O_CREAT | O_TRUNC, 0600);
    write(brief, bytes, 20000);
    at = 0;
    say("of a file that goes", splice(brief, &at, pipes[1], 0, 20000, 0));
    ftruncate(brief, 0);
    unlink("brief");
    close(brief);
    int next = open("next", O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (int i = 0; i < 50; i++) write(next, "nextnext", 8), lseek(next, 4096, SEEK_CUR);
    close(next);
    drain();
    printf("%d\n", !memmem(back, 20000, "nextnext", 8));

    /* The usual loop through a pipe of its own. */
    fresh(0);
    lseek(file, 0, SEEK_SET);
    for (long left = sizeof bytes; left > 0;) {
        long in = splice(file, 0, pipes[1], 0, left, SPLICE_F_MOVE | SPLICE_F_MORE);
        if (in <= 0) { say("in", in); break; }
        for (long held = in; held > 0;) {
            long out = splice(pipes[0], 0, sink, 0, held, SPLICE_F_MOVE);
            if (out <= 0) { say("out", out); return 1; }
            held -= out;
        }
        left -= in;
    }
    pread(sink, back, sizeof back, 0);
    printf("through a pipe: %d\n", same(0, sizeof bytes));

    /* Full and empty pipes. */
    at = 0;
    say("fill", splice(file, &at, pipes[1], 0, 100000, 0));
    say("full, not to wait", splice(file, &at, pipes[1], 0, 100, SPLICE_F_NONBLOCK));
    alarms(0);
    say("full, interrupted", splice(file, &at, pipes[1], 0, 100, 0));
    printf("%d\n", hits);
    alarms(0);
    off = 0;
    say("full, sendfile", sendfile(pipes[1], file, &off, 100));
    printf("%d\n", hits);
    alarms(SA_RESTART);
    pid_t child = reader(500);
    say("full, restarted", splice(file, &at, pipes[1], 0, 100, 0));
    printf("%d\n", hits);
    waitpid(child, 0, 0);
    drain();
    to = 0;
    say("empty, not to wait", splice(pipes[0], 0, sink, &to, 100, SPLICE_F_NONBLOCK));
    alarms(0);
    say("empty, interrupted", splice(pipes[0], 0, sink, &to, 100, 0));
    printf("%d\n", hits);
    alarms(SA_RESTART);
    child = writer(500);
    say("empty, restarted", splice(pipes[0], 0, sink, &to, 100, 0));
    printf("%d %ld\n", hits, (long)to);
    waitpid(child, 0, 0);
    fresh(O_NONBLOCK);
    at = 0;
    say("fill", splice(file, &at, pipes[1], 0, 100000, 0));
    say("full, O_NONBLOCK", splice(file, &at, pipes[1], 0, 100, 0));
    say("full, O_NONBLOCK, sendfile", sendfile(pipes[1], file, &off, 100));
    drain();
    fcntl(pipes[0], F_SETFL, O_NONBLOCK);
    say("empty, O_NONBLOCK", splice(pipes[0], 0, sink, &to, 100, 0));
    close(pipes[1]);
    say("no writer", splice(pipes[0], 0, sink, &to, 100, 0));
    fresh(0);
    close(pipes[0]);
    signal(SIGPIPE, counts);
    hits = 0;
    say("no reader", splice(file, &at, pipes[1], 0, 100, 0));
    say("no reader, sendfile", sendfile(pipes[1], file, &off, 100));
    printf("%d\n", hits);

    /* What is no pipe, or not to be written. */
    fresh(0);
    int appends = open("out", O_RDWR | O_APPEND), reads = open("f", O_RDONLY);
    int writes = open("out", O_WRONLY), dir = open(".", O_RDONLY);
    int maps = open("/proc/self/maps", O_RDONLY), null = open("/dev/null", O_RDWR);
    int poll = epoll_create1(0), path = open("f", O_PATH), socks[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, socks);
    int others[] = {-1, maps, null, poll, path, dir, reads, writes, appends, socks[0], pipes[0],
                    pipes[1]};
    for (int i = 0; i < sizeof others / sizeof *others; i++) {
        printf("other %d\n", i);
        at = off = to = 0;
        lseek(file, 0, SEEK_SET);
        say("splice to", splice(file, &at, others[i], 0, 10, SPLICE_F_NONBLOCK));
        say("splice to, offset", splice(file, &at, others[i], &to, 10, SPLICE_F_NONBLOCK));
        say("splice from", splice(others[i], 0, sink, &to, 10, SPLICE_F_NONBLOCK));
        say("splice from, offset", splice(others[i], &at, sink, &to, 10, SPLICE_F_NONBLOCK));
        say("sendfile to", sendfile(others[i], file, &off, 10));
        if (others[i] != socks[0]) say("sendfile from", sendfile(sink, others[i], 0, 10));
        drain();
        say("splice into a pipe", splice(others[i], 0, pipes[1], 0, 10, SPLICE_F_NONBLOCK));
        drain();
        write(pipes[1], "0123456789", 10);
        say("splice out of a pipe", splice(pipes[0], 0, others[i], 0, 10, SPLICE_F_NONBLOCK));
        drain();
    }
    say("flags", splice(file, &at, pipes[1], 0, 10, 0x80));
    say("nothing", splice(file, &at, pipes[1], 0, 0, 0));
    say("nothing, nowhere", splice(file, &at, -1, 0, 0, 0));
    say("sendfile nothing", sendfile(pipes[1], file, &off, 0));
    say("sendfile nothing, nowhere", sendfile(-1, file, &off, 0));
    at = -5;
    say("negative", splice(file, &at, pipes[1], 0, 10, 0));
    off = -5;
    say("negative, sendfile", sendfile(pipes[1], file, &off, 10));
    say("bad offset", splice(file, (loff_t *)8, pipes[1], 0, 10, 0));
    printf("left in the pipe: %ld\n", drain());

    /* A socket takes everything, however long that takes. */
    child = fork();
    if (!child) {
        long all = 0, got;
        close(socks[0]);
        while ((got = read(socks[1], back + all, sizeof back - all)) > 0) all += got, usleep(1000);
        printf("socket got %ld %d\n", all, same(0, all));
        _exit(0);
    }
    close(socks[1]);
    off = 0;
    say("sendfile to a socket", sendfile(socks[0], file, &off, sizeof bytes));
    shutdown(socks[0], SHUT_WR);
    waitpid(child, 0, 0);
    return 0;
}
EOF
gcc -w -O1 -o t t.c
./t
