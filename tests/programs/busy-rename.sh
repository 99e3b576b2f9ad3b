#!/usr/bin/env bash
# Several shells replace one file by rename while others read it: a reader sees a whole file.
set -eu
cd "$1"
printf '%01000d\n' 0 >f
for p in 1 2 3; do
    (for i in $(seq 1 60); do printf '%01000d\n' "$i" >"t$p"; mv "t$p" f; done) &
done
bad=0
for i in $(seq 1 100); do n=$(wc -c <f); [ "$n" = 1001 ] || bad=$((bad + 1)); done
wait; echo "bad $bad"; wc -c <f; rm f; ls -A
