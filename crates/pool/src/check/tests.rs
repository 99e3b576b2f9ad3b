//! Every class of damage is planted with correct checksums and must be found and named.

use super::plant::*;
use super::{Severity, check};
use crate::apply::pool_tests::{DATA_LEN, UUID, assert_clean};
use crate::apply::{PoolStore, Store};
use crate::error::Error;
use crate::format::superblock::Lane;
use crate::journal::Record;
use crate::layout::dirent::{self, Dirent};
use crate::layout::extent::{self, Extent};
use crate::layout::inode::{self, InodeRecord};
use crate::layout::{
    BlockAddr, DIRENTS, EXTENTS, INODES, ORPHANS, XATTRS, ino_key, name_seed, xattr,
};
use crate::pool::{Pool, WriteToken};
use holdfast_pmem::{Medium, Region};
use std::format;
use std::string::String;
use std::vec::Vec;

type Done = Result<(), Error>;
type Sabotage = fn(&mut PoolStore<'_>, u64) -> Done;

fn change(s: &mut PoolStore<'_>, ino: u64, f: impl FnOnce(&mut InodeRecord<'_>)) -> Done {
    let (mut buf, mut out) = ([0; inode::ENCODED_MAX], [0; 2000]);
    let mut record = inode::find(s, ino, &mut buf)?.unwrap();
    f(&mut record);
    let len = record.encode(&mut out).unwrap();
    s.put(INODES, &ino_key(ino), &out[..len])
}

fn put_name(s: &mut PoolStore<'_>, dir: u64, cookie: u64, ino: u64, kind: u8, name: &[u8]) -> Done {
    let mut out = [0; 300];
    let len = Dirent { ino, kind, name }.encode(&mut out).unwrap();
    s.put(DIRENTS, &dirent::key(dir, cookie), &out[..len])
}

fn put_extent(s: &mut PoolStore<'_>, ino: u64, file_block: u64, block: u64, len: u32) -> Done {
    let block = BlockAddr::from_word(block);
    let e = Extent {
        file_block,
        block,
        len,
        epoch: 0,
    };
    s.put(EXTENTS, &extent::key(ino, file_block), &e.encode())
}

fn erase_xattr(s: &mut PoolStore<'_>, ino: u64, name: &[u8], chunk: u16) -> Done {
    s.erase(XATTRS, xattr::key(ino, name, chunk).unwrap().as_bytes())
}

fn put_xattr(s: &mut PoolStore<'_>, ino: u64, name: &[u8], chunk: u16, bytes: &[u8]) -> Done {
    s.put(
        XATTRS,
        xattr::key(ino, name, chunk).unwrap().as_bytes(),
        bytes,
    )
}

fn cookie(name: &[u8]) -> u64 {
    dirent::first_cookie(name_seed(UUID), name)
}

/// Plants the damage; the findings as sentences.
fn found(sabotage: Sabotage) -> Vec<String> {
    let (mut pool, first_block) = sample();
    let mut store = PoolStore::new(pool.begin(&WriteToken::for_service()));
    sabotage(&mut store, first_block).unwrap();
    store.commit(|_| ()).unwrap();
    let report = check(pool.meta(), DATA_LEN, None);
    report.damage().map(|f| format!("{f}")).collect()
}

fn expect(cases: &[(&str, Sabotage)]) {
    for (wanted, sabotage) in cases {
        let all = found(*sabotage);
        assert!(
            all.iter().any(|f| f.contains(wanted)),
            "{wanted:?} is not in {all:#?}"
        );
    }
}

#[test]
fn the_sample_is_clean_and_counted() {
    let (pool, _) = sample();
    assert_clean(pool.meta());
    let report = check(pool.meta(), DATA_LEN, None);
    let s = report.summary;
    assert_eq!((s.objects, s.directories, s.orphans), (MANY + 10, 4, 1));
    assert_eq!((s.names, s.data_blocks), (MANY + 9, 5));
    assert_eq!(s.commit, pool.superblock().seq);
    assert_eq!(s.tree_pages + 3 + 4, pool.meta_space().count_used());
}

