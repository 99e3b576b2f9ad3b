#!/usr/bin/env bash
# copy_file_range(2) between the pool and the host, both ways: how much is copied, where the offsets
# are then, and what is refused. Without a pool both files are in one directory.
# needs: gcc
set -eu
cd "$1"
host=$PWD/host
[[ $PWD != /hf* ]] || host=$(mktemp -d)
mkdir -p "$host"
cat >t.c <<'EOF'
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <signal.h>
#include <unistd.h>

static char bytes[700000], back[700000];

static long copy(int in, off_t *in_at, int out, off_t *out_at, size_t len, unsigned flags) {
    errno = 0;
    return copy_file_range(in, in_at, out, out_at, len, flags);
}
static void say(const char *what, long got, int in, int out) {
    printf("%s: %ld errno %d at %ld %ld\n", what, got, errno, (long)lseek(in, 0, SEEK_CUR),
           (long)lseek(out, 0, SEEK_CUR));
}
static int same(int fd, long at, long from, long len) {
    return pread(fd, back, len, at) == len && !memcmp(back, bytes + from, len);
}
/* All of it, as a program that copies a file asks for it. */
static long all(int in, int out) {
    long done = 0, n;
    while ((n = copy(in, 0, out, 0, 1 << 30, 0)) > 0) done += n;
    return n < 0 ? n : done;
}

int main(int argc, char **argv) {
    setvbuf(stdout, 0, _IONBF, 0);
    for (long i = 0; i < (long)sizeof bytes; i++) bytes[i] = i * 2654435761u >> 13;
    umask(022);
    for (int way = 0; way < 2; way++) {
        const char *from = argv[1 + way], *to = argv[2 - way];
        char name[2][4096];
        snprintf(name[0], 4096, "%s/from%d", from, way);
        snprintf(name[1], 4096, "%s/to%d", to, way);
        int in = open(name[0], O_RDWR | O_CREAT | O_TRUNC, 0644);
        int out = open(name[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
        if (write(in, bytes, sizeof bytes) != sizeof bytes) return 1;
        lseek(in, 0, SEEK_SET);
        say("whole", all(in, out), in, out);
        printf("same: %d\n", same(out, 0, 0, sizeof bytes));
        say("at the end", copy(in, 0, out, 0, 100, 0), in, out);
        off_t a = 1000, b = 5;
        say("both offsets", copy(in, &a, out, &b, 5000, 0), in, out);
        printf("%ld %ld same: %d\n", (long)a, (long)b, same(out, 5, 1000, 5000));
        lseek(in, 77, SEEK_SET), b = 800000;
        say("one offset", copy(in, 0, out, &b, 4000, 0), in, out);
        printf("%ld same: %d\n", (long)b, same(out, 800000, 77, 4000));
        a = sizeof bytes - 10;
        say("beyond the end", copy(in, &a, out, 0, 5000, 0), in, out);
        a = sizeof bytes + 10;
        say("behind the end", copy(in, &a, out, 0, 5000, 0), in, out);
        say("nothing", copy(in, 0, out, 0, 0, 0), in, out);
        a = -1;
        say("before the beginning", copy(in, &a, out, 0, 10, 0), in, out);
        say("flags", copy(in, 0, out, 0, 10, 1), in, out);
        int other = open(name[0], O_WRONLY);
        say("cannot be read", copy(other, 0, out, 0, 10, 0), other, out);
        close(other), other = open(name[1], O_RDONLY);
        say("cannot be written", copy(in, 0, other, 0, 10, 0), in, other);
        close(other), other = open(name[1], O_WRONLY | O_APPEND);
        say("appends", copy(in, 0, other, 0, 10, 0), in, other);
        close(other), other = open(from, O_RDONLY);
        printf("a directory: %ld errno %d\n", copy(other, 0, out, 0, 10, 0), errno);
        close(other);
        int pipes[2];
        if (pipe(pipes)) return 1;
        printf("from a pipe: %ld errno %d\n", copy(pipes[0], 0, out, 0, 10, 0), errno);
        printf("to a pipe: %ld errno %d\n", copy(in, 0, pipes[1], 0, 10, 0), errno);
        printf("closed: %ld errno %d\n", copy(in, 0, 999, 0, 10, 0), errno);
        struct rlimit limit = {900000, RLIM_INFINITY};
        signal(SIGXFSZ, SIG_IGN), setrlimit(RLIMIT_FSIZE, &limit);
        a = 0, b = 890000;
        say("up to the limit", copy(in, &a, out, &b, 50000, 0), in, out);
        say("at the limit", copy(in, &a, out, &b, 50000, 0), in, out);
        limit.rlim_cur = RLIM_INFINITY, setrlimit(RLIMIT_FSIZE, &limit);
        struct stat st;
        fstat(out, &st);
        printf("size %ld\n", (long)st.st_size);
    }
}
EOF
gcc -O1 -o t t.c
./t "$PWD" "$host"
# Several that share the offset of what they write to, and of what they read from, lose nothing.
# The kernel's own call does not promise that, and loses some now and then.
if [[ $PWD == /hf* ]]; then
    for i in {1..12}; do echo "line of $i, which is long enough to be seen"; done >lines
    for n in {1..20}; do
        for i in {1..8}; do cat lines & done >"$host/together"
        wait
        [[ $(wc -c <"$host/together") == $((8 * $(wc -c <lines))) ]] || echo "lost: $n"
        for i in {1..8}; do cat & done <"$host/together" >together
        wait
        cmp <(sort together) <(sort "$host/together")
    done
    rm lines together
fi
cp "$host/from1" copied
cmp copied "$host/from1"
cp copied "$host/back"
cmp copied "$host/back"
[[ $PWD != /hf* ]] || rm -rf "$host"
