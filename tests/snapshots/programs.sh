#!/usr/bin/env bash
# Programs that keep data in the directory "$2", step after step; "$3" names the last step that all
# of them have said is kept.
#   programs.sh write DIR KEPT   until it is stopped (TERM)
#   programs.sh check DIR KEPT   what they keep is whole, and has that step
# PostgreSQL takes part where it is installed, unless root asks.
set -euo pipefail
mode=$1 kept=$3
cd "$2"
# Names of sockets have at most 107 bytes.
sockets=$(TMPDIR=/tmp mktemp -d /tmp/hf-programs.XXXXXX)
redis=0 postgres=0
bin=$(echo /usr/lib/postgresql/*/bin)
[ "$(id -u)" != 0 ] && [ -x "$bin/initdb" ] && has_postgres=yes || has_postgres=
stop() {
    [ "$redis" = 0 ] || kill "$redis" 2>/dev/null || true
    [ "$postgres" = 0 ] || kill -QUIT "$postgres" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$sockets"
}
trap stop EXIT
trap 'exit 0' TERM
say() { redis-cli -s "$sockets/redis" "$@"; }
ask() { "$bin/psql" -X -q -t -A -v ON_ERROR_STOP=1 -h "$sockets" -U postgres -c "$1" postgres; }
until_it_answers() { # what command...
    local what=$1 _
    shift
    for _ in $(seq 400); do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.05
    done
    echo "$what does not answer"
    tail -n 20 "$what.log"
    exit 1
}
start() {
    redis-server --port 0 --unixsocket "$sockets/redis" --dir "$PWD/redis" --appendonly yes \
        --appendfsync always --save '' --daemonize no >redis.log 2>&1 &
    redis=$!
    until_it_answers redis say ping
    [ -n "$has_postgres" ] || return 0
    rm -f postgres/postmaster.pid
    "$bin/postgres" -D postgres -k "$sockets" -c listen_addresses= -c shared_buffers=16MB \
        >postgres.log 2>&1 &
    postgres=$!
    until_it_answers postgres ask 'select 1'
}
git() { command git -c user.name=n -c user.email=e@example.org -c commit.gpgsign=false "$@"; }
write() {
    local i
    mkdir redis
    [ -z "$has_postgres" ] || "$bin/initdb" -D postgres -U postgres -A trust >/dev/null
    start
    git init -q repository
    sqlite3 base.db 'pragma journal_mode = wal; create table t (i integer primary key)' >/dev/null
    [ -z "$has_postgres" ] || ask 'create table t (i integer primary key)'
    for ((i = 1; ; i++)); do
        seq "$i" "$((i + 1000))" >"repository/file-$((i % 20))"
        git -C repository add -A
        git -C repository commit -q -m "$i"
        say set "key:$i" "value:$i" >/dev/null
        sqlite3 base.db "insert into t values ($i)"
        [ -z "$has_postgres" ] || ask "insert into t values ($i)"
        echo "$i" >"$kept.new"
        mv "$kept.new" "$kept"
    done
}
at_least() { # what found step
    [ "$2" -ge "$3" ] || { echo "$1 has $2 of $3 steps"; exit 1; }
}
check() {
    local step
    step=$(cat "$kept")
    start
    git -C repository fsck --strict
    at_least git "$(git -C repository rev-list --count HEAD)" "$step"
    at_least redis "$(say dbsize)" "$step"
    [ "$(say get "key:$step")" = "value:$step" ] || { echo "redis lacks step $step"; exit 1; }
    [ "$(sqlite3 base.db 'pragma integrity_check')" = ok ] || { echo 'base.db'; exit 1; }
    at_least sqlite "$(sqlite3 base.db 'select count(*) from t')" "$step"
    [ -z "$has_postgres" ] || at_least postgres "$(ask 'select count(*) from t')" "$step"
}
"$mode"
