//! Values of a snapshot as files.
//!
//! Nothing can be made a file there, so an entry of the inode table stands for the value, and says
//! where in the tree it is.
//!
//! Invariants: the leaves of a snapshot stay where they are for as long as a session is on it; what
//! session memory says about the place is not believed: it leads to an entry of the keyspace or to
//! an error.

use crate::base::error::{Error, Result};
use crate::base::tree_key::with_key;
use crate::base::trees::Run;
use crate::session::{BLOCK, Session};
use crate::tables::inode::{self, InodeRef};
use pmem::atomic::Ordering::Relaxed;
use pool::layout::value::{HEAD, Head, InBlocks, NUMBERS};
use pool::layout::{FILE_BLOCKS_MAX, VALUES};
use pool::session::Inode;
use pool::tree::Leaf;

/// Where a value is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub keyspace: u64,
    /// The link to its leaf.
    link: u64,
    /// Which entry of the leaf it is.
    index: u8,
}

impl Place {
    /// Above a link's page number and its count of appended entries.
    const INDEX_SHIFT: u32 = 56;

    pub fn pack(self) -> u64 {
        self.link | u64::from(self.index) << Place::INDEX_SHIFT
    }

    /// Where the value is that an entry of the inode table stands for; `None`: the entry is that of
    /// an object. Only directories have a parent.
    #[inline]
    pub fn of(s: &Session, ino: u64, e: &Inode) -> Option<Place> {
        if !s.is_read_only() || ino < NUMBERS || !inode::is_file(e.mode.load(Relaxed)) {
            return None;
        }
        let (keyspace, packed) = (e.parent.load(Relaxed), e.entries.load(Relaxed));
        (keyspace != 0).then_some(Place {
            keyspace,
            link: packed & ((1 << Place::INDEX_SHIFT) - 1),
            index: (packed >> Place::INDEX_SHIFT) as u8,
        })
    }

    /// Where the value of a key is.
    pub fn find(s: &Session, keyspace: u64, key: &[u8]) -> Result<Option<Place>> {
        let reader = s.tree().reader();
        let root = reader.root(VALUES)?;
        with_key(keyspace, key, |tree_key| {
            let Some(link) = reader.leaf_link(VALUES, &root, tree_key)? else {
                return Ok(None);
            };
            let mut leaf = Leaf::default();
            reader.leaf_at(VALUES, &root, link, &mut leaf)?;
            let at = leaf.find(tree_key)?;
            if at == leaf.count() || leaf.entry(at)?.0 != tree_key {
                return Ok(None);
            }
            // Not more than 255 entries fit a leaf.
            let index = u8::try_from(at).map_err(|_| Error::Range)?;
            Ok(Some(Place {
                keyspace,
                link,
                index,
            }))
        })
    }

    /// Shows the value's entry to `look`: its head, and what follows.
    fn read<T>(self, s: &Session, look: impl FnOnce(Head, &[u8]) -> Result<T>) -> Result<T> {
        let reader = s.tree().reader();
        let (root, mut leaf) = (reader.root(VALUES)?, Leaf::default());
        reader.leaf_at(VALUES, &root, self.link, &mut leaf)?;
        let (key, value) = leaf.entry(self.index.into())?;
        if !key.starts_with(&self.keyspace.to_be_bytes()) {
            return Err(Error::Stale);
        }
        let head = Head::decode(value).map_err(pool::Error::from)?;
        look(head, value.get(HEAD..).unwrap_or_default())
    }
}

/// The content of a value that is in its entry; its length. `None`: the inode is an object's.
#[inline]
pub(crate) fn content(
    s: &Session,
    inode: &InodeRef<'_>,
    out: &mut [u8; BLOCK as usize],
) -> Result<Option<usize>> {
    let Some(place) = Place::of(s, inode.ino, inode.e) else {
        return Ok(None);
    };
    place.read(s, |head, bytes| {
        let out = out.get_mut(..bytes.len()).filter(|_| head.inline);
        out.ok_or(Error::Stale)?.copy_from_slice(bytes);
        Ok(Some(bytes.len()))
    })
}

/// Where a block of a value is; a hole if it is in its entry. `None`: the inode is an object's.
#[inline]
pub(crate) fn extent(s: &Session, inode: &InodeRef<'_>, file_block: u64) -> Result<Option<Run>> {
    let Some(place) = Place::of(s, inode.ino, inode.e) else {
        return Ok(None);
    };
    place.read(s, |head, bytes| {
        let beyond = Run::Hole(FILE_BLOCKS_MAX.saturating_sub(file_block).max(1));
        if head.inline {
            return Ok(Some(beyond));
        }
        let blocks = InBlocks::decode(bytes).map_err(pool::Error::from)?;
        let mut skip = file_block;
        for run in blocks.runs() {
            let len = u64::from(run.len);
            if skip < len {
                let (block, len, period) = (run.block + skip, len - skip, run.period);
                return Ok(Some(Run::Blocks { block, len, period }));
            }
            skip -= len;
        }
        Ok(Some(beyond))
    })
}
