//! Values of keyspaces in the hands of programs that take them for files.

use super::{expect, new_pool, script};
use crate::bad_input::{Case, Fixture, Stop};

pub const CASES: &[(&str, Case)] = &[
    ("programs read and list values", programs_read_values),
    ("programs change values", programs_change_values),
    ("programs and puts take turns", programs_and_puts),
    (
        "programs keep the values that they opened",
        programs_keep_values,
    ),
];

/// What `run` does in the directory of the keyspace; its standard output, and proof that the pool
/// served it: the directory is nowhere on the host.
const RUN: &str = r#"
kv() { "$hf" kv "$pool" words "$@"; }
run() {
    "$hf" run --pool "$pool" --at /hf-words --report "$pool.report" -- \
        bash -euo pipefail -c "cd /hf-words/words; $1"
    served=$(sed 's/.*"served":\([0-9]*\).*/\1/' "$pool.report")
    ((served > 0)) && [[ ! -e /hf-words ]]
}
"#;

fn with_run(fixture: &Fixture, pool: &str, text: &str) -> Result<String, Stop> {
    script(fixture, pool, &format!("{RUN}\n{text}"))
}

fn programs_read_values(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "read")?;
    let text = r#"
kv put one 1; kv put two 22; head -c 100000 /dev/zero | tr '\0' x | kv put large
kv put 'no/name' hidden
run 'ls; cat one two; echo; stat -c "%n %s %F %a" one large; wc -c <large
    grep -r 2 .; find . -type f | sort; tar cf - . | tar tf - | sort; cmp large large'
kv get one; echo; kv get large | wc -c; kv scan --limit 1 --prefix no
"#;
    let expected = "large\none\ntwo\n122\none 1 regular file 644\nlarge 100000 regular file 644\n\
                    100000\n./two:22\n./large\n./one\n./two\n./\n./large\n./one\n./two\n\
                    1\n100000\nno/name\thidden\n";
    expect(
        "what programs see",
        &with_run(fixture, &pool, text)?,
        expected,
    )?;
    fixture.done(&["pool", "check", &pool]).map(drop)
}

fn programs_change_values(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "change")?;
    let text = r#"
for i in 1 2 3 4 5; do kv put "k$i" "value $i"; done
run 'sed -i s/value/VALUE/ k1; mv k2 moved; rm k3; echo new >made; cp k4 copy; printf + >>k5
    ln copy link; mkdir sub; ! rmdir . 2>/dev/null; rmdir sub'
kv scan
run 'rm -r -- *; ls'
kv scan; kv put again yes
run 'cat again'
"#;
    let expected = "copy\tvalue 4\nk1\tVALUE 1\nk4\tvalue 4\nk5\tvalue 5+\nlink\tvalue 4\n\
                    made\tnew\\n\nmoved\tvalue 2\nyes";
    expect("what is left", &with_run(fixture, &pool, text)?, expected)?;
    fixture.done(&["pool", "check", &pool]).map(drop)
}

fn programs_and_puts(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "turns")?;
    let text = r#"
kv put key first
run 'exec 3<key; read -r -N 2 start <&3; '"$hf"' kv '"$pool"' words put key second
    printf %s "$start"; cat <&3; echo; cat key; echo; printf third >key'
kv get key; echo; kv erase key; ! kv get key 2>/dev/null
run '[[ ! -e key ]]; echo fourth >key; '"$hf"' kv '"$pool"' words get key'
"#;
    let expected = "first\nsecond\nthird\nfourth\n";
    expect("who sees what", &with_run(fixture, &pool, text)?, expected)?;
    fixture.done(&["pool", "check", &pool]).map(drop)
}

/// A program reads, maps and locks values that others put over while the service is killed, and
/// another program that has them open.
fn programs_keep_values(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "keep")?;
    let text = r#"
zeroes() { head -c "$1" /dev/zero | tr '\0' "$2"; }
kv put small short; zeroes 300000 x | kv put large; kv put code 'echo "ran $1"'
run 'kv() { '"$hf"' kv '"$pool"' words "$@"; }
    exec 3<small 4<large 5<code
    [[ $(stat -c %i large) == $(stat -Lc %i /proc/self/fd/4) ]]
    flock -x 3; if flock -n small true; then exit 7; fi; flock -u 3; flock -n small true
    bash code once; bash /proc/self/fd/5 again
    sleep 100 3<large & reader=$!
    python3 -c "
import mmap, os, sys
file = open(\"large\", \"rb\")
seen = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print(seen[:3], flush=True)
open(\"mapped\", \"w\")
sys.stdin.readline()
os.sendfile(1, file.fileno(), 0, 4)
print(seen[:] == b\"x\" * 300000, os.fstat(file.fileno()).st_nlink)
" < <(until [[ -e go ]]; do sleep 0.1; done; echo) & mapper=$!
    until [[ -e mapped ]]; do sleep 0.1; done
    kv put small long; head -c 300000 /dev/urandom | kv put large
    read -r pid _ <'"$pool"'/lock || :; kill -9 "$pid" "$reader"
    for n in {1..20}; do head -c 400000 /dev/urandom | kv put "fill$n"; done
    cat <&3; echo; tr -d x <&4 | wc -c; stat -Lc %s /proc/self/fd/4; cat small; echo
    touch go; wait "$mapper"; rm fill* go mapped'
kv get small; echo; kv scan --limit 1 --prefix code
"#;
    let expected = "ran once\nran again\nb'xxx'\nshort\n0\n300000\nlong\nxxxxTrue 0\nlong\n\
                    code\techo \"ran $1\"\n";
    expect("what is kept", &with_run(fixture, &pool, text)?, expected)?;
    fixture.done(&["pool", "check", &pool]).map(drop)
}
