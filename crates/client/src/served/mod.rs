//! A pool that is reached through its proxy: what a process of another user than the pool's owner
//! has in the place of a `Client`.
//!
//! The proxy is a process of the pool's owner that makes the calls of others, each with the rights
//! of whoever asked (`docs/spec/proxy.md`). A process and its proxy share a *channel*: memory in
//! which each call has a *line* of its own.
//!
//! Invariants:
//!  * Nothing of the pool is mapped here: what a call tells is all that its caller learns.
//!  * What this side claims about itself narrows its rights or changes nothing; the proxy asks the
//!    kernel who is at the other end.
//!  * A process and its children are told apart by connections, one for each, which the proxy makes
//!    before the child is born. A connection that hangs up is a process that has ended.

pub mod answers;
mod changes;
mod channel;
mod data;
mod keys;
mod known;
mod life;
mod maps;
mod names;
pub mod pairs;
mod pipes;
mod report;
mod scan;
mod snapshots;
mod sockets;
mod tokens;
mod whole;
pub mod wire;

pub use changes::Batch;
pub use channel::Served;
pub use keys::View;
pub use report::Report;
pub use scan::Scan;
pub use snapshots::{decode_snapshots, encode_snapshots};
