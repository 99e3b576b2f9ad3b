//! Values as files of their keyspace's directory, and files there as values.
//!
//! Invariants:
//!  * A key is a value or a name of the directory. A process that makes it a name holds the
//!    directory and the key's bucket, and has found no value. A process that puts a value holds the
//!    bucket and has found no name; or it holds the directory, too, and removes the name in the
//!    same record.
//!  * Looking at a value and reading it change nothing. Changing what only files have first makes
//!    the value a file (`opened`), with the number under which it was shown.
//!  * A lookup that found neither a value nor a name is right only if no name was added or removed
//!    meanwhile.

use crate::base::abi::R_OK;
use crate::base::clock;
use crate::base::error::{Error, Result};
use crate::base::names_ahead::Shown;
use crate::base::types::Caller;
use crate::content::perm;
use crate::journal;
use crate::session::RETRIES;
use crate::session::drain;
use crate::session::{BLOCK, Session};
use crate::tables::block_map;
use crate::tables::dentry_table::{self, Found};
use crate::tables::inode_table::{self, Attrs, InodeRef, LockedInode};
use crate::tables::value_index::{self, Out};
use crate::values::opened;
use crate::values::view::{Scan, View};
use crate::values::{Keyspace, VALUE_MAX, get};
use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use pmem::MutBuf;
use pmem::atomic::Ordering::{Acquire, SeqCst};
use pool::journal::{Change, Op, Record};
use pool::layout::dirent::{COLLISIONS_MAX, first_cookie};
use pool::layout::is_legal_name;
use pool::layout::value::{NEVER, is_over};
use pool::session::{INODE_INLINE, INODE_KEYSPACE, INODE_ORPHAN, INODE_SHADOW, VALUE_BUCKETS};

/// d_type of regular files.
pub(crate) const KIND_FILE: u8 = 8;
/// Mode of values: the owner of the directory may do with them what it likes.
pub(crate) const MODE: u32 = 0o100_644;

/// What is known of a value without reading it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meta {
    /// The number that it is shown under.
    pub ino: u64,
    pub len: u64,
    pub mtime: i64,
    pub blocks: u64,
}

/// What a name in a directory leads to.
pub(crate) enum Named {
    File(Found),
    Value(Meta),
    Nothing,
}

#[inline]
pub(crate) fn is_keyspace(dir: &InodeRef<'_>) -> bool {
    dir.e.state.load(Acquire) & INODE_KEYSPACE != 0
}

/// The value of `name`.
pub(crate) fn meta(s: &Session, dir: &InodeRef<'_>, name: &[u8]) -> Result<Option<Meta>> {
    if !is_keyspace(dir) || name.is_empty() {
        return Ok(None);
    }
    Ok(opened::find(s, dir.ino, name)?.as_ref().map(opened::meta))
}

/// What `name` leads to in `dir`, file or value.
#[inline]
pub(crate) fn lookup(s: &Session, dir: &InodeRef<'_>, name: &[u8]) -> Result<Named> {
    if !is_keyspace(dir) {
        let found = dentry_table::lookup(s, dir, name)?;
        return Ok(found.map_or(Named::Nothing, Named::File));
    }
    lookup_in_keyspace(s, dir.ino, name)
}

#[cold]
fn lookup_in_keyspace(s: &Session, ino: u64, name: &[u8]) -> Result<Named> {
    for _ in 0..RETRIES {
        let dir = inode_table::get(s, ino)?;
        let before = dir.e.dir_seq.load(Acquire);
        if let Some(found) = dentry_table::lookup(s, &dir, name)? {
            return Ok(Named::File(found));
        }
        if let Some(meta) = meta(s, &dir, name)? {
            return Ok(Named::Value(meta));
        }
        if unchanged(&dir, before) {
            return Ok(Named::Nothing);
        }
    }
    Err(Error::Busy)
}

/// Whether no name came or went since `before` was read.
#[inline]
fn unchanged(dir: &InodeRef<'_>, before: u64) -> bool {
    dir.e.dir_seq.load(Acquire) == before && dir.is_current()
}

