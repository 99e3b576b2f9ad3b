# redis: a server that syncs its log at every write, and a clean shutdown.
prepare() { :; }

work() {
    local sockets server
    sockets=$(mktemp -d /tmp/holdfast-bench.XXXXXX)
    redis-server --port 0 --unixsocket "$sockets/s" --appendonly yes --appendfsync always \
        --save '' --daemonize no --logfile redis.log --dir . >/dev/null &
    server=$!
    until redis-cli -s "$sockets/s" ping >/dev/null 2>&1; do sleep 0.01; done
    redis-benchmark -q -s "$sockets/s" -t set -n $((2000 * N)) -r 1000000 -d 100 -c 8 >/dev/null
    redis-cli -s "$sockets/s" shutdown >/dev/null 2>&1 || true
    wait "$server"
    rm -r "$sockets"
    grep -ci 'error\|corrupt' redis.log || true
}
