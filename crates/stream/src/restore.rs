//! Restoring: records become states of a pool.
//!
//! Invariants:
//!  * A pool that somebody has already changes in one commit for each state: whatever interrupts
//!    this, the pool has a state whole or not at all, and the same stream goes on behind it.
//!  * A new pool, which nobody sees yet, changes in more commits, each with a mark that says how
//!    far it has come (`mark`): the same stream goes on there.
//!  * Data is where it belongs, durably, before the commit whose trees lead to it.
//!  * Blocks come from the pool's free ones, so nothing that it holds is written over.

use crate::chunk::ChunkReader;
use crate::error::{Error, Result};
use crate::mark::{Mark, Phase, StateHead};
use crate::record::{BLOCK, BLOCKS_MAX, Base, Head, Record};
use crate::save::Progress;
use holdfast_pool::layout::TreeId;
use holdfast_pool::layout::extent::{self, Extent};
use holdfast_pool::layout::inode::InodeRecord;
use holdfast_pool::layout::value::{self, Head as ValueHead, InBlocks, ValueRun};
use holdfast_pool::layout::{
    BadValue, BlockAddr, DIRENTS, EXTENTS, FILE_BLOCKS_MAX, INODES, ORPHANS, VALUES, XATTRS,
    dirent, name_seed, parse_ino_key, xattr,
};
use holdfast_pool::snapshot::{self, SNAPSHOT_TREES, Snapshot};
use holdfast_pool::space::Run;
use holdfast_pool::tree::{Batch, Differences, VALUE_MAX};
use holdfast_pool::{Pool, WriteToken};
use std::io::{self, Read};

/// Nodes that a pool which nobody sees yet may change before it commits them.
const DIRTY_MAX: usize = 16 * 1024;
/// Bytes of data that are written to one before a commit: what an interrupted restore has to do
/// again, at most, but for a value that is longer.
const BYTES_MAX: u64 = 64 << 20;

/// Where the data of the pool goes.
pub trait Sink {
    /// Writes whole blocks.
    fn write(&mut self, block: BlockAddr, bytes: &[u8]) -> io::Result<()>;
    /// Makes blocks zero that may hold anything; `is_new`: that nobody has ever written to.
    fn zero(&mut self, block: BlockAddr, blocks: u64, is_new: bool) -> io::Result<()>;
    /// Makes durable what was written.
    fn sync(&mut self) -> io::Result<()>;
}

/// The pool that is made or continued.
pub struct Target<'t> {
    pub pool: &'t mut Pool,
    pub token: &'t WriteToken,
    pub sink: &'t mut dyn Sink,
}

/// What was restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    pub progress: Progress,
    /// Snapshots that the stream has, and those of them that were there already.
    pub snapshots: u32,
    pub skipped: u32,
    /// What of it an interrupted restore had restored.
    pub kept: Progress,
}

/// A stream that was opened.
pub struct Restorer {
    reader: ChunkReader,
    head: Head,
    /// Of what one commit of a new pool changes.
    pub(crate) limits: Limits,
}

/// Nodes and bytes of data after which there is a commit.
type Limits = (usize, u64);

impl Restorer {
    /// Opens the stream.
    pub fn begin(input: impl Read + Send + 'static) -> Result<Restorer> {
        let mut reader = ChunkReader::new(input)?;
        let head = match reader.next_record()? {
            Record::Head(head) => head,
            _ => return Err(reader.damaged("it does not begin with what it is")),
        };
        let limits = (DIRTY_MAX, BYTES_MAX);
        Ok(Restorer {
            reader,
            head,
            limits,
        })
    }

    /// What it begins with.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// How far the restore of this stream has come that left `pool`. `None`: it was another stream.
    pub fn mark_in(&self, pool: &Pool) -> Result<Option<Mark>> {
        let id = self.reader.id();
        let is_same = name_seed(pool.superblock().uuid) == self.head.seed;
        Ok(Mark::of(pool)?.filter(|mark| is_same && mark.stream == id))
    }

    /// What tells the stream from others.
    pub fn id(&self) -> u32 {
        self.reader.id()
    }

    /// Reads all of it, where a pool has all of it already.
    pub fn read_over(mut self) -> Result<Restored> {
        let mut done = Restored::default();
        while let Some(state) = self.next_state()? {
            done.snapshots += u32::from(!state.name.is_empty());
            self.pass_over(&mut done.progress)?;
        }
        self.reader.end()?;
        done.kept = done.progress;
        Ok(done)
    }

