//! More than the tables of session memory hold: what was not used lately makes room, and nobody
//! gets an error.

mod common;

use common::{Fixture, ROOT};
use holdfast_client::Base;
use holdfast_client::Error;
use holdfast_client::abi::{O_CREAT, O_NOATIME, O_RDONLY, O_RDWR};
use holdfast_client::inode_table;
use holdfast_pool::session::MAP_PAGES;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::*};

const BLOCK: i64 = 4096;
/// Held by those that use all pages of block maps, which takes gigabytes.
static ALL_PAGES: Mutex<()> = Mutex::new(());

/// Each file has a block behind those that its inode entry has room for, so a page of its own.
#[test]
fn more_files_than_pages_of_block_maps_are_kept() {
    let fixture = Fixture::new(256 << 20);
    let user = fixture.user();
    let files = 20_000;
    for n in 0..files {
        let file = user.create(&format!("f{n}"));
        user.pwrite_all(file, &[n as u8 | 1], 6 * BLOCK);
        user.release(file).unwrap();
    }
    for n in (0..files).step_by(17) {
        let file = user.open(&format!("f{n}"), O_RDWR).unwrap();
        assert_eq!(user.pread_vec(file, 1, 6 * BLOCK), [n as u8 | 1], "f{n}");
        user.release(file).unwrap();
    }
    let pages = user.session().header().map_used.load(Relaxed);
    assert!(pages < files - 1000, "{pages} pages for {files} files");
    user.sync().unwrap();
}

/// Every two MiB of a file take a page, and there are more of them than pages in all.
#[test]
fn one_file_has_more_pieces_than_there_are_pages_of_block_maps() {
    let _alone = ALL_PAGES.lock().unwrap_or_else(|e| e.into_inner());
    let fixture = Fixture::new(2 << 30);
    let user = fixture.user();
    let file = user.open("sparse", O_CREAT | O_RDWR).unwrap();
    let pieces = MAP_PAGES as i64 + 3000;
    for n in 0..pieces {
        user.pwrite_all(file, &[n as u8 | 1], n * 512 * BLOCK);
    }
    // In sectors.
    assert_eq!(user.fstat(file).unwrap().blocks, pieces as u64 * 8);
    for n in (0..pieces).rev().step_by(7) {
        let found = user.pread_vec(file, 1, n * 512 * BLOCK);
        assert_eq!(found, [n as u8 | 1], "piece {n}");
    }
    let between = user.pread_vec(file, 3, (pieces - 9) * 512 * BLOCK - 3);
    assert_eq!(between, [0; 3]);
    user.release(file).unwrap();
    user.unlink(&ROOT, Base::Root, b"sparse").unwrap();
    user.sync().unwrap();
}

/// Each of them has a block behind those that its inode entry has room for, written and not synced.
#[test]
fn more_files_are_open_than_there_are_pages_of_block_maps() {
    let _alone = ALL_PAGES.lock().unwrap_or_else(|e| e.into_inner());
    let fixture = Fixture::new(2 << 30);
    let user = fixture.user();
    let dirs = 64;
    for n in 0..dirs {
        user.mkdir(&ROOT, Base::Root, format!("{n}").as_bytes(), 0o755)
            .unwrap();
    }
    let files = MAP_PAGES as u32 + 3000;
    let open = |n: u32| {
        let file = user.create(&format!("{}/f{n}", n % dirs));
        // Where a file grows, room is set aside for more.
        user.ftruncate(file, 16 * BLOCK).unwrap();
        user.pwrite_all(file, &[n as u8 | 1], 6 * BLOCK);
        file
    };
    let files: Vec<_> = (0..files).map(open).collect();
    for (n, file) in files.iter().enumerate().step_by(7) {
        assert_eq!(user.pread_vec(*file, 1, 6 * BLOCK), [n as u8 | 1], "f{n}");
    }
    for file in files {
        user.release(file).unwrap();
    }
    user.sync().unwrap();
}

/// As `docs/spec/session-memory.md` says it: however many files are looked at and read, session
/// memory has room for those that may be cached, and blocks are taken by none that is read once.
#[test]
fn memory_is_in_proportion_to_what_may_be_cached() {
    const CACHED: u32 = 16 * 1024;
    let files = 100_000;
    let mut fixture = Fixture::new(256 << 20);
    let user = fixture.user();
    for dir in 0..100 {
        let dir = format!("{dir}");
        user.mkdir(&ROOT, Base::Root, dir.as_bytes(), 0o755)
            .unwrap();
    }
    let path = |n: u32| format!("{}/file-{n}", n % 100);
    for n in 0..files {
        user.put(&path(n), &[n as u8; 100]);
    }
    user.sync().unwrap();
    drop(user);
    fixture.stop();
    fixture.start();
    let user = fixture.user();
    let h = user.session().header();
    h.inode_limit.store(CACHED, Relaxed);
    h.dentry_limit.store(CACHED / 2 * 3, Relaxed);
    let free = user.statfs().unwrap().free;
    for n in (0..files).map(|n| n.wrapping_mul(48_271) % files) {
        // A time of access that moved would have to be in the trees before the entry can go.
        let file = user.open(&path(n), O_RDONLY | O_NOATIME).unwrap();
        assert_eq!(user.pread_vec(file, 101, 0), [n as u8; 100], "{}", path(n));
        user.release(file).unwrap();
    }
    // Entries, hash buckets, and what one process takes.
    let most = u64::from(CACHED) * (600 + 4 * 16) + (2 << 20);
    let taken = user.memory_taken();
    assert!(
        taken <= most,
        "{taken} bytes for {CACHED} files, not {most}"
    );
    let blocks = free - user.statfs().unwrap().free;
    assert!(blocks < 2048, "reading took {blocks} blocks");
    // What is read again comes into a block: then a read is a copy.
    let hot = user.open(&path(7), O_RDONLY).unwrap();
    for _ in 0..3 {
        assert_eq!(user.pread_vec(hot, 9, 0), [7; 9]);
    }
    user.release(hot).unwrap();
}

