//! Descriptions on their way to another process in a message (SCM_RIGHTS of unix(7)).
//!
//! Invariants:
//!  * The message carries a token: an open file description of the placeholder's file, whose offset
//!    is the key of an entry and which has the entry's byte locked (`RecordLocks`). The kernel ends
//!    the lock with the last descriptor of the token, whether the message was received or not: an
//!    entry whose byte nobody has locked is nobody's.
//!  * An entry has one reference to its description, from before `ofd` is stored until after it is
//!    cleared. Under `transit_lock` an entry gets a description, and loses it when it is nobody's.
//!  * Each run has a placeholder of its own. Who has another one can receive what an entry says but
//!    not judge whether it is nobody's, so such an entry stays.

use crate::base::error::{Error, Result};
use crate::content::close;
use crate::ops::slots;
use crate::session::lock;
use crate::session::{OfdLink, Session};
use pmem::atomic::Ordering::*;
use pmem::{Holder, RecordLocks};
use pool::session::{TRANSITS, Transit};

/// The byte of the entry with this key. Bytes in use are never adjacent.
fn byte(key: u64) -> u64 {
    key % TRANSITS as u64 * 2
}

/// Puts one more reference to a description into an entry, and calls `make_token` with the key and
/// the byte to lock. `placeholder`: the caller's; `random`: what nobody can guess. `TableFull`:
/// too many are on their way.
pub(crate) fn send<T>(
    s: &Session,
    ofd: OfdLink,
    placeholder: &RecordLocks,
    random: u64,
    make_token: impl FnOnce(u64, u64) -> Result<T>,
) -> Result<T> {
    let _guard = lock::acquire_plain(s, &s.header().transit_lock)?;
    let (index, all) = (free_entry(s, placeholder)?, TRANSITS as u64);
    // An offset: positive, and the index of no entry.
    let key = (random | all) & (i64::MAX as u64) & !(all - 1) | index;
    let entry = s.transit(key)?;
    let token = make_token(key, byte(key))?;
    let _changing = slots::fd_changing(s);
    let refs = &s.ofd(ofd.raw())?.refs;
    let one_more = |n: u32| (n > 0).then(|| n + 1);
    refs.fetch_update(AcqRel, Relaxed, one_more)
        .map_err(|_| Error::BadDescriptor)?;
    entry.key.store(key, Relaxed);
    entry.placeholder.store(placeholder.file(), Relaxed);
    entry.ofd.store(ofd.raw(), Release);
    Ok(token)
}

/// A free entry. Judges two: the last one before it, so that messages that nobody receives keep few
/// of them, and another one with each message, so that none stays for good.
fn free_entry(s: &Session, placeholder: &RecordLocks) -> Result<u64> {
    let all = TRANSITS as u64;
    let hand = s.header().transit_hand.fetch_add(1, Relaxed);
    judge(s, hand.into(), placeholder)?;
    let is_free = |index: &u64| s.transit(*index).is_ok_and(|e| e.ofd.load(Relaxed) == 0);
    match (0..all).find(is_free) {
        Some(0) => Ok(0),
        Some(free) => {
            judge(s, free - 1, placeholder)?;
            Ok(free - u64::from(is_free(&(free - 1))))
        }
        None => {
            (0..all).try_for_each(|index| judge(s, index, placeholder))?;
            (0..all).find(is_free).ok_or(Error::TableFull)
        }
    }
}

/// Frees an entry that is nobody's. Under `transit_lock`.
fn judge(s: &Session, index: u64, placeholder: &RecordLocks) -> Result<()> {
    let entry = s.transit(index)?;
    let Some(ofd) = OfdLink::from_raw(entry.ofd.load(Acquire)) else {
        return Ok(());
    };
    if entry.placeholder.load(Relaxed) != placeholder.file()
        || placeholder.holder(byte(index)) != Ok(Holder::Nobody)
    {
        return Ok(());
    }
    let _changing = slots::fd_changing(s);
    entry.key.store(0, Relaxed);
    entry.ofd.store(0, Release);
    close::put_ofd(s, ofd)
}

/// What a token with this key stands for: one more reference to it. `None`: it is no token. The
/// caller has the token until `settle`.
pub(crate) fn receive(s: &Session, key: u64) -> Option<OfdLink> {
    let entry = s.transit(key).ok().filter(|_| key >= TRANSITS as u64)?;
    let link = OfdLink::from_raw(entry.ofd.load(Acquire))?;
    let is_same = |entry: &Transit| entry.key.load(Relaxed) == key;
    let _changing = slots::fd_changing(s);
    let one_more = |n: u32| (n > 0).then(|| n + 1);
    let refs = &s.ofd(link.raw()).ok().filter(|_| is_same(entry))?.refs;
    refs.fetch_update(AcqRel, Relaxed, one_more).ok()?;
    Some(link)
}

/// Whether an entry has this key.
pub(crate) fn is_there(s: &Session, key: u64) -> bool {
    s.transit(key).is_ok_and(|e| e.key.load(Relaxed) == key)
}

/// A token with this key was closed.
pub(crate) fn settle(s: &Session, key: u64, placeholder: &RecordLocks) -> Result<()> {
    let _guard = lock::acquire_plain(s, &s.header().transit_lock)?;
    match is_there(s, key) {
        true => judge(s, key, placeholder),
        false => Ok(()),
    }
}
