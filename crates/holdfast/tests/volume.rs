//! Volumes, as their owner reaches them and as other users do, against bytes in memory.

mod fixture;

use fixture::{Fixture, Rng};
use holdfast::{
    Barrier, Durability, Error, Integrity, Pool, Protection, Scheme, Sector, Volume, VolumeLatency,
    VolumeShape, Written, Zeroes,
};
use holdfast_pmem::Medium;

const SIZE: u64 = 1 << 20;

/// One after the other: a proxy that nobody asks for a second ends.
fn both(size: u64) -> impl Iterator<Item = Fixture> {
    let kinds: [fn(u64) -> Fixture; 2] = [Fixture::new, Fixture::served];
    kinds.into_iter().map(move |make| make(size))
}

fn all(volume: &Volume) -> Vec<u8> {
    let mut bytes = vec![0xee; volume.size() as usize];
    volume.read(&mut bytes, 0).unwrap();
    bytes
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u64, u8, bool),
    Trim(u64, u64),
    Zero(u64, u64, bool),
    Flush,
    Reopen,
}

/// Of whole sectors, within the volume.
fn range(rng: &mut Rng) -> (u64, u64) {
    let sectors = SIZE / 512;
    let at = rng.roll(sectors);
    let most = if rng.roll(2) == 0 { 9 } else { 300 };
    (at * 512, (1 + rng.roll(most)).min(sectors - at) * 512)
}

fn step(rng: &mut Rng) -> Step {
    let (at, len) = range(rng);
    match rng.roll(12) {
        0..6 => Step::Write(at, len, rng.roll(256) as u8, rng.roll(2) == 0),
        6..8 => Step::Trim(at, len),
        8..10 => Step::Zero(at, len, rng.roll(2) == 0),
        10 => Step::Flush,
        _ => Step::Reopen,
    }
}

/// No two bytes that are near each other are the same.
fn pattern(at: u64, len: u64, seed: u8) -> Vec<u8> {
    let byte = |i: u64| (i.wrapping_mul(31) >> 3) as u8 ^ seed ^ i as u8;
    (at..at + len).map(byte).collect()
}

fn play(pool: &Pool, steps: &[Step], seed: u64) {
    let name = format!("disk-{seed}");
    pool.volume_create(&name, SIZE, Sector::Small).unwrap();
    play_on(pool, &name, steps);
    for integrity in [Integrity::Atomic, Integrity::Checked] {
        pool.volume_create_with(&name, SIZE, shape(Sector::Small, integrity))
            .unwrap();
        // Where there is a disk, each write waits for it.
        play_on(pool, &name, &steps[..steps.len().min(30)]);
    }
}

fn shape(sector: Sector, integrity: Integrity) -> VolumeShape {
    VolumeShape {
        sector,
        integrity,
        ..VolumeShape::default()
    }
}

