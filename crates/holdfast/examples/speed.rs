//! How long the basic operations take: `speed POOL KEYS VALUE_BYTES`.

use holdfast::{Durability, Keyspace, Pool};
use std::ops::Bound;
use std::time::Instant;

fn key(i: u64) -> [u8; 24] {
    let mut key = [b'0'; 24];
    let mixed = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    key[..8].copy_from_slice(&mixed.to_be_bytes());
    key[8..16].copy_from_slice(&mixed.rotate_left(17).to_le_bytes());
    key
}

fn report(what: &str, n: u64, begun: Instant) {
    let ns = begun.elapsed().as_nanos() as f64 / n as f64;
    println!("{what:32} {ns:10.0} ns");
}

/// A scan reads trees that have everything.
fn wait_for_trees(keyspace: &Keyspace) -> holdfast::Result<()> {
    let mut scan = keyspace.scan(Bound::Unbounded, Bound::Unbounded)?;
    scan.next_ref().map(drop)
}

fn main() -> holdfast::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize, or: u64| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(or);
    let (keys, bytes) = (number(2, 1_000_000), number(3, 100) as usize);
    let pool = Pool::open_or_create(&args[1])?;
    let keyspace = pool.keyspace_or_create("speed")?;
    let value = vec![7; bytes];
    let begun = Instant::now();
    let mut i = 0;
    while i < keys {
        let mut batch = pool.batch();
        for _ in 0..1000.min(keys - i) {
            batch.put(&keyspace, &key(i), &value)?;
            i += 1;
        }
        batch.commit(Durability::Durable)?;
    }
    report("load, random, 1000 per commit", keys, begun);
    wait_for_trees(&keyspace)?;
    report("  and applied", keys, begun);
    let pick = |i: u64| i.wrapping_mul(6364136223846793005) % keys;
    let mut out = vec![0; bytes];
    let rounds = keys.min(500_000);
    let begun = Instant::now();
    for i in 0..rounds {
        assert_eq!(
            keyspace.get_into(&key(pick(i)), &mut out)?,
            Some(bytes as u64)
        );
    }
    report("get", rounds, begun);
    let begun = Instant::now();
    for i in 0..rounds {
        keyspace.put(&key(pick(i)), &value, Durability::Durable)?;
    }
    report("put, durable", rounds, begun);
    wait_for_trees(&keyspace)?;
    report("  and applied", rounds, begun);
    let begun = Instant::now();
    for i in 0..rounds / 1000 {
        let mut batch = pool.batch();
        for j in 0..1000 {
            batch.put(&keyspace, &key(pick(i * 1000 + j + 77)), &value)?;
        }
        batch.commit(Durability::Durable)?;
    }
    report("overwrite, 1000 per commit", rounds / 1000 * 1000, begun);
    wait_for_trees(&keyspace)?;
    report("  and applied", rounds / 1000 * 1000, begun);
    let begun = Instant::now();
    let scans = 5000;
    for i in 0..scans {
        let mut scan = keyspace.scan(Bound::Included(&key(pick(i))[..]), Bound::Unbounded)?;
        for _ in 0..100 {
            scan.next_ref()?;
        }
    }
    report("scan 100", scans, begun);
    Ok(())
}
