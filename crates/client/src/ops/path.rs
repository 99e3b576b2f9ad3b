//! From a path to a directory, a name in it, and the object that the name refers to.
//!
//! Invariants:
//!  * Search permission is checked in every directory that a walk passes, also for `.` and `..`.
//!  * Names are compared in shared memory, a byte at a time; only a symbolic link makes the walk
//!    allocate.
//!  * A walk takes no lock unless a name is not cached, and holds none when it ends: its result is
//!    a hint for callers that lock and look again.

use crate::base::abi::*;
use crate::base::error::{Error, Result};
use crate::base::types::{Base, Caller};
use crate::content::perm;
use crate::session::RETRIES;
use crate::session::Session;
use crate::tables::dentry_table::{self, Found};
use crate::tables::inode_table::{self, Attrs, InodeRef, Passage};
use crate::tables::leased::LeaseSet;
use crate::values::files::{self, Meta, Named};
use crate::values::opened;
use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use pmem::atomic::Ordering::Relaxed;
use pool::layout::value;
use pool::session::PROTECTED_SYMLINKS;

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
    /// Where leases on all that is looked at are kept.
    pub leases: Option<&'a LeaseSet>,
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

/// Where a walk of a path ended.
pub(crate) struct Walked<'p> {
    /// The directory that holds the last name; the object itself if there was no name.
    pub dir: u64,
    /// Where its entry was last seen.
    pub hint: u32,
    pub last: Last,
    /// Out of the path, or of a symbolic link's target.
    pub name: Cow<'p, [u8]>,
    /// A slash followed the last name.
    pub slash: bool,
    /// What the last component leads to; `None` if not looked up or not there.
    pub found: Option<Found>,
    /// What `found` leads to is a value, not an object.
    pub value: Option<Meta>,
}

impl Walked<'_> {
    /// The object, which must exist.
    pub fn object(&self) -> Result<Found> {
        self.found.ok_or(Error::NotFound)
    }

    /// The last name, if the path ended in one.
    pub fn name(&self) -> &[u8] {
        &self.name
    }
}

/// What the last name of a path leads to.
#[derive(Default)]
struct Ended {
    found: Option<Found>,
    value: Option<Meta>,
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
            leases: None,
        }
    }

    /// Before something is read of the object that was last seen at `hint`.
    #[inline]
    fn lease(&self, ino: u64, hint: u32) {
        if let Some(set) = self.leases {
            match entry(self.s, ino, hint) {
                Ok(inode) => set.add(self.s, &inode),
                Err(_) => set.spoil(),
            }
        }
    }

    /// What comes depends on more than inodes.
    fn spoil(&self) {
        self.leases.into_iter().for_each(LeaseSet::spoil);
    }

    /// The directory (or object, for an empty path) where a path from `base` starts.
    pub fn start(&self, base: Base) -> Result<u64> {
        start(self.s, base)
    }

    /// Walks `path` from `base`.
    pub fn walk<'p>(&self, base: Base, path: &'p [u8], end: End) -> Result<Walked<'p>> {
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
    /// It is to be changed: a value becomes a file.
    pub fn object(&self, base: Base, path: &[u8], flags: u32) -> Result<Found> {
        if is_base(base, path, flags) {
            return Ok(Found {
                ino: self.start(base)?,
                kind: 0,
                inode: 0,
            });
        }
        for _ in 0..RETRIES {
            let at = self.walk(base, path, end_of(flags))?;
            if at.value.is_none() {
                return at.object();
            }
            if let Some(found) = opened::promote(self.s, at.dir, at.name())? {
                return Ok(found);
            }
        }
        Err(Error::Busy)
    }

    /// Attributes of the object that `path` leads to.
    pub fn attributes(&self, base: Base, path: &[u8], flags: u32) -> Result<Attrs> {
        if is_base(base, path, flags) {
            let start = self.start(base)?;
            self.lease(start, 0);
            return Ok(attributes(self.s, start, 0)?.1);
        }
        for _ in 0..RETRIES {
            let at = self.walk(base, path, end_of(flags))?;
            if let Some(meta) = &at.value {
                let dir = attributes(self.s, at.dir, at.hint)?.1;
                return Ok(files::attributes(&dir, meta));
            }
            let found = at.object()?;
            self.lease(found.ino, found.inode);
            match glance(self.s, &found) {
                // Its name went while we looked.
                Err(Error::NotFound) => {}
                done => return done,
            }
        }
        Err(Error::NotFound)
    }
}

