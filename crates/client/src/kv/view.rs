//! Views: many reads of one moment.
//!
//! Invariants:
//!  * A view's root has every change that was committed before it began.
//!  * The root is pinned, which the service respects as long as what it keeps for views is not too
//!    much; a view whose root was given up says `Ousted` and never a wrong answer.
//!  * A scan reads private copies of leaves.

use super::{get, index};
use crate::drain;
use crate::error::{Error, Result};
use crate::lock;
use crate::session::{BLOCK, Session};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{Ordering::*, fence};
use pool::Leaf;
use pool::format::live::LiveRoot;
use pool::layout::VALUES;
use pool::layout::value::{self, HEAD, Head, InBlocks, TreeKey};
use pool::session::VIEWS;

/// Roots that may pass before one is pinned.
const TRIES_MAX: usize = 1000;

/// A root that stays as it is.
#[derive(Debug)]
pub struct View {
    root: LiveRoot,
    pin: u32,
}

impl View {
    pub(super) fn begin(s: &Session) -> Result<View> {
        s.check()?;
        let h = s.header();
        let last = h.values_seq.load(SeqCst);
        // Session memory may say anything: no record has a number that was not taken.
        drain::wait_applied(s, last.min(h.next_seq.load(SeqCst).saturating_sub(1)))?;
        let pin = take_pin(s)?;
        let reader = s.tree().reader();
        for _ in 0..TRIES_MAX {
            let root = reader.root(VALUES)?;
            s.view_pin(pin)?.seq.store(root.seq, SeqCst);
            fence(SeqCst);
            if reader.still(root.seq)? {
                return Ok(View { root, pin });
            }
        }
        drop_pin(s, pin);
        Err(Error::Pool(pool::Error::Busy.errno()))
    }

    pub(super) fn end(self, s: &Session) {
        drop_pin(s, self.pin);
    }

    /// The commit that it shows.
    pub fn seq(&self) -> u64 {
        self.root.seq
    }

    pub(super) fn get(
        &self,
        s: &Session,
        keyspace: u64,
        key: &[u8],
        out: &mut [u8],
    ) -> Result<Option<u64>> {
        if key.is_empty() || key.len() > value::USER_KEY_MAX {
            return Ok(None);
        }
        let reader = s.tree().reader();
        get::with_key(keyspace, key, |tree_key| {
            get::at_root(s, &reader, &self.root, tree_key, out)?.ok_or(Error::Ousted)
        })
    }
}

impl View {
    /// Where the value of `key` lies, if it lies in one piece in blocks: address and length. What
    /// is read there is the value only if the view is intact afterwards.
    pub fn piece(
        &self,
        s: &Session,
        keyspace: super::Keyspace,
        key: &[u8],
    ) -> Result<Option<(usize, usize)>> {
        if key.is_empty() || key.len() > value::USER_KEY_MAX {
            return Ok(None);
        }
        let (mut head, mut runs) = ([0; HEAD], [0; value::IN_BLOCKS_MAX]);
        let found = get::with_key(keyspace.ino(), key, |key| {
            let reader = s.tree().reader();
            reader.get_split(VALUES, &self.root, key, &mut head, &mut runs)
        });
        if !self.is_intact(s)? {
            return Err(Error::Ousted);
        }
        let Some(len) = found? else { return Ok(None) };
        if Head::decode(&head).map_err(pool::Error::from)?.inline {
            return Ok(None);
        }
        let runs = runs.get(..len.saturating_sub(HEAD)).unwrap_or_default();
        let blocks = InBlocks::decode(runs).map_err(pool::Error::from)?;
        let [run] = blocks.runs() else {
            return Ok(None);
        };
        let (at, len) = (run.block.saturating_mul(BLOCK), blocks.len as usize);
        let inside = at.saturating_add(blocks.len) <= s.data().len() as u64;
        Ok(inside.then(|| (s.data().addr() + at as usize, len)))
    }

    /// Whether nothing that the view shows has been reused up to now.
    pub fn is_intact(&self, s: &Session) -> Result<bool> {
        Ok(s.tree().reader().still(self.root.seq)?)
    }
}

/// A free pin, or one whose owner is dead.
fn take_pin(s: &Session) -> Result<u32> {
    let free = |owner: u32| owner == 0;
    let left = |owner: u32| owner != 0 && !lock::owner_lives(s, owner);
    match take_pin_if(s, free)? {
        Some(pin) => Ok(pin),
        None => take_pin_if(s, left)?.ok_or(Error::TooManyViews),
    }
}

