//! `holdfast mount`: the files of a pool where the kernel shows them, to programs beside those of
//! `holdfast run`.

use super::{expect, script};
use crate::bad_input::{Case, Fixture, Stop};
use std::fs::OpenOptions;

pub const CASES: &[(&str, Case)] = &[
    ("mount: changes on both sides", coherent),
    ("mount: keys and values", values),
    ("mount: locks", locks),
    ("mount: snapshots and reading alone", read_only),
    ("mount: the end", ends),
    ("mount: another namespace", elsewhere),
    ("mount: kills", kills),
    ("mount: very many files", many),
    ("mount: refusals", refusals),
];

/// `both TEXT` does it in the pool and then on the mount, `in_pool TEXT` in one program of the pool
/// that lives as long as the script, with `/hf` as the working directory. Each ends with a line.
const BEGIN: &str = r#"
"$hf" pool create "$pool" --size 256M >/dev/null; mkdir m; "$hf" mount "$pool" m
trap '"$hf" umount --lazy m 2>/dev/null || true' EXIT
coproc IN { "$hf" run --pool "$pool" -- bash -c \
    'cd /hf; while read -r text; do eval "$text" >$0 2>&1 </dev/null; tr "\n" " " <$0; echo; done' \
    "$PWD/said"; }
inside=$IN_PID; exec 20<&"${IN[0]}" 21>&"${IN[1]}" {IN[0]}<&- {IN[1]}>&-
mount() { "$hf" mount "$@" 20<&- 21>&-; }
in_pool() { echo "$1" >&21; read -r line <&20; echo "$line"; }
on_mount() { (cd m; { eval "$1" 2>&1 || true; } | tr "\n" " "; echo); }
without() { tr -d ' '; }
same() {
    [ "$(in_pool "$1" | without)" = "$(on_mount "$1" | without)" ] || echo "not the same: $1"
}
gone() { exec 20<&- 21>&-; wait $inside; }
leave() { gone; "$hf" umount m; "$hf" pool check "$pool" >/dev/null; }
"#;

fn begun(fixture: &Fixture, text: &str) -> Result<String, Stop> {
    needs_fuse()?;
    let pool = fixture.path("pool");
    script(fixture, &pool.to_string_lossy(), &format!("{BEGIN}{text}"))
}

fn needs_fuse() -> Result<(), Stop> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    match device {
        Ok(_) => Ok(()),
        Err(_) => Err(Stop::Skip("this user may not open /dev/fuse".into())),
    }
}

