//! `holdfast kv` and `holdfast snapshot` as people use them.

use super::{expect, new_pool, script};
use crate::bad_input::{Case, Fixture, Stop};

pub const CASES: &[(&str, Case)] = &[
    ("kv get put erase", single),
    ("kv bytes of all kinds", bytes),
    ("kv a value of many pieces", huge),
    ("kv scan", scan),
    ("kv keyspaces", keyspaces),
    ("kv several at once", several),
    ("snapshot commands", snapshots),
    ("top and metrics", top),
];

fn single(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let said = script(
        fixture,
        &pool,
        r#"kv() { "$hf" kv "$pool" keys "$@"; }
        kv put name 'the value'; kv get name; echo
        kv put name other; kv get name; echo
        printf 'piped' | kv put piped; kv get piped; echo
        printf 'dash' | kv put dash -; kv get dash; echo
        kv put empty ''; kv get empty; echo
        kv put number -5; kv get number; echo
        kv put -- -key -value; kv get -- -key; echo
        kv get name --json; kv erase name --json; kv erase name --json; kv erase name
        kv get name 2>/dev/null && exit 3; echo $?
        kv get piped >/dev/full 2>/dev/null && exit 4; echo $?"#,
    )?;
    let expected = "the value\nother\npiped\ndash\n\n-5\n-value\n\
        {\"key\":\"name\",\"value\":\"other\"}\n{\"erased\":true}\n{\"erased\":false}\n1\n1\n";
    expect("the commands", &said, expected)
}

fn bytes(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let said = script(
        fixture,
        &pool,
        r#"kv() { "$hf" kv "$pool" keys "$@"; }
        head -c 100000 /dev/urandom >small; head -c 5000000 /dev/urandom >large; : >none
        for f in small large none; do kv put $f <$f; kv get $f | cmp - $f; done
        for f in small large none; do kv put $f.again - <$f; kv get $f.again | cmp - $f; done
        kv put large <small; kv get large | cmp - small
        kv put small <large; kv get small | cmp - large
        for f in small large none; do kv erase $f; kv erase $f.again; done
        kv put 'a\tb' 'verbatim\n'; kv put -e 'a\tb\x00' 'c\\\xff\n'
        kv scan; kv get -e 'a\tb\x00' | od -An -tx1
        kv scan --json; kv get -e 'a\tb\x00' --json"#,
    )?;
    let json = "{\"key\":\"a\\u0009b\\u0000\",\"value_hex\":\"635cff0a\"}";
    let expected = format!(
        "a\\tb\\x00\tc\\\\\\xff\\n\na\\\\tb\tverbatim\\\\n\n 63 5c ff 0a\n\
         [{json},\n{{\"key\":\"a\\\\tb\",\"value\":\"verbatim\\\\n\"}}]\n{json}\n"
    );
    expect("the commands", &said, &expected)
}

/// Free space is handed out in pieces, of which a value may have only some.
fn huge(fixture: &Fixture) -> Result<(), Stop> {
    let pool = fixture.path("pool").to_string_lossy().into_owned();
    fixture.done(&["pool", "create", &pool, "--size", "600M"])?;
    let text = r#"seq 1 26000000 | "$hf" kv "$pool" keys put huge
        "$hf" kv "$pool" keys get huge | cmp - <(seq 1 26000000)
        "$hf" kv "$pool" keys erase huge; "$hf" pool check "$pool" >/dev/null"#;
    expect("the commands", &script(fixture, &pool, text)?, "")
}

fn scan(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let said = script(
        fixture,
        &pool,
        r#"kv() { "$hf" kv "$pool" keys "$@"; }
        for k in d b a c ba; do kv put $k ${k}1; done
        line() { kv scan "$@" | cut -f 1 | tr '\n' ' '; echo; }
        line; line --reverse; line --limit 2; line --limit 2 --reverse; line --limit 0
        line --prefix b; line --prefix x; line --from b; line --to b; line --from b --to c
        line --from b --to c --reverse; line --from d --to a
        kv scan --limit 0 --json; kv scan --limit 1 --json
        seq 1 5000 | sed 's/.*/&\tvalue &/' | kv load
        kv scan | head -1 >/dev/null; kv scan | wc -l"#,
    )?;
    let expected = "a b ba c d \nd c ba b a \na b \nd c \n\nb ba \n\nb ba c d \na \nb ba \n\
        ba b \n\n[]\n[{\"key\":\"a\",\"value\":\"a1\"}]\n5005\n";
    expect("the commands", &said, expected)
}

