//! The directory of a pool, the host below it, and errors.

pub mod cuts;
pub mod error;
pub mod files;
pub mod host;
pub mod lent;
pub mod lock;
pub mod ordinary;
pub mod process;
pub mod survivors;
pub mod users;
