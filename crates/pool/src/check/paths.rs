//! Paths for findings.
//!
//! Invariant: it takes one more pass over the names, only if something was found.

use super::births::Seen;
use super::facts::Facts;
use super::media::{Super, le64};
use super::report::Log;
use super::{Bytes, walk};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

const DEPTH_MAX: usize = 4096;

/// Gives every finding about an object the path of that object, if it has one.
pub(super) fn name_objects(meta: &dyn Bytes, sb: &Super, facts: &Facts, log: &mut Log) {
    let mut names: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for finding in &log.findings {
        let mut at = finding.ino.unwrap_or(0);
        for _ in 0..DEPTH_MAX {
            let Some(fact) = facts.get(at).filter(|f| f.dir != 0) else {
                break;
            };
            names.insert(at, Vec::new());
            at = fact.dir;
        }
    }
    if names.is_empty() {
        return;
    }
    let mut seen = Seen::new(sb.meta_pages);
    walk::tree(
        meta,
        sb,
        1,
        &mut seen,
        &mut Log::default(),
        &mut |_, _, value, _| {
            if value.len() > 10 {
                let name = names
                    .get_mut(&le64(value, 0))
                    .filter(|name| name.is_empty());
                if let Some(name) = name {
                    *name = value[10..].to_vec();
                }
            }
        },
    );
    for finding in &mut log.findings {
        finding.path = finding.ino.and_then(|ino| path(facts, &names, ino));
    }
}

fn path(facts: &Facts, names: &BTreeMap<u64, Vec<u8>>, ino: u64) -> Option<Vec<u8>> {
    if ino == 1 {
        return Some(b"/".to_vec());
    }
    let mut parts = Vec::new();
    let mut at = ino;
    while at != 1 {
        if parts.len() > DEPTH_MAX {
            return None;
        }
        parts.push(names.get(&at).filter(|name| !name.is_empty())?);
        at = facts.get(at)?.dir;
    }
    let mut path = Vec::new();
    for part in parts.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(part);
    }
    Some(path)
}
