//! What is promised to users of one pool, beside the permissions of files.

use super::{Shared, as_user};
use crate::bad_input::{Case, Fixture, Stop, wrong};
use std::path::Path;

pub const CASES: &[(&str, Case)] = &[
    ("everyday programs", everyday),
    ("root that becomes another user", becomes_another),
    ("answers that are kept", super::leases::follow),
    ("leases that cannot be recalled", super::leases::reach_all),
    ("a daemon that gives up root", super::leaving::gives_up),
    ("locks of who gives up root", super::leaving::keeps_locks),
    (
        "who gives up root and stays mapped",
        super::leaving::stays_mapped,
    ),
    (
        "what is in the way of giving up root",
        super::leaving::hindered,
    ),
    (
        "closed files of who gave up root",
        super::leaving::leaves_nothing_behind,
    ),
    ("a web server of root", super::leaving::web_server),
    ("exports of several users", exports),
    ("root that is nobody", squashed),
    ("calls of programs that ended", counted),
    ("access control lists", lists),
    ("calls on access control lists", list_calls),
    ("limits of descriptors", limits),
    ("locks between users", locks),
    ("locks of the killed", locks_of_the_killed),
    ("sockets between users", super::sockets::sockets),
    ("pipes between users", super::pipes::pipes),
    ("descriptors between users", super::passing::passing),
    ("mappings of several users", super::maps::maps),
    ("what happens to lent files", super::lent::lent),
    ("quotas of users", super::quotas::of_users),
    ("quotas of directories", super::quotas::of_directories),
    ("quotas in the state", super::quotas::in_the_state),
    (
        "quotas as programs see them",
        super::quotas::seen_by_programs,
    ),
    ("quotas and mappings", super::quotas::of_mappings),
    ("a user who fills the pool", super::space::space),
    ("a user who fills the metadata", super::space::metadata),
    ("rights on keys and values", super::keys::rights),
    ("rights on whole keyspaces", super::whole::rights),
    ("counting up for several users", super::whole::counter),
    ("keys of others that expire", super::whole::expiry),
    ("keys and values of several users", super::keys::coherence),
    ("programs with the C interface", super::keys::programs),
    ("kills amid keys and values", super::keys::kills),
    ("snapshots for others", super::snapshots::snapshots),
    ("requests of others", super::requests::requests),
    ("who has what open", super::look::look),
    ("what takes space of others", super::look::usage),
    ("traces of those who are served", super::look::traces),
    ("copies of others", super::copying::copying),
    ("users of a mount", super::mounted::mounted),
    ("a mount of one's own", super::mounted::own),
    ("nothing of others in a process", sees_nothing),
    ("a pool that is closed to others", closed),
    ("a proxy that is killed", proxy_dies),
    ("a service that is killed under others", service_dies),
];

/// What programs make of lists is the same as on tmpfs, and counts in later sessions, for
/// who was let in and for who was not.
fn lists(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    let script = r#"
        mkdir d; echo shared >d/f; chmod 600 d/f; setfacl -m u:3002:r d/f; ls -l d | cut -c1-11
        setfacl -m u:3003:rwx,d:u:3002:rwx,d:g:4001:rx,d:o::- d; getfacl d
        (umask 077; touch d/new; mkdir d/sub; ln -s f d/link); getfacl d/new d/sub
        chmod g-r d/f; getfacl d/f; chmod g+r d/f
        cp -a d e; getfacl e e/f e/sub
        mkdir x; tar --acls -cf t.tar d; tar --acls -xf t.tar -C x
        getfacl x/d x/d/f x/d/new; setfacl -m u::rwx d/new; setfacl -x u:3002 d/new; getfacl d/new
        setfacl -b x/d/f; getfacl x/d/f; setfacl -k x/d; getfacl x/d; stat -c %a x/d x/d/f
        setfacl -m m::rwx,u:3002:r d/link 2>&1; getfacl d/f
        setfacl -m d:u:3002:r d/f 2>&1; exit 0"#;
    let expected = on_tmpfs(fixture, "3001", script)?;
    shared.expect("3001", &format!("cd /hf; {script}"), &expected)?;
    let script = "cat /hf/d/f 2>&1; touch /hf/d/by-$UID 2>&1; ls /hf/d/sub 2>&1; exit 0";
    let refused = |what: &str| format!("{what}: Permission denied\n");
    let (cat, touch, ls) = (
        refused("cat: /hf/d/f"),
        refused("touch: cannot touch '/hf/d/by-3002'"),
        refused("ls: cannot open directory '/hf/d/sub'"),
    );
    shared.expect("3002", script, &format!("shared\n{touch}"))?;
    shared.expect("3003", script, &format!("{cat}{ls}"))?;
    shared.expect(
        "3001",
        "setfacl -x u:3002 /hf/d/f; ls -l /hf/d/by-* | cut -c1-11",
        "-rw-rw----+\n",
    )?;
    shared.expect("3002", "cat /hf/d/f 2>&1; exit 0", &cat)?;
    shared.end()
}

