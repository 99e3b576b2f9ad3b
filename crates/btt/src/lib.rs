//! A block translation table: sectors that are written as a whole or not at all, on memory that
//! alone promises that of eight bytes.
//!
//! The layout is that of the UEFI specification, chapter "Block Translation Table (BTT) Layout",
//! which the Linux kernel's driver `nd_btt` has, too. A sector is written to a free block; a log
//! entry of the lane that the block belongs to says what is about to happen; then the entry of the
//! map is set, and the block that the sector had is the lane's free block.
//!
//! Invariants: a block is free in one lane or in the map once; what is in the device is checked
//! before it is used, since others may have written it.
#![forbid(unsafe_code)]

mod arena;
mod check;
mod device;
mod error;
mod flog;
mod info;
mod lanes;
mod layout;
mod map;
mod table;
#[cfg(test)]
mod tests;

pub use check::Checked;
pub use device::Device;
pub use error::{Error, Result};
pub use layout::{BLOCKS_MAX, Shape, device_len};
pub use table::{Extent, Space, Sum, Table};
