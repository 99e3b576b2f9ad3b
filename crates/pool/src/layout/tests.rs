//! Encoded objects decode to themselves, hostile bytes are refused, and finders find.

extern crate std;
use super::dirent::{self, Dirent};
use super::extent::{self, Extent, Run};
use super::inode::{self, InodeRecord, TYPE_CHAR, TYPE_DIR, TYPE_FILE, TYPE_SYMLINK};
use super::testing::{MapTrees, SEED};
use super::*;
use std::collections::BTreeSet;
use std::vec;
use std::vec::Vec;

/// A reproducible source of numbers.
pub(crate) struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

fn inodes() -> Vec<InodeRecord<'static>> {
    let times = InodeRecord {
        nlink: 1,
        atime: 1,
        mtime: -2,
        ctime: 3,
        btime: 4,
        ..Default::default()
    };
    vec![
        InodeRecord {
            mode: TYPE_FILE | 0o644,
            size: 5000,
            blocks: 2,
            ..times
        },
        InodeRecord {
            mode: TYPE_FILE,
            size: 4,
            flags: inode::INLINE,
            tail: b"data",
            ..times
        },
        InodeRecord {
            mode: TYPE_DIR | 0o7755,
            parent: 1,
            entries: 9,
            tail: b"name",
            ..times
        },
        InodeRecord {
            mode: TYPE_SYMLINK | 0o777,
            size: 6,
            tail: b"target",
            ..times
        },
        InodeRecord {
            mode: TYPE_SYMLINK | 0o777,
            size: 600,
            flags: inode::TARGET_IN_XATTRS,
            ..times
        },
        InodeRecord {
            mode: TYPE_CHAR,
            rdev: 77,
            ..times
        },
    ]
}

#[test]
fn inodes_decode_to_what_was_encoded() {
    for record in inodes() {
        let mut buf = [0xff; inode::ENCODED_MAX];
        let len = record.encode(&mut buf).unwrap();
        assert_eq!(InodeRecord::decode(&buf[..len]), Ok(record));
        for cut in 0..len {
            assert!(InodeRecord::decode(&buf[..cut]).is_err());
            assert_eq!(record.encode(&mut { buf }[..cut]), None);
        }
        assert!(InodeRecord::decode(&buf[..len + 1]).is_err());
    }
}

#[test]
fn contradicting_inodes_are_refused() {
    let [file, inline, dir, link, long, dev] = inodes().try_into().unwrap();
    let wrong = [
        InodeRecord {
            mode: 0o644,
            ..file
        },
        InodeRecord {
            mode: TYPE_FILE | 1 << 20,
            ..file
        },
        InodeRecord {
            size: u64::MAX,
            ..file
        },
        InodeRecord { parent: 1, ..file },
        InodeRecord { rdev: 1, ..file },
        InodeRecord { flags: 8, ..file },
        InodeRecord { size: 3, ..inline },
        InodeRecord {
            tail: b"",
            ..inline
        },
        InodeRecord { blocks: 1, ..dir },
        InodeRecord { size: 1, ..dir },
        InodeRecord { parent: 0, ..dir },
        InodeRecord {
            tail: &[b'x'; 256],
            ..dir
        },
        InodeRecord { size: 5, ..link },
        InodeRecord {
            size: 0,
            tail: b"",
            ..link
        },
        InodeRecord { size: 512, ..long },
        InodeRecord { size: 5000, ..long },
        InodeRecord { size: 1, ..dev },
    ];
    for record in wrong {
        let mut buf = [0; inode::ENCODED_MAX];
        let len = record.encode(&mut buf).unwrap();
        assert!(InodeRecord::decode(&buf[..len]).is_err(), "{record:?}");
    }
}

#[test]
fn random_bytes_never_panic() {
    let mut rng = Rng(7);
    for _ in 0..20_000 {
        let len = (rng.next() % 300) as usize;
        let bytes: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
        let _ = InodeRecord::decode(&bytes);
        let _ = Dirent::decode(&bytes);
        let _ = dirent::parse_key(&bytes);
        let _ = Extent::decode(rng.next(), &bytes);
        let _ = xattr::parse_key(&bytes);
        let _ = xattr::decode_chunk(rng.next() as u16, &bytes);
    }
}

fn put_name(trees: &mut MapTrees, dir: u64, name: &[u8], ino: u64) -> Option<u64> {
    let cookie = dirent::free_cookie(trees, dir, name).unwrap()?;
    let mut buf = [0; dirent::ENCODED_MAX];
    let len = Dirent { ino, kind: 8, name }.encode(&mut buf).unwrap();
    trees.put(DIRENTS, &dirent::key(dir, cookie), &buf[..len]);
    Some(cookie)
}