/// What each call says is what it says on tmpfs, for the owner and for who is served.
fn list_calls(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    shared.expect("3001", "mkdir /hf/own; mkdir -m 777 /hf/theirs", "")?;
    let calls = fixture.path("lists.py");
    std::fs::write(&calls, include_str!("lists.py"))?;
    for (user, dir) in [("3001", "own"), ("3002", "theirs")] {
        let script = format!("python3 {}", calls.display());
        let expected = on_tmpfs(fixture, user, &script)?;
        if expected.lines().count() < 500 {
            return wrong(format!("user {user} got not far on tmpfs: {expected}"));
        }
        shared.expect(user, &format!("cd /hf/{dir}; {script}"), &expected)?;
    }
    shared.end()
}

/// What a user's script says in a directory of the user's own, where the kernel decides.
fn on_tmpfs(fixture: &Fixture, user: &str, script: &str) -> Result<String, Stop> {
    let dir = format!("/dev/shm/hf-users-{}-{user}", std::process::id());
    let mut command = super::as_user(user);
    let script = format!("mkdir -m 755 {dir}; cd {dir}; {script}");
    command.args(["bash", "-c", &script]);
    let ended = fixture.end_of(command);
    let _ = std::fs::remove_dir_all(&dir);
    Ok(ended?.out)
}

/// Children of every kind, pipes, scripts and programs in the pool, and a database.
fn everyday(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    shared.expect(
        "3001",
        "mkdir -m 1777 /hf/tmp; umask 077; echo s >/hf/secret",
        "",
    )?;
    let script = r#"
        cat /hf/secret 2>/dev/null || echo refused
        cd /hf/tmp && mkdir d && cd d && pwd
        printf '#!/bin/sh\necho script $1\n' >s && chmod +x s && ./s one
        cp /bin/echo . && ./echo copied
        seq 100000 | sort -R | sort -n | tail -1
        (sleep 0.05; echo late >late) & wait; cat late
        python3 - <<'P'
import os, subprocess, sqlite3, mmap
print(subprocess.run(["cat", "late"], capture_output=True).stdout)
subprocess.run("echo err >&2", shell=True, stderr=open("o", "w"))
print(open("o").read(), end="")
if os.fork() == 0:
    open("forked", "w").write("child")
    os._exit(3)
print(os.wait()[1] >> 8, open("forked").read())
c = sqlite3.connect("db")
c.execute("create table t(a)")
c.executemany("insert into t values(?)", [(i,) for i in range(1000)])
c.commit()
print(c.execute("select sum(a) from t").fetchone()[0])
f = open("forked", "rb")
print(mmap.mmap(f.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)[:])
P
        stat -c '%U %G' db"#;
    let expected = "refused\n/hf/tmp/d\nscript one\ncopied\n100000\nlate\nb'late\\n'\nerr\n\
                    3 child\n499500\nb'child'\nUNKNOWN UNKNOWN\n";
    shared.expect("3002", script, expected)?;
    shared.expect(
        "3001",
        "cat /hf/tmp/d/late; ls /hf/tmp/d | wc -l",
        "late\n6\n",
    )?;
    shared.end()
}

