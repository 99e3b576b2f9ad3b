//! A pool opened by its one writer.
//!
//! What always holds here:
//! - The superblock in force is the valid one with the highest seq; a commit writes the other
//!   copy, so a torn write leaves the pool at the commit before.
//! - What commit N freed is handed out again only after N is durable and the live page says,
//!   fenced, that roots before N are no longer intact.
//! - After a commit that failed half-way nothing more is written.
//! - A pool that is `lazy` commits for readers only; a checkpoint makes the last commit durable,
//!   after the data that it points to. What the last checkpoint has is not handed out again before
//!   the next one.

use crate::error::{Error, Result};
use crate::format::geometry::SUPERBLOCK_PAGES;
use crate::format::superblock::{COUNTS, Consistency, Lane, Root, Superblock};
use crate::format::{LANES, PAGE, PAGE_LEN, TREES, live};
use crate::segment::Sizes;
use crate::snapshot::Newest;
use crate::space::{Bits, Kind, Run, Space};
use crate::tree::{Batch, Dirty, Parked, Reader};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem::take;
use core::sync::atomic::{Ordering::SeqCst, fence};
use holdfast_pmem::{Medium, Persistence, Region};

/// Commits whose roots readers may go on using when there is room.
const COMMITS_KEPT: usize = 8;
/// The same where commits replace much: what they keep from use must not make the trees spread.
const COMMITS_KEPT_MIN: usize = 1;
/// Commits that may have been shown to readers after the last durable one.
const SHOWN_MAX: u64 = 1 << 40;
/// Pages and blocks that may be kept from use for readers before fewer commits are kept.
const HELD_FREELY: u64 = 4096;

/// The right to write a pool. Only the service and offline tools make one.
pub struct WriteToken(());

impl WriteToken {
    /// For the service, which is the only writer while it holds the pool's lock.
    pub fn for_service() -> WriteToken {
        WriteToken(())
    }

    /// For a tool that holds the pool's lock itself.
    pub fn for_offline_tool() -> WriteToken {
        WriteToken(())
    }
}

/// What a new pool is to be.
#[derive(Clone, Debug)]
pub struct Params {
    pub uuid: [u8; 16],
    pub boot_id: [u8; 16],
    pub medium: Medium,
    pub consistency: Consistency,
    pub sizes: Sizes,
    pub next_ino: u64,
    pub journal_segment: u64,
    /// Bytes of each lane of the journal.
    pub lane_len: u64,
}

/// What a commit freed and a reader may still look at.
struct Held {
    seq: u64,
    pages: Vec<u64>,
    data: Vec<Run>,
}

/// Makes all bytes of data durable that were stored before.
pub type FlushData = Box<dyn Fn() -> Result<()> + Send>;

/// Data blocks that are not to be used again yet although the trees have freed them, or may do so:
/// runs apart from each other, in order.
pub type InUse = Box<dyn Fn() -> Vec<Run> + Send>;

/// The lowest commit whose roots a view reads and would lose if those below the one that is given
/// were given up; that one: none would.
pub type OldestView = Box<dyn Fn(u64) -> u64 + Send>;

/// A pool whose commits are made durable apart.
struct Lazy {
    flush_data: FlushData,
    /// The commit that is durable.
    checkpoint: u64,
    /// Of the held ones, those that only later commits freed.
    loose_meta: u64,
    loose_data: u64,
}

