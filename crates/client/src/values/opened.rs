//! Opening values as files, to read or to change them.
//!
//! Invariants:
//!  * Reading moves nothing: opening a value gives an entry of the inode table that stands for the
//!    value as it is now (`open_values`), whatever happens to its key.
//!  * Under the lock of a key's bucket nobody else opens a value of the key. So a value that
//!    becomes a file keeps its entry, with everybody who has it open.

use crate::base::clock;
use crate::base::error::{Error, Result};
use crate::base::trees::TreeInode;
use crate::content::{close, cow};
use crate::journal;
use crate::session::space;
use crate::session::{BLOCK, RETRIES, Session};
use crate::tables::dentry_table::{self, Found};
use crate::tables::inode_table::{self, InodeRef, LockedInode};
use crate::tables::open_values::{self, Value, is_value};
use crate::tables::value_index::{self, Out};
use crate::values::files::{self, KIND_FILE, Meta};
use crate::values::{blocks, get};
use alloc::vec::Vec;
use pmem::atomic::Ordering::{Relaxed, SeqCst};
use pmem::atomic::fence;
use pool::journal::{Change, Op, Promote, Record};
use pool::layout::value::{ENTRY_MAX, Head, IN_BLOCKS_MAX, InBlocks, ValueRun};
use pool::layout::{BlockAddr, INLINE_MAX};
use pool::session::INODE_SHADOW;

/// The value that `key` has now.
pub(super) fn find<'a>(s: &Session, keyspace: u64, key: &'a [u8]) -> Result<Option<Value<'a>>> {
    let mut room = [0; ENTRY_MAX];
    let mut out = Out::locate(&mut room);
    let Some(size) = get::get(s, keyspace, key, &mut out)? else {
        return Ok(None);
    };
    let (mtime, found) = (Head::rounded(out.mtime), out.blocks);
    let in_blocks = found.is_some();
    let len = match found {
        None => (size as usize).min(room.len()),
        Some(mut blocks) => {
            blocks.be_born_in(0);
            blocks.encode(&mut room)
        }
    };
    Ok(Some(Value {
        keyspace,
        key,
        mtime,
        size,
        in_blocks,
        len,
        room,
    }))
}

/// What stat(2) shows of a value.
pub(super) fn meta(value: &Value<'_>) -> Meta {
    let blocks = match value.in_blocks {
        true => value.size.div_ceil(BLOCK),
        false => 0,
    };
    Meta {
        ino: value.numbers().start,
        len: value.size,
        mtime: value.mtime,
        blocks,
    }
}

/// The value of `name` as a file, pinned; `None`: the name has none any more.
#[cold]
pub(crate) fn open<'s>(
    s: &'s Session,
    dir: &InodeRef<'_>,
    name: &[u8],
) -> Result<Option<InodeRef<'s>>> {
    let bucket = s.value_bucket(value_index::hash(s, dir.ino, name))?;
    let _bucket = value_index::take(s, bucket)?;
    for _ in 0..RETRIES {
        let Some(value) = find(s, dir.ino, name)? else {
            return Ok(None);
        };
        let inode = pin(s, dir, &value)?;
        if !value.in_blocks {
            return Ok(Some(inode));
        }
        // From here on the blocks stay, if they were the value's until now.
        fence(SeqCst);
        match is_current(s, &inode) {
            Ok(true) => return Ok(Some(inode)),
            changed => {
                close::put_inode(s, &inode)?;
                changed?;
            }
        }
    }
    Err(Error::Busy)
}

/// The entry that stands for a value, pinned. The caller holds the bucket of its key.
fn pin<'s>(s: &'s Session, dir: &InodeRef<'_>, value: &Value<'_>) -> Result<InodeRef<'s>> {
    for ino in value.numbers() {
        match inode_table::find(s, ino) {
            Some(known) if open_values::pin(s, &known, value) => return Ok(known),
            Some(_) => {}
            None => {
                if let Some(inode) = enter(s, ino, dir, value)? {
                    return Ok(inode);
                }
            }
        }
    }
    Err(Error::Busy)
}

