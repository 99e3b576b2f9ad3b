//! Superblocks and bitmaps, as `docs/spec/format.md` states them.
//!
//! Invariants: of two valid superblock copies the one with the higher seq counts, even if its
//! content is impossible, because a commit that was cut short has a wrong checksum. Of two valid
//! copies of a bitmap page the one with the highest seq that is not above the superblock's counts.

use super::Bytes;
use super::bits::Set;
use super::report::Log;
use crate::checksum::{Crc, crc32c};
use alloc::format;
use alloc::string::String;

pub(super) const PAGE: u64 = 4096;
pub(super) const TREES: usize = 16;
/// Has a mark as long as a restore fills the pool.
pub(super) const RESTORE: usize = 15;
pub(super) const LANES: usize = 16;
const HEIGHT_MAX: u8 = 12;
const SEQ_MAX: u64 = (1 << 63) - 1;
const BITS_PER_PAGE: u64 = (4096 - 64) * 8;

pub(super) fn le16(bytes: &[u8], at: usize) -> usize {
    usize::from(bytes[at]) | usize::from(bytes[at + 1]) << 8
}

pub(super) fn le32(bytes: &[u8], at: usize) -> u32 {
    (0..4).fold(0, |n, i| n | u32::from(bytes[at + i]) << (8 * i))
}

pub(super) fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from(le32(bytes, at)) | u64::from(le32(bytes, at + 4)) << 32
}

#[derive(Clone, Copy, Default)]
pub(super) struct Root {
    pub addr: u64,
    pub keys: u64,
    pub height: u8,
}

/// What the checker needs of the superblock in force.
#[derive(Clone, Default)]
pub(super) struct Super {
    /// Where it is: 0 or 1.
    pub page: u64,
    pub seq: u64,
    pub meta_pages: u64,
    pub data_blocks: u64,
    pub first_node: u64,
    data_bitmap: u64,
    pub next_ino: u64,
    /// Seed of the hashes of names: both halves of the uuid.
    pub seed: u64,
    pub used_data_blocks: u64,
    pub used_pages: u64,
    /// No block came into use in a later epoch.
    pub epoch: u32,
    pub counts: [u64; 8],
    pub roots: [Root; TREES],
    /// Start position and last applied seq of each lane.
    pub lanes: [(u64, u64); LANES],
    pub boot_id: [u8; 16],
    pub clean: bool,
}

/// Which bitmap.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    Pages,
    Blocks,
}

type Raw = [u8; 1024];

/// The copy in force, if what it says is possible.
pub(super) fn superblock(meta: &dyn Bytes, data_len: u64, log: &mut Log) -> Option<Super> {
    let copies = [0, 1].map(|page| valid(meta, page));
    let seq = |copy: &Result<Raw, String>| copy.as_ref().ok().map(|b| le64(b, 32));
    let newest = usize::from(seq(&copies[1]) > seq(&copies[0]));
    let any = copies.iter().any(Result::is_ok);
    let parsed = |page: usize| {
        let raw = copies[page].as_ref().map_err(String::clone)?;
        parse(raw, page as u64, meta.len(), data_len)
    };
    let mut found = None;
    for page in 0..2 {
        match parsed(page) {
            Ok(sb) if page == newest => found = Some(sb),
            Ok(_) => {}
            Err(what) if any && page != newest => {
                log.note(format!("superblock copy {page}: {what}"));
            }
            Err(what) => log.damage(None, Some(page as u64), format!("superblock: {what}")),
        }
    }
    found
}

/// The bytes of a copy that was written as a whole.
fn valid(meta: &dyn Bytes, page: u64) -> Result<Raw, String> {
    let mut b = [0; 1024];
    if !meta.read(page * PAGE, &mut b) {
        return Err("cannot be read".into());
    }
    if &b[..8] != b"HOLDFAST" {
        return Err("has no magic".into());
    }
    let mut crc = Crc::new();
    crc.update(&b[..12]);
    crc.update(&b[16..]);
    if crc.finish() != le32(&b, 12) {
        return Err("has a wrong checksum".into());
    }
    if le32(&b, 8) != 1 || le32(&b, 60) != 4096 {
        return Err(format!("has format version {}", le32(&b, 8)));
    }
    Ok(b)
}

