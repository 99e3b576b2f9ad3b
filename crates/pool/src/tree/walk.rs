//! Finding entries, the same way in committed trees and in a batch.
//!
//! What always holds here: each step goes one level down, so no chain of nodes is endless; a
//! scan only continues at a key above where it was, so no scan is.

use super::page::Page;
use crate::error::{Error, Result};
use crate::format::node::{self, Cell, Flaw, HEIGHT_MAX, Header, KeyBuf, Source};
use crate::format::superblock::Root;
use crate::format::{PAGE, appends};
use crate::layout::TreeId;
use core::cmp::Ordering;

/// Something that finds nodes by their address.
pub(super) trait Nodes {
    type Node<'a>: Source
    where
        Self: 'a;

    /// The node at `addr`, if it is one of level `level` of `tree`.
    fn open(&self, tree: TreeId, addr: u64, level: u8) -> Result<(Self::Node<'_>, Header)>;

    /// Starts loading what a search of the leaf at `addr` looks at first.
    #[inline]
    fn expect_leaf(&self, _addr: u64) {}

    /// Starts loading the leaf at `addr`, which will be copied soon.
    #[inline]
    fn expect_copy(&self, _addr: u64) {}

    /// A private copy of such a node. Its entries may still be flawed.
    fn copy(&self, tree: TreeId, addr: u64, level: u8, out: &mut Page) -> Result<Header>;
}

pub(super) fn damaged(page: u64) -> impl Fn(Flaw) -> Error {
    move |what| Error::Damaged { what, page }
}

pub(super) fn check_height(root: &Root) -> Result<()> {
    match root.height <= HEIGHT_MAX {
        true => Ok(()),
        false => Err(Error::Damaged {
            what: "height of a tree",
            page: root.addr,
        }),
    }
}

/// Copies the value of `key` to `out`, cut to its length; returns the value's length.
#[inline]
pub(super) fn get<N: Nodes>(
    nodes: &N,
    tree: TreeId,
    root: &Root,
    key: &[u8],
    out: &mut [u8],
) -> Result<Option<usize>> {
    get_split(nodes, tree, root, key, &mut [], out)
}

/// As [`get`], but the first bytes of the value go to `head` and what follows to `body`.
#[inline]
pub(super) fn get_split<N: Nodes>(
    nodes: &N,
    tree: TreeId,
    root: &Root,
    key: &[u8],
    head: &mut [u8],
    body: &mut [u8],
) -> Result<Option<usize>> {
    check_height(root)?;
    let mut addr = root.addr;
    for level in (0..root.height).rev() {
        let (node, h) = nodes.open(tree, addr, level)?;
        if level > 0 {
            let i = node::find_child(&node, &h, key).map_err(damaged(addr))?;
            addr = node::child(&node, &h, i);
            if level == 1 {
                nodes.expect_leaf(addr);
            }
            continue;
        }
        if let Some(cell) = find_value(&node, &h, key).map_err(damaged(addr))? {
            let first = cell.value_len.min(head.len());
            node.copy(cell.value, &mut head[..first]);
            let rest = (cell.value_len - first).min(body.len());
            node.copy(cell.value + first, &mut body[..rest]);
            return Ok(Some(cell.value_len));
        }
    }
    Ok(None)
}

/// The cell of `key` in a leaf: the newest, if one was appended.
#[inline]
pub(super) fn find_value<S: Source>(
    node: &S,
    h: &Header,
    key: &[u8],
) -> core::result::Result<Option<Cell>, Flaw> {
    if let Some(cell) = appends::find(node, h, key)? {
        return Ok(Some(cell));
    }
    let (i, equal) = node::find(node, h, 0, key)?;
    match equal {
        true => node::cell(node, h, i).map(Some),
        false => Ok(None),
    }
}

#[inline]
fn copy_value<S: Source>(
    node: &S,
    h: &Header,
    i: usize,
    out: &mut [u8],
) -> core::result::Result<usize, Flaw> {
    let cell = node::cell(node, h, i)?;
    let len = cell.value_len.min(out.len());
    node.copy(cell.value, &mut out[..len]);
    Ok(cell.value_len)
}

/// Where an entry is copied to.
pub(super) struct Out<'a> {
    pub key: &'a mut [u8],
    pub value: &'a mut [u8],
}

