//! Every method of a region: what it moves, what it refuses, what it reports to the recorder.

use super::*;
use crate::record::Event;
use crate::{MapOptions, Recorder, Reservation, Scheme};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::{vec, vec::Vec};

fn memfd(len: usize) -> OwnedFd {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let fd = rustix::fs::memfd_create("region", flags).unwrap();
    rustix::fs::ftruncate(&fd, len as u64).unwrap();
    fd
}

fn mapped(fd: &OwnedFd, len: usize, options: MapOptions) -> Region {
    Region::map_with(fd.as_fd(), 0, len, &options).unwrap()
}

fn options(access: Access) -> MapOptions {
    MapOptions::new(access, Medium::Memory)
}

/// A region of each persist routine, and a heap one.
fn all_kinds(len: usize) -> Vec<Region> {
    let rw = || options(Access::ReadWrite);
    let fd = memfd(len);
    let kinds = [
        rw(),
        rw().registers(Registers::Ymm),
        rw().persistence(Persistence::Cached),
        rw().persistence(Persistence::Synced),
    ];
    let mut all: Vec<Region> = kinds.into_iter().map(|o| mapped(&fd, len, o)).collect();
    let there = |p: &Protection| {
        *p != Protection::Key || Protection::best(fd.as_fd(), Medium::Memory) == *p
    };
    let protections = Protection::ALL.into_iter().filter(there);
    all.extend(protections.map(|p| mapped(&fd, len, rw().protection(p))));
    let schemes = Scheme::ALL.into_iter().filter(|scheme| scheme.is_there());
    all.extend(schemes.map(|scheme| {
        let persistence = match scheme {
            Scheme::Cached => Persistence::Cached,
            _ => Persistence::Flushed,
        };
        mapped(&fd, len, rw().persistence(persistence).scheme(scheme))
    }));
    // It stays open for as long as the regions are used.
    std::mem::forget(fd);
    all.push(Region::in_memory(len).unwrap());
    all
}

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + salt * 7 + 1) as u8).collect()
}

#[test]
fn every_way_of_writing_moves_exactly_its_bytes() {
    const LEN: usize = 3 * PAGE;
    type Write = fn(&Region, u64, &[u8]);
    let ways: [Write; 5] = [
        |r, off, b| r.store(off, b).unwrap(),
        |r, off, b| r.write_nt(off, b).unwrap(),
        |r, off, b| assert_eq!(r.copy_in(off, b.into()), Ok(b.len())),
        |r, off, b| assert_eq!(r.copy_over(off, b.into()), Ok(b.len())),
        |r, off, b| {
            r.write_nt(off, b).unwrap();
            r.zero_nt(off, b.len()).unwrap();
            let mut zero = vec![1; b.len()];
            r.read(off, &mut zero).unwrap();
            assert!(zero.iter().all(|z| *z == 0));
            r.store(off, b).unwrap();
        },
    ];
    for r in all_kinds(LEN) {
        for (w, way) in ways.iter().enumerate() {
            let mut expected = pattern(LEN, 99);
            r.store(0, &expected).unwrap();
            for off in [0, 1, 7, 8, 60, 63, 64, 65, 128, 4000, 4096] {
                for len in [
                    0, 1, 4, 7, 8, 9, 16, 63, 64, 65, 128, 200, 256, 300, 1024, 5000,
                ] {
                    let data = pattern(len, off + w);
                    way(&r, off as u64, &data);
                    expected[off..off + len].copy_from_slice(&data);
                }
            }
            let mut got = vec![0; LEN];
            r.read(0, &mut got).unwrap();
            assert!(got == expected, "way {w}, {:?}", r.persistence());
            let mut out = vec![0; LEN - 5];
            assert_eq!(r.copy_out(5, (&mut out[..]).into()), Ok(LEN - 5));
            assert!(out == expected[5..]);
        }
    }
}

