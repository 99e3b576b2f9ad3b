//! The tests of those modules that stand for themselves. The library has no libc, and a handler of
//! panics of its own, so that it cannot be built as a test itself.
#![expect(dead_code, reason = "the library uses what the tests do not")]

extern crate alloc;

#[path = "../src/dispatch/args.rs"]
mod args;
#[path = "../src/dispatch/mapping/cache.rs"]
mod cache;
#[path = "../src/calls.rs"]
mod calls;
#[path = "../src/dispatch/mutex.rs"]
mod mutex;
mod dispatch {
    pub(crate) use crate::{args, mutex};
}
#[path = "../src/dispatch/mapping/ahead/jobs.rs"]
mod jobs;
#[path = "../src/dispatch/trace/line.rs"]
mod line;
#[path = "../src/lock.rs"]
mod lock;
#[path = "../src/dispatch/mapping/pressure.rs"]
mod pressure;
#[path = "../src/dispatch/mapping/ahead/stream/mod.rs"]
mod stream;
#[path = "../src/dispatch/trace/structs.rs"]
mod structs;
#[path = "../src/sys.rs"]
mod sys;
#[path = "../src/dispatch/trace/words.rs"]
mod words;
