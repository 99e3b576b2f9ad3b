#!/usr/bin/env bash
# Makes a tree of every kind of file in the directory "$1".
set -euo pipefail
cd "$1"
mkdir -p docs/deep/er data empty
for i in $(seq 200); do printf 'note %d about %d\n' "$i" $((i * 7919 % 1009)) >"docs/note-$i"; done
for i in $(seq 40); do seq $((i * 500)) >"docs/deep/list-$i"; done
seq 400000 >data/numbers
head -c 3000000 /dev/zero >data/zeroes
printf 'tail without newline' >>data/zeroes
ln -s ../docs/note-1 data/link
ln docs/note-2 data/hard
ln -s "$(printf 'x%.0s' $(seq 700))" data/long-link
chmod 0640 docs/note-3
: >empty/file
truncate -s 5000000 data/holes
printf 'in the middle' | dd of=data/holes bs=1 seek=2500000 conv=notrunc status=none
cp "$(command -v tar)" data/program
sqlite3 data/base.db "create table t (i integer primary key, text);
    with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000)
    insert into t select i, 'row ' || i from n;"
