//! Who is alive, and what the kernel says of processes: the part of session memory's rules that the
//! service goes by as well.

pub use pmem::process::*;
pub use pool::session::live::*;
