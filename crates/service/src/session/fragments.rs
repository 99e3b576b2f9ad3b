//! Free runs that are shorter than a grant: what overwriting leaves behind is handed out again.
//!
//! Invariants:
//!  * What each ring holds, and its `put`, are kept here. Of session memory only `taken` is read,
//!    and believed only between what it was and `put`; a wrong one costs the session its own space.
//!  * A run of a stretch that is free as a whole is no fragment: it stays for those who want many
//!    blocks in a row.
//!  * The host has set memory aside for every run that is found.

use crate::journal::engine::Engine;
use crate::session::memory::Memory;
use holdfast_pool::format::PAGE_LEN;
use holdfast_pool::session::{RING_RUNS, RINGS, RUN_SHIFT, ring_of};
use holdfast_pool::space::Run;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::*;

/// Runs that one turn finds: the first ones are used while the others are looked for.
const TURN_MAX: usize = 8 * 1024;
/// The same where memory has to be set aside for each.
const COLD_MAX: usize = 256;
/// With fewer blocks than this in the rings memory is set aside for more.
const COLD_BELOW: u64 = 1024;
/// Blocks of the pool that one turn looks at.
const LOOK: u64 = 1 << 22;
/// Blocks in all rings, at most: each may become a run of its own, for which the trees need room.
const BLOCKS_MAX: u64 = 32 * 1024;
/// The same in an idle session.
const BLOCKS_AT_REST: u64 = 4 * 1024;
/// Looks at a ring from which clients take all the time.
const TRIES: usize = 100;

/// One ring as the service has it.
#[derive(Debug, Default)]
struct Ring {
    put: u64,
    taken: u64,
    /// Runs `taken..put`.
    runs: VecDeque<Run>,
}

/// Where one kind of fragment is looked for.
#[derive(Debug)]
struct Sweep {
    /// Where no memory is, too.
    cold: bool,
    next: u64,
    /// Blocks that were looked at since there was anything.
    empty: u64,
    /// `Space::released` when everything had been looked at in vain.
    done: Option<u64>,
}

/// What fragments are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// For those who may come.
    Rest,
    /// For those who write.
    Work,
    /// There is nothing else: memory may be set aside for them whatever it takes.
    Last,
}

/// What there is room for.
struct Room {
    runs: [u64; RINGS],
    blocks: u64,
}

/// The rings of one session.
#[derive(Debug)]
pub struct Fragments {
    rings: [Ring; RINGS],
    blocks: u64,
    warm: Sweep,
    cold: Sweep,
}

impl Ring {
    fn room(&self) -> u64 {
        RING_RUNS as u64 - (self.put - self.taken)
    }

    /// The next `n` runs are not here any more.
    fn take(&mut self, n: u64) -> impl Iterator<Item = Run> + '_ {
        self.taken += n;
        self.runs.drain(..(n as usize).min(self.runs.len()))
    }
}

impl Fragments {
    /// Those of a new session.
    pub fn new() -> Fragments {
        Fragments {
            rings: Default::default(),
            blocks: 0,
            warm: Sweep::new(false),
            cold: Sweep::new(true),
        }
    }

    /// Those of a session that lived on without its service.
    pub fn again(memory: &Memory) -> Fragments {
        let mut all = Fragments::new();
        for (index, ring) in all.rings.iter_mut().enumerate() {
            let counts = memory.rings();
            let (put, taken) = (&counts.put[index], &counts.taken[index]);
            (ring.put, ring.taken) = (put.load(Acquire), taken.load(Acquire));
            let held = ring.put.checked_sub(ring.taken);
            let possible = held.is_some_and(|held| held <= RING_RUNS as u64);
            if !possible || ring.put > u64::MAX / 2 {
                // Nobody put or took that many: begin anew, with the ring empty.
                (ring.put, ring.taken) = (0, 0);
                taken.store(0, Release);
                put.store(0, Release);
            }
            for at in ring.taken..ring.put {
                let word = memory.ring_word(index, at).map_or(0, |w| w.load(Relaxed));
                let run = Run::new(word >> RUN_SHIFT, word & ((1 << RUN_SHIFT) - 1));
                all.blocks += run.len;
                ring.runs.push_back(run);
            }
        }
        all
    }

    /// Blocks that clients have not taken yet.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Looks at what clients have taken.
    pub fn look(&mut self, memory: &Memory) {
        for (ring, taken) in self.rings.iter_mut().zip(&memory.rings().taken) {
            let taken = taken.load(Acquire).clamp(ring.taken, ring.put);
            let gone: u64 = ring.take(taken - ring.taken).map(|run| run.len).sum();
            self.blocks -= gone;
        }
    }

