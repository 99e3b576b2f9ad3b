//! A damaged journal of a pool whose programs and service were all killed: of what programs synced
//! nothing is lost in silence. Either the pool is as if nothing were damaged, or `pool check` names
//! it, the pool can be read and not changed, and `--accept-loss` makes it whole.

use super::{Case, Fixture, Stop, wrong};
use crate::process::Ended;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

pub const CASES: &[(&str, Case)] = &[
    ("damaged journal", on_whatever_is_here),
    ("damaged journal of files", on_files),
];

/// Files that are synced, and places where one bit is flipped.
const FILES: usize = 300;
const FLIPS: u64 = 40;

/// Says that it is ready, waits for a line, and syncs files one after the other.
const WRITER: &str = "ls /hf; echo ready; read line
    for i in $(seq -w 1 300); do printf %1000s $i >/hf/f$i; sync /hf/f$i; done
    echo done; sleep 60";

fn on_whatever_is_here(fixture: &Fixture) -> Result<(), Stop> {
    campaign(fixture, "auto")
}

fn on_files(fixture: &Fixture) -> Result<(), Stop> {
    campaign(fixture, "file")
}

fn campaign(fixture: &Fixture, medium: &str) -> Result<(), Stop> {
    let pool = killed(fixture, medium)?;
    let journal = fs::read(pool.join("journal-0.seg"))?;
    let in_use = |at: &usize| journal[*at..*at + 64].iter().any(|byte| *byte != 0);
    let lines: Vec<usize> = (0..journal.len()).step_by(64).filter(in_use).collect();
    if lines.len() < FILES {
        return wrong(format!(
            "only {} lines of the journal are in use",
            lines.len()
        ));
    }
    let good = content(fixture, &copy(fixture, &pool)?)?;
    let mut named = 0;
    for i in 0..FLIPS {
        // Spread over the records, and over the bits of each.
        let at = lines[i as usize * lines.len() / FLIPS as usize] + (i * 29 % 64) as usize;
        let copy = copy(fixture, &pool)?;
        let file = OpenOptions::new()
            .write(true)
            .open(copy.join("journal-0.seg"))?;
        file.write_all_at(&[journal[at] ^ 1 << (i % 8)], at as u64)?;
        named += usize::from(judge(fixture, &copy, &good, at)?);
    }
    match named {
        0 => wrong("no damage was ever named"),
        _ => Ok(()),
    }
}

/// Whether the damage was named; an error if it was not and something is missing.
fn judge(fixture: &Fixture, pool: &Path, good: &str, at: usize) -> Result<bool, Stop> {
    let word = pool.to_string_lossy().into_owned();
    let check = fixture.holdfast(&["pool", "check", &word])?;
    let expect = |what: &str, ended: &Ended, codes: &[i32]| match ended.code() {
        Some(code) if codes.contains(&code) => Ok(()),
        _ => wrong(format!(
            "byte {at}: {what}: {} {}",
            ended.how(),
            ended.err.trim()
        )),
    };
    if check.code() == Some(0) {
        return match content(fixture, pool)? == good {
            true => Ok(false),
            false => wrong(format!("byte {at}: files are lost and nothing was said")),
        };
    }
    expect("pool check", &check, &[4])?;
    let change = ["sh", "-c", "echo new >/hf/new"];
    let refused = fixture.run(pool, &change)?;
    expect("a change", &refused, &[1, 2])?;
    if !refused.err.contains("--accept-loss") || !refused.err.contains("damaged: lane ") {
        return wrong(format!("byte {at}: {}", refused.err.trim()));
    }
    let put = fixture.holdfast(&["kv", &word, "keys", "put", "key", "value"])?;
    expect("a value", &put, &[1])?;
    let read = fixture.run(pool, &["ls", "/hf"])?;
    expect("reading", &read, &[0])?;
    let accepted = fixture.holdfast(&["pool", "check", "--accept-loss", &word])?;
    expect("pool check --accept-loss", &accepted, &[1])?;
    let left = content(fixture, pool)?.lines().count();
    if left + 1 < good.lines().count() {
        return wrong(format!(
            "byte {at}: one flipped bit cost more than one file: {left}"
        ));
    }
    let changed = fixture.run(pool, &change)?;
    expect("a change afterwards", &changed, &[0])?;
    let again = fixture.holdfast(&["pool", "check", "--accept-loss", &word])?;
    expect("a second pool check", &again, &[0])?;
    Ok(true)
}

/// Names and sums of all files; what this brings up to date.
fn content(fixture: &Fixture, pool: &Path) -> Result<String, Stop> {
    let ended = fixture.run(pool, &["sh", "-c", "cd /hf && md5sum f*"])?;
    match ended.code() {
        Some(0) => Ok(ended.out),
        _ => wrong(format!("reading: {} {}", ended.how(), ended.err.trim())),
    }
}

fn copy(fixture: &Fixture, pool: &Path) -> Result<PathBuf, Stop> {
    let to = fixture.path("copy");
    let _ = fs::remove_dir_all(&to);
    let mut command = Command::new("cp");
    command.args(["-a", "--sparse=always"]).arg(pool).arg(&to);
    match fixture.end_of(command)?.code() {
        Some(0) => Ok(to),
        _ => wrong("cp of the pool failed"),
    }
}

/// A pool of which the journal has everything and the trees nothing.
fn killed(fixture: &Fixture, medium: &str) -> Result<PathBuf, Stop> {
    let pool = fixture.path("pool");
    let word = pool.to_string_lossy().into_owned();
    fixture.done(&["pool", "create", &word, "--size", "64M", "--medium", medium])?;
    let mut command = Command::new(&fixture.holdfast);
    command.args(["run", "--pool", &word, "--", "bash", "-c", WRITER]);
    crate::process::clean(&mut command, &fixture.dir);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0);
    let mut run = command.spawn()?;
    let (Some(mut input), Some(output)) = (run.stdin.take(), run.stdout.take()) else {
        return wrong("no pipes");
    };
    let mut lines = BufReader::new(output).lines();
    let mut said = |word: &str| match lines.next() {
        Some(Ok(line)) if line == word => Ok(()),
        other => wrong(format!("the writer said {other:?}, not {word}")),
    };
    said("ready")?;
    // What the service still has to do, it does now.
    std::thread::sleep(Duration::from_millis(500));
    let service = fs::read_to_string(pool.join("lock"))?;
    let pid = service.split(' ').next().and_then(|pid| pid.parse().ok());
    let service = pid.and_then(Pid::from_raw);
    let Some(service) = service else {
        return wrong("the pool's lock does not name its service");
    };
    let signal = |signal| kill_process(service, signal).map_err(std::io::Error::from);
    signal(Signal::STOP)?;
    writeln!(input)?;
    let done = said("done");
    crate::process::kill_group(&run);
    signal(Signal::KILL)?;
    run.wait()?;
    // The lock is free when the last of them is gone.
    std::thread::sleep(Duration::from_millis(200));
    done.map(|()| pool)
}
