//! Records about the content of regular files.
//!
//! Invariants:
//!  * `blocks` is the sum of the file's extents, which never overlap.
//!  * While `INLINE` is set the tail stands for file block 0 and no extent covers that block.
//!  * Blocks come from the session's grants and are returned through `Store::mark_unused` only.

use super::{Applier, Failure, Grants, InodeBuf, Reject, Result, Store, Why, ensure};
use crate::journal::Record;
use crate::layout::extent::{self, Extent, Run};
use crate::layout::inode::{INLINE, InodeRecord};
use crate::layout::{BLOCK, BlockAddr, EXTENTS, FILE_BLOCKS_MAX, FILE_SIZE_MAX, INLINE_MAX};
use alloc::vec::Vec;

/// Bytes that recovery copies into a data block again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redo<'a> {
    pub block: BlockAddr,
    pub offset_in_block: usize,
    pub data: &'a [u8],
}

/// Drops what the tail says about bytes at and beyond `size`.
fn cut_tail(record: &mut InodeRecord<'_>, size: u64) {
    let keep = usize::try_from(size)
        .unwrap_or(usize::MAX)
        .min(record.tail.len());
    record.tail = &record.tail[..keep];
    if keep == 0 {
        record.flags &= !INLINE;
    }
}

fn file_range(ino: u64, file_block: u64, len: u64) -> core::result::Result<u64, Reject> {
    let end = file_block
        .checked_add(len)
        .filter(|end| *end <= FILE_BLOCKS_MAX && len > 0);
    end.ok_or(Reject::new(ino, Why::Blocks))
}

