#!/usr/bin/env bash
# git: commits, a merge, a clone, gc and fsck.
set -eu
mkdir "$1/git"; cd "$1/git"
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
export GIT_AUTHOR_DATE='2024-01-01T00:00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00:00Z'
export HOME=/nonexistent
git init -q -b main r; cd r
for i in $(seq 1 200); do seq "$i" 300 >"file$i"; done
git add .; git commit -qm first; git checkout -q -b side; echo side >side; git add side
git commit -qm side; git checkout -q main; echo main >main; git add main; git commit -qm main
git merge -q -m merged side; git clone -q . ../c
git gc -q; git fsck --full; git -C ../c log --oneline
