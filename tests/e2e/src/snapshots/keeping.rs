//! Pools that `holdfast serve` restores, saves and makes, as configuration files say.

use super::{Done, Fixture, equal};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(40);

fn until(what: &str, mut done: impl FnMut() -> Done<bool>) -> Done {
    let begun = Instant::now();
    while !done()? {
        if begun.elapsed() > PATIENCE {
            return Err(format!("waited in vain: {what}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A service that is killed when the case ends early.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Service {
    /// Its exit status.
    fn end(mut self, signal: &str) -> Done<Option<i32>> {
        let id = self.0.id().to_string();
        let killed = Command::new("kill").args([signal, &id]).status();
        killed.map_err(|e| e.to_string())?;
        let status = self.0.wait().map_err(|e| e.to_string())?;
        Ok(status.code())
    }
}

impl Fixture {
    fn configure(&self, lines: &str) -> Done<String> {
        let file = self.path("pool.toml");
        let written = fs::write(&file, lines.replace('@', &self.dir.display().to_string()));
        written.map_err(|e| e.to_string()).map(|()| file)
    }

    /// Started, and answering.
    fn serve(&self, config: &str, pool: &str) -> Done<Service> {
        let mut service = Service(self.start(&["serve", "--config", config])?);
        until("the service", || {
            if let Ok(Some(status)) = service.0.try_wait() {
                return Err(format!("the service ended: {status}"));
            }
            Ok(Path::new(pool).join("sock").exists() && self.status(pool)?["service"] != 0)
        })?;
        Ok(service)
    }

    fn status(&self, pool: &str) -> Done<serde_json::Value> {
        let said = self.done(&["pool", "status", pool, "--json"])?;
        serde_json::from_str(&said).map_err(|e| e.to_string())
    }

    /// What the pool's metrics say by this name.
    fn metric(&self, pool: &str, name: &str) -> Done<u64> {
        let said = self.done(&["top", "--metrics", pool])?;
        let line = said
            .lines()
            .find(|line| line.starts_with(&format!("{name}{{")));
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
        value.ok_or_else(|| format!("no {name} in {said}"))
    }

    /// Whether what the file holds has this value.
    fn holds(&self, file: &str, value: &str) -> Done<bool> {
        let copy = self.path("copy");
        self.done(&["restore", file, &copy])?;
        let found = self
            .done(&["kv", &copy, "k", "get", "key"])
            .unwrap_or_default();
        self.done(&["pool", "destroy", &copy])?;
        Ok(found == value)
    }
}

/// From nothing, over what ends services and machines, to the same pool again.
pub fn a_configured_pool(f: &Fixture) -> Done {
    let (pool, file) = (f.path("kept"), f.path("kept.hfs"));
    let lines = "pool = \"@/kept\"\nkeep = \"@/kept.hfs\" # daily\nevery = \"1s\"\n";
    let config = f.configure(lines)?;
    f.refused(
        &["serve", "--config", &config],
        "no size for a new one.\nFix: add a line",
    )?;
    let config = f.configure(&format!("{lines}size = \"64M\"\nconsistency = \"sync\"\n"))?;
    for (n, signal) in ["-TERM", "-INT", "-KILL", "-TERM"].into_iter().enumerate() {
        let service = f.serve(&config, &pool)?;
        let state = f.status(&pool)?;
        equal("size", &state["size"].to_string(), "67108864")?;
        equal("consistency", &state["consistency"].to_string(), "\"sync\"")?;
        if n > 0 {
            let found = f.done(&["kv", &pool, "k", "get", "key"])?;
            equal("what was restored", &found, &(n - 1).to_string())?;
        }
        f.done(&["kv", &pool, "k", "put", "key", &n.to_string()])?;
        let code = service.end(signal)?;
        if signal != "-KILL" {
            equal("its end", &format!("{code:?}"), "Some(0)")?;
        }
        until("the last save", || f.holds(&file, &n.to_string()))?;
        let mode = fs::metadata(&file).map_err(|e| e.to_string())?.mode();
        equal("mode", &format!("{:o}", mode & 0o777), "600")?;
        // The machine is down, and up again.
        fs::remove_dir_all(&pool).map_err(|e| e.to_string())?;
    }
    let wrong_medium = f.configure(&format!("{lines}medium = \"dax\"\n"))?;
    f.refused(&["serve", "--config", &wrong_medium], "medium")?;
    match Path::new(&pool).exists() {
        true => Err("a pool was made on the wrong medium".into()),
        false => Ok(()),
    }
}

/// One sentence, with file and line, and nothing is made.
pub fn wrong_configurations(f: &Fixture) -> Done {
    for (lines, said) in [
        (
            "keep = \"@/k\"",
            "pool.toml: it names no pool.\nFix: add a line",
        ),
        ("pool = @/new", "pool.toml, line 1: "),
        (
            "\npool = \"@/new\"\nsise = \"1G\"",
            "pool.toml, line 3: there is no key sise.\nFix: the",
        ),
        (
            "pool = \"new\"",
            "pool.toml, line 1: pool is not an absolute path.\nFix: begin it with /",
        ),
        (
            "pool = \"@/new\"\nevery = \"1h\"",
            "line 2: every has no meaning without keep.\nFix: say",
        ),
        (
            "pool = \"@/new\"\nsize = 4.5",
            "line 2: size is not a word in quotes.\nFix: write",
        ),
        ("pool = \"@/new\"\nsize = \"1K\"", "16"),
        (
            "pool = \"@/new\"\nowner = \"no:such\"\nsize = \"64M\"",
            "line 2: owner is no:such, and",
        ),
    ] {
        let config = f.configure(lines)?;
        f.refused(&["serve", "--config", &config], said)?;
    }
    f.refused(
        &["serve", "--config", &f.path("none.toml")],
        "holdfast.toml(5)",
    )?;
    f.refused(
        &["serve", "--config", &f.path("none.toml"), &f.path("pool")],
        "cannot be used",
    )?;
    f.refused(&["serve"], "required arguments were not provided")?;
    match Path::new(&f.path("new")).exists() {
        true => Err("a pool was made".into()),
        false => Ok(()),
    }
}

/// What cannot be written is told at the start, and never what others have written there.
pub fn files_that_cannot_be_kept(f: &Fixture) -> Done {
    let io = |e: std::io::Error| e.to_string();
    let serve = |file: &str, said: &str| {
        let config = f.configure(&format!("pool = \"@/pool\"\nkeep = \"@/{file}\"\n"))?;
        f.refused(&["serve", "--config", &config], said)?;
        f.refused(&["serve", &f.path("pool"), "--keep", &f.path(file)], said)
    };
    serve(
        "none/file",
        "cannot be written: No such file or directory.\nFix: make the directory",
    )?;
    serve("home", "home is a directory.\nFix: name a file in it")?;
    fs::write(f.dir.join("note"), "mine").map_err(io)?;
    serve("note", "note holds something else than")?;
    let other = f.path("other");
    f.done(&["pool", "create", &other, "--size", "64M"])?;
    f.done(&["save", &other, &f.path("other.hfs")])?;
    serve("other.hfs", "other.hfs holds another pool than")?;
    fs::create_dir(f.dir.join("closed")).map_err(io)?;
    let closed = |mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(f.dir.join("closed"), mode).map_err(io)
    };
    if !rustix::process::geteuid().is_root() {
        closed(0o500)?;
        serve(
            "closed/file",
            "cannot be written: Permission denied.\nFix: let user",
        )?;
        closed(0o700)?;
    }
    let left = |name: &str| f.dir.join(name).exists();
    match ["note.part", "other.hfs.part", "closed/file"]
        .into_iter()
        .find(|name| left(name))
    {
        Some(name) => Err(format!("{name} is left")),
        None => equal(
            "note",
            &fs::read_to_string(f.dir.join("note")).map_err(io)?,
            "mine",
        ),
    }
}

/// The pool `POOL`, which is kept in `POOL.hfs`.
struct Kept<'f> {
    f: &'f Fixture,
    pool: String,
    file: String,
}

impl Kept<'_> {
    /// Which file was written last.
    fn written(&self) -> (u64, i64) {
        fs::metadata(&self.file).map_or((0, 0), |found| (found.ino(), found.mtime_nsec()))
    }

    /// Waits until it is the same file for two periods, in which the pool was looked at.
    fn settles(&self, what: &str) -> Done {
        let looks = || {
            let name = "holdfast_saved_timestamp_seconds";
            let saved = self.f.metric(&self.pool, name);
            saved.map(|saved| (self.written(), saved))
        };
        let mut last = looks()?;
        until(what, || {
            let now = looks()?;
            let quiet = now.0 == last.0 && now.1 >= last.1 + 2;
            if now.0 != last.0 {
                last = now;
            }
            Ok(quiet)
        })
    }

    /// After this change, the file has what the pool has.
    fn follows(&self, change: &str) -> Done {
        // Whoever looked at the pool has changed times of files.
        self.settles(change)?;
        let before = self.written();
        self.f.shell(None, change)?;
        until(change, || Ok(self.written() != before))?;
        self.settles(change)?;
        let copy = self.f.path("copy");
        self.f.done(&["restore", &self.file, &copy])?;
        let wanted = self.f.listing(&self.pool, None)?.to_string();
        let found = self.f.listing(&copy, None)?.to_string();
        self.f.done(&["pool", "destroy", &copy])?;
        equal(change, &found, &wanted)
    }
}

/// Stores through a mapping, and ends in some way.
fn maps(stores: &str) -> String {
    format!(
        "python3 -c 'import mmap, os, signal
f = open(\"data\", \"r+b\")
m = mmap.mmap(f.fileno(), 0)
{stores}'"
    )
}

/// A file is written again only if something changed, by whatever means.
pub fn kept_without_need(f: &Fixture) -> Done {
    let (pool, file) = (f.path("pool"), f.path("pool.hfs"));
    let kept = Kept { f, pool, file };
    let config = f.configure("pool = \"@/pool\"\nkeep = \"@/pool.hfs\"\nevery = \"1s\"\n")?;
    f.done(&["kv", &kept.pool, "k", "put", "key", "1"])?;
    let seq = "seq 1 200000 >data; seq 1 9 >small; truncate -s 1M holes";
    super::ok("fill", f.shell(None, seq)?)?;
    let service = f.serve(&config, &kept.pool)?;
    until("the first save", || Ok(kept.written() != (0, 0)))?;
    kept.settles("nothing changes")?;
    for change in [
        "echo more >>small",
        "printf x | dd of=data bs=1 seek=5000 conv=notrunc status=none",
        &maps("m[7000:7004] = b\"mmap\"; m.close()"),
        &maps("m[8000:8004] = b\"ends\"; os._exit(0)"),
        &maps("m[9008:9012] = b\"kill\"; os.kill(os.getpid(), signal.SIGKILL)"),
        "chmod 600 small",
        "touch -d 2001-01-01 small",
        "mkdir directory",
        "rm holes",
    ] {
        kept.follows(change)?;
    }
    for words in [
        &["create", "kept"][..],
        &["rename", "kept", "other"],
        &["delete", "other"],
    ] {
        let before = kept.written();
        f.snapshot(words)?;
        until(&words.join(" "), || Ok(kept.written() != before))?;
    }
    kept.settles("snapshots")?;
    let before = kept.written();
    ended(service.end("-TERM")?)?;
    // Another service of the same pool, and the same file.
    let service = f.serve(&config, &kept.pool)?;
    kept.settles("another service")?;
    ended(service.end("-TERM")?)?;
    equal(
        "file",
        &format!("{:?}", kept.written()),
        &format!("{before:?}"),
    )
}

fn ended(code: Option<i32>) -> Done {
    equal("its end", &format!("{code:?}"), "Some(0)")
}

/// What keeps a pool from being saved is in the log, in the status and in the metrics, until it
/// does so no longer.
pub fn failures_are_seen(f: &Fixture) -> Done {
    let io = |e: std::io::Error| e.to_string();
    let pool = f.path("pool");
    fs::create_dir(f.dir.join("disk")).map_err(io)?;
    let config = f.configure("pool = \"@/pool\"\nkeep = \"@/disk/file\"\nevery = \"1s\"\n")?;
    let service = f.serve(&config, &pool)?;
    until("the first save", || Ok(f.dir.join("disk/file").exists()))?;
    until("a record", || {
        Ok(f.status(&pool)?["saved"].as_u64() > Some(0))
    })?;
    equal(
        "failed",
        &f.metric(&pool, "holdfast_save_failed")?.to_string(),
        "0",
    )?;
    fs::rename(f.dir.join("disk"), f.dir.join("away")).map_err(io)?;
    f.done(&["kv", &pool, "k", "put", "key", "1"])?;
    until("the failure", || {
        Ok(f.metric(&pool, "holdfast_save_failed")? == 1)
    })?;
    let then = f.metric(&pool, "holdfast_saved_timestamp_seconds")?;
    let said = f.done(&["pool", "status", &pool])?;
    if !said.contains("save_failed") || !said.contains("No such file") || then == 0 {
        return Err(said);
    }
    // Nor does the service end as if all were well.
    equal(
        "its end",
        &format!("{:?}", service.end("-TERM")?),
        "Some(1)",
    )?;
    fs::rename(f.dir.join("away"), f.dir.join("disk")).map_err(io)?;
    let service = f.serve(&config, &pool)?;
    until("the next save", || {
        Ok(f.metric(&pool, "holdfast_save_failed")? == 0)
    })?;
    equal(
        "its end",
        &format!("{:?}", service.end("-TERM")?),
        "Some(0)",
    )?;
    match f.holds(&f.path("disk/file"), "1")? {
        true => Ok(()),
        false => Err("the file lacks what was put while it was away".into()),
    }
}

/// Root becomes the owner before it makes anything; nobody else becomes anybody.
pub fn kept_for_its_owner(f: &Fixture) -> Done {
    let lines = |owner: &str| {
        let words = "pool = \"@/theirs/kept\"\nkeep = \"@/theirs/file\"\nsize = \"64M\"";
        f.configure(&format!("{words}\nowner = {owner}\n"))
    };
    let theirs = f.dir.join("theirs");
    let (pool, file) = (f.path("theirs/kept"), f.path("theirs/file"));
    fs::create_dir(&theirs).map_err(|e| e.to_string())?;
    if !rustix::process::geteuid().is_root() {
        f.refused(
            &["serve", "--config", &lines("\"root\"")?],
            "pool.toml: the owner is root, and",
        )?;
        let own = rustix::process::geteuid().as_raw().to_string();
        let service = f.serve(&lines(&own)?, &pool)?;
        return equal(
            "its end",
            &format!("{:?}", service.end("-TERM")?),
            "Some(0)",
        );
    }
    // A directory of root's is not for the owner to make anything in.
    f.refused(
        &["serve", "--config", &lines("65534")?],
        "Permission denied.\nFix: let user 65534",
    )?;
    let chown = std::os::unix::fs::chown(&theirs, Some(65534), Some(65534));
    chown.map_err(|e| e.to_string())?;
    let whose = |path: &str| {
        let found = fs::symlink_metadata(path).map_err(|e| e.to_string())?;
        equal(path, &found.uid().to_string(), "65534")
    };
    for _ in 0..2 {
        let service = f.serve(&lines("65534")?, &pool)?;
        equal(
            "its end",
            &format!("{:?}", service.end("-TERM")?),
            "Some(0)",
        )?;
        for path in [
            &pool,
            &file,
            &format!("{pool}/meta.seg"),
            &format!("{pool}/saved"),
        ] {
            whose(path)?;
        }
        f.refused(
            &["serve", "--config", &lines("\"root\"")?],
            "belongs to user 65534",
        )?;
        // The second time it is restored.
        fs::remove_dir_all(&pool).map_err(|e| e.to_string())?;
    }
    Ok(())
}