#[test]
fn damaged_inodes_are_named() {
    expect(&[
        ("/second name: object 4: nlink is 3, found 2", |s, _| {
            change(s, FILE, |r| r.nlink += 1)
        }),
        ("/dir: object 2: nlink is 2, found 3", |s, _| {
            change(s, DIR, |r| r.nlink -= 1)
        }),
        ("/dir: object 2: entries is 5, found 2", |s, _| {
            change(s, DIR, |r| r.entries = 5)
        }),
        ("blocks is 6, found 5", |s, _| {
            change(s, FILE, |r| r.blocks += 1)
        }),
        ("file type is unknown", |s, _| {
            change(s, FILE, |r| r.mode = 0o170_000)
        }),
        ("file type is unknown", |s, _| {
            change(s, FILE, |r| r.mode |= 1 << 20)
        }),
        ("the size is too large", |s, _| {
            change(s, FILE, |r| r.size = 1 << 63)
        }),
        ("has a device number", |s, _| {
            change(s, FILE, |r| r.rdev = 1)
        }),
        ("do not fit its type", |s, _| {
            change(s, FILE, |r| r.flags = 8)
        }),
        ("do not fit its type", |s, _| {
            change(s, INLINE, |r| r.size = 4)
        }),
        ("do not fit its type", |s, _| {
            change(s, SYMLINK, |r| r.size = 1)
        }),
        ("do not fit its type", |s, _| change(s, DIR, |r| r.size = 1)),
        ("is no file has blocks", |s, _| {
            change(s, DEVICE, |r| r.blocks = 1)
        }),
        ("parent or entries do not fit", |s, _| {
            change(s, FILE, |r| r.parent = 1)
        }),
        ("own name is illegal", |s, _| {
            change(s, DIR, |r| r.tail = b"a/b")
        }),
        ("inode number is impossible", |s, _| {
            s.put(INODES, &ino_key(9999), &[0; 96])
        }),
        ("wrong length", |s, _| {
            s.put(INODES, &ino_key(FILE), &[0; 95])
        }),
        ("an object that is not there", |s, _| {
            s.erase(INODES, &ino_key(FILE))
        }),
        ("root directory is not there", |s, _| {
            s.erase(INODES, &ino_key(1))
        }),
        ("counter 0", |s, _| {
            s.add_count(0, 1);
            Ok(())
        }),
        ("counter 7", |s, _| {
            s.add_count(7, 1);
            Ok(())
        }),
    ]);
}

#[test]
fn damaged_names_are_named() {
    expect(&[
        ("not there", |s, _| {
            put_name(s, 1, cookie(b"ghost"), 700, 8, b"ghost")
        }),
        (
            "/device: object 9: a directory entry has another kind",
            |s, _| put_name(s, 1, cookie(b"device"), DEVICE, 8, b"device"),
        ),
        ("cookie is not that", |s, _| {
            put_name(s, 1, cookie(b"x"), DEVICE, 2, b"y")
        }),
        ("has a name twice", |s, _| {
            put_name(s, 1, cookie(b"device") + 1, DEVICE, 2, b"device")
        }),
        ("has an illegal name", |s, _| {
            put_name(s, 1, cookie(b"a/b"), DEVICE, 2, b"a/b")
        }),
        ("has a wrong length", |s, _| {
            s.put(DIRENTS, &dirent::key(1, 5), b"short")
        }),
        ("is not a directory", |s, _| {
            put_name(s, FILE, cookie(b"q"), DEVICE, 2, b"q")
        }),
        ("found 1", |s, _| {
            s.erase(DIRENTS, &dirent::key(1, cookie(b"second name")))
        }),
        ("a directory has 0 names", |s, _| {
            s.erase(DIRENTS, &dirent::key(1, cookie(b"dir")))
        }),
        ("a directory has 2 names", |s, _| {
            put_name(s, 1, cookie(b"d2"), SUBDIR, 4, b"d2")
        }),
        ("own name is not the name", |s, _| {
            change(s, DIR, |r| r.tail = b"dirt")
        }),
        ("parent is not the directory", |s, _| {
            change(s, SUBDIR, |r| r.parent = 1)
        }),
        ("root directory has a name", |s, _| {
            put_name(s, DIR, cookie(b"r"), 1, 4, b"r")
        }),
    ]);
}

