//! The independent checker: derives again everything that must hold in an offline pool.
//!
//! Invariants:
//!  * It shares no code with what it judges: it parses bytes as `docs/spec/*.md` state them, and
//!    uses nothing of this crate but CRC-32C.
//!  * It changes nothing, never panics, ends on every input, and continues behind damage.
//!  * A pool without findings of severity `Damage` satisfies every rule of the specification.
//!  * Memory: one bit per page and block, four bytes per page if there are snapshots, and
//!    `FACTS_BYTES` per object; trees are streamed.

mod births;
mod bits;
mod cut;
mod facts;
mod journal;
mod media;
mod node;
mod objects;
mod paths;
mod report;
mod snapshots;
mod walk;

pub use report::{Finding, Report, Severity, Summary};

use alloc::format;
use births::{Births, Seen};
use bits::Set;
use facts::Facts;
use media::{RESTORE, Super};
use report::Log;

/// Bytes of an offline segment.
pub trait Bytes {
    /// How many there are.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies those from `at` on; false if there are not that many or they cannot be read.
    fn read(&self, at: u64, out: &mut [u8]) -> bool;
}

impl Bytes for &[u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read(&self, at: u64, out: &mut [u8]) -> bool {
        let start = usize::try_from(at).unwrap_or(usize::MAX);
        let end = start.saturating_add(out.len());
        match self.get(start..end) {
            Some(from) => out.copy_from_slice(from),
            None => return false,
        }
        true
    }
}

impl Bytes for holdfast_pmem::Region {
    fn len(&self) -> u64 {
        holdfast_pmem::Region::len(self) as u64
    }

    fn read(&self, at: u64, out: &mut [u8]) -> bool {
        holdfast_pmem::Region::read(self, at, out).is_ok()
    }
}

/// Bytes of memory per object.
pub const FACTS_BYTES: usize = size_of::<facts::Fact>();

/// Checks a pool: `meta` is its `meta.seg`, `data_len` the length of its data segment, `journal`
/// its newest journal segment if there is one.
pub fn check(meta: &dyn Bytes, data_len: u64, journal: Option<&dyn Bytes>) -> Report {
    check_now(meta, data_len, journal, None)
}

/// What the pool cannot say itself, and of which depends what may be in its journal.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The machine's boot id: another one than the pool's says that it lost power.
    pub boot_id: [u8; 16],
    /// Whether the pool is on ordinary files.
    pub is_file: bool,
    /// A restore has filled it and ends: its mark may be there still.
    pub is_restored: bool,
}

/// As `check`, where more is known.
pub fn check_now(
    meta: &dyn Bytes,
    data_len: u64,
    journal: Option<&dyn Bytes>,
    now: Option<Now>,
) -> Report {
    let mut log = Log::default();
    let Some(sb) = media::superblock(meta, data_len, &mut log) else {
        return log.finish(Summary::default());
    };
    let mut facts = Facts::default();
    let mut blocks = Set::new(sb.data_blocks);
    let mut seen = Seen::new(sb.meta_pages);
    seen.pages.add(0, sb.first_node);
    let mut keys = [0; media::TREES];
    let (mut kept, in_kept) = snapshots::read(meta, &sb, &mut seen, &mut log);
    let named = kept.len() as u64;
    let (cuts, in_cuts) = cut::read(meta, &sb, (&mut seen, &mut kept), &mut log);
    snapshots::sort(&mut kept, &mut log);
    seen.births = Births::new(&kept, sb.meta_pages);
    (keys[snapshots::TREE], keys[cut::TREE]) = (in_kept, in_cuts);
    let is_restored = now.is_some_and(|now| now.is_restored);
    let mark = if is_restored { RESTORE } else { media::TREES };
    let mut young = snapshots::Young::new(&sb, &kept);
    for tree in (0..media::TREES).filter(|tree| ![snapshots::TREE, cut::TREE].contains(tree)) {
        let mut visit = objects::Visitor::new(tree, &sb, &mut facts, &mut blocks);
        keys[tree] = walk::tree(
            meta,
            &sb,
            tree,
            &mut seen,
            &mut log,
            &mut |log, key, value, page| {
                young.note(tree, value);
                if tree != mark {
                    visit.entry(log, key, value, page);
                }
            },
        );
        visit.finish(&mut log);
    }
    let sets = (&mut seen, &mut blocks);
    snapshots::walk_all(meta, &sb, (&kept, &young), sets, &mut log);
    cut::finish(
        meta,
        &sb,
        (&cuts, &keys),
        (&mut seen, &mut blocks),
        &mut log,
    );
    let pages = seen.pages;
    objects::after_all(&sb, &mut facts, &mut log);
    compare_used(meta, &sb, (&pages, &blocks), &mut log);
    let used = blocks.count();
    let waiting = journal.map_or(0, |j| journal::waiting(j, &sb, now, &mut log));
    if waiting > 0 {
        log.note(format!(
            "the journal has {waiting} records that are not yet applied"
        ));
    }
    paths::name_objects(meta, &sb, &facts, &mut log);
    let mut summary = summary(&sb, &facts, &pages, used, waiting);
    summary.snapshots = named;
    log.finish(summary)
}

/// Compares what is marked in use, and how much the superblock says, with what was found.
fn compare_used(meta: &dyn Bytes, sb: &Super, (pages, blocks): (&Set, &Set), log: &mut Log) {
    media::compare_bitmap(meta, sb, media::Which::Pages, pages, log);
    media::compare_bitmap(meta, sb, media::Which::Blocks, blocks, log);
    for (noun, said, found) in [
        ("data blocks", sb.used_data_blocks, blocks.count()),
        ("pages in use", sb.used_pages, pages.count()),
    ] {
        if said != found {
            let what = format!("superblock says {said} {noun}, found {found}");
            log.damage(None, Some(sb.page), what);
        }
    }
}

fn summary(sb: &Super, facts: &Facts, pages: &Set, used: u64, waiting: u64) -> Summary {
    Summary {
        commit: sb.seq,
        objects: facts.all.len() as u64,
        directories: facts.all.iter().filter(|f| f.is_dir()).count() as u64,
        orphans: facts.all.iter().filter(|f| f.orphan).count() as u64,
        names: facts.all.iter().map(|f| u64::from(f.names)).sum(),
        tree_pages: pages.count().saturating_sub(sb.first_node),
        data_blocks: used,
        records_waiting: waiting,
        snapshots: 0,
    }
}

#[cfg(test)]
mod births_tests;
#[cfg(test)]
mod plant;
#[cfg(test)]
mod tests;
