//! Snapshots under real programs: what `holdfast run --snapshot` shows is what was there, whatever
//! happened to the pool since, and nothing of it can be changed.

mod going_on;
mod growing;
mod keeping;
mod quotas;
mod resizing;
mod restoring;
mod rolling_back;
mod saving;

use crate::outcome::{Outcomes, Verdict};
use crate::process::{self, Ended};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(180);
const NEEDS: [&str; 7] = [
    "bash",
    "tar",
    "sqlite3",
    "python3",
    "find",
    "git",
    "redis-server",
];

type Done<T = ()> = Result<T, String>;
type Case = fn(&Fixture) -> Done;

const CASES: [(&str, Case); 47] = [
    ("programs read what was there", programs_read),
    ("values are files", values_are_files),
    ("nothing can be changed", nothing_can_be_changed),
    ("pipes and sockets are there", pipes_and_sockets),
    ("in use means not deleted", in_use),
    ("programs outlive the service", outlives_the_service),
    ("a database that is written to", a_live_database),
    ("who takes one may die", takers_die),
    ("a saved pool comes back whole", saving::comes_back_whole),
    ("from medium to medium", saving::from_medium_to_medium),
    ("saved under a writer", saving::under_a_writer),
    ("saved programs go on", saving::programs_go_on),
    ("what changed is saved", saving::what_changed),
    ("what changed in mapped files", saving::mapped_files),
    ("savers and restorers die", saving::savers_and_restorers_die),
    ("a save goes on", going_on::goes_on_where_it_was),
    (
        "a save of a snapshot goes on",
        going_on::goes_on_with_a_snapshot,
    ),
    ("a save begins anew", going_on::begins_anew),
    ("a restore goes on", restoring::goes_on_where_it_was),
    (
        "a restore goes on with the rest",
        restoring::goes_on_with_the_rest,
    ),
    (
        "a restore that was moved",
        restoring::ends_where_it_was_moved,
    ),
    ("a restore begins anew", restoring::begins_anew),
    ("streams that are not", saving::streams_that_are_not),
    ("kept in a file", saving::kept_in_a_file),
    ("a configured pool", keeping::a_configured_pool),
    ("wrong configurations", keeping::wrong_configurations),
    (
        "files that cannot be kept",
        keeping::files_that_cannot_be_kept,
    ),
    ("kept without need", keeping::kept_without_need),
    ("failures are seen", keeping::failures_are_seen),
    ("kept for its owner", keeping::kept_for_its_owner),
    ("what differs", saving::what_differs),
    ("snapshots are thinned", saving::snapshots_are_thinned),
    ("back to a snapshot", rolling_back::back_to_a_snapshot),
    ("who goes back dies", rolling_back::who_goes_back_dies),
    ("a pool grows in use", growing::a_pool_grows_in_use),
    (
        "its service dies as it grows",
        growing::its_service_dies_as_it_grows,
    ),
    (
        "what has grown is not cut",
        growing::what_has_grown_is_not_cut,
    ),
    (
        "what cannot grow says so",
        growing::what_cannot_grow_says_so,
    ),
    ("a pool becomes smaller", resizing::a_pool_becomes_smaller),
    (
        "who makes it smaller dies",
        resizing::who_makes_it_smaller_dies,
    ),
    ("snapshots are renamed", rolling_back::snapshots_are_renamed),
    ("programs meet a limit", quotas::programs_meet_a_limit),
    ("kills leave quotas right", quotas::kills_leave_it_right),
    ("quotas are kept", quotas::quotas_are_kept),
    ("keyspaces have quotas", quotas::keyspaces_have_quotas),
    ("quotas agree with du", quotas::agree_with_du),
    (
        "setting a quota is interrupted",
        quotas::setting_is_interrupted,
    ),
];

/// A pool of its own for each case.
/// Cases that run at once: most of what they do is wait.
const WORKERS: usize = 2;

/// What takes long and has nothing to do with rights: where another user runs all cases beside
/// this one (HF_AGAIN), once is enough.
const ONCE: [&str; 14] = [
    "saved under a writer",
    "saved programs go on",
    "savers and restorers die",
    "a save goes on",
    "a save of a snapshot goes on",
    "a save begins anew",
    "a restore goes on",
    "a restore goes on with the rest",
    "a restore that was moved",
    "a restore begins anew",
    "who goes back dies",
    "its service dies as it grows",
    "who makes it smaller dies",
    "kills leave quotas right",
];

