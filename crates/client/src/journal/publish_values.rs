//! Applying changes of keyspaces that concern files to the tables.
//!
//! Invariants:
//!  * As in `publish`: twice is the same as once, and an object appears before its name.
//!  * A key that changes from value to file refers to the file before the value is removed, and one
//!    that changes back has its value before the name is removed. So whoever finds neither looks
//!    again, until the directory has not changed meanwhile.

use crate::base::error::{Error, Result};
use crate::journal::publish::{
    Prepared, change, change_dir, count, enter, lose_names, named, store,
};
use crate::journal::reserve_name;
use crate::session::Session;
use crate::session::lock;
use crate::session::lock::{Changing, Rank};
use crate::session::place::Place;
use crate::session::quota;
use crate::tables::block_map;
use crate::tables::dentry_table::{Found, Put, forget, put};
use crate::tables::inode_table::{Fresh, InodeRef, by_link, find};
use crate::tables::open_values;
use crate::tables::value_index;
use alloc::vec::Vec;
use pmem::atomic::Ordering::*;
use pmem::atomic::fence;
use pool::journal::{Change, Naming, Op, Ops, Promote};
use pool::layout::BlockAddr;
use pool::layout::value::InBlocks;
use pool::session::*;

/// Bytes of a change, as far as room is made ahead.
const OP_LIKELY: usize = 128;

/// d_type of regular files.
const KIND_FILE: u8 = 8;

/// Room for what the changes of a record do to names, and an entry for a new inode if they make
/// one. Only the first changes can be about files.
pub(crate) fn prepare<'s>(s: &'s Session, ops: &[u8]) -> Result<Option<Fresh<'s>>> {
    let mut fresh = None;
    for op in Ops::new(ops).flatten() {
        if !op.change.is_about_files() {
            break;
        }
        reserve_name(s, op.key)?;
        if let Change::Promote(_) = op.change {
            fresh = Some(Fresh::new(s, Rank::Normal)?);
        }
    }
    Ok(fresh)
}

/// Makes the changes of record `seq` at `place` visible. `NoMemory`: they will be when the trees
/// have them.
pub(crate) fn batch(
    s: &Session,
    ops: &[u8],
    (seq, time): (u64, i64),
    place: Place,
    room: Prepared<'_>,
) -> Result<()> {
    value_index::raise_values_seq(s, seq);
    let mut all = Ops::new(ops);
    let first = all.next();
    if let (Some(Ok(op)), None) = (&first, all.next()) {
        let done = match op.change.is_about_files() {
            true => single(s, op, (seq, time), place, room),
            false => Ok(()),
        };
        if !op.change.is_keyed() {
            let in_tables = op.change.is_about_files();
            return done.and(in_tables.then_some(()).ok_or(Error::NoMemory));
        }
        let hash = value_index::hash(s, op.keyspace, op.key);
        let bucket = s.value_bucket(hash)?;
        let _change = lock::Changing::begin(&bucket.version);
        let start = pool::journal::OPS_AT as u64;
        return done.and(value_index::insert(s, (bucket, hash), op, place, start));
    }
    let done = many(s, ops, place);
    let names = first.is_some_and(|op| op.is_ok_and(|op| op.change.is_about_files()));
    match names {
        // After the values that replace them.
        true => unname(s, ops, (seq, time), room).and(done),
        false => done,
    }
}

/// A change and where it goes: its place behind the start of its record, and its key's bucket.
struct Cell<'a, 's> {
    op: Op<'a>,
    back: u64,
    hash: u64,
    bucket: &'s ValueBucket,
}

fn many(s: &Session, ops: &[u8], place: Place) -> Result<()> {
    let mut cells = Vec::with_capacity(ops.len() / OP_LIKELY + 1);
    let mut all = Ops::new(ops);
    loop {
        let back = all.place();
        let Some(Ok(op)) = all.next() else { break };
        if op.change.is_keyed() {
            let hash = value_index::hash(s, op.keyspace, op.key);
            let bucket = s.value_bucket(hash)?;
            cells.push(Cell {
                op,
                back,
                hash,
                bucket,
            });
        } else if !op.change.is_about_files() {
            return Err(Error::NoMemory);
        }
    }
    for cell in &cells {
        let version = &cell.bucket.version;
        version.store(version.load(Relaxed) | 1, Relaxed);
    }
    fence(Release);
    let mut done = Ok(());
    for cell in &cells {
        let to = (cell.bucket, cell.hash);
        done = done.and(value_index::insert(s, to, &cell.op, place, cell.back));
    }
    cells
        .iter()
        .for_each(|cell| lock::close_change(&cell.bucket.version));
    done
}