fn play_on(pool: &Pool, name: &str, steps: &[Step]) {
    let mut volume = pool.volume(name).unwrap();
    let mut model = vec![0; SIZE as usize];
    for step in steps {
        let mut set = |at: u64, bytes: &[u8]| {
            model[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        };
        match *step {
            Step::Write(at, len, byte, now) => {
                let bytes = pattern(at, len, byte);
                let durable = if now {
                    Written::AtReturn
                } else {
                    Written::AtFlush
                };
                volume.write(&bytes, at, durable).unwrap();
                set(at, &bytes);
            }
            Step::Trim(at, len) => {
                volume.trim(at, len).unwrap();
                set(at, &vec![0; len as usize]);
            }
            Step::Zero(at, len, hole) => {
                let zeroes = if hole { Zeroes::Hole } else { Zeroes::Blocks };
                volume.write_zeroes(at, len, zeroes).unwrap();
                set(at, &vec![0; len as usize]);
            }
            Step::Flush => volume.flush().unwrap(),
            Step::Reopen => {
                drop(volume);
                volume = pool.volume(name).unwrap();
            }
        }
        assert!(all(&volume) == model, "after {step:?}");
    }
    extents_are_right(&volume, &model);
    drop(volume);
    pool.volume_check(name).unwrap();
    pool.volume_delete(name).unwrap();
}

/// Extents follow each other to the end, and holes read as zeroes.
fn extents_are_right(volume: &Volume, model: &[u8]) {
    let (mut at, mut taken) = (0, 0);
    while at < volume.size() {
        let extent = volume.extent(at).unwrap();
        assert!(extent.end > at && extent.end <= volume.size());
        let bytes = &model[at as usize..extent.end as usize];
        assert!(!extent.hole || bytes.iter().all(|byte| *byte == 0));
        taken += if extent.hole { 0 } else { extent.end - at };
        at = extent.end;
    }
    assert!(taken <= volume.allocated().unwrap());
}

#[test]
fn a_volume_is_what_was_written_to_it() {
    for fixture in both(64 << 20) {
        for seed in 0..12 {
            let mut rng = Rng(seed);
            let steps: Vec<_> = (0..40).map(|_| step(&mut rng)).collect();
            play(&fixture.open(), &steps, seed);
        }
    }
}

/// Whatever protects the pool, however its bytes are written, and wherever it is.
#[test]
fn a_protected_volume_is_what_was_written_to_it() {
    for medium in [Medium::Memory, Medium::File, Medium::DaxTest] {
        protected_on(&Fixture::on(64 << 20, medium));
    }
}

fn protected_on(fixture: &Fixture) {
    let protections = Protection::ALL.map(|one| (one, Scheme::Auto));
    let schemes = Scheme::ALL.map(|one| (Protection::Auto, one));
    for (n, (protection, scheme)) in protections.into_iter().chain(schemes).enumerate() {
        let options = Pool::options().protection(protection).scheme(scheme);
        let pool = match options.open(fixture.place()) {
            Ok(pool) => pool,
            // The CPU has no keys; or memory is recorded as persistent memory would be, whose
            // caches lose what they have.
            Err(e) if protection == Protection::Key || scheme == Scheme::Cached => {
                assert_eq!(e.errno(), 95, "{e}");
                continue;
            }
            Err(e) => panic!("{protection:?} {scheme:?}: {e}"),
        };
        let found = pool.protection().unwrap().unwrap();
        match protection {
            Protection::Auto => assert_ne!(found, Protection::None),
            protection => assert_eq!(found, protection),
        }
        let mut rng = Rng(n as u64);
        let steps: Vec<_> = (0..60).map(|_| step(&mut rng)).collect();
        play(&pool, &steps, n as u64);
        keys_are_as_well(&pool);
    }
}

/// What else goes into blocks: values of all sizes.
fn keys_are_as_well(pool: &Pool) {
    let keys = pool.keyspace_or_create("keys").unwrap();
    for len in [0, 100, 5000, 100_000, 3_000_000] {
        let value = pattern(0, len, 5);
        keys.put(b"k", &value, Durability::Durable).unwrap();
        assert!(keys.get(b"k").unwrap().unwrap() == value);
    }
}

#[test]
fn sizes_and_sectors_are_those_of_the_volume() {
    for fixture in both(16 << 20) {
        let pool = fixture.open();
        pool.volume_create("small", 512, Sector::Small).unwrap();
        pool.volume_create("large", 1 << 40, Sector::Large).unwrap();
        let large = pool.volume("large").unwrap();
        assert_eq!((large.size(), large.sector()), (1 << 40, Sector::Large));
        large
            .write(&[7; 4096], (1 << 40) - 4096, Written::AtReturn)
            .unwrap();
        let mut back = [0; 4096];
        large.read(&mut back, (1 << 40) - 4096).unwrap();
        assert_eq!(back, [7; 4096]);
        assert_eq!(large.allocated().unwrap(), 4096);
        let listed: Vec<_> = pool.volumes().unwrap();
        let listed: Vec<_> = listed.iter().map(|v| (v.name.as_str(), v.size)).collect();
        assert_eq!(listed, [("large", 1 << 40), ("small", 512)]);
        drop(large);
    }
}

#[test]
fn requests_that_cannot_be_are_refused_and_change_nothing() {
    for fixture in both(16 << 20) {
        let pool = fixture.open();
        pool.volume_create("v", 64 << 10, Sector::Large).unwrap();
        let volume = pool.volume("v").unwrap();
        volume.write(&[1; 65536], 0, Written::AtFlush).unwrap();
        let before = all(&volume);
        let ends = [(1, 4096), (0, 512), (0, 1), (512, 4096)];
        for (at, len) in ends {
            let error = volume
                .write(&vec![2; len], at, Written::AtFlush)
                .unwrap_err();
            assert!(matches!(error, Error::NoSectors { .. }), "{error}");
            assert!(volume.read(&mut vec![0; len], at).is_err());
            assert!(volume.trim(at, len as u64).is_err());
        }
        let beyond = [
            (65536, 4096),
            (61440, 8192),
            (0, 69632),
            (u64::MAX - 4095, 4096),
        ];
        for (at, len) in beyond {
            let error = volume
                .write(&vec![2; len], at, Written::AtReturn)
                .unwrap_err();
            assert!(matches!(error, Error::BeyondEnd { .. }), "{error}");
            assert_eq!(error.errno(), 22);
            assert!(volume.read(&mut vec![0; len], at).is_err());
            assert!(volume.write_zeroes(at, len as u64, Zeroes::Blocks).is_err());
        }
        volume.write(&[], 65536, Written::AtFlush).unwrap();
        volume.read(&mut [], 0).unwrap();
        assert!(all(&volume) == before);
        let counted = volume.stats();
        assert_eq!(counted.writes.failed, 8);
        assert_eq!((counted.writes.requests, counted.writes.bytes), (2, 65536));
        // Times are taken of what comes after the wish for them, and of what is done alone.
        assert_eq!(volume.latency(), VolumeLatency::default());
        let clone = volume.clone();
        clone.measure_latency();
        volume.write(&[7; 4096], 0, Written::AtFlush).unwrap();
        volume.write(&[7; 511], 0, Written::AtFlush).unwrap_err();
        clone.flush().unwrap();
        let latency = volume.latency();
        assert_eq!(latency.writes.requests(), 1);
        assert_eq!(
            (latency.flushes.requests(), latency.reads.requests()),
            (1, 0)
        );
        assert!(latency.writes.max_ns > 0 && latency.writes.mean_ns() <= latency.writes.max_ns);
        drop(volume);
    }
}

#[test]
fn what_is_no_volume_is_not_opened_as_one() {
    for fixture in both(16 << 20) {
        let pool = fixture.open();
        let error = pool.volume("nothing").err().unwrap();
        assert!(error.is_missing(), "{error}");
        pool.keyspace_or_create("keys").unwrap();
        assert!(matches!(pool.volume("keys"), Err(Error::NoVolume { .. })));
        assert!(pool.volume("").is_err());
        assert!(pool.volume("/").is_err());
        for size in [0, 1, 511, 513, u64::MAX, 1 << 63] {
            assert!(
                pool.volume_create("v", size, Sector::Small).is_err(),
                "{size}"
            );
        }
        let error = pool
            .volume_create("none/v", 512, Sector::Small)
            .unwrap_err();
        assert!(error.is_missing(), "{error}");
        assert!(pool.volumes().unwrap().is_empty());
        pool.volume_create("v", 512, Sector::Small).unwrap();
        let error = pool.volume_create("/v", 1024, Sector::Small).unwrap_err();
        assert!(matches!(error, Error::Exists { .. }), "{error}");
        assert_eq!(pool.volume("v").unwrap().size(), 512);
    }
}

#[test]
fn one_handle_writes_and_any_number_read() {
    for fixture in both(16 << 20) {
        let (pool, other) = (fixture.open(), fixture.open());
        pool.volume_create("v", 8192, Sector::Small).unwrap();
        let writer = pool.volume("v").unwrap();
        for refused in [
            pool.volume("v").err(),
            other.volume("v").err(),
            other.volume_resize("v", 4096).err(),
            other.volume_delete("v").err(),
        ] {
            assert!(matches!(refused, Some(Error::InUse { .. })), "{refused:?}");
        }
        let reader = other.volume_to_read("v").unwrap();
        let refused = reader.write(&[1; 512], 0, Written::AtFlush).unwrap_err();
        assert!(matches!(refused, Error::OpenToRead { .. }));
        assert!(reader.trim(0, 512).is_err());
        reader.flush().unwrap();
        writer
            .clone()
            .write(&[1; 512], 512, Written::AtFlush)
            .unwrap();
        assert_eq!(
            all(&reader)[511..1025],
            [[0].as_slice(), &[1; 512], &[0]].concat()
        );
        drop(writer);
        other.volume_resize("v", 1024).unwrap();
        let cut = reader.read(&mut [0; 512], 4096).unwrap_err();
        assert!(matches!(cut, Error::BeyondEnd { .. }), "{cut}");
        other.volume_resize("v", 8192).unwrap();
        let volume = other.volume("v").unwrap();
        assert_eq!(all(&volume)[1024..], [0; 7168]);
        assert_eq!(all(&volume)[512..1024], [1; 512]);
        drop((volume, reader));
        other.volume_delete("v").unwrap();
        assert!(pool.volume("v").err().unwrap().is_missing());
    }
}

#[test]
fn trimmed_space_comes_back_and_a_full_pool_refuses_only_what_needs_space() {
    for fixture in both(16 << 20) {
        let pool = fixture.open();
        pool.volume_create("v", 1 << 30, Sector::Small).unwrap();
        let volume = pool.volume("v").unwrap();
        let piece = vec![5; 1 << 20];
        let mut at = 0;
        let error = loop {
            match volume.write(&piece, at, Written::AtFlush) {
                Ok(()) => at += 1 << 20,
                Err(e) => break e,
            }
        };
        assert_eq!(error.errno(), 28, "{error}");
        assert!(at >= 8 << 20, "{at}");
        volume.write(&[6; 4096], 0, Written::AtReturn).unwrap();
        volume.flush().unwrap();
        let mut back = [0; 4096];
        volume.read(&mut back, 0).unwrap();
        assert_eq!(back, [6; 4096]);
        volume.trim(0, 1 << 30).unwrap();
        assert_eq!(volume.allocated().unwrap(), 0);
        volume.read(&mut back, 0).unwrap();
        assert_eq!(back, [0; 4096]);
        for at in 0..6 {
            volume.write(&piece, at << 20, Written::AtReturn).unwrap();
        }
        volume.write_zeroes(0, 1 << 20, Zeroes::Blocks).unwrap();
        assert_eq!(volume.allocated().unwrap(), 6 << 20);
        volume.write_zeroes(0, 1 << 20, Zeroes::Hole).unwrap();
        assert_eq!(volume.allocated().unwrap(), 5 << 20);
        drop(volume);
    }
}

#[test]
fn atomic_volumes_have_their_size_and_grow() {
    for fixture in both(32 << 20) {
        let pool = fixture.open();
        for (sector, size) in [(Sector::Small, 3 << 20), (Sector::Large, 3 << 40)] {
            pool.volume_create_with("v", size, shape(sector, Integrity::Checked))
                .unwrap();
            let volume = pool.volume("v").unwrap();
            assert!(volume.integrity() == Integrity::Checked && volume.size() == size);
            let len = sector.bytes();
            let bytes = vec![7; len as usize];
            volume.write(&bytes, size - len, Written::AtFlush).unwrap();
            assert!(volume.write(&bytes, size, Written::AtFlush).is_err());
            drop(volume);
            let smaller = pool.volume_resize("v", size - len).unwrap_err();
            assert!(matches!(smaller, Error::AtomicShrinks { .. }), "{smaller}");
            for more in [1, 1000] {
                pool.volume_resize("v", size + more * len).unwrap();
            }
            let volume = pool.volume_to_read("v").unwrap();
            assert_eq!(volume.size(), size + 1000 * len);
            let mut room = vec![1; 2 * len as usize];
            volume.read(&mut room, size - len).unwrap();
            assert!(room == [bytes, vec![0; len as usize]].concat());
            let [listed] = &pool.volumes().unwrap()[..] else {
                panic!("one volume");
            };
            assert!(listed.integrity == Integrity::Checked && listed.size == volume.size());
            assert_eq!(pool.volume_check("v").unwrap().written, 1);
            drop(volume);
            pool.volume_delete("v").unwrap();
        }
    }
}

/// What a flush covers is there for another handle; what came later may be.
#[test]
fn writes_in_buffers_are_there_after_a_flush_and_before_for_their_writer() {
    let fixture = Fixture::new(16 << 20);
    let pool = Pool::options().protection(Protection::PageTableBatch);
    let pool = pool.open(fixture.place()).unwrap();
    pool.volume_create("v", 1 << 30, Sector::Small).unwrap();
    let (volume, other) = (pool.volume("v").unwrap(), pool.volume_to_read("v").unwrap());
    volume.write(&[1; 8192], 512, Written::AtFlush).unwrap();
    assert_eq!(all_of(&other, 10240), [0; 10240]);
    assert_eq!(all_of(&volume, 10240)[512..8704], [1; 8192]);
    volume.write(&[2; 512], 1024, Written::AtReturn).unwrap();
    assert_eq!(
        all_of(&other, 2048)[512..],
        [[0; 512], [2; 512], [0; 512]].concat()
    );
    volume.flush().unwrap();
    assert_eq!(all_of(&other, 10240), all_of(&volume, 10240)[..]);
    assert_eq!(all_of(&other, 2048)[512..1024], [1; 512]);
    // More than the pool has: they are taken, some go to the volume, and the flush says it.
    let mut refused = 0;
    for at in (0..64 << 20).step_by(1 << 16) {
        refused += u32::from(volume.write(&[3; 1 << 16], at, Written::AtFlush).is_err());
    }
    assert_eq!(volume.flush().unwrap_err().errno(), 28);
    assert!(refused > 0);
    volume.trim(0, 1 << 30).unwrap();
    volume.flush().unwrap();
    assert_eq!(all_of(&volume, 1 << 20), vec![0; 1 << 20]);
    // What is durable when it is done is in no buffer.
    pool.volume_create_with("a", 1 << 20, shape(Sector::Small, Integrity::Atomic))
        .unwrap();
    let (atomic, other) = (pool.volume("a").unwrap(), pool.volume_to_read("a").unwrap());
    atomic.write(&[9; 512], 512, Written::AtFlush).unwrap();
    assert_eq!(all_of(&other, 1024)[512..], [9; 512]);
}

/// Lines that are the same are not written: a snapshot keeps sharing their blocks.
#[test]
fn careful_writes_are_the_same_and_write_less() {
    for fixture in both(32 << 20) {
        let pool = fixture.open();
        let mut rng = Rng(12);
        for integrity in [Integrity::Plain, Integrity::Checked] {
            pool.volume_create_with("v", SIZE, shape(Sector::Small, integrity))
                .unwrap();
            let volume = pool.volume("v").unwrap();
            volume.set_verify(true);
            volume.set_sub_block(true);
            let mut model = vec![0; SIZE as usize];
            for n in 0..100 {
                let (at, len) = range(&mut rng);
                let mut bytes = model[at as usize..(at + len) as usize].to_vec();
                for _ in 0..rng.roll(4) {
                    let first = rng.roll(len) as usize;
                    let end = (first + 1 + rng.roll(200) as usize).min(len as usize);
                    bytes[first..end].fill(n as u8);
                }
                let durable = [Written::AtFlush, Written::AtReturn][n % 2];
                volume.write(&bytes, at, durable).unwrap();
                model[at as usize..(at + len) as usize].copy_from_slice(&bytes);
                assert!(all(&volume) == model);
            }
            drop(volume);
            pool.volume_delete("v").unwrap();
        }
        pool.volume_create("v", SIZE, Sector::Small).unwrap();
        let volume = pool.volume("v").unwrap();
        volume.set_sub_block(true);
        volume
            .write(&vec![0; SIZE as usize], 0, Written::AtReturn)
            .unwrap();
        assert_eq!(volume.allocated().unwrap(), 0);
        drop(volume);
        pool.volume_delete("v").unwrap();
    }
}

/// Writers that make the same byte count in all of a few sectors, and flushes between them.
#[test]
fn a_strict_barrier_lets_writes_and_flushes_take_turns() {
    let fixture = Fixture::new(16 << 20);
    let pool = fixture.open();
    pool.volume_create("v", 1 << 20, Sector::Small).unwrap();
    let volume = pool.volume("v").unwrap();
    volume.set_barrier(Barrier::Strict);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let volume = &volume;
            scope.spawn(move || {
                for n in 0..300 {
                    let at = (n % 8) * 4096 + thread * 65536;
                    volume
                        .write(&[n as u8; 4096], at, Written::AtFlush)
                        .unwrap();
                    if n % 7 == thread {
                        volume.flush().unwrap();
                    }
                    let mut room = [0; 512];
                    volume.read(&mut room, at).unwrap();
                    assert_eq!(room, [n as u8; 512]);
                }
            });
        }
    });
    assert_eq!(volume.stats().flushes.failed, 0);
}

