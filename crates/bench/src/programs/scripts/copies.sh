# A shell loop of tiny programs that copy a file and show it.
prepare() { tree src 30; }

work() {
    local i
    for ((i = 0; i < 10 * N; i++)); do
        cp src/d000/f0000$((i % 10)).c copy
        cat copy >shown
    done
    cat shown
}
