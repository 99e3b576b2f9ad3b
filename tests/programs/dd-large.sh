#!/usr/bin/env bash
# dd, cat, cp and cmp on files of tens of megabytes: extents, holes, O_DIRECT, fsync, appends.
set -eu
cd "$1"
yes 0123456789abcdef | dd of=big bs=1M count=40 iflag=fullblock 2>/dev/null; md5sum big
cp --sparse=always big copy; cmp big copy; dd if=big of=direct bs=64k oflag=direct 2>/dev/null
cmp big direct; dd if=big of=sync bs=1M count=4 conv=fsync 2>/dev/null; stat -c %s sync
dd if=big of=synced bs=4k count=64 oflag=sync 2>/dev/null
dd if=big bs=4k count=64 2>/dev/null | cmp - synced
dd if=/dev/zero of=holes bs=1 count=1 seek=50M 2>/dev/null; stat -c %s holes
(($(stat -c %b holes) < 1000)); echo sparse; tr -d '\0' <holes | wc -c
for i in $(seq 1 200); do dd if=big bs=1000 count=1 skip="$i" 2>/dev/null >>appended; done
dd if=big bs=1000 skip=1 count=200 2>/dev/null | cmp - appended; stat -c %s appended
truncate -s 20M big; tail -c 1M big | md5sum; truncate -s 40M big; md5sum big
fallocate -l 8M pre; stat -c %s pre; fallocate -p -o 1M -l 2M copy; md5sum copy
cat big copy >joined; stat -c %s joined
dd if=copy of=big bs=1M count=3 skip=30 seek=5 conv=notrunc 2>/dev/null; md5sum big
rm copy joined; for i in 1 2 3 4; do cp big "c$i" & done; wait
md5sum c? | cut -d' ' -f1 | uniq | wc -l
