//! A process of the session that writes nonsense where all of them may write: the index of changes,
//! the pins of views, the journal. Others get values or errors, at once or a little later; they and
//! the service live, and the next session finds a sound pool.

mod fixture;

use fixture::{Fixture, Rng};
use holdfast::{Durability::*, Pool};
use holdfast_client::attach::{Attachment, attach};
use holdfast_pmem::{Access, Medium, Region, SharedMem};
use holdfast_pool::session::*;
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// What anybody who may join the session can do to it.
struct Corruptor {
    memory: SharedMem,
    journal: Region,
    _attachment: Attachment,
}

/// Session memory; closed with the process: others in it have their lives there.
fn memory_of(a: &mut Attachment) -> BorrowedFd<'static> {
    let memory = a.session.take().unwrap();
    holdfast_pmem::record_locks::kept_open(memory.into_raw_fd()).unwrap()
}

impl Corruptor {
    fn new(fixture: &Fixture) -> Corruptor {
        let mut a = attach(fixture.dir.as_os_str().as_encoded_bytes(), None).unwrap();
        let memory = SharedMem::map(memory_of(&mut a), a.answer.session_len as usize).unwrap();
        let len = a.answer.journal_len as usize;
        let journal = Region::map(a.journal.as_fd(), 0, len, Access::ReadWrite, Medium::Memory);
        Corruptor {
            memory,
            journal: journal.unwrap(),
            _attachment: a,
        }
    }

    fn bucket(&self, index: u64) -> &ValueBucket {
        let at = VALUE_BUCKETS_AT as u64 + index * size_of::<ValueBucket>() as u64;
        self.memory.at(at).unwrap()
    }

    /// Some cells that are in use get other bits; some that are not get any.
    fn scribble_on_index(&self, rng: &mut Rng) {
        for index in 0..VALUE_BUCKETS as u64 {
            let bucket = self.bucket(index);
            for cell in &bucket.cells {
                let old = cell.load(Relaxed);
                match rng.roll(8) {
                    0 if old != 0 => cell.store(old ^ 1 << rng.roll(64), Relaxed),
                    1 if old != 0 => cell.store(old.wrapping_add(rng.roll(64) << 4), Relaxed),
                    2 if index % 512 == 0 => cell.store(word(rng), Relaxed),
                    _ => {}
                }
            }
            if index % 4096 == 0 {
                bucket.version.store(rng.roll(1 << 32) as u32, Relaxed);
            }
        }
    }

    fn scribble_on_views(&self, rng: &mut Rng) {
        for index in 0..16 {
            let at = VIEWS_AT as u64 + index * size_of::<ViewPin>() as u64;
            let pin: &ViewPin = self.memory.at(at).unwrap();
            pin.seq.store(word(rng), Relaxed);
            pin.owner.store(rng.roll(1 << 32) as u32, Relaxed);
        }
        let header: &Header = self.memory.at(HEADER_AT as u64).unwrap();
        header.views_used.store(rng.roll(1 << 32) as u32, Relaxed);
        header.values_seq.store(word(rng), Relaxed);
    }

    /// Single bits, mostly of the heads of what is there.
    fn scribble_on_journal(&self, rng: &mut Rng) {
        for _ in 0..200 {
            let at = rng.roll(self.journal.len() as u64 / 64) * 64 / (1 << rng.roll(12));
            let (at, mut bytes) = (at & !63, [0; 64]);
            self.journal.read(at, &mut bytes).unwrap();
            bytes[rng.roll(64) as usize] ^= 1 << rng.roll(8);
            self.journal.store(at, &bytes).unwrap();
        }
    }
}

fn word(rng: &mut Rng) -> u64 {
    rng.roll(1 << 32) << 32 | rng.roll(1 << 32)
}