/// What root has open goes with the program that it starts as another user, and no right does.
fn becomes_another(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "0")?;
    let inner = r#"
        id -u; cat /hf/secret 2>/dev/null || echo refused; cat <&3; pwd
        grep -c '\.seg' /proc/self/maps
        echo x >f; stat -c '%u %a' f; touch /hf/no 2>/dev/null || echo refused
        bash -c 'cat f; cat <&3'; umask"#;
    std::fs::write(fixture.path("inner"), inner)?;
    let script = format!(
        "umask 077; echo s >/hf/secret; printf 'one\\ntwo\\n' >/hf/opened
        mkdir -m 1777 /hf/tmp; cd /hf/tmp; exec 3</hf/opened; umask 027
        setpriv --reuid=3002 --regid=3002 --clear-groups bash {0}
        setpriv --reuid=3003 --regid=3003 --clear-groups cat f 2>/dev/null || echo refused
        cat /hf/secret f",
        fixture.path("inner").display()
    );
    let expected = "3002\nrefused\none\ntwo\n/hf/tmp\n0\n3002 640\nrefused\nx\n0027\n\
                    refused\ns\nx\n";
    shared.expect("0", &script, expected)?;
    reported(&shared)?;
    shared.end()
}

/// Root's report counts what was done as the other, and names what that was refused.
fn reported(shared: &Shared<'_>) -> Result<(), Stop> {
    let report = shared.fixture.path("report");
    let script = r#"for i in {1..100}; do echo $i >/hf/tmp/many; done
        python3 -c 'import fcntl; fcntl.fcntl(open("/hf/tmp/many"), fcntl.F_SETLEASE, 0)'"#;
    let as_other = ["setpriv", "--reuid=3002", "--regid=3002", "--clear-groups"];
    let line = [&as_other[..], &["bash", "-c", script]].concat();
    let told = report_of(shared, ("0", &report), &line)?;
    let [served, refused] = ["served", "refused"].map(|name| number(&told, name));
    match served.is_some_and(|n| (100..5000).contains(&n)) && refused == Some(1) {
        true => Ok(()),
        false => wrong(format!("the report says {told}")),
    }
}

/// What a user's run of a program reports.
fn report_of(
    shared: &Shared<'_>,
    (user, report): (&str, &Path),
    line: &[&str],
) -> Result<String, Stop> {
    let mut command = as_user(user);
    command.arg(&shared.fixture.holdfast);
    command.args(["run", "--pool"]).arg(&shared.pool);
    command.arg("--report").arg(report).arg("--").args(line);
    let ended = shared.fixture.end_of(command)?;
    let told = std::fs::read_to_string(report);
    told.or_else(|e| wrong(format!("{}: no report: {e}", ended.how())))
}

