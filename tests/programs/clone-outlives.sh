#!/usr/bin/env bash
# A child in its parent's memory goes on after the parent: one that executed a program, one that
# ended, one that was killed. What it opened stays open, and what it does in the pool is done.
# needs: gcc
set -eu
cd "$1"
cat >t.c <<'END'
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char stack[65536] __attribute__((aligned(16)));
static int ends[2], file;

/* The other end of the pipe is the parent's alone, and goes with the program that it runs. */
static int child(void *name) {
    char c, text[64];
    close(ends[1]);
    while (read(ends[0], &c, 1) > 0) {}
    write(file, "after ", 6);
    int other = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    snprintf(text, sizeof text, "%s %d\n", (char *)name, getppid() != 1);
    write(other, text, strlen(text));
    lseek(other, 0, SEEK_SET);
    int len = read(other, text, sizeof text);
    unlink(name);
    write(file, text, len);
    _exit(0);
}

static void parent(char *how) {
    pipe2(ends, O_CLOEXEC);
    file = open(how, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    write(file, "before ", 7);
    if (clone(child, stack + sizeof stack, CLONE_VM | SIGCHLD, "beside") < 0) _exit(1);
    if (!strcmp(how, "killed")) kill(getpid(), SIGKILL);
    if (!strcmp(how, "ended")) syscall(SYS_exit_group, 0);
    execlp("sh", "sh", "-c", "echo the parent >parents; cat parents", (char *)0);
    _exit(1);
}

int main(void) {
    char *all[] = {"executed", "ended", "killed"}, line[64];
    /* The children become ours. */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (int i = 0; i < 3; i++) {
        fflush(stdout);
        int pid = fork(), status;
        if (pid == 0) parent(all[i]);
        waitpid(pid, &status, 0);
        printf("%s %x\n", all[i], status);
        /* A shell may have waited for it already. */
        while (waitpid(-1, 0, 0) > 0) {}
        FILE *f = fopen(all[i], "r");
        printf("%s", fgets(line, sizeof line, f));
        fclose(f);
    }
}
END
gcc -O1 -w -o t t.c
timeout 60 ./t
rm -f t
