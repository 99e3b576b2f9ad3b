//! Recovering a pool whose session is dead.

pub mod damage;
pub mod recover;
