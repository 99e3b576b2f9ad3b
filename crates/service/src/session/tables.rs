//! Huge pages under the tables of session memory.
//!
//! Invariants: only for speed; only under entries that were used, so no memory is added; a little
//! at a time, in pauses. A process that looks names up at random misses the processor's TLB as
//! often as its caches, and each process that joins faults 512 pages in at once.

use crate::session::memory::Memory;
use holdfast_pmem::env::Instant;
use holdfast_pool::session::*;
use std::mem::size_of;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

const HUGE: usize = 2 << 20;
/// What one go may take.
const TIME: Duration = Duration::from_millis(2);

/// A table, of which the entries below a mark that only rises were used.
struct Table {
    at: usize,
    entry: usize,
    most: usize,
    used: fn(&Header) -> u32,
}

impl Table {
    const fn of<T>(at: usize, most: usize, used: fn(&Header) -> u32) -> Table {
        let entry = size_of::<T>();
        Table {
            at,
            entry,
            most,
            used,
        }
    }

    /// The first byte that may be used and the first one behind those that were.
    fn used(&self, header: &Header) -> (usize, usize) {
        let used = (self.used)(header) as usize;
        (self.at, self.at + used.min(self.most) * self.entry)
    }
}

/// What is touched by every look at a name or an inode.
const TABLES: [Table; 4] = [
    Table::of::<Inode>(INODES_AT, INODES, |h| h.inode_used.load(Relaxed)),
    Table::of::<Dentry>(DENTRIES_AT, DENTRIES, |h| h.dentry_used.load(Relaxed)),
    Table::of::<Bucket>(INODE_BUCKETS_AT, BUCKETS, |h| h.inode_buckets.load(Relaxed)),
    Table::of::<Bucket>(DENTRY_BUCKETS_AT, BUCKETS, |h| {
        h.dentry_buckets.load(Relaxed)
    }),
];

/// How many huge pages each table has, from its first one on.
#[derive(Debug, Default)]
pub struct Tables {
    huge: [usize; TABLES.len()],
}

impl Tables {
    /// Makes some more of what was used huge; whether there is more to do.
    pub fn go_on(&mut self, memory: &Memory) -> bool {
        let begun = Instant::now();
        for (table, huge) in TABLES.iter().zip(&mut self.huge) {
            let (start, end) = table.used(memory.header());
            let first = start.next_multiple_of(HUGE);
            while first + (*huge + 1) * HUGE <= end {
                if begun.elapsed() > TIME {
                    return true;
                }
                // Where the kernel cannot, small pages have to do.
                memory.make_huge((first + *huge * HUGE) as u64, HUGE);
                *huge += 1;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::memory::Constants;

    /// Kilobytes of session memory that this process has mapped in huge pages.
    fn mapped_huge(name: &str) -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let ours = maps.split_once(name).unwrap().1;
        let line = ours.lines().find(|line| line.starts_with("ShmemPmdMapped"));
        let number = line.unwrap().split_whitespace().nth(1).unwrap();
        number.parse().unwrap()
    }

    #[test]
    fn only_what_was_used_is_huge() {
        let constants = Constants {
            consistency: 0,
            medium: 0,
            data_len: 1 << 30,
            data_room: 1 << 30,
            lane_len: 1 << 20,
        };
        let memory = Memory::create("huge-tables", &constants).unwrap();
        let (mut tables, header) = (Tables::default(), memory.header());
        assert!(!tables.go_on(&memory));
        assert_eq!(tables.huge, [0; 4]);
        let entries = 5 * HUGE / size_of::<Inode>();
        for index in 0..entries {
            memory.inode(index).unwrap().ino.store(7, Relaxed);
        }
        header.inode_used.store(entries as u32, Relaxed);
        while tables.go_on(&memory) {}
        assert!((4..=5).contains(&tables.huge[0]), "{:?}", tables.huge);
        assert_eq!(tables.huge[1..], [0; 3]);
        for index in 0..entries {
            assert_eq!(memory.inode(index).unwrap().ino.load(Relaxed), 7);
        }
        let huge = mapped_huge("huge-tables");
        assert!(
            huge == 0 || huge / 2048 == tables.huge[0] as u64,
            "{huge} kB"
        );
        // A mark beyond the table is none of ours.
        header.dentry_used.store(u32::MAX, Relaxed);
        while tables.go_on(&memory) {}
        assert!(tables.huge[1] <= DENTRIES * size_of::<Dentry>() / HUGE);
    }
}
