//! A pool and the journal of the session that may change it.
//!
//! Invariants:
//!  * `done` says for each lane what the trees have; it becomes durable with the trees.
//!  * `granted` has the blocks that records may use; a block leaves it when a record takes it.

use super::lane::{Buffers, Lane};
use super::order::Order;
use super::progress::set_positions;
use super::replay::Replay;
use super::runs::Runs;
use super::spill::Spill;
use crate::base::error::Result;
use crate::base::files::{self, Files};
use crate::store::Store;
use holdfast_pmem::{Access, Medium, Region};
use holdfast_pool::apply::Carry;
use holdfast_pool::bytes::Bytes;
use holdfast_pool::format::LANES;
use holdfast_pool::format::superblock;
use holdfast_pool::space::Run;

/// Blocks of a free run that are given back to the medium when a session ends.
const WORTH_PUNCHING: u64 = 128;
/// Records of one lane that are read ahead of what is applied; of their bytes never more than the
/// lane has room for, so that clients cannot fill our memory.
pub const AHEAD_MAX: usize = 4 * 1024;

/// What belongs to one session: its journal, and the blocks that its records may use.
pub struct Journal {
    pub region: Region,
    /// Bytes of each lane.
    pub lane_len: u64,
    pub granted: Runs,
    pub lanes: Vec<Lane>,
    pub order: Order,
    pub done: [superblock::Lane; LANES],
    pub buffers: Buffers,
    pub carry: Carry,
    /// The highest number of a record that is in the trees.
    pub newest: u64,
    /// Records below this number may have been written while an earlier service was there.
    pub again_below: u64,
    /// While the pool is recovered.
    pub replay: Option<Replay>,
    /// A record that is applied in parts.
    pub spill: Option<Spill>,
}

/// The pool and the journal of its session.
pub struct Engine {
    pub store: Store,
    pub journal: Journal,
}

impl Journal {
    /// The journal of the pool, from where the last commit left it.
    fn open(store: &Store) -> Result<Journal> {
        let files = &store.files;
        files.shed_large_folios();
        let len = files.journal_len();
        let region = files::map(&files.journal, len, Access::ReadWrite, files.medium)?;
        let superblock = store.pool.superblock();
        if superblock.clean {
            // Nothing will be read but what lies at the ends of the lanes.
            region.expect_random();
        }
        let (lanes, lane_len) = (superblock.lanes.iter().enumerate(), superblock.lane_len);
        Ok(Journal {
            region,
            lane_len,
            granted: Runs::new(store.pool.data_space().len()),
            lanes: lanes
                .map(|(i, l)| Lane::new(i, lane_len, l.start, l.applied))
                .collect(),
            order: Order::new(LANES, superblock.applied_seq + 1),
            done: superblock.lanes,
            buffers: Buffers::default(),
            carry: Carry::default(),
            newest: superblock.applied_seq,
            again_below: 0,
            replay: None,
            spill: None,
        })
    }

    /// Whether an earlier service may have read what is applied next.
    pub fn is_again(&self) -> bool {
        self.replay.is_some() || self.order.next_seq() < self.again_below
    }

    /// Everything up to here is in the trees, or void.
    pub fn applied_seq(&self) -> u64 {
        self.order.next_seq() - 1
    }

    /// Reads what the lanes have to offer, up to `ahead` records of each that wait to be applied;
    /// says whether there was anything. A lane with something to read always has its next record
    /// waiting, so the lowest number that exists is never overlooked.
    pub fn read(&mut self, ahead: usize) -> bool {
        let before = self.order.waiting();
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            let (start, len) = (self.done[index].start, self.lane_len);
            let within = |lane: &Lane| lane.position().saturating_sub(start) < len;
            while self.order.waiting_in(index) < ahead && within(lane) {
                let Some(entry) = lane.next(&self.region, &mut self.buffers) else {
                    break;
                };
                self.order.push(entry);
            }
        }
        self.order.waiting() > before
    }

    /// Where the reading of a lane has come to.
    pub fn lane(&self, index: usize) -> Option<&Lane> {
        self.lanes.get(index)
    }

    /// Reads the rest of a lane from a position ahead, where a record was found behind damage;
    /// where it ends then.
    pub fn read_on(&mut self, index: usize, position: u64) -> u64 {
        let Some(lane) = self.lanes.get_mut(index) else {
            return position;
        };
        lane.skip_to(position);
        self.read(usize::MAX);
        self.lanes.get(index).map_or(position, Lane::position)
    }

    /// The highest number of a record that is in the trees.
    pub fn newest_applied(&self) -> u64 {
        self.newest
    }

    /// All numbers below `next` are behind us, in every lane.
    pub fn reset_lanes(&mut self, next: u64) {
        self.order = Order::new(LANES, next.max(self.order.next_seq()));
        let last = self.order.next_seq() - 1;
        for (i, lane) in self.lanes.iter_mut().enumerate() {
            self.done[i] = superblock::Lane {
                start: lane.position(),
                applied: last,
            };
            *lane = Lane::new(i, self.lane_len, lane.position(), last);
        }
    }
}

