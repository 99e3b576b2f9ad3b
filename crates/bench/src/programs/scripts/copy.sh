# cp -a of a tree and of a large file, and rm -r.
prepare() {
    tree src $((300 * N))
    head -c $((1500000 * N)) /dev/zero | tr '\0' x >src/large
}

work() {
    cp -a src copy
    cmp src/large copy/large
    find copy -type f | wc -l
    rm -r copy
}
