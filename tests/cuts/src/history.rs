//! What a workload did and what was acknowledged, each with its position in the device's log.
//!
//! An acknowledgement at position `p` counts for cuts at `p` and later: everything that it rests
//! on was logged before it came. What was begun at `p` can show in cuts at `p` and later only.

use crate::disk::Position;
use std::collections::BTreeMap;

/// When something was begun, and when its acknowledgement came.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub begun: Position,
    pub done: Option<Position>,
}

impl Span {
    pub fn begun_by(&self, cut: Position) -> bool {
        self.begun <= cut
    }

    pub fn done_by(&self, cut: Position) -> bool {
        self.done.is_some_and(|done| done <= cut)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Write { at: u64, len: u64 },
    Truncate { len: u64 },
}

/// One change of a file's content. Its version is its number among the file's changes.
#[derive(Clone, Debug)]
pub struct Op {
    pub change: Change,
    pub span: Span,
    /// This change alone is durable once it is acknowledged (O_SYNC and its like).
    pub alone: bool,
    /// Which part of the workload made it.
    pub passage: &'static str,
}

/// A file was cut to nothing, written anew and closed, all without a sync.
#[derive(Clone, Copy, Debug)]
pub struct Rewrite {
    /// The number of the change that cuts; the next one writes.
    pub op: usize,
    /// In pieces of so many bytes.
    pub chunk: u64,
    pub span: Span,
}

/// The acknowledgement of a sync: the first `covers` changes are durable.
#[derive(Clone, Debug)]
pub struct Sync {
    pub at: Position,
    pub covers: usize,
    /// Which call, by whom.
    pub how: String,
}

/// One file from its creation on, whatever its names.
#[derive(Clone, Debug, Default)]
pub struct File {
    pub id: u32,
    pub ops: Vec<Op>,
    pub syncs: Vec<Sync>,
    pub rewrites: Vec<Rewrite>,
}

impl File {
    /// The size after the first `count` changes.
    pub fn size_after(&self, count: usize) -> u64 {
        let step = |size: u64, op: &Op| match op.change {
            Change::Write { at, len } => size.max(at + len),
            Change::Truncate { len } => len,
        };
        self.ops[..count].iter().fold(0, step)
    }

    pub fn size(&self) -> u64 {
        self.size_after(self.ops.len())
    }

    /// How many changes may be seen after this cut.
    pub fn begun(&self, cut: Position) -> usize {
        self.ops
            .iter()
            .take_while(|op| op.span.begun_by(cut))
            .count()
    }

    pub fn done(&self, cut: Position) -> usize {
        self.ops
            .iter()
            .take_while(|op| op.span.done_by(cut))
            .count()
    }

    /// Whether everything that was done is covered by a sync.
    pub fn is_synced(&self) -> bool {
        let covered = self.syncs.iter().map(|sync| sync.covers).max();
        covered.unwrap_or(0) == self.ops.len()
    }
}

#[derive(Clone, Debug)]
pub enum Naming {
    Create {
        name: String,
        id: u32,
    },
    /// `over`: the file whose name it took, and how many changes the new one had had.
    Rename {
        from: String,
        to: String,
        over: bool,
        ops: usize,
    },
    Unlink {
        name: String,
    },
}

impl Naming {
    fn apply(&self, names: &mut Names) {
        match self {
            Naming::Create { name, id } => {
                names.insert(name.clone(), *id);
            }
            Naming::Rename { from, to, .. } => {
                if let Some(id) = names.remove(from) {
                    names.insert(to.clone(), id);
                }
            }
            Naming::Unlink { name } => {
                names.remove(name);
            }
        }
    }
}

/// One change of names.
#[derive(Clone, Debug)]
pub struct Event {
    pub naming: Naming,
    pub span: Span,
}

/// Names and the files that they stand for.
pub type Names = BTreeMap<String, u32>;

/// Keyspace and key; version and length, None if it was erased.
pub type KeyChange = (String, u32, Option<(u32, usize)>);

/// One commit of changes of keys: all or nothing.
#[derive(Clone, Debug)]
pub struct Commit {
    pub changes: Vec<KeyChange>,
    pub durable: bool,
    pub span: Span,
}

/// A snapshot, and what it has of everything.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub name: String,
    pub span: Span,
    pub events: usize,
    pub commits: usize,
}

/// A whole run.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub files: BTreeMap<u32, File>,
    pub events: Vec<Event>,
    /// The first `usize` changes of names are durable from the position on.
    pub name_syncs: Vec<(Position, usize)>,
    pub commits: Vec<Commit>,
    pub snapshots: Vec<Snapshot>,
}

impl History {
    /// The names after the first `count` changes of names.
    pub fn names_after(&self, count: usize) -> Names {
        let mut names = Names::new();
        for event in &self.events[..count] {
            event.naming.apply(&mut names);
        }
        names
    }

    pub fn names(&self) -> Names {
        self.names_after(self.events.len())
    }

    /// How many changes of `id` were done before a rename that is among the first `count` changes
    /// of names put it in the place of another file: whoever sees it there sees these.
    pub fn whole_since_rename(&self, id: u32, count: usize) -> usize {
        let mut most = 0;
        let mut names = Names::new();
        for event in &self.events[..count] {
            if let Naming::Rename {
                from,
                over: true,
                ops,
                ..
            } = &event.naming
                && names.get(from) == Some(&id)
            {
                most = most.max(*ops);
            }
            event.naming.apply(&mut names);
        }
        most
    }

    /// The number of the last change of names that concerns this file, plus one.
    pub fn last_event_of(&self, id: u32) -> usize {
        let mut last = 0;
        let mut names = Names::new();
        for (number, event) in self.events.iter().enumerate() {
            let concerned = match &event.naming {
                Naming::Create { id, .. } => Some(*id),
                Naming::Rename { from: name, .. } | Naming::Unlink { name } => {
                    names.get(name).copied()
                }
            };
            if concerned == Some(id) {
                last = number + 1;
            }
            event.naming.apply(&mut names);
        }
        last
    }
}
