//! What the mapping cache did, for the run's report.
//!
//! Invariant: counts only grow; a thread of ours may count as well.

use crate::dispatch::process::process;

pub use holdfast_client::MapCount as What;

pub fn add(what: What, n: u64) {
    if let Some(p) = process().filter(|p| p.client.has_place()) {
        p.client.count_mapping(what, n);
    }
}
