//! Applying a durable record to the tables.
//!
//! Invariants:
//!  * Publishing a record twice changes nothing more. An entry is changed only while its `seq` is
//!    below the record's, and `seq` is stored last; sums that a record adds to (names of a
//!    directory, links) go through `Inode::intent_*`, written before the sum changes.
//!  * The publisher holds the locks of the inodes, or is recovery while a dead process holds them.
//!  * An object appears before its name, and a name is removed before its object.
//!  * What finds no room in a table (`NoMemory`) is then in no table, not even in its earlier
//!    state: whoever looks for it asks the trees, once the publisher has released its locks.

use crate::base::abi::{XATTR_NAME_POSIX_ACL_ACCESS, XATTR_NAME_POSIX_ACL_DEFAULT};
use crate::base::error::{Error, Result};
use crate::journal::publish_values;
use crate::journal::reserve_name;
use crate::session::lock::{Changing, Rank};
use crate::session::place::Place;
use crate::session::quota;
use crate::session::space;
use crate::session::{BLOCK, Session};
use crate::tables::block_map;
use crate::tables::block_map::Run;
use crate::tables::dentry_table::{Found, Put, forget, put};
use crate::tables::inode_table::{self, Fresh, InodeRef, find, is_dir, is_file};
use pmem::ConstBuf;
use pmem::atomic::{AtomicU32, AtomicU64, Ordering::*};
use pool::journal::*;
use pool::layout::BlockAddr;
use pool::session::*;

/// Room in the tables, found before the record exists.
pub struct Prepared<'s> {
    pub(crate) fresh: Option<Fresh<'s>>,
    pub(crate) rank: Rank,
}

impl<'s> Prepared<'s> {
    /// What publishing `record` needs.
    #[inline]
    pub fn new(s: &'s Session, record: &Record<'_>) -> Result<Prepared<'s>> {
        let mut fresh = None;
        match *record {
            Record::Create { name, .. } => {
                reserve_name(s, name)?;
                fresh = Some(Fresh::new(s, Rank::Normal)?);
            }
            Record::Link { name, .. } | Record::Unlink { name, .. } => reserve_name(s, name)?,
            Record::Rename {
                old_name, new_name, ..
            } => {
                reserve_name(s, old_name)?;
                reserve_name(s, new_name)?;
            }
            Record::Batch { ops, .. } => fresh = publish_values::prepare(s, ops)?,
            _ => {}
        }
        Ok(Prepared {
            fresh,
            rank: Rank::Normal,
        })
    }
}

/// Publishes `record` again for a dead process.
pub(crate) fn republish(s: &Session, record: &Record<'_>, seq: u64, place: Place) -> Result<()> {
    publish(
        s,
        record,
        seq,
        place,
        Prepared {
            fresh: None,
            rank: Rank::Plain,
        },
    )
}

/// Brings `record`, durable at `place` with number `seq`, into the tables.
pub(crate) fn publish(
    s: &Session,
    record: &Record<'_>,
    seq: u64,
    place: Place,
    room: Prepared<'_>,
) -> Result<()> {
    match *record {
        Record::Create { .. } => create(s, record, seq, place, room),
        Record::Link {
            parent,
            ino,
            time,
            name,
        } => {
            let kind = kind_of(s, ino);
            change(s, ino, seq, |e| {
                count(e, seq, 0, 1);
                store(&e.ctime, time);
                e.state.fetch_and(!(INODE_ORPHAN | INODE_LINKABLE), SeqCst);
            });
            change_dir(s, parent, seq, time, 1, 0);
            put(s, [named(s, parent, name, (ino, kind))], seq, room.rank)
        }
        Record::Unlink {
            parent,
            ino,
            flags,
            time,
            name,
        } => {
            let done = put(s, [named(s, parent, name, (0, 0))], seq, room.rank);
            let dir = kind_of(s, ino) == DIR;
            change_dir(s, parent, seq, time, -1, if dir { -1 } else { 0 });
            lose_names(s, ino, seq, time, flags, 1);
            done
        }
        Record::Rename { .. } => rename(s, record, seq, room.rank),
        _ if record.is_about_durability() => Ok(()),
        Record::Batch { ops, time } => publish_values::batch(s, ops, (seq, time), place, room),
        // Its changes are visible when the trees have them.
        Record::Spilled { .. } => Err(Error::NoMemory),
        _ => publish_object(s, record, seq),
    }
}