#[test]
fn a_full_pool_refuses_of_an_atomic_volume_only_what_needs_space() {
    let fixture = Fixture::new(16 << 20);
    let pool = fixture.open();
    pool.volume_create_with("v", 1 << 30, shape(Sector::Large, Integrity::Checked))
        .unwrap();
    let volume = pool.volume("v").unwrap();
    let piece = vec![5; 1 << 20];
    let mut at = 0;
    let error = loop {
        match volume.write(&piece, at, Written::AtFlush) {
            Ok(()) => at += 1 << 20,
            Err(e) => break e,
        }
    };
    assert_eq!(error.errno(), 28, "{error}");
    assert!(at >= 7 << 20, "{at}");
    for n in 0..500 {
        let at = n * 4096 % at;
        volume.write(&[6; 4096], at, Written::AtFlush).unwrap();
        let beyond = volume.write(&piece, 1 << 29, Written::AtFlush);
        assert_eq!(beyond.unwrap_err().errno(), 28);
    }
    let taken = volume.allocated().unwrap();
    volume.trim(0, 1 << 30).unwrap();
    assert!(taken - volume.allocated().unwrap() >= at);
    assert!(all_of(&volume, at).iter().all(|byte| *byte == 0));
    volume.write(&piece, 1 << 29, Written::AtFlush).unwrap();
    drop(volume);
    pool.volume_check("v").unwrap();
}

