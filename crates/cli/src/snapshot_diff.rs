//! `holdfast snapshot diff`: names and keys that differ between two states of a pool.
//!
//! Invariants: only parts of trees that changed are read, but for the names of files that changed
//! and kept their name: those are looked for in all directories. A directory is not said to have
//! changed because names in it did. Times of access do not count.

use crate::failure::{self, Failure, printed};
use crate::json::Json;
use crate::kv::{escape, open_pool};
use crate::states::{Present, Segments, find, remove_left_over};
use holdfast_pmem::Region;
use holdfast_pool::Reader;
use holdfast_pool::layout::inode::InodeRecord;
use holdfast_pool::layout::{
    DIRENTS, EXTENTS, INODES, ROOT_INO, TreeId, VALUES, XATTRS, dirent, extent, ino_key,
    parse_ino_key, value, xattr,
};
use holdfast_pool::snapshot::Snapshot;
use holdfast_pool::tree::{Difference, Differences, Fixed};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;

/// Deeper than any path is.
const DEPTH_MAX: usize = 1 << 14;

/// `snapshot diff`.
pub fn diff(pool: &Path, from: &str, to: Option<&str>, json: bool) -> Result<u8, Failure> {
    let opened = open_pool(pool, None)?;
    remove_left_over(&opened, None);
    let present = match to {
        None => Some(Present::keep(&opened, None)?),
        Some(_) => None,
    };
    let to = to.or(present.as_ref().map(|present| &present.name[..]));
    let segments = Segments::open(pool)?;
    let all = segments.snapshots(pool)?;
    let (_, old) = find(&all, from, pool)?;
    let (_, new) = find(&all, to.unwrap_or_default(), pool)?;
    let held = [
        Some(opened.snapshot(from)?),
        to.map(|to| opened.snapshot(to)).transpose()?,
    ];
    let failed = |e| Failure::new(format!("{}: {e}", pool.display()));
    let changes = changes(&segments.meta, &old, &new).map_err(failed)?;
    drop((held, present));
    write(&changes, json)?;
    Ok(failure::OK)
}

/// What became of a name or a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Added,
    Removed,
    Changed,
    Renamed,
}

impl What {
    fn word(self) -> &'static str {
        match self {
            What::Added => "added",
            What::Removed => "removed",
            What::Changed => "changed",
            What::Renamed => "renamed",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Change {
    /// From the pool's root; that of a key begins with its keyspace's.
    path: Vec<u8>,
    is_key: bool,
    what: What,
    /// The earlier name.
    from: Option<Vec<u8>>,
}

fn write(changes: &[Change], json: bool) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    if json {
        let text = |bytes: &[u8]| Json::Text(escape::shown(bytes));
        let items = changes.iter().map(|change| {
            let kind = if change.is_key { "key" } else { "name" };
            let mut fields = vec![
                ("change", Json::Text(change.what.word().into())),
                ("kind", Json::Text(kind.into())),
                ("path", text(&change.path)),
            ];
            fields.extend(change.from.iter().map(|from| ("from", text(from))));
            Json::Object(fields)
        });
        return printed(writeln!(out, "{}", Json::List(items.collect()).render()));
    }
    printed(changes.iter().try_for_each(|change| {
        let (word, path) = (change.what.word(), escape::shown(&change.path));
        let kind = if change.is_key { " (key)" } else { "" };
        match &change.from {
            Some(from) => writeln!(out, "{word:<8} {} -> {path}{kind}", escape::shown(from)),
            None => writeln!(out, "{word:<8} {path}{kind}"),
        }
    }))
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    dir: u64,
    name: Vec<u8>,
}

type Read<T> = holdfast_pool::Result<T>;

/// Both states.
struct Diff<'a> {
    meta: &'a Region,
    old: Fixed,
    new: Fixed,
}

fn changes(meta: &Region, old: &Snapshot, new: &Snapshot) -> Read<Vec<Change>> {
    let diff = Diff {
        meta,
        old: old.fixed(),
        new: new.fixed(),
    };
    let mut all = diff.names()?;
    diff.contents(&mut all)?;
    diff.keys(&mut all)?;
    all.sort();
    Ok(all)
}