    /// Fills a new pool, which nobody sees before it is complete, and which has a mark until then.
    pub fn fill(self, to: Target<'_>, see: &mut dyn FnMut(Progress)) -> Result<Restored> {
        if let Some(base) = &self.head.base {
            let name = shown(&base.name);
            return Err(Error::NoBase { name });
        }
        let mark = Mark {
            stream: self.reader.id(),
            position: self.reader.position(),
            ..Mark::default()
        };
        mark.commit(to.pool, to.token)?;
        Filling::new(self, mark, false).run(to, see)
    }

    /// Goes on with a new pool, which has this mark.
    pub fn fill_on(
        mut self,
        mark: Mark,
        to: Target<'_>,
        see: &mut dyn FnMut(Progress),
    ) -> Result<Restored> {
        self.reader.pass(&mark.position)?;
        let kept = mark.done.progress;
        let mut done = Filling::new(self, mark, true).run(to, see)?;
        done.kept = kept;
        Ok(done)
    }

    /// Goes on with a pool that has the snapshot which the stream continues.
    pub fn go_on(mut self, to: Target<'_>, see: &mut dyn FnMut(Progress)) -> Result<Restored> {
        let Some(base) = &self.head.base else {
            return Err(Error::Whole);
        };
        let at = find_base(to.pool, self.head.seed, base)?;
        let name = shown(&base.name);
        self.states(to, (name, at), see)
    }

    /// States behind those that are there, each in one commit.
    fn states(
        &mut self,
        mut to: Target<'_>,
        last: (String, Snapshot),
        see: &mut dyn FnMut(Progress),
    ) -> Result<Restored> {
        let (mut done, mut last) = (Restored::default(), Some(last));
        let mut applied = false;
        while let Some(state) = self.next_state()? {
            done.snapshots += u32::from(!state.name.is_empty());
            if let Some(there) = snapshot::find(&to.pool.reader(), &state.name)? {
                if applied || there.time != state.time {
                    return Err(exists(&state.name));
                }
                self.pass_over(&mut Progress::default())?;
                done.skipped += 1;
                last = Some((shown(&state.name), there));
                continue;
            }
            if let Some((name, at)) = last.take() {
                unchanged(to.pool, name, &at)?;
            }
            applied = true;
            let how = How {
                replaces: true,
                ..How::default()
            };
            let mut carry = Carry::default();
            let limits = (usize::MAX, u64::MAX);
            let mut step = Step::begin(&mut to, how, &mut carry);
            step.records(&mut self.reader, limits, &mut done.progress, see)?;
            step.commit(&state, self.head.next_ino, None)?;
            keep(&mut to, &state)?;
        }
        self.reader.end()?;
        Ok(done)
    }

    /// The beginning of the next state; `None`: that was the last one.
    fn next_state(&mut self) -> Result<Option<StateHead>> {
        let state = match self.reader.next_record()? {
            Record::State { name, time, counts } => StateHead {
                name: name.to_vec(),
                time,
                counts,
            },
            Record::End => return Ok(None),
            _ => return Err(self.reader.damaged("a record outside of every state")),
        };
        match state.name.is_empty() || snapshot::is_legal_name(&state.name) {
            true => Ok(Some(state)),
            false => Err(self.reader.damaged("the name of a snapshot")),
        }
    }

    /// Reads a state that is there.
    fn pass_over(&mut self, progress: &mut Progress) -> Result<()> {
        loop {
            match self.reader.next_record()? {
                Record::StateEnd => return Ok(()),
                Record::End => return Err(self.reader.damaged("a state without an end")),
                record => count(&record, progress),
            }
        }
    }
}

/// A record more.
fn count(record: &Record<'_>, progress: &mut Progress) {
    let bytes = match record {
        Record::Data { bytes, .. } | Record::ValueData { bytes } => bytes.len() as u64,
        Record::Zeroes { blocks, .. } => blocks.saturating_mul(BLOCK as u64),
        _ => 0,
    };
    progress.entries += u64::from(bytes == 0);
    progress.bytes = progress.bytes.saturating_add(bytes);
}

/// A state as a snapshot, if it has a name.
fn keep(to: &mut Target<'_>, state: &StateHead) -> Result<()> {
    if !state.name.is_empty() {
        to.pool.create_snapshot(to.token, &state.name, state.time)?;
    }
    Ok(())
}

