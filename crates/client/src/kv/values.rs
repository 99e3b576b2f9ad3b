//! Large values: writing them to blocks before a record speaks of them.
//!
//! Invariant: the bytes are durable as the medium has it before the record can be; the last block
//! is filled up with zeroes, so nothing of another owner is ever in a value's blocks.

use crate::error::{Error, Result};
use crate::session::{BLOCK, Session};
use crate::space;
use pmem::ConstBuf;
use pool::layout::value::{InBlocks, ValueRun};

/// The medium `file`: only system calls make bytes durable.
const MEDIUM_FILE: u32 = 1;
const ZEROES: [u8; BLOCK as usize] = [0; BLOCK as usize];

/// Writes `value` to new blocks. `FileTooLarge` when the free blocks are in too many pieces.
pub(super) fn write(s: &Session, value: &[u8]) -> Result<InBlocks> {
    let mut blocks = InBlocks::new(value.len() as u64);
    match write_runs(s, value, &mut blocks) {
        Ok(()) => Ok(blocks),
        Err(e) => {
            give_back(s, &blocks);
            Err(e)
        }
    }
}

fn write_runs(s: &Session, value: &[u8], blocks: &mut InBlocks) -> Result<()> {
    let mut rest = value;
    while !rest.is_empty() {
        let want = (rest.len() as u64).div_ceil(BLOCK);
        let ask = u32::try_from(want).unwrap_or(u32::MAX);
        let (block, got) = space::alloc(s, ask, None, true)?;
        let len = u64::from(got).min(want) as u32;
        space::give_back(s, block + u64::from(len), got - len);
        let period = 0;
        if !blocks.push(ValueRun { block, len, period }) {
            space::give_back(s, block, len);
            return Err(Error::FileTooLarge);
        }
        let n = rest.len().min((u64::from(len) * BLOCK) as usize);
        let (now, later) = rest.split_at(n);
        s.data().copy_in(block * BLOCK, ConstBuf::from(now))?;
        let tail = n % BLOCK as usize;
        if tail > 0 {
            let zeroes = ConstBuf::from(&ZEROES[tail..]);
            s.data().copy_in(block * BLOCK + n as u64, zeroes)?;
        }
        if s.medium() == MEDIUM_FILE {
            s.data()
                .sync(block * BLOCK, (u64::from(len) * BLOCK) as usize)?;
        }
        rest = later;
    }
    s.data().fence();
    Ok(())
}

/// Returns blocks that no record mentions.
pub(super) fn give_back(s: &Session, blocks: &InBlocks) {
    for run in blocks.runs() {
        space::give_back(s, run.block, run.len);
    }
}
