//! Records that wait in the journal, as `docs/spec/journal.md` states them.
//!
//! Invariant: each step goes on in the lane or ends it, so counting ends.

use super::Bytes;
use super::media::{LANES, Super, le16, le32, le64};
use crate::checksum::crc32c;
use alloc::vec;

const RECORD_MAX: usize = 256 * 1024;

/// How many records the trees do not know yet.
pub(super) fn waiting(journal: &dyn Bytes, sb: &Super) -> u64 {
    let lane_len = journal.len() / LANES as u64;
    if lane_len == 0 {
        return 0;
    }
    let lanes = sb.lanes.iter().enumerate();
    lanes
        .map(|(lane, start)| in_lane(journal, lane as u64, lane_len, *start))
        .sum()
}

fn in_lane(journal: &dyn Bytes, lane: u64, lane_len: u64, start: (u64, u64)) -> u64 {
    let (mut at, mut last) = start;
    let (end, mut count) = (at.saturating_add(lane_len), 0);
    while at < end {
        let next_lap = at.next_multiple_of(lane_len);
        let found = [at, next_lap].into_iter().find_map(|place| {
            let room = lane_len - place % lane_len;
            let offset = lane * lane_len + place % lane_len;
            let (seq, len) = record(journal, lane, offset, room)?;
            (seq > last).then_some((place + len, seq))
        });
        match found {
            Some((next, seq)) => (at, last, count) = (next, seq, count + 1),
            None => break,
        }
    }
    count
}

/// Sequence number and padded length of the valid record at `offset`.
fn record(journal: &dyn Bytes, lane: u64, offset: u64, room: u64) -> Option<(u64, u64)> {
    let mut head = [0; 24];
    if room < 64 || !journal.read(offset, &mut head) || le32(&head, 0) != 0x524a_4648 {
        return None;
    }
    let len = le32(&head, 16) as usize;
    let padded = len.next_multiple_of(64) as u64;
    if !(24..=RECORD_MAX).contains(&len) || padded > room || le16(&head, 22) as u64 != lane {
        return None;
    }
    let mut bytes = vec![0; len];
    let valid = journal.read(offset, &mut bytes) && crc32c(&bytes[8..]) == le32(&bytes, 4);
    valid.then_some((le64(&head, 8), padded))
}
