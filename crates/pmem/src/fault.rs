//! Turning a fault inside a copy routine into a short count.
//!
//! A handler for SIGSEGV and SIGBUS that finds the interrupted instruction pointer in
//! [`landing_for`] sets the instruction pointer to what it returns, changes no other register,
//! and returns. Any other fault is not ours.

use crate::copy;

mod handler;
mod stray;
pub use handler::{install, install_with, report_strays};
pub(crate) use stray::Protected;

/// Where to resume after a fault at `ip`, or `None` when the fault was not in a copy routine.
pub fn landing_for(ip: usize) -> Option<usize> {
    macro_rules! at {
        ($sym:ident) => {
            (&raw const copy::$sym) as usize
        };
    }
    if (at!(holdfast_bulk_start)..at!(holdfast_bulk_end)).contains(&ip) {
        Some(at!(holdfast_bytes))
    } else if ip == at!(holdfast_byte_load) {
        Some(at!(holdfast_land_load))
    } else if ip == at!(holdfast_byte_store) {
        Some(at!(holdfast_land_store))
    } else if ip == at!(holdfast_cstr_load) {
        Some(at!(holdfast_land_cstr))
    } else if (at!(holdfast_rep_start)..at!(holdfast_rep_end)).contains(&ip) {
        Some(at!(holdfast_land_rep))
    } else if (at!(holdfast_ymm_start)..at!(holdfast_ymm_end)).contains(&ip) {
        Some(at!(holdfast_land_ymm))
    } else if (at!(holdfast_zero_start)..at!(holdfast_zero_end)).contains(&ip) {
        Some(at!(holdfast_land_store))
    } else {
        None
    }
}

#[cfg(test)]
pub(crate) mod tests;
