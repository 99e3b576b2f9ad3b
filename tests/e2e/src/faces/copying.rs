//! `holdfast cp`: what is copied is the same to the last attribute that is to be kept, whoever is
//! killed meanwhile; and what cannot be copied is said, and does not keep the rest back.

use super::{expect, new_pool, script};
use crate::bad_input::{Case, Fixture, Stop, wrong};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub const CASES: &[(&str, Case)] = &[
    ("cp of every kind of thing", every_kind),
    ("cp without attributes", without_attributes),
    ("cp to what is there", to_what_is_there),
    ("cp of streams and special files", streams),
    ("cp of keyspaces", keyspaces),
    ("cp of large files in keyspaces", large_in_keyspaces),
    ("cp from snapshots", from_snapshots),
    ("cp refusals", refusals),
    ("cp where there is no room", no_room),
    ("cp of a tree that is deep", deep),
    ("cp of very many files", very_many),
    ("cp that is killed", killed),
    ("cp whose service is killed", service_killed),
];

/// Makes one of everything in the pool, with lists that are inherited, and how trees are listed.
const BEGIN: &str = r#"
"$hf" pool create "$pool" --size 256M >/dev/null; "$hf" pool create other --size 256M >/dev/null
tests=$PWD; for n in 1 2 3 4 5 6; do [ -e "$tests/snapshots" ] || tests=$tests/..; done
run() { "$hf" run --pool "$1" --at "$PWD/hf" -- "${@:2}"; }
listed() { run "$1" python3 "$tests/snapshots/copied.py" "$PWD/hf/$2"; }
here() { python3 "$tests/snapshots/copied.py" "$1"; }
"#;

fn begun(fixture: &Fixture, text: &str) -> Result<String, Stop> {
    let scripts = super::repository("tests/snapshots")?;
    std::os::unix::fs::symlink(scripts, fixture.path("snapshots"))?;
    let pool = fixture.path("pool");
    said(fixture, &pool.to_string_lossy(), &format!("{BEGIN}{text}"))
}

/// What a script says, without counts that are 0, and with a short name for the pool.
/// `is_served POOL PID` waits until that process is its service: the one before may still end.
const SAYING: &str = r#"
say() { "$hf" "$@" 2>&1 || echo "status $?"; }
is_served() {
    for n in $(seq 500); do
        "$hf" pool status "$1" | grep "^service *process $2$" >/dev/null && return; sleep 0.01
    done
}
"#;

fn said(fixture: &Fixture, pool: &str, text: &str) -> Result<String, Stop> {
    let text = format!("{SAYING}{text}");
    let said = script(fixture, pool, &text)?.replace(pool, "P");
    let lines = said.lines().map(|line| match line.strip_prefix('{') {
        None => format!("{line}\n"),
        Some(counts) => {
            let counts = counts.trim_end_matches('}').split(',');
            let counts: Vec<_> = counts.filter(|count| !count.ends_with(":0")).collect();
            format!("{{{}}}\n", counts.join(","))
        }
    });
    Ok(lines.collect())
}

