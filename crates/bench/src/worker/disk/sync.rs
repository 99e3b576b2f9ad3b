//! Writes that are synced, and reads of what is not cached.
//!
//! Invariant: every acknowledged write is compared after the clock has stopped.

use super::super::content::{self, Random};
use super::data::{self, MIB, PAGE, Place};
use super::{Plan, Took};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

const SIZE: usize = PAGE as usize;
/// Bytes of one read of a file that is read from start to end.
const READ: usize = 128 << 10;

pub fn small_len(plan: &Plan) -> u64 {
    if plan.quick { MIB } else { 16 * MIB }
}

pub fn middle_len(plan: &Plan) -> u64 {
    if plan.quick { 8 * MIB } else { 192 * MIB }
}

pub fn runs(plan: &Plan) -> u64 {
    if plan.quick { 50 } else { 800 }
}

pub fn bulk_len(plan: &Plan) -> u64 {
    if plan.quick { 8 * MIB } else { 256 * MIB }
}

pub fn overwrite(plan: &Plan) -> io::Result<Took> {
    page(plan, &plan.path("small"), data::anywhere)
}

/// Overwrites single pages, each synced.
pub fn page(plan: &Plan, path: &Path, place: Place) -> io::Result<Took> {
    let file = data::open(path)?;
    let len = file.metadata()?.len();
    let (ops, buffers) = (plan.ops(1000), plan.buffers());
    let mut random = Random::new(u64::from(std::process::id()));
    let places: Vec<u64> = (0..ops).map(|_| place(len, &mut random)).collect();
    let step = |i: usize| {
        file.write_all_at(buffers.nth(i, SIZE), places[i])?;
        file.sync_all()
    };
    (0..ops.min(4)).try_for_each(step)?;
    let took = plan.timed(ops, 1, step)?;
    let last: BTreeMap<u64, usize> = (0..took.ops).map(|i| (places[i], i)).collect();
    let mut got = [0; SIZE];
    for (at, i) in last {
        file.read_exact_at(&mut got, at)?;
        content::same(buffers.nth(i, SIZE), &got, at)?;
    }
    Ok(took)
}

/// Appends to a new file, each time synced.
pub fn append(plan: &Plan, size: usize) -> io::Result<Took> {
    let path = plan.path("append");
    let (ops, buffers) = (plan.ops(1000), plan.buffers());
    data::without(&path)?;
    let new = || OpenOptions::new().append(true).create_new(true).open(&path);
    let step = |mut file: &File, i: usize| {
        file.write_all(buffers.nth(i, size))?;
        file.sync_all()
    };
    let warm = new()?;
    (0..4).try_for_each(|i| step(&warm, i))?;
    drop(warm);
    fs::remove_file(&path)?;
    let file = new()?;
    let took = plan.timed(ops, 1, |i| step(&file, i))?;
    let mut back = File::open(&path)?;
    let mut got = vec![0; size];
    for i in 0..took.ops {
        back.read_exact(&mut got)?;
        content::same(buffers.nth(i, size), &got, (i * size) as u64)?;
    }
    end_of_file(&mut back)?;
    fs::remove_file(&path)?;
    Ok(took)
}

/// Writes new files; each file and each time its directory is synced.
pub fn new_file(plan: &Plan) -> io::Result<Took> {
    let (ops, buffers) = (plan.ops(1000), plan.buffers());
    let dir = plan.path("new");
    data::fresh(&dir)?;
    let name = |i: usize| dir.join(format!("file-{i:05}"));
    let names: Vec<_> = (0..ops).map(name).collect();
    let holder = File::open(&dir)?;
    let step = |path: &Path, i: usize| {
        let mut file = File::create_new(path)?;
        file.write_all(buffers.nth(i, SIZE))?;
        file.sync_all()?;
        holder.sync_all()
    };
    (0..4).try_for_each(|i| step(&dir.join(format!("warm-{i}")), i))?;
    let took = plan.timed(ops, 1, |i| step(&names[i], i))?;
    for (i, path) in names.iter().enumerate().take(took.ops) {
        content::same(buffers.nth(i, SIZE), &fs::read(path)?, 0)?;
    }
    fs::remove_dir_all(&dir)?;
    Ok(took)
}

/// Saves a document as editors do: a new file, synced, renamed over the old, the directory synced.
pub fn save(plan: &Plan) -> io::Result<Took> {
    let (ops, buffers) = (plan.ops(1000), plan.buffers());
    let dir = plan.path("save");
    data::fresh(&dir)?;
    let (document, next) = (dir.join("document"), dir.join("document.new"));
    let holder = File::open(&dir)?;
    let step = |i: usize| {
        let mut file = File::create(&next)?;
        file.write_all(buffers.nth(i, SIZE))?;
        file.sync_all()?;
        fs::rename(&next, &document)?;
        holder.sync_all()
    };
    (0..4).try_for_each(step)?;
    let took = plan.timed(ops, 1, step)?;
    content::same(buffers.nth(took.ops - 1, SIZE), &fs::read(&document)?, 0)?;
    fs::remove_dir_all(&dir)?;
    Ok(took)
}

/// Writes one large file and syncs it once; an operation is a mebibyte.
pub fn bulk(plan: &Plan) -> io::Result<Took> {
    let path = plan.path("bulk");
    let len = bulk_len(plan);
    data::without(&path)?;
    let before = plan.counter.read();
    let start = std::time::Instant::now();
    let mut file = File::create_new(&path)?;
    data::write_numbered(&mut file, len)?;
    file.sync_all()?;
    let mut took = Took::default();
    took.add(start.elapsed(), (len / MIB) as usize);
    took.flushed(before, plan.counter.read());
    drop(file);
    compare(&path, len).map(drop)?;
    fs::remove_file(&path)?;
    Ok(took)
}

/// Reads a file from start to end; whoever asks has dropped it from the cache before.
pub fn cold_read(plan: &Plan) -> io::Result<Took> {
    compare(&plan.path("cold"), bulk_len(plan))
}

/// Reads a numbered file and compares the start of each mebibyte, as it goes.
fn compare(path: &Path, len: u64) -> io::Result<Took> {
    let mut buffer = vec![0; READ];
    let mut took = Took::default();
    let start = std::time::Instant::now();
    let mut file = File::open(path)?;
    for at in (0..len).step_by(READ) {
        file.read_exact(&mut buffer)?;
        if at % MIB == 0 {
            content::same(&(at / MIB).to_le_bytes(), &buffer[..8], at)?;
        }
    }
    end_of_file(&mut file)?;
    took.add(start.elapsed(), (len / MIB) as usize);
    Ok(took)
}

fn end_of_file(file: &mut File) -> io::Result<()> {
    match file.read(&mut [0])? {
        0 => Ok(()),
        _ => Err(io::Error::other("the file is longer than what was written")),
    }
}