/// A new entry for a value, pinned; `None`: something else has the number.
fn enter<'s>(
    s: &'s Session,
    ino: u64,
    dir: &InodeRef<'_>,
    value: &Value<'_>,
) -> Result<Option<InodeRef<'s>>> {
    let a = files::attributes(&inode_table::attrs(s, dir)?, &meta(value));
    let copy = open_values::make(s, value)?;
    let inode = TreeInode {
        mode: a.mode,
        uid: a.uid,
        gid: a.gid,
        nlink: a.nlink,
        size: a.size,
        blocks: a.blocks,
        atime: a.atime,
        mtime: a.mtime,
        ctime: a.ctime,
        btime: a.btime,
        inline: a.blocks == 0 && a.size > 0,
        value: copy,
        ..TreeInode::default()
    };
    let entered = inode_table::enter_value(s, ino, &inode);
    if !matches!(entered, Ok(Some(_))) {
        open_values::free(s, copy);
    }
    entered
}

/// Whether the key of a pinned value still has it; true for objects.
pub(crate) fn is_current(s: &Session, inode: &InodeRef<'_>) -> Result<bool> {
    let look = |keyspace: u64, key: &[u8]| {
        let now = find(s, keyspace, key)?;
        Ok(now.is_some_and(|now| open_values::is_same(s, inode, &now)))
    };
    match open_values::with_name(s, inode, look)? {
        Some(current) => Ok(current || !is_value(inode.e)),
        None => Ok(true),
    }
}

/// Before a pinned inode is changed: what is a value becomes a file. False: it is one that no key
/// has any more, and that is gone when nobody has it open.
pub(crate) fn own(s: &Session, inode: &InodeRef<'_>) -> Result<bool> {
    for _ in 0..RETRIES {
        if !is_value(inode.e) {
            return Ok(true);
        }
        if !is_current(s, inode)? {
            return Ok(!is_value(inode.e));
        }
        open_values::with_name(s, inode, |dir, name| promote(s, dir, name))?;
    }
    Err(Error::Busy)
}

/// Makes the value of `name` a file; what the name leads to then. `None`: nothing any more.
#[cold]
pub(crate) fn promote(s: &Session, dir: u64, name: &[u8]) -> Result<Option<Found>> {
    s.check_writable()?;
    let time = clock::now();
    for _ in 0..RETRIES {
        let open = |value: &Value<'_>| is_open(s, value).map_or(0, |inode| inode.ino);
        let ino = find(s, dir, name)?.as_ref().map_or(0, open);
        let [dir, file] = match inode_table::lock_many(s, [dir, ino]) {
            // Its last user closed it.
            Err(Error::NotFound) if ino != 0 => continue,
            locked => locked?,
        };
        let dir = dir.ok_or(Error::NotFound)?;
        if inode_table::attrs(s, &dir)?.nlink == 0 {
            return Err(Error::NotFound);
        }
        if let Some(found) = dentry_table::lookup_locked(s, &dir, name)? {
            return Ok(Some(found));
        }
        let _bucket = value_index::lock_all(s, &[value_index::hash(s, dir.ino, name)])?;
        let Some(value) = find(s, dir.ino, name)? else {
            return Ok(None);
        };
        if open(&value) == ino {
            return promote_locked(s, &dir, &value, file.as_ref(), time).map(Some);
        }
    }
    Err(Error::Busy)
}

/// The entry that stands for a value.
fn is_open<'s>(s: &'s Session, value: &Value<'_>) -> Option<InodeRef<'s>> {
    let mut known = value.numbers().filter_map(|ino| inode_table::find(s, ino));
    known.find(|inode| open_values::is_same(s, inode, value))
}

