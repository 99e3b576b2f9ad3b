//! What a writer does, step by step, and what its directory holds after each step: computed from
//! the seed alone, so that the verifier needs nothing from the writer but the number of its last
//! acknowledged step. Shares no code with what it judges.
//!
//! Invariant: at most one step is unacknowledged. After a kill the directory therefore holds the
//! state after the last acknowledged step, or one that the actions of the next step pass through.

use super::shared;
use std::collections::BTreeMap;

/// One call that changes something, or asks for durability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Create(String),
    Append(String, Vec<u8>),
    Overwrite(String, usize, Vec<u8>),
    Truncate(String, usize),
    Rename(String, String),
    Link(String, String),
    Unlink(String),
    Mkdir(String),
    Rmdir(String),
    Symlink(String, String),
    /// fsync of a file, or of the writer's directory if the name is empty.
    Sync(String),
    /// Reads the file and compares it with what it must hold.
    Check(String, Vec<u8>),
    /// Appends one record to the log that all writers share.
    SharedAppend(u64),
    /// Renames the file over one of the places that all writers share.
    SharedReplace(String, u64),
    /// Adds one to the counter that all writers share, under its lock.
    SharedCount,
}

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The number of the file; two names of one file are hard links.
    File(usize),
    Directory,
    Symlink(String),
}

/// The contents of a writer's directory.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub entries: BTreeMap<String, Entry>,
    pub files: Vec<Vec<u8>>,
}

/// Random numbers that depend on the seed only (splitmix64).
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend(self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    /// Mostly small, sometimes many pages.
    fn length(&mut self) -> usize {
        let bound = [64, 600, 5000, 5000, 70_000][self.below(5) as usize];
        self.below(bound) as usize
    }
}

const LOG: &str = "log";
const LOG_BYTES_MAX: usize = 400_000;
/// Places that the writers share for `SharedReplace`.
pub const SHARED_PLACES: u64 = 3;

/// The actions of step `number` in this state. With `sync_calls` each step makes itself durable
/// before it is acknowledged; without, each call is durable when it returns.
pub fn step(seed: u64, number: u64, state: &State, sync_calls: bool) -> Vec<Action> {
    let mut random = Random(seed ^ number.wrapping_mul(0xd6e8_feb8_6659_fd93));
    let mut actions = change(&mut random, number, state);
    if random.below(8) == 0
        && let Some(Entry::File(file)) = state.entries.get(LOG)
    {
        actions.insert(0, Action::Check(LOG.into(), state.files[*file].clone()));
    }
    if !sync_calls {
        actions.retain(|action| !matches!(action, Action::Sync(_)));
    }
    actions
}

fn change(random: &mut Random, number: u64, state: &State) -> Vec<Action> {
    let length = match state.entries.get(LOG) {
        Some(Entry::File(file)) => state.files[*file].len(),
        _ => {
            return vec![
                Action::Create(LOG.into()),
                Action::Sync(LOG.into()),
                sync_dir(),
            ];
        }
    };
    match random.below(14) {
        0..=5 => {
            let action = change_log(random, length);
            vec![action, Action::Sync(LOG.into())]
        }
        6 | 7 => {
            let size = random.length();
            let mut actions = fresh(random.bytes(size));
            actions.extend([Action::Rename("t".into(), slot(random)), sync_dir()]);
            actions
        }
        8..=10 => vec![change_names(random, state), sync_dir()],
        11 => vec![Action::SharedAppend(number)],
        12 => {
            let mut actions = fresh(shared::sealed(random.bytes(1000)));
            let place = random.below(SHARED_PLACES);
            actions.push(Action::SharedReplace("t".into(), place));
            actions
        }
        _ => vec![Action::SharedCount],
    }
}

/// A change of the log, which has this length.
fn change_log(random: &mut Random, length: usize) -> Action {
    let log = LOG.to_string();
    match random.below(6) {
        0..=3 if length < LOG_BYTES_MAX => {
            let size = random.length();
            Action::Append(log, random.bytes(size))
        }
        0..=3 => Action::Truncate(log, length / 3),
        4 => {
            let at = random.below(length as u64 + 1) as usize;
            let size = random.length().min(length - at);
            Action::Overwrite(log, at, random.bytes(size))
        }
        _ => {
            let to = random.below(length as u64 + 9000) as usize;
            Action::Truncate(log, to.min(LOG_BYTES_MAX))
        }
    }
}

