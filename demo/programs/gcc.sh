#!/usr/bin/env bash
# gcc and make: a program of several files, built on the pool and run from it.
set -eu
mkdir "$1/gcc"; cd "$1/gcc"
for i in 1 2 3 4; do echo "int f$i(int x) { return x * $i; }" >"f$i.c"; done
cat >main.c <<'END'
#include <stdio.h>
int f1(int), f2(int), f3(int), f4(int);
int main(void) { printf("%d\n", f1(f2(f3(f4(1))))); }
END
printf 'prog: main.o f1.o f2.o f3.o f4.o\n\t$(CC) -o $@ $^\n' >Makefile
make -s -j2; ./prog
