//! Lent files: calls and stores through mappings see each other, deaths and snapshots included.

mod common;

use common::{Fixture, ROOT, User, pool_of, read};
use holdfast_client::{Base, Error, MapPiece, MapPin, OfdLink, abi::*, slots};
use holdfast_pmem::{ConstBuf, MutBuf};
use holdfast_pool::format::superblock::Consistency;
use rustix::fd::OwnedFd;
use rustix::fs::fstat;
use rustix::io::{pread, pwrite};
use std::os::unix::fs::MetadataExt;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

const NAME: &str = "file";

/// One process, which has the file open, and may have it mapped.
struct Process {
    user: User,
    file: OfdLink,
    map: Option<(MapPin, OwnedFd)>,
}

impl Process {
    fn new(fixture: &Fixture) -> Process {
        let user = fixture.user();
        user.expect_others(std::fs::metadata(&fixture.dir).unwrap().ino());
        let file = user.create(NAME);
        Process {
            user,
            file,
            map: None,
        }
    }

    fn map(&mut self) {
        if self.map.is_none() {
            let (lent, may_write) = self.user.map_lend(self.file, 3).unwrap();
            assert!(may_write);
            // As a process that has the pool mapped maps it, whose death takes that back.
            let pin = self.user.map_pin(self.file, 3, true).unwrap();
            self.user.map_take_back(lent, false).unwrap();
            let file = self.user.lent_file(pin, true).unwrap();
            self.map = Some((pin, file));
        }
    }

    fn unmap(&mut self) {
        if let Some((pin, _)) = self.map.take() {
            self.user.map_unpin(pin, true).unwrap();
        }
    }

    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0xee; len];
        let room = MutBuf::from(&mut bytes[..]);
        let n = self.user.pread(self.file, room, at as i64).unwrap();
        bytes.truncate(n);
        bytes
    }
}

/// The file as it has to be.
#[derive(Clone, Default)]
struct Model(Vec<u8>);

impl Model {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        if end > self.0.len() {
            self.0.resize(end, 0);
        }
        self.0[at..end].copy_from_slice(bytes);
    }

    fn zero(&mut self, at: usize, len: usize) {
        let size = self.0.len();
        self.0[at.min(size)..(at + len).min(size)].fill(0);
    }

    fn read(&self, at: usize, len: usize) -> &[u8] {
        let size = self.0.len();
        &self.0[at.min(size)..(at + len).min(size)]
    }
}

const SIZE: u64 = 200 << 10;

/// One random call of one process, and what it makes of the model.
fn step(r: &mut Random, all: &mut [Process; 3], model: &mut Model) {
    let at = match r.below(2) {
        0 => r.below(SIZE),
        _ => r.below(SIZE / 4096) * 4096,
    };
    let most = [100, 9000, 70000][r.below(3) as usize];
    let len = 1 + r.below(most) as usize;
    let p = &mut all[r.below(3) as usize];
    let bytes: Vec<u8> = (0..len).map(|i| (i as u64 * 7 + at + r.0) as u8).collect();
    let (user, file) = (&p.user, p.file);
    match r.below(16) {
        0..=2 => {
            let n = user.pwrite(file, ConstBuf::from(&bytes[..]), at as i64);
            assert_eq!(n.unwrap(), len);
            model.write(at as usize, &bytes);
        }
        3..=5 => assert!(p.read(at, len) == model.read(at as usize, len)),
        6..=8 => {
            // A store through the mapping, of which the kernel gives what is inside the file.
            let Some((_, lent)) = &p.map else { return };
            assert_eq!(fstat(lent).unwrap().st_size as usize, model.0.len());
            let inside = model.read(at as usize, len).len();
            if inside > 0 {
                assert_eq!(pwrite(lent, &bytes[..inside], at), Ok(inside));
                model.write(at as usize, &bytes[..inside]);
            }
        }
        9 => {
            user.ftruncate(file, at as i64).unwrap();
            model.0.resize(at as usize, 0);
        }
        10 => {
            let mode = [
                FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                FALLOC_FL_ZERO_RANGE,
            ];
            let mode = mode[r.below(2) as usize] | FALLOC_FL_KEEP_SIZE;
            user.fallocate(file, mode, at as i64, len as i64).unwrap();
            model.zero(at as usize, len);
        }
        11 => {
            user.fallocate(file, 0, at as i64, len as i64).unwrap();
            let size = model.0.len().max(at as usize + len);
            model.0.resize(size, 0);
        }
        12..=13 => match p.map.is_some() {
            true => p.unmap(),
            false => p.map(),
        },
        14 => match &p.map {
            Some((pin, _)) => user.msync(*pin, at / 4096 * 4096, 1 << 20).unwrap(),
            None => user.fsync(file).unwrap(),
        },
        _ => {
            let found = user.lseek(file, at as i64, SEEK_DATA);
            let next = model.0.iter().skip(at as usize).position(|byte| *byte != 0);
            // What is not zero is data; zeroes may be.
            if let Some(next) = next {
                assert!(found.unwrap() <= at + next as u64);
            }
        }
    }
}

