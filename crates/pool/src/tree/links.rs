//! Committing an inner node of which only links changed by appending these to the committed one.
//!
//! What always holds here:
//! - Only bytes are written that no committed root leads to, since the link that counts them goes
//!   to the node above, or to the root; and numbers of a root's links again, as they are.
//! - A node that a snapshot has is not appended to. So all states that have a node have the same
//!   links in it.

use super::append::takes_appends;
use super::batch::Batch;
use super::page::{self, Page};
use super::reader::open_mapped;
use super::walk::damaged;
use crate::error::Result;
use crate::format::appends::{link, page_of};
use crate::format::links::{self, CHILDREN_MAX, Links};
use crate::format::node::{self, Header, Source};
use crate::format::{PAGE_SHIFT, put_at, u64_at};
use crate::space::Run;

/// A node of which more than this part of the links changed is copied: it will be in the next
/// commit, too, and searches of a copy need not look at what was appended.
const FEW_PART: usize = 4;

impl Batch<'_> {
    /// Appends the links that differ to the committed node that `node` is a copy of, if it is one
    /// of tree `VALUES` and there is room; what leads to it then.
    pub(super) fn append_links(&mut self, node: &Page) -> Result<Option<u64>> {
        let (h, origin) = (page::header(node), page::origin(node));
        let page = page_of(origin);
        if h.level == 0 || origin == 0 || !takes_appends(h.tree) || self.is_in_snapshot(page)? {
            return Ok(None);
        }
        let Some(links) = self.changed_links(node, &h, origin)? else {
            return Ok(None);
        };
        for (at, bytes) in links.parts(&h) {
            let at = (page << PAGE_SHIFT) + at as u64;
            self.pool.meta.write_nt(at, bytes)?;
        }
        // The node stays, and was verified when it was copied.
        self.pool.meta_space.mark_used(Run::new(page, 1))?;
        self.pool.checked.set(page, 1);
        Ok(Some(link(page, links.count)))
    }

    /// The links in which `node` differs from the one at `origin`, if they are few and there is
    /// room for them.
    fn changed_links(&self, node: &Page, h: &Header, origin: u64) -> Result<Option<Links>> {
        let place = self.place(h.tree, origin, h.level);
        let (old, old_h) = open_mapped(&self.pool.meta, &place)?;
        let mut were = [0; 8 * CHILDREN_MAX];
        let were = &mut were[..8 * h.count];
        old.copy(node::children(h), were);
        for k in 0..old_h.appends {
            let (child, link) = links::nth(&old, &old_h, k).map_err(damaged(origin))?;
            put_at(were, 8 * child, &link.to_le_bytes());
        }
        let mut links = Links::new(&old, &old_h);
        let most = links.count + h.count / FEW_PART;
        let now = &node[node::children(h)..];
        for (i, (were, now)) in were.chunks_exact(8).zip(now.chunks_exact(8)).enumerate() {
            if were == now {
                continue;
            }
            if links.count == most || !links.push(h, place.page, i, u64_at(now, 0)) {
                return Ok(None);
            }
        }
        Ok(Some(links))
    }
}
