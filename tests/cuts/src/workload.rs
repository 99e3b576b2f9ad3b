//! What a run does: passages, each of which can end in one kind of loss that users have met,
//! in random order and with random sizes, between sessions that begin and end.

use crate::driver::{Done, Driver, How};
use std::time::Duration;

/// Files in the inode cache of a session are fewer than this.
const CROWD: u64 = 70_000;

type Passage = (&'static str, fn(&mut Driver) -> Done);

const PASSAGES: &[Passage] = &[
    ("synced later", synced_later),
    ("appended", appended),
    ("overwritten", overwritten),
    ("deleted", deleted),
    ("renamed over", renamed_over),
    ("rewritten", rewritten),
    ("mapped", mapped),
    ("synchronous", synchronous),
    ("keys", keys),
    ("together", together),
    ("cut and grown", cut_and_grown),
    ("anything", anything),
    ("names", names),
    ("in place", in_place),
];

/// How large a run is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub passages: usize,
    /// With so many files that others leave the session's caches.
    pub crowd: bool,
    pub snapshot: bool,
}

/// Plays a whole run; `begin` is called when directories are there and cuts may come.
pub fn play(driver: &mut Driver, size: Size) -> Done {
    driver.next_session()?;
    for dir in ["d0", "d1"] {
        driver.mkdir(dir)?;
    }
    driver.sync_all(0, "syncfs")?;
    driver.marks.clear();
    driver.mark();
    let only = std::env::var("HF_CUTS_PASSAGE").ok();
    let chosen = |(name, _): &&Passage| only.as_deref().is_none_or(|only| only == *name);
    let passages: Vec<&Passage> = PASSAGES.iter().filter(chosen).collect();
    let first = driver.random.below(PASSAGES.len() as u64) as usize;
    for number in 0..size.passages {
        // Each passage once before any comes twice.
        let (name, passage) = passages
            .get((first + number * 5) % passages.len().max(1))
            .ok_or("no passage has this name")?;
        driver.passage = name;
        passage(driver).map_err(|e| format!("in passage `{name}`: {e}"))?;
        if driver.random.chance(30) {
            driver.next_session()?;
        }
        if size.snapshot && number == size.passages / 3 {
            driver.passage = "overwritten after a snapshot";
            driver.snapshot("s1")?;
            overwritten_old(driver)?;
        }
        if size.crowd && number == size.passages / 2 {
            driver.passage = "evicted";
            evicted(driver)?;
        }
    }
    driver.mark();
    Ok(())
}

fn pause(driver: &mut Driver) {
    let ms = 20 + driver.random.below(250);
    std::thread::sleep(Duration::from_millis(ms));
    driver.mark();
}

fn length(driver: &mut Driver) -> u64 {
    let bound = [200, 1500, 6000, 20_000, 60_000][driver.random.below(5) as usize];
    1 + driver.random.below(bound)
}

fn fresh_name(driver: &mut Driver) -> String {
    let dir = driver.random.below(2);
    format!("d{dir}/f{}", driver.history.events.len())
}

/// A new file of this length, made at once or written in one or more calls.
fn new_file(driver: &mut Driver, len: u64) -> Result<u32, String> {
    let name = fresh_name(driver);
    let writer = driver.writer();
    if driver.random.chance(40) {
        return driver.make(writer, &name, len);
    }
    let id = driver.create(writer, &name)?;
    let parts = 1 + driver.random.below(3);
    for part in 0..parts {
        let (from, to) = (len * part / parts, len * (part + 1) / parts);
        if to > from {
            driver.write(writer, id, from, to - from, How::Plain)?;
        }
    }
    Ok(id)
}

/// fsync or fdatasync by any process.
fn sync_file(driver: &mut Driver, id: u32) -> Done {
    let writer = driver.writer();
    if driver.random.chance(60) {
        driver.fsync(writer, id)
    } else {
        driver.fdatasync(writer, id)
    }
}

fn synced_file(driver: &mut Driver, len: u64) -> Result<u32, String> {
    let id = new_file(driver, len)?;
    sync_file(driver, id)?;
    Ok(id)
}

/// A file that is there, synced if that is asked for.
fn any_file(driver: &mut Driver, synced: bool) -> Result<u32, String> {
    let names = driver.history.names();
    let files: Vec<u32> = names
        .values()
        .copied()
        .filter(|id| !synced || driver.file(*id).is_synced())
        .collect();
    match driver.random.pick(&files) {
        Some(id) => Ok(*id),
        None => synced_file(driver, 3000),
    }
}