#[test]
fn a_loop_of_directories_is_found() {
    expect(&[("a directory is not below the root", |s, _| {
        s.erase(DIRENTS, &dirent::key(1, cookie(b"dir")))?;
        put_name(s, SUBDIR, cookie(b"dir"), DIR, 4, b"dir")?;
        change(s, DIR, |r| r.parent = SUBDIR)?;
        change(s, SUBDIR, |r| (r.nlink, r.entries) = (3, 2))?;
        change(s, 1, |r| {
            (r.nlink, r.entries) = (r.nlink - 1, r.entries - 1)
        })
    })]);
}

#[test]
fn damaged_extents_are_named() {
    expect(&[
        ("extents of a file overlap", |s, b| {
            put_extent(s, FILE, 1, b + 50, 1)
        }),
        ("is used twice", |s, b| put_extent(s, FILE, 20, b + 1, 1)),
        ("reaches beyond the data segment", |s, _| {
            put_extent(s, FILE, 20, DATA_LEN / 4096, 1)
        }),
        ("data segment that does not exist", |s, b| {
            put_extent(s, FILE, 20, BlockAddr::new(1, b + 50).word(), 1)
        }),
        ("data segment that does not exist", |s, b| {
            put_extent(s, FILE, 20, (b + 50) | 1 << 63, 1)
        }),
        ("an extent is impossible", |s, _| {
            put_extent(s, FILE, 1 << 51, 9, 1)
        }),
        ("an extent is impossible", |s, _| {
            put_extent(s, FILE, 20, 9, 0)
        }),
        ("belong to what is not a file", |s, b| {
            put_extent(s, DIR, 0, b + 50, 1)
        }),
        ("belong to what is not a file", |s, b| {
            put_extent(s, 5000, 0, b + 50, 1)
        }),
        ("wrong length", |s, _| {
            s.put(EXTENTS, &extent::key(FILE, 30), b"x")
        }),
        ("stand for the same block", |s, b| {
            put_extent(s, INLINE, 0, b + 50, 1)
        }),
        ("marked in use but nothing refers to it", |s, b| {
            s.mark_used(BlockAddr::new(0, b + 50), 1)
        }),
        ("is in use but marked free", |s, b| {
            s.mark_unused(BlockAddr::new(0, b), 1, 0)
        }),
    ]);
}

#[test]
fn damaged_attributes_and_orphans_are_named() {
    expect(&[
        (
            "/second name: object 4: an attribute lacks a piece",
            |s, _| erase_xattr(s, FILE, b"user.big", 2),
        ),
        ("not the one expected", |s, _| {
            erase_xattr(s, FILE, b"user.big", 1)
        }),
        ("not the one expected", |s, _| {
            put_xattr(s, DIR, b"user.small", 0, b"\x02\0\0\0v")
        }),
        ("not the one expected", |s, _| {
            put_xattr(s, FILE, b"user.big", 3, b"\xb8\x0b\0\0")
        }),
        ("of an object that is not there", |s, _| {
            put_xattr(s, 5000, b"a", 0, &[0; 4])
        }),
        ("which its flags or limits deny", |s, _| {
            put_xattr(s, DEVICE, b"a", 0, &[0; 4])
        }),
        ("which its flags or limits deny", |s, _| {
            change(s, FILE, |r| r.flags = 0)
        }),
        ("long symlink target is missing", |s, _| {
            erase_xattr(s, LONG_SYMLINK, b"", 0)?;
            erase_xattr(s, LONG_SYMLINK, b"", 1)
        }),
        ("long symlink target is missing", |s, _| {
            put_xattr(s, DIR, b"", 0, b"\x01\0\0\0v")
        }),
        ("wrong form", |s, _| s.put(XATTRS, b"short", b"")),
        ("target has a zero byte", |s, _| {
            put_xattr(s, LONG_SYMLINK, b"", 0, &[0; 1024])
        }),
        ("an orphan is not there", |s, _| {
            s.put(ORPHANS, &ino_key(5000), &[])
        }),
        ("it is an orphan", |s, _| {
            s.put(ORPHANS, &ino_key(FILE), &[])
        }),
        ("it is not an orphan", |s, _| {
            s.erase(ORPHANS, &ino_key(ORPHAN))
        }),
        ("orphan entry has a wrong length", |s, _| {
            s.put(ORPHANS, &ino_key(ORPHAN), b"x")
        }),
        ("nlink is 1, found 0", |s, _| {
            change(s, ORPHAN, |r| r.nlink = 1)
        }),
        ("without use has entries", |s, _| s.put(9, b"key", b"value")),
    ]);
}

