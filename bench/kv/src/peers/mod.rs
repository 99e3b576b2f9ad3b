//! Every peer.
//!
//! Invariants: compression is off, caches hold everything, and each is otherwise as its makers
//! set it; every commit is synced; names are unique.

mod btree;
mod canopy;
mod fjall;
mod holdfast;
mod lmdb;
mod redb;
#[cfg(feature = "rocksdb")]
mod rocks;

use crate::store::{Done, Peer, Site};

/// All peers, in the order of tables.
pub const ALL: &[Peer] = &[
    holdfast::PEER,
    lmdb::PLAIN,
    lmdb::WRITEMAP,
    redb::PEER,
    #[cfg(feature = "rocksdb")]
    rocks::PEER,
    fjall::PEER,
    canopy::PEER,
    btree::PEER,
];

/// The peer of that name.
pub fn find(name: &str) -> Option<&'static Peer> {
    ALL.iter().find(|peer| peer.name == name)
}

/// For peers that need nothing to be made.
fn nothing(_: &Site) -> Done<()> {
    Ok(())
}