/// A pool and what its writer remembers of it.
pub struct Pool {
    pub(crate) meta: Region,
    pub(crate) superblock: Superblock,
    /// Which superblock copy is in force.
    copy: usize,
    pub(crate) meta_space: Space,
    pub(crate) data_space: Space,
    held: VecDeque<Held>,
    held_meta: u64,
    held_data: u64,
    oldest_view: Option<OldestView>,
    in_use: Option<InUse>,
    /// What the trees have freed and was in use at last.
    kept: Vec<Run>,
    pub(crate) poisoned: bool,
    lazy: Option<Lazy>,
    /// Readers are not shown any root yet.
    hidden: bool,
    /// Where each lane continues, as of the superblock on the medium.
    durable_lanes: [Lane; LANES],
    /// The newest snapshot: what it has is not freed when it leaves the present.
    pub(crate) newest: Option<Newest>,
    /// Pages that this writer wrote, so that their entries need no check.
    pub(crate) checked: Bits,
    /// Node buffers between batches.
    pub(crate) buffers: Dirty,
    /// A batch that its owner will go on with.
    pub(crate) parked: Option<Parked>,
}

impl Pool {
    /// Makes `meta` an empty pool.
    pub fn create(meta: Region, params: &Params, _: &WriteToken) -> Result<Pool> {
        let superblock = first_superblock(params);
        let geometry = superblock.geometry(meta.len() as u64)?;
        let zero = [0; PAGE];
        for page in SUPERBLOCK_PAGES {
            meta.write_nt(page * PAGE_LEN, &zero)?;
        }
        settle(&meta)?;
        let spaces = [
            Space::new(Kind::Meta, &geometry),
            Space::new(Kind::Data, &geometry),
        ];
        let mut pool = Pool::assemble(meta, superblock, 1, spaces);
        let first = pool.superblock.clone();
        pool.write_commit(first, 1)?;
        pool.give_up_before(1)?;
        Ok(pool)
    }

    /// Opens the pool in `meta` at its last commit, and shows its roots to readers.
    pub fn open(meta: Region, token: &WriteToken) -> Result<Pool> {
        let mut pool = Pool::open_hidden(meta, token)?;
        pool.show()?;
        Ok(pool)
    }

    /// Opens the pool in `meta` at its last durable commit. Readers that go on from an earlier
    /// service, which may have shown them later commits, wait until there is something to `show`.
    pub fn open_hidden(meta: Region, _: &WriteToken) -> Result<Pool> {
        let (superblock, copy) = Superblock::read(&meta)?;
        let geometry = superblock.geometry(meta.len() as u64)?;
        let seq = superblock.seq;
        let spaces = [
            Space::open(Kind::Meta, &geometry, &meta, seq)?,
            Space::open(Kind::Data, &geometry, &meta, seq)?,
        ];
        // Where the newest copy of a bitmap page is damaged, an older one was read: what has come
        // into use since would be handed out again.
        let counts = [superblock.used_pages, superblock.used_data_blocks];
        if spaces.each_ref().map(Space::count_used) != counts {
            return Err(Error::Damaged {
                what: "bitmap",
                page: spaces[0].place(),
            });
        }
        // The copies of later commits must be gone for good before their seq is used again.
        Superblock::forget_torn(&meta, 1 - copy)?;
        settle(&meta)?;
        let mut pool = Pool::assemble(meta, superblock, copy, spaces);
        // No commit has the number of one that readers saw and that never became durable.
        let shown = live::newest(&pool.meta).unwrap_or(0);
        if (seq + 1..seq.saturating_add(SHOWN_MAX)).contains(&shown) {
            pool.superblock.seq = shown + 1;
        }
        live::hide(&pool.meta)?;
        pool.give_up_before(pool.superblock.seq)?;
        pool.hidden = true;
        pool.newest = pool.find_newest()?;
        Ok(pool)
    }

    /// Shows the last commit to readers.
    pub fn show(&mut self) -> Result<()> {
        let sb = &self.superblock;
        live::publish(&self.meta, sb.seq, sb.applied_seq, &sb.roots)?;
        self.hidden = false;
        Ok(())
    }

    /// From now on commits are for readers only, until a checkpoint makes the last one durable.
    pub fn be_lazy(&mut self, flush_data: FlushData) {
        self.lazy = Some(Lazy {
            flush_data,
            checkpoint: self.superblock.seq,
            loose_meta: 0,
            loose_data: 0,
        });
    }

