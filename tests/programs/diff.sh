#!/usr/bin/env bash
# diff and patch over trees.
# needs: diff
set -eu
cd "$1"
mkdir -p a/s b/s; seq 1 500 >a/f; sed 's/^250$/changed/; 10d' a/f >b/f; echo only >a/only
echo x >a/s/g; echo y >b/s/g; ln -s f a/l; ln -s f b/l
diff -u --label a --label b a/f b/f >p || echo "differ $?"
cat p
diff -rq a b || true
diff -r a b | grep -c '^[<>]' || true
cmp a/f b/f | sed 's/.*differ/differ/' || true
diff a/f a/l; sdiff -s -w 40 a/s/g b/s/g | tr -s ' \t' ' ' || true
diff3 a/f b/f a/f | head -n 5 || true
