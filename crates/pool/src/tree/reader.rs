//! Reading committed trees from any process, without locks, while the writer runs.
//!
//! What always holds here:
//! - Every node that is followed is checked for magic, own address, tree, level, birth and
//!   bounds, so wrong bytes lead to an error or to another try, never outside the mapping.
//! - An answer is given only if the root was still intact after the last byte was copied: then
//!   no page that was read has been reused meanwhile.
//! - Checksums are not computed on the way: one costs as much as a whole descent from cache, and
//!   a torn or recycled node is caught by the check of the root. What has lain on the medium since
//!   before the session is verified once, by a reader that was given a `Verified`; by the writer
//!   every node that it copies, by `check` all.

use super::leaf::Leaf;
use super::page::{self, Page};
use super::verified::Verified;
use super::walk::{self, Nodes, Out, damaged};
use crate::error::{Error, Result};
use crate::format::geometry::LIVE_PAGE;
use crate::format::live::{self, LiveRoot};
use crate::format::node::{self, AT_BIRTH, AT_COUNTS, Flaw, Header, KeyBuf, Place, Source};
use crate::format::superblock::Root;
use crate::format::{PAGE, PAGE_LEN, PAGE_SHIFT, TREES, appends, links, superblock};
use crate::layout::{ReadTrees, TreeId};
use core::ops::ControlFlow;
use core::time::Duration;
use holdfast_pmem::atomic::{AtomicU32, Ordering, fence};
use holdfast_pmem::{Region, futex};

/// Roots that may pass under a reader before it gives up.
const TRIES_MAX: usize = 1000;
/// How long, and how often, a reader waits for a service that has just begun to show a root.
const NAP: Duration = Duration::from_millis(1);
const AWAITED_MAX: usize = 10_000;
/// Times that damage is looked at before it is believed.
const DAMAGE_LOOKS: usize = 3;

/// Bytes of a leaf that hold its header and, for entries of usual size, heads and slots. Loading
/// them at once costs one miss instead of one after the other.
const LEAF_START: usize = 384;
/// What a cell that was appended is taken to have, until it is looked at.
const APPENDED: usize = 144;
/// Bytes of a cache line.
const LINE: usize = 64;

/// The roots of a snapshot, which stay intact for as long as the snapshot exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// No node below the roots is younger.
    pub seq: u64,
    pub roots: [Root; TREES],
}

impl Fixed {
    /// From the words that `Snapshot::pack_roots` makes; trees beyond them are empty.
    pub fn unpack(seq: u64, words: &[u64]) -> Fixed {
        let mut roots = [Root::default(); TREES];
        for (root, pair) in roots.iter_mut().zip(words.chunks_exact(2)) {
            let (addr, keys, height) = (pair[0], pair[1] >> 8, pair[1] as u8);
            *root = Root { addr, keys, height };
        }
        Fixed { seq, roots }
    }
}

/// Reads the committed trees of a mapped `meta.seg`, or those of a snapshot in it.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    meta: &'a Region,
    fixed: Option<&'a Fixed>,
    verified: Option<&'a Verified>,
}

/// A node in the mapping. Its words may change while it is looked at.
pub(super) struct Mapped<'a> {
    meta: &'a Region,
    base: u64,
}

impl Source for Mapped<'_> {
    #[inline(always)]
    fn word(&self, at: usize) -> u64 {
        if at >= PAGE {
            return 0;
        }
        self.meta.load_u64(self.base + at as u64).unwrap_or(0)
    }

    #[inline]
    fn copy(&self, at: usize, out: &mut [u8]) {
        let inside = at.checked_add(out.len()).is_some_and(|end| end <= PAGE);
        if !inside || self.meta.read(self.base + at as u64, out).is_err() {
            out.fill(0);
        }
    }
}

