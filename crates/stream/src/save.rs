//! Saving: states of a pool become records.
//!
//! Invariants:
//!  * The states are snapshots, which are kept from being deleted for as long as this reads them.
//!  * Blocks that came into use after the state before are sent; the others are in that state at
//!    the same place, since a block never moves while it is in use (`docs/spec/format.md`). There
//!    are two exceptions. A file that was a value in the state before had no place there, so its
//!    blocks are sent. What is stored to files that were mapped when the base was taken changes the
//!    base, too, so all blocks of these are sent.

use crate::chunk::{Begun, ChunkWriter};
use crate::error::{Error, Result};
use crate::record::{BLOCK, BLOCKS_MAX, Base, Head, Record};
use holdfast_pmem::Region;
use holdfast_pool::Reader;
use holdfast_pool::layout::TreeId;
use holdfast_pool::layout::extent::{self, Extent};
use holdfast_pool::layout::value::{self, Head as ValueHead, InBlocks};
use holdfast_pool::layout::{BlockAddr, EXTENTS, VALUES};
use holdfast_pool::snapshot::{SNAPSHOT_TREES, Snapshot};
use holdfast_pool::tree::{Difference, Differences, Fixed, VALUE_MAX};
use std::io::Write;

/// Whether the file had these blocks at the same place `then`. One that was a value had none.
fn had(then: Option<&Reader<'_>>, ino: u64, extent: &Extent) -> Result<bool> {
    let Some(then) = then else { return Ok(false) };
    let mut at = extent.file_block;
    while at < extent.end() {
        let found = extent::covering(then, ino, at)?;
        let place = |found: &Extent| found.block + (at - found.file_block);
        match found {
            Some(found) if place(&found) == extent.block + (at - extent.file_block) => {
                at = found.end();
            }
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// Blocks of zeroes that are worth a record of their own.
const ZEROES_WORTH: usize = 16;

/// What is saved.
pub struct Source<'a> {
    pub meta: &'a Region,
    pub data: &'a Region,
    pub head: Head,
    /// The snapshot that the stream continues.
    pub base: Option<Snapshot>,
    /// Files whose blocks may have changed in `base` after it was taken.
    pub stored: Stored<'a>,
    /// Oldest first.
    pub states: &'a [State],
}

/// Files that may have been stored to in blocks that a snapshot has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored<'a> {
    Files(&'a [u64]),
    /// Nobody knows which.
    Any,
}

/// A state of the pool.
pub struct State {
    /// Empty for the present.
    pub name: Vec<u8>,
    pub snapshot: Snapshot,
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Entries of trees.
    pub entries: u64,
    /// Bytes of data.
    pub bytes: u64,
}

/// Writes the source to `out`. Of each state `hold` gives what keeps it from being deleted; `see`
/// is told how far it is.
pub fn save<W: Write + Send + 'static, H>(
    source: &Source<'_>,
    out: W,
    hold: &mut dyn FnMut(&State) -> Result<H>,
    see: &mut dyn FnMut(Progress),
) -> Result<(W, Progress)> {
    let (out, saved) = save_after(source, ChunkWriter::new(out)?, hold, see)?;
    Ok((out, saved.progress))
}

/// What was saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    pub progress: Progress,
    /// Bytes of the stream that were there already.
    pub kept: u64,
}

/// As `save`, with what writes the chunks.
pub fn save_after<W: Write + Send + 'static, H>(
    source: &Source<'_>,
    out: ChunkWriter<W>,
    hold: &mut dyn FnMut(&State) -> Result<H>,
    see: &mut dyn FnMut(Progress),
) -> Result<(W, Saved)> {
    let mut saver = Saver {
        source,
        out,
        buf: vec![0; BLOCKS_MAX * BLOCK],
        progress: Progress::default(),
        see,
    };
    saver.out.put(&Record::Head(source.head.clone()))?;
    let (mut before, mut held) = (source.base, None);
    for state in source.states {
        // The one before is read, too.
        let next = hold(state)?;
        saver.state(before.as_ref(), state)?;
        (before, held) = (Some(state.snapshot), Some(next));
    }
    drop(held);
    saver.out.put(&Record::End)?;
    let (progress, kept) = (saver.progress, saver.out.kept());
    Ok((saver.out.finish()?, Saved { progress, kept }))
}

impl Source<'_> {
    /// Takes over when a stream was begun that is this one, if it begins with the same.
    pub fn go_on<W>(&mut self, begun: &Begun<W>) -> bool {
        let mut records = begun.records();
        let (Some(Record::Head(head)), Some(Record::State { name, time, counts })) =
            (records.next(), records.next())
        else {
            return false;
        };
        let (time_then, next_ino) = (head.time, head.next_ino.min(self.head.next_ino));
        let same_head = head
            == Head {
                time: time_then,
                next_ino,
                ..self.head.clone()
            };
        let same_state = self.states.first().is_some_and(|first| {
            let snapshot = &first.snapshot;
            (&first.name[..], snapshot.time, snapshot.counts) == (name, time, counts)
        });
        if same_head && same_state {
            self.head = head;
        }
        same_head && same_state
    }
}

