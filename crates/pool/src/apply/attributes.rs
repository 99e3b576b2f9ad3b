//! Records about attributes: those of stat(2) and extended ones.
//!
//! Invariants: the type of an object never changes; `HAS_XATTRS` is set exactly while the object
//! has an extended attribute.

use super::{Applier, Failure, Grants, InodeBuf, Result, Store, Why, ensure};
use crate::journal::{
    PROJECT_SHIFT, Record, SET_ATIME, SET_CTIME, SET_GID, SET_MODE, SET_MTIME, SET_PROJECT, SET_UID,
};
use crate::layout::inode::{HAS_XATTRS, PROJECT_MAX, TYPE_MASK, is_legal_mode};
use crate::layout::{BadValue, NAME_MAX, ROOT_INO, XATTR_VALUE_MAX, XATTRS, XATTRS_MAX, xattr};
use crate::quota::QUOTA_PREFIX;

const SET_ALL: u32 = SET_MODE | SET_UID | SET_GID | SET_ATIME | SET_MTIME | SET_CTIME;

/// The project that the mask of a change of attributes sets.
fn project_in(mask: u32) -> Option<u16> {
    (mask & SET_PROJECT != 0).then_some((mask >> PROJECT_SHIFT) as u16)
}

impl<S: Store, G: Grants> Applier<'_, S, G> {
    pub(super) fn set_attr(&mut self, record: &Record<'_>) -> Result<(), S> {
        let Record::SetAttr {
            ino,
            mask,
            mode,
            uid,
            gid,
            atime,
            mtime,
            ctime,
        } = *record
        else {
            unreachable!("{record:?} sets no attributes");
        };
        let mut buf = InodeBuf::default();
        let mut inode = self.live(ino, &mut buf)?;
        let project = project_in(mask);
        let bits = match mask & SET_PROJECT {
            0 => mask,
            _ => mask & ((1 << PROJECT_SHIFT) - 1) & !SET_PROJECT,
        };
        let known = bits & !SET_ALL == 0 && project.is_none_or(|project| project <= PROJECT_MAX);
        ensure(known, ino, Why::Flags)?;
        inode.project = project.unwrap_or(inode.project);
        if mask & SET_MODE != 0 {
            let same_type = mode & TYPE_MASK == inode.file_type();
            ensure(is_legal_mode(mode) && same_type, ino, Why::Mode)?;
            inode.mode = mode;
        }
        let set =
            |bit: u32, to: &mut u32, from: u32| *to = if mask & bit != 0 { from } else { *to };
        set(SET_UID, &mut inode.uid, uid);
        set(SET_GID, &mut inode.gid, gid);
        let set =
            |bit: u32, to: &mut i64, from: i64| *to = if mask & bit != 0 { from } else { *to };
        set(SET_ATIME, &mut inode.atime, atime);
        set(SET_MTIME, &mut inode.mtime, mtime);
        set(SET_CTIME, &mut inode.ctime, ctime);
        self.put_inode(ino, &inode)
    }

    pub(super) fn set_xattr(
        &mut self,
        ino: u64,
        time: i64,
        name: &[u8],
        value: &[u8],
    ) -> Result<(), S> {
        let mut buf = InodeBuf::default();
        let mut inode = self.live(ino, &mut buf)?;
        ensure(xattr::is_legal_name(name), ino, Why::AttributeName)?;
        ensure(value.len() <= XATTR_VALUE_MAX, ino, Why::AttributeValue)?;
        let has_some = inode.flags & HAS_XATTRS != 0;
        let old = if has_some {
            self.xattr_len(ino, name)?
        } else {
            None
        };
        if has_some && old.is_none() {
            ensure(
                self.count_xattrs(ino)? < XATTRS_MAX,
                ino,
                Why::TooManyAttributes,
            )?;
        }
        self.put_chunks(ino, name, value)?;
        let old_chunks = old.map_or(0, xattr::chunks);
        self.erase_chunks(ino, name, xattr::chunks(value.len()), old_chunks)?;
        self.note_quotas(ino, name);
        inode.flags |= HAS_XATTRS;
        inode.ctime = time;
        self.put_inode(ino, &inode)
    }

    pub(super) fn remove_xattr(&mut self, ino: u64, time: i64, name: &[u8]) -> Result<(), S> {
        let mut buf = InodeBuf::default();
        let mut inode = self.live(ino, &mut buf)?;
        ensure(xattr::is_legal_name(name), ino, Why::AttributeName)?;
        let old = self.xattr_len(ino, name)?;
        ensure(old.is_some(), ino, Why::NoAttribute)?;
        self.erase_chunks(ino, name, 0, old.map_or(0, xattr::chunks))?;
        self.note_quotas(ino, name);
        if self.next_xattr(ino, &[], &mut [0; NAME_MAX])?.is_none() {
            inode.flags &= !HAS_XATTRS;
        }
        inode.ctime = time;
        self.put_inode(ino, &inode)
    }

    /// What says which quotas there are changes.
    fn note_quotas(&mut self, ino: u64, name: &[u8]) {
        self.carry.usage.changed |= ino == ROOT_INO && name.starts_with(QUOTA_PREFIX);
    }

    /// Stores a value under a name that may be the empty one.
    pub(super) fn put_chunks(&mut self, ino: u64, name: &[u8], value: &[u8]) -> Result<(), S> {
        let mut buf = [0; xattr::ENCODED_MAX];
        for chunk in 0..xattr::chunks(value.len()) {
            let len = xattr::encode_chunk(value, chunk, &mut buf);
            let key = chunk_key(ino, name, chunk)?;
            self.store
                .put(XATTRS, key.as_bytes(), &buf[..len])
                .map_err(Failure::Store)?;
        }
        Ok(())
    }

    fn erase_chunks(&mut self, ino: u64, name: &[u8], from: usize, to: usize) -> Result<(), S> {
        for chunk in from..to {
            let key = chunk_key(ino, name, chunk)?;
            self.store
                .erase(XATTRS, key.as_bytes())
                .map_err(Failure::Store)?;
        }
        Ok(())
    }

    fn xattr_len(&self, ino: u64, name: &[u8]) -> Result<Option<usize>, S> {
        xattr::find(&*self.store, ino, name, &mut []).map_err(Failure::Store)
    }

    fn next_xattr(
        &self,
        ino: u64,
        after: &[u8],
        name: &mut [u8; NAME_MAX],
    ) -> Result<Option<usize>, S> {
        xattr::next_name(&*self.store, ino, after, name).map_err(Failure::Store)
    }

    /// How many attributes there are, counted up to the limit.
    fn count_xattrs(&self, ino: u64) -> Result<usize, S> {
        let (mut last, mut len) = ([0; NAME_MAX], 0);
        for n in 0..XATTRS_MAX {
            let mut name = [0; NAME_MAX];
            match self.next_xattr(ino, &last[..len], &mut name)? {
                Some(found) => (last, len) = (name, found),
                None => return Ok(n),
            }
        }
        Ok(XATTRS_MAX)
    }
}

fn chunk_key(ino: u64, name: &[u8], chunk: usize) -> core::result::Result<xattr::Key, BadValue> {
    let key = u16::try_from(chunk)
        .ok()
        .and_then(|chunk| xattr::key(ino, name, chunk));
    key.ok_or(BadValue {
        what: "an attribute has an impossible name",
    })
}
