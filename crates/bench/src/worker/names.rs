//! Operations on names.
//!
//! Invariants: a directory holds `FILES` files while it is measured; each operation takes a name
//! that the same pass has not touched since the last untimed step.

use super::Job;
use super::meter::Meter;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Files in a directory.
pub const FILES: usize = 1024;
/// Files with content that are there at once: where each takes a huge page, that is 256 MiB.
const FULL: usize = 128;

/// create + close.
pub fn create(job: &mut Job, meter: &mut Meter, n: usize) -> io::Result<()> {
    let names = Names::new(job, "c")?;
    names.rounds(n, FILES, |part, first| {
        if first {
            (job.barrier)()?;
        }
        meter.run(part, |i| new_file(&names.a[i]).map(drop))?;
        names.remove(part)
    })?;
    names.done()
}

/// create + write 4 KB + close.
pub fn write_file(job: &mut Job, meter: &mut Meter, n: usize) -> io::Result<()> {
    let names = Names::new(job, "w")?;
    names.rounds(n, FULL, |part, first| {
        if first {
            (job.barrier)()?;
        }
        meter.run(part, |i| {
            new_file(&names.a[i])?.write_all(job.buffers.nth(i, 4096))
        })?;
        for i in 0..part {
            let got = fs::read(&names.a[i])?;
            super::content::same(job.buffers.nth(i, 4096), &got, 0)?;
        }
        names.remove(part)
    })?;
    names.done()
}

/// open + close of a file that is there.
pub fn open(job: &mut Job, meter: &mut Meter, n: usize) -> io::Result<()> {
    let names = Names::new(job, "o")?;
    names.make(FILES)?;
    File::open(&names.a[0])?;
    (job.barrier)()?;
    meter.run(n, |i| File::open(&names.a[i * 7 % FILES]).map(drop))?;
    names.remove(FILES)?;
    names.done()
}

/// stat by path.
pub fn stat(job: &mut Job, meter: &mut Meter, n: usize) -> io::Result<()> {
    let names = Names::new(job, "s")?;
    names.make(FILES)?;
    fs::metadata(&names.a[0])?;
    (job.barrier)()?;
    meter.run(n, |i| match fs::metadata(&names.a[i * 7 % FILES])?.len() {
        0 => Ok(()),
        len => Err(io::Error::other(format!("a size of {len} instead of 0"))),
    })?;
    names.remove(FILES)?;
    names.done()
}

/// rename within a directory, to a name that is free.
pub fn rename(job: &mut Job, meter: &mut Meter, n: usize) -> io::Result<()> {
    let mut names = Names::new(job, "r")?;
    names.make(FILES)?;
    (job.barrier)()?;
    for start in (0..n).step_by(FILES) {
        let part = FILES.min(n - start);
        meter.run(part, |i| fs::rename(&names.a[i], &names.b[i]))?;
        for i in part..FILES {
            fs::rename(&names.a[i], &names.b[i])?;
        }
        std::mem::swap(&mut names.a, &mut names.b);
    }
    names.remove(FILES)?;
    names.done()
}

/// unlink.
pub fn unlink(job: &mut Job, meter: &mut Meter, n: usize) -> io::Result<()> {
    let names = Names::new(job, "u")?;
    names.rounds(n, FILES, |part, first| {
        names.make(part)?;
        if first {
            (job.barrier)()?;
        }
        meter.run(part, |i| fs::remove_file(&names.a[i]))
    })?;
    names.done()
}

/// A whole directory, opened, read and closed.
pub fn readdir(job: &mut Job, meter: &mut Meter, n: usize) -> io::Result<()> {
    let names = Names::new(job, "d")?;
    names.make(FILES)?;
    fs::read_dir(&names.dir)?.count();
    (job.barrier)()?;
    let mut seen = 0;
    while seen < n {
        seen += meter.run_counted(|| {
            fs::read_dir(&names.dir)?.try_fold(0, |n, entry| entry.map(|_| n + 1))
        })?;
    }
    if seen % FILES != 0 {
        return Err(io::Error::other(format!(
            "{seen} entries in listings of {FILES}"
        )));
    }
    names.remove(FILES)?;
    names.done()
}

/// Starts a program and waits for its end.
pub fn start(job: &mut Job, meter: &mut Meter, n: usize) -> io::Result<()> {
    let step = || {
        let status = Command::new("/bin/true").stdin(Stdio::null()).status()?;
        if status.success() {
            Ok(1)
        } else {
            Err(io::Error::other(format!("{status}")))
        }
    };
    step()?;
    (job.barrier)()?;
    for _ in 0..n {
        meter.run_counted(step)?;
    }
    Ok(())
}

/// Makes `n` files of 4 KB in `DIR/fill`.
pub fn fill(job: &Job, n: usize) -> io::Result<()> {
    let dir = job.dir.join("fill");
    fs::create_dir(&dir)?;
    for i in 0..n {
        new_file(&dir.join(format!("file{i:06}")))?.write_all(job.buffers.nth(i, 4096))?;
    }
    File::open(&dir)?.sync_all()
}

fn new_file(path: &PathBuf) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// A directory and two names for each of its files.
struct Names {
    dir: PathBuf,
    a: Vec<PathBuf>,
    b: Vec<PathBuf>,
}

impl Names {
    fn new(job: &Job, dir: &str) -> io::Result<Names> {
        let dir = job.dir.join(dir);
        fs::create_dir(&dir)?;
        let all = |kind: &str| {
            (0..FILES)
                .map(|i| dir.join(format!("{kind}{i:05}")))
                .collect()
        };
        Ok(Names {
            a: all("file"),
            b: all("name"),
            dir,
        })
    }

    /// Calls `each(part, first)` until the parts, each of at most `most`, sum to `n`.
    fn rounds(
        &self,
        n: usize,
        most: usize,
        mut each: impl FnMut(usize, bool) -> io::Result<()>,
    ) -> io::Result<()> {
        (0..n)
            .step_by(most)
            .try_for_each(|start| each(most.min(n - start), start == 0))
    }

    fn make(&self, n: usize) -> io::Result<()> {
        self.a[..n]
            .iter()
            .try_for_each(|path| new_file(path).map(drop))
    }

    fn remove(&self, n: usize) -> io::Result<()> {
        self.a[..n].iter().try_for_each(fs::remove_file)
    }

    fn done(self) -> io::Result<()> {
        fs::remove_dir(&self.dir)
    }
}
