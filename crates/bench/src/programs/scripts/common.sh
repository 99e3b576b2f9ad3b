# What every script begins with. A script defines `prepare`, which is not timed, and `work`, which
# is; both run in the same directory, each in a bash of its own, with the name of the part and the
# directory as arguments. What `work` prints must be the same wherever it runs; a line `per X` on
# standard error says what figures are divided by. N is the size: 10, or 1 for a smoke test.
set -euo pipefail
if [[ $1 == prepare ]]; then
    rm -rf "$2"
    mkdir "$2"
fi
cd "$2"
user_home=$HOME
export LC_ALL=C HOME=$PWD TZ=UTC PATH=/usr/bin:/bin:$PATH:/usr/sbin:/sbin

# A tree of text files of 0.5 to 10 KiB, 30 in each directory.
tree() { # directory files
    local i
    for ((i = 0; i < $2; i += 30)); do printf '%s/d%03d\n' "$1" $((i / 30)); done |
        xargs mkdir -p
    awk -v dir="$1" -v files="$2" 'BEGIN {
        srand(1)
        for (i = 0; i < files; i++) {
            file = sprintf("%s/d%03d/f%05d.c", dir, i / 30, i)
            lines = 20 + int(rand() * 380)
            for (n = 0; n < lines; n++) printf "int v%d_%d = %d;\n", i, n, rand() * 1e6 >file
            close(file)
        }
    }'
}

# Names of files in DIRECTORY, one in so many.
some() { # directory one-in
    find "$1" -type f | sort | awk -v n="$2" 'NR % n == 0'
}