/// From pool to pool, to the host and back, and within a pool.
fn every_kind(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"
run "$pool" mkdir "$PWD/hf/tree"
run "$pool" bash "$tests/snapshots/everything.sh" "$PWD/hf/tree"
run "$pool" python3 - "$PWD/hf/tree" <<'PYTHON'
import os, sys
os.chdir(sys.argv[1])
entries = lambda who: bytes.fromhex('02000000' '01000700ffffffff') + who + bytes.fromhex(
    '04000500ffffffff' '10000700ffffffff' '20000000ffffffff')
user = bytes.fromhex('02000700d2040000')
os.mkdir('lists'); open('lists/before', 'w').write('no list')
os.setxattr('lists', 'system.posix_acl_default', entries(user))
open('lists/after', 'w').write('a list'); os.mkdir('lists/below'); os.mkdir('lists/none')
os.removexattr('lists/none', 'system.posix_acl_default')
os.chmod('docs', 0o1750); os.chmod('data/numbers', 0o444); os.chmod('empty', 0o555)
os.utime('data/link', ns=(1_000_000_007, 86_400_000_000_009), follow_symlinks=False)
os.utime('docs', ns=(1_000_000_007, -86_400_000_000_009))
PYTHON
listed "$pool" tree >wanted
same() { cmp "$1" wanted || { diff "$1" wanted | head -n 5; false; }; }
"$hf" cp -a "$pool:tree" other: --json | grep -o '"bytes":14.*"failed":0' | wc -l
listed other tree >found; same found
"$hf" cp -a other:tree "$pool:/tree/../within"; listed "$pool" within >found; same found
# A directory without a name into one that is there, which has to be writable.
run "$pool" chmod 755 "$PWD/hf/within/empty"
"$hf" cp -a "$pool:tree/." "$pool:within"; listed "$pool" within >found; same found
mkdir lists; attributes=yes
python3 -c 'import os
os.setxattr("lists", "user.a", b"b" * 5000)' 2>/dev/null || attributes=
if [ "$attributes" ]; then
    umask 077; "$hf" cp -a "$pool:tree" host; here host >found; same found
    run other chmod 755 "$PWD/hf/tree/empty"; run other rm -r "$PWD/hf/tree"
    "$hf" cp -a host/ other:tree; listed other tree >found; same found
    # Through programs that have the pool's files as files.
    run "$pool" "$hf" cp -a "$PWD/hf/tree" other:again; listed other again >found; same found
fi
"$hf" pool check "$pool" >/dev/null; "$hf" pool check other >/dev/null
"#;
    expect("the copies", &begun(fixture, text)?, "1\n")
}

/// What cp(1) makes of the same, it does.
fn without_attributes(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"
mkdir tree; bash "$tests/snapshots/build.sh" "$PWD/tree"
mkfifo tree/fifo; chmod 4755 tree/docs/note-1; chmod 600 tree/docs/note-2; chmod 1777 tree/empty
chmod 500 tree/docs/deep; mkdir -m 2770 tree/set
shown() { (cd "$1"; find . -printf '%P %M %y %l\n' | sort
    find . -type f | sort | xargs sha256sum); }
umask 027
cp -r tree theirs; "$hf" cp -r tree "$pool:"; "$hf" cp --recursive "$pool:tree" ours
diff <(shown theirs) <(shown ours)
run "$pool" bash -c "cd $PWD/hf/tree; find . -printf '%P %M %y %l\n' | sort" >in-pool
diff <(cd theirs; find . -printf '%P %M %y %l\n' | sort) in-pool
# Holes are kept without -a, too, and a link that is named is followed without -r.
[ $(stat -c %b ours/data/holes) = $(stat -c %b tree/data/holes) ]
"$hf" cp tree/data/link "$pool:followed"; "$hf" cp "$pool:followed" - | cmp - tree/docs/note-1
"$hf" cp -r tree/data/link "$pool:kept"; run "$pool" readlink "$PWD/hf/kept"
chmod 700 tree/docs/deep theirs/docs/deep ours/docs/deep
"#;
    expect("a link", &begun(fixture, text)?, "../docs/note-1\n")
}

/// Names that are taken: by files, links and directories.
fn to_what_is_there(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = r#"
run() { "$hf" run --pool "$pool" --at "$PWD/hf" -- bash -c "cd $PWD/hf; $1"; }
echo new >f; mkdir d; echo in >d/in; echo more >d/more
run 'echo old >f; chmod 640 f; ln f second; echo target >target; ln -s target link; mkdir -p d/in
    mkdir sub; ln -s sub to-sub; echo x >file'
"$hf" cp f "$pool:"; run 'cat f second; stat -c "%a %h" f second'
"$hf" cp f "$pool:link"; run 'cat link target; stat -c %F link'
"$hf" cp f "$pool:to-sub"; run 'cat sub/f; stat -c %F to-sub'
echo newer >f
"$hf" cp -n --json f d/more "$pool:"
"$hf" cp -n --json -r d "$pool:sub"; "$hf" cp -n --json -r d "$pool:sub"
run 'cat f sub/d/more'
say cp -r d "$pool:"; run 'ls d'; say cp -r d "$pool:file"; say cp f "$pool:d"
run 'rm d/f; mkdir d/f'; say cp f "$pool:d"; say cp d "$pool:x"; say cp f d/in "$pool:new"
say cp f "$pool:new/"; say cp f/ "$pool:new"; say cp "$pool:f" "$pool:./sub/../f"
say cp -r "$pool:sub" "$pool:sub/below"; say cp -r "$pool:" "$pool:sub/d" ; run 'ls sub sub/d'
echo host >there; ln there there-2; "$hf" cp "$pool:f" there; cat there there-2
"$hf" pool check "$pool" >/dev/null; find . -name '.holdfast-cp*'
"#;
    let said = said(fixture, &pool, text)?;
    expect("what is there", &said, THERE)
}

