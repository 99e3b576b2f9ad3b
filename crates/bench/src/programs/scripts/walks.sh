# find, grep, du and ls over a tree. The sizes of directories are each file system's own.
prepare() { tree src $((300 * N)); }

work() {
    find src -name 'f*7.c' -mtime -100 | wc -l
    find src -type f -size +4k | wc -l
    grep -rl '= 4242' src | sort
    du -a --apparent-size src | awk '/\.c$/ { sum += $1 } END { print NR, sum }'
    ls -lR --time-style=+ src | awk '/^-/ { sum += $5 } END { print NR, sum }'
}