/// Puts an entry under the hash of another name, as if the hashes were equal.
fn put_collision(trees: &mut MapTrees, dir: u64, at: u64, name: &[u8]) {
    let mut buf = [0; dirent::ENCODED_MAX];
    let len = Dirent {
        ino: 99,
        kind: 8,
        name,
    }
    .encode(&mut buf)
    .unwrap();
    trees.put(DIRENTS, &dirent::key(dir, at), &buf[..len]);
}

#[test]
fn names_are_found_and_only_in_their_directory() {
    let mut trees = MapTrees::default();
    for i in 0..500u64 {
        let name = std::format!("file {i}");
        put_name(&mut trees, 1 + i % 3, name.as_bytes(), 100 + i).unwrap();
    }
    for i in 0..500u64 {
        let name = std::format!("file {i}");
        for dir in 1..4 {
            let found = dirent::find(&trees, dir, name.as_bytes()).unwrap();
            assert_eq!(found.map(|f| f.ino), (dir == 1 + i % 3).then_some(100 + i));
        }
        assert_eq!(
            dirent::free_cookie(&trees, 1 + i % 3, name.as_bytes()),
            Ok(None)
        );
    }
    let (mut from, mut seen, mut buf) = (0, BTreeSet::new(), dirent::Buffer::default());
    while let Some((cookie, entry)) = dirent::next(&trees, 2, from, &mut buf).unwrap() {
        assert!(seen.insert(entry.ino));
        from = cookie + 1;
    }
    assert_eq!(seen.len(), 167);
}

#[test]
fn colliding_names_get_the_lowest_free_cookie_until_all_are_taken() {
    let mut trees = MapTrees::default();
    let first = dirent::first_cookie(SEED, b"wanted");
    for n in 0..256u64 {
        let other = std::format!("other {n}");
        assert_eq!(
            dirent::free_cookie(&trees, 5, b"wanted"),
            Ok(Some(first + n))
        );
        put_collision(&mut trees, 5, first + n, other.as_bytes());
    }
    assert_eq!(dirent::free_cookie(&trees, 5, b"wanted"), Ok(None));
    trees
        .0
        .remove(&(DIRENTS, dirent::key(5, first + 200).to_vec()));
    assert_eq!(
        dirent::free_cookie(&trees, 5, b"wanted"),
        Ok(Some(first + 200))
    );
    trees
        .0
        .remove(&(DIRENTS, dirent::key(5, first + 100).to_vec()));
    assert_eq!(put_name(&mut trees, 5, b"wanted", 42), Some(first + 100));
    assert_eq!(dirent::find(&trees, 5, b"wanted").unwrap().unwrap().ino, 42);
}

#[test]
fn name_hash_is_the_one_of_the_format_and_spreads() {
    // Computed from docs/spec/objects.md by another program.
    assert_eq!(dirent::name_hash(SEED, b"a"), 0x3_661c_6205_137b);
    assert_eq!(dirent::name_hash(SEED, b"lost+found"), 0x17_92a3_67bd_3418);
    assert_eq!(dirent::name_hash(SEED, b"eight888"), 0x31_967c_e959_1b05);
    assert_eq!(dirent::name_hash(SEED, &[b'x'; 255]), 0x2_4763_e113_1dcf);
    let mut seen = BTreeSet::new();
    let mut buckets = [0u32; 64];
    for i in 0..100_000u32 {
        let hash = dirent::name_hash(SEED, std::format!("f{i:06}").as_bytes());
        assert!(hash < 1 << 54);
        assert!(seen.insert(hash));
        buckets[(hash >> 48) as usize] += 1;
    }
    assert!(
        buckets.iter().all(|&n| (1300..1850).contains(&n)),
        "{buckets:?}"
    );
    assert_ne!(
        dirent::name_hash(SEED, b"a"),
        dirent::name_hash(SEED, b"a\0")
    );
    assert_ne!(
        dirent::name_hash(SEED, b"a"),
        dirent::name_hash(!SEED, b"a")
    );
    assert_eq!(
        name_seed([1, 2, 3, 4, 5, 6, 7, 8, 1, 0, 0, 0, 0, 0, 0, 9]),
        0x0107_0605_0403_0200
    );
}

#[test]
fn illegal_names_are_refused() {
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0", &[b'x'; 256]] {
        assert!(!is_legal_name(name));
        let mut buf = [0; 300];
        if let Some(len) = (Dirent {
            ino: 1,
            kind: 8,
            name,
        })
        .encode(&mut buf)
        {
            assert!(Dirent::decode(&buf[..len]).is_err());
        }
    }
    for name in [&b"..."[..], b".a", &[b'x'; 255], &[0xff, 1]] {
        assert!(is_legal_name(name));
    }
}

