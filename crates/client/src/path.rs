//! From a path to a directory, a name in it, and what the name leads to.
//!
//! Invariants:
//!  * Search permission is checked in every directory that a walk passes, also for `.` and `..`.
//!  * Names are compared in shared memory by copying; only a symbolic link makes the walk
//!    allocate.
//!  * A walk takes no lock unless a name is not cached, and holds none when it ends: what it found
//!    is a hint for those who lock and look again.

use crate::abi::*;
use crate::dentry_table::Found;
use crate::error::{Error, Result};
use crate::inode_table::{self, Attrs, InodeRef};
use crate::kv::files::{self, Meta, Named};
use crate::perm;
use crate::session::Session;
use crate::types::{Base, Caller};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use pool::layout::value::number;

/// Inode number of the pool's root directory.
pub(crate) const ROOT: u64 = pool::layout::ROOT_INO;
/// d_type of symbolic links.
pub(crate) const KIND_SYMLINK: u8 = 10;
/// d_type of directories.
pub(crate) const KIND_DIR: u8 = 4;
/// d_type of regular files.
pub(crate) const KIND_FILE: u8 = 8;

/// Who walks, and by which rules.
#[derive(Clone, Copy)]
pub(crate) struct Walk<'a> {
    pub s: &'a Session,
    /// Where the pool appears in the host; empty: nowhere.
    pub at: &'a [u8],
    pub c: &'a Caller<'a>,
    /// `RESOLVE_*` bits.
    pub resolve: u64,
    /// A file is to be made if there is none: its name may not end in a slash.
    pub creates: bool,
    /// Values of keyspaces are shown; else the last name makes one a file.
    pub shows: bool,
}

/// What to do with the last component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Leave it: a name is to be made, removed or moved.
    Parent,
    /// Look it up, and follow it if it is a symbolic link.
    Follow,
    /// Look it up; a symbolic link is followed only if a slash comes after it.
    NoFollow,
}

/// What kind of component ended the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    Name,
    Dot,
    DotDot,
    /// There was none: the path was `/`.
    Root,
}

/// A name copied out of a path.
#[derive(Clone, Copy)]
pub(crate) struct NameBuf {
    len: u8,
    bytes: [u8; NAME_MAX],
}

