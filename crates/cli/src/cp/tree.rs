//! Copying what a name stands for, with all below it.
//!
//! Invariants: below what the command line names, no link is followed, on either side; what fails
//! is said, and the rest is copied; a directory gets its attributes after all that is in it.

use super::content::Paths;
use super::fault::{Fault, Result};
use super::fresh::{self, Fresh, Named};
use super::keys::Sink;
use super::node::{Kind, Meta, Node};
use super::{Copier, attributes};
use crate::failure::Failure;
use crate::kv::escape;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::rc::Rc;

/// Files of which so many at most are copied are synced one by one.
pub const FEW: u64 = 16;
const PERMISSIONS: u32 = 0o777;
const STICKY: u32 = 0o1000;
/// What a directory needs while it is filled.
const FILLING: u32 = 0o700;

/// A name to copy.
#[derive(Clone)]
pub struct Source {
    pub dir: Rc<Node>,
    pub name: Vec<u8>,
    /// For messages.
    pub shown: Vec<u8>,
    /// Which pool or snapshot, or the host.
    pub place: usize,
    /// If it is a link, what it leads to is meant.
    pub follow: bool,
}

impl Source {
    fn below(&self, dir: &Rc<Node>, name: Vec<u8>) -> Source {
        Source {
            dir: dir.clone(),
            shown: joined(&self.shown, &name),
            name,
            place: self.place,
            follow: false,
        }
    }
}

/// A directory on the way down, of which some entries are copied.
struct Level {
    from: Source,
    node: Rc<Node>,
    meta: Meta,
    to: Into,
    is_new: bool,
    entries: std::vec::IntoIter<Vec<u8>>,
}

/// A directory that gets something.
pub struct Into {
    pub node: Node,
    pub shown: Vec<u8>,
    /// From the directory in which everything goes.
    pub path: Vec<u8>,
    /// It is the directory of a keyspace.
    pub sink: Option<Sink>,
    /// What is made in it begins with an access control list.
    pub inherits: bool,
}

impl Into {
    pub fn new(node: Node, shown: Vec<u8>, path: Vec<u8>, name: &[u8]) -> Result<Into> {
        let keyspace = match &node {
            Node::Pool(dir) => dir.keyspace(name)?,
            Node::Host(_) => None,
        };
        Ok(Into {
            inherits: attributes::inherits(&node),
            node,
            shown,
            path,
            sink: keyspace.map(Sink::new),
        })
    }
}

/// A path and a name below it, as they are shown.
pub fn joined(path: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = match path.last() {
        None | Some(b'/' | b':') => b"",
        Some(_) => b"/",
    };
    [path, slash, name].concat()
}

