//! Records that wait in the journal, and those that are lost, as `docs/spec/journal.md` and
//! `docs/spec/media.md` state them.
//!
//! Invariants: each step advances in the lane or ends it, so reading ends; the bytes that are
//! summed up in vain are bounded.

use super::Bytes;
use super::Now;
use super::media::{LANES, Super, le16, le32, le64};
use super::report::Log;
use crate::checksum::crc32c;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

const RECORD_MAX: u64 = 256 * 1024;
const UNIT: u64 = 64;
/// Kind of a `SYNC_MARK`, and its length.
const MARK: usize = 15;
const MARK_LEN: usize = 24 + 16 + 2 * 8 * LANES;
/// Times the length of a lane: bytes summed up in vain.
const IN_VAIN: u64 = 32;

/// A lane as far as it can be read, and what lies behind.
struct Lane {
    /// Its bytes, and how many a ring has.
    bytes: Vec<u8>,
    number: usize,
    end: u64,
    last: u64,
    seqs: Vec<u64>,
    marks: Vec<Mark>,
    behind: Vec<Behind>,
}

struct Behind {
    at: u64,
    seq: u64,
    mark: Option<Mark>,
}

#[derive(Clone)]
struct Mark {
    number: u64,
    seq: u64,
    acked: u64,
    heads: Vec<u64>,
    acked_heads: Vec<u64>,
}

/// How many records the trees do not know yet. Names those that are lost, where the pool was not
/// closed.
pub(super) fn waiting(journal: &dyn Bytes, sb: &Super, now: Option<Now>, log: &mut Log) -> u64 {
    let ring = journal.len() / LANES as u64 / UNIT * UNIT;
    if ring == 0 {
        return 0;
    }
    let mut lanes: Vec<Lane> = Vec::new();
    for (number, (place, applied)) in sb.lanes.iter().enumerate() {
        let mut bytes = vec![0; ring as usize];
        if !journal.read(number as u64 * (journal.len() / LANES as u64), &mut bytes) {
            log.damage(
                None,
                None,
                format!("lane {number} of the journal cannot be read"),
            );
        }
        let mut lane = Lane {
            bytes,
            number,
            end: *place,
            last: *applied,
            seqs: Vec::new(),
            marks: Vec::new(),
            behind: Vec::new(),
        };
        lane.read(place.saturating_add(ring));
        lanes.push(lane);
    }
    let count = lanes.iter().map(|lane| lane.seqs.len() as u64).sum();
    if !sb.clean {
        let is_file = now.is_some_and(|now| now.is_file);
        let power_lost = is_file && now.is_some_and(|now| now.boot_id != sb.boot_id);
        name_losses(&mut lanes, (sb, ring), (is_file, power_lost), log);
    }
    count
}

fn name_losses(
    lanes: &mut [Lane],
    (sb, ring): (&Super, u64),
    (is_file, power_lost): (bool, bool),
    log: &mut Log,
) {
    let mut read: Vec<u64> = lanes.iter().flat_map(|lane| lane.seqs.clone()).collect();
    read.sort_unstable();
    for (lane, (place, _)) in lanes.iter_mut().zip(sb.lanes) {
        lane.look_behind(place.saturating_add(ring), &read);
    }
    let behind = lanes.iter().flat_map(|lane| &lane.behind).map(|b| b.seq);
    let mut all: Vec<u64> = read.iter().copied().chain(behind).collect();
    all.sort_unstable();
    all.dedup();
    let elsewhere = if power_lost {
        ring / UNIT * LANES as u64
    } else {
        4096
    };
    for lane in lanes.iter_mut() {
        let (last, end) = (lane.last, lane.end);
        lane.behind.retain(|b| {
            let below = |seq: u64| all.partition_point(|n| *n < seq) as u64;
            let between = b.seq - last - 1;
            let missing = between.saturating_sub(below(b.seq) - below(last + 1));
            missing <= (b.at - end) / UNIT + elsewhere
        });
    }
    let behind = lanes.iter().flat_map(|lane| &lane.behind).map(|b| b.seq);
    let mut there: Vec<u64> = read.iter().copied().chain(behind).collect();
    there.sort_unstable();
    let mut best: Option<Mark> = None;
    for lane in lanes.iter() {
        let found = lane.behind.iter().filter_map(|b| b.mark.as_ref());
        for mark in lane.marks.iter().chain(found) {
            let higher = best.as_ref().is_none_or(|b| mark.number > b.number);
            if higher && mark.is_possible(sb, ring) {
                best = Some(mark.clone());
            }
        }
    }
    let best = best.filter(|_| is_file);
    for (i, lane) in lanes.iter().enumerate() {
        let (needed, mut upto) = match &best {
            Some(mark) if power_lost => (mark.acked_heads[i], mark.acked),
            Some(mark) => (mark.heads[i], mark.seq),
            None => (0, 0),
        };
        let next = lane.behind.first();
        if needed <= lane.end && (power_lost || next.is_none()) {
            continue;
        }
        upto = next.map_or(upto, |b| b.seq - 1);
        let lost: Vec<u64> = gaps(&there, lane.last.saturating_add(1), upto);
        let (first, last) = (lost[0], lost[lost.len() - 1]);
        let which = match first == last {
            true => format!("record {first} is lost"),
            false => format!("records {first} to {last} are lost"),
        };
        let (number, end) = (lane.number, lane.end);
        let what = format!("the journal cannot be read in lane {number} at {end}: {which}");
        log.damage(None, None, what);
    }
}

