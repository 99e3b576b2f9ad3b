#!/usr/bin/env bash
# Reads everything in the directory "$1" in many ways; prints what it found.
set -euo pipefail
cd "$1"
find . -printf '%p %y %m %n %s %l\n' | sort
cat docs/note-* | sha256sum
grep -rc 1 docs | sort | sha256sum
grep -rl 'note 7 about' . | sort
tar cf - --sort=name . | sha256sum
sort -n data/numbers | tail -1
cmp -n 3000000 data/zeroes /dev/zero && echo zeroes
tr -d '\0' <data/holes | wc -c
sqlite3 -readonly 'file:data/base.db?immutable=1' \
    'pragma integrity_check; select count(*), sum(i), min(text), max(text) from t'
python3 - <<'PYTHON'
import hashlib, mmap
for name in ['docs/note-1', 'data/numbers', 'data/zeroes', 'data/hard']:
    with open(name, 'rb') as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
        print(name, len(memory), hashlib.sha256(memory).hexdigest())
PYTHON
cp data/program "${TMPDIR:-/tmp}/program.$$"
cmp data/program "${TMPDIR:-/tmp}/program.$$" && rm "${TMPDIR:-/tmp}/program.$$"
data/program --version | head -1