impl NameBuf {
    fn new(name: &[u8]) -> Result<NameBuf> {
        let mut bytes = [0; NAME_MAX];
        bytes
            .get_mut(..name.len())
            .ok_or(Error::NameTooLong)?
            .copy_from_slice(name);
        Ok(NameBuf {
            len: name.len() as u8,
            bytes,
        })
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Where a walk ended.
pub(crate) struct Walked {
    /// The directory that holds the last name; the object itself if there was no name.
    pub dir: u64,
    /// Where its entry was last seen.
    pub hint: u32,
    pub last: Last,
    pub name: NameBuf,
    /// A slash followed the last name.
    pub slash: bool,
    /// What the last component leads to; `None` if not looked up or not there.
    pub found: Option<Found>,
    /// What `found` leads to is a value, not an object.
    pub value: Option<Meta>,
}

impl Walked {
    /// The object, which must exist.
    pub fn object(&self) -> Result<Found> {
        self.found.ok_or(Error::NotFound)
    }

    /// The last name, if the path ended in one.
    pub fn name(&self) -> &[u8] {
        self.name.as_bytes()
    }
}

/// One component and what surrounds it.
struct Component {
    start: usize,
    end: usize,
    /// Nothing but slashes follows.
    last: bool,
    slash: bool,
}

impl<'a> Walk<'a> {
    pub fn new(s: &'a Session, at: &'a [u8], c: &'a Caller<'a>) -> Walk<'a> {
        Walk {
            s,
            at,
            c,
            resolve: 0,
            creates: false,
            shows: false,
        }
    }

    /// The directory (or object, for an empty path) where a path from `base` starts.
    pub fn start(&self, base: Base) -> Result<u64> {
        match base {
            Base::Root => Ok(ROOT),
            Base::Cwd => match self.s.directory_slot()?.cwd.load(Relaxed) {
                0 => Err(Error::NotFound),
                ino => Ok(ino),
            },
            Base::Ofd(ofd) => Ok(self.s.ofd(ofd.raw())?.ino.load(Relaxed)),
        }
    }

    /// Walks `path` from `base`.
    pub fn walk(&self, base: Base, path: &[u8], end: End) -> Result<Walked> {
        if path.len() >= PATH_MAX {
            return Err(Error::NameTooLong);
        }
        if path.is_empty() {
            return Err(Error::NotFound);
        }
        let start = self.start(base)?;
        let mut state = State {
            walk: *self,
            start,
            dir: start,
            hint: 0,
            links: 0,
            scratch: Vec::new(),
            at: 0,
        };
        if path[0] == b'/' {
            state.start_at_root()?;
        }
        state.run(path, end)
    }

    /// The object that `path` leads to; with `AT_EMPTY_PATH` in `flags` and an empty path, `base`.
    pub fn object(&self, base: Base, path: &[u8], flags: u32) -> Result<Found> {
        if path.is_empty() && flags & AT_EMPTY_PATH != 0 {
            return Ok(Found {
                ino: self.start(base)?,
                kind: 0,
                inode: 0,
            });
        }
        self.walk(base, path, end_of(flags))?.object()
    }

    /// Attributes of the object that `path` leads to.
    pub fn attributes(&self, base: Base, path: &[u8], flags: u32) -> Result<Attrs> {
        if path.is_empty() && flags & AT_EMPTY_PATH != 0 {
            return Ok(attributes(self.s, self.start(base)?, 0)?.1);
        }
        let walk = Walk {
            shows: true,
            ..*self
        };
        for _ in 0..RETRIES {
            let at = walk.walk(base, path, end_of(flags))?;
            if let Some(meta) = &at.value {
                let dir = attributes(self.s, at.dir, at.hint)?.1;
                return Ok(files::attributes(&dir, at.name(), meta));
            }
            let found = at.object()?;
            match attributes(self.s, found.ino, found.inode) {
                // Its name went while we looked.
                Err(Error::NotFound) => {}
                Ok((_, a)) => return Ok(a),
                Err(e) => return Err(e),
            }
        }
        Err(Error::NotFound)
    }
}

/// Whether a symbolic link at the end is followed.
fn end_of(flags: u32) -> End {
    match flags & AT_SYMLINK_NOFOLLOW {
        0 => End::Follow,
        _ => End::NoFollow,
    }
}

/// How often an operation starts again because what it found was gone when it looked closer.
pub(crate) const RETRIES: u32 = 100;

/// The entry of `ino`, which was last seen at `hint` (0: unknown).
#[inline]
pub(crate) fn entry(s: &Session, ino: u64, hint: u32) -> Result<InodeRef<'_>> {
    match inode_table::by_link(s, hint, ino) {
        Some(inode) => Ok(inode),
        None => inode_table::get(s, ino),
    }
}

/// The entry and attributes of `ino`, which was last seen at `hint` (0: unknown).
#[inline]
pub(crate) fn attributes(s: &Session, ino: u64, hint: u32) -> Result<(InodeRef<'_>, Attrs)> {
    if let Some(inode) = inode_table::by_link(s, hint, ino)
        && let Ok(a) = inode_table::attrs(s, &inode)
    {
        return Ok((inode, a));
    }
    attributes_slow(s, ino)
}

#[cold]
fn attributes_slow(s: &Session, ino: u64) -> Result<(InodeRef<'_>, Attrs)> {
    for _ in 0..RETRIES {
        let inode = inode_table::get(s, ino)?;
        match inode_table::attrs(s, &inode) {
            Err(Error::Stale) => {}
            Ok(a) => return Ok((inode, a)),
            Err(e) => return Err(e),
        }
    }
    Err(Error::Damaged {
        what: "inode entry",
        index: ino,
    })
}

/// A walk under way. `scratch` replaces the path once a symbolic link was followed.
struct State<'a> {
    walk: Walk<'a>,
    start: u64,
    dir: u64,
    /// Where the entry of `dir` was last seen.
    hint: u32,
    links: u32,
    scratch: Vec<u8>,
    at: usize,
}

