/* Programs whose mappings cost something in one way each: `map-explain CASE DIR`. For
   `holdfast map explain`, which is to say what would help. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, MIB = 1 << 20 };
static const char *dir;
static volatile unsigned long sum;

static void fill(const char *name, size_t len, char *path, size_t room) {
    snprintf(path, room, "%s/%s", dir, name);
    struct stat known;
    if (!stat(path, &known) && (size_t)known.st_size == len) return;
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    static char bytes[MIB];
    memset(bytes, 7, sizeof bytes);
    for (size_t at = 0; at < len; at += MIB)
        if (write(fd, bytes, len - at < MIB ? len - at : MIB) < 0) _exit(3);
    fsync(fd);
    close(fd);
}

static char *map(const char *path, size_t len, int mode, int prot) {
    int fd = open(path, mode);
    char *at = mmap(0, len, prot, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED) _exit(4);
    return at;
}

static void touch(const char *at, size_t from, size_t len, size_t step) {
    for (size_t end = from + len; from < end; from += step) sum += at[from];
}

/* Few files, again and again. */
static void again(int files, size_t len, int rounds, int mode) {
    char path[4096];
    for (int round = 0; round < rounds; round++)
        for (int n = 0; n < files; n++) {
            char name[32];
            snprintf(name, sizeof name, "again-%d", n);
            fill(name, len, path, sizeof path);
            char *at = map(path, len, mode, PROT_READ);
            touch(at, 0, len, PAGE);
            munmap(at, len);
        }
}

/* All of one large file in order, or records of it in no order; slowly, so that it is seen. */
static void large(int in_order) {
    char path[4096];
    size_t len = 64ul * MIB;
    fill("large", len, path, sizeof path);
    char *at = map(path, len, O_RDONLY, PROT_READ);
    unsigned long next = 1;
    for (size_t page = 0; page < len / PAGE; page++) {
        next = next * 6364136223846793005ul + 1442695040888963407ul;
        touch(at, (in_order ? page : (next >> 33) % (len / PAGE)) * PAGE, PAGE, 64);
        if (page % 64 == 0) usleep(1000);
    }
    munmap(at, len);
}

/* A file that is there, often, from a page on; each begins with its number. What is read of a hole
   of tmpfs through a mapping takes memory. */
static void often(const char *name, size_t from) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    struct stat st;
    if (stat(path, &st)) _exit(5);
    for (int round = 0; round < 400; round++) {
        char *at = map(path, st.st_size, O_RDONLY, PROT_READ);
        for (size_t page = from; page < st.st_size / PAGE; page++)
            if (*(volatile size_t *)(at + page * PAGE) != page) _exit(6);
        munmap(at, st.st_size);
        usleep(2000);
    }
}

static void numbered(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/numbered", dir);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    static char bytes[PAGE];
    for (size_t page = 0; page < 2048; page++) {
        *(size_t *)bytes = page;
        if (write(fd, bytes, PAGE) != PAGE) _exit(3);
    }
    close(fd);
    snprintf(path, sizeof path, "%s/sparse", dir);
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (ftruncate(fd, 8 << 20) || pwrite(fd, bytes, PAGE, 2047 * PAGE) != PAGE) _exit(3);
    close(fd);
}

static void computes(void) {
    for (unsigned long i = 0; i < 300000000; i++) sum += i;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    dir = argv[2];
    char path[4096];
    if (!strcmp(argv[1], "files")) fill("large", 64ul * MIB, path, sizeof path), again(20, MIB, 1, O_RDONLY);
    else if (!strcmp(argv[1], "again")) again(20, MIB, 100, O_RDONLY);
    else if (!strcmp(argv[1], "writer")) again(20, MIB, 100, O_RDWR);
    else if (!strcmp(argv[1], "in-order")) large(1);
    else if (!strcmp(argv[1], "at-random")) large(0);
    else if (!strcmp(argv[1], "numbered")) numbered();
    else if (!strcmp(argv[1], "often")) often("numbered", 0);
    else if (!strcmp(argv[1], "sparse")) often("sparse", 2047);
    else if (!strcmp(argv[1], "computes")) computes();
    else if (!strcmp(argv[1], "locked")) mlockall(MCL_CURRENT), again(20, MIB, 100, O_RDONLY);
    else return 2;
    puts(argv[1]);
    return 0;
}