fn take_pin_if(s: &Session, wanted: impl Fn(u32) -> bool) -> Result<Option<u32>> {
    let (h, me) = (s.header(), s.owner());
    for index in 0..VIEWS as u32 {
        let pin = s.view_pin(index)?;
        let owner = pin.owner.load(Relaxed);
        if wanted(owner)
            && pin
                .owner
                .compare_exchange(owner, me, AcqRel, Relaxed)
                .is_ok()
        {
            pin.seq.store(0, Relaxed);
            h.views_used.fetch_max(index + 1, AcqRel);
            return Ok(Some(index));
        }
    }
    Ok(None)
}

fn drop_pin(s: &Session, index: u32) {
    if let Ok(pin) = s.view_pin(index) {
        pin.seq.store(0, Relaxed);
        pin.owner.store(0, Release);
    }
}

/// What a scan found.
pub enum Entry<'a> {
    /// The value.
    Inline(&'a [u8]),
    /// A value in blocks, to be copied with `Scan::copy`.
    Blocks(InBlocks),
}

/// The keys of a range, in order or backwards.
pub struct Scan {
    keyspace: u64,
    /// Tree keys that bound what is still to come.
    from: Vec<u8>,
    to: Vec<u8>,
    backward: bool,
    leaf: Box<Leaf>,
    /// Entries of the leaf still to come.
    next: usize,
    end: usize,
    begun: bool,
    done: bool,
}

impl Scan {
    /// The keys of `keyspace` from `from` on, below `to` (`None`: to the end).
    pub fn new(keyspace: super::Keyspace, from: &[u8], to: Option<&[u8]>, backward: bool) -> Scan {
        let ino = keyspace.ino();
        let to = match to {
            Some(to) => TreeKey::new(ino, to),
            None => TreeKey::new(ino.saturating_add(1), &[]),
        };
        Scan {
            keyspace: ino,
            from: TreeKey::new(ino, from).as_slice().to_vec(),
            to: to.as_slice().to_vec(),
            backward,
            leaf: Box::default(),
            next: 0,
            end: 0,
            begun: false,
            done: false,
        }
    }

    /// The next key and its value; `None` at the end.
    pub fn next(&mut self, s: &Session, view: &View) -> Result<Option<(&[u8], Entry<'_>)>> {
        while self.next >= self.end {
            if self.done || self.from >= self.to {
                return Ok(None);
            }
            self.load(s, view)?;
        }
        let at = if self.backward {
            self.end -= 1;
            self.end
        } else {
            self.next += 1;
            self.next - 1
        };
        let (key, bytes) = self.leaf.entry(at)?;
        let (owner, key) = value::parse_key(key).map_err(pool::Error::from)?;
        let (head, rest) = bytes.split_at_checked(HEAD).unwrap_or((bytes, &[]));
        let inline = Head::decode(head).map_err(pool::Error::from)?.inline;
        if owner != self.keyspace {
            return Err(Error::Damaged {
                what: "keyspace of a value",
                index: owner,
            });
        }
        let entry = match inline {
            true => Entry::Inline(rest),
            false => {
                let blocks = InBlocks::decode(rest).map_err(pool::Error::from)?;
                index::check_blocks(s, &blocks)?;
                Entry::Blocks(blocks)
            }
        };
        Ok(Some((key, entry)))
    }

    /// Copies the leaf where the scan goes on.
    fn load(&mut self, s: &Session, view: &View) -> Result<()> {
        let reader = s.tree().reader();
        let going_on = core::mem::replace(&mut self.begun, true);
        let loaded = if self.backward {
            if going_on && let Some(low) = self.leaf.beyond() {
                self.to = low.to_vec();
            }
            reader.leaf_before(VALUES, &view.root, Some(&self.to), &mut self.leaf)
        } else {
            if going_on && let Some(next) = self.leaf.beyond() {
                self.from = next.to_vec();
            }
            reader.leaf_from(VALUES, &view.root, &self.from, &mut self.leaf)
        };
        if !reader.still(view.root.seq)? {
            return Err(Error::Ousted);
        }
        loaded?;
        self.next = self.leaf.find(&self.from)?;
        self.end = self.leaf.find(&self.to)?;
        self.done = match (self.leaf.beyond(), self.backward) {
            (None, _) => true,
            (Some(low), true) => low <= self.from.as_slice(),
            (Some(next), false) => next >= self.to.as_slice(),
        };
        Ok(())
    }

    /// Copies a value of this scan's view to the start of `out`, as much as there is room for.
    pub fn copy(s: &Session, view: &View, blocks: &InBlocks, out: &mut [u8]) -> Result<u64> {
        let copied = index::copy_blocks(s, blocks, out);
        match s.tree().reader().still(view.root.seq)? {
            true => copied,
            false => Err(Error::Ousted),
        }
    }
}
