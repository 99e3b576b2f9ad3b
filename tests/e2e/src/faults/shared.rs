//! What all writers of a round share: a log that each appends to, places that each renames files
//! over, and a counter under a lock. A writer that dies inside must not stop or confuse the rest.
//!
//! Invariants, whoever was killed: every record of the log is whole and its writer's numbers rise;
//! every place holds one whole file; the counter is not below the acknowledged additions.

use crate::dump::hash;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

const RECORD: usize = 200;

fn record(id: u64, step: u64) -> [u8; RECORD] {
    let mut bytes = [b'.'; RECORD];
    bytes[..8].copy_from_slice(&id.to_le_bytes());
    bytes[8..16].copy_from_slice(&step.to_le_bytes());
    let sum = hash(&bytes[..RECORD - 8]);
    bytes[RECORD - 8..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Appends the record of this step by one write with O_APPEND.
pub fn append(dir: &Path, id: u64, step: u64, sync: bool) -> io::Result<()> {
    let mut log = OpenOptions::new()
        .append(true)
        .create(true)
        .open(dir.join("shared.log"))?;
    let written = log.write(&record(id, step))?;
    if written != RECORD {
        return Err(io::Error::other(format!(
            "wrote {written} of {RECORD} bytes"
        )));
    }
    if sync { log.sync_all() } else { Ok(()) }
}

pub fn place(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("place{number}"))
}

/// What a place holds: something, then a sum over it.
pub fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.extend(hash(&bytes).to_le_bytes());
    bytes
}

/// The name of the counter that all writers add to, and the beginning of that of others.
pub const COUNTER: &str = "counter";

/// Adds one to the counter `name` under its lock.
pub fn count(dir: &Path, name: &str, sync: bool) -> io::Result<()> {
    let path = dir.join(name);
    let mut open = OpenOptions::new();
    let mut file = open
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    file.lock()?;
    let value = read_counter(&mut file)?;
    file.rewind()?;
    file.write_all(&(value + 1).to_le_bytes())?;
    if sync {
        file.sync_all()?;
    }
    file.unlock()
}

/// The sum of all counters.
fn read_counters(dir: &Path) -> io::Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(COUNTER) {
            sum += read_counter(&mut File::open(entry.path())?)?;
        }
    }
    Ok(sum)
}

fn read_counter(file: &mut File) -> io::Result<u64> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    match <[u8; 8]>::try_from(bytes.as_slice()) {
        Ok(bytes) => Ok(u64::from_le_bytes(bytes)),
        Err(_) if bytes.is_empty() => Ok(0),
        Err(_) => Err(io::Error::other(format!(
            "the counter has {} bytes",
            bytes.len()
        ))),
    }
}

/// Judges what the writers share. `acked`: for each writer the steps that it acknowledged with a
/// shared append; `counted`: how many additions were acknowledged in all.
pub fn judge(dir: &Path, acked: &BTreeMap<u64, Vec<u64>>, counted: u64) -> Vec<String> {
    let mut wrong = Vec::new();
    judge_log(dir, acked, &mut wrong);
    for number in 0..super::model::SHARED_PLACES {
        let path = place(dir, number);
        let Ok(bytes) = fs::read(&path) else { continue };
        let whole = bytes.split_last_chunk::<8>();
        if whole.is_none_or(|(data, sum)| hash(data).to_le_bytes() != *sum) {
            wrong.push(format!(
                "{} ({} bytes) is not whole",
                path.display(),
                bytes.len()
            ));
        }
    }
    match read_counters(dir) {
        Ok(value) if value >= counted => {}
        Ok(value) => wrong.push(format!(
            "the counters are {value}; {counted} were acknowledged"
        )),
        Err(e) => wrong.push(format!("the counters: {e}")),
    }
    wrong
}

fn judge_log(dir: &Path, acked: &BTreeMap<u64, Vec<u64>>, wrong: &mut Vec<String>) {
    let bytes = match fs::read(dir.join("shared.log")) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(e) => return wrong.push(format!("shared.log: {e}")),
    };
    let mut seen: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for (index, piece) in bytes.chunks(RECORD).enumerate() {
        let number = |at: usize| {
            let bytes = piece.get(at..at + 8).and_then(|b| b.try_into().ok());
            u64::from_le_bytes(bytes.unwrap_or_default())
        };
        let (id, step) = (number(0), number(8));
        if piece != record(id, step) {
            let (len, total) = (piece.len(), bytes.len());
            wrong.push(format!(
                "shared.log: record {index} ({len} bytes of {total}) is not whole"
            ));
            continue;
        }
        seen.entry(id).or_default().push(step);
    }
    for (id, steps) in &seen {
        if !steps.is_sorted_by(|a, b| a < b) {
            wrong.push(format!(
                "shared.log: the steps of writer {id} are not in order"
            ));
        }
    }
    for (id, steps) in acked {
        let have = seen.get(id).map_or(&[][..], Vec::as_slice);
        if let Some(step) = steps.iter().find(|step| !have.contains(step)) {
            wrong.push(format!(
                "shared.log: acknowledged step {step} of writer {id} is missing"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_invariant_can_be_broken() {
        let dir = std::env::temp_dir().join(format!("hf-shared.{}", std::process::id()));
        fs::create_dir_all(&dir).expect("made");
        for step in 1..=3 {
            append(&dir, 7, step, true).expect("appended");
            count(&dir, COUNTER, false).expect("counted");
        }
        fs::write(place(&dir, 0), sealed(b"content".into())).expect("written");
        let acked = BTreeMap::from([(7, vec![1, 3])]);
        assert_eq!(judge(&dir, &acked, 3), [""; 0]);
        assert_eq!(judge(&dir, &acked, 4).len(), 1, "a lost addition");
        assert_eq!(
            judge(&dir, &BTreeMap::from([(7, vec![4])]), 3).len(),
            1,
            "a lost record"
        );
        append(&dir, 7, 2, true).expect("appended");
        assert_eq!(judge(&dir, &acked, 3).len(), 1, "a record twice");
        let log = OpenOptions::new()
            .write(true)
            .open(dir.join("shared.log"))
            .expect("opened");
        log.set_len(4 * RECORD as u64 - 50).expect("cut");
        assert_eq!(judge(&dir, &acked, 3).len(), 1, "half a record");
        fs::write(place(&dir, 0), b"cont").expect("written");
        assert_eq!(judge(&dir, &acked, 3).len(), 2, "half a file");
        fs::remove_dir_all(&dir).expect("removed");
    }
}
