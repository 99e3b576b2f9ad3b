//! A full pool, directories that change while they are read, mappings, and modes of durability.

mod common;

use common::{Fixture, ROOT, User};
use holdfast_client::{
    Base, DirentFormat, Error, LeaseSet, MapPiece, OfdLink, abi::*, inode_table,
};
use holdfast_pmem::{ConstBuf, MutBuf};
use holdfast_pool::format::superblock::Consistency;
use holdfast_pool::layout::BlockAddr;
use holdfast_pool::session::{LANES, MAP_BLOCK, MAP_SHIFT};
use std::collections::HashSet;
use std::sync::atomic::Ordering::SeqCst;

fn write_until_full(user: &User, ofd: OfdLink) -> usize {
    let piece = vec![7; 100_000];
    let mut total = 0;
    loop {
        match user.write(ofd, ConstBuf::from(&piece[..])) {
            Ok(n) => total += n,
            Err(Error::NoSpace) => return total,
            Err(e) => panic!("{e}"),
        }
    }
}

/// What is told of the content of an open file under a lease is all of it.
#[test]
fn content_is_told_whole_or_not_at_all() {
    let mut fixture = Fixture::new(16 << 20);
    let longer = [&b"x"[..], &[0; 9_999]].concat();
    let files = [
        ("empty", vec![]),
        ("short", vec![7; 100]),
        ("longer", longer),
    ];
    let files = [&files[..], &[("blocks", vec![9; 16_000])]].concat();
    let user = fixture.user();
    for (name, content) in &files {
        user.put(name, &content[..content.len().min(1)]);
        let ofd = user.open(name, O_RDWR).unwrap();
        // What is cut longer than it was written is in its inode still.
        match *name {
            "longer" => user.ftruncate(ofd, content.len() as i64).unwrap(),
            _ => user.pwrite_all(ofd, content, 0),
        }
        user.release(ofd).unwrap();
        // The time of access moves with the first read, if the clock has gone on.
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(user.get(name), *content);
        assert_eq!(user.get(name), *content);
    }
    drop(user);
    for is_full in [false, true] {
        // Nothing is in memory in a new session.
        fixture.stop();
        fixture.start();
        let user = fixture.user();
        user.expect_others(1);
        user.give_leases().unwrap();
        if is_full {
            write_until_full(&user, user.create("fill"));
        }
        for (name, content) in &files {
            let ofd = user.open(name, O_RDONLY).unwrap();
            let mut told = None;
            for _ in 0..4 {
                let (leases, mut out) = (LeaseSet::default(), vec![1; 16 << 10]);
                let len = user.leased_content(ofd, MutBuf::from(&mut out[..]), &leases);
                told = len.unwrap();
                assert!(told.is_none_or(|len| out[..len] == **content), "{name}");
            }
            assert!(is_full || told.is_some(), "{name}");
            let mut out = vec![1; content.len().saturating_sub(1)];
            let len = user.leased_content(ofd, MutBuf::from(&mut out[..]), &LeaseSet::default());
            assert!(len.unwrap().is_none_or(|_| content.is_empty()), "{name}");
            user.release(ofd).unwrap();
        }
    }
}

/// Content is not told that may change without a lock, or whose reading would be seen.
#[test]
fn content_is_not_told_while_it_is_mapped_or_was_not_read() {
    let fixture = Fixture::new(16 << 20);
    let user = fixture.user();
    user.expect_others(1);
    user.give_leases().unwrap();
    let tick = || std::thread::sleep(std::time::Duration::from_millis(20));
    let is_told = |ofd| {
        let (leases, mut out) = (LeaseSet::default(), [1; 8192]);
        let len = user.leased_content(ofd, MutBuf::from(&mut out[..]), &leases);
        let is_told = len.unwrap().is_some();
        assert!(!is_told || leases.leases().is_some() && out[..5000] == [7; 5000]);
        is_told
    };
    user.put("f", &[7; 5000]);
    let ofd = user.open("f", O_RDWR).unwrap();
    tick();
    assert!(!is_told(ofd), "its time of access is to move");
    user.get("f");
    assert!(is_told(ofd));
    let pin = user.map_pin(ofd, PROT_READ | PROT_WRITE, true).unwrap();
    assert!(!is_told(ofd), "somebody may store to it");
    user.map_unpin(pin, true).unwrap();
    tick();
    user.get("f");
    assert!(is_told(ofd));
    let (leases, mut out) = (LeaseSet::default(), [0; 8192]);
    let len = user.leased_content(ofd, MutBuf::from(&mut out[..]), &leases);
    assert!(len.unwrap().is_some() && user.leases_last(&leases));
    user.pwrite_all(ofd, b"changed", 0);
    assert!(!user.leases_last(&leases));
    user.release(ofd).unwrap();
}

