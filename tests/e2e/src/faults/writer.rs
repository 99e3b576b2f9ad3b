//! The program that is killed: does step after step in a directory of its own and in one that all
//! writers share, and acknowledges each on standard output once it is durable.
//!
//! Lines: `P pid` first, then `A step` for each step done, `E step errno what` when a call failed.
//! Ends with 0 when its standard input ends, with 5 after EIO, with 6 after any other failure.

use super::model::{self, Action, State};
use super::shared;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// `hf-e2e write DIR ID SEED SYNC_CALLS COUNTER`
pub fn main(dir: &str, id: &str, seed: &str, sync_calls: &str, counter: &str) -> ExitCode {
    let (Ok(id), Ok(seed)) = (id.parse(), seed.parse()) else {
        return ExitCode::from(2);
    };
    let stop = stop_at_end_of_input();
    let writer = Writer {
        dir: Path::new(dir).join(format!("w{id}")),
        shared: Path::new(dir).into(),
        id,
        seed,
        sync_calls: sync_calls == "yes",
        counter: counter.into(),
    };
    say(&format!("P {}", std::process::id()));
    let mut number = 0;
    match writer.work(&stop, &mut number) {
        Ok(()) => ExitCode::SUCCESS,
        Err((what, e)) => {
            say(&format!(
                "E {number} {} {what}: {e}",
                e.raw_os_error().unwrap_or(0)
            ));
            // EIO
            ExitCode::from(if e.raw_os_error() == Some(5) { 5 } else { 6 })
        }
    }
}

struct Writer {
    dir: PathBuf,
    shared: PathBuf,
    id: u64,
    seed: u64,
    sync_calls: bool,
    counter: String,
}

type Failed = (String, io::Error);

impl Writer {
    fn work(&self, stop: &AtomicBool, number: &mut u64) -> Result<(), Failed> {
        fs::create_dir_all(&self.dir).map_err(|e| ("mkdir".into(), e))?;
        let mut state = State::default();
        while !stop.load(Ordering::Relaxed) {
            *number += 1;
            for action in model::step(self.seed, *number, &state, self.sync_calls) {
                self.perform(&action).map_err(|e| (short(&action), e))?;
                state.apply(&action);
            }
            say(&format!("A {number}"));
        }
        Ok(())
    }

    fn perform(&self, action: &Action) -> io::Result<()> {
        let path = |name: &str| self.dir.join(name);
        let open = |name: &str| OpenOptions::new().read(true).write(true).open(path(name));
        match action {
            Action::Create(name) => File::create_new(path(name)).map(drop),
            Action::Append(name, bytes) => whole(
                OpenOptions::new()
                    .append(true)
                    .open(path(name))?
                    .write(bytes)?,
                bytes,
            ),
            Action::Overwrite(name, at, bytes) => {
                whole(open(name)?.write_at(bytes, *at as u64)?, bytes)
            }
            Action::Truncate(name, len) => open(name)?.set_len(*len as u64),
            Action::Rename(from, to) => fs::rename(path(from), path(to)),
            Action::Link(from, to) => fs::hard_link(path(from), path(to)),
            Action::Unlink(name) => fs::remove_file(path(name)),
            Action::Mkdir(name) => fs::create_dir(path(name)),
            Action::Rmdir(name) => fs::remove_dir(path(name)),
            Action::Symlink(target, name) => symlink(target, path(name)),
            Action::Sync(name) if name.is_empty() => File::open(&self.dir)?.sync_all(),
            Action::Sync(name) => File::open(path(name))?.sync_all(),
            Action::Check(name, expected) => check(&path(name), expected),
            Action::SharedAppend(step) => {
                shared::append(&self.shared, self.id, *step, self.sync_calls)
            }
            Action::SharedReplace(name, place) => {
                fs::rename(path(name), shared::place(&self.shared, *place))
            }
            Action::SharedCount => shared::count(&self.shared, &self.counter, self.sync_calls),
        }
    }
}

fn whole(written: usize, bytes: &[u8]) -> io::Result<()> {
    if written == bytes.len() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "wrote {written} of {} bytes",
        bytes.len()
    )))
}

fn check(path: &Path, expected: &[u8]) -> io::Result<()> {
    let found = fs::read(path)?;
    if found == expected {
        return Ok(());
    }
    let at = found.iter().zip(expected).position(|(a, b)| a != b);
    let (have, want) = (found.len(), expected.len());
    Err(io::Error::other(format!(
        "read {have} bytes, not {want}; first difference {at:?}"
    )))
}

fn short(action: &Action) -> String {
    let text = format!("{action:?}");
    text.split('[')
        .next()
        .unwrap_or_default()
        .chars()
        .take(60)
        .collect()
}

/// One line at once, so that a kill leaves no half of one; a parent that is gone is no concern.
fn say(line: &str) {
    let _ = io::stdout().write_all(format!("{line}\n").as_bytes());
}

fn stop_at_end_of_input() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    std::thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        flag.store(true, Ordering::Relaxed);
    });
    stop
}