/// Written in one session, synced in a later one.
fn synced_later(driver: &mut Driver) -> Done {
    let mut ids = Vec::new();
    for _ in 0..1 + driver.random.below(3) {
        let len = length(driver);
        ids.push(new_file(driver, len)?);
    }
    if driver.random.chance(50) {
        let old = any_file(driver, true)?;
        let size = driver.file(old).size().max(1);
        let at = driver.random.below(size);
        driver.write(0, old, at, 100, How::Plain)?;
        ids.push(old);
    }
    driver.next_session()?;
    if driver.random.chance(20) {
        let writer = driver.writer();
        return driver.sync_all(writer, "syncfs");
    }
    for id in ids {
        sync_file(driver, id)?;
    }
    Ok(())
}

/// Small synced bytes, then a small append that nobody syncs.
fn appended(driver: &mut Driver) -> Done {
    let mut ids = Vec::new();
    for _ in 0..2 + driver.random.below(3) {
        let len = 1 + driver.random.below(700);
        ids.push(synced_file(driver, len)?);
    }
    if driver.random.chance(50) {
        driver.next_session()?;
    }
    for id in ids {
        let more = 1 + driver.random.below(3000);
        let writer = driver.writer();
        driver.append(writer, id, more)?;
    }
    pause(driver);
    Ok(())
}

/// Small overwrites of synced bytes that nobody syncs, with unsynced neighbours.
fn overwritten(driver: &mut Driver) -> Done {
    let len = 2000 + length(driver);
    let id = synced_file(driver, len)?;
    new_file(driver, len)?;
    for _ in 0..1 + driver.random.below(3) {
        let at = driver.random.below(len);
        let part = 1 + driver.random.below((len - at).min(5000));
        let writer = driver.writer();
        driver.write(writer, id, at, part, How::Plain)?;
    }
    pause(driver);
    Ok(())
}

/// Overwrites of files that a snapshot has.
fn overwritten_old(driver: &mut Driver) -> Done {
    for _ in 0..6 {
        let id = any_file(driver, true)?;
        let at = driver.random.below(driver.file(id).size().max(1));
        let writer = driver.writer();
        driver.write(writer, id, at, 10, How::Plain)?;
    }
    pause(driver);
    Ok(())
}

/// Synced files go, new ones come and are not synced.
fn deleted(driver: &mut Driver) -> Done {
    let mut ids = Vec::new();
    for _ in 0..3 {
        let len = length(driver) + 4000;
        ids.push(synced_file(driver, len)?);
    }
    for id in ids {
        let writer = driver.writer();
        let name = driver.name_of(id)?;
        driver.unlink(writer, &name)?;
    }
    // Their blocks come back when the removal was committed.
    pause(driver);
    for _ in 0..4 {
        let len = length(driver) + 4000;
        new_file(driver, len)?;
    }
    pause(driver);
    Ok(())
}

/// Saved by renaming a new file over the old one, without a sync.
fn renamed_over(driver: &mut Driver) -> Done {
    let len = length(driver);
    let old = synced_file(driver, len)?;
    let len = length(driver);
    let new = new_file(driver, len)?;
    let (from, to) = (driver.name_of(new)?, driver.name_of(old)?);
    let writer = driver.writer();
    driver.rename(writer, &from, &to)?;
    driver.mark();
    pause(driver);
    if driver.random.chance(40) {
        let dir = to[..2].to_string();
        driver.fsync_dir(writer, &dir)?;
    }
    Ok(())
}

/// Saved by cutting the old content and writing the new, without a sync.
fn rewritten(driver: &mut Driver) -> Done {
    let len = length(driver);
    let id = synced_file(driver, len)?;
    let len = length(driver);
    let chunk = 1 + driver.random.below(len);
    let chunk = if driver.random.chance(50) { len } else { chunk };
    let writer = driver.writer();
    driver.rewrite(writer, id, len, chunk)?;
    pause(driver);
    Ok(())
}

fn mapped(driver: &mut Driver) -> Done {
    let len = 3000 + length(driver);
    let id = synced_file(driver, len)?;
    for _ in 0..1 + driver.random.below(3) {
        let at = driver.random.below(len);
        let part = 1 + driver.random.below((len - at).min(6000));
        driver.map(id, at, part)?;
    }
    let writer = driver.writer();
    driver.append(writer, id, 50)
}

/// Writes that are durable when they return, between others that are not.
fn synchronous(driver: &mut Driver) -> Done {
    let len = length(driver);
    let id = new_file(driver, len)?;
    for _ in 0..1 + driver.random.below(4) {
        let size = driver.file(id).size();
        let at = driver.random.below(size + 1);
        let part = length(driver).min(9000);
        let hows = [How::OSync, How::ODsync, How::RwfDsync, How::Plain];
        let how = hows[driver.random.below(4) as usize];
        let writer = driver.writer();
        driver.write(writer, id, at, part, how)?;
    }
    Ok(())
}

