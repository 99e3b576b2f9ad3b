//! The grants of a session as the applier of journal records sees them.
//!
//! Invariant: a block leaves the runs when an extent takes it, and is never in them twice.

use crate::journal::runs::Runs;
use holdfast_pool::apply::Grants;
use holdfast_pool::layout::BlockAddr;
use holdfast_pool::space::Run;

/// Blocks that were handed out and are not used yet.
pub struct Held<'a>(pub &'a mut Runs);

impl Grants for Held<'_> {
    fn holds(&self, block: BlockAddr, len: u64) -> bool {
        self.0.contains(block.word(), len)
    }

    fn take(&mut self, block: BlockAddr, len: u64) {
        self.0.remove(block.word(), len);
    }
}

/// The same, with a note of what was taken, so that it can be given back.
pub struct Noted<'a> {
    pub granted: &'a mut Runs,
    pub taken: &'a mut Vec<Run>,
}

impl Grants for Noted<'_> {
    fn holds(&self, block: BlockAddr, len: u64) -> bool {
        self.granted.contains(block.word(), len)
    }

    fn take(&mut self, block: BlockAddr, len: u64) {
        self.granted.remove(block.word(), len);
        self.taken.push(Run::of_data(block, len));
    }
}