/// A value as stat(2) shows it. `dir`: attributes of the keyspace's directory.
pub(crate) fn attributes(dir: &Attrs, meta: &Meta) -> Attrs {
    let Meta {
        ino,
        len,
        mtime,
        blocks,
    } = *meta;
    let inline = if blocks == 0 && len > 0 {
        INODE_INLINE
    } else {
        0
    };
    Attrs {
        ino,
        mode: MODE,
        uid: dir.uid,
        gid: dir.gid,
        nlink: 1,
        size: len,
        blocks,
        atime: mtime,
        mtime,
        ctime: mtime,
        btime: mtime,
        state: inline,
        ..Attrs::default()
    }
}

/// As `look`, but a value is made a file.
pub(crate) fn find(s: &Session, dir: &InodeRef<'_>, name: &[u8]) -> Result<Option<Found>> {
    for _ in 0..RETRIES {
        match lookup(s, dir, name)? {
            Named::File(found) => return Ok(Some(found)),
            Named::Nothing => return Ok(None),
            Named::Value(_) => {
                if let Some(found) = opened::promote(s, dir.ino, name)? {
                    return Ok(Some(found));
                }
            }
        }
    }
    Err(Error::Busy)
}

/// Before a name is made in a locked directory: keeps its value from appearing. `Exists`: there
/// is one.
pub(crate) fn hold<'s>(
    s: &'s Session,
    dir: &LockedInode<'s>,
    name: &[u8],
) -> Result<Option<value_index::Locked<'s>>> {
    if !is_keyspace(dir) {
        return Ok(None);
    }
    let locked = value_index::lock_all(s, &[value_index::hash(s, dir.ino, name)])?;
    if meta(s, dir, name)?.is_some() {
        return Err(Error::Exists);
    }
    if s.has_expiring() {
        // A key is never both.
        remove_locked(s, dir.ino, name)?;
    }
    Ok(locked)
}

/// Removes the value of a key if it has expired. The key's bucket is locked, and not the clock
/// alone decides: it may have been put again.
fn remove_locked(s: &Session, keyspace: u64, key: &[u8]) -> Result<bool> {
    let mut out = Out::locate(&mut []);
    let found = get::get_any(s, keyspace, key, &mut out)?;
    let time = out.expires;
    if found.is_none() || !is_over(time, s.moment()) {
        return Ok(false);
    }
    let change = Change::Erase;
    let mut ops = Vec::new();
    let op = Op {
        keyspace,
        key,
        change,
    };
    op.push(&mut ops);
    value_index::mark_alone(s, &mut ops, &[value_index::hash(s, keyspace, key)]);
    journal::commit(s, &Record::Batch { time, ops: &ops }).map(|_| true)
}

/// As `remove_locked`; whether there was something to remove.
pub(crate) fn remove_expired(s: &Session, keyspace: u64, key: &[u8]) -> Result<bool> {
    let _bucket = value_index::lock_all(s, &[value_index::hash(s, keyspace, key)])?;
    remove_locked(s, keyspace, key)
}

/// Removes what has expired in a keyspace that takes no values any more, which is all that it has:
/// the service looks at no clock when it sees whether the directory is empty.
fn remove_all_expired(s: &Session, keyspace: Keyspace) -> Result<()> {
    let mut scan = Scan::new(keyspace, &[], None, false).showing_all();
    each_value_of(s, &mut scan, &mut |scan| {
        // Unless the clock was set back.
        match remove_expired(s, keyspace.ino, scan.key())? || !is_there(s, keyspace, scan.key())? {
            true => Ok(ControlFlow::Continue(())),
            false => Err(Error::NotEmpty),
        }
    })
}

fn is_there(s: &Session, keyspace: Keyspace, key: &[u8]) -> Result<bool> {
    Ok(get::get_any(s, keyspace.ino, key, &mut Out::locate(&mut []))?.is_some())
}

/// Removes the value of `name`; false: there is none.
pub(crate) fn erase_value(s: &Session, dir: &InodeRef<'_>, name: &[u8]) -> Result<bool> {
    let time = clock::now();
    let _bucket = value_index::lock_all(s, &[value_index::hash(s, dir.ino, name)])?;
    if !dir.is_current() || meta(s, dir, name)?.is_none() {
        return Ok(false);
    }
    let mut ops = Vec::new();
    let (keyspace, key, change) = (dir.ino, name, Change::Erase);
    let op = Op {
        keyspace,
        key,
        change,
    };
    op.push(&mut ops);
    journal::commit(s, &Record::Batch { time, ops: &ops }).map(|_| true)
}

