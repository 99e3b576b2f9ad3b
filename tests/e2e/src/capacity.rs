//! What ordinary work asks for at once, beyond what small tests do: each line of `docs/limits.md`
//! that a program can come near to is tried by real programs, which must not see an error.
//!
//! Invariant: what the programs left is counted by a later run, from the pool.

use crate::bad_input::{Case, Fixture, Stop, run_cases, wrong};
use crate::process::{self, Ended};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(300);

const CASES: &[(&str, Case)] = &[
    ("files with block maps", files_with_block_maps),
    ("a sparse file", sparse_file),
    ("children", children),
    ("runs at once", runs_at_once),
    ("descriptors of many processes", descriptors),
    ("descriptors of one process", high_descriptors),
    ("files open at once", files_open),
    ("a directory of many names", many_names),
    ("memory under churn and at rest", memory),
    ("memory of what the last to leave removed", removed),
];

/// `hf-e2e capacity`
pub fn main(names: &[&str]) -> ExitCode {
    run_cases("capacity", CASES, names)
}

fn pool(fixture: &Fixture, size: &str) -> Result<PathBuf, Stop> {
    let path = fixture.path("pool");
    fixture.done(&["pool", "create", &path.to_string_lossy(), "--size", size])?;
    Ok(path)
}

fn pool_in_memory(fixture: &Fixture, size: &str) -> Result<PathBuf, Stop> {
    let pool = pool(fixture, size)?;
    let ended = fixture.done(&["pool", "status", &pool.to_string_lossy()])?;
    match ended.out.contains("medium       memory") {
        true => Ok(pool),
        false => Err(Stop::Skip("no memory to put the pool on".into())),
    }
}

/// Runs a Python program on the pool, with the pool's directory as its first argument; it must
/// say `fine`.
fn python(fixture: &Fixture, pool: &Path, program: &str, words: &[&str]) -> Result<(), Stop> {
    let mut command = Command::new(&fixture.holdfast);
    command
        .args(["run", "--pool"])
        .arg(pool)
        .args(["--", "python3", "-c"]);
    command.arg(program).arg("/hf").args(words);
    let ended = long(fixture, command)?;
    match (ended.code(), ended.out.as_str()) {
        (Some(0), "fine\n") => Ok(()),
        _ => wrong(format!(
            "{}: {:?} {}",
            ended.how(),
            ended.out,
            ended.tail().join("; ")
        )),
    }
}

fn long(fixture: &Fixture, mut command: Command) -> Result<Ended, Stop> {
    process::clean(&mut command, &fixture.dir);
    command.current_dir(&fixture.dir);
    Ok(process::run(&mut command, LIMIT, &fixture.dir)?)
}

/// The pool is sound, and a later run finds so many names in this directory.
fn holds(fixture: &Fixture, pool: &Path, dir: &str, names: usize) -> Result<(), Stop> {
    let count = "import os, sys; print(len(os.listdir(sys.argv[1])))";
    let ended = fixture.run(pool, &["python3", "-c", count, dir])?;
    if ended.out != format!("{names}\n") {
        return wrong(format!(
            "{dir} has {:?} names instead of {names}",
            ended.out
        ));
    }
    fixture
        .done(&["pool", "check", &pool.to_string_lossy()])
        .map(drop)
}

/// More files of 32 KiB than there once were pages for their block maps.
fn files_with_block_maps(fixture: &Fixture) -> Result<(), Stop> {
    let pool = pool(fixture, "2G")?;
    let program = r#"
import os, sys
d = sys.argv[1] + "/d"; n = 18000; os.mkdir(d)
def content(i): return i.to_bytes(8, "little") * 4096
for i in range(n):
    with open(f"{d}/f{i}", "wb") as f: f.write(content(i))
wrong = [i for i in range(0, n, 5) if open(f"{d}/f{i}", "rb").read() != content(i)]
print(*wrong[:5] or ["fine"])
"#;
    python(fixture, &pool, program, &[])?;
    holds(fixture, &pool, "/hf/d", 18_000)
}

