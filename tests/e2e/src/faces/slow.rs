//! Pools that are slower than they are, by every face: nothing is faster than it was asked to be,
//! and everything arrives.
//!
//! Invariant: only lower bounds are held to; a busy machine fails no case.

use super::{expect, new_pool, script};
use crate::bad_input::{Case, Fixture, Stop, wrong};
use crate::process::on_path;

pub const CASES: &[(&str, Case)] = &[
    ("slow runs", runs),
    ("slow programs", whole_programs),
    ("slow keys, values and volumes", library),
    ("slow exports", exports),
    ("slow refusals", refusals),
    ("slow pools of others", others),
];

/// `took LEAST COMMAND...` runs the command, and fails if that took less than so many ms.
const TOOK: &str = r#"took() {
    local least=$1 begun=$(date +%s%N); shift
    "$@"
    local ms=$((($(date +%s%N) - begun) / 1000000))
    [[ $ms -ge $least ]] || { echo "$ms ms, not $least: $*" >&2; exit 1; }
}
"#;

fn timed(fixture: &Fixture, pool: &str, text: &str) -> Result<String, Stop> {
    script(fixture, pool, &format!("{TOOK}{text}"))
}

/// Each write takes its latency: in the program, in its children, in what they execute, and with an
/// environment that they made themselves; reads take theirs, also of a snapshot.
fn runs(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = r#"head -c 100000 /dev/urandom >data
        run() { "$hf" run --pool "$pool" "$@"; }
        run -- cp data /hf/data
        "$hf" snapshot "$pool" create then
        write='dd if=data of=/hf/copy bs=5000 status=none'
        read='dd if=/hf/data of=copy bs=5000 status=none'
        took 400 run --slow wrlat=20000000 -- $write
        took 400 run --slow wrlat=20000000 -- sh -c "$write; true"
        took 400 run --slow wrlat=20000000 -- env -i /bin/sh -c "$write; true"
        run --slow rdsx=3,wrsx=7.5 -- cmp /hf/data /hf/copy
        took 400 run --slow rdlat=20000000 -- $read
        cmp data copy; rm copy
        took 400 run --snapshot then --slow rdlat=20000000 -- $read
        cmp data copy
        took 500 run --slow rdbw=1,wrbw=1 -- bash -c 'cat /hf/data /hf/data >/hf/two &
            head -c 300000 /dev/zero >/hf/zeroes; wait'
        export HOLDFAST_SLOW=wrlat=20000000
        took 400 run -- $write
        run --slow none -- sh -c 'echo $HOLDFAST_SLOW'
        run --slow aerie -- sh -c 'echo $HOLDFAST_SLOW'"#;
    let said = timed(fixture, &pool, text)?;
    expect(
        "what programs are told",
        &said,
        "none\nwrlat=150,wrbw=4000\n",
    )
}

/// Real programs on a slow pool: mappings, threads, many small calls.
fn whole_programs(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    if !on_path("python3") {
        return Err(Stop::Skip("python3 is not installed".into()));
    }
    let text = r#"cat >work.py <<'END'
import mmap, os, threading
def work(n):
    path = f'/hf/{n}'
    with open(path, 'wb') as f:
        for i in range(50): f.write(bytes([i]) * 3000)
        f.flush(); os.fsync(f.fileno())
    with open(path, 'r+b') as f, mmap.mmap(f.fileno(), 0) as m:
        m[100:200] = b'x' * 100
        m.flush()
    os.rename(path, path + '.done')
    b = open(path + '.done', 'rb').read()
    assert b == b[:1] * 100 + b'x' * 100 + b''.join(bytes([i]) * 3000 for i in range(50))[200:]
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
for t in threads: t.start()
for t in threads: t.join()
print(sorted(os.listdir('/hf')))
END
        "$hf" run --pool "$pool" --slow rdsx=3,wrlat=100000,wrbw=500 -- python3 work.py
        "$hf" pool check "$pool" >/dev/null"#;
    let said = script(fixture, &pool, text)?;
    expect(
        "the files",
        &said,
        "['0.done', '1.done', '2.done', '3.done']\n",
    )
}

