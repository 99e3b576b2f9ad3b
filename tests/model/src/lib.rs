//! The client's own code under a scheduler: threads stop at any access to a word of session memory,
//! and stores that nothing orders become visible late and in any order (`holdfast_pmem::model`).
//!
//! Each test was seen to fail with the fault that stands at it.
#![cfg(test)]
#![forbid(unsafe_code)]

mod journal;
mod leases;
mod lock;
mod publish;
mod space;
mod time;

use holdfast_client::{Caller, Client};
use holdfast_fuzz::session::Fixture;
use holdfast_pmem::model;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use std::sync::Arc;

/// Times that a thread is held up for long, in schedules where that is rare.
const DEPTH: usize = 4;

/// Schedules that each story is tried with; HF_SCHEDULES has another number.
fn schedules() -> usize {
    std::env::var("HF_SCHEDULES").map_or(2000, |n| n.parse().expect("a number"))
}

/// Root, as whom all calls are made.
const CALLER: Caller<'static> = Caller {
    uid: 0,
    gid: 0,
    groups: &[],
    umask: 0,
    privileged: true,
    ids: None,
};

/// What one thread does.
type Part = fn(&Client, usize);

/// Runs a story again and again, each time on a new session and with another schedule: `first`
/// alone, then `parts` at once, then `last` alone. In half of the schedules who goes on is chosen
/// at each point, in the other half few threads are held up for long.
fn play(first: fn(&Client), parts: &'static [Part], last: fn(&Client)) {
    let run = move || once(first, parts, last);
    let mut config = shuttle::Config::new();
    // The client keeps nodes and names on its stack.
    config.stack_size = 1 << 20;
    config.max_steps = shuttle::MaxSteps::None;
    let any = RandomScheduler::new(schedules() / 2);
    shuttle::Runner::new(any, config.clone()).run(run);
    let few = PctScheduler::new(DEPTH, schedules() / 2);
    shuttle::Runner::new(few, config).run(run);
}

fn once(first: fn(&Client), parts: &'static [Part], last: fn(&Client)) {
    model::begin();
    let fixture = Fixture::new(0, 0);
    let client = Arc::new(fixture.client().expect("a client"));
    first(&client);
    model::show_all();
    let start = |(n, part): (usize, &Part)| {
        let (client, part) = (client.clone(), *part);
        shuttle::thread::spawn(move || {
            part(&client, n);
            model::show_all();
        })
    };
    let threads: Vec<_> = parts.iter().enumerate().map(start).collect();
    for thread in threads {
        thread.join().expect("it ends");
    }
    last(&client);
    model::show_all();
}
