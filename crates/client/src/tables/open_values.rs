//! Values that are open as files.
//!
//! No tree has an inode of such a value. An entry of the inode table with `INODE_VALUE` stands for
//! it, with a copy of the value's own entry at the time of opening.
//!
//! Invariants:
//!  * A copy is made before its inode entry can be found, and does not change until that entry is
//!    freed.
//!  * The service does not reuse a block that a copy names as long as its inode entry is open. So a
//!    process that opens a value in blocks checks once more, with the entry pinned, whether the key
//!    still has that value.
//!  * `open_values_in_blocks` is never less than the number of copies in use that name blocks.
//!  * Session memory is not believed: lengths and blocks are checked.

use crate::base::error::{Error, Result};
use crate::base::trees::Run;
use crate::session::free_list::{FreeList, count_down};
use crate::session::{BLOCK, Session};
use crate::tables::inode::InodeRef;
use crate::tables::value_index;
use core::ops::Range;
use pmem::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use pool::layout::value::{ENTRY_MAX, InBlocks, number};
use pool::layout::{FILE_BLOCKS_MAX, NAME_MAX};
use pool::session::{INODE_VALUE, Inode, OPEN_VALUE_WORDS, OPEN_VALUES, OpenValue};

/// Bytes of a copy: key and value.
const ROOM: usize = OPEN_VALUE_WORDS * 8;
/// Inode numbers that are tried for one value.
const NUMBERS_TRIED: u64 = 8;

/// A value as its entry has it.
pub(crate) struct Value<'a> {
    pub keyspace: u64,
    pub key: &'a [u8],
    /// As it comes back from an entry.
    pub mtime: i64,
    pub size: u64,
    pub in_blocks: bool,
    /// Bytes of `room` that count: the value, or its length and its runs without epochs.
    pub len: usize,
    pub room: [u8; ENTRY_MAX],
}

impl Value<'_> {
    pub fn bytes(&self) -> &[u8] {
        &self.room[..self.len]
    }

    /// The numbers that it may be open under. What was this value before may be a file that is
    /// still open, and have the first one.
    pub fn numbers(&self) -> Range<u64> {
        let first = number(self.keyspace, self.key, self.mtime, self.bytes());
        first..first + NUMBERS_TRIED
    }
}

/// Whether an entry of the inode table stands for a value.
#[inline]
pub(crate) fn is_value(e: &Inode) -> bool {
    e.state.load(Acquire) & INODE_VALUE != 0
}

fn table(s: &Session) -> FreeList<'_> {
    let h = s.header();
    FreeList {
        lock: &h.open_values_lock,
        free: &h.open_values_free,
        used: &h.open_values_used,
        capacity: OPEN_VALUES as u32,
        base: 0,
    }
}

/// A copy of `value` that no inode entry has yet; its link.
pub(crate) fn make(s: &Session, value: &Value<'_>) -> Result<u32> {
    let key_len = value.key.len();
    let len = key_len + value.len;
    if len > ROOM || key_len > NAME_MAX {
        return Err(Error::Range);
    }
    let next = |index: u32| Ok(&s.open_value(index + 1)?.next);
    let index = table(s).pop(s, next, |_| Ok(()))?;
    let link = index.ok_or(Error::TableFull)? + 1;
    let copy = s.open_value(link)?;
    copy.inode.store(0, Relaxed);
    copy.keyspace.store(value.keyspace, Relaxed);
    copy.key_len.store(key_len as u16, Relaxed);
    copy.len.store(value.len as u16, Relaxed);
    copy.in_blocks.store(value.in_blocks.into(), Relaxed);
    let mut room = [0; ROOM];
    room[..key_len].copy_from_slice(value.key);
    room[key_len..len].copy_from_slice(value.bytes());
    for (to, from) in copy
        .words
        .iter()
        .zip(room[..len.next_multiple_of(8)].as_chunks().0)
    {
        to.store(u64::from_le_bytes(*from), Relaxed);
    }
    if value.in_blocks {
        s.header().open_values_in_blocks.fetch_add(1, AcqRel);
    }
    Ok(link)
}

/// The copy is that of entry `inode`, which nobody can find yet.
pub(crate) fn bind(s: &Session, link: u32, inode: u32, ino: u64) -> Result<()> {
    let copy = s.open_value(link)?;
    copy.ino.store(ino, Relaxed);
    copy.inode.store(inode, Release);
    Ok(())
}

/// Frees a copy that no inode entry has any more.
pub(crate) fn free(s: &Session, link: u32) {
    let Ok(copy) = s.open_value(link) else { return };
    copy.inode.store(0, Release);
    let in_blocks = copy.in_blocks.load(Relaxed) != 0;
    if table(s).push(s, link - 1, &copy.next, || {}).is_ok() && in_blocks {
        count_down(&s.header().open_values_in_blocks);
    }
}

