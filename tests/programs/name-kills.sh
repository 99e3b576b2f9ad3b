#!/usr/bin/env bash
# Processes that make, move and remove names in one directory are killed at any moment, after so
# many files came and went that no table of a session has room left. What the dead leave can be
# listed, is there, and can be removed, to the last name.
# needs: gcc
# seconds: 60
set -eu
cd "$1"
cat >t.c <<'END'
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORKERS = 4, NAMES = 8, FILES = 70000 };

static unsigned below(unsigned *seed, unsigned n) {
    *seed = *seed * 1103515245 + 12345;
    return (*seed >> 16) % n;
}

static void make(const char *name) {
    int fd = open(name, O_RDWR | O_CREAT, 0644);
    if (fd >= 0) close(fd);
}

static void work(unsigned seed) {
    char name[16], other[16];
    for (;;) {
        snprintf(name, sizeof name, "f%u", below(&seed, NAMES));
        snprintf(other, sizeof other, "f%u", below(&seed, NAMES));
        switch (below(&seed, 10)) {
        case 0: case 1: case 2: make(name); break;
        case 3: case 4: case 5: unlink(name); break;
        case 6: rename(name, other); break;
        case 7: link(name, other); break;
        case 8: mkdir(name, 0755); break;
        case 9: rmdir(name); break;
        }
    }
}

static void storm(unsigned seed, int rounds) {
    pid_t all[WORKERS] = {0};
    for (int round = 0; round < rounds + WORKERS; round++) {
        int which = round < rounds ? below(&seed, WORKERS) : round - rounds;
        if (all[which] > 1) kill(all[which], SIGKILL), waitpid(all[which], 0, 0);
        all[which] = round < rounds ? fork() : 0;
        if (all[which] < 0) perror("fork"), exit(1);
        if (all[which] == 0 && round < rounds) work(seed), _exit(0);
        if (round < rounds) usleep(below(&seed, 3000));
    }
}

static void clear(void) {
    DIR *dir = opendir(".");
    if (!dir) printf("no listing: %m\n"), exit(1);
    for (struct dirent *e; (e = readdir(dir));) {
        struct stat st;
        if (e->d_name[0] == '.') continue;
        if (lstat(e->d_name, &st)) printf("%s is listed, but not there: %m\n", e->d_name);
        if (S_ISDIR(st.st_mode) ? rmdir(e->d_name) : unlink(e->d_name))
            printf("%s is not removed: %m\n", e->d_name);
    }
    closedir(dir);
}

int main(void) {
    for (int i = 0; i < FILES; i++) make("one"), unlink("one");
    for (int round = 0; round < 10; round++) {
        if (mkdir("d", 0755) || chdir("d")) printf("no directory: %m\n");
        storm(4711 + round, 60);
        clear();
        if (chdir("..") || rmdir("d")) printf("not empty: %m\n");
    }
    puts("killed");
}
END
gcc -w -O1 -o t.out t.c
./t.out
rm t.out t.c
