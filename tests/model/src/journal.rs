//! The rings of the journal.

use super::play;
use holdfast_client::{Client, journal};
use holdfast_pmem::model;
use holdfast_pool::journal::{RECORD_ALIGN, RECORD_HEADER, Record, decode, peek};
use holdfast_pool::session::{LANES, Lane};
use std::sync::atomic::Ordering::*;

const RECORDS: u64 = 4;
const WRITERS: u64 = 3;
/// A large record, so that rings come to their ends.
const LARGE: usize = 7000;

/// The rings begin shortly before their ends.
fn begin(client: &Client) {
    let s = client.session();
    for index in 0..LANES as u32 {
        let lane = s.lane(index).expect("a lane");
        let at = s.lane_len() - 2 * RECORD_ALIGN as u64;
        for word in [&lane.head, &lane.tail, &lane.applied] {
            word.store(at, Relaxed);
        }
    }
    s.header().void_below.store(0, Relaxed);
}

fn write(client: &Client, writer: usize) {
    let data = vec![writer as u8; LARGE];
    for n in 0..RECORDS {
        let data = if n % 2 == 0 { &data[..] } else { &data[..50] };
        let record = Record::Write {
            ino: 1_000_000 + writer as u64,
            offset: n,
            size: 1 << 20,
            mtime: 1,
            data,
        };
        journal::commit(client.session(), &record).expect("a record");
    }
}

/// Takes every record that the lanes show, as the service does, and gives the room back.
fn serve(client: &Client, _: usize) {
    let s = client.session();
    let (mut taken, mut last) = (0, [0; LANES]);
    while taken < RECORDS * WRITERS {
        model::rest();
        for (index, last) in last.iter_mut().enumerate() {
            let lane = s.lane(index as u32).expect("a lane");
            taken += drain(client, index as u64, lane, last);
        }
    }
    // Nobody reads the sum but the end of the story.
    s.header().objects.store(taken, Relaxed);
}

fn drain(client: &Client, index: u64, lane: &Lane, last: &mut u64) -> u64 {
    let s = client.session();
    let (mut at, mut taken) = (lane.tail.load(Relaxed), 0);
    let head = lane.head.load(Acquire);
    while at < head {
        let offset = at % s.lane_len();
        let mut bytes = vec![0; RECORD_HEADER];
        let base = index * s.lane_len() + offset;
        s.journal().read(base, &mut bytes).expect("inside");
        let wraps = s.lane_len() - offset;
        let header = match peek(&bytes) {
            Ok(header) if header.seq > *last => header,
            // The rest of the ring was too short.
            _ if head - at > wraps => {
                at += wraps;
                continue;
            }
            other => panic!("no record at {at} of lane {index} before {head}: {other:?}"),
        };
        let mut bytes = vec![0; header.len];
        s.journal().read(base, &mut bytes).expect("inside");
        decode(&bytes).expect("a whole record");
        (*last, taken) = (header.seq, taken + 1);
        at += header.padded_len() as u64;
        lane.tail.store(at, Release);
        lane.applied.store(at, Release);
    }
    taken
}

fn all_taken(client: &Client) {
    let taken = client.session().header().objects.load(Relaxed);
    assert_eq!(taken, RECORDS * WRITERS);
}

/// Fails when `head` is stored before the record is written, or the record is not fenced.
#[test]
fn what_lies_before_the_head_of_a_lane_is_whole() {
    play(begin, &[write, write, write, serve], all_taken);
}
