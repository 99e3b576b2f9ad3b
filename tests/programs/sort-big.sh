#!/usr/bin/env bash
# sort with so little memory that it merges many temporary files, all of them in the pool.
set -eu
cd "$1"
mkdir tmp
awk 'BEGIN {
    for (s = 1; i < 300000; i++) { s = (s * 1103515245 + 12345) % 2147483648; print s }
}' >n
sort -n -S 1M -T tmp --batch-size=8 n >sorted; sort -n -c sorted; md5sum sorted; wc -l <sorted
sort -S 1M -T tmp --parallel=2 -r n | head -n 3; sort -n -u -S 2M -T tmp -o n n; tail -n 2 n
ls -A tmp | wc -l
shuf -i 1-10000 -o sh; sort -n sh | cmp - <(seq 1 10000); rm sh
