//! The operations, one file each, as the system calls define them.

pub(crate) mod acl;
pub(crate) mod attr;
pub(crate) mod client;
pub(crate) mod copy_range;
pub(crate) mod create;
pub(crate) mod cwd;
pub(crate) mod fds;
pub(crate) mod flock;
pub(crate) mod link;
pub(crate) mod map;
pub(crate) mod open;
pub(crate) mod path;
pub(crate) mod process;
pub(crate) mod read;
pub(crate) mod readdir;
pub(crate) mod rename;
pub mod slots;
pub(crate) mod snapshot;
pub(crate) mod stat;
pub(crate) mod statfs;
pub(crate) mod sync;
pub(crate) mod transit;
pub(crate) mod truncate;
pub(crate) mod write;
pub(crate) mod writeback;
pub(crate) mod xattr;
