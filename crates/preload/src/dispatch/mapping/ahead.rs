//! Pages that are mapped before the program touches them.
//!
//! Invariant: what a program sees is the same with and without it. Nothing is done yet.

/// A file of the host was mapped, by a call that the kernel answered just now.
pub fn mapped(_addr: usize, _len: usize, _prot: usize, _flags: usize) {}

/// The addresses are about to be unmapped, replaced or protected.
pub fn gone(_addr: usize, _len: usize) {}

/// madvise(2), which the kernel took.
pub fn advised(_addr: usize, _len: usize, _advice: usize) {}
