//! Runs without a pool (`run --no-pool`): mappings are sped up as with one, and nothing is left.
//!
//! Invariant: every case runs where no default pool is, and ends where there is none.

use super::{FOUND, with_program};
use crate::bad_input::{Case, Fixture, Stop, wrong};
use crate::faces::{expect, script};

pub const CASES: &[(&str, Case)] = &[
    ("mapping without a pool: random calls", random_calls),
    ("mapping without a pool: what is kept", what_is_kept),
    ("mapping without a pool: pages ahead", pages_ahead),
    ("mapping without a pool: what is left", what_is_left),
    ("mapping without a pool: runs within", runs_within),
    ("mapping without a pool: refusals", refusals),
    ("mapping without a pool: inline calls", inline_calls),
];

/// In place of the `run` of other cases.
const RUN: &str = r#"
    export HOME=$PWD/home; mkdir home
    run() { "$hf" run --no-pool --report report "$@"; }
"#;

fn random_calls(fixture: &Fixture) -> Result<(), Stop> {
    let text = format!(
        r#"{RUN}
        ./program 1 100 400 "$where" "$where" >off
        for settings in min=4K,uses=1 min=4K,entries=3 min=4K,uses=1,cache=300K,idle=1ms; do
            rm -f "$where"/map-*
            run --map=$settings -- ./program 1 100 400 "$where" "$where" >on
            cmp off on
            at_least 500 hits
            at_least 1000 evicted
        done"#
    );
    with_program(fixture, "mapping-ops", "$PWD/work", &text).map(drop)
}

fn what_is_kept(fixture: &Fixture) -> Result<(), Stop> {
    let text = format!(
        r#"{RUN}
        try() {{ # settings case
            rm -rf "$where"/*
            printf '%s: ' "$2"
            run "$1" -- ./program "$2" "$where"
        }}
        for case in again forked deleted left-out advice limit sandboxed grown numbers cut \
            threads; do
            try --map=uses=1 "$case"
        done
        at_least 10000 hits
        try --map=uses=1,idle=200ms timed
        at_least 1 evicted
        try --map once"#
    );
    let said = with_program(fixture, "mapping-cases", "$PWD/work", &text)?;
    let wanted = FOUND.lines().filter(|line| !line.starts_with("dropped"));
    let timed = |line: &str| {
        if line.starts_with("timeout") {
            "timed: 0\n".into()
        } else {
            format!("{line}\n")
        }
    };
    let wanted: String = wanted.map(timed).collect();
    expect("what is kept", &said, &wanted)
}

fn pages_ahead(fixture: &Fixture) -> Result<(), Stop> {
    let text = format!(
        r#"{RUN}
        for case in whole in-order at-random holes gone guards truncates threads signals forks \
            exec kills ends alone drops filter; do
            run --map=cache=0,ahead-min=16M -- ./program "$case" . | sort -u
            test "$case" != whole || at_least 1 ahead_pages
        done | sort -u"#
    );
    let said = with_program(fixture, "map-ahead", "$PWD/work", &text)?;
    expect("every case", &said, "ok\n")
}

/// No pool, no service, no file but the tables by which programs start faster; and the program's
/// descriptors, standard streams, status and signals are its own.
fn what_is_left(fixture: &Fixture) -> Result<(), Stop> {
    let text = format!(
        r#"{RUN}
        ls -A >before; ls -A >before
        echo in | run --map -- sh -c 'read word; echo "$word"; ls /proc/self/fd >inside; exit 7' ||
            echo $?
        ls /proc/self/fd | wc -l >outside
        test "$(wc -l <inside)" = "$(cat outside)"; rm inside outside
        run --map -- sh -c 'kill -9 $$' || echo $?
        "$hf" run --no-pool --map -- sh -c 'trap "echo term; exit 3" TERM
            echo $$ >pid; while :; do sleep 0.05; done' &
        until test -s pid; do sleep 0.05; done
        kill $!; wait $! || echo $?; rm pid
        run --map -- no-such-program 2>/dev/null || echo $?
        rm report; ls -A | cmp - before
        find home -mindepth 1 ! -path home/.cache ! -path 'home/.cache/holdfast*'
        ls -d home/.local 2>/dev/null || true"#
    );
    let said = script(fixture, "", &text)?;
    expect("what was said", &said, "in\n7\n137\nterm\n3\n127\n")
}

/// A pool within a run without one, the same again, and a run without one within a pool.
fn runs_within(fixture: &Fixture) -> Result<(), Stop> {
    let text = format!(
        r#"{RUN}
        "$hf" pool create pool --size 64M >/dev/null
        run --map -- "$hf" run --pool pool -- sh -c 'echo text >/hf/file; cat /hf/file'
        run --map -- "$hf" run --pool pool -- cat /hf/file
        run --map -- "$hf" run --no-pool --map=uses=1 -- echo again
        "$hf" run --pool pool -- "$hf" run --no-pool --map -- echo wrong 2>&1 ||
            echo $?
        "$hf" pool check pool >/dev/null"#
    );
    let said = script(fixture, "", &text)?;
    let (begun, refused) = said.split_at(said.find("holdfast: ").unwrap_or(said.len()));
    expect("what ran", begun, "text\ntext\nagain\n")?;
    match refused.contains("already runs on the pool") && refused.ends_with("\n125\n") {
        true => Ok(()),
        false => wrong(format!("it was refused with {refused:?}")),
    }
}

/// What needs a pool is refused in one sentence, before the program starts.
fn refusals(fixture: &Fixture) -> Result<(), Stop> {
    let text = format!(
        r#"{RUN}
        for option in '--pool=x' '--at=/x' '--consistency=sync' '--snapshot=x' '--slow=pcm'; do
            run --map $option -- echo started && exit 1
            test $? = 2
        done 2>errors
        "$hf" run --no-pool -- echo started 2>>errors && exit 1
        grep -c -- "--no-pool' cannot be used with\|were not provided: --map" errors
        test ! -e report"#
    );
    expect("refusals", &script(fixture, "", &text)?, "6\n")
}

/// The command itself is a large program in Rust that makes its calls by instructions of its own:
/// all of them are seen, and what it does to a pool is what it does without.
fn inline_calls(fixture: &Fixture) -> Result<(), Stop> {
    let text = format!(
        r#"{RUN}
        work() {{ # prefix...
            rm -rf pool
            "$@" "$hf" pool create pool --size 64M >/dev/null
            for i in 1 2 3; do "$@" "$hf" kv pool users put "key$i" "value$i"; done
            "$@" "$hf" kv pool users scan
            "$@" "$hf" snapshot pool create one
            "$@" "$hf" snapshot pool list | sed 's,.* ,,' # the name; before it is the time
            head -c 3000000 /dev/zero | tr '\0' x >file
            "$@" "$hf" --json warm file 2>/dev/null | grep -o '"bytes":[0-9]*' || true
            "$@" "$hf" pool check pool >/dev/null; echo "$?"
        }}
        work env >off
        work "$hf" run --no-pool --map=min=4K,uses=1 -- >on
        cmp off on; wc -l <on | tr -d ' '
        "$hf" --json map explain --output said -- "$hf" pool check pool >/dev/null
        grep -o 'off_by_unseen_calls":[0-9]*' said"#
    );
    let said = script(fixture, "", &text)?;
    match said.split_once('\n') {
        Some((lines, "off_by_unseen_calls\":0\n")) if lines.parse::<u32>().is_ok_and(|n| n > 4) => {
            Ok(())
        }
        _ => wrong(format!("it said {said:?}")),
    }
}
