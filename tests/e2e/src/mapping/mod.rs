//! Mappings of the host's files in runs with `--map`: what programs see is the same as without it,
//! and the report tells that mappings were kept and handed out again.
//!
//! Invariant: where something is compared, the mapping cache has been at work in one of the two.

mod explain;
mod no_pool;
mod promote;

use crate::bad_input::{Case, Fixture, Stop, run_cases, wrong};
use crate::faces::{expect, new_pool, repository, script};
use crate::process::on_path;
use std::process::ExitCode;

const CASES: &[(&str, Case)] = &[
    ("mapping random calls", random_calls),
    ("mapping random calls on a disk", random_calls_on_a_disk),
    ("mapping random calls in a pool", random_calls_in_a_pool),
    ("mapping what is kept", what_is_kept),
    ("mapping what is kept on a disk", what_is_kept_on_a_disk),
    ("mapping unmounted", unmounted),
    ("mapping while memory is short", short_of_memory),
    ("mapping shown", shown),
    ("mapping programs", programs),
    ("mapping options", options),
];

/// `hf-e2e mapping`
pub fn main(names: &[&str]) -> ExitCode {
    run_cases(
        "mapping",
        &[CASES, explain::CASES, no_pool::CASES, promote::CASES].concat(),
        names,
    )
}

/// Shell functions: `run` on the pool with a report, `at_least N NAME` of what it counted.
const HELPERS: &str = r#"
run() { "$hf" run --pool "$pool" --report report "$@"; }
count() { grep -o "\"$1\":[0-9]*" report | tail -1 | cut -d: -f2; }
at_least() {
    [[ $(count "$2") -ge $1 ]] || { echo "$2: $(count "$2"), not $1" >&2; cat report >&2; exit 1; }
}
"#;

/// Runs a script with the program `program` built from tests/programs, and `where` to work in.
fn with_program(fixture: &Fixture, program: &str, place: &str, text: &str) -> Result<String, Stop> {
    if !on_path("gcc") {
        return Err(Stop::Skip("gcc is not installed".into()));
    }
    let pool = new_pool(fixture, "pool")?;
    let source = repository(&format!("tests/programs/{program}.c"))?;
    let text = format!(
        "{HELPERS}
        gcc -O1 -w -pthread -o program '{}'
        where={place}
        mkdir -p \"$where\"
        {text}",
        source.display()
    );
    script(fixture, &pool, &text)
}

/// The same calls, by seed, without `--map` and with it.
const COMPARED: &str = r#"
    run -- ./program 1 100 400 "$where" /hf >off
    for settings in min=4K,uses=1 min=4K,entries=3 min=4K,uses=1,cache=300K,idle=1ms; do
        rm -f "$where"/map-*
        run --map=$settings -- ./program 1 100 400 "$where" /hf >on
        cmp off on
        at_least 500 hits
        at_least 1000 evicted
    done
    rm -rf "$where""#;

fn random_calls(fixture: &Fixture) -> Result<(), Stop> {
    with_program(fixture, "mapping-ops", "$PWD/work", COMPARED).map(drop)
}

/// On the file system of /var/tmp, where the tests' own directory may be in memory.
fn random_calls_on_a_disk(fixture: &Fixture) -> Result<(), Stop> {
    with_program(fixture, "mapping-ops", ON_A_DISK, COMPARED).map(drop)
}

/// The same calls on files of tmpfs and of a pool. What another process cuts off a file is gone
/// from a mapping at the next call that is caught, so children cut nothing.
fn random_calls_in_a_pool(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"trap 'rm -rf "$where"' EXIT
        ./program 1 150 400 "$where" "$where" uncut >off
        for settings in '' --map=min=4K --map=min=4K,entries=3,idle=1ms; do
            run $settings -- sh -c 'rm -rf /hf/work; mkdir /hf/work
                exec ./program 1 150 400 /hf/work /hf/work uncut' >on
            cmp off on
            at_least 100000 served
            test -z "$settings" || at_least 500 hits
        done
        "$hf" pool check "$pool""#;
    with_program(
        fixture,
        "mapping-ops",
        "$(mktemp -d /dev/shm/holdfast-XXXXXX)",
        text,
    )?;
    Ok(())
}