#[test]
fn damaged_snapshots_are_named() {
    let entry = |epoch: u32, seq: u64| {
        let mut value = [0; 256];
        value[..4].copy_from_slice(&epoch.to_le_bytes());
        value[8..16].copy_from_slice(&seq.to_le_bytes());
        value
    };
    for (wanted, name, value) in [
        (
            "has an entry of a wrong length",
            &b"s"[..],
            &entry(0, 1)[1..],
        ),
        ("has an illegal name", b"a/b", &entry(0, 1)),
        ("is younger than the pool", b"s", &entry(0, 99)),
        ("is younger than the pool", b"s", &entry(7, 1)),
    ] {
        let (mut pool, _) = sample();
        let mut batch = pool.begin(&WriteToken::for_service());
        batch.put(6, name, value).unwrap();
        batch.commit(|sb| sb.epoch = 1).unwrap();
        let report = check(pool.meta(), DATA_LEN, None);
        let all: Vec<_> = report.damage().map(|f| format!("{f}")).collect();
        assert!(all.iter().any(|f| f.contains(wanted)), "{wanted}: {all:#?}");
    }
}

#[test]
fn what_a_lost_snapshot_had_is_a_leak() {
    let (mut pool, first) = sample();
    let token = WriteToken::for_service();
    pool.create_snapshot(&token, b"s", 0).unwrap();
    let mut store = PoolStore::new(pool.begin(&token));
    change(&mut store, FILE, |r| r.mtime += 1).unwrap();
    store.erase(EXTENTS, &extent::key(FILE, 0)).unwrap();
    store.mark_unused(BlockAddr::new(0, first), 2, 0).unwrap();
    change(&mut store, FILE, |r| r.blocks -= 2).unwrap();
    store.commit(|_| ()).unwrap();
    let report = check(pool.meta(), DATA_LEN, None);
    assert!(report.is_clean(), "{:?}", report.findings);
    assert_eq!(report.summary.snapshots, 1);
    let mut batch = pool.begin(&token);
    batch.erase(6, b"s").unwrap();
    batch.commit(|_| ()).unwrap();
    let report = check(pool.meta(), DATA_LEN, None);
    let all: Vec<_> = report.damage().map(|f| format!("{f}")).collect();
    for wanted in ["page", "data block"] {
        let leak = |f: &&String| f.contains(wanted) && f.contains("a leak");
        assert!(all.iter().any(|f| leak(&f)), "{all:#?}");
    }
}

#[test]
fn a_block_that_changed_hands_is_found() {
    let (mut pool, first) = sample();
    let token = WriteToken::for_service();
    pool.create_snapshot(&token, b"s", 0).unwrap();
    let mut store = PoolStore::new(pool.begin(&token));
    let e = Extent {
        file_block: 0,
        block: BlockAddr::new(0, first),
        len: 2,
        epoch: 1,
    };
    store
        .put(EXTENTS, &extent::key(FILE, 0), &e.encode())
        .unwrap();
    store.commit(|_| ()).unwrap();
    let report = check(pool.meta(), DATA_LEN, None);
    let all: Vec<_> = report.damage().map(|f| format!("{f}")).collect();
    let wanted = "it has a block that came into use after it";
    assert!(all.iter().any(|f| f.contains(wanted)), "{all:#?}");
}

