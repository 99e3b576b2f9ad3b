//! The command from the outside, as far as it needs no instrumented program: pools are made,
//! described, checked, served and destroyed, and what cannot be is refused in one sentence.
//!
//! Invariant: after each story nothing is left of it.

use std::io::{Read, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("hf-cli-{name}-{}-{n}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    fn pool(&self) -> PathBuf {
        let pool = self.0.join("pool");
        assert!(
            holdfast(&["pool", "create", text(&pool), "--size", "32M"])
                .status
                .success()
        );
        pool
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    command.args(args).stdin(Stdio::null());
    command
}

fn holdfast(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// The command fails with `code` and says why in one sentence.
fn refused(args: &[&str], code: i32) -> String {
    let output = holdfast(args);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    assert!(
        output.stdout.is_empty(),
        "{args:?} wrote to standard output"
    );
    let lines: Vec<&str> = said.lines().collect();
    assert!(matches!(lines.len(), 1 | 2), "{args:?}: {said}");
    assert!(
        lines[0].starts_with("holdfast: ") && lines[0].ends_with('.'),
        "{said}"
    );
    assert!(
        lines.get(1).is_none_or(|line| line.starts_with("Fix: ")),
        "{said}"
    );
    said
}

#[test]
fn a_pool_from_its_making_to_its_end() {
    let scratch = Scratch::new("life");
    let pool = scratch.pool();
    let has = |fields: &[&str]| {
        let status = holdfast(&["pool", "status", text(&pool), "--json"]);
        let json = String::from_utf8(status.stdout).unwrap();
        for field in fields {
            assert!(json.contains(field), "{json}");
        }
    };
    has(&["\"size\":33554432", "\"used\":0", "\"objects\":1"]);
    has(&["\"values\":0", "\"consistency\":\"posix\""]);
    for key in ["one", "two"] {
        let put = holdfast(&["kv", text(&pool), "users", "put", key, "value"]);
        assert!(put.status.success());
    }
    let check = holdfast(&["pool", "check", text(&pool)]);
    assert!(check.status.success(), "once nobody uses it any more");
    has(&["\"objects\":2", "\"values\":2"]);
    let check = holdfast(&["pool", "check", text(&pool)]);
    assert!(check.status.success() && String::from_utf8_lossy(&check.stdout).contains("clean"));
    assert!(holdfast(&["pool", "destroy", text(&pool)]).status.success());
    assert!(!pool.exists());
}

#[test]
fn create_refuses_what_cannot_be() {
    let scratch = Scratch::new("create");
    let file = scratch.0.join("file");
    std::fs::write(&file, "mine").unwrap();
    refused(&["pool", "create", text(&scratch.0)], 1);
    refused(&["pool", "create", text(&file)], 1);
    let pool = scratch.0.join("pool");
    for size in ["0", "1", "15M", "1000T", "17E"] {
        let code = if size == "17E" { 2 } else { 1 };
        refused(&["pool", "create", text(&pool), "--size", size], code);
        assert!(!pool.exists(), "--size {size} left something behind");
    }
    refused(&["pool", "create", text(&pool), "--medium", "floppy"], 2);
    refused(
        &["pool", "create", text(&pool), "--device", "/dev/dax0.0"],
        1,
    );
    refused(&["pool", "create", "/proc/pool"], 1);
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
}

#[test]
fn what_is_no_pool_is_left_alone() {
    let scratch = Scratch::new("none");
    std::fs::write(scratch.0.join("meta.seg"), vec![7; 100_000]).unwrap();
    let missing = scratch.0.join("missing");
    for path in [text(&scratch.0), text(&missing), "/proc/self/exe"] {
        refused(&["pool", "status", path], 1);
        refused(&["pool", "check", path], 8);
        refused(&["pool", "destroy", path], 1);
        refused(&["serve", path], 1);
    }
    assert!(scratch.0.join("meta.seg").exists());
}

#[test]
fn damage_is_named() {
    let scratch = Scratch::new("damage");
    let pool = scratch.pool();
    let meta = pool.join("meta.seg");
    let whole = std::fs::read(&meta).unwrap();
    let mut bytes = whole.clone();
    // The version of both superblocks, checksums and all, is another one's.
    bytes[1024..4096].fill(0xff);
    bytes[..1024].fill(0);
    bytes[4096..5120].fill(0);
    std::fs::write(&meta, &bytes).unwrap();
    refused(&["pool", "check", text(&pool)], 8);
    std::fs::write(&meta, &whole[..whole.len() / 2]).unwrap();
    refused(&["pool", "check", text(&pool)], 4);
    refused(&["serve", text(&pool)], 1);
    // Every page behind the superblocks, one after the other.
    std::fs::write(&meta, &whole).unwrap();
    let used: Vec<usize> = (3..whole.len() / 4096)
        .filter(|p| whole[p * 4096..][..4096].iter().any(|b| *b != 0))
        .collect();
    assert!(!used.is_empty());
    let mut found = 0;
    for page in used.iter().rev().take(4) {
        let mut bytes = whole.clone();
        bytes[page * 4096 + 100] ^= 0x55;
        std::fs::write(&meta, &bytes).unwrap();
        let check = holdfast(&["pool", "check", text(&pool)]);
        assert!(matches!(check.status.code(), Some(0 | 4)), "page {page}");
        found += usize::from(check.status.code() == Some(4));
    }
    assert!(found > 0);
    std::fs::write(&meta, &whole).unwrap();
    assert!(holdfast(&["pool", "check", text(&pool)]).status.success());
}

#[test]
fn wrong_usage_has_a_status_of_its_own() {
    refused(&[], 2);
    refused(&["pool"], 2);
    refused(&["pool", "creat"], 2);
    refused(&["run"], 2);
    refused(&["pool", "check", "--x"], 16);
    assert!(holdfast(&["--version"]).status.success());
    let help = holdfast(&["--help"]);
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("serve"));
}

#[test]
fn wrong_usage_names_the_help_that_helps() {
    for (words, help) in [
        (&["pool"][..], "holdfast pool --help lists the commands"),
        (&["pool", "create"], "see holdfast pool create --help"),
        (
            &["kv", "p", "k", "scan", "--x"],
            "see holdfast kv p k scan --help",
        ),
        (&["run", "--x", "--", "pool"], "see holdfast run --help"),
        (&["--x"], "see holdfast --help"),
    ] {
        let said = String::from_utf8(holdfast(words).stderr).unwrap();
        assert!(said.ends_with(&format!("\nFix: {help}\n")), "{said}");
    }
    let help = holdfast(&["kv", "p", "k", "scan", "--help"]).stdout;
    let help = String::from_utf8(help).unwrap();
    assert!(
        help.contains("Usage: holdfast kv <POOL> <KEYSPACE> scan "),
        "{help}"
    );
}

#[test]
fn what_is_not_there_yet_is_refused_and_not_offered() {
    let scratch = Scratch::new("not-yet");
    let pool = scratch.0.join("pool");
    refused(
        &["pool", "create", text(&pool), "--device", "/dev/dax0.0"],
        1,
    );
    let help = holdfast(&["pool", "create", "--help"]);
    let said = String::from_utf8_lossy(&help.stdout);
    assert!(
        said.contains("--consistency") && !said.contains("--device"),
        "{said}"
    );
}

#[test]
fn settings_of_mappings_that_make_no_sense_are_refused() {
    for bad in ["cache", "cache=1P", "ahead=1", "min=2M,max=1M"] {
        let words = ["run", &format!("--map={bad}"), "--", "true"];
        let refused = holdfast(&words);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains("--map"), "{said}");
    }
}

