#!/usr/bin/env bash
# sqlite3: 300 transactions, each committed durably, then a check.
set -eu
mkdir "$1/db"; cd "$1/db"
{
    echo 'PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;'
    echo 'CREATE TABLE t(id INTEGER PRIMARY KEY, x);'
    for i in $(seq 1 300); do echo "INSERT INTO t(x) VALUES('row $i');"; done
} | sqlite3 a.db
sqlite3 a.db 'SELECT count(*), min(x), max(x) FROM t; PRAGMA integrity_check;'
