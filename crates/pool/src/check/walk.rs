//! Every node and entry of a tree, in key order.
//!
//! Invariants: a page is visited once, so the walk ends; entries below a damaged node are left
//! out and the node is named. No node is younger than the commit that made the link to it.
//! Snapshots share nodes with each other and with the present: what was visited before is looked at
//! only as far as it must fit where it hangs.

use super::Bytes;
use super::births::{Nth, Seen};
use super::bits::Set;
use super::cut::Cut;
use super::media::{PAGE, Root, Super, le64};
use super::node::{self, Entry, Expected};
use super::report::Log;
use super::snapshots::{self, Kept};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Shown each entry: log, key, value, page.
pub(super) type Visit<'v> = &'v mut dyn FnMut(&mut Log, &[u8], &[u8], u64);

type Node = Box<[u8; 4096]>;

struct Walk<'a, 'v> {
    meta: &'a dyn Bytes,
    sb: &'a Super,
    tree: usize,
    of: Of<'a>,
    seen: &'a mut Seen,
    /// What is below this key is freed.
    from: &'a [u8],
    visit: Visit<'v>,
}

/// Of which state the tree is.
enum Of<'a> {
    Present,
    /// Nodes may have been visited before.
    Snapshot(&'a Kept, Nth),
    /// A subtree that was cut out, and the pages that were seen in any.
    Cut(&'a Cut, &'a mut Set),
}

/// Where a node hangs.
#[derive(Clone, Copy)]
struct Place {
    link: u64,
    level: u8,
    /// The commit of its parent, or of the root.
    above: u64,
    /// The last commit that may have made the link to it: it is not younger.
    limit: u64,
}

/// Walks tree number `tree` of the present. How many keys it has.
pub(super) fn tree(
    meta: &dyn Bytes,
    sb: &Super,
    tree: usize,
    seen: &mut Seen,
    log: &mut Log,
    visit: Visit<'_>,
) -> u64 {
    let root = sb.roots[tree];
    if root.height == 0 {
        if root.addr != 0 {
            log.damage(
                None,
                Some(sb.page),
                format!("tree {tree} is empty but has a root"),
            );
        }
        return 0;
    }
    let mut walk = Walk {
        meta,
        sb,
        tree,
        of: Of::Present,
        seen,
        from: &[],
        visit,
    };
    let place = Place {
        link: root.addr,
        level: root.height - 1,
        above: sb.seq,
        limit: sb.seq,
    };
    walk.node(place, &[], None, log)
}

/// Compares the keys that the root of a tree says with those that it and what was cut out of it
/// have.
pub(super) fn compare_keys(sb: &Super, tree: usize, keys: u64, log: &mut Log) {
    let root = sb.roots[tree];
    if keys != root.keys {
        let what = format!(
            "tree {tree} should have {} keys, {keys} were found",
            root.keys
        );
        let page = if root.height == 0 {
            sb.page
        } else {
            page_of(root.addr)
        };
        log.damage(None, Some(page), what);
    }
}

/// Walks what is left of a subtree that was cut out; how many keys it has.
pub(super) fn cut(
    meta: &dyn Bytes,
    sb: &Super,
    (cut, own): (&Cut, &mut Set),
    seen: &mut Seen,
    log: &mut Log,
    visit: Visit<'_>,
) -> u64 {
    let mut walk = Walk {
        meta,
        sb,
        tree: cut.tree,
        of: Of::Cut(cut, own),
        seen,
        from: &cut.from,
        visit,
    };
    let place = Place {
        link: cut.link,
        level: cut.level,
        above: cut.seq,
        limit: cut.seq,
    };
    walk.node(place, &[], None, log)
}

/// Walks what is below a root of a snapshot, from a key on, and was not visited before.
pub(super) fn snapshot(
    meta: &dyn Bytes,
    sb: &Super,
    ((tree, root), (kept, n), from): ((usize, Root), (&Kept, Nth), &[u8]),
    seen: &mut Seen,
    log: &mut Log,
    visit: Visit<'_>,
) {
    let Some(level) = root.height.checked_sub(1) else {
        return;
    };
    let mut walk = Walk {
        meta,
        sb,
        tree,
        of: Of::Snapshot(kept, n),
        seen,
        from,
        visit,
    };
    let place = Place {
        link: root.addr,
        level,
        above: kept.seq,
        limit: kept.seq,
    };
    walk.node(place, &[], None, log);
}

/// A link is a page number and, in bits 48 to 55, how many entries were appended to the node.
fn page_of(link: u64) -> u64 {
    link & !(0xff << 48)
}

/// The commit that wrote a node.
fn birth(bytes: &Node) -> u64 {
    le64(&bytes[..], 16)
}

