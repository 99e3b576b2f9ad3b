//! Records of a journal that anybody who may join the session can write.
//!
//! What must hold: a decoded record is exactly what would be written; records that the service
//! applies leave a pool in which the checker finds nothing, and one that it refuses changes
//! nothing.

use crate::input::Input;
use crate::sample::{DATA_LEN, Free, META_LEN, candidates, check_meta, is_clean, sample, token};
use holdfast_pmem::Region;
use holdfast_pool::apply::{Applier, Failure, Outcome, PoolStore, Store};
use holdfast_pool::check::{Now, check_now};
use holdfast_pool::checksum::crc32c;
use holdfast_pool::journal::*;
use holdfast_pool::quota::{decode_page, encode_page};
use holdfast_pool::{Error, Pool};

/// Records of one input.
const RECORDS_MAX: usize = 40;
/// So often a record is gone on with: the sample has few extents.
const PARTS_MAX: usize = 100;
/// Bytes of a lane as the checker reads it here.
const LANE: usize = 4096;

/// A record's bytes, and for `Spilled` those of its blocks.
pub struct Piece {
    pub record: Vec<u8>,
    pub spilled: Vec<u8>,
}

/// Applies the records that the bytes say.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let how = input.u8();
    let mut pieces = Vec::new();
    while !input.is_empty() && pieces.len() < RECORDS_MAX {
        pieces.push(piece(&mut input));
    }
    pieces.iter().for_each(judge);
    let mut pool = sample().pool();
    lay_out(&pool, &pieces, how);
    let mut free = sample().grant(&mut pool);
    match apply(&mut pool, &mut free, &pieces) {
        // A sound pool of this size has room for so few.
        Err(e) => panic!("{e}"),
        Ok(()) if how & 1 == 0 => free_cuts(&mut pool),
        Ok(()) => {}
    }
    let report = check_meta(pool.meta());
    assert!(is_clean(&report), "{report:?}");
}

/// A record from nothing, or one of the samples with some bytes changed; mostly with the checksum
/// of what it says.
pub fn piece(input: &mut Input<'_>) -> Piece {
    let (how, mut all) = (input.u8(), candidates());
    let mut piece = match how & 3 {
        0 => Piece {
            record: raw(input),
            spilled: Vec::new(),
        },
        _ => all.swap_remove(input.below(all.len())),
    };
    for _ in 0..how >> 2 & 7 {
        let at = RECORD_HEADER + usize::from(input.u8());
        let len = if how & 3 == 3 { 1 } else { 8 };
        let value = input.number().to_le_bytes();
        let last = piece.record.len().saturating_sub(len);
        let at = at.min(last);
        piece.record[at..at + len].copy_from_slice(&value[..len]);
    }
    if how & 32 != 0 {
        piece.record[..8.min(how.into())].fill(how);
    } else {
        seal(&mut piece.record, 0, 1);
    }
    piece
}

fn raw(input: &mut Input<'_>) -> Vec<u8> {
    let mut record = vec![0; RECORD_HEADER];
    record[..4].copy_from_slice(&RECORD_MAGIC.to_le_bytes());
    record[20] = input.u8();
    record.extend_from_slice(input.string());
    record
}

/// Makes it record `seq` of its lane, with its length and checksum.
pub fn seal(record: &mut [u8], lane: u16, seq: u64) {
    let len = record.len() as u32;
    record[8..16].copy_from_slice(&seq.to_le_bytes());
    record[16..20].copy_from_slice(&len.to_le_bytes());
    record[22..24].copy_from_slice(&lane.to_le_bytes());
    let sum = crc32c(&record[8..]);
    record[4..8].copy_from_slice(&sum.to_le_bytes());
}

/// What is decoded is what would be written, and its parts decode or do not.
fn judge(piece: &Piece) {
    let _ = peek(&piece.record);
    let Ok((header, record)) = decode(&piece.record) else {
        return;
    };
    let again = record.encode(header.seq, header.lane);
    assert_eq!(again.parts().concat(), piece.record, "{record:?}");
    match record {
        Record::Batch { ops, .. } => judge_changes(ops),
        Record::SyncMark { lanes, .. } => {
            if let Some(mark) = MarkLanes::decode(lanes) {
                assert_eq!(mark.encode()[..], *lanes);
            }
        }
        Record::SetXattr { value, .. } => {
            if let Ok(page) = decode_page(value) {
                assert_eq!(decode_page(&encode_page(&page)), Ok(page));
            }
        }
        Record::InPlace { runs, .. } => {
            let runs = BlockRuns::decode(runs).into_iter().flatten();
            runs.for_each(|(block, len)| assert!(block.word().checked_add(len).is_some()));
        }
        _ => {}
    }
    let _ = format!("{record:?}");
}

