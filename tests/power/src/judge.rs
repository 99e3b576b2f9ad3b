//! Whether what is in a recovered pool may be there.
//!
//! Invariant: a byte of a file is one that the file had at that place in one of the versions that
//! the model allows, or zero where one of them ends before it, or one that was written there later;
//! its size is between those of the versions.

use crate::model::{Limits, Model, Node, Subject};
use crate::values;
use std::collections::BTreeMap;

/// An object as a program sees it.
#[derive(Clone, PartialEq, Eq)]
pub struct Seen {
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub size: u64,
    /// Content of a file, target of a symlink.
    pub bytes: Vec<u8>,
    /// When a value expires; 0: never, as all else.
    pub until: i64,
}

pub type View = BTreeMap<String, Seen>;

/// All that a pool has: what programs see, and what they see in each snapshot.
pub struct Whole {
    pub now: View,
    pub snapshots: BTreeMap<String, View>,
    /// By `user 7`, or the path of the directory.
    pub quotas: BTreeMap<String, Limits>,
}

const DIR: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

/// Why what is there is not a state of the model.
pub fn compare_all(model: &Model, whole: &Whole) -> Result<(), String> {
    compare(model, &whole.now)?;
    let want = wanted_quotas(model);
    if want != whole.quotas {
        return Err(format!("quotas {:?}, not {want:?}", whole.quotas));
    }
    let (want, got) = (model.snapshots.keys(), whole.snapshots.keys());
    if !want.clone().eq(got.clone()) {
        return Err(format!("snapshots {got:?}, not {want:?}"));
    }
    let mut pairs = model.snapshots.iter().zip(whole.snapshots.values());
    pairs.try_for_each(|((name, kept), view)| {
        compare(kept, view).map_err(|e| format!("snapshot {name}: {e}"))
    })
}

/// Those of directories go with them.
fn wanted_quotas(model: &Model) -> BTreeMap<String, Limits> {
    let name = |subject: &Subject| match subject {
        Subject::User(uid) => Some(format!("user {uid}")),
        Subject::Directory(id) => {
            let mut names = model.names.iter();
            names.find(|(_, i)| *i == id).map(|(path, _)| path.clone())
        }
    };
    let quotas = model.quotas.iter();
    quotas
        .filter_map(|(subject, limits)| Some((name(subject)?, *limits)))
        .collect()
}

/// Why the view is not a state of the model.
fn compare(model: &Model, view: &View) -> Result<(), String> {
    let objects = || view.iter().filter(|(_, seen)| !values::is_value(seen));
    let want: Vec<_> = model.names.keys().collect();
    let got: Vec<_> = objects().map(|(path, _)| path).collect();
    if want != got {
        return Err(format!("names {got:?}, not {want:?}"));
    }
    let want: View = values::wanted(&model.values).collect();
    let is_wrong =
        |(path, seen): &(&String, &Seen)| values::is_value(seen) && want.get(*path) != Some(seen);
    if let Some((path, seen)) = view.iter().find(is_wrong) {
        return Err(format!("{path:?}: {} bytes that were not put", seen.size));
    }
    if let Some(path) = want.keys().find(|path| !view.contains_key(*path)) {
        return Err(format!("{path:?} is missing"));
    }
    for (path, seen) in objects() {
        let (node, mode) = &model.nodes[&model.names[path]];
        let kind = match node {
            Node::Dir => DIR,
            Node::Link(_) => LINK,
            Node::File { .. } => FILE,
        };
        let owner = model.owners.get(&model.names[path]);
        let want = (kind | mode, model.links(path), *owner.unwrap_or(&0));
        let got = (seen.mode, seen.links, seen.uid);
        if got != want {
            return Err(format!("{path}: mode, links, owner {got:?}, not {want:?}"));
        }
        match node {
            Node::Dir => {}
            Node::Link(target) if seen.bytes == target.as_bytes() => {}
            Node::Link(_) => return Err(format!("{path}: target {:?}", seen.bytes)),
            Node::File { versions, later } => content(path, (versions, later), seen)?,
        }
    }
    Ok(())
}

type Contents<'m> = (&'m [Vec<u8>], &'m [Vec<u8>]);

fn content(path: &str, (versions, later): Contents<'_>, seen: &Seen) -> Result<(), String> {
    let lens = || versions.iter().map(Vec::len);
    let (min, max) = (lens().min().unwrap(), lens().max().unwrap());
    let len = seen.bytes.len();
    if seen.size != len as u64 || !(min..=max).contains(&len) {
        return Err(format!(
            "{path}: size {} read {len}, not {min}..={max}",
            seen.size
        ));
    }
    let allowed = |at: usize, byte: u8| {
        let had = |v: &Vec<u8>| v.get(at).copied().unwrap_or(0) == byte;
        versions.iter().any(had) || later.iter().any(|v| v.get(at) == Some(&byte))
    };
    match seen
        .bytes
        .iter()
        .enumerate()
        .find(|(at, byte)| !allowed(*at, **byte))
    {
        None => Ok(()),
        Some((at, byte)) => Err(format!("{path}: byte {byte} at {at} of {len}")),
    }
}
