//! Distinguishing a damaged journal from one with a torn end, before anything is changed.
//!
//! Invariants:
//!  * What a death of processes or a loss of power may leave is never called damage.
//!  * An unreadable record is damage if something proves that it was complete: after the death of
//!    processes, a record behind it in its lane; on an ordinary file, a mark that says how far the
//!    lane reached (after a loss of power: how far it was durable).
//!  * Nothing is written; the work is bounded by the size of the journal, whatever is in it.
//!
//! `docs/spec/media.md` states the rules.

use crate::base::error::Loss;
use crate::journal::engine::Engine;
use crate::journal::lane::Lane;
use holdfast_pool::checksum::crc32c;
use holdfast_pool::format::LANES;
use holdfast_pool::journal::{
    self, BATCH_RECORD_MAX, MarkLanes, RECORD_ALIGN, RECORD_HEADER, Record,
};
use std::ops::Range;

const ALIGN: u64 = RECORD_ALIGN as u64;
/// Numbers that may be missing before a record for other reasons than the bytes before it: writers
/// that died, and damage elsewhere.
const MISSING_ELSEWHERE: u64 = 4096;
/// Times the length of a lane: bytes of it that are summed up in vain before the rest counts as
/// noise.
const IN_VAIN: u64 = 32;

/// A valid record behind the place where its lane ends.
#[derive(Clone, Debug)]
struct Found {
    position: u64,
    seq: u64,
    mark: Option<Mark>,
}

/// A `SyncMark`.
#[derive(Clone, Copy, Debug)]
struct Mark {
    number: u64,
    seq: u64,
    acked: u64,
    lanes: MarkLanes,
}

/// What the journal is like.
#[derive(Debug, Default)]
pub struct Survey {
    pub losses: Vec<Loss>,
    /// The highest number of a record, read or found behind the end of its lane.
    pub highest: u64,
    /// Everything up to here had been written when the highest mark was, sound or not.
    pub marked: u64,
    /// The same of the highest mark all of whose lanes could be read.
    pub sound: u64,
    behind: Vec<Vec<Found>>,
}

/// Looks at the whole journal; all lanes were read to their ends, and nothing was applied.
pub fn survey(engine: &Engine, power_lost: bool) -> Survey {
    let mut known: Vec<u64> = engine.journal.order.iter().map(|entry| entry.seq).collect();
    known.sort_unstable();
    let mut behind: Vec<Vec<Found>> = (0..LANES).map(|i| in_lane(engine, i, &known)).collect();
    let mut all = known.clone();
    all.extend(behind.iter().flatten().map(|found| found.seq));
    all.sort_unstable();
    all.dedup();
    let elsewhere = match power_lost {
        // As many as the journal has room for.
        true => engine.store.files.journal_len() / ALIGN,
        false => MISSING_ELSEWHERE,
    };
    for (found, index) in behind.iter_mut().zip(0..) {
        let Some(lane) = engine.journal.lane(index) else {
            continue;
        };
        found.retain(|f| is_near(f, lane, &all, elsewhere));
    }
    let mut there = known;
    there.extend(behind.iter().flatten().map(|found| found.seq));
    there.sort_unstable();
    there.dedup();
    let read = engine.journal.order.iter().filter_map(|entry| {
        let (header, record) = journal::decode_sound(&entry.bytes).ok()?;
        Mark::of(header.seq, &record)
    });
    let found = behind.iter().flatten().filter_map(|found| found.mark);
    let marks: Vec<Mark> = read
        .chain(found)
        .filter(|m| m.is_possible(engine))
        .collect();
    let highest_mark = marks.iter().max_by_key(|mark| mark.number).copied();
    let sound = marks.iter().filter(|mark| mark.is_sound(engine));
    let mut survey = Survey {
        losses: Vec::new(),
        highest: there.last().copied().unwrap_or(0),
        marked: highest_mark.map_or(0, |mark| mark.seq),
        sound: sound.map(|mark| mark.seq).max().unwrap_or(0),
        behind,
    };
    let mark = highest_mark.filter(|_| engine.store.files.was_on_file());
    survey.losses = (0..LANES)
        .filter_map(|index| survey.loss(engine, index, power_lost, mark, &there))
        .collect();
    survey
}