/// Records about one object.
fn publish_object(s: &Session, record: &Record<'_>, seq: u64) -> Result<()> {
    match *record {
        Record::SetAttr { ino, .. } => change(s, ino, seq, |e| set_attr(e, record)),
        Record::Size {
            ino,
            size,
            atime,
            mtime,
            ctime,
        } => change(s, ino, seq, |e| {
            set_size_alone(e, size, mtime, ctime);
            store(&e.atime, atime);
            e.state.fetch_and(!INODE_DIRTY, AcqRel);
        }),
        Record::SetXattr {
            ino, time, name, ..
        } => change(s, ino, seq, |e| {
            store(&e.ctime, time);
            e.state.fetch_or(INODE_XATTRS | acl_bit(name), AcqRel);
        }),
        Record::RemoveXattr { ino, time, name } => change(s, ino, seq, |e| {
            store(&e.ctime, time);
            e.state.fetch_and(!acl_bit(name), AcqRel);
        }),
        Record::Write {
            ino,
            offset,
            size,
            mtime,
            data,
        } => {
            // While the lane is busy with the record, so that the service waits for the bytes.
            copy_data(s, ino, offset, data)?;
            change(s, ino, seq, |e| set_size(e, size, mtime, mtime));
        }
        Record::Release { ino } => release_orphan(s, ino, seq),
        Record::Keyspace { ino, time } => change(s, ino, seq, |e| {
            store(&e.ctime, time);
            e.state.fetch_or(INODE_KEYSPACE, AcqRel);
        }),
        _ => return publish_blocks(s, record, seq),
    }
    Ok(())
}

/// What says that there is an attribute of this name.
fn acl_bit(name: &[u8]) -> u32 {
    match name {
        XATTR_NAME_POSIX_ACL_ACCESS => INODE_ACL,
        XATTR_NAME_POSIX_ACL_DEFAULT => INODE_DEFAULT_ACL,
        _ => 0,
    }
}

fn set_attr(e: &Inode, record: &Record<'_>) {
    let Record::SetAttr {
        mask,
        mode,
        uid,
        gid,
        atime,
        mtime,
        ctime,
        ..
    } = *record
    else {
        return;
    };
    let words = [
        (SET_MODE, &e.mode, mode),
        (SET_UID, &e.uid, uid),
        (SET_GID, &e.gid, gid),
    ];
    for (bit, field, value) in words {
        if mask & bit != 0 {
            field.store(merge_mode(bit, field, value), Relaxed);
        }
    }
    if mask & SET_PROJECT != 0 {
        e.project.store((mask >> PROJECT_SHIFT) as u16, Relaxed);
    }
    let times = [
        (SET_ATIME, &e.atime, atime),
        (SET_MTIME, &e.mtime, mtime),
        (SET_CTIME, &e.ctime, ctime),
    ];
    for (bit, field, value) in times {
        if mask & bit != 0 {
            store(field, value);
        }
    }
}

/// Records that change where a file's data is. The map first: it is idempotent by itself.
fn publish_blocks(s: &Session, record: &Record<'_>, seq: u64) -> Result<()> {
    let newer = |ino| find(s, ino).filter(|i| i.e.seq.load(Relaxed) < seq);
    let (Record::Extent { ino, .. }
    | Record::Truncate { ino, .. }
    | Record::Punch { ino, .. }
    | Record::Inline { ino, .. }) = *record
    else {
        return Ok(());
    };
    let Some(inode) = newer(ino) else {
        return Ok(());
    };
    match *record {
        Record::Extent { .. } => publish_extent(s, &inode, record, seq)?,
        Record::Truncate { size, time, .. } => {
            // The size first: below it nobody may find the holes that are made next.
            let cut = Changing::begin(&inode.e.version);
            set_size(inode.e, size, time, time);
            drop(cut);
            if size == 0 {
                end_inline(s, &inode);
            }
            block_map::unmap(s, &inode, size.div_ceil(BLOCK), u64::MAX)?;
            change(s, ino, seq, |e| set_size(e, size, time, time));
        }
        Record::Punch {
            file_block,
            len,
            size,
            time,
            ..
        } => {
            if file_block == 0 {
                end_inline(s, &inode);
            }
            block_map::unmap(s, &inode, file_block, len)?;
            change(s, ino, seq, |e| set_size(e, size, time, time));
        }
        Record::Inline {
            mtime, ctime, data, ..
        } => {
            let shadow = first_is_ours(s, &inode);
            if !shadow {
                // Its block goes back to the pool; the data is in the record now.
                block_map::unmap(s, &inode, 0, u64::MAX)?;
            }
            let bits = INODE_INLINE | if shadow { INODE_SHADOW } else { 0 };
            change(s, ino, seq, |e| {
                set_size(e, data.len() as u64, mtime, ctime);
                e.blocks.store(0, Relaxed);
                e.pending_len.store(0, Relaxed);
                e.state.fetch_or(bits, AcqRel);
            });
        }
        _ => {}
    }
    Ok(())
}