const ON_A_DISK: &str = "$(mktemp -d /var/tmp/holdfast-mapping.XXXXXX)";

/// Every case with what it finds, as `mapping-cases.c` says.
const KEPT: &str = r#"
    trap 'rm -rf "$where"' EXIT
    try() { # settings case
        rm -rf "$where"/*
        printf '%s: ' "$2"
        run "$1" -- ./program "$2" "$where"
    }
    for case in again forked deleted left-out advice limit sandboxed grown numbers cut threads; do
        try --map=uses=1 "$case"
    done
    at_least 10000 hits
    at_least 1 misses
    at_least 100000000 bytes
    export DROP="'$hf' map drop '$pool'"
    try --map=uses=1 dropped
    try --map=uses=1,idle=200ms timeout
    at_least 1 evicted
    try --map once
    try --map=cache=0 again
    at_least 0 hits"#;

/// In `again` both addresses are kept and handed out. A child of `forked` has nothing of what its
/// parent keeps, and keeps what it uses itself.
const FOUND: &str = "again: 1 2 1 1
forked: 1 0 1 1 0 1 1 1 2 1 
deleted: 1 0 0 3 0 1
left-out: 000000000
advice: 1 1 0
limit: 6 1
sandboxed: 1 0 0
grown: 1 1 0
numbers: 0 0
cut: 1 -7 0 1 1
threads: done
dropped: 1 0 1
timeout: 1 0
once: 0 1 1 
";

fn is_kept(fixture: &Fixture, place: &str) -> Result<(), Stop> {
    let said = with_program(fixture, "mapping-cases", place, KEPT)?;
    let Some((found, without)) = said.rsplit_once("again: ") else {
        return wrong(format!("the program said {said:?}"));
    };
    expect("what is kept", found, FOUND)?;
    // The kernel may give the same addresses out again by itself.
    match without.starts_with("1 0 1") {
        true => Ok(()),
        false => wrong(format!("a cache of no bytes kept {without:?}")),
    }
}

fn what_is_kept(fixture: &Fixture) -> Result<(), Stop> {
    is_kept(fixture, "$PWD/work")
}

fn what_is_kept_on_a_disk(fixture: &Fixture) -> Result<(), Stop> {
    is_kept(fixture, ON_A_DISK)
}

/// A program that unmounts a file system finds nothing of its own in the way.
fn unmounted(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"unshare -m true 2>/dev/null || { echo no; exit 0; }
        unshare -m "$hf" run --pool "$pool" --map=uses=1 -- ./program unmounted "$where""#;
    let said = with_program(fixture, "mapping-cases", "$PWD/work", text)?;
    match said.as_str() {
        "no\n" => Err(Stop::Skip("no mount namespace can be made".into())),
        said => expect("what was kept, and what umount said", said, "1 0\n"),
    }
}

/// Nothing is kept while the kernel says that all programs wait for memory.
fn short_of_memory(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"unshare -m true 2>/dev/null || { echo no; exit 0; }
        [[ -e /proc/pressure/memory ]] || { echo no; exit 0; }
        printf 'some avg10=50.00 x\nfull avg10=0.99 x\n' >pressure
        unshare -m sh -c 'mount --bind pressure /proc/pressure/memory && exec "$@"' sh \
            "$hf" run --pool "$pool" --map=uses=1 -- ./program pressed "$where""#;
    let said = with_program(fixture, "mapping-cases", "$PWD/work", text)?;
    match said.as_str() {
        "no\n" => Err(Stop::Skip("the kernel's file cannot be replaced".into())),
        said => expect("what was kept", said, "1 0 0 1\n"),
    }
}

/// What was kept shows while programs run, to who looks from outside.
fn shown(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"mkfifo go
        "$hf" run --pool "$pool" --map=uses=1 -- sh -c "./program again $where >/dev/null
            echo done >go; read line <go" &
        read line <go
        "$hf" pool status --json "$pool" | grep -o 'maps_reused":[1-9]' | tr -d '0-9'
        "$hf" top --metrics "$pool" | sed -n 's/^holdfast_\(maps_reused_total\).* [1-9].*/\1/p'
        echo >go; wait"#;
    let said = with_program(fixture, "mapping-cases", "$PWD/work", text)?;
    expect(
        "what is shown",
        &said,
        "maps_reused\":\nmaps_reused_total\n",
    )
}

