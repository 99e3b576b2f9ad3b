/* Means of a few file calls in a directory, in microseconds, as lines NAME<tab>VALUE.
 * An ordinary program: it knows nothing of Holdfast. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char buffer[4096];

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void must(int ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(1);
    }
}

#define MEASURE(name, count, call) do { \
    double start = now_us(); \
    for (int i = 0; i < (count); i++) { call; } \
    printf("%s\t%.4f\n", name, (now_us() - start) / (count)); \
} while (0)

int main(int argc, char **argv) {
    char name[64];
    struct stat st;
    must(argc == 2 && chdir(argv[1]) == 0, "directory");
    int fd = open("data", O_RDWR | O_CREAT | O_TRUNC, 0600);
    must(fd >= 0, "open");
    for (int i = 0; i < 1024; i++) must(write(fd, buffer, 4096) == 4096, "write");
#define AT ((long)(i * 7919L % 1024) * 4096)
    MEASURE("pread 4 KiB", 100000, must(pread(fd, buffer, 4096, AT) == 4096, "pread"));
    MEASURE("pwrite 4 KiB", 100000, must(pwrite(fd, buffer, 4096, AT) == 4096, "pwrite"));
    MEASURE("pwrite 4 KiB + fsync", 50000,
            must(pwrite(fd, buffer, 4096, AT) == 4096 && fsync(fd) == 0, "fsync"));
    must(ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0, "ftruncate");
    MEASURE("append 512 B", 50000, must(write(fd, buffer, 512) == 512, "append"));
    close(fd);
#define NAMED(format) snprintf(name, sizeof name, format, i)
    MEASURE("create + close", 5000,
            NAMED("f%d"); must(close(open(name, O_CREAT | O_EXCL | O_WRONLY, 0600)) == 0, "create"));
    MEASURE("stat", 5000, NAMED("f%d"); must(stat(name, &st) == 0, "stat"));
    MEASURE("open + close", 5000, NAMED("f%d"); must(close(open(name, O_RDONLY)) == 0, "open"));
    MEASURE("unlink", 5000, NAMED("f%d"); must(unlink(name) == 0, "unlink"));
    must(unlink("data") == 0, "unlink");
    return 0;
}