/// The benchmarks are a program of their own.
#[test]
fn bench_runs_the_program_beside_it_and_says_where_it_comes_from() {
    let scratch = Scratch::new("bench");
    let (own, beside) = (scratch.0.join("holdfast"), scratch.0.join("holdfast-bench"));
    install(Path::new(env!("CARGO_BIN_EXE_holdfast")), &own);
    let bench = |words: &[&str]| Command::new(&own).args(words).output().unwrap();
    let missing = bench(&["bench"]);
    let said = String::from_utf8(missing.stderr).unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert!(
        said.contains("not installed") && said.contains("\nFix: "),
        "{said}"
    );
    let script = scratch.0.join("script");
    std::fs::write(
        &script,
        "#!/bin/sh\necho \"$HOLDFAST_PROGRAM:$*\"; exit 2\n",
    )
    .unwrap();
    install(&script, &beside);
    for (words, passed) in [
        (&["bench"][..], ""),
        (
            &["bench", "disk", "DIR", "--quick", "--json"],
            "disk DIR --quick --json",
        ),
        (&["--json", "bench", "kv"], "kv --json"),
        (&["bench", "--help"], "--help"),
        (&["bench", "--rows", "a,b", "files"], "--rows a,b files"),
    ] {
        let output = bench(words);
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(said.trim_end(), format!("{}:{passed}", own.display()));
        assert_eq!(output.status.code(), Some(2));
    }
}

/// Copies a program by a process of its own. A descriptor for writing in this one would be
/// inherited for a moment by what another test forks, and would make the program a busy one.
fn install(program: &Path, to: &Path) {
    let words = [Path::new("-m755"), program, to];
    assert!(
        Command::new("install")
            .args(words)
            .status()
            .unwrap()
            .success()
    );
}

