//! Restores that were killed or cut off go on where they were, or begin anew where that would not
//! be the same. Until one is done there is no pool.

use super::saving::Listing;
use super::{Done, Fixture, equal, ok};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Of what was written this much may have to be written again (docs/spec/stream.md).
const AGAIN: u64 = 64 * MIB + 8 * MIB;
const PATIENCE: Duration = Duration::from_secs(60);

/// A stream of two snapshots and the present, and what they hold.
struct Restoring<'f> {
    f: &'f Fixture,
    stream: String,
    copy: String,
    wanted: Vec<(Option<&'static str>, Listing)>,
}

fn restoring(f: &Fixture) -> Done<Restoring<'_>> {
    f.fill()?;
    let pool = f.path("pool");
    let large = |name, len| {
        let line = format!("head -c {len} /dev/urandom >{name}");
        ok(name, f.shell(None, &line)?)
    };
    large("large-1", 110_000_000)?;
    f.take("one")?;
    large("large-2", 90_000_000)?;
    ok("change", f.shell(None, "rm -r docs; : >large-1")?)?;
    f.take("two")?;
    large("large-3", 80_000_000)?;
    let (stream, copy) = (f.path("stream"), f.path("copy"));
    f.done(&["save", &pool, &stream])?;
    let listing = |name| Ok::<_, String>((name, f.listing(&pool, name)?));
    let wanted = [Some("one"), Some("two"), None].map(listing);
    let wanted = wanted.into_iter().collect::<Done<Vec<_>>>()?;
    Ok(Restoring {
        f,
        stream,
        copy,
        wanted,
    })
}

impl Restoring<'_> {
    /// Bytes that were written of the data.
    fn written(&self) -> u64 {
        let part = format!("{}/restore.part/data-0.seg", self.copy);
        fs::metadata(part).map_or(0, |found| found.blocks() * 512)
    }

    /// Killed when so much is written; false: it was done before.
    fn killed_at(&self, len: u64) -> Done<bool> {
        let mut child = self.f.start(&["restore", &self.stream, &self.copy])?;
        let begun = Instant::now();
        while self.written() < len {
            if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
                return match status.success() {
                    true => Ok(false),
                    false => Err(format!("a restore: {status}")),
                };
            }
            if begun.elapsed() > PATIENCE {
                return Err("it writes nothing".into());
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        let _ = child.kill();
        let status = child.wait().map_err(|e| e.to_string())?;
        let killed = !status.success();
        if killed {
            self.is_no_pool()?;
        }
        Ok(killed)
    }

    /// Killed at any try.
    fn killed(&self, len: u64) -> Done {
        for _ in 0..20 {
            if self.killed_at(len)? {
                return Ok(());
            }
            self.f.done(&["pool", "destroy", &self.copy])?;
        }
        Err("every restore was done before it could be killed".into())
    }

    /// Nobody takes what is there for a pool.
    fn is_no_pool(&self) -> Done {
        let part = format!("{}/restore.part", self.copy);
        for words in [&["pool", "status"][..], &["kv"], &["pool", "check"]] {
            let there = [words, &[&self.copy]].concat();
            self.f
                .command(&there)
                .and_then(|ended| match ended.code() {
                    Some(0) => Err(format!("{there:?} takes it for a pool")),
                    _ => Ok(()),
                })?;
            let inside = [words, &[&part]].concat();
            self.f
                .command(&inside)
                .and_then(|ended| match ended.code() {
                    Some(0) => Err(format!("{inside:?} takes it for a pool")),
                    _ => Ok(()),
                })?;
        }
        Ok(())
    }

    /// Done now, by a restore with these words more: bytes that were there already.
    fn done(&self, more: &[&str]) -> Done<u64> {
        let words = [&["restore", "--json"], more, &[&self.stream, &self.copy]].concat();
        self.is_done(&self.f.done(&words)?)
    }

    /// It says what it did, and has all: bytes that were there already.
    fn is_done(&self, said: &str) -> Done<u64> {
        let json: serde_json::Value = serde_json::from_str(said).map_err(|e| e.to_string())?;
        if Path::new(&self.copy).join("restore.part").exists() {
            return Err("a part is left".into());
        }
        self.f.sound(&self.copy)?;
        for (name, wanted) in &self.wanted {
            self.f
                .same(&format!("{name:?}"), (&self.copy, *name), wanted)?;
        }
        let names = self.f.snapshots(&self.copy)?.join(" ");
        equal("snapshots", &names, "one two")?;
        if json["snapshots"] != 2 {
            return Err(format!("it counts wrong: {said}"));
        }
        self.f.done(&["pool", "destroy", &self.copy])?;
        Ok(json["kept_bytes"].as_u64().unwrap_or(0))
    }

    /// `receive` of a file through a pipe.
    fn received(&self, from: &str, json: bool) -> Command {
        let json = if json { "--json" } else { "" };
        let mut shell = Command::new("bash");
        let line = format!("cat \"$1\" | \"$0\" receive {json} \"$2\"");
        shell.args(["-c", &line]).arg(&self.f.holdfast);
        shell.args([from, &self.copy]);
        shell
    }
}