fn copy_entry<S: Source>(
    node: &S,
    h: &Header,
    i: usize,
    out: &mut Out<'_>,
) -> core::result::Result<(usize, usize), Flaw> {
    let key_len = node::copy_key(node, h, i, out.key)?;
    let value_len = copy_value(node, h, i, out.value)?;
    if value_len > out.value.len() {
        Err("value length")
    } else {
        Ok((key_len, value_len))
    }
}

/// Which entry of a leaf is wanted.
#[derive(Clone, Copy)]
enum Want<'a> {
    AtOrAfter(&'a [u8]),
    AtOrBefore(&'a [u8]),
    First,
    Last,
}

impl Want<'_> {
    #[inline]
    fn choose<S: Source>(self, node: &S, h: &Header) -> core::result::Result<Option<usize>, Flaw> {
        Ok(match self {
            Want::AtOrAfter(key) => Some(node::find(node, h, 0, key)?.0).filter(|i| *i < h.count),
            Want::AtOrBefore(key) => match node::find(node, h, 0, key)? {
                (i, true) => Some(i),
                (i, false) => i.checked_sub(1),
            },
            Want::First => Some(0),
            Want::Last => h.count.checked_sub(1),
        })
    }

    #[inline]
    fn copy<S: Source>(
        self,
        node: &S,
        h: &Header,
        out: &mut Out<'_>,
    ) -> core::result::Result<Option<(usize, usize)>, Flaw> {
        match self.choose(node, h)? {
            Some(i) => copy_entry(node, h, i, out).map(Some),
            None => Ok(None),
        }
    }
}

