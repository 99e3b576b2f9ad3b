//! Stopping stores into blocks of files while a snapshot is taken.

use crate::base::error::Result;
use crate::session::drain::Patience;
use crate::session::{Session, lock};
use core::time::Duration;
use pmem::atomic::Ordering::{Acquire, SeqCst};
use pmem::futex;

const NAP: Duration = Duration::from_millis(5);

/// Whether nobody may begin to store into blocks now.
#[inline]
pub(crate) fn are_stopped(s: &Session) -> bool {
    let h = s.header();
    // Sequentially consistent against `create`, which takes the lock before it looks at inodes,
    // and against the service, which stops stores before it looks at that lock.
    h.stores_lock.load(SeqCst) | h.stores_stopped.load(SeqCst) != 0
}

/// Waits for the end of that. The caller holds no lock of an inode.
#[cold]
pub(crate) fn wait(s: &Session) -> Result<()> {
    let h = s.header();
    drop(lock::acquire(s, &h.stores_lock)?);
    let mut patience = Patience::new(s);
    while h.stores_stopped.load(SeqCst) != 0 {
        s.check_poison()?;
        patience.look(s)?;
        let tick = h.applied_tick.load(Acquire);
        let _ = futex::wait(&h.applied_tick, tick, Some(NAP));
    }
    Ok(())
}
