//! Keeping the session supplied with free blocks.
//!
//! Invariants:
//!  * What was handed out is in `Engine::granted` and in the grants file before a client can see
//!    it; records are validated against that, never against session memory.
//!  * The host has set memory aside for every block that is handed out, so that a store to it
//!    cannot fail later. Where the pool is kept in memory, a whole huge page if that is cheap, so
//!    that a store to it hardly faults either.
//!  * How much is left is asked of session memory; a wrong answer costs the session its own space.

use crate::base::error::{Error, Result};
use crate::base::files;
use crate::base::ordinary;
use crate::journal::engine::Engine;
use crate::session::fragments::{Fragments, Need};
use crate::session::memory::Memory;
use holdfast_pmem::env;
use holdfast_pool::directory;
use holdfast_pool::format::PAGE_LEN;
use holdfast_pool::session::GRANTS;
use holdfast_pool::space::Run;
use rustix::fs::OFlags;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::Ordering::*;

/// Blocks of a grant.
const CHUNK_BLOCKS: u64 = directory::CHUNK / PAGE_LEN;
/// Chunks kept ahead of an idle session, and of one that uses them up fast.
const AHEAD_MIN: u64 = 2;
const AHEAD_MAX: u64 = 32;
/// After so many turns in which no chunk was used, fewer are kept ahead; in which nothing became
/// free, nobody overwrites.
const CALM: u32 = 16;
/// Chunks handed out in one turn, so that others do not wait long.
const TURN_MAX: u64 = 4;
/// Clients look at all grants for each one that they take: of more than so many, those of fewer
/// blocks than these are taken back. They are what is left of fragments.
const MANY_GRANTS: usize = 32;
const CRUMB: u64 = 64;
/// Looks at a lock that a client has before the grant is put off to the next turn.
const TRIES: usize = 1000;
/// So many runs, or blocks, are added to the file before it is written anew; of runs also as many
/// as it had, so that what is written stays in proportion.
const NOTED_RUNS: u64 = 1024;
const NOTED_BLOCKS: u64 = 8 * CHUNK_BLOCKS;
/// Blocks that may be on their way from a writer to the next one before it has to wait for them:
/// so many, or this part of those in use.
const ON_ITS_WAY: u64 = 16 * 1024;
const ON_ITS_WAY_PART: u64 = 4;
/// With so many of them beside one and a half times those in use, nobody gets memory that was not
/// used before while there is any fragment, however many blocks in a row it wants.
const PLENTY: u64 = 16 * 1024;
/// Free pages of the trees below which nothing more is handed out, so that there is always room
/// to erase.
const META_RESERVE: u64 = 512;

/// The file of grants, from which a service that comes later learns what is granted.
struct Notes {
    file: File,
    /// Runs and blocks that were added since it was written anew, and runs that it had then.
    runs: u64,
    blocks: u64,
    had: u64,
}

/// Supplies one session.
pub struct Supply {
    notes: Notes,
    fragments: Fragments,
    ahead: u64,
    /// Turns since a chunk was used.
    calm: u32,
    /// There was no whole chunk when `Space::released` was this.
    no_chunk_at: Option<u64>,
    /// What comes back soon is enough: no memory is set aside for more.
    enough: bool,
    /// There are fewer chunks than there should always be.
    few: bool,
    /// So much is free, or about to be, that fragments have to do.
    plenty: bool,
    /// `Space::released` and `Engine::applied_seq` at the last look.
    released: u64,
    applied: u64,
    /// Turns in which nothing became free.
    unfreed: u32,
    /// Something was applied since everything was taken back.
    busy: bool,
    /// The first grants were handed out: what is missing now was used up.
    begun: bool,
    full: bool,
    /// The host had no room the last time, and we said so.
    told: bool,
}

impl Supply {
    /// For a new session.
    pub fn start(engine: &Engine) -> Result<Supply> {
        Supply::new(engine, Notes::open(engine, false)?, Fragments::new())
    }

    /// For a session that lived on without its service: what it was granted is granted still.
    pub fn again(engine: &mut Engine, memory: &Memory) -> Result<Supply> {
        let path = engine.store.files.directory.join(directory::GRANTS);
        for (block, len) in read_grants(&read(&path)) {
            engine.grant_again(block, len);
        }
        Supply::new(engine, Notes::open(engine, true)?, Fragments::again(memory))
    }

