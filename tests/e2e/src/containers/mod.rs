//! Programs in PID namespaces of their own, as containers have them, beside others on the same
//! pool: the same numbers mean other processes in each, or none.
//!
//! Invariant: where the kernel makes no namespaces for us, a case says so and is skipped.

mod passing;

use crate::bad_input::{Case, Fixture, Stop, run_cases, wrong};
use crate::process;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// A program without the pipe that it was given.
const BROKEN: io::ErrorKind = io::ErrorKind::BrokenPipe;
const LIMIT: Duration = Duration::from_secs(60);

const CASES: &[(&str, Case)] = &[
    ("locks of programs that are killed", locks),
    ("a container that is killed", killed_containers),
    ("a service in a container", service_inside),
    ("a container with all in it", all_at_once),
    ("a log that stays open in a container", open_log),
    ("a service that dies when all have gone", service_of_nobody),
    ("who is there", who_is_there),
    ("users of a namespace", users),
];

/// `hf-e2e containers`
pub fn main(names: &[&str]) -> ExitCode {
    run_cases("containers", &[CASES, passing::CASES].concat(), names)
}

/// The start of a command in namespaces of its own, whose first process is that command.
fn container(fixture: &Fixture) -> Result<Command, Stop> {
    let make = || {
        let mut command = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
        command
    };
    let mut probe = make();
    probe.arg("true");
    match fixture.end_of(probe) {
        Ok(ended) if ended.code() == Some(0) => Ok(make()),
        _ => Err(Stop::Skip("the kernel makes no PID namespaces here".into())),
    }
}

fn pool(fixture: &Fixture) -> Result<PathBuf, Stop> {
    let path = fixture.path("pool");
    fixture.done(&["pool", "create", &path.to_string_lossy(), "--size", "256M"])?;
    Ok(path)
}

/// Makes `command` run a Python program on the pool.
fn python(fixture: &Fixture, command: Option<Command>, pool: &Path, program: &str) -> Command {
    let mut command = match command {
        Some(mut container) => {
            container.arg(&fixture.holdfast);
            container
        }
        None => Command::new(&fixture.holdfast),
    };
    command.args(["run", "--pool"]).arg(pool);
    command.args(["--", "python3", "-c", program, "/hf"]);
    process::clean(&mut command, &fixture.dir);
    command.current_dir(&fixture.dir);
    command
}

fn begin(mut command: Command) -> Result<Child, Stop> {
    begin_with(&mut command)
}

fn begin_with(command: &mut Command) -> Result<Child, Stop> {
    Ok(command.stdout(Stdio::piped()).process_group(0).spawn()?)
}

/// What the program said, once it has ended well.
fn said(mut child: Child, who: &str) -> Result<String, Stop> {
    let ended = process::wait(&mut child, LIMIT)?;
    process::kill_group(&child);
    let mut out = String::new();
    if let Some(mut pipe) = child.stdout.take() {
        std::io::Read::read_to_string(&mut pipe, &mut out)?;
    }
    match ended {
        Some(status) if status.success() => Ok(out),
        ended => wrong(format!("{who}: {ended:?} after saying {out:?}")),
    }
}

/// A row of `holdfast pool status`.
fn status(fixture: &Fixture, pool: &Path, row: &str) -> Result<String, Stop> {
    let ended = fixture.done(&["pool", "status", &pool.to_string_lossy()])?;
    let found = ended.out.lines().find_map(|line| line.strip_prefix(row));
    Ok(found.unwrap_or_default().trim().to_string())
}

