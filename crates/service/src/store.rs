//! The grants of a session as the applier of journal records sees them.
//!
//! Invariant: a block leaves the runs when an extent takes it, and is never in them twice.

use crate::runs::Runs;
use holdfast_pool::apply::Grants;

/// Blocks that were handed out and are not used yet.
pub struct Held<'a>(pub &'a mut Runs);

impl Grants for Held<'_> {
    fn holds(&self, block: u64, len: u64) -> bool {
        self.0.contains(block, len)
    }

    fn take(&mut self, block: u64, len: u64) {
        self.0.remove(block, len);
    }
}
