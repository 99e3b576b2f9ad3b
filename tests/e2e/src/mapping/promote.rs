//! Huge pages for files in memory that are mapped again and again (`--map=promote=on`).
//!
//! Invariant: the program looks at every page each time that it maps the file, and says so.

use crate::bad_input::{Case, Fixture, Stop};
use crate::faces::{expect, repository, script};
use crate::process::on_path;

pub const CASES: &[(&str, Case)] = &[
    ("promotion: a file that is mapped often", often),
    ("promotion: what is left alone", left_alone),
];

/// `run SETTINGS CASE` runs it, `promotions` is how many the report has, and `huge FILE` how many
/// huge pages a file is of.
const HELPERS: &str = r#"
    where=$(mktemp -d /dev/shm/holdfast-XXXXXX)
    trap 'rm -rf "$where"' EXIT
    export HOME=$PWD/home; mkdir home
    run() {
        "$hf" run --no-pool --map="$1" --report report -- ./program "$2" "$where"
    }
    promotions() { grep -o '"promotions":[0-9]*' report | cut -d: -f2; }
    huge() {
        "$hf" --json warm "$where/$1" | grep -o '"huge_pages_before":[0-9]*' | cut -d: -f2
    }
    ./program numbered "$where" >/dev/null
    cp "$where/numbered" "$where/tried"
    "$hf" warm "$where/tried" >/dev/null 2>&1 || { echo no; exit 0; }
"#;

fn run(fixture: &Fixture, text: &str) -> Result<String, Stop> {
    if !on_path("gcc") {
        return Err(Stop::Skip("gcc is not installed".into()));
    }
    let source = repository("tests/programs/map-explain.c")?;
    let build = format!("gcc -O1 -w -o program '{}'", source.display());
    let said = script(fixture, "", &format!("{build}\n{HELPERS}\n{text}"))?;
    match said.as_str() {
        "no\n" => Err(Stop::Skip("tmpfs has no huge pages here".into())),
        _ => Ok(said),
    }
}

/// How much is done depends on free cores, so it is waited for: a run goes on for a second.
fn often(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"total=0
        for turn in $(seq 20); do
            run cache=0 often >said; test "$(cat said)" = often
            total=$((total + $(promotions)))
            test "$(promotions)" = 0 || break
        done
        test "$total" -gt 0 && echo some
        test "$(huge numbered)" -ge "$total" && echo huge"#;
    expect("promotions", &run(fixture, text)?, "some\nhuge\n")
}

/// A file with holes takes no more memory; with `off`, and where mappings are kept, none is made.
fn left_alone(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"before=$(stat -c %b "$where/sparse")
        run cache=0 sparse; promotions
        test "$(stat -c %b "$where/sparse")" = "$before"
        run cache=0,promote=off often; promotions
        run cache=64M often; promotions
        huge numbered"#;
    let wanted = "sparse\n0\noften\n0\noften\n0\n0\n";
    expect("promotions", &run(fixture, text)?, wanted)
}
