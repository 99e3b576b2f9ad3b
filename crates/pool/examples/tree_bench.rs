//! Prints processor time per operation of one tree: `cargo run --release --example tree_bench`.
//!
//! What always holds here: keys are 24 bytes, values 100; the pool is a memfd; every get copies
//! its value; the time of a commit is part of the puts that it commits.

use holdfast_pmem::{Access, MapOptions, Medium, Region, Registers};
use holdfast_pool::format::superblock::Consistency;
use holdfast_pool::segment::Sizes;
use holdfast_pool::{Params, Pool, Result, WriteToken};
use rustix::fd::AsFd;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::time::{ClockId, clock_gettime};
use std::ops::ControlFlow;

const META_LEN: u64 = 1 << 30;
const VALUE: [u8; 100] = [0x5a; 100];

fn mixed(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

fn random_key(i: u64) -> [u8; 24] {
    let text = format!("{:016x}{:08x}", mixed(i), i as u32);
    text.as_bytes().try_into().unwrap_or([0; 24])
}

fn sorted_key(i: u64) -> [u8; 24] {
    let text = format!("key:{i:020}");
    text.as_bytes().try_into().unwrap_or([0; 24])
}

/// Processor time of this thread: the machine may be busy with other things.
fn cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn time(name: &str, count: u64, run: impl FnOnce() -> Result<()>) -> Result<()> {
    let start = cpu_ns();
    run()?;
    println!(
        "{name:<34} {:>8.0} ns/op",
        (cpu_ns() - start) as f64 / count as f64
    );
    Ok(())
}

fn new_pool(token: &WriteToken) -> Result<Pool> {
    let os = |call| {
        move |e: rustix::io::Errno| holdfast_pmem::Error::Os {
            call,
            errno: e.raw_os_error(),
        }
    };
    let fd = memfd_create("bench", MemfdFlags::CLOEXEC).map_err(os("memfd_create"))?;
    ftruncate(&fd, META_LEN).map_err(os("ftruncate"))?;
    let options = MapOptions::new(Access::ReadWrite, Medium::Memory).registers(Registers::Ymm);
    let meta = Region::map_with(fd.as_fd(), 0, META_LEN as usize, &options)?;
    if std::env::var_os("HUGE").is_some() {
        println!("huge pages: {:?}", meta.make_huge(0, META_LEN as usize)?);
    }
    meta.prefault(0, META_LEN as usize)?;
    let sizes = Sizes {
        meta_len: META_LEN,
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
    Pool::create(meta, &params, token)
}

fn put_all(
    pool: &mut Pool,
    token: &WriteToken,
    tree: u8,
    keys: &[[u8; 24]],
    per_commit: usize,
) -> Result<()> {
    for part in keys.chunks(per_commit) {
        let mut batch = pool.begin(token);
        for key in part {
            batch.put(tree, key, &VALUE)?;
        }
        batch.commit(|_| {})?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let count: u64 = std::env::args()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(1_000_000);
    let token = WriteToken::for_offline_tool();
    let mut pool = new_pool(&token)?;
    let sorted: Vec<_> = (0..count).map(sorted_key).collect();
    let random: Vec<_> = (0..count).map(random_key).collect();
    let looked: Vec<_> = (0..count).map(|i| random_key(mixed(i) % count)).collect();
    let some = &looked[..looked.len().min(200_000)];
    time("sorted put, 1000 per commit", count, || {
        put_all(&mut pool, &token, 0, &sorted, 1000)
    })?;
    time("random put, 1000 per commit", count, || {
        put_all(&mut pool, &token, 1, &random, 1000)
    })?;
    time("overwrite, 1000 per commit", count, || {
        put_all(&mut pool, &token, 1, &looked, 1000)
    })?;
    time("overwrite, 1 per commit", some.len() as u64, || {
        put_all(&mut pool, &token, 1, some, 1)
    })?;
    for round in 0..2 {
        time("get", count, || {
            let (reader, mut value) = (pool.reader(), [0; 100]);
            let found = looked.iter().try_fold(0, |n, key| {
                Ok::<_, holdfast_pool::Error>(n + reader.get(1, key, &mut value)?.map_or(0, |_| 1))
            })?;
            assert_eq!(found, count, "round {round}");
            Ok(())
        })?;
    }
    time("scan 100 (per scan)", some.len() as u64, || {
        for from in some {
            let mut left = 100;
            pool.reader().scan(1, from, None, |_, _| {
                left -= 1;
                if left == 0 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })?;
        }
        Ok(())
    })?;
    let superblock = pool.superblock();
    let used = pool.meta_space().count_used() * 4096;
    println!(
        "heights {} and {}",
        superblock.roots[0].height, superblock.roots[1].height
    );
    println!(
        "space {:.2} of keys and values",
        used as f64 / (2 * count * 124) as f64
    );
    Ok(())
}