fn exists(name: &[u8]) -> Error {
    let name = shown(name);
    Error::Exists { name }
}

/// A new pool that is filled, in as many commits as it takes.
struct Filling {
    restorer: Restorer,
    mark: Mark,
    /// An interrupted restore has written to blocks that are free now.
    is_left: bool,
}

impl Filling {
    fn new(restorer: Restorer, mark: Mark, is_left: bool) -> Filling {
        Filling {
            restorer,
            mark,
            is_left,
        }
    }

    fn run(mut self, mut to: Target<'_>, see: &mut dyn FnMut(Progress)) -> Result<Restored> {
        match self.mark.phase {
            Phase::Before => {}
            Phase::Within => self.state(&mut to, see)?,
            Phase::Behind => self.end_state(&mut to)?,
        }
        while let Some(state) = self.restorer.next_state()? {
            if snapshot::find(&to.pool.reader(), &state.name)?.is_some() {
                return Err(exists(&state.name));
            }
            self.mark.done.snapshots += u32::from(!state.name.is_empty());
            self.mark.states += 1;
            self.mark.state = state;
            self.state(&mut to, see)?;
        }
        self.restorer.reader.end()?;
        Ok(self.mark.done)
    }

    /// The records of a state, or the rest of them.
    fn state(&mut self, to: &mut Target<'_>, see: &mut dyn FnMut(Progress)) -> Result<()> {
        let how = How {
            is_new: !self.is_left,
            replaces: self.mark.states > 1,
        };
        let mut carry = Carry::default();
        self.mark.phase = Phase::Within;
        while self.mark.phase == Phase::Within {
            let mut step = Step::begin(to, how, &mut carry);
            let Restorer { reader, limits, .. } = &mut self.restorer;
            if step.records(reader, *limits, &mut self.mark.done.progress, see)? {
                self.mark.phase = Phase::Behind;
            }
            self.mark.position = reader.position();
            let next_ino = self.restorer.head.next_ino;
            step.commit(&self.mark.state, next_ino, Some(&self.mark))?;
        }
        keep(to, &self.mark.state)
    }

    /// The snapshot of a state whose records are all there.
    fn end_state(&mut self, to: &mut Target<'_>) -> Result<()> {
        let state = &self.mark.state;
        match snapshot::find(&to.pool.reader(), &state.name)? {
            Some(_) => Ok(()),
            None => keep(to, state),
        }
    }
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// The snapshot of the pool that the stream continues.
fn find_base(pool: &Pool, seed: u64, base: &Base) -> Result<Snapshot> {
    let name = shown(&base.name);
    let found = snapshot::find(&pool.reader(), &base.name)?;
    let found = match found {
        None => return Err(Error::NoBase { name }),
        Some(found) => found,
    };
    match found.time == base.time && name_seed(pool.superblock().uuid) == seed {
        true => Ok(found),
        false => Err(Error::OtherBase { name }),
    }
}

/// That the pool has what the snapshot has.
fn unchanged(pool: &Pool, name: String, at: &Snapshot) -> Result<()> {
    let now = Snapshot::of(pool.superblock(), 0).fixed();
    for tree in 0..SNAPSHOT_TREES as TreeId {
        let mut differences = Differences::begin(pool.meta(), tree, Some(&at.fixed()), &now)?;
        if differences.next_one()?.is_some() {
            return Err(Error::Changed { name });
        }
    }
    Ok(())
}

/// What one batch hands on to the next of the same state.
#[derive(Default)]
struct Carry {
    /// The extent that was mapped last, if what comes next may continue it.
    last: Option<(u64, Extent)>,
    value: Option<OpenValue>,
}

/// A value in blocks whose bytes follow.
struct OpenValue {
    key: Vec<u8>,
    head: ValueHead,
    blocks: InBlocks,
    /// Its blocks that are not written yet, and bytes.
    todo: Vec<Run>,
    left: u64,
}

/// How records are applied.
#[derive(Clone, Copy, Debug, Default)]
struct How {
    /// Nobody has written to blocks that are free.
    is_new: bool,
    /// There may be something in place of what comes.
    replaces: bool,
}

/// What comes between two commits.
struct Step<'w, 'p> {
    batch: Batch<'p>,
    sink: &'w mut dyn Sink,
    carry: &'w mut Carry,
    how: How,
}

impl<'w> Step<'w, 'w> {
    fn begin(to: &'w mut Target<'_>, how: How, carry: &'w mut Carry) -> Step<'w, 'w> {
        Step {
            batch: to.pool.begin(to.token),
            sink: &mut *to.sink,
            carry,
            how,
        }
    }

