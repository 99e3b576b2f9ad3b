//! What needs no session: errors, types of the interface, clocks, access to the trees.

pub mod abi;
pub mod calls;
pub mod clock;
pub(crate) mod cold;
pub mod env;
pub mod error;
pub mod map_record;
pub(crate) mod map_settings;
pub(crate) mod names_ahead;
pub mod program;
pub mod refusal;
pub(crate) mod seen;
pub(crate) mod trace_settings;
pub(crate) mod tree_key;
pub mod trees;
pub(crate) mod types;
pub(crate) mod windows;
