//! Going back to a snapshot.
//!
//! Invariants: nobody uses the pool meanwhile; newer snapshots go only if that was asked for, each
//! in a commit of its own, and the present changes in one commit after the last of them. So whoever
//! interrupts this begins anew, and finds the present as it was or as it is to be.

use crate::alone::open_up_to_date;
use crate::base::error::{Error, Result};
use crate::base::files::Files;
use crate::base::lock::PoolLock;
use std::path::Path;

/// What it took to go back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RolledBack {
    /// Entries of the pool's trees that changed.
    pub changed: u64,
    /// Newer snapshots, which are gone.
    pub deleted: Vec<Vec<u8>>,
}

/// Makes the present of the pool in `directory`, which nobody may use, what the snapshot `name`
/// has. Newer snapshots are in the way unless `deletes_newer`.
pub fn roll_back(directory: &Path, name: &[u8], deletes_newer: bool) -> Result<RolledBack> {
    Files::open(directory)?.check_owner()?;
    let _lock = PoolLock::take_patiently(directory)?;
    let mut engine = open_up_to_date(directory)?;
    let pool_error = |error| Error::Pool {
        path: directory.into(),
        error,
    };
    let newer = engine.store.pool.newer_snapshots(name);
    let deleted = newer.map_err(pool_error)?;
    if !deleted.is_empty() && !deletes_newer {
        let names = deleted.iter().rev();
        let newer = names.map(|name| String::from_utf8_lossy(name).into_owned());
        return Err(Error::Newer {
            newer: newer.collect(),
        });
    }
    for name in &deleted {
        engine.snapshot_delete(name)?;
    }
    while engine.store.reclaim_some()? {}
    let changed = engine.store.roll_back(name)?;
    engine.close()?;
    Ok(RolledBack { changed, deleted })
}
