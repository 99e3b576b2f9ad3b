//! Where this process last saw the inode entries of directories to which no name led it: the root,
//! the current directory, the parent behind `..`.
//!
//! Invariant: a place is a hint. It may meanwhile belong to another inode, and whoever uses it
//! checks.

use pmem::atomic::{AtomicU32, Ordering::Relaxed};

/// By inode number; a newer directory takes the place of an older one.
#[derive(Default)]
pub(crate) struct Seen([AtomicU32; 16]);

impl Seen {
    /// `hint` if that says anything.
    #[inline]
    pub fn or(&self, hint: u32, ino: u64) -> u32 {
        match hint {
            0 => self.place(ino).load(Relaxed),
            _ => hint,
        }
    }

    pub fn note(&self, ino: u64, link: u32) {
        self.place(ino).store(link, Relaxed);
    }

    #[inline]
    fn place(&self, ino: u64) -> &AtomicU32 {
        &self.0[ino as usize % 16]
    }
}