impl<S: Store, G: Grants> Applier<'_, S, G> {
    pub(super) fn extent(&mut self, record: &Record<'_>) -> Result<(), S> {
        let Record::Extent {
            ino,
            file_block,
            block,
            len,
            size,
            mtime,
            ctime,
            ..
        } = *record
        else {
            unreachable!("{record:?} maps nothing");
        };
        let mut buf = InodeBuf::default();
        let mut file = self.file(ino, &mut buf)?;
        let blocks = u64::from(len);
        let end = file_range(ino, file_block, blocks)?;
        ensure(size <= FILE_SIZE_MAX, ino, Why::Size)?;
        let block =
            BlockAddr::parse(block.word(), len).map_err(|_| Reject::new(ino, Why::Segment))?;
        ensure(self.grants.holds(block, blocks), ino, Why::NotGranted)?;
        ensure(self.store.is_unused(block, blocks), ino, Why::BlocksInUse)?;
        let replaced = match file.blocks {
            0 => None,
            _ => extent::covering(&*self.store, ino, file_block).map_err(Failure::Store)?,
        };
        // One that is replaced as a whole stays until the new one takes its key.
        let replaced = replaced.filter(|e| e.file_block == file_block && e.end() == end);
        let freed = match (replaced, file.blocks) {
            (_, 0) => 0,
            (None, _) => self.unmap(ino, file_block, end)?,
            (Some(old), _) => {
                let freed = self.store.mark_unused(old.block, blocks, old.epoch);
                freed.map(|()| blocks).map_err(Failure::Store)?
            }
        };
        self.store
            .mark_used(block, blocks)
            .map_err(Failure::Store)?;
        self.grants.take(block, blocks);
        let joins = file.blocks > freed;
        self.map(
            ino,
            Extent {
                file_block,
                block,
                len,
                epoch: self.store.epoch(),
            },
            joins,
            replaced.is_some(),
        )?;
        if file_block == 0 {
            cut_tail(&mut file, 0);
        }
        cut_tail(&mut file, size);
        file.blocks = file.blocks.saturating_sub(freed) + blocks;
        (file.size, file.mtime, file.ctime) = (size, mtime, ctime);
        self.put_inode(ino, &file)
    }

    pub(super) fn size(&mut self, ino: u64, size: u64, times: [i64; 3]) -> Result<(), S> {
        let mut buf = InodeBuf::default();
        let mut file = self.file(ino, &mut buf)?;
        ensure(size <= FILE_SIZE_MAX, ino, Why::Size)?;
        cut_tail(&mut file, size);
        file.size = size;
        [file.atime, file.mtime, file.ctime] = times;
        self.put_inode(ino, &file)
    }

    pub(super) fn truncate(&mut self, ino: u64, size: u64, time: i64) -> Result<(), S> {
        let mut buf = InodeBuf::default();
        let mut file = self.file(ino, &mut buf)?;
        ensure(size <= FILE_SIZE_MAX, ino, Why::Size)?;
        if file.blocks > 0 && size == 0 {
            self.drop_extents(ino)?;
            file.blocks = 0;
        } else if file.blocks > 0 {
            let freed = self.unmap(ino, size.div_ceil(BLOCK), FILE_BLOCKS_MAX)?;
            file.blocks = file.blocks.saturating_sub(freed);
        }
        cut_tail(&mut file, size);
        (file.size, file.mtime, file.ctime) = (size, time, time);
        self.put_inode(ino, &file)
    }

    pub(super) fn punch(
        &mut self,
        ino: u64,
        file_block: u64,
        len: u64,
        size: u64,
        time: i64,
    ) -> Result<(), S> {
        let mut buf = InodeBuf::default();
        let mut file = self.file(ino, &mut buf)?;
        let end = file_range(ino, file_block, len)?;
        ensure(size <= FILE_SIZE_MAX, ino, Why::Size)?;
        if file.blocks > 0 {
            let freed = self.unmap(ino, file_block, end)?;
            file.blocks = file.blocks.saturating_sub(freed);
        }
        if file_block == 0 {
            cut_tail(&mut file, 0);
        }
        cut_tail(&mut file, size);
        (file.size, file.mtime, file.ctime) = (size, time, time);
        self.put_inode(ino, &file)
    }

    pub(super) fn inline(
        &mut self,
        ino: u64,
        mtime: i64,
        ctime: i64,
        data: &[u8],
    ) -> Result<(), S> {
        let mut buf = InodeBuf::default();
        let mut file = InodeRecord {
            ..self.file(ino, &mut buf)?
        };
        ensure(data.len() <= INLINE_MAX, ino, Why::Size)?;
        if file.blocks > 0 {
            self.drop_extents(ino)?;
        }
        file.flags = if data.is_empty() {
            file.flags & !INLINE
        } else {
            file.flags | INLINE
        };
        let file = InodeRecord {
            tail: data,
            blocks: 0,
            size: data.len() as u64,
            mtime,
            ctime,
            ..file
        };
        self.put_inode(ino, &file)
    }

    /// The bytes are in place already, or `redo` puts them there.
    pub(super) fn write(
        &mut self,
        ino: u64,
        offset: u64,
        size: u64,
        mtime: i64,
        data: &[u8],
    ) -> Result<(), S> {
        let mut buf = InodeBuf::default();
        let mut file = self.file(ino, &mut buf)?;
        let end = offset
            .checked_add(data.len() as u64)
            .ok_or(Reject::new(ino, Why::Size))?;
        ensure(end <= size && size <= FILE_SIZE_MAX, ino, Why::Size)?;
        self.each_piece(ino, offset, data, |_| ())?;
        cut_tail(&mut file, size);
        (file.size, file.mtime, file.ctime) = (size, mtime, mtime);
        self.put_inode(ino, &file)
    }

    /// What recovery copies for a `Write` record that was just applied; nothing for others. Only
    /// while no client has the data mapped: newer bytes in place would be lost.
    pub fn redo<'d>(&self, record: &Record<'d>) -> Result<Vec<Redo<'d>>, S> {
        let mut pieces = Vec::new();
        if let Record::Write {
            ino, offset, data, ..
        } = *record
        {
            self.each_piece(ino, offset, data, |piece| pieces.push(piece))?;
        }
        Ok(pieces)
    }

    fn each_piece<'d>(
        &self,
        ino: u64,
        offset: u64,
        data: &'d [u8],
        mut visit: impl FnMut(Redo<'d>),
    ) -> Result<(), S> {
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let run = extent::find(&*self.store, ino, at / BLOCK).map_err(Failure::Store)?;
            let Run::Blocks { block, .. } = run else {
                return Err(Reject::new(ino, Why::NotMapped).into());
            };
            let offset_in_block = (at % BLOCK) as usize;
            let n = rest.len().min(BLOCK as usize - offset_in_block);
            let (data, later) = rest.split_at(n);
            visit(Redo {
                block,
                offset_in_block,
                data,
            });
            (at, rest) = (at + n as u64, later);
        }
        Ok(())
    }

    /// Inserts an extent where nothing is mapped, or (`replaces`) where one of exactly the same
    /// file blocks is; it joins neighbours that continue it.
    fn map(&mut self, ino: u64, given: Extent, joins: bool, replaces: bool) -> Result<(), S> {
        let mut new = given;
        if joins {
            new = self.join_previous(ino, new)?;
            new = self.join_next(ino, new)?;
        }
        if replaces && new.file_block != given.file_block {
            self.erase_extent(ino, given.file_block)?;
        }
        self.put_extent(ino, new)
    }

    fn join_previous(&mut self, ino: u64, new: Extent) -> Result<Extent, S> {
        let Some(before) = new.file_block.checked_sub(1) else {
            return Ok(new);
        };
        let found = extent::previous(&*self.store, ino, before).map_err(Failure::Store)?;
        let Some(old) = found else { return Ok(new) };
        let adjacent = old.end() == new.file_block
            && old.block + u64::from(old.len) == new.block
            && old.epoch == new.epoch;
        match old.len.checked_add(new.len) {
            Some(len) if adjacent => Ok(Extent { len, ..old }),
            _ => Ok(new),
        }
    }

    fn join_next(&mut self, ino: u64, new: Extent) -> Result<Extent, S> {
        let found = extent::next(&*self.store, ino, new.end()).map_err(Failure::Store)?;
        let Some(old) = found else { return Ok(new) };
        let adjacent = new.end() == old.file_block
            && new.block + u64::from(new.len) == old.block
            && old.epoch == new.epoch;
        match new.len.checked_add(old.len) {
            Some(len) if adjacent => {
                self.erase_extent(ino, old.file_block)?;
                Ok(Extent { len, ..new })
            }
            _ => Ok(new),
        }
    }

    pub(super) fn put_extent(&mut self, ino: u64, e: Extent) -> Result<(), S> {
        let key = extent::key(ino, e.file_block);
        self.store
            .put(EXTENTS, &key, &e.encode())
            .map_err(Failure::Store)
    }

    pub(super) fn erase_extent(&mut self, ino: u64, file_block: u64) -> Result<(), S> {
        self.store
            .erase(EXTENTS, &extent::key(ino, file_block))
            .map_err(Failure::Store)
    }
}