fn number(told: &str, name: &str) -> Option<u64> {
    let rest = told.split(&format!("\"{name}\":")).nth(1)?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// Nobody waits for the proxy when a program ends that has nothing open: what it has had served
/// counts all the same, also if it was killed.
fn counted(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "0")?;
    shared.expect("0", "mkdir -m 1777 /hf/tmp; seq 100 >/hf/tmp/f", "")?;
    let report = fixture.path("reports").join("3002");
    let dir = report.parent().unwrap_or(&report);
    std::fs::create_dir(dir)?;
    std::os::unix::fs::chown(dir, Some(3002), Some(3002))?;
    let mut all = Vec::new();
    for each in [
        "cat /hf/tmp/f",
        "cat /hf/tmp/f &",
        "(read -r x </hf/tmp/f; exec sh -c 'kill -9 $$')",
        "(read -r x </hf/tmp/f; exec sh -c 'kill -9 $$') &",
    ] {
        let script = format!("for i in {{1..60}}; do {each}\ndone >/dev/null 2>&1; wait");
        let told = report_of(&shared, ("3002", &report), &["bash", "-c", &script])?;
        all.push(number(&told, "served").unwrap_or_default());
    }
    // A run of root's, whose programs become the user.
    let as_other = ["setpriv", "--reuid=3002", "--regid=3002", "--clear-groups"];
    let rooted = fixture.path("rooted");
    for end in ["", " &"] {
        let script = format!("for i in {{1..60}}; do cat /hf/tmp/f{end}\ndone >/dev/null; wait");
        let line = [&as_other[..], &["bash", "-c", &script]].concat();
        let told = report_of(&shared, ("0", &rooted), &line)?;
        all.push(number(&told, "served").unwrap_or_default());
    }
    match all[..] {
        [a, b, c, d, e, f] if a == b && c == d && e == f && a.min(c).min(e) >= 180 => shared.end(),
        _ => wrong(format!(
            "one after the other and at once {all:?} calls are counted"
        )),
    }
}

/// With --root-squash root is a user like any other, also for programs that it starts as others.
fn squashed(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::with(fixture, "3001", &["--root-squash"])?;
    shared.expect(
        "3001",
        "umask 077; echo s >/hf/secret; mkdir -m 1777 /hf/tmp",
        "",
    )?;
    let script = "cat /hf/secret 2>/dev/null || echo refused; echo x >/hf/tmp/f
        stat -c %u /hf/tmp/f; chown 3002 /hf/tmp/f 2>/dev/null || echo refused
        grep -c '\\.seg' /proc/self/maps
        setpriv --reuid=3002 --regid=3002 --clear-groups sh -c 'echo y >/hf/tmp/g'
        stat -c %u /hf/tmp/g";
    shared.expect("0", script, "refused\n65534\nrefused\n0\n65534\n")?;
    shared.expect("3001", "cat /hf/tmp/f; ls /hf/tmp", "x\nf\ng\n")?;
    shared.expect(
        "3002",
        "cat /hf/secret 2>/dev/null || echo refused",
        "refused\n",
    )?;
    let pool = fixture.path("roots").to_string_lossy().into_owned();
    let args = ["pool", "create", "--root-squash", "--size", "64M", &pool];
    fixture.refused(&args, &[1])?;
    shared.end()
}

/// Children are served whatever the limit is above or below which our descriptors lie; where it
/// cannot be, they are refused before they are born.
fn limits(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "0")?;
    shared.expect("0", "mkdir -m 1777 /hf/tmp; echo s >/hf/f", "")?;
    let script = "(echo b >/hf/tmp/x); cat /hf/tmp/x; ulimit -Sn
        python3 -c 'import subprocess; subprocess.run([\"cat\", \"/hf/tmp/x\"])'";
    let lowered = "ulimit -n 64; (cat /hf/f) || echo refused";
    for limit in ["-Sn 1024", "-n 1024", "-Sn 256", "-Sn 4096"] {
        let soft = limit.rsplit(' ').next().unwrap_or_default();
        let mut command = super::as_user("3002");
        command.args(["bash", "-c"]);
        command.arg(format!("ulimit {limit}; exec \"$@\""));
        command
            .arg("bash")
            .arg(&fixture.holdfast)
            .args(["run", "--pool"]);
        command.arg(&shared.pool).args(["--", "bash", "-c", script]);
        let ended = fixture.end_of(command)?;
        let expected = format!("b\n{soft}\nb\n");
        if ended.code() != Some(0) || ended.out != expected {
            return wrong(format!(
                "{limit}: {} {} {}",
                ended.how(),
                ended.out,
                ended.err
            ));
        }
        // The same by a program that root starts as somebody else.
        let script = format!(
            "ulimit {limit}; cd /hf/tmp
            setpriv --reuid=3003 --regid=3003 --clear-groups bash -c '(echo c >y); cat y; rm y'"
        );
        shared.expect("0", &script, "c\n")?;
    }
    let ended = shared.says("3002", lowered)?;
    if !ended.out.is_empty() && ended.out != "refused\n" {
        return wrong(format!("{} {} {}", ended.how(), ended.out, ended.err));
    }
    shared.end()
}

