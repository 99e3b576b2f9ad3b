# SQLite: a row per transaction, in both kinds of journal, synced fully.
statements() { # journal table
    printf 'PRAGMA journal_mode=%s; PRAGMA synchronous=FULL;\n' "$1"
    printf 'CREATE TABLE %s (a INTEGER PRIMARY KEY, b TEXT); CREATE INDEX i%s ON %s (b);\n' \
        "$2" "$2" "$2"
    awk -v table="$2" -v n=$((100 * N)) 'BEGIN {
        srand(1)
        for (i = 0; i < n; i++)
            printf "INSERT INTO %s VALUES (%d, \"%d %0100d\");\n", table, i, rand() * 1e9, i
    }'
}

prepare() {
    statements wal w >wal.sql
    statements delete d >delete.sql
    echo 'SELECT count(*), sum(length(b)) FROM w; SELECT count(*), min(b) FROM d;' >check.sql
}

work() {
    sqlite3 a.db <wal.sql
    sqlite3 a.db <delete.sql
    sqlite3 a.db <check.sql
}
