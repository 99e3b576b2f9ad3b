#!/usr/bin/env bash
# rsync: a copy with times and modes; the second run finds nothing to do.
set -eu
mkdir -p "$1/rsync/s"; cd "$1/rsync"
for i in $(seq 1 300); do seq 1 "$i" >"s/f$i"; done
rsync -a s/ t/; diff -r s t; rsync -ai s/ t/; echo x >>s/f7; touch -d '2001-02-03' s/f7
rsync -ai --delete s/ t/ | grep -v '/$' | cut -c1,3,12-; diff -r s t; ls t | wc -l
