//! What session memory says of quotas.
//!
//! Invariant: the service writes everything but what is taken.

use holdfast_pmem::atomic::{AtomicU16, AtomicU32, AtomicU64};
use holdfast_pmem::shared;

pub use crate::quota::QUOTAS;

shared! {
    /// One quota. The service writes it, but for what is taken, which whoever changes an object
    /// changes.
    pub struct Quota {
        /// 0 free, 1 of a user, 2 of a directory, 3 of one not all of which counts yet.
        pub kind: AtomicU32,
        pub spare: AtomicU32,
        /// The user's or the directory's number.
        pub id: AtomicU64,
        /// Bytes and objects that may be taken; 0: any number.
        pub byte_limit: AtomicU64,
        pub file_limit: AtomicU64,
        /// Bytes and objects that are taken, those included that the trees do not know yet. What
        /// a process was about to take when it died may be in it until the session has rested;
        /// what was replaced in a keyspace is in it until the trees have what replaced it.
        pub bytes: AtomicU64,
        pub files: AtomicU64,
        pub apart: [AtomicU64; 2],
    }
}

shared! {
    /// Where the quotas of users are: from place `quota_hash` of a number on, until a 0, there may
    /// be the place of its quota plus 1.
    pub struct QuotaUsers {
        pub places: [AtomicU16; QUOTA_USERS],
    }
}

/// `Quota::kind` of a user's.
pub const QUOTA_USER: u32 = 1;
/// Of a directory's.
pub const QUOTA_DIRECTORY: u32 = 2;
/// Of a directory's that does not count all of it yet.
pub const QUOTA_PARTIAL: u32 = 3;
/// Places of `QuotaUsers`.
pub const QUOTA_USERS: usize = 4096;

/// Where the quota of a user is looked for first.
pub fn quota_hash(uid: u32) -> usize {
    uid.wrapping_mul(0x9e37_79b1) as usize >> 20
}

// A quota is one cache line: two that are often changed do not disturb each other.
const _: () = assert!(size_of::<Quota>() == 64);
