//! `holdfast bench disk` on a small scale: every row comes out on both sides, and the pool did the
//! work of its side.

use super::expect;
use crate::bad_input::{Case, Fixture, Stop, wrong};
use serde_json::Value;

pub const CASES: &[(&str, Case)] = &[
    ("bench disk measures every row", every_row),
    ("bench disk wants a directory", refusals),
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
    let sheet: Value = match serde_json::from_str(&said) {
        Ok(sheet) => sheet,
        Err(error) => return wrong(format!("not JSON ({error}): {said}")),
    };
    let time = |row: &str, peer: &str| {
        let all = sheet["rows"].as_array()?;
        let cell = all
            .iter()
            .find(|cell| cell["row"] == row && cell["peer"] == peer)?;
        cell["figures"]["wall"]["median"].as_f64()
    };
    let sqlite = sheet["skipped"].as_array().is_none_or(|all| all.is_empty());
    for row in ROWS.iter().chain(SQLITE.iter().filter(|_| sqlite)) {
        for peer in ["fs", "holdfast"] {
            if !time(row, peer).is_some_and(|ns| ns > 0.0) {
                return wrong(format!("{row} of {peer} is not in {said}"));
            }
        }
    }
    expect("failures", &sheet["failures"].to_string(), "[]")?;
    let about = sheet["about"].as_array().into_iter().flatten();
    let served = about
        .filter_map(|line| line.as_str()?.split_once(" calls were served by pools"))
        .find_map(|(count, _)| count.parse::<u64>().ok());
    if served.is_none_or(|calls| calls < 2000) {
        return wrong(format!("the pool served {served:?} calls"));
    }
    expect(
        "names left",
        &std::fs::read_dir(&dir)?.count().to_string(),
        "0",
    )
}

fn refusals(fixture: &Fixture) -> Result<(), Stop> {
    fixture.refused(&["bench", "disk"], &[2])?;
    fixture.refused(&["bench", "disk", "/nowhere/at/all"], &[2])?;
    fixture.refused(&["bench", "webproxy", "/tmp"], &[2])
}