    fn new(engine: &Engine, notes: Notes, fragments: Fragments) -> Result<Supply> {
        Ok(Supply {
            notes,
            fragments,
            ahead: AHEAD_MIN,
            calm: 0,
            no_chunk_at: None,
            enough: false,
            few: false,
            plenty: false,
            released: engine.store.pool.data_space().released(),
            applied: engine.journal.applied_seq(),
            unfreed: CALM,
            busy: true,
            begun: false,
            full: false,
            told: false,
        })
    }

    /// Hands out what the session needs; returns whether more is needed at once.
    pub fn top_up(&mut self, engine: &mut Engine, memory: &Memory) -> bool {
        let wanted = memory.header().grant_wanted.swap(0, AcqRel);
        self.fragments.look(memory);
        sweep(engine, memory);
        let left = left_over(memory);
        self.enough = self.is_enough(engine);
        let kept = &memory.header().grants_kept;
        let now_free = kept.swap(self.enough.into(), AcqRel) != 0 && !self.enough;
        let need = match self.busy || wanted > 0 {
            true => Need::Work,
            false => Need::Rest,
        };
        if self.begun {
            self.recycle(engine, memory, need);
            let none = self.fragments.blocks() == 0 && (self.enough || left == 0);
            if none && engine.store.pool.data_held() > 0 {
                // Those who look at what the last commits freed look again.
                engine.store.release_unread();
                self.recycle(engine, memory, need);
            }
        }
        let goal = self.goal(engine, left / CHUNK_BLOCKS, wanted);
        let (left, mut new) = (left / CHUNK_BLOCKS, 0);
        while left + new < goal && new < TURN_MAX {
            // Making a huge page takes many times as long as one client takes to fill it: there is
            // time for that only while enough is left.
            let huge = self.begun && left + new > 0 && 2 * (left + new) >= goal;
            self.few = left + new < AHEAD_MIN;
            if !self.hand_out(engine, memory, huge) {
                break;
            }
            new += 1;
        }
        self.begun = true;
        if new > 0 || wanted > 0 || now_free {
            memory.tick();
        }
        if wanted > 0 && self.enough && self.fragments.blocks() == 0 {
            // Whoever waits gets something from what the next commit frees, or else a chunk.
            memory.header().grant_wanted.fetch_max(wanted, AcqRel);
            return true;
        }
        if wanted > 0 && new + left == 0 && engine.store.makes_room() {
            // What records removed comes back first.
            memory.header().grant_wanted.fetch_max(wanted, AcqRel);
            return true;
        }
        !self.full && left + new < goal && new > 0
    }

    /// Whether so much is on its way, between being handed out and being free again, that those who
    /// overwrite should rather wait for it than get memory that was not used before: else a writer
    /// that is faster than we are makes the pool grow for as long as the journal has room. Once
    /// nothing comes back any more, it is not enough. The last chunks are kept meanwhile for those
    /// who want many blocks in a row. Where whole chunks have come back they are handed out:
    /// fragments alone would be too few, and everybody would wait for ever the next ones.
    fn is_enough(&mut self, engine: &Engine) -> bool {
        let (space, applied) = (engine.store.pool.data_space(), engine.journal.applied_seq());
        let freed = std::mem::replace(&mut self.released, space.released()) != space.released();
        self.unfreed = if freed {
            0
        } else {
            self.unfreed.saturating_add(1)
        };
        let goes_on = std::mem::replace(&mut self.applied, applied) != applied;
        self.busy |= goes_on;
        let on_its_way =
            engine.journal.granted.len() + engine.store.pool.data_held() + space.count_warm();
        let limit = ON_ITS_WAY.max(space.count_used() / ON_ITS_WAY_PART);
        self.plenty = on_its_way >= space.count_used() / 2 * 3 + PLENTY;
        let some = goes_on || self.fragments.blocks() > 0;
        self.unfreed < CALM && on_its_way >= limit && some && space.warm_stretch().is_none()
    }