#[test]
fn a_full_pool_says_so_and_lets_go() {
    let fixture = Fixture::new(16 << 20);
    let user = fixture.user();
    let mut before = 0;
    for round in 0..3 {
        let ofd = user.create("fill");
        let total = write_until_full(&user, ofd);
        assert!(total > 8 << 20, "{total}");
        assert!(
            round == 0 || total + (1 << 20) > before,
            "{total} after {before}"
        );
        before = total;
        assert_eq!(user.fstat(ofd).unwrap().size, total as u64);
        // What is there can still be changed and read.
        user.pwrite_all(ofd, b"changed", 5000);
        assert_eq!(user.pread_vec(ofd, 7, 5000), b"changed");
        user.mkdir(&ROOT, Base::Root, b"full", 0o755).unwrap();
        user.rmdir(&ROOT, Base::Root, b"full").unwrap();
        user.release(ofd).unwrap();
        let full = user.statfs().unwrap().free;
        assert!(full < 4 << 20 >> 12, "{full} blocks free in a full pool");
        user.unlink(&ROOT, Base::Root, b"fill").unwrap();
        // It counts as free at once.
        let free = user.statfs().unwrap().free;
        assert!(
            free > (total as u64 - (4 << 20)) >> 12,
            "{free} blocks free"
        );
    }
    user.put("after", &[1; 1_000_000]);
    assert_eq!(user.get("after"), [1; 1_000_000]);
}

fn read_some(user: &User, ofd: OfdLink, names: &mut Vec<(String, u64)>) -> bool {
    let mut out = vec![0; 400];
    let to = MutBuf::from(&mut out[..]);
    let n = user.getdents(ofd, to, DirentFormat::Linux64).unwrap();
    let mut at = 0;
    while at < n {
        let next = u64::from_le_bytes(out[at + 8..at + 16].try_into().unwrap());
        let len = u16::from_le_bytes([out[at + 16], out[at + 17]]) as usize;
        let name = out[at + 19..at + len].split(|&b| b == 0).next().unwrap();
        names.push((String::from_utf8(name.to_vec()).unwrap(), next));
        at += len;
    }
    n > 0
}

#[test]
fn names_that_stay_are_read_once_while_others_come_and_go() {
    let fixture = Fixture::new(64 << 20);
    let user = fixture.user();
    user.mkdir(&ROOT, Base::Root, b"d", 0o755).unwrap();
    for n in 0..300 {
        user.put(&format!("d/stays-{n}"), b"");
        user.put(&format!("d/goes-{n}"), b"");
    }
    let ofd = user.open("d", O_RDONLY | O_DIRECTORY).unwrap();
    let (mut names, mut n) = (Vec::new(), 0);
    while read_some(&user, ofd, &mut names) {
        for _ in 0..9 {
            if n < 300 {
                user.unlink(&ROOT, Base::Root, format!("d/goes-{n}").as_bytes())
                    .unwrap();
                user.put(&format!("d/comes-{n}"), b"");
                n += 1;
            }
        }
    }
    let all: Vec<_> = names.iter().map(|(name, _)| name.clone()).collect();
    let unique: HashSet<_> = all.iter().collect();
    assert_eq!(unique.len(), all.len());
    assert_eq!(all.iter().filter(|n| n.starts_with("stays-")).count(), 300);
    // seekdir: every position leads to the name that followed it.
    for i in [0, 1, 2, 57, 200] {
        let (_, position) = names[i];
        user.lseek(ofd, position as i64, SEEK_SET).unwrap();
        let mut rest = Vec::new();
        read_some(&user, ofd, &mut rest);
        let later: Vec<_> = names[i + 1..].iter().map(|(n, _)| n).collect();
        let first_kept = rest.iter().find(|(n, _)| n.starts_with("stays-")).unwrap();
        let expected = later.iter().find(|n| n.starts_with("stays-")).unwrap();
        assert_eq!(&&first_kept.0, expected);
    }
}

