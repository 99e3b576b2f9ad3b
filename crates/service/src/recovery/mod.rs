//! Bringing a pool up to date whose session is dead.

pub mod damage;
pub mod recover;