#[test]
fn ranges_outside_are_refused_and_change_nothing() {
    let r = Region::in_memory(4096).unwrap();
    let ends = [
        (4096u64, 1usize),
        (4095, 2),
        (u64::MAX, 1),
        (u64::MAX - 3, 8),
        (0, 4097),
    ];
    for (off, len) in ends {
        let mut buf = vec![1u8; len];
        let e = Err(Error::OutOfRange { off, len });
        assert_eq!(r.read(off, &mut buf), e);
        assert_eq!(r.store(off, &buf), e);
        assert_eq!(r.write_nt(off, &buf), e);
        assert_eq!(r.zero_nt(off, len), e);
        assert_eq!(r.flush(off, len), e);
        assert_eq!(r.sync(off, len), e);
        assert_eq!(r.prefault(off, len), e);
        assert_eq!(r.make_huge(off, len), e.map(|()| false));
        assert_eq!(
            r.copy_in(off, buf.as_slice().into()),
            Err(Fault::OutOfRange)
        );
        assert_eq!(
            r.copy_out(off, buf.as_mut_slice().into()),
            Err(Fault::OutOfRange)
        );
    }
    assert_eq!(
        r.load_u64(4096),
        Err(Error::OutOfRange { off: 4096, len: 8 })
    );
    assert_eq!(
        r.load_u64(4092),
        Err(Error::Misaligned {
            off: 4092,
            align: 8
        })
    );
    assert_eq!(
        r.load_u32(4094),
        Err(Error::Misaligned {
            off: 4094,
            align: 4
        })
    );
    assert_eq!(
        r.store_u64(4, 1),
        Err(Error::Misaligned { off: 4, align: 8 })
    );
    assert!(r.word(4096).is_none() && r.word(1).is_none());
    let mut all = vec![1; 4096];
    r.read(0, &mut all).unwrap();
    assert!(all.iter().all(|b| *b == 0));
    assert!(r.flush(4096, 0).is_ok() && r.read(4096, &mut []).is_ok());
}

#[test]
fn a_length_that_is_no_page_is_kept_exactly() {
    let r = Region::in_memory(100).unwrap();
    assert_eq!(r.len(), 100);
    assert!(r.store(99, &[1]).is_ok());
    assert!(r.store(100, &[1]).is_err());
    assert!(Region::in_memory(0).is_err());
}

#[test]
fn a_read_only_region_refuses_every_store() {
    let fd = memfd(4096);
    let w = mapped(&fd, 4096, options(Access::ReadWrite));
    let r = mapped(&fd, 4096, options(Access::ReadOnly));
    assert!(!r.is_writable() && w.is_writable());
    let e = Err(Error::ReadOnly);
    assert_eq!(r.store(0, &[1]), e);
    assert_eq!(r.store_u64(0, 1), e);
    assert_eq!(r.write_nt(0, &[1; 64]), e);
    assert_eq!(r.zero_nt(0, 64), e);
    assert_eq!(r.copy_in(0, (&[1; 8]).into()), Err(Fault::OutOfRange));
    assert!(r.word(0).is_none());
    w.store_u64(8, 42).unwrap();
    assert_eq!(r.load_u64(8), Ok(42));
    assert_eq!(r.load_u32(8), Ok(42));
    assert!(r.flush(0, 64).is_ok());
    assert!(r.prefault(0, 4096).is_ok());
}

#[test]
fn words_are_shared_between_mappings() {
    let fd = memfd(4096);
    let a = mapped(&fd, 4096, options(Access::ReadWrite));
    let b = mapped(&fd, 4096, options(Access::ReadWrite));
    a.word(16).unwrap().store(7, Ordering::Release);
    assert_eq!(b.load_u64(16), Ok(7));
    assert_eq!(b.word(16).unwrap().fetch_add(1, Ordering::AcqRel), 7);
    assert_eq!(a.load_u64(16), Ok(8));
}

