# LMDB's tools: a store made from text, and written out again.
prepare() {
    awk -v n=$((3000 * N)) 'BEGIN {
        srand(1)
        printf "VERSION=3\nformat=print\ntype=btree\nmapsize=268435456\nHEADER=END\n"
        for (i = 0; i < n; i++) printf " key%08d\n %0100d\n", (i * 7919) % n, rand() * 1e9
        printf "DATA=END\n"
    }' >text
}

work() {
    mkdir store
    mdb_load -f text store
    mdb_dump -p store | grep -c '^ key'
}