impl<'a> State<'a> {
    fn run(&mut self, path: &[u8], end: End) -> Result<Walked> {
        loop {
            // Taken out so that following a link can replace it.
            let scratch = core::mem::take(&mut self.scratch);
            let text = if self.links == 0 { path } else { &scratch[..] };
            let Some(part) = component(text, self.at) else {
                return Ok(self.at_directory(Last::Root));
            };
            let name = &text[part.start..part.end];
            let (here, dir) = self.enter_directory()?;
            self.at = part.end;
            match name {
                b"." if part.last => return Ok(self.at_directory(Last::Dot)),
                b"." => {}
                b".." => {
                    self.up(&dir, &text[part.end..])?;
                    if part.last {
                        return Ok(self.at_directory(Last::DotDot));
                    }
                }
                _ => {
                    if let Some(walked) = self.step(&here, text, &part, end)? {
                        return Ok(walked);
                    }
                }
            }
            if self.scratch.is_empty() {
                self.scratch = scratch;
            }
        }
    }

    /// Looks one name up and goes there; `Some` when the walk is over.
    fn step(
        &mut self,
        here: &InodeRef,
        text: &[u8],
        part: &Component,
        end: End,
    ) -> Result<Option<Walked>> {
        let name = &text[part.start..part.end];
        if name.len() > NAME_MAX {
            return Err(Error::NameTooLong);
        }
        if part.last && part.slash && self.walk.creates {
            return Err(Error::IsDirectory);
        }
        if part.last && end == End::Parent {
            return Ok(Some(self.ended(name, part, None)?));
        }
        let found = match files::look(self.walk.s, here, name)? {
            Named::File(found) => Some(found),
            Named::Nothing => None,
            Named::Value(_) if !part.last || part.slash => return Err(Error::NotDirectory),
            Named::Value(meta) if self.walk.shows => {
                let (ino, kind, inode) = (number(here.ino, name), files::KIND_FILE, 0);
                let found = Some(Found { ino, kind, inode });
                let value = Some(meta);
                let ended = self.ended(name, part, found)?;
                return Ok(Some(Walked { value, ..ended }));
            }
            Named::Value(_) => files::find(self.walk.s, here, name)?,
        };
        let Some(found) = found else {
            return match part.last {
                true => Ok(Some(self.ended(name, part, None)?)),
                false => Err(Error::NotFound),
            };
        };
        if found.kind == KIND_SYMLINK && (!part.last || end == End::Follow || part.slash) {
            return self.follow(&found, &text[part.end..]).map(|()| None);
        }
        if part.last {
            if part.slash && found.kind != KIND_DIR {
                return Err(Error::NotDirectory);
            }
            return Ok(Some(self.ended(name, part, Some(found))?));
        }
        if found.kind != KIND_DIR {
            return Err(Error::NotDirectory);
        }
        (self.dir, self.hint) = (found.ino, found.inode);
        Ok(None)
    }

    fn ended(&self, name: &[u8], part: &Component, found: Option<Found>) -> Result<Walked> {
        let name = NameBuf::new(name)?;
        let (dir, hint) = (self.dir, self.hint);
        Ok(Walked {
            dir,
            hint,
            last: Last::Name,
            name,
            slash: part.slash,
            found,
            value: None,
        })
    }

    fn at_directory(&self, last: Last) -> Walked {
        Walked {
            dir: self.dir,
            hint: self.hint,
            last,
            name: NameBuf {
                len: 0,
                bytes: [0; NAME_MAX],
            },
            slash: true,
            found: Some(Found {
                ino: self.dir,
                kind: KIND_DIR,
                inode: self.hint,
            }),
            value: None,
        }
    }

    /// The present object must be a directory that the caller may search.
    fn enter_directory(&self) -> Result<(InodeRef<'a>, Attrs)> {
        let (inode, a) = attributes(self.walk.s, self.dir, self.hint)?;
        if !perm::is_dir(&a) {
            return Err(Error::NotDirectory);
        }
        perm::check(self.walk.c, &a, X_OK)?;
        Ok((inode, a))
    }

    /// `..`; `rest` is what follows it.
    fn up(&mut self, dir: &Attrs, rest: &[u8]) -> Result<()> {
        let scoped = self.walk.resolve & (RESOLVE_BENEATH | RESOLVE_IN_ROOT);
        if scoped != 0 && self.dir == self.start {
            return match scoped & RESOLVE_BENEATH {
                0 => Ok(()),
                _ => Err(Error::CrossDevice),
            };
        }
        self.hint = 0;
        if self.dir != ROOT {
            self.dir = dir.parent;
            return Ok(());
        }
        if self.walk.at.is_empty() {
            return Ok(());
        }
        let above = match self.walk.at.iter().rposition(|&b| b == b'/') {
            Some(slash) => &self.walk.at[..slash],
            None => b"",
        };
        Err(self.outside(&[above, b"/", rest]))
    }

