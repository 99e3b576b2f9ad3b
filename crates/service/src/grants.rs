//! Keeping the session supplied with free blocks.
//!
//! Invariants:
//!  * What was handed out is in `Engine::granted` and in the grants file before a client can see
//!    it; records are validated against that, never against session memory.
//!  * The host has set memory aside for every block that is handed out, so that a store to it
//!    cannot fail later. Where the pool is kept in memory, a whole huge page if the host has one,
//!    so that a store to it hardly faults either.
//!  * How much is left is asked of session memory; a wrong answer costs the session its own space.

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::files;
use crate::memory::Memory;
use holdfast_pmem::{Access, Medium, Region};
use holdfast_pool::directory;
use holdfast_pool::format::PAGE_LEN;
use holdfast_pool::session::GRANTS;
use holdfast_pool::space::Run;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::Ordering::*;

/// Blocks of a grant.
const CHUNK_BLOCKS: u64 = directory::CHUNK / PAGE_LEN;
/// Chunks kept ahead of an idle session, and of one that uses them up fast.
const AHEAD_MIN: u64 = 2;
const AHEAD_MAX: u64 = 32;
/// Chunks handed out in one turn, so that others do not wait long.
const TURN_MAX: u64 = 4;
/// Looks at a lock that a client has before the grant is put off to the next turn.
const TRIES: usize = 1000;
/// So many grants are added to the file before it is written anew.
const NOTED_MAX: u32 = 4;
/// Free pages of the trees below which nothing more is handed out, so that there is always room
/// to erase.
const META_RESERVE: u64 = 512;

/// Supplies one session.
pub struct Supply {
    file: File,
    /// Grants that were added to it since it was written anew.
    noted: u32,
    /// The data segment, where it is worth being asked for huge pages.
    data: Option<Region>,
    ahead: u64,
    /// The first grants were handed out: what is missing now was used up.
    begun: bool,
    full: bool,
}