    /// Fragments for the rings, as many as there is room for and one turn has time for: granted,
    /// but not published.
    pub fn find(&mut self, engine: &mut Engine, need: Need) -> Vec<Run> {
        let share = engine.store.pool.data_space().len() / 8;
        let most = match need {
            Need::Rest => BLOCKS_AT_REST,
            _ => BLOCKS_MAX,
        };
        let mut room = Room {
            runs: self.rings.each_ref().map(Ring::room),
            blocks: share.min(most).saturating_sub(self.blocks),
        };
        let mut found = Vec::new();
        self.warm.go_on(engine, &mut room, TURN_MAX, &mut found);
        let few = self.blocks + found.iter().map(|run| run.len).sum::<u64>() < COLD_BELOW;
        if need == Need::Last || need == Need::Work && few {
            let most = found.len() + COLD_MAX;
            self.cold.go_on(engine, &mut room, most, &mut found);
        }
        found
    }

    /// Lets clients have them.
    pub fn publish(&mut self, memory: &Memory, runs: &[Run]) {
        for run in runs {
            let index = ring_of(run.len);
            let ring = &mut self.rings[index];
            if let Some(word) = memory.ring_word(index, ring.put) {
                word.store(run.start << RUN_SHIFT | run.len, Relaxed);
                ring.runs.push_back(*run);
                ring.put += 1;
                self.blocks += run.len;
            }
        }
        for (ring, put) in self.rings.iter().zip(&memory.rings().put) {
            put.store(ring.put, Release);
        }
    }

    /// Takes everything out of the rings again.
    pub fn retract(&mut self, memory: &Memory) -> Vec<Run> {
        let mut all = Vec::new();
        for (ring, taken) in self.rings.iter_mut().zip(&memory.rings().taken) {
            for _ in 0..TRIES {
                let seen = taken.load(Acquire);
                if seen < ring.taken || seen >= ring.put {
                    break;
                }
                if taken
                    .compare_exchange(seen, ring.put, AcqRel, Relaxed)
                    .is_ok()
                {
                    let gone: u64 = ring.take(seen - ring.taken).map(|run| run.len).sum();
                    self.blocks -= gone;
                    all.extend(ring.take(ring.put - seen));
                    break;
                }
            }
        }
        self.blocks -= all.iter().map(|run| run.len).sum::<u64>();
        (self.warm.done, self.cold.done) = (None, None);
        all
    }
}

impl Sweep {
    fn new(cold: bool) -> Sweep {
        Sweep {
            cold,
            next: 0,
            empty: 0,
            done: None,
        }
    }

    /// Grants fragments until there are `most`, there is nothing more, or it took too long.
    fn go_on(&mut self, engine: &mut Engine, room: &mut Room, most: usize, found: &mut Vec<Run>) {
        let cold = self.cold;
        let released = engine.store.pool.data_space().released();
        // What is released is warm, so of the others there never come to be more.
        let done = self.done.is_some_and(|then| cold || then == released);
        if done || !cold && engine.store.pool.data_space().count_warm() == 0 {
            return;
        }
        let len = engine.store.pool.data_space().len();
        let mut left = LOOK.min(len);
        while left > 0 && found.len() < most && room.blocks > 0 {
            let from = if self.next < len { self.next } else { 0 };
            let to = (from + left).min(len);
            let run = engine.store.pool.data_space().next_fragment(from, to, cold);
            let place = run.map_or(0, |run| ring_of(run.len));
            let taken = run.filter(|_| room.runs[place] > 0);
            let taken = taken.filter(|run| grant(engine, *run, cold));
            self.next = run.map_or(to, |run| run.end());
            left -= self.next - from;
            self.empty += self.next - from;
            if run.is_some() {
                self.empty = 0;
            }
            if let Some(run) = taken {
                room.runs[place] -= 1;
                room.blocks = room.blocks.saturating_sub(run.len);
                found.push(run);
            }
            if self.empty >= len {
                self.done = Some(released);
                self.empty = 0;
                return;
            }
        }
    }
}

/// Makes the run a grant; with `cold` the host sets memory aside first.
fn grant(engine: &mut Engine, run: Run, cold: bool) -> bool {
    if cold && !engine.store.pool.data_space().is_warm(run) {
        let (at, len) = (run.start * PAGE_LEN, run.len * PAGE_LEN);
        match rustix::fs::fallocate(&engine.store.files.data, FallocateFlags::empty(), at, len) {
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(_) => return false,
        }
    }
    let granted = engine.store.pool.grant_again(run).is_ok();
    if granted {
        engine.journal.granted.insert(run.start, run.len);
    }
    granted
}
