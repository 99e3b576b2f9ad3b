//! Sessions on snapshots.
//!
//! Invariants: such a session has memory of its own, which says the roots, and descriptors through
//! which nothing of the pool can be written; nothing of it is remembered here. Every process of it
//! holds the description of a file that was locked in shared mode, as others do of the journal: a
//! snapshot is in use exactly while its file is locked.

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::memory::{Constants, Memory};
use crate::{ordinary, session, survivors};
use holdfast_pool::format::{LANES, PAGE_LEN};
use holdfast_pool::segment;
use holdfast_pool::snapshot::{self, Snapshot};
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::*;

/// Bytes of one lane of what stands in for the journal; nothing is ever written there.
const LANE_LEN: u64 = PAGE_LEN;
/// Bytes of what stands in for the journal.
pub const JOURNAL_LEN: u64 = LANES as u64 * LANE_LEN;

/// Descriptors for a new session on the snapshot `name`: session memory, meta, journal, data.
pub fn begin(engine: &Engine, name: &[u8]) -> Result<Vec<OwnedFd>> {
    let snapshot = find(engine, name)?;
    let files = &engine.files;
    let users = open_users(
        &users_path(engine, &snapshot),
        OFlags::RDWR | OFlags::CREATE,
    )?;
    rustix::fs::ftruncate(&users, JOURNAL_LEN).map_err(Error::os("users of the snapshot"))?;
    survivors::mark(&users)?;
    let constants = Constants {
        lane_len: LANE_LEN,
        ..session::constants(engine)
    };
    let memory = Memory::create("holdfast-snapshot", &constants)?;
    let header = memory.header();
    for (word, root) in header.snapshot_roots.iter().zip(snapshot.pack_roots()) {
        word.store(root, Relaxed);
    }
    header.snapshot_seq.store(snapshot.seq, Release);
    header.objects.store(snapshot.counts.iter().sum(), Relaxed);
    header
        .total_blocks
        .store(engine.pool.data_space().len(), Relaxed);
    header.free_blocks.store(engine.blocks_left(), Relaxed);
    header
        .begun_after
        .store(engine.pool.superblock().seq, Relaxed);
    header.next_seq.store(snapshot.applied_seq + 1, Relaxed);
    header.applied_seq.store(snapshot.applied_seq, Release);
    let meta = files.reopen(segment::META, OFlags::RDONLY)?;
    let data = files.reopen(&segment::data(0), OFlags::RDONLY)?;
    let memory = memory.fd().try_clone().map_err(Error::io("descriptors"))?;
    Ok(vec![memory, meta, users, data])
}

/// `SnapshotInUse` while programs run on it.
pub fn check_unused(engine: &Engine, name: &[u8]) -> Result<()> {
    let path = users_path(engine, &find(engine, name)?);
    let Ok(users) = open_users(&path, OFlags::RDWR) else {
        return Ok(());
    };
    if survivors::exist(&users) {
        let name = String::from_utf8_lossy(name).into_owned();
        return Err(Error::SnapshotInUse { name });
    }
    let _ = std::fs::remove_file(path);
    Ok(())
}

/// Whether programs run on any snapshot of the pool in `directory`.
pub fn any_in_use(directory: &Path) -> bool {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut users = entries.filter(|e| e.file_name().as_encoded_bytes().ends_with(b".users"));
    users.any(|e| open_users(&e.path(), OFlags::RDWR).is_ok_and(|fd| survivors::exist(&fd)))
}

fn find(engine: &Engine, name: &[u8]) -> Result<Snapshot> {
    let found = snapshot::find(&engine.pool.reader(), name);
    let found = found.and_then(|found| found.ok_or(holdfast_pool::Error::NoSnapshot));
    found.map_err(|error| Error::Pool {
        path: engine.files.directory.clone(),
        error,
    })
}

fn users_path(engine: &Engine, snapshot: &Snapshot) -> PathBuf {
    let name = segment::snapshot_users(snapshot.period);
    engine.files.directory.join(name)
}

fn open_users(path: &Path, flags: OFlags) -> Result<OwnedFd> {
    ordinary::open_or_say(path, flags)
}
