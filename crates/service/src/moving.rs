//! Moving data out of the end of a pool that is to become smaller.
//!
//! Invariants:
//!  * Nobody uses the pool, and it has no snapshots: what one has stays where it is.
//!  * Data is in its new place, durably, before the commit whose trees lead there; that place was
//!    free. So whatever interrupts this leaves the pool as it was, but for where some data is.

use crate::base::error::{Error, Result};
use crate::restoring::DataFile;
use holdfast_pool::format::PAGE_LEN;
use holdfast_pool::layout::extent::{self, Extent};
use holdfast_pool::layout::value::{self, InBlocks, ValueRun};
use holdfast_pool::layout::{BlockAddr, EXTENTS, VALUES};
use holdfast_pool::segment::DATA_ALIGN;
use holdfast_pool::space::Run;
use holdfast_pool::tree::Batch;
use holdfast_pool::{Pool, WriteToken};
use std::ops::ControlFlow;
use std::path::Path;

/// Blocks that one commit moves, or a few more.
const STEP: u64 = 16 * 1024;
/// Blocks of a huge page.
const HUGE: u64 = 512;
const WORK: usize = 10_000;

/// An entry of a tree, with blocks in the end of the pool.
type Entry = (Vec<u8>, Vec<u8>);

/// A pool of which the blocks from `end` on are to be free.
pub(crate) struct Moving<'p> {
    pub directory: &'p Path,
    pub pool: &'p mut Pool,
    pub token: &'p WriteToken,
    pub data: &'p DataFile,
    pub end: u64,
}

impl Moving<'_> {
    /// Moves whatever is in the way. `EndInUse`: there is more than fits below the end.
    pub fn all(&mut self) -> Result<()> {
        while self.pool.has_cut() {
            let done = self.pool.reclaim_some(self.token, WORK);
            done.map_err(|e| self.failed(e))?;
        }
        if self.pool.data_space().count_used() > self.end {
            return Err(self.too_much());
        }
        for tree in [EXTENTS, VALUES] {
            let mut from = Some(Vec::new());
            while let Some(at) = from {
                from = self.step(tree, &at)?;
            }
        }
        Ok(())
    }

    fn failed(&self, error: holdfast_pool::Error) -> Error {
        Error::Pool {
            path: self.directory.into(),
            error,
        }
    }

    fn too_much(&self) -> Error {
        let bytes = self.pool.data_space().count_used() * PAGE_LEN;
        let least = bytes.max(self.end * PAGE_LEN + 1);
        let least = least.next_multiple_of(DATA_ALIGN);
        self.failed(holdfast_pool::Error::EndInUse { least })
    }

    /// Moves what some entries from a key on have; where the next step begins.
    fn step(&mut self, tree: u8, from: &[u8]) -> Result<Option<Vec<u8>>> {
        self.keep_out()?;
        let found = self.beyond(tree, from);
        let (entries, next) = found.map_err(|e| self.failed(e))?;
        if entries.is_empty() {
            return Ok(None);
        }
        let (data, end) = (self.data, self.end);
        let batch = self.pool.begin(self.token);
        let moved = Work { batch, data, end }.all(tree, &entries);
        let freed = moved.and_then(|()| Ok(self.pool.reclaim()?));
        match freed {
            Ok(()) => Ok(next),
            Err(Failure::Pool(holdfast_pool::Error::NoSpace)) => Err(self.too_much()),
            Err(Failure::Pool(error)) => Err(self.failed(error)),
            Err(Failure::Data(error)) => Err(Error::io("moving data")(error)),
        }
    }

    /// Nothing that is free in the end is used from now on.
    fn keep_out(&mut self) -> Result<()> {
        let len = self.pool.data_space().len();
        while let Some(run) = self.pool.data_space().next_free(self.end, len) {
            self.pool.grant_again(run).map_err(|e| self.failed(e))?;
        }
        Ok(())
    }

    /// Entries with blocks in the end, and the key behind them unless they are all.
    fn beyond(
        &self,
        tree: u8,
        from: &[u8],
    ) -> holdfast_pool::Result<(Vec<Entry>, Option<Vec<u8>>)> {
        let (mut entries, mut blocks, mut bad) = (Vec::new(), 0, None);
        self.pool.reader().scan(tree, from, None, |key, value| {
            match runs(tree, key, value) {
                Ok(runs) => {
                    let beyond = runs.iter().filter(|run| run.end() > self.end);
                    let beyond: u64 = beyond.map(|run| run.len).sum();
                    if beyond > 0 {
                        entries.push((key.to_vec(), value.to_vec()));
                        blocks += beyond;
                    }
                }
                Err(e) => bad = Some(e),
            }
            match bad.is_some() || blocks >= STEP {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })?;
        if let Some(bad) = bad {
            return Err(bad);
        }
        let is_all = blocks < STEP;
        let next = entries.last().filter(|_| !is_all);
        let next = next.map(|(key, _)| [key, &[0][..]].concat());
        Ok((entries, next))
    }
}

