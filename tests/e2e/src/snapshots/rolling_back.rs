//! Pools that go back to a snapshot, and snapshots that get other names.

use super::{Done, Fixture, equal, first_line, ok};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Changes to everything: files, values of all sizes, keyspaces, and volumes.
const CHANGES: [&[&str]; 5] = [
    &["words", "erase", "7"],
    &["words", "put", "8", "other"],
    &["words", "put", "long", "short now"],
    &["a b", "erase", "k/e/y"],
    &["new", "put", "a", "b"],
];

impl Fixture {
    /// Kills the process that said its number, with which its run ends.
    fn kill(&self, pid: &str, mut run: Child) -> Done {
        let mut kill = Command::new("kill");
        kill.args(["-KILL", pid.trim()]);
        ok("kill", self.ended(kill)?)?;
        run.wait().map(drop).map_err(|e| e.to_string())
    }

    fn change_everything(&self, pool: &str) -> Done {
        self.script(None, "change.sh")?;
        for change in CHANGES {
            self.done(&[&["kv", pool], change].concat())?;
        }
        self.done(&["volume", pool, "delete", "disk"])?;
        let more = "rm -r data/deep docs/deeper; head -c 9000000 /dev/urandom >large";
        ok(more, self.shell(None, more)?).map(drop)
    }
}

pub fn back_to_a_snapshot(f: &Fixture) -> Done {
    f.fill()?;
    let pool = f.path("pool");
    // It has a file without a name, which nobody will close.
    let line = "exec 5>gone; echo text >&5; rm gone; echo $$; exec sleep 60";
    let mut holder = f.started(None, line)?;
    let pid = first_line(&mut holder)?;
    f.take("first")?;
    let back = ["snapshot", &pool, "rollback", "first"];
    f.refused(&back, "is in use by process")?;
    f.kill(&pid, holder)?;
    let wanted = f.listing(&pool, Some("first"))?;
    f.change_everything(&pool)?;
    f.take("second")?;
    ok("more", f.shell(None, "echo more >>large; rm -r data")?)?;
    f.take("third")?;
    f.refused(&back, "there are newer snapshots: second, third")?;
    let missing = ["snapshot", &pool, "rollback", "fourth"];
    f.refused(&missing, "there is no snapshot \"fourth\"")?;
    equal("all", &f.snapshots(&pool)?.join(" "), "first second third")?;
    f.done(&[&back[..], &["--delete-newer"]].concat())?;
    f.sound(&pool)?;
    f.same("back", (&pool, None), &wanted)?;
    let differs = f.done(&["snapshot", &pool, "diff", "first"])?;
    equal("what differs", &differs, "")?;
    // It goes on from there, as often as one likes.
    f.change_everything(&pool)?;
    f.done(&back)?;
    f.sound(&pool)?;
    f.same("back again", (&pool, None), &wanted)?;
    f.same("the snapshot", (&pool, Some("first")), &wanted)?;
    f.done(&["snapshot", &pool, "delete", "first"])?;
    f.sound(&pool)?;
    f.same("without the snapshot", (&pool, None), &wanted)?;
    f.change_everything(&pool)?;
    f.sound(&pool)
}

/// Whoever is killed on the way back leaves the pool as it was, or as it is to be.
pub fn who_goes_back_dies(f: &Fixture) -> Done {
    f.fill()?;
    let pool = f.path("pool");
    f.take("first")?;
    let then = f.listing(&pool, Some("first"))?;
    f.change_everything(&pool)?;
    let now = f.listing(&pool, None)?;
    // Each round begins from a copy of the pool, which nobody uses.
    let begun = Instant::now();
    while f.pool().join("sock").exists() && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let copy = f.path("copy");
    let (mut before, mut after, mut took) = (0, 0, Duration::from_millis(40));
    for n in 0..16u32 {
        let mut copying = Command::new("cp");
        copying.args(["-r", "--sparse=always", &pool, &copy]);
        ok("cp", f.ended(copying)?)?;
        let begun = Instant::now();
        let mut child = f.start(&["snapshot", &copy, "rollback", "first"])?;
        if n > 0 {
            // The first one at once: how long it takes differs much.
            std::thread::sleep(took * (n - 1) / 14);
            let _ = child.kill();
        }
        child.wait().map_err(|e| e.to_string())?;
        took = if n == 0 { begun.elapsed() } else { took };
        f.sound(&copy)?;
        let found = f.listing(&copy, None)?;
        match (found == then, found == now) {
            (true, _) => after += 1,
            (_, true) => before += 1,
            _ => return Err(format!("round {n}: neither what was nor what is to be")),
        }
        f.done(&["pool", "destroy", &copy])?;
    }
    match before > 0 && after > 0 {
        true => Ok(()),
        false => Err(format!("{before} died before, {after} after")),
    }
}

pub fn snapshots_are_renamed(f: &Fixture) -> Done {
    f.script(None, "build.sh")?;
    let pool = f.path("pool");
    f.take("old")?;
    let wanted = f.listing(&pool, Some("old"))?;
    f.script(None, "change.sh")?;
    f.take("other")?;
    let rename = |from: &'static str, to: &'static str| {
        let words = ["snapshot", &pool, "rename", from, to];
        words.map(str::to_owned)
    };
    let refused = |from, to, why| {
        let words = rename(from, to);
        f.refused(&words.each_ref().map(|word| &word[..]), why)
    };
    refused("old", "other", "has a snapshot of this name already")?;
    refused("none", "new", "there is no snapshot \"none\"")?;
    refused("old", "a/b", "no slash and no control character")?;
    let mut reader = f.started(Some("old"), "echo $$; exec sleep 60")?;
    let pid = first_line(&mut reader)?;
    refused("old", "new", "is in use by programs that run on it")?;
    f.kill(&pid, reader)?;
    let long = "n".repeat(255);
    f.done(&["snapshot", &pool, "rename", "old", &long])?;
    f.done(&["snapshot", &pool, "rename", &long, "new"])?;
    equal("names", &f.snapshots(&pool)?.join(" "), "new other")?;
    f.same("by its new name", (&pool, Some("new")), &wanted)?;
    // The name is free.
    f.take("old")?;
    equal("names", &f.snapshots(&pool)?.join(" "), "new other old")?;
    f.sound(&pool)
}