fn publish_extent(s: &Session, inode: &InodeRef<'_>, record: &Record<'_>, seq: u64) -> Result<()> {
    let Record::Extent {
        ino,
        file_block,
        block,
        len,
        size,
        mtime,
        ctime,
        ..
    } = *record
    else {
        return Ok(());
    };
    if file_block == 0 {
        match block_map::first_block(s, inode) {
            // What shadowed the inline content is the file's own block from now on.
            Some(first) if first == block => {
                let counted = quota::before(s, inode.e);
                clear(inode.e, INODE_INLINE | INODE_SHADOW);
                quota::after(s, inode.e, counted);
            }
            _ => end_inline(s, inode),
        }
    }
    block_map::map_counted(s, inode, file_block, block, len.into())?;
    change(s, ino, seq, |e| {
        set_size(e, size, mtime, ctime);
        let pending = (
            e.pending_file_block.load(Relaxed),
            BlockAddr::from_word(e.pending_block.load(Relaxed)),
        );
        if pending == (file_block, block) && e.pending_len.load(Relaxed) <= len {
            e.pending_len.store(0, Relaxed);
        }
    });
    Ok(())
}

/// The file has no inline content any more; the block that shadowed it goes back.
fn end_inline(s: &Session, inode: &InodeRef<'_>) {
    block_map::drop_shadow(s, inode);
    let counted = quota::before(s, inode.e);
    clear(inode.e, INODE_INLINE);
    quota::after(s, inode.e, counted);
}

/// Clears bits; waits for nothing when they are clear already, as they mostly are.
fn clear(e: &Inode, bits: u32) {
    if e.state.load(Relaxed) & bits != 0 {
        e.state.fetch_and(!bits, AcqRel);
    }
}

const DIR: u8 = 4;

pub(crate) fn store(field: &AtomicU64, time: i64) {
    field.store(time as u64, Relaxed);
}

/// A mode keeps its type whatever the record says.
fn merge_mode(bit: u32, field: &AtomicU32, value: u32) -> u32 {
    match bit {
        SET_MODE => field.load(Relaxed) & !0o7777 | value & 0o7777,
        _ => value,
    }
}

fn set_size(e: &Inode, size: u64, mtime: i64, ctime: i64) {
    clear(e, INODE_STORED);
    set_size_alone(e, size, mtime, ctime);
}

/// As `set_size`, where the content stays what it is.
fn set_size_alone(e: &Inode, size: u64, mtime: i64, ctime: i64) {
    e.size.store(size, Release);
    store(&e.mtime, mtime);
    store(&e.ctime, ctime);
}

/// d_type of an object that is in the table.
fn kind_of(s: &Session, ino: u64) -> u8 {
    find(s, ino).map_or(0, |i| (i.e.mode.load(Relaxed) >> 12) as u8 & 15)
}

/// Changes the entry of `ino` if it does not know record `seq` yet.
#[inline]
pub(crate) fn change(s: &Session, ino: u64, seq: u64, f: impl FnOnce(&Inode)) {
    let Some(inode) = find(s, ino) else { return };
    if inode.e.seq.load(Relaxed) >= seq {
        return;
    }
    let counted = quota::before(s, inode.e);
    let change = Changing::begin(&inode.e.version);
    f(inode.e);
    inode.e.seq.store(seq, Release);
    drop(change);
    quota::after(s, inode.e, counted);
}

/// Adds to the names and links of an entry, once per record: the sums are written as an intent
/// first, so a redo finds them and does not add again.
pub(crate) fn count(e: &Inode, seq: u64, names: i64, links: i64) {
    if e.intent_seq.load(Acquire) != seq {
        let entries = e.entries.load(Relaxed).saturating_add_signed(names);
        let nlink = u64::from(e.nlink.load(Relaxed)).saturating_add_signed(links);
        let nlink = nlink.min(u64::from(u16::MAX));
        e.intent_entries.store(entries, Release);
        e.intent_nlink.store(nlink as u16, Release);
        e.intent_seq.store(seq, Release);
    }
    e.entries.store(e.intent_entries.load(Relaxed), Release);
    e.nlink.store(e.intent_nlink.load(Relaxed).into(), Release);
}