    /// Whether there are commits that a checkpoint would make durable.
    pub fn is_loose(&self) -> bool {
        let lazy = self.lazy.as_ref();
        lazy.is_some_and(|lazy| lazy.checkpoint != self.superblock.seq)
    }

    /// Makes the last commit durable: first the data that it points to, then nodes and bitmaps,
    /// then the superblock. A failure of the first changes nothing; nothing happens while a batch
    /// is parked.
    pub fn checkpoint(&mut self) -> Result<()> {
        // The bitmaps of a parked batch are between two commits.
        let Some(lazy) = self
            .lazy
            .as_ref()
            .filter(|_| self.is_loose() && !self.is_parked())
        else {
            return Ok(());
        };
        if self.poisoned {
            return Err(Error::Poisoned);
        }
        (lazy.flush_data)()?;
        self.poisoned = true;
        self.write_durably(&self.superblock.clone())?;
        if let Some(lazy) = &mut self.lazy {
            lazy.checkpoint = self.superblock.seq;
            (lazy.loose_meta, lazy.loose_data) = (0, 0);
        }
        self.poisoned = false;
        Ok(())
    }

    /// Where each lane continues, as of the superblock on the medium: what is before that is not
    /// needed any more.
    pub fn durable_lanes(&self) -> [Lane; LANES] {
        self.durable_lanes
    }

    fn assemble(meta: Region, superblock: Superblock, copy: usize, spaces: [Space; 2]) -> Self {
        let [meta_space, data_space] = spaces;
        let checked = Bits::new(meta_space.len().div_ceil(64) as usize);
        let durable_lanes = superblock.lanes;
        Pool {
            meta,
            lazy: None,
            hidden: false,
            durable_lanes,
            superblock,
            copy,
            meta_space,
            data_space,
            held: VecDeque::new(),
            held_meta: 0,
            held_data: 0,
            oldest_view: None,
            in_use: None,
            kept: Vec::new(),
            poisoned: false,
            newest: None,
            checked,
            buffers: Dirty::default(),
            parked: None,
        }
    }

    /// The state that the last commit left.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The mapping of `meta.seg`.
    pub fn meta(&self) -> &Region {
        &self.meta
    }

