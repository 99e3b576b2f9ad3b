//! Keyspaces as a whole, and changes that depend on a value, by many processes at a time.

use super::{expect, new_pool, script};
use crate::bad_input::{Case, Fixture, Stop};

pub const CASES: &[(&str, Case)] = &[
    ("kv counts up from many processes", counter),
    ("kv drop with files in it", files),
    ("kv drop killed at any moment", killed),
    ("kv rename while others read", renamed),
];

const KV: &str = "kv() { \"$hf\" kv \"$pool\" \"$@\"; }\n";

/// Each step is of one process, and none is lost.
fn counter(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = format!(
        "{KV} kv k put n 0
        up() {{ for i in $(seq 25); do
            until n=$(kv k get n) && kv k put n $((n + 1)) --if \"$n\" 2>/dev/null; do :; done
        done; }}
        \"$hf\" run --pool \"$pool\" -- sleep 60 & keep=$!
        for p in 1 2 3 4; do up & all+=\" $!\"; done; wait $all; kv k get n
        kill $keep; wait $keep || true"
    );
    let said = script(fixture, &pool, &text)?;
    expect("the number", &said, "100")
}

/// Files of the directory go as values do; a directory there is a reason not to.
fn files(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = format!(
        "{KV} kv k put a 1; kv k put b 2; run() {{ \"$hf\" run --pool \"$pool\" -- \"$@\"; }}
        run sh -c 'echo file >/hf/k/c; echo more >>/hf/k/a; mkdir /hf/k/dir; mkdir /hf/plain'
        kv k count; kv k drop 2>&1 || true; run rmdir /hf/k/dir; kv k drop; kv
        kv plain drop 2>&1 | head -1 || true; run ls /hf; \"$hf\" pool check \"$pool\" >/dev/null
        kv k put x 1; kv plain put y 2
        run sh -c 'echo file >/hf/k/z; kv=$0; exec 3</hf/k/z; \"$kv\" kv $1 plain rename k --replace
            cat <&3; ls /hf; cat /hf/k/*' \"$hf\" \"$pool\"
        \"$hf\" pool check \"$pool\" >/dev/null"
    );
    let said = script(fixture, &pool, &text)?;
    expect(
        "the commands",
        &said,
        "3\nholdfast: keyspace \"k\" has directories among its values.\n\
         Fix: remove them with the pool's files: holdfast run -- rm -r\n\
         holdfast: there is no keyspace \"plain\".\nplain\nfile\nk\n2",
    )
}

/// All keys are there afterwards, or none and no keyspace; the next drop works.
fn killed(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = format!(
        "{KV} seq 20000 | sed 's/.*/&\\tvalue &/' >pairs
        \"$hf\" run --pool \"$pool\" -- sleep 100 & keep=$!
        for round in $(seq 20); do
            kv k load <pairs; \"$hf\" kv \"$pool\" k drop & drop=$!
            sleep 0.0$((round % 5))$((round / 5))
            kill -9 $drop 2>/dev/null || true; wait $drop 2>/dev/null || true
            left=$(kv k count 2>/dev/null || echo none)
            case $left in 20000) kept=1;; none) gone=1;; *) echo \"$left keys are left\";; esac
            # Others may yet finish what the killed one has journaled, and so drop what they put.
            kv k put still here 2>/dev/null || true; left=$(kv k count 2>/dev/null || echo none)
            case $left in 20001|1|none) ;; *) echo \"$left keys are left later\";; esac
            kv k drop 2>/dev/null || true
        done; kv; kill $keep; wait $keep || true; \"$hf\" pool check \"$pool\" >/dev/null"
    );
    let said = script(fixture, &pool, &text)?;
    expect("what was left", &said, "")
}

/// Whoever opens the name has one keyspace or the other, whole.
fn renamed(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = format!(
        "{KV} for n in 1 2; do seq 500 | sed \"s/.*/&\\t$n/\" >pairs$n; done
        \"$hf\" run --pool \"$pool\" -- sleep 100 & keep=$!
        kv k load <pairs1
        (while [ ! -e end ]; do kv k dump | cut -f 2 | sort | uniq -c | grep -v '^ *500 ' || true
        done) & reader=$!
        for round in $(seq 20); do
            kv new load <pairs$((round % 2 + 1)); kv new rename k --replace
        done; touch end; wait $reader; kv; kv k count; kill $keep; wait $keep || true"
    );
    let said = script(fixture, &pool, &text)?;
    expect("what the reader saw", &said, "k\n500\n")
}
