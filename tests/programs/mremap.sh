#!/usr/bin/env bash
# mremap(2) of files: in place, elsewhere, to a fixed address, twice; and what it refuses.
# needs: gcc
# unmounted: the kernel joins no mappings of FUSE that were parted
set -eu
cd "$1"
cat >t.c <<'EOF'
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, RW = PROT_READ | PROT_WRITE };
static int fd;

static char *fresh(int pages, int how) {
    static char bytes[64 * PAGE];
    for (int i = 0; i < 64; i++) memset(bytes + i * PAGE, 'A' + i % 26, PAGE);
    if (fd) close(fd);
    fd = open("f", O_RDWR | O_CREAT | O_TRUNC, 0600);
    write(fd, bytes, sizeof bytes);
    return mmap(0, pages * PAGE, RW, how, fd, 0);
}
static char *remap(const char *what, char *at, int from, int to, int flags, char *where) {
    errno = 0;
    char *got = mremap(at, from * PAGE, to * PAGE, flags, where);
    printf("%s: %s, errno %d\n", what, got == MAP_FAILED ? "refused" : "done", errno);
    return got;
}
static void show(const char *what, char *at, int pages) {
    printf("%s: ", what);
    for (int i = 0; i < pages; i++) putchar(at[i * PAGE]);
    putchar('\n');
}
static char *room(int pages) {
    return mmap(0, pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

int main(void) {
    setvbuf(stdout, 0, _IONBF, 0);
    /* Page by page, as a database grows its map with its file. */
    int grows = open("g", O_RDWR | O_CREAT | O_TRUNC, 0600);
    ftruncate(grows, PAGE);
    char *p = mmap(0, PAGE, RW, MAP_SHARED, grows, 0);
    for (int i = 1; i < 200; i++) {
        ftruncate(grows, PAGE * (i + 1l));
        p = mremap(p, PAGE * (long)i, PAGE * (i + 1l), MREMAP_MAYMOVE);
        if (p == MAP_FAILED) { printf("failed at %d: %d\n", i, errno); return 1; }
        p[0] = 0x2e, p[i * PAGE] = 0x61 + i % 26;
    }
    char back[200];
    for (int i = 1; i < 200; i++) pread(grows, back + i, 1, PAGE * (long)i);
    show("grown", p, 200);
    printf("%.199s\n", back + 1);
    munmap(p, 200 * PAGE);

    /* A private mapping of who is served is a copy. */
    for (int shared = getenv("HF_SERVED") != NULL; shared < 2; shared++) {
        int how = shared ? MAP_SHARED : MAP_PRIVATE;
        puts(shared ? "shared" : "private");
        p = fresh(8, how);
        p[2 * PAGE] = '2', p[7 * PAGE] = '7';
        p = remap("less", p, 8, 7, 0, 0);
        show("less", p, 7);
        /* Something lies behind it. */
        char *q = room(40);
        p = remap("to a place", p, 7, 7, MREMAP_MAYMOVE | MREMAP_FIXED, q + 4 * PAGE);
        show("to a place", p, 7);
        remap("no room", p, 7, 12, 0, 0);
        p = remap("elsewhere", p, 7, 20, MREMAP_MAYMOVE, 0);
        show("elsewhere", p, 20);
        p[19 * PAGE] = '9';
        char seen;
        pread(fd, &seen, 1, 19 * PAGE);
        printf("in the file: %c\n", seen);
        q = remap("a part", p + 3 * PAGE, 5, 5, MREMAP_MAYMOVE | MREMAP_FIXED, room(9) + PAGE);
        show("a part", q, 5);
        show("before it", p, 3);
        show("behind it", p + 8 * PAGE, 12);
        p = q;
        p[0] = '0';
        q = remap("kept", p, 5, 5, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0);
        show("kept", q, 5);
        show("and before", p, 5);
        q = remap("once more", q, 0, 5, MREMAP_MAYMOVE, 0);
        if (q != MAP_FAILED) show("once more", q, 5);

        p = fresh(8, how);
        mprotect(p + 4 * PAGE, PAGE, PROT_READ);
        remap("across a border", p, 8, 9, MREMAP_MAYMOVE, 0);
        p[0] = 'x';
        mprotect(p + 4 * PAGE, PAGE, RW);
        p = remap("joined again", p, 8, 30, MREMAP_MAYMOVE, 0);
        show("joined again", p, 30);
        remap("no flag", p, 30, 30, 8, 0);
        remap("fixed alone", p, 30, 30, MREMAP_FIXED, p);
        remap("over itself", p, 30, 30, MREMAP_MAYMOVE | MREMAP_FIXED, p + PAGE);
        remap("crooked", p + 1, 29, 29, MREMAP_MAYMOVE, 0);
        remap("crooked place", p, 30, 30, MREMAP_MAYMOVE | MREMAP_FIXED, p + 1);
        remap("nothing", p, 30, 0, MREMAP_MAYMOVE, 0);
        remap("kept, but longer", p, 30, 31, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0);
        remap("longer than it is", p, 31, 40, MREMAP_MAYMOVE, 0);
        munmap(p, 30 * PAGE);
    }

    /* Other memory over a mapping of the file. */
    p = fresh(8, MAP_SHARED);
    char *other = mmap(0, 2 * PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(other, '*', 2 * PAGE);
    remap("over a file", other, 2, 2, MREMAP_MAYMOVE | MREMAP_FIXED, p + 3 * PAGE);
    show("over a file", p, 8);
    munmap(p, 8 * PAGE);
    return 0;
}
EOF
gcc -w -O1 -o t t.c
./t
