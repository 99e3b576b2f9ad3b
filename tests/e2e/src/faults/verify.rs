//! The judge of a round: reads the tree that the writers left, in a process of its own, and
//! compares it with what their seeds and last acknowledged steps allow. Prints what is wrong.

use super::model::{self, Action, Entry, State};
use super::shared;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;

/// `hf-e2e verify DIR MODE ID:SEED:ACKED...`; then removes DIR if all is right.
pub fn main(dir: &str, mode: &str, writers: &[&str]) -> ExitCode {
    let dir = Path::new(dir);
    let wrong = judge(dir, mode, writers);
    wrong.iter().for_each(|line| println!("{line}"));
    if !wrong.is_empty() {
        return ExitCode::FAILURE;
    }
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            println!("removing {}: {e}", dir.display());
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

fn judge(dir: &Path, mode: &str, writers: &[&str]) -> Vec<String> {
    let (sync_calls, atomic_writes) = (mode == "posix", mode == "strict");
    let mut wrong = Vec::new();
    let (mut appended, mut counted) = (BTreeMap::new(), 0);
    for writer in writers {
        let parts: Vec<u64> = writer
            .split(':')
            .filter_map(|part| part.parse().ok())
            .collect();
        let &[id, seed, acked] = parts.as_slice() else {
            wrong.push(format!("`{writer}` is not ID:SEED:ACKED"));
            continue;
        };
        let (steps, additions) = shared_steps(seed, acked, sync_calls);
        appended.insert(id, steps);
        counted += additions;
        let path = dir.join(format!("w{id}"));
        let judged = match read(&path) {
            Ok(seen) => model::judge(seed, acked, &seen, sync_calls, atomic_writes),
            // Killed before it made its directory.
            Err(e) if e.kind() == io::ErrorKind::NotFound && acked == 0 => Ok(()),
            Err(e) => Err(format!("cannot be read: {e}")),
        };
        wrong.extend(
            judged
                .err()
                .map(|why| format!("writer {id} (seed {seed}) {why}")),
        );
    }
    wrong.extend(shared::judge(dir, &appended, counted));
    wrong
}

/// The acknowledged steps that appended to the shared log, and the number of additions.
fn shared_steps(seed: u64, acked: u64, sync_calls: bool) -> (Vec<u64>, u64) {
    let (mut steps, mut additions) = (Vec::new(), 0);
    let mut state = State::default();
    for number in 1..=acked {
        for action in model::step(seed, number, &state, sync_calls) {
            match action {
                Action::SharedAppend(step) => steps.push(step),
                Action::SharedCount => additions += 1,
                _ => {}
            }
            state.apply(&action);
        }
    }
    (steps, additions)
}

/// The directory as the model describes one.
fn read(dir: &Path) -> io::Result<State> {
    let mut state = State::default();
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let (path, meta) = (entry.path(), entry.metadata()?);
        let found = if meta.is_dir() {
            Entry::Directory
        } else if meta.is_symlink() {
            Entry::Symlink(fs::read_link(&path)?.to_string_lossy().into_owned())
        } else {
            let next = state.files.len();
            let file = *files.entry(meta.ino()).or_insert(next);
            if file == next {
                state.files.push(fs::read(&path)?);
            }
            Entry::File(file)
        };
        state
            .entries
            .insert(entry.file_name().to_string_lossy().into_owned(), found);
    }
    Ok(state)
}