#[test]
fn regions_are_placed_inside_a_reservation_and_leave_it_whole() {
    let fd = memfd(HUGE);
    let space = Reservation::new(8 * HUGE).unwrap();
    assert_eq!(space.addr() % HUGE, 0);
    let at = |off| options(Access::ReadWrite).place(&space, off);
    for _ in 0..3 {
        let r = mapped(&fd, HUGE, at(2 * HUGE));
        assert_eq!(r.addr(), space.addr() + 2 * HUGE);
        r.store(0, b"here").unwrap();
        let overlap = at(3 * HUGE - PAGE);
        let e = Region::map_with(fd.as_fd(), 0, HUGE, &overlap).err();
        assert_eq!(e, Some(Error::NoRoom { len: HUGE }));
        let second = mapped(&fd, HUGE, at(3 * HUGE));
        assert_eq!(second.load_u32(0).unwrap().to_le_bytes(), *b"here");
    }
    for bad in [8 * HUGE, 7 * HUGE + PAGE, usize::MAX - 4095, 12] {
        assert!(Region::map_with(fd.as_fd(), 0, HUGE, &at(bad)).is_err());
    }
    // A mapping that the kernel refuses gives its place back.
    let ro = rustix::fs::open("/proc/self/exe", OFlags::RDONLY, Mode::empty()).unwrap();
    assert!(Region::map_with(ro.as_fd(), 0, HUGE, &at(0)).is_err());
    drop(mapped(&fd, HUGE, at(0)));
}

#[test]
fn an_ordinary_file_is_written_by_sync() {
    let path = std::env::temp_dir().join(std::format!("holdfast-sync-{}", std::process::id()));
    std::fs::write(&path, vec![0; 8192]).unwrap();
    let name = path.to_string_lossy();
    let file = rustix::fs::open(&*name, OFlags::RDWR, Mode::empty()).unwrap();
    let r = Region::map(file.as_fd(), 0, 8192, Access::ReadWrite, Medium::File).unwrap();
    assert_eq!(r.persistence(), Persistence::Synced);
    r.store(4000, b"durable").unwrap();
    r.sync(4000, 7).unwrap();
    r.sync(8192, 0).unwrap();
    let offset = Region::map(file.as_fd(), 4096, 4096, Access::ReadOnly, Medium::File).unwrap();
    assert_eq!(offset.load_u64(0), Ok(0));
    drop(r);
    assert_eq!(&std::fs::read(&path).unwrap()[4000..4007], b"durable");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn media_are_told_apart() {
    let fd = memfd(4096);
    assert_eq!(Medium::detect(fd.as_fd()), Medium::Memory);
    let exe = rustix::fs::open("/proc/self/exe", OFlags::RDONLY, Mode::empty()).unwrap();
    assert_eq!(Medium::detect(exe.as_fd()), Medium::File);
    assert!(!crate::caches_persistent(exe.as_fd()));
    assert!(Medium::Dax.survives_power_loss() && !Medium::Memory.survives_power_loss());
    assert_eq!(Persistence::of(Medium::Dax, true), Persistence::Cached);
    assert_eq!(Persistence::of(Medium::Dax, false), Persistence::Flushed);
    assert_eq!(Persistence::of(Medium::File, true), Persistence::Synced);
    // Without MAP_SYNC a file cannot be mapped as DAX.
    assert!(Region::map(fd.as_fd(), 0, 4096, Access::ReadWrite, Medium::Dax).is_err());
}

#[test]
fn prefaulted_pages_take_no_fault() {
    let len = 64 * PAGE;
    let fd = memfd(len);
    let r = mapped(&fd, len, options(Access::ReadWrite));
    r.prefault(100, len - 200).unwrap();
    let faults = || {
        // SAFETY: rusage is plain data that the call fills.
        unsafe {
            let mut u: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_THREAD, &mut u);
            u.ru_minflt
        }
    };
    let before = faults();
    for page in 0..64 {
        r.store_u64(page * PAGE as u64, 1).unwrap();
    }
    assert!(faults() - before < 8, "{} faults", faults() - before);
}

