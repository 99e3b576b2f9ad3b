//! What snapshots cost: puts with none and with thousands of them, taking one, deleting one.
//!
//! `cargo run --release --example snapshots POOL [SNAPSHOTS]`; POOL is made if it is not there.

use holdfast::{Durability, Keyspace, Pool, Result};
use std::time::{Duration, Instant};

const KEYS: u64 = 100_000;
const PUTS: u64 = 200_000;

fn put_some(keyspace: &Keyspace, seed: &mut u64, n: u64) -> Result<Duration> {
    let begun = Instant::now();
    for _ in 0..n {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let key = (*seed >> 33) % KEYS;
        let value = [key as u8; 100];
        keyspace.put(&key.to_be_bytes(), &value, Durability::Durable)?;
    }
    Ok(begun.elapsed())
}

fn per(total: Duration, n: u64) -> f64 {
    total.as_secs_f64() * 1e6 / n as f64
}

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let (Some(path), count) = (words.next(), words.next()) else {
        eprintln!("usage: snapshots POOL [SNAPSHOTS]");
        std::process::exit(2);
    };
    let count: u64 = count.and_then(|n| n.parse().ok()).unwrap_or(3000);
    let pool = Pool::open_or_create(path)?;
    let keyspace = pool.keyspace_or_create("snapshots-example")?;
    let mut seed = 1;
    for round in ["filling", "without snapshots", "again"] {
        let took = put_some(&keyspace, &mut seed, PUTS)?;
        println!("put, {round}: {:.2} us", per(took, PUTS));
    }
    let (mut taking, mut longest) = (Duration::ZERO, Duration::ZERO);
    for i in 0..count {
        put_some(&keyspace, &mut seed, 20)?;
        let begun = Instant::now();
        pool.snapshot_create(&format!("example-{i}"))?;
        taking += begun.elapsed();
        longest = longest.max(begun.elapsed());
    }
    println!(
        "taking one of {count}: {:.0} us, at most {longest:?}",
        per(taking, count)
    );
    for round in ["with all of them", "again"] {
        let took = put_some(&keyspace, &mut seed, PUTS)?;
        println!("put, {round}: {:.2} us", per(took, PUTS));
    }
    let begun = Instant::now();
    println!(
        "{} are listed in {:?}",
        pool.snapshot_list()?.len(),
        begun.elapsed()
    );
    let begun = Instant::now();
    for i in 0..count {
        pool.snapshot_delete(&format!("example-{i}"))?;
    }
    println!("deleting one: {:.0} us", per(begun.elapsed(), count));
    Ok(())
}
