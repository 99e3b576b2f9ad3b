#!/usr/bin/env bash
# sqlite3 with a rollback journal: transactions, rollbacks, indexes, vacuum, blobs, attach, backup.
# needs: sqlite3
# modes: posix sync strict dax-test
set -eu
cd "$1"
sqlite3 a.db <<'END'
PRAGMA journal_mode=DELETE; PRAGMA synchronous=FULL;
CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT, body BLOB);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
INSERT INTO t SELECT i, 'name ' || i, zeroblob(i % 300) FROM n;
CREATE INDEX by_name ON t(name);
BEGIN; DELETE FROM t WHERE id % 2 = 0; ROLLBACK;
BEGIN; UPDATE t SET name = 'even' WHERE id % 2 = 0; COMMIT;
SELECT count(*), sum(length(body)), count(DISTINCT name) FROM t;
PRAGMA integrity_check;
END
for i in 1 2 3 4 5 6 7 8 9 10; do sqlite3 a.db "INSERT INTO t(name) VALUES('later $i')"; done
sqlite3 a.db 'DELETE FROM t WHERE id > 2500 AND id < 4000; VACUUM; PRAGMA integrity_check;
    SELECT count(*), max(id) FROM t;'
sqlite3 a.db '.backup b.db'
sqlite3 b.db "ATTACH 'a.db' AS a; SELECT count(*) FROM t JOIN a.t AS u USING(id)"
for mode in TRUNCATE PERSIST MEMORY; do
    sqlite3 b.db "PRAGMA journal_mode=$mode; UPDATE t SET name = '$mode' WHERE id < 100;
        SELECT count(*) FROM t WHERE name = '$mode'"
done
sqlite3 a.db .dump | md5sum; sqlite3 a.db .dump | sqlite3 c.db
sqlite3 c.db 'PRAGMA integrity_check; SELECT count(*) FROM t'
sqlite3 d.db 'PRAGMA page_size=65536; CREATE TABLE x(y);
    INSERT INTO x VALUES(randomblob(3000000)); SELECT length(y) FROM x'
rm d.db
sqlite3 a.db 'PRAGMA mmap_size=10000000; SELECT count(*), sum(id) FROM t'; rm -f ./*-journal; ls