/// Keys 8000 and up, so that none has the number of a file.
fn keys(driver: &mut Driver) -> Done {
    for _ in 0..2 + driver.random.below(3) {
        let keyspace = ["k0", "k1"][driver.random.below(2) as usize];
        if driver.random.chance(30) {
            let key = 8000 + driver.random.below(20) as u32;
            let len = length(driver) as usize;
            driver.put(keyspace, key, len)?;
            continue;
        }
        let mut changes: Vec<(u32, Option<usize>)> = Vec::new();
        for _ in 0..1 + driver.random.below(8) {
            let key = 8000 + driver.random.below(20) as u32;
            let len = driver.random.chance(85).then(|| length(driver) as usize);
            changes.retain(|(other, _)| *other != key);
            changes.push((key, len));
        }
        let durable = driver.random.chance(60);
        driver.batch(keyspace, &changes, durable)?;
    }
    pause(driver);
    Ok(())
}

/// Several processes write, then sync, at the same time.
fn together(driver: &mut Driver) -> Done {
    let mut jobs = Vec::new();
    for writer in 0..driver.writers() {
        let len = length(driver);
        jobs.push((writer, new_file(driver, len)?, length(driver)));
    }
    let mut lines = Vec::new();
    for (writer, id, len) in &jobs {
        let name = driver.name_of(*id)?;
        lines.push((*writer, driver.write_line(*id, &name, 0, *len, How::Plain)));
    }
    let spans = driver.tell_all(&lines)?;
    for ((_, id, len), span) in jobs.iter().zip(spans) {
        driver.wrote(*id, 0, *len, false, span);
    }
    let mut lines = Vec::new();
    for (writer, id, _) in &jobs {
        lines.push((*writer, format!("fsync {}", driver.name_of(*id)?)));
    }
    let spans = driver.tell_all(&lines)?;
    for ((writer, id, _), span) in jobs.iter().zip(spans) {
        let how = format!("fsync by writer {writer} beside others");
        driver.synced(*id, driver.file(*id).ops.len(), span, &how);
        driver.names_synced(driver.history.last_event_of(*id), span);
    }
    Ok(())
}

fn cut_and_grown(driver: &mut Driver) -> Done {
    let len = length(driver);
    let id = synced_file(driver, len)?;
    let writer = driver.writer();
    let to = driver.random.below(len + 1);
    driver.truncate(writer, id, to)?;
    if driver.random.chance(50) {
        sync_file(driver, id)?;
    }
    let at = to + driver.random.below(9000);
    let part = length(driver);
    driver.write(writer, id, at, part, How::Plain)?;
    if driver.random.chance(50) {
        sync_file(driver, id)?;
    } else {
        pause(driver);
    }
    Ok(())
}

/// Any change of any file, now and then with a sync.
fn anything(driver: &mut Driver) -> Done {
    for _ in 0..6 {
        let id = any_file(driver, false)?;
        let size = driver.file(id).size();
        let writer = driver.writer();
        let len = length(driver).min(8000);
        match driver.random.below(6) {
            0 | 1 => {
                let at = driver.random.below(size + 1);
                driver.write(writer, id, at, len, How::Plain)?;
            }
            2 => driver.append(writer, id, len)?,
            3 => driver.truncate(writer, id, size / 2)?,
            _ => sync_file(driver, id)?,
        }
    }
    let call = if driver.random.chance(20) {
        "sync"
    } else {
        "syncfs"
    };
    if driver.random.chance(50) {
        let writer = driver.writer();
        driver.sync_all(writer, call)?;
    }
    Ok(())
}

/// Overwrites that are small enough to be made where the bytes lie, and large enough to be torn.
fn in_place(driver: &mut Driver) -> Done {
    let id = synced_file(driver, 20_000)?;
    for _ in 0..8 {
        let at = driver.random.below(18_000);
        let len = 600 + driver.random.below(1400);
        let writer = driver.writer();
        driver.write(writer, id, at, len, How::Plain)?;
    }
    if driver.random.chance(50) {
        sync_file(driver, id)?;
    }
    Ok(())
}

fn names(driver: &mut Driver) -> Done {
    let id = any_file(driver, false)?;
    let (from, to) = (driver.name_of(id)?, fresh_name(driver));
    let writer = driver.writer();
    driver.rename(writer, &from, &to)?;
    let id = any_file(driver, false)?;
    let name = driver.name_of(id)?;
    driver.unlink(writer, &name)?;
    let name = fresh_name(driver);
    let id = driver.create(writer, &name)?;
    match driver.random.below(3) {
        0 => driver.fsync_dir(writer, &name[..2]),
        1 => driver.fsync(writer, id),
        _ => Ok(()),
    }
}

/// Written, then many other files, then synced.
fn evicted(driver: &mut Driver) -> Done {
    let mut ids = Vec::new();
    for _ in 0..3 {
        let len = length(driver);
        ids.push(new_file(driver, len)?);
    }
    driver.tell(0, &format!("crowd crowd {CROWD}"))?;
    ids.into_iter().try_for_each(|id| sync_file(driver, id))
}