/// flock(2) and fcntl(2) between the owner, who has the pool mapped, and one who is served; a
/// wait ends when the lock is free, and when a signal comes.
fn locks(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    shared.expect("3001", "touch /hf/l; chmod 666 /hf/l", "")?;
    let hold = |user: &str, seconds: &str| {
        let mut command = super::as_user(user);
        command.arg(&fixture.holdfast).args(["run", "--pool"]);
        command.arg(&shared.pool);
        command.args(["--", "flock", "/hf/l", "sh", "-c"]);
        command.arg(format!("echo held; sleep {seconds}"));
        crate::process::clean(&mut command, &fixture.dir);
        let mut child = command.stdout(std::process::Stdio::piped()).spawn()?;
        let mut line = String::new();
        let out = child.stdout.take().map(std::io::BufReader::new);
        std::io::BufRead::read_line(&mut out.ok_or_else(no_pipe)?, &mut line)?;
        Ok::<_, Stop>(child)
    };
    for (holder, other) in [("3001", "3002"), ("3002", "3001"), ("3002", "3003")] {
        let mut held = hold(holder, "1")?;
        let script = "flock -n /hf/l true && echo free; flock -w 0.2 /hf/l true || echo late
            flock /hf/l echo mine";
        shared.expect(other, script, "late\nmine\n")?;
        held.wait()?;
        // A holder that is killed holds nothing.
        let mut held = hold(holder, "60")?;
        // A child may be born while they are looked for, and keep the lock.
        let script = "while pkill -9 -u $1 -f 'sleep 60|echo held'; do :; done";
        let mut kill = std::process::Command::new("bash");
        kill.args(["-c", script, "bash", holder]);
        fixture.end_of(kill)?;
        shared.expect(other, "flock -w 5 /hf/l echo mine", "mine\n")?;
        held.wait()?;
    }
    let python = r#"python3 -c '
import fcntl, os, sys
f = open("/hf/l", "r+")
try:
    fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, int(sys.argv[1]))
    print("got", flush=True)
except OSError as e:
    print("errno", e.errno, flush=True)
sys.stdin.readline()' "#;
    let tells = r#"python3 -c '
import fcntl, os, struct
f = open("/hf/l", "r+")
fcntl.lockf(f, fcntl.LOCK_EX)
if os.fork() == 0:
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
    owner = struct.unpack("hhqqi4x", fcntl.fcntl(f, fcntl.F_GETLK, lock))[4]
    print(owner == os.getppid(), flush=True)
    os._exit(0)
os.wait()'"#;
    shared.expect("3002", tells, "True\n")?;
    let both = format!("(sleep 1) | {python} 5 & sleep 0.5; {python} 12 </dev/null; wait");
    shared.expect("3002", &both, "got\nerrno 11\n")?;
    shared.end()
}

/// What a killed process had locked is free as soon as its parent knows of its death.
fn locks_of_the_killed(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    shared.expect("3001", "chmod 777 /hf", "")?;
    let script = r#"
import fcntl, os, signal
os.chdir("/hf")
for n in range(300):
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        f = open(f"file{n % 7}", "w")
        fcntl.lockf(f, fcntl.LOCK_EX) if n % 2 else fcntl.flock(f, fcntl.LOCK_EX)
        os.write(told, b"x")
        signal.pause()
    os.read(ready, 1)
    f = open(f"file{n % 7}", "w")
    lock = fcntl.lockf if n % 2 else fcntl.flock
    try:
        lock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print(n, "was not locked")
    except BlockingIOError:
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    lock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for fd in (ready, told):
        os.close(fd)
    f.close()
print("done")
"#;
    let path = fixture.path("killed.py");
    std::fs::write(&path, script)?;
    shared.expect("3002", &format!("python3 {}", path.display()), "done\n")?;
    shared.end()
}