impl Engine {
    /// Opens the pool of `files` at its last commit. On an ordinary file readers are shown nothing
    /// yet: those of an earlier service may have seen more.
    pub fn open(files: Files) -> Result<Engine> {
        let store = Store::open(files)?;
        let journal = Journal::open(&store)?;
        Ok(Engine { store, journal })
    }

    /// Where each lane continues of which everything before is in the trees, durably.
    pub fn passed(&self) -> [superblock::Lane; LANES] {
        match self.store.files.medium {
            Medium::File => self.store.pool.durable_lanes(),
            _ => self.journal.done,
        }
    }

    /// Makes durable how far the lanes are behind us.
    pub fn commit_positions(&mut self) -> Result<()> {
        let (done, applied) = (self.journal.done, self.journal.applied_seq());
        self.store.note(|sb| set_positions(sb, done, applied))
    }

    /// Closes the pool: nothing is in any journal.
    pub fn close(&mut self) -> Result<()> {
        let (done, applied) = (self.journal.done, self.journal.applied_seq());
        let in_place = self.store.in_place;
        self.store.note(|sb| {
            sb.in_place = in_place;
            sb.lanes = done;
            sb.applied_seq = applied;
            sb.clean = true;
        })
    }

    /// Empties the journal, so that no record of a dead session is ever read again. Everything
    /// in it must be applied or given up.
    /// On an ordinary file the blocks of the journal stay its own: a flush of the journal must have
    /// nothing to do but to write pages.
    pub fn wipe_journal(&mut self) -> Result<()> {
        let len = self.store.files.journal_len();
        let keeps = self.store.files.medium == Medium::File;
        if keeps || !files::punch(&self.store.files.journal, &self.journal.region, 0, len) {
            self.journal.region.zero_nt(0, len as usize)?;
        }
        self.journal.region.fence();
        self.journal.region.sync(0, len as usize)?;
        Ok(())
    }

    /// Makes the free ones of these blocks a grant: they were one before a restart.
    pub fn grant_again(&mut self, block: u64, len: u64) {
        let end = block.saturating_add(len);
        let mut at = block;
        while let Some(run) = self.store.pool.data_space().next_free(at, end) {
            if self.store.pool.grant_again(run).is_ok() {
                self.journal.granted.insert(run.start, run.len);
            }
            at = run.end();
        }
    }

    /// Takes a grant back that was not used.
    pub fn ungrant(&mut self, run: Run) {
        if self.journal.granted.contains(run.start, run.len) {
            self.journal.granted.remove(run.start, run.len);
            self.store.take_back(run);
        }
    }

    /// Takes every grant back; the memory behind it goes back to the medium, but for single blocks
    /// amid others: for those a huge page would be broken up.
    pub fn ungrant_all(&mut self) {
        let none = Runs::new(self.store.pool.data_space().len());
        let granted = std::mem::replace(&mut self.journal.granted, none);
        for (block, len) in granted.iter() {
            let run = Run::new(block, len);
            self.store.take_back(run);
            if len >= WORTH_PUNCHING {
                self.store.punch(run);
            }
        }
    }

    /// As `Store::tend_checkpoint`.
    pub fn tend_checkpoint(&mut self, now: bool) -> Result<bool> {
        let used = self.journal_used();
        self.store.tend_checkpoint(now, used)
    }

    /// Keeps what is in the trees now as the snapshot `name`, while these files are mapped.
    pub fn snapshot_create(&mut self, name: &[u8], mapped: &[u64]) -> Result<()> {
        self.end_spill(true)?;
        self.store.snapshot_create(name, mapped)
    }

    /// Removes the snapshot `name` and frees what it alone has.
    pub fn snapshot_delete(&mut self, name: &[u8]) -> Result<()> {
        self.end_spill(true)?;
        self.store.snapshot_delete(name)
    }

    /// Calls the snapshot `name` something else.
    pub fn snapshot_rename(&mut self, name: &[u8], to: &[u8]) -> Result<()> {
        self.end_spill(true)?;
        self.store.snapshot_rename(name, to)
    }

    /// Makes room for `size` bytes of data while the pool is in use; how many it has then.
    pub fn grow(&mut self, size: u64) -> Result<u64> {
        let superblock = self.store.pool.superblock();
        let size = self.store.files.check_growth(superblock, size)?;
        self.end_spill(true)?;
        self.store.grow(size)?;
        self.journal
            .granted
            .grow(self.store.pool.data_space().len());
        tracing::info!("the pool has room for {} of data", Bytes(size));
        Ok(size)
    }

    /// Bytes of the journal that only a checkpoint frees.
    fn journal_used(&self) -> u64 {
        let durable = self.store.pool.durable_lanes();
        let pairs = self.journal.done.into_iter().zip(durable);
        pairs.map(|(now, then)| now.start - then.start).sum()
    }
}