fn is_lent(p: &Process) -> bool {
    let pin = p.user.map_pin(p.file, 1, false).unwrap();
    let mut lent = false;
    let plan = p.user.map_plan(pin, 0, 4096, false, &mut |piece| {
        lent |= matches!(piece, MapPiece::Lent { .. });
        Ok(())
    });
    plan.unwrap();
    p.user.map_unpin(pin, false).unwrap();
    lent
}

fn differential(consistency: Consistency, seed: u64) {
    let mut fixture = Fixture::with(64 << 20, consistency);
    let mut all = [(); 3].map(|()| Process::new(&fixture));
    let (mut random, mut model) = (Random(seed), Model::default());
    let mut snapshots = Vec::new();
    for round in 0..3000 {
        step(&mut random, &mut all, &mut model);
        match random.below(250) {
            0 if snapshots.len() < 4 => {
                let name = format!("s{round}");
                let pool = pool_of(&fixture);
                all[0].user.snapshot_create(pool, name.as_bytes()).unwrap();
                snapshots.push((name, model.clone()));
            }
            // It dies with what it has mapped, and another one comes.
            1 | 2 => {
                all[2].user.die();
                all[2] = Process::new(&fixture);
                assert!(all[2].read(0, SIZE as usize * 2) == model.0);
            }
            // Somebody looks after the dead; the helper writes back.
            4..=6 => drop(slots::reap_dead(all[0].user.session())),
            3 => assert_eq!(all[1].user.write_back(), Ok(0)),
            _ => {}
        }
    }
    for (name, then) in &snapshots {
        let reading = read(&fixture, name);
        let file = reading
            .client
            .open(&ROOT, Base::Root, NAME.as_bytes(), O_RDONLY, 0, 0)
            .unwrap();
        let mut bytes = vec![0; 2 * SIZE as usize];
        let room = MutBuf::from(&mut bytes[..]);
        let n = reading.client.pread(file, room, 0).unwrap();
        assert!(bytes[..n] == then.0, "snapshot {name}");
    }
    all.iter_mut().for_each(Process::unmap);
    slots::reap_dead(all[0].user.session());
    assert!(!is_lent(&all[0]), "all have unmapped it");
    assert!(all[1].read(0, SIZE as usize * 2) == model.0);
    drop(all);
    fixture.stop();
    fixture.check();
    fixture.start();
    let later = Process::new(&fixture);
    assert!(
        later.read(0, SIZE as usize * 2) == model.0,
        "in a later session"
    );
}

#[test]
fn calls_and_stores_see_each_other() {
    for seed in 0..4 {
        differential(Consistency::Posix, seed);
    }
}

#[test]
fn also_where_each_write_is_durable_or_whole() {
    for (consistency, seed) in [(Consistency::Sync, 10), (Consistency::Strict, 11)] {
        differential(consistency, seed);
    }
}

