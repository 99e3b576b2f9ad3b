//! Where free extents are looked for, and made a grant of the session.
//!
//! Invariants: every extent that is found is free, and the host has set memory aside for it, but
//! for none while it has too little for the trees. One that is part of a whole extent which is free
//! stays for those who want many blocks in a row.

use crate::base::files;
use crate::journal::engine::Engine;
use crate::session::extents::Extents;
use holdfast_pool::format::PAGE_LEN;
use holdfast_pool::session::WHOLE_BLOCKS;
use holdfast_pool::session::free_table::class_of;
use holdfast_pool::space::Run;

/// Extents that one turn finds: the first ones are used while the others are looked for.
const TURN_MAX: usize = 8 * 1024;
/// The same where memory has to be set aside for each.
const PREALLOCATE_MAX: usize = 256;
/// With fewer blocks than this in short extents memory is set aside for more, but for not many
/// more: a session that only begins would set aside what it never uses.
const PREALLOCATE_BELOW: u64 = 1024;
const PREALLOCATE_TO: u64 = 2 * PREALLOCATE_BELOW;
/// Blocks of the pool that one turn looks at.
const LOOK: u64 = 1 << 22;
/// Blocks in all short extents, at most: each may become a run of its own, for which the trees need
/// room.
const BLOCKS_MAX: u64 = 32 * 1024;
/// The same in an idle session.
const BLOCKS_AT_REST: u64 = 4 * 1024;

/// What short extents are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// For those who may come.
    Rest,
    /// For those who write.
    Work,
    /// There is nothing else: memory may be set aside for them whatever it takes.
    Last,
}

/// Where one kind of short extent is looked for.
#[derive(Debug, Default)]
struct Sweep {
    next: u64,
    /// Blocks that were looked at since there was anything.
    empty: u64,
    /// `Space::released` when everything had been looked at in vain.
    done: Option<u64>,
}

/// Where everything is looked for.
#[derive(Debug, Default)]
pub struct Search {
    resident: Sweep,
    any: Sweep,
    /// There was no whole extent when `Space::released` was this.
    no_whole: Option<u64>,
    /// The host had no room the last time, and we said so.
    host_is_full: bool,
}

impl Search {
    /// Looks everywhere again.
    pub fn begin_anew(&mut self) {
        (self.resident.done, self.any.done, self.no_whole) = (None, None, None);
    }

    /// Short extents, as many as the table has room for and one turn has time for.
    pub fn short(&mut self, engine: &mut Engine, table: &Extents, need: Need) -> Vec<Run> {
        let share = engine.store.pool.data_space().len() / 8;
        let most = match need {
            Need::Rest => BLOCKS_AT_REST,
            _ => BLOCKS_MAX,
        };
        let mut room = Room::of(table, share.min(most));
        let mut found = Vec::new();
        self.resident
            .go_on(engine, &mut room, TURN_MAX, false, &mut found);
        let few = table.short() + blocks(&found) < PREALLOCATE_BELOW;
        let more = need == Need::Last || need == Need::Work && few;
        if more && engine.store.may_set_aside() {
            let most = found.len() + PREALLOCATE_MAX;
            let there = table.short() + blocks(&found);
            room.blocks = room.blocks.min(PREALLOCATE_TO.saturating_sub(there));
            self.any.go_on(engine, &mut room, most, true, &mut found);
        }
        found
    }

    /// A whole extent: a resident one, else with `any` one that memory has yet to be set aside
    /// for. With `huge` it becomes a huge page where that is cheap.
    pub fn whole(&mut self, engine: &mut Engine, any: bool, huge: bool) -> Option<Run> {
        let resident = engine.store.pool.grant_resident();
        let found = match any && engine.store.may_set_aside() {
            true => resident.or_else(|| self.any_whole(engine)),
            false => resident,
        };
        let extent = found?;
        if huge {
            engine.store.prepare(extent);
        }
        let there = resident.is_some() || set_aside(engine, extent);
        if !std::mem::replace(&mut self.host_is_full, !there) && !there {
            tracing::warn!("the host has no room for the pool's data");
        }
        if !there {
            engine.store.take_back(extent);
            engine.store.pool.punched(extent);
            return None;
        }
        engine.journal.granted.insert(extent.start, extent.len);
        Some(extent)
    }

    fn any_whole(&mut self, engine: &mut Engine) -> Option<Run> {
        let released = engine.store.pool.data_space().released();
        // Where there was none, there is one only after much was freed.
        let then = self.no_whole;
        if then.is_some_and(|then| released < then + WHOLE_BLOCKS) {
            return None;
        }
        let found = engine.store.pool.grant_whole(WHOLE_BLOCKS);
        self.no_whole = found.is_none().then_some(released);
        found
    }
}

fn blocks(extents: &[Run]) -> u64 {
    extents.iter().map(|extent| extent.len).sum()
}

/// What the table has room for.
struct Room {
    extents: Vec<u64>,
    blocks: u64,
}

impl Room {
    fn of(table: &Extents, most: u64) -> Room {
        Room {
            extents: (0..class_of(WHOLE_BLOCKS))
                .map(|class| table.room(1 << class))
                .collect(),
            blocks: most.saturating_sub(table.short()),
        }
    }

    fn is_there(&self, extent: Run) -> bool {
        self.extents[class_of(extent.len)] > 0
    }

    fn take(&mut self, extent: Run) {
        self.extents[class_of(extent.len)] -= 1;
        self.blocks = self.blocks.saturating_sub(extent.len);
    }
}

impl Sweep {
    /// Grants short extents until there are `most`, there is nothing more, or it took too long;
    /// with `any` also those that are not resident.
    fn go_on(
        &mut self,
        engine: &mut Engine,
        room: &mut Room,
        most: usize,
        any: bool,
        found: &mut Vec<Run>,
    ) {
        let space = engine.store.pool.data_space();
        let (released, len) = (space.released(), space.len());
        // What is released is resident, so of the others there never come to be more.
        let done = self.done.is_some_and(|then| any || then == released);
        if done || !any && space.count_resident() == 0 {
            return;
        }
        let mut left = LOOK.min(len);
        while left > 0 && found.len() < most && room.blocks > 0 {
            let from = if self.next < len { self.next } else { 0 };
            let to = (from + left).min(len);
            let space = engine.store.pool.data_space();
            let extent = space.next_short(from, to, any);
            self.next = extent.map_or(to, |extent| extent.end());
            left -= self.next - from;
            self.empty += self.next - from;
            if let Some(extent) = extent {
                self.empty = 0;
                if room.is_there(extent) && grant(engine, extent, any) {
                    room.take(extent);
                    found.push(extent);
                }
            }
            if self.empty >= len {
                self.done = Some(released);
                self.empty = 0;
                return;
            }
        }
    }
}

/// Makes the extent a grant; with `any` the host sets memory aside first.
fn grant(engine: &mut Engine, extent: Run, any: bool) -> bool {
    let resident = !any || engine.store.pool.data_space().is_resident(extent);
    let granted =
        (resident || set_aside(engine, extent)) && engine.store.pool.grant_again(extent).is_ok();
    if granted {
        engine.journal.granted.insert(extent.start, extent.len);
    }
    granted
}

/// Has the host set memory aside.
fn set_aside(engine: &mut Engine, extent: Run) -> bool {
    let (at, len) = (extent.start * PAGE_LEN, extent.len * PAGE_LEN);
    files::set_aside(&engine.store.files.data, at, len).is_ok()
}