/// A byte every 2 MiB of 100 GiB, and one at the end of all.
fn sparse_file(fixture: &Fixture) -> Result<(), Stop> {
    let pool = pool(fixture, "1G")?;
    let program = r#"
import os, sys
f = os.open(sys.argv[1] + "/f", os.O_RDWR | os.O_CREAT); n = 50000; step = 2 << 20
for i in range(n): os.pwrite(f, bytes([i % 251 + 1]), i * step)
end = 2**63 - 2
os.pwrite(f, b"!", end)
os.fsync(f)
wrong = [i for i in range(n) if os.pread(f, 1, i * step) != bytes([i % 251 + 1])]
if os.pread(f, 1, end) != b"!" or os.fstat(f).st_size != end + 1: wrong.append("end")
print(*wrong[:5] or ["fine"])
"#;
    python(fixture, &pool, program, &[])?;
    holds(fixture, &pool, "/hf", 1)
}

/// A parent whose many children live at the same time keeps its files, and each of them works.
fn children(fixture: &Fixture) -> Result<(), Stop> {
    let pool = pool(fixture, "256M")?;
    let program = r#"
import os, resource, sys
d, n = sys.argv[1] + "/d", int(sys.argv[2]); os.mkdir(d)
keep = open(sys.argv[1] + "/keep", "wb", buffering=0); keep.write(b"before ")
r, w = os.pipe(); kids = []
for i in range(n):
    pid = os.fork()
    if pid == 0:
        os.close(w)
        try:
            with open(f"{d}/{i}", "wb") as f: f.write(b"x")
        except OSError as e: print(i, e, file=sys.stderr); os._exit(1)
        os.read(r, 1); os._exit(0)
    kids.append(pid)
keep.write(b"among "); os.close(w)
failed = sum(os.waitpid(pid, 0)[1] != 0 for pid in kids)
keep.write(b"after")
text = open(sys.argv[1] + "/keep").read()
print("fine" if not failed and text == "before among after" else (failed, text))
"#;
    python(fixture, &pool, program, &["4096"])?;
    holds(fixture, &pool, "/hf/d", 4096)
}