/// Programs that know nothing of it, and what they start.
fn programs(fixture: &Fixture) -> Result<(), Stop> {
    if !["python3", "git"].into_iter().all(on_path) {
        return Err(Stop::Skip("python3 or git is not installed".into()));
    }
    let pool = new_pool(fixture, "pool")?;
    let text = format!(
        r#"{HELPERS}
        cat >work.py <<'END'
import mmap, os, subprocess, sys
for n in range(4):
    with open(f'data-{{n}}', 'wb') as f: f.write(bytes([n + 1]) * 300000)
for round in range(20):
    for n in range(4):
        with open(f'data-{{n}}', 'rb') as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
            assert m[:] == bytes([n + 1]) * 300000
if sys.argv[1:] == ['once']: sys.exit()
# By fork, by vfork, and with an environment of their own.
for words in (['env', '-i', sys.executable], ['sh', '-c', 'exec "$0" "$@"', sys.executable]):
    subprocess.run(words + [__file__, 'once'], check=True)
if os.fork() == 0:
    os.execv(sys.executable, [sys.executable, __file__, 'once'])
assert os.wait()[1] == 0
print('fine')
END
        run --map -- python3 work.py
        at_least 280 hits
        export GIT_CONFIG_GLOBAL=/dev/null HOME=$PWD
        git init -q repo; cd repo
        for i in $(seq 300); do head -c 3000 /dev/urandom | base64 >$i; done
        git add .; git -c user.name=a -c user.email=b commit -qm one
        git gc -q; cd ..
        (cd repo; git log --stat; git fsck; git status; cat .git/HEAD) >plain 2>&1
        run --map=min=4K -- sh -c 'cd repo; git log --stat; git fsck; git status
            cat .git/HEAD' >mapped 2>&1
        cmp plain mapped
        at_least 1 misses
        if command -v rg >/dev/null; then
            rg --mmap -c AAA repo | sort >plain || true
            run --map=min=4K -- rg --mmap -c AAA repo | sort >mapped || true
            cmp plain mapped
        fi"#
    );
    expect(
        "what python said",
        &script(fixture, &pool, &text)?,
        "fine\n",
    )
}

/// Settings are the run's; a run within it has the same ones.
fn options(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = r#"plain() { "$hf" run --pool "$pool" "$@"; }
        inside() { plain "${outer[@]}" -- "$hf" run --pool "$pool" "$@"; }
        outer=(--map=idle=5s); inside --map=idle=5s -- echo same
        outer=(--map); inside -- echo inherited
        outer=(--map); inside --map=entries=7 -- echo other && exit 1
        outer=(); inside --map -- echo none && exit 1
        "$hf" map drop "$pool"; "$hf" map drop missing && exit 1
        "$hf" run --pool "$pool" --map -- env -i "$hf" --version >/dev/null
        "$hf" run --pool "$pool" --report report -- true
        grep '"mapping":{.*[1-9].*}' report || echo nothing"#;
    let said = script(fixture, &pool, &format!("exec 2>errors; {text}"))?;
    expect("what was said", &said, "same\ninherited\nnothing\n")?;
    let errors = std::fs::read_to_string(fixture.path("errors"))?;
    match errors.matches("this program already runs with").count() {
        2 => Ok(()),
        _ => wrong(format!("it was refused with {errors:?}")),
    }
}
