//! `holdfast bench`: the way to the crate of benchmarks.
//!
//! Invariant: without a name it only lists; what was measured is printed even where a part of
//! it failed. The hidden commands are the benchmark's own
//! processes, and never print usage.

use crate::args::BenchArgs;
use crate::failure::{self, Failure};
use crate::json::Json;
use holdfast_bench::{Error, Options};
use std::ffi::OsString;
use std::io::Write;

/// `bench`.
pub fn bench(args: &BenchArgs, json: bool) -> Result<u8, Failure> {
    let Some(name) = &args.name else {
        return list(json);
    };
    let options = Options {
        rounds: args.rounds,
        quick: args.quick,
        rows: args.rows.clone(),
        peers: args.peers.clone(),
        json,
        plot: args.plot.clone(),
        dir: args.dir.clone(),
        large: args.large.0,
        dense: args.dense,
    };
    let known = holdfast_bench::list()
        .iter()
        .any(|(known, _)| known == name);
    let done = holdfast_bench::run(name, &options);
    if let Err(Error::Incomplete(text, _)) = &done {
        print(text)?;
    }
    let text = done.map_err(|e| {
        let failure = Failure::new(e.to_string());
        if let Some(fix) = e.fix() {
            failure.fix(fix)
        } else if known {
            match e {
                Error::Usage(_) => failure.code(failure::USAGE),
                _ => failure,
            }
        } else {
            failure
                .fix("holdfast bench lists them")
                .code(failure::USAGE)
        }
    })?;
    print(&text)?;
    Ok(failure::OK)
}

fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    failure::printed(writeln!(out, "{}", text.trim_end()))
}

fn list(json: bool) -> Result<u8, Failure> {
    let mut out = std::io::stdout().lock();
    let all = holdfast_bench::list();
    let done = if json {
        let item = |(name, what): &(&str, &str)| {
            let text = |t: &str| Json::Text(t.into());
            Json::Object(vec![("name", text(name)), ("measures", text(what))])
        };
        writeln!(
            out,
            "{}",
            Json::List(all.iter().map(item).collect()).render()
        )
    } else {
        all.iter()
            .try_for_each(|(name, what)| writeln!(out, "{name:<10} {what}"))
    };
    failure::printed(done)?;
    Ok(failure::OK)
}

/// Runs as one of the benchmark's own processes, if the command line says so.
pub fn hidden(words: &[OsString]) -> Option<u8> {
    let (first, rest) = words.split_first()?;
    match first.to_str()? {
        holdfast_bench::WORKER => Some(holdfast_bench::worker::main(rest)),
        holdfast_bench::JANITOR => Some(holdfast_bench::janitor_main()),
        _ => None,
    }
}
