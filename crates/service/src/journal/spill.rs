//! Records of very many changes, which are in blocks, applied a part at a time.
//!
//! Invariants:
//!  * Such a record is applied in a batch of its own, which is parked between parts: readers see
//!    nothing of it before its commit, and if it is refused half-way all of it is dropped.
//!  * Clients can write the bytes: each part is copied and checked in the copy. Before the commit
//!    the sum of everything that was applied is compared with the record's.
//!  * Until its commit the record stays the next one in order, and nothing else is committed.

use super::held::Noted;
use super::runs::Runs;
use super::spilled::SPILLED_MAX;
use holdfast_pmem::Region;
use holdfast_pool::apply::{Applier, Carry, Failure, ParkedStore, PoolStore, Reject, Size, Why};
use holdfast_pool::checksum::Crc;
use holdfast_pool::format::{LANES, PAGE_LEN};
use holdfast_pool::journal::{Ops, Record};
use holdfast_pool::layout::value::InBlocks;
use holdfast_pool::quota::Usage;
use holdfast_pool::space::Run;

/// Records of more bytes of changes are divided.
const DIVIDED_MIN: u64 = 512 * 1024;
/// Bytes that are read at a time. No change is longer.
const WINDOW: usize = 128 * 1024;
/// Pages that get memory at a time, and nodes that are written at a time.
const PAGES: usize = 512;

type Done<T> = std::result::Result<T, Failure<holdfast_pool::Error>>;

/// A record that is applied in parts.
pub struct Spill {
    pub lane: usize,
    pub seq: u64,
    time: i64,
    sum: u32,
    source: Source,
    stage: Stage,
    /// How many changes they are, once that was measured.
    pub changes: u64,
    /// Blocks of values that were taken from the grants.
    pub taken: Vec<Run>,
    pub parked: Option<ParkedStore>,
    /// What the trees were known to take before its changes.
    pub usage: Option<Usage>,
}

/// Where the changes lie.
struct Source {
    blocks: InBlocks,
    len: u64,
}

/// What comes next.
enum Stage {
    /// How much room the changes need.
    Measure(Pass, Size),
    Apply(Pass),
    /// So many pages have memory of the host behind them.
    Back(u64),
    Write,
}

/// How far the changes were gone through.
struct Pass {
    read: u64,
    /// Bytes of the changes that were handed out.
    before: u64,
    sum: Crc,
    /// What was read and not handed out.
    rest: Vec<u8>,
}

impl Source {
    /// Copies the bytes from `at` on.
    fn read(&self, data: &Region, mut at: u64, out: &mut [u8]) -> Option<()> {
        let mut filled = 0;
        for run in self.blocks.runs() {
            let len = u64::from(run.len) * PAGE_LEN;
            if at >= len {
                at -= len;
                continue;
            }
            let n = ((out.len() - filled) as u64).min(len - at) as usize;
            let from = run.block.offset().checked_add(at)?;
            data.read(from, &mut out[filled..filled + n]).ok()?;
            (filled, at) = (filled + n, 0);
        }
        (filled == out.len()).then_some(())
    }
}

impl Pass {
    fn new() -> Pass {
        Pass {
            read: 0,
            before: 0,
            sum: Crc::new(),
            rest: Vec::new(),
        }
    }

    /// Reads on and hands the next changes to `f`, with how many bytes were before them; whether
    /// these were the last.
    fn go_on(
        &mut self,
        data: &Region,
        source: &Source,
        f: impl FnOnce(&[u8], u64) -> Done<()>,
    ) -> Done<bool> {
        let (at, n) = (
            self.rest.len(),
            (source.len - self.read).min(WINDOW as u64) as usize,
        );
        self.rest.resize(at + n, 0);
        let copied = source.read(data, self.read, &mut self.rest[at..]);
        copied.ok_or(malformed())?;
        self.sum.update(&self.rest[at..]);
        self.read += n as u64;
        let last = self.read == source.len;
        let whole = match last {
            true => self.rest.len(),
            false => Ops::whole(&self.rest, WINDOW),
        };
        f(&self.rest[..whole], self.before)?;
        self.before += whole as u64;
        self.rest.drain(..whole);
        Ok(last)
    }
}

fn malformed<E>() -> Failure<E> {
    Reject::new(0, Why::Changes).into()
}

impl Spill {
    /// One that begins: the record `seq` of `lane`, whose `len` bytes of changes are in `blocks`
    /// and have this sum.
    pub fn new(
        (lane, seq): (usize, u64),
        time: i64,
        blocks: InBlocks,
        len: u64,
        sum: u32,
    ) -> Spill {
        Spill {
            lane,
            seq,
            time,
            sum,
            source: Source { blocks, len },
            stage: Stage::Measure(Pass::new(), Size::default()),
            changes: 0,
            taken: Vec::new(),
            parked: None,
            usage: None,
        }
    }

    /// Whether the batch can only be committed.
    pub fn is_certain(&self) -> bool {
        matches!(self.stage, Stage::Write)
    }

    /// A little more of it; true when the batch is ready to be committed.
    pub fn go_on(
        &mut self,
        store: &mut PoolStore<'_>,
        granted: &mut Runs,
        carry: &mut Carry,
        data: &Region,
    ) -> Done<bool> {
        let taken = &mut self.taken;
        match &mut self.stage {
            Stage::Measure(pass, size) => {
                let last = pass.go_on(data, &self.source, |ops, before| {
                    *size = size.and_part(ops, before);
                    Ok(())
                })?;
                if last {
                    let same = pass.sum.finish() == self.sum;
                    same.then_some(()).ok_or(malformed())?;
                    Applier::new(store, &mut Noted { granted, taken }, [0; LANES])
                        .check_size(*size)?;
                    self.changes = size.changes();
                    self.stage = Stage::Apply(Pass::new());
                }
            }
            Stage::Apply(pass) => {
                self.usage.get_or_insert_with(|| carry.usage.clone());
                let mut held = Noted { granted, taken };
                let reused = std::mem::take(carry);
                let mut applier = Applier::new(store, &mut held, [0; LANES]).carrying(reused);
                let time = self.time;
                let part = |ops: &[u8], before| applier.part(ops, before, time);
                let last = pass.go_on(data, &self.source, part)?;
                *carry = applier.into_carry();
                if last {
                    let same = pass.sum.finish() == self.sum;
                    same.then_some(()).ok_or(malformed())?;
                    self.stage = Stage::Back(0);
                }
            }
            Stage::Back(pages) => {
                *pages += PAGES as u64;
                store.back(*pages).map_err(Failure::Store)?;
                if *pages >= store.batch().dirty_nodes() as u64 {
                    self.stage = Stage::Write;
                }
            }
            Stage::Write => {
                return store
                    .write_ahead(PAGES)
                    .map(|more| !more)
                    .map_err(Failure::Store);
            }
        }
        Ok(false)
    }
}

/// Whether a record is applied in parts.
pub fn is_divided(record: &Record<'_>) -> bool {
    matches!(record, Record::Spilled { len, .. } if (DIVIDED_MIN..=SPILLED_MAX).contains(len))
}
