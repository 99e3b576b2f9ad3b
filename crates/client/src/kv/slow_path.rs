//! The slow path of changes: keys that are files, or may be.
//!
//! Invariants:
//!  * The directories, and the files that lose their names, are locked from before the names are
//!    looked up until the changes are published: so no key becomes a file meanwhile.
//!  * The names are removed by the record that adds the values: after a crash a key is one or the
//!    other. Where one record has no room for all names, only those of files that cannot be values
//!    are removed one by one after it.

use super::bill::Bill;
use super::commit::{self, Changes, If};
use super::{NEVER, Present};
use crate::base::abi::R_OK;
use crate::base::clock;
use crate::base::error::{Error, Result};
use crate::base::types::Caller;
use crate::content::perm;
use crate::journal;
use crate::ops::link::Removal;
use crate::ops::path::KIND_DIR;
use crate::session::RETRIES;
use crate::session::Session;
use crate::session::drain;
use crate::tables::dentry_table::{self, Found};
use crate::tables::inode_table::{self, Attrs, LockedInode};
use crate::tables::value_index;
use crate::values::{Keyspace, blocks, files};
use alloc::vec::Vec;
use pmem::atomic::Ordering::{Acquire, Relaxed};
use pool::journal::{Change, Naming, Op, Ops, Record};
use pool::layout::is_legal_name;
use pool::layout::value::{IN_BLOCKS_MAX, fits_entry};
use pool::session::{INODE_ACL, INODE_LINKABLE};

/// A key that is a file.
struct File {
    dir: u64,
    key: Vec<u8>,
    found: Found,
}

