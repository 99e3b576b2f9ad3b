//! Pools that become smaller: their data moves out of the end, and is what it was.

use super::{Done, Fixture, equal, ok};
use std::process::Command;
use std::time::{Duration, Instant};

impl Fixture {
    /// Data all over the first 200 MB of a pool, of which much is removed again.
    fn scatter(&self, pool: &str) -> Done {
        self.fill()?;
        let value = self.path("value");
        let words = format!(
            "for n in 1 2 3 4; do {h} kv {pool} large put $n - <{value}; done; \
             {h} kv {pool} large erase 2",
            h = self.holdfast.display(),
        );
        let mut shell = Command::new("bash");
        shell.args(["-ec", &words]);
        ok("values", self.ended(shell)?)?;
        let line = "for i in $(seq 60); do head -c 1500000 /dev/urandom >part-$i; done; \
            for i in $(seq 60); do head -c 700000 /dev/urandom >>part-$i; done; \
            fallocate -l 6M set-aside; truncate -s 90M hole; printf x | dd of=hole bs=1 \
            seek=80000000 conv=notrunc status=none; cp part-1 source; ln part-2 twin; \
            rm part-*[1379]";
        ok(line, self.shell(None, line)?).map(drop)
    }

    fn resize(&self, pool: &str, size: &str) -> Done<String> {
        self.done(&["pool", "resize", pool, size])
    }

    fn used_by(&self, pool: &str) -> Done<u64> {
        let said = self.done(&["--json", "pool", "status", pool])?;
        let json: serde_json::Value = serde_json::from_str(&said).map_err(|e| e.to_string())?;
        json["used"].as_u64().ok_or(format!("no use in {json}"))
    }
}

pub fn a_pool_becomes_smaller(f: &Fixture) -> Done {
    let pool = f.path("pool");
    f.scatter(&pool)?;
    let wanted = f.listing(&pool, None)?;
    let used = f.used_by(&pool)?;
    let (too_small, small) = (format!("{}", used / 2), format!("{}", used + (8 << 20)));
    f.refused(
        &["pool", "resize", &pool, &too_small],
        "the pool cannot become that small: its data needs",
    )?;
    f.same("after a refusal", (&pool, None), &wanted)?;
    // What a snapshot has is not moved.
    f.take("s")?;
    f.refused(&["pool", "resize", &pool, &small], "delete snapshots")?;
    f.done(&["snapshot", &pool, "delete", "s"])?;
    f.resize(&pool, &small)?;
    f.sound(&pool)?;
    f.same("smaller", (&pool, None), &wanted)?;
    equal("used", &f.used_by(&pool)?.to_string(), &used.to_string())?;
    let data = std::path::Path::new(&pool).join("data-0.seg");
    let len = std::fs::metadata(data).map_err(|e| e.to_string())?.len();
    if len > used + (16 << 20) {
        return Err(format!("the file has {len} bytes for {used}"));
    }
    f.resize(&pool, "300M")?;
    f.sound(&pool)?;
    f.same("larger again", (&pool, None), &wanted)?;
    f.done(&["kv", &pool, "large", "put", "5", "more"])?;
    f.sound(&pool)
}

/// Whoever is killed meanwhile leaves all data, here or there.
pub fn who_makes_it_smaller_dies(f: &Fixture) -> Done {
    let pool = f.path("pool");
    f.scatter(&pool)?;
    let mut wanted = f.listing(&pool, None)?;
    let used = f.used_by(&pool)?;
    let small = format!("{}", used + (8 << 20));
    let (mut before, mut after, mut took) = (0, 0, Duration::ZERO);
    for n in 0..9u32 {
        let begun = Instant::now();
        let mut child = f.start(&["pool", "resize", &pool, &small])?;
        if n > 0 {
            // The first one at once: how long it takes differs much.
            std::thread::sleep(took * (n - 1) / 7);
            let _ = child.kill();
        }
        let done = child.wait().map_err(|e| e.to_string())?.success();
        took = if n == 0 { begun.elapsed() } else { took };
        (before, after) = match done {
            true => (before, after + 1),
            false => (before + 1, after),
        };
        f.sound(&pool)?;
        f.same("killed", (&pool, None), &wanted)?;
        // What is there lies in the end again.
        f.resize(&pool, "256M")?;
        let line = "head -c 60000000 /dev/urandom >filler; for p in part-*; do cp $p new; \
            cp new $p; done; rm new filler";
        ok(line, f.shell(None, line)?)?;
        wanted = f.listing(&pool, None)?;
    }
    match before > 0 && after > 0 {
        true => Ok(()),
        false => Err(format!("{before} were killed, {after} were done")),
    }
}