#[test]
fn a_mapping_plan_covers_the_range_and_pins_the_blocks() {
    let fixture = Fixture::new(64 << 20);
    let user = fixture.user();
    let ofd = user.create("mapped");
    user.pwrite_all(ofd, &[5; 3000], 0);
    user.ftruncate(ofd, 40_000).unwrap();
    let pin = user.map_pin(ofd, PROT_READ | PROT_WRITE, true).unwrap();
    let mut pieces = Vec::new();
    let mut collect = |p| {
        pieces.push(p);
        Ok(())
    };
    user.map_plan(pin, 0, 65536, true, &mut collect).unwrap();
    let (mut data, mut beyond, mut at) = (Vec::new(), 0, 0);
    for p in pieces {
        match p {
            MapPiece::Data {
                segment_offset,
                len,
            } => {
                data.extend((0..len / 4096).map(|i| segment_offset + i * 4096));
                at += len;
            }
            MapPiece::Zero { .. } => panic!("a shared mapping has no zero pieces"),
            MapPiece::Beyond { len } => beyond += len,
            MapPiece::Inline | MapPiece::Lent { .. } => panic!("not of this file"),
        }
    }
    assert_eq!((at, beyond, data.len()), (40960, 65536 - 40960, 10));
    // A store through the mapping is what a reader sees.
    user.session()
        .data()
        .store(data[9] + 10, b"through")
        .unwrap();
    assert_eq!(user.pread_vec(ofd, 7, 9 * 4096 + 10), b"through");
    // Truncation zeroes, and the blocks stay.
    user.ftruncate(ofd, 100).unwrap();
    let mut word = [1; 7];
    user.session().data().read(data[9] + 10, &mut word).unwrap();
    assert_eq!(word, [0; 7]);
    user.ftruncate(ofd, 40_000).unwrap();
    user.pwrite_all(ofd, b"again", 9 * 4096);
    let mut word = [1; 5];
    user.session().data().read(data[9], &mut word).unwrap();
    assert_eq!(&word, b"again");
    user.map_unpin(pin, true).unwrap();
    user.release(ofd).unwrap();
    let mut expected = vec![0; 40_000];
    expected[..100].fill(5);
    expected[9 * 4096..9 * 4096 + 5].copy_from_slice(b"again");
    assert_eq!(user.get("mapped"), expected);
}

#[test]
fn rights_of_mappings_follow_the_access_mode() {
    let fixture = Fixture::new(64 << 20);
    let user = fixture.user();
    user.put("f", b"x");
    let reading = user.open("f", O_RDONLY).unwrap();
    assert_eq!(
        user.map_pin(reading, PROT_READ | PROT_WRITE, true),
        Err(Error::Denied)
    );
    let private = user
        .map_pin(reading, PROT_READ | PROT_WRITE, false)
        .unwrap();
    user.map_unpin(private, false).unwrap();
    let writing = user.open("f", O_WRONLY).unwrap();
    assert_eq!(user.map_pin(writing, PROT_READ, false), Err(Error::Denied));
    let dir = user.open("/", O_RDONLY).unwrap();
    assert_eq!(user.map_pin(dir, PROT_READ, false), Err(Error::NoDevice));
}

/// The same writes in every mode of durability, and after each call nothing is lazy if the mode
/// says so.
#[test]
fn stricter_modes_write_the_same_bytes() {
    for mode in [Consistency::Posix, Consistency::Sync, Consistency::Strict] {
        let mut fixture = Fixture::with(64 << 20, mode);
        let mut model = Vec::new();
        let user = fixture.user();
        let ofd = user.create("f");
        let mut x = 1u64;
        for _ in 0..200 {
            x = x
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let (at, n) = ((x >> 40) as usize % 60_000, 1 + (x >> 20) as usize % 9_000);
            let bytes: Vec<u8> = (0..n).map(|i| (x >> (i % 50)) as u8).collect();
            if model.len() < at + n {
                model.resize(at + n, 0);
            }
            model[at..at + n].copy_from_slice(&bytes);
            user.pwrite_all(ofd, &bytes, at as i64);
        }
        assert!(user.pread_vec(ofd, model.len() + 1, 0) == model, "{mode:?}");
        user.release(ofd).unwrap();
        holdfast_client::slots::exit(user.session(), true);
        drop(user);
        fixture.stop();
        fixture.start();
        assert!(fixture.user().get("f") == model, "{mode:?} after a restart");
    }
}

