//! `meta.seg` as somebody else left it: nodes, bitmaps, superblocks, the live page.
//!
//! What must hold: the checker, readers and the writer end with values or errors; and what the
//! checker calls sound is sound again after the writer has changed it.

use crate::input::Input;
use crate::journal;
use crate::sample::{self, Sample, candidates, check_meta, is_clean, sample, token};
use holdfast_client::trees::Trees;
use holdfast_pmem::Region;
use holdfast_pool::checksum::{Crc, crc32c};
use holdfast_pool::format::PAGE;
use holdfast_pool::format::node::{self, Place};
use holdfast_pool::format::superblock::{SUPERBLOCK_LEN, Superblock};
use holdfast_pool::tree::{Leaf, Verified};
use holdfast_pool::{Pool, Reader, snapshot};
use std::ops::ControlFlow;

/// Changes that one input makes at most.
const PATCHES_MAX: usize = 64;
/// No tree of a segment of this size has as many entries.
const ENTRIES_MAX: u64 = sample::META_LEN / 8;

/// Changes bytes of the sample, reads it in every way, and writes to it.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    if input.u8() == 0 {
        return one_page(input.rest());
    }
    let patches = input.rest();
    let patched = || {
        let meta = sample().meta();
        patch(&meta, &mut Input::new(patches));
        meta
    };
    let meta = patched();
    let sound = is_clean(&check_meta(&meta));
    read(&meta);
    read_objects(&Trees::new(patched()));
    write(meta, sound);
}

/// The bytes as one page of each kind.
fn one_page(bytes: &[u8]) {
    let mut page = [0; PAGE];
    let len = bytes.len().min(PAGE);
    page[..len].copy_from_slice(&bytes[..len]);
    if let Some(Ok(superblock)) = page.first_chunk::<SUPERBLOCK_LEN>().map(Superblock::decode) {
        assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
    }
    let place = Place {
        page: 7,
        appends: 0,
        tree: page[24] % 16,
        level: page[25] % 12,
        seq: 9,
    };
    for appends in [0, usize::from(page[26])] {
        let place = Place { appends, ..place };
        let Ok(header) = node::check(&page, &place, 0..1 << 20) else {
            continue;
        };
        let key = &page[64..80];
        let _ = node::find(&page, &header, 0, key);
        let _ = node::find_child(&page, &header, key);
    }
}

/// Changes pages that are in use, and gives them the checksums of what they hold then.
pub fn patch(meta: &Region, input: &mut Input<'_>) {
    let Sample { pages, .. } = sample();
    let mut touched = Vec::new();
    for _ in 0..PATCHES_MAX {
        if input.is_empty() {
            break;
        }
        let what = input.u8();
        let page = pages[input.below(pages.len())].0;
        let at = page * PAGE as u64 + u64::from(input.u16()) % PAGE as u64;
        let done = match what % 8 {
            0 => meta.store(at, &[input.u8()]),
            1 => meta.store(at & !1, &input.u16().to_le_bytes()),
            2 | 3 => meta.store(at & !7, &input.number().to_le_bytes()),
            4 => copy(
                meta,
                at & !7,
                pages[input.below(pages.len())].0,
                input.u16(),
                8,
            ),
            5 => copy(
                meta,
                page * PAGE as u64,
                pages[input.below(pages.len())].0,
                0,
                PAGE,
            ),
            6 => superblock_field(meta, input),
            _ => meta.store(at, input.string()),
        };
        // What reaches beyond the segment was not done.
        let _ = done;
        touched.push((page, what < 128));
    }
    for (page, seal) in touched {
        if seal {
            seal_page(meta, page);
        }
    }
    [0, 1]
        .into_iter()
        .for_each(|page| seal_superblock(meta, page));
}

type Done = Result<(), holdfast_pmem::Error>;

fn copy(meta: &Region, to: u64, page: u64, at: u16, len: usize) -> Done {
    let from = page * PAGE as u64 + u64::from(at) % (PAGE - len + 1) as u64;
    let mut bytes = vec![0; len];
    meta.read(from, &mut bytes)?;
    if len == PAGE {
        // It is at home where it is put, or nobody would look at the rest.
        bytes[8..16].copy_from_slice(&(to / PAGE as u64).to_le_bytes());
    }
    meta.store(to, &bytes)
}

/// Changes a number in both superblocks.
fn superblock_field(meta: &Region, input: &mut Input<'_>) -> Done {
    let at = 32 + 8 * (input.below(SUPERBLOCK_LEN / 8 - 4) as u64);
    let value = input.number().to_le_bytes();
    meta.store(at, &value)?;
    meta.store(PAGE as u64 + at, &value)
}

