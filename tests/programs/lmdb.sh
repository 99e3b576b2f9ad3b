#!/usr/bin/env bash
# LMDB: a map that readers share with a writer who writes by calls, and locks of readers in shared
# memory.
# needs: mdb_load mdb_dump mdb_stat mdb_copy
# unstable: work/db/* work/copy/*
set -eu
cd "$1"
mkdir db copy
header() { printf 'VERSION=3\nformat=print\ntype=btree\nmapsize=67108864\nHEADER=END\n'; }
load() {
    header
    for ((i = $1; i < $2; i++)); do printf ' key%05d\n value of %d %0200d\n' "$i" "$i" "$i"; done
    echo 'DATA=END'
}
load 0 1500 | mdb_load db
mdb_dump -p db | grep -c '^ key'
# Readers beside writers.
(for n in 1 2 3; do load $((n * 2000)) $((n * 2000 + 400)) | mdb_load db; done) &
for n in 1 2 3 4 5; do
    mdb_dump -p db | awk '
        /^ key/ { key = substr($1, 4) + 0; next }
        /^ value/ { if ($3 + 0 != key) bad++ }
        END { print bad + 0 }'
done
wait
mdb_dump -p db | grep -c '^ key'
mdb_dump -p db | sed '1,/HEADER=END/d' | md5sum
mdb_copy db copy
mdb_dump -p copy | sed '1,/HEADER=END/d' | md5sum
mdb_stat db | grep -E 'Tree depth|Entries'
