//! `holdfast-bench-kv`: the worker of `holdfast bench kv` and of the stores of `bench disk`, which
//! start it and tell it what to measure.
//!
//! Invariants: all stores stand behind one trait and get the same keys, values and order of
//! operations; every commit is durable by the store's own word; what is read is compared with
//! what was written.

mod bench;
mod clock;
#[path = "../../../crates/bench/src/worker/disk/counter.rs"]
mod counter;
mod data;
mod disk;
mod peers;
mod process;
mod store;
mod worker;

use std::ffi::OsString;
use std::process::ExitCode;
use store::Done;
use worker::Plan;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if words.first().is_some_and(|word| word == "peers") {
        peers::ALL.iter().for_each(|peer| println!("{}", peer.name));
        return ExitCode::SUCCESS;
    }
    let Some((role, plan)) = parse(&words) else {
        eprintln!("holdfast-bench-kv: works for holdfast bench kv, which starts it");
        return ExitCode::from(2);
    };
    match run(&role, plan, words.get(7)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("holdfast-bench-kv: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `ROLE PEER DIR KEYS VALUE quick|full HOLDFAST`
fn parse(words: &[OsString]) -> Option<(String, Plan)> {
    let text = |at: usize| words.get(at)?.to_str();
    let plan = Plan {
        peer: peers::find(text(1)?)?,
        dir: words.get(2)?.into(),
        keys: text(3)?.parse().ok().filter(|keys| *keys > 0)?,
        value: text(4)?.parse().ok()?,
        quick: text(5)? == "quick",
        holdfast: words.get(6)?.into(),
    };
    Some((text(0)?.into(), plan))
}

fn run(role: &str, plan: Plan, count: Option<&OsString>) -> Done<()> {
    match (role, count) {
        ("worker", None) => worker::serve(plan),
        ("reader", None) => worker::reader(&plan),
        ("disk", Some(counter)) => disk::serve(&plan, counter),
        ("victim", Some(count)) => worker::victim(&plan, count.as_ref()),
        _ => Err(format!("there is no role {role}").into()),
    }
}