/// The ends of the runs of numbers from `first` to `last` that are not in `there`, which is sorted;
/// `first` if there are none.
fn gaps(there: &[u64], first: u64, last: u64) -> Vec<u64> {
    let (mut out, mut at) = (Vec::new(), first);
    for n in there.iter().filter(|n| (first..=last).contains(n)) {
        if at < *n {
            out.extend([at, n - 1]);
        }
        at = n + 1;
    }
    if at <= last {
        out.extend([at, last]);
    }
    if out.is_empty() {
        out.push(first);
    }
    out
}

impl Mark {
    fn is_possible(&self, sb: &Super, ring: u64) -> bool {
        let fits = |i: usize| {
            let place = sb.lanes[i].0;
            self.acked_heads[i] <= self.heads[i] && self.heads[i] <= place.saturating_add(ring)
        };
        self.seq < self.number && self.acked <= self.seq && (0..LANES).all(fits)
    }
}

impl Lane {
    fn ring(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The bytes from a position to the end of the ring.
    fn from(&self, at: u64) -> &[u8] {
        &self.bytes[(at % self.ring()) as usize..]
    }

    /// Reads up to where the lane ends, at most to `limit`.
    fn read(&mut self, limit: u64) {
        while self.end < limit {
            let next_lap = self.end.next_multiple_of(self.ring());
            let found = [self.end, next_lap].into_iter().find_map(|place| {
                let (seq, len) = valid(self.from(place), self.number)?;
                let had_room = place > self.end && self.end + len <= next_lap;
                (seq > self.last && !had_room).then_some((place, seq, len))
            });
            let Some((place, seq, len)) = found else {
                break;
            };
            self.marks.extend(mark(self.from(place)));
            self.seqs.push(seq);
            (self.end, self.last) = (place + len, seq);
        }
    }

    /// Looks for records behind the end, up to `limit`.
    fn look_behind(&mut self, limit: u64, read: &[u64]) {
        let (mut at, mut in_vain) = (self.end.next_multiple_of(UNIT), 0);
        while at < limit && in_vain < IN_VAIN * self.ring() {
            let bytes = self.from(at);
            match valid(bytes, self.number) {
                Some((seq, len)) => {
                    if seq > self.last && read.binary_search(&seq).is_err() {
                        let mark = mark(bytes);
                        self.behind.push(Behind { at, seq, mark });
                    }
                    at += len;
                }
                None => {
                    in_vain += header(bytes, self.number).map_or(0, |(_, len)| len);
                    at += UNIT;
                }
            }
        }
        for place in [self.end, self.end.next_multiple_of(self.ring())] {
            self.drop_content(place);
        }
    }

    /// What lies in a record that was begun at `place` is its content, unless only its length is
    /// wrong.
    fn drop_content(&mut self, place: u64) {
        let bytes = self.from(place);
        let begun = header(bytes, self.number).filter(|(seq, _)| *seq > self.last);
        let Some((_, len)) = begun.filter(|_| valid(bytes, self.number).is_none()) else {
            return;
        };
        let is_inside = |b: &Behind| (place..place + len).contains(&b.at);
        let ends_at = |end: u64| {
            let room = (end - place) as usize;
            (room.saturating_sub(63).max(24)..=room).any(|len| {
                let mut copy = bytes[..len].to_vec();
                copy[16..20].copy_from_slice(&(len as u32).to_le_bytes());
                crc32c(&copy[8..]) == le32(&copy, 4)
            })
        };
        let mut inside = self.behind.iter().filter(|b| is_inside(b));
        if !inside.any(|b| ends_at(b.at)) {
            self.behind.retain(|b| !is_inside(b));
        }
    }
}

/// Sequence number and padded length of what stands at the start of `bytes` as a header.
fn header(bytes: &[u8], lane: usize) -> Option<(u64, u64)> {
    if bytes.len() < 64 || le32(bytes, 0) != 0x524a_4648 || le16(bytes, 22) != lane {
        return None;
    }
    let len = u64::from(le32(bytes, 16));
    let padded = len.next_multiple_of(UNIT);
    let fits = (24..=RECORD_MAX).contains(&len) && padded <= bytes.len() as u64;
    fits.then(|| (le64(bytes, 8), padded))
}

/// The same of a valid record.
fn valid(bytes: &[u8], lane: usize) -> Option<(u64, u64)> {
    let found = header(bytes, lane)?;
    let len = le32(bytes, 16) as usize;
    (crc32c(&bytes[8..len]) == le32(bytes, 4)).then_some(found)
}

/// The valid record at the start of `bytes`, if it is a mark.
fn mark(bytes: &[u8]) -> Option<Mark> {
    if le16(bytes, 20) != MARK || le32(bytes, 16) as usize != MARK_LEN {
        return None;
    }
    let words = |from: usize| (0..LANES).map(|i| le64(bytes, from + 8 * i)).collect();
    Some(Mark {
        number: le64(bytes, 8),
        seq: le64(bytes, 24),
        acked: le64(bytes, 32),
        heads: words(40),
        acked_heads: words(40 + 8 * LANES),
    })
}