/// The node in page `addr`, if it is what `place` says.
#[inline]
pub(super) fn open_mapped<'a>(meta: &'a Region, place: &Place) -> Result<(Mapped<'a>, Header)> {
    let pages = meta.len() as u64 >> PAGE_SHIFT;
    if place.page <= LIVE_PAGE || place.page >= pages {
        return Err(Error::Damaged {
            what: "address of a node",
            page: place.page,
        });
    }
    let node = Mapped {
        meta,
        base: place.page << PAGE_SHIFT,
    };
    let header = node::open(&node, place).map_err(damaged(place.page))?;
    Ok((node, header))
}

/// How much of a copied node is verified.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// What `open` checks: whoever uses the copy checks each entry, or has written them itself.
    Nothing,
    /// Checksum and every entry.
    Verified,
}

/// A private copy of the node in page `place.page`, verified as `trust` says. What was appended
/// to it is in its place.
pub(super) fn copy_mapped(
    meta: &Region,
    place: &Place,
    trust: Trust,
    out: &mut Page,
) -> Result<Header> {
    let header = copy_as_it_is(meta, place, trust, out)?;
    match header.appends {
        0 => Ok(header),
        _ => page::fold(out, &header).map_err(damaged(place.page)),
    }
}

/// As [`copy_mapped`], of a leaf that is only read: what is of no use between its arrays and its
/// cells is left as it was in `out`.
fn copy_to_read(meta: &Region, place: &Place, out: &mut Page) -> Result<Header> {
    debug_assert_eq!(place.level, 0, "only leaves are copied to be read");
    let (node, seen) = open_mapped(meta, place)?;
    let front = appends::place(&seen, seen.appends).min(PAGE);
    let back = appends::lowest(&node, &seen).clamp(front, PAGE);
    meta.read(node.base, &mut out[..front])?;
    meta.read(node.base + back as u64, &mut out[back..])?;
    let header = node::open(&*out, place).map_err(damaged(place.page))?;
    if header != seen {
        // It is being reused: this was never a node.
        return Err(damaged(place.page)("node counts"));
    }
    match header.appends {
        0 => Ok(header),
        _ => page::weave(out, &header).map_err(damaged(place.page)),
    }
}

/// A private copy without a change.
fn copy_as_it_is(meta: &Region, place: &Place, trust: Trust, out: &mut Page) -> Result<Header> {
    let pages = meta.len() as u64 >> PAGE_SHIFT;
    if place.page <= LIVE_PAGE || place.page >= pages {
        return Err(Error::Damaged {
            what: "address of a node",
            page: place.page,
        });
    }
    meta.read(place.page << PAGE_SHIFT, &mut out[..])?;
    verify(place, trust, pages, out)
}

fn verify(place: &Place, trust: Trust, pages: u64, out: &Page) -> Result<Header> {
    if trust != Trust::Nothing && !page::is_sound(out) {
        return Err(Error::Damaged {
            what: "checksum of a node",
            page: place.page,
        });
    }
    let header = match trust {
        Trust::Verified => check(place, pages, out),
        Trust::Nothing => node::open(out, place),
    };
    header.map_err(damaged(place.page))
}

/// Checks every entry, those that were appended, too.
fn check(place: &Place, pages: u64, page: &Page) -> core::result::Result<Header, Flaw> {
    let pages = LIVE_PAGE + 1..pages;
    let h = node::check(page, place, pages.clone())?;
    match h.level {
        0 => appends::check(page, &h)?,
        _ => links::check(page, &h, &pages)?,
    }
    Ok(h)
}

/// The trees of one root.
pub(super) struct At<'a> {
    pub meta: &'a Region,
    pub seq: u64,
    pub verified: Option<&'a Verified>,
}

impl At<'_> {
    /// Verifies the node at `place`, of which `node` are the bytes, if that was not done before.
    #[inline]
    fn rely_on(&self, place: &Place, node: &Mapped<'_>) -> Result<()> {
        match self.verified {
            Some(verified) if !verified.has(place.page, node.word(AT_BIRTH)) => {
                self.look_into(place, verified)
            }
            _ => Ok(()),
        }
    }

    #[cold]
    fn look_into(&self, place: &Place, verified: &Verified) -> Result<()> {
        copy_as_it_is(self.meta, place, Trust::Verified, &mut [0; PAGE])?;
        verified.note(place.page);
        Ok(())
    }
}