/// Whether no key of the changes is a file, and nobody has begun to remove a keyspace: whether he
/// does, or died before, shows when its directory is locked. The caller holds their buckets.
#[inline]
pub(super) fn is_plain(s: &Session, changes: &Changes) -> Result<bool> {
    for keyspace in changes.keyspaces() {
        let Some(dir) = keyspace.entry(s) else {
            return Ok(false);
        };
        let empty = dir.e.entries.load(Acquire) == 0;
        if !files::is_open(&dir) {
            return Ok(false);
        }
        if !(empty || no_key_is_named(s, changes, dir.ino)?) || !dir.is_current() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether the tables say that no key is a name of the directory.
fn no_key_is_named(s: &Session, changes: &Changes, ino: u64) -> Result<bool> {
    let dir = inode_table::find(s, ino);
    for op in Ops::new(changes.ops()).flatten() {
        if op.keyspace != ino || !is_legal_name(op.key) {
            continue;
        }
        match &dir {
            Some(dir) if dentry_table::known(s, dir, op.key)? == Some(None) => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// Makes the changes, whatever their keys are.
#[cold]
pub(super) fn write(s: &Session, changes: &mut Changes, how: (i64, Option<&Bill>)) -> Result<()> {
    locking(s, changes, &mut |changes, found, locked| {
        locked_write(s, changes, (found, locked), how)
    })
}

/// What is done with changes while their directories, and their keys that are files, are locked.
type Locking<'a> = &'a mut dyn FnMut(&mut Changes, &[File], &[LockedInode<'_>]) -> Result<()>;

fn locking(s: &Session, changes: &mut Changes, work: Locking<'_>) -> Result<()> {
    for _ in 0..RETRIES {
        match attempt(s, changes, work) {
            // Names changed before they were locked.
            Err(Error::Stale) => {}
            done => return done,
        }
    }
    Err(Error::Busy)
}

fn attempt(s: &Session, changes: &mut Changes, work: Locking<'_>) -> Result<()> {
    let mut found = Vec::new();
    let mut dirs = Vec::new();
    for keyspace in changes.keyspaces() {
        let dir = inode_table::get(s, keyspace.ino())?;
        dirs.push((dir.ino, dir.e.dir_seq.load(Acquire)));
        if dir.e.entries.load(Acquire) != 0 {
            find_files(s, changes, dir.ino, &mut found)?;
        }
    }
    found.sort_unstable_by(|a: &File, b| (a.dir, &a.key).cmp(&(b.dir, &b.key)));
    found.dedup_by(|a, b| a.dir == b.dir && a.key == b.key);
    let mut inos: Vec<u64> = dirs.iter().map(|dir| dir.0).collect();
    inos.extend(found.iter().map(|file| file.found.ino));
    inos.sort_unstable();
    inos.dedup();
    let mut locked = Vec::new();
    for ino in inos {
        match inode_table::lock(s, ino) {
            Err(Error::NotFound) if !dirs.iter().any(|dir| dir.0 == ino) => {
                return Err(Error::Stale);
            }
            inode => locked.push(inode?),
        }
    }
    for (ino, seq) in &dirs {
        let dir = by_ino(&locked, *ino)?;
        if !files::is_open(dir) || dir.e.nlink.load(Relaxed) == 0 {
            return Err(Error::NotFound);
        }
        if dir.e.dir_seq.load(Acquire) != *seq {
            return Err(Error::Stale);
        }
        // The directory knows of a name before the name is found.
        still_found(s, changes, dir, &found)?;
    }
    work(changes, &found, &locked)
}

/// `Stale`: a key leads to something else than before the directory was locked.
fn still_found(
    s: &Session,
    changes: &Changes,
    dir: &LockedInode<'_>,
    found: &[File],
) -> Result<()> {
    let ranges = |op: &Op<'_>| matches!(op.change, Change::EraseRange(_));
    for op in Ops::new(changes.ops()).flatten() {
        if op.keyspace != dir.ino || ranges(&op) || !is_legal_name(op.key) {
            continue;
        }
        let now = dentry_table::lookup_locked(s, dir, op.key)?;
        if now.is_some_and(|now| now.kind == KIND_DIR) && op.change != Change::Erase {
            return Err(Error::Stale);
        }
        let now = now.filter(|now| now.kind != KIND_DIR).map(|now| now.ino);
        let key = (dir.ino, op.key);
        let at = found.binary_search_by(|f| (f.dir, &f.key[..]).cmp(&key));
        let before = at.ok().and_then(|at| found.get(at)).map(|f| f.found.ino);
        if now != before {
            return Err(Error::Stale);
        }
    }
    Ok(())
}

fn by_ino<'a, 's>(locked: &'a [LockedInode<'s>], ino: u64) -> Result<&'a LockedInode<'s>> {
    let at = locked.binary_search_by_key(&ino, |l| l.ino);
    let at = at.map_err(|_| Error::Stale)?;
    locked.get(at).ok_or(Error::Stale)
}

/// The keys of the changes that are names in the directory `ino` and not directories.
fn find_files(s: &Session, changes: &Changes, ino: u64, out: &mut Vec<File>) -> Result<()> {
    let dir = inode_table::get(s, ino)?;
    for op in Ops::new(changes.ops()).flatten() {
        if op.keyspace != ino {
            continue;
        }
        let Change::EraseRange(to) = op.change else {
            if !is_legal_name(op.key) {
                continue;
            }
            let erases = op.change == Change::Erase;
            match dentry_table::lookup(s, &dir, op.key)? {
                Some(found) if found.kind == KIND_DIR && !erases => {
                    return Err(Error::IsDirectory);
                }
                Some(found) if found.kind != KIND_DIR => out.push(File {
                    dir: ino,
                    key: op.key.to_vec(),
                    found,
                }),
                _ => {}
            }
            continue;
        };
        drain::wait_applied(s, dir.e.dir_seq.load(Acquire))?;
        s.tree().each_dirent(ino, 0, &mut |_, entry, name| {
            let inside = name >= op.key && (to.is_empty() || name < to);
            if inside && entry.kind != KIND_DIR {
                let (ino, kind, inode) = (entry.ino, entry.kind, 0);
                out.push(File {
                    dir: op.keyspace,
                    key: name.to_vec(),
                    found: Found { ino, kind, inode },
                });
            }
            Ok(true)
        })?;
    }
    Ok(())
}

fn locked_write(
    s: &Session,
    changes: &mut Changes,
    (found, locked): (&[File], &[LockedInode<'_>]),
    (time, bill): (i64, Option<&Bill>),
) -> Result<()> {
    let mut names = Losing::begin(s, found, locked)?;
    if commit::is_seen(s, changes)?
        && let Some(done) = write_seen(s, changes, found, &mut names, (time, bill))?
    {
        return done;
    }
    if bill.is_some() {
        // What they replace is not held, so it cannot count as gone.
        return Err(Error::OverQuota);
    }
    // Of those that cannot be values the names go last: the value is what counts until then.
    let others = demote(s, (found, locked), &mut names, time)?;
    commit::unseen(s, changes, time)?;
    unname(s, others, &mut names, time)
}

/// Takes the names away from files, one by one.
fn unname(s: &Session, which: Vec<usize>, names: &mut Losing<'_, '_>, time: i64) -> Result<()> {
    for i in which {
        let ops = names.ops_of(i..i + 1);
        let done = journal::commit(s, &Record::Batch { time, ops: &ops }).map(drop);
        names.finish_one(i, &done);
        done?;
    }
    Ok(())
}

/// Before a keyspace is dropped: makes values of its keys that are files, and erases those that
/// cannot be values.
pub(super) fn make_values(s: &Session, keyspace: Keyspace) -> Result<()> {
    let dir = inode_table::get(s, keyspace.ino())?;
    if dir.e.entries.load(Acquire) == 0 {
        return Ok(());
    }
    let mut all = Changes::default();
    all.erase_range(keyspace, &[], None)?;
    let time = clock::now();
    locking(s, &mut all, &mut |_, found, locked| {
        let mut names = Losing::begin(s, found, locked)?;
        let others = demote(s, (found, locked), &mut names, time)?;
        unname(s, others, &mut names, time)
    })
}

/// Whether everybody who reaches a file may read it.
fn is_public(a: &Attrs) -> bool {
    a.mode & 0o444 == 0o444 && a.state & INODE_ACL == 0
}

/// Whether a directory has directories.
pub(super) fn has_directories(s: &Session, ino: u64) -> Result<bool> {
    let dir = inode_table::get(s, ino)?;
    if dir.e.entries.load(Acquire) == 0 {
        return Ok(false);
    }
    drain::wait_applied(s, dir.e.dir_seq.load(Acquire))?;
    let mut found = false;
    s.tree().each_dirent(ino, 0, &mut |_, entry, _| {
        found = entry.kind == KIND_DIR;
        Ok(!found)
    })?;
    Ok(found)
}

/// A change of one key, made if what it depends on is so; nobody changes the key meanwhile. `who`
/// must be permitted to read it if it is a file (`None`: may read all).
pub(super) fn write_if(
    s: &Session,
    changes: &mut Changes,
    (who, time, bill): (Option<&Caller>, i64, Option<&Bill>),
    only: &mut If<'_>,
) -> Result<()> {
    locking(s, changes, &mut |changes, found, locked| {
        let [file] = found else {
            // Without a name that could come: the directory is locked.
            return commit::alone_if(s, changes, (time, bill), only);
        };
        let file = by_ino(locked, file.found.ino)?;
        if let Some(who) = who {
            perm::check(s, who, &inode_table::attrs(s, file)?, R_OK)?;
        }
        let value = match only.reads {
            true => files::content(s, file)?,
            false => Vec::new(),
        };
        let expires = NEVER;
        match (only.holds)(Some(Present { value, expires })) {
            true => locked_write(s, changes, (found, locked), (time, bill)),
            false => Ok(()),
        }
    })
}

/// All in one record; `None`: the index will never have room for it.
fn write_seen(
    s: &Session,
    changes: &Changes,
    found: &[File],
    names: &mut Losing<'_, '_>,
    (time, bill): (i64, Option<&Bill>),
) -> Result<Option<Result<()>>> {
    let is_file = |op: &Op<'_>| {
        let key = (op.keyspace, op.key);
        found
            .binary_search_by(|f| (f.dir, &f.key[..]).cmp(&key))
            .is_ok()
    };
    let mut ops = names.ops_of(0..found.len());
    let mut hashes = Vec::new();
    for op in Ops::new(changes.ops()).flatten() {
        if op.change == Change::Erase && is_file(&op) {
            continue;
        }
        hashes.push(value_index::hash(s, op.keyspace, op.key));
        op.push(&mut ops);
    }
    let _buckets = match hashes.is_empty() {
        true => value_index::Locked::None,
        false => match value_index::lock_all(s, &hashes)? {
            Some(buckets) => buckets,
            None => return Ok(None),
        },
    };
    let done = match ops.is_empty() {
        true => Ok(()),
        false => commit::record(s, &ops, time, bill.map(|bill| (bill, changes.ops()))),
    };
    names.finish(&done);
    Ok(Some(done))
}

/// Makes values of files, one by one, so that the changes need not speak of them: nobody can see a
/// difference. Which ones cannot be values: they are too large for that, or not everybody may read
/// them, as all may read a value.
fn demote(
    s: &Session,
    (found, locked): (&[File], &[LockedInode<'_>]),
    names: &mut Losing<'_, '_>,
    time: i64,
) -> Result<Vec<usize>> {
    let mut others = Vec::new();
    for (i, file) in found.iter().enumerate() {
        let inode = by_ino(locked, file.found.ino)?;
        if !is_public(&inode_table::attrs(s, inode)?) {
            others.push(i);
            continue;
        }
        let content = match files::content(s, inode) {
            Err(Error::FileTooLarge) => {
                others.push(i);
                continue;
            }
            content => content?,
        };
        let mut ops = names.ops_of(i..i + 1);
        let (keyspace, key) = (file.dir, &file.key[..]);
        let mut runs = [0; IN_BLOCKS_MAX];
        let mut blocks = None;
        let change = match fits_entry(key.len(), content.len()) {
            true => Change::Put(&content),
            false => {
                let written = match blocks::write(s, &content) {
                    // Free blocks are in too many pieces for a value.
                    Err(Error::FileTooLarge) => {
                        others.push(i);
                        continue;
                    }
                    written => written?,
                };
                let n = written.encode(&mut runs);
                blocks = Some(written);
                Change::PutBlocks(&runs[..n])
            }
        };
        let op = Op {
            keyspace,
            key,
            change,
        };
        op.push(&mut ops);
        let bucket = value_index::lock_all(s, &[value_index::hash(s, keyspace, key)])?;
        // In place of the file.
        let bill = Bill::of_one(s, by_ino(locked, keyspace)?, &ops);
        bill.take_anyway(s);
        let done = journal::commit(s, &Record::Batch { time, ops: &ops }).map(drop);
        bill.settle(s, &done.clone().map(|()| true));
        drop(bucket);
        if let (Err(e), Some(blocks)) = (&done, &blocks)
            && !matches!(e, Error::ServiceGone | Error::Poisoned(_))
        {
            blocks::give_back(s, blocks);
        }
        names.finish_one(i, &done);
        done?;
    }
    Ok(others)
}

/// Gives a file without a name the key as its name, in place of whatever has it.
pub(super) fn name(s: &Session, keyspace: Keyspace, key: &[u8], ino: u64) -> Result<()> {
    let time = clock::now();
    for _ in 0..RETRIES {
        let dir = inode_table::get(s, keyspace.ino())?;
        let old = dentry_table::lookup(s, &dir, key)?;
        let replaced = old.map_or(0, |old| old.ino);
        let locked = match inode_table::lock_many(s, [dir.ino, ino, replaced]) {
            // What has the name now lost it since it was looked up.
            Err(Error::NotFound) if replaced != 0 => continue,
            locked => locked?,
        };
        let [Some(dir), Some(file), old] = &locked else {
            return Err(Error::Busy);
        };
        let now = dentry_table::lookup_locked(s, dir, key)?;
        if now.map_or(0, |now| now.ino) != replaced {
            continue;
        }
        if now.is_some_and(|now| now.kind == KIND_DIR) {
            return Err(Error::IsDirectory);
        }
        if !files::is_open(dir) || dir.e.nlink.load(Relaxed) == 0 {
            return Err(Error::NotFound);
        }
        let a = inode_table::attrs(s, file)?;
        if a.project != inode_table::attrs(s, dir)?.project {
            return Err(Error::OtherQuota);
        }
        if a.nlink != 0 || a.state & INODE_LINKABLE == 0 {
            return Err(Error::Invalid);
        }
        return name_locked(s, dir, key, ino, old.as_ref(), time);
    }
    Err(Error::Busy)
}

fn name_locked(
    s: &Session,
    dir: &LockedInode<'_>,
    key: &[u8],
    ino: u64,
    old: Option<&LockedInode<'_>>,
    time: i64,
) -> Result<()> {
    let removal = match old {
        Some(old) => {
            let nlink = inode_table::attrs(s, old)?.nlink;
            Some(Removal::begin(old, nlink, false))
        }
        None => None,
    };
    let (replaced, flags) = (
        old.map_or(0, |old| old.ino),
        removal.as_ref().map_or(0, |r| r.flags),
    );
    let fields = Naming {
        ino,
        replaced,
        flags,
    };
    let fields = fields.encode();
    let (keyspace, change) = (dir.ino, Change::Name(&fields));
    let mut ops = Vec::new();
    let op = Op {
        keyspace,
        key,
        change,
    };
    op.push(&mut ops);
    let done = value_index::lock_all(s, &[value_index::hash(s, keyspace, key)]);
    let done = done.and_then(|_bucket| journal::commit(s, &Record::Batch { time, ops: &ops }));
    match removal {
        Some(removal) => removal.finish(done),
        None => done.map(drop),
    }
}

/// Files that are about to lose names.
struct Losing<'a, 's> {
    found: &'a [File],
    removals: Vec<Option<Removal<'a, 's>>>,
}

impl<'a, 's> Losing<'a, 's> {
    fn begin(
        s: &Session,
        found: &'a [File],
        locked: &'a [LockedInode<'s>],
    ) -> Result<Losing<'a, 's>> {
        let mut removals = Vec::new();
        for (i, file) in found.iter().enumerate() {
            let child = by_ino(locked, file.found.ino)?;
            let same = |f: &&File| f.found.ino == file.found.ino;
            let before = found[..i].iter().filter(same).count() as u32;
            let nlink = inode_table::attrs(s, child)?.nlink.saturating_sub(before);
            removals.push(Some(Removal::begin(child, nlink, false)));
        }
        Ok(Losing { found, removals })
    }

    fn ops_of(&self, which: core::ops::Range<usize>) -> Vec<u8> {
        let mut ops = Vec::new();
        for i in which {
            let (Some(file), Some(Some(removal))) = (self.found.get(i), self.removals.get(i))
            else {
                continue;
            };
            let (ino, replaced, flags) = (0, file.found.ino, removal.flags);
            let fields = Naming {
                ino,
                replaced,
                flags,
            };
            let fields = fields.encode();
            let (keyspace, key, change) = (file.dir, &file.key[..], Change::Name(&fields));
            let op = Op {
                keyspace,
                key,
                change,
            };
            op.push(&mut ops);
        }
        ops
    }

    fn finish(&mut self, done: &Result<()>) {
        for i in 0..self.removals.len() {
            self.finish_one(i, done);
        }
    }

    fn finish_one(&mut self, i: usize, done: &Result<()>) {
        if let Some(removal) = self.removals.get_mut(i).and_then(Option::take) {
            // The result is the caller's.
            let _ = removal.finish(done.clone().map(|()| 0));
        }
    }
}

impl Drop for Losing<'_, '_> {
    fn drop(&mut self) {
        self.finish(&Err(Error::Stale));
    }
}