/// The blocks of an entry.
fn runs(tree: u8, key: &[u8], value: &[u8]) -> holdfast_pool::Result<Vec<Run>> {
    if tree == EXTENTS {
        let (_, file_block) = extent::parse_key(key)?;
        let e = Extent::decode(file_block, value)?;
        return Ok(vec![Run::of_data(e.block, e.len.into())]);
    }
    let blocks = value::blocks_of(value)?;
    let runs = blocks.iter().flat_map(InBlocks::runs);
    Ok(runs
        .map(|run| Run::of_data(run.block, run.len.into()))
        .collect())
}

enum Failure {
    Pool(holdfast_pool::Error),
    Data(std::io::Error),
}

impl From<holdfast_pool::Error> for Failure {
    fn from(error: holdfast_pool::Error) -> Failure {
        Failure::Pool(error)
    }
}

impl From<holdfast_pool::layout::BadValue> for Failure {
    fn from(bad: holdfast_pool::layout::BadValue) -> Failure {
        Failure::Pool(bad.into())
    }
}

type Done<T = ()> = std::result::Result<T, Failure>;

struct Work<'w, 'p> {
    batch: Batch<'p>,
    data: &'w DataFile,
    end: u64,
}

impl Work<'_, '_> {
    fn all(mut self, tree: u8, entries: &[Entry]) -> Done {
        for entry in entries {
            match tree {
                EXTENTS => self.extent(entry)?,
                _ => self.value(entry)?,
            }
        }
        self.data.sync().map_err(Failure::Data)?;
        self.batch.commit(|_| {})?;
        Ok(())
    }

    /// Moves the part of an extent that is in the end.
    fn extent(&mut self, (key, value): &Entry) -> Done {
        let (ino, file_block) = extent::parse_key(key)?;
        let e = Extent::decode(file_block, value)?;
        let from = Run::of_data(e.block, e.len.into());
        let kept = self.end.saturating_sub(from.start);
        if kept > 0 {
            let len = kept as u32;
            self.batch
                .put(EXTENTS, key, &Extent { len, ..e }.encode())?;
        }
        let gone = Run::new(from.start + kept, from.len - kept);
        let mut done = 0;
        while done < gone.len {
            let to = self.copy(Run::new(gone.start + done, gone.len - done))?;
            let moved = Extent {
                file_block: file_block + kept + done,
                block: BlockAddr::new(0, to.start),
                len: to.len as u32,
                epoch: self.batch.superblock().epoch,
            };
            let key = extent::key(ino, moved.file_block);
            self.batch.put(EXTENTS, &key, &moved.encode())?;
            done += to.len;
        }
        Ok(self.batch.drop_data(gone, e.epoch)?)
    }

    /// Moves the parts of a value that are in the end.
    fn value(&mut self, (key, bytes): &Entry) -> Done {
        let Some(old) = value::blocks_of(bytes)? else {
            return Ok(());
        };
        let (mut new, now) = (InBlocks::new(old.len), self.batch.superblock().epoch);
        for run in old.runs() {
            let from = Run::of_data(run.block, run.len.into());
            let kept = self.end.saturating_sub(from.start).min(from.len);
            if kept > 0 {
                push(&mut new, Run::new(from.start, kept), run.epoch)?;
            }
            let mut done = kept;
            while done < from.len {
                let to = self.copy(Run::new(from.start + done, from.len - done))?;
                push(&mut new, to, now)?;
                done += to.len;
            }
            if kept < from.len {
                let gone = Run::new(from.start + kept, from.len - kept);
                self.batch.drop_data(gone, run.epoch)?;
            }
        }
        let head = bytes.len() - value::body(bytes).len();
        let mut entry = [0; value::HEAD_MAX + value::IN_BLOCKS_MAX];
        entry[..head].copy_from_slice(&bytes[..head]);
        let len = head + new.encode(&mut entry[head..]);
        self.batch.put(VALUES, key, &entry[..len])?;
        Ok(())
    }

    /// Copies as many of the blocks as have room in one piece; where they are now.
    fn copy(&mut self, from: Run) -> Done<Run> {
        let align = if from.len >= HUGE { HUGE } else { 1 };
        let to = self.batch.alloc_data(from.len, align)?;
        self.batch.use_data(to)?;
        let addr = |block| BlockAddr::new(0, block);
        self.data
            .copy(addr(from.start), addr(to.start), to.len)
            .map_err(Failure::Data)?;
        Ok(to)
    }
}

fn push(blocks: &mut InBlocks, run: Run, epoch: u32) -> Done {
    let added = blocks.push(ValueRun {
        block: BlockAddr::new(0, run.start),
        len: run.len as u32,
        epoch,
    });
    match added {
        true => Ok(()),
        // The free space is in too many pieces for one value.
        false => Err(holdfast_pool::Error::NoSpace.into()),
    }
}
