//! Finding and creating keyspaces.
//!
//! Invariant: a keyspace is a directory below the root that is marked as one, and remains one.

use crate::base::abi::{AT_SYMLINK_NOFOLLOW, W_OK, X_OK};
use crate::base::clock;
use crate::base::error::{Error, Result};
use crate::base::types::{Base, Caller};
use crate::content::perm;
use crate::journal;
use crate::ops::client::Client;
use crate::ops::create;
use crate::ops::path::{KIND_DIR, ROOT, Walk};
use crate::session::drain;
use crate::tables::inode_table;
use crate::values::Keyspace;
use pmem::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use pool::journal::Record;
use pool::layout::is_legal_name;
use pool::session::INODE_KEYSPACE;

/// Names that a keyspace can have.
pub(super) fn check_name(name: &[u8]) -> Result<()> {
    match name.len() {
        _ if is_legal_name(name) => Ok(()),
        len if len > pool::layout::NAME_MAX => Err(Error::NameTooLong),
        _ => Err(Error::Invalid),
    }
}

pub(super) fn open(c: &Client, who: &Caller, name: &[u8], make: bool) -> Result<Keyspace> {
    check_name(name)?;
    let s = &c.session;
    s.check()?;
    let walk = Walk::new(s, &c.at, who);
    let look = || walk.object(Base::Root, name, AT_SYMLINK_NOFOLLOW);
    let found = match look() {
        Err(Error::NotFound) if make => {
            match create::mkdir(c, who, Base::Root, name, 0o777) {
                Ok(()) | Err(Error::Exists) => {}
                Err(e) => return Err(e),
            }
            look()?
        }
        found => found?,
    };
    if found.kind != KIND_DIR {
        return Err(Error::NotDirectory);
    }
    let inode = inode_table::get(s, found.ino)?;
    if inode.e.state.load(Acquire) & INODE_KEYSPACE != 0 {
        return Ok(Keyspace::new(found.ino, inode.link));
    }
    if !make {
        return Err(Error::NotFound);
    }
    let time = clock::now();
    let locked = inode_table::lock_ref(s, inode)?;
    perm::check(s, who, &inode_table::attrs(s, &locked)?, W_OK | X_OK)?;
    if locked.e.state.load(Relaxed) & INODE_KEYSPACE == 0 {
        let ino = locked.ino;
        journal::commit(s, &Record::Keyspace { ino, time })?;
    }
    Ok(Keyspace::new(locked.ino, locked.link))
}

pub(super) fn list(c: &Client, each: &mut dyn FnMut(&[u8])) -> Result<()> {
    let s = &c.session;
    s.check()?;
    drain::wait_applied(s, s.header().next_seq.load(SeqCst).saturating_sub(1))?;
    s.tree().each_dirent(ROOT, 0, &mut |_, entry, name| {
        if entry.kind == KIND_DIR && s.tree().inode(entry.ino)?.is_some_and(|i| i.keyspace) {
            each(name);
        }
        Ok(true)
    })
}
