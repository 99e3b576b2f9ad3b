#!/usr/bin/env bash
# Changes everything that build.sh made in the directory "$1", in place and by new files.
set -euo pipefail
cd "$1"
sed -i 's/about/on/' docs/note-*
for i in $(seq 100 150); do printf 'NOTE' | dd of="docs/note-$i" bs=1 conv=notrunc status=none; done
rm docs/deep/list-1?
mv docs/deep docs/deeper
seq 400001 500000 >>data/numbers
printf 'CHANGED' | dd of=data/numbers bs=1 seek=1000000 conv=notrunc status=none
head -c 2000000 /dev/urandom | dd of=data/zeroes bs=64k seek=8 conv=notrunc status=none
truncate -s 100 data/holes
truncate -s 9000000 data/holes
ln -sf nowhere data/link
chmod 0600 docs/note-3
rm -r empty
printf 'more' >>data/program
sqlite3 data/base.db "update t set text = 'changed ' || i where i % 3 = 0;
    delete from t where i % 7 = 0; vacuum;"
python3 - <<'PYTHON'
import mmap
with open('data/zeroes', 'r+b') as file, mmap.mmap(file.fileno(), 0) as memory:
    memory[2500000:2500010] = b'through it'
PYTHON