/// Reads what lies behind the damage, too.
pub fn read_behind(engine: &mut Engine, survey: &Survey) {
    for loss in &survey.losses {
        let mut end = engine
            .journal
            .lane(loss.lane)
            .map_or(u64::MAX, Lane::position);
        for found in survey.behind.get(loss.lane).into_iter().flatten() {
            let last = engine
                .journal
                .lane(loss.lane)
                .map_or(u64::MAX, Lane::last_seq);
            if found.position >= end && found.seq > last {
                end = engine.journal.read_on(loss.lane, found.position);
            }
        }
    }
}

impl Survey {
    /// What the lane has lost, if it has.
    fn loss(
        &self,
        engine: &Engine,
        index: usize,
        power_lost: bool,
        mark: Option<Mark>,
        there: &[u64],
    ) -> Option<Loss> {
        let lane = engine.journal.lane(index)?;
        let next = self.behind.get(index)?.first();
        let (needed, upto) = match (mark, power_lost) {
            (Some(mark), true) => (mark.lanes.acked[index], mark.acked),
            (Some(mark), false) => (mark.lanes.heads[index], mark.seq),
            (None, _) => (0, 0),
        };
        let marked = needed > lane.position();
        if !marked && (power_lost || next.is_none()) {
            return None;
        }
        let upto = next.map_or(upto, |found| found.seq - 1);
        let (first, last) = missing(there, lane.last_seq().saturating_add(1), upto);
        Some(Loss {
            lane: index,
            position: lane.position(),
            first,
            last,
        })
    }
}

/// The lowest and the highest of the numbers `first..=last` that are not in `known`, which is
/// sorted.
fn missing(known: &[u64], first: u64, last: u64) -> (u64, u64) {
    let from = known.partition_point(|n| *n < first);
    let rest = known.get(from..).unwrap_or_default();
    let there = rest
        .iter()
        .zip(first..)
        .take_while(|(n, want)| **n == *want);
    let low = first + there.count() as u64;
    let to = known.partition_point(|n| *n <= last);
    let rest = known.get(..to).unwrap_or_default();
    let wanted = (0..=last).rev();
    let there = rest
        .iter()
        .rev()
        .zip(wanted)
        .take_while(|(n, want)| **n == *want);
    let high = last.saturating_sub(there.count() as u64);
    (low, high.max(low))
}

/// Whether the number may be one of this journal: no more numbers are missing before it than there
/// is room for.
fn is_near(found: &Found, lane: &Lane, all: &[u64], elsewhere: u64) -> bool {
    let (from, to) = (lane.last_seq(), found.seq);
    let there = all.partition_point(|n| *n < to) - all.partition_point(|n| *n <= from);
    let missing = (to - from - 1).saturating_sub(there as u64);
    missing <= (found.position - lane.position()) / ALIGN + elsewhere
}

impl Mark {
    fn of(number: u64, record: &Record<'_>) -> Option<Mark> {
        let Record::SyncMark { seq, acked, lanes } = *record else {
            return None;
        };
        let lanes = MarkLanes::decode(lanes)?;
        Some(Mark {
            number,
            seq,
            acked,
            lanes,
        })
    }

    /// Whether an honest writer could have written it into this journal.
    fn is_possible(&self, engine: &Engine) -> bool {
        let lanes = self.lanes.heads.iter().zip(&self.lanes.acked);
        let mut lanes = lanes.zip(engine.journal.done);
        self.seq < self.number
            && self.acked <= self.seq
            && lanes.all(|((head, acked), done)| {
                acked <= head && *head <= done.start.saturating_add(engine.journal.lane_len)
            })
    }

    /// Whether every lane could be read as far as it reached when this was written.
    fn is_sound(&self, engine: &Engine) -> bool {
        let mut heads = self.lanes.heads.iter().zip(0..);
        heads.all(|(head, index)| {
            engine
                .journal
                .lane(index)
                .is_some_and(|l| *head <= l.position())
        })
    }
}