/// Whatever one does; the results do not matter.
fn use_it(pool: &Pool, rng: &mut Rng) -> holdfast::Result<()> {
    let keyspace = pool.keyspace_or_create("k")?;
    for _ in 0..300 {
        let key = [b'k', rng.roll(50) as u8];
        match rng.roll(8) {
            0..3 => keyspace.put(&key, &vec![7; rng.roll(6000) as usize], Durable)?,
            3 => keyspace.erase(&key, Ordered)?,
            _ => drop(keyspace.get(&key)?),
        }
    }
    let view = pool.read()?;
    for entry in view.keyspace("k")?.prefix(b"")? {
        entry?;
    }
    keyspace.erase_range(&[b'k', 40], None, Ordered)
}

fn vandalised(seed: u64, what: fn(&Corruptor, &mut Rng)) {
    let begun = Instant::now();
    let mut rng = Rng(seed);
    let mut fixture = Fixture::new(64 << 20);
    for _ in 0..3 {
        let (pool, corruptor) = (fixture.open(), Corruptor::new(&fixture));
        let mut errors = 0;
        for _ in 0..6 {
            errors += u32::from(use_it(&pool, &mut rng).is_err());
            what(&corruptor, &mut rng);
            if errors > 1 {
                break;
            }
        }
        drop((pool, corruptor));
        // The next session: nothing of it is left but what is sound.
        fixture.stop();
        fixture.check();
        fixture.start();
        let pool = fixture.open();
        let keyspace = pool.keyspace_or_create("k").unwrap();
        keyspace.put(b"sound", b"yes", Durable).unwrap();
        assert_eq!(
            keyspace.get(b"sound").unwrap().as_deref(),
            Some(&b"yes"[..])
        );
        drop((keyspace, pool));
        fixture.stop();
        fixture.start();
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(60), "{took:?}");
}

#[test]
fn an_index_of_nonsense_harms_nobody() {
    vandalised(1, Corruptor::scribble_on_index);
}

#[test]
fn pins_of_nonsense_harm_nobody() {
    vandalised(2, Corruptor::scribble_on_views);
}

#[test]
fn a_journal_of_nonsense_harms_nobody() {
    vandalised(3, Corruptor::scribble_on_journal);
}

/// A handle outlives its keyspace: what is put into it then goes nowhere, and harms nobody.
#[test]
fn a_keyspace_that_was_removed_ends_no_session() {
    let fixture = Fixture::new(64 << 20);
    let pool = fixture.open();
    let gone = pool.keyspace_or_create("gone").unwrap();
    let other = pool.keyspace_or_create("other").unwrap();
    let mut a = attach(fixture.dir.as_os_str().as_encoded_bytes(), None).unwrap();
    let segments = holdfast_client::Segments {
        session: memory_of(&mut a),
        meta: (a.meta.as_fd(), a.answer.meta_len),
        journal: (a.journal.as_fd(), a.answer.journal_len),
        data: (a.data.as_fd(), a.answer.data_room),
        medium: a.answer.medium,
        cpu: 0,
    };
    let client = holdfast_client::Client::attach(&segments, b"").unwrap();
    let me = std::process::id();
    holdfast_client::slots::register(client.session(), me, None).unwrap();
    let caller = holdfast_client::Caller {
        uid: 0,
        gid: 0,
        groups: &[],
        umask: 0o022,
        privileged: true,
        ids: None,
    };
    let base = holdfast_client::Base::Root;
    client.rmdir(&caller, base, b"gone").unwrap();
    for len in [10, 5000] {
        let mut batch = pool.batch();
        batch.put(&gone, b"a", &vec![1; len]).unwrap();
        batch.put(&other, b"a", &vec![1; len]).unwrap();
        let _ = batch.commit(Durable);
        let _ = gone.put(b"b", &vec![1; len], Durable);
        let _ = gone.erase_range(b"", None, Durable);
        other.put(b"b", &vec![2; len], Durable).unwrap();
        pool.sync().unwrap();
        let found = pool.read().unwrap().keyspace("other").unwrap().get(b"b");
        assert_eq!(found.unwrap(), Some(vec![2; len]));
    }
    client.exit(true);
}
