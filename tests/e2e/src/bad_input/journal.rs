//! A damaged journal of a pool whose programs and service were all killed: of what programs synced
//! nothing is lost in silence. Either the pool is as if nothing were damaged, or `pool check` names
//! it, the pool can be read and not changed, and `--accept-loss` makes it whole.

use super::{Case, Scene, Stop, wrong};
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

fn on_whatever_is_here(scene: &Scene) -> Result<(), Stop> {
    campaign(scene, "auto")
}

fn on_files(scene: &Scene) -> Result<(), Stop> {
    campaign(scene, "file")
}

fn campaign(scene: &Scene, medium: &str) -> Result<(), Stop> {
    let pool = killed(scene, medium)?;
    let journal = fs::read(pool.join("journal-0.seg"))?;
    let in_use = |at: &usize| journal[*at..*at + 64].iter().any(|byte| *byte != 0);
    let lines: Vec<usize> = (0..journal.len()).step_by(64).filter(in_use).collect();
    if lines.len() < FILES {
        return wrong(format!(
            "only {} lines of the journal are in use",
            lines.len()
        ));
    }
    let good = content(scene, &copy(scene, &pool)?)?;
    let mut named = 0;
    for i in 0..FLIPS {
        // Spread over the records, and over the bits of each.
        let at = lines[i as usize * lines.len() / FLIPS as usize] + (i * 29 % 64) as usize;
        let copy = copy(scene, &pool)?;
        let file = OpenOptions::new()
            .write(true)
            .open(copy.join("journal-0.seg"))?;
        file.write_all_at(&[journal[at] ^ 1 << (i % 8)], at as u64)?;
        named += usize::from(judge(scene, &copy, &good, at)?);
    }
    match named {
        0 => wrong("no damage was ever named"),
        _ => Ok(()),
    }
}

/// Whether the damage was named; an error if it was not and something is missing.
fn judge(scene: &Scene, pool: &Path, good: &str, at: usize) -> Result<bool, Stop> {
    let word = pool.to_string_lossy().into_owned();
    let check = scene.holdfast(&["pool", "check", &word])?;
    let expect = |what: &str, ended: &Ended, codes: &[i32]| match ended.code() {
        Some(code) if codes.contains(&code) => Ok(()),
        _ => wrong(format!(
            "byte {at}: {what}: {} {}",
            ended.how(),
            ended.err.trim()
        )),
    };
    if check.code() == Some(0) {
        return match content(scene, pool)? == good {
            true => Ok(false),
            false => wrong(format!("byte {at}: files are lost and nothing was said")),
        };
    }
    expect("pool check", &check, &[4])?;
    let change = ["sh", "-c", "echo new >/hf/new"];
    let refused = scene.run(pool, &change)?;
    expect("a change", &refused, &[1, 2])?;
    if !refused.err.contains("--accept-loss") || !refused.err.contains("damaged: lane ") {
        return wrong(format!("byte {at}: {}", refused.err.trim()));
    }
    let put = scene.holdfast(&["kv", &word, "keys", "put", "key", "value"])?;
    expect("a value", &put, &[1])?;
    let read = scene.run(pool, &["ls", "/hf"])?;
    expect("reading", &read, &[0])?;
    let accepted = scene.holdfast(&["pool", "check", "--accept-loss", &word])?;
    expect("pool check --accept-loss", &accepted, &[1])?;
    let left = content(scene, pool)?.lines().count();
    if left + 1 < good.lines().count() {
        return wrong(format!(
            "byte {at}: one flipped bit cost more than one file: {left}"
        ));
    }
    let changed = scene.run(pool, &change)?;
    expect("a change afterwards", &changed, &[0])?;
    let again = scene.holdfast(&["pool", "check", "--accept-loss", &word])?;
    expect("a second pool check", &again, &[0])?;
    Ok(true)
}

/// Names and sums of all files; what this brings up to date.
fn content(scene: &Scene, pool: &Path) -> Result<String, Stop> {
    let ended = scene.run(pool, &["sh", "-c", "cd /hf && md5sum f*"])?;
    match ended.code() {
        Some(0) => Ok(ended.out),
        _ => wrong(format!("reading: {} {}", ended.how(), ended.err.trim())),
    }
}

fn copy(scene: &Scene, pool: &Path) -> Result<PathBuf, Stop> {
    let to = scene.path("copy");
    let _ = fs::remove_dir_all(&to);
    let mut command = Command::new("cp");
    command.args(["-a", "--sparse=always"]).arg(pool).arg(&to);
    match scene.end_of(command)?.code() {
        Some(0) => Ok(to),
        _ => wrong("cp of the pool failed"),
    }
}

/// A pool of which the journal has everything and the trees nothing.
fn killed(scene: &Scene, medium: &str) -> Result<PathBuf, Stop> {
    let pool = scene.path("pool");
    let word = pool.to_string_lossy().into_owned();
    scene.done(&["pool", "create", &word, "--size", "64M", "--medium", medium])?;
    let mut command = Command::new(&scene.holdfast);
    command.args(["run", "--pool", &word, "--", "bash", "-c", WRITER]);
    crate::process::clean(&mut command, &scene.dir);
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
