//! States of a pool as they are compared and saved: snapshots, and the present as one of them.
//!
//! Invariants: what is read is a snapshot that is kept from being deleted; one of the present is
//! there only meanwhile, and what a killed process left of those goes with the next.

use crate::failure::Failure;
use holdfast::{Pool, View};
use holdfast_pmem::{Access, Region};
use holdfast_pool::Reader;
use holdfast_pool::snapshot::{self, Snapshot};
use holdfast_service::Files;
use rustix::fd::AsFd;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

/// What the names of snapshots begin with that are there only while they are read.
pub const TEMPORARY: &str = ".saving-";

/// A snapshot and its name.
pub type Named = (Vec<u8>, Snapshot);

/// The name of the one that is saved in a file: who saves there again finds it by that.
pub fn name_for(file: &Path) -> String {
    let mut hasher = DefaultHasher::new();
    let absolute = std::path::absolute(file);
    absolute.unwrap_or_else(|_| file.into()).hash(&mut hasher);
    format!("{TEMPORARY}{:016x}", hasher.finish())
}

/// Snapshots of saves that were killed, but for `kept`; those of others that still run are in use.
pub fn remove_left_over(pool: &Pool, kept: Option<&str>) {
    for snapshot in pool.snapshot_list().unwrap_or_default() {
        if snapshot.name.starts_with(TEMPORARY) && Some(&snapshot.name[..]) != kept {
            let _ = pool.snapshot_delete(&snapshot.name);
        }
    }
}

/// A snapshot that is there only while it is saved.
pub struct Present<'p> {
    pool: &'p Pool,
    pub name: String,
    /// It was there already: an interrupted save has left it.
    pub is_left: bool,
    view: Option<View>,
}

impl<'p> Present<'p> {
    /// The one that an interrupted save left by this name.
    pub fn left(pool: &'p Pool, name: &str) -> Option<Present<'p>> {
        Some(Present {
            pool,
            name: name.into(),
            is_left: true,
            view: Some(pool.snapshot(name).ok()?),
        })
    }

    /// Snapshots of saves that were killed, but for `kept`; those of others that run are in use.
    /// in use: then there is one more.
    pub fn keep(pool: &'p Pool, name: Option<&str>) -> Result<Present<'p>, Failure> {
        let mut tries = 0;
        loop {
            let mut random = [0; 8];
            holdfast_pmem::env::random(&mut random);
            let any = || format!("{TEMPORARY}{:016x}", u64::from_le_bytes(random));
            let wanted = name.filter(|_| tries == 0);
            let name = wanted.map_or_else(any, String::from);
            tries += 1;
            match pool.snapshot_create(&name) {
                Err(_) if wanted.is_some() => continue,
                made => made?,
            }
            match pool.snapshot(&name) {
                Ok(view) => {
                    return Ok(Present {
                        pool,
                        name,
                        is_left: false,
                        view: Some(view),
                    });
                }
                Err(_) if tries < 3 => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for Present<'_> {
    fn drop(&mut self) {
        drop(self.view.take());
        let _ = self.pool.snapshot_delete(&self.name);
    }
}

/// The pool's files, as they are read.
pub struct Segments {
    pub files: Files,
    pub meta: Region,
    pub data: Region,
}

impl Segments {
    /// Maps them for reading.
    pub fn open(pool: &Path) -> Result<Segments, Failure> {
        let files = Files::open_read_only(pool)?;
        let map = |file: rustix::fd::BorrowedFd<'_>, len: u64| {
            Region::map(file, 0, len as usize, Access::ReadOnly, files.medium)
                .map_err(|e| Failure::new(format!("{}: {e}", pool.display())))
        };
        let meta = map(files.meta.as_fd(), files.superblock.meta_len)?;
        // The pool may grow before its last state is read.
        let data = map(files.data.as_fd(), files.data_room())?;
        Ok(Segments { files, meta, data })
    }

    /// Whether the snapshot of this name is still this one.
    pub fn has(&self, name: &str, wanted: &Snapshot) -> bool {
        let found = snapshot::find(&Reader::new(&self.meta), name.as_bytes());
        found.is_ok_and(|found| found.is_some_and(|found| found.epoch == wanted.epoch))
    }

    /// A number that tells what is in the pool, as the snapshot `present` of all that is there has
    /// it, from what was or will be in it. `None`: there may be stores that no record tells of.
    pub fn mark(&self, all: &[Named], present: &str) -> Result<Option<u64>, Failure> {
        let found = snapshot::find_entry(&Reader::new(&self.meta), present.as_bytes());
        let found = found.map_err(|e| Failure::new(e.to_string()))?;
        let quiet = found.filter(|(snapshot, mapped)| !snapshot.in_place && mapped.is_empty());
        Ok(quiet.map(|(snapshot, _)| self.number(all, snapshot.applied_seq)))
    }

    /// The same of a pool that nobody uses.
    pub fn mark_at_rest(&self, all: &[Named]) -> u64 {
        self.number(all, self.files.superblock.applied_seq)
    }

    fn number(&self, all: &[Named], applied_seq: u64) -> u64 {
        let mut hasher = DefaultHasher::new();
        let sb = &self.files.superblock;
        (sb.uuid, sb.data_len, applied_seq).hash(&mut hasher);
        let kept = |(name, _): &&Named| !name.starts_with(TEMPORARY.as_bytes());
        for (name, snapshot) in all.iter().filter(kept) {
            (name, snapshot.epoch).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// All snapshots, oldest first.
    pub fn snapshots(&self, pool: &Path) -> Result<Vec<Named>, Failure> {
        let all = snapshot::list(&Reader::new(&self.meta));
        let mut all = all.map_err(|e| Failure::new(format!("{}: {e}", pool.display())))?;
        all.sort_by_key(|(_, snapshot)| snapshot.epoch);
        Ok(all)
    }
}

/// The snapshot of a name.
pub fn find(all: &[Named], wanted: &str, pool: &Path) -> Result<Named, Failure> {
    let found = all.iter().find(|(name, _)| name == wanted.as_bytes());
    let why = || Failure::new(format!("there is no snapshot {wanted}"));
    let fix = format!("holdfast snapshot {} list", pool.display());
    found.cloned().ok_or_else(|| why().fix(fix))
}