fn all_of(volume: &Volume, len: u64) -> Vec<u8> {
    let mut bytes = vec![0xee; len as usize];
    volume.read(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn a_snapshot_keeps_a_volume_as_it_was() {
    let fixture = Fixture::new(64 << 20);
    let pool = fixture.open();
    pool.volume_create("v", 1 << 20, Sector::Small).unwrap();
    is_kept(&pool);
    pool.volume_delete("v").unwrap();
    for sector in [Sector::Small, Sector::Large] {
        pool.volume_create_with("v", 1 << 20, shape(sector, Integrity::Checked))
            .unwrap();
        is_kept(&pool);
        pool.volume_delete("v").unwrap();
    }
}

fn is_kept(pool: &Pool) {
    let volume = pool.volume("v").unwrap();
    volume
        .write(&vec![1; 1 << 20], 0, Written::AtFlush)
        .unwrap();
    pool.snapshot_create("then").unwrap();
    volume
        .write(&vec![2; 1 << 19], 0, Written::AtFlush)
        .unwrap();
    volume.trim(1 << 19, 1 << 19).unwrap();
    let then = pool.snapshot("then").unwrap();
    assert!(all(&then.volume_to_read("v").unwrap()) == vec![1; 1 << 20]);
    let now = all(&volume);
    assert!(now[..1 << 19] == vec![2; 1 << 19] && now[1 << 19..] == vec![0; 1 << 19]);
    drop((then, volume));
    pool.snapshot_delete("then").unwrap();
}