#[test]
fn bad_memory_of_the_caller_is_an_error_or_a_short_count() {
    let fixture = Fixture::new(64 << 20);
    let user = fixture.user();
    let ofd = user.create("f");
    assert_eq!(user.pread(ofd, MutBuf::from(&mut [][..]), 0), Ok(0));
    assert_eq!(
        user.pread(ofd, MutBuf::from(&mut [0; 4][..]), -1),
        Err(Error::Invalid)
    );
    assert_eq!(user.lseek(ofd, -1, SEEK_SET), Err(Error::Invalid));
    assert_eq!(user.lseek(ofd, 0, SEEK_DATA), Err(Error::NoData));
    user.pwrite_all(ofd, b"x", 10_000);
    assert_eq!(user.lseek(ofd, 0, SEEK_HOLE), Ok(0));
    assert_eq!(user.lseek(ofd, 0, SEEK_DATA), Ok(8192));
    assert_eq!(user.lseek(ofd, 9000, SEEK_HOLE), Ok(10_001));
}

#[test]
fn a_mapping_keeps_its_blocks_while_the_file_shrinks_and_grows() {
    let fixture = Fixture::new(64 << 20);
    let user = fixture.user();
    let ofd = user.create("mapped");
    user.pwrite_all(ofd, &[5; 200_000], 0);
    let pin = user.map_pin(ofd, PROT_READ | PROT_WRITE, true).unwrap();
    let mut first = Vec::new();
    let blocks = |into: &mut Vec<(u64, u64)>| {
        let mut collect = |p| {
            if let MapPiece::Data {
                segment_offset,
                len,
            } = p
            {
                into.push((segment_offset, len));
            }
            Ok(())
        };
        user.map_plan(pin, 0, 196_608, true, &mut collect).unwrap();
    };
    blocks(&mut first);
    for size in [1000, 90_000, 10, 200_000] {
        user.ftruncate(ofd, size).unwrap();
        user.put("other", &[9; 150_000]);
    }
    let mut second = Vec::new();
    blocks(&mut second);
    assert_eq!(first, second);
    let mut expected = vec![0; 200_000];
    expected[..10].fill(5);
    assert!(user.pread_vec(ofd, 200_001, 0) == expected);
    user.map_unpin(pin, false).unwrap();
    user.release(ofd).unwrap();
    assert!(user.get("mapped") == expected);
}

#[test]
fn sync_file_range_takes_what_the_manual_says() {
    let fixture = Fixture::new(16 << 20);
    let user = fixture.user();
    let ofd = user.create("f");
    user.pwrite_all(ofd, &[1; 10_000], 0);
    for (offset, len, flags) in [(0, 0, 0), (0, 0, 7), (4096, 4096, 2), (i64::MAX, 0, 2)] {
        user.sync_file_range(ofd, offset, len, flags).unwrap();
    }
    for (offset, len, flags) in [(-1, 0, 2), (0, -1, 2), (0, 0, 8), (i64::MAX, 1, 2)] {
        let refused = user.sync_file_range(ofd, offset, len, flags);
        assert!(
            matches!(refused, Err(Error::Invalid)),
            "{offset} {len} {flags}"
        );
    }
}

/// Keeps the service from applying anything for up to a second: somebody who lives has taken a
/// number and does not write its record. Gives the number, and what ends it.
fn hold_service(user: &User) -> (u64, impl FnOnce()) {
    let s = user.session();
    let lane = s.lane(LANES as u32 - 1).unwrap();
    lane.lock.store(s.owner(), SeqCst);
    let seq = s.header().next_seq.fetch_add(1, SeqCst);
    lane.busy_seq.store(seq, SeqCst);
    let release = move || {
        lane.busy_seq.store(0, SeqCst);
        lane.lock.store(0, SeqCst);
    };
    (seq, release)
}

