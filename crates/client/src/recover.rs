//! Finishing what dead processes committed.

use crate::session::Session;

/// Publishes the complete records in lanes of dead owners, drops the incomplete ones.
pub fn lanes(_session: &Session) {}