/// Before a locked directory is removed, which is marked so already: `NotEmpty` if it has values,
/// and none appear from now on.
pub(crate) fn check_no_values(s: &Session, dir: &LockedInode<'_>) -> Result<()> {
    if !is_keyspace(dir) {
        return Ok(());
    }
    let keyspace = Keyspace::new(dir.ino, dir.link);
    if has_values(s, keyspace)? {
        return Err(Error::NotEmpty);
    }
    if wait_for_changes(s)? && has_values(s, keyspace)? {
        return Err(Error::NotEmpty);
    }
    match s.has_expiring() {
        true => remove_all_expired(s, keyspace),
        false => Ok(()),
    }
}

/// After a keyspace was marked as removed: whoever holds a bucket now may not have seen the mark,
/// whoever takes one later does. Whether there was anybody to wait for.
pub(crate) fn wait_for_changes(s: &Session) -> Result<bool> {
    let mut waited = false;
    for index in 0..VALUE_BUCKETS as u64 {
        let bucket = s.value_bucket(index)?;
        if bucket.lock.load(SeqCst) != 0 {
            drop(value_index::take(s, bucket)?);
            waited = true;
        }
    }
    Ok(waited)
}

fn has_values(s: &Session, keyspace: Keyspace) -> Result<bool> {
    let mut found = false;
    each_value(s, keyspace, &mut |_| {
        found = true;
        Ok(ControlFlow::Break(()))
    })?;
    Ok(found)
}

/// Shows the keyspace's values in the order of their keys. Where a view is given up because the
/// pool needs the space, another follows: values behind are shown as they are later.
fn each_value(
    s: &Session,
    keyspace: Keyspace,
    see: &mut dyn FnMut(&Scan) -> Result<ControlFlow<()>>,
) -> Result<()> {
    each_value_of(s, &mut Scan::new(keyspace, &[], None, false), see)
}

fn each_value_of(
    s: &Session,
    scan: &mut Scan,
    see: &mut dyn FnMut(&Scan) -> Result<ControlFlow<()>>,
) -> Result<()> {
    loop {
        let seen = View::begin(s).and_then(|view| {
            let seen = each_in_view(s, &view, scan, see);
            view.end(s);
            seen
        });
        match seen {
            Err(Error::ViewTooOld) => scan.continue_anew(),
            seen => return seen,
        }
    }
}

fn each_in_view(
    s: &Session,
    view: &View,
    scan: &mut Scan,
    see: &mut dyn FnMut(&Scan) -> Result<ControlFlow<()>>,
) -> Result<()> {
    while scan.next_value(s, view)?.is_some() {
        if see(scan)?.is_break() {
            break;
        }
    }
    Ok(())
}

/// The value of `key`, also if it is a file, which `who` must be permitted to read (`None`: may
/// read all).
#[inline]
pub(crate) fn get_any(
    s: &Session,
    keyspace: Keyspace,
    key: &[u8],
    out: &mut Out<'_>,
    who: Option<&Caller>,
) -> Result<Option<u64>> {
    for _ in 0..RETRIES {
        let dir = match keyspace
            .entry(s)
            .map_or_else(|| inode_table::get(s, keyspace.ino), Ok)
        {
            Err(Error::NotFound) => return Ok(None),
            dir => dir?,
        };
        // With it its values are gone, which the trees may still have.
        if !is_open(&dir) && inode_table::is_gone(s, keyspace.ino)? {
            return Ok(None);
        }
        let before = dir.e.dir_seq.load(Acquire);
        if let Some(len) = get::get(s, keyspace.ino, key, out)? {
            return Ok(Some(len));
        }
        let file = match dir.e.entries.load(Acquire) {
            0 => None,
            _ => named_file(s, &dir, key)?,
        };
        match file {
            Some(ino) => {
                if let Some(len) = read_file(s, ino, out, who)? {
                    return Ok(Some(len));
                }
            }
            None if unchanged(&dir, before) => return Ok(None),
            None => {}
        }
    }
    Err(Error::Busy)
}

/// The file that a key is the name of.
#[cold]
fn named_file(s: &Session, dir: &InodeRef<'_>, key: &[u8]) -> Result<Option<u64>> {
    if !is_legal_name(key) {
        return Ok(None);
    }
    let found = dentry_table::lookup(s, dir, key)?;
    Ok(found
        .filter(|found| found.kind == KIND_FILE)
        .map(|found| found.ino))
}

