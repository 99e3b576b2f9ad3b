# A shell loop of programs that do nothing.
prepare() { :; }

work() {
    local i
    for ((i = 0; i < 20 * N; i++)); do /bin/true; done
}