fn no_pipe() -> Stop {
    Stop::Wrong("no pipe".into())
}

/// Neither names nor bytes of the pool that a user may not see are in that user's memory, which
/// has no mapping of the pool and no descriptor of it.
fn sees_nothing(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    let script = "mkdir -m 700 /hf/private; echo xyzzy-content >/hf/private/xyzzy-name
        echo xyzzy-deleted >/hf/gone; rm /hf/gone; mkdir -m 1777 /hf/tmp";
    shared.expect("3001", script, "")?;
    // Blocks that were others' come back as one's own.
    let script = r#"python3 - <<'P'
import os
with open("/hf/tmp/f", "wb") as f:
    f.truncate(64 << 20)
with open("/hf/tmp/g", "wb") as f:
    os.posix_fallocate(f.fileno(), 0, 16 << 20)
assert not any(open("/hf/tmp/g", "rb").read())
try:
    os.listdir("/hf/private")
except PermissionError:
    print("refused")
found = 0
for line in open("/proc/self/maps"):
    span, rights, *rest = line.split(maxsplit=5)
    if ".seg" in line or "holdfast-session" in line:
        print("mapped:", line)
    if rights[0] != "r" or "[v" in line:
        continue
    start, end = (int(x, 16) for x in span.split("-"))
    with open("/proc/self/mem", "rb", 0) as mem:
        mem.seek(start)
        try:
            memory = mem.read(end - start)
        except OSError:
            continue
    # Each byte is one more, so that what is looked for is not there because it is.
    found += memory.translate(bytes([*range(1, 256), 0])).count(b"yz{{z.")
print(found)
for fd in range(2000):
    try:
        where = os.readlink(f"/proc/{os.getpid()}/fd/{fd}")
    except OSError:
        continue
    if ".seg" in where or "session" in where:
        print("open:", where)
P"#;
    shared.expect("3002", script, "refused\n0\n")?;
    shared.end()
}

/// Whoever may not search the root directory does not get in, and is told so.
fn closed(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    shared.expect("3001", "chmod 700 /hf", "")?;
    let ended = shared.says("3002", "echo ran")?;
    let is_told = ended.err.contains("does not let you in") && ended.err.contains("Fix: ask");
    if ended.code() != Some(125) || !ended.out.is_empty() || !is_told {
        return wrong(format!("{} {} {}", ended.how(), ended.out, ended.err));
    }
    shared.expect("3001", "chmod 711 /hf; echo x >/hf/f", "")?;
    shared.expect("3002", "ls /hf 2>/dev/null || cat /hf/f", "x\n")?;
    shared.end()
}

/// What `pool status` says of other users.
fn others(fixture: &Fixture, shared: &Shared) -> Result<String, Stop> {
    let mut status = super::as_user("3001");
    status.arg(&fixture.holdfast).args(["pool", "status"]);
    status.arg(&shared.pool);
    let ended = fixture.end_of(status)?;
    let others = ended.out.lines().find_map(|l| l.strip_prefix("others"));
    Ok(others.unwrap_or(&ended.out).trim().to_string())
}

