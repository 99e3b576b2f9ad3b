#!/usr/bin/env bash
# redis-server with an append-only file in the pool: write, kill -9, restart, verify; rewrite; save.
# needs: redis-server redis-cli
# unstable: work/*
# seconds: 180
set -eu
cd "$1"
# The socket's name has at most 107 bytes, so it lives outside.
sock=$(TMPDIR=/tmp mktemp -u /tmp/hf-redis.XXXXXX)
trap 'kill -9 "$server" 2>/dev/null || true; rm -f "$sock"' EXIT
cli() { redis-cli -s "$sock" "$@"; }
start() {
    redis-server --port 0 --unixsocket "$sock" --dir "$PWD" --appendonly yes --appendfsync always \
        --save '' --daemonize no --logfile log &
    server=$!
    for _ in $(seq 1 200); do cli ping 2>/dev/null | grep -q PONG && return; sleep 0.05; done
    echo 'redis did not start'; tail -n 20 log; exit 1
}
start
for i in $(seq 1 1000); do echo "SET key:$i value:$i"; done | cli --pipe 2>&1 | tail -n 1
cli incrby n 41; cli incr n; cli lpush l a b c; cli hset h f1 v1 f2 v2; cli dbsize
kill -9 "$server"; wait "$server" 2>/dev/null || true
start
cli dbsize; cli get key:777; cli get n; cli lrange l 0 -1; cli hgetall h | sort
cli bgrewriteaof | head -c 10
for _ in $(seq 1 200); do
    cli info persistence | grep -q 'aof_rewrite_in_progress:0' && break
    sleep 0.05
done
cli set after rewrite; cli save; cli shutdown nosave 2>/dev/null || true
wait "$server" || true
start
cli dbsize; cli get after; cli get key:1; cli shutdown nosave || true
wait "$server" || true
ls -d appendonlydir; ls | sort; tail -c 1 log | wc -c; rm -rf appendonlydir log dump.rdb