/// See `Walk::start`.
pub(crate) fn start(s: &Session, base: Base) -> Result<u64> {
    match base {
        Base::Root => Ok(ROOT),
        Base::Cwd => match s.directory_slot()?.cwd.load(Relaxed) {
            0 => Err(Error::NotFound),
            ino => Ok(ino),
        },
        Base::Ofd(ofd) => Ok(s.ofd(ofd.raw())?.ino.load(Relaxed)),
        Base::Node(ino) if value::is_number(ino) => Err(Error::NotFound),
        Base::Node(ino) => Ok(ino),
    }
}

/// Whether what is meant is the base itself.
fn is_base(base: Base, path: &[u8], flags: u32) -> bool {
    path.is_empty() && (flags & AT_EMPTY_PATH != 0 || matches!(base, Base::Node(_)))
}

/// Whether a symbolic link at the end is followed.
fn end_of(flags: u32) -> End {
    match flags & AT_SYMLINK_NOFOLLOW {
        0 => End::Follow,
        _ => End::NoFollow,
    }
}

/// The entry of `ino`, which was last seen at `hint` (0: unknown).
#[inline]
pub(crate) fn entry(s: &Session, ino: u64, hint: u32) -> Result<InodeRef<'_>> {
    match inode_table::by_link(s, s.seen.or(hint, ino), ino) {
        Some(inode) => Ok(inode),
        None => inode_table::get(s, ino),
    }
}

/// The entry and attributes of `ino`, which was last seen at `hint` (0: unknown).
#[inline]
pub(crate) fn attributes(s: &Session, ino: u64, hint: u32) -> Result<(InodeRef<'_>, Attrs)> {
    if let Some(inode) = inode_table::by_link(s, s.seen.or(hint, ino), ino)
        && let Ok(a) = inode_table::attrs(s, &inode)
    {
        return Ok((inode, a));
    }
    attributes_slow(s, ino)
}

/// The attributes of what a name leads to, by who needs nothing else of it.
#[inline]
fn glance(s: &Session, found: &Found) -> Result<Attrs> {
    if let Some(inode) = inode_table::by_link(s, s.seen.or(found.inode, found.ino), found.ino)
        && let Ok(a) = inode_table::attrs(s, &inode)
    {
        return Ok(a);
    }
    match inode_table::uncached(s, found.ino)? {
        Some(a) => Ok(a),
        None => attributes_slow(s, found.ino).map(|(_, a)| a),
    }
}

/// As `attributes` for who passes through.
#[inline]
pub(crate) fn passage(s: &Session, ino: u64, hint: u32) -> Result<(InodeRef<'_>, Passage)> {
    if let Some(inode) = inode_table::by_link(s, s.seen.or(hint, ino), ino)
        && let Ok(passage) = inode_table::passage(s, &inode)
    {
        return Ok((inode, passage));
    }
    let (inode, a) = attributes_slow(s, ino)?;
    let (rights, parent) = (a.rights(), a.parent);
    Ok((inode, Passage { rights, parent }))
}