    /// How many chunks there should be when `left` are.
    fn goal(&mut self, engine: &Engine, left: u64, wanted: u32) -> u64 {
        self.calm = if left < self.ahead { 0 } else { self.calm + 1 };
        if self.begun && left < self.ahead / 2 {
            self.ahead = (self.ahead * 2).min(AHEAD_MAX);
        } else if self.calm >= CALM {
            self.ahead = (self.ahead / 2).max(AHEAD_MIN);
            self.calm = 0;
        }
        let pool_share = engine.store.pool.data_space().len() / CHUNK_BLOCKS / 8;
        let ahead = self.ahead.min(pool_share.max(1));
        let wanted = u64::from(wanted).div_ceil(CHUNK_BLOCKS);
        ahead.max(wanted.min(GRANTS as u64 / 2))
    }

    /// Hands out what is free between blocks that are in use; says whether there was anything.
    fn recycle(&mut self, engine: &mut Engine, memory: &Memory, need: Need) -> bool {
        if !has_reserve(engine) {
            return false;
        }
        let runs = self.fragments.find(engine, need);
        if runs.is_empty() {
            return false;
        }
        if self.notes.add(engine, &runs).is_none() {
            runs.iter().for_each(|run| engine.ungrant(*run));
            return false;
        }
        self.fragments.publish(memory, &runs);
        self.set_full(memory, false);
        true
    }

    /// Takes back what an idle session does not need; the memory behind it can go back to the host.
    pub fn take_back(&mut self, engine: &mut Engine, memory: &Memory) {
        self.ahead = AHEAD_MIN;
        self.take_back_chunks(engine, memory, AHEAD_MIN);
        if std::mem::replace(&mut self.busy, false) {
            engine.store.release_unread();
            // What is around a fragment may be free by now.
            self.take_back_fragments(engine, memory);
            self.recycle(engine, memory, Need::Rest);
        }
    }

    /// Takes back what a session had in which nobody is.
    pub fn take_all_back(&mut self, engine: &mut Engine, memory: &Memory) {
        self.begun = false;
        self.take_back_chunks(engine, memory, 0);
        self.take_back_fragments(engine, memory);
    }

    fn take_back_fragments(&mut self, engine: &mut Engine, memory: &Memory) {
        for run in self.fragments.retract(memory) {
            engine.ungrant(run);
        }
    }

    /// All but `kept` whole chunks.
    fn take_back_chunks(&mut self, engine: &mut Engine, memory: &Memory, kept: u64) {
        let mut left = left_over(memory);
        let used = (memory.header().grants_used.load(Acquire) as usize).min(GRANTS);
        for index in (0..used).rev() {
            let Some(grant) = memory.grant(index) else {
                return;
            };
            let lock = &memory.header().grants_lock;
            let taken = memory.with_lock(lock, || {
                let (block, len) = (grant.block.load(Relaxed), grant.len.load(Relaxed));
                let whole = len == CHUNK_BLOCKS && left >= (kept + 1) * CHUNK_BLOCKS;
                whole.then(|| {
                    grant.len.store(0, Release);
                    Run::new(block, len)
                })
            });
            // What the session says is its own risk; only what was granted is taken back.
            if let Some(Some(run)) = taken {
                engine.ungrant(run);
                left -= run.len;
            }
        }
    }

    /// One more grant; false when there is none or it cannot be handed out now.
    fn hand_out(&mut self, engine: &mut Engine, memory: &Memory, huge: bool) -> bool {
        let Some(slot) = free_entry(memory) else {
            return false;
        };
        let Some(run) = self.take(engine, huge) else {
            return self.hand_out_the_last(engine, memory);
        };
        let done = self.notes.add(engine, &[run]).is_some() && publish(memory, slot, run);
        match done {
            true => self.set_full(memory, false),
            false => engine.ungrant(run),
        }
        done
    }

    /// Whether fragments have to do.
    fn must_do(&self) -> bool {
        self.plenty && self.fragments.blocks() > 0
    }