/// The only change of its record, which is about a file.
fn single(
    s: &Session,
    op: &Op<'_>,
    (seq, time): (u64, i64),
    place: Place,
    room: Prepared<'_>,
) -> Result<()> {
    match op.change {
        Change::Promote(fields) => match Promote::decode(fields) {
            Some(p) => promote(s, op, &p, (seq, place), room),
            None => Ok(()),
        },
        Change::Name(fields) => match Naming::decode(fields) {
            Some(n) if n.ino != 0 => name(s, op, &n, (seq, time), room.rank),
            Some(n) => unname_all(s, &[(op.keyspace, op.key, n)], (seq, time), room.rank),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Takes the names away that a record's first changes speak of.
fn unname(s: &Session, ops: &[u8], moment: (u64, i64), room: Prepared<'_>) -> Result<()> {
    let about = |op: &Op<'_>| op.change.is_about_files();
    let names = Ops::new(ops).flatten().take_while(about);
    let naming = |op: Op<'_>| match op.change {
        Change::Name(fields) => Naming::decode(fields).map(|n| (op.keyspace, n)),
        _ => None,
    };
    let mut gone = Vec::new();
    for op in names {
        if let Some((keyspace, n)) = naming(op) {
            gone.push((keyspace, op.key, n));
        }
    }
    unname_all(s, &gone, moment, room.rank)
}

fn unname_all(
    s: &Session,
    gone: &[(u64, &[u8], Naming)],
    (seq, time): (u64, i64),
    rank: Rank,
) -> Result<()> {
    let mut done = Ok(());
    for (dir, name, _) in gone {
        done = done.and(put(s, [named(s, *dir, name, (0, 0))], seq, rank));
    }
    let mut dirs: Vec<u64> = gone.iter().map(|(dir, _, _)| *dir).collect();
    dirs.sort_unstable();
    for same in dirs.chunk_by(|a, b| a == b) {
        change_dir(s, same[0], seq, time, -(same.len() as i64), 0);
    }
    let mut files: Vec<_> = gone.iter().map(|(_, _, n)| (n.replaced, n.flags)).collect();
    files.sort_unstable();
    for same in files.chunk_by(|a, b| a.0 == b.0) {
        let flags = same.iter().fold(0, |flags, f| flags | f.1);
        lose_names(s, same[0].0, seq, time, flags, same.len() as i64);
    }
    done
}

/// A nameless file gets the name, in place of another one or not.
fn name(s: &Session, op: &Op<'_>, n: &Naming, (seq, time): (u64, i64), rank: Rank) -> Result<()> {
    change(s, n.ino, seq, |e| {
        count(e, seq, 0, 1);
        store(&e.ctime, time);
        e.state.fetch_and(!(INODE_ORPHAN | INODE_LINKABLE), SeqCst);
    });
    let names = if n.replaced == 0 { 1 } else { 0 };
    change_dir(s, op.keyspace, seq, time, names, 0);
    let to = named(s, op.keyspace, op.key, (n.ino, KIND_FILE));
    let done = put(s, [to], seq, rank);
    if n.replaced != 0 {
        lose_names(s, n.replaced, seq, time, n.flags, 1);
    }
    done
}

/// The value is a file from now on. Who has it open has the file open.
fn promote(
    s: &Session,
    op: &Op<'_>,
    p: &Promote<'_>,
    (seq, place): (u64, Place),
    room: Prepared<'_>,
) -> Result<()> {
    let (parent, name) = (op.keyspace, op.key);
    // Who promotes holds the lock of the directory, which has it as long as anybody has that.
    let project = find(s, parent).map_or(0, |dir| dir.e.project.load(Relaxed));
    let open = find(s, p.ino).filter(|inode| open_values::is_value(inode.e));
    let entered = match open {
        Some(inode) => own(s, &inode, p, (seq, project)),
        None => enter_new(s, p, (seq, place, project), room.fresh),
    };
    change(s, parent, seq, |e| {
        count(e, seq, 1, 0);
        e.dir_seq.store(seq, Relaxed);
    });
    let inode = match entered {
        Ok(link) => link,
        Err(e) => {
            forget(s, parent, name, seq, room.rank)?;
            return Err(e);
        }
    };
    let (ino, kind) = (p.ino, KIND_FILE);
    let found = Found { ino, kind, inode };
    let put_it = Put {
        parent,
        name,
        found,
    };
    put(s, [put_it], seq, room.rank)
}

fn enter_new(
    s: &Session,
    p: &Promote<'_>,
    (seq, place, project): (u64, Place, u16),
    fresh: Option<Fresh<'_>>,
) -> Result<u32> {
    let link = enter(s, p.ino, place, fresh, |new| {
        fill(s, new.e, p, (seq, project), true);
    })?;
    // Where others have changed the file since, all of this was published before.
    match by_link(s, link, p.ino).filter(|inode| inode.e.seq.load(Relaxed) <= seq) {
        Some(inode) => map(s, &inode, p).map(|()| link),
        None => Ok(link),
    }
}

/// The entry that stood for the value is the file's from now on. Whoever publishes holds its lock.
fn own(s: &Session, inode: &InodeRef<'_>, p: &Promote<'_>, number: (u64, u16)) -> Result<u32> {
    let mapped = map_all(s, inode, p);
    fill(s, inode.e, p, number, mapped.is_ok());
    // Who looks for blocks without the lock looks at this afterwards.
    inode.e.truncations.fetch_add(1, AcqRel);
    open_values::leave(s, inode.e);
    mapped.map(|()| inode.link)
}

/// All attributes of the file. `whole`: its map is, or will be.
fn fill(s: &Session, e: &Inode, p: &Promote<'_>, (seq, project): (u64, u16), whole: bool) {
    let counted = quota::before(s, e);
    let _change = Changing::begin(&e.version);
    for (field, value) in [
        (&e.mode, p.mode),
        (&e.uid, p.uid),
        (&e.gid, p.gid),
        (&e.nlink, 1),
    ] {
        field.store(value, Relaxed);
    }
    for field in [&e.atime, &e.mtime, &e.ctime, &e.btime] {
        store(field, p.mtime);
    }
    e.project.store(project, Relaxed);
    e.size.store(p.size, Relaxed);
    // Here, because nobody holds the lock of the file while its blocks are entered.
    let blocks = InBlocks::decode(p.runs).ok();
    let count = blocks.map_or(0, |b| b.runs().iter().map(|run| u64::from(run.len)).sum());
    e.blocks.store(count, Relaxed);
    // Once there was a snapshot, it may have the value's blocks.
    let epoch = match s.header().epoch.load(Acquire) {
        epoch @ ..=1 => epoch,
        _ => 0,
    };
    e.map_epoch.store(epoch, Relaxed);
    e.seq.store(seq, Relaxed);
    e.dir_seq.store(seq, Relaxed);
    let mut state = INODE_VALID | INODE_USED;
    state |= if whole { INODE_MAPPED } else { 0 };
    state |= if p.shadow != 0 {
        INODE_INLINE | INODE_SHADOW
    } else {
        0
    };
    e.ino.store(p.ino, Release);
    e.state.store(state, Release);
    quota::after(s, e, counted);
}

/// Enters the blocks of the file, or leaves it to the trees to know where they are.
fn map(s: &Session, inode: &InodeRef<'_>, p: &Promote<'_>) -> Result<()> {
    let mapped = map_all(s, inode, p);
    if mapped.is_err() {
        inode.e.state.fetch_and(!INODE_MAPPED, AcqRel);
    }
    mapped
}

fn map_all(s: &Session, inode: &InodeRef<'_>, p: &Promote<'_>) -> Result<()> {
    if let Some(block) = p.shadow.checked_sub(1) {
        return block_map::map_first(s, inode, 0, BlockAddr::from_word(block), 1);
    }
    let Ok(blocks) = InBlocks::decode(p.runs) else {
        return Ok(());
    };
    let mut at = 0;
    for run in blocks.runs() {
        block_map::map_first(s, inode, at, run.block, run.len.into())?;
        at += u64::from(run.len);
    }
    Ok(())
}