    /// Makes it durable: first the data, then the trees that lead to it, and the mark with them.
    fn commit(mut self, state: &StateHead, next_ino: u64, mark: Option<&Mark>) -> Result<()> {
        if let Some(mark) = mark {
            mark.put(&mut self.batch)?;
        }
        self.sink.sync().map_err(Error::Data)?;
        self.batch.commit(|sb| {
            sb.next_ino = sb.next_ino.max(next_ino);
            sb.counts = state.counts;
        })?;
        Ok(())
    }
}

impl Step<'_, '_> {
    /// Applies records, until enough nodes changed or enough bytes were written, but not amid a
    /// value; whether the state ended.
    fn records(
        &mut self,
        reader: &mut ChunkReader,
        (nodes, bytes): Limits,
        progress: &mut Progress,
        see: &mut dyn FnMut(Progress),
    ) -> Result<bool> {
        let end = progress.bytes.saturating_add(bytes);
        while self.carry.value.is_some() || self.batch.dirty_nodes() < nodes && progress.bytes < end
        {
            let record = reader.next_record()?;
            if record == Record::StateEnd {
                return match self.carry.value {
                    None => Ok(true),
                    Some(_) => Err(reader.damaged("a value without its last bytes")),
                };
            }
            count(&record, progress);
            match self.apply(record) {
                Ok(()) => {}
                Err(Failure::Bad(what)) => return Err(reader.damaged(what)),
                Err(Failure::Other(error)) => return Err(error),
            }
            see(*progress);
        }
        Ok(false)
    }

    fn apply(&mut self, record: Record<'_>) -> std::result::Result<(), Failure> {
        match (record, self.carry.value.is_some()) {
            (Record::ValueData { bytes }, true) => self.value_data(bytes),
            (_, true) => Err(Failure::Bad("a value without all of its bytes")),
            (Record::Put { tree, key, value }, _) => self.put(tree, key, value),
            (Record::Erase { tree, key }, _) => self.erase(tree, key),
            (
                Record::Data {
                    ino,
                    file_block,
                    bytes,
                },
                _,
            ) => self.data(ino, file_block, (bytes.len() / BLOCK) as u64, Some(bytes)),
            (
                Record::Zeroes {
                    ino,
                    file_block,
                    blocks,
                },
                _,
            ) => self.data(ino, file_block, blocks, None),
            (
                Record::Unmap {
                    ino,
                    file_block,
                    blocks,
                },
                _,
            ) => {
                let end = file_end(file_block, blocks)?;
                self.carry.last = None;
                self.clear(ino, file_block, end)
            }
            (
                Record::Value {
                    key,
                    mtime,
                    expires,
                    len,
                },
                _,
            ) => {
                let inline = false;
                let head = ValueHead {
                    mtime,
                    inline,
                    expires,
                };
                self.value(key, head, len)
            }
            _ => Err(Failure::Bad("a record that does not belong into a state")),
        }
    }

    fn put(&mut self, tree: TreeId, key: &[u8], value: &[u8]) -> std::result::Result<(), Failure> {
        check(tree, key, value)?;
        let mut old = Vec::new();
        let see = &mut |value: &[u8]| old.extend_from_slice(value);
        self.batch.replace(tree, key, value, see)?;
        self.drop_value(tree, &old)
    }

    fn erase(&mut self, tree: TreeId, key: &[u8]) -> std::result::Result<(), Failure> {
        if tree == EXTENTS || usize::from(tree) >= SNAPSHOT_TREES {
            return Err(Failure::Bad("an entry of a tree that has none"));
        }
        let mut old = Vec::new();
        let see = &mut |value: &[u8]| old.extend_from_slice(value);
        self.batch.take_out(tree, key, see)?;
        self.drop_value(tree, &old)
    }

    /// Blocks of a value that is gone.
    fn drop_value(&mut self, tree: TreeId, old: &[u8]) -> std::result::Result<(), Failure> {
        if tree != VALUES || old.is_empty() {
            return Ok(());
        }
        let blocks = value::blocks_of(old).map_err(holdfast_pool::Error::from)?;
        for run in blocks.iter().flat_map(InBlocks::runs) {
            self.batch
                .drop_data(Run::of_data(run.block, run.len.into()), run.epoch)?;
        }
        Ok(())
    }