impl Nodes for At<'_> {
    type Node<'n>
        = Mapped<'n>
    where
        Self: 'n;

    #[inline]
    fn open(&self, tree: TreeId, addr: u64, level: u8) -> Result<(Mapped<'_>, Header)> {
        let place = Place::of_link(addr, tree, level, self.seq);
        let (node, header) = open_mapped(self.meta, &place)?;
        if level > 0 && header.appends > 0 {
            // The child that is found may be one of these: they load while it is looked for.
            let at = node.base + links::numbers(&header) as u64;
            self.meta.prefetch(at, header.appends);
        }
        self.rely_on(&place, &node)?;
        Ok((node, header))
    }

    #[inline]
    fn expect_leaf(&self, addr: u64) {
        let page = appends::page_of(addr);
        self.meta
            .prefetch(page.saturating_mul(PAGE_LEN), LEAF_START);
    }

    #[inline]
    fn expect_copy(&self, addr: u64) {
        let start = appends::page_of(addr).saturating_mul(PAGE_LEN);
        // Its start was expected when the leaf before was copied.
        let counts = self.meta.load_u64(start.saturating_add(AT_COUNTS as u64));
        let heap = Header::unpack(counts.unwrap_or(0)).heap.min(PAGE);
        let low = heap.saturating_sub(appends::appends_of(addr) * APPENDED);
        let cells = low.max(LEAF_START) / LINE * LINE;
        self.meta.prefetch(start + cells as u64, PAGE - cells);
    }

    fn copy(&self, tree: TreeId, addr: u64, level: u8, out: &mut Page) -> Result<Header> {
        self.open(tree, addr, level)?;
        copy_to_read(self.meta, &Place::of_link(addr, tree, level, self.seq), out)
    }
}

