//! Pools whose bytes were written by an enemy: any answer is right but a panic or a hang.

use super::page::{self, Page};
use super::tests::{Dice, MIB, Model, change, params, token};
use super::{KEY_MAX, VALUE_MAX};
use crate::format::superblock::{SUPERBLOCK_LEN, Superblock};
use crate::format::{PAGE, PAGE_LEN};
use crate::layout::{ReadTrees, TreeId, VALUES};
use crate::pool::Pool;
use crate::tree::{Leaf, Reader, check};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use holdfast_pmem::{Medium, Region};

const META_LEN: u64 = MIB;

fn healthy() -> Vec<u8> {
    let meta = Region::in_memory(META_LEN as usize).unwrap();
    let mut pool = Pool::create(meta, &params(META_LEN), &token()).unwrap();
    let (mut model, mut dice) = (Model::new(), Dice(42));
    for _ in 0..4 {
        let mut batch = pool.begin(&token());
        (0..120).for_each(|_| change(&mut batch, &mut model, &mut dice, false));
        batch.commit(|_| {}).unwrap();
    }
    let mut image = vec![0; META_LEN as usize];
    pool.meta().read(0, &mut image).unwrap();
    image
}

fn region(image: &[u8]) -> Region {
    Region::from_image(image, Medium::Memory).unwrap()
}

/// Every way of reading, with errors ignored.
fn read_all(reader: &Reader<'_>, dice: &mut Dice) {
    let (mut key, mut value) = ([0; KEY_MAX], [0; VALUE_MAX]);
    for tree in [0, 1, 2, VALUES] {
        let wanted = dice.key();
        let _ = reader.get(tree, &wanted, &mut value);
        let _ = reader.at_or_after(tree, &wanted, &mut key, &mut value);
        let _ = reader.at_or_before(tree, &wanted, &mut key, &mut value);
        let mut seen = 0;
        let _ = reader.scan(tree, &[], None, |_, _| {
            seen += 1;
            ControlFlow::Continue(())
        });
        assert!(seen <= META_LEN, "a scan that does not end");
        read_leaves(reader, tree, dice);
    }
}

/// By links that lead to a leaf, and by others.
fn read_leaves(reader: &Reader<'_>, tree: TreeId, dice: &mut Dice) {
    let Ok(root) = reader.root(tree) else { return };
    let key = dice.key();
    let known = reader.leaf_link(tree, &root, &key).ok().flatten();
    let known = known.unwrap_or_default();
    for link in [known, known ^ 1 << dice.roll(60), dice.roll(u64::MAX)] {
        let mut leaf = Leaf::default();
        if reader.leaf_at(tree, &root, link, &mut leaf).is_ok() {
            let _ = leaf.find(&key);
            (0..=255).for_each(|i| _ = leaf.entry(i).is_ok());
        }
    }
}

/// Every way of changing, with errors ignored.
fn write_all(image: &[u8], dice: &mut Dice) {
    let Ok(mut pool) = Pool::open(region(image), &token()) else {
        return;
    };
    let _ = check::reachable(&pool);
    for _ in 0..3 {
        let mut batch = pool.begin(&token());
        for _ in 0..30 {
            let (tree, key) = (dice.tree(), dice.key());
            match dice.roll(6) {
                0 => drop(batch.erase_range(tree, &key, Some(&dice.key()))),
                1 | 2 => drop(batch.erase(tree, &key)),
                _ => drop(batch.put(tree, &key, &dice.value())),
            }
        }
        let _ = batch.scan(0, &[], None, |_, _| ControlFlow::Continue(()));
        if dice.roll(3) > 0 {
            let _ = batch.commit(|_| {});
        }
    }
    read_all(&pool.reader(), dice);
}

fn survive(image: &[u8], dice: &mut Dice) {
    read_all(&Reader::new(&region(image)), dice);
    write_all(image, dice);
}

fn sealed_page(image: &mut [u8], page: u64) {
    let at = (page * PAGE_LEN) as usize;
    let mut copy: Page = [0; PAGE];
    copy.copy_from_slice(&image[at..at + PAGE]);
    page::forge(&mut copy);
    image[at..at + PAGE].copy_from_slice(&copy);
}

