//! `holdfast bench` without the rest of `holdfast`: compares the peers that need no pool.
//!
//! `cargo run --release -p holdfast-bench --example bench -- [--quick] [--rounds N] [--json]
//! [--plot DIR] [--rows PART,...] [--peers PART,...]`

use holdfast_bench::{Error, Options};
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    match args.first().and_then(|word| word.to_str()) {
        Some(holdfast_bench::WORKER) => holdfast_bench::worker::main(&args[1..]).into(),
        Some(holdfast_bench::JANITOR) => holdfast_bench::janitor_main().into(),
        _ => bench(&args),
    }
}

fn bench(args: &[OsString]) -> ExitCode {
    let mut options = Options::default();
    let mut words = args.iter().filter_map(|word| word.to_str());
    let list = |text: Option<&str>| -> Vec<String> {
        text.unwrap_or_default()
            .split(',')
            .map(str::to_owned)
            .collect()
    };
    while let Some(word) = words.next() {
        match word {
            "--quick" => options.quick = true,
            "--json" => options.json = true,
            "--rounds" => options.rounds = words.next().and_then(|n| n.parse().ok()).unwrap_or(0),
            "--plot" => options.plot = words.next().map(Into::into),
            "--rows" => options.rows = list(words.next()),
            "--peers" => options.peers = list(words.next()),
            _ => return ExitCode::from(2),
        }
    }
    match holdfast_bench::run("files", &options) {
        Ok(text) => print!("{text}"),
        Err(error) => {
            if let Error::Incomplete(text, _) = &error {
                print!("{text}");
            }
            eprintln!("bench: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
