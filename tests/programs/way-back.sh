#!/usr/bin/env bash
# Paths that leave the tree by `..` and come back, and paths through the kernel's links in /proc.
# needs: rsync
set -eu
cd "$1"
name=${PWD##*/}
seq 5 >in; mkdir d e
ln -s "../../$name/in" d/link
ln -s "../$name/loop" loop
cat "../$name/in" d/link "$1/d/../../$name/in" | wc -l
cat loop 2>/dev/null || echo "a loop"
(cd "$1/d/../../$name/e" && pwd | sed "s|$1|TOP|")
echo written >"../$name/d/new"; cat d/new
mkdir "../$name/f"; mv "../$name/in" f/in; ls f
(cd d; rsync -a "../../$name/f/in" copy; cmp copy ../f/in)
cp /bin/echo prog; "../$name/prog" ran
cd d
echo data >/proc/self/cwd/here; cat here; ls /proc/self/cwd/
exec 5<.; ls /proc/self/fd/5/; cat /proc/self/fd/5/here "/proc/self/root$1/d/here"
exec 5<&-
