//! `holdfast lsof`, `du` and `pool list` as people use them: what they show is what programs do and
//! what takes space, and nothing else.

use super::{expect, new_pool, script};
use crate::bad_input::{Case, Fixture, Stop};

pub const CASES: &[(&str, Case)] = &[
    ("lsof files and locks", files_and_locks),
    ("lsof while everything changes", amid_changes),
    ("lsof refusals", refusals),
    ("du directories, keyspaces and volumes", usage),
    ("du refusals", usage_refusals),
    ("du of very many files", usage_of_many),
    ("pool list", list),
];

/// Says what it has done, and ends with the line that it reads.
const PROGRAM: &str = r#"
import fcntl, mmap, os, signal, sys
def say(what): os.write(1, (what + "\n").encode())
os.chdir("/hf/dir")
opened = open("sub/open", "r+"); opened.seek(3)
gone = open("gone", "w"); os.unlink("gone")
one = open("/hf/one", "r"); os.link("/hf/one", "/hf/two"); os.unlink("/hf/one")
mapped = open("/hf/mapped", "r+"); view = mmap.mmap(mapped.fileno(), 4096); mapped.close()
fcntl.lockf(opened, fcntl.LOCK_EX, 10, 5)
whole = open("/hf/whole", "w"); fcntl.flock(whole, fcntl.LOCK_EX)
def child(do):
    pid = os.fork()
    if pid == 0:
        do()
        os._exit(0)
    return pid
def ranges(): fcntl.lockf(open("sub/open", "r+"), fcntl.LOCK_EX, 1, 7)
def whole_file(): fcntl.flock(open("/hf/whole"), fcntl.LOCK_SH)
def stops():
    os.open("/hf/child", os.O_CREAT | os.O_WRONLY)
    os.kill(os.getpid(), signal.SIGSTOP)
def dies():
    os.open("/hf/dead", os.O_CREAT | os.O_RDWR)
    os.kill(os.getpid(), signal.SIGKILL)
waiters = [child(ranges), child(whole_file)]
os.waitpid(child(dies), 0)
stopped = child(stops)
os.waitpid(stopped, os.WUNTRACED)
say(f"{os.getpid()} {waiters[0]} {waiters[1]} {stopped}")
sys.stdin.readline()
os.kill(stopped, signal.SIGKILL)
fcntl.lockf(opened, fcntl.LOCK_UN); fcntl.flock(whole, fcntl.LOCK_UN)
"#;

/// Numbers of processes become words, so that all runs say the same.
const LOOK: &str = r#"
mkfifo go said; exec 6<>go 7<>said
hf() { "$hf" "$@"; }
hf run --pool "$pool" -- bash -c 'mkdir -p /hf/dir/sub; echo 1234 >/hf/dir/sub/open
    echo 1 >/hf/one; head -c 5000 /dev/zero >/hf/mapped'
hf lsof "$pool"; hf lsof "$pool" --json
hf run --pool "$pool" -- python3 program.py <go >said &
read -r main ranges whole stopped <&7
names() {
    sed -E "s/\b$main\b/MAIN/; s/\b$main\b/MAIN/; s/\b$ranges\b/RANGES/; s/\b$whole\b/WHOLE/
        s/\b$stopped\b/STOPPED/; s/^python3 +//; s/ $(id -un) / /; s/  +/ /g
        s/ [0-9]+([rwu]) / N\1 /"
}
# The two that wait may not have come so far.
for n in $(seq 200); do
    [ "$(hf lsof "$pool" | grep -c 'waits for')" = 2 ] && break; sleep 0.05
done
hf lsof "$pool" >all; names <all | grep -E '^(MAIN|COMMAND)'
echo; names <all | grep -E '^(STOPPED|WHOLE|RANGES)' | grep -E 'child|waits' | sort
grep -c dead all || true
hf lsof "$pool" one >/dev/null || echo none
hf lsof "$pool" dir/sub /two | names | grep MAIN
hf lsof "$pool" --json /whole | grep -o '"lock":.*' | names | sed 's/},{/},\n{/' |
    sed "s/\"user\":\"$(id -un)\",/\"user\":\"USER\",\n/"
echo go >&6; wait; hf lsof "$pool"; hf pool check "$pool" >/dev/null
"#;

const SHOWN: &str = r#"{"open":[],"locks":[]}
COMMAND PID USER FD TYPE OFFSET SIZE PATH
MAIN cwd dir - 0 /dir
MAIN Nu file 3 5 /dir/sub/open
MAIN Nw file 0 0 /dir/gone (deleted)
MAIN Nr file 0 2 /two
MAIN Nw file 0 0 /whole
MAIN Nu file 0 5000 /mapped
MAIN map file - 5000 /mapped
COMMAND PID USER LOCK MODE FIRST LAST PATH
MAIN posix write 5 14 /dir/sub/open
MAIN flock write - - /whole

