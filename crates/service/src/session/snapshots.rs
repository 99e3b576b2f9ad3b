//! Sessions on snapshots.
//!
//! Invariants: such a session has memory of its own, which names the roots, and descriptors through
//! which nothing of the pool can be written; the service keeps nothing about it. Every process of
//! it holds the description of a file that was locked in shared mode, as others do with the
//! journal: a snapshot is in use exactly while its file is locked.

use crate::base::error::{Error, Result};
use crate::base::survivors;
use crate::base::users;
use crate::journal::engine::Engine;
use crate::session::handout::{self, Sent};
use crate::session::memory::{Constants, Memory};
use holdfast_pmem::huge_page;
use holdfast_pool::apply::count;
use holdfast_pool::format::{LANES, PAGE_LEN};
use holdfast_pool::segment;
use holdfast_pool::snapshot::{self, Snapshot};
use rustix::fd::AsFd;
use rustix::fs::OFlags;
use std::path::PathBuf;
use std::sync::atomic::Ordering::*;

/// Bytes of one lane of what stands in for the journal; nothing is ever written there.
const LANE_LEN: u64 = PAGE_LEN;
/// Bytes of what stands in for the journal.
pub const JOURNAL_LEN: u64 = LANES as u64 * LANE_LEN;

/// Descriptors for a new session on the snapshot `name`: session memory, meta, journal, data.
pub fn begin(engine: &Engine, name: &[u8]) -> Result<Vec<Sent>> {
    begin_on(engine, &find(engine, name)?)
}

/// As `begin`, on what the pool has now: nothing may be changed in it, also by us.
pub fn begin_on_present(engine: &Engine) -> Result<Vec<Sent>> {
    begin_on(engine, &Snapshot::of(engine.store.pool.superblock(), 0))
}

fn begin_on(engine: &Engine, snapshot: &Snapshot) -> Result<Vec<Sent>> {
    let files = &engine.store.files;
    let held = users::open(&users_path(engine, snapshot), OFlags::RDWR | OFlags::CREATE)?;
    let len = JOURNAL_LEN.next_multiple_of(huge_page(held.as_fd()).unwrap_or(1));
    rustix::fs::ftruncate(&held, len).map_err(Error::os("users of the snapshot"))?;
    survivors::mark(&held)?;
    let constants = Constants {
        lane_len: LANE_LEN,
        ..handout::constants(engine.store.pool.superblock(), files)
    };
    let memory = Memory::create("holdfast-snapshot", &constants)?;
    let header = memory.header();
    for (word, root) in header.snapshot_roots.iter().zip(snapshot.pack_roots()) {
        word.store(root, Relaxed);
    }
    header
        .snapshot_time
        .store(snapshot.time.max(0) as u64, Relaxed);
    header.expiring.store(1, Relaxed);
    header.snapshot_seq.store(snapshot.seq, Release);
    header
        .objects
        .store(count::objects(&snapshot.counts), Relaxed);
    header
        .total_blocks
        .store(engine.store.pool.data_space().len(), Relaxed);
    header
        .free_blocks
        .store(engine.store.blocks_left(), Relaxed);
    header
        .begun_after
        .store(engine.store.pool.superblock().seq, Relaxed);
    header.next_seq.store(snapshot.applied_seq + 1, Relaxed);
    // What is refused is refused for a better reason than that there are no numbers.
    header.ino_end.store(u64::MAX, Relaxed);
    header.applied_seq.store(snapshot.applied_seq, Release);
    let meta = files.reopen(segment::META, OFlags::RDONLY)?;
    let data = files.reopen(&segment::data(0), OFlags::RDONLY)?;
    let memory = Sent::Memory(memory.fd().clone());
    Ok(vec![
        memory,
        Sent::Copy(meta),
        Sent::Copy(held),
        Sent::Copy(data),
    ])
}

/// `SnapshotInUse` while programs run on it.
pub fn check_unused(engine: &Engine, name: &[u8]) -> Result<()> {
    let path = users_path(engine, &find(engine, name)?);
    let Ok(held) = users::open(&path, OFlags::RDWR) else {
        return Ok(());
    };
    if survivors::exist(&held) {
        let name = String::from_utf8_lossy(name).into_owned();
        return Err(Error::SnapshotInUse { name });
    }
    let _ = std::fs::remove_file(path);
    Ok(())
}

fn find(engine: &Engine, name: &[u8]) -> Result<Snapshot> {
    let found = snapshot::find(&engine.store.pool.reader(), name);
    let found = found.and_then(|found| found.ok_or(holdfast_pool::Error::NoSnapshot));
    found.map_err(|error| Error::Pool {
        path: engine.store.files.directory.clone(),
        error,
    })
}

fn users_path(engine: &Engine, snapshot: &Snapshot) -> PathBuf {
    let name = segment::snapshot_users(snapshot.epoch);
    engine.store.files.directory.join(name)
}
