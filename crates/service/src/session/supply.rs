//! Keeping the table of free extents filled.
//!
//! Invariants:
//!  * What was handed out is in `Engine::granted` and in the file of grants before a client can see
//!    it; records are validated against that, never against session memory.
//!  * The host has set memory aside for every block that is handed out, so that a store to it
//!    cannot fail later. What is resident comes first, so free space that is resident stays in
//!    proportion to what is used (`Stock`).
//!  * How much is left is asked of session memory; a wrong answer costs the session its own space.

use crate::base::error::Result;
use crate::journal::engine::Engine;
use crate::session::extents::Extents;
use crate::session::granted_file::GrantedFile;
use crate::session::memory::Memory;
use crate::session::search::{Need, Search};
use holdfast_pool::session::{RING_EXTENTS, WHOLE_BLOCKS};
use holdfast_pool::space::Run;
use std::sync::atomic::Ordering::*;

/// Whole extents kept ahead of an idle session, and of one that uses them up fast.
const AHEAD_MIN: u64 = 2;
const AHEAD_MAX: u64 = 32;
/// Whole extents that are kept for those who want many blocks in a row while others wait for what
/// comes back.
const KEPT: u64 = 2;
/// Whole extents handed out in one turn, so that others do not wait long.
const TURN_MAX: u64 = 4;
/// Processes that keep their cached extents while the session rests: what they write next is
/// mapped already.
const CACHED_AT_REST: usize = 8;
/// After so many turns in which nothing came out of use nobody overwrites.
const CALM: u32 = 16;
/// Free blocks that are resident or on the way to that before those who overwrite have to wait for
/// them: so many, or this part of those in use.
const RETURNING_MIN: u64 = 16 * 1024;
const RETURNING_PART: u64 = 4;
/// With so many of them beside one and a half times those in use nobody gets memory that was not
/// used before while there is any short extent, however many blocks in a row it wants.
const PLENTY: u64 = 16 * 1024;
/// Free pages of the trees below which nothing more is handed out, so that there is always room
/// to erase.
const META_RESERVE: u64 = 512;

/// What there is of the pool's blocks in one turn.
#[derive(Clone, Copy, Debug)]
struct Stock {
    used: u64,
    /// Handed out, and not in use as far as records were applied.
    granted: u64,
    /// Freed, but for readers of older roots.
    returning: u64,
    /// Free and resident.
    resident: u64,
    /// Blocks that clients asked for.
    wanted: u64,
}

/// How many whole extents there should be, and which.
#[derive(Clone, Copy, Debug)]
struct Goal {
    extents: u64,
    /// With so many none is added that is not resident.
    most: u64,
    /// They may be made huge pages.
    huge: bool,
}

/// Supplies one session.
pub struct Supply {
    file: GrantedFile,
    table: Extents,
    search: Search,
    /// Whole extents to be kept ahead.
    ahead: u64,
    /// Blocks that had come out of use at the last look, and turns since there were more.
    freed: u64,
    calm: u32,
    /// `Engine::applied_seq` when everything was taken back.
    rested: u64,
    /// The first extents were handed out: what is missing now was used up.
    begun: bool,
    full: bool,
}

impl Stock {
    fn of(engine: &Engine, wanted: u32) -> Stock {
        let space = engine.store.pool.data_space();
        Stock {
            used: space.count_used(),
            granted: engine.journal.granted.len(),
            returning: engine.store.pool.data_held(),
            resident: space.count_resident(),
            wanted: wanted.into(),
        }
    }

    /// Blocks with memory behind them that hold nothing.
    fn spare(&self) -> u64 {
        self.granted + self.returning + self.resident
    }
}

impl Supply {
    /// For a new session.
    pub fn start(engine: &Engine, memory: &Memory) -> Result<Supply> {
        Ok(Supply::new(engine, memory, GrantedFile::begin(engine)?))
    }

    /// For a session that lived on without its service: what it was granted is granted still.
    pub fn again(engine: &mut Engine, memory: &Memory) -> Result<Supply> {
        let file = GrantedFile::resume(engine)?;
        Ok(Supply::new(engine, memory, file))
    }

    fn new(engine: &Engine, memory: &Memory, file: GrantedFile) -> Supply {
        Supply {
            file,
            table: Extents::resume(memory),
            search: Search::default(),
            ahead: AHEAD_MIN,
            freed: engine.store.pool.data_space().freed(),
            calm: CALM,
            rested: engine.journal.applied_seq(),
            begun: false,
            full: false,
        }
    }

