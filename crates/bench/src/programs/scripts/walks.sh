# find, grep and du over a tree.
prepare() { tree src $((300 * N)); }

work() {
    find src -name 'f*7.c' -newer src/d000 | wc -l
    find src -type f -size +4k | wc -l
    grep -rl '= 4242' src | sort
    du -s --apparent-size src
    ls -lR --time-style=+ src | awk '{ sum += $5 } END { print NR, sum }'
}
