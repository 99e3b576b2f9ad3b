#!/usr/bin/env bash
# A program starts with no signal blocked, and signals reach it and its children.
cd "$1"
grep SigBlk /proc/self/status >blocked; cat blocked
trap 'echo caught TERM' TERM
kill -TERM $$
{ sh -c 'kill -USR1 $$; echo not reached'; } 2>/dev/null
echo "ended by signal: $(($? - 128))"
timeout 0.2 sleep 9
echo "timeout: $?"