RANGES posix write 5 14 /dir/sub/open (waits for process MAIN)
STOPPED Nw file 0 0 /child
WHOLE flock write - - /whole (waits for process MAIN)
0
none
MAIN Nu file 3 5 /dir/sub/open
MAIN Nr file 0 2 /two
MAIN posix write 5 14 /dir/sub/open
RANGES posix write 5 14 /dir/sub/open (waits for process MAIN)
"lock":"flock","mode":"write","path":"/whole"},
{"command":"python3","pid":WHOLE,"user":"USER",
"lock":"flock","mode":"write","path":"/whole","waits_for":MAIN}]}
"#;

fn files_and_locks(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    std::fs::write(fixture.path("program.py"), PROGRAM)?;
    let said = script(fixture, &pool, LOOK)?;
    expect("lsof", &said, SHOWN)
}

/// Whatever is changed under it, it ends, soon, with sound lines, and disturbs nobody.
fn amid_changes(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let said = script(
        fixture,
        &pool,
        r#""$hf" run --pool "$pool" -- bash -c 'cd /hf; n=0; mkdir a b; while [ ! -e stop ]; do
            n=$((n + 1)); mkdir a/$n; echo $n >a/$n/f; exec 8<a/$n/f; mv a/$n b/$n
            (cat <&8 >a/copy); rm -r b/$n; exec 8<&-; done; echo done' &
        for n in $(seq 100); do
            timeout 20 "$hf" lsof "$pool" >>all
            timeout 20 "$hf" lsof "$pool" a b >/dev/null || [ $? = 1 ]
        done
        "$hf" run --pool "$pool" -- touch /hf/stop; wait
        grep -c ' [0-9]*[rwu] *file .* /' all | sed 's/[1-9][0-9]*/some/'
        grep -vcE '^COMMAND|^$|( (/|\?|\(deleted\))[^ ]*( \(deleted\))?)$' all || true
        "$hf" pool check "$pool" >/dev/null"#,
    )?;
    expect("the program and its files", &said, "done\nsome\n0\n")
}

fn refusals(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let said = script(
        fixture,
        &pool,
        r#"said() { "$@" 2>&1 | sed "s|$pool|POOL|g" || true; }
        said "$hf" lsof "$pool/none"; said "$hf" lsof .
        "$hf" lsof "$pool" --json; "$hf" lsof "$pool" /a || echo $?"#,
    )?;
    let expected = "holdfast: there is no pool at POOL/none.\n\
        Fix: holdfast pool create POOL/none\nholdfast: there is no pool at .\n\
        Fix: holdfast pool create .\n{\"open\":[],\"locks\":[]}\n1\n";
    expect("the refusals", &said, expected)
}

/// Names of one file count once, holes not, blocks ahead of the end do, and values by what they
/// take.
fn usage(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let said = script(
        fixture,
        &pool,
        r#"run() { "$hf" run --pool "$pool" -- bash -c "$1"; }
        du() { "$hf" du "$@" | sed "s|$pool|POOL|"; }
        run 'cd /hf; mkdir -p a/b c vm; head -c 1048576 /dev/zero >a/b/big; ln a/b/big c/again
            truncate -s 9M a/hole; fallocate -l 3M c/ahead; fallocate -n -l 1M a/b/big
            : >c/behind; fallocate -n -l 64K c/behind; head -c 9000 /dev/zero | tee c/x >c/y'
        head -c 102400 /dev/zero | "$hf" kv "$pool" keys put large
        "$hf" kv "$pool" keys put no/name 1234567
        "$hf" volume "$pool" create vm/disk --size 20M
        du "$pool"; echo; du "$pool" -d 1; echo; du -s "$pool/a/" "$pool/c"; echo
        du "$pool/c" -a | sort -bk2; du "$pool/c/again"; echo; du "$pool" --apparent-size -d1; echo
        "$hf" du "$pool/keys" "$pool/vm/disk" --json | sed "s|$pool|POOL|"; echo
        "$hf" snapshot "$pool" create before; run 'cd /hf; rm -r a; rm c/ahead'
        du "$pool" -d1; echo; du "$pool/a" --snapshot before
        run 'cd /hf; du -B1 -s c' | cut -f1; "$hf" du --json -s "$pool/c" | grep -o '"taken":[0-9]*'
        "$hf" pool check "$pool" >/dev/null"#,
    )?;
    expect("what takes space", &said, USAGE)
}

const USAGE: &str = r#"1M      POOL/a/b
1M      POOL/a
3.1M    POOL/c
100.0K  POOL/keys (keyspace)
0       POOL/vm/disk (volume)
0       POOL/vm
4.2M    POOL