type Break = fn(&mut Broken);

/// Breaks bytes of the sample; the findings as sentences.
fn found_in(breaks: Break) -> Vec<String> {
    let (pool, _) = sample();
    let mut broken = Broken::new(&pool);
    breaks(&mut broken);
    broken.report().damage().map(|f| format!("{f}")).collect()
}

fn expect_in(cases: &[(&str, Break)]) {
    for (wanted, breaks) in cases {
        let all = found_in(*breaks);
        assert!(
            all.iter().any(|f| f.contains(wanted)),
            "{wanted:?} is not in {all:#?}"
        );
    }
}

/// Breaks the first leaf of the names and seals it again.
fn in_leaf(b: &mut Broken, offset: usize, bytes: &[u8]) {
    let leaf = b.child(b.root(1), 0);
    b.put(leaf + offset, bytes);
    b.seal(leaf);
}

#[test]
fn damaged_nodes_are_named() {
    expect_in(&[
        ("no magic", |b| in_leaf(b, 0, b"HFXX")),
        ("wrong checksum", |b| {
            let leaf = b.child(b.root(1), 0);
            b.0[leaf + 4000] ^= 1;
        }),
        ("belongs to another page", |b| in_leaf(b, 8, &[77])),
        ("younger than what it hangs on", |b| {
            in_leaf(b, 16, &[0xff; 7])
        }),
        ("another tree or level", |b| in_leaf(b, 24, &[2])),
        ("another tree or level", |b| in_leaf(b, 25, &[1])),
        ("counts of a node are impossible", |b| {
            in_leaf(b, 26, &[0, 0])
        }),
        ("counts of a node are impossible", |b| {
            in_leaf(b, 26, &[0xff, 0xff])
        }),
        ("counts of a node are impossible", |b| {
            in_leaf(b, 28, &[0xff, 0x7f])
        }),
        ("unused part of a node is not zero", |b| {
            let leaf = b.child(b.root(1), 0);
            let arrays_end = 64 + 10 * b.count(leaf);
            in_leaf(b, arrays_end, &[1]);
        }),
        ("entry of a node has no cell", |b| {
            let leaf = b.child(b.root(1), 0);
            let slots = 64 + 8 * b.count(leaf);
            in_leaf(b, slots, &[1, 0]);
        }),
        ("cells of a node overlap", |b| {
            let leaf = b.child(b.root(1), 0);
            let slots = leaf + 64 + 8 * b.count(leaf);
            let second = [b.0[slots + 2], b.0[slots + 3]];
            in_leaf(b, slots - leaf, &second);
        }),
        ("keys of a node do not rise", |b| {
            let leaf = b.child(b.root(1), 0);
            let heads: Vec<u8> = b.0[leaf + 64..leaf + 80].to_vec();
            in_leaf(b, 64, &[&heads[8..], &heads[..8]].concat());
        }),
    ]);
}

#[test]
fn damaged_inner_nodes_are_named() {
    expect_in(&[
        ("names an impossible page", |b| {
            let root = b.root(1);
            b.put(b.child_at(root, 0), &[0xff; 8]);
            b.seal(root);
        }),
        ("uses a page twice", |b| {
            let root = b.root(1);
            let other = b.u64_at(b.child_at(root, 1));
            b.put(b.child_at(root, 0), &other.to_le_bytes());
            b.seal(root);
        }),
        ("outside of the range of its parent", |b| {
            let root = b.root(1);
            let children = [b.u64_at(b.child_at(root, 0)), b.u64_at(b.child_at(root, 1))];
            b.put(b.child_at(root, 0), &children[1].to_le_bytes());
            b.put(b.child_at(root, 1), &children[0].to_le_bytes());
            b.seal(root);
        }),
        ("should have 1 keys", |b| {
            let at = b.superblock() + 192 + 24 + 8;
            b.put(at, &1u64.to_le_bytes());
            b.seal_superblock();
        }),
        ("is empty but has a root", |b| {
            let at = b.superblock() + 192 + 24 + 16;
            b.put(at, &[0]);
            b.seal_superblock();
        }),
        ("another tree or level", |b| {
            let at = b.superblock() + 192 + 24 + 16;
            b.put(at, &[3]);
            b.seal_superblock();
        }),
    ]);
}

