//! What differs between two states of a tree.
//!
//! What always holds here:
//! - Both states are walked in the order of their keys, side by side. A subtree that both reach by
//!   the same link has the same entries in both, so it is passed over in both unread: the work is
//!   in proportion to what changed.
//! - A link stands for its node and for how many entries were appended to it. So a leaf that has
//!   more of them in one state is compared entry by entry.
//! - Each node is verified when it is read; each step down goes one level down, so no walk is
//!   endless.

use super::page::Page;
use super::reader::{Fixed, Trust, copy_mapped};
use super::walk::damaged;
use crate::error::{Error, Result};
use crate::format::PAGE;
use crate::format::node::{self, HEIGHT_MAX, Header, KeyBuf, Place};
use crate::layout::TreeId;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::ops::Range;
use holdfast_pmem::Region;

/// An entry that is not the same in both states; at least one of them has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference<'a> {
    pub key: &'a [u8],
    pub old: Option<&'a [u8]>,
    pub new: Option<&'a [u8]>,
}

/// Both states of one tree, side by side.
pub struct Differences<'a> {
    old: Walk<'a>,
    new: Walk<'a>,
    /// Which of them goes on when the next difference is asked for.
    done: (bool, bool),
}

impl<'a> Differences<'a> {
    /// From `old`, nothing if that is `None`, to `new`.
    pub fn begin(
        meta: &'a Region,
        tree: TreeId,
        old: Option<&Fixed>,
        new: &Fixed,
    ) -> Result<Differences<'a>> {
        Ok(Differences {
            old: Walk::begin(meta, tree, old)?,
            new: Walk::begin(meta, tree, Some(new))?,
            done: (false, false),
        })
    }

    /// The next difference, in the order of keys.
    pub fn next_one(&mut self) -> Result<Option<Difference<'_>>> {
        self.go_on()?;
        loop {
            match (self.old.at, self.new.at) {
                (At::End, At::End) => return Ok(None),
                (At::Subtree(a), At::Subtree(b)) if a == b => {
                    self.done = (true, true);
                    self.go_on()?;
                }
                (At::Subtree(_) | At::End, At::Subtree(_) | At::End) => self.descend()?,
                (At::Subtree(_), At::Entry) if !self.new.is_before(&self.old) => {
                    self.old.down()?;
                }
                (At::Entry, At::Subtree(_)) if !self.old.is_before(&self.new) => {
                    self.new.down()?;
                }
                _ => {
                    self.done = self.which();
                    if self.done != (true, true) || self.old.value() != self.new.value() {
                        return Ok(Some(self.difference()));
                    }
                    self.go_on()?;
                }
            }
        }
    }

    fn go_on(&mut self) -> Result<()> {
        let (old, new) = core::mem::take(&mut self.done);
        if old {
            self.old.pass()?;
        }
        if new {
            self.new.pass()?;
        }
        Ok(())
    }

    /// Goes down where the keys begin lower, or else where the subtree is higher.
    fn descend(&mut self) -> Result<()> {
        let (At::Subtree(old), At::Subtree(new)) = (self.old.at, self.new.at) else {
            return match self.old.at {
                At::Subtree(_) => self.old.down(),
                _ => self.new.down(),
            };
        };
        let order = self.old.key.as_slice().cmp(self.new.key.as_slice());
        match order.then(new.level.cmp(&old.level)) {
            Ordering::Greater => self.new.down(),
            Ordering::Less | Ordering::Equal => self.old.down(),
        }
    }

    /// Which state has the lower entry, or both; what is not an entry begins higher.
    fn which(&self) -> (bool, bool) {
        match (self.old.at, self.new.at) {
            (At::Entry, At::Entry) => {
                let order = self.old.key.as_slice().cmp(self.new.key.as_slice());
                (order.is_le(), order.is_ge())
            }
            (At::Entry, _) => (true, false),
            _ => (false, true),
        }
    }

    fn difference(&self) -> Difference<'_> {
        let (old, new) = self.done;
        let from = if old { &self.old } else { &self.new };
        Difference {
            key: from.key.as_slice(),
            old: old.then(|| self.old.value()),
            new: new.then(|| self.new.value()),
        }
    }
}