/// Waits until a row of the status is this.
fn becomes(fixture: &Fixture, pool: &Path, row: &str, value: &str) -> Result<(), Stop> {
    let begun = Instant::now();
    loop {
        let now = status(fixture, pool, row)?;
        if now == value {
            return Ok(());
        }
        if begun.elapsed() > Duration::from_secs(10) {
            return wrong(format!("{row} is {now} and not {value}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A counter that children of three programs raise under a lock, while they hold it for a while.
/// Every third one is killed before it gives the lock back.
const COUNTER: &str = r#"
import fcntl, os, signal, sys, time
path, n = sys.argv[1] + "/count", 60
os.umask(0)
def child(i):
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    fcntl.lockf(fd, fcntl.LOCK_EX)
    count = int(os.pread(fd, 20, 0) or b"0")
    time.sleep(0.003)
    os.pwrite(fd, b"%d" % (count + 1), 0)
    if i % 3 == 0: os.kill(os.getpid(), signal.SIGKILL)
    os._exit(0)
for i in range(n // 3):
    kids = []
    for k in range(3):
        pid = os.fork()
        if pid == 0: child(k)
        kids.append(pid)
    for pid in kids: os.waitpid(pid, 0)
print("fine")
"#;

/// Locks are held by those who live, in whichever namespace, and nobody else.
fn locks(fixture: &Fixture) -> Result<(), Stop> {
    let pool = pool(fixture)?;
    let places = [Some(container(fixture)?), Some(container(fixture)?), None];
    let commands = places.map(|place| python(fixture, place, &pool, COUNTER));
    let programs: Vec<Child> = commands.into_iter().map(begin).collect::<Result<_, _>>()?;
    for program in programs {
        said(program, "a program that counts")?;
    }
    let ended = fixture.run(&pool, &["cat", "/hf/count"])?;
    if ended.out != "180" {
        let (out, how, err) = (&ended.out, ended.how(), ended.err.trim());
        return wrong(format!("180 children counted to {out:?}, {how} {err}"));
    }
    fixture
        .done(&["pool", "check", &pool.to_string_lossy()])
        .map(drop)
}

/// Works in a directory that all share, with two children, until it is killed or `end` is there.
const WORK: &str = r#"
import os, sys, time
d, name = sys.argv[1] + "/d", os.urandom(4).hex()
os.umask(0); os.makedirs(d, exist_ok=True)
while os.fork() and os.fork(): break
name += "-%d" % os.getpid()
longest, i, begun = 0, 0, time.monotonic()
while not os.path.exists(sys.argv[1] + "/end") and time.monotonic() < begun + 50:
    t = time.monotonic()
    a, b = f"{d}/{name}-{i % 7}", f"{d}/common-{i % 5}"
    with open(a, "wb") as f: f.write(b"x" * (i * 37 % 9000))
    os.rename(a, b)
    with open(a, "wb") as f: f.write(b"y")
    try: os.unlink(f"{d}/common-{(i + 2) % 5}")
    except FileNotFoundError: pass
    os.unlink(a)
    i, longest = i + 1, max(longest, time.monotonic() - t)
if i < 20 or longest > 5: sys.exit(f"{i} rounds, of which one took {longest} s")
print("fine")
"#;

/// Everybody in a container dies at once, at any moment, and those outside go on.
fn killed_containers(fixture: &Fixture) -> Result<(), Stop> {
    let pool = pool(fixture)?;
    let outside = begin(python(fixture, None, &pool, WORK))?;
    becomes_used(fixture, &pool)?;
    for round in 0..8 {
        let mut inside = begin(python(fixture, Some(container(fixture)?), &pool, WORK))?;
        std::thread::sleep(Duration::from_millis(400 + round * 37));
        process::kill_group(&inside);
        inside.wait()?;
    }
    becomes(fixture, &pool, "processes", "3")?;
    fixture.run(&pool, &["touch", "/hf/end"])?;
    said(outside, "the program outside")?;
    fixture
        .done(&["pool", "check", &pool.to_string_lossy()])
        .map(drop)
}

fn becomes_used(fixture: &Fixture, pool: &Path) -> Result<(), Stop> {
    becomes(fixture, pool, "processes", "3")
}

/// The service is one of those who die: a program outside starts the next one, and goes on.
fn service_inside(fixture: &Fixture) -> Result<(), Stop> {
    let pool = pool(fixture)?;
    let mut inside = begin(python(fixture, Some(container(fixture)?), &pool, WORK))?;
    becomes_used(fixture, &pool)?;
    let outside = begin(python(fixture, None, &pool, WORK))?;
    becomes(fixture, &pool, "processes", "6")?;
    process::kill_group(&inside);
    inside.wait()?;
    becomes(fixture, &pool, "processes", "3")?;
    fixture.run(&pool, &["touch", "/hf/end"])?;
    said(outside, "the program outside")?;
    fixture
        .done(&["pool", "check", &pool.to_string_lossy()])
        .map(drop)
}

/// A container in which a program has written is killed, and nobody is left, also no service; then
/// somebody reads.
fn all_die(fixture: &Fixture, pool: &Path, writes: &str, reads: &str) -> Result<(), Stop> {
    let mut all = begin(python(fixture, Some(container(fixture)?), pool, writes))?;
    let mut out = BufReader::new(all.stdout.take().ok_or(io::Error::from(BROKEN))?);
    out.read_line(&mut String::new())?;
    process::kill_group(&all);
    all.wait()?;
    said(begin(python(fixture, None, pool, reads))?, "who reads").map(drop)
}

/// Nobody is left when the container is killed, also no service: what was closed or synced is
/// there, and of a file that is open a beginning.
fn all_at_once(fixture: &Fixture) -> Result<(), Stop> {
    let writes = r#"
import os, sys, time
def make(name, *parts):
    fd = os.open(f"{sys.argv[1]}/{name}", os.O_RDWR | os.O_CREAT, 0o666)
    for part in parts: os.write(fd, part)
    return fd
for i in range(100): os.close(make(f"closed-{i}", b"c" * i * 37, b"d" * 100))
os.fsync(make("synced", b"s" * 9000)); make("open", b"o" * 300, b"p" * 700)
os.write(1, b"written\n"); time.sleep(60)
"#;
    let reads = r#"
import sys
read = lambda name: open(f"{sys.argv[1]}/{name}", "rb").read()
bad = [i for i in range(100) if read(f"closed-{i}") != b"c" * i * 37 + b"d" * 100]
if bad or read("synced") != b"s" * 9000: sys.exit(f"lost: {bad}, {read('synced')}")
if not (b"o" * 300 + b"p" * 700).startswith(read("open")): sys.exit(f"open: {read('open')}")
print("fine")
"#;
    let pool = pool(fixture)?;
    for _ in 0..4 {
        all_die(fixture, &pool, writes, reads)?;
    }
    fixture
        .done(&["pool", "check", &pool.to_string_lossy()])
        .map(drop)
}

/// Nobody is left when the container is killed, and nobody synced or closed: what was written more
/// than a few seconds before is there.
fn open_log(fixture: &Fixture) -> Result<(), Stop> {
    let writes = r#"
import os, sys, time
open_to = lambda name: os.open(f"{sys.argv[1]}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
long, new = open_to("long"), open_to("new")
for i in range(100): os.write(long, b"%06d\n" % i)
os.write(new, b"n" * 5000)
# The program does nothing more, and then goes on.
time.sleep(9)
for i in range(100, 200): os.write(long, b"%06d\n" % i)
time.sleep(9)
os.write(1, b"written\n"); time.sleep(60)
"#;
    let reads = r#"
import sys
read = lambda name: open(f"{sys.argv[1]}/{name}", "rb").read()
if read("long") != b"".join(b"%06d\n" % i for i in range(200)): sys.exit(f"log: {read('long')}")
if read("new") != b"n" * 5000: sys.exit(f"new: {read('new')}")
print("fine")
"#;
    let pool = pool(fixture)?;
    all_die(fixture, &pool, writes, reads)?;
    fixture
        .done(&["pool", "check", &pool.to_string_lossy()])
        .map(drop)
}

/// What a program wrote, and did not sync, is there although its service died right after it: the
/// run that waits for the end of the session starts another one.
fn service_of_nobody(fixture: &Fixture) -> Result<(), Stop> {
    let pool = pool(fixture)?;
    let writes = r#"
import os, signal, sys
fd = os.open(sys.argv[1] + "/f", os.O_RDWR | os.O_CREAT, 0o666)
os.write(fd, b"kept"); os.write(1, b"written\n"); os.read(0, 1)
os.kill(os.getpid(), signal.SIGKILL)
"#;
    let mut command = python(fixture, None, &pool, writes);
    let mut run = begin_with(command.stdin(Stdio::piped()))?;
    let mut out = BufReader::new(run.stdout.take().ok_or(io::Error::from(BROKEN))?);
    out.read_line(&mut String::new())?;
    let named = status(fixture, &pool, "service")?;
    let pid = named.split_whitespace().last().and_then(|n| n.parse().ok());
    let Some(service) = pid.and_then(Pid::from_raw) else {
        return wrong(format!("the service is {named:?}"));
    };
    kill_process(service, Signal::STOP).map_err(io::Error::from)?;
    drop(run.stdin.take());
    // Time for the program to end and for the run to wait for the service.
    std::thread::sleep(Duration::from_millis(300));
    kill_process(service, Signal::KILL).map_err(io::Error::from)?;
    let ended = process::wait(&mut run, LIMIT)?;
    let kept = fixture.run(&pool, &["cat", "/hf/f"])?;
    if ended.and_then(|status| status.code()) != Some(137) || kept.out != "kept" {
        return wrong(format!("{ended:?}, {:?} {}", kept.out, kept.err));
    }
    fixture
        .done(&["pool", "check", &pool.to_string_lossy()])
        .map(drop)
}

/// `pool status` says the same everywhere, and F_GETLK names who is seen from here.
fn who_is_there(fixture: &Fixture) -> Result<(), Stop> {
    let pool = pool(fixture)?;
    let holds = r#"
import fcntl, os, sys, time
os.umask(0)
f = os.open(sys.argv[1] + "/f", os.O_RDWR | os.O_CREAT, 0o666)
fcntl.lockf(f, fcntl.LOCK_EX)
os.mkdir(sys.argv[1] + "/held")
while not os.path.exists(sys.argv[1] + "/end"): time.sleep(0.01)
print(os.getpid())
"#;
    let asks = r#"
import fcntl, os, struct, sys, time
while not os.path.exists(sys.argv[1] + "/held"): time.sleep(0.01)
f = os.open(sys.argv[1] + "/f", os.O_RDWR)
found = fcntl.fcntl(f, fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
kind, pid = struct.unpack("hhqqi4x", found)[::4]
print(kind == fcntl.F_WRLCK, pid, os.path.exists(f"/proc/{pid}/stat"))
"#;
    let holder = begin(python(fixture, Some(container(fixture)?), &pool, holds))?;
    becomes(fixture, &pool, "processes", "1")?;
    let mut inside = container(fixture)?;
    inside
        .arg(&fixture.holdfast)
        .args(["pool", "status"])
        .arg(&pool);
    let inside = fixture.end_of(inside)?.out;
    for row in ["processes    1", "service      a process of another"] {
        if !inside.contains(row) {
            return wrong(format!("from inside: no \"{row}\" in {inside}"));
        }
    }
    // Those around a namespace see its processes, those beside it do not.
    let seen = said(begin(python(fixture, None, &pool, asks))?, "who asks")?;
    let place = Some(container(fixture)?);
    let unseen = said(
        begin(python(fixture, place, &pool, asks))?,
        "who asks inside",
    )?;
    fixture.run(&pool, &["touch", "/hf/end"])?;
    let own = said(holder, "the holder")?;
    let ok = seen.starts_with("True ") && seen.ends_with(" True\n") && unseen == "True 0 False\n";
    match ok && !seen.contains(&format!(" {} ", own.trim())) {
        true => Ok(()),
        false => wrong(format!("{own:?} is seen as {seen:?}, and as {unseen:?}")),
    }
}

/// What a user sees and may do, as `first` outside, as `inside` in a user namespace with one user,
/// and as `last` outside again. Whatever it says has to be what it says on tmpfs.
const USERS: &str = r#"
import ctypes, os, stat, sys
top, part = sys.argv[1] + "/users", sys.argv[2]
libc = ctypes.CDLL(None, use_errno=True)
def show(name):
    try: st = os.lstat(f"{top}/{name}")
    except OSError as e: return print(name, e.strerror)
    own = lambda id, me: "mine" if id == me else id
    print(name, oct(st.st_mode), own(st.st_uid, os.geteuid()), own(st.st_gid, os.getegid()))
def attempt(what, f, *words):
    try: print(what, f(*words) is not None)
    except OSError as e: print(what, e.strerror)
def make(path, mode):
    fd = os.open(path, os.O_RDWR | os.O_CREAT, mode); os.fchmod(fd, mode); os.close(fd)
def read(name): return open(f"{top}/{name}").read()
if part == "first":
    for name, mode in (top, 0o777), (f"{top}/sticky", 0o1777): os.mkdir(name); os.chmod(name, mode)
    for name in "own", "theirs", "group", "sticky/theirs": make(f"{top}/{name}", 0o600)
    make(f"{top}/all", 0o666)
    if os.geteuid() == 0:
        for name in "theirs", "sticky/theirs": os.chown(f"{top}/{name}", 5, 6)
        os.chown(f"{top}/group", 0, 6)
if part == "inside":
    for name in "", "own", "theirs", "group", "all": show(name)
    for name in "own", "theirs", "group", "all": attempt("read " + name, read, name)
    os.mkdir(f"{top}/d", 0o700); make(f"{top}/d/f", 0o640); os.symlink("f", f"{top}/d/l")
    for name in "d", "d/f", "d/l": show(name)
    for ids in (5, 5), (0, -1), (-1, 0), (-1, 77), (65534, -1):
        attempt(f"chown {ids}", os.chown, f"{top}/d/f", *ids)
        attempt(f"chown theirs {ids}", os.chown, f"{top}/theirs", *ids)
    fd = os.open(f"{top}/d/f", os.O_RDWR)
    attempt("fchown", os.fchown, fd, 5, 5); attempt("fchown", os.fchown, fd, 0, 0)
    attempt("chmod theirs", os.chmod, f"{top}/theirs", 0o666)
    attempt("chmod own", os.chmod, f"{top}/own", 0o644)
    attempt("unlink sticky", os.unlink, f"{top}/sticky/theirs")
    attempt("device", os.mknod, f"{top}/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    attempt("access theirs", lambda: print(os.access(f"{top}/theirs", os.R_OK)))
    # One namespace deeper, of which the ids come later.
    pid = os.fork()
    if pid == 0:
        if libc.unshare(0x10000000): os._exit(1)
        for name in "own", "d/f": show(name)
        attempt("chown before", os.chown, f"{top}/d/f", 0, 0)
        make(f"{top}/d/deep", 0o600)
        os._exit(0)
    os.waitpid(pid, 0)
    show("d/deep")
if part == "change":
    show("own")
    ids = os.getuid(), os.getgid()
    if libc.unshare(0x10000000): sys.exit("no namespace")
    show("own")
    maps = ("setgroups", "deny"), ("uid_map", f"0 {ids[0]} 1"), ("gid_map", f"0 {ids[1]} 1")
    for file, text in maps:
        with open("/proc/self/" + file, "w") as f: f.write(text)
    show("own")
    make(f"{top}/made", 0o600); show("made")
    attempt("chown made", os.chown, f"{top}/made", 9, 9)
if part == "last":
    for name in "d", "d/f", "d/l", "d/deep", "own", "made": show(name)
    attempt("read d/f", read, "d/f")
    for name in "d/f", "d/l", "d/deep": attempt("unlink", os.unlink, f"{top}/{name}")
    attempt("rmdir", os.rmdir, f"{top}/d")
"#;

/// Owners and rights are mapped as the kernel maps them.
fn users(fixture: &Fixture) -> Result<(), Stop> {
    let pool = pool(fixture)?;
    let mut namespace = Command::new("unshare");
    namespace.args(["--user", "--map-root-user", "true"]);
    if fixture.end_of(namespace)?.code() != Some(0) {
        return Err(Stop::Skip(
            "the kernel makes no user namespaces here".into(),
        ));
    }
    let host = fixture.path("host");
    std::fs::create_dir(&host)?;
    for part in ["first", "inside", "change", "last"] {
        let said = |on_pool: bool| -> Result<(Option<i32>, String, String), Stop> {
            let mut words: Vec<std::ffi::OsString> = Vec::new();
            if part == "inside" {
                words.extend(["unshare", "--user", "--map-root-user"].map(Into::into));
            }
            if on_pool {
                words.push(fixture.holdfast.clone().into());
                words.extend(["run", "--pool"].map(Into::into));
                words.extend([pool.clone().into(), "--".into()]);
            }
            words.extend(["python3", "-c", USERS].map(Into::into));
            words.push(if on_pool {
                "/hf".into()
            } else {
                host.clone().into()
            });
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).arg(part);
            let ended = fixture.end_of(command)?;
            Ok((ended.code(), ended.out, ended.err))
        };
        let (theirs, ours) = (said(false)?, said(true)?);
        let differs = theirs
            .1
            .lines()
            .zip(ours.1.lines())
            .find(|(theirs, ours)| theirs != ours);
        if (theirs.0, &theirs.1) != (ours.0, &ours.1) || theirs.0 != Some(0) {
            return wrong(format!("{part}: {differs:?}; {theirs:?} and {ours:?}"));
        }
    }
    fixture
        .done(&["pool", "check", &pool.to_string_lossy()])
        .map(drop)
}