fn library(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = r#"took 50 "$hf" kv "$pool" --slow wrlat=50000000 ks put key value
        took 50 "$hf" kv "$pool" ks get key --slow rdlat=50000000
        export HOLDFAST_SLOW=rdlat=50000000
        took 50 "$hf" kv "$pool" ks get key
        unset HOLDFAST_SLOW
        head -c 3000000 /dev/urandom >value
        took 300 "$hf" kv "$pool" --slow wrbw=10 ks put large - <value
        took 300 "$hf" kv "$pool" --slow rdbw=10 ks get large | cmp - value
        "$hf" volume "$pool" create disk --size 2M
        "$hf" run --pool "$pool" -- dd if=value of=/hf/disk conv=notrunc count=1 bs=2M status=none
        took 400 "$hf" volume "$pool" copy disk two --slow rdbw=10,wrbw=10
        "$hf" run --pool "$pool" -- cmp /hf/disk /hf/two"#;
    let said = timed(fixture, &pool, text)?;
    expect("the values", &said, "valuevalue")
}

fn exports(fixture: &Fixture) -> Result<(), Stop> {
    if !["nbdkit", "nbdcopy"].into_iter().all(on_path) {
        return Err(Stop::Skip("nbdkit or libnbd is not installed".into()));
    }
    let pool = new_pool(fixture, "pool")?;
    let text = r#"head -c 2M /dev/urandom >image
        "$hf" volume "$pool" create disk --size 2M
        for protect in none pt pmap pmap-cache fd; do
            "$hf" export "$pool" disk --nbd unix:sock --protect $protect \
                --slow wrbw=10,rdbw=10 >uri &
            until [[ -s uri ]]; do sleep 0.02; done
            took 200 nbdcopy image "nbd+unix:///?socket=sock"
            took 200 nbdcopy "nbd+unix:///?socket=sock" back
            cmp image back
            kill %%; wait; rm uri back
        done"#;
    timed(fixture, &pool, text).map(drop)
}

fn refusals(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    for word in [
        "", "fast", "rdsx", "rdsx=0", "wrsx=0.9", "wrlat=-1", "rdbw=nan", "rdsx=2,,",
    ] {
        let run = ["run", "--pool", &pool, "--slow", word, "--", "true"];
        fixture.refused(&run, &[2, 125])?;
        fixture.refused(&["kv", &pool, "--slow", word], &[2])?;
        fixture.refused(&["volume", &pool, "list", "--slow", word], &[2])?;
        let export = ["export", &pool, "v", "--fuse", "f", "--slow", word];
        fixture.refused(&export, &[1, 2])?;
    }
    let text = r#"export HOLDFAST_SLOW=fast
        ! "$hf" run --pool "$pool" -- touch /hf/there 2>said
        grep -q 'HOLDFAST_SLOW: "fast" is neither' said
        ! "$hf" kv "$pool" 2>said
        grep -q 'HOLDFAST_SLOW: "fast" is neither' said
        unset HOLDFAST_SLOW
        run() { "$hf" run --pool "$pool" "$@"; }
        ! run --slow pcm -- "$hf" run --pool "$pool" --slow nand -- touch /hf/there 2>said
        grep -q 'Fix: ' said
        ! run -- env HOLDFAST_SLOW=nand "$hf" run --pool "$pool" -- touch /hf/there 2>said
        run --slow pcm -- "$hf" run --pool "$pool" -- ls /hf"#;
    match script(fixture, &pool, text)?.as_str() {
        "" => Ok(()),
        said => wrong(format!("a program ran that should not: {said}")),
    }
}

/// Their bytes are copied by a proxy.
fn others(fixture: &Fixture) -> Result<(), Stop> {
    fixture.need_root()?;
    if !on_path("setpriv") {
        return Err(Stop::Skip("setpriv is not installed".into()));
    }
    let pool = new_pool(fixture, "pool")?;
    let text = r#"chmod a+x . "$pool"
        as() { setpriv --reuid=3007 --regid=3007 --clear-groups "$@"; }
        "$hf" run --pool "$pool" -- chmod 755 /hf
        "$hf" serve "$pool" 2>served & trap 'kill %%; wait' EXIT
        until as "$hf" run --pool "$pool" -- true 2>tried; do sleep 0.02; done
        as "$hf" run --pool "$pool" -- ls /hf
        ! as "$hf" run --pool "$pool" --slow pcm -- ls /hf 2>said
        grep -q 'never slow' said
        ! HOLDFAST_SLOW=pcm as "$hf" kv "$pool" 2>said
        grep -q 'never slow' said"#;
    script(fixture, &pool, text).map(drop)
}