const THERE: &str = r#"new
old
640 1
640 1
new
target
regular file
new
symbolic link
{"files":1,"bytes":5,"skipped":1}
{"files":2,"directories":1,"bytes":8}
{"skipped":2}
new
more
holdfast: P:d/in: it is a directory, and not replaced.
Fix: choose another name, or remove it
status 1
in
more
holdfast: P:file: it is no directory.
Fix: choose another name, or remove it
status 1
holdfast: P:d/f: it is a directory, and not replaced.
Fix: choose another name, or remove it
status 1
holdfast: d: it is a directory.
Fix: give -r to copy it with all in it
status 1
holdfast: P:new: it is no directory, and there is more than one thing to copy.
Fix: make the directory first
status 1
holdfast: f: it is no directory, as a slash at the end of a name says.
Fix: leave out the slash, or copy into a directory that is there
status 1
holdfast: f/: it is no directory, as a slash at the end of a name says.
Fix: leave out the slash, or copy into a directory that is there
status 1
holdfast: P:./sub/../f: it is the same file as P:f.
status 1
holdfast: P:sub/below: a directory is not copied into itself.
status 1
holdfast: P:sub/d: a directory is not copied into itself.
status 1
sub:
below
d
f

sub/d:
d
f
file
in
link
more
second
sub
target
to-sub
new
host
"#;

/// `-`, and what is neither a file nor a directory.
fn streams(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = r#"
seq 300000 >numbers; "$hf" cp - "$pool:n" <numbers; "$hf" cp "$pool:n" - | cmp - numbers
"$hf" cp "$pool:n" - | head -n 1
"$hf" cp - - <numbers | cmp - numbers; "$hf" cp numbers - | cmp - numbers
"$hf" cp - copy <numbers; cmp copy numbers
"$hf" cp <(echo substituted) "$pool:s"; "$hf" cp "$pool:s" /dev/stdout | cat
"$hf" cp /proc/self/status "$pool:proc"; "$hf" cp "$pool:proc" - | grep -c ^Umask
"$hf" cp "$pool:n" /dev/null; "$hf" cp /dev/null "$pool:empty"; "$hf" cp "$pool:empty" -
mkfifo pipe; "$hf" cp "$pool:s" pipe & cat pipe; wait
cat numbers >pipe & "$hf" cp pipe "$pool:from-pipe"; wait
"$hf" cp "$pool:from-pipe" - | cmp - numbers
"$hf" cp -r pipe "$pool:pipe"; say cp "$pool:pipe" x
say cp "$pool:n" /dev/full; ("$hf" cp "$pool:n" - >/dev/full) 2>&1 || echo "status $?"
"$hf" kv "$pool" ks put a b; "$hf" cp - "$pool:ks/n" <numbers
"$hf" kv "$pool" ks get n | cmp - numbers
echo small | "$hf" cp - "$pool:ks/s"; "$hf" cp "$pool:ks/s" -; "$hf" kv "$pool" ks count
# The service makes files that are larger than the limit.
"$hf" serve "$pool" 2>/dev/null & service=$!
is_served "$pool" $service
(ulimit -f 100; say cp "$pool:n" cut); ls cut 2>/dev/null || echo nothing
kill $service; wait $service
"#;
    let said = said(fixture, &pool, text)?;
    expect("streams", &said, STREAMS)
}

const STREAMS: &str = r#"1
substituted
1
substituted
holdfast: P:pipe: it is neither a file nor a directory.
Fix: give -r to copy it as what it is
status 1
holdfast: /dev/full: No space left on device.
Fix: free some space there, and copy the rest again
status 1
holdfast: standard output: No space left on device.
status 1
small
3
holdfast: cut: File too large.
status 1
nothing
"#;