impl Copier<'_> {
    /// Copies what is named, with all below it, as `name`; what fails is said.
    pub fn copy(&mut self, from: &Source, to: &mut Into, name: &[u8]) {
        let mut levels: Vec<Level> = self.entry(from, to, name).into_iter().collect();
        // However deep it goes, the stack of this process does not.
        while let Some(mut level) = levels.pop() {
            match level.entries.next() {
                Some(name) => {
                    let from = level.from.below(&level.node, name);
                    let below = self.entry(&from, &mut level.to, &from.name);
                    levels.push(level);
                    levels.extend(below);
                }
                None => self.leave(level),
            }
        }
    }

    /// Copies one entry, or goes into it.
    fn entry(&mut self, from: &Source, to: &mut Into, name: &[u8]) -> Option<Level> {
        let bytes = self.done.bytes;
        let done = from.dir.stat_at(&from.name, from.follow);
        let done = done.map_err(|e| e.of(&from.shown));
        let done = done.and_then(|meta| match meta.kind {
            Kind::Directory => self.directory(from, &meta, to, name).map(Some),
            Kind::File => self.file(from, &meta, to, name).map(|()| None),
            Kind::Special if self.is_stream(from) => {
                self.file(from, &meta, to, name).map(|()| None)
            }
            Kind::Link | Kind::Special => self.other(from, &meta, to, name).map(|()| None),
        });
        done.unwrap_or_else(|failure| {
            self.failed(failure);
            // What is not there whole does not count.
            self.done.bytes = bytes;
            None
        })
    }

    /// What can only be read to its end, and was asked for.
    fn is_stream(&self, from: &Source) -> bool {
        from.follow && matches!(*from.dir, Node::Host(_))
    }

    /// What has the name that something is to get. `None`: it stays.
    fn there(
        &mut self,
        (from, meta): (&Source, &Meta),
        to: &Into,
        name: &[u8],
    ) -> Result<Option<Option<Meta>>, Failure> {
        let shown = joined(&to.shown, name);
        let there = to.node.find(name).map_err(|e| e.of(&shown))?;
        let Some(found) = there else {
            return Ok(Some(None));
        };
        if from.dir.is_beside(&to.node) && meta.identity() == found.identity() {
            let from = escape::shown(&from.shown);
            return Err(Fault::new(format!("it is the same file as {from}")).of(&shown));
        }
        if found.kind == Kind::Directory {
            return Err(in_the_way().of(&shown));
        }
        if self.args.no_clobber {
            self.done.skipped += 1;
            return Ok(None);
        }
        Ok(Some(there))
    }

    fn file(
        &mut self,
        from: &Source,
        meta: &Meta,
        to: &mut Into,
        name: &[u8],
    ) -> Result<(), Failure> {
        let Some(there) = self.there((from, meta), to, name)? else {
            return Ok(());
        };
        let shown = joined(&to.shown, name);
        let paths = Paths {
            from: &from.shown,
            to: &shown,
        };
        let several = self.args.archive && meta.links > 1;
        let identity = (from.place, meta.file_system, meta.ino);
        if let Some(first) = self.links.get(&identity).filter(|_| several).cloned() {
            return self.link(&first, to, name).map_err(|e| e.of(&shown));
        }
        let mut flags = OFlags::RDONLY | OFlags::NOCTTY;
        if !from.follow {
            flags |= OFlags::NOFOLLOW | OFlags::NONBLOCK;
        }
        let file = paths.from(from.dir.open(&from.name, flags, 0))?;
        let to_value = to.sink.is_some() && !self.args.archive;
        if to_value {
            return self.file_to_value((&file, meta), to, name, paths);
        }
        let fresh = paths.to(Fresh::make(&to.node, meta.mode & PERMISSIONS))?;
        match meta.kind {
            Kind::File => self.content((&file, meta), &fresh.node, paths)?,
            _ => {
                let mut at = 0;
                let put = |part: &[u8]| {
                    let done = paths.to(fresh.node.write_all_at(part, at));
                    at += part.len() as u64;
                    done
                };
                self.stream(&mut super::content::Reader::new(&file), put, paths.from)?;
            }
        }
        match (self.args.archive, &there) {
            (true, _) => {
                let lost = attributes::keep((&file, meta), &fresh.node, to.inherits);
                self.lost(paths.to(lost)?, &shown);
            }
            (false, Some(there)) => paths.to(attributes::stay(there, &fresh.node))?,
            (false, None) => {}
        }
        self.finish(fresh, there.is_some(), name, &shown)?;
        if several {
            self.links.insert(identity, joined(&to.path, name));
        }
        Ok(())
    }

    fn lost(&mut self, attributes: Vec<Fault>, shown: &[u8]) {
        for fault in attributes {
            self.failed(fault.of(shown));
        }
    }

    /// A complete file gets its name.
    pub fn finish(
        &mut self,
        fresh: Fresh<'_>,
        replaces: bool,
        name: &[u8],
        shown: &[u8],
    ) -> Result<(), Failure> {
        let settled = self.settle(&fresh.node);
        let replace = replaces || !self.args.no_clobber;
        let named = settled.and_then(|()| fresh.publish(name, replace));
        match named.map_err(|e| e.of(shown))? {
            Named::Done => self.done.files += 1,
            Named::Taken => self.done.skipped += 1,
        }
        Ok(())
    }

    /// The content of few files is durable before their names are.
    pub fn settle(&mut self, file: &Node) -> Result<()> {
        match self.done.files < FEW {
            true => file.sync(),
            false => Ok(()),
        }
    }

    fn link(&mut self, first: &[u8], to: &Into, name: &[u8]) -> Result<()> {
        let Some(base) = &self.base else {
            return Ok(());
        };
        match to.node.link_from(base, first, name) {
            Err(e) if e.is(Errno::EXIST) => {
                let make = |name: &[u8]| to.node.link_from(base, first, name);
                fresh::put(&to.node, name, make, |_| Ok(()))?;
            }
            linked => linked?,
        }
        self.done.links += 1;
        Ok(())
    }

    /// A symbolic link, pipe, socket or device.
    fn other(&mut self, from: &Source, meta: &Meta, to: &Into, name: &[u8]) -> Result<(), Failure> {
        if !self.args.is_recursive() {
            let what = Fault::new("it is neither a file nor a directory");
            return Err(what.fix("give -r to copy it as what it is").of(&from.shown));
        }
        if self.there((from, meta), to, name)?.is_none() {
            return Ok(());
        }
        let shown = joined(&to.shown, name);
        let (dir, archive) = (&to.node, self.args.archive);
        let is_link = meta.kind == Kind::Link;
        let finish = |name: &[u8]| match archive {
            true => attributes::keep_named(meta, dir, name, !is_link),
            false => Ok(()),
        };
        let put = match is_link {
            true => {
                let target = from.dir.readlink(&from.name);
                let target = target.map_err(|e| e.of(&from.shown))?;
                fresh::put(dir, name, |name| dir.symlink(&target, name), finish)
            }
            false => fresh::put(dir, name, |name| dir.mknod(name, meta), finish),
        };
        put.map_err(|e| e.of(&shown))?;
        self.done.others += 1;
        Ok(())
    }
}

