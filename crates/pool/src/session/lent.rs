//! Where the lent files of a pool are, and what they are called.

use alloc::format;
use alloc::string::String;

/// Every host has it, and it is memory.
pub const LENT_DIRECTORY: &str = "/dev/shm";

/// What the names of all lent files of a pool begin with: `device` and `inode` are those of its
/// meta segment.
pub fn lent_prefix(device: u64, inode: u64) -> String {
    format!("holdfast-lent.{device:x}.{inode:x}.")
}