/// Values stay values, and files become some.
fn keyspaces(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = r#"
"$hf" pool create other --size 64M >/dev/null
for n in 1 2 3; do "$hf" kv "$pool" ks put "k$n" "value $n"; done
"$hf" kv "$pool" ks put -e 'a/b\x00' odd; "$hf" kv "$pool" ks put . dot
head -c 200000 /dev/urandom >mid; "$hf" kv "$pool" ks put mid <mid
"$hf" run --pool "$pool" --at "$PWD/hf" -- bash -c "cd $PWD/hf/ks; echo file >file; chmod 600 file
    mkdir sub; echo below >sub/below; ln -s k1 link"
echo; say cp -r "$pool:ks" host; ls host; cat host/k1 host/file host/sub/below; cmp host/mid mid
stat -c %a host/k1 host/file; rm -r host
say cp -a "$pool:ks" host >/dev/null
# The time of a put is that of the file.
[ $(stat -c %Y host/k2) -le $(date +%s) ] && [ $(stat -c %Y host/k2) -gt $(($(date +%s) - 99)) ]
"$hf" cp -r --json "$pool:ks" "$pool:copy"; "$hf" kv "$pool" copy get -e 'a/b\x00'; echo
cmp <("$hf" kv "$pool" ks scan) <("$hf" kv "$pool" copy scan)
"$hf" cp -a --json "$pool:/ks" other:; cmp <("$hf" kv "$pool" ks scan) <("$hf" kv other ks scan)
"$hf" run --pool other --at "$PWD/hf" -- stat -c %a "$PWD/hf/ks/file"
say cp -r "$pool:ks" other:below/; "$hf" run --pool other --at "$PWD/hf" -- mkdir "$PWD/hf/dir"
say cp -r "$pool:ks" other:dir; "$hf" kv other
# Files into keyspaces.
mkdir many; for n in $(seq 3000); do echo "$n" >many/$n; done
"$hf" cp -rk --json many other:; "$hf" kv other many count; "$hf" kv other many get 77
"$hf" cp --json -n many/1 many/77 mid other:many; "$hf" kv other many get mid | cmp - mid
"$hf" cp -a --json many/5 other:many/six; "$hf" kv other many get six
"$hf" cp -k --json many/5 many/6 other:new; "$hf" cp host/k1 other:new/k1
"$hf" kv other new scan
say cp -k many/5 here; "$hf" cp -r --json "$pool:ks/." other:new; "$hf" kv other new count
"$hf" run --pool other --at "$PWD/hf" -- mkdir "$PWD/hf/new/8"
say cp many/7 many/8 many/9 other:new
"$hf" kv other new get 9
"$hf" pool check "$pool" >/dev/null; "$hf" pool check other >/dev/null
"#;
    let said = said(fixture, &pool, text)?;
    expect("keyspaces", &said, KEYSPACES)
}

const KEYSPACES: &str = r#"
holdfast: P:ks: 2 keys, such as ".", are no names of files and were not copied.
Fix: copy to a keyspace, or take all keys with holdfast kv POOL ks dump
status 1
file
k1
k2
k3
link
mid
sub
value 1file
below
644
600
{"files":1,"directories":2,"others":1,"values":7,"bytes":200038}
odd
{"files":2,"directories":2,"others":1,"values":6,"bytes":200038}
600
holdfast: P:ks: 2 keys, such as ".", are no names of files and were not copied.
Fix: copy to a keyspace, or take all keys with holdfast kv POOL ks dump
status 1
below
ks
{"directories":1,"values":3000,"bytes":13893}
3000
77
{"values":1,"bytes":200000,"skipped":2}
{"files":1,"bytes":2}
5
{"values":2,"bytes":4}
5	5\n
6	6\n
k1	value 1
holdfast: only pools have keyspaces.
Fix: name a pool's path as the destination, or leave out --keyspace
status 2
{"files":1,"directories":1,"others":1,"values":7,"bytes":200038}
9
holdfast: other:new/8: it is a directory, and not replaced.
Fix: choose another name, or remove it
status 1
9
"#;