impl Supply {
    /// For a new session. With `again`, one that lived on without its service: what it was
    /// granted is granted still.
    pub fn start(engine: &mut Engine, again: bool) -> Result<Supply> {
        let path = engine.files.directory.join(directory::GRANTS);
        let what = path.display().to_string();
        if again {
            for (block, len) in read_grants(&std::fs::read(&path).unwrap_or_default()) {
                engine.grant_again(block, len);
            }
        }
        let file = File::options()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&path)
            .map_err(Error::io(what.clone()))?;
        if !again {
            file.set_len(0).map_err(Error::io(what))?;
        }
        let data = match engine.files.medium {
            Medium::Memory => Some(files::map(
                &engine.files.data,
                engine.pool.superblock().data_len,
                Access::ReadWrite,
                Medium::Memory,
            )?),
            _ => None,
        };
        Ok(Supply {
            file,
            noted: NOTED_MAX,
            data,
            ahead: AHEAD_MIN,
            begun: false,
            full: false,
        })
    }

    /// Hands out what the session needs; returns whether more is needed at once.
    pub fn top_up(&mut self, engine: &mut Engine, memory: &Memory) -> bool {
        let wanted = memory.header().grant_wanted.swap(0, AcqRel);
        let left = left_over(memory) / CHUNK_BLOCKS;
        if self.begun && left < self.ahead / 2 {
            self.ahead = (self.ahead * 2).min(AHEAD_MAX);
        }
        let pool_share = engine.pool.data_space().len() / CHUNK_BLOCKS / 8;
        let ahead = self.ahead.min(pool_share.max(1));
        let wanted = u64::from(wanted)
            .div_ceil(CHUNK_BLOCKS)
            .min(GRANTS as u64 / 2);
        let goal = ahead.max(wanted);
        let mut new = 0;
        while left + new < goal && new < TURN_MAX {
            // Making a huge page takes many times as long as one client takes to fill it: there is
            // time for that only while enough is left.
            let huge = self.begun && left + new > 0 && 2 * (left + new) >= goal;
            if self.hand_out(engine, memory, huge).is_none() {
                break;
            }
            new += 1;
        }
        self.begun = true;
        if new > 0 || wanted > 0 {
            memory.tick();
        }
        !self.full && left + new < goal && new > 0
    }

    /// Takes back what an idle session does not need; the memory behind it can go back to the host.
    pub fn take_back(&mut self, engine: &mut Engine, memory: &Memory) {
        self.ahead = AHEAD_MIN;
        let mut left = left_over(memory);
        let used = (memory.header().grants_used.load(Acquire) as usize).min(GRANTS);
        for index in (0..used).rev() {
            let Some(grant) = memory.grant(index) else {
                return;
            };
            let lock = &memory.header().grants_lock;
            let taken = memory.with_lock(lock, || {
                let (block, len) = (grant.block.load(Relaxed), grant.len.load(Relaxed));
                let whole = len == CHUNK_BLOCKS && left >= (AHEAD_MIN + 1) * CHUNK_BLOCKS;
                whole.then(|| {
                    grant.len.store(0, Release);
                    Run::new(block, len)
                })
            });
            // What the session says is its own risk; only what was granted is taken back.
            if let Some(Some(run)) = taken
                && engine.granted.contains(run.start, run.len)
            {
                engine.granted.remove(run.start, run.len);
                let _ = engine.pool.ungrant(run);
                left -= run.len;
            }
        }
    }

    fn hand_out(&mut self, engine: &mut Engine, memory: &Memory, huge: bool) -> Option<Run> {
        let slot = free_entry(memory)?;
        let Some(run) = self.take(engine, huge) else {
            self.set_full(memory, true);
            return None;
        };
        let done = self.note(engine, run).is_some() && publish(memory, slot, run);
        if !done {
            engine.granted.remove(run.start, run.len);
            let _ = engine.pool.ungrant(run);
            return None;
        }
        self.set_full(memory, false);
        Some(run)
    }

    /// A run that the host has set memory aside for. The first ones are not huge pages: they are
    /// what a short session uses, and its program would wait for them.
    fn take(&mut self, engine: &mut Engine, huge: bool) -> Option<Run> {
        if engine.pool.meta_space().count_free() < META_RESERVE {
            let _ = engine.pool.reclaim();
            if engine.pool.meta_space().count_free() < META_RESERVE {
                return None;
            }
        }
        let run = engine.pool.grant(CHUNK_BLOCKS, CHUNK_BLOCKS).ok()?;
        let (at, len) = (run.start * PAGE_LEN, run.len * PAGE_LEN);
        if let Some(data) = self.data.as_ref().filter(|_| huge) {
            // For speed only. The kernel makes a page huge once a small one is there; to do that
            // before the others are there is half the work.
            let _ = data.prefault(at, PAGE_LEN as usize);
            let _ = data.make_huge(at, len as usize);
        }
        match rustix::fs::fallocate(&engine.files.data, FallocateFlags::empty(), at, len) {
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(e) => {
                let _ = engine.pool.ungrant(run);
                if !self.full {
                    eprintln!("holdfast: the host has no room for the pool's data: {e}");
                }
                return None;
            }
        }
        engine.granted.insert(run.start, run.len);
        Some(run)
    }

    fn note(&mut self, engine: &Engine, run: Run) -> Option<()> {
        self.file.write_all(&line(run.start, run.len)).ok()?;
        self.noted += 1;
        if self.noted >= NOTED_MAX {
            self.noted = 0;
            // If it cannot be written, what is there is still right.
            if let Some(file) = self.rewrite(engine) {
                self.file = file;
            }
        }
        Some(())
    }

    /// Puts a file that names only what is granted now in the place of the old one, which also
    /// names what came into use since, and is free again: the next service would keep that from
    /// use until the session ends.
    fn rewrite(&self, engine: &Engine) -> Option<File> {
        let path = engine.files.directory.join(directory::GRANTS);
        let new = engine.files.directory.join(directory::GRANTS_NEW);
        let all: Vec<u8> = engine
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
        written.ok().map(|()| file)
    }

    fn set_full(&mut self, memory: &Memory, full: bool) {
        if full && !self.full {
            eprintln!("holdfast: the pool is full");
        }
        self.full = full;
        memory.header().out_of_space.store(full.into(), Release);
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
            None => std::thread::yield_now(),
        }
    }
    false
}

fn line(block: u64, len: u64) -> [u8; 16] {
    let mut line = [0; 16];
    line[..8].copy_from_slice(&block.to_le_bytes());
    line[8..].copy_from_slice(&len.to_le_bytes());
    line
}

fn read_grants(bytes: &[u8]) -> impl Iterator<Item = (u64, u64)> + '_ {
    bytes.chunks_exact(16).filter_map(|line| {
        let block = u64::from_le_bytes(*line.first_chunk()?);
        let len = u64::from_le_bytes(*line.last_chunk()?);
        Some((block, len.min(1 << 20)))
    })
}
