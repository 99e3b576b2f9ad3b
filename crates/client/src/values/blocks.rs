//! Large values: writing them to blocks before a record mentions them.
//!
//! Invariants: the bytes are written before the record can be; on an ordinary file the record does
//! not count without them. The last block is filled up with zeroes, so a value's blocks never hold
//! bytes of another owner.

use crate::base::cold;
use crate::base::error::{Error, Result};
use crate::content::durable;
use crate::session::space;
use crate::session::{BLOCK, Session};
use crate::tables::inode_table;
use alloc::vec;
use alloc::vec::Vec;
use pmem::ConstBuf;
use pool::layout::BlockAddr;
use pool::layout::value::{InBlocks, ValueRun};

/// How often the service is asked for longer runs.
const ROUNDS: u32 = 3;
const ZEROES: [u8; BLOCK as usize] = [0; BLOCK as usize];

/// Writes `value` to new blocks. `FileTooLarge` when the free blocks are in too many pieces.
pub(crate) fn write(s: &Session, value: &[u8]) -> Result<InBlocks> {
    let mut blocks = InBlocks::new(value.len() as u64);
    let want = (value.len() as u64).div_ceil(BLOCK);
    match take_few(s, want, &mut blocks).and_then(|()| fill(s, value, &blocks)) {
        Ok(()) => Ok(blocks),
        Err(e) => {
            give_back(s, &blocks);
            Err(e)
        }
    }
}

/// Up to `want` free blocks in one run.
fn take_run(s: &Session, want: u64) -> Result<(BlockAddr, u32)> {
    let ask = u32::try_from(want).unwrap_or(u32::MAX);
    let (block, got) = inode_table::alloc_blocks(s, ask, None)?;
    let len = u64::from(got).min(want) as u32;
    space::give_back(s, block + u64::from(len), got - len);
    Ok((block, len))
}

/// As `take`. Where much was freed a moment ago, long runs are there once the service has seen it.
fn take_few(s: &Session, want: u64, blocks: &mut InBlocks) -> Result<()> {
    for _ in 0..ROUNDS {
        match take(s, want, blocks) {
            Err(Error::FileTooLarge) => {
                give_back(s, blocks);
                *blocks = InBlocks::new(blocks.len);
                space::gather(s, want)?;
            }
            done => return done,
        }
    }
    take(s, want, blocks)
}

/// Takes `want` blocks, in order of their numbers: pieces come from the ends of what is free, so
/// only then neighbours are found to be one run.
fn take(s: &Session, want: u64, blocks: &mut InBlocks) -> Result<()> {
    if want == 0 {
        return Ok(());
    }
    let first = take_run(s, want)?;
    if u64::from(first.1) == want {
        add(blocks, first);
        return Ok(());
    }
    let mut taken = vec![first];
    let mut left = want - u64::from(first.1);
    let mut done = Ok(());
    while left > 0 && done.is_ok() {
        done = take_run(s, left).map(|run| {
            left -= u64::from(run.1);
            taken.push(run);
        });
    }
    taken.sort_unstable();
    for run in taken {
        if done.is_ok() && !add(blocks, run) {
            done = Err(Error::FileTooLarge);
        }
        if done.is_err() {
            space::give_back(s, run.0, run.1);
        }
    }
    done
}

fn add(blocks: &mut InBlocks, (block, len): (BlockAddr, u32)) -> bool {
    let epoch = 0;
    blocks.push(ValueRun { block, len, epoch })
}

fn fill(s: &Session, value: &[u8], blocks: &InBlocks) -> Result<()> {
    let mut rest = value;
    for run in blocks.runs() {
        let room = (u64::from(run.len) * BLOCK) as usize;
        let n = rest.len().min(room);
        let (now, later) = rest.split_at(n);
        s.copy_in(cold::VALUES, (run.block, 0), ConstBuf::from(now))?;
        let tail = n % BLOCK as usize;
        if tail > 0 {
            let zeroes = ConstBuf::from(&ZEROES[tail..]);
            s.segment(run.block)?
                .copy_in(run.block.offset() + n as u64, zeroes)?;
        }
        rest = later;
    }
    s.data().fence();
    Ok(())
}

/// What was written to these blocks counts with the record that speaks of them.
pub(crate) fn count(s: &Session, blocks: &InBlocks) -> Result<()> {
    if !durable::is_needed(s) {
        return Ok(());
    }
    let runs = blocks.runs().iter();
    let runs: Vec<(BlockAddr, u64)> = runs.map(|run| (run.block, run.len.into())).collect();
    durable::blocks(s, &runs)
}

/// What was stored to these blocks is durable, as the medium has it.
pub(crate) fn make_durable(s: &Session, block: BlockAddr, len: u32) -> Result<()> {
    if durable::is_needed(s) {
        s.segment(block)?
            .sync(block.offset(), (u64::from(len) * BLOCK) as usize)?;
    }
    s.data().fence();
    Ok(())
}

/// Returns blocks that no record mentions.
pub(crate) fn give_back(s: &Session, blocks: &InBlocks) {
    for run in blocks.runs() {
        space::give_back(s, run.block, run.len);
    }
}
