#!/usr/bin/env bash
# What is delicate when calls are caught inside a process, with its files in the tree: threads,
# forks, signals at any moment, jumps out of handlers, registers.
# needs: gcc
# modes: posix
# seconds: 240
set -eu
source=$(realpath "$(dirname "$0")/../../crates/preload/tests/c/stress.c")
cd "$1"
gcc -O1 -w -pthread -o stress "$source"
export STRESS_DIR=$1
for part in forks vforks spawns clones threads cancels actions restarts storm pestered jumps \
    faults registers floods masks; do
    timeout -s KILL 60 ./stress $part
done
rm stress; ls -A
