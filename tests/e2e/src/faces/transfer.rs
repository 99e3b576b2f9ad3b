//! Import and export: the line format, and LMDB's own tools.

use super::{expect, new_pool, script};
use crate::bad_input::{Case, Fixture, Stop, wrong};
use crate::process::on_path;

pub const CASES: &[(&str, Case)] = &[
    ("kv dump and load lines", lines),
    ("kv dump and load of all keyspaces", all),
    ("kv load by foreign means", foreign),
    ("kv to lmdb and back", lmdb),
    ("kv from lmdb", from_lmdb),
];

/// Keys and values of all kinds, from the same seed each time, as lines.
const MAKE: &str = r#"make() { awk 'BEGIN { srand(5); for (i = 0; i < 3000; i++) {
        line = sprintf("%05d", i * 7919 % 3001); n = int(rand() * 60);
        for (j = 0; j < n; j++) line = line sprintf("\\x%02x", int(rand() * 256));
        line = line "\t"; n = rand() < 0.01 ? 9000 : int(rand() * 300);
        for (j = 0; j < n; j++) line = line sprintf("\\x%02x", int(rand() * 256));
        print line } }'; }
    kv() { "$hf" kv "$pool" "$@"; }
"#;

fn lines(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = format!(
        "{MAKE} make | kv a load --json; kv a dump >a; kv b load <a; kv b dump >b; cmp a b
        wc -l <a; kv b load <a; kv b scan | cmp - a
        printf 'k\\t1\\nk\\t2' | kv c load; kv c dump
        printf '' | kv d load --json; kv d dump
        head -c 3000000 /dev/urandom | kv e put big; kv e dump | kv f load
        cmp <(kv e get big) <(kv f get big); kv a dump | head -1 | wc -l || true"
    );
    let said = script(fixture, &pool, &text)?;
    expect(
        "the commands",
        &said,
        "{\"loaded\":3000}\n3000\nk\t2\n{\"loaded\":0}\n1\n",
    )
}

/// A dump of everything makes the same pool elsewhere, and that of a snapshot what there was.
fn all(fixture: &Fixture) -> Result<(), Stop> {
    let (pool, other) = (new_pool(fixture, "pool")?, new_pool(fixture, "other")?);
    let text = format!(
        "{MAKE} make | kv a load; kv 'with	tab' put -e 'k\\x00' 'v\\t\\n'
        kv e put x 1; kv e erase x; kv c put x ''
        kv dump >all; \"$hf\" kv '{other}' load --json <all
        \"$hf\" kv '{other}' dump | cmp - all
        \"$hf\" snapshot \"$pool\" create then; kv a drop; kv c put x 2; kv dump
        kv dump --snapshot then | cmp - all; kv drop 2>&1 | head -1 || true
        kv dump --format mdb 2>&1 | head -1 || true
        printf 'a\tb\n' | kv load 2>&1 | head -1 || true"
    );
    let said = script(fixture, &pool, &text)?;
    expect(
        "the commands",
        &said,
        "{\"loaded\":3002}\nc\nc\tx\t2\ne\nwith\\ttab\nwith\\ttab\tk\\x00\tv\\t\\n\n\
         holdfast: the keyspace is missing.\n\
         holdfast: the format mdb is for one keyspace; name it, or use the format lines.\n\
         holdfast: line 1: the line has no tab between key and value.\n",
    )
}

/// A text file made by something else.
fn foreign(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = r#"printf 'plain\tvalue with spaces\tand a tab\n\303\244\t\303\266\n\377\t\376\n' |
            "$hf" kv "$pool" keys load
        "$hf" kv "$pool" keys scan; "$hf" kv "$pool" keys get plain"#;
    let said = script(fixture, &pool, text)?;
    let value = "value with spaces\tand a tab";
    let expected = format!(
        "plain\t{}\n\u{e4}\t\u{f6}\n\\xff\t\\xfe\n{value}",
        value.replace('\t', "\\t")
    );
    expect("the commands", &said, &expected)
}

fn need_lmdb() -> Result<(), Stop> {
    match on_path("mdb_load") && on_path("mdb_dump") {
        true => Ok(()),
        false => Err(Stop::Skip(
            "needs mdb_load and mdb_dump (lmdb-utils)".into(),
        )),
    }
}

/// What mdb_load makes of our dump, mdb_dump gives back, in both formats both ways. Until 0.9.24,
/// mdb_dump -p does not escape backslashes, so they come into play without it.
fn lmdb(fixture: &Fixture) -> Result<(), Stop> {
    need_lmdb()?;
    let pool = new_pool(fixture, "pool")?;
    let text = format!(
        r#"{MAKE} make | grep -v 5c | kv a load; kv a dump >lines
        both() {{ for format in mdb mdb-print; do
            mkdir db; kv a dump --format $format >dump
            mdb_load -f dump db 2>said || {{ cat said >&2; exit 1; }}
            mdb_dump $1 db >back; kv b load --format mdb <back
            kv b dump | cmp - lines; kv b scan | wc -l >>counts; kv b erase 00000
            if [[ $format$1 == mdb || $format$1 == mdb-print-p ]]; then
                diff <(grep -v ^ma dump) <(grep -v ^ma back) >&2
            fi
            rm -r db
        done; }}
        both -p; printf 'back\\\\slash\t\\\\\\\\41' | kv a load; kv a dump >lines; make | kv a load
        kv a dump >lines; both ""; uniq counts | tail -1; kv b get 'back\slash'"#
    );
    let said = script(fixture, &pool, &text)?;
    expect("pairs and a value", &said, "3001\n\\\\41")
}

/// A database that Holdfast has never seen.
fn from_lmdb(fixture: &Fixture) -> Result<(), Stop> {
    need_lmdb()?;
    let pool = new_pool(fixture, "pool")?;
    let text = r#"mkdir db named
        seq 1 500 | sed 's/.*/key &\nvalue & \\\\ back/' | mdb_load -T db
        mdb_dump db | "$hf" kv "$pool" keys load --format mdb --json
        "$hf" kv "$pool" keys get 'key 77'; echo
        printf 'k\nv\n' | mdb_load -T -s one named; printf 'k\nw\n' | mdb_load -T -s two named
        mdb_dump -s two named | "$hf" kv "$pool" two load --format mdb; "$hf" kv "$pool" two get k
        echo; mdb_dump -a named | "$hf" kv "$pool" all load --format mdb 2>said && exit 3
        cat said; seq 1 20000 | sed 's/.*/&\t&&&&&&&&&&&&/' | "$hf" kv "$pool" many load
        mkdir many; "$hf" kv "$pool" many dump --format mdb | mdb_load many 2>/dev/null
        mdb_stat many | grep Entries"#;
    let said = script(fixture, &pool, text)?;
    let (before, after) = (
        "{\"loaded\":500}\nvalue 77 \\ back\nw\n",
        "  Entries: 20000\n",
    );
    let told = said
        .strip_prefix(before)
        .and_then(|s| s.strip_suffix(after));
    match told {
        Some(told) if told.contains("more than one database") => Ok(()),
        _ => wrong(format!("the commands: {said:?}")),
    }
}
