//! `holdfast map explain`: for a program made for each case it says what would help, and what it
//! said comes true when that is done.
//!
//! Invariant: what is compared are counts (of faults, of mappings given out again), which do not
//! depend on how busy the machine is.

use crate::bad_input::{Case, Fixture, Stop};
use crate::faces::{expect, repository, script};
use crate::process::on_path;

pub const CASES: &[(&str, Case)] = &[
    ("map explain: the same files again", again),
    ("map explain: a larger cache", larger),
    ("map explain: a large file in order", in_order),
    ("map explain: a large file at random", at_random),
    ("map explain: nothing helps", nothing),
    ("map explain: why it is off", off),
    ("map explain: the program", program),
];

/// `explain CASE [OPTION]` writes `said`, `field NAME` is a number of it and `advice` all advice
/// by name, `faults ADVICE` and `command ADVICE` what it spares and how.
const HELPERS: &str = r#"
    where=$(mktemp -d /dev/shm/holdfast-XXXXXX)
    trap 'rm -rf "$where"' EXIT
    export HOME=$PWD/home; mkdir home
    explain() {
        "$hf" --json map explain --output said ${2:-} -- ./program "$1" "$where" >out
        test "$(cat out)" = "$1"
    }
    field() { grep -o "\"$1\":[0-9]*" said | head -1 | cut -d: -f2; }
    one() { grep -o "{\"what\":\"$1\"[^}]*}" said; }
    advice() { grep -o '"what":"[a-z-]*"' said | cut -d'"' -f4 | tr '\n' ' '; }
    faults() { one "$1" | grep -o '"faults":[0-9]*' | cut -d: -f2; }
    command() { one "$1" | sed 's/.*"command":"\([^"]*\)".*/\1/'; }
    ./program files "$where" >/dev/null
"#;

fn run(fixture: &Fixture, text: &str) -> Result<String, Stop> {
    if !on_path("gcc") {
        return Err(Stop::Skip("gcc is not installed".into()));
    }
    let source = repository("tests/programs/map-explain.c")?;
    let build = format!("gcc -O1 -w -o program '{}'", source.display());
    script(fixture, "", &format!("{build}\n{HELPERS}\n{text}"))
}

fn again(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"explain again; advice; echo
        before=$(field minor_faults) expected=$(faults map) hits=$(field hits_expected)
        test "$(command map)" = 'holdfast run --map'
        test "$expected" -gt 20000
        explain again --map; advice; echo
        spared=$((before - $(field minor_faults)))
        echo "$((spared * 10 >= expected * 9)) $((spared * 10 <= expected * 11))"
        echo "$(($(field hits) - hits))""#;
    expect("advice", &run(fixture, text)?, "map \nnothing \n1 1\n0\n")
}

/// With a cache that is too small there are no hits, and what is said of its size is enough.
fn larger(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"explain again --map=cache=4M; advice; echo
        test "$(field hits)" -lt 100
        before=$(field minor_faults) expected=$(faults cache)
        option=$(command cache); echo "${option#holdfast run }"
        explain again "${option#holdfast run }"; advice; echo
        echo "$(((before - $(field minor_faults)) * 10 >= expected * 9))""#;
    let wanted = "cache \n--map=cache=20M,entries=1024\nnothing \n1\n";
    expect("advice", &run(fixture, text)?, wanted)
}

/// The helper's faults are the process's as well, so it is its pages that are counted; and it maps
/// as many as there is a free core for, which is waited for.
fn in_order(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"explain in-order
        field read_in_order; advice | tr ' ' '\n' | grep -c 'ahead\|warm'
        faults ahead
        for turn in $(seq 20); do
            explain in-order --map
            test "$(field ahead_pages)" = 0 || { echo some; break; }
        done"#;
    expect("advice", &run(fixture, text)?, "1\n2\n1024\nsome\n")
}

fn at_random(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"explain at-random
        field read_in_order; advice; echo
        before=$(field minor_faults) expected=$(faults warm)
        test "$(command warm)" = "holdfast warm $where/large, then holdfast run --map"
        "$hf" --json warm "$where/large" | grep -q '"huge_pages":32,' || { echo no; exit 0; }
        explain at-random --map=ahead=off
        test "$(field huge_pages)" = 32
        echo "$(((before - $(field minor_faults)) * 10 >= expected * 9))""#;
    match run(fixture, text)?.as_str() {
        said if said.ends_with("no\n") => Err(Stop::Skip("tmpfs has no huge pages here".into())),
        said => expect("advice", said, "0\nwarm \n1\n"),
    }
}

fn nothing(fixture: &Fixture) -> Result<(), Stop> {
    let text = "explain computes; advice; field hits_expected; field unmaps | tr 0-9 n";
    expect("advice", &run(fixture, text)?, "nothing 0\nn\n")
}

/// Memory that was to be locked, whether it was or not; and files that are open for writing.
fn off(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"explain locked; advice; field off_by_locked_memory; field hits_expected
        explain writer; advice; field unfit_open_for_writing"#;
    let wanted = "nothing off 1\n0\nread-only 2000\n";
    expect("advice", &run(fixture, text)?, wanted)
}

/// It is started as by `run`: what it says, its end, what it starts, with a pool and without.
fn program(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#""$hf" pool create pool --size 64M >/dev/null
        for option in '' '--pool=pool' '--pool=pool --map'; do
            "$hf" map explain $option -- sh -c 'echo out; ./program again "$0"; exit 7' \
                "$where" 2>words || echo $?
            grep -c 'and 2 programs\|times mmap\|^  [a-z]*: ' words
            grep -o '^  [a-z]*: ' words
        done
        "$hf" map explain --pool pool -- sh -c 'echo text >/hf/file; cat /hf/file' 2>/dev/null
        "$hf" map explain -- no-such-program 2>words || echo $?
        "$hf" map explain --output none/file -- echo started 2>words || echo $?
        "$hf" map explain --at /x -- echo started 2>words || echo $?"#;
    let one = |advice| format!("out\nagain\n7\n3\n  {advice}: \n");
    let runs = [one("map"), one("map"), one("nothing")].concat();
    expect(
        "what was said",
        &run(fixture, text)?,
        &format!("{runs}text\n127\n125\n2\n"),
    )
}
