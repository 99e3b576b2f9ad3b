//! Pools that become larger while programs use them.

use super::{Done, Fixture, kill_service, ok};
use std::process::Child;
use std::time::{Duration, Instant};

/// Writes files, each with a first line of its own; says when the pool is full, and goes on then.
const WRITER: &str = "i=0; while [ $i -lt COUNT ]; do i=$((i+1)); \
    until { echo $i; cat ../part; } 2>/dev/null >f$i; do touch ../full; sleep 0.02; done; done; \
    touch ../written; df -B1 --output=size . | tail -1";
/// What they must have.
const VERIFY: &str = "i=0; while [ $i -lt COUNT ]; do i=$((i+1)); \
    { echo $i; cat ../part; } | cmp - f$i || exit 1; done";
const PATIENCE: Duration = Duration::from_secs(20);

impl Fixture {
    fn writer(&self, count: u32) -> Done<Child> {
        let part = "head -c 3000000 /dev/urandom >../part";
        ok(part, self.shell(None, part)?)?;
        self.started(None, &WRITER.replace("COUNT", &count.to_string()))
    }

    fn verify(&self, count: u32) -> Done {
        let line = VERIFY.replace("COUNT", &count.to_string());
        ok("what was written", self.shell(None, &line)?).map(drop)
    }

    fn wait_for(&self, name: &str) -> Done {
        let begun = Instant::now();
        while !self.dir.join(name).exists() {
            if begun.elapsed() > PATIENCE {
                return Err(format!("no {name}"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

fn ended_well(what: &str, child: Child) -> Done<String> {
    let ended = child.wait_with_output().map_err(|e| e.to_string())?;
    match ended.status.success() {
        true => Ok(String::from_utf8_lossy(&ended.stdout).into_owned()),
        false => Err(format!("{what}: {}", ended.status)),
    }
}

/// Who waits for room goes on, has all that it wrote, and sees the new size.
pub fn a_pool_grows_in_use(f: &Fixture) -> Done {
    let pool = f.path("pool");
    f.done(&["pool", "resize", &pool, "64M"])?;
    ok(
        "before",
        f.shell(None, "cp /bin/bash old; sha256sum old >sum")?,
    )?;
    f.take("s")?;
    let reader = "until [ -e ../written ]; do sha256sum -c --quiet sum || exit 1; done";
    let reader = f.started(Some("s"), reader)?;
    let writer = f.writer(60)?;
    f.wait_for("full")?;
    // It may also be larger than it could be before, by far.
    f.done(&["pool", "resize", &pool, "128M"])?;
    f.done(&["pool", "resize", &pool, "1G"])?;
    let size = ended_well("the writer", writer)?;
    if size.trim() != (1u64 << 30).to_string() {
        return Err(format!("a program sees {size} bytes"));
    }
    ended_well("the reader of the snapshot", reader)?;
    f.sound(&pool)?;
    f.verify(60)?;
    // Smaller again, and saved, with what came to lie beyond the old end.
    f.done(&["snapshot", &pool, "delete", "s"])?;
    f.done(&["pool", "resize", &pool, "256M"])?;
    f.verify(60)?;
    let (saved, copy) = (f.path("saved"), f.path("copy"));
    f.done(&["save", &pool, &saved])?;
    f.done(&["restore", &saved, &copy])?;
    f.sound(&copy)
}

/// The service is killed in the middle: the pool has one size or the other, and programs go on.
pub fn its_service_dies_as_it_grows(f: &Fixture) -> Done {
    let pool = f.path("pool");
    f.done(&["pool", "resize", &pool, "64M"])?;
    let writer = f.writer(120)?;
    f.wait_for("full")?;
    for n in 0..12u64 {
        let size = format!("{}M", 96 + n * 32);
        let mut child = f.start(&["pool", "resize", &pool, &size])?;
        std::thread::sleep(Duration::from_micros(700 * n));
        kill_service(f)?;
        let _ = child.wait();
        std::thread::sleep(Duration::from_millis(30));
    }
    f.done(&["pool", "resize", &pool, "600M"])?;
    ended_well("the writer", writer)?;
    f.sound(&pool)?;
    f.verify(120)
}

/// A segment that somebody cuts gets the length again to which it has grown.
pub fn what_has_grown_is_not_cut(f: &Fixture) -> Done {
    let pool = f.path("pool");
    let run = f.started(None, "touch ../running; exec sleep 60")?;
    f.wait_for("running")?;
    f.done(&["pool", "resize", &pool, "1G"])?;
    let segment = std::path::Path::new(&pool).join("data-0.seg");
    let file = std::fs::File::options().write(true).open(&segment);
    let file = file.map_err(|e| e.to_string())?;
    file.set_len(600 << 20).map_err(|e| e.to_string())?;
    let begun = Instant::now();
    while file.metadata().map_err(|e| e.to_string())?.len() < 1 << 30 {
        if begun.elapsed() > PATIENCE {
            return Err("it stays cut".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    kill(f, run)?;
    f.sound(&pool)
}

/// What cannot be while a pool is in use is said, and changes nothing.
pub fn what_cannot_grow_says_so(f: &Fixture) -> Done {
    let pool = f.path("pool");
    let resize = |size, why| f.refused(&["pool", "resize", &pool, size], why);
    let run = f.started(None, "touch ../running; exec sleep 60")?;
    f.wait_for("running")?;
    resize("256M", "is in use")?;
    resize("65T", "it has 16M to 64T")?;
    resize(
        "60T",
        "the pool is in use, and can have 512M to 64G meanwhile, not 60T",
    )?;
    let more = format!("{}", 40u64 << 30);
    if let Err(why) = resize(&more, "does not fit into the") {
        // There is as much memory.
        f.done(&["pool", "resize", &pool, &more]).map_err(|_| why)?;
    }
    kill(f, run)?;
    let limited = "ulimit -v 30000000; exec bash -c 'touch ../limited; exec sleep 60'";
    let run = f.started(None, limited)?;
    f.wait_for("limited")?;
    resize("1G", "a program whose addresses are limited (ulimit -v)")?;
    kill(f, run)?;
    f.done(&["pool", "resize", &pool, "1G"])?;
    f.sound(&pool)
}

/// The program of the run has its process group.
fn kill(f: &Fixture, mut run: Child) -> Done {
    let mut words = std::process::Command::new("pkill");
    words.args(["-KILL", "-P", &run.id().to_string()]);
    ok("pkill", f.ended(words)?)?;
    run.wait().map(drop).map_err(|e| e.to_string())
}
