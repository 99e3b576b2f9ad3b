//! Pools on hugetlbfs, where write(2) does not exist, and files are mapped and cut by whole huge
//! pages.
//!
//! Invariant: the machine has as many huge pages in the end as it had in the beginning, and the
//! mount is seen by the case alone.

use super::{expect, script};
use crate::bad_input::{Case, Fixture, Stop};
use crate::process::on_path;

pub const CASES: &[(&str, Case)] = &[
    ("huge pages under programs", programs),
    ("huge pages under keys, values and volumes", library),
    ("huge pages that are not there", missing),
    ("huge pages and a service that is killed", killed),
    ("huge pages and other users", others),
];

/// Exit status of a script that cannot be run here.
const SKIPPED: &str = "skipped: ";

/// Has `pages` huge pages more than the machine had, and hugetlbfs at `huge`; `$pool` is there.
fn on_huge_pages(fixture: &Fixture, pages: u32, text: &str) -> Result<String, Stop> {
    fixture.need_root()?;
    if !["unshare", "mount"].into_iter().all(on_path) {
        return Err(Stop::Skip("util-linux is not installed".into()));
    }
    let pool = fixture.path("huge/pool").to_string_lossy().into_owned();
    std::fs::create_dir(fixture.path("huge"))?;
    let begun = format!(
        r#"number=/proc/sys/vm/nr_hugepages
        [[ -w $number ]] || {{ echo "{SKIPPED}the kernel has no huge pages"; exit 0; }}
        before=$(<$number)
        trap 'echo $before >$number' EXIT
        trap 'exit 1' TERM INT HUP
        [[ $(awk '/^Hugepagesize:/ {{ print $2 }}' /proc/meminfo) == 2048 ]] ||
            {{ echo "{SKIPPED}huge pages are not of 2 MiB"; exit 0; }}
        echo $((before + {pages})) >$number
        free() {{ awk '/^HugePages_Free:/ {{ print $2 }}' /proc/meminfo; }}
        (($(free) >= {pages})) || {{ echo "{SKIPPED}the machine gives no huge pages"; exit 0; }}
        export hf pool number before
        export -f free
        unshare --mount bash -euo pipefail -c '
            # What other tests have mounted: this namespace would keep it in use.
            findmnt -rno TARGET,SOURCE,FSTYPE | grep -E " (/dev/loop|[^ ]* fuse)" |
                cut -d" " -f1 | xargs -r umount -l || true
            mount -t hugetlbfs -o pagesize=2M none huge ||
                {{ echo "{SKIPPED}no hugetlbfs"; exit 0; }}
            run() {{ "$hf" run --pool "$pool" "$@"; }}
            source ./work'"#
    );
    std::fs::write(fixture.path("work"), text)?;
    let said = script(fixture, &pool, &begun)?;
    match said.strip_prefix(SKIPPED) {
        Some(why) => Err(Stop::Skip(why.trim().into())),
        None => Ok(said),
    }
}

/// Files, shared and private mappings, a program and a library from the pool, SQLite's shared
/// memory, a snapshot of it all.
fn programs(fixture: &Fixture) -> Result<(), Stop> {
    if !on_path("python3") {
        return Err(Stop::Skip("python3 is not installed".into()));
    }
    let text = r#"cat >work.py <<'END'
import mmap, os, sqlite3
with open('/hf/m', 'wb') as f: f.write(bytes(range(256)) * 64)
with open('/hf/m', 'r+b') as f, mmap.mmap(f.fileno(), 0) as m:
    m[5000:5010] = b'0123456789'
    m.flush()
    assert os.pread(f.fileno(), 10, 5000) == b'0123456789'
    os.pwrite(f.fileno(), b'abc', 5000)
    assert m[5000:5003] == b'abc'
    if os.fork() == 0:
        m[6000:6003] = b'xyz'
        os._exit(0)
    os.wait()
    assert m[6000:6003] == b'xyz'
content = open('/hf/m', 'rb').read()
assert content[5000:5010] == b'abc3456789' and content[6000:6003] == b'xyz'
with open('/hf/m', 'rb') as f, mmap.mmap(f.fileno(), 0, mmap.MAP_PRIVATE, 3) as m:
    m[0:1] = b'z'
    assert m[1:] == content[1:]
db = sqlite3.connect('/hf/db')
db.execute('pragma journal_mode=wal')
db.execute('create table t (x)')
for i in range(50):
    db.execute('insert into t values (?)', (i,))
    db.commit()
print(db.execute('select sum(x) from t').fetchall())
END
        "$hf" pool create "$pool" --size 128M
        run -- python3 work.py
        run -- sh -c 'cp /bin/ls /hf/ls; /hf/ls -A /hf'
        "$hf" snapshot "$pool" create then
        run -- sh -c 'rm /hf/db; echo new >/hf/m; mkdir /hf/d; cat /hf/m'
        run --snapshot then -- sh -c '/hf/ls -A /hf; tail -c +5001 /hf/m | head -c 10; echo'
        run --snapshot then -- python3 -c '
import mmap
f = open("/hf/m", "rb")
for kind in mmap.MAP_SHARED, mmap.MAP_PRIVATE:
    print(mmap.mmap(f.fileno(), 0, kind, 1)[5000:5010])'
        "$hf" snapshot "$pool" delete then
        "$hf" pool check "$pool" >/dev/null
        "$hf" pool resize "$pool" 160M
        run -- cat /hf/m
        "$hf" pool destroy "$pool"
        ls huge"#;
    let said = on_huge_pages(fixture, 200, text)?;
    let expected = "memory: survives the death of processes, not the loss of power\n\
        [(1225,)]\ndb\nls\nm\nnew\ndb\nls\nm\nabc3456789\nb'abc3456789'\nb'abc3456789'\nnew\n";
    expect("the programs", &said, expected)
}

