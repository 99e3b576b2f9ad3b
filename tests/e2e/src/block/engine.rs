//! fio on volumes by our own engine, in its own process.
//!
//! Invariant: what it has written is read by another path, which has nothing of fio's.

use super::{client, export, nbdsh, needs, noise, pool_with_volume};
use crate::bad_input::{Case, Fixture, Stop, wrong};
use crate::process::{self, Ended};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

pub const CASES: &[(&str, Case)] = &[
    ("fio engine verifies", verifies),
    ("fio engine writes what others read", read_by_others),
    ("fio engine trims", trims),
    ("fio engine by several jobs", several),
    ("fio engine refuses", refuses),
];

/// The engine, where it was built: it needs the source of fio.
fn engine(fixture: &Fixture) -> Result<PathBuf, Stop> {
    let bin = fixture.holdfast.parent().unwrap_or(&fixture.dir);
    let place = bin.join("../lib/holdfast/libholdfast_fio.so");
    match (process::on_path("fio"), place.canonicalize()) {
        (true, Ok(engine)) => Ok(engine),
        (false, _) => Err(Stop::Skip("fio is not installed".into())),
        (_, Err(_)) => Err(Stop::Skip("the engine for fio was not built".into())),
    }
}

/// fio with words for its job, on `disk`.
fn fio(fixture: &Fixture, pool: &str, words: &[&str]) -> Result<Ended, Stop> {
    let mut command = Command::new("fio");
    command.arg("--name=job");
    let engine = engine(fixture)?;
    command.arg(format!("--ioengine=external:{}", engine.display()));
    command.args([&format!("--pool={pool}"), "--volume=disk"]);
    command.args(words);
    fixture.end_of(command)
}

fn done(fixture: &Fixture, pool: &str, words: &[&str]) -> Result<String, Stop> {
    let ended = fio(fixture, pool, words)?;
    match ended.code() {
        Some(0) if ended.err.is_empty() => Ok(ended.out),
        _ => wrong(format!("fio {words:?}: {} {:?}", ended.how(), ended.tail())),
    }
}

/// Bytes that the volume takes.
fn allocated(fixture: &Fixture, pool: &str) -> Result<u64, Stop> {
    let said = fixture.done(&["volume", pool, "list", "--json"])?.out;
    let list: serde_json::Value = serde_json::from_str(&said).unwrap_or_default();
    Ok(list[0]["allocated"].as_u64().unwrap_or(u64::MAX))
}

fn verifies(fixture: &Fixture) -> Result<(), Stop> {
    engine(fixture)?;
    let pool = pool_with_volume(fixture, "64M", "16M")?;
    for mode in ["write", "randwrite", "rw", "randrw"] {
        for size in ["512-512", "4k-4k", "4k-64k", "1m-1m"] {
            let words = [
                format!("--rw={mode}"),
                format!("--bsrange={size}"),
                "--verify=crc32c".into(),
                "--fsync=16".into(),
                format!("--randseed={}", mode.len() + size.len()),
            ];
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            done(fixture, &pool, &words)?;
        }
    }
    done(
        fixture,
        &pool,
        &["--rw=randwrite", "--bs=4k", "--sync=1", "--verify=crc32c"],
    )?;
    // It finds what is wrong, too.
    let write = ["--rw=write", "--bs=4k", "--verify=crc32c", "--do_verify=0"];
    done(fixture, &pool, &write)?;
    let spoil = "dd if=/dev/zero of=/hf/disk bs=1 count=1 seek=100000 conv=notrunc status=none";
    fixture.done(&["run", "--pool", &pool, "--", "bash", "-c", spoil])?;
    let again = ["--rw=read", "--bs=4k", "--verify=crc32c"];
    if fio(fixture, &pool, &again)?.code() == Some(0) {
        return wrong("fio does not see that a byte was changed");
    }
    fixture.done(&["pool", "check", &pool]).map(drop)
}