    /// There is no whole chunk: once everything else is used up, what readers of older roots keep
    /// from use and what has no memory behind it is handed out, too.
    fn hand_out_the_last(&mut self, engine: &mut Engine, memory: &Memory) -> bool {
        if self.enough
            || self.must_do()
            || left_over(memory) + self.fragments.blocks() >= CHUNK_BLOCKS
        {
            return false;
        }
        engine.store.release();
        self.no_chunk_at = None;
        let more = self.recycle(engine, memory, Need::Last);
        let nothing = left_over(memory) + self.fragments.blocks() == 0;
        if !more && nothing && !engine.store.makes_room() {
            self.set_full(memory, true);
        }
        false
    }

    /// A chunk that the host has set memory aside for. The first ones are not huge pages: they are
    /// what a short session uses, and its program would wait for them.
    fn take(&mut self, engine: &mut Engine, huge: bool) -> Option<Run> {
        if !has_reserve(engine) {
            return None;
        }
        let released = engine.store.pool.data_space().released();
        // Where there was none, there is one only after much was freed.
        if self
            .no_chunk_at
            .is_some_and(|then| released < then + CHUNK_BLOCKS)
        {
            return None;
        }
        let warm = engine.store.pool.grant_warm();
        if warm.is_none() && (self.must_do() || self.enough && !self.few) {
            return None;
        }
        let found = warm.or_else(|| engine.store.pool.grant_whole(CHUNK_BLOCKS));
        let Some(run) = found else {
            self.no_chunk_at = Some(released);
            return None;
        };
        if huge {
            engine.store.prepare(run);
        }
        if warm.is_none() && !self.set_aside(engine, run) {
            engine.store.take_back(run);
            engine.store.pool.cool(run);
            return None;
        }
        engine.journal.granted.insert(run.start, run.len);
        Some(run)
    }

    /// Has the host set memory aside.
    fn set_aside(&mut self, engine: &Engine, run: Run) -> bool {
        let (at, len) = (run.start * PAGE_LEN, run.len * PAGE_LEN);
        let done = files::set_aside(&engine.store.files.data, at, len);
        if let Err(e) = done
            && !std::mem::replace(&mut self.told, true)
        {
            let e = std::io::Error::from(e);
            tracing::warn!("the host has no room for the pool's data: {e}");
        }
        self.told &= done.is_err();
        done.is_ok()
    }

    fn set_full(&mut self, memory: &Memory, full: bool) {
        if full && !self.full {
            tracing::warn!("the pool is full");
        }
        self.full = full;
        memory.header().out_of_space.store(full.into(), Release);
    }
}

/// Whether the pool has room, and the trees have enough left to erase after more was written.
fn has_reserve(engine: &mut Engine) -> bool {
    if engine.store.pool.meta_space().count_free() < META_RESERVE {
        engine.store.release();
    }
    engine.store.pool.meta_space().count_free() >= META_RESERVE && engine.store.blocks_left() > 0
}

impl Notes {
    fn open(engine: &Engine, again: bool) -> Result<Notes> {
        let path = engine.store.files.directory.join(directory::GRANTS);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND;
        let file = File::from(ordinary::open_or_say(&path, flags)?);
        if !again {
            let what = path.display().to_string();
            file.set_len(0).map_err(Error::io(what))?;
        }
        Ok(Notes {
            file,
            runs: 0,
            // An old one names too much.
            blocks: NOTED_BLOCKS,
            had: 0,
        })
    }

    /// Names what was granted, in one write.
    fn add(&mut self, engine: &Engine, runs: &[Run]) -> Option<()> {
        let lines: Vec<u8> = runs
            .iter()
            .flat_map(|run| line(run.start, run.len))
            .collect();
        self.file.write_all(&lines).ok()?;
        self.runs += runs.len() as u64;
        self.blocks += runs.iter().map(|run| run.len).sum::<u64>();
        let long = self.runs >= NOTED_RUNS.max(self.had);
        if long || self.runs < NOTED_RUNS && self.blocks >= NOTED_BLOCKS {
            (self.runs, self.blocks) = (0, 0);
            // If it cannot be written, what is there is still right.
            if let Some((file, had)) = Notes::rewrite(engine) {
                (self.file, self.had) = (file, had);
            }
        }
        Some(())
    }

