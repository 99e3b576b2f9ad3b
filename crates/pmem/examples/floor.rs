//! What the machine can do at best: the floor under every figure of this project.
//!
//! Prints nanoseconds per operation, the median and the best of several rounds, on 4 KiB and on
//! huge pages of memory. `cargo run --release -p holdfast-pmem --example floor`

use holdfast_pmem::{Access, Fault, MapOptions, Medium, Persistence, Region, Registers};
use holdfast_pmem::{Reservation, SharedMem};
use rustix::fd::{AsFd, OwnedFd};
use std::hint::black_box;
use std::time::Instant;

const LEN: usize = 256 << 20;
const ROUNDS: usize = 9;
const OPS: usize = 20_000;

/// Calls `op` with offsets in random order over the region; (median, best) ns per call.
fn measure(size: usize, mut op: impl FnMut(u64)) -> (f64, f64) {
    let slots = (LEN / size.next_multiple_of(64)) as u64;
    let mut rng = 88_172_645_463_325_252u64;
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..OPS {
                rng ^= rng << 13;
                rng ^= rng >> 7;
                rng ^= rng << 17;
                op((rng % slots) * size.next_multiple_of(64) as u64);
            }
            start.elapsed().as_nanos() as f64 / OPS as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    (rounds[ROUNDS / 2], rounds[0])
}

fn show(name: &str, size: usize, result: (f64, f64)) {
    println!("{name:<40} {size:>6} B {:>9.1} {:>9.1}", result.0, result.1);
}

fn rows(r: &Region, registers: Registers) -> Result<(), Fault> {
    let data = vec![0x5au8; 65536];
    for size in [64, 128, 512, 4096, 65536] {
        let src = &data[..size];
        let t = measure(size, |off| {
            r.write_nt(off, src).expect("in range");
            r.fence();
        });
        show(
            &format!("around the cache + fence ({registers:?})"),
            size,
            t,
        );
    }
    for size in [64, 128, 256, 512, 4096] {
        let src = &data[..size];
        let t = measure(size, |off| {
            r.store(off, src).expect("in range");
            r.persist(off, size).expect("in range");
        });
        show("store + write-back + fence", size, t);
    }
    let mut out = vec![0u8; 65536];
    for size in [64, 512, 4096, 65536] {
        let dst = &mut out[..size];
        let t = measure(size, |off| r.read(off, black_box(dst)).expect("in range"));
        show("read, random place", size, t);
    }
    for size in [64, 512, 4096, 65536] {
        let dst = &mut out[..size];
        let t = measure(size, |off| {
            r.read(off % 65536, black_box(dst)).expect("in range")
        });
        show("read, in cache", size, t);
    }
    for size in [8, 16, 100, 512, 4096] {
        let t = measure(size, |off| {
            r.copy_in(off % 65536, data[..size].into())
                .expect("in range");
        });
        show("copy_in, the same 64 KiB, no fence", size, t);
    }
    // Each load's address depends on the one before: nothing can overlap.
    let mut next = 0u64;
    let t = measure(64, |off| {
        next = r.load_u64((off + (next & 64)) % LEN as u64).unwrap_or(0)
    });
    show("dependent load, random place", 8, t);
    Ok(())
}

fn memory() -> (OwnedFd, SharedMem) {
    SharedMem::create_memfd("floor", LEN).expect("memory for the measurement")
}

fn main() {
    println!(
        "{:<40} {:>8} {:>9} {:>9}",
        "what", "size", "median", "best ns"
    );
    for (huge, registers) in [
        (false, Registers::Xmm),
        (true, Registers::Xmm),
        (true, Registers::Ymm),
    ] {
        let (fd, _mem) = memory();
        let space = Reservation::new(LEN).expect("address space");
        let options = MapOptions::new(Access::ReadWrite, Medium::Memory)
            .registers(registers)
            .persistence(Persistence::Flushed)
            .place(&space, 0);
        let r = Region::map_with(fd.as_fd(), 0, LEN, &options).expect("mapping");
        r.prefault(0, LEN).expect("memory for the measurement");
        let got = huge && r.make_huge(0, LEN).unwrap_or(false);
        println!("-- {} pages", if got { "huge" } else { "4 KiB" });
        rows(&r, registers).expect("memory that can be touched");
    }
}