#[test]
fn damaged_superblocks_and_bitmaps_are_named() {
    expect_in(&[
        ("superblock: has no magic", |b| b.0[..8192].fill(0)),
        ("superblock: has format version 9", |b| {
            let other = 4096 - b.superblock();
            b.0[other..other + 1024].fill(0);
            b.put(b.superblock() + 8, &[9]);
            b.seal_superblock();
        }),
        ("superblock: names segments that are longer", |b| {
            let other = 4096 - b.superblock();
            b.0[other..other + 1024].fill(0);
            b.put(b.superblock() + 80, &(DATA_LEN + 4096).to_le_bytes());
            b.put(b.superblock() + 88, &(DATA_LEN + 4096).to_le_bytes());
            b.seal_superblock();
        }),
        ("superblock: names an unknown medium", |b| {
            let other = 4096 - b.superblock();
            b.0[other..other + 1024].fill(0);
            b.put(b.superblock() + 56, &[5]);
            b.seal_superblock();
        }),
        ("pages in use, found", |b| {
            let at = b.superblock() + 832;
            b.0[at] ^= 1;
            b.seal_superblock();
        }),
        ("superblock: gives tree 1 an impossible height", |b| {
            b.put(b.superblock() + 192 + 24 + 16, &[13]);
            b.seal_superblock();
        }),
        ("superblock: names an unknown medium", |b| {
            b.put(b.superblock() + 56, &[0]);
            b.seal_superblock();
        }),
        ("data blocks, found 5", |b| {
            b.put(b.superblock() + 112, &[6]);
            b.seal_superblock();
        }),
        ("inode number is impossible", |b| {
            b.put(b.superblock() + 96, &[9, 0]);
            b.seal_superblock();
        }),
        ("neither copy of a bitmap page is valid", |b| {
            for page in 3..5 {
                b.0[page * 4096 + 100] ^= 1;
            }
        }),
        ("page 2000 is marked in use but nothing", |b| {
            let at = b.bitmap(0);
            b.0[at + 64 + 250] |= 1;
            b.seal(at);
        }),
        ("does not exist", |b| {
            let at = b.bitmap(0);
            b.0[at + 64 + 256] |= 1;
            b.seal(at);
        }),
        ("page 5 is in use but marked free", |b| {
            let at = b.bitmap(0);
            b.0[at + 64] &= !32;
            b.seal(at);
        }),
        ("data block 9 is marked in use but nothing", |b| {
            let at = b.bitmap(1);
            b.0[at + 64 + 1] |= 2;
            b.seal(at);
        }),
    ]);
}

#[test]
fn a_lost_older_superblock_is_only_a_note() {
    let (pool, _) = sample();
    let mut broken = Broken::new(&pool);
    let other = 4096 - broken.superblock();
    broken.0[other + 40] ^= 1;
    let report = broken.report();
    assert!(report.is_clean());
    assert!(report.findings.iter().any(|f| f.severity == Severity::Note));
}

/// Whatever a superblock with the right checksum says: what is called clean can be opened.
#[test]
fn a_superblock_that_is_called_clean_opens() {
    let (pool, _) = sample();
    let good = Broken::new(&pool).0;
    for at in (8..1024).filter(|at| !(12..16).contains(at)) {
        for change in [1, 0x80, 0xff] {
            let mut broken = Broken(good.clone());
            let place = broken.superblock() + at;
            broken.0[place] ^= change;
            broken.seal_superblock_at(place - at);
            if broken.report().is_clean() {
                let meta = Region::from_image(&broken.0, Medium::Memory).unwrap();
                let opened = Pool::open(meta, &WriteToken::for_service());
                assert!(
                    opened.is_ok(),
                    "byte {at} ^ {change:#x}: {:?}",
                    opened.err()
                );
            }
        }
    }
}