    /// Hands out what the session needs; returns whether more is needed at once.
    pub fn top_up(&mut self, engine: &mut Engine, memory: &Memory) -> bool {
        let wanted = memory.header().blocks_wanted.swap(0, AcqRel);
        let gone = self.look(engine, memory);
        let stock = Stock::of(engine, wanted);
        let wait = self.should_wait(engine, &stock);
        let kept = if wait { KEPT } else { 0 };
        let fewer_kept = u64::from(memory.header().whole_kept.swap(kept as u32, AcqRel)) > kept;
        self.supply_short(engine, memory, wait, wanted > 0);
        let extents = self.goal(engine, gone, &stock);
        let plenty = self.is_plenty(&stock);
        let most = match () {
            () if plenty => 0,
            () if wait => KEPT,
            () => extents,
        };
        // The first ones are not made huge pages: a program would wait for that.
        let huge = std::mem::replace(&mut self.begun, true);
        let goal = Goal {
            extents,
            most,
            huge,
        };
        let new = self.supply_whole(engine, memory, goal);
        let last = self.table.whole() == 0 && self.table.short() < WHOLE_BLOCKS;
        if last && !wait && !plenty {
            self.supply_the_last(engine, memory);
        }
        if new > 0 || wanted > 0 || fewer_kept {
            memory.tick();
        }
        let nothing = self.table.short() == 0 && (wait || self.table.whole() == 0);
        if wanted > 0 && nothing && (wait || engine.store.makes_room()) {
            // Whoever waits gets something of what the next commit frees, or what records removed.
            memory.header().blocks_wanted.fetch_max(wanted, AcqRel);
            return true;
        }
        !self.full && self.table.whole() < extents && new > 0
    }

    /// Sees what clients took, how many whole extents, and takes what they gave back.
    fn look(&mut self, engine: &mut Engine, memory: &Memory) -> u64 {
        let gone = self.table.look(memory);
        let given_back = self.table.collect(memory);
        ungrant(engine, given_back);
        gone
    }

    /// Whether so much is on its way, between being handed out and being free again, that those who
    /// overwrite should wait for it rather than get memory that was not used before: else a writer
    /// that is faster than we are makes the pool grow for as long as the journal has room. Once
    /// nothing comes back any more, nobody waits, nor while there are whole extents that are
    /// resident: with short ones alone, writers would wait again and again.
    fn should_wait(&mut self, engine: &Engine, stock: &Stock) -> bool {
        let space = engine.store.pool.data_space();
        let freed = std::mem::replace(&mut self.freed, space.freed());
        self.calm = match freed == self.freed {
            true => self.calm.saturating_add(1),
            false => 0,
        };
        let most = RETURNING_MIN.max(stock.used / RETURNING_PART);
        self.calm < CALM && stock.spare() >= most && space.resident_whole().is_none()
    }

    /// Whether so much is free, or about to be, that short extents have to do.
    fn is_plenty(&self, stock: &Stock) -> bool {
        stock.spare() >= stock.used / 2 * 3 + PLENTY && self.table.short() > 0
    }

    /// How many whole extents there should be when `gone` were used in the last turn.
    fn goal(&mut self, engine: &Engine, gone: u64, stock: &Stock) -> u64 {
        self.ahead = match gone {
            0 => (self.ahead - 1).max(AHEAD_MIN),
            _ if 2 * gone > self.ahead => (2 * self.ahead).min(AHEAD_MAX),
            _ => self.ahead,
        };
        let share = engine.store.pool.data_space().len() / WHOLE_BLOCKS / 8;
        let wanted = stock.wanted.div_ceil(WHOLE_BLOCKS);
        let wanted = wanted.min(RING_EXTENTS as u64 / 8);
        self.ahead.min(share.max(1)).max(wanted)
    }

    fn is_resting(&self, engine: &Engine) -> bool {
        self.rested == engine.journal.applied_seq()
    }

