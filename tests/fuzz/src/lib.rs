//! What fuzzers feed with bytes: one function for each kind of bytes that come from someone else.
//!
//! Invariants: a function panics only where Holdfast is wrong, ends for every input, and keeps
//! nothing from one call to the next; `fuzz/` runs them under libFuzzer, `tests/replay.rs` under
//! `cargo test`.
#![forbid(unsafe_code)]

mod environment;
mod format;
mod input;
mod journal;
pub mod load;
mod object;
mod protocol;
mod proxy;
mod sample;
mod service;
pub mod session;
mod stream;
mod table;

/// A kind of input: the name of its corpus, and what is done with it.
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target {
        name: "environment",
        run: environment::run,
    },
    Target {
        name: "format",
        run: format::run,
    },
    Target {
        name: "journal",
        run: journal::run,
    },
    Target {
        name: "load",
        run: load::run,
    },
    Target {
        name: "object",
        run: object::run,
    },
    Target {
        name: "protocol",
        run: protocol::run,
    },
    Target {
        name: "proxy",
        run: proxy::run,
    },
    Target {
        name: "service",
        run: service::run,
    },
    Target {
        name: "session",
        run: session::run,
    },
    Target {
        name: "stream",
        run: stream::run,
    },
    Target {
        name: "table",
        run: table::run,
    },
];

/// Runs the target of this name.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.expect("a target").run)(bytes);
}
