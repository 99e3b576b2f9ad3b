#!/usr/bin/env bash
# Children that share memory, descriptors or the working directory, many at a time, of which any
# is killed at any moment: parents, children and children of children. Beside them ordinary
# programs, which must not notice.
# needs: gcc
# seconds: 60
# unstable: work/d/*
set -eu
cd "$1"
cat >t.c <<'END'
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK = 64 << 10, FAMILIES = 6 };
static const int FLAGS[] = {
    CLONE_VM, CLONE_VM | CLONE_FILES, CLONE_VM | CLONE_FS, CLONE_VM | CLONE_VFORK, CLONE_FILES,
    CLONE_FS, CLONE_FILES | CLONE_FS | CLONE_VM, CLONE_FILES | CLONE_FS,
    CLONE_VM | CLONE_SIGHAND, 0,
};

static unsigned below(unsigned *seed, unsigned n) {
    *seed = *seed * 1103515245 + 12345;
    return (*seed >> 16) % n;
}

static void work(unsigned *seed) {
    char name[64], back[64];
    for (int i = below(seed, 6); i >= 0; i--) {
        snprintf(name, sizeof name, "f%u", below(seed, 8));
        int fd = open(name, O_RDWR);
        write(fd, name, strlen(name));
        pread(fd, back, sizeof back, 0);
        if (below(seed, 4)) close(fd);
        if (!below(seed, 8)) {
            snprintf(name, sizeof name, "../family%u", below(seed, FAMILIES));
            chdir(name);
        }
    }
}

struct job { unsigned seed; int depth; };

/* No stack is used twice: a child whose parent was killed may be on it. */
static struct job *stack(unsigned seed, int depth) {
    struct job *job = mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *job = (struct job){seed, depth};
    return job;
}

/* Never a negative number by accident: that would be everybody. */
static void end(pid_t pid, int group) {
    if (pid > 1) kill(group ? -pid : pid, SIGKILL);
}

static int child(void *arg) {
    struct job job = *(struct job *)arg;
    unsigned seed = job.seed;
    for (int round = 0; round < 20; round++) {
        work(&seed);
        if (job.depth < 3) {
            struct job *next = stack(seed + 1, job.depth + 1);
            int flags = FLAGS[below(&seed, sizeof FLAGS / sizeof *FLAGS)];
            pid_t pid = clone(child, (char *)next + STACK, flags | SIGCHLD, next);
            work(&seed);
            if (pid > 0 && below(&seed, 2)) usleep(below(&seed, 500));
            if (below(&seed, 3)) end(pid, 0);
            if (pid > 0) waitpid(pid, 0, __WALL);
        }
        if (!below(&seed, 30)) break;
    }
    if (!below(&seed, 4)) execl("/bin/true", "true", (char *)0);
    if (below(&seed, 2)) syscall(SYS_exit_group, 0);
    syscall(SYS_exit, 0);
    return 0;
}

/* Children of a family that was killed live on: they are of its group. */
static void family(unsigned seed) {
    setpgid(0, 0);
    child(stack(seed, 0));
}

int main(int argc, char **argv) {
    unsigned seed = 4711;
    pid_t all[FAMILIES] = {0};
    for (int round = 0; round < atoi(argv[1]); round++) {
        int which = below(&seed, FAMILIES);
        if (all[which]) {
            end(all[which], 0);
            usleep(below(&seed, 2000));
            end(all[which], 1);
            waitpid(all[which], 0, 0);
        }
        all[which] = fork();
        if (all[which] < 0) return perror("fork"), 1;
        if (all[which] == 0) {
            char name[32];
            snprintf(name, sizeof name, "family%d", which);
            if (chdir(name)) _exit(1);
            family(seed), _exit(0);
        }
        setpgid(all[which], all[which]);
        usleep(below(&seed, 4000));
    }
    for (int i = 0; i < FAMILIES; i++)
        if (all[i]) end(all[i], 1), waitpid(all[i], 0, 0);
    printf("killed\n");
}
END
gcc -w -O1 -pthread -o t.out t.c
neighbour() { # name
    mkdir "$1" && cd "$1"
    local i
    for ((i = 0; i < 400; i++)); do
        echo $i >f$i; cat f$i >>all; rm f$i
        (echo $i; echo $i) | sort -u >"$PWD/g"; cat "$PWD/g" >>"$PWD/all"; rm "$PWD/g"
    done
    echo "$1 $(cksum <all) $(wc -l <all) $(ls)"
}
(neighbour n1) >n1.out 2>&1 &
(neighbour n2) >n2.out 2>&1 &
mkdir d d/family{0..5}; touch d/family{0..5}/f{0..7}; (cd d && ../t.out 600)
wait
cat n1.out n2.out
rm t.out