struct Saver<'s, 'a, W> {
    source: &'s Source<'a>,
    out: ChunkWriter<W>,
    buf: Vec<u8>,
    progress: Progress,
    see: &'s mut dyn FnMut(Progress),
}

impl<W: Write + Send + 'static> Saver<'_, '_, W> {
    fn state(&mut self, before: Option<&Snapshot>, state: &State) -> Result<()> {
        let now = &state.snapshot;
        self.out.put(&Record::State {
            name: &state.name,
            time: now.time,
            counts: now.counts,
        })?;
        let (old, new) = (before.map(Snapshot::fixed), now.fixed());
        let epoch = before.map(|snapshot| snapshot.epoch);
        for tree in 0..SNAPSHOT_TREES as TreeId {
            match tree {
                EXTENTS => self.extents(old.as_ref(), &new, epoch)?,
                _ => self.entries(tree, old.as_ref(), &new)?,
            }
        }
        self.out.put(&Record::StateEnd)
    }

    fn entries(&mut self, tree: TreeId, old: Option<&Fixed>, new: &Fixed) -> Result<()> {
        let mut differences = Differences::begin(self.source.meta, tree, old, new)?;
        while let Some(Difference { key, new, .. }) = differences.next_one()? {
            match new {
                None => self.out.put(&Record::Erase { tree, key })?,
                Some(value) if tree == VALUES => self.value(key, value)?,
                Some(value) => self.out.put(&Record::Put { tree, key, value })?,
            }
            self.count(1, 0);
        }
        Ok(())
    }

    fn value(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let Some(blocks) = value::blocks_of(value).map_err(damage)? else {
            let tree = VALUES;
            return self.out.put(&Record::Put { tree, key, value });
        };
        let head = ValueHead::decode(value).map_err(damage)?;
        self.out.put(&Record::Value {
            key,
            mtime: head.mtime,
            expires: head.expires,
            len: blocks.len,
        })?;
        self.value_data(&blocks)
    }

    fn value_data(&mut self, blocks: &InBlocks) -> Result<()> {
        let mut left = blocks.len;
        for run in blocks.runs() {
            let (mut block, mut blocks) = (run.block, u64::from(run.len));
            while blocks > 0 && left > 0 {
                let n = blocks.min(BLOCKS_MAX as u64);
                let len = left.min(n * BLOCK as u64);
                let bytes = &mut self.buf[..len as usize];
                self.source
                    .data
                    .read(block.offset(), bytes)
                    .map_err(|e| Error::Pool(e.into()))?;
                self.out.put(&Record::ValueData { bytes })?;
                (block, blocks, left) = (block + n, blocks - n, left - len);
                self.count(0, len);
            }
        }
        match left {
            0 => Ok(()),
            _ => Err(damage(holdfast_pool::layout::BadValue {
                what: "a value has fewer blocks than bytes",
            })),
        }
    }

    /// Extents of all files: blocks that are new, and blocks that are gone.
    fn extents(&mut self, old: Option<&Fixed>, new: &Fixed, epoch: Option<u32>) -> Result<()> {
        let mut differences = Differences::begin(self.source.meta, EXTENTS, old, new)?;
        let then = old.map(|old| Reader::of_snapshot(self.source.meta, old));
        let mut gone = Gone::default();
        while let Some(Difference { key, old, new }) = differences.next_one()? {
            let (ino, file_block) = extent::parse_key(key).map_err(damage)?;
            let decode = |value| Extent::decode(file_block, value).map_err(damage);
            let (old, new) = (old.map(decode).transpose()?, new.map(decode).transpose()?);
            if ino != gone.ino {
                self.unmap(gone.next_file(ino))?;
            }
            if let Some(old) = old {
                self.unmap(gone.old(&old))?;
            }
            if let Some(new) = new {
                self.unmap(gone.new(&new))?;
                let is_old = epoch.is_some_and(|epoch| new.epoch <= epoch);
                if !is_old || !had(then.as_ref(), ino, &new)? {
                    self.extent(ino, &new)?;
                }
            }
            self.count(1, 0);
        }
        self.unmap(gone.next_file(0))?;
        match epoch == self.source.base.map(|base| base.epoch) && epoch.is_some() {
            true => self.stored_in_place(new, epoch),
            false => Ok(()),
        }
    }

    /// Blocks of the base that were stored to after it was taken.
    fn stored_in_place(&mut self, new: &Fixed, epoch: Option<u32>) -> Result<()> {
        let is_old = |found: &Extent| epoch.is_some_and(|epoch| found.epoch <= epoch);
        let Stored::Files(files) = self.source.stored else {
            let mut all = Differences::begin(self.source.meta, EXTENTS, None, new)?;
            while let Some(Difference { key, new, .. }) = all.next_one()? {
                let (ino, file_block) = extent::parse_key(key).map_err(damage)?;
                let value = new.unwrap_or_default();
                let found = Extent::decode(file_block, value).map_err(damage)?;
                if is_old(&found) {
                    self.extent(ino, &found)?;
                }
            }
            return Ok(());
        };
        let trees = Reader::of_snapshot(self.source.meta, new);
        for ino in files {
            let mut at = 0;
            while let Some(found) = extent::next(&trees, *ino, at)? {
                if is_old(&found) {
                    self.extent(*ino, &found)?;
                }
                at = found.end();
            }
        }
        Ok(())
    }

    fn unmap(&mut self, gone: Option<(u64, u64, u64)>) -> Result<()> {
        let Some((ino, file_block, blocks)) = gone else {
            return Ok(());
        };
        self.out.put(&Record::Unmap {
            ino,
            file_block,
            blocks,
        })
    }

    fn extent(&mut self, ino: u64, extent: &Extent) -> Result<()> {
        let (mut file_block, mut block) = (extent.file_block, extent.block);
        while file_block < extent.end() {
            let n = (extent.end() - file_block).min(BLOCKS_MAX as u64);
            self.blocks(ino, file_block, block, n as usize)?;
            (file_block, block) = (file_block + n, block + n);
        }
        Ok(())
    }

    /// As many blocks as fit one record, zeroes apart.
    fn blocks(&mut self, ino: u64, file_block: u64, block: BlockAddr, n: usize) -> Result<()> {
        let mut buf = std::mem::take(&mut self.buf);
        let bytes = &mut buf[..n * BLOCK];
        let read = self.source.data.read(block.offset(), bytes);
        let done = read.map_err(|e| Error::Pool(e.into()));
        let done = done.and_then(|()| self.pieces(ino, file_block, bytes));
        self.count(0, bytes.len() as u64);
        self.buf = buf;
        done
    }

    fn pieces(&mut self, ino: u64, file_block: u64, bytes: &[u8]) -> Result<()> {
        let (mut from, mut at) = (0, 0);
        let all = bytes.len() / BLOCK;
        while at < all {
            let zeroes = zero_blocks(&bytes[at * BLOCK..]);
            if zeroes >= ZEROES_WORTH {
                self.piece(
                    ino,
                    file_block + from as u64,
                    &bytes[from * BLOCK..at * BLOCK],
                )?;
                self.out.put(&Record::Zeroes {
                    ino,
                    file_block: file_block + at as u64,
                    blocks: zeroes as u64,
                })?;
                from = at + zeroes;
            }
            at += zeroes.max(1);
        }
        self.piece(ino, file_block + from as u64, &bytes[from * BLOCK..])
    }

    fn piece(&mut self, ino: u64, file_block: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.out.put(&Record::Data {
            ino,
            file_block,
            bytes,
        })
    }

    fn count(&mut self, entries: u64, bytes: u64) {
        self.progress.entries += entries;
        self.progress.bytes += bytes;
        (self.see)(self.progress);
    }
}

