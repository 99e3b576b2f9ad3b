//! The tables of session memory: inodes, names, block maps, open files, locks of byte ranges.

pub mod block_map;
mod buckets;
pub mod dentry_table;
pub(crate) mod dirty_range;
pub(crate) mod inode;
pub mod inode_table;
pub(crate) mod leased;
mod met;
pub mod ofd;
pub(crate) mod open_values;
pub mod range_locks;
pub(crate) mod recent_names;
pub(crate) mod value_index;
