//! Changes of keyspaces that are not in the journal but in blocks.
//!
//! Invariant: clients can write their bytes; they are copied before they are parsed, and never more
//! than `SPILLED_MAX` of them.

use holdfast_pmem::Region;
use holdfast_pool::format::PAGE_LEN;
use holdfast_pool::layout::value::InBlocks;

/// Bytes of the changes of one record that are not in the journal.
pub const SPILLED_MAX: u64 = 1 << 30;

/// The changes that are in blocks; `None`: they are not in the pool, or more than there may be.
pub fn read_spilled(data: &Region, blocks: &InBlocks, len: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    if len > SPILLED_MAX {
        return None;
    }
    for run in blocks.runs() {
        let at = bytes.len();
        let left = len.checked_sub(at as u64)?;
        let n = left.min(u64::from(run.len) * PAGE_LEN) as usize;
        bytes.resize(at + n, 0);
        data.read(run.block.offset(), &mut bytes[at..]).ok()?;
    }
    Some(bytes)
}