/// Readers take no lock while the buckets of the tables become more and more.
#[test]
fn names_are_found_while_the_tables_grow() {
    let fixture = Fixture::new(256 << 20);
    let maker = fixture.user();
    let (made, files) = (AtomicU32::new(0), 60_000);
    let reader = fixture.user();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..files {
                maker.release(maker.create(&format!("f{n}"))).unwrap();
                made.store(n + 1, Release);
            }
        });
        let mut n = 0u32;
        while made.load(Acquire) < files {
            n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let known = made.load(Acquire);
            let Some(which) = (n >> 8).checked_rem(known) else {
                continue;
            };
            let found = reader.open(&format!("f{which}"), O_RDONLY);
            let found = found.unwrap_or_else(|e| panic!("f{which} of {known}: {e}"));
            reader.release(found).unwrap();
            let missing = reader.open(&format!("g{which}"), O_RDONLY);
            assert_eq!(missing.err(), Some(Error::NotFound));
        }
    });
    let header = maker.session().header();
    assert!(header.dentry_buckets.load(Relaxed) >= files);
    assert!(header.inode_buckets.load(Relaxed) >= files);
}

/// Whoever goes through more names than may be cached finds what is there, also what just changed,
/// and what others use stays cached.
#[test]
fn one_pass_over_many_names_leaves_the_others_cached() {
    const CACHED: u32 = 16 * 1024;
    const FILES: u32 = 60_000;
    const HOT: u32 = 500;
    let mut fixture = Fixture::new(256 << 20);
    let path = |n: u32| format!("{}/file-{n}", n % 100);
    let size = |n: u32| u64::from(n % 300 + 1);
    let user = fixture.user();
    for dir in 0..100 {
        let dir = format!("{dir}");
        user.mkdir(&ROOT, Base::Root, dir.as_bytes(), 0o755)
            .unwrap();
    }
    for n in 0..FILES {
        user.put(&path(n), &vec![n as u8; size(n) as usize]);
    }
    user.sync().unwrap();
    drop(user);
    fixture.stop();
    fixture.start();
    let user = fixture.user();
    let s = user.session();
    s.header().inode_limit.store(CACHED, Relaxed);
    s.header().dentry_limit.store(CACHED / 2 * 3, Relaxed);
    let look = |n: u32| user.stat(&ROOT, Base::Root, path(n).as_bytes(), 0);
    // The tables are full, and those below `HOT` are used.
    for n in (HOT..2 * CACHED).chain((0..HOT).cycle().take(4 * HOT as usize)) {
        look(n).unwrap();
    }
    let hot: Vec<u64> = (0..HOT).map(|n| look(n).unwrap().ino).collect();
    let cached = || {
        hot.iter()
            .filter(|ino| inode_table::find(s, **ino).is_some())
    };
    assert_eq!(cached().count(), hot.len());
    for n in 2 * CACHED..FILES {
        let found = look(n).unwrap();
        assert_eq!((found.size, found.nlink), (size(n), 1), "{n}");
    }
    let left = cached().count();
    assert!(left > hot.len() * 9 / 10, "{left} of {HOT} are cached");
    for n in (HOT..FILES).rev() {
        let name = path(n);
        match n % 9 {
            0 => user.unlink(&ROOT, Base::Root, name.as_bytes()).unwrap(),
            1 => user
                .chmod(&ROOT, Base::Root, name.as_bytes(), 0o600, 0)
                .unwrap(),
            2 => user.put(&name, &[7; 301]),
            _ => {}
        }
        let found = look(n).map(|found| (found.mode & 0o777, found.size));
        match n % 9 {
            0 => assert!(matches!(found, Err(Error::NotFound)), "{n}"),
            1 => assert_eq!(found.unwrap(), (0o600, size(n)), "{n}"),
            2 => assert_eq!(found.unwrap(), (0o644, 301), "{n}"),
            _ => assert_eq!(found.unwrap(), (0o644, size(n)), "{n}"),
        }
    }
}