#[cold]
fn attributes_slow(s: &Session, ino: u64) -> Result<(InodeRef<'_>, Attrs)> {
    for _ in 0..RETRIES {
        let inode = inode_table::get(s, ino)?;
        match inode_table::attrs(s, &inode) {
            Err(Error::Stale) => {}
            Ok(a) => {
                if perm::is_dir(&a) {
                    s.seen.note(ino, inode.link);
                }
                return Ok((inode, a));
            }
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
    fn run<'p>(&mut self, path: &'p [u8], end: End) -> Result<Walked<'p>> {
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
                    if let Some(ended) = self.step(&here, text, &part, end)? {
                        let name = match self.links {
                            0 => Cow::Borrowed(&path[part.start..part.end]),
                            _ => Cow::Owned(name.to_vec()),
                        };
                        return Ok(self.ended(name, part.slash, ended));
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
    ) -> Result<Option<Ended>> {
        let name = &text[part.start..part.end];
        if name.len() > NAME_MAX {
            return Err(Error::NameTooLong);
        }
        if part.last && part.slash && self.walk.creates {
            return Err(Error::IsDirectory);
        }
        if part.last && end == End::Parent {
            return Ok(Some(Ended::default()));
        }
        let found = match files::lookup(self.walk.s, here, name)? {
            Named::File(found) => Some(found),
            Named::Nothing => None,
            Named::Value(_) if !part.last || part.slash => return Err(Error::NotDirectory),
            Named::Value(meta) => {
                self.walk.spoil();
                let (ino, kind, inode) = (meta.ino, files::KIND_FILE, 0);
                let found = Some(Found { ino, kind, inode });
                let value = Some(meta);
                return Ok(Some(Ended { found, value }));
            }
        };
        let Some(found) = found else {
            return match part.last {
                true => Ok(Some(Ended::default())),
                false => Err(Error::NotFound),
            };
        };
        let found = self.located(here, name, found);
        if found.kind == KIND_SYMLINK && (!part.last || end == End::Follow || part.slash) {
            if part.last {
                self.may_follow(here, &found)?;
            }
            return self.follow(&found, &text[part.end..]).map(|()| None);
        }
        if part.last {
            if part.slash && found.kind != KIND_DIR {
                return Err(Error::NotDirectory);
            }
            let (found, value) = (Some(found), None);
            return Ok(Some(Ended { found, value }));
        }
        if found.kind != KIND_DIR {
            return Err(Error::NotDirectory);
        }
        (self.dir, self.hint) = (found.ino, found.inode);
        Ok(None)
    }

    /// With the place of its inode's entry, if there is one; the name keeps it for the next walk.
    #[inline]
    fn located(&self, here: &InodeRef, name: &[u8], found: Found) -> Found {
        let s = self.walk.s;
        if inode_table::by_link(s, found.inode, found.ino).is_some() {
            return found;
        }
        let Some(entry) = inode_table::find(s, found.ino) else {
            return found;
        };
        let inode = entry.link;
        dentry_table::locate(s, here, name, inode);
        Found { inode, ..found }
    }

    fn ended<'p>(&self, name: Cow<'p, [u8]>, slash: bool, ended: Ended) -> Walked<'p> {
        Walked {
            dir: self.dir,
            hint: self.hint,
            last: Last::Name,
            name,
            slash,
            found: ended.found,
            value: ended.value,
        }
    }

    fn at_directory<'p>(&self, last: Last) -> Walked<'p> {
        Walked {
            dir: self.dir,
            hint: self.hint,
            last,
            name: Cow::Borrowed(b""),
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
    fn enter_directory(&self) -> Result<(InodeRef<'a>, Passage)> {
        self.walk.lease(self.dir, self.hint);
        let (inode, dir) = passage(self.walk.s, self.dir, self.hint)?;
        if perm::file_type(dir.rights.mode) != S_IFDIR {
            return Err(Error::NotDirectory);
        }
        perm::check_rights(self.walk.s, self.walk.c, &dir.rights, X_OK)?;
        Ok((inode, dir))
    }

    /// `..`; `rest` is what follows it.
    fn up(&mut self, dir: &Passage, rest: &[u8]) -> Result<()> {
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

    /// Whether a link at the end may be followed: in a directory where everybody may make one, only
    /// the caller's own, or that of the directory's owner (fs.protected_symlinks).
    #[cold]
    fn may_follow(&self, here: &InodeRef, link: &Found) -> Result<()> {
        let s = self.walk.s;
        self.walk.spoil();
        if s.header().protected.load(Relaxed) & PROTECTED_SYMLINKS == 0 {
            return Ok(());
        }
        let dir = inode_table::attrs(s, here)?;
        if dir.mode & (S_ISVTX | S_IWOTH) != S_ISVTX | S_IWOTH {
            return Ok(());
        }
        let (_, link) = attributes(s, link.ino, link.inode)?;
        match link.uid == self.walk.c.uid || link.uid == dir.uid {
            true => Ok(()),
            false => Err(Error::Denied),
        }
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
