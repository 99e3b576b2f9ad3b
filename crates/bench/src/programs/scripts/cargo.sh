# cargo: a small library and a program built, and built again after a change.
prepare() {
    local i
    mkdir -p src
    printf '[package]\nname = "sample"\nversion = "0.1.0"\nedition = "2021"\n' >Cargo.toml
    for ((i = 0; i < 2 * N; i++)); do
        printf 'pub fn f(x: u32) -> String { format!("{x} {}", x.wrapping_mul(%d)) }\n' \
            $i >src/m$i.rs
        printf 'pub mod m%d;\n' $i >>src/lib.rs
    done
    printf 'fn main() { println!("{}", sample::m1::f(3)); }\n' >src/main.rs
}

work() {
    export CARGO_HOME=${CARGO_HOME:-$user_home/.cargo}
    export RUSTUP_HOME=${RUSTUP_HOME:-$user_home/.rustup}
    export CARGO_TERM_COLOR=never CARGO_NET_OFFLINE=true
    cargo build --quiet
    target/debug/sample
    echo 'pub fn more() {}' >>src/m1.rs
    cargo build --quiet
    target/debug/sample
}
