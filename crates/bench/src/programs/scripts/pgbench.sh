# PostgreSQL: start, transactions of two clients, a fast shutdown. It will not run as root.
as() {
    ((EUID == 0)) || { "$@"; return; }
    setpriv --reuid=65534 --regid=65534 --clear-groups -- "$@"
}
PATH=$(printf '%s:' /usr/lib/postgresql/*/bin)$PATH

server() {
    sockets=$(as mktemp -d /tmp/holdfast-bench.XXXXXX)
    as postgres -D data -k "$sockets" -c listen_addresses= -c shared_buffers=64MB >log 2>&1 &
    server=$!
    until as pg_isready -q -h "$sockets"; do sleep 0.02; done
}

stop() {
    as pkill -INT -o -u "$(as id -u)" -f "postgres -D data -k $sockets"
    wait "$server"
    as rm -r "$sockets"
}

prepare() {
    ((EUID != 0)) || chmod 777 .
    as initdb -U bench -A trust -E UTF8 --locale=C -D data >log 2>&1
    server
    as pgbench -i -q -s 1 -h "$sockets" -U bench postgres 2>/dev/null >&2
    stop
}

work() {
    server
    as pgbench -n -c 2 -t $((150 * N)) -h "$sockets" -U bench postgres 2>/dev/null |
        grep 'actually processed\|failed'
    stop
}