#[test]
fn huge_pages_are_asked_for_only_where_one_fits() {
    let fd = memfd(4 * HUGE);
    let space = Reservation::new(8 * HUGE).unwrap();
    let r = mapped(&fd, 4 * HUGE, options(Access::ReadWrite).place(&space, 0));
    assert_eq!(r.make_huge(PAGE as u64, HUGE), Ok(false));
    r.store(5, b"kept").unwrap();
    r.prefault(0, HUGE).unwrap();
    // Whether the kernel agrees is its business; the bytes stay.
    let agreed = r.make_huge(0, HUGE).unwrap();
    std::eprintln!("huge page granted: {agreed}");
    let mut b = [0; 4];
    r.read(5, &mut b).unwrap();
    assert_eq!(&b, b"kept");
}

/// What the recorder was told, in short: S stores, N stores around the cache, F flushes.
fn told(log: &Recorder) -> Vec<(char, u64, usize)> {
    let short = |e: &Event| match e {
        Event::Store { off, data, nt, .. } => (if *nt { 'N' } else { 'S' }, *off, data.len()),
        Event::Flush { line, .. } => ('F', *line, 0),
        Event::Fence { .. } => ('|', 0, 0),
        Event::Sync { off, len, .. } => ('Y', *off, *len as usize),
        Event::Mark { op, .. } => ('M', *op, 0),
    };
    log.take().iter().map(short).collect()
}

#[test]
fn the_recorder_is_told_every_instruction_that_counts() {
    let log = Recorder::new();
    let r = Region::in_memory(8192).unwrap().recorded(&log);
    r.write_nt(128, &[1; 128]).unwrap();
    r.fence();
    assert_eq!(told(&log), [('N', 128, 128), ('|', 0, 0)]);
    r.write_nt(60, &[1; 70]).unwrap();
    let split = [
        ('S', 60, 4),
        ('F', 0, 0),
        ('N', 64, 64),
        ('S', 128, 2),
        ('F', 2, 0),
    ];
    assert_eq!(told(&log), split);
    r.copy_in(60, (&[1; 70]).into()).unwrap();
    assert_eq!(
        told(&log),
        [('S', 60, 70), ('F', 0, 0), ('F', 1, 0), ('F', 2, 0)]
    );
    r.copy_in(64, (&[1; 320]).into()).unwrap();
    assert_eq!(told(&log), [('N', 64, 320)]);
    r.zero_nt(60, 70).unwrap();
    assert_eq!(told(&log), split);
    r.store_u64(8, 1).unwrap();
    r.persist(8, 8).unwrap();
    r.sync(8, 8).unwrap();
    let words = [('S', 8, 8), ('F', 0, 0), ('|', 0, 0), ('|', 0, 0)];
    assert_eq!(told(&log), words);
    r.word(0).unwrap().store(1, Ordering::Relaxed);
    r.load_u64(0).unwrap();
    assert!(told(&log).is_empty());

    let file = Region::in_memory_as(8192, Medium::File)
        .unwrap()
        .recorded(&log);
    file.write_nt(0, &[1; 64]).unwrap();
    file.flush(0, 64).unwrap();
    file.sync(10, 20).unwrap();
    assert_eq!(told(&log), [('S', 0, 64), ('Y', 10, 20)]);
}

#[test]
fn a_recorded_log_replays_to_what_the_region_holds() {
    let log = Recorder::new();
    let start = pattern(8192, 3);
    let r = Region::from_image(&start, Medium::Memory)
        .unwrap()
        .recorded(&log);
    for i in 0..200usize {
        let (off, data) = ((i * 997 % 7000) as u64, pattern(i * 5, i));
        match i % 4 {
            0 => r.write_nt(off, &data).unwrap(),
            1 => r.store(off, &data).unwrap(),
            2 => r.zero_nt(off, data.len()).unwrap(),
            _ => assert!(r.copy_in(off, data.as_slice().into()).is_ok()),
        }
    }
    let mut replayed = start;
    for e in log.events() {
        if let Event::Store { off, data, .. } = e {
            replayed[off as usize..off as usize + data.len()].copy_from_slice(&data);
        }
    }
    let mut got = vec![0; 8192];
    r.read(0, &mut got).unwrap();
    assert!(got == replayed);
}

/// What a copy is.
type Copying = fn(&Region, &mut [u8]);

const LEN: usize = 4 * PAGE;