#[test]
fn damaged_bytes_anywhere() {
    let good = healthy();
    let mut dice = Dice(1);
    for _ in 0..250 {
        let mut image = good.clone();
        for _ in 0..1 + dice.roll(40) {
            let used = dice.roll(120 * PAGE_LEN) as usize % image.len();
            image[used] = dice.roll(256) as u8;
        }
        survive(&image, &mut dice);
    }
}

/// Nodes with wrong contents and right checksums: the writer gets past the first wall.
#[test]
fn forged_nodes() {
    let good = healthy();
    let mut dice = Dice(2);
    for _ in 0..250 {
        let mut image = good.clone();
        for _ in 0..1 + dice.roll(12) {
            let page = 7 + dice.roll(80);
            let at = (page * PAGE_LEN) as usize;
            // Mostly counts, heads, children and slots, which lead somewhere.
            let len = if dice.roll(3) > 0 { 900 } else { PAGE as u64 };
            let off = at + 16 + dice.roll(len - 16) as usize;
            match dice.roll(3) {
                0 => image[off] = dice.roll(256) as u8,
                1 => image[off] ^= 1 << dice.roll(8),
                _ => image[off / 8 * 8..][..8].copy_from_slice(&dice.roll(100).to_le_bytes()),
            }
            sealed_page(&mut image, page);
        }
        survive(&image, &mut dice);
    }
}

/// Children that lead to nodes of other places, so that trees share nodes or are too deep.
#[test]
fn forged_children() {
    let good = healthy();
    let (superblock, _) = Superblock::read(&region(&good)).unwrap();
    let mut dice = Dice(3);
    for _ in 0..250 {
        let mut image = good.clone();
        for root in superblock.roots.iter().filter(|r| r.height > 1) {
            let at = (root.addr * PAGE_LEN) as usize;
            let count = usize::from(u16::from_le_bytes([image[at + 26], image[at + 27]]));
            let child = |i: usize| at + 64 + 8 * count + 8 * i;
            for _ in 0..1 + dice.roll(3) {
                let (from, to) = (dice.roll(count as u64), dice.roll(count as u64));
                let from = child(from as usize);
                image.copy_within(from..from + 8, child(to as usize));
            }
            sealed_page(&mut image, root.addr);
        }
        survive(&image, &mut dice);
    }
}

#[test]
fn forged_superblocks_and_live_pages() {
    let good = healthy();
    let (superblock, copy) = Superblock::read(&region(&good)).unwrap();
    let mut dice = Dice(4);
    let odd = [
        0,
        1,
        2,
        3,
        7,
        4096,
        1 << 20,
        1 << 40,
        u64::MAX,
        u64::MAX - 4095,
    ];
    for _ in 0..250 {
        let mut image = good.clone();
        let mut forged = superblock.clone();
        let value = odd[dice.roll(10) as usize];
        let root = &mut forged.roots[dice.roll(3) as usize];
        match dice.roll(9) {
            0 => forged.meta_len = value,
            1 => forged.meta_len_max = value,
            2 => forged.data_len = value,
            3 => forged.data_len_max = value,
            4 => forged.seq = value,
            5 => root.addr = value,
            6 => root.height = value as u8,
            7 => root.keys = value,
            _ => root.addr = dice.roll(256),
        }
        let at = copy * PAGE;
        image[at..at + SUPERBLOCK_LEN].copy_from_slice(&forged.encode());
        let word = 2 * PAGE + [8, 16, 512, 528, 536, 1024, 1040, 1048][dice.roll(8) as usize];
        image[word..word + 8].copy_from_slice(&value.to_le_bytes());
        survive(&image, &mut dice);
    }
}

#[test]
fn truncated_segments() {
    let good = healthy();
    let mut dice = Dice(5);
    for len in [
        1,
        512,
        4096,
        4097,
        8192,
        12288,
        12296,
        28672,
        40000,
        1 << 19,
        (1 << 20) - 1,
    ] {
        survive(&good[..len], &mut dice);
    }
}
