//! What the command says: sizes in the units that people type, and remedies that remedy; and the
//! pool of a user who names none.

use super::{expect, new_pool, script};
use crate::bad_input::{Case, Fixture, Stop, wrong};
use std::fs;
use std::path::Path;

pub const CASES: &[(&str, Case)] = &[
    ("sentences about pools", pools),
    ("sentences about sizes", sizes),
    ("a user's own pool", own),
    ("another's directory in the place of an own pool", anothers),
];

/// What each command says on standard error.
fn say(fixture: &Fixture, table: &[(&[&str], &str)]) -> Result<(), Stop> {
    for (words, expected) in table {
        let said = fixture.holdfast(words)?.err;
        expect(&words.join(" "), &said, &format!("holdfast: {expected}\n"))?;
    }
    Ok(())
}

fn pools(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let pool = pool.as_str();
    fs::create_dir_all(fixture.path("full/of"))?;
    fs::create_dir(fixture.path("empty"))?;
    let path = |name: &str| fixture.path(name).to_string_lossy().into_owned();
    let (full, empty, none) = (path("full"), path("empty"), path("none"));
    let (full, empty, none) = (full.as_str(), empty.as_str(), none.as_str());
    let another = "Fix: name the directory of a pool; `holdfast pool create` makes one";
    let no_pool = format!("{full} is not a Holdfast pool.\n{another}");
    let no_pool_for_keys = format!("there is no pool at {full}.\n{another}");
    let empty_one = format!("{empty} is not a Holdfast pool.\nFix: holdfast pool create {empty}");
    let missing = format!("there is no pool at {none}.\nFix: holdfast pool create {none}");
    let no_snapshot = format!("there is no snapshot \"no\".\nFix: holdfast snapshot {pool} list");
    say(
        fixture,
        &[
            (&["pool", "status", full], &no_pool),
            (&["pool", "destroy", full], &no_pool),
            (&["run", "--pool", full, "--", "true"], &no_pool),
            (&["kv", full], &no_pool_for_keys),
            (&["pool", "status", empty], &empty_one),
            (&["pool", "status", none], &missing),
            (&["kv", none], &missing),
            (
                &["run", "--pool", pool, "--snapshot", "no", "--", "true"],
                &no_snapshot,
            ),
            (
                &["snapshot", pool, "delete", "no"],
                "there is no snapshot \"no\".\n\
                Fix: `holdfast snapshot POOL list` shows the pool's snapshots",
            ),
        ],
    )
}

fn sizes(fixture: &Fixture) -> Result<(), Stop> {
    let new = fixture.path("new").to_string_lossy().into_owned();
    let create = |size| ["pool", "create", &new, "--size", size];
    let ranges = "is not possible: it has 16M to 64T.\nFix: choose a size of at";
    say(
        fixture,
        &[
            (&create("4K"), &format!("a pool of 4K {ranges} least 16M")),
            (
                &create("90000G"),
                &format!("a pool of 90000G {ranges} most 64T"),
            ),
        ],
    )?;
    let said = fixture.holdfast(&create("60T"))?.err;
    let free = said.strip_prefix("holdfast: a pool of 60T does not fit into the ");
    let free =
        free.and_then(|rest| rest.split_once(" that are free there.\nFix: choose a smaller "));
    if free.is_none_or(|(free, _)| free.len() > 7 || free.parse::<u64>().is_ok_and(|n| n > 1023)) {
        return wrong(said);
    }
    fixture.done(&create("64Mi"))?;
    let text = "$hf run --pool $pool -- sh -c 'head -c 40M /dev/zero >/hf/a'
        $hf snapshot $pool create s
        $hf pool resize $pool 16M 2>&1 || true
        $hf snapshot $pool delete s
        $hf run --pool $pool -- sh -c 'echo b >/hf/b; rm /hf/a'
        $hf pool resize $pool 16M";
    let said = script(fixture, &new, text)?;
    let begins = format!("holdfast: {new}: the pool cannot become that small: its data needs ");
    let fix = "Fix: choose at least that size, or delete snapshots: what they have is not moved\n";
    if !(said.starts_with(&begins) && said.ends_with(fix)) {
        return wrong(said);
    }
    fixture.done(&["volume", &new, "create", "v", "--size", "10M"])?;
    say(
        fixture,
        &[(
            &["volume", &new, "resize", "v", "--size", "1M"],
            "volume \"v\" has 10M, and what is beyond 1M would be lost.\n\
            Fix: add --shrink if nothing needs them any more",
        )],
    )
}

/// A user of this test alone, whose pool is in memory.
const USER: &str = "61777";

fn own_place(fixture: &Fixture) -> Result<String, Stop> {
    fixture.need_root()?;
    let place = format!("/dev/shm/holdfast-{USER}");
    match Path::new(&place).exists() {
        true => Err(Stop::Skip(format!("needs {place} not to be there"))),
        false => Ok(place),
    }
}

fn own(fixture: &Fixture) -> Result<(), Stop> {
    let place = own_place(fixture)?;
    // Names of tests that run beside this one may begin the same.
    let most = &place[..place.len() - 1];
    let text = format!(
        r#"export HOME=$PWD/home
        me() {{ setpriv --reuid {USER} --regid {USER} --clear-groups "$hf" "$@"; }}
        trap 'rm -rf {place}' EXIT
        install -d -o {USER} home
        me pool status 2>&1 || true
        me run -- sh -c 'echo mine >/hf/f' 2>&1 | sed 's/, [0-9.]*[MGT] in/, SIZE in/'
        me run -- cat /hf/f 2>&1
        me pool status | grep -c ^medium
        me pool check | sed 's/: .*//'
        me kv @ users put ada 1815; me kv @ users get ada; echo
        me snapshot @ create first; me snapshot @ list | wc -l
        me volume @ create disk --size 1M; me volume @ list | wc -l
        me top --count 1 --json | wc -l
        me run --pool @ -- ls /hf/f
        me map drop
        HOLDFAST_COMPLETE=bash _CLAP_COMPLETE_INDEX=3 \
            setpriv --reuid {USER} --regid {USER} --clear-groups \
            "$hf" -- holdfast pool status {most}
        echo; mkdir @; me pool status ./@ 2>&1 | sed 1q || true
        me pool destroy @; ls {place} 2>&1 | wc -l || true
        me pool create @ --size 64M; me pool status | grep size; me pool destroy @"#
    );
    let expected = format!(
        "holdfast: there is no pool at {place}.\nFix: holdfast pool create {place}\n\
        holdfast: your own pool was made: {place}, SIZE in memory, and what is in it is gone when \
        the machine restarts.\nmine\n1\n{place}\n1815\n1\n1\n1\n/hf/f\n{place}\n\
        holdfast: ./@ is not a Holdfast pool.\n1\n\
        memory: survives the death of processes, not the loss of power\nsize         64M\n"
    );
    expect(
        "what a user without a pool sees",
        &script(fixture, "", &text)?,
        &expected,
    )
}

fn anothers(fixture: &Fixture) -> Result<(), Stop> {
    let place = own_place(fixture)?;
    let text = format!(
        r#"me() {{ setpriv --reuid {USER} --regid {USER} --clear-groups "$hf" "$@" 2>&1 || true; }}
        mkdir -m 777 {place}; trap 'rm -rf {place}' EXIT
        me run -- true; me pool status; me kv @; me pool create @ --size 64M"#
    );
    let refusal = format!(
        "holdfast: {place} is not a directory of yours.\nFix: name another pool, by its directory\n"
    );
    expect("refusals", &script(fixture, "", &text)?, &refusal.repeat(4))
}
