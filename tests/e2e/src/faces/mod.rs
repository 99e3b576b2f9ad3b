//! Keys, values, snapshots and volumes through the faces that people use: the command, C and C++,
//! what the documents show, and the tools of LMDB.

mod ahead;
mod bench;
mod commands;
mod copying;
mod daemon;
mod documents;
mod expiry;
mod files;
mod huge;
mod installed;
pub mod interface;
mod look;
mod mount;
mod slow;

mod tracing;
mod transfer;
mod volumes;
mod warm;
mod whole;
mod words;

use crate::bad_input::{Fixture, Stop, run_cases, wrong};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// `hf-e2e faces`
pub fn main(names: &[&str]) -> ExitCode {
    let tables = [
        ahead::CASES,
        bench::CASES,
        commands::CASES,
        copying::CASES,
        mount::CASES,
        daemon::CASES,
        documents::CASES,
        expiry::CASES,
        files::CASES,
        huge::CASES,
        installed::CASES,
        interface::CASES,
        look::CASES,
        slow::CASES,
        tracing::CASES,
        transfer::CASES,
        volumes::CASES,
        warm::CASES,
        whole::CASES,
        words::CASES,
    ];
    run_cases("faces", &tables.concat(), names)
}

/// A new pool.
pub fn new_pool(fixture: &Fixture, name: &str) -> Result<String, Stop> {
    let pool = fixture.path(name).to_string_lossy().into_owned();
    fixture.done(&["pool", "create", &pool, "--size", "64M"])?;
    Ok(pool)
}

/// A script with `$hf` as the command and `$pool` as a pool, where the first failure ends it.
pub fn script(fixture: &Fixture, pool: &str, text: &str) -> Result<String, Stop> {
    let mut command = Command::new("bash");
    command.arg("-euo").arg("pipefail").arg("-c").arg(text);
    // Variables of the command itself, because the tests' environment is a clean one.
    let mut wrapped = Command::new("env");
    wrapped.arg(format!("hf={}", fixture.holdfast.display()));
    wrapped.arg(format!("pool={pool}"));
    wrapped.arg(command.get_program()).args(command.get_args());
    let ended = fixture.end_of(wrapped)?;
    match ended.code() {
        Some(0) => Ok(ended.out),
        _ => wrong(format!("{}: {}", ended.how(), ended.tail().join("; "))),
    }
}

/// Says so unless what was said is what was expected.
pub fn expect(what: &str, found: &str, expected: &str) -> Result<(), Stop> {
    match found == expected {
        true => Ok(()),
        false => wrong(format!("{what}: {found:?}, not {expected:?}")),
    }
}

/// The repository's tests, or their installed copy; beside them lie the documents.
pub fn repository(path: &str) -> Result<PathBuf, Stop> {
    let programs = std::env::var_os("HF_PROGRAMS").map(PathBuf::from);
    let root = programs.as_deref().and_then(|p| p.parent()?.parent());
    let root = root.ok_or(Stop::Wrong(
        "HF_PROGRAMS does not name tests/programs".into(),
    ))?;
    Ok(root.join(path))
}