/// Files that no scan is to hold in memory, among values.
fn large_in_keyspaces(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"
for pair in 'a first' 'm middle' 'z last'; do "$hf" kv "$pool" ks put $pair; done
head -c 90M /dev/zero | tr '\0' x >large; "$hf" cp large "$pool:ks/k"
"$hf" cp - "$pool:ks/n" <large
"$hf" cp -r --json "$pool:ks" host; cmp host/k large; cmp host/n large
cat host/a host/m host/z; echo
rm -r host; "$hf" cp -r --json "$pool:ks" other:; "$hf" kv other ks get k | cmp - large
"$hf" kv other ks count; "$hf" pool check other >/dev/null
"#;
    let said = begun(fixture, text)?;
    expect("large values", &said, LARGE)
}

const LARGE: &str = r#"{"files":5,"directories":1,"bytes":188743695}
firstmiddlelast
{"directories":1,"values":5,"bytes":188743695}
5
"#;

/// What a snapshot has, whatever became of it.
fn from_snapshots(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = r#"
echo one >f; mkdir d; cp f d/f; "$hf" cp -r f d "$pool:"; "$hf" kv "$pool" ks put k one
"$hf" snapshot "$pool" create first
echo two >f; "$hf" cp f "$pool:"; "$hf" cp f "$pool:d"; "$hf" kv "$pool" ks put k two
"$hf" cp --snapshot first "$pool:f" -; "$hf" cp -r --snapshot first "$pool:" host
cat host/f host/d/f host/ks/k; echo; "$hf" cp -ra --snapshot first "$pool:ks" "$pool:then"
"$hf" kv "$pool" then get k; echo; "$hf" cp --snapshot first "$pool:f" "$pool:"
"$hf" cp "$pool:f" "$pool:d/f" host; cat host/f; say cp --snapshot none "$pool:f" x
say cp --snapshot first f x
"$hf" snapshot "$pool" delete first; "$hf" pool check "$pool" >/dev/null
"#;
    let said = said(fixture, &pool, text)?;
    expect("snapshots", &said, SNAPSHOTS)
}

const SNAPSHOTS: &str = r#"one
one
one
one
one
two
holdfast: there is no snapshot "none".
Fix: `holdfast snapshot POOL list` shows the pool's snapshots
status 1
holdfast: nothing is copied from a pool.
Fix: name a pool's path to copy, or leave out --snapshot
status 2
"#;

fn refusals(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    std::fs::write(fixture.path("f"), "f")?;
    std::fs::create_dir(fixture.path("s"))?;
    let at = |path: &str| format!("{pool}:{path}");
    let (inside, none, missing) = (at("f"), at("no/such"), at("missing"));
    let cases: &[(&[&str], i32)] = &[
        (&["cp"], 2),
        (&["cp", "f"], 2),
        (&["cp", "", "x"], 2),
        (&["cp", "f", "nothing:x"], 1),
        (&["cp", "f", "/no/pool:x"], 1),
        (&["cp", "f", &none], 1),
        (&["cp", "missing", &inside], 1),
        (&["cp", &missing, "x"], 1),
        (&["cp", "-", "-", "x"], 2),
        (&["cp", "f", "-", &inside], 2),
        (&["cp", "f", "f", "-"], 2),
        (&["cp", ".", "-"], 1),
        (&["cp", "-k", "f", "x"], 2),
        (&["cp", "--snapshot", "s", "f", "x"], 2),
        (&["cp", "--snapshot", "s", &inside, "x"], 1),
        (&["cp", "f", "f"], 1),
        (&["cp", "-r", "s", "s/below"], 1),
    ];
    for (words, status) in cases {
        fixture.refused(words, &[*status])?;
    }
    let text = r#"
cp f ./a:b; "$hf" cp ./a:b "$pool:"; "$hf" cp "$PWD/./a:b" "$pool:c:d"; "$hf" cp "$pool:c:d" ./e:f
cat ./e:f; mkdir x:y; "$hf" pool create x:y/pool --size 64M >/dev/null; "$hf" cp f x:y/pool:z:z
"$hf" cp x:y/pool:z:z -; "$hf" run --pool "$pool" --at "$PWD/hf" -- ls "$PWD/hf"
# The rest is copied, and the status is 1.
mkdir d; echo 1 >d/1; echo 3 >d/3; ln -s nowhere d/2; "$hf" cp d/1 d/2 d/3 "$pool:" 2>&1 || echo $?
"$hf" cp "$pool:1" "$pool:3" ./x:y; cat x:y/1 x:y/3
# Links that lead out of the pool, or out of the tree, lead nowhere.
"$hf" run --pool "$pool" --at "$PWD/hf" -- bash -c "cd $PWD/hf; mkdir t
    ln -s /etc t/out; ln -s /etc out"
"$hf" cp "$pool:out/hosts" - 2>&1 | sed 's/^.*: //' || true; mkdir s/out; echo s >s/out/hosts
"$hf" cp -r s/. "$pool:t" 2>&1 | sed 's/^.*t.out/t.out/' || true; ls -d x:y/etc 2>/dev/null || true
"#;
    let said = said(fixture, &pool, text)?;
    expect("paths", &said, PATHS)
}