fn seal_superblock(meta: &Region, page: u64) {
    let (at, mut bytes) = (page * PAGE as u64, [0; SUPERBLOCK_LEN]);
    meta.read(at, &mut bytes).expect("inside");
    let mut crc = Crc::new();
    crc.update(&bytes[..12]);
    crc.update(&bytes[16..]);
    meta.store(at + 12, &crc.finish().to_le_bytes())
        .expect("inside");
}

/// The checksum of a node, or of a page of a bitmap.
fn seal_page(meta: &Region, page: u64) {
    let (at, mut bytes) = (page * PAGE as u64, [0; PAGE]);
    meta.read(at, &mut bytes).expect("inside");
    let word = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let is_node = &bytes[..4] == b"HFN1";
    let per_entry = if bytes[25] == 0 { 10 } else { 18 };
    let (arrays_end, heap) = (64 + word(26) * per_entry, word(30));
    let sum = match is_node && arrays_end <= heap && heap <= PAGE {
        true => crc32c(&[&bytes[8..arrays_end], &bytes[heap..]].concat()),
        false => crc32c(&bytes[8..]),
    };
    if is_node || &bytes[..4] == b"HFB1" {
        meta.store(at + 4, &sum.to_le_bytes()).expect("inside");
    }
}

/// Every way of reading, with errors ignored.
fn read(meta: &Region) {
    read_trees(&Reader::new(meta));
    let Ok(verified) = Verified::new(meta.len() as u64, u64::MAX) else {
        return;
    };
    read_trees(&Reader::new(meta).verifying(&verified));
    for (name, snapshot) in snapshot::list(&Reader::new(meta)).unwrap_or_default() {
        assert!(!name.is_empty());
        let fixed = snapshot.fixed();
        read_trees(&Reader::of_snapshot(meta, &fixed).verifying(&verified));
    }
}

fn read_trees(reader: &Reader<'_>) {
    let key = sample::KEYSPACE.to_be_bytes();
    for tree in 0..16 {
        let mut value = [0; 2048];
        let _ = reader.get(tree, &key, &mut value);
        let mut seen = 0;
        let _ = reader.scan(tree, &[], None, |_, _| {
            seen += 1;
            ControlFlow::Continue(())
        });
        assert!(seen <= ENTRIES_MAX, "a scan that does not end");
        let Ok(root) = reader.root(tree) else {
            continue;
        };
        let Ok(Some(link)) = reader.leaf_link(tree, &root, &key) else {
            continue;
        };
        let mut leaf = Leaf::default();
        if reader.leaf_at(tree, &root, link, &mut leaf).is_ok() {
            let _ = leaf.find(&key);
            (0..300).for_each(|i| _ = leaf.entry(i).is_ok());
        }
    }
}

/// As clients read.
fn read_objects(trees: &Trees) {
    for ino in 0..32 {
        let _ = trees.inode(ino);
        let _ = trees.tail(ino, &mut [0; 4096]);
        let _ = trees.extent(ino, ino % 5);
        let _ = trees.xattr(ino, b"user.big");
        let _ = trees.xattr_names(ino);
        let _ = trees.dirent(ino, b"file");
        let mut seen = 0;
        let _ = trees.each_dirent(ino, 0, &mut |_, _, _| {
            seen += 1;
            Ok(true)
        });
        assert!(seen <= ENTRIES_MAX, "a directory that does not end");
    }
    let _ = trees.snapshots();
}

/// The writer on what was changed.
fn write(meta: Region, sound: bool) {
    let Ok(mut pool) = Pool::open(meta, &token()) else {
        return;
    };
    let mut free = sample().grant(&mut pool);
    let mut done = journal::apply(&mut pool, &mut free, &candidates()).is_ok();
    done &= pool.delete_snapshot(&token(), b"snapshot", 2).is_ok();
    done &= pool.create_snapshot(&token(), b"another", 1).is_ok();
    done &= erase_everything(&mut pool).is_ok();
    if sound && done {
        let report = check_meta(pool.meta());
        let damage: Vec<_> = report.damage().filter(|f| !is_leak(&f.what)).collect();
        assert!(damage.is_empty(), "damaged by the writer: {damage:?}");
    }
}

/// The checker believes what a node or an extent says of its age, and so what is in no snapshot may
/// pass for a snapshot's. Then it is not freed.
fn is_leak(what: &str) -> bool {
    what.ends_with("a leak") || what.starts_with("superblock says")
}

fn erase_everything(pool: &mut Pool) -> holdfast_pool::Result<()> {
    for _ in 0..100 {
        if !pool.reclaim_some(&token(), 50)? {
            break;
        }
    }
    let mut batch = pool.begin(&token());
    batch.put(9, b"a key of a tree that is not used", b"value")?;
    batch.erase_range(9, b"", None)?;
    batch.commit(|_| {})?;
    Ok(())
}