struct Fixture {
    holdfast: PathBuf,
    scripts: PathBuf,
    dir: PathBuf,
}

/// `hf-e2e snapshots`
pub fn main(names: &[&str]) -> ExitCode {
    let scratch = || process::scratch("snapshots").map_err(|e| e.to_string());
    let prepared = process::holdfast().and_then(|h| scratch().map(|dir| (h, dir)));
    let (holdfast, work) = match prepared {
        Ok(prepared) => prepared,
        Err(why) => {
            eprintln!("snapshots: {why}");
            return ExitCode::from(2);
        }
    };
    let scripts = std::env::var_os("HF_SNAPSHOTS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("snapshots"),
        PathBuf::from,
    );
    let outcomes = Outcomes::default();
    let next = AtomicUsize::new(0);
    let wanted: Vec<_> = CASES
        .into_iter()
        .filter(|(name, _)| names.is_empty() || names.contains(name))
        .collect();
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                process::own_mounts().expect("root may have mounts of its own");
                while let Some((name, case)) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let fixture = Fixture {
                        holdfast: holdfast.clone(),
                        scripts: scripts.clone(),
                        dir: work.join(name.replace(' ', "-")),
                    };
                    outcomes.add(name, fixture.judge(name, *case));
                }
            });
        }
    });
    let _ = fs::remove_dir(&work);
    outcomes.finish()
}

impl Fixture {
    fn judge(&self, name: &str, case: Case) -> Verdict {
        if let Some(missing) = NEEDS.iter().find(|program| !process::on_path(program)) {
            return Verdict::Skipped(format!("{missing} is not installed"));
        }
        if std::env::var_os("HF_AGAIN").is_some() && ONCE.contains(&name) {
            let why = "another user runs it at the same time, and it takes long";
            return Verdict::Skipped(why.into());
        }
        let done = self.begin().and_then(|()| case(self));
        let done = done.and_then(|()| self.admin(&["pool", "check"], &[]).map(drop));
        let keep = done.is_err() && std::env::var_os("HF_KEEP").is_some();
        if !keep {
            let _ = fs::remove_dir_all(&self.dir);
        }
        done.map_or_else(|why| Verdict::Failed(vec![why]), |()| Verdict::Passed)
    }
}

fn ok(what: &str, ended: Ended) -> Done<String> {
    match ended.code() {
        Some(0) => Ok(ended.out),
        _ => Err(format!(
            "{what}: {}\n{}",
            ended.how(),
            ended.tail().join("\n")
        )),
    }
}

impl Fixture {
    fn begin(&self) -> Done {
        fs::create_dir_all(self.dir.join("home")).map_err(|e| e.to_string())?;
        self.admin(&["pool", "create"], &["--size", "512M"])
            .map(drop)
    }

    fn pool(&self) -> PathBuf {
        self.dir.join("pool")
    }

    fn ended(&self, mut command: Command) -> Done<Ended> {
        process::clean(&mut command, &self.dir.join("home"));
        command.env("TMPDIR", &self.dir).current_dir(&self.dir);
        process::run(&mut command, LIMIT, &self.dir).map_err(|e| e.to_string())
    }

    /// A command about the pool, which must succeed.
    fn admin(&self, words: &[&str], more: &[&str]) -> Done<String> {
        let mut command = Command::new(&self.holdfast);
        command.args(words).arg(self.pool()).args(more);
        ok(&words.join(" "), self.ended(command)?)
    }

    fn snapshot(&self, words: &[&str]) -> Done<Ended> {
        let mut command = Command::new(&self.holdfast);
        command.arg("snapshot").arg(self.pool()).args(words);
        self.ended(command)
    }

    fn take(&self, name: &str) -> Done {
        ok("snapshot create", self.snapshot(&["create", name])?).map(drop)
    }

    fn run(&self, snapshot: Option<&str>) -> Command {
        let mut command = Command::new(&self.holdfast);
        command.arg("run").arg("--pool").arg(self.pool());
        command.arg("--at").arg(self.dir.join("hf"));
        if let Some(name) = snapshot {
            command.args(["--snapshot", name]);
        }
        command.arg("--");
        command
    }

