//! Keys, values and snapshots that cannot be, on the command line. What is refused leaves the
//! keyspace as it was.

use super::{Case, Fixture, Stop, words, wrong};
use std::fs;
use std::process::Command;

pub const CASES: &[(&str, Case)] = &[
    ("kv usage", usage),
    ("kv on what is no pool", no_pool),
    ("kv keys and names that cannot be", names),
    ("kv load of what is no dump", loads),
    ("kv pool full", full),
    ("snapshot usage", snapshots),
];

/// `holdfast kv POOL keys ARGS...`
fn kv<'a>(pool: &'a str, args: &[&'a str]) -> Vec<&'a str> {
    [&["kv", pool, "keys"], args].concat()
}

fn pool(fixture: &Fixture) -> Result<String, Stop> {
    let pool = fixture.path("pool").to_string_lossy().into_owned();
    fixture.done(&["pool", "create", &pool, "--size", "32M"])?;
    fixture.done(&kv(&pool, &["put", "a", "1"]))?;
    fixture.done(&kv(&pool, &["put", "b", "2"]))?;
    Ok(pool)
}

/// The keyspace holds what `pool` put there, and the pool is sound.
fn intact(fixture: &Fixture, pool: &str) -> Result<(), Stop> {
    let ended = fixture.done(&kv(pool, &["scan"]))?;
    if ended.out != "a\t1\nb\t2\n" {
        return wrong(format!("the keyspace holds {:?}", ended.out));
    }
    fixture.done(&["pool", "check", pool])?;
    Ok(())
}

fn usage(fixture: &Fixture) -> Result<(), Stop> {
    let pool = pool(fixture)?;
    for args in [
        &[][..],
        &["nonsense"],
        &["get"],
        &["get", "a", "surplus"],
        &["put"],
        &["put", "a", "1", "surplus"],
        &["erase"],
        &["scan", "surplus"],
        &["scan", "--limit", "-1"],
        &["scan", "--limit", "many"],
        &["scan", "--prefix", "a", "--from", "a"],
        &["scan", "--prefix"],
        &["load", "--format", "xml"],
        &["dump", "--format", "xml"],
        &["get", "-e", "\\"],
        &["get", "-e", "\\q"],
        &["put", "-e", "a", "\\x0"],
        &["scan", "-e", "--from", "\\xzz"],
        &["put", "a", "1", "--snapshot", "s"],
        &["erase", "a", "--snapshot", "s"],
        &["load", "--snapshot", "s"],
    ] {
        fixture.refused(&kv(&pool, args), &[2])?;
    }
    fixture.refused(&["kv"], &[2])?;
    intact(fixture, &pool)
}

fn no_pool(fixture: &Fixture) -> Result<(), Stop> {
    fs::create_dir(fixture.path("empty"))?;
    fs::write(fixture.path("file"), "mine")?;
    for name in ["none", "none/below", "empty", "file"] {
        let path = fixture.path(name).to_string_lossy().into_owned();
        for args in [
            &["get", "a"][..],
            &["put", "a", "1"],
            &["erase", "a"],
            &["scan"],
            &["load"],
            &["dump"],
        ] {
            fixture.refused(&kv(&path, args), &[1])?;
        }
        fixture.refused(&["kv", &path], &[1])?;
        fixture.refused(&["snapshot", &path, "create", "s"], &[1])?;
        fixture.refused(&["snapshot", &path, "list"], &[1])?;
    }
    match fixture.path("none").exists() || fixture.path("empty").read_dir()?.next().is_some() {
        true => wrong("a command made something where there was no pool"),
        false => Ok(()),
    }
}

fn names(fixture: &Fixture) -> Result<(), Stop> {
    let pool = pool(fixture)?;
    let long = "k".repeat(1025);
    for key in ["", long.as_str()] {
        fixture.refused(&kv(&pool, &["put", key, "1"]), &[1, 2])?;
        fixture.refused(&kv(&pool, &["get", key]), &[1, 2])?;
        fixture.refused(&kv(&pool, &["erase", key]), &[1, 2])?;
    }
    fixture.refused(&kv(&pool, &["get", "none"]), &[1])?;
    let long = "n".repeat(256);
    for name in ["", "/", ".", "..", "a/b", "/a/", long.as_str()] {
        fixture.refused(&["kv", &pool, name, "put", "a", "1"], &[1, 2])?;
    }
    // Only put and load make a keyspace.
    for args in [&["get", "a"][..], &["erase", "a"], &["scan"], &["dump"]] {
        fixture.refused(&[&["kv", &pool, "none"], args].concat(), &[1])?;
    }
    let listed = fixture.done(&["kv", &pool])?.out;
    if listed != "keys\n" {
        return wrong(format!("there are the keyspaces {listed:?}"));
    }
    intact(fixture, &pool)
}

/// `holdfast ARGS... <input`
fn fed(fixture: &Fixture, args: &[&str], input: &[u8]) -> Result<crate::process::Ended, Stop> {
    let file = fixture.path("input");
    fs::write(&file, input)?;
    let mut command = Command::new("sh");
    command.args(["-c", "in=$1; shift; exec \"$@\" <\"$in\"", "sh"]);
    command.arg(&file).arg(&fixture.holdfast).args(args);
    fixture.end_of(command)
}

fn loads(fixture: &Fixture) -> Result<(), Stop> {
    let pool = pool(fixture)?;
    let long = format!("{}\tv\n", "k".repeat(1025));
    let head = "VERSION=3\nformat=bytevalue\ntype=btree\nHEADER=END\n";
    let texts: [(&str, String); 14] = [
        ("lines", "no tab\n".into()),
        ("lines", "\tvalue\n".into()),
        ("lines", "\n".into()),
        ("lines", "k\t\\\n".into()),
        ("lines", "k\\q\tv\n".into()),
        ("lines", long),
        ("mdb", String::new()),
        ("mdb", "a\t1\n".into()),
        ("mdb", head.replace('3', "4") + "DATA=END\n"),
        ("mdb", head.into()),
        ("mdb", format!("{head} 6b\n")),
        ("mdb", format!("{head} 6b\n 7\nDATA=END\n")),
        ("mdb", format!("{head} \n 76\nDATA=END\n")),
        (
            "mdb",
            head.replace("type=btree", "duplicates=1") + "DATA=END\n",
        ),
    ];
    for (format, text) in texts {
        let args = kv(&pool, &["load", "--format", format]);
        let ended = fed(fixture, &args, text.as_bytes())?;
        let shown = text.chars().take(80).collect::<String>();
        super::refusal(&ended, &[1])
            .map_err(|why| Stop::Wrong(format!("{} <{shown:?}: {why}", words(&args))))?;
    }
    let args = kv(&pool, &["load"]);
    let mut closed = Command::new("sh");
    closed.args(["-c", "exec \"$@\" </", "sh"]);
    closed.arg(&fixture.holdfast).args(&args);
    let ended = fixture.end_of(closed)?;
    super::refusal(&ended, &[1]).map_err(|why| Stop::Wrong(format!("load </: {why}")))?;
    intact(fixture, &pool)?;
    // What stands before the fault is in.
    let ended = fed(fixture, &args, b"c\t3\nno tab\nd\t4\n")?;
    super::refusal(&ended, &[1]).map_err(Stop::Wrong)?;
    if !ended.err.contains("line 2") {
        return wrong(format!("the line is not named: {}", ended.err.trim()));
    }
    let found = fixture.done(&kv(&pool, &["scan"]))?.out;
    match found == "a\t1\nb\t2\nc\t3\n" {
        true => Ok(()),
        false => wrong(format!("after a load that failed in its line 2: {found:?}")),
    }
}

/// A value that has no room is refused, and the pool goes on.
fn full(fixture: &Fixture) -> Result<(), Stop> {
    let pool = pool(fixture)?;
    let half = vec![7; 20 << 20];
    let first = fed(fixture, &kv(&pool, &["put", "big"]), &half)?;
    if first.code() != Some(0) {
        return wrong(format!("20 MiB do not fit into 32: {}", first.err.trim()));
    }
    let second = fed(fixture, &kv(&pool, &["put", "more"]), &half)?;
    super::refusal(&second, &[1]).map_err(Stop::Wrong)?;
    fixture.refused(&kv(&pool, &["get", "more"]), &[1])?;
    fixture.done(&kv(&pool, &["erase", "big"]))?;
    let third = fed(fixture, &kv(&pool, &["put", "more"]), &half)?;
    if third.code() != Some(0) {
        return wrong(format!("the room is not given back: {}", third.err.trim()));
    }
    fixture.done(&kv(&pool, &["erase", "more"]))?;
    intact(fixture, &pool)
}

fn snapshots(fixture: &Fixture) -> Result<(), Stop> {
    let pool = pool(fixture)?;
    for args in [
        &[][..],
        &["nonsense"],
        &["create"],
        &["create", "s", "surplus"],
        &["delete"],
        &["list", "surplus"],
    ] {
        fixture.refused(&[&["snapshot", &pool], args].concat(), &[2])?;
    }
    let long = "s".repeat(300);
    for name in ["", "a/b", long.as_str()] {
        fixture.refused(&["snapshot", &pool, "create", name], &[1, 2])?;
    }
    fixture.refused(&["snapshot", &pool, "delete", "none"], &[1])?;
    fixture.refused(&kv(&pool, &["get", "a", "--snapshot", "none"]), &[1])?;
    fixture.done(&["snapshot", &pool, "create", "s"])?;
    fixture.refused(&["snapshot", &pool, "create", "s"], &[1])?;
    fixture.done(&["snapshot", &pool, "delete", "s"])?;
    fixture.refused(&["snapshot", &pool, "delete", "s"], &[1])?;
    intact(fixture, &pool)
}
