//! Operations on the content of files.
//!
//! Invariants: everything that a row writes is read back and compared after its timed part; a file
//! that a row reads was compared once as a whole.

use super::Job;
use super::content::{self, BLOCK, UNIT};
use super::meter::Meter;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;

/// Random reads.
pub fn pread(job: &mut Job, meter: &mut Meter, n: usize, size: usize) -> io::Result<()> {
    let file = File::open(job.read_file()?)?;
    let offsets = content::offsets(job.seed(), job.file_len, size, n);
    let mut buffer = [0u8; BLOCK];
    let buffer = &mut buffer[..size];
    for &at in offsets.iter().take(n / 8) {
        exact(file.read_at(buffer, at)?, size)?;
        content::check(at / UNIT as u64, buffer)?;
    }
    (job.barrier)()?;
    meter.run(n, |i| exact(file.read_at(buffer, offsets[i])?, size))
}

/// Random overwrites, and fsync where `sync`.
pub fn pwrite(
    job: &mut Job,
    meter: &mut Meter,
    n: usize,
    size: usize,
    sync: bool,
) -> io::Result<()> {
    let path = job.write_file()?;
    let file = OpenOptions::new().read(true).write(true).open(&path)?;
    let offsets = content::offsets(job.seed(), job.file_len, size, n);
    let buffers = &job.buffers;
    let step = |i: usize| {
        exact(file.write_at(buffers.nth(i, size), offsets[i])?, size)?;
        if sync { file.sync_all() } else { Ok(()) }
    };
    for i in 0..n / 8 {
        step(i)?;
    }
    (job.barrier)()?;
    meter.run(n, step)?;
    let mut last = vec![None; (job.file_len / size as u64) as usize];
    for (i, at) in offsets.iter().enumerate() {
        last[(at / size as u64) as usize] = Some(i);
    }
    let mut got = [0u8; BLOCK];
    for (slot, i) in last
        .iter()
        .enumerate()
        .filter_map(|(slot, i)| Some((slot, (*i)?)))
    {
        let at = (slot * size) as u64;
        file.read_exact_at(&mut got[..size], at)?;
        content::same(buffers.nth(i, size), &got[..size], at)?;
    }
    Ok(())
}

/// Appends to a new file, and fsync where `sync`.
pub fn append(
    job: &mut Job,
    meter: &mut Meter,
    n: usize,
    size: usize,
    sync: bool,
) -> io::Result<()> {
    let path = job.dir.join("append");
    let new = || OpenOptions::new().append(true).create_new(true).open(&path);
    let buffers = &job.buffers;
    let step = |mut file: &File, i: usize| {
        exact(file.write(buffers.nth(i, size))?, size)?;
        if sync { file.sync_all() } else { Ok(()) }
    };
    let warm = new()?;
    for i in 0..n / 8 {
        step(&warm, i)?;
    }
    drop(warm);
    fs::remove_file(&path)?;
    let file = new()?;
    (job.barrier)()?;
    meter.run(n, |i| step(&file, i))?;
    drop(file);
    let mut back = File::open(&path)?;
    exact(back.metadata()?.len() as usize, n * size)?;
    let mut got = [0u8; BLOCK];
    for i in 0..n {
        back.read_exact(&mut got[..size])?;
        content::same(buffers.nth(i, size), &got[..size], (i * size) as u64)?;
    }
    fs::remove_file(&path)
}

/// Reads from start to end.
pub fn read(job: &mut Job, meter: &mut Meter, n: usize, size: usize) -> io::Result<()> {
    let path = job.read_file()?;
    let mut buffer = [0u8; BLOCK];
    let buffer = &mut buffer[..size];
    let per_file = (job.file_len / size as u64) as usize;
    let mut warm = File::open(&path)?;
    for _ in 0..per_file.min(n) / 8 {
        exact(warm.read(buffer)?, size)?;
    }
    (job.barrier)()?;
    let mut left = n;
    while left > 0 {
        let mut file = File::open(&path)?;
        let part = left.min(per_file);
        meter.run(part, |_| exact(file.read(buffer)?, size))?;
        if part == per_file {
            exact(file.read(buffer)?, 0)?;
        }
        left -= part;
    }
    Ok(())
}

/// Makes the file that `read` and `pread` use and compares it once, in both ways of reading.
pub fn prepare(job: &Job, path: &std::path::Path) -> io::Result<()> {
    let mut file = File::create(path)?;
    let mut buffer = vec![0; 1 << 18];
    let step = buffer.len() as u64;
    for at in (0..job.file_len).step_by(buffer.len()) {
        content::fill(at / UNIT as u64, &mut buffer);
        file.write_all(&buffer)?;
    }
    file.sync_all()?;
    let mut file = File::open(path)?;
    for at in (0..job.file_len).step_by(buffer.len()) {
        file.read_exact(&mut buffer)?;
        content::check(at / UNIT as u64, &buffer)?;
    }
    file.read_exact_at(&mut buffer, job.file_len - step)?;
    content::check((job.file_len - step) / UNIT as u64, &buffer)
}

fn exact(got: usize, want: usize) -> io::Result<()> {
    if got == want {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{got} bytes moved instead of {want}"
    )))
}