    /// Blocks of a file: bytes, or zeroes.
    fn data(
        &mut self,
        ino: u64,
        file_block: u64,
        blocks: u64,
        bytes: Option<&[u8]>,
    ) -> std::result::Result<(), Failure> {
        let end = file_end(file_block, blocks)?;
        if self.how.replaces {
            self.clear(ino, file_block, end)?;
        }
        let mut at = file_block;
        while at < end {
            let run = self.take(end - at)?;
            let block = BlockAddr::new(0, run.start);
            let done = match bytes {
                None => self.sink.zero(block, run.len, self.how.is_new),
                Some(bytes) => {
                    let from = (at - file_block) as usize * BLOCK;
                    self.sink
                        .write(block, &bytes[from..from + run.len as usize * BLOCK])
                }
            };
            done.map_err(Error::Data)?;
            self.map(ino, at, block, run.len)?;
            at += run.len;
        }
        Ok(())
    }

    /// Free blocks, at most so many; they are in use then.
    fn take(&mut self, want: u64) -> std::result::Result<Run, Failure> {
        let align = if want >= BLOCKS_MAX as u64 {
            BLOCKS_MAX as u64
        } else {
            1
        };
        let want = want.min(u64::from(u32::MAX / 2));
        let run = self.batch.alloc_data(want, align)?;
        self.batch.use_data(run)?;
        Ok(run)
    }

    fn map(
        &mut self,
        ino: u64,
        file_block: u64,
        block: BlockAddr,
        len: u64,
    ) -> std::result::Result<(), Failure> {
        let mut mapped = Extent {
            file_block,
            block,
            len: len as u32,
            epoch: self.batch.superblock().epoch,
        };
        if let Some((last_ino, last)) = self.carry.last
            && last_ino == ino
            && last.end() == file_block
            && last.block.end(last.len.into()) == block
            && let Some(len) = last.len.checked_add(mapped.len)
        {
            mapped = Extent { len, ..last };
        }
        let key = extent::key(ino, mapped.file_block);
        self.batch.put(EXTENTS, &key, &mapped.encode())?;
        self.carry.last = Some((ino, mapped));
        Ok(())
    }

    /// Makes file blocks a hole.
    fn clear(&mut self, ino: u64, mut from: u64, to: u64) -> std::result::Result<(), Failure> {
        while from < to {
            let found = match extent::covering(&self.batch, ino, from)? {
                Some(found) => Some(found),
                None => extent::next(&self.batch, ino, from)?,
            };
            let Some(e) = found.filter(|e| e.file_block < to) else {
                return Ok(());
            };
            let (first, end) = (e.file_block.max(from), e.end().min(to));
            self.batch.erase(EXTENTS, &extent::key(ino, e.file_block))?;
            for (from, to) in [(e.file_block, first), (end, e.end())] {
                if from < to {
                    let rest = Extent {
                        file_block: from,
                        block: e.block + (from - e.file_block),
                        len: (to - from) as u32,
                        epoch: e.epoch,
                    };
                    self.batch
                        .put(EXTENTS, &extent::key(ino, from), &rest.encode())?;
                }
            }
            let gone = Run::of_data(e.block + (first - e.file_block), end - first);
            self.batch.drop_data(gone, e.epoch)?;
            from = end;
        }
        Ok(())
    }

    /// A value in blocks begins.
    fn value(&mut self, key: &[u8], head: ValueHead, len: u64) -> std::result::Result<(), Failure> {
        match value::parse_key(key) {
            Ok((1.., _)) if head.expires >= value::NEVER => {}
            Ok(_) => return Err(Failure::Bad("a value in blocks that cannot be")),
            Err(bad) => return Err(Failure::Bad(bad.what)),
        }
        if len == 0 || len > self.batch.superblock().data_len {
            return Err(Failure::Bad("the length of a value"));
        }
        let (mut blocks, mut todo) = (InBlocks::new(len), Vec::new());
        let mut left = len.div_ceil(BLOCK as u64);
        while left > 0 {
            let run = self.take(left)?;
            let added = blocks.push(ValueRun {
                block: BlockAddr::new(0, run.start),
                len: run.len as u32,
                epoch: self.batch.superblock().epoch,
            });
            if !added {
                // The free space is in too many pieces for one value.
                return Err(Failure::Other(Error::Full));
            }
            todo.push(run);
            left -= run.len;
        }
        todo.reverse();
        let key = key.to_vec();
        self.carry.value = Some(OpenValue {
            key,
            head,
            blocks,
            todo,
            left: len,
        });
        Ok(())
    }

