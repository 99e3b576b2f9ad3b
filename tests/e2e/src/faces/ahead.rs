//! Pages that are mapped ahead of a program (`run --map`): what it sees is what it sees without.
//!
//! Invariant: `map-ahead.c` judges by what the kernel tells the program; where something must be
//! mapped ahead, it is waited for, because a busy machine has no core for that.

use super::{expect, new_pool, repository, script};
use crate::bad_input::{Case, Fixture, Stop};
use crate::process::on_path;

pub const CASES: &[(&str, Case)] = &[
    ("mapped ahead: what is read", reads),
    ("mapped ahead: what takes its place", addresses),
    ("mapped ahead: processes and threads", processes),
    ("mapped ahead: rights and filters", rights),
    ("mapped ahead: settings and report", settings),
];

/// Runs cases of `map-ahead.c`, with `option` to `--map`.
fn run(fixture: &Fixture, pool: &str, option: &str, cases: &[&str]) -> Result<String, Stop> {
    if !on_path("gcc") {
        return Err(Stop::Skip("gcc is not installed".into()));
    }
    let source = repository("tests/programs/map-ahead.c")?;
    let text = format!(
        r#"gcc -O1 -w -pthread -o map-ahead '{}'
        for case in {}; do
            echo "$case: $("$hf" run --pool "$pool" --map={option} --report report \
                -- ./map-ahead "$case" . | sort -u)"
        done
        grep -o '"ahead_[a-z]*":[0-9]*' report | sed 's/:[1-9][0-9]*/:n/'"#,
        source.display(),
        cases.join(" "),
    );
    script(fixture, pool, &text)
}

/// Each case says nothing but `ok`.
fn all_ok(fixture: &Fixture, cases: &[&str]) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let said = run(fixture, &pool, "cache=0,ahead-min=16M", cases)?;
    for case in cases {
        let line = said.lines().find(|line| line.starts_with(case));
        expect("a case", line.unwrap_or("none"), &format!("{case}: ok"))?;
    }
    Ok(())
}

fn reads(fixture: &Fixture) -> Result<(), Stop> {
    all_ok(fixture, &["whole", "in-order", "at-random", "holes"])
}

/// Other mappings, guarded pages, the end of the file, threads that map and unmap.
fn addresses(fixture: &Fixture) -> Result<(), Stop> {
    all_ok(fixture, &["gone", "guards", "truncates", "threads"])
}

/// Signals, fork, vfork, exec, kill, and every way to end.
fn processes(fixture: &Fixture) -> Result<(), Stop> {
    all_ok(fixture, &["signals", "forks", "exec", "kills", "ends"])
}

/// Calls for a process with one thread, credentials, filters of system calls.
fn rights(fixture: &Fixture) -> Result<(), Stop> {
    all_ok(fixture, &["alone", "drops", "filter"])
}

/// Nobody maps ahead, the call itself does, or the helper; what the report says of it.
fn settings(fixture: &Fixture) -> Result<(), Stop> {
    let counts = |[pages, windows, reached, ended]: [&str; 4]| {
        format!(
            "\"ahead_pages\":{pages}\n\"ahead_windows\":{windows}\n\"ahead_reached\":{reached}\n\
             \"ahead_ended\":{ended}\n"
        )
    };
    // How often it rests depends on the machine; and once almost all is mapped, the program of
    // `whole` reads it and may reach a window that the helper was kept from.
    let certain = |said: String, case: &str| {
        let open =
            |line: &&str| line.contains("rests") || case == "whole" && line.contains("reached");
        let lines = said.lines().filter(|line| !open(line));
        lines.map(|line| format!("{line}\n")).collect::<String>()
    };
    let pool = new_pool(fixture, "pool")?;
    for (option, case, wanted) in [
        ("cache=0,ahead=off", "untouched", ["0"; 4]),
        ("cache=0,ahead-min=33M", "untouched", ["0"; 4]),
        ("cache=0,ahead=sync", "at-once", ["n", "0", "0", "0"]),
        ("cache=0", "whole", ["n", "n", "0", "n"]),
    ] {
        let said = certain(run(fixture, &pool, option, &[case])?, case);
        let wanted = certain(format!("{case}: ok\n{}", counts(wanted)), case);
        expect(option, &said, &wanted)?;
    }
    Ok(())
}