/// Commands that all run at the same time: none is done before the last has begun. A program that
/// does nothing but run takes turns with them, so each is kept waiting in places of all kinds.
fn runs_at_once(fixture: &Fixture) -> Result<(), Stop> {
    let pool = pool(fixture, "256M")?;
    let all = 1000;
    let run = format!(
        "{} run --pool {}",
        fixture.holdfast.display(),
        pool.display()
    );
    let gate = fixture.path("gate");
    let gate = gate.display();
    let script = format!(
        "{run} -- mkdir /hf/d
        exec 9>{gate}; flock 9
        while :; do :; done 9>&- & busy=$!
        for i in $(seq {all}); do
            {{ {run} -- sh -c 'echo >/hf/d/'$i'; exec flock -s {gate} true' ||
                echo status $?; }} 9>&- &
        done
        until [ \"$({run} -- sh -c 'ls /hf/d | wc -l')\" = {all} ] || [ $SECONDS -gt 200 ]; do
            sleep 1
        done
        kill $busy; exec 9>&-; wait"
    );
    let mut command = Command::new("bash");
    command.args(["-c", &script]);
    let ended = long(fixture, command)?;
    if ended.code() != Some(0) || !ended.out.is_empty() || !ended.err.is_empty() {
        return wrong(format!(
            "{}: {} {}",
            ended.how(),
            ended.out,
            ended.tail().join("; ")
        ));
    }
    holds(fixture, &pool, "/hf/d", all)
}

/// Runs `work(number, descriptors)` in enough processes for `all` descriptors in sum; each keeps
/// what it opened until all are done.
const TOGETHER: &str = r#"
import os, resource, sys
def together(all, work):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    each = min(hard, 60000) - 100; procs = all // each + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (each + 100, hard))
    r, w = os.pipe(); r2, w2 = os.pipe()
    for p in range(procs):
        if os.fork() == 0:
            os.close(w)
            try: ok, kept = work(p, all // procs)
            except OSError as e: print(e, file=sys.stderr); ok = False
            os.write(w2, b"y" if ok else b"n"); os.read(r, 1); os._exit(0)
    os.close(w2)
    said = b""
    while len(said) < procs: said += os.read(r2, procs) or b"n" * procs
    os.close(w)
    for _ in range(procs): os.wait()
    print("fine" if said == b"y" * procs else said)
"#;

/// A million descriptors, as many in each process as the host allows.
fn descriptors(fixture: &Fixture) -> Result<(), Stop> {
    let pool = pool(fixture, "256M")?;
    let program = r#"
path = sys.argv[1] + "/f"
with open(path, "wb") as f: f.write(b"content")
def work(p, n):
    fds = [os.open(path, os.O_RDONLY) for _ in range(n)]
    return os.pread(fds[-1], 9, 0) == b"content", fds
together(1000000, work)
"#;
    python(fixture, &pool, &[TOGETHER, program].concat(), &[])?;
    holds(fixture, &pool, "/hf", 1)
}

/// As many descriptors in one process as the host allows, with numbers up to the highest.
fn high_descriptors(fixture: &Fixture) -> Result<(), Stop> {
    let pool = pool(fixture, "256M")?;
    let program = r#"
import os, resource, sys
most = 1 << 20
try: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
except ValueError:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
def make(name, content):
    with open(name, "wb") as f: f.write(content)
d = sys.argv[1]; make(d + "/even", b"even"); make(d + "/odd", b"odd"); make(d + "/top", b"top")
n = min(200000, most - 3000); wrong = []
fds = [os.open(d + ("/odd" if i % 2 else "/even"), os.O_RDONLY) for i in range(n)]
def read(fd):
    try: return os.pread(fd, 9, 0)
    except OSError as e: return e.errno
def all_read():
    return [fd for i, fd in enumerate(fds) if read(fd) != (b"odd" if i % 2 else b"even")]
wrong += all_read()
top = most - 1; fd = os.open(d + "/top", os.O_RDONLY); os.dup2(fd, top, inheritable=True)
if read(top) != b"top": wrong.append("dup2")
# A number that is closed hides no other one with the same low bits.
for low in range(1100, 2000): os.close(low)
if read(1500) != 9: wrong.append("closed")
for high in range(1100 + 65536, min(2000 + 65536, n)):
    if read(high) not in (b"odd", b"even"): wrong.append(high)
for low in range(1100, 2000): os.dup2(fds[-1], low)
fds = [fd for fd in fds if not 1100 <= fd < 2000]
if any(read(low) not in (b"odd", b"even") for low in range(1100, 2000)): wrong.append("again")
pid = os.fork()
if pid == 0: os._exit(read(top) != b"top" or any(read(fd) not in (b"odd", b"even") for fd in fds))
if os.waitpid(pid, 0)[1]: wrong.append("fork")
code = f"import os, sys; sys.exit(os.pread({top}, 9, 0) != b'top')"
if os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]): wrong.append("exec")
half = n // 2
os.closerange(half, most)
if read(top) != 9 or read(half) != 9: wrong.append("close_range")
if read(half - 1) not in (b"odd", b"even") or read(fds[5]) != b"odd": wrong.append("below")
if os.open(d + "/odd", os.O_RDONLY) != half: wrong.append("lowest")
print(*wrong[:5] or ["fine"])
"#;
    python(fixture, &pool, program, &[])?;
    holds(fixture, &pool, "/hf", 3)
}

/// More different files open at the same time than inodes were ever cached.
fn files_open(fixture: &Fixture) -> Result<(), Stop> {
    let pool = pool(fixture, "512M")?;
    let program = r#"
d = sys.argv[1] + "/d"; os.mkdir(d)
def work(p, n):
    fds = [os.open(f"{d}/{p}-{i}", os.O_RDWR | os.O_CREAT) for i in range(n)]
    for i, f in enumerate(fds): os.write(f, b"%d" % i)
    return all(os.pread(f, 9, 0) == b"%d" % i for i, f in enumerate(fds)), fds
together(100000, work)
"#;
    python(fixture, &pool, &[TOGETHER, program].concat(), &[])?;
    let count = "import os; n = len(os.listdir('/hf/d')); print(n > 99000)";
    let ended = fixture.run(&pool, &["python3", "-c", count])?;
    if ended.out != "True\n" {
        return wrong(format!("too few names are left: {:?}", ended.out));
    }
    fixture
        .done(&["pool", "check", &pool.to_string_lossy()])
        .map(drop)
}