/// What was stored where the pool had no room stays until it has.
#[test]
fn what_has_no_room_is_written_back_later() {
    let fixture = Fixture::new(64 << 20);
    let mut p = Process::new(&fixture);
    let len = 4 << 20;
    p.user.ftruncate(p.file, len).unwrap();
    p.map();
    let big = p.user.create("big");
    let piece = vec![1; 1 << 20];
    let mut filled = 0;
    while let Ok(n) = p.user.pwrite(big, ConstBuf::from(&piece[..]), filled) {
        filled += n as i64;
    }
    let (pin, lent) = p.map.as_ref().unwrap();
    let bytes = vec![7; len as usize];
    assert_eq!(pwrite(lent, &bytes, 0), Ok(bytes.len()));
    assert_eq!(p.user.msync(*pin, 0, len as u64), Err(Error::NoSpace));
    p.unmap();
    assert!(p.read(0, bytes.len()) == bytes, "it is lent still");
    p.user.ftruncate(big, 0).unwrap();
    p.user.sync().unwrap();
    assert!(!is_lent(&p) && p.read(0, bytes.len()) == bytes);
    p.map();
    let (_, again) = p.map.as_ref().unwrap();
    let mut seen = vec![0; bytes.len()];
    assert_eq!(pread(again, &mut seen, 0), Ok(bytes.len()));
    assert!(seen == bytes);
    p.unmap();
    assert!(!is_lent(&p));
}

/// A file that a process has mapped in pieces of the pool cannot be lent; one that others may write
/// is lent to it instead.
#[test]
fn whose_mappings_come_first() {
    let fixture = Fixture::new(64 << 20);
    let p = Process::new(&fixture);
    p.user.ftruncate(p.file, 8192).unwrap();
    let pin = p.user.map_pin(p.file, 3, true).unwrap();
    assert_eq!(p.user.map_lend(p.file, 3), Err(Error::NoDevice));
    p.user.map_unpin(pin, true).unwrap();
    p.user.fchmod(&ROOT, p.file, 0o664).unwrap();
    let pin = p.user.map_pin(p.file, 3, true).unwrap();
    let (other, _) = p.user.map_lend(p.file, 3).unwrap();
    let lent = p.user.lent_file(pin, true).unwrap();
    assert_eq!(pwrite(&lent, b"meet", 5000), Ok(4));
    assert_eq!(p.read(5000, 4), b"meet");
    p.user.map_take_back(other, true).unwrap();
    p.user.map_unpin(pin, true).unwrap();
    p.user.fchmod(&ROOT, p.file, 0o644).unwrap();
    assert!(!is_lent(&p));
    assert_eq!(p.read(5000, 4), b"meet");
}

/// Who may only read maps a lent file without a cost for reads by call: they are from blocks.
#[test]
fn a_file_that_is_only_read_is_in_its_blocks() {
    let fixture = Fixture::new(64 << 20);
    let p = Process::new(&fixture);
    assert_eq!(
        p.user.pwrite(p.file, ConstBuf::from(&b"first"[..]), 0),
        Ok(5)
    );
    let reads = p.user.open(NAME, O_RDONLY).unwrap();
    assert_eq!(p.user.map_lend(reads, 3), Err(Error::Denied));
    let (pin, may_write) = p.user.map_lend(reads, 1).unwrap();
    assert!(!may_write);
    let lent = p.user.lent_file(pin, false).unwrap();
    assert!(pwrite(&lent, b"x", 0).is_err());
    assert_eq!(
        p.user.pwrite(p.file, ConstBuf::from(&b"other"[..]), 0),
        Ok(5)
    );
    let mut seen = [0; 9];
    assert_eq!(pread(&lent, &mut seen, 0), Ok(5));
    assert_eq!(&seen[..5], b"other");
    assert_eq!(p.read(0, 9), b"other");
    p.user.map_lend_again(pin).unwrap();
    for _ in 0..2 {
        p.user.map_take_back(pin, false).unwrap();
    }
    assert_eq!(p.user.lent_file(pin, false).map(drop), Err(Error::NoDevice));
}

/// A file may be longer than anybody could read.
#[test]
fn holes_are_passed_over() {
    let fixture = Fixture::new(64 << 20);
    let mut p = Process::new(&fixture);
    p.user.ftruncate(p.file, 1 << 42).unwrap();
    p.map();
    let (pin, lent) = p.map.as_ref().unwrap();
    let places = [0, 12345, 1 << 33, (1 << 42) - 3];
    for at in places {
        assert_eq!(pwrite(lent, b"x", at), Ok(1));
    }
    p.user.pwrite_all(p.file, b"call", 1 << 41);
    p.user.msync(*pin, 0, 1 << 42).unwrap();
    p.unmap();
    assert!(!is_lent(&p));
    for at in places {
        assert_eq!(p.read(at, 1), b"x");
    }
    assert_eq!(p.read(1 << 41, 5), b"call\0");
}
