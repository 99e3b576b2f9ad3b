//! `holdfast-bench`: what `holdfast bench` runs.
//!
//! Invariants: without a name it only lists the benchmarks; what was measured is printed even if a
//! part of it failed; an error is one sentence, with a line `Fix: ...` where there is a remedy. The
//! hidden commands are the benchmark's own processes, and never print usage.
#![forbid(unsafe_code)]

mod args;
// The same way to write a size as on the other command line.
#[path = "../../cli/src/size.rs"]
mod size;

use args::Args;
use clap::Parser;
use holdfast_bench::{Error, Options};
use serde_json::json;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

const FAILED: u8 = 1;
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    match words.first().and_then(|word| word.to_str()) {
        Some(holdfast_bench::WORKER) => holdfast_bench::worker::main(&words[1..]).into(),
        Some(holdfast_bench::JANITOR) => holdfast_bench::janitor_main().into(),
        _ => match Args::try_parse() {
            Ok(args) => bench(args).into(),
            Err(error) => usage(&error).into(),
        },
    }
}

/// Help and version are no errors.
fn usage(error: &clap::Error) -> u8 {
    if !error.use_stderr() {
        let _ = error.print();
        return 0;
    }
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    let what = first.trim_start_matches("error: ");
    say(what, Some("see holdfast bench --help".into()));
    USAGE
}

fn bench(args: Args) -> u8 {
    let Some(name) = &args.name else {
        return list(args.json);
    };
    let options = Options {
        rounds: args.rounds,
        quick: args.quick,
        rows: args.rows,
        peers: args.peers,
        json: args.json,
        plot: args.plot,
        programs: args.programs,
        dir: args.dir,
        large: args.large.0,
        dense: args.dense,
    };
    match holdfast_bench::run(name, &options) {
        Ok(text) => print(&text),
        Err(error) => {
            if let Error::Incomplete(text, _) = &error {
                print(text);
            }
            let (fix, status) = match &error {
                Error::Unknown(_) => (Some("holdfast bench lists the benchmarks".into()), USAGE),
                Error::Usage(_) => (error.fix().map(Into::into), USAGE),
                _ => (error.fix().map(Into::into), FAILED),
            };
            say(error, fix);
            status
        }
    }
}

fn say(what: impl std::fmt::Display, fix: Option<String>) {
    let what = what.to_string();
    let mut err = std::io::stderr().lock();
    // A full disk there is no reason to end.
    let _ = writeln!(err, "holdfast: {}.", what.trim_end_matches('.'));
    if let Some(fix) = fix {
        let _ = writeln!(err, "Fix: {fix}");
    }
}

/// A reader that has seen enough is no failure.
fn print(text: &str) -> u8 {
    match writeln!(std::io::stdout().lock(), "{}", text.trim_end()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            say(format!("standard output: {e}"), None);
            FAILED
        }
        _ => 0,
    }
}

fn list(as_json: bool) -> u8 {
    let all = holdfast_bench::list();
    let lines = all.iter().map(|(name, what)| format!("{name:<10} {what}"));
    match as_json {
        false => print(&lines.collect::<Vec<_>>().join("\n")),
        true => {
            let item = |(name, what): &(&str, &str)| json!({ "name": name, "measures": what });
            print(&json!(all.iter().map(item).collect::<Vec<_>>()).to_string())
        }
    }
}