/// Names, most of which no table holds any more when they are looked for.
fn many_names(fixture: &Fixture) -> Result<(), Stop> {
    let pool = pool(fixture, "1G")?;
    let program = r#"
import os, random, sys
d = sys.argv[1] + "/d"; os.mkdir(d); n = 200000
for i in range(n): os.close(os.open(f"{d}/name-{i}", os.O_CREAT | os.O_WRONLY))
random.seed(5); wrong = []
for i in random.sample(range(n), 20000):
    if not os.path.exists(f"{d}/name-{i}") or os.path.exists(f"{d}/none-{i}"): wrong.append(i)
for i in range(0, n, 2): os.unlink(f"{d}/name-{i}")
print(*wrong[:5] or ["fine"])
"#;
    python(fixture, &pool, program, &[])?;
    holds(fixture, &pool, "/hf/d", 100_000)
}

/// A program removes what it made, or never named it, and ends at once: the service, which ends
/// then as well, leaves no memory behind what is free.
fn removed(fixture: &Fixture) -> Result<(), Stop> {
    let pool = pool_in_memory(fixture, "2G")?;
    let program = r#"
import os, sys
if sys.argv[2] == "files":
    for i in range(10000): open(f"{sys.argv[1]}/{i}", "wb").write(bytes(20000))
    for i in range(10000): os.unlink(f"{sys.argv[1]}/{i}")
else:
    f = open(f"{sys.argv[1]}/f", "wb"); os.unlink(f.name)
    for _ in range(200): f.write(bytes(1000000))
print("fine")
"#;
    let empty = behind(&pool);
    for turn in 0..8 {
        python(fixture, &pool, program, &[["files", "nameless"][turn % 2]])?;
        await_rest(&pool, empty + (32 << 20))?;
    }
    fixture
        .done(&["pool", "check", &pool.to_string_lossy()])
        .map(drop)
}

/// Waits until at most so many bytes lie behind a pool that nobody uses.
fn await_rest(pool: &Path, most: u64) -> Result<(), Stop> {
    let begun = Instant::now();
    while behind(pool) > most {
        if begun.elapsed() > Duration::from_secs(20) {
            let bytes = behind(pool);
            return wrong(format!(
                "{bytes} bytes lie behind the pool at rest, not {most}"
            ));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Files of all sizes come, grow, shrink and go. What lies behind the pool follows what is in it.
fn memory(fixture: &Fixture) -> Result<(), Stop> {
    const LIVE: u64 = 100 << 20;
    let pool = pool_in_memory(fixture, "4G")?;
    let program = r#"
import os, random, sys, time
random.seed(7); live = {}; total = 0; n = 0; most = int(sys.argv[2]); content = bytes(2 << 20)
end = time.monotonic() + 15
while time.monotonic() < end:
    if total < most:
        size = int(2 ** random.uniform(9, 21)); n += 1
        os.makedirs(f"{sys.argv[1]}/{n % 97}", exist_ok=True)
        path = f"{sys.argv[1]}/{n % 97}/f{n}"
        with open(path, "wb") as f: f.write(content[:size])
        live[path] = size; total += size
        continue
    path = random.choice(list(live)); r = random.random()
    if r < .6: os.unlink(path); total -= live.pop(path)
    elif r < .8:
        half = live[path] // 2; os.truncate(path, half)
        total -= live[path] - half; live[path] = half
    else:
        with open(path, "ab") as f: f.write(content[:4096])
        live[path] += 4096; total += 4096
print("fine")
"#;
    let (done, most) = (AtomicBool::new(false), &mut 0);
    let ran = std::thread::scope(|scope| {
        let ran = scope.spawn(|| {
            let ran = python(fixture, &pool, program, &[&LIVE.to_string()]);
            done.store(true, Relaxed);
            ran
        });
        while !done.load(Relaxed) {
            *most = behind(&pool).max(*most);
            std::thread::sleep(Duration::from_millis(50));
        }
        ran.join().expect("the run does not panic")
    });
    ran?;
    // Live files take whole blocks.
    let live = LIVE + (6 << 20);
    let churn = 3 * live + (128 << 20);
    if *most > churn {
        return wrong(format!(
            "{most} bytes lie behind the pool under churn, not {churn}"
        ));
    }
    await_rest(&pool, live * 3 / 2 + (64 << 20))?;
    fixture
        .done(&["pool", "check", &pool.to_string_lossy()])
        .map(drop)
}

/// Bytes of memory that the files of a pool have.
fn behind(pool: &Path) -> u64 {
    let entries = std::fs::read_dir(pool).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| entry.metadata().ok());
    files.map(|file| file.blocks() * 512).sum()
}