/// A change of names that one call makes.
fn change_names(random: &mut Random, state: &State) -> Action {
    let has = |name: &str| state.entries.contains_key(name);
    match random.below(3) {
        0 => {
            let (one, other) = (slot(random), slot(random));
            match (has(&one), one == other) {
                (true, true) => Action::Unlink(one),
                (true, false) => Action::Rename(one, other),
                (false, _) => Action::Create(one),
            }
        }
        1 => {
            let from = slot(random);
            let to = format!("l{from}");
            match (has(&from), has(&to)) {
                (_, true) => Action::Unlink(to),
                (true, false) => Action::Link(from, to),
                (false, false) => Action::Symlink(from, to),
            }
        }
        _ => {
            let name = format!("d{}", random.below(3));
            if has(&name) {
                Action::Rmdir(name)
            } else {
                Action::Mkdir(name)
            }
        }
    }
}

/// One of the few names that files come to have.
fn slot(random: &mut Random) -> String {
    format!("f{}", random.below(5))
}

/// A new file with contents, durable, under the name that a rename then takes away.
fn fresh(bytes: Vec<u8>) -> Vec<Action> {
    let name = || "t".to_string();
    vec![
        Action::Create(name()),
        Action::Append(name(), bytes),
        Action::Sync(name()),
    ]
}

fn sync_dir() -> Action {
    Action::Sync(String::new())
}

impl State {
    /// The state after these actions.
    pub fn apply(&mut self, action: &Action) {
        match action {
            Action::Create(name) => {
                self.files.push(Vec::new());
                self.entries
                    .insert(name.clone(), Entry::File(self.files.len() - 1));
            }
            Action::Append(name, bytes) => self.file(name).extend(bytes),
            Action::Overwrite(name, at, bytes) => {
                self.file(name)[*at..*at + bytes.len()].copy_from_slice(bytes);
            }
            Action::Truncate(name, len) => self.file(name).resize(*len, 0),
            Action::Rename(from, to) => self.rename(from, to),
            Action::Link(from, to) => {
                let entry = self.entries[from].clone();
                self.entries.insert(to.clone(), entry);
            }
            Action::Unlink(name) | Action::Rmdir(name) | Action::SharedReplace(name, _) => {
                self.entries.remove(name);
            }
            Action::Mkdir(name) => {
                self.entries.insert(name.clone(), Entry::Directory);
            }
            Action::Symlink(target, name) => {
                self.entries
                    .insert(name.clone(), Entry::Symlink(target.clone()));
            }
            Action::Sync(_) | Action::Check(..) => {}
            Action::SharedAppend(_) | Action::SharedCount => {}
        }
    }

    /// Renaming one name of a file over another name of the same file does nothing (rename(2)).
    fn rename(&mut self, from: &str, to: &str) {
        if self.entries.get(from) != self.entries.get(to)
            && let Some(entry) = self.entries.remove(from)
        {
            self.entries.insert(to.into(), entry);
        }
    }

    fn file(&mut self, name: &str) -> &mut Vec<u8> {
        match self.entries.get(name) {
            Some(Entry::File(file)) => &mut self.files[*file],
            other => unreachable!("a step writes to `{name}`, which is {other:?}"),
        }
    }

    /// Where `seen` differs; None if it is this state. `partial`: an action that may have been
    /// under way, of which any part may have happened.
    pub fn differs(&self, seen: &State, partial: Option<&Action>) -> Option<String> {
        let names = self.entries.keys().chain(seen.entries.keys());
        let mut pairs = BTreeMap::new();
        for name in names {
            match (self.entries.get(name), seen.entries.get(name)) {
                (Some(Entry::File(ours)), Some(Entry::File(theirs))) => {
                    // Hard links: the same files of ours are the same files of theirs.
                    if *pairs.entry(*ours).or_insert(*theirs) != *theirs {
                        return Some(format!("{name} is no longer a link to the same file"));
                    }
                    let (old, new) = self.bounds(*ours, name, partial);
                    if let Some(why) = between(&old, &new, &seen.files[*theirs]) {
                        return Some(format!("{name} {why}"));
                    }
                }
                (ours, theirs) if ours == theirs => {}
                (ours, theirs) => return Some(format!("{name} is {theirs:?}, not {ours:?}")),
            }
        }
        None
    }

    /// The contents of the file before and after the action that may be under way.
    fn bounds(&self, file: usize, name: &str, partial: Option<&Action>) -> (Vec<u8>, Vec<u8>) {
        let old = self.files[file].clone();
        match partial {
            Some(action @ (Action::Append(n, _) | Action::Overwrite(n, ..))) if n == name => {
                let mut after = self.clone();
                after.apply(action);
                (old, after.files.swap_remove(file))
            }
            _ => (old.clone(), old),
        }
    }
}

