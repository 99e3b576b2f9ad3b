//! Pool directories: the one that a story runs on, and those made from images.
//!
//! Invariant: the segments of a directory made from an image have its bytes and no others.

use holdfast_pmem::images::Image;
use holdfast_pmem::{Medium, Recorder, Watch};
use holdfast_pool::format::LANES;
use holdfast_pool::format::geometry::SUPERBLOCK_PAGES;
use holdfast_pool::format::superblock::{SUPERBLOCK_LEN, Superblock};
use rustix::fd::AsFd;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// By region number of the log.
const SEGMENTS: [&str; 3] = ["meta.seg", "journal-0.seg", "data-0.seg"];
const META: usize = 0;
pub const JOURNAL: usize = 1;
pub const DATA: usize = 2;
const PAGE: usize = 4096;
/// What free blocks have in them: no story writes it.
const STALE: u8 = 0xee;
/// Bytes of data from the start on that have it: blocks that a story may come to use.
pub const STALE_LEN: u64 = 6 << 20;
const OTHER_BOOT: [u8; 16] = [7; 16];
/// What the tests of a machine with many CPUs need at most.
const ROOM: u64 = 512 << 20;

/// A directory on memory that goes away in the end.
pub struct Dir(PathBuf);

impl Dir {
    pub fn new(name: &str) -> Dir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Relaxed);
        let base = memory();
        Dir(base.join(format!("holdfast-power-{name}-{}-{n}", std::process::id())))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    fn segment(&self, region: usize) -> File {
        let path = self.0.join(SEGMENTS[region]);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.open(path).unwrap()
    }

    /// Whatever maps the segments from now on records into `log`.
    pub fn watch(&self, log: &Recorder) -> Vec<Watch> {
        let all = (0..SEGMENTS.len()).map(|region| {
            let file = self.segment(region);
            holdfast_pmem::watch(file.as_fd(), log.region(region as u32)).unwrap()
        });
        all.collect()
    }

    /// Free blocks of a closed pool, those that are used first, come to have what somebody else may
    /// have had in them.
    pub fn make_stale(&self) {
        let file = self.segment(DATA);
        let mut page = [0; PAGE];
        for at in (0..STALE_LEN).step_by(PAGE) {
            file.read_exact_at(&mut page, at).unwrap();
            if page.iter().all(|b| *b == 0) {
                file.write_all_at(&[STALE; PAGE], at).unwrap();
            }
        }
    }

    /// A new pool has lanes of that many bytes, as large ones on ordinary files have.
    pub fn set_lane_len(&self, len: u64) {
        let journal = self.segment(JOURNAL);
        journal.set_len(LANES as u64 * len).unwrap();
        self.change_superblocks(|superblock| superblock.lane_len = len);
    }

    /// Whoever opens the pool next does it after another boot of the machine.
    pub fn reboot(&self) {
        self.change_superblocks(|superblock| superblock.boot_id = OTHER_BOOT);
    }

    /// Superblocks that are not whole stay so.
    fn change_superblocks(&self, change: impl Fn(&mut Superblock)) {
        let file = self.segment(META);
        for page in SUPERBLOCK_PAGES {
            let (mut bytes, at) = ([0; SUPERBLOCK_LEN], page * PAGE as u64);
            file.read_exact_at(&mut bytes, at).unwrap();
            if let Ok(mut superblock) = Superblock::decode(&bytes) {
                change(&mut superblock);
                file.write_all_at(&superblock.encode(), at).unwrap();
            }
        }
    }

    pub fn read(&self) -> Vec<Vec<u8>> {
        let all = SEGMENTS
            .iter()
            .map(|name| fs::read(self.0.join(name)).unwrap());
        all.collect()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Where pools are on memory and have room; a container's /dev/shm is often small.
fn memory() -> PathBuf {
    let shm = PathBuf::from("/dev/shm");
    let fits = |path: &PathBuf| {
        let Ok(dir) = File::open(path) else {
            return false;
        };
        let free = rustix::fs::fstatvfs(&dir).map_or(0, |s| s.f_bavail * s.f_frsize);
        free >= ROOM && Medium::detect(dir.as_fd()) == Medium::Memory
    };
    let found = [shm.clone(), std::env::temp_dir()].into_iter().find(fits);
    found.unwrap_or(shm)
}

/// What all images of a log start from.
pub struct Base {
    pub full: Vec<Vec<u8>>,
    /// First and last page after it of everything that is not zero.
    runs: Vec<(usize, usize, usize)>,
}

impl Base {
    pub fn new(full: Vec<Vec<u8>>) -> Base {
        let mut runs: Vec<(usize, usize, usize)> = Vec::new();
        for (region, bytes) in full.iter().enumerate() {
            for (at, page) in bytes.chunks(PAGE).enumerate() {
                if page.iter().all(|b| *b == 0) {
                    continue;
                }
                match runs.last_mut() {
                    Some(last) if (last.0, last.2) == (region, at) => last.2 = at + 1,
                    _ => runs.push((region, at, at + 1)),
                }
            }
        }
        Base { full, runs }
    }

    /// Makes `dir` a pool directory with the bytes of `image`.
    pub fn lay(&self, image: &Image<'_>, dir: &Dir) {
        fs::create_dir_all(dir.path().join("empty")).unwrap();
        fs::write(dir.path().join("base"), b"").unwrap();
        let files: Vec<File> = (0..SEGMENTS.len()).map(|r| dir.segment(r)).collect();
        for (file, bytes) in files.iter().zip(&self.full) {
            file.set_len(0).unwrap();
            file.set_len(bytes.len() as u64).unwrap();
        }
        for &(region, first, end) in &self.runs {
            let bytes = &self.full[region][first * PAGE..end * PAGE];
            files[region]
                .write_all_at(bytes, (first * PAGE) as u64)
                .unwrap();
        }
        let mut run: (usize, u64, Vec<u8>) = (0, 0, Vec::new());
        for (region, at, bytes) in image.patches() {
            if (region as usize, at) != (run.0, run.1 + run.2.len() as u64) {
                files[run.0].write_all_at(&run.2, run.1).unwrap();
                run = (region as usize, at, Vec::new());
            }
            run.2.extend_from_slice(bytes);
        }
        files[run.0].write_all_at(&run.2, run.1).unwrap();
    }
}
