//! The journal of a session: its lanes, the order of its records, and their way into the store.

pub mod apply;
pub mod engine;
pub mod evidence;
pub mod held;
pub mod lane;
pub mod needs;
pub mod order;
pub mod own;
pub mod parts;
pub mod progress;
pub mod replay;
pub mod runs;
pub mod spill;
pub mod spilled;
