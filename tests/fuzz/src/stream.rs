//! A stream that somebody else made: every chunk of it is right, and no record needs to be.
//!
//! What must hold: restoring ends with a pool or an error, inside the pool's data; the check of
//! what was made ends; and a pool that was there is as it was, or has whole states more.

use crate::input::Input;
use crate::sample::{self, DATA_LEN, META_LEN};
use holdfast_pmem::Region;
use holdfast_pool::format::superblock::Consistency;
use holdfast_pool::layout::BlockAddr;
use holdfast_pool::snapshot;
use holdfast_pool::{Pool, WriteToken};
use holdfast_stream::record::{BLOCK, Record};
use holdfast_stream::{Base, ChunkReader, ChunkWriter, Head, Restorer, Sink, Target};
use std::io::{self, Cursor};

const RECORDS_MAX: usize = 300;
static BLOCKS: [u8; 41 * BLOCK] = [7; 41 * BLOCK];

/// Data goes nowhere, but never beyond the pool.
struct Nowhere;

impl Sink for Nowhere {
    fn write(&mut self, block: BlockAddr, bytes: &[u8]) -> io::Result<()> {
        assert!(!bytes.is_empty() && bytes.len().is_multiple_of(BLOCK));
        assert!(block.offset() + bytes.len() as u64 <= DATA_LEN);
        Ok(())
    }

    fn zero(&mut self, block: BlockAddr, blocks: u64, _: bool) -> io::Result<()> {
        assert!(block.offset() + blocks * BLOCK as u64 <= DATA_LEN);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn new_pool() -> Pool {
    let meta = Region::in_memory(META_LEN as usize).expect("memory");
    Pool::create(meta, &sample::params(), &WriteToken::for_offline_tool()).expect("a pool")
}

/// A record with fields out of the input, which fit each other more often than by chance.
fn record<'a>(input: &mut Input<'a>) -> Record<'a> {
    let (ino, at) = (u64::from(input.u8() % 6), input.number() % 5000);
    let n = 1 + input.below(40);
    match input.u8() % 12 {
        0 => Record::State {
            name: input.string(),
            time: input.number() as i64,
            counts: [input.number(); 8],
        },
        1 | 2 => Record::Put {
            tree: input.u8() % 8,
            key: input.string(),
            value: input.string(),
        },
        3 => Record::Erase {
            tree: input.u8() % 8,
            key: input.string(),
        },
        4 | 5 => Record::Data {
            ino,
            file_block: at,
            bytes: &BLOCKS[..n * BLOCK],
        },
        6 => Record::Zeroes {
            ino,
            file_block: at,
            blocks: input.number(),
        },
        7 => Record::Unmap {
            ino,
            file_block: at,
            blocks: input.number(),
        },
        8 => Record::Value {
            key: input.string(),
            mtime: input.number() as i64,
            len: input.number() % 300_000,
            expires: input.number() as i64,
        },
        9 => Record::ValueData {
            bytes: &BLOCKS[..1 + input.below(40 * BLOCK - 1)],
        },
        10 => Record::StateEnd,
        _ => Record::End,
    }
}

fn stream(input: &mut Input<'_>, base: Option<Base>) -> Vec<u8> {
    let mut writer = ChunkWriter::new(Vec::new()).expect("threads");
    let head = Head {
        seed: holdfast_pool::layout::name_seed(sample::params().uuid),
        consistency: Consistency::Posix,
        size: DATA_LEN,
        next_ino: input.number(),
        time: 0,
        base,
    };
    writer.put(&Record::Head(head)).expect("memory");
    let counts = [0; 8];
    let name: &[u8] = if input.u8().is_multiple_of(2) {
        b"s"
    } else {
        b""
    };
    let first = Record::State {
        name,
        time: 1,
        counts,
    };
    writer.put(&first).expect("memory");
    for _ in 0..RECORDS_MAX {
        if input.is_empty() {
            break;
        }
        writer.put(&record(input)).expect("memory");
    }
    writer.put(&Record::StateEnd).expect("memory");
    writer.put(&Record::End).expect("memory");
    writer.finish().expect("memory")
}

fn target<'t>(pool: &'t mut Pool, token: &'t WriteToken, sink: &'t mut Nowhere) -> Target<'t> {
    Target { pool, token, sink }
}

pub fn run(bytes: &[u8]) {
    // As they are, they are no stream.
    let _ = ChunkReader::new(Cursor::new(bytes.to_vec()));
    let mut rest = bytes;
    while !rest.is_empty() && Record::decode(&mut rest).is_ok() {}
    let (mut input, token) = (Input::new(bytes), WriteToken::for_offline_tool());
    let continues = input.u8().is_multiple_of(2);
    let mut pool = new_pool();
    if !continues {
        let made = stream(&mut input, None);
        let restorer = Restorer::begin(Cursor::new(made)).expect("a head");
        let _ = restorer.fill(target(&mut pool, &token, &mut Nowhere), &mut |_| {});
        return check(&pool);
    }
    pool.create_snapshot(&token, b"base", 1).expect("room");
    let base = Base {
        name: b"base".to_vec(),
        time: 1,
    };
    let made = stream(&mut input, Some(base));
    let before = pool.superblock().seq;
    let restorer = Restorer::begin(Cursor::new(made)).expect("a head");
    let done = restorer.go_on(target(&mut pool, &token, &mut Nowhere), &mut |_| {});
    let states = snapshot::list(&pool.reader()).expect("snapshots").len();
    if done.is_err() && states == 1 {
        // At most the present behind the last whole state.
        assert!(pool.superblock().seq <= before + 2);
    }
    check(&pool);
}

fn check(pool: &Pool) {
    let _ = holdfast_pool::check::check(pool.meta(), DATA_LEN, None);
}