/// Frees the copy of an entry that goes or becomes that of a file. Once only, whoever dies here.
pub(crate) fn leave(s: &Session, e: &Inode) {
    let link = e.entries.swap(0, AcqRel) as u32;
    if link != 0 {
        free(s, link);
    }
}

/// The copy of a value that the caller has pinned, or whose entry it looks at once more.
fn of<'s>(s: &'s Session, e: &Inode) -> Option<&'s OpenValue> {
    let link = e.entries.load(Acquire) as u32;
    is_value(e).then(|| s.open_value(link).ok()).flatten()
}

/// The key and what follows it, in `room`.
fn read<'a>(copy: &OpenValue, room: &'a mut [u8; ROOM]) -> Result<(&'a [u8], &'a [u8])> {
    let key_len = usize::from(copy.key_len.load(Relaxed));
    let end = key_len + usize::from(copy.len.load(Relaxed));
    let damaged = Error::Damaged {
        what: "open value",
        index: copy.ino.load(Relaxed),
    };
    if end > ROOM || key_len > NAME_MAX {
        return Err(damaged);
    }
    let words = room[..end.next_multiple_of(8)].as_chunks_mut().0;
    for (to, from) in words.iter_mut().zip(&copy.words) {
        *to = from.load(Relaxed).to_le_bytes();
    }
    Ok(room[..end].split_at(key_len))
}

/// Whether the entry stands for this value. True only if it does so afterwards, too.
pub(crate) fn is_same(s: &Session, inode: &InodeRef<'_>, value: &Value<'_>) -> bool {
    let Some(copy) = of(s, inode.e) else {
        return false;
    };
    copy.keyspace.load(Relaxed) == value.keyspace
        && inode.e.btime.load(Relaxed) as i64 == value.mtime
        && (copy.in_blocks.load(Relaxed) != 0) == value.in_blocks
        && read(copy, &mut [0; ROOM]).is_ok_and(|have| have == (value.key, value.bytes()))
}

/// Shows keyspace and key of a pinned value to `look`; `None`: the entry is an object's.
pub(crate) fn with_name<T>(
    s: &Session,
    inode: &InodeRef<'_>,
    look: impl FnOnce(u64, &[u8]) -> Result<T>,
) -> Result<Option<T>> {
    let Some(copy) = of(s, inode.e) else {
        return Ok(None);
    };
    let mut room = [0; ROOM];
    let (key, _) = read(copy, &mut room)?;
    look(copy.keyspace.load(Relaxed), key).map(Some)
}

/// The content of a pinned value that is not in blocks; its length. `None`: the inode is an
/// object's.
pub(crate) fn content(
    s: &Session,
    inode: &InodeRef<'_>,
    out: &mut [u8; BLOCK as usize],
) -> Result<Option<usize>> {
    let Some(copy) = of(s, inode.e) else {
        return Ok(None);
    };
    let mut room = [0; ROOM];
    let (_, bytes) = read(copy, &mut room)?;
    if copy.in_blocks.load(Relaxed) != 0 {
        return Err(Error::Stale);
    }
    out[..bytes.len()].copy_from_slice(bytes);
    Ok(Some(bytes.len()))
}

/// Where a block of a pinned value is; a hole if it is in none. `None`: the inode is an object's.
pub(crate) fn extent(s: &Session, inode: &InodeRef<'_>, file_block: u64) -> Result<Option<Run>> {
    let Some(copy) = of(s, inode.e) else {
        return Ok(None);
    };
    let beyond = Run::Hole(FILE_BLOCKS_MAX.saturating_sub(file_block).max(1));
    if copy.in_blocks.load(Relaxed) == 0 {
        return Ok(Some(beyond));
    }
    let mut room = [0; ROOM];
    let blocks = InBlocks::decode(read(copy, &mut room)?.1).map_err(pool::Error::from)?;
    value_index::check_blocks(s, &blocks)?;
    let mut skip = file_block;
    for run in blocks.runs() {
        let len = u64::from(run.len);
        if skip < len {
            let (block, len, epoch) = (run.block + skip, len - skip, run.epoch);
            return Ok(Some(Run::Blocks { block, len, epoch }));
        }
        skip -= len;
    }
    Ok(Some(beyond))
}

/// Pins the entry if it stands for this value.
pub(crate) fn pin(s: &Session, inode: &InodeRef<'_>, value: &Value<'_>) -> bool {
    if !is_same(s, inode, value) {
        return false;
    }
    inode.e.opens.fetch_add(1, SeqCst);
    let pinned = inode.is_current() && is_same(s, inode, value);
    if !pinned {
        inode.e.opens.fetch_sub(1, SeqCst);
    }
    pinned
}