fn damage(bad: holdfast_pool::layout::BadValue) -> Error {
    Error::Pool(bad.into())
}

/// How many blocks `bytes` begin with that are all zeroes.
fn zero_blocks(bytes: &[u8]) -> usize {
    let is_zero = |block: &&[u8]| {
        let (words, _) = block.as_chunks::<64>();
        words.iter().all(|word| *word == [0; 64])
    };
    bytes.chunks_exact(BLOCK).take_while(is_zero).count()
}

/// Which file blocks are gone: those that changed extents had before, and have no more. Extents of
/// one state do not overlap, and come in order.
#[derive(Debug, Default)]
struct Gone {
    ino: u64,
    /// What is left of an old extent, as far as it is known.
    from: u64,
    to: u64,
    /// Up to here new extents are known.
    known: u64,
}

impl Gone {
    fn take(&mut self, to: u64) -> Option<(u64, u64, u64)> {
        let to = to.min(self.to);
        let found = (self.from < to).then(|| (self.ino, self.from, to - self.from));
        self.from = self.from.max(to);
        found
    }

    fn next_file(&mut self, ino: u64) -> Option<(u64, u64, u64)> {
        let rest = self.take(u64::MAX);
        *self = Gone {
            ino,
            ..Gone::default()
        };
        rest
    }

    fn old(&mut self, extent: &Extent) -> Option<(u64, u64, u64)> {
        let rest = self.take(u64::MAX);
        (self.from, self.to) = (extent.file_block.max(self.known), extent.end());
        rest
    }

    fn new(&mut self, extent: &Extent) -> Option<(u64, u64, u64)> {
        let before = self.take(extent.file_block);
        self.known = extent.end();
        self.from = self.from.max(self.known);
        before
    }
}

/// What a stream begins with that has these states.
impl Head {
    /// The base that it names.
    pub fn base_of(name: &[u8], snapshot: &Snapshot) -> Base {
        Base {
            name: name.to_vec(),
            time: snapshot.time,
        }
    }
}

const _: () = assert!(VALUE_MAX <= u16::MAX as usize);