    fn value_data(&mut self, mut bytes: &[u8]) -> std::result::Result<(), Failure> {
        let Some(mut open) = self.carry.value.take() else {
            return Ok(());
        };
        let len = bytes.len() as u64;
        if len > open.left || len < open.left && bytes.len() % BLOCK != 0 {
            return Err(Failure::Bad("bytes of a value that is shorter"));
        }
        open.left -= len;
        while !bytes.is_empty() {
            let Some(run) = open.todo.pop() else {
                return Err(Failure::Bad("bytes of a value that is shorter"));
            };
            let blocks = run.len.min(bytes.len().div_ceil(BLOCK) as u64);
            let (now, rest) = bytes.split_at(bytes.len().min(blocks as usize * BLOCK));
            self.write_padded(BlockAddr::new(0, run.start), now)?;
            if blocks < run.len {
                open.todo
                    .push(Run::new(run.start + blocks, run.len - blocks));
            }
            bytes = rest;
        }
        match open.left {
            0 => self.put_value(&open),
            _ => {
                self.carry.value = Some(open);
                Ok(())
            }
        }
    }

    fn write_padded(&mut self, block: BlockAddr, bytes: &[u8]) -> std::result::Result<(), Failure> {
        let (whole, rest) = bytes.split_at(bytes.len() / BLOCK * BLOCK);
        if !whole.is_empty() {
            self.sink.write(block, whole).map_err(Error::Data)?;
        }
        if !rest.is_empty() {
            let mut last = [0; BLOCK];
            last[..rest.len()].copy_from_slice(rest);
            let block = block + (whole.len() / BLOCK) as u64;
            self.sink.write(block, &last).map_err(Error::Data)?;
        }
        Ok(())
    }

    fn put_value(&mut self, open: &OpenValue) -> std::result::Result<(), Failure> {
        let head = open.head.encode();
        let mut value = [0; VALUE_MAX];
        value[..head.len()].copy_from_slice(&head);
        let len = head.len() + open.blocks.encode(&mut value[head.len()..]);
        let mut old = Vec::new();
        let see = &mut |value: &[u8]| old.extend_from_slice(value);
        self.batch.replace(VALUES, &open.key, &value[..len], see)?;
        self.drop_value(VALUES, &old)
    }
}

/// Why a record could not be applied.
enum Failure {
    /// The record says what cannot be.
    Bad(&'static str),
    Other(Error),
}

impl From<holdfast_pool::Error> for Failure {
    fn from(error: holdfast_pool::Error) -> Failure {
        Failure::Other(error.into())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Other(error)
    }
}

fn file_end(file_block: u64, blocks: u64) -> std::result::Result<u64, Failure> {
    let end = file_block.checked_add(blocks);
    let end = end.filter(|end| blocks > 0 && *end <= FILE_BLOCKS_MAX);
    end.ok_or(Failure::Bad("blocks beyond the end of every file"))
}

/// That an entry may stand in its tree. Whether entries fit together `pool check` says.
fn check(tree: TreeId, key: &[u8], value: &[u8]) -> std::result::Result<(), Failure> {
    let bad = |BadValue { what }| Failure::Bad(what);
    match tree {
        INODES => {
            parse_ino_key(key).map_err(bad)?;
            InodeRecord::decode(value).map_err(bad)?;
        }
        DIRENTS => {
            dirent::parse_key(key).map_err(bad)?;
            dirent::Dirent::decode(value).map_err(bad)?;
        }
        XATTRS => {
            let (_, _, chunk) = xattr::parse_key(key).map_err(bad)?;
            xattr::decode_chunk(chunk, value).map_err(bad)?;
        }
        ORPHANS if value.is_empty() => {
            parse_ino_key(key).map_err(bad)?;
        }
        VALUES => {
            if value::is_in_index(key) {
                value::parse_in_index(key).map_err(bad)?;
                return match value == &value::in_index()[..] {
                    true => Ok(()),
                    false => Err(Failure::Bad("an entry of the index of expiry with a value")),
                };
            }
            value::parse_key(key).map_err(bad)?;
            if !ValueHead::decode(value).map_err(bad)?.inline {
                return Err(Failure::Bad("a value that names its blocks"));
            }
        }
        _ => return Err(Failure::Bad("an entry of a tree that has none")),
    }
    Ok(())
}