    fn outside(&self, parts: &[&[u8]]) -> Error {
        if self.walk.resolve & (RESOLVE_NO_XDEV | RESOLVE_BENEATH | RESOLVE_IN_ROOT) != 0 {
            return Error::CrossDevice;
        }
        let path: Box<[u8]> = parts.concat().into();
        Error::Outside(path)
    }

    /// An absolute path whose root is the pool's (or the start, if the walk is confined).
    fn start_at_root(&mut self) -> Result<()> {
        if self.walk.resolve & RESOLVE_BENEATH != 0 {
            return Err(Error::CrossDevice);
        }
        self.hint = 0;
        self.dir = match self.walk.resolve & RESOLVE_IN_ROOT {
            0 => ROOT,
            _ => self.start,
        };
        Ok(())
    }

    /// Goes on with the target of a symbolic link and then `rest`.
    #[cold]
    fn follow(&mut self, link: &Found, rest: &[u8]) -> Result<()> {
        if self.walk.resolve & RESOLVE_NO_SYMLINKS != 0 || self.links >= SYMLINKS_MAX {
            return Err(Error::Loop);
        }
        let mut text = symlink_target(self.walk.s, link)?;
        if text.is_empty() {
            return Err(Error::NotFound);
        }
        text.extend_from_slice(rest);
        if text.len() >= 2 * PATH_MAX {
            return Err(Error::NameTooLong);
        }
        self.links += 1;
        self.at = 0;
        if text[0] == b'/' {
            self.at = self.absolute_target(&text)?;
        }
        self.scratch = text;
        Ok(())
    }

    /// Where in an absolute host path the part inside the pool starts.
    fn absolute_target(&mut self, text: &[u8]) -> Result<usize> {
        if self.walk.resolve & (RESOLVE_IN_ROOT | RESOLVE_BENEATH) != 0 {
            return self.start_at_root().map(|()| 0);
        }
        let at = self.walk.at;
        let inside = text.starts_with(at) && matches!(text.get(at.len()), None | Some(b'/'));
        if !inside && !at.is_empty() {
            return Err(self.outside(&[text]));
        }
        self.start_at_root().map(|()| at.len())
    }
}

/// The target of a symbolic link.
pub(crate) fn symlink_target(s: &Session, link: &Found) -> Result<Vec<u8>> {
    let (inode, a) = attributes(s, link.ino, link.inode)?;
    if perm::file_type(a.mode) != S_IFLNK {
        return Err(Error::Invalid);
    }
    let mut target = vec![0; PATH_MAX];
    let len = inode_table::symlink_target(s, &inode, &mut target)?;
    target.truncate(len);
    Ok(target)
}

/// The next component of `text` from `at`; `None` at the end.
#[inline]
fn component(text: &[u8], at: usize) -> Option<Component> {
    let rest = text.get(at..)?;
    let start = at + rest.iter().position(|&b| b != b'/')?;
    let end = match text[start..].iter().position(|&b| b == b'/') {
        Some(n) => start + n,
        None => text.len(),
    };
    let last = text[end..].iter().all(|&b| b == b'/');
    Some(Component {
        start,
        end,
        last,
        slash: last && end < text.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn parts(text: &[u8]) -> Vec<(&[u8], bool, bool)> {
        let (mut at, mut out) = (0, Vec::new());
        while let Some(c) = component(text, at) {
            out.push((&text[c.start..c.end], c.last, c.slash));
            at = c.end;
        }
        out
    }

    #[test]
    fn paths_fall_into_components() {
        assert_eq!(parts(b"/"), []);
        assert_eq!(parts(b"a"), [(&b"a"[..], true, false)]);
        assert_eq!(parts(b"//a//"), [(&b"a"[..], true, true)]);
        let two = [(&b"a"[..], false, false), (&b"b"[..], true, false)];
        assert_eq!(parts(b"a//b"), two);
    }
}
