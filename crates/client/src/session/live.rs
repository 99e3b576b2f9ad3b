//! Which processes are alive, and what the kernel says about them: the part of session memory's
//! rules that the service shares.

pub use pmem::process::*;
pub use pool::session::live::*;