#[test]
fn a_run_that_the_trees_know_ends_where_a_block_was_replaced_since() {
    const BLOCK: usize = 4096;
    let mut fixture = Fixture::with(32 << 20, Consistency::Strict);
    let mut want = vec![1; 16 * BLOCK];
    fixture.user().put("file", &want);
    for tries in 0.. {
        // In a new session nothing is known of the file but what the trees have.
        fixture.stop();
        fixture.start();
        let user = fixture.user();
        let ofd = user.open("file", O_RDWR).unwrap();
        let (seq, release) = hold_service(&user);
        user.pwrite_all(ofd, &[2 + tries; BLOCK], 5 * BLOCK as i64);
        want[5 * BLOCK..6 * BLOCK].fill(2 + tries);
        let read = user.pread_vec(ofd, 16 * BLOCK, 0);
        let held = user.session().header().applied_seq.load(SeqCst) < seq;
        release();
        user.release(ofd).unwrap();
        assert!(read == want, "what was read is not what was written");
        if held {
            break;
        }
        assert!(tries < 20, "the service was never held");
    }
}

/// Any process of the session may have written such an address into session memory.
#[test]
fn a_block_of_a_data_segment_that_does_not_exist_is_an_error_and_is_not_followed() {
    let fixture = Fixture::new(32 << 20);
    let user = fixture.user();
    let ofd = user.create("file");
    user.pwrite_all(ofd, b"small", 0);
    let ino = user.fstat(ofd).unwrap().ino;
    let e = inode_table::get(user.session(), ino).unwrap().e;
    let (own, entry) = (e.pending_block.load(SeqCst), e.direct[0].load(SeqCst));
    let elsewhere = BlockAddr::new(1, own);
    // Looked up in the map.
    e.direct[0].store(elsewhere.word() << MAP_SHIFT | MAP_BLOCK, SeqCst);
    let damaged = |what| Error::Damaged {
        what,
        index: elsewhere.word(),
    };
    let mut out = [0; 5];
    let read = user.pread(ofd, MutBuf::from(&mut out[..]), 0);
    assert_eq!(read, Err(damaged("block of a file")));
    let written = user.pwrite(ofd, ConstBuf::from(&b"other"[..]), 0);
    assert_eq!(written, Err(damaged("block of a file")));
    e.direct[0].store(entry, SeqCst);
    // Taken as it is: the content of a small file goes from its block to the journal at close.
    e.pending_block.store(elsewhere.word(), SeqCst);
    assert_eq!(user.release(ofd), Err(damaged("block")));
    e.pending_block.store(own, SeqCst);
    assert_eq!(user.get("file"), b"small");
}

/// Its first bytes are in the inode record, and what follows is a hole; nothing of it is in memory.
#[test]
fn one_read_has_all_of_a_small_file_that_was_extended() {
    let mut fixture = Fixture::new(64 << 20);
    let user = fixture.user();
    for (name, size) in [("short", 300), ("long", 13_348)] {
        user.put(name, &[7; 3]);
        user.truncate(&ROOT, Base::Root, name.as_bytes(), size)
            .unwrap();
    }
    user.sync().unwrap();
    drop(user);
    fixture.stop();
    fixture.start();
    let user = fixture.user();
    for (name, size) in [("short", 300), ("long", 13_348)] {
        let file = user.open(name, O_RDONLY).unwrap();
        let mut whole = vec![0; size as usize];
        whole[..3].fill(7);
        for _ in 0..3 {
            let mut out = vec![1; size as usize + 10];
            let n = user.pread(file, MutBuf::from(&mut out[..]), 0).unwrap();
            assert_eq!(n, size as usize);
            assert!(out[..n] == whole, "{name}");
            let n = user.pread(file, MutBuf::from(&mut out[..]), 2).unwrap();
            assert_eq!((n, out[0], out[1]), (size as usize - 2, 7, 0), "{name}");
        }
        user.release(file).unwrap();
    }
}