/// The programs of that user get errors; nobody else notices, and the next one is served.
fn proxy_dies(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    shared.expect("3001", "mkdir -m 1777 /hf/tmp", "")?;
    let kill = "pkill -9 -u 3001 -x holdfast-proxy";
    let script = "echo one >/hf/tmp/f; python3 -c '
import time
time.sleep(1)
print(open(\"/hf/tmp/f\").read())'";
    let mut command = super::as_user("3002");
    command.arg(&fixture.holdfast).args(["run", "--pool"]);
    command.arg(&shared.pool).args(["--", "bash", "-c", script]);
    crate::process::clean(&mut command, &fixture.dir);
    let (out, err) = (fixture.path("out"), fixture.path("err"));
    command.stdout(std::fs::File::create(&out)?);
    command.stderr(std::fs::File::create(&err)?);
    let mut child = command.spawn()?;
    std::thread::sleep(std::time::Duration::from_millis(500));
    let served = others(fixture, &shared)?;
    if served != "1 user beside the owner and root" {
        return wrong(served);
    }
    let mut killing = std::process::Command::new("bash");
    killing.args(["-c", kill]);
    fixture.end_of(killing)?;
    let ended = child.wait()?;
    let (out, err) = (std::fs::read_to_string(out)?, std::fs::read_to_string(err)?);
    if ended.success() || !out.is_empty() || !err.contains("Input/output error") {
        return wrong(format!("{ended}: {out} {err}"));
    }
    shared.expect("3001", "cat /hf/tmp/f", "one\n")?;
    let served = others(fixture, &shared)?;
    if served != "none" {
        return wrong(served);
    }
    shared.expect(
        "3002",
        "cat /hf/tmp/f; echo two >/hf/tmp/f; cat /hf/tmp/f",
        "one\ntwo\n",
    )?;
    shared.end()
}

/// Another service takes the session over, which the proxy starts; nothing is lost.
fn service_dies(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    shared.expect("3001", "mkdir -m 1777 /hf/tmp", "")?;
    let kill = format!("pkill -9 -u 3001 -f 'serve .*{}'", shared.pool.display());
    let script = "cd /hf/tmp; for n in $(seq 3000); do echo $n >f$n; done; ls | wc -l; cat f3000";
    let mut killer = std::process::Command::new("bash");
    killer.args(["-c", &format!("for n in 1 2 3; do sleep 0.2; {kill}; done")]);
    crate::process::clean(&mut killer, &fixture.dir);
    let mut killer = killer.spawn()?;
    shared.expect("3002", script, "3000\n3000\n")?;
    killer.wait()?;
    shared.expect(
        "3001",
        "ls /hf/tmp | wc -l; cat /hf/tmp/f*| sort -n | tail -1",
        "3000\n3000\n",
    )
}

/// Those of the owner and of root are shown to both; those of others run and are not.
fn exports(fixture: &Fixture) -> Result<(), Stop> {
    if !crate::process::on_path("nbdkit") {
        return Err(Stop::Skip("nbdkit is not installed".into()));
    }
    let shared = Shared::new(fixture, "3001")?;
    let script = r#"hf=$1 pool=$2; trap 'kill $(jobs -p); wait' EXIT
        as() { local user=$1; shift; exec setpriv --reuid=$user --regid=$user --clear-groups "$@"; }
        (as 3001 "$hf" run --pool "$pool" -- chmod 777 /hf)
        for user in 0 3001 3003; do
            install -d -o $user $user
            (as $user "$hf" volume "$pool" create of-$user --size 1M)
            as $user "$hf" export "$pool" of-$user --nbd unix:$PWD/$user/s >$user.out 2>&1 &
            until [[ -s $user.out ]]; do sleep 0.01; done
            cat $user.out
        done
        for user in 0 3001; do
            (as $user "$hf" pool status "$pool") | sed -n 's/^export *\([^:]*\).*/\1/p'
        done"#;
    let mut command = std::process::Command::new("bash");
    command.args(["-euc", script, "bash"]);
    command.arg(&fixture.holdfast).arg(&shared.pool);
    let ended = fixture.end_of(command)?;
    let shown: Vec<&str> = ended.out.lines().collect();
    let [one, two, three, rest @ ..] = shown.as_slice() else {
        return wrong(format!("{}: {:?}", ended.how(), ended.tail()));
    };
    let run = [one, two, three]
        .iter()
        .all(|uri| uri.starts_with("nbd+unix:"));
    if !run || rest != ["of-0", "of-3001", "of-0", "of-3001"] {
        return wrong(format!("{}: {:?}", ended.how(), ended.tail()));
    }
    shared.end()
}