fn judge_changes(ops: &[u8]) {
    let mut again = Vec::new();
    let mut sound = true;
    for op in Ops::new(ops) {
        let Ok(op) = op else {
            sound = false;
            break;
        };
        op.push(&mut again);
        match op.change {
            Change::Promote(bytes) => {
                let promote = Promote::decode(bytes);
                assert!(promote.is_none_or(|p| p.encode() == bytes));
            }
            Change::Name(bytes) => {
                let naming = Naming::decode(bytes);
                assert!(naming.is_none_or(|n| n.encode()[..] == *bytes));
            }
            _ => {}
        }
    }
    let mut marked = ops.to_vec();
    mark_alone(&mut marked, || false);
    assert!(
        !sound || again == marked,
        "changes that are not what would be written"
    );
}

type Done = Result<Outcome, Failure<Error>>;

/// Applies a record until it is through.
fn in_parts<S: Store<Error = Error>>(
    applier: &mut Applier<'_, S, Free>,
    header: &Header,
    record: &Record<'_>,
    spilled: &[u8],
) -> Done {
    let mut done = Err(Failure::Later);
    for _ in 0..PARTS_MAX {
        done = match record {
            Record::Spilled { .. } => {
                let _ = applier.spilled(record).map(|blocks| blocks.runs().len());
                applier.apply_spilled(header, record, spilled)
            }
            _ => applier.apply(header, record),
        };
        if !matches!(done, Err(Failure::Later)) {
            break;
        }
    }
    done
}

/// Applies and commits the records, as the service does.
pub fn apply(pool: &mut Pool, free: &mut Free, pieces: &[Piece]) -> Result<(), Error> {
    let lanes = pool.superblock().lanes;
    let mut seq = sample().applied;
    let mut store = PoolStore::begin(pool, &token());
    let mut applier = Applier::keeping(&mut store, free, lanes.map(|lane| lane.applied));
    applier.divide_work(true);
    for piece in pieces {
        let Ok((header, record)) = decode(&piece.record) else {
            continue;
        };
        seq += 1;
        let header = Header { seq, ..header };
        let done = in_parts(&mut applier, &header, &record, &piece.spilled);
        let _ = applier.redo(&record);
        match done {
            Ok(_) => {}
            Err(Failure::Rejected(why)) => {
                assert!(why.errno() > 0 && !why.to_string().is_empty());
                applier.skip(&header);
            }
            Err(Failure::Store(e)) => return Err(e),
            Err(Failure::Later) => panic!("a record that does not end: {record:?}"),
        }
    }
    match applier.settle() {
        Err(Failure::Store(e)) => return Err(e),
        done => done.expect("nothing is refused here"),
    }
    let applied = applier.applied();
    store.commit(|superblock| {
        for (lane, applied) in superblock.lanes.iter_mut().zip(applied) {
            lane.applied = applied;
        }
        superblock.applied_seq = seq;
    })?;
    Ok(())
}

fn free_cuts(pool: &mut Pool) {
    for _ in 0..META_LEN / 4096 {
        match pool.reclaim_some(&token(), 40) {
            Ok(true) => {}
            Ok(false) => return,
            Err(e) => panic!("{e}"),
        }
    }
    panic!("freeing does not end");
}

/// The same bytes as a journal that the checker finds.
fn lay_out(pool: &Pool, pieces: &[Piece], how: u8) {
    let journal = Region::in_memory(LANE * 16).expect("memory");
    let mut at = 0;
    for (i, piece) in pieces.iter().enumerate() {
        let mut bytes = piece.record.clone();
        if decode(&bytes).is_ok() {
            seal(&mut bytes, 0, sample().applied + 1 + i as u64);
        }
        if journal.store(at, &bytes).is_err() {
            break;
        }
        at += bytes.len().next_multiple_of(RECORD_ALIGN) as u64;
    }
    let now = Now {
        boot_id: [how; 16],
        is_file: how & 2 != 0,
        is_restored: how & 4 != 0,
    };
    let _ = check_now(pool.meta(), DATA_LEN, Some(&journal), Some(now));
}
