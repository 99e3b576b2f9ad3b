//! `libholdfast.so`: the crate `holdfast` for C and C++; `include/holdfast.h` is the contract.
//!
//! Invariants: no call panics or unwinds into its caller; a handle is a number that is looked up
//! in a table, never an address that is followed, so a stale or wrong one is an error and nothing
//! else; memory of the caller is reached only in `foreign.rs`, and only during the call.

mod batch;
mod error;
mod expiry;
mod foreign;
mod keyspace;
mod lent;
mod pool;
mod quota;
mod scan;
mod snapshot;
mod stream;
mod table;
mod volume;
mod whole;

use error::Refusal;
use holdfast::Durability;

/// Make it if it is not there.
const CREATE: u32 = 1;
/// Durable when the call returns.
const DURABLE: u32 = 2;
/// May be lost out of order.
const VOLATILE: u32 = 4;
/// From the last key to the first.
const REVERSE: u32 = 8;
/// Open for reading only.
const READ_ONLY: u32 = 16;
const ATOMIC: u32 = 32;
const CHECKSUM: u32 = 64;
/// What has the new name goes.
const REPLACE: u32 = 128;

/// Flags of a call, none of which it does not know.
fn flags(given: u32, known: u32) -> Result<u32, Refusal> {
    match given & !known {
        0 => Ok(given),
        _ => Err(Refusal::invalid("the call does not know one of the flags")),
    }
}

/// How a change is to last, by the flags of a call.
fn durability(given: u32) -> Result<Durability, Refusal> {
    match flags(given, DURABLE | VOLATILE)? {
        0 => Ok(Durability::Ordered),
        DURABLE => Ok(Durability::Durable),
        VOLATILE => Ok(Durability::Volatile),
        _ => Err(Refusal::invalid(
            "a change is durable or volatile, not both",
        )),
    }
}

/// The version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn hf_version() -> foreign::Text {
    foreign::Text::of(VERSION)
}

const VERSION: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes(),
) {
    Ok(text) => text,
    Err(_) => panic!("a version has no NUL"),
};
