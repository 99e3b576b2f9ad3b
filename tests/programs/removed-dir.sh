#!/usr/bin/env bash
# A working directory that was removed can still be opened, listed and left.
# needs: gcc
# unmounted: a removed directory is stale to who is in it
set -eu
cd "$1"
cat >t.c <<'EOF'
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void say(const char *what, long got) {
    printf("%s: %ld %d\n", what, got < 0 ? got : got > 0, got < 0 ? errno : 0);
}
#define SAY(call) say(#call, (long)(call))

int main(void) {
    struct stat st;
    char b[4096];
    mkdir("rd", 0755), chdir("rd"), rmdir("../rd");
    SAY(open(".", O_RDONLY | O_DIRECTORY));
    SAY(stat(".", &st));
    printf("%d\n", (int)st.st_nlink);
    SAY(stat("", &st));
    SAY(open("x", O_CREAT | O_WRONLY, 0600));
    SAY(mkdir("y", 0700));
    SAY(stat("..", &st));
    SAY(chdir("."));
    int f = open(".", O_RDONLY);
    SAY(syscall(SYS_getdents64, f, b, sizeof b));
    SAY(fstat(f, &st));
    SAY(openat(f, ".", O_RDONLY));
    SAY(fstatat(f, "..", &st, 0));
    SAY(faccessat(f, ".", R_OK, 0));
    SAY(fchdir(f));
    SAY(syscall(SYS_getcwd, b, sizeof b));
    SAY(access(".", R_OK));
    SAY(chmod(".", 0700));
    SAY(rename("a", "b"));
    SAY(symlink("a", "b"));
    SAY(opendir(".") ? 1 : -1);
    return 0;
}
EOF
gcc -w -o t t.c
mkdir x
(cd x && ../t)
mkdir y
cd y
rmdir ../y
ls && echo "listed: $?"
cd ..
ls -A