fn keyspaces(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let said = script(
        fixture,
        &pool,
        r#""$hf" kv "$pool"; "$hf" kv "$pool" --json
        "$hf" kv "$pool" one put k 1; "$hf" kv "$pool" two put k 2
        "$hf" kv "$pool" /get put get 3; "$hf" kv "$pool" /get get get; echo
        "$hf" kv "$pool" one get k; "$hf" kv "$pool" two get k; echo
        "$hf" kv "$pool"; "$hf" kv "$pool" --json"#,
    )?;
    let expected = "[]\n3\n12\nget\none\ntwo\n[\"get\",\"one\",\"two\"]\n";
    expect("the commands", &said, expected)
}

/// Commands at once share the service that the first of them starts.
fn several(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let said = script(
        fixture,
        &pool,
        r#"for n in $(seq 1 20); do "$hf" kv "$pool" keys put $n v$n & all+=($!); done
        for p in "${all[@]}"; do wait $p; done
        "$hf" kv "$pool" keys scan | sort -n | md5sum
        seq 1 20 | sed 's/.*/&\tv&/' | md5sum; "$hf" pool check "$pool" >/dev/null"#,
    )?;
    let lines: Vec<&str> = said.lines().collect();
    expect("the keys", lines[0], lines[1])
}

fn snapshots(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let said = script(
        fixture,
        &pool,
        r#"kv() { "$hf" kv "$pool" keys "$@"; }
        sn() { "$hf" snapshot "$pool" "$@"; }
        sn list; sn list --json
        kv put k before; sn create one; kv put k after; kv put more 1; sn create two
        kv get k; echo; kv get k --snapshot one; echo
        kv --snapshot one scan; kv dump --snapshot one
        "$hf" kv "$pool" --snapshot one
        sn list | sed 's/^[-0-9]*T[:0-9]*Z  //'
        sn list --json | grep -o '"name":"[a-z]*"'
        kv get more --snapshot one 2>/dev/null && exit 3
        sn delete one; sn list | wc -l; kv get k --snapshot two; echo
        sn delete two; sn list; "$hf" pool check "$pool" >/dev/null"#,
    )?;
    let expected = "[]\nafter\nbefore\nk\tbefore\nk\tbefore\nkeys\none\ntwo\n\
        \"name\":\"one\"\n\"name\":\"two\"\n1\nafter\n";
    expect("the commands", &said, expected)
}

/// What programs do is seen: changes a second, and counters that only rise.
fn top(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let said = script(
        fixture,
        &pool,
        r#"metric() { "$hf" top "$pool" --metrics | sed -n "s|^holdfast_$1{pool=\"$pool\"} ||p"; }
        metric service_up; metric processes
        "$hf" top "$pool" --count 1 --interval 0.1 | grep -E '^(service|changes) '
        mkfifo go; exec 7<>go
        "$hf" run --pool "$pool" -- bash -c 'echo >go; cd /hf; n=0; while [ ! -e stop ]; do
            echo $n >f$((n % 50)); n=$((n + 1)); done' &
        read -r <&7; before=$(metric changes_total)
        sleep 0.3; metric service_up
        "$hf" top "$pool" --count 2 --interval 0.3 >text
        grep -c '^changes  *[1-9][0-9]*/s$' text; grep -c '^processes  *[1-9]' text
        "$hf" top "$pool" --count 1 --interval 0.3 --json >json
        grep -c '"changes_per_second":[1-9]' json; wc -l <json
        [ "$(metric changes_total)" -gt "$before" ] && echo more
        "$hf" run --pool "$pool" -- touch /hf/stop; wait
        "$hf" top "$pool" --metrics | grep -vcE '^(# (HELP|TYPE) )?holdfast_[a-z_]+[ {]' || true
        "$hf" top "$pool" --interval 0 2>&1 | head -1 || true
        "$hf" top "$pool/none" 2>&1 | head -1 | sed "s|$pool|POOL|" || true"#,
    )?;
    let expected = "0\n0\nservice      none\nchanges      0/s\n1\n2\n2\n1\n1\nmore\n0\n\
        holdfast: --interval 0 is not possible.\nholdfast: there is no pool at POOL/none.\n";
    expect("the commands", &said, expected)
}
