#!/usr/bin/env bash
# tar: a tree of 500 files packed, compressed, unpacked and compared.
set -eu
mkdir -p "$1/tar/s/d"; cd "$1/tar"
for i in $(seq 1 500); do seq 1 "$i" >"s/d/f$i"; done
ln -s d/f1 s/link; ln s/d/f2 s/hard; chmod 600 s/d/f3
tar -czf a.tgz s; mkdir x; tar -xzf a.tgz -C x; diff -r s x/s
tar -tzf a.tgz | wc -l; du -sb x | cut -f1
