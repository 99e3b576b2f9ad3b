//! `holdfast bench disk`, `programs`, `sharing`, `mapping` and `block` on a small scale: every row
//! comes out for all peers, and the pool did the work of its side.

use super::expect;
use crate::bad_input::{Case, Fixture, Stop, wrong};
use crate::process::on_path;
use serde_json::Value;

pub const CASES: &[(&str, Case)] = &[
    ("bench disk measures every row", every_row),
    ("bench disk wants a directory", refusals),
    ("bench programs measures programs", programs),
    ("bench sharing measures every row", sharing),
    ("bench mapping measures every row", mapping),
    ("bench block measures every row", block),
    ("bench block measures a loop device", loop_device),
    ("bench block measures programs on volumes", macro_rows),
];

/// Those that need neither a server nor other stores.
const ROWS: &[&str] = &[
    "overwrite-4k",
    "append-100",
    "append-4k",
    "new-file",
    "save-rename",
    "page-192m",
    "page-large",
    "page-800-runs",
    "processes-1",
    "processes-4",
    "processes-8",
    "processes-16",
    "bulk",
    "create",
    "stat",
    "unlink",
    "cold-read",
];
const SQLITE: &[&str] = &["sqlite-wal", "sqlite-delete"];

fn every_row(fixture: &Fixture) -> Result<(), Stop> {
    let dir = fixture.path("disk");
    std::fs::create_dir(&dir)?;
    let place = dir.to_string_lossy().into_owned();
    let rows = [ROWS, SQLITE].concat().join(",");
    let line = [
        "bench", "disk", &place, "--quick", "--json", "--rows", &rows,
    ];
    let said = fixture.done(&line)?.out;
    let sheet = sheet(&said)?;
    let time = |row: &str, peer: &str| figure(&sheet, "disk", row, peer, "wall");
    let sqlite = sheet["skipped"].as_array().is_none_or(|all| all.is_empty());
    for row in ROWS.iter().chain(SQLITE.iter().filter(|_| sqlite)) {
        for peer in ["fs", "holdfast"] {
            if !time(row, peer).is_some_and(|ns| ns > 0.0) {
                return wrong(format!("{row} of {peer} is not in {said}"));
            }
        }
    }
    sound(&sheet)?;
    expect(
        "names left",
        &std::fs::read_dir(&dir)?.count().to_string(),
        "0",
    )
}

/// Every peer has figures of its rows, and what the ways are for shows in them.
fn mapping(fixture: &Fixture) -> Result<(), Stop> {
    let said = fixture
        .done(&["bench", "mapping", "--quick", "--json"])?
        .out;
    let sheet = sheet(&said)?;
    expect("failures", &sheet["failures"].to_string(), "[]")?;
    let both = ["read", "default", "populate", "pool"];
    let ahead = ["advised", "ahead", "ahead-advised"];
    let got = |group: &str, row: &str, peer: &str, name: &str| {
        let found = figure(&sheet, group, row, peer, name);
        found.map_or_else(|| wrong(format!("{name} of {row}, {peer}: {said}")), Ok)
    };
    for size in ["4k", "8k", "16k", "32k", "64k"] {
        for row in ["seq", "random"].map(|order| format!("{order}-{size}")) {
            for peer in both.iter().chain(&ahead) {
                for name in ["wall", "map", "access", "unmap", "faults"] {
                    got("records", &row, peer, name)?;
                }
            }
        }
    }
    for peer in both.iter().chain(&["cache", "cache-20"]) {
        got("files", "zipf-1m", peer, "wall")?;
    }
    let faults = |peer| got("files", "zipf-1m", peer, "faults");
    let (default, cached) = (faults("default")?, faults("cache")?);
    if cached > default * 0.9 {
        return wrong(format!("the cache has {cached} faults, and none {default}"));
    }
    Ok(())
}

fn sheet(said: &str) -> Result<Value, Stop> {
    match serde_json::from_str(said) {
        Ok(sheet) => Ok(sheet),
        Err(error) => wrong(format!("not JSON ({error}): {said}")),
    }
}

/// The median of a figure.
fn figure(sheet: &Value, group: &str, row: &str, peer: &str, figure: &str) -> Option<f64> {
    let mut all = sheet["rows"].as_array()?.iter();
    let cell =
        all.find(|cell| cell["group"] == group && cell["row"] == row && cell["peer"] == peer)?;
    cell["figures"][figure]["median"].as_f64()
}

/// Nothing failed, and pools served calls.
fn sound(sheet: &Value) -> Result<(), Stop> {
    expect("failures", &sheet["failures"].to_string(), "[]")?;
    let about = sheet["about"].as_array().into_iter().flatten();
    let served = about
        .filter_map(|line| line.as_str()?.split_once(" calls were served by pools"))
        .find_map(|(count, _)| count.parse::<u64>().ok());
    match served {
        Some(2000..) => Ok(()),
        _ => wrong(format!("the pool served {served:?} calls")),
    }
}