/// `file` is the locked entry that stands for the value, if somebody has it open.
fn promote_locked(
    s: &Session,
    dir: &LockedInode<'_>,
    value: &Value<'_>,
    file: Option<&LockedInode<'_>>,
    time: i64,
) -> Result<Found> {
    let shadow = file.filter(|file| file.e.state.load(Relaxed) & INODE_SHADOW != 0);
    let mut filled = None;
    let block = match shadow {
        _ if value.in_blocks || value.size == 0 => None,
        Some(file) => Some(settled_shadow(s, file)?),
        None => {
            filled = Some(fill_block(s, value.bytes())?);
            filled
        }
    };
    let mut one = [0; IN_BLOCKS_MAX];
    let (runs, shadow) = match block {
        None if value.in_blocks => (value.bytes(), 0),
        Some(block) if value.size > INLINE_MAX as u64 => {
            let n = one_block(value.size, block).encode(&mut one);
            (&one[..n], 0)
        }
        block => (&[][..], block.map_or(0, |block| block.word() + 1)),
    };
    let done = commit(s, dir, value, file, (runs, shadow), time);
    if let (Err(e), Some(block)) = (&done, filled)
        && !matches!(e, Error::ServiceGone | Error::Poisoned(_))
    {
        space::give_back(s, block, 1);
    }
    let found = done?;
    if let Some(file) = file.filter(|file| file.e.maps.load(Relaxed) > 0)
        && s.header().epoch.load(Relaxed) > 0
    {
        // What is mapped is stored to in its place from now on, and a snapshot may have it.
        cow::own(s, file, 0, value.size.div_ceil(BLOCK))?;
    }
    Ok(found)
}

fn commit(
    s: &Session,
    dir: &LockedInode<'_>,
    value: &Value<'_>,
    file: Option<&LockedInode<'_>>,
    (runs, shadow): (&[u8], u64),
    time: i64,
) -> Result<Found> {
    let a = inode_table::attrs(s, dir)?;
    let own = value.numbers().start;
    let ino = match file {
        Some(file) => file.ino,
        // Somebody may have something else open under it.
        None if inode_table::find(s, own).is_some() || s.tree().inode(own)?.is_some() => {
            inode_table::new_ino(s)?
        }
        None => own,
    };
    let fields = Promote {
        ino,
        size: value.size,
        mtime: value.mtime,
        shadow,
        mode: files::MODE,
        uid: a.uid,
        gid: a.gid,
        runs,
    };
    let fields = fields.encode();
    let (keyspace, key, change) = (dir.ino, value.key, Change::Promote(&fields));
    let op = Op {
        keyspace,
        key,
        change,
    };
    let mut ops = Vec::new();
    op.push(&mut ops);
    journal::commit(s, &Record::Batch { time, ops: &ops })?;
    let kind = KIND_FILE;
    let inode = inode_table::find(s, ino).map_or(0, |i| i.link);
    Ok(Found { ino, kind, inode })
}

/// The block in which a value is that somebody has mapped: it will be the file's.
fn settled_shadow(s: &Session, file: &LockedInode<'_>) -> Result<BlockAddr> {
    let block = close::shadow_block(s, file)?;
    blocks::make_durable(s, block, 1).map(|()| block)
}

/// A new block with `content` and zeroes behind it.
fn fill_block(s: &Session, content: &[u8]) -> Result<BlockAddr> {
    let (block, _) = inode_table::alloc_blocks(s, 1, None)?;
    let mut bytes = [0; BLOCK as usize];
    bytes[..content.len()].copy_from_slice(content);
    let stored = s
        .segment(block)
        .and_then(|data| Ok(data.write_nt(block.offset(), &bytes)?));
    if let Err(e) = stored.and_then(|()| blocks::make_durable(s, block, 1)) {
        space::give_back(s, block, 1);
        return Err(e);
    }
    Ok(block)
}

fn one_block(len: u64, block: BlockAddr) -> InBlocks {
    let mut blocks = InBlocks::new(len);
    let (len, epoch) = (1, 0);
    blocks.push(ValueRun { block, len, epoch });
    blocks
}
