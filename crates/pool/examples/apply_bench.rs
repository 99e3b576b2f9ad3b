//! What applying journal records costs: `cargo run --release --example apply_bench [NAMES]`.
//!
//! Invariant: figures are CPU time of this thread, so that other load does not count.

use holdfast_pmem::{Medium, Region};
use holdfast_pool::apply::{Applier, Grants, PoolStore, make_pool_root};
use holdfast_pool::format::superblock::Consistency;
use holdfast_pool::journal::{Header, Record};
use holdfast_pool::layout::BlockAddr;
use holdfast_pool::segment::Sizes;
use holdfast_pool::{Params, Pool, WriteToken, check};

const MIB: u64 = 1 << 20;
const BATCH: usize = 4096;

/// Everything is granted.
struct All;

impl Grants for All {
    fn holds(&self, _: BlockAddr, _: u64) -> bool {
        true
    }

    fn take(&mut self, _: BlockAddr, _: u64) {}
}

fn cpu_us() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    t.tv_sec as f64 * 1e6 + t.tv_nsec as f64 / 1e3
}

fn new_pool() -> Pool {
    let meta_len = 512 * MIB;
    let data_len = 4096 * MIB;
    let params = Params {
        uuid: [3; 16],
        boot_id: [0; 16],
        medium: Medium::Memory,
        consistency: Consistency::Posix,
        sizes: Sizes {
            meta_len,
            meta_len_max: meta_len,
            data_len,
            data_len_max: data_len,
        },
        next_ino: 2,
        journal_segment: 0,
        lane_len: 1 << 20,
    };
    let meta = Region::in_memory(meta_len as usize).expect("memory");
    let token = WriteToken::for_offline_tool();
    let mut pool = Pool::create(meta, &params, &token).expect("a new pool");
    make_pool_root(&mut pool, &token, [0, 0], 0o040_755, 0).expect("a root");
    pool.grant(data_len / 4096 / 2, 1).expect("blocks");
    pool
}

fn record<'n>(what: &str, i: u64, name: &'n [u8], other: &'n [u8]) -> Record<'n> {
    let (parent, ino, flags, time) = (1, i + 2, 0, i as i64);
    match what {
        "create" => Record::Create {
            parent,
            ino,
            mode: 0o100_644,
            uid: 0,
            gid: 0,
            flags,
            rdev: 0,
            time,
            name,
            target: &[],
        },
        "inline" => Record::Inline {
            ino,
            mtime: time,
            ctime: time,
            data: &name[..8],
        },
        "extent" => Record::Extent {
            ino,
            file_block: 0,
            block: BlockAddr::new(0, i),
            len: 1,
            size: 4096,
            mtime: time,
            ctime: time,
            flags: 0,
        },
        "setattr" => Record::SetAttr {
            ino,
            mask: 63,
            mode: 0o100_600,
            uid: 1,
            gid: 1,
            atime: 1,
            mtime: 2,
            ctime: 3,
        },
        "rename" => Record::Rename {
            old_parent: 1,
            new_parent: 1,
            ino,
            replaced: 0,
            flags,
            time,
            old_name: name,
            new_name: other,
        },
        _ => Record::Unlink {
            parent,
            ino,
            flags,
            time,
            name: other,
        },
    }
}

fn main() {
    let n: usize = std::env::args()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(100_000);
    let names: Vec<_> = (0..n)
        .map(|i| [format!("file-{i:07}"), format!("other-{i:07}")])
        .collect();
    let mut pool = new_pool();
    let token = WriteToken::for_offline_tool();
    let mut seq = 0;
    for what in ["create", "inline", "extent", "setattr", "rename", "unlink"] {
        if what == "unlink" {
            let start = cpu_us();
            let clean = check::check(pool.meta(), 4096 * MIB, None).is_clean();
            println!(
                "check    {:8.2} us per object, clean: {clean}",
                (cpu_us() - start) / n as f64
            );
        }
        let (start, mut committing) = (cpu_us(), 0.0);
        for (batch, names) in names.chunks(BATCH).enumerate() {
            let mut store = PoolStore::begin(&mut pool, &token);
            let mut all = All;
            let mut applier = Applier::new(&mut store, &mut all, [0; 16]);
            for (i, [name, other]) in names.iter().enumerate() {
                seq += 1;
                let i = (batch * BATCH + i) as u64;
                let record = record(what, i, name.as_bytes(), other.as_bytes());
                let header = Header {
                    seq,
                    len: 64,
                    lane: 0,
                };
                applier.apply(&header, &record).expect("a good record");
            }
            let before = cpu_us();
            store.commit(|_| ()).expect("a commit");
            committing += cpu_us() - before;
        }
        let (all, commits) = ((cpu_us() - start) / n as f64, committing / n as f64);
        println!("{what:8} {all:8.2} us per record, {commits:.2} of it commits");
    }
}