/// A directory gained or lost names and subdirectories.
#[inline]
pub(crate) fn change_dir(s: &Session, dir: u64, seq: u64, time: i64, names: i64, links: i64) {
    change(s, dir, seq, |e| {
        count(e, seq, names, links);
        store(&e.mtime, time);
        store(&e.ctime, time);
        e.dir_seq.store(seq, Relaxed);
    });
}

/// `name` in `parent` leads to `ino` from now on.
pub(crate) fn named<'a>(
    s: &Session,
    parent: u64,
    name: &'a [u8],
    (ino, kind): (u64, u8),
) -> Put<'a> {
    let inode = find(s, ino).map_or(0, |i| i.link);
    Put {
        parent,
        name,
        found: Found { ino, kind, inode },
    }
}

fn create(
    s: &Session,
    record: &Record<'_>,
    seq: u64,
    place: Place,
    room: Prepared<'_>,
) -> Result<()> {
    let Record::Create {
        parent,
        ino,
        mode,
        flags,
        time,
        name,
        ..
    } = *record
    else {
        return Ok(());
    };
    let fill = |fresh: &Fresh<'_>| fill_new(fresh.e, record, seq);
    let entered = enter(s, ino, place, room.fresh, fill);
    if flags & CREATE_ORPHAN != 0 {
        return entered.map(drop);
    }
    change_dir(s, parent, seq, time, 1, if is_dir(mode) { 1 } else { 0 });
    let link = match entered {
        Ok(link) => link,
        Err(e) => {
            forget(s, parent, name, seq, room.rank)?;
            return Err(e);
        }
    };
    let found = Found {
        ino,
        kind: (mode >> 12) as u8 & 15,
        inode: link,
    };
    put(
        s,
        [Put {
            parent,
            name,
            found,
        }],
        seq,
        room.rank,
    )
}