fn parse(b: &Raw, page: u64, meta_len: u64, data_len: u64) -> Result<Super, String> {
    if !matches!(b[56], 1..=4) || !matches!(b[57], 1..=3) || b[58] > 1 {
        return Err("names an unknown medium, consistency or state".into());
    }
    if le64(b, 32) > SEQ_MAX {
        return Err("has an impossible number".into());
    }
    let mut sb = Super {
        page,
        seq: le64(b, 32),
        next_ino: le64(b, 96),
        seed: le64(b, 16) ^ le64(b, 24),
        used_data_blocks: le64(b, 112),
        used_pages: le64(b, 832),
        epoch: le32(b, 840),
        clean: b[58] == 1,
        ..Super::default()
    };
    sb.boot_id.copy_from_slice(&b[40..56]);
    for (i, count) in sb.counts.iter_mut().enumerate() {
        *count = le64(b, 128 + 8 * i);
    }
    for (i, root) in sb.roots.iter_mut().enumerate() {
        let at = 192 + 24 * i;
        *root = Root {
            addr: le64(b, at),
            keys: le64(b, at + 8),
            height: b[at + 16],
        };
    }
    for (i, lane) in sb.lanes.iter_mut().enumerate() {
        *lane = (le64(b, 576 + 16 * i), le64(b, 584 + 16 * i));
    }
    sizes(
        &mut sb,
        [64, 72, 80, 88].map(|at| le64(b, at)),
        meta_len,
        data_len,
    )?;
    Ok(sb)
}

/// Checks the segment sizes (meta, its maximum, data, its maximum) and derives places.
fn sizes(sb: &mut Super, lens: [u64; 4], meta_len: u64, data_len: u64) -> Result<(), String> {
    let [meta, meta_max, data, data_max] = lens;
    let possible = lens
        .iter()
        .all(|len| len % PAGE == 0 && len / PAGE <= 1 << 44)
        && meta <= meta_max
        && data <= data_max;
    if !possible {
        return Err("has impossible segment sizes".into());
    }
    if meta > meta_len || data > data_len {
        return Err("names segments that are longer than those that are there".into());
    }
    let meta_bitmap_pages = 2 * (meta_max / PAGE).div_ceil(BITS_PER_PAGE);
    let data_bitmap_pages = 2 * (data_max / PAGE).div_ceil(BITS_PER_PAGE);
    sb.data_bitmap = 3 + meta_bitmap_pages;
    sb.first_node = sb.data_bitmap + data_bitmap_pages;
    sb.meta_pages = meta / PAGE;
    sb.data_blocks = data / PAGE;
    if sb.first_node >= sb.meta_pages {
        return Err("leaves no room for tree nodes".into());
    }
    if let Some(i) = sb.roots.iter().position(|r| r.height > HEIGHT_MAX) {
        return Err(format!("gives tree {i} an impossible height"));
    }
    Ok(())
}

/// Compares a bitmap with what was found in use.
pub(super) fn compare_bitmap(
    meta: &dyn Bytes,
    sb: &Super,
    which: Which,
    found: &Set,
    log: &mut Log,
) {
    let (base, limit, kind) = match which {
        Which::Pages => (3, sb.meta_pages, 0u64),
        Which::Blocks => (sb.data_bitmap, sb.data_blocks, 1),
    };
    // Pages of the bitmap that are beyond mean nothing until the pool grows.
    for i in 0..limit.div_ceil(BITS_PER_PAGE) {
        let Some((at, page)) = bitmap_page(meta, sb, base + 2 * i, kind << 56 | i) else {
            log.damage(
                None,
                Some(base + 2 * i),
                "neither copy of a bitmap page is valid",
            );
            continue;
        };
        for w in 0..BITS_PER_PAGE / 64 {
            let n = i * BITS_PER_PAGE / 64 + w;
            let marked = le64(&page, 64 + 8 * w as usize);
            if marked != found.word(n) {
                name_differences(which, n * 64, marked, found.word(n), limit, at, log);
            }
        }
    }
}

/// The copy in force of a bitmap page, and where it is.
fn bitmap_page(meta: &dyn Bytes, sb: &Super, first: u64, index: u64) -> Option<(u64, [u8; 4096])> {
    let mut best: Option<(u64, u64, [u8; 4096])> = None;
    for at in [first, first + 1] {
        let mut b = [0; 4096];
        let valid = meta.read(at * PAGE, &mut b)
            && &b[..4] == b"HFB1"
            && le64(&b, 8) == index
            && crc32c(&b[8..]) == le32(&b, 4);
        let seq = le64(&b, 16);
        if valid && seq <= sb.seq && best.as_ref().is_none_or(|(old, ..)| seq > *old) {
            best = Some((seq, at, b));
        }
    }
    best.map(|(_, at, b)| (at, b))
}

fn name_differences(
    which: Which,
    first: u64,
    marked: u64,
    found: u64,
    limit: u64,
    at: u64,
    log: &mut Log,
) {
    let noun = if which == Which::Pages {
        "page"
    } else {
        "data block"
    };
    for bit in 0..64 {
        let n = first + bit;
        let what = match (marked >> bit & 1, found >> bit & 1) {
            (1, 0) if n >= limit => format!("{noun} {n} is marked in use but does not exist"),
            (1, 0) => format!("{noun} {n} is marked in use but nothing refers to it: a leak"),
            (0, 1) => format!("{noun} {n} is in use but marked free"),
            _ => continue,
        };
        log.damage(None, Some(at), what);
    }
}