#[test]
fn file_blocks_are_found_in_extents_and_holes() {
    let mut trees = MapTrees::default();
    for (ino, file_block, block, len) in [(7, 2, 50, 3), (7, 5, 90, 1), (7, 9, 10, 2), (8, 0, 1, 1)]
    {
        let e = Extent {
            file_block,
            block: BlockAddr::from_word(block),
            len,
            epoch: 3,
        };
        assert_eq!(Extent::decode(file_block, &e.encode()), Ok(e));
        trees.put(EXTENTS, &extent::key(ino, file_block), &e.encode());
    }
    let find = |ino, at| extent::find(&trees, ino, at).unwrap();
    assert_eq!(find(7, 0), Run::Hole(2));
    assert_eq!(
        find(7, 2),
        Run::Blocks {
            block: BlockAddr::new(0, 50),
            len: 3,
            epoch: 3
        }
    );
    assert_eq!(
        find(7, 4),
        Run::Blocks {
            block: BlockAddr::new(0, 52),
            len: 1,
            epoch: 3
        }
    );
    assert_eq!(
        find(7, 5),
        Run::Blocks {
            block: BlockAddr::new(0, 90),
            len: 1,
            epoch: 3
        }
    );
    assert_eq!(find(7, 6), Run::Hole(3));
    assert_eq!(
        find(7, 10),
        Run::Blocks {
            block: BlockAddr::new(0, 11),
            len: 1,
            epoch: 3
        }
    );
    assert_eq!(find(7, 11), Run::Hole(FILE_BLOCKS_MAX - 11));
    assert_eq!(find(6, 3), Run::Hole(FILE_BLOCKS_MAX - 3));
    for (file_block, block, len, epoch) in [
        (0, 0, 0, 0),
        (u64::MAX, 0, 1, 0),
        (0, u64::MAX, 1, 0),
        (1 << 51, 0, 1, 0),
        (0, BlockAddr::new(1, 0).word(), 1, 0),
        (0, BlockAddr::new(1, 0).word() - 1, 2, 0),
    ] {
        let e = Extent {
            file_block,
            block: BlockAddr::from_word(block),
            len,
            epoch,
        };
        assert!(Extent::decode(file_block, &e.encode()).is_err(), "{e:?}");
    }
}

fn put_xattr(trees: &mut MapTrees, ino: u64, name: &[u8], value: &[u8]) {
    let mut buf = [0; xattr::ENCODED_MAX];
    for chunk in 0..xattr::chunks(value.len()) {
        let len = xattr::encode_chunk(value, chunk, &mut buf);
        let key = xattr::key(ino, name, chunk as u16).unwrap();
        assert_eq!(
            xattr::parse_key(key.as_bytes()),
            Ok((ino, name, chunk as u16))
        );
        trees.put(XATTRS, key.as_bytes(), &buf[..len]);
    }
}

#[test]
fn attributes_of_every_length_are_found() {
    let mut trees = MapTrees::default();
    let value: Vec<u8> = (0..XATTR_VALUE_MAX).map(|i| (i * 7) as u8).collect();
    let lens = [0, 1, 1019, 1020, 1021, 2040, 8192];
    for (i, &len) in lens.iter().enumerate() {
        put_xattr(
            &mut trees,
            3,
            std::format!("user.{i}").as_bytes(),
            &value[..len],
        );
    }
    put_xattr(&mut trees, 3, b"", &value[..4095]);
    put_xattr(&mut trees, 4, b"user.0", b"other");
    let mut out = [0; XATTR_VALUE_MAX];
    for (i, &len) in lens.iter().enumerate() {
        let name = std::format!("user.{i}");
        assert_eq!(
            xattr::find(&trees, 3, name.as_bytes(), &mut out),
            Ok(Some(len))
        );
        assert_eq!(out[..len], value[..len]);
        assert_eq!(
            xattr::find(&trees, 3, name.as_bytes(), &mut []),
            Ok(Some(len))
        );
    }
    assert_eq!(xattr::find(&trees, 3, b"user.", &mut out), Ok(None));
    let (mut names, mut name, mut last) = (0, [0; NAME_MAX], Vec::new());
    while let Some(len) = xattr::next_name(&trees, 3, &last, &mut name).unwrap() {
        assert_eq!(&name[..len], std::format!("user.{names}").as_bytes());
        last = name[..len].to_vec();
        names += 1;
    }
    assert_eq!(names, lens.len());
    let lost = xattr::key(3, b"user.6", 4).unwrap();
    trees.0.remove(&(XATTRS, lost.as_bytes().to_vec()));
    assert!(xattr::find(&trees, 3, b"user.6", &mut out).is_err());
}
