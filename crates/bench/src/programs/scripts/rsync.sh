# rsync: a tree copied, and brought up to date three times.
prepare() { tree src $((60 * N)); }

work() {
    rsync -a src/ copy/
    some src 7 | while read -r file; do echo 'int more;' >>"$file"; done
    rsync -a src/ copy/
    some src 11 | xargs rm
    rsync -a --delete src/ copy/
    rsync -a --checksum src/ copy/
    diff -r src copy
    find copy -type f | wc -l
}
