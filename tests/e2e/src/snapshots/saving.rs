//! Pools that are saved and restored: what comes back is what was there, to the last attribute,
//! whoever dies meanwhile and whatever is done to the stream.
//!
//! What a pool holds is listed by a script through the programs' calls, and keys by `kv dump`.

use super::{Done, Fixture, equal, first_line, ok};
use crate::process::Ended;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Everything of a pool, or of one of its snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listing {
    files: String,
    keys: String,
}

impl std::fmt::Display for Listing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.files, self.keys)
    }
}

impl Fixture {
    /// A command of Holdfast with these words.
    pub(super) fn command(&self, words: &[&str]) -> Done<Ended> {
        let mut command = Command::new(&self.holdfast);
        command.args(words);
        self.ended(command)
    }

    pub(super) fn done(&self, words: &[&str]) -> Done<String> {
        ok(&words.join(" "), self.command(words)?)
    }

    /// It must fail, and say this.
    pub(super) fn refused(&self, words: &[&str], why: &str) -> Done {
        let ended = self.command(words)?;
        let said = ended.tail().join("\n").replace("\nstderr: ", "\n");
        match ended.code() {
            Some(1 | 2) if said.contains(why) => Ok(()),
            _ => Err(format!(
                "{words:?} should say {why:?}: {}\n{said}",
                ended.how()
            )),
        }
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    pub(super) fn listing(&self, pool: &str, snapshot: Option<&str>) -> Done<Listing> {
        let mut words = vec!["run", "--pool", pool, "--at"];
        let at = self.path("hf");
        words.push(&at);
        words.extend(snapshot.iter().flat_map(|name| ["--snapshot", name]));
        let script = self.scripts.join("digest.py").display().to_string();
        words.extend(["--", "python3", &script, &at]);
        let files = self.done(&words)?;
        let mut keys = String::new();
        let more: Vec<_> = snapshot
            .iter()
            .flat_map(|name| ["--snapshot", name])
            .collect();
        for keyspace in self.done(&[&["kv", pool], &more[..]].concat())?.lines() {
            let dump = self.done(&[&["kv", pool, keyspace], &more[..], &["dump"]].concat())?;
            keys += &format!("{keyspace}:\n{dump}");
        }
        Ok(Listing { files, keys })
    }

    pub(super) fn same(
        &self,
        what: &str,
        (pool, snapshot): (&str, Option<&str>),
        wanted: &Listing,
    ) -> Done {
        let found = self.listing(pool, snapshot)?;
        equal(&format!("{what}: files"), &found.files, &wanted.files)?;
        equal(&format!("{what}: keys"), &found.keys, &wanted.keys)
    }

    pub(super) fn sound(&self, pool: &str) -> Done {
        self.done(&["pool", "check", pool]).map(drop)
    }

    pub(super) fn snapshots(&self, pool: &str) -> Done<Vec<String>> {
        let list = self.done(&["snapshot", pool, "list"])?;
        let name = |line: &str| line.split("  ").nth(1).map(str::to_owned);
        Ok(list.lines().filter_map(name).collect())
    }

    pub(super) fn start(&self, words: &[&str]) -> Done<Child> {
        let mut command = Command::new(&self.holdfast);
        command
            .args(words)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.spawn().map_err(|e| e.to_string())
    }

    /// Keys short and long, with every byte, a keyspace for each kind, and a volume.
    pub(super) fn fill(&self) -> Done {
        self.script(None, "everything.sh")?;
        let pool = self.path("pool");
        let file = self.dir.join("value");
        fs::write(&file, [b"0123456789abcdef".as_slice(); 9000].concat())
            .map_err(|e| e.to_string())?;
        let words = format!(
            "for n in $(seq 300); do {h} kv {pool} words put $n \"value $n\"; done; \
             {h} kv {pool} words put long - <{f}; {h} kv {pool} 'a b' put 'k/e/y' odd; \
             {h} kv {pool} words put empty ''; \
             {h} volume {pool} create disk --size 20M --atomic",
            h = self.holdfast.display(),
            f = file.display()
        );
        let mut shell = Command::new("bash");
        shell.args(["-ec", &words]);
        ok("filling", self.ended(shell)?).map(drop)
    }
}

pub fn comes_back_whole(f: &Fixture) -> Done {
    f.fill()?;
    let pool = f.path("pool");
    f.take("first")?;
    // A directory of keys gets the time of the last one when the trees know it.
    let first = f.listing(&pool, Some("first"))?;
    f.script(None, "change.sh")?;
    f.done(&["kv", &pool, "words", "erase", "7"])?;
    f.done(&["kv", &pool, "words", "put", "8", "other"])?;
    f.take("second")?;
    ok("late", f.shell(None, "echo late >late; rm docs/note-9")?)?;
    let last = f.listing(&pool, None)?;
    let (stream, copy) = (f.path("stream"), f.path("copy"));
    f.done(&["save", &pool, &stream])?;
    f.done(&["restore", &stream, &copy])?;
    f.sound(&copy)?;
    f.same("the present", (&copy, None), &last)?;
    f.same("the first snapshot", (&copy, Some("first")), &first)?;
    equal("snapshots", &f.snapshots(&copy)?.join(" "), "first second")?;
    equal(
        "its own snapshots",
        &f.snapshots(&pool)?.join(" "),
        "first second",
    )?;
    // The copy is a pool like any other: it goes on, and so does a copy of the copy.
    f.done(&["kv", &copy, "words", "put", "9", "new"])?;
    f.done(&["snapshot", &copy, "delete", "first"])?;
    f.sound(&copy)?;
    f.same("the saved one", (&pool, None), &last)
}

/// From memory to a disk and back, each time by a stream.
pub fn from_medium_to_medium(f: &Fixture) -> Done {
    let Some(disk) = on_disk(&f.dir) else {
        return Ok(());
    };
    f.fill()?;
    let pool = f.path("pool");
    f.take("first")?;
    f.script(None, "change.sh")?;
    let wanted = (f.listing(&pool, None)?, f.listing(&pool, Some("first"))?);
    let there = disk.join("pool").display().to_string();
    let back = f.path("back");
    let pipe = |from: &str, to: &str| {
        let holdfast = f.holdfast.display();
        let line = format!("set -o pipefail; {holdfast} send {from} | {holdfast} receive {to}");
        let mut shell = Command::new("bash");
        shell.args(["-c", &line]);
        ok("send and receive", f.ended(shell)?).map(drop)
    };
    let done = pipe(&pool, &there)
        .and_then(|()| f.sound(&there))
        .and_then(|()| {
            f.same("on a disk", (&there, None), &wanted.0)?;
            pipe(&there, &back)?;
            f.sound(&back)?;
            f.same("back in memory", (&back, None), &wanted.0)?;
            f.same("its snapshot", (&back, Some("first")), &wanted.1)
        });
    let _ = fs::remove_dir_all(disk);
    done
}

/// Programs are saved while they write. In copies on a disk and in memory again they find what they
/// have said is kept.
pub fn programs_go_on(f: &Fixture) -> Done {
    let (Some(disk), pool) = (on_disk(&f.dir), f.path("pool")) else {
        return Ok(());
    };
    let (hf, kept) = (f.path("hf"), f.path("kept"));
    let script = f.scripts.join("programs.sh").display().to_string();
    let line = format!("echo $$; exec bash {script} write {hf} {kept}");
    let mut writer = f.started(None, &line)?;
    let pid = first_line(&mut writer)?;
    let (there, back) = (disk.join("pool").display().to_string(), f.path("back"));
    let line = format!(
        "set -euo pipefail; for i in $(seq 1200); do \
         [ -e {kept} ] && [ $(cat {kept}) -ge 15 ] && break; sleep 0.05; done; \
         cp {kept} {kept}-then; {h} send {pool} | {h} receive {there}",
        h = f.holdfast.display(),
    );
    let mut shell = Command::new("bash");
    shell.args(["-c", &line]);
    let sent = f
        .ended(shell)
        .and_then(|ended| ok("send and receive", ended));
    let mut stop = Command::new("kill");
    stop.args(["-TERM", pid.trim()]);
    let stopped = f.ended(stop).and_then(|ended| ok("kill", ended));
    let ended = writer.wait().map_err(|e| e.to_string());
    let checked = sent.and(stopped).and_then(|_| {
        f.done(&["save", &there, &f.path("stream")])?;
        f.done(&["restore", &f.path("stream"), &back])?;
        let then = format!("{kept}-then");
        for pool in [&there, &back] {
            f.sound(pool)?;
            let at = ["run", "--pool", pool, "--at", &hf, "--", "bash", &script];
            f.done(&[&at[..], &["check", &hf, &then]].concat())?;
        }
        f.sound(&pool)
    });
    let _ = fs::remove_dir_all(disk);
    checked.and_then(|()| match ended?.success() {
        true => Ok(()),
        false => Err("a program failed meanwhile".into()),
    })
}

/// A directory on a file system with blocks.
fn on_disk(scratch: &Path) -> Option<PathBuf> {
    let name = scratch.file_name()?.to_str()?;
    let dir = PathBuf::from(format!("/var/tmp/holdfast-{name}-{}", std::process::id()));
    fs::create_dir_all(&dir).ok()?;
    let kind = Command::new("stat")
        .args(["-f", "-c", "%T"])
        .arg(&dir)
        .output()
        .ok()?;
    match String::from_utf8_lossy(&kind.stdout).trim() {
        "tmpfs" | "ramfs" => {
            let _ = fs::remove_dir(&dir);
            None
        }
        _ => Some(dir),
    }
}

/// A database that commits while it is saved: what is restored is what a crash would leave.
pub fn under_a_writer(f: &Fixture) -> Done {
    let pool = f.path("pool");
    let line = "python3 -c '
import os, sqlite3, time
base = sqlite3.connect(\"base.db\")
base.execute(\"pragma journal_mode=wal\")
base.execute(\"create table t (n integer primary key, twice integer, pad text)\")
n = 0
while not os.path.exists(\"stop\"):
    n += 1
    time.sleep(0.001)
    with base:
        base.execute(\"insert into t values (?, ?, ?)\", (n, 2 * n, \"x\" * (n % 3000)))
    open(\"count\", \"w\").write(str(n))
'";
    let mut writer = f.started(None, line)?;
    let saved = (0..6).try_for_each(|round| {
        std::thread::sleep(Duration::from_millis(300));
        let (stream, copy) = (f.path("stream"), f.path(&format!("copy-{round}")));
        f.done(&["save", &pool, &stream])?;
        if writer.try_wait().map_err(|e| e.to_string())?.is_some() {
            return Err("the writer ended".into());
        }
        f.done(&["restore", &stream, &copy])?;
        f.sound(&copy)?;
        let at = f.path("hf");
        let whole = "count(*) == max(n), sum(twice == 2 * n) == max(n)";
        let query = &format!("pragma integrity_check; select {whole} from t");
        let base = format!("{at}/base.db");
        let words = [
            "run", "--pool", &copy, "--at", &at, "--", "sqlite3", &base, query,
        ];
        equal("the database", f.done(&words)?.trim(), "ok\n1|1")?;
        f.done(&["pool", "destroy", &copy]).map(drop)
    });
    ok("stop", f.shell(None, ": >stop")?)?;
    let _ = writer.wait();
    saved
}

/// What is sent again is in proportion to what changed, and it is all of what changed.
pub fn what_changed(f: &Fixture) -> Done {
    let (pool, copy) = (f.path("pool"), f.path("copy"));
    ok(
        "files",
        f.shell(
            None,
            "head -c 60000000 /dev/urandom >large; mkdir d; seq 9 >d/short",
        )?,
    )?;
    let value = "v".repeat(30_000);
    f.done(&["kv", &pool, "k", "put", "large", &value])?;
    f.take("s0")?;
    let stream = f.path("stream");
    f.done(&["save", "--snapshot", "s0", &pool, &stream])?;
    f.done(&["restore", &stream, &copy])?;
    let changes = [
        "printf new | dd of=large bs=1 seek=30000001 conv=notrunc status=none",
        "rm d/short; seq 10 >d/other; truncate -s 20000000 large",
        "mv d e; ln e/other e/link; truncate -s 70000000 large; printf x >>large; mkfifo p",
        // A value becomes a file, whose blocks are older than it is.
        "rm -r e; : >empty; chmod 600 large k/large; printf x >>k/large",
    ];
    let mut last = "s0".to_owned();
    for (n, change) in changes.iter().enumerate() {
        ok(change, f.shell(None, change)?)?;
        f.done(&["kv", &pool, "k", "put", &n.to_string(), "value"])?;
        let name = format!("s{}", n + 1);
        f.take(&name)?;
        f.done(&[
            "save",
            "--since",
            &last,
            "--snapshot",
            &name,
            &pool,
            &stream,
        ])?;
        let long = fs::metadata(&stream).map_err(|e| e.to_string())?.len();
        if long > 100_000 {
            return Err(format!("{change} takes {long} bytes"));
        }
        f.done(&["restore", &stream, &copy])?;
        // Again: it is there.
        f.done(&["restore", &stream, &copy])?;
        last = name;
    }
    f.sound(&copy)?;
    f.same("the end", (&copy, None), &f.listing(&pool, None)?)?;
    for n in 0..=changes.len() {
        let name = format!("s{n}");
        f.same(&name, (&copy, Some(&name)), &f.listing(&pool, Some(&name))?)?;
    }
    refused_chains(f, &stream, &copy)
}

fn refused_chains(f: &Fixture, stream: &str, copy: &str) -> Done {
    let pool = f.path("pool");
    f.refused(
        &["save", "--since", "s9", &pool, stream],
        "there is no snapshot s9",
    )?;
    let back = ["save", "--since", "s2", "--snapshot", "s1", &pool, stream];
    f.refused(&back, "s1 is not younger than snapshot s2")?;
    f.refused(&["restore", stream, &f.path("none")], "no pool")?;
    f.take("s5")?;
    f.done(&["save", "--since", "s4", &pool, stream])?;
    f.done(&["kv", copy, "k", "put", "mine", "x"])?;
    f.refused(
        &["restore", stream, copy],
        "was changed since snapshot \"s4\"",
    )?;
    let other = f.path("other");
    f.done(&["pool", "create", &other, "--size", "64M"])?;
    f.done(&["snapshot", &other, "create", "s4"])?;
    f.refused(&["restore", stream, &other], "another snapshot \"s4\"")
}

/// Stores to blocks of a snapshot, which files that are mapped may get, are sent with what changed.
pub fn mapped_files(f: &Fixture) -> Done {
    let cases = [
        // Mapped shared while the snapshot is taken.
        (
            "mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE",
            "before",
            "memory[5000:5003] = b'new'",
        ),
        (
            "mmap.MAP_SHARED, mmap.PROT_READ",
            "before",
            "os.pwrite(file.fileno(), b'new', 5000)",
        ),
        // Mapped private behind it, and written to: in place, since the mapping has the blocks.
        (
            "mmap.MAP_PRIVATE, mmap.PROT_READ",
            "behind",
            "os.pwrite(file.fileno(), b'new', 5000)",
        ),
        (
            "mmap.MAP_PRIVATE, mmap.PROT_READ",
            "behind",
            "file.truncate(4000); file.truncate(300000)",
        ),
    ];
    for (n, case) in cases.iter().enumerate() {
        mapped_file(f, n, case)?;
    }
    Ok(())
}

fn mapped_file(f: &Fixture, n: usize, (how, when, change): &(&str, &str, &str)) -> Done {
    let dir = f.dir.join(format!("m{n}"));
    fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
    let name = |name: &str| format!("{}/{name}", dir.display());
    let (pool, copy, stream) = (name("pool"), name("copy"), name("stream"));
    f.done(&["pool", "create", &pool, "--size", "64M"])?;
    let program = format!(
        "import mmap, os, subprocess
file = open('{at}/file', 'w+b')
file.write(b'0123456789' * 30000); file.flush()
def do(*words): subprocess.run(['{h}', *words], check=True, stdout=subprocess.DEVNULL)
def map(): return mmap.mmap(file.fileno(), 0, {how})
if '{when}' == 'before': memory = map()
do('snapshot', '{pool}', 'create', 'a')
do('save', '--snapshot', 'a', '{pool}', '{stream}')
do('restore', '{stream}', '{copy}')
if '{when}' == 'behind': memory = map()
assert memory[5000:5003] == b'012'
{change}
do('snapshot', '{pool}', 'create', 'b')
do('save', '--since', 'a', '--snapshot', 'b', '{pool}', '{stream}')
do('restore', '{stream}', '{copy}')
",
        at = f.path("hf"),
        h = f.holdfast.display()
    );
    let at = f.path("hf");
    f.done(&[
        "run", "--pool", &pool, "--at", &at, "--", "python3", "-c", &program,
    ])?;
    f.sound(&copy)?;
    let wanted = f.listing(&pool, Some("b"))?;
    f.same(&format!("{how}, {when}, {change}"), (&copy, None), &wanted)
}

pub fn savers_and_restorers_die(f: &Fixture) -> Done {
    f.fill()?;
    ok(
        "more",
        f.shell(None, "head -c 80000000 /dev/urandom >large")?,
    )?;
    let (pool, stream, copy) = (f.path("pool"), f.path("stream"), f.path("copy"));
    let wanted = f.listing(&pool, None)?;
    let begun = Instant::now();
    f.done(&["save", &pool, &f.path("good")])?;
    let took = begun.elapsed();
    for n in 0..12u32 {
        let mut child = f.start(&["save", &pool, &stream])?;
        std::thread::sleep(took * n / 10);
        let _ = child.kill();
        let died = child.wait().map_err(|e| e.to_string())?;
        if !died.success() && Path::new(&stream).exists() {
            return Err("a file of a save that was killed has its name".into());
        }
        let _ = fs::remove_file(&stream);
    }
    f.done(&["save", &pool, &stream])?;
    equal("what is left of them", &f.snapshots(&pool)?.join(" "), "")?;
    let begun = Instant::now();
    f.done(&["restore", &stream, &copy])?;
    let took = begun.elapsed();
    f.done(&["pool", "destroy", &copy])?;
    for n in 0..12u32 {
        let mut child = f.start(&["restore", &stream, &copy])?;
        std::thread::sleep(took * n / 10);
        let _ = child.kill();
        let died = child.wait().map_err(|e| e.to_string())?;
        let is_there = f.command(&["pool", "status", &copy])?.code() == Some(0);
        if died.success() && !is_there {
            return Err("there is no pool of a restore that was done".into());
        }
        if is_there {
            // It may have been killed when all was done.
            f.sound(&copy)?;
            f.same("after a kill", (&copy, None), &wanted)?;
            f.done(&["pool", "destroy", &copy])?;
        }
    }
    f.done(&["restore", &stream, &copy])?;
    f.sound(&copy)?;
    f.same("after them", (&copy, None), &wanted)
}

pub fn streams_that_are_not(f: &Fixture) -> Done {
    f.script(None, "build.sh")?;
    ok(
        "more",
        f.shell(None, "head -c 20000000 /dev/urandom >large")?,
    )?;
    let (pool, stream, copy) = (f.path("pool"), f.path("stream"), f.path("copy"));
    f.done(&["save", &pool, &stream])?;
    let good = fs::read(&stream).map_err(|e| e.to_string())?;
    let nothing = |why: &str| match Path::new(&copy).exists() {
        true => Err(format!("{why}: something is left")),
        false => Ok(()),
    };
    let bad = f.path("bad");
    for n in 0..20 {
        let mut bytes = good.clone();
        let at = bytes.len() * n / 20 + 40;
        bytes[at.min(good.len() - 1)] ^= 4;
        fs::write(&bad, &bytes).map_err(|e| e.to_string())?;
        f.refused(&["restore", &bad, &copy], "damaged in chunk")?;
        nothing("a changed one")?;
        fs::write(&bad, &good[..at.min(good.len() - 1)]).map_err(|e| e.to_string())?;
        f.refused(&["restore", &bad, &copy], "ends too early")?;
        nothing("a short one")?;
    }
    fs::write(&bad, [&good[..], b"more"].concat()).map_err(|e| e.to_string())?;
    f.refused(&["restore", &bad, &copy], "the stream")?;
    // All of it was restored by then, and is left for the one that ends well.
    fs::remove_dir_all(&copy).map_err(|e| e.to_string())?;
    f.refused(&["restore", "/bin/sh", &copy], "not a stream")?;
    f.refused(&["restore", "/dev/null", &copy], "not a stream")?;
    f.refused(&["restore", &f.path("none"), &copy], "No such file")?;
    f.refused(&["restore", &stream, &copy, "--size", "16M"], "no room")?;
    nothing("what others are")?;
    f.refused(&["restore", &stream, &pool], "is a pool already")?;
    fs::create_dir(&copy).map_err(|e| e.to_string())?;
    fs::write(f.dir.join("copy/mine"), "mine").map_err(|e| e.to_string())?;
    f.refused(&["restore", &stream, &copy], "is not empty")?;
    f.refused(&["save", &f.path("none"), &bad], "there is no pool")?;
    f.refused(
        &["save", "--snapshot", "x", &pool, &bad],
        "there is no snapshot x",
    )?;
    f.refused(&["save", &pool, &f.path("none/file")], "No such file")?;
    f.refused(&["save", &pool, "/dev/full"], "No space left")?;
    // Somebody else saves to the same file.
    let part = format!("{stream}.part");
    let line = format!(
        "exec 9>{part}; flock 9; {} save {pool} {stream}",
        f.holdfast.display()
    );
    let mut shell = Command::new("bash");
    shell.args(["-c", &line]);
    let ended = f.ended(shell)?;
    if ended.code() != Some(1) || !ended.tail().join(" ").contains("another process is saving") {
        return Err(format!("two at once: {}", ended.tail().join("\n")));
    }
    fs::remove_file(part).map_err(|e| e.to_string())?;
    equal("what is left of them", &f.snapshots(&pool)?.join(" "), "")
}

/// A pool whose memory is lost is there again, as it was when its service ended, however it did.
pub fn kept_in_a_file(f: &Fixture) -> Done {
    let (pool, file) = (f.path("kept"), f.path("file"));
    f.done(&["pool", "create", &pool, "--size", "64M"])?;
    for (n, signal) in ["-TERM", "-KILL", "-INT"].into_iter().enumerate() {
        let mut service = f.start(&["serve", &pool, "--keep", &file, "--every", "1s"])?;
        let socket = f.dir.join("kept/sock");
        let begun = Instant::now();
        // A socket may be left over from a service that was killed.
        while !socket.exists() || f.command(&["kv", &pool])?.code() != Some(0) {
            if begun.elapsed() > Duration::from_secs(30) {
                return Err("the service does not begin".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        f.done(&["kv", &pool, "k", "put", &n.to_string(), "value"])?;
        if n == 0 {
            // Also while it runs.
            while !Path::new(&file).exists() {
                if begun.elapsed() > Duration::from_secs(30) {
                    return Err("nothing is saved while the service runs".into());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let wanted = f.listing(&pool, None)?.keys;
        let id = service.id().to_string();
        let killed = Command::new("kill").args([signal, &id]).status();
        killed.map_err(|e| e.to_string())?;
        service.wait().map_err(|e| e.to_string())?;
        // Whoever saves after a service that was killed is nobody's child.
        let copy = f.path(&format!("copy-{n}"));
        let begun = Instant::now();
        loop {
            f.done(&["restore", &file, &copy])?;
            let same = equal(signal, &f.listing(&copy, None)?.keys, &wanted);
            if same.is_ok() || signal != "-KILL" || begun.elapsed() > Duration::from_secs(30) {
                same?;
                break;
            }
            f.done(&["pool", "destroy", &copy])?;
        }
        // The machine is down, and up again.
        fs::remove_dir_all(&pool).map_err(|e| e.to_string())?;
    }
    f.refused(
        &["serve", &pool, "--keep", &f.path("none")],
        "there is no pool",
    )
}

/// `snapshot diff` names what changed, and nothing else.
pub fn what_differs(f: &Fixture) -> Done {
    f.script(None, "build.sh")?;
    let pool = f.path("pool");
    for key in ["stays", "goes", "changes"] {
        f.done(&["kv", &pool, "words", "put", key, "1"])?;
    }
    f.take("a")?;
    equal("nothing", &f.done(&["snapshot", &pool, "diff", "a"])?, "")?;
    let changes = "echo x >>docs/note-1; chmod 711 docs/note-3; rm docs/note-4; echo new >fresh; \
        mv docs/note-5 data/moved; mv empty full; ln docs/note-6 docs/twin; mkdir docs/made; \
        printf y | dd of=data/numbers bs=1 seek=100000 conv=notrunc status=none; \
        chmod 700 data; cat docs/note-8 >/dev/null; python3 -c \
        'import os; os.setxattr(\"docs/note-7\", \"user.a\", b\"b\")'; printf 'tab' >'a\tb'";
    ok(changes, f.shell(None, changes)?)?;
    f.done(&["kv", &pool, "words", "erase", "goes"])?;
    f.done(&["kv", &pool, "words", "put", "changes", "2"])?;
    f.done(&["kv", &pool, "words", "put", "comes", "1"])?;
    let wanted = "added    /a\\tb
changed  /data
renamed  /docs/note-5 -> /data/moved
changed  /data/numbers
added    /docs/made
changed  /docs/note-1
changed  /docs/note-3
removed  /docs/note-4
changed  /docs/note-7
added    /docs/twin
added    /fresh
renamed  /empty -> /full
changed  /words/changes (key)
added    /words/comes (key)
removed  /words/goes (key)
";
    equal(
        "since a",
        &f.done(&["snapshot", &pool, "diff", "a"])?,
        wanted,
    )?;
    f.take("b")?;
    equal(
        "from a to b",
        &f.done(&["snapshot", &pool, "diff", "a", "b"])?,
        wanted,
    )?;
    f.refused(&["snapshot", &pool, "diff", "x"], "there is no snapshot x")?;
    let json = f.done(&["snapshot", &pool, "diff", "a", "b", "--json"])?;
    let json: serde_json::Value = serde_json::from_str(&json).map_err(|e| e.to_string())?;
    match json.as_array().map(Vec::len) == Some(wanted.lines().count()) {
        true => Ok(()),
        false => Err(format!("{json}")),
    }
}

pub fn snapshots_are_thinned(f: &Fixture) -> Done {
    let pool = f.path("pool");
    for name in ["daily-1", "mine", "daily-2", "daily-3"] {
        f.take(name)?;
    }
    let thin = [
        "snapshot", &pool, "thin", "--keep", "24h,7d", "--prefix", "daily-",
    ];
    let would = f.done(&[&thin[..], &["--dry-run"]].concat())?;
    equal(
        "a try",
        &would,
        "would delete daily-1\nwould delete daily-2\n",
    )?;
    equal(
        "thinning",
        &f.done(&thin)?,
        "deleted daily-1\ndeleted daily-2\n",
    )?;
    equal(
        "what is left",
        &f.snapshots(&pool)?.join(" "),
        "mine daily-3",
    )?;
    f.refused(
        &["snapshot", &pool, "thin", "--keep", "7"],
        "is not a list such as",
    )
}
