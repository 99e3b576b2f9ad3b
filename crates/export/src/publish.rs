//! Telling `holdfast top` what the export does.
//!
//! Invariant: an export that cannot tell it runs all the same.

use crate::args::Export;
use holdfast::Volume;
use holdfast_status::{About, Published};
use std::io::ErrorKind::PermissionDenied;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How many clients an export has.
#[derive(Clone, Default)]
pub struct Clients(Arc<AtomicU64>);

impl Clients {
    pub fn arrive(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    pub fn leave(&self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Tells it until what is returned is dropped.
pub fn publish(
    args: &Export,
    volume: &Volume,
    (face, address): (&'static str, String),
    clients: &Clients,
) -> Option<Published> {
    let about = About {
        snapshot: args.snapshot.clone(),
        face,
        address,
        clients: clients.0.clone(),
    };
    match holdfast_status::publish(&args.pool, volume, about) {
        Ok(published) => Some(published),
        // Other users than the pool's owner and root.
        Err(e) if e.kind() == PermissionDenied => None,
        Err(e) => {
            eprintln!("holdfast: holdfast top does not show this export: {e}.");
            None
        }
    }
}