impl<'a> Reader<'a> {
    /// A reader of `meta.seg`, which may be mapped for reading only.
    pub fn new(meta: &'a Region) -> Reader<'a> {
        Reader {
            meta,
            fixed: None,
            verified: None,
        }
    }

    /// The same reader, which verifies what it comes to for the first time.
    pub fn verifying(self, verified: &'a Verified) -> Reader<'a> {
        let verified = Some(verified);
        Reader { verified, ..self }
    }

    /// A reader of a snapshot. Whether that still exists is for the caller to know.
    pub fn of_snapshot(meta: &'a Region, fixed: &'a Fixed) -> Reader<'a> {
        Reader {
            fixed: Some(fixed),
            ..Reader::new(meta)
        }
    }

    /// The current root of `tree`.
    #[inline]
    pub fn root(&self, tree: TreeId) -> Result<LiveRoot> {
        if usize::from(tree) >= TREES {
            return Err(Error::TooLarge {
                what: "tree number",
                len: usize::from(tree),
            });
        }
        match self.fixed {
            None => self.live_root(usize::from(tree)),
            Some(fixed) => Ok(LiveRoot {
                seq: fixed.seq,
                // No journal record is newer than what nobody changes.
                applied: u64::MAX,
                root: fixed.roots[usize::from(tree)],
            }),
        }
    }

    #[inline]
    fn live_root(&self, tree: usize) -> Result<LiveRoot> {
        match live::is_hidden(self.meta)? {
            false => live::root(self.meta, tree),
            true => self.await_root(tree),
        }
    }

    /// A service that follows one that died shows nothing before it has again what that one showed.
    #[cold]
    fn await_root(&self, tree: usize) -> Result<LiveRoot> {
        for _ in 0..AWAITED_MAX {
            if !live::is_hidden(self.meta)? {
                return live::root(self.meta, tree);
            }
            futex::wait(&AtomicU32::new(0), 0, Some(NAP));
        }
        Err(Error::Busy)
    }

    /// The commit whose trees readers see now.
    pub fn seq(&self) -> Result<u64> {
        Ok(self.root(0)?.seq)
    }

    /// Whether no page of roots of commit `seq` has been reused up to now.
    #[inline]
    fn is_intact(&self, seq: u64) -> Result<bool> {
        if self.fixed.is_some() {
            return Ok(true);
        }
        fence(Ordering::Acquire);
        Ok(live::oldest_intact(self.meta)? <= seq)
    }

    /// Runs `look` on current roots until its answer is that of an intact root.
    #[inline]
    fn settled<T>(
        &self,
        tree: TreeId,
        mut look: impl FnMut(&At<'a>, &LiveRoot) -> Result<T>,
    ) -> Result<T> {
        let mut damage = 0;
        for _ in 0..TRIES_MAX {
            let root = self.root(tree)?;
            let answer = look(
                &At {
                    meta: self.meta,
                    seq: root.seq,
                    verified: self.verified,
                },
                &root,
            );
            if !self.is_intact(root.seq)? {
                continue;
            }
            match answer {
                Err(e @ Error::Damaged { .. }) if damage + 1 < DAMAGE_LOOKS => {
                    let _ = e;
                    damage += 1;
                }
                Err(Error::Damaged { what, page }) => return Err(self.name_damage(what, page)),
                answer => return answer,
            }
        }
        Err(Error::Busy)
    }

    /// Says whether bytes changed after they were sealed, or were sealed wrong.
    #[cold]
    fn name_damage(&self, what: &'static str, page: u64) -> Error {
        let mut copy = [0; PAGE];
        let off = appends::page_of(page).saturating_mul(PAGE_LEN);
        let what = match self.meta.read(off, &mut copy) {
            Ok(()) if !page::is_sound(&copy) => "checksum of a node",
            _ => what,
        };
        Error::Damaged { what, page }
    }

    /// Copies the value of `key` to the start of `value`, as much as there is room for; returns
    /// the value's full length.
    #[inline]
    pub fn get(&self, tree: TreeId, key: &[u8], value: &mut [u8]) -> Result<Option<usize>> {
        self.settled(tree, |at, live| walk::get(at, tree, &live.root, key, value))
    }

    /// Whether nothing that the root of commit `seq` leads to, pages or data blocks, has been
    /// reused up to now. What was read before is that root's then.
    #[inline]
    pub fn still(&self, seq: u64) -> Result<bool> {
        self.is_intact(seq)
    }

    /// Looks `key` up below `root`, once: the answer, and an error, mean something only if the
    /// root is [`still`](Reader::still) intact. The first bytes of the value go to `head` and
    /// what follows to `body`, as much as there is room for; returns the value's full length.
    #[inline]
    pub fn get_split(
        &self,
        tree: TreeId,
        root: &LiveRoot,
        key: &[u8],
        head: &mut [u8],
        body: &mut [u8],
    ) -> Result<Option<usize>> {
        walk::get_split(&self.at(root), tree, &root.root, key, head, body)
    }

    fn at(&self, root: &LiveRoot) -> At<'a> {
        At {
            meta: self.meta,
            seq: root.seq,
            verified: self.verified,
        }
    }

    /// The link to the leaf below `root` where `key` belongs, for [`leaf_at`](Reader::leaf_at).
    pub fn leaf_link(&self, tree: TreeId, root: &LiveRoot, key: &[u8]) -> Result<Option<u64>> {
        walk::link_of(&self.at(root), tree, &root.root, key)
    }

    /// A copy of the leaf that `link` leads to. A snapshot's leaves stay where they are.
    pub fn leaf_at(&self, tree: TreeId, root: &LiveRoot, link: u64, leaf: &mut Leaf) -> Result<()> {
        let header = self.at(root).copy(tree, link, 0, &mut leaf.page)?;
        leaf.set(Some((header, false, None)));
        Ok(())
    }

    /// A copy of the leaf below `root` where `from` belongs. Means something only if the root is
    /// [`still`](Reader::still) intact.
    pub fn leaf_from(
        &self,
        tree: TreeId,
        root: &LiveRoot,
        from: &[u8],
        leaf: &mut Leaf,
    ) -> Result<()> {
        let at = self.at(root);
        let found = walk::leaf_of(
            &at,
            tree,
            &root.root,
            from,
            &mut leaf.page,
            &mut leaf.beyond,
        )?;
        leaf.set(found);
        Ok(())
    }

    /// As [`leaf_from`](Reader::leaf_from), the leaf behind `leaf`, if that is near; else false,
    /// and it is found by the key where it starts.
    pub fn leaf_behind(&self, tree: TreeId, root: &LiveRoot, leaf: &mut Leaf) -> Result<bool> {
        let Some(hang) = leaf.hang else {
            return Ok(false);
        };
        let at = self.at(root);
        let found = walk::leaf_behind(&at, tree, hang, &mut leaf.page, &mut leaf.beyond)?;
        if found.is_some() {
            leaf.set(found);
        }
        Ok(found.is_some())
    }

    /// As [`leaf_from`](Reader::leaf_from), the leaf with the keys just below `to`.
    pub fn leaf_before(
        &self,
        tree: TreeId,
        root: &LiveRoot,
        to: Option<&[u8]>,
        leaf: &mut Leaf,
    ) -> Result<()> {
        let at = self.at(root);
        let found = walk::leaf_before(&at, tree, &root.root, to, &mut leaf.page, &mut leaf.beyond)?;
        leaf.set(found.map(|(header, more)| (header, more, None)));
        Ok(())
    }

    /// Shows every entry with a key in `from .. to` (no end when `None`) to `visit`, in order.
    /// When a root passes meanwhile, the scan goes on behind the last key in a newer one.
    pub fn scan(
        &self,
        tree: TreeId,
        from: &[u8],
        to: Option<&[u8]>,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut leaf = [0; PAGE];
        let (mut at, mut next, mut key) = (KeyBuf::default(), KeyBuf::default(), KeyBuf::default());
        at.set(from);
        let mut visit = |key: &[u8], value: &[u8]| visit(key, value).is_continue();
        loop {
            let found = self.settled(tree, |nodes, live| {
                walk::leaf_of(nodes, tree, &live.root, at.as_slice(), &mut leaf, &mut next)
            })?;
            let Some((h, more, _)) = found else {
                return Ok(());
            };
            let go_on = walk::visit_leaf(&leaf, &h, at.as_slice(), to, &mut key, &mut visit)
                .map_err(damaged(0))?;
            if !go_on || !more {
                return Ok(());
            }
            core::mem::swap(&mut at, &mut next);
        }
    }
}

impl ReadTrees for Reader<'_> {
    type Error = Error;

    fn name_seed(&self) -> Result<u64> {
        superblock::name_seed(self.meta)
    }

    #[inline]
    fn get(&self, tree: TreeId, key: &[u8], value: &mut [u8]) -> Result<Option<usize>> {
        let room = value.len();
        match Reader::get(self, tree, key, value)? {
            Some(len) if len > room => Err(Error::Damaged {
                what: "length of a value",
                page: 0,
            }),
            found => Ok(found),
        }
    }

    fn at_or_after(
        &self,
        tree: TreeId,
        from: &[u8],
        key: &mut [u8],
        value: &mut [u8],
    ) -> Result<Option<(usize, usize)>> {
        let mut out = Out { key, value };
        self.settled(tree, |at, live| {
            walk::at_or_after(at, tree, &live.root, from, &mut out)
        })
    }

    fn at_or_before(
        &self,
        tree: TreeId,
        to: &[u8],
        key: &mut [u8],
        value: &mut [u8],
    ) -> Result<Option<(usize, usize)>> {
        let mut out = Out { key, value };
        self.settled(tree, |at, live| {
            walk::at_or_before(at, tree, &live.root, to, &mut out)
        })
    }
}
