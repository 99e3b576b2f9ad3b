#!/usr/bin/env bash
# One directory with thousands of entries: create, list, rename, stat, remove while listing.
set -eu
cd "$1"
mkdir d; cd d; seq -f 'file-%05g' 1 5000 | xargs touch; ls | wc -l; ls -U | sort | md5sum
for i in $(seq 1 10 500); do printf '%s\n' "$i" >"$(printf 'file-%05d' "$i")"; done
cat file-00* | md5sum
find . -name '*7' | xargs rm; ls | wc -l; ls -f | sort | md5sum; rm -f file-*1; ls | wc -l
mkdir ../e; find . -name 'file-000*' -exec mv -t ../e {} +; ls ../e | md5sum; ls | wc -l
cd ..; mv d d2; ls d2 | tail -n 1; rm -r d2; ls; mkdir -p $(seq -s / 1 100); cd $(seq -s / 1 100)
echo deep >f; cat f; pwd | tail -c 20; cd "$1"; find 1 | wc -l; cat $(seq -s / 1 100)/f
