//! Holdfast proxy: calls for the processes of users who do not own the pool.
//!
//! A proxy is a process of the pool's owner, and to the pool a client like any other. The service
//! hands it the connections of one user (`docs/spec/proxy.md`). For each process of that user it
//! has a place in the session, and makes the calls that the process asks for, with the rights that
//! the kernel says the process has.
//!
//! Invariants:
//!  * Whose process asks, and as whom, is what the kernel said when it connected, and what it gave
//!    up since; never what it says.
//!  * Everything that the other side stores is copied once, then checked, then used.
//!  * Nobody makes another one wait: each call under way has a thread of its own, and no thread
//!    waits for the other side but in its own line.
//!  * A process that asks for too much gets an error; nothing of it outlives its connection.
#![forbid(unsafe_code)]

mod answers;
mod apart;
mod base;
mod calls;
mod channel;
mod connection;
mod keys;
mod listed;
mod maps;
mod member;
mod pipes;
mod proxy;
mod rights;
mod run;
mod threads;
mod tokens;

pub use proxy::serve;
