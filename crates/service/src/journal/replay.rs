//! Applying the records of a dead session.
//!
//! Invariants:
//!  * The bytes of `WRITE` records are stored in place with the record.
//!  * After a loss of power on an ordinary file nothing points to a block whose bytes are not known
//!    to be there: `Evidence` decides, record by record.
//!  * A skipped record changes nothing; a record that is refused after that may have needed it, and
//!    is skipped, too.

use crate::base::error::Result;
use crate::journal::evidence::Evidence;
use crate::journal::held::Held;
use crate::journal::spilled::read_spilled;
use holdfast_pmem::Region;
use holdfast_pool::apply::{Applier, Failure, Outcome, PoolStore, Reject, Why};
use holdfast_pool::format::PAGE_LEN;
use holdfast_pool::journal::{EXTENT_WHOLE, Header, Record, SET_CTIME, SET_MTIME};
use holdfast_pool::layout::BlockAddr;
use holdfast_pool::space::Run;

const PAGE: usize = PAGE_LEN as usize;

type Apply<'a, 'p> = Applier<'a, PoolStore<'p>, Held<'a>>;
type Done = std::result::Result<Outcome, Failure<holdfast_pool::Error>>;

/// How records are applied while a pool is recovered.
#[derive(Debug, Default)]
pub struct Replay {
    /// After a loss of power on an ordinary file.
    pub evidence: Option<Evidence>,
    /// A record of which one block has no evidence is skipped.
    pub strict: bool,
    /// Records that are refused are passed over: others, that they need, are lost.
    pub lossy: bool,
    /// Records that were skipped.
    pub skipped: u64,
    /// Blocks that an `EXTENT` named and that had no evidence.
    pub given_up: Vec<Run>,
}

impl Replay {
    /// Whether a record that was refused is passed over.
    pub fn passes_over(&mut self, reject: &Reject) -> bool {
        let unmapped = self.evidence.is_some() && reject.why == Why::NotMapped;
        let passes = unmapped || reject.why != Why::NoRoom && (self.lossy || self.skipped > 0);
        self.skipped += u64::from(passes);
        passes
    }

    /// Applies `record`, or what of it may be.
    pub fn apply(
        &mut self,
        applier: &mut Apply<'_, '_>,
        data: &Region,
        header: &Header,
        record: &Record<'_>,
    ) -> Done {
        match *record {
            Record::Write { .. } => self.write(applier, data, header, record),
            Record::Spilled { len, sum, .. } => {
                let blocks = applier.spilled(record)?;
                let found = read_spilled(data, &blocks, len);
                let none = Evidence::default();
                let evidence = self.evidence.as_ref().unwrap_or(&none);
                let found = found.and_then(|b| evidence.spilled(header.seq, &blocks, b, sum));
                match (found, &self.evidence) {
                    (Some(bytes), Some(e)) if self.lossy && !e.covers_values(&bytes) => {
                        self.skip(applier, header)
                    }
                    (Some(bytes), _) => applier.apply_spilled(header, record, &bytes),
                    (None, Some(_)) => self.skip(applier, header),
                    (None, None) => Err(applier.malformed()),
                }
            }
            Record::Batch { ops, .. } => match &self.evidence {
                Some(e) if self.lossy && !e.covers_values(ops) => self.skip(applier, header),
                _ => applier.apply(header, record),
            },
            Record::Extent { .. } => self.extent(applier, header, record),
            Record::Data { block, bytes } => {
                if let Some(evidence) = &self.evidence {
                    let put = put_in_place(evidence, data, header.seq, block, bytes);
                    put.map_err(|_| Failure::Store(holdfast_pool::Error::Poisoned))?;
                }
                applier.apply(header, record)
            }
            _ => applier.apply(header, record),
        }
    }

    fn skip(&mut self, applier: &mut Apply<'_, '_>, header: &Header) -> Done {
        applier.skip(header);
        self.skipped += 1;
        Ok(Outcome::Skipped)
    }

    /// The blocks are where the record, which was just applied, has them.
    fn write(
        &self,
        applier: &mut Apply<'_, '_>,
        data: &Region,
        header: &Header,
        record: &Record<'_>,
    ) -> Done {
        let outcome = applier.apply(header, record)?;
        for piece in applier.redo(record)? {
            let at = piece.block.offset() + piece.offset_in_block as u64;
            let put = data.write_nt(at, piece.data);
            put.map_err(|_| Failure::Store(holdfast_pool::Error::Poisoned))?;
        }
        Ok(outcome)
    }

    /// Maps what has evidence, with the new size; where nothing has, only the times are new.
    fn extent(
        &mut self,
        applier: &mut Apply<'_, '_>,
        header: &Header,
        record: &Record<'_>,
    ) -> Done {
        let (
            Some(evidence),
            Record::Extent {
                ino,
                file_block,
                block,
                len,
                size,
                mtime,
                ctime,
                flags,
            },
        ) = (&self.evidence, *record)
        else {
            return applier.apply(header, record);
        };
        let blocks = u64::from(len);
        if !applier.holds(block, blocks) {
            // To be refused.
            return applier.apply(header, record);
        }
        let parts = evidence.parts(header.seq, block, blocks);
        if parts == [(block, blocks)] {
            return applier.apply(header, record);
        }
        let whole = self.strict || flags & EXTENT_WHOLE != 0;
        let outcome = if whole {
            self.skip(applier, header)?
        } else if parts.is_empty() {
            applier.apply_parts(header, &[times(ino, mtime, ctime)])?
        } else {
            let part = |(at, n): &(BlockAddr, u64)| Record::Extent {
                file_block: file_block.saturating_add(*at - block),
                block: *at,
                len: *n as u32,
                ino,
                size,
                mtime,
                ctime,
                flags: 0,
            };
            let parts: Vec<Record<'_>> = parts.iter().map(part).collect();
            applier.apply_parts(header, &parts)?
        };
        self.give_up(applier, (block, blocks), if whole { &[] } else { &parts });
        Ok(outcome)
    }

    /// Nobody comes to have the blocks but those of `parts`: no later record may name them.
    fn give_up(
        &mut self,
        applier: &mut Apply<'_, '_>,
        (block, len): (BlockAddr, u64),
        parts: &[(BlockAddr, u64)],
    ) {
        let mut at = block;
        for (start, n) in parts.iter().copied().chain([(block + len, 0)]) {
            if at < start {
                applier.take(at, start - at);
                self.given_up.push(Run::of_data(at, start - at));
            }
            at = start + n;
        }
    }
}

/// Blocks and size stay as they are: nobody synced the file since.
fn times(ino: u64, mtime: i64, ctime: i64) -> Record<'static> {
    Record::SetAttr {
        ino,
        mask: SET_MTIME | SET_CTIME,
        mode: 0,
        uid: 0,
        gid: 0,
        atime: 0,
        mtime,
        ctime,
    }
}

/// Copies the bytes of a `DATA` record, but for blocks of which newer ones are in place.
fn put_in_place(
    evidence: &Evidence,
    data: &Region,
    seq: u64,
    first: BlockAddr,
    bytes: &[u8],
) -> Result<()> {
    let limit = data.len() as u64 / PAGE_LEN;
    for (block, piece) in (first.word()..limit).zip(bytes.chunks(PAGE)) {
        let block = BlockAddr::from_word(block);
        if evidence.is_newer_in_place(seq, block) {
            continue;
        }
        let mut whole = [0; PAGE];
        whole[..piece.len()].copy_from_slice(piece);
        data.write_nt(block.offset(), &whole)?;
    }
    Ok(())
}