    /// Puts a file that names only what is granted now in the place of the old one, which also
    /// names what came into use since, and is free again: the next service would keep that from
    /// use until the session ends. Also says how many runs it names.
    fn rewrite(engine: &Engine) -> Option<(File, u64)> {
        let path = engine.store.files.directory.join(directory::GRANTS);
        let new = engine.store.files.directory.join(directory::GRANTS_NEW);
        let all: Vec<u8> = engine
            .journal
            .granted
            .iter()
            .flat_map(|(b, n)| line(b, n))
            .collect();
        let _ = std::fs::remove_file(&new);
        let mut file = File::options()
            .create_new(true)
            .append(true)
            .mode(0o600)
            .open(&new)
            .ok()?;
        let written = file
            .write_all(&all)
            .and_then(|()| std::fs::rename(&new, &path));
        if written.is_err() {
            let _ = std::fs::remove_file(&new);
        }
        written.ok().map(|()| (file, all.len() as u64 / LINE))
    }
}

/// Blocks that the session says it has left.
fn left_over(memory: &Memory) -> u64 {
    let used = (memory.header().grants_used.load(Acquire) as usize).min(GRANTS);
    let grants = (0..used).filter_map(|i| memory.grant(i));
    grants
        .map(|grant| grant.len.load(Relaxed).min(1 << 32))
        .sum()
}

/// Takes crumbs back, unless clients are at work on the table now.
fn sweep(engine: &mut Engine, memory: &Memory) {
    let header = memory.header();
    let used = (header.grants_used.load(Acquire) as usize).min(GRANTS);
    if used <= MANY_GRANTS {
        return;
    }
    let crumbs = memory.with_lock(&header.grants_lock, || {
        let (mut crumbs, mut end) = (Vec::new(), 0);
        let used = (header.grants_used.load(Acquire) as usize).min(GRANTS);
        for (index, grant) in (0..used).filter_map(|i| Some((i, memory.grant(i)?))) {
            match grant.len.load(Relaxed) {
                0 => {}
                len if len < CRUMB => {
                    grant.len.store(0, Release);
                    crumbs.push(Run::new(grant.block.load(Relaxed), len));
                }
                _ => end = index as u32 + 1,
            }
        }
        header.grants_used.store(end, Release);
        crumbs
    });
    // What the session says is its own risk; only what was granted is taken back.
    for run in crumbs.into_iter().flatten() {
        engine.ungrant(run);
    }
}

fn free_entry(memory: &Memory) -> Option<usize> {
    (0..GRANTS).find(|i| {
        memory
            .grant(*i)
            .is_some_and(|grant| grant.len.load(Relaxed) == 0)
    })
}

/// Writes the run into entry `index`, unless clients are at work on the table all the time.
fn publish(memory: &Memory, index: usize, run: Run) -> bool {
    let header = memory.header();
    for _ in 0..TRIES {
        let done = memory.with_lock(&header.grants_lock, || {
            let Some(grant) = memory.grant(index) else {
                return false;
            };
            if grant.len.load(Relaxed) != 0 {
                return false;
            }
            grant.block.store(run.start, Relaxed);
            grant.len.store(run.len, Release);
            header.grants_used.fetch_max(index as u32 + 1, AcqRel);
            true
        });
        match done {
            Some(done) => return done,
            None => env::yield_now(),
        }
    }
    false
}

/// Bytes of one run in the file.
const LINE: u64 = 16;

fn line(block: u64, len: u64) -> [u8; 16] {
    let mut line = [0; 16];
    line[..8].copy_from_slice(&block.to_le_bytes());
    line[8..].copy_from_slice(&len.to_le_bytes());
    line
}

/// What there is to read of the file.
fn read(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(Some(file)) = ordinary::open(path, OFlags::RDONLY) {
        let _ = File::from(file).read_to_end(&mut bytes);
    }
    bytes
}

fn read_grants(bytes: &[u8]) -> impl Iterator<Item = (u64, u64)> + '_ {
    bytes.chunks_exact(16).filter_map(|line| {
        let block = u64::from_le_bytes(*line.first_chunk()?);
        let len = u64::from_le_bytes(*line.last_chunk()?);
        Some((block, len.min(1 << 20)))
    })
}