    /// One of the scripts in the pool's directory, which must succeed.
    fn script(&self, snapshot: Option<&str>, name: &str) -> Done<String> {
        let mut command = self.run(snapshot);
        command.arg("bash").arg(self.scripts.join(name));
        command.arg(self.dir.join("hf"));
        ok(name, self.ended(command)?)
    }

    /// A line of shell in the pool's directory.
    fn shell(&self, snapshot: Option<&str>, line: &str) -> Done<Ended> {
        let mut command = self.run(snapshot);
        let line = format!("cd {} && {line}", self.dir.join("hf").display());
        command.args(["bash", "-c", &line]);
        self.ended(command)
    }

    fn started(&self, snapshot: Option<&str>, line: &str) -> Done<Child> {
        let mut command = self.run(snapshot);
        let line = format!("cd {} && {line}", self.dir.join("hf").display());
        command.args(["bash", "-c", &line]);
        process::clean(&mut command, &self.dir.join("home"));
        command.stdout(Stdio::piped()).current_dir(&self.dir);
        command.spawn().map_err(|e| e.to_string())
    }

    fn used(&self) -> Done<u64> {
        let status = self.admin(&["pool", "status", "--json"], &[])?;
        let json: serde_json::Value = serde_json::from_str(&status).map_err(|e| e.to_string())?;
        json["used"].as_u64().ok_or(format!("no use in {json}"))
    }
}

fn equal(what: &str, found: &str, wanted: &str) -> Done {
    if found == wanted {
        return Ok(());
    }
    let differs = |(a, b): &(&str, &str)| a != b;
    let line = found.lines().zip(wanted.lines()).find(differs);
    Err(format!("{what} differs: {line:?}"))
}

fn programs_read(fixture: &Fixture) -> Done {
    fixture.script(None, "build.sh")?;
    let before = fixture.script(None, "read.sh")?;
    let used = fixture.used()?;
    fixture.take("first")?;
    equal(
        "a fresh snapshot",
        &fixture.script(Some("first"), "read.sh")?,
        &before,
    )?;
    fixture.script(None, "change.sh")?;
    fixture.take("second")?;
    equal(
        "the snapshot",
        &fixture.script(Some("first"), "read.sh")?,
        &before,
    )?;
    let gone = fixture.shell(None, "rm -r * && ls")?;
    equal("the emptied present", &ok("rm", gone)?, "")?;
    equal(
        "the snapshot",
        &fixture.script(Some("first"), "read.sh")?,
        &before,
    )?;
    let listed = fixture.snapshot(&["list", "--json"])?.out;
    let names: serde_json::Value = serde_json::from_str(&listed).map_err(|e| e.to_string())?;
    if names[0]["name"] != "first" || names[1]["name"] != "second" {
        return Err(format!("the list is {names}"));
    }
    if fixture.used()? < used {
        return Err("the snapshots have lost their space".into());
    }
    for name in ["first", "second"] {
        ok("delete", fixture.snapshot(&["delete", name])?)?;
    }
    match fixture.used()? {
        0..4_000_000 => Ok(()),
        left => Err(format!("{left} bytes are in use still")),
    }
}

/// Gives keys 000 to 299 of a keyspace values of many lengths, which say which `version` they are
/// of; the same as files on the host.
fn load_values(fixture: &Fixture, version: u32) -> Done<PathBuf> {
    let wanted = fixture.dir.join(format!("version-{version}"));
    fs::create_dir_all(&wanted).map_err(|e| e.to_string())?;
    let mut lines = String::new();
    let lens = [0, 1, 300, 512, 513, 1900, 4096, 9000, 70_000, 2_500_000];
    for i in 0..300 {
        let word = format!("{i} in version {version}, ");
        let len = lens[if i < 20 { i % 10 } else { i % 8 }];
        let value: String = word.chars().cycle().take(len).collect();
        fs::write(wanted.join(format!("{i:03}")), &value).map_err(|e| e.to_string())?;
        lines += &format!("{i:03}\t{value}\n");
    }
    let input = fixture.dir.join("lines");
    fs::write(&input, lines).map_err(|e| e.to_string())?;
    let mut load = Command::new("bash");
    let line = "exec \"$0\" kv \"$1\" keys load <\"$2\"";
    load.args(["-c", line]).arg(&fixture.holdfast);
    load.arg(fixture.pool()).arg(input);
    ok("kv load", fixture.ended(load)?)?;
    Ok(wanted)
}

