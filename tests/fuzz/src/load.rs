//! What `holdfast kv load` reads: lines, or a dump of LMDB's.
//!
//! What must hold: reading ends with an error or the end of the input, and the pairs that were read
//! come back when they are written.

#[path = "../../../crates/cli/src/kv/escape.rs"]
pub mod escape;
#[path = "../../../crates/cli/src/kv/lines.rs"]
pub mod lines;
#[path = "../../../crates/cli/src/kv/mdb.rs"]
pub mod mdb;

use lines::{Lines, Pair};

/// Heads of dumps, so that not every input has to find one.
const HEADS: [&[u8]; 2] = [
    b"VERSION=3\nformat=print\nHEADER=END\n",
    b"VERSION=3\nformat=bytevalue\nHEADER=END\n",
];

pub fn run(bytes: &[u8]) {
    let Some((how, text)) = bytes.split_first() else {
        return;
    };
    match how {
        0..64 => {
            let (pairs, _) = from_lines(text);
            assert_eq!(from_lines(&as_lines(&pairs)), (pairs, Ok(())));
        }
        64..192 => judge_dump(&[HEADS[usize::from(how % 2)], text].concat()),
        _ => judge_dump(text),
    }
}

fn from_lines(text: &[u8]) -> (Vec<Pair>, Result<(), String>) {
    let (mut lines, mut pairs) = (Lines::new(text), Vec::new());
    let done = loop {
        match lines.pair() {
            Ok(Some(pair)) => pairs.push(pair),
            Ok(None) => break Ok(()),
            Err(why) => break Err(why),
        }
        assert_eq!(lines.number(), pairs.len() as u64);
    };
    (pairs, done)
}

fn as_lines(pairs: &[Pair]) -> Vec<u8> {
    let mut text = Vec::new();
    for (key, value, expires) in pairs {
        lines::write(&mut text, (key, value), *expires).expect("memory takes it");
    }
    text
}

fn judge_dump(text: &[u8]) {
    let (pairs, _) = from_dump(text);
    for print in [false, true] {
        let again = as_dump(&pairs, print);
        assert_eq!(from_dump(&again), (pairs.clone(), Ok(())));
    }
}

fn from_dump(text: &[u8]) -> (Vec<mdb::Pair>, Result<(), String>) {
    let mut pairs = Vec::new();
    let mut reader = match mdb::Reader::new(text) {
        Ok(reader) => reader,
        Err(why) => return (pairs, Err(why)),
    };
    let done = loop {
        match reader.pair() {
            Ok(Some(pair)) => pairs.push(pair),
            Ok(None) => break Ok(()),
            Err(why) => break Err(why),
        }
    };
    assert!(reader.number() >= 2 * pairs.len() as u64);
    (pairs, done)
}

fn as_dump(pairs: &[mdb::Pair], print: bool) -> Vec<u8> {
    let (mut text, mut room) = (Vec::new(), mdb::Room::default());
    pairs.iter().for_each(|(key, value)| room.add(key, value));
    let mut writer = mdb::Writer::new(&mut text, print, room).expect("memory takes it");
    for (key, value) in pairs {
        writer.pair(key, value).expect("memory takes it");
    }
    writer.finish().expect("memory takes it");
    text
}