impl Diff<'_> {
    fn each(&self, tree: TreeId, mut see: impl FnMut(Difference<'_>) -> Read<()>) -> Read<()> {
        let mut differences = Differences::begin(self.meta, tree, Some(&self.old), &self.new)?;
        while let Some(difference) = differences.next_one()? {
            see(difference)?;
        }
        Ok(())
    }

    /// Names that came, went, or lead from elsewhere to the same object.
    fn names(&self) -> Read<Vec<Change>> {
        let (mut gone, mut come) = (BTreeMap::new(), Vec::new());
        self.each(DIRENTS, |Difference { key, old, new }| {
            let (dir, _) = dirent::parse_key(key)?;
            let name = |bytes| -> Read<(u64, Name)> {
                let entry = dirent::Dirent::decode(bytes)?;
                let name = entry.name.to_vec();
                Ok((entry.ino, Name { dir, name }))
            };
            let (old, new) = (old.map(name).transpose()?, new.map(name).transpose()?);
            if let Some((ino, name)) = old {
                gone.entry(ino).or_insert_with(Vec::new).push(name);
            }
            come.extend(new);
            Ok(())
        })?;
        let mut all = Vec::new();
        for (ino, name) in come {
            let from = gone.get_mut(&ino).and_then(Vec::pop);
            let from = from.map(|name| self.path(&self.old, &name)).transpose()?;
            let what = if from.is_some() {
                What::Renamed
            } else {
                What::Added
            };
            let path = self.path(&self.new, &name)?;
            let is_key = false;
            all.push(Change {
                path,
                is_key,
                what,
                from,
            });
        }
        for name in gone.into_values().flatten() {
            let (path, from) = (self.path(&self.old, &name)?, None);
            let (what, is_key) = (What::Removed, false);
            all.push(Change {
                path,
                is_key,
                what,
                from,
            });
        }
        Ok(all)
    }

    /// Objects that both states have, with other content or attributes.
    fn contents(&self, all: &mut Vec<Change>) -> Read<()> {
        let mut changed = BTreeSet::new();
        self.each(INODES, |Difference { key, old, new }| {
            if let (Some(old), Some(new)) = (old, new) {
                let (old, new) = (InodeRecord::decode(old)?, InodeRecord::decode(new)?);
                if differ(old, new) {
                    changed.insert(parse_ino_key(key)?);
                }
            }
            Ok(())
        })?;
        self.each(XATTRS, |difference| {
            changed.insert(xattr::parse_key(difference.key)?.0);
            Ok(())
        })?;
        self.each(EXTENTS, |difference| {
            changed.insert(extent::parse_key(difference.key)?.0);
            Ok(())
        })?;
        let is_in = |state: &Fixed, ino: u64| {
            let found = Reader::of_snapshot(self.meta, state).get(INODES, &ino_key(ino), &mut []);
            found.map(|found| found.is_some())
        };
        let mut both = BTreeSet::new();
        for ino in changed {
            if is_in(&self.old, ino)? && is_in(&self.new, ino)? {
                both.insert(ino);
            }
        }
        for path in self.paths_of(&both)? {
            let (what, is_key, from) = (What::Changed, false, None);
            all.push(Change {
                path,
                is_key,
                what,
                from,
            });
        }
        Ok(())
    }

    /// Keys whose values differ.
    fn keys(&self, all: &mut Vec<Change>) -> Read<()> {
        let mut found = Vec::new();
        self.each(VALUES, |Difference { key, old, new }| {
            if value::is_in_index(key) {
                return Ok(());
            }
            let (keyspace, key) = value::parse_key(key)?;
            let what = match (old, new) {
                (None, _) => What::Added,
                (_, None) => What::Removed,
                _ => What::Changed,
            };
            found.push((keyspace, key.to_vec(), what));
            Ok(())
        })?;
        for (keyspace, key, what) in found {
            let state = if what == What::Removed {
                &self.old
            } else {
                &self.new
            };
            let mut path = self.directory(state, keyspace)?;
            path.push(b'/');
            path.extend(key);
            let (is_key, from) = (true, None);
            all.push(Change {
                path,
                is_key,
                what,
                from,
            });
        }
        Ok(())
    }

    fn path(&self, state: &Fixed, name: &Name) -> Read<Vec<u8>> {
        let mut path = self.directory(state, name.dir)?;
        path.push(b'/');
        path.extend(&name.name);
        Ok(path)
    }

    /// The path of a directory, without a slash at its end.
    fn directory(&self, state: &Fixed, ino: u64) -> Read<Vec<u8>> {
        let reader = Reader::of_snapshot(self.meta, state);
        let (mut names, mut at) = (Vec::new(), ino);
        for _ in 0..DEPTH_MAX {
            let mut bytes = [0; 2048];
            let Some(len) = reader.get(INODES, &ino_key(at), &mut bytes)? else {
                break;
            };
            let record = InodeRecord::decode(&bytes[..len.min(bytes.len())])?;
            if at == ROOT_INO {
                break;
            }
            names.push(record.tail.to_vec());
            at = record.parent;
        }
        let names = names.iter().rev();
        Ok(names.flat_map(|name| [b"/", &name[..]].concat()).collect())
    }

    /// All names of these objects in the new state.
    fn paths_of(&self, objects: &BTreeSet<u64>) -> Read<Vec<Vec<u8>>> {
        let (mut names, mut bad) = (Vec::new(), None);
        if objects.is_empty() {
            return Ok(Vec::new());
        }
        let see = |key: &[u8], bytes: &[u8]| {
            let read = dirent::parse_key(key).and_then(|(dir, _)| {
                let entry = dirent::Dirent::decode(bytes)?;
                if objects.contains(&entry.ino) {
                    let name = entry.name.to_vec();
                    names.push(Name { dir, name });
                }
                Ok(())
            });
            match read {
                Ok(()) => ControlFlow::Continue(()),
                Err(e) => {
                    bad = Some(e);
                    ControlFlow::Break(())
                }
            }
        };
        Reader::of_snapshot(self.meta, &self.new).scan(DIRENTS, &[], None, see)?;
        if let Some(bad) = bad {
            return Err(bad.into());
        }
        let mut paths = Vec::new();
        if objects.contains(&ROOT_INO) {
            paths.push(b"/".to_vec());
        }
        for name in &names {
            paths.push(self.path(&self.new, name)?);
        }
        Ok(paths)
    }
}

/// Whether more than times of access differ, or, of a directory, more than what its names do to it.
fn differ(old: InodeRecord<'_>, new: InodeRecord<'_>) -> bool {
    let core = |mut record: InodeRecord<'_>| {
        record.atime = 0;
        if record.is_dir() {
            (record.mtime, record.ctime) = (0, 0);
            (record.nlink, record.entries, record.parent) = (0, 0, 0);
            record.tail = &[];
        }
        // A name that came or went is told as such.
        (record.ctime, record.nlink) = (0, 0);
        let mut bytes = [0; 2048];
        let len = record.encode(&mut bytes).unwrap_or(0);
        bytes[..len].to_vec()
    };
    core(old) != core(new)
}