1M      POOL/a
3.1M    POOL/c
100.0K  POOL/keys (keyspace)
0       POOL/vm
4.2M    POOL

1M      POOL/a
4.1M    POOL/c

4.1M    POOL/c
1M      POOL/c/again
3M      POOL/c/ahead
64K     POOL/c/behind
12K     POOL/c/x
12K     POOL/c/y
1M      POOL/c/again

10M     POOL/a
3.0M    POOL/c
100.0K  POOL/keys (keyspace)
20M     POOL/vm
33.1M   POOL

[{"pool":"POOL","path":"/keys","kind":"keyspace","taken":102419,"size":102419},
{"pool":"POOL","path":"/vm/disk","kind":"volume","taken":0,"size":20971520}]

1.1M    POOL/c
100.0K  POOL/keys (keyspace)
0       POOL/vm
1.2M    POOL

1M      POOL/a/b
1M      POOL/a
1138688
"taken":1138688
"#;

fn usage_refusals(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let said = script(
        fixture,
        &pool,
        r#"said() { "$@" 2>&1 | sed "s|$pool|POOL|g"; echo "${PIPESTATUS[0]}"; }
        set +eo pipefail
        said "$hf" du none/a; said "$hf" du "$pool/a"; said "$hf" du "$pool" --snapshot none
        said "$hf" du -s -d 1 "$pool"; "$hf" du "$pool" >/dev/full; echo $?"#,
    )?;
    expect("the refusals", &said, REFUSED)
}

const REFUSED: &str = r#"holdfast: there is no pool at none/a.
Fix: holdfast pool create none/a
1
holdfast: POOL/a: no such file or directory.
1
holdfast: there is no snapshot "none".
Fix: `holdfast snapshot POOL list` shows the pool's snapshots
1
holdfast: the argument '--summarize' cannot be used with '--max-depth <N>'.
Fix: see holdfast du --help
2
1
"#;

/// It takes little memory for them.
fn usage_of_many(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let said = script(
        fixture,
        &pool,
        r#""$hf" run --pool "$pool" -- python3 -c '
import os
for d in range(300):
    os.mkdir(f"/hf/{d}")
    for f in range(100): open(f"/hf/{d}/{f}", "w").close()
os.makedirs("/hf/" + "/".join(["deep"] * 700))'
        "$hf" du "$pool" | wc -l; "$hf" du "$pool" -a | wc -l
        (ulimit -v 30000000; "$hf" du -s "$pool" | cut -c1-7)"#,
    )?;
    expect("the lines", &said, "1001\n31001\n0      \n")
}

/// Pools are known while somebody listens for them, however long their paths are, and whether or
/// not their services answer.
fn list(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let said = script(
        fixture,
        &pool,
        r#"here=$(realpath .); name=$(printf 'd%.0s' $(seq 120)); mkdir $name "with space"
        for p in $name/p "with space/p"; do "$hf" pool create "$p" --size 64M >/dev/null; done
        list() {
            "$hf" pool list "$@" | grep -F "$here" | sed "s|$here|HERE|g; s|$name|LONG|g" |
                sed -E 's/  +/ /g; s/ [0-9.]+[KM]? [a-z]+ / USED MEDIUM /' || true
        }
        list; echo; mkfifo go; exec 6<>go
        for p in pool $name/p "with space/p"; do
            "$hf" run --pool "$p" -- bash -c 'echo >/hf/f; echo; read -r' <go >said.${p##*/} &
            all="${all:-} $!"
        done
        for p in pool $name/p "with space/p"; do
            until "$hf" pool status "$p" | grep -q '^processes *1$'; do sleep 0.05; done
        done
        list | sort -k6; list --json | grep -o '"pool":"HERE/pool"[^}]*' |
            sed 's/"owner":[0-9]*,//; s/"used":[0-9]*,//; s/"medium":"[a-z]*",//'
        service=$("$hf" pool status --json pool | sed 's/.*"service":\([0-9]*\).*/\1/')
        kill -STOP $service; list | sort -k6; kill -CONT $service
        for p in 1 2 3; do echo >&6; done; wait $all
        until [ -z "$(list)" ]; do sleep 0.05; done"#,
    )?;
    let listed = |processes: &str| {
        let line = |processes, path| format!("64M USED MEDIUM runs {processes} HERE/{path}\n");
        line("1", "LONG/p") + &line(processes, "pool") + &line("1", "with space/p")
    };
    let json = r#""pool":"HERE/pool","own":false,"running":true,"size":67108864,"processes":1"#;
    let expected = format!("\n{}{json}\n{}", listed("1"), listed("-"));
    expect("the list", &said, &expected)
}