/// Wherever it was killed, and however often.
pub fn goes_on_where_it_was(f: &Fixture) -> Done {
    let r = restoring(f)?;
    for n in 0..7u64 {
        r.killed(40 * n * MIB)?;
        let written = r.written();
        let kept = r.done(&[])?;
        if kept + AGAIN < written {
            return Err(format!("of {written} bytes {kept} were kept"));
        }
        equal("the next", &r.done(&[])?.to_string(), "0")?;
    }
    // Once more, and again and again.
    let (mut len, mut before) = (10 * MIB, 0);
    while r.killed_at(len)? {
        let written = r.written();
        if written + 2 * MIB < before {
            return Err(format!("of {before} bytes {written} are left"));
        }
        (len, before) = (written + 9 * MIB, written);
    }
    if before < 200 * MIB {
        return Err(format!("it was done when {before} bytes were there"));
    }
    r.f.done(&["pool", "destroy", &r.copy])?;
    // At any time: before there is anything, and when it is checked and moved.
    let begun = Instant::now();
    r.done(&[])?;
    let took = begun.elapsed();
    for n in 0..20u32 {
        let mut child = f.start(&["restore", &r.stream, &r.copy])?;
        std::thread::sleep(took * (n % 10) / 20);
        let _ = child.kill();
        let status = child.wait().map_err(|e| e.to_string())?;
        if !status.success() && f.command(&["pool", "status", &r.copy])?.code() == Some(0) {
            // It was killed when all was done.
            f.sound(&r.copy)?;
            f.done(&["pool", "destroy", &r.copy])?;
        } else if status.success() {
            f.done(&["pool", "destroy", &r.copy])?;
        }
    }
    r.done(&[]).map(drop)
}

/// What was cut off, damaged, or comes through a pipe.
pub fn goes_on_with_the_rest(f: &Fixture) -> Done {
    let io = |e: std::io::Error| e.to_string();
    let r = restoring(f)?;
    let (whole, bad) = (fs::read(&r.stream).map_err(io)?, f.path("bad"));
    let cut = |len: usize| fs::write(&bad, &whole[..len]).map_err(io);
    let left = "; what was restored is in restore.part there";
    cut(whole.len() * 6 / 10)?;
    let ended = f.ended(r.received(&bad, false))?;
    let said = ended.tail().join("\n");
    if ended.code() != Some(1) || !said.contains(left) || !said.contains("goes on where this") {
        return Err(format!("a pipe that was cut off: {said}"));
    }
    r.is_no_pool()?;
    // Shorter than what was restored, and damaged before it and behind it.
    cut(whole.len() / 10)?;
    f.refused(&["restore", &bad, &r.copy], "ends too early")?;
    for at in [whole.len() / 20, whole.len() * 8 / 10] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(&bad, &bytes).map_err(io)?;
        f.refused(&["restore", &bad, &r.copy], left)?;
        r.is_no_pool()?;
    }
    let said = ok("receive", f.ended(r.received(&r.stream, true))?)?;
    let kept = r.is_done(&said)?;
    if kept < 100 * MIB {
        return Err(format!("{kept} bytes were kept"));
    }
    // In words.
    r.killed(150 * MIB)?;
    let said = f.done(&["restore", &r.stream, &r.copy])?;
    if !said.contains("of the entries an interrupted restore had restored") {
        return Err(said);
    }
    // What changed since is for it as for any other.
    f.take("three")?;
    ok("later", f.shell(None, "date >later")?)?;
    f.take("four")?;
    let (pool, more) = (f.path("pool"), f.path("more"));
    f.done(&["save", "--snapshot", "three", &pool, &r.stream])?;
    f.done(&[
        "save",
        "--since",
        "three",
        "--snapshot",
        "four",
        &pool,
        &more,
    ])?;
    f.done(&["pool", "destroy", &r.copy])?;
    r.killed(150 * MIB)?;
    f.refused(&["restore", &more, &r.copy], "and no pool")?;
    f.done(&["restore", &r.stream, &r.copy])?;
    f.done(&["restore", &more, &r.copy])?;
    f.sound(&r.copy)?;
    let wanted = f.listing(&pool, Some("four"))?;
    f.same("what changed", (&r.copy, Some("four")), &wanted)
}