/// Directories.
impl Copier<'_> {
    fn directory(
        &mut self,
        from: &Source,
        meta: &Meta,
        to: &mut Into,
        name: &[u8],
    ) -> Result<Level, Failure> {
        if !self.args.is_recursive() {
            let what = Fault::new("it is a directory");
            return Err(what
                .fix("give -r to copy it with all in it")
                .of(&from.shown));
        }
        let node = self.opened(from, meta)?;
        let shown = joined(&to.shown, name);
        let keeps_keys = self.args.keyspace || self.keyspace_of(&node, from)?.is_some();
        let made = self.made(to, name, meta, keeps_keys);
        let (below, is_new) = made.map_err(|e| match e.is(Errno::NOTDIR) || e.is(Errno::LOOP) {
            true => not_a_directory().of(&shown),
            false => e.of(&shown),
        })?;
        let path = joined(&to.path, name);
        let below = Into::new(below, shown.clone(), path, name);
        let mut below = below.map_err(|e| e.of(&shown))?;
        let node = Rc::new(node);
        let entries = self.begin(from, &node, &mut below);
        // What could be done of it is done, and it gets its attributes.
        let entries = entries.unwrap_or_else(|failure| {
            self.failed(failure);
            Vec::new()
        });
        Ok(Level {
            from: from.clone(),
            node,
            meta: *meta,
            to: below,
            is_new,
            entries: entries.into_iter(),
        })
    }

    /// All in it is copied.
    fn leave(&mut self, mut level: Level) {
        let flushed = self.flush(&mut level.to);
        let dressed = self.dressed((&level.node, &level.meta), &level.to, level.is_new);
        let synced = self.sync_mounted(&level.to.node);
        let synced = synced.map_err(|e| e.of(&level.to.shown));
        for failure in [flushed.err(), dressed.err(), synced.err()]
            .into_iter()
            .flatten()
        {
            self.failed(failure);
        }
    }

    /// The host may have mounted another file system there, which is synced on its own.
    fn sync_mounted(&mut self, dir: &Node) -> Result<()> {
        self.goes_below = true;
        let (Node::Host(_), Some(base)) = (dir, &self.base) else {
            return Ok(());
        };
        match dir.stat()?.file_system == base.stat()?.file_system {
            true => Ok(()),
            false => dir.sync_all(),
        }
    }

    fn opened(&self, from: &Source, meta: &Meta) -> Result<Node, Failure> {
        let mut flags = OFlags::RDONLY | OFlags::DIRECTORY;
        if !from.follow {
            flags |= OFlags::NOFOLLOW;
        }
        let here = |e: Fault| e.of(&from.shown);
        let node = from.dir.open(&from.name, flags, 0).map_err(here)?;
        let beside = self.base.as_ref().is_some_and(|base| base.is_beside(&node));
        match beside && self.tops.contains(&meta.identity()) {
            true => Err(here(Fault::new("a directory is not copied into itself"))),
            false => Ok(node),
        }
    }

    fn keyspace_of(
        &self,
        node: &Node,
        from: &Source,
    ) -> Result<Option<holdfast::Keyspace>, Failure> {
        match node {
            Node::Pool(dir) => {
                let found = dir.keyspace(&from.name).map_err(Fault::from);
                found.map_err(|e| e.of(&from.shown))
            }
            Node::Host(_) => Ok(None),
        }
    }

    /// The directory `name`, and whether it was made.
    fn made(
        &mut self,
        to: &Into,
        name: &[u8],
        meta: &Meta,
        keeps_keys: bool,
    ) -> Result<(Node, bool)> {
        let mode = match self.args.archive {
            true => FILLING,
            false => meta.mode & (PERMISSIONS | STICKY) | FILLING,
        };
        let is_new = match to.node.mkdir(name, mode) {
            Ok(()) => true,
            Err(e) if e.is(Errno::EXIST) => false,
            Err(e) => return Err(e),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let node = to.node.open(name, flags, 0)?;
        if is_new {
            self.done.directories += 1;
            if keeps_keys && let Node::Pool(dir) = &node {
                become_keyspace(dir, name)?;
            }
        }
        if to.path.is_empty() {
            self.tops.insert(node.stat()?.identity());
        }
        Ok((node, is_new))
    }

    /// Copies all that is in a directory.
    pub fn fill(&mut self, from: &Source, node: &Rc<Node>, to: &mut Into) -> Result<(), Failure> {
        for name in self.begin(from, node, to)? {
            let from = from.below(node, name);
            self.copy(&from, to, &from.name);
        }
        self.flush(to)
    }

    /// Copies the values of a directory that is a keyspace; what else there is to be copied in it.
    fn begin(
        &mut self,
        from: &Source,
        node: &Node,
        to: &mut Into,
    ) -> Result<Vec<Vec<u8>>, Failure> {
        match self.keyspace_of(node, from)? {
            Some(keyspace) => self.values_of(&keyspace, (node, &from.shown), to),
            None => {
                let entries = node.entries().map_err(|e| e.of(&from.shown))?;
                Ok(entries.into_iter().map(|(_, name)| name).collect())
            }
        }
    }

    /// The attributes of a directory that has all its entries.
    pub fn dressed(
        &mut self,
        (from, meta): (&Node, &Meta),
        to: &Into,
        is_new: bool,
    ) -> Result<(), Failure> {
        let here = |e: Fault| e.of(&to.shown);
        if self.args.archive {
            if is_new && to.inherits {
                attributes::drop_default_list(from, &to.node).map_err(here)?;
            }
            let inherits = is_new && to.inherits;
            let lost = attributes::keep((from, meta), &to.node, inherits);
            self.lost(lost.map_err(here)?, &to.shown);
        } else if is_new && meta.mode & FILLING != FILLING {
            let mode = to.node.stat().map_err(here)?.mode;
            let mode = mode & (meta.mode | !FILLING);
            to.node.chmod(b"", mode).map_err(here)?;
        }
        Ok(())
    }
}

/// Something has the name that a directory is to have.
pub fn not_a_directory() -> Fault {
    Fault::new("it is no directory").fix("choose another name, or remove it")
}

/// A directory has the name that something else is to get.
pub fn in_the_way() -> Fault {
    Fault::new("it is a directory, and not replaced").fix("choose another name, or remove it")
}

/// A new directory becomes a keyspace, if it is in the root, where keyspaces are.
pub fn become_keyspace(dir: &holdfast::Opened, name: &[u8]) -> Result<()> {
    let is_in_root = dir.stat_at(b"..", false)?.ino == dir.stat_at(b"/", false)?.ino;
    if let (true, Ok(name)) = (is_in_root, std::str::from_utf8(name)) {
        dir.pool().keyspace_or_create(name)?;
    }
    Ok(())
}
