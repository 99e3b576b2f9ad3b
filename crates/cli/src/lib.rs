//! The definition of the command line, for the command itself and for its manual.
//!
//! Invariant: nothing here has an effect.
#![forbid(unsafe_code)]

pub mod after;
pub mod args;
pub mod bash;
pub mod keep;
pub mod size;
pub mod whole;