/// What was complete, and not yet at its place, is moved there.
pub fn ends_where_it_was_moved(f: &Fixture) -> Done {
    let io = |e: std::io::Error| e.to_string();
    let r = restoring(f)?;
    let part = Path::new(&r.copy).join("restore.part");
    r.killed(100 * MIB)?;
    let id = fs::read_to_string(part.join("stream")).map_err(io)?;
    for (names, id, is_its) in [
        (&["meta.seg"][..], &id[..], true),
        (&["meta.seg", "journal-0.seg", "data-0.seg"], &id, true),
        (&["meta.seg"], "77", false),
    ] {
        f.done(&["restore", &r.stream, &r.copy])?;
        fs::create_dir(&part).map_err(io)?;
        for name in names {
            fs::rename(Path::new(&r.copy).join(name), part.join(name)).map_err(io)?;
        }
        fs::write(part.join("stream"), id).map_err(io)?;
        f.refused(
            &["pool", "status", &r.copy],
            "restore the same stream again",
        )?;
        let kept = r.done(&[])?;
        if (kept > 280_000_000) != is_its {
            return Err(format!("{names:?}: {kept} bytes were kept"));
        }
    }
    Ok(())
}

/// Of another stream, with other options, and where that is wanted.
pub fn begins_anew(f: &Fixture) -> Done {
    let io = |e: std::io::Error| e.to_string();
    let r = restoring(f)?;
    let other = f.path("other");
    f.done(&["save", &f.path("pool"), &other])?;
    let anew = |file: &str, more: &[&str], why: &str| {
        r.killed(150 * MIB)?;
        let words = [&["restore", "--json"], more, &[file, &r.copy]].concat();
        let ended = f.command(&words)?;
        let warned = ended.err.contains(&format!("{why}: this one begins anew."));
        if warned == why.is_empty() {
            return Err(format!("{words:?} says {}", ended.err));
        }
        let kept = r.is_done(&ok("restore", ended)?)?;
        equal("anew", &kept.to_string(), "0")
    };
    anew(&other, &[], "is of another stream")?;
    anew(&r.stream, &["--size", "1G"], "has another size")?;
    anew(&r.stream, &["--anew"], "")?;
    // A medium that is not there is refused, and what is left stays.
    r.killed(150 * MIB)?;
    let dax = ["restore", "--medium", "dax", &r.stream, &r.copy];
    f.refused(&dax, "is not on a medium of the kind dax")?;
    if r.done(&[])? == 0 {
        return Err("a medium that is not there makes it begin anew".into());
    }
    // What is left has lost something.
    let part = |name: &str| format!("{}/restore.part/{name}", r.copy);
    r.killed(150 * MIB)?;
    fs::remove_file(part("journal-0.seg")).map_err(io)?;
    equal("without a file", &r.done(&[])?.to_string(), "0")?;
    r.killed(150 * MIB)?;
    let meta = File::options().write(true).open(part("meta.seg"));
    std::os::unix::fs::FileExt::write_all_at(&meta.map_err(io)?, &[7; 8192], 0).map_err(io)?;
    equal("without superblocks", &r.done(&[])?.to_string(), "0")
}
