//! Read leases: what lets processes that may map nothing of the pool keep answers for themselves.
//!
//! Whoever keeps what it was told of an inode has a lease on it. There is one word for all inodes
//! that hash to it, in memory that such processes map for reading: `held` while anybody has a
//! lease, and a count of how often leases were recalled. Who has locked an inode recalls its leases
//! before it changes anything; a lease is given only while the inode is not locked. So as long as
//! the word is what it was when the lease was given, nobody has changed the inode since.

use alloc::format;
use alloc::string::String;
use holdfast_pmem::atomic::{AtomicU64, Ordering::*};
use holdfast_pmem::shared;

/// `Header::leases`: nobody ever had a lease.
pub const LEASES_NONE: u32 = 0;
/// There are words.
pub const LEASES_GIVEN: u32 = 1;
/// No more leases: somebody could not reach the words.
pub const LEASES_OVER: u32 = 2;

/// Words.
pub const LEASES: usize = 1 << 16;
/// Bytes of the file that they are in.
pub const LEASES_LEN: usize = size_of::<LeaseWords>();
/// Leases end by themselves so many milliseconds after a call of their holder, at most.
pub const LEASE_TERM_MS: u64 = 100;

/// Somebody has a lease.
const HELD: u64 = 1;

shared! {
    /// All of them.
    pub struct LeaseWords {
        words: [AtomicU64; LEASES],
    }
}

impl LeaseWords {
    fn word(&self, index: u32) -> &AtomicU64 {
        &self.words[index as usize % LEASES]
    }

    /// What the word with this index is now.
    #[inline]
    pub fn now(&self, index: u32) -> u64 {
        self.word(index).load(SeqCst)
    }

    /// A lease: what the word is while it lasts. The caller looks afterwards whether the inode is
    /// locked: then it has none.
    #[inline]
    pub fn hold(&self, index: u32) -> u64 {
        self.word(index).fetch_or(HELD, SeqCst) | HELD
    }

    /// All leases end that have this word. The caller has locked the inode before.
    #[inline]
    pub fn recall(&self, index: u32) {
        let word = self.word(index);
        if word.load(SeqCst) & HELD != 0 {
            // Of two who come here at once the second one makes it look held, or recalls a lease on
            // another inode. It never becomes again what it was.
            word.fetch_add(1, SeqCst);
        }
    }
}

/// Which word an inode has. `secret`: nobody else is to find out whose words are whose.
#[inline]
pub fn lease_index(secret: u64, ino: u64) -> u32 {
    let mixed = (ino ^ secret).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed >> 40) as u32 % LEASES as u32
}

/// What the names of their files begin with, in the directory of lent files: `device` and `inode`
/// are those of the pool's meta segment. The session's `lent_name` follows.
pub fn leases_prefix(device: u64, inode: u64) -> String {
    format!("holdfast-leases.{device:x}.{inode:x}.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_pmem::Shared;

    #[test]
    fn a_lease_lasts_until_it_is_recalled() {
        let all = LeaseWords::boxed_zeroed();
        assert_eq!(all.now(3), 0);
        all.recall(3);
        assert_eq!(all.now(3), 0);
        let lease = all.hold(3);
        assert_eq!(all.hold(3), lease);
        assert_eq!(all.now(3), lease);
        all.recall(4);
        assert_eq!(all.now(3), lease);
        all.recall(3);
        assert_ne!(all.now(3), lease);
        // What is not held is not counted.
        let free = all.now(3);
        all.recall(3);
        assert_eq!(all.now(3), free);
        assert_ne!(all.hold(3), lease);
    }

    #[test]
    fn words_are_spread() {
        let mut used = alloc::vec![0u32; LEASES];
        for ino in 0..LEASES as u64 {
            used[lease_index(7, ino) as usize] += 1;
        }
        assert!(used.iter().all(|n| *n < 12));
        assert_ne!(lease_index(7, 1), lease_index(8, 1));
    }
}