/// A subtree that was not looked into.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Subtree {
    link: u64,
    level: u8,
}

/// What is next in a walk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Subtree(Subtree),
    Entry,
    End,
}

/// A node on the way, and the number of what is next in it.
struct Level {
    page: Box<Page>,
    header: Header,
    next: usize,
    /// No key in it is lower.
    low: Vec<u8>,
}

/// One state, from the lowest key on.
struct Walk<'a> {
    meta: &'a Region,
    tree: TreeId,
    seq: u64,
    levels: Vec<Level>,
    at: At,
    /// Of the entry that is next; or no key in the subtree that is next is lower.
    key: KeyBuf,
    /// Where the entry's value is in its leaf.
    value: Range<usize>,
}

impl<'a> Walk<'a> {
    fn begin(meta: &'a Region, tree: TreeId, state: Option<&Fixed>) -> Result<Walk<'a>> {
        let root = state.and_then(|s| s.roots.get(usize::from(tree)).copied());
        let root = root.unwrap_or_default();
        if root.height > HEIGHT_MAX {
            let (what, page) = ("height of a tree", root.addr);
            return Err(Error::Damaged { what, page });
        }
        let subtree = |level| {
            At::Subtree(Subtree {
                link: root.addr,
                level,
            })
        };
        Ok(Walk {
            meta,
            tree,
            seq: state.map_or(0, |s| s.seq),
            levels: Vec::new(),
            at: root.height.checked_sub(1).map_or(At::End, subtree),
            key: KeyBuf::default(),
            value: 0..0,
        })
    }

    /// Whether the entry that is next lies before all that is left of `other`.
    fn is_before(&self, other: &Walk<'_>) -> bool {
        self.key.as_slice() < other.key.as_slice()
    }

    fn value(&self) -> &[u8] {
        let leaf = self.levels.last();
        leaf.and_then(|leaf| leaf.page.get(self.value.clone()))
            .unwrap_or_default()
    }

    /// Into the subtree that is next.
    fn down(&mut self) -> Result<()> {
        let At::Subtree(Subtree { link, level }) = self.at else {
            return Ok(());
        };
        let mut page: Box<Page> = Box::new([0; PAGE]);
        let place = Place::of_link(link, self.tree, level, self.seq);
        let header = copy_mapped(self.meta, &place, Trust::Verified, &mut page)?;
        self.levels.push(Level {
            page,
            header,
            next: 0,
            low: self.key.as_slice().to_vec(),
        });
        self.settle()
    }

    /// Past the entry or the subtree that is next.
    fn pass(&mut self) -> Result<()> {
        match self.levels.last_mut() {
            Some(level) => level.next += 1,
            None => {
                self.at = At::End;
                return Ok(());
            }
        }
        self.settle()
    }

    /// Finds out what is next.
    fn settle(&mut self) -> Result<()> {
        while let Some(top) = self.levels.last() {
            if top.next < top.header.count {
                return self.look();
            }
            self.levels.pop();
            if let Some(above) = self.levels.last_mut() {
                above.next += 1;
            }
        }
        self.at = At::End;
        Ok(())
    }

    fn look(&mut self) -> Result<()> {
        let Some(top) = self.levels.last() else {
            return Ok(());
        };
        let (page, h, i) = (&*top.page, &top.header, top.next);
        if h.level == 0 {
            let cell = node::cell(page, h, i).map_err(damaged(0))?;
            self.key.load(page, h, i).map_err(damaged(0))?;
            self.value = cell.value..cell.value + cell.value_len;
            self.at = At::Entry;
            return Ok(());
        }
        // The first child has no key of its own.
        match i {
            0 => self.key.set(&top.low),
            i => self.key.load(page, h, i).map_err(damaged(0))?,
        }
        self.at = At::Subtree(Subtree {
            link: node::child(page, h, i),
            level: h.level - 1,
        });
        Ok(())
    }
}
