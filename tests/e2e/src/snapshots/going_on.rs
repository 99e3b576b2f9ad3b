//! Saves that were killed go on where they were, or begin anew where that would not be the same.

use super::{Done, Fixture, equal, ok};
use std::fs;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// More than one chunk of what cannot be compressed.
const CHUNKS: u64 = 9 * MIB;
/// No chunk that `save` writes is longer: one is closed at 4 MiB of records, the last of which has
/// at most 2 MiB of data (docs/spec/stream.md), and what cannot be compressed becomes a little
/// longer.
const CHUNK_MAX: u64 = 6 * MIB + (64 << 10);
const PATIENCE: Duration = Duration::from_secs(60);

/// A save to `FILE`, of more than can be saved at once.
struct Saving<'f> {
    f: &'f Fixture,
    pool: String,
    file: String,
    words: &'static [&'static str],
}

impl Saving<'_> {
    fn part_len(&self) -> u64 {
        fs::metadata(format!("{}.part", self.file)).map_or(0, |found| found.len())
    }

    /// Killed when this much is written; false: it was done before.
    fn killed_at(&self, len: u64) -> Done<bool> {
        let words = [&["save"], self.words, &[&self.pool, &self.file]].concat();
        let mut child = self.f.start(&words)?;
        let begun = Instant::now();
        while self.part_len() < len {
            if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
                return match status.success() {
                    true => Ok(false),
                    false => Err(format!("{words:?}: {status}")),
                };
            }
            if begun.elapsed() > PATIENCE {
                return Err("it writes nothing".into());
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        let _ = child.kill();
        let status = child.wait().map_err(|e| e.to_string())?;
        Ok(!status.success())
    }

    /// Killed at any try.
    fn killed(&self, len: u64) -> Done {
        for _ in 0..20 {
            if self.killed_at(len)? {
                return Ok(());
            }
            fs::remove_file(&self.file).map_err(|e| e.to_string())?;
        }
        Err("every save was done before it could be killed".into())
    }

    /// Done now: bytes that were there already.
    fn done(&self, more: &[&str]) -> Done<u64> {
        let words = [
            &["save", "--json"],
            self.words,
            more,
            &[&self.pool, &self.file],
        ]
        .concat();
        let said = self.f.done(&words)?;
        let json: serde_json::Value = serde_json::from_str(&said).map_err(|e| e.to_string())?;
        match self.part_len() {
            0 => Ok(json["kept_bytes"].as_u64().unwrap_or(0)),
            _ => Err("a part is left".into()),
        }
    }

    /// What comes back of it.
    fn listing(&self) -> Done<String> {
        let copy = self.f.path("copy");
        self.f.done(&["restore", &self.file, &copy])?;
        self.f.sound(&copy)?;
        let listing = self.f.listing(&copy, None)?.to_string();
        self.f.done(&["pool", "destroy", &copy])?;
        Ok(listing)
    }
}

fn saving<'f>(f: &'f Fixture, words: &'static [&'static str]) -> Done<Saving<'f>> {
    f.fill()?;
    let large = "head -c 150000000 /dev/urandom >large";
    ok("large", f.shell(None, large)?)?;
    let (pool, file) = (f.path("pool"), f.path("stream"));
    Ok(Saving {
        f,
        pool,
        file,
        words,
    })
}

/// Wherever it was killed, and however often: what comes back is what was there when it began.
pub fn goes_on_where_it_was(f: &Fixture) -> Done {
    let s = saving(f, &[])?;
    for n in 1..6u64 {
        let then = f.listing(&s.pool, None)?.to_string();
        s.killed(n * CHUNKS)?;
        // What is done meanwhile is not in it.
        ok(
            "later",
            f.shell(None, &format!("date >later-{n}; rm -f later-{}", n - 1))?,
        )?;
        if n % 2 == 0 && s.killed_at((n + 2) * CHUNKS)? {
            f.done(&["kv", &s.pool, "k", "put", "n", &n.to_string()])?;
        }
        let part = s.part_len();
        let kept = s.done(&[])?;
        // Whole chunks: the last one may be cut.
        if kept > part || kept + CHUNK_MAX < part {
            return Err(format!("of {part} bytes {kept} were kept"));
        }
        equal("when it began", &s.listing()?, &then)?;
        equal("snapshots", &f.snapshots(&s.pool)?.join(" "), "")?;
        equal("the next", &s.done(&[])?.to_string(), "0")?;
        equal("now", &s.listing()?, &f.listing(&s.pool, None)?.to_string())?;
    }
    let said = {
        s.killed(CHUNKS)?;
        f.done(&["save", &s.pool, &s.file])?
    };
    let says =
        "an interrupted save had written; it is the pool as an interrupted save found it at 2";
    match said.contains(says) {
        true => Ok(()),
        false => Err(said),
    }
}

/// A snapshot is the same whenever it is saved, whoever saved something else meanwhile.
pub fn goes_on_with_a_snapshot(f: &Fixture) -> Done {
    let s = saving(f, &["--snapshot", "then"])?;
    f.take("then")?;
    let then = f.listing(&s.pool, None)?.to_string();
    s.killed(3 * CHUNKS)?;
    ok("later", f.shell(None, "date >later")?)?;
    f.done(&["save", &s.pool, &f.path("other")])?;
    match s.done(&[])? {
        0 => return Err("it began anew".into()),
        _ => equal("then", &s.listing()?, &then)?,
    }
    // Another snapshot of the same name.
    s.killed(3 * CHUNKS)?;
    f.snapshot(&["delete", "then"])?;
    f.take("then")?;
    equal("of another one", &s.done(&[])?.to_string(), "0")?;
    equal("now", &s.listing()?, &f.listing(&s.pool, None)?.to_string())
}

/// What is damaged, of something else, or unwanted is not gone on with.
pub fn begins_anew(f: &Fixture) -> Done {
    let io = |e: std::io::Error| e.to_string();
    let s = saving(f, &[])?;
    let part = format!("{}.part", s.file);
    let now = || Ok::<_, String>(f.listing(&s.pool, None)?.to_string());
    s.killed(2 * CHUNKS)?;
    equal("anew", &s.done(&["--anew"])?.to_string(), "0")?;
    equal("anew", &s.listing()?, &now()?)?;
    // What another save has taken the snapshot of.
    s.killed(2 * CHUNKS)?;
    ok("later", f.shell(None, "date >later")?)?;
    f.done(&["save", &s.pool, &f.path("other")])?;
    equal("without its snapshot", &s.done(&[])?.to_string(), "0")?;
    equal("without its snapshot", &s.listing()?, &now()?)?;
    // Damaged in its first chunk, amid, and by what somebody wrote there.
    for at in [100, CHUNKS as usize, 2 * CHUNKS as usize] {
        s.killed(3 * CHUNKS)?;
        let mut bytes = fs::read(&part).map_err(io)?;
        bytes[at] ^= 1;
        fs::write(&part, &bytes).map_err(io)?;
        let kept = s.done(&[])?;
        if kept > at as u64 {
            return Err(format!("{kept} bytes were kept, and byte {at} was damaged"));
        }
        equal("after damage", &s.listing()?, &now()?)?;
    }
    for bytes in [fs::read(f.path("other")).map_err(io)?, vec![7; 100_000]] {
        s.killed(2 * CHUNKS)?;
        fs::write(&part, bytes).map_err(io)?;
        equal("of something else", &s.done(&[])?.to_string(), "0")?;
        equal("of something else", &s.listing()?, &now()?)?;
    }
    equal("snapshots", &f.snapshots(&s.pool)?.join(" "), "")
}