const PATHS: &str = r#"ffa:b
c:d
holdfast: d/2: No such file or directory.
1
1
3
no such file or directory.
t.out: it is no directory.
Fix: choose another name, or remove it
"#;

/// A full pool, and a host that takes no more: what has room is copied, and nothing is there in
/// part.
fn no_room(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = r#"
mkdir d; head -c 100M /dev/urandom >d/2-large; echo one >d/1; echo three >d/3
"$hf" cp -r --json d "$pool:" 2>&1 | sed 's/^.*pool:/pool:/' || true
"$hf" run --pool "$pool" --at "$PWD/hf" -- ls "$PWD/hf/d"; "$hf" pool check "$pool" >/dev/null
"$hf" cp -rk d "$pool:ks" 2>/dev/null || echo $?; "$hf" kv "$pool" ks count
"$hf" pool check "$pool" >/dev/null
"$hf" pool create big --size 256M >/dev/null
# The service makes files that are larger than the limit.
"$hf" serve big 2>/dev/null & service=$!
is_served big $service; "$hf" cp -r d big:
(ulimit -f 50000; "$hf" cp -r big:d host 2>&1 || echo $?); ls -A host; cat host/1 host/3
kill $service; wait $service
"#;
    expect("no room", &said(fixture, &pool, text)?, ROOM)
}

const ROOM: &str = r#"pool:d/2-large: the pool is full.
Fix: erase something, or make a larger pool
{"files":2,"directories":1,"bytes":10,"failed":1}
1
3
1
2
holdfast: host/2-large: File too large.
1
1
3
one
three
"#;

fn deep(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = r#"
python3 - <<'PYTHON'
import os
os.mkdir('deep'); os.chdir('deep')
for _ in range(900):
    os.mkdir('d'); os.chdir('d')
open('leaf', 'w').write('leaf')
PYTHON
ulimit -n 4096
"$hf" cp -a --json deep "$pool:"; "$hf" cp -a --json "$pool:deep" back; diff -r deep back
(ulimit -n 300; "$hf" cp -r "$pool:deep" cut 2>&1 |
    grep -c 'Too many open files.$\|^Fix: raise' || true)
rm -r deep back cut; "$hf" pool check "$pool" >/dev/null
"#;
    let done = r#"{"files":1,"directories":901,"bytes":4}"#;
    expect(
        "deep",
        &said(fixture, &pool, text)?,
        &format!("{done}\n{done}\n2\n"),
    )
}

/// In a time that leaves no doubt.
fn very_many(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"
"$hf" pool create large --size 1G >/dev/null
python3 - <<'PYTHON'
import os
for directory in range(100):
    os.makedirs(f'many/{directory}')
    for file in range(1000):
        open(f'many/{directory}/{file}', 'w').write(f'{directory} {file} ' * (file % 90))
PYTHON
timeout 60 "$hf" cp -a many large:; timeout 60 "$hf" cp -a large:many back; diff -r many back
timeout 60 "$hf" cp -a large:many large:more
timeout 60 "$hf" cp -rk --json many/1* large:
"$hf" kv large 19 count; cmp <("$hf" kv large 19 get 777) many/19/777
rm -r back; "$hf" cp -r large:19 back; diff -r back many/19
"#;
    let values = r#"{"directories":11,"values":11000,"#;
    let said = begun(fixture, text)?;
    match said.starts_with(values) && said.ends_with("\n1000\n") {
        true => Ok(()),
        false => wrong(said),
    }
}