/// The whole content of a file at one moment between two writes; `None`: it is gone.
pub(crate) fn read_file(
    s: &Session,
    ino: u64,
    out: &mut Out<'_>,
    who: Option<&Caller>,
) -> Result<Option<u64>> {
    let locked = match inode_table::lock(s, ino) {
        Err(Error::NotFound) => return Ok(None),
        locked => locked?,
    };
    let a = inode_table::attrs(s, &locked)?;
    if let Some(who) = who {
        perm::check(s, who, &a, R_OK)?;
    }
    out.mtime = a.mtime;
    out.expires = NEVER;
    out.blocks = None;
    if !out.locate {
        let n = out
            .bytes
            .len()
            .min(usize::try_from(a.size).unwrap_or(usize::MAX));
        read_locked(s, &locked, &a, &mut out.bytes[..n])?;
    }
    Ok(Some(a.size))
}

fn read_locked(s: &Session, file: &LockedInode<'_>, a: &Attrs, out: &mut [u8]) -> Result<()> {
    let mut done = 0;
    if a.state & (INODE_INLINE | INODE_SHADOW) == INODE_INLINE {
        let mut content = [0; BLOCK as usize];
        inode_table::inline_data(s, file, &mut content)?;
        done = out.len().min(content.len());
        out[..done].copy_from_slice(&content[..done]);
    }
    while done < out.len() {
        let at = done as u64 / BLOCK;
        let want = ((out.len() - done) as u64).div_ceil(BLOCK);
        let rest = &mut out[done..];
        let (block, len) = match block_map::lookup_run_locked(s, file, at, want)? {
            block_map::Run::Hole(len) => (None, len),
            block_map::Run::Blocks { block, len, .. } => (Some(block), len),
        };
        let n = rest
            .len()
            .min(usize::try_from(len * BLOCK).unwrap_or(usize::MAX));
        let (piece, _) = rest.split_at_mut(n);
        match block {
            None => piece.fill(0),
            Some(block) => {
                s.copy_out(file.link, (block, 0), MutBuf::from(piece))?;
            }
        }
        done += n;
    }
    Ok(())
}

/// Names of values at the lowest `most` cookies from `from` on, in no order. All values are looked
/// at, because they are in the order of keys: names of files have another one, and moving from one
/// order to the other must not lose a name.
pub(crate) fn first_values(
    s: &Session,
    dir: &InodeRef<'_>,
    from: u64,
    most: usize,
) -> Result<Vec<Shown>> {
    let mut found: BinaryHeap<Shown> = BinaryHeap::new();
    each_value(s, Keyspace::new(dir.ino, dir.link), &mut |scan| {
        let key = scan.key();
        if !is_legal_name(key) {
            return Ok(ControlFlow::Continue(()));
        }
        let cookie = first_cookie(s.hash_seed(), key) | (COLLISIONS_MAX - 1);
        let full = found.len() >= most;
        if cookie < from || full && found.peek().is_some_and(|last| last.0 <= cookie) {
            return Ok(ControlFlow::Continue(()));
        }
        if full {
            found.pop();
        }
        found.push((cookie, key.to_vec(), scan.number()?, KIND_FILE));
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(found.into_vec())
}

/// Whether the directory still takes values. The caller holds the buckets of the keys.
#[inline]
pub(crate) fn is_open(dir: &InodeRef<'_>) -> bool {
    dir.e.state.load(SeqCst) & INODE_ORPHAN == 0
}

/// Waits until a root knows the names of a keyspace's directory.
pub(crate) fn wait_for_names(s: &Session, keyspace: Keyspace) -> Result<()> {
    match inode_table::find(s, keyspace.ino) {
        Some(dir) => drain::wait_applied(s, dir.e.dir_seq.load(Acquire)),
        None => Ok(()),
    }
}

/// The content of a file as a value, to be put in its place.
pub(crate) fn content(s: &Session, file: &LockedInode<'_>) -> Result<Vec<u8>> {
    let a = inode_table::attrs(s, file)?;
    let len = usize::try_from(a.size).map_err(|_| Error::FileTooLarge)?;
    if len as u64 > VALUE_MAX {
        return Err(Error::FileTooLarge);
    }
    let mut out = Vec::new();
    out.try_reserve_exact(len).map_err(|_| Error::NoMemory)?;
    out.resize(len, 0);
    read_locked(s, file, &a, &mut out)?;
    Ok(out)
}
