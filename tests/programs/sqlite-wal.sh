#!/usr/bin/env bash
# sqlite3 with a write-ahead log: shared-memory index by mmap, readers beside a writer, checkpoints.
# needs: sqlite3
# unstable: work/a.db*
set -eu
cd "$1"
sqlite3 a.db 'PRAGMA journal_mode=WAL; CREATE TABLE t(i INTEGER PRIMARY KEY, x)'
(for i in $(seq 1 60); do
    sqlite3 -cmd '.timeout 20000' a.db "INSERT INTO t(x) VALUES('w$i')"
done) &
writer=$!
for i in 1 2 3 4 5 6 7 8 9 10; do
    sqlite3 -cmd '.timeout 20000' a.db 'SELECT count(*) <= 60 FROM t' | grep -v 1 || true
done
wait "$writer"; sqlite3 a.db 'SELECT count(*), count(DISTINCT x) FROM t; PRAGMA integrity_check'
sqlite3 a.db <<'END'
PRAGMA wal_autocheckpoint=0;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
INSERT INTO t(x) SELECT i FROM n;
SELECT count(*) FROM t;
PRAGMA wal_checkpoint(TRUNCATE);
UPDATE t SET x = x || 'u' WHERE i % 7 = 0; SELECT count(*) FROM t WHERE x LIKE '%u';
.shell ls
END
sqlite3 a.db 'PRAGMA integrity_check; SELECT count(*) FROM t'; ls; sqlite3 a.db .dump | md5sum
sqlite3 a.db 'PRAGMA journal_mode=DELETE'; ls
