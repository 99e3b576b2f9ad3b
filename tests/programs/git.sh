#!/usr/bin/env bash
# git: commits, branches, a merge with a conflict, tags, stash, clone, worktree, gc and fsck.
# needs: git
# unstable: *.git/index *.git/worktrees/*/index *.git/objects/pack/*
# unstable: *.git/objects/info/commit-graph*
# seconds: 240
set -eu
cd "$1"
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a
export GIT_COMMITTER_EMAIL=a@b GIT_CONFIG_NOSYSTEM=1
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=pack.threads GIT_CONFIG_VALUE_0=1
export GIT_AUTHOR_DATE='2024-01-01T00:00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00:00Z'
git init -q -b main r; cd r; mkdir d; for i in $(seq 1 100); do seq "$i" 200 >"d/f$i"; done
ln -s d/f1 l
git add .; git commit -qm first; git rev-parse HEAD; git status --short; git checkout -q -b side
sed -i '5s/.*/side/' d/f7; git rm -q d/f9; git mv d/f10 d/moved; git commit -qam side
git checkout -q main
sed -i '5s/.*/main/' d/f7; chmod +x d/f8; git commit -qam main
(git merge side || true) | tail -n 1
git checkout -q --theirs d/f7; git add d/f7; git commit -qm merged; git rev-parse HEAD
git log --oneline --graph
git tag -a v1 -m v1; echo dirt >>d/f1; git stash -q; git status --short; git stash pop -q
git diff --stat; git checkout -q .
for i in 1 2 3 4 5 6 7 8; do echo "$i" >"n$i"; git add "n$i"; git commit -qm "n$i"; done
git rebase -q --onto main~2 main~1 main; git log --oneline | wc -l
git clone -q --no-hardlinks . ../c; git -C ../c log -1 --format=%T; git clone -q ../c ../h
git -C ../c worktree add -q ../w v1; ls ../w/d | wc -l
cd ../c; echo more >more; git add more; git commit -qm more
git push -q origin HEAD:refs/heads/pushed; git -C ../r log -1 --format=%s pushed
cd ../r; git gc -q --prune=now; git fsck --full --strict
git count-objects -v | grep -E '^(count|packs|in-pack)'; git repack -qad; git fsck
git bundle create -q ../b pushed; git ls-remote ../b; git grep -c 5 -- d/f7
git blame -s d/f7 | sed -n 5p; git archive main | tar -t | wc -l
cd ../h; git fetch -q ../r pushed
git merge -q --ff-only FETCH_HEAD 2>/dev/null || git log -1 --format=%s FETCH_HEAD
git bisect start HEAD HEAD~3 >/dev/null; git bisect reset 2>/dev/null; cat .git/HEAD
git update-index --refresh; git clean -fdq; git reset -q --hard v1; git status --short; rm ../b