/// Programs that every machine has which runs these tests; the others are alike.
fn programs(fixture: &Fixture) -> Result<(), Stop> {
    let (rows, peers) = ("tar,python,true,builtins,walks,copy", "holdfast-posix");
    let line = [
        "bench", "programs", "--quick", "--json", "--rows", rows, "--peers", peers,
    ];
    let said = fixture.done(&line)?.out;
    let sheet = sheet(&said)?;
    sound(&sheet)?;
    for row in rows.split(',') {
        for (group, peer) in ["warm", "cold"]
            .iter()
            .flat_map(|g| [(g, "tmpfs"), (g, peers)])
        {
            let got = |name| figure(&sheet, group, row, peer, name);
            for name in ["wall", "cpu", "faults", "waits"] {
                // A program that waits for nobody is no failure.
                if !got(name).is_some_and(|value| value > 0.0 || name == "waits") {
                    return wrong(format!(
                        "{group} {name} of {row} on {peer} is not in {said}"
                    ));
                }
            }
            let expected = *group == "warm" && peer == peers;
            expect(
                "the service's part",
                &got("service").is_some().to_string(),
                &expected.to_string(),
            )?;
        }
    }
    Ok(())
}

/// Who is not root measures no other users, and says so.
fn sharing(fixture: &Fixture) -> Result<(), Stop> {
    let said = fixture
        .done(&["bench", "sharing", "--quick", "--json"])?
        .out;
    let sheet = sheet(&said)?;
    expect("failures", &sheet["failures"].to_string(), "[]")?;
    let skipped = |name: &str| {
        let mut all = sheet["skipped"].as_array().into_iter().flatten();
        all.any(|skipped| skipped["peer"] == name)
    };
    let peers = ["tmpfs", "holdfast", "holdfast-users"];
    let rows = [
        "alone", "apart", "together", "reading", "written", "database",
    ];
    for row in rows.iter().filter(|row| !skipped(row)) {
        for peer in peers.iter().filter(|peer| !skipped(peer)) {
            if !figure(&sheet, "all", row, peer, "wall").is_some_and(|ns| ns > 0.0) {
                return wrong(format!("{row} of {peer} is not in {said}"));
            }
        }
    }
    Ok(())
}

fn refusals(fixture: &Fixture) -> Result<(), Stop> {
    fixture.refused(&["bench", "disk"], &[2])?;
    fixture.refused(&["bench", "disk", "/nowhere/at/all"], &[2])?;
    fixture.refused(&["bench", "programs", "/tmp"], &[2])?;
    fixture.refused(&["bench", "webproxy", "/tmp"], &[2])
}

/// One of each kind of peers: memory, a file, volumes under windows and by the kernel, a server.
fn block(fixture: &Fixture) -> Result<(), Stop> {
    let peers = "memcpy-nt,tmpfs,pmap-cache,clflushopt,x4,holdfast-nbd";
    let said = fixture
        .done(&["bench", "block", "--quick", "--json", "--peers", peers])?
        .out;
    let sheet = sheet(&said)?;
    let skipped = sheet["skipped"].as_array().map_or(0, Vec::len);
    let servers = ["fio", "nbdkit"].into_iter().all(on_path);
    if servers && skipped > 0 {
        return wrong(format!("a peer was skipped: {said}"));
    }
    for group in ["4k", "256k"] {
        for row in [
            "read",
            "read-random-32",
            "write",
            "write-random",
            "write-random-32",
        ] {
            for peer in peers.split(',').take(if servers { 6 } else { 5 }) {
                if peer == "x4" && row.ends_with("32") {
                    continue;
                }
                let time = figure(&sheet, group, row, peer, "wall");
                if !time.is_some_and(|ns| ns > 0.0) {
                    return wrong(format!("{group} {row} of {peer} is not in {said}"));
                }
            }
        }
    }
    match sheet["failures"]
        .as_array()
        .is_some_and(|all| all.is_empty())
    {
        true => Ok(()),
        false => wrong(format!("something failed: {said}")),
    }
}

/// Each peer has each row, unless one of them is skipped; nothing failed.
fn complete(said: &str, groups: &[&str], rows: &[&str], peers: &[&str]) -> Result<(), Stop> {
    let sheet = sheet(said)?;
    expect("failures", &sheet["failures"].to_string(), "[]")?;
    if let Some(skipped) = sheet["skipped"].as_array().and_then(|all| all.first()) {
        return Err(Stop::Skip(format!("skipped: {skipped}")));
    }
    for group in groups {
        for (row, peer) in rows
            .iter()
            .flat_map(|row| peers.iter().map(move |p| (row, p)))
        {
            if !figure(&sheet, group, row, peer, "wall").is_some_and(|ns| ns > 0.0) {
                return wrong(format!("{group} {row} of {peer} is not in {said}"));
            }
        }
    }
    Ok(())
}

/// The benchmark took away what it had set up, or its janitor would have said what stays.
fn measured(fixture: &Fixture, line: &[&str]) -> Result<String, Stop> {
    let ended = fixture.done(line)?;
    match ended.err.contains(" stays: ") {
        true => wrong(ended.err),
        false => Ok(ended.out),
    }
}

fn loop_device(fixture: &Fixture) -> Result<(), Stop> {
    fixture.need_root()?;
    let line = ["bench", "block", "--quick", "--json", "--peers", "loop"];
    let rows = ["read", "write-random", "write-random-32"];
    complete(
        &measured(fixture, &line)?,
        &["4k", "256k"],
        &rows,
        &["loop"],
    )
}

fn macro_rows(fixture: &Fixture) -> Result<(), Stop> {
    fixture.refused(&["bench", "kv", "--macro"], &[2])?;
    fixture.need_root()?;
    let said = measured(fixture, &["bench", "block", "--macro", "--quick", "--json"])?;
    let rows = ["untar", "tar", "search", "build", "database"];
    complete(
        &said,
        &["programs"],
        &rows,
        &["tmpfs", "ext4-loop", "holdfast"],
    )
}
