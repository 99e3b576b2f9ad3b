//! Writes that are collected in memory and copied to the volume in batches: PMBD's PT-Buffer-Batch,
//! where each batch makes pages writable once for all that are in a row.
//!
//! Invariants: what was written is read, whether it is in a buffer or in the volume; a sector is in
//! a buffer exactly if its bit is set; what could not be copied stays in its buffer, and each flush
//! says so.

use super::Written;
use super::content::Content;
use crate::error::Result;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

/// Buffers, so that threads do not wait for each other.
const BUFFERS: usize = 16;
/// Blocks of one before it is copied.
const BLOCKS: usize = 256;
const BLOCK: u64 = 4096;
const SECTOR: u64 = 512;
/// What lies in so many bytes goes to one buffer.
const STRETCH: u64 = BLOCKS as u64 * BLOCK;

/// A block of a volume, of which some sectors of 512 bytes are here.
struct Block {
    bytes: Box<[u8; BLOCK as usize]>,
    sectors: u8,
}

impl Block {
    fn empty() -> Block {
        Block {
            bytes: Box::new([0; BLOCK as usize]),
            sectors: 0,
        }
    }
}

/// By their numbers.
type Buffer = BTreeMap<u64, Block>;

pub(super) struct Buffers([Mutex<Buffer>; BUFFERS]);

impl Buffers {
    pub fn new() -> Buffers {
        Buffers(std::array::from_fn(|_| Mutex::default()))
    }

    fn of(&self, at: u64) -> MutexGuard<'_, Buffer> {
        locked(&self.0[(at / STRETCH) as usize % BUFFERS])
    }

    pub fn read(&self, content: &Content, mut room: &mut [u8], offset: u64) -> Result<()> {
        let mut at = offset;
        while !room.is_empty() {
            let (part, behind) = room.split_at_mut(stretch(at, room.len()));
            let buffer = self.of(at);
            content.read(part, at)?;
            for (number, block) in buffer.range(numbers(at, part.len())) {
                overlay(part, at, number * BLOCK, block);
            }
            at += part.len() as u64;
            room = behind;
        }
        Ok(())
    }

    /// Takes the bytes; `AtReturn` they go to the volume at once.
    pub fn write(
        &self,
        content: &Content,
        mut bytes: &[u8],
        offset: u64,
        durable: Written,
    ) -> Result<()> {
        let mut at = offset;
        while !bytes.is_empty() {
            let (part, behind) = bytes.split_at(stretch(at, bytes.len()));
            let mut buffer = self.of(at);
            match durable {
                Written::AtFlush => {
                    if buffer.len() >= BLOCKS {
                        copy(content, &mut buffer)?;
                    }
                    take(&mut buffer, part, at);
                }
                Written::AtReturn => {
                    content.write(part, at, durable)?;
                    forget(&mut buffer, at, part.len() as u64);
                }
            }
            at += part.len() as u64;
            bytes = behind;
        }
        Ok(())
    }

    /// Does something to a range of the volume itself, after which that counts.
    pub fn pass(&self, at: u64, len: u64, change: impl FnOnce() -> Result<()>) -> Result<()> {
        // One order for all, and nobody else has several.
        let mut buffers: Vec<_> = self.0.iter().map(locked).collect();
        change()?;
        buffers
            .iter_mut()
            .for_each(|buffer| forget(buffer, at, len));
        Ok(())
    }

    /// Copies everything to the volume.
    pub fn drain(&self, content: &Content) -> Result<()> {
        let drained = self
            .0
            .iter()
            .map(|buffer| copy(content, &mut locked(buffer)));
        // All of them, whatever becomes of one.
        drained.fold(Ok(()), |all, one| all.and(one))
    }
}

fn locked(buffer: &Mutex<Buffer>) -> MutexGuard<'_, Buffer> {
    buffer.lock().unwrap_or_else(|e| e.into_inner())
}

/// How much of `len` bytes from `at` on is in one stretch.
fn stretch(at: u64, len: usize) -> usize {
    (STRETCH - at % STRETCH).min(len as u64) as usize
}

fn numbers(at: u64, len: usize) -> Range<u64> {
    at / BLOCK..(at + len as u64).div_ceil(BLOCK)
}

/// The bits of the sectors of the block at `start` that are in a range.
fn bits(start: u64, range: Range<u64>) -> u8 {
    let bit = |n: u64| range.contains(&(start + n * SECTOR));
    (0..BLOCK / SECTOR).fold(0, |bits, n| bits | u8::from(bit(n)) << n)
}

/// Puts what a block has over `part`, which begins at `at`.
fn overlay(part: &mut [u8], at: u64, start: u64, block: &Block) {
    let wanted = bits(start, at..at + part.len() as u64) & block.sectors;
    for n in (0..BLOCK / SECTOR).filter(|n| wanted >> n & 1 == 1) {
        let (to, from) = ((start + n * SECTOR - at) as usize, (n * SECTOR) as usize);
        part[to..to + SECTOR as usize].copy_from_slice(&block.bytes[from..from + SECTOR as usize]);
    }
}

fn take(buffer: &mut Buffer, part: &[u8], at: u64) {
    let end = at + part.len() as u64;
    for number in numbers(at, part.len()) {
        let start = number * BLOCK;
        let block = buffer.entry(number).or_insert_with(Block::empty);
        let (from, to) = (at.max(start), end.min(start + BLOCK));
        block.bytes[(from - start) as usize..(to - start) as usize]
            .copy_from_slice(&part[(from - at) as usize..(to - at) as usize]);
        block.sectors |= bits(start, from..to);
    }
}

fn forget(buffer: &mut Buffer, at: u64, len: u64) {
    let range = at / BLOCK..(at + len).div_ceil(BLOCK);
    let mut gone = Vec::new();
    for (number, block) in buffer.range_mut(range) {
        block.sectors &= !bits(number * BLOCK, at..at + len);
        if block.sectors == 0 {
            gone.push(*number);
        }
    }
    for number in gone {
        buffer.remove(&number);
    }
}

/// Copies a buffer to the volume, in order, what is in a row at once. What was not copied stays.
fn copy(content: &Content, buffer: &mut Buffer) -> Result<()> {
    let mut row = Vec::new();
    while let Some(at) = first_row(buffer, &mut row) {
        content.write(&row, at, Written::AtFlush)?;
        forget(buffer, at, row.len() as u64);
    }
    Ok(())
}

/// Where the first sectors that follow each other begin; `row` gets their bytes.
fn first_row(buffer: &Buffer, row: &mut Vec<u8>) -> Option<u64> {
    row.clear();
    let mut first = None;
    for (number, block) in buffer {
        for n in 0..BLOCK / SECTOR {
            let at = number * BLOCK + n * SECTOR;
            let here = block.sectors >> n & 1 == 1;
            let follows = first.is_none_or(|first| first + row.len() as u64 == at);
            match (here, first) {
                (true, _) if follows => {
                    first.get_or_insert(at);
                    let from = (n * SECTOR) as usize;
                    row.extend(&block.bytes[from..from + SECTOR as usize]);
                }
                (_, Some(_)) => return first,
                (_, None) => {}
            }
        }
    }
    first
}
