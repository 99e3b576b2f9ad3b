//! Power cuts under the full stack: a client and the service run a story on a small pool, every
//! store to meta, journal and data goes into one log, and each image that a power cut may leave
//! is recovered, judged by a model that shares no code with the pool, checked and used.
//!
//! What always holds here:
//! - The client's operations run in one thread and the service's steps in others, one at a time,
//!   so that no fence of the one covers for the other, and each run of a story gives the same log
//!   (but for changes of values, some of which wait for the service: it is at work meanwhile).
//! - An image is accepted when it is the state after all operations that had returned, or that
//!   with the operation under way done; never anything that the consistency mode does not allow.
//! - On an ordinary file (`file_stories`) that is the state after any operation since the last one
//!   that flushed, with what was written later where it may be in its place.
//! - `sectors` has a block translation table in a file, and judges sectors.
//! - `views` uses the same stack to hold the service where it is.
//! - The stories can fail: `mutations` leaves out the fence after a journal record, before a
//!   superblock and after new data, `file_mutations` switches the rules of ordinary files off, and
//!   an image must show each.
#![forbid(unsafe_code)]
#![cfg(test)]

mod file_mutations;
mod file_stories;
mod image;
mod judge;
mod model;
mod mutations;
mod quotas;
mod run;
mod sectors;
mod sight;
mod stack;
mod stories;
mod values;
mod views;
