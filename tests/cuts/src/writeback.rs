//! The kernel's write-back at its most arbitrary: any page of the pool's segments, at any time.
//!
//! POSIX_FADV_DONTNEED starts writing the dirty pages of a range and waits for nothing, as the
//! kernel itself may do whenever it likes. No flush follows.

use crate::random::Random;
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

/// The process that does it, until this is dropped.
pub struct Writeback(Child);

impl Writeback {
    /// Begins to write back pages of the files in `dir`.
    pub fn start(own: &Path, dir: &Path, mut random: Random) -> Result<Writeback, String> {
        let mut command = Command::new(own);
        command.arg("writeback").arg(dir);
        command.arg(random.next().to_string()).stdin(Stdio::null());
        let child = command.spawn().map_err(|e| format!("write-back: {e}"))?;
        Ok(Writeback(child))
    }
}

impl Drop for Writeback {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `hf-cuts writeback POOL SEED`
pub fn main(dir: &str, seed: &str) -> ExitCode {
    let Ok(seed) = seed.parse() else {
        return ExitCode::FAILURE;
    };
    let mut random = Random(seed);
    loop {
        // A file that vanished meanwhile is as good as one that was not chosen.
        let _ = write_some(Path::new(dir), &mut random);
        std::thread::sleep(Duration::from_micros(300 + random.below(3000)));
    }
}

fn write_some(dir: &Path, random: &mut Random) -> std::io::Result<()> {
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "seg") {
            files.push(path);
        }
    }
    files.sort();
    let Some(path) = random.pick(&files) else {
        return Ok(());
    };
    let file = File::open(path)?;
    let pages = file.metadata()?.len() / 4096;
    // Short ranges tear what lies together; long ones find what is dirty at all. Segments fill
    // from their beginning.
    let stride = 1 << random.below(12);
    let bound = pages >> random.below(8);
    let (from, count) = (random.below(bound.max(1)), 1 + random.below(64));
    for index in 0..count {
        let at = (from + index * stride) * 4096;
        let len = 4096 * (1 + random.below(stride));
        fadvise(&file, at, NonZeroU64::new(len), Advice::DontNeed)?;
    }
    Ok(())
}