/// The valid records that lie behind the end of a lane, have a number above all that were read of
/// it, and are not the content of a record that was being written there.
fn in_lane(engine: &Engine, index: usize, known: &[u64]) -> Vec<Found> {
    let (Some(lane), Some(done)) = (
        engine.journal.lane(index),
        engine.journal.done.get(index).copied(),
    ) else {
        return Vec::new();
    };
    let lane_len = engine.journal.lane_len;
    let mut bytes = vec![0; lane_len as usize];
    if engine
        .journal
        .region
        .read(index as u64 * lane_len, &mut bytes)
        .is_err()
    {
        return Vec::new();
    }
    let ring = Ring {
        bytes: &bytes,
        index,
        last: lane.last_seq(),
    };
    let end = done.start.saturating_add(lane_len);
    let mut found = ring.records(lane.position(), end);
    found.retain(|f| known.binary_search(&f.seq).is_err());
    let wrapped = lane.position().next_multiple_of(lane_len);
    for at in [lane.position(), wrapped] {
        let Some(body) = ring.half_written(at) else {
            continue;
        };
        let is_inside = |f: &Found| body.contains(&f.position);
        let mut inside = found.iter().filter(|f| is_inside(f));
        if !inside.any(|f| ring.ends_at(at, f.position)) {
            found.retain(|f| !is_inside(f));
        }
    }
    found
}

/// A copy of one lane.
struct Ring<'a> {
    bytes: &'a [u8],
    index: usize,
    /// Number of the last record that was read.
    last: u64,
}

impl Ring<'_> {
    /// The bytes from a position to the end of the ring.
    fn at(&self, position: u64) -> &[u8] {
        let offset = position as usize % self.bytes.len();
        self.bytes.get(offset..).unwrap_or_default()
    }

    /// All valid records with a number above the last one, from `from` to before `end`.
    fn records(&self, from: u64, end: u64) -> Vec<Found> {
        let (mut found, mut sums) = (Vec::new(), 0);
        let most = IN_VAIN * self.bytes.len() as u64;
        let mut at = from.next_multiple_of(ALIGN);
        while at < end && sums < most {
            let Some(header) = self.header(at) else {
                at += ALIGN;
                continue;
            };
            let Ok((_, record)) = journal::decode(self.at(at)) else {
                sums += header.len as u64;
                at += ALIGN;
                continue;
            };
            if header.seq > self.last {
                found.push(Found {
                    position: at,
                    seq: header.seq,
                    mark: Mark::of(header.seq, &record),
                });
            }
            // What looks like a record inside of it is its content.
            at += header.padded_len() as u64;
        }
        found
    }

    /// What stands at a position as the header of a record of this lane.
    fn header(&self, position: u64) -> Option<journal::Header> {
        let bytes = self.at(position);
        let header = journal::peek(bytes).ok()?;
        let fits = header.padded_len() <= bytes.len();
        (fits && usize::from(header.lane) == self.index).then_some(header)
    }

    /// The place that a record at `position` takes that was begun and is not valid.
    fn half_written(&self, position: u64) -> Option<Range<u64>> {
        let header = self.header(position).filter(|h| h.seq > self.last)?;
        let whole = journal::decode(self.at(position)).is_ok();
        (!whole).then(|| position..position + header.padded_len() as u64)
    }

    /// Whether the record at `position` is valid but for its length, and ends at `end`.
    fn ends_at(&self, position: u64, end: u64) -> bool {
        let room = usize::try_from(end - position).unwrap_or(usize::MAX);
        let Some(bytes) = self.at(position).get(..room.min(BATCH_RECORD_MAX)) else {
            return false;
        };
        let mut copy = bytes.to_vec();
        let shortest = room.saturating_sub(RECORD_ALIGN - 1).max(RECORD_HEADER);
        (shortest..=copy.len()).any(|len| {
            copy[16..20].copy_from_slice(&(len as u32).to_le_bytes());
            copy[4..8] == crc32c(&copy[8..len]).to_le_bytes()
        })
    }
}