/// Any flipped bit of a page in use is found: no byte of a node or bitmap is without a checksum.
#[test]
fn every_flipped_bit_of_a_used_page_is_found() {
    let (pool, _) = sample();
    let good = Broken::new(&pool).0;
    let pages: Vec<usize> = (7..2048)
        .filter(|p| {
            pool.meta_space()
                .is_used(crate::space::Run::new(*p as u64, 1))
        })
        .collect();
    let mut broken = Broken(good);
    assert!(pages.len() > 20, "{pages:?}");
    for i in 0..10 * pages.len() {
        let at = pages[i % pages.len()] * 4096 + (i * 997) % 4096;
        broken.0[at] ^= 1 << (i % 8);
        assert!(!broken.report().is_clean(), "byte {at}");
        broken.0[at] ^= 1 << (i % 8);
    }
    assert!(broken.report().is_clean());
}

/// A path names the object that a finding is about, through its directories.
#[test]
fn findings_have_paths() {
    let all = found(|s, _| change(s, INLINE, |r| r.blocks = 3));
    assert_eq!(all, ["/dir/inline: object 5: blocks is 3, found 0"]);
}

const LANE_LEN: usize = 4096;

fn write_record(journal: &mut [u8], lane: usize, position: usize, seq: u64) -> usize {
    write_long(journal, lane, position, seq, &[])
}

fn write_long(journal: &mut [u8], lane: usize, position: usize, seq: u64, runs: &[u8]) -> usize {
    let record = Record::InPlace { before: 1, runs }.encode(seq, lane as u16);
    let at = lane * LANE_LEN + position % LANE_LEN;
    position
        + record
            .copy_to(&mut journal[at..(lane + 1) * LANE_LEN])
            .unwrap()
}

#[test]
fn records_that_wait_are_counted_and_reported() {
    let (mut pool, _) = sample();
    let mut journal = std::vec![0; 16 * LANE_LEN];
    let start = 3 * LANE_LEN - 128;
    let store = PoolStore::new(pool.begin(&WriteToken::for_service()));
    store
        .commit(|sb| {
            sb.lanes[0] = Lane {
                start: 0,
                applied: 10,
            };
            sb.lanes[5] = Lane {
                start: start as u64,
                applied: 20,
            };
        })
        .unwrap();
    let mut at = 0;
    for seq in [11, 12, 14, 9] {
        at = write_record(&mut journal, 0, at, seq);
    }
    // Lane 5 goes on at the start of the ring: its last 64 bytes were too few.
    write_record(&mut journal, 5, start, 21);
    let next = write_long(&mut journal, 5, 3 * LANE_LEN, 22, &[1; 48]);
    write_record(&mut journal, 5, next, 19);
    let report = check(pool.meta(), DATA_LEN, Some(&&journal[..]));
    assert!(report.is_clean());
    assert_eq!(report.summary.records_waiting, 5);
    assert!(
        report.findings.iter().any(|f| f.what.contains("5 records")),
        "{report:?}"
    );
}

/// Bytes that carry correct checksums but make no sense never make the checker panic or hang.
#[test]
fn hostile_bytes_with_good_checksums_never_panic() {
    let (pool, _) = sample();
    let good = Broken::new(&pool).0;
    let mut x = 0x1234_5678_9abc_def1u64;
    let mut roll = |n: usize| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 8) as usize % n
    };
    let nodes: Vec<usize> = (7..2048)
        .map(|p| p * 4096)
        .filter(|at| &good[*at..at + 4] == b"HFN1")
        .collect();
    let mut found = 0;
    for _ in 0..400 {
        let mut broken = Broken(good.clone());
        for _ in 0..1 + roll(4) {
            let at = nodes[roll(nodes.len())];
            let place = if roll(2) == 0 {
                16 + roll(80)
            } else {
                16 + roll(4080)
            };
            broken.0[at + place] = roll(256) as u8;
            broken.seal(at);
        }
        found += usize::from(!broken.report().is_clean());
    }
    assert!(found > 100, "{found}");
}
