# tar: a tree copied, packed, unpacked twice, packed again and compared.
prepare() { tree src $((60 * N)); }

work() {
    cp -r src copy
    tar -cf a.tar copy
    mkdir x y
    tar -xf a.tar -C x
    tar -xf a.tar -C y
    tar -cf b.tar -C x copy
    diff -r src y/copy
    tar -tf b.tar | wc -l
}
