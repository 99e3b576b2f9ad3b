//! Subtrees that were cut out of trees and are not freed yet.
//!
//! Invariants: they are visited after everything else, so it is known what the present or a
//! snapshot has. A node belongs to a snapshot exactly if it is not younger than the newest snapshot
//! at the time of the cut; all others, and the blocks that came into use after that snapshot,
//! belong to one subtree alone.

use super::Bytes;
use super::births::Seen;
use super::bits::Set;
use super::media::{Super, TREES, le32, le64};
use super::objects;
use super::report::Log;
use super::snapshots::{self, Kept};
use super::walk;
use alloc::format;
use alloc::vec::Vec;

/// The tree of subtrees.
pub(super) const TREE: usize = 7;
const EXTENTS: usize = 2;
const VALUES: usize = 5;
const LEN_MIN: usize = 40;

/// A subtree as its entry says.
pub(super) struct Cut {
    pub tree: usize,
    pub level: u8,
    pub link: u64,
    pub seq: u64,
    /// Seq and epoch of the newest snapshot of its time.
    pub before: Option<(u64, u32)>,
    /// What is below this key is freed.
    pub from: Vec<u8>,
}

/// Reads the entries, those of deleted snapshots to `kept`; how many keys the tree of them has.
pub(super) fn read(
    meta: &dyn Bytes,
    sb: &Super,
    (seen, kept): (&mut Seen, &mut Vec<Kept>),
    log: &mut Log,
) -> (Vec<Cut>, u64) {
    let mut cuts = Vec::new();
    let keys = walk::tree(
        meta,
        sb,
        TREE,
        seen,
        log,
        &mut |log, key, value, page| match parse(sb, key, value) {
            _ if key.len() == 12 && key[0] & 0x80 != 0 => match snapshots::parse_deleted(sb, value)
            {
                Ok(snapshot) => kept.push(snapshot),
                Err(what) => log.damage(None, Some(page), format!("a deleted snapshot {what}")),
            },
            Ok(cut) => cuts.push(cut),
            Err(what) => log.damage(
                None,
                Some(page),
                format!("a subtree that was cut out {what}"),
            ),
        },
    );
    (cuts, keys)
}

fn parse(sb: &Super, key: &[u8], value: &[u8]) -> Result<Cut, &'static str> {
    if key.len() != 12 || value.len() < LEN_MIN || value[37..LEN_MIN] != [0; 3] {
        return Err("has an entry of another form");
    }
    let cut = Cut {
        tree: value[0].into(),
        level: value[1],
        link: le64(value, 8),
        seq: le64(value, 16),
        before: (value[36] != 0).then(|| (le64(value, 24), le32(value, 32))),
        from: value[LEN_MIN..].to_vec(),
    };
    if cut.tree >= 6 || cut.level >= 12 {
        return Err("is of no tree");
    }
    if cut.seq >= sb.seq || cut.before.is_some_and(|(seq, _)| seq > cut.seq) {
        return Err("is younger than the pool");
    }
    Ok(cut)
}

/// Visits what is left of all of them, and compares the keys of each tree: `here` are those that
/// the present has.
pub(super) fn finish(
    meta: &dyn Bytes,
    sb: &Super,
    (cuts, here): (&[Cut], &[u64; TREES]),
    sets: (&mut Seen, &mut Set),
    log: &mut Log,
) {
    let there = walk(meta, sb, cuts, sets, log);
    for (tree, (here, there)) in here.iter().zip(there).enumerate() {
        walk::compare_keys(sb, tree, here + there, log);
    }
}

/// For each tree how many keys they have.
fn walk(
    meta: &dyn Bytes,
    sb: &Super,
    cuts: &[Cut],
    (seen, blocks): (&mut Seen, &mut Set),
    log: &mut Log,
) -> [u64; TREES] {
    let mut keys = [0; TREES];
    let mut own = Set::new(if cuts.is_empty() { 0 } else { sb.meta_pages });
    for cut in cuts {
        let newest = cut.before.map(|(_, epoch)| epoch);
        let mut visit = |log: &mut Log, _: &[u8], value: &[u8], page| {
            let runs = match cut.tree {
                EXTENTS => value,
                VALUES => match objects::runs_of_value(value) {
                    Some(runs) => runs,
                    None => return,
                },
                _ => return,
            };
            for run in runs.chunks_exact(16) {
                if newest.is_none_or(|newest| le32(run, 12) > newest) {
                    add(sb, run, blocks, log, page);
                }
            }
        };
        keys[cut.tree] += walk::cut(meta, sb, (cut, &mut own), seen, log, &mut visit);
    }
    keys
}

fn add(sb: &Super, run: &[u8], blocks: &mut Set, log: &mut Log, page: u64) {
    let (block, len) = (le64(run, 0), u64::from(le32(run, 8)));
    let inside = len > 0 && block.saturating_add(len) <= sb.data_blocks;
    if !inside || blocks.add(block, len).is_some() {
        log.damage(
            None,
            Some(page),
            "a subtree that was cut out has blocks that are not its own",
        );
    }
}