/// Copies the entry that is wanted of the leaf at `addr`. One to which entries were appended is
/// copied whole, so that they are in their places.
#[inline]
fn in_leaf<N: Nodes>(
    nodes: &N,
    (tree, addr): (TreeId, u64),
    (node, h): (&N::Node<'_>, Header),
    want: Want<'_>,
    out: &mut Out<'_>,
) -> Result<Option<(usize, usize)>> {
    let found = if h.appends == 0 {
        want.copy(node, &h, out)
    } else {
        let mut leaf = [0; PAGE];
        let h = nodes.copy(tree, addr, 0, &mut leaf)?;
        want.copy(&leaf, &h, out)
    };
    found.map_err(damaged(addr))
}

/// The entry in `out`, unless its key is on the `wrong` side of the one that was asked for: nodes
/// whose keys do not rise could send whoever goes on from there in circles.
#[inline]
fn beyond(
    found: (usize, usize),
    out: &Out<'_>,
    asked: &[u8],
    wrong: Ordering,
    page: u64,
) -> Result<(usize, usize)> {
    let key = out.key.get(..found.0).unwrap_or_default();
    match key.cmp(asked) == wrong {
        true => Err(damaged(page)("node order")),
        false => Ok(found),
    }
}

/// The entry with the lowest key at or after `from`.
pub(super) fn at_or_after<N: Nodes>(
    nodes: &N,
    tree: TreeId,
    root: &Root,
    from: &[u8],
    out: &mut Out<'_>,
) -> Result<Option<(usize, usize)>> {
    check_height(root)?;
    let (mut addr, mut beside) = (root.addr, None);
    for level in (0..root.height).rev() {
        let (node, h) = nodes.open(tree, addr, level)?;
        if level > 0 {
            let i = node::find_child(&node, &h, from).map_err(damaged(addr))?;
            if i + 1 < h.count {
                beside = Some((node::child(&node, &h, i + 1), level));
            }
            addr = node::child(&node, &h, i);
            continue;
        }
        let want = Want::AtOrAfter(from);
        if let Some(found) = in_leaf(nodes, (tree, addr), (&node, h), want, out)? {
            return beyond(found, out, from, Ordering::Less, addr).map(Some);
        }
    }
    match edge(nodes, tree, beside, Want::First, out)? {
        Some(found) => beyond(found, out, from, Ordering::Less, root.addr).map(Some),
        None => Ok(None),
    }
}

/// The entry with the highest key at or before `to`.
pub(super) fn at_or_before<N: Nodes>(
    nodes: &N,
    tree: TreeId,
    root: &Root,
    to: &[u8],
    out: &mut Out<'_>,
) -> Result<Option<(usize, usize)>> {
    check_height(root)?;
    let (mut addr, mut beside) = (root.addr, None);
    for level in (0..root.height).rev() {
        let (node, h) = nodes.open(tree, addr, level)?;
        if level > 0 {
            let i = node::find_child(&node, &h, to).map_err(damaged(addr))?;
            if i > 0 {
                beside = Some((node::child(&node, &h, i - 1), level));
            }
            addr = node::child(&node, &h, i);
            continue;
        }
        let want = Want::AtOrBefore(to);
        if let Some(found) = in_leaf(nodes, (tree, addr), (&node, h), want, out)? {
            return beyond(found, out, to, Ordering::Greater, addr).map(Some);
        }
    }
    match edge(nodes, tree, beside, Want::Last, out)? {
        Some(found) => beyond(found, out, to, Ordering::Greater, root.addr).map(Some),
        None => Ok(None),
    }
}

/// The entry at one edge of the subtree `(addr, levels)`.
fn edge<N: Nodes>(
    nodes: &N,
    tree: TreeId,
    subtree: Option<(u64, u8)>,
    side: Want<'_>,
    out: &mut Out<'_>,
) -> Result<Option<(usize, usize)>> {
    let Some((mut addr, levels)) = subtree else {
        return Ok(None);
    };
    for level in (0..levels).rev() {
        let (node, h) = nodes.open(tree, addr, level)?;
        if level == 0 {
            return in_leaf(nodes, (tree, addr), (&node, h), side, out);
        }
        let i = match side {
            Want::Last => h.count - 1,
            _ => 0,
        };
        addr = node::child(&node, &h, i);
    }
    Ok(None)
}

/// Where a copied leaf hangs.
#[derive(Clone, Copy)]
pub(super) struct Hang {
    /// The link to its parent, and which child it is.
    pub parent: u64,
    pub pos: usize,
}

/// A leaf that was copied: its counts, whether there is one behind it, and where it hangs.
type Copied = (Header, bool, Option<Hang>);

/// The link to the leaf where `key` belongs.
pub(super) fn link_of<N: Nodes>(
    nodes: &N,
    tree: TreeId,
    root: &Root,
    key: &[u8],
) -> Result<Option<u64>> {
    check_height(root)?;
    let mut addr = root.addr;
    for level in (1..root.height).rev() {
        let (node, h) = nodes.open(tree, addr, level)?;
        let i = node::find_child(&node, &h, key).map_err(damaged(addr))?;
        addr = node::child(&node, &h, i);
    }
    Ok((root.height > 0).then_some(addr))
}

/// Copies the leaf where `from` belongs to `leaf`. `next` becomes the key where the next leaf
/// starts; false when there is none.
pub(super) fn leaf_of<N: Nodes>(
    nodes: &N,
    tree: TreeId,
    root: &Root,
    from: &[u8],
    leaf: &mut Page,
    next: &mut KeyBuf,
) -> Result<Option<Copied>> {
    check_height(root)?;
    let (mut addr, mut beside, mut hang) = (root.addr, None, None);
    for level in (0..root.height).rev() {
        if level == 0 {
            let header = nodes.copy(tree, addr, 0, leaf)?;
            let Some((addr, level, i)) = beside else {
                return Ok(Some((header, false, hang)));
            };
            let (node, h) = nodes.open(tree, addr, level)?;
            // Under a running writer the node may have changed: then `i` may be out of range.
            let known = if i < h.count {
                next.load(&node, &h, i)
            } else {
                Err("node count")
            };
            known.map_err(damaged(addr))?;
            if level == 1 {
                // Whether all of it is wanted is not known yet.
                (i..h.count.min(i + 2)).for_each(|i| nodes.expect_leaf(node::child(&node, &h, i)));
            }
            if next.as_slice().cmp(from) != Ordering::Greater {
                return Err(Error::Damaged {
                    what: "order of separators",
                    page: addr,
                });
            }
            return Ok(Some((header, true, hang)));
        }
        let (node, h) = nodes.open(tree, addr, level)?;
        let i = node::find_child(&node, &h, from).map_err(damaged(addr))?;
        if i + 1 < h.count {
            beside = Some((addr, level, i + 1));
        }
        (hang, addr) = (
            Some(Hang {
                parent: addr,
                pos: i,
            }),
            node::child(&node, &h, i),
        );
    }
    Ok(None)
}

/// Copies the leaf behind the one at `hang`, if that is found below the same parent. `next`, where
/// the leaf starts, becomes the key where the one behind it starts.
pub(super) fn leaf_behind<N: Nodes>(
    nodes: &N,
    tree: TreeId,
    hang: Hang,
    leaf: &mut Page,
    next: &mut KeyBuf,
) -> Result<Option<Copied>> {
    let Hang { parent, pos } = hang;
    let (node, h) = nodes.open(tree, parent, 1)?;
    if pos + 2 >= h.count {
        return Ok(None);
    }
    let order = node::compare_entry(&node, &h, pos + 2, next.as_slice());
    if order.map_err(damaged(parent))? != Ordering::Greater {
        let what = "order of separators";
        return Err(Error::Damaged { what, page: parent });
    }
    let header = nodes.copy(tree, node::child(&node, &h, pos + 1), 0, leaf)?;
    expect_behind(nodes, &node, &h, pos + 2);
    next.load(&node, &h, pos + 2).map_err(damaged(parent))?;
    let hang = Hang {
        parent,
        pos: pos + 1,
    };
    Ok(Some((header, true, Some(hang))))
}

/// Child `i` of `node` is copied next, and then the one behind it.
#[inline]
fn expect_behind<N: Nodes>(nodes: &N, node: &N::Node<'_>, h: &Header, i: usize) {
    nodes.expect_copy(node::child(node, h, i));
    if i + 1 < h.count {
        nodes.expect_leaf(node::child(node, h, i + 1));
    }
}

/// Copies the leaf with the highest key below `to` (of all keys when `None`), or the one left of
/// which it would be, to `leaf`. `low` becomes the key from which on the leaf holds keys; false
/// when it is the first one.
pub(super) fn leaf_before<N: Nodes>(
    nodes: &N,
    tree: TreeId,
    root: &Root,
    to: Option<&[u8]>,
    leaf: &mut Page,
    low: &mut KeyBuf,
) -> Result<Option<(Header, bool)>> {
    check_height(root)?;
    let (mut addr, mut more) = (root.addr, false);
    for level in (0..root.height).rev() {
        if level == 0 {
            if more && to.is_some_and(|to| low.as_slice() >= to) {
                return Err(Error::Damaged {
                    what: "order of separators",
                    page: addr,
                });
            }
            let header = nodes.copy(tree, addr, 0, leaf)?;
            return Ok(Some((header, more)));
        }
        let (node, h) = nodes.open(tree, addr, level)?;
        let i = match to {
            Some(to) => node::find(&node, &h, 1, to).map_err(damaged(addr))?.0 - 1,
            None => h.count - 1,
        };
        if i > 0 {
            low.load(&node, &h, i).map_err(damaged(addr))?;
            more = true;
        }
        addr = node::child(&node, &h, i);
    }
    Ok(None)
}

/// Shows the entries of `leaf` in `from .. to` to `visit`, until it returns false.
pub(super) fn visit_leaf(
    leaf: &Page,
    h: &Header,
    from: &[u8],
    to: Option<&[u8]>,
    key: &mut KeyBuf,
    visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
) -> core::result::Result<bool, Flaw> {
    let (first, _) = node::find(leaf, h, 0, from)?;
    let last = match to {
        Some(to) => node::find(leaf, h, 0, to)?.0,
        None => h.count,
    };
    key.load_prefix(leaf, h);
    for i in first..last {
        let cell = node::cell(leaf, h, i)?;
        key.load_suffix(leaf, h, i, &cell);
        let value = leaf
            .get(cell.value..cell.value + cell.value_len)
            .unwrap_or(&[]);
        if !visit(key.as_slice(), value) {
            return Ok(false);
        }
    }
    Ok(last == h.count)
}