/// Each method that moves bytes, and whether it writes.
const COPIES: [(&str, bool, Copying); 11] = [
    ("read", false, |region, bytes| {
        region.read(0, bytes).unwrap()
    }),
    ("copy_out", false, |region, bytes| {
        region.copy_out(0, bytes.into()).map(|_| ()).unwrap();
    }),
    ("read_through", false, |region, bytes| {
        region.read_through(0, bytes.into()).map(|_| ()).unwrap();
    }),
    ("store", true, |region, bytes| {
        region.store(0, bytes).unwrap()
    }),
    ("write_nt", true, |region, bytes| {
        region.write_nt(0, bytes).unwrap()
    }),
    ("zero_nt", true, |region, bytes| {
        region.zero_nt(0, bytes.len()).unwrap()
    }),
    ("copy_in", true, |region, bytes| {
        region.copy_in(0, (&*bytes).into()).map(|_| ()).unwrap();
    }),
    ("copy_over", true, |region, bytes| {
        region.copy_over(0, (&*bytes).into()).map(|_| ()).unwrap();
    }),
    ("write_through", true, |region, bytes| {
        region
            .write_through(0, (&*bytes).into())
            .map(|_| ())
            .unwrap();
    }),
    ("flush", true, |region, bytes| {
        region.flush(0, bytes.len()).unwrap()
    }),
    ("persist", true, |region, bytes| {
        region.persist(0, bytes.len()).unwrap()
    }),
];

fn slowed(region: Region, text: &str) -> Region {
    let memory = crate::SharedMem::in_memory(PAGE).unwrap();
    let slow = crate::Slow::parse(text).unwrap();
    region.slowed(&crate::Pace::new(slow, &memory, 0).unwrap().unwrap())
}

#[test]
fn every_copy_of_a_slowed_region_takes_its_time_and_moves_its_bytes() {
    for region in all_kinds(LEN) {
        let plain = region.clone();
        let region = slowed(region, "rdlat=2000000,wrlat=3000000");
        for (name, writes, copy) in COPIES {
            let begun = std::time::Instant::now();
            copy(&region, &mut pattern(100, 1));
            let least = if writes { 2_970 } else { 1_980 };
            let took = begun.elapsed().as_micros();
            assert!(
                took >= least,
                "{name} {:?} took {took} us",
                region.protection()
            );
        }
        let (bytes, mut seen) = (pattern(LEN - 7, 3), vec![0; LEN - 7]);
        region.copy_over(7, (&bytes[..]).into()).unwrap();
        plain.read(7, &mut seen).unwrap();
        assert_eq!(seen, bytes, "{:?}", region.protection());
        plain
            .copy_over(7, (&pattern(LEN - 7, 4)[..]).into())
            .unwrap();
        region.read(7, &mut seen).unwrap();
        assert_eq!(seen, pattern(LEN - 7, 4), "{:?}", region.protection());
        assert!(region.is_writable());
        assert_eq!(region.word(8).is_some(), plain.word(8).is_some());
        assert_eq!(region.store_u64(8, 5), plain.store_u64(8, 5));
    }
}

#[test]
fn a_slowed_region_refuses_what_others_refuse() {
    let fd = memfd(LEN);
    let read_only = slowed(mapped(&fd, LEN, options(Access::ReadOnly)), "wrsx=2,rdsx=2");
    assert!(!read_only.is_writable());
    assert_eq!(read_only.store(0, &[1]), Err(Error::ReadOnly));
    assert_eq!(
        read_only.copy_in(0, (&[1][..]).into()),
        Err(Fault::OutOfRange)
    );
    let region = slowed(Region::in_memory(LEN).unwrap(), "wrsx=2,rdsx=2");
    let (len, off) = (2, LEN as u64 - 1);
    let outside = Err(Error::OutOfRange { off, len });
    assert_eq!(region.read(off, &mut [0; 2]), outside);
    assert_eq!(region.write_nt(off, &[0; 2]), outside);
    assert_eq!(region.flush(off, 2), outside);
    assert_eq!(
        region.copy_out(off, (&mut [0; 2][..]).into()),
        Err(Fault::OutOfRange)
    );
}