/// Content, names, attributes, and files that have lost their names, each at once.
fn coherent(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"
for n in $(seq 40); do
    in_pool "echo $n >f; truncate -s $((n * 1000)) g; mkdir -p d$n/e; ln -s f d$n/l" >/dev/null
    in_pool "chmod 7$((n % 8))0 d$n" >/dev/null
    same "cat f; stat -c %s g; cat d$n/l 2>&1 | wc -c; stat -c '%n %a %h %i %Y' d$n d$n/e f"
    on_mount "echo more $n >>f; truncate -s 0 g; echo x >d$n/e/x; mv d$n/e d$n/m" >/dev/null
    on_mount "ln f h$n; touch -d @$n g" >/dev/null
    # To read them changes their times.
    same "stat -c '%n %s %h %i %X %Y' f g h$n"
    same "cat f g; cat d$n/m/x; ls d$n"
    in_pool "rm h$n; mv d$n/m/x y; rm -r d$n" >/dev/null
    same "ls -A; cat y; ls d$n"
done
in_pool "echo still >gone; exec 7<>gone; rm gone" >/dev/null
on_mount "exec 8<>f; rm f; echo there >&8; head -n 1 /proc/self/fd/8; ls f"
in_pool "cat /proc/self/fd/7; stat -c %h -L /proc/self/fd/7"
# Whoever has a file mapped.
cat >store.py <<'P'
import mmap, sys
with open("map", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
    mapped[int(sys.argv[1])] = int(sys.argv[2])
    mapped.flush()
P
on_mount "head -c 9000 /dev/zero | tr '\0' a >map"
in_pool "python3 $PWD/store.py 5000 98"
on_mount "tr -d a <map; echo"
on_mount "python3 $PWD/store.py 6000 99"
in_pool "tr -d a <map; echo"
leave
"#;
    let wanted = "there ls: cannot access 'f': No such file or directory \nstill 0\n\n\nb \n\nbc\n";
    expect("changes", &begun(fixture, text)?, wanted)
}

/// Values are files there, too, and what is written to becomes one.
fn values(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"
kv() { "$hf" kv "$pool" ks "$@"; echo; }
kv put one first >/dev/null; head -c 300000 /dev/zero | tr '\0' v | "$hf" kv "$pool" ks put large -
cat m/ks/one; echo; tr v w <m/ks/large | tr -d v | wc -c; stat -c '%n %s' m/ks/*
ls m/ks | tr '\n' ' '; echo
kv put one second >/dev/null; cat m/ks/one; echo; printf third >m/ks/one; kv get one
printf four >m/ks/two; kv get two; mv m/ks/two m/ks/three; kv get three
chmod 600 m/ks/three; stat -c %a m/ks/three; kv get three; printf +more >>m/ks/three; kv get three
cp m/ks/large m/copy; cmp m/copy m/ks/large; rm m/ks/large; ls m/ks | tr '\n' ' '; echo
exec 5<m/ks/one; kv put one fifth >/dev/null; cat <&5; echo; exec 5<&-; cat m/ks/one; echo
ln m/ks/one m/linked; cat m/linked; echo; setfattr -n user.a -v b m/ks/one
getfattr --only-values -n user.a m/ks/one; echo; ls -l m/ks | wc -l
leave
"#;
    let wanted = "first\n300000\nm/ks/large 300000\nm/ks/one 5\nlarge one \nsecond\nthird\nfour\n\
        four\n600\nfour\nfour+more\none three \nthird\nfifth\nfifth\nb\n3\n";
    expect("values", &begun(fixture, text)?, wanted)
}

/// Record locks of one side keep the other out, by part and kind; who waits gets them, or a signal.
fn locks(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"
cat >lock.py <<'P'
import fcntl, os, signal, sys, time
file = open(sys.argv[1], "r+b")
for word in sys.argv[2:]:
    kind, _, part = word.partition(":")
    start, length = map(int, part.split("+")) if part else (0, 0)
    try:
        if kind == "hold":
            open(part, "w").close()
            while not os.path.exists(part + ".end"): time.sleep(0.01)
            continue
        if kind == "alarm":
            signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(InterruptedError()))
            signal.alarm(1)
            continue
        how = {"w": fcntl.LOCK_EX, "r": fcntl.LOCK_SH, "u": fcntl.LOCK_UN}[kind[0]]
        if kind[1:] != "wait" and kind != "u": how |= fcntl.LOCK_NB
        fcntl.lockf(file, how, length, start)
        print(word, "done", flush=True)
    except OSError as e:
        print(word, type(e).__name__, flush=True)
P
on_mount "echo 0123456789 >f"
hold() { python3 lock.py "$@" & for n in $(seq 500); do [ -e held ] && break; sleep 0.01; done; }
free() { touch held.end; wait "$1"; rm held held.end; }
for way in "m /hf" "/hf m"; do
    read -r a b <<<"$way"
    there() {
        case $1 in
        m) python3 lock.py m/f "${@:2}" ;;
        *) "$hf" run --pool "$pool" -- python3 lock.py /hf/f "${@:2}" ;;
        esac
    }
    sed -i 's|open(part|open("held"|; s|exists(part + |exists("held" + |' lock.py
    there "$a" w:2+3 hold:0+0 & one=$!
    for n in $(seq 500); do [ -e held ] && break; sleep 0.01; done
    there "$b" r:0+2 w:5+9 r:4+1 w:0+0
    there "$b" alarm wwait:2+1
    there "$b" wwait:2+1 & two=$!
    sleep 0.3; kill -0 $two; touch held.end; wait $one; wait $two; rm held held.end
    there "$b" w:0+0
done
# flock(2) is the kernel's own, among those on the mount.
flock -n m/f sh -c 'flock -n m/f true || echo busy'; flock -n m/f echo free
# Who waits for a lock can be killed.
python3 lock.py m/f w hold:0+0 & one=$!
for n in $(seq 500); do [ -e held ] && break; sleep 0.01; done
python3 lock.py m/f wwait & two=$!
sleep 0.3; kill -9 $two; wait $two || echo "status $?"
touch held.end; wait $one
leave
"#;
    let side = "w:2+3 done\nr:0+2 done\nw:5+9 done\nr:4+1 BlockingIOError\nw:0+0 BlockingIOError\n\
        wwait:2+1 InterruptedError\nwwait:2+1 done\nw:0+0 done\n";
    let said = begun(fixture, text)?;
    let wanted = format!("\n{side}{side}busy\nfree\nw done\nstatus 137\n");
    expect("locks", &said, &wanted)
}

fn read_only(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"
say() { "$@" 2>&1 || echo "status $?"; }
on_mount "echo before >f; mkdir d; ln -s f l"; "$hf" snapshot "$pool" create s
on_mount "echo after >f; rmdir d"
mkdir s r; mount --snapshot s "$pool" s; cat s/l; ls s | tr '\n' ' '; echo
say touch s/f; say rm s/f; findmnt -no options s | grep -o '^ro'; python3 -c 'import fcntl
f = open("s/f"); fcntl.lockf(f, fcntl.LOCK_SH); print("locked")'
mount --read-only "$pool" r; cat r/f; say touch r/f; on_mount "echo later >f"; cat r/f
"$hf" umount s; "$hf" umount r; "$hf" snapshot "$pool" delete s
leave
"#;
    let refused = "Read-only file system\nstatus 1\n";
    let wanted = format!(
        "\n\nbefore\nd f l \ntouch: cannot touch 's/f': {refused}rm: cannot remove 's/f': {refused}\
         ro\nlocked\nafter\ntouch: cannot touch 'r/f': {refused}\nlater\n"
    );
    expect("what is seen", &begun(fixture, text)?, &wanted)
}

/// By command, when nobody uses the files; else lazily; and by signal.
fn ends(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"
say() { "$@" 2>&1 || echo "status $?"; }
findmnt -no fstype,source m | tr -s ' ' | sed "s|$pool|P|"
exec 5>m/f; say "$hf" umount m; echo kept >&5; "$hf" umount --lazy m
echo and more >&5; ls m; exec 5>&-
in_pool "cat f"; mount "$pool" m; cat m/f
"$hf" mount --foreground "$pool" m 20<&- 21>&- & one=$!
for n in $(seq 500); do [ "$(findmnt -no fstype m | wc -l)" = 2 ] && break; sleep 0.01; done
kill $one; wait $one; findmnt -no fstype m
process=$(getfattr --absolute-names --only-values -n holdfast.process m); "$hf" umount m
readlink /proc/$process/exe || true; mount "$pool" m
leave
"#;
    let in_use = "holdfast: m is in use.\nFix: end the programs that fuser -vm m shows, or add \
        --lazy, and it is gone with them\nstatus 1\n";
    let said = begun(fixture, text)?;
    let here = fixture.path("m").display().to_string();
    let said = said
        .replace(&format!("{here} "), "m ")
        .replace(here.as_str(), "M");
    let wanted = format!(
        "fuse.holdfast P\n{in_use}kept and more\nkept\nand more\nmounted M\nfuse.holdfast\n"
    );
    expect("what is said", &said, &wanted)
}

/// Neither the death of the program that mounts nor that of the service loses anything.
fn kills(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"
gone; "$hf" umount m
"$hf" serve "$pool" 2>/dev/null & service=$!
# The service before may still end.
for n in $(seq 500); do
    "$hf" pool status "$pool" | grep "process $service$" >/dev/null && break; sleep 0.01
done
mount "$pool" m; echo one >m/f; exec 5>>m/f
kill -9 $service; wait $service 2>/dev/null || true; echo two >&5; mkdir m/d; cat m/f
"$hf" serve "$pool" 2>/dev/null 5>&- & service=$!
echo three >&5; sync m/f; exec 5>&-
kill -9 $(getfattr --absolute-names --only-values -n holdfast.process m)
for n in $(seq 500); do ls m >/dev/null 2>&1 || break; sleep 0.01; done
mount "$pool" m 2>&1 || echo "status $?"
"$hf" umount m; mount "$pool" m; cat m/f; ls m
"$hf" umount m; kill $service; wait $service
"$hf" pool check "$pool" >/dev/null
"#;
    let killed = "holdfast: m is still mounted by a program that was killed.\n\
        Fix: holdfast umount m\nstatus 1\n";
    let here = fixture.path("m").display().to_string();
    let said = begun(fixture, text)?.replace(here.as_str(), "m");
    expect(
        "what is left",
        &said,
        &format!("one\ntwo\n{killed}one\ntwo\nthree\nd\nf\n"),
    )
}

/// What the kernel knows is more than any table of the pool holds, and is forgotten again.
fn many(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"
in_pool 'mkdir t; for d in $(seq 40); do mkdir t/$d; (cd t/$d; seq 1000 | xargs touch); done'
find m/t -type f | wc -l; find m/t -type f -printf '%s\n' | sort | uniq -c | tr -s ' '
ls -l m/t/7 | wc -l; rm -r m/t; ls m
leave
"#;
    expect("files", &begun(fixture, text)?, "\n40000\n 40000 0\n1001\n")
}

/// A mount namespace that is made while it is mounted keeps it, and the pool, until that ends.
fn elsewhere(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"
gone; unshare -m true 2>/dev/null || { "$hf" umount m; echo no; exit 0; }
echo text >m/f
# Of what other tests have mounted it keeps nothing.
cat >keep <<'K'
findmnt -rno TARGET,SOURCE,FSTYPE | awk '$2 ~ "^/dev/loop" || $3 ~ "^fuse" { print $1 }' |
    grep -vxF "$PWD/m" | xargs -r umount -l
touch kept; exec sleep 300
K
unshare -m bash keep 20<&- & other=$!
for n in $(seq 500); do [ -e kept ] && break; sleep 0.01; done
"$hf" umount m 2>&1 | sed "s/process $other/process N/"; ls m
nsenter -t $other -m cat "$PWD/m/f"
"$hf" pool check "$pool" 2>&1 | grep -o 'is in use' || true
kill $other; wait $other || true
for n in $(seq 500); do "$hf" pool check "$pool" >check 2>&1 && break; done; grep -o clean check
"#;
    let said = begun(fixture, text)?;
    if said.ends_with("no\n") {
        return Err(Stop::Skip("needs a mount namespace of one's own".into()));
    }
    let said = said.replace(&format!("{}/", fixture.dir.display()), "");
    let wanted = "holdfast: m is unmounted here; process N, of another mount namespace, still has \
        it, and the pool with it.\ntext\nis in use\nclean\n";
    expect("what is said", &said, wanted)
}

fn refusals(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"
say() { "$hf" "$@" 2>&1 || echo "status $?"; }
mkdir e inside; touch file; say mount "$pool" none; say mount "$pool" file; say mount none e
mkdir "$pool/x"; say mount "$pool" "$pool/x"; rmdir "$pool/x"; say mount --snapshot none "$pool" e
say umount e; say umount none; mkdir t; say umount /proc; say mount; ls -A e; say mount @ none
leave
"#;
    let here = fixture.dir.display().to_string();
    let said = begun(fixture, text)?.replace(&format!("{here}/"), "");
    let wanted = "holdfast: none: No such file or directory.\nstatus 1\n\
        holdfast: file is not a directory.\nstatus 1\n\
        holdfast: none: No such file or directory.\nstatus 1\n\
        holdfast: pool/x is in the pool's own directory.\n\
        Fix: mount it at a directory elsewhere\nstatus 1\n";
    match said.starts_with(wanted) {
        true => Ok(()),
        false => expect("what is said", &said, wanted),
    }
}
