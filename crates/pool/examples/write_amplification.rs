//! Prints the bytes that one random overwrite stores, after loads in random and in key order:
//! `cargo run --release --example write_amplification [KEYS] [CHANGES PER COMMIT] [VALUE BYTES]`.
//!
//! What always holds here: keys are 24 bytes, values 100 if nothing else is said; each store into
//! the segment of the trees is counted, superblocks and bitmaps too; the first pass of overwrites,
//! which brings leaves into the shape that they keep, is told apart from the second.

use holdfast_pmem::record::Event;
use holdfast_pmem::{Medium, Recorder, Region};
use holdfast_pool::format::superblock::Consistency;
use holdfast_pool::layout::VALUES;
use holdfast_pool::segment::Sizes;
use holdfast_pool::{Params, Pool, Result, WriteToken};

const KEY_LEN: u64 = 24;

/// What was stored so far, counted after each commit.
#[derive(Default)]
struct Stored {
    log: Recorder,
    bytes: u64,
}

impl Stored {
    fn count(&mut self) {
        let len = |event: &Event| match event {
            Event::Store { data, .. } => data.len() as u64,
            _ => 0,
        };
        self.bytes += self.log.take().iter().map(len).sum::<u64>();
    }
}

/// The i-th of `count` numbers in an order that looks random; each comes once.
fn scattered(i: u64, count: u64, pass: u64) -> u64 {
    let steps = [0x9e37_79b1, 0x85eb_ca77, 0xc2b2_ae3d];
    let step = steps[pass as usize % steps.len()];
    (i * step + pass * 7919) % count
}

fn key(i: u64) -> Vec<u8> {
    format!("key:{i:020}").into_bytes()
}

fn put(
    pool: &mut Pool,
    keys: impl Iterator<Item = u64>,
    (value, per_commit): (&[u8], usize),
    stored: &mut Stored,
) -> Result<()> {
    let (token, mut keys) = (WriteToken::for_offline_tool(), keys.peekable());
    while keys.peek().is_some() {
        let mut some: Vec<u64> = keys.by_ref().take(per_commit).collect();
        // As the service applies them.
        some.sort_unstable();
        let mut batch = pool.begin(&token);
        for i in some {
            batch.put(VALUES, &key(i), value)?;
        }
        batch.commit(|_| {})?;
        stored.count();
    }
    Ok(())
}

fn new_pool(bytes: u64, stored: &Stored) -> Result<Pool> {
    let meta_len = (bytes * 4).next_multiple_of(1 << 21).max(1 << 26);
    let meta = Region::in_memory(meta_len as usize)?.recorded(&stored.log);
    let sizes = Sizes {
        meta_len,
        meta_len_max: meta_len,
        ..Sizes::for_pool(1 << 30)?
    };
    let params = Params {
        uuid: [1; 16],
        boot_id: [2; 16],
        medium: Medium::Memory,
        consistency: Consistency::Posix,
        sizes,
        next_ino: 1,
        journal_segment: 0,
        lane_len: 1 << 20,
    };
    Pool::create(meta, &params, &WriteToken::for_offline_tool())
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).filter_map(|n| n.parse().ok());
    let (count, per_commit) = (
        args.next().unwrap_or(1_000_000),
        args.next().unwrap_or(65_536) as usize,
    );
    let value = vec![0x5a; args.next().unwrap_or(100) as usize];
    let bytes = count * (KEY_LEN + value.len() as u64);
    let way = (&value[..], per_commit);
    for in_order in [false, true] {
        let mut stored = Stored::default();
        let mut pool = new_pool(bytes, &stored)?;
        let load = |i| match in_order {
            true => i,
            false => scattered(i, count, 0),
        };
        put(&mut pool, (0..count).map(load), way, &mut stored)?;
        let name = if in_order {
            "key order"
        } else {
            "random order"
        };
        let space = |pool: &Pool| pool.meta_space().count_used() as f64 * 4096.0 / bytes as f64;
        println!("loaded in {name}: space {:.2}", space(&pool));
        for pass in 1..3 {
            let before = stored.bytes;
            let again = (0..count).map(|i| scattered(i, count, pass));
            put(&mut pool, again, way, &mut stored)?;
            let each = (stored.bytes - before) / count;
            println!(
                "  pass {pass}: {each} bytes per overwrite, space {:.2}",
                space(&pool)
            );
        }
    }
    Ok(())
}
