//! Directories for tests, in memory where possible.
//!
//! Invariant: dropping a `TempDir` removes it with its content.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new(name: &str) -> TempDir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() {
            shm.into()
        } else {
            std::env::temp_dir()
        };
        let path = base.join(format!("holdfast-test-{name}-{}-{n}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        TempDir(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
