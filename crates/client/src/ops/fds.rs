//! Descriptors: what they refer to, and the life of open-file descriptions.
//!
//! Invariants: a descriptor counts as one reference to its description; dropping the last reference
//! closes it (`close`). Closing any descriptor of a file drops the process's byte-range locks on
//! it, as POSIX demands.

use crate::base::abi::*;
use crate::base::error::{Error, Result};
use crate::content::close;
use crate::content::file::File;
use crate::ops::client::Client;
use crate::ops::flock;
use crate::ops::slots;
use crate::session::{OfdLink, Session};
use pmem::atomic::Ordering::{AcqRel, Relaxed};

/// Flags that F_SETFL changes.
const SETFL_FLAGS: u32 = O_APPEND | O_NONBLOCK | O_ASYNC | O_DIRECT | O_NOATIME;

#[inline]
pub(crate) fn lookup(client: &Client, fd: u32) -> Option<OfdLink> {
    OfdLink::from_raw(slots::fd_get(&client.session, fd))
}

pub(crate) fn bind(client: &Client, fd: u32, ofd: OfdLink) -> Result<()> {
    let s = &client.session;
    let _changing = slots::fd_changing(s);
    let old = slots::fd_swap(s, fd, ofd.raw())?;
    gone(s, old).map(|_| ())
}

/// A descriptor of this process does not refer to `old` any more; true if that was a pool file.
/// Inside `fd_changing` of that.
fn gone(s: &Session, old: u32) -> Result<bool> {
    let Some(old) = OfdLink::from_raw(old) else {
        return Ok(false);
    };
    flock::drop_process_locks(s, old);
    close::put_ofd(s, old)?;
    Ok(true)
}

pub(crate) fn dup(client: &Client, old: u32, new: u32) -> Result<()> {
    let s = &client.session;
    let ofd = lookup(client, old).ok_or(Error::BadDescriptor)?;
    if old == new {
        return Ok(());
    }
    let _changing = slots::fd_changing(s);
    let refs = &s.ofd(ofd.raw())?.refs;
    // A description whose last reference just went cannot be revived.
    let one_more = |n: u32| (n > 0).then(|| n + 1);
    refs.fetch_update(AcqRel, Relaxed, one_more)
        .map_err(|_| Error::BadDescriptor)?;
    let replaced = slots::fd_swap(s, new, ofd.raw()).inspect_err(|_| {
        refs.fetch_sub(1, AcqRel);
    })?;
    gone(s, replaced).map(|_| ())
}

pub(crate) fn unbind(client: &Client, fd: u32) -> Result<bool> {
    let s = &client.session;
    if slots::fd_get(s, fd) == 0 {
        return Ok(false);
    }
    let _changing = slots::fd_changing(s);
    let old = slots::fd_swap(s, fd, 0)?;
    gone(s, old)
}

pub(crate) fn release(client: &Client, ofd: OfdLink) -> Result<()> {
    close::put_ofd(&client.session, ofd)
}

pub(crate) fn getfl(client: &Client, ofd: OfdLink) -> Result<u32> {
    Ok(File::any(&client.session, ofd)?.flags)
}

#[inline]
pub(crate) fn is_kernels(client: &Client, ofd: OfdLink) -> bool {
    let ofd = client.session.ofd(ofd.raw());
    ofd.is_ok_and(|ofd| ofd.flags.load(Relaxed) & O_KERNELS != 0)
}

pub(crate) fn is_regular(client: &Client, ofd: OfdLink) -> bool {
    File::usable(&client.session, ofd).is_ok_and(|file| file.kind() == S_IFREG)
}

pub(crate) fn setfl(client: &Client, ofd: OfdLink, flags: u32) -> Result<()> {
    let file = File::usable(&client.session, ofd)?;
    let update = |old| Some(old & !SETFL_FLAGS | flags & SETFL_FLAGS);
    let _ = file.ofd.flags.fetch_update(Relaxed, Relaxed, update);
    Ok(())
}

pub(crate) fn ino_of(client: &Client, ofd: OfdLink) -> Result<u64> {
    Ok(client.session.ofd(ofd.raw())?.ino.load(Relaxed))
}
