//! The journal: records, what they do to the tables, and recovery after dead processes.

mod append;
pub mod mapped;
pub mod publish;
pub(crate) mod publish_values;
pub mod recover;

pub use append::commit;
pub(crate) use append::{is_no_room, keep_near, reserve_name};
