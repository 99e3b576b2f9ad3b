#!/usr/bin/env bash
# Shows what Holdfast does, with real programs: each works once on tmpfs and once on a pool, the
# results are compared, a writer and the service are killed, and the pool is checked at the end.
# Ends with 0 only if all of it worked. Usage: demo.sh HOLDFAST
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
holdfast=$(realpath "${1:?usage: demo.sh HOLDFAST}")
export LC_ALL=C
memory=/dev/shm
# A container's /dev/shm is often 64 MiB.
(($(df -Pk "$memory" 2>/dev/null | awk 'NR == 2 { print $4 }') > 1500000)) || memory=/tmp
work=$(mktemp -d "$memory/holdfast-demo.XXXXXX") || exit 1
service=
trap '[[ -n $service ]] && kill -9 "$service" 2>/dev/null; rm -rf "$work"' EXIT
pool=$work/pool
failures=0

say() { printf '%s\n' "$*"; }
title() { printf '\n== %s\n' "$*"; }
failed() {
    failures=$((failures + 1))
    printf 'FAILED: %s\n' "$*"
}
on_pool() { "$holdfast" run --pool "$pool" --at /hf "$@"; }
now_ms() { date +%s%N | sed 's/......$//'; }

title "A pool"
say "\$ holdfast pool create $pool --size 1G"
"$holdfast" pool create "$pool" --size 1G || exit 1
"$holdfast" pool status "$pool" || failed "pool status"

title "Real, unmodified programs: the same work on tmpfs and on the pool"
say "The pool's files are under /hf, which exists only for these programs."
mkdir "$work/tmpfs"
printf '%-9s %10s %10s   %s\n' program tmpfs pool "on the pool"
for script in "$here"/programs/*.sh; do
    name=$(basename "$script" .sh)
    started=$(now_ms)
    bash "$script" "$work/tmpfs" >"$work/$name.tmpfs" 2>"$work/$name.tmpfs.err"
    tmpfs_status=$? tmpfs_ms=$(($(now_ms) - started))
    started=$(now_ms)
    on_pool --report "$work/report" -- bash "$script" /hf >"$work/$name.pool" 2>"$work/$name.err"
    pool_status=$? pool_ms=$(($(now_ms) - started))
    served=$(grep -o '"served" *: *[0-9]*' "$work/report" 2>/dev/null | grep -o '[0-9]*$')
    verdict="same result, ${served:-0} calls served"
    if ((tmpfs_status != 0)); then
        verdict="not even on tmpfs: $(tail -n 1 "$work/$name.tmpfs.err")"
        failures=$((failures + 1))
    elif ((pool_status != 0)) || ! cmp -s "$work/$name.tmpfs" "$work/$name.pool"; then
        verdict="FAILED (exit status $pool_status) $(tail -n 1 "$work/$name.err")"
        failures=$((failures + 1))
    elif ((${served:-0} == 0)); then
        verdict="FAILED: Holdfast served no call"
        failures=$((failures + 1))
    fi
    printf '%-9s %7d ms %7d ms   %s\n' "$name" "$tmpfs_ms" "$pool_ms" "$verdict"
done
[[ -e /hf ]] && failed "/hf exists on the host"

# Appends numbered lines, each durable before it is acknowledged on standard output.
cat >"$work/writer.py" <<'END'
import os, sys
f = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
print('pid', os.getpid(), flush=True)
n = 0
while True:
    n += 1
    os.write(f, b'line %08d\n' % n)
    os.fsync(f)
    print(n, flush=True)
END
writer_pid() { sed -n 's/^pid //p' "$work/acknowledged"; }
lines_are_there() { # file acknowledged
    local found
    found=$(on_pool -- bash -c "awk '\$2 + 0 != NR { exit 1 } END { print NR }' $1") || {
        failed "$1 is damaged"
        return
    }
    if ((found >= $2)); then
        say "acknowledged: $2 lines; there: $found, all whole and in order"
    else
        failed "acknowledged: $2 lines; there: ${found:-none}"
    fi
}

title "kill -9 of the program in the middle of its work"
on_pool -- python3 "$work/writer.py" /hf/killed >"$work/acknowledged" 2>/dev/null &
runner=$!
sleep 1
victim=$(writer_pid)
kill -9 "$victim" && say "killed process $victim"
wait "$runner" 2>/dev/null
lines_are_there /hf/killed "$(grep -c '^[0-9]' "$work/acknowledged")"

title "kill -9 of the service, under a running program"
"$holdfast" serve "$pool" 2>"$work/serve.err" &
service=$!
for _ in $(seq 1 100); do [[ -S $pool/sock ]] && break; sleep 0.02; done
on_pool -- python3 "$work/writer.py" /hf/orphaned >"$work/acknowledged" 2>/dev/null &
runner=$!
sleep 1
# Together, as the shell would report the death of its job in between.
{ kill -9 "$service" && wait "$service"; } 2>/dev/null
say "killed service $service"
service=
sleep 0.2
kill -9 "$(writer_pid)" 2>/dev/null
wait "$runner" 2>/dev/null
lines_are_there /hf/orphaned "$(grep -c '^[0-9]' "$work/acknowledged")"

title "Everything is still there"
on_pool -- bash -c 'cd /hf; ls; sqlite3 db/a.db "PRAGMA integrity_check"; git -C git/r fsck' ||
    failed "reading it again"
say "\$ holdfast pool check $pool"
"$holdfast" pool check "$pool" || failed "pool check: $?"

title "A small comparison: whole programs, side by side with tmpfs"
rows=tar,rsync,sqlite,make,python,builtins,walks
if [[ $memory == /dev/shm ]]; then
    "$holdfast" bench programs --quick --rounds 3 --peers holdfast-posix --rows "$rows" \
        >"$work/table" || failed "comparison"
    awk '/^one session for all: (wall|CPU) time/, /^$/' "$work/table"
    say "(one session; medians of three short rounds on this machine now; make bench is thorough)"
else
    say "left out: /dev/shm has too little room"
fi

title "The end"
"$holdfast" pool destroy "$pool" || failed "pool destroy"
if ((failures == 0)); then say "All of it worked."; else say "$failures things failed."; fi
((failures == 0))