fn library(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"head -c 5000000 /dev/urandom >value
        "$hf" pool create "$pool" --size 64M >/dev/null
        "$hf" kv "$pool" ks put small value
        "$hf" kv "$pool" ks put large - <value
        "$hf" kv "$pool" ks get small
        "$hf" kv "$pool" ks get large | cmp - value
        "$hf" volume "$pool" create disk --size 4M
        run -- dd if=value of=/hf/disk bs=4M count=1 conv=notrunc status=none
        for protect in auto pmap-cache; do
            "$hf" volume "$pool" poke disk --protect $protect | grep -q 'kept by pmap-cache\|pkey'
        done
        for protect in pt pmap fd; do
            if "$hf" volume "$pool" poke disk --protect $protect 2>said; then exit 1; fi
            grep -q 'protect the pool\|protect it' said
        done
        "$hf" volume "$pool" copy disk two
        run -- cmp /hf/disk /hf/two
        if type nbdkit nbdcopy >/dev/null 2>&1; then
            "$hf" export "$pool" disk --nbd unix:sock >uri &
            until [[ -s uri ]]; do sleep 0.02; done
            nbdcopy "nbd+unix:///?socket=sock" back
            cmp back <(head -c 4M value)
            head -c 4M /dev/urandom >image
            nbdcopy image "nbd+unix:///?socket=sock"
            nbdcopy "nbd+unix:///?socket=sock" back
            cmp image back
            kill %%; wait
        fi
        "$hf" pool check "$pool" >/dev/null"#;
    let said = on_huge_pages(fixture, 128, text)?;
    expect("the values", &said, "value")
}

/// Too few of them: a pool is refused, a write has ENOSPC, and what makes room works.
fn missing(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"for size in "" "--size 256M"; do
            if "$hf" pool create "$pool" $size 2>said; then exit 1; fi
            grep -q 'Fix: .*nr_hugepages' said
            [[ -z $(ls huge) ]]
        done
        echo $(($(<$number) + 60)) >$number
        "$hf" pool create "$pool" --size 64M >/dev/null
        run -- sh -c 'head -c 8M /dev/urandom >/hf/kept; cp /hf/kept kept'
        echo $(($(<$number) - $(free) + 3)) >$number
        run -- sh -c 'if cat /dev/zero >/hf/full; then exit 1; fi' 2>said
        grep -q 'No space left' said
        run -- sh -c 'cmp /hf/kept kept; rm /hf/kept /hf/full; echo room >/hf/room; cat /hf/room'
        "$hf" pool check "$pool" >/dev/null"#;
    let said = on_huge_pages(fixture, 40, text)?;
    expect("what has room", &said, "room\n")
}

/// The next one knows what the session was handed out.
fn killed(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#""$hf" pool create "$pool" --size 64M >/dev/null
        head -c 20000 /dev/urandom >piece
        run -- sh -c 'for i in $(seq 300); do cp piece /hf/$i; done' &
        kills=0
        while kill -0 $! 2>/dev/null && ((kills < 3)); do
            sleep 0.1
            if pkill -KILL -f "^holdfast serve --ending -- $pool\$"; then kills=$((kills + 1)); fi
        done
        wait %%
        ((kills > 0))
        run -- sh -c 'for i in $(seq 300); do cmp piece /hf/$i; done'
        "$hf" pool check "$pool" >/dev/null"#;
    on_huge_pages(fixture, 128, text).map(drop)
}

/// Their calls, and mappings that they share with the owner.
fn others(fixture: &Fixture) -> Result<(), Stop> {
    if !["setpriv", "python3"].into_iter().all(on_path) {
        return Err(Stop::Skip("setpriv or python3 is not installed".into()));
    }
    let text = r#"chmod a+x . huge
        as() { setpriv --reuid=3007 --regid=3007 --clear-groups "$@"; }
        "$hf" pool create "$pool" --size 64M >/dev/null
        chmod a+x "$pool"
        run -- sh -c 'chmod 755 /hf; head -c 10000 /dev/zero >/hf/f; chmod 666 /hf/f'
        "$hf" serve "$pool" 2>served & trap 'kill %%; wait' EXIT
        until as "$hf" run --pool "$pool" -- true 2>tried; do sleep 0.02; done
        map='
import mmap, sys
f = open("/hf/f", "r+b")
m = mmap.mmap(f.fileno(), 0)
print(m[:4])
m[:4] = sys.argv[1].encode()'
        as "$hf" run --pool "$pool" -- python3 -c "$map" them
        run -- python3 -c "$map" ours
        as "$hf" run --pool "$pool" -- head -c 4 /hf/f"#;
    let said = on_huge_pages(fixture, 128, text)?;
    expect(
        "what both see",
        &said,
        "b'\\x00\\x00\\x00\\x00'\nb'them'\nours",
    )
}