struct Server(Child);

impl Server {
    /// Starts the service as systemd would, and waits until it says that it is ready.
    fn start(scratch: &Scratch, pool: &Path) -> Server {
        let notify = scratch.0.join("notify");
        let _ = std::fs::remove_file(&notify);
        let socket = UnixDatagram::bind(&notify).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let mut serve = command(&["serve", text(pool)]);
        let child = serve
            .env("NOTIFY_SOCKET", &notify)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = [0; 64];
        let n = loop {
            match socket.recv(&mut said) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                done => break done.unwrap(),
            }
        };
        assert!(said[..n].starts_with(b"READY=1"));
        Server(child)
    }

    fn signal(&mut self, name: &str) {
        let pid = self.0.id().to_string();
        assert!(
            Command::new("kill")
                .args([name, &pid])
                .status()
                .unwrap()
                .success()
        );
    }

    fn end(&mut self) -> (Option<i32>, String) {
        let begun = Instant::now();
        while self.0.try_wait().unwrap().is_none() {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "the service does not end"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut said = String::new();
        self.0
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        (self.0.wait().unwrap().code(), said)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn one_service_per_pool_and_it_ends_when_told() {
    let scratch = Scratch::new("serve");
    let pool = scratch.pool();
    let mut server = Server::start(&scratch, &pool);
    let pid = server.0.id().to_string();
    assert!(refused(&["serve", text(&pool)], 1).contains(&pid));
    let status = holdfast(&["pool", "status", text(&pool)]);
    assert!(String::from_utf8_lossy(&status.stdout).contains(&format!("process {pid}")));
    server.signal("-TERM");
    let (status, said) = server.end();
    assert_eq!(status, Some(0));
    // With time and level; nothing went wrong.
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.iter().all(|line| line.contains("Z  INFO ")), "{said}");
    let last = lines.last().unwrap();
    assert!(last.ends_with("the service ends: it was told to"), "{said}");
    assert!(!pool.join("sock").exists());
    assert!(holdfast(&["pool", "check", text(&pool)]).status.success());
}

#[test]
fn a_killed_service_leaves_a_pool_that_the_next_one_takes() {
    let scratch = Scratch::new("killed");
    let pool = scratch.pool();
    for _ in 0..5 {
        let mut server = Server::start(&scratch, &pool);
        server.signal("-KILL");
        server.end();
        assert!(holdfast(&["pool", "check", text(&pool)]).status.success());
    }
    let mut server = Server::start(&scratch, &pool);
    server.signal("-INT");
    assert_eq!(server.end().0, Some(0));
    assert!(holdfast(&["pool", "destroy", text(&pool)]).status.success());
}

#[test]
fn strangers_at_the_door_are_shown_out() {
    let scratch = Scratch::new("door");
    let pool = scratch.pool();
    let mut server = Server::start(&scratch, &pool);
    // Not even the right kind of socket; the service goes on.
    if let Ok(mut stream) = std::os::unix::net::UnixStream::connect(pool.join("sock")) {
        let _ = stream.write_all(b"GET / HTTP/1.0\r\n\r\n");
    }
    assert!(holdfast(&["pool", "status", text(&pool)]).status.success());
    server.signal("-TERM");
    assert_eq!(server.end().0, Some(0));
}

#[test]
fn a_pool_becomes_larger_and_smaller_and_keeps_what_is_in_it() {
    let scratch = Scratch::new("resize");
    let pool = scratch.pool();
    let kv = |arguments: &[&str]| {
        let done = holdfast(&[&["kv", text(&pool), "words"], arguments].concat());
        assert!(done.status.success(), "{arguments:?}");
        done.stdout
    };
    let resize = |size: &str| holdfast(&["pool", "resize", text(&pool), size]);
    let long = "x".repeat(100_000);
    kv(&["put", "first", &long]);
    assert!(resize("96M").status.success());
    let status = holdfast(&["--json", "pool", "status", text(&pool)]);
    assert!(String::from_utf8_lossy(&status.stdout).contains(&(96 << 20).to_string()));
    // 50 MB do not fit into 32.
    let lines = scratch.0.join("lines");
    let text_of = |i: usize| format!("key-{i}\t{long}\n");
    std::fs::write(&lines, (0..500).map(text_of).collect::<String>()).unwrap();
    let load = command(&["kv", text(&pool), "words", "load"])
        .stdin(std::fs::File::open(&lines).unwrap())
        .output()
        .unwrap();
    assert!(load.status.success(), "{load:?}");
    let said = refused(&["pool", "resize", text(&pool), "32M"], 1);
    let (_, least) = said.split_once("its data needs ").unwrap();
    assert!(resize(least.split('.').next().unwrap()).status.success());
    assert!(refused(&["pool", "resize", text(&pool), "1K"], 1).contains("not possible"));
    assert_eq!(kv(&["get", "key-499"]), long.as_bytes());
    let server = Server::start(&scratch, &pool);
    // In use it becomes larger, but not smaller.
    assert!(resize("64M").status.success());
    assert!(refused(&["pool", "resize", text(&pool), "62M"], 1).contains("in use"));
    for i in 0..500 {
        kv(&["erase", &format!("key-{i}")]);
    }
    drop(server);
    assert!(resize("32M").status.success());
    assert_eq!(kv(&["get", "first"]), long.as_bytes());
    assert!(holdfast(&["pool", "check", text(&pool)]).status.success());
}

fn status_of(pool: &Path) -> String {
    let status = holdfast(&["pool", "status", text(pool)]);
    assert!(status.status.success(), "{status:?}");
    String::from_utf8(status.stdout).unwrap()
}

/// Where nothing survives the loss of power, nothing says that it does: neither what the pool was
/// made on nor what was asked for counts.
#[test]
fn status_promises_what_the_place_of_the_pool_can_keep() {
    let none = "survives the death of processes, not the loss of power";
    let memory = Path::new("/dev/shm").join(format!("hf-cli-medium-{}", std::process::id()));
    if std::fs::create_dir(&memory).is_err() {
        return eprintln!("skipped: there is no /dev/shm");
    }
    let in_memory = Scratch(memory);
    let asked = in_memory.0.join("asked");
    let words = ["--size", "32M", "--medium", "file"];
    let made = holdfast(&[&["pool", "create", text(&asked)], &words[..]].concat());
    assert_eq!(
        String::from_utf8_lossy(&made.stdout),
        format!("memory: {none}\n")
    );
    assert!(status_of(&asked).contains(none));

    let scratch = Scratch::new("medium");
    let there = scratch.pool();
    if status_of(&there).contains("medium       memory") {
        return eprintln!("skipped: temporary files are in memory, too");
    }
    let copied = in_memory.0.join("copied");
    let copy = |from: &Path, to: &Path| {
        // A service that is just ending makes the pool durable first, and removes its socket.
        let begun = std::time::Instant::now();
        while from.join("sock").exists() {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "the service stays"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        let done = Command::new("cp").arg("-a").args([from, to]).status();
        assert!(done.unwrap().success());
    };
    let kv = |pool: &Path, words: &[&str]| {
        let done = holdfast(&[&["kv", text(pool), "words"], words].concat());
        assert!(done.status.success(), "{words:?}: {done:?}");
        done.stdout
    };
    kv(&there, &["put", "a", "1"]);
    copy(&there, &copied);
    assert!(status_of(&copied).contains(none));
    assert_eq!(kv(&copied, &["get", "a"]), b"1");
    kv(&copied, &["put", "b", "2"]);
    assert!(status_of(&copied).contains(none));
    let back = scratch.0.join("back");
    copy(&copied, &back);
    assert!(!status_of(&back).contains(none));
    assert_eq!(kv(&back, &["get", "b"]), b"2");
    assert!(holdfast(&["pool", "check", text(&back)]).status.success());
}

/// A power cut after a resize must not leave a superblock that is ahead of the files.
#[test]
fn a_pool_that_grows_is_long_for_good_before_it_says_so() {
    let scratch = Scratch::new("grow");
    let pool = scratch.pool();
    let log = scratch.0.join("log");
    let traced = Command::new("strace")
        .args(["-f", "-y", "-e", "trace=ftruncate,fsync,fdatasync,msync"])
        .arg("-o")
        .arg(&log)
        .arg(env!("CARGO_BIN_EXE_holdfast"))
        .args(["pool", "resize", text(&pool), "96M"])
        .output();
    if !traced.is_ok_and(|done| done.status.success()) {
        return eprintln!("skipped: strace does not work here");
    }
    let log = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    let after = |from: usize, call: &str, name: &str| {
        let found = |line: &&str| line.contains(call) && line.contains(name);
        from + lines[from..]
            .iter()
            .position(found)
            .unwrap_or_else(|| panic!("{call} {name}: {log}"))
    };
    let longer = after(0, "ftruncate(", "data-0.seg");
    let synced = ["data-0.seg>", "meta.seg>", "/pool>"].map(|name| after(longer, "fsync(", name));
    // On an ordinary file the superblock is made durable by this; in memory by no call at all.
    let later = |line: &usize| lines[longer..*line].iter().any(|l| l.contains("msync("));
    assert!(!synced.iter().any(later), "{log}");
}
