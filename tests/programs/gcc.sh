#!/usr/bin/env bash
# gcc builds a small C project of several files with a static and a shared library; the results
# run from the pool.
# needs: gcc make ar objdump
set -eu
cd "$1"
mkdir -p p/src; cd p
for i in 1 2 3 4 5 6; do
    printf '#include "all.h"\nint f%d(int x) { return x * %d + 1; }\n' "$i" "$i" >"src/f$i.c"
done
for i in 1 2 3 4 5 6; do echo "int f$i(int);"; done >src/all.h
cat >src/main.c <<'END'
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <fcntl.h>
#include <unistd.h>
#include "all.h"
int main(int argc, char **argv) {
    FILE *f = fopen(argv[1], "w+");
    for (int i = 0; i < 1000; i++) fprintf(f, "%d\n", f1(i) + f2(i) + f6(i));
    rewind(f);
    long n, sum = 0;
    while (fscanf(f, "%ld", &n) == 1) sum += n;
    fclose(f);
    int fd = open(argv[1], O_RDWR);
    char *m = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    /* Only the pool's owner has shared mappings. */
    if (m == MAP_FAILED && getenv("HF_SERVED")) pwrite(fd, "#", 1, 0);
    else m[0] = '#', munmap(m, 4096);
    char c;
    pread(fd, &c, 1, 0);
    printf("%ld %c %d\n", sum, c, argc);
    return f3(f4(f5(1))) % 7;
}
END
cat >Makefile <<'END'
CFLAGS = -O1 -Wall
obj = $(patsubst src/%.c,%.o,$(wildcard src/f*.c))
prog: main.o libf.a ; $(CC) -o $@ main.o -L. -lf
dyn: main.o libg.so ; $(CC) -o $@ main.o -L. -lg -Wl,-rpath,'$$ORIGIN'
%.o: src/%.c src/all.h ; $(CC) $(CFLAGS) -fPIC -c -o $@ $<
libf.a: $(obj) ; ar rcsD $@ $^
libg.so: $(obj) ; $(CC) -shared -o $@ $^
END
make -s -j2 prog dyn; ./prog out a || echo "exit $?"
./dyn out2 || echo "exit $?"
cmp out out2; head -n 2 out
touch src/f3.c; make -n prog | grep -c 'c -o'; gcc -E src/main.c | grep -c main
gcc -S -O2 src/f1.c -o f1.s; grep -c f1: f1.s
gcc -g -pipe src/*.c -o all; objdump -t all | grep -c ' f[1-6]$'; strip all
./all o3 || echo "exit $?"
nm libf.a | grep -c ' T '
