//! Pools that nobody uses, for those who change them without a service.
//!
//! Invariant: the caller has the pool's lock, and no process has the pool mapped.

use crate::base::error::{Error, Result};
use crate::base::files::Files;
use crate::base::survivors;
use crate::journal::engine::Engine;
use crate::recovery::recover;
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use std::path::Path;

/// What is still in the journal goes to the trees first.
pub(crate) fn bring_up_to_date(directory: &Path) -> Result<()> {
    open_up_to_date(directory)?.close()
}

/// The pool, which nobody uses, with everything in its trees that was in the journal.
pub(crate) fn open_up_to_date(directory: &Path) -> Result<Engine> {
    let files = Files::open(directory)?;
    let journal: OwnedFd = files.reopen(&files.journal_name(), OFlags::RDWR)?;
    if survivors::exist(&journal) || crate::base::users::any_in_use(directory) {
        return Err(Error::InUse {
            path: directory.into(),
            pid: None,
        });
    }
    drop(journal);
    let mut engine = Engine::open(files)?;
    recover::recover(&mut engine)?;
    Ok(engine)
}
