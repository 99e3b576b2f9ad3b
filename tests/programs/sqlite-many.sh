#!/usr/bin/env bash
# Several sqlite3 processes write one database at once, first by rollback journal, then by WAL:
# byte-range locks decide, no row is lost, the check is clean.
# needs: sqlite3
# modes: posix strict
# unstable: work/*.db*
# seconds: 240
set -eu
cd "$1"
# WAL is for shared mappings, which only the pool's owner has.
modes=(DELETE WAL)
[[ -n ${HF_SERVED-} ]] && modes=(DELETE)
for mode in "${modes[@]}"; do
    db=$mode.db
    sqlite3 "$db" "PRAGMA journal_mode=$mode; CREATE TABLE t(p, i);
        CREATE TABLE total(n); INSERT INTO total VALUES(0)"
    for p in 1 2 3 4; do
        (for i in $(seq 1 15); do
            sqlite3 -cmd '.timeout 60000' "$db" "BEGIN IMMEDIATE;
                INSERT INTO t VALUES($p, $i); UPDATE total SET n = n + 1; COMMIT"
        done) &
    done
    wait
    sqlite3 "$db" 'SELECT count(*), count(DISTINCT p * 100 + i) FROM t;
        SELECT n FROM total; PRAGMA integrity_check'
done
ls
