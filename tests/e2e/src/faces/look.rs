//! `holdfast lsof` as people use it: what it shows is what programs do, and nothing else.

use super::{expect, new_pool, script};
use crate::bad_input::{Case, Fixture, Stop};

pub const CASES: &[(&str, Case)] = &[
    ("lsof files and locks", files_and_locks),
    ("lsof while everything changes", amid_changes),
    ("lsof refusals", refusals),
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