    /// Hands out what is free between blocks that are in use.
    fn supply_short(&mut self, engine: &mut Engine, memory: &Memory, wait: bool, wanted: bool) {
        let need = match self.is_resting(engine) && !wanted {
            true => Need::Rest,
            false => Need::Work,
        };
        self.supply(engine, memory, need);
        let none = self.table.short() == 0 && (wait || self.table.whole() == 0);
        if none && engine.store.pool.data_held() > 0 {
            // Those who look at what the last commits freed look again.
            engine.store.release_unread();
            self.supply(engine, memory, need);
        }
    }

    /// Hands out short extents; says whether there were any.
    fn supply(&mut self, engine: &mut Engine, memory: &Memory, need: Need) -> bool {
        if !has_reserve(engine) {
            return false;
        }
        let extents = self.search.short(engine, &self.table, need);
        !extents.is_empty() && self.hand_out(engine, memory, extents)
    }

    /// Hands out whole extents until there are as many; how many. To make one a huge page takes
    /// many times as long as a client takes to fill it: there is time for that only while enough is
    /// left.
    fn supply_whole(&mut self, engine: &mut Engine, memory: &Memory, goal: Goal) -> u64 {
        let mut new = 0;
        while self.table.whole() < goal.extents && new < TURN_MAX && has_reserve(engine) {
            let whole = self.table.whole();
            let huge = goal.huge && whole > 0 && 2 * whole >= goal.extents;
            let Some(extent) = self.search.whole(engine, whole < goal.most, huge) else {
                break;
            };
            if !self.hand_out(engine, memory, vec![extent]) {
                break;
            }
            if huge {
                // The others may not be huge pages.
                self.table.put_last_first(memory);
            }
            new += 1;
        }
        new
    }

    /// There is no whole extent: once everything else is used up, what readers of older roots keep
    /// from use and what has no memory behind it is handed out, too.
    fn supply_the_last(&mut self, engine: &mut Engine, memory: &Memory) {
        engine.store.release();
        self.search.begin_anew();
        let more = self.supply(engine, memory, Need::Last);
        let nothing = self.table.whole() + self.table.short() == 0;
        if !more && nothing && !engine.store.makes_room() {
            self.set_full(memory, true);
        }
    }

    /// Lets clients have what was granted.
    fn hand_out(&mut self, engine: &mut Engine, memory: &Memory, extents: Vec<Run>) -> bool {
        let done = self.file.add(engine, &extents);
        match done {
            true => {
                self.table.publish(memory, &extents);
                self.set_full(memory, false);
            }
            false => ungrant(engine, extents),
        }
        done
    }

    /// Takes back what an idle session does not need; the memory behind it can go back to the host.
    pub fn take_back(&mut self, engine: &mut Engine, memory: &Memory) {
        self.look(engine, memory);
        self.ahead = AHEAD_MIN;
        let rest = self.table.take_whole_back(memory, AHEAD_MIN as usize);
        ungrant(engine, rest);
        if !self.is_resting(engine) {
            self.rested = engine.journal.applied_seq();
            engine.store.release_unread();
            // What is around a short extent may be free by now.
            self.take_short_back(engine, memory, CACHED_AT_REST);
            self.supply(engine, memory, Need::Rest);
        }
    }

    /// Takes back what a session had in which nobody is.
    pub fn take_all_back(&mut self, engine: &mut Engine, memory: &Memory) {
        self.look(engine, memory);
        self.rested = engine.journal.applied_seq();
        self.begun = false;
        ungrant(engine, self.table.take_whole_back(memory, 0));
        self.take_short_back(engine, memory, 0);
    }

    fn take_short_back(&mut self, engine: &mut Engine, memory: &Memory, keep: usize) {
        ungrant(engine, self.table.take_short_back(memory, keep));
        self.search.begin_anew();
    }

    fn set_full(&mut self, memory: &Memory, full: bool) {
        if full && !self.full {
            tracing::warn!("the pool is full");
        }
        self.full = full;
        memory.header().out_of_space.store(full.into(), Release);
    }
}

/// What the session says is its own risk; only what was granted is taken back.
fn ungrant(engine: &mut Engine, extents: Vec<Run>) {
    extents
        .into_iter()
        .for_each(|extent| engine.ungrant(extent));
}

/// Whether the pool has room, and the trees have enough left to erase after more was written.
fn has_reserve(engine: &mut Engine) -> bool {
    if engine.store.pool.meta_space().count_free() < META_RESERVE {
        engine.store.release();
    }
    engine.store.pool.meta_space().count_free() >= META_RESERVE && engine.store.blocks_left() > 0
}
