#!/usr/bin/env bash
# cargo builds a crate with a library, a program and a test in the pool, and runs them; a second
# build has nothing to do, a third one only what changed.
# needs: cargo rustc
set -eu
cd "$1"
mkdir -p c/src c/home; cd c
export CARGO_HOME=$PWD/home CARGO_TERM_QUIET=true CARGO_NET_OFFLINE=true
cat >Cargo.toml <<'END'
[package]
name = "counted"
version = "0.1.0"
edition = "2021"
END
cat >src/lib.rs <<'END'
pub fn sum(n: u64) -> u64 { (1..=n).sum() }
#[test]
fn sums() { assert_eq!(sum(10), 55); }
END
cat >src/main.rs <<'END'
fn main() {
    let path = std::env::args().nth(1).unwrap();
    std::fs::write(&path, counted::sum(1000).to_string()).unwrap();
    println!("{}", std::fs::read_to_string(&path).unwrap());
}
END
cargo build
./target/debug/counted out
cargo test 2>/dev/null | grep -c '^test result: ok. 1 passed'
before=$(stat -c %y target/debug/counted)
cargo build
[[ $before == "$(stat -c %y target/debug/counted)" ]]
sed -i 's/1000/2000/' src/main.rs
cargo build
./target/debug/counted out
rm -rf target home
find . | sort
