# What `bench block --macro` runs. Four functions of each row: `before` and `after` are not timed,
# `work` is; what `work` and `after` print must be the same on every file system. `sources` makes,
# once and on tmpfs, what all of them start from. The arguments are the function, the directory in
# which it works, the row, and the directory of the sources; N is the size: 10, or 1 for a smoke
# test.
row=${3:-} sources=${4:-}

sources() {
    tree tree $((600 * N))
    tar -cf tree.tar --sort=name tree
    mkdir build
    local i
    for ((i = 0; i < 3 * N; i++)); do
        printf '#include <stdio.h>\n#include <stdlib.h>\n#include "all.h"\n' >build/f$i.c
        printf 'int f%d(int x) { char b[32]; snprintf(b, 32, "%%d", x + %d); return atoi(b); }\n' \
            $i $i >>build/f$i.c
        printf 'int f%d(int);\n' $i >>build/all.h
    done
    {
        printf '#include <stdio.h>\n#include "all.h"\nint main(void) { int s = 0;\n'
        for ((i = 0; i < 3 * N; i++)); do printf 's += f%d(s);\n' $i; done
        printf 'printf("%%d\\n", s); return 0; }\n'
    } >build/main.c
    printf 'OBJECTS := $(patsubst %%.c,%%.o,$(wildcard *.c))\n' >build/Makefile
    printf 'program: $(OBJECTS)\n\tgcc -o $@ $(OBJECTS)\n' >>build/Makefile
    printf '%%.o: %%.c all.h\n\tgcc -O1 -c -o $@ $<\n' >>build/Makefile
    awk -v loads=$((10 * N)) 'BEGIN {
        srand(1)
        print "PRAGMA synchronous = FULL;"
        print "CREATE TABLE t (k INTEGER, v TEXT); CREATE INDEX i ON t (k);"
        for (load = 0; load < loads; load++) {
            print "BEGIN;"
            for (n = 0; n < 500; n++)
                printf "INSERT INTO t VALUES (%d, \"%080d\");\n", rand() * 1e9, n
            print "COMMIT;"
        }
    }' >load.sql
}

# Each row leaves what the next rounds of others need: the tree stays.
before() {
    case $row in
    untar) rm -rf tree ;;
    tar | search) [[ -d tree ]] || tar -xf "$sources/tree.tar" ;;
    build)
        rm -rf build
        cp -r "$sources/build" build
        ;;
    database) rm -f database ;;
    esac
}

work() {
    case $row in
    untar) tar -xf "$sources/tree.tar" ;;
    tar) tar -cf packed.tar --sort=name tree ;;
    search) grep -r 'v1*7_1*9 ' tree | sort | cksum ;;
    build) make -s -j2 -C build ;;
    database) sqlite3 database <"$sources/load.sql" ;;
    esac
}

after() {
    case $row in
    untar) diff -r "$sources/tree" tree ;;
    tar)
        cmp "$sources/tree.tar" packed.tar
        rm packed.tar
        ;;
    build) build/program ;;
    database) sqlite3 database 'PRAGMA integrity_check; SELECT count(*), sum(k) FROM t' ;;
    esac
}

"$1"