/// Copies `d` again and again, each time killed a bit later; then to the end.
fn killed(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    script(
        fixture,
        &pool,
        r#"mkdir d; for n in $(seq 1500); do head -c $((n % 7 * 3000 + 10)) /dev/zero |
            tr '\0' $((n % 10)) >d/$n; done; head -c 8M /dev/urandom >d/large; cp -r d old
        cd old; for f in *; do echo old >$f; done"#,
    )?;
    let inside = format!("{pool}:d");
    for (to, look) in [(inside.as_str(), LOOK_IN_POOL), ("host", LOOK_ON_HOST)] {
        // First where nothing is, then over what is there.
        for replaced in [false, true] {
            if replaced {
                let words = ["cp", "-r", "old/.", to];
                fixture.done(&words)?;
            }
            let mut unfinished = 0;
            for delay in (0..18).map(|n| Duration::from_micros(n * n * 400)) {
                unfinished += u32::from(copy_killed(fixture, &["cp", "-r", "d/.", to], delay)?);
                let said = script(fixture, &pool, &format!("{LOOK}{look}"))?;
                expect("what the killed left", &said, "")?;
            }
            if unfinished < 3 {
                return wrong(format!("only {unfinished} copies were killed"));
            }
            fixture.done(&["cp", "-r", "d/.", to])?;
            let done = format!("{LOOK}{look} all");
            expect("the whole", &script(fixture, &pool, &done)?, "")?;
        }
    }
    fixture.done(&["pool", "check", &pool]).map(drop)
}

/// Each file is new or old, and nothing else is there, but at most one that was to replace another.
/// `all`: each is new.
const LOOK: &str = r#"
cat >look.py <<'PYTHON'
import os, sys
there, every = sys.argv[1], sys.argv[2:] == ['all']
names = [n for n in os.listdir(there) if not n.startswith('.holdfast-cp.')]
read = lambda *path: open(os.path.join(*path), 'rb').read()
for name in names:
    found = read(there, name)
    if found != read('d', name) and (every or found != read('old', name)):
        print(name, 'is no file that was copied')
left = len(os.listdir(there)) - len(names)
if left > 1 or every and len(names) != len(os.listdir('d')):
    print(left, 'temporary files, and', len(names), 'others')
PYTHON
look() { [ ! -d "$1" ] || { python3 look.py "$@"; rm -f "$1"/.holdfast-cp.*; }; }
"#;
const LOOK_IN_POOL: &str = r#"
run() { "$hf" run --pool "$pool" --at "$PWD/hf" -- "$@"; }
"$hf" pool check "$pool" >/dev/null; rm -rf there
run bash -c "[ ! -d $PWD/hf/d ] || { cp -r $PWD/hf/d there; rm -f $PWD/hf/d/.holdfast-cp.*; }"
look there "#;
const LOOK_ON_HOST: &str = "look host ";

/// Whether it was killed before its end.
fn copy_killed(fixture: &Fixture, words: &[&str], delay: Duration) -> Result<bool, Stop> {
    let mut command = Command::new(&fixture.holdfast);
    command.args(words).current_dir(&fixture.dir);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (mut child, begun) = (command.spawn()?, Instant::now());
    // `holdfast` itself takes some milliseconds to join the pool.
    std::thread::sleep((Duration::from_millis(4) + delay).saturating_sub(begun.elapsed()));
    child.kill()?;
    Ok(child.wait()?.signal().is_some())
}

/// The copy goes on with the next service.
fn service_killed(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"
mkdir d; for n in $(seq 6000); do echo "$n of many" >d/$n; done
kills() { for n in $(seq 6); do
    sleep 0.03; pid=$("$hf" pool status "$pool" --json | sed -n 's/.*"service":\([0-9]*\).*/\1/p')
    [ "${pid:-0}" = 0 ] || kill -KILL $pid; done; }
kills & "$hf" cp -a d "$pool:"; "$hf" cp -a "$pool:d" back; wait
diff -r d back; "$hf" pool check "$pool" >/dev/null
"#;
    expect("the copy", &begun(fixture, text)?, "")
}
