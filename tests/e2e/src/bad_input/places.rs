//! Something else in the place of each file of a pool: a FIFO that nobody writes, a socket, a
//! device, a directory, a link. Nothing waits for it, and what refuses names it.

use super::{Case, Fixture, RUN_FAILED, Stop, refusal, wrong};
use crate::process::Ended;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

pub const CASES: &[(&str, Case)] = &[
    ("fifo in place of files", fifo),
    ("socket in place of files", socket),
    ("device in place of files", device),
    ("directory in place of files", directory),
    ("link in place of files", link),
];

const NAMES: [&str; 10] = [
    "lock",
    "grants-0",
    "base",
    "sock",
    "service.log",
    "empty",
    "special",
    "meta.seg",
    "data-0.seg",
    "journal-0.seg",
];
/// No command takes so long without waiting for somebody.
const SOON: Duration = Duration::from_secs(8);

fn fifo(fixture: &Fixture) -> Result<(), Stop> {
    everywhere(fixture, |path| made(Command::new("mkfifo").arg(path)))
}

fn socket(fixture: &Fixture) -> Result<(), Stop> {
    everywhere(fixture, |path| UnixListener::bind(path).map(drop))
}

fn device(fixture: &Fixture) -> Result<(), Stop> {
    fixture.need_root()?;
    // A console that nobody has, and a device without a driver.
    for numbers in [["5", "1"], ["240", "77"]] {
        let made = |path: &Path| made(Command::new("mknod").arg(path).arg("c").args(numbers));
        everywhere(fixture, made)?;
    }
    Ok(())
}

fn directory(fixture: &Fixture) -> Result<(), Stop> {
    everywhere(fixture, |path: &Path| fs::create_dir(path))
}

fn link(fixture: &Fixture) -> Result<(), Stop> {
    everywhere(fixture, |path| symlink("/dev/zero", path))
}

fn made(command: &mut Command) -> io::Result<()> {
    match command.status()?.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{command:?} failed"))),
    }
}

fn everywhere(fixture: &Fixture, make: impl Fn(&Path) -> io::Result<()>) -> Result<(), Stop> {
    let pool = fixture.pool("pool", "64M")?;
    for name in NAMES {
        let (place, aside) = (pool.join(name), fixture.path("aside"));
        let was_there = fs::rename(&place, &aside).is_ok();
        make(&place)?;
        let done = commands(fixture, &pool);
        match fs::symlink_metadata(&place) {
            Ok(found) if found.is_dir() => fs::remove_dir_all(&place)?,
            Ok(_) => fs::remove_file(&place)?,
            Err(_) => {}
        }
        if was_there {
            fs::rename(&aside, &place)?;
        }
        done.map_err(|stop| match stop {
            Stop::Wrong(why) => Stop::Wrong(format!("{name}: {why}")),
            skip => skip,
        })?;
        fixture.intact(&pool)?;
    }
    fs::remove_dir_all(&pool)?;
    Ok(())
}

/// Each command works or is refused, soon. What a run cannot open, the checker does not call
/// clean.
fn commands(fixture: &Fixture, pool: &Path) -> Result<(), Stop> {
    let word = &*pool.to_string_lossy();
    let attempt = |args: &[&str], codes: &[i32]| -> Result<Ended, Stop> {
        let begun = Instant::now();
        let ended = fixture.holdfast(args)?;
        if begun.elapsed() > SOON {
            return wrong(format!("{args:?} took {:?}", begun.elapsed()));
        }
        if ended.code() != Some(0) {
            refusal(&ended, codes).map_err(|why| Stop::Wrong(format!("{args:?}: {why}")))?;
        }
        Ok(ended)
    };
    attempt(&["pool", "status", word], &[1])?;
    let ran = attempt(
        &["run", "--pool", word, "--", "cat", "/hf/hello"],
        &[RUN_FAILED],
    )?;
    attempt(&["kv", word, "words", "put", "a", "1"], &[1])?;
    let checked = attempt(&["pool", "check", word], &[4, 8])?;
    if ran.code() == Some(RUN_FAILED) && checked.code() == Some(0) {
        return wrong(format!("called clean, but: {}", ran.err.trim()));
    }
    Ok(())
}
