//! Snapshots: kept roots, and what only they have.
//!
//! Invariants: the present is visited first, strictly; of a snapshot only what was not visited
//! before. So the bitmaps are compared with everything that any state has.

use super::Bytes;
use super::births::{Nth, Seen};
use super::bits::Set;
use super::media::{Root, Super, le32, le64};
use super::objects;
use super::report::Log;
use super::walk;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// The tree of snapshots.
pub(super) const TREE: usize = 6;
const EXTENTS: usize = 2;
const VALUES: usize = 5;
/// Trees that a snapshot has.
pub(super) const TREES: usize = 6;
const LEN: usize = 112 + 24 * TREES;
const HEIGHT_MAX: u8 = 12;

/// A snapshot as its entry says.
pub(super) struct Kept {
    pub name: String,
    epoch: u32,
    pub seq: u64,
    roots: [Root; TREES],
    /// Whether it was deleted and is being freed.
    pub dying: bool,
    /// Trees below this one are freed, and of it what is below the key.
    freed: (usize, Vec<u8>),
}

/// Blocks of the present that came into use after the newest snapshot: no snapshot has them.
pub(super) struct Young {
    newest: Option<u32>,
    blocks: Set,
}

impl Young {
    pub fn new(sb: &Super, kept: &[Kept]) -> Young {
        let newest = kept.iter().map(|s| s.epoch).max();
        let blocks = Set::new(if newest.is_some() { sb.data_blocks } else { 0 });
        Young { newest, blocks }
    }

    /// Takes an entry of the present.
    pub fn note(&mut self, tree: usize, value: &[u8]) {
        let Some(newest) = self.newest else { return };
        let runs = match tree {
            EXTENTS => value,
            VALUES => match objects::runs_of_value(value) {
                Some(runs) => runs,
                None => return,
            },
            _ => return,
        };
        for run in runs.chunks_exact(16).filter(|run| le32(run, 12) > newest) {
            self.blocks.add(le64(run, 0), le32(run, 8).into());
        }
    }
}

/// All snapshots that have a name, and how many keys their tree has.
pub(super) fn read(
    meta: &dyn Bytes,
    sb: &Super,
    seen: &mut Seen,
    log: &mut Log,
) -> (Vec<Kept>, u64) {
    let mut kept = Vec::new();
    let keys = walk::tree(
        meta,
        sb,
        TREE,
        seen,
        log,
        &mut |log, key, value, page| match parse(sb, key, value) {
            Ok(snapshot) => kept.push(snapshot),
            Err(what) => log.damage(None, Some(page), format!("a snapshot {what}")),
        },
    );
    (kept, keys)
}

/// Brings all into order, the newest first: those with a name and those that were deleted and are
/// not freed yet.
pub(super) fn sort(kept: &mut [Kept], log: &mut Log) {
    kept.sort_by_key(|s| core::cmp::Reverse(s.epoch));
    for pair in kept.windows(2) {
        if pair[0].epoch == pair[1].epoch || pair[0].seq <= pair[1].seq {
            let what = format!(
                "snapshots {:?} and {:?} are not one after the other",
                pair[0].name, pair[1].name
            );
            log.damage(None, None, what);
        }
    }
}

/// A snapshot that was deleted, as its entry says.
pub(super) fn parse_deleted(sb: &Super, value: &[u8]) -> Result<Kept, &'static str> {
    let Some((fixed, from)) = value.split_at_checked(LEN + 8) else {
        return Err("has an entry of a wrong length");
    };
    let kept = parse(sb, b"(deleted)", &fixed[..LEN])?;
    let tree = usize::from(fixed[LEN]);
    match tree < TREES && fixed[LEN + 1..] == [0; 7] {
        true => Ok(Kept {
            dying: true,
            freed: (tree, from.to_vec()),
            ..kept
        }),
        false => Err("has an entry of an unknown form"),
    }
}

fn parse(sb: &Super, key: &[u8], value: &[u8]) -> Result<Kept, &'static str> {
    let legal = (1..=255).contains(&key.len())
        && !key.iter().any(|b| *b == b'/' || *b < 32 || *b == 127)
        && key != b"."
        && key != b"..";
    if !legal {
        return Err("has an illegal name");
    }
    if value.len() < LEN || value.len() % 8 != 0 {
        return Err("has an entry of a wrong length");
    }
    let root = |tree: usize| Root {
        addr: le64(value, 112 + 24 * tree),
        keys: le64(value, 120 + 24 * tree),
        height: value[128 + 24 * tree],
    };
    let kept = Kept {
        name: String::from_utf8_lossy(key).into_owned(),
        epoch: le32(value, 0),
        seq: le64(value, 8),
        roots: core::array::from_fn(root),
        dying: false,
        freed: (0, Vec::new()),
    };
    if kept.epoch >= sb.epoch || kept.seq >= sb.seq {
        return Err("is younger than the pool");
    }
    if kept.roots.iter().any(|r| r.height > HEIGHT_MAX) {
        return Err("has a tree of an impossible height");
    }
    Ok(kept)
}

/// Visits what snapshots have and nothing before them.
pub(super) fn walk_all(
    meta: &dyn Bytes,
    sb: &Super,
    (kept, young): (&[Kept], &Young),
    (seen, blocks): (&mut Seen, &mut Set),
    log: &mut Log,
) {
    let mut cut_short = Vec::new();
    for (n, snapshot) in kept.iter().enumerate() {
        let before = log.damages();
        walk(meta, sb, (snapshot, n, young), (seen, blocks), log);
        if log.damages() > before {
            cut_short.push(n);
        }
    }
    seen.births.finish(kept, &cut_short, log);
}

/// Visits what only `snapshot` has so far.
fn walk(
    meta: &dyn Bytes,
    sb: &Super,
    (snapshot, n, young): (&Kept, Nth, &Young),
    (seen, blocks): (&mut Seen, &mut Set),
    log: &mut Log,
) {
    let (first, from) = &snapshot.freed;
    for (tree, root) in snapshot.roots.into_iter().enumerate().skip(*first) {
        let from = if tree == *first { &from[..] } else { &[] };
        walk::snapshot(
            meta,
            sb,
            ((tree, root), (snapshot, n), from),
            seen,
            log,
            &mut |log, _, value, page| match tree {
                EXTENTS => extent(sb, snapshot, young, value, blocks, log, page),
                VALUES => {
                    for run in objects::runs_of_value(value)
                        .unwrap_or_default()
                        .chunks_exact(16)
                    {
                        extent(sb, snapshot, young, run, blocks, log, page);
                    }
                }
                _ => {}
            },
        );
    }
}

fn extent(
    sb: &Super,
    snapshot: &Kept,
    young: &Young,
    value: &[u8],
    blocks: &mut Set,
    log: &mut Log,
    page: u64,
) {
    let mut wrong = |what: &str| {
        let what = format!("snapshot {:?}: {what}", snapshot.name);
        log.damage(None, Some(page), what);
    };
    if value.len() != 16 {
        return wrong("an extent has a wrong length");
    }
    let (block, len) = (le64(value, 0), u64::from(le32(value, 8)));
    if len == 0 || block.saturating_add(len) > sb.data_blocks {
        return wrong("an extent is impossible");
    }
    if le32(value, 12) > snapshot.epoch {
        wrong("an extent is younger than the snapshot");
    }
    if (block..block + len).any(|b| young.blocks.has(b)) {
        wrong("it has a block that came into use after it");
    }
    // What the present or a younger snapshot has, too, is in the set already.
    let _ = blocks.add(block, len);
}