    /// Reads the committed trees.
    pub fn reader(&self) -> Reader<'_> {
        Reader::new(&self.meta)
    }

    /// Starts a set of changes.
    pub fn begin(&mut self, _: &WriteToken) -> Batch<'_> {
        assert!(!self.is_parked(), "a batch is begun while one is parked");
        Batch::new(self)
    }

    /// Pages of `meta.seg`.
    pub fn meta_space(&self) -> &Space {
        &self.meta_space
    }

    /// Data blocks.
    pub fn data_space(&self) -> &Space {
        &self.data_space
    }

    /// Hands out up to `want` free data blocks, aligned when possible. Nothing is written: a
    /// grant is forgotten when the pool is closed.
    pub fn grant(&mut self, want: u64, align: u64) -> Result<Run> {
        if let Some(run) = self.data_space.alloc_run(want, align) {
            return Ok(run);
        }
        self.reclaim()?;
        self.data_space
            .alloc_best(want, align)
            .ok_or(Error::NoSpace)
    }

    /// Hands out a whole extent of free data blocks that is resident.
    pub fn grant_resident(&mut self) -> Option<Run> {
        self.data_space.alloc_resident()
    }

    /// Hands out `len` free data blocks that begin at a multiple of `len`.
    pub fn grant_whole(&mut self, len: u64) -> Option<Run> {
        self.data_space.alloc_run(len, len)
    }

    /// Data blocks that were freed and that a reader may still look at.
    pub fn data_held(&self) -> u64 {
        self.held_data
    }

    /// The memory behind free data blocks was given back.
    pub fn punched(&mut self, run: Run) {
        self.data_space.punched(run);
    }

    /// The memory behind free pages of the trees was given back.
    pub fn punched_trees(&mut self, run: Run) {
        self.meta_space.punched(run);
    }

    /// Hands out exactly `run`.
    pub fn grant_again(&mut self, run: Run) -> Result<()> {
        self.data_space.reserve(run)
    }

    /// Takes back granted blocks that were never used.
    pub fn ungrant(&mut self, run: Run) -> Result<()> {
        self.data_space.release(run)
    }

    /// Gives up all older roots, so that everything they alone can reach is free, but for what is
    /// free only after the next checkpoint while a batch is parked. Not while one is under way.
    pub fn reclaim(&mut self) -> Result<()> {
        self.checkpoint()?;
        self.release_all()
    }

    /// As `reclaim`, but for what is free only after the next checkpoint.
    pub(crate) fn release_all(&mut self) -> Result<()> {
        self.release_held(0)
    }

    /// Frees what no view reads: for when there are no commits that would.
    pub fn rest(&mut self) -> Result<()> {
        self.release_held(self.held_for_views(0))
    }

    /// Has memory of the host behind what a commit of `need` nodes writes. `HostFull`: there is not
    /// as much; nothing was written.
    pub fn back(&mut self, need: u64) -> Result<()> {
        let Pool { meta, .. } = self;
        let data = self.data_space.back_bitmap(meta, 0);
        if data && self.meta_space.back(meta, need) {
            return Ok(());
        }
        self.release_all()?;
        match data && self.meta_space.back(&self.meta, need) {
            true => Ok(()),
            false => Err(Error::HostFull),
        }
    }

    /// The host says that there is memory behind these pages of `meta.seg`.
    pub fn found_resident(&mut self, pages: Run) {
        self.meta_space.found(pages);
    }

    /// Pages of `meta.seg` that commits can still fill.
    pub fn pages_left(&self) -> u64 {
        self.meta_space.count_free() + self.held_meta
    }

    /// Pages that commits can fill before the next checkpoint.
    pub fn pages_ready(&self) -> u64 {
        self.pages_left() - self.lazy.as_ref().map_or(0, |lazy| lazy.loose_meta)
    }

    /// Data blocks that `grant` can still hand out.
    pub fn blocks_left(&self) -> u64 {
        self.data_space.count_free() + self.held_data
    }

    /// Gives the segments other lengths, in bytes; both are long enough for old and new. The trees
    /// never become shorter, and data only where nothing is at the end.
    pub fn resize(&mut self, meta_len: u64, data_len: u64, token: &WriteToken) -> Result<()> {
        if meta_len > self.meta.len() as u64 || meta_len > self.superblock.meta_len_max {
            return Err(Error::Geometry {
                what: "the pool cannot grow to this size",
            });
        }
        self.reclaim()?;
        self.meta_space.grow(meta_len / PAGE_LEN, &self.meta)?;
        let blocks = data_len / PAGE_LEN;
        if blocks >= self.data_space.len() {
            self.grow_data(data_len)?;
        } else if !self.data_space.shrink(blocks) {
            let least = self.data_space.end_in_use() * PAGE_LEN;
            return Err(Error::EndInUse { least });
        }
        self.begin(token).commit(|_| {}).map(drop)
    }

    /// Makes room for `len` bytes of data, more than there is, for which the segment is long
    /// enough. The pool stays in use; on failure it is as it was.
    pub fn grow(&mut self, len: u64, token: &WriteToken) -> Result<()> {
        let before = self.data_space.len();
        self.grow_data(len)?;
        let done = self.begin(token).commit(|_| {}).map(drop);
        if done.is_err() {
            let shrunk = self.data_space.shrink(before);
            debug_assert!(shrunk, "nobody was given anything of the new room");
        }
        done
    }

    pub(crate) fn grow_data(&mut self, len: u64) -> Result<()> {
        if !len.is_multiple_of(PAGE_LEN) || len > self.superblock.data_len_max {
            return Err(Error::Geometry {
                what: "the pool cannot grow to this size",
            });
        }
        self.data_space.grow(len / PAGE_LEN, &self.meta)
    }

    /// Writes bitmaps, then superblock `next` as commit `seq`, then the live page; a lazy pool only
    /// the latter. The nodes are already written, not yet durable.
    pub(crate) fn write_commit(&mut self, next: Superblock, seq: u64) -> Result<()> {
        let old = &self.superblock;
        let next = Superblock {
            uuid: old.uuid,
            seq,
            // Where it lies now, whatever it was made on.
            medium: self.meta.medium(),
            meta_len: self.meta_space.len() * PAGE_LEN,
            meta_len_max: old.meta_len_max,
            data_len: self.data_space.len() * PAGE_LEN,
            data_len_max: old.data_len_max,
            used_data_blocks: self.data_space.count_used(),
            used_pages: self.meta_space.count_used(),
            ..next
        };
        if self.lazy.is_none() {
            self.write_durably(&next)?;
        } else {
            self.meta.fence();
        }
        if !self.hidden {
            live::publish(&self.meta, seq, next.applied_seq, &next.roots)?;
        }
        self.superblock = next;
        Ok(())
    }

    fn write_durably(&mut self, next: &Superblock) -> Result<()> {
        self.meta_space.write(&self.meta, next.seq)?;
        self.data_space.write(&self.meta, next.seq)?;
        settle(&self.meta)?;
        let copy = 1 - self.copy;
        self.meta
            .write_nt(SUPERBLOCK_PAGES[copy] * PAGE_LEN, &next.encode())?;
        settle(&self.meta)?;
        self.copy = copy;
        self.durable_lanes = next.lanes;
        Ok(())
    }

    /// Remembers what commit `seq` freed, and frees what old enough commits did.
    pub(crate) fn hold(&mut self, seq: u64, pages: Vec<u64>, data: Vec<Run>) {
        let blocks = data.iter().map(|run| run.len).sum::<u64>();
        self.held_meta += pages.len() as u64;
        self.held_data += blocks;
        if let Some(lazy) = &mut self.lazy {
            lazy.loose_meta += pages.len() as u64;
            lazy.loose_data += blocks;
        }
        self.held.push_back(Held { seq, pages, data });
        let keep = match self.held.len() {
            n if n > 2 * COMMITS_KEPT => COMMITS_KEPT,
            n if n > COMMITS_KEPT_MIN && self.holds_much() => COMMITS_KEPT_MIN,
            _ => return,
        };
        let keep = self.held_for_views(keep);
        // The live page was writable a moment ago, when the commit was published.
        self.poisoned |= self.release_held(keep).is_err();
    }

    fn holds_much(&self) -> bool {
        let freely = |all: u64| (all / 64).min(HELD_FREELY);
        self.held_meta > freely(self.meta_space.len())
            || self.held_data > freely(self.data_space.len())
    }

    /// From now on what views read stays, until what is kept from use for them is more than a
    /// quarter of what there is.
    pub fn keep_for_views(&mut self, oldest_view: OldestView) {
        self.oldest_view = Some(oldest_view);
    }

    /// How many of the last commits have freed what a view still needs, or are the last `keep`.
    fn held_for_views(&self, keep: usize) -> usize {
        let tight = |held: u64, free: u64| held > free / 3;
        let (Some(oldest_view), Some(last)) = (
            &self.oldest_view,
            (self.held.len().checked_sub(keep + 1)).and_then(|last| self.held.get(last)),
        ) else {
            return keep;
        };
        if tight(self.held_meta, self.meta_space.count_free())
            || tight(self.held_data, self.data_space.count_free())
        {
            return keep;
        }
        let oldest = oldest_view(last.seq);
        let gone = self.held.partition_point(|held| held.seq <= oldest);
        keep.max(self.held.len() - gone)
    }

    /// Frees what all but the last `keep` commits freed, as far as that is durable.
    fn release_held(&mut self, keep: usize) -> Result<()> {
        let durable = match &self.lazy {
            None => self.held.len(),
            Some(lazy) => self
                .held
                .partition_point(|held| held.seq <= lazy.checkpoint),
        };
        let gone = self.held.len().saturating_sub(keep).min(durable);
        let mut freed = take(&mut self.kept);
        if let Some(last) = gone.checked_sub(1).and_then(|i| self.held.get(i)) {
            self.give_up_before(last.seq)?;
        }
        for held in self.held.drain(..gone) {
            self.held_meta -= held.pages.len() as u64;
            for page in held.pages {
                self.meta_space.release(Run::new(page, 1))?;
            }
            self.held_data -= held.data.iter().map(|run| run.len).sum::<u64>();
            freed.extend(held.data);
        }
        self.free_unless_in_use(&freed)
    }

    /// From now on data blocks that are `in_use` are kept when the trees free them, until they are
    /// not; what of them is free now is kept at once.
    pub fn keep_in_use(&mut self, in_use: InUse) {
        for run in in_use() {
            while let Some(free) = self.data_space.next_free(run.start, run.end()) {
                // It was free: taking it cannot fail.
                self.poisoned |= self.data_space.reserve(free).is_err();
                self.kept.push(free);
            }
        }
        self.in_use = Some(in_use);
    }

    /// Nobody has anything in use any more.
    pub fn end_use(&mut self) -> Result<()> {
        self.in_use = None;
        self.oldest_view = None;
        let kept = take(&mut self.kept);
        self.free_unless_in_use(&kept)
    }

    fn free_unless_in_use(&mut self, freed: &[Run]) -> Result<()> {
        if freed.is_empty() {
            return Ok(());
        }
        // Roots that are given up come first: who has found something in use there since says so
        // before it looks whether its root still counts.
        fence(SeqCst);
        let in_use = self.in_use.as_ref().map_or(Vec::new(), |in_use| in_use());
        for run in freed {
            let mut at = run.start;
            let first = in_use.partition_point(|used| used.end() <= run.start);
            for used in in_use[first..]
                .iter()
                .take_while(|used| used.start < run.end())
            {
                let (from, to) = (used.start.max(at), used.end().min(run.end()));
                self.release_data(at, from)?;
                self.kept.push(Run::new(from, to - from));
                at = to;
            }
            self.release_data(at, run.end())?;
        }
        Ok(())
    }

    fn release_data(&mut self, from: u64, to: u64) -> Result<()> {
        match to > from {
            true => self.data_space.release(Run::new(from, to - from)),
            false => Ok(()),
        }
    }

    /// Tells readers that roots before `seq` are no longer intact, before anything changes that
    /// they can reach.
    fn give_up_before(&mut self, seq: u64) -> Result<()> {
        live::set_oldest_intact(&self.meta, seq)?;
        self.meta.fence();
        Ok(())
    }
}

fn first_superblock(params: &Params) -> Superblock {
    let sizes = params.sizes;
    Superblock {
        uuid: params.uuid,
        seq: 0,
        boot_id: params.boot_id,
        medium: params.medium,
        consistency: params.consistency,
        clean: true,
        in_place: false,
        meta_len: sizes.meta_len,
        meta_len_max: sizes.meta_len_max,
        data_len: sizes.data_len,
        data_len_max: sizes.data_len_max,
        next_ino: params.next_ino,
        applied_seq: 0,
        used_data_blocks: 0,
        journal_segment: params.journal_segment,
        counts: [0; COUNTS],
        roots: [Root::default(); TREES],
        lanes: [Lane::default(); LANES],
        used_pages: 0,
        epoch: 0,
        lane_len: params.lane_len,
    }
}

/// Makes everything written so far durable, as the medium needs it.
fn settle(meta: &Region) -> Result<()> {
    meta.fence();
    if meta.persistence() == Persistence::Synced {
        meta.sync(0, meta.len())?;
    }
    Ok(())
}