/// Whether each byte of `seen` is the old or the new one and its length lies between theirs.
fn between(old: &[u8], new: &[u8], seen: &[u8]) -> Option<String> {
    let (shortest, longest) = (old.len().min(new.len()), old.len().max(new.len()));
    if seen.len() < shortest || seen.len() > longest {
        return Some(format!(
            "has {} bytes, not {shortest} to {longest}",
            seen.len()
        ));
    }
    let allowed = |i: usize, byte: u8| old.get(i) == Some(&byte) || new.get(i) == Some(&byte);
    let wrong = seen
        .iter()
        .enumerate()
        .find(|&(i, byte)| !allowed(i, *byte))?;
    Some(format!(
        "has at byte {} of {} the wrong value {}",
        wrong.0,
        seen.len(),
        wrong.1
    ))
}

/// Judges a directory of a writer whose last acknowledged step is `acked` (0: none). With
/// `atomic_writes` a write may not have happened in part.
pub fn judge(
    seed: u64,
    acked: u64,
    seen: &State,
    sync_calls: bool,
    atomic_writes: bool,
) -> Result<(), String> {
    let mut state = State::default();
    for number in 1..=acked {
        for action in step(seed, number, &state, sync_calls) {
            state.apply(&action);
        }
    }
    let Some(first) = state.differs(seen, None) else {
        return Ok(());
    };
    for action in step(seed, acked + 1, &state, sync_calls) {
        let partial = (!atomic_writes).then_some(&action);
        if state.differs(seen, partial).is_none() {
            return Ok(());
        }
        state.apply(&action);
        if state.differs(seen, None).is_none() {
            return Ok(());
        }
    }
    Err(format!(
        "after step {acked}: {first}; nor is it a part of the step after it"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(seed: u64, steps: u64) -> State {
        let mut state = State::default();
        for number in 1..=steps {
            step(seed, number, &state, true)
                .iter()
                .for_each(|action| state.apply(action));
        }
        state
    }

    #[test]
    fn every_step_is_possible_and_judged_right() {
        for seed in 0..20 {
            let state = after(seed, 200);
            assert_eq!(judge(seed, 200, &state, true, true), Ok(()));
            assert_eq!(
                judge(seed, 199, &state, true, true),
                Ok(()),
                "the next step is done"
            );
            // Syncs change nothing, so both kinds of step lead to the same states.
            assert_eq!(judge(seed, 200, &state, false, true), Ok(()));
        }
    }

    #[test]
    fn a_lost_step_is_found() {
        let found = (0..50).filter(|&seed| {
            let older = after(seed, 97);
            judge(seed, 100, &older, true, false).is_err()
        });
        assert!(
            found.count() > 40,
            "three lost steps are nearly always seen"
        );
    }

    #[test]
    fn a_wrong_byte_a_lost_name_and_a_split_link_are_found() {
        let seed = (0..)
            .find(|&s| after(s, 100).entries.len() > 5)
            .expect("there is one");
        let good = after(seed, 100);
        let judge = |seen: &State| judge(seed, 100, seen, true, false);
        for name in good.entries.keys() {
            let mut seen = good.clone();
            seen.entries.remove(name);
            // The next step may remove one name; a second must be missed.
            seen.entries.remove(LOG);
            assert!(judge(&seen).is_err(), "{name}");
        }
        let mut seen = good.clone();
        let Some(Entry::File(log)) = good.entries.get(LOG) else {
            panic!("no log")
        };
        seen.files[*log][0] ^= 1;
        seen.files[*log].push(0);
        assert!(judge(&seen).is_err());
    }

    #[test]
    fn parts_of_a_write_are_allowed_only_where_writes_are_not_atomic() {
        let mut state = State::default();
        state.apply(&Action::Create("a".into()));
        state.apply(&Action::Append("a".into(), vec![1; 10]));
        let more = Action::Append("a".into(), vec![2; 10]);
        let mut seen = state.clone();
        seen.files[0].extend([2; 4]);
        assert_eq!(state.differs(&seen, Some(&more)), None);
        assert!(state.differs(&seen, None).is_some());
        seen.files[0][12] = 0;
        assert!(
            state.differs(&seen, Some(&more)).is_some(),
            "zeroes were never written"
        );
        let mut seen = state.clone();
        seen.files[0][3] = 9;
        let over = Action::Overwrite("a".into(), 2, vec![9; 3]);
        assert_eq!(state.differs(&seen, Some(&over)), None);
        seen.files[0][7] = 9;
        assert!(state.differs(&seen, Some(&over)).is_some());
    }
}