/// Reads all files of the working directory in several ways.
const READ_VALUES: &str = "sha256sum * && cat * | wc -c && grep -c 'in version 1' * \
    && stat -c %s * && tar cf - * | tar xOf - | sha256sum && cmp 007 <(tail -c 9000 007) \
    && python3 -c 'import mmap, sys, hashlib
for name in sys.argv[1:]:
    with open(name, \"rb\") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
        print(name, len(m), hashlib.sha256(m).hexdigest())' 001 002 003 004 005 006 007 008 009";

fn values_are_files(fixture: &Fixture) -> Done {
    let wanted = load_values(fixture, 1)?;
    fixture.take("first")?;
    load_values(fixture, 2)?;
    let read = |dir: &Path| {
        let mut command = Command::new("bash");
        let line = format!("cd {} && {READ_VALUES}", dir.display());
        command.args(["-c", &line]);
        ok("the host's files", fixture.ended(command)?)
    };
    let shown = fixture.shell(Some("first"), &format!("cd keys && {READ_VALUES}"))?;
    equal("the snapshot", &ok("values", shown)?, &read(&wanted)?)?;
    let refused = fixture.shell(
        Some("first"),
        "echo x >>keys/003; rm -f keys/003; cat keys/300",
    )?;
    let told = refused.tail().join("\n");
    match told.matches("Read-only").count() == 2 && told.contains("No such file") {
        true => Ok(()),
        false => Err(format!("to change a value is answered with {told:?}")),
    }
}

fn nothing_can_be_changed(fixture: &Fixture) -> Done {
    ok(
        "fill",
        fixture.shell(None, "mkdir dir && echo text > file && seq 9999 > large")?,
    )?;
    fixture.take("s")?;
    for line in [
        "touch new",
        "touch file",
        "echo x > file",
        "echo x >> large",
        "rm file",
        "rmdir dir",
        "mkdir other",
        "mv file dir",
        "ln file other",
        "ln -s file other",
        "chmod 0600 file",
        "truncate -s 5 large",
        "python3 -c \"open('large', 'r+b')\"",
    ] {
        let ended = fixture.shell(Some("s"), line)?;
        if ended.code() != Some(1) || !ended.err.contains("Read-only file system") {
            return Err(format!("{line}: {}, {:?}", ended.how(), ended.tail()));
        }
    }
    let left = ok(
        "look",
        fixture.shell(Some("s"), "find . | sort && cat file && tail -1 large")?,
    )?;
    equal(
        "the snapshot",
        &left,
        ".\n./dir\n./file\n./large\ntext\n9999\n",
    )?;
    let missing = fixture.shell(Some("t"), "true")?;
    match missing.code() {
        Some(125) if missing.err.contains("no snapshot") => Ok(()),
        _ => Err(format!(
            "a missing snapshot: {} {:?}",
            missing.how(),
            missing.tail()
        )),
    }
}

/// A named pipe passes data on, as on a file system that is mounted read-only, and a socket is a
/// name that nobody listens at.
fn pipes_and_sockets(fixture: &Fixture) -> Done {
    let bind = "import socket; socket.socket(socket.AF_UNIX).bind('socket')";
    ok(
        "fill",
        fixture.shell(None, &format!("mkfifo -m 640 pipe; python3 -c \"{bind}\""))?,
    )?;
    fixture.take("s")?;
    ok(
        "remove",
        fixture.shell(None, "rm pipe socket; mkfifo pipe")?,
    )?;
    let script = "true
        cat pipe & echo through >pipe; wait
        stat -c '%F %a %n' pipe socket
        python3 - <<'EOF'
import errno, os, socket
fd = os.open('pipe', os.O_RDWR)
print(os.path.samestat(os.fstat(fd), os.stat('pipe')), os.write(fd, b'x'), os.read(fd, 2))
def refused(call):
    try: call()
    except OSError as e: print(errno.errorcode[e.errno])
refused(lambda: os.fchmod(fd, 0o600))
refused(lambda: os.mkfifo('new'))
refused(lambda: socket.socket(socket.AF_UNIX).connect('socket'))
refused(lambda: socket.socket(socket.AF_UNIX).bind('new'))
EOF";
    let seen = ok("look", fixture.shell(Some("s"), script)?)?;
    equal(
        "the snapshot",
        &seen,
        "through\nfifo 640 pipe\nsocket 755 socket\nTrue 1 b'x'\n\
            EROFS\nEROFS\nECONNREFUSED\nEROFS\n",
    )
}

/// Waits for the line that a started program prints.
fn first_line(child: &mut Child) -> Done<String> {
    use std::io::BufRead;
    let out = child.stdout.take().ok_or("no output")?;
    let mut line = String::new();
    let read = std::io::BufReader::new(out).read_line(&mut line);
    read.map(|_| line).map_err(|e| e.to_string())
}

fn in_use(fixture: &Fixture) -> Done {
    ok("fill", fixture.shell(None, "echo text > file")?)?;
    fixture.take("s")?;
    // The run ends; what it left behind in the background does not.
    let line = "(sleep 30 > /dev/null & echo $!; exec > /dev/null); true";
    let mut child = fixture.started(Some("s"), line)?;
    let pid = first_line(&mut child)?;
    child.wait().map_err(|e| e.to_string())?;
    let refused = fixture.snapshot(&["delete", "s"])?;
    if refused.code() != Some(1) || !refused.err.contains("is in use") {
        return Err(format!("delete: {} {:?}", refused.how(), refused.tail()));
    }
    let mut kill = Command::new("kill");
    kill.args(["-KILL", pid.trim()]);
    ok("kill", fixture.ended(kill)?)?;
    for _ in 0..100 {
        if fixture.snapshot(&["delete", "s"])?.code() == Some(0) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err("the snapshot stays in use".into())
}

fn outlives_the_service(fixture: &Fixture) -> Done {
    ok(
        "fill",
        fixture.shell(None, "seq 100000 > file && sha256sum file > sum")?,
    )?;
    fixture.take("s")?;
    let mut child = fixture.started(Some("s"), "echo ready; sleep 2; sha256sum -c --quiet sum")?;
    let mut serving = Command::new(&fixture.holdfast);
    serving.arg("serve").arg(fixture.pool());
    process::clean(&mut serving, &fixture.dir.join("home"));
    serving.stdout(Stdio::null()).stderr(Stdio::null());
    std::thread::sleep(Duration::from_millis(1000));
    let mut service = serving.spawn().map_err(|e| e.to_string())?;
    std::thread::sleep(Duration::from_millis(500));
    service
        .kill()
        .and_then(|()| service.wait())
        .map_err(|e| e.to_string())?;
    ok(
        "changes",
        fixture.shell(None, "rm file && seq 100000 -1 1 > other")?,
    )?;
    let refused = fixture.snapshot(&["delete", "s"])?;
    let status = child.wait().map_err(|e| e.to_string())?;
    if refused.code() != Some(1) {
        return Err(format!("deleted in use: {}", refused.how()));
    }
    match status.success() {
        true => Ok(()),
        false => Err(format!("the program on the snapshot: {status}")),
    }
}

/// Transactions go on while snapshots are taken; the database in each of them is whole, and never
/// older than the one before.
fn a_live_database(fixture: &Fixture) -> Done {
    let create = "sqlite3 base.db 'pragma journal_mode = wal; create table t (i integer)'";
    ok("create", fixture.shell(None, create)?)?;
    let writer = "import sqlite3, time
base = sqlite3.connect('base.db', isolation_level=None)
end, i = time.time() + 8, 0
while time.time() < end:
    i += 1
    base.execute('insert into t values (?)', (i,))
    # There is a log only from the first one on.
    if i == 1: print('ready', flush=True)
";
    fs::write(fixture.dir.join("writer.py"), writer).map_err(|e| e.to_string())?;
    let line = format!("exec python3 {}", fixture.dir.join("writer.py").display());
    let mut child = fixture.started(None, &line)?;
    first_line(&mut child)?;
    for i in 0..6 {
        fixture.take(&format!("s{i}"))?;
        std::thread::sleep(Duration::from_millis(300));
    }
    let mut last = 0;
    for i in 0..6 {
        // A copy outside, where sqlite may recover the log.
        let query = "pragma integrity_check; select count(*) - coalesce(max(i), 0) from t;
            select count(*) from t";
        let copy = fixture.dir.join(format!("copy-{i}"));
        let line = format!(
            "mkdir {0} && cp base.db base.db-wal {0} && sqlite3 {0}/base.db '{query}'",
            copy.display()
        );
        let found = ok("query", fixture.shell(Some(&format!("s{i}")), &line)?)?;
        let lines: Vec<&str> = found.lines().collect();
        let count = lines.get(2).and_then(|n| n.parse::<u64>().ok());
        match (lines.first(), lines.get(1), count) {
            (Some(&"ok"), Some(&"0"), Some(n)) if n >= last => last = n,
            _ => return Err(format!("snapshot {i} after {last} rows: {lines:?}")),
        }
    }
    let status = child.wait().map_err(|e| e.to_string())?;
    match status.success() && last > 0 {
        true => Ok(()),
        false => Err(format!("the writer: {status}, {last} rows")),
    }
}

const COUNTER: &str = "import os, sys, time
files = [os.open(name, os.O_RDWR | os.O_CREAT) for name in ('first', 'second')]
print('ready', flush=True)
end, i = time.time() + float(sys.argv[1]), 0
while time.time() < end:
    i += 1
    for file in files:
        os.pwrite(file, i.to_bytes(8, 'little') * 5000, 0)
";

const JUDGE: &str = "numbers = []
for name in ('first', 'second'):
    data = open(name, 'rb').read()
    words = {data[at:at + 8] for at in range(0, len(data), 8)}
    assert len(words) < 2, (name, 'is torn', len(words))
    numbers.append(int.from_bytes(words.pop() if words else b'', 'little'))
first, second = numbers
assert second <= first <= second + 1, numbers
print(first)
";

/// One program writes the same number to two files, over and over. Commands that take snapshots
/// are killed at any moment, and so is the service. Each snapshot that came to be is one moment,
/// and the writer is never stopped for long.
fn takers_die(fixture: &Fixture) -> Done {
    for (name, text) in [("counter.py", COUNTER), ("judge.py", JUDGE)] {
        fs::write(fixture.dir.join(name), text).map_err(|e| e.to_string())?;
    }
    let script = |name: &str| format!("exec python3 {}", fixture.dir.join(name).display());
    let mut writer = fixture.started(None, &format!("{} 9", script("counter.py")))?;
    first_line(&mut writer)?;
    let mut killed = 0;
    for i in 0..60u64 {
        let mut command = Command::new(&fixture.holdfast);
        command.arg("snapshot").arg(fixture.pool());
        command.args(["create", &format!("s{i}")]);
        process::clean(&mut command, &fixture.dir.join("home"));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut taker = command.spawn().map_err(|e| e.to_string())?;
        std::thread::sleep(Duration::from_micros(i * 7919 % 23 * 700));
        if i % 10 == 9 {
            kill_service(fixture)?;
        }
        if i % 3 > 0 {
            let _ = taker.kill();
            killed += u32::from(!taker.wait().is_ok_and(|status| status.success()));
        } else {
            // With the service killed in between it may fail; it may not hang.
            process::wait(&mut taker, LIMIT)
                .ok()
                .flatten()
                .ok_or("a command that takes a snapshot hangs")?;
        }
    }
    let status = writer.wait().map_err(|e| e.to_string())?;
    if !status.success() {
        return Err(format!("the writer: {status}"));
    }
    let listed = fixture.snapshot(&["list", "--json"])?.out;
    let list: serde_json::Value = serde_json::from_str(&listed).map_err(|e| e.to_string())?;
    let names = list.as_array().ok_or("no list")?;
    let mut last = 0;
    for name in names.iter().filter_map(|s| s["name"].as_str()) {
        let found = ok(name, fixture.shell(Some(name), &script("judge.py"))?)?;
        let number: u64 = found
            .trim()
            .parse()
            .map_err(|_| format!("{name}: {found}"))?;
        if number < last {
            return Err(format!("{name} has {number} after {last}"));
        }
        last = number;
    }
    match (names.len(), killed, last) {
        (10.., 5.., 1..) => Ok(()),
        (n, ..) => Err(format!(
            "{n} snapshots, {killed} killed, up to {last}: too few"
        )),
    }
}

fn kill_service(fixture: &Fixture) -> Done {
    let status = fixture.admin(&["pool", "status", "--json"], &[])?;
    let json: serde_json::Value = serde_json::from_str(&status).map_err(|e| e.to_string())?;
    let Some(pid) = json["service"].as_u64().filter(|pid| *pid > 0) else {
        return Ok(());
    };
    let mut kill = Command::new("kill");
    kill.args(["-KILL", &pid.to_string()]);
    fixture.ended(kill).map(drop)
}