/// The link of the entry of a new object, which the record at `place` made. Without an entry at
/// hand somebody published it before, or did not come to it; 0: it can be loaded.
pub(crate) fn enter(
    s: &Session,
    ino: u64,
    place: Place,
    fresh: Option<Fresh<'_>>,
    fill: impl FnOnce(&Fresh<'_>),
) -> Result<u32> {
    if let Some(fresh) = fresh {
        fill(&fresh);
        return Ok(fresh.publish(ino)?.link);
    }
    if let Some(known) = find(s, ino) {
        return Ok(known.link);
    }
    let fresh = Fresh::new(s, Rank::Plain)?;
    fill(&fresh);
    fresh.publish_again(ino, place)
}

/// All attributes of a new object. Its map is whole: everything is a hole.
fn fill_new(e: &Inode, record: &Record<'_>, seq: u64) {
    let Record::Create {
        parent,
        ino,
        mode,
        uid,
        gid,
        flags,
        rdev,
        time,
        target,
        ..
    } = *record
    else {
        return;
    };
    let orphan = flags & CREATE_ORPHAN != 0;
    let change = Changing::begin(&e.version);
    let nlink = if orphan {
        0
    } else {
        1 + u32::from(is_dir(mode))
    };
    for (field, value) in [
        (&e.mode, mode),
        (&e.uid, uid),
        (&e.gid, gid),
        (&e.nlink, nlink),
    ] {
        field.store(value, Relaxed);
    }
    for field in [&e.atime, &e.mtime, &e.ctime, &e.btime] {
        store(field, time);
    }
    e.project.store((flags >> PROJECT_SHIFT) as u16, Relaxed);
    e.rdev.store(rdev, Relaxed);
    e.size.store(target.len() as u64, Relaxed);
    if is_dir(mode) {
        e.parent.store(parent, Relaxed);
    }
    inode_table::pack_target(e, target);
    e.seq.store(seq, Relaxed);
    e.dir_seq.store(seq, Relaxed);
    let mut state = INODE_VALID | INODE_USED | INODE_MAPPED;
    state |= if orphan { INODE_ORPHAN } else { 0 };
    state |= if is_dir(mode) { INODE_COMPLETE } else { 0 };
    e.ino.store(ino, Release);
    e.state.store(state, Release);
    drop(change);
}

fn rename(s: &Session, record: &Record<'_>, seq: u64, rank: Rank) -> Result<()> {
    let Record::Rename {
        old_parent,
        new_parent,
        ino,
        replaced,
        flags,
        time,
        old_name,
        new_name,
    } = *record
    else {
        return Ok(());
    };
    let exchange = flags & RENAME_EXCHANGE != 0;
    let (kind, other) = (kind_of(s, ino), kind_of(s, replaced));
    let (dir, other_dir) = (i64::from(kind == DIR), i64::from(other == DIR));
    let lost = i64::from(replaced != 0);
    let [from, to] = match exchange {
        true => [(0, other_dir - dir), (0, dir - other_dir)],
        false => [(-1, -dir), (1 - lost, dir - other_dir)],
    };
    if old_parent == new_parent {
        change_dir(s, old_parent, seq, time, from.0 + to.0, from.1 + to.1);
    } else {
        change_dir(s, old_parent, seq, time, from.0, from.1);
        change_dir(s, new_parent, seq, time, to.0, to.1);
    }
    let to = named(s, new_parent, new_name, (ino, kind));
    let back = if exchange { (replaced, other) } else { (0, 0) };
    let done = put(s, [to, named(s, old_parent, old_name, back)], seq, rank);
    move_to(s, ino, new_parent, seq, time);
    match (exchange, replaced) {
        (_, 0) => {}
        (true, _) => move_to(s, replaced, old_parent, seq, time),
        (false, _) => lose_names(s, replaced, seq, time, flags, 1),
    }
    done
}

fn move_to(s: &Session, ino: u64, parent: u64, seq: u64, time: i64) {
    change(s, ino, seq, |e| {
        store(&e.ctime, time);
        if is_dir(e.mode.load(Relaxed)) {
            e.parent.store(parent, Relaxed);
        }
    });
}

/// An object lost names; with the last one it becomes an orphan or is gone.
pub(crate) fn lose_names(s: &Session, ino: u64, seq: u64, time: i64, flags: u32, names: i64) {
    let Some(inode) = find(s, ino) else { return };
    let mut gone = false;
    change(s, ino, seq, |e| {
        let all = if is_dir(e.mode.load(Relaxed)) {
            -i64::from(u32::MAX)
        } else {
            -names
        };
        count(e, seq, 0, all);
        store(&e.ctime, time);
        if e.nlink.load(Relaxed) == 0 {
            gone = flags & KEEP_ORPHAN == 0;
            e.state
                .fetch_or(INODE_ORPHAN | if gone { INODE_GONE } else { 0 }, SeqCst);
        } else {
            e.state.fetch_and(!INODE_ORPHAN, SeqCst);
        }
    });
    if gone {
        empty(s, &inode);
    }
}

/// The last user of an orphan closed it.
fn release_orphan(s: &Session, ino: u64, seq: u64) {
    let Some(inode) = find(s, ino) else { return };
    change(s, ino, seq, |e| {
        e.state.fetch_or(INODE_ORPHAN | INODE_GONE, SeqCst);
        e.state.fetch_and(!INODE_DIRTY, SeqCst);
    });
    empty(s, &inode);
}

/// Returns what a gone file held in memory. A death in between leaks it until the session ends.
fn empty(s: &Session, inode: &InodeRef<'_>) {
    let e = inode.e;
    s.header().inode_gone.fetch_add(1, Relaxed);
    e.state.fetch_and(!INODE_DIRTY, SeqCst);
    block_map::drop_shadow(s, inode);
    if is_file(e.mode.load(Relaxed)) {
        for (block, len) in [
            (&e.pending_block, &e.pending_len),
            (&e.reserve_block, &e.reserve_len),
        ] {
            let len = len.swap(0, AcqRel);
            space::give_back(s, BlockAddr::from_word(block.load(Relaxed)), len);
        }
        e.truncations.fetch_add(1, AcqRel);
        block_map::discard(s, inode);
    }
}

/// Whether block 0 is one that no record mentions: a shadow, or all that is pending.
fn first_is_ours(s: &Session, inode: &InodeRef<'_>) -> bool {
    let e = inode.e;
    let pending = (
        e.pending_len.load(Relaxed),
        e.pending_file_block.load(Relaxed),
    );
    let ours = e.state.load(Relaxed) & INODE_SHADOW != 0 || pending == (1, 0);
    ours && block_map::first_block(s, inode).is_some()
}

/// The data of an atomic write goes where the record says, however often.
fn copy_data(s: &Session, ino: u64, offset: u64, data: &[u8]) -> Result<()> {
    let Some(inode) = find(s, ino) else {
        return Ok(());
    };
    let mut done = 0;
    while done < data.len() {
        let at = offset + done as u64;
        let n = ((BLOCK - at % BLOCK) as usize).min(data.len() - done);
        if let Run::Blocks { block, .. } = block_map::lookup_run(s, &inode, at / BLOCK, 1)? {
            let piece = data.get(done..done + n).unwrap_or_default();
            s.segment(block)?
                .copy_in(block.offset() + at % BLOCK, ConstBuf::from(piece))?;
        }
        done += n;
    }
    s.data().fence();
    Ok(())
}