/// Over NBD, by fio's own engine for that; and the bytes by a program on the pool.
fn read_by_others(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdsh"])?;
    engine(fixture)?;
    let pool = pool_with_volume(fixture, "64M", "16M")?;
    let pattern = [
        "--rw=write",
        "--bs=4k",
        "--verify=crc32c",
        "--do_verify=0",
        "--end_fsync=1",
    ];
    done(fixture, &pool, &pattern)?;
    if allocated(fixture, &pool)? != 16 << 20 {
        return wrong("what fio has written takes no space");
    }
    let exporter = export(fixture, &pool, "disk", "s", &["--read-only"])?;
    let uri = format!("--uri={}", exporter.uri);
    let read = ["--name=job", "--ioengine=nbd", &uri, "--rw=read", "--bs=4k"];
    client(fixture, "fio", &[&read[..], &["--verify=crc32c"]].concat())?;
    exporter.end()?;
    // And what others have written, fio reads.
    let image = fixture.path("image");
    fs::write(&image, noise(16 << 20, 9))?;
    let copy = format!(
        "dd if={} of=/hf/disk bs=1M conv=notrunc status=none",
        image.display()
    );
    fixture.done(&["run", "--pool", &pool, "--", "bash", "-c", &copy])?;
    done(fixture, &pool, &["--rw=randread", "--bs=4k", "--readonly"]).map(drop)
}

fn trims(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdsh"])?;
    engine(fixture)?;
    let pool = pool_with_volume(fixture, "64M", "16M")?;
    done(fixture, &pool, &["--rw=write", "--bs=1m"])?;
    done(fixture, &pool, &["--rw=trim", "--bs=64k", "--size=12M"])?;
    if allocated(fixture, &pool)? != 4 << 20 {
        return wrong("what fio has trimmed takes space");
    }
    let exporter = export(fixture, &pool, "disk", "s", &["--read-only"])?;
    let script = "
if h.pread(12 << 20, 0) != bytes(12 << 20): raise Exception('trimmed and not zero')
if h.pread(1 << 20, 12 << 20) == bytes(1 << 20): raise Exception('the rest is zero')";
    nbdsh(fixture, &exporter.uri, script)?;
    exporter.end()?;
    done(fixture, &pool, &["--rw=randtrim", "--bs=4k"])?;
    match allocated(fixture, &pool)? {
        0 => Ok(()),
        left => wrong(format!("{left} bytes are left of what was trimmed")),
    }
}

/// As threads they share the volume; as processes only one may write.
fn several(fixture: &Fixture) -> Result<(), Stop> {
    engine(fixture)?;
    let pool = pool_with_volume(fixture, "64M", "16M")?;
    let jobs = [
        "--numjobs=4",
        "--size=4M",
        "--offset_increment=4M",
        "--bs=4k",
    ];
    let write = [
        "--rw=randwrite",
        "--verify=crc32c",
        "--thread",
        "--group_reporting",
    ];
    done(fixture, &pool, &[&jobs[..], &write[..]].concat())?;
    done(fixture, &pool, &[&jobs[..], &["--rw=randread"]].concat())?;
    let long = ["--rw=randwrite", "--time_based", "--runtime=1"];
    let ended = fio(fixture, &pool, &[&jobs[..], &long].concat())?;
    let said = "Fix: with several jobs on one volume, add --thread";
    match ended.code() != Some(0) && ended.err.contains(said) {
        true => Ok(()),
        false => wrong(format!("{} {:?}", ended.how(), ended.tail())),
    }
}

fn refuses(fixture: &Fixture) -> Result<(), Stop> {
    let engine = engine(fixture)?;
    let pool = pool_with_volume(fixture, "64M", "16M")?;
    let engine = format!("--ioengine=external:{}", engine.display());
    let (none, there) = (fixture.path("none"), format!("--pool={pool}"));
    let none = format!("--pool={}", none.display());
    for (words, said) in [
        (vec!["--volume=disk"], "does not say which volume"),
        (vec![there.as_str()], "does not say which volume"),
        (vec![&none, "--volume=disk"], "there is no pool at"),
        (vec![&there, "--volume=none"], "there is no volume \"none\""),
    ] {
        let mut command = Command::new("fio");
        command
            .args(["--name=job", "--rw=read", &engine])
            .args(&words);
        let ended = fixture.end_of(command)?;
        let fix = ended.err.contains("\nFix: ");
        if ended.code() == Some(0) || !ended.err.contains(said) || !fix {
            return wrong(format!("{words:?}: {} {:?}", ended.how(), ended.tail()));
        }
    }
    // A request that is no whole sector is an error of the job.
    let ended = fio(fixture, &pool, &["--rw=read", "--bs=100"])?;
    match ended.code() {
        Some(0) => wrong("requests of 100 bytes are served"),
        _ => Ok(()),
    }
}