impl Walk<'_, '_> {
    /// Walks the subtree whose keys are in `low .. high`; how many there are.
    fn node(&mut self, place: Place, low: &[u8], high: Option<&[u8]>, log: &mut Log) -> u64 {
        let Some((bytes, entries)) = self.load(place, log) else {
            return 0;
        };
        let (page, level) = (page_of(place.link), place.level);
        let inside = |key: &[u8]| key >= low && high.is_none_or(|high| key < high);
        let first = usize::from(level > 0);
        if !entries.iter().skip(first).all(|e| inside(&e.key)) {
            log.damage(
                None,
                Some(page),
                "a key of a node is outside of the range of its parent",
            );
        }
        if level == 0 {
            for e in &entries {
                (self.visit)(log, &e.key, &bytes[e.value.clone()], page);
            }
            return entries.len() as u64;
        }
        let mut keys = 0;
        for (i, e) in entries.iter().enumerate() {
            let low = if i == 0 { low } else { &e.key };
            let high = entries.get(i + 1).map(|next| &next.key[..]).or(high);
            if high.is_some_and(|high| high <= self.from) {
                continue;
            }
            let above = birth(&bytes);
            let child = Place {
                link: e.child,
                level: level - 1,
                above,
                limit: if e.later { place.limit } else { above },
            };
            keys += self.node(child, low, high, log);
        }
        keys
    }

    fn load(&mut self, place: Place, log: &mut Log) -> Option<(Node, Vec<Entry>)> {
        let page = page_of(place.link);
        let mut bytes = Box::new([0; 4096]);
        let inside = page >= self.sb.first_node && page < self.sb.meta_pages;
        if !inside || !self.meta.read(page * PAGE, &mut bytes[..]) {
            let what = format!("tree {} names an impossible page", self.tree);
            log.damage(None, Some(page), what);
            return None;
        }
        let again = self.seen.pages.add(page, 1).is_some();
        if !self.goes_on(place, &bytes, again, log) {
            return None;
        }
        let expected = Expected {
            page,
            appended: usize::from((place.link >> 48) as u8),
            tree: self.tree as u8,
            level: place.level,
            limit: place.limit,
        };
        match node::parse(&bytes, &expected) {
            Ok(entries) => {
                if !again {
                    self.meet(place, &bytes);
                }
                Some((bytes, entries))
            }
            Err(what) => {
                log.damage(None, Some(page), format!("tree {}: {what}", self.tree));
                None
            }
        }
    }

    /// Whether the node, visited before or not, is to be walked; names it if it may not be here.
    fn goes_on(&mut self, place: Place, bytes: &Node, again: bool, log: &mut Log) -> bool {
        let page = page_of(place.link);
        let what = match &mut self.of {
            Of::Cut(cut, own) => {
                let old = cut.before.is_some_and(|(seq, _)| birth(bytes) <= seq);
                if again == old && own.add(page, 1).is_none() {
                    return true;
                }
                "a subtree that was cut out has a node that is not its own".into()
            }
            _ if !again => return true,
            Of::Snapshot(kept, n) => {
                let (kept, n) = (*kept, *n);
                match self.meet_again(place, bytes, (kept, n)) {
                    // Snapshots that share a leaf may have different numbers of its appended
                    // entries.
                    Ok(()) => return place.level == 0 && bytes[24] == node::VALUES,
                    Err(what) => what,
                }
            }
            Of::Present => format!("tree {} uses a page twice", self.tree),
        };
        log.damage(None, Some(page), what);
        false
    }

    /// A snapshot has a node that a later state has, too: it must fit there.
    fn meet_again(
        &mut self,
        place: Place,
        bytes: &Node,
        (kept, n): (&Kept, Nth),
    ) -> Result<(), String> {
        let fits = usize::from(bytes[24]) == self.tree
            && bytes[25] == place.level
            && le64(&bytes[..], 8) == page_of(place.link)
            && birth(bytes) <= place.limit;
        let due = self.meet(place, bytes);
        if !fits {
            let what = format!("a snapshot has a node that does not fit tree {}", self.tree);
            return Err(what);
        }
        if kept.dying || due == Some(n) {
            return Ok(());
        }
        Err(format!(
            "snapshot {:?} has a node that it lacks by the births of those above it",
            kept.name
        ))
    }

    /// The snapshot in which the node had to be met next.
    fn meet(&mut self, place: Place, bytes: &Node) -> Option<Nth> {
        if self.tree >= snapshots::TREES || matches!(self.of, Of::Cut(..)) {
            return None;
        }
        let page = page_of(place.link);
        self.seen.births.meet(page, place.above, birth(bytes))
    }
}
