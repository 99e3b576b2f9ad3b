//! Every node and entry of a tree, in key order.
//!
//! Invariants: a page is visited once, so the walk ends; entries below a damaged node are left
//! out and the node is named. Snapshots share nodes with each other and with the present: what
//! was visited before is looked at only as far as it must fit where it hangs.

use super::Bytes;
use super::bits::Set;
use super::cut::Cut;
use super::media::{PAGE, Root, Super, le64};
use super::node::{self, Entry, Expected};
use super::report::Log;
use alloc::boxed::Box;
use alloc::format;

/// Shown each entry: log, key, value, page.
pub(super) type Visit<'v> = &'v mut dyn FnMut(&mut Log, &[u8], &[u8], u64);

struct Walk<'a, 'v> {
    meta: &'a dyn Bytes,
    sb: &'a Super,
    tree: usize,
    /// No node is younger.
    seq: u64,
    /// Nodes may have been visited before.
    shared: bool,
    pages: &'a mut Set,
    cut: Option<Of<'a>>,
    /// What is below this key is freed.
    from: &'a [u8],
    visit: Visit<'v>,
}

/// A subtree that was cut out, and the pages that were seen in any.
struct Of<'a> {
    cut: &'a Cut,
    pages: &'a mut Set,
}

/// Walks tree number `tree`; `pages` are those seen in any tree. How many keys it has.
pub(super) fn tree(
    meta: &dyn Bytes,
    sb: &Super,
    tree: usize,
    pages: &mut Set,
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
        seq: sb.seq,
        shared: false,
        pages,
        cut: None,
        from: &[],
        visit,
    };
    walk.node(root.addr, root.height - 1, &[], None, log)
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
    cut: &Cut,
    [pages, own]: [&mut Set; 2],
    log: &mut Log,
    visit: Visit<'_>,
) -> u64 {
    let mut walk = Walk {
        meta,
        sb,
        tree: cut.tree,
        seq: cut.seq,
        shared: false,
        pages,
        cut: Some(Of { cut, pages: own }),
        from: &cut.from,
        visit,
    };
    walk.node(cut.link, cut.level, &[], None, log)
}

/// Walks what is below a root of a snapshot, from a key on, and was not visited before; no node may
/// be younger than its seq.
pub(super) fn snapshot(
    meta: &dyn Bytes,
    sb: &Super,
    (place, from): ((usize, Root, u64), &[u8]),
    pages: &mut Set,
    log: &mut Log,
    visit: Visit<'_>,
) {
    let (tree, root, seq) = place;
    let Some(level) = root.height.checked_sub(1) else {
        return;
    };
    let shared = true;
    let mut walk = Walk {
        meta,
        sb,
        tree,
        seq,
        shared,
        pages,
        cut: None,
        from,
        visit,
    };
    walk.node(root.addr, level, &[], None, log);
}

/// A link is a page number and, in bits 48 to 55, how many entries were appended.
fn page_of(link: u64) -> u64 {
    link & !(0xff << 48)
}

impl Walk<'_, '_> {
    /// Walks the subtree whose keys are in `low .. high`; how many there are.
    fn node(
        &mut self,
        link: u64,
        level: u8,
        low: &[u8],
        high: Option<&[u8]>,
        log: &mut Log,
    ) -> u64 {
        let Some((bytes, entries)) = self.load(link, level, log) else {
            return 0;
        };
        let page = page_of(link);
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
            keys += self.node(e.child, level - 1, low, high, log);
        }
        keys
    }

    fn load(
        &mut self,
        link: u64,
        level: u8,
        log: &mut Log,
    ) -> Option<(Box<[u8; 4096]>, alloc::vec::Vec<Entry>)> {
        let (page, appended) = (page_of(link), usize::from((link >> 48) as u8));
        let mut bytes = Box::new([0; 4096]);
        let inside = page >= self.sb.first_node && page < self.sb.meta_pages;
        if !inside || !self.meta.read(page * PAGE, &mut bytes[..]) {
            log.damage(
                None,
                Some(page),
                format!("tree {} names an impossible page", self.tree),
            );
            return None;
        }
        let again = self.pages.add(page, 1).is_some();
        if let Some(Of { cut, pages }) = &mut self.cut {
            let old = cut
                .before
                .is_some_and(|(seq, _)| le64(&bytes[..], 16) <= seq);
            if again != old || pages.add(page, 1).is_some() {
                let what = "a subtree that was cut out has a node that is not its own";
                log.damage(None, Some(page), what);
                return None;
            }
        } else if again && self.shared {
            let fits = usize::from(bytes[24]) == self.tree
                && bytes[25] == level
                && le64(&bytes[..], 8) == page
                && le64(&bytes[..], 16) <= self.seq;
            if !fits {
                let what = format!("a snapshot has a node that does not fit tree {}", self.tree);
                log.damage(None, Some(page), what);
            }
            // Snapshots that share a leaf may have different numbers of its appended entries.
            if !fits || level > 0 || bytes[24] != node::VALUES {
                return None;
            }
        } else if again {
            log.damage(
                None,
                Some(page),
                format!("tree {} uses a page twice", self.tree),
            );
            return None;
        }
        let (tree, seq) = (self.tree as u8, self.seq);
        match node::parse(
            &bytes,
            &Expected {
                page,
                appended,
                tree,
                level,
                seq,
            },
        ) {
            Ok(entries) => Some((bytes, entries)),
            Err(what) => {
                log.damage(None, Some(page), format!("tree {}: {what}", self.tree));
                None
            }
        }
    }
}
