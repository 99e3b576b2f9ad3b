//! A process of the session that writes nonsense where all of them may write: the index of changes,
//! the pins of views, the journal. Others get values or errors, at once or a little later; they and
//! the service live, and the next session finds a sound pool.

mod rig;

use holdfast::{Durability::*, Pool};
use holdfast_client::attach::{Attachment, attach};
use holdfast_pmem::{Access, Medium, Region, SharedMem};
use holdfast_pool::session::*;
use rig::{Dice, Rig};
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// What anybody who may join the session can do to it.
struct Vandal {
    memory: SharedMem,
    journal: Region,
    _attachment: Attachment,
}

/// Session memory; closed with the process: others in it have their lives there.
fn memory_of(a: &mut Attachment) -> BorrowedFd<'static> {
    let memory = a.session.take().unwrap();
    holdfast_pmem::record_locks::kept_open(memory.into_raw_fd()).unwrap()
}

impl Vandal {
    fn new(rig: &Rig) -> Vandal {
        let mut a = attach(rig.dir.as_os_str().as_encoded_bytes(), None).unwrap();
        let memory = SharedMem::map(memory_of(&mut a), a.answer.session_len as usize).unwrap();
        let len = a.answer.journal_len as usize;
        let journal = Region::map(a.journal.as_fd(), 0, len, Access::ReadWrite, Medium::Memory);
        Vandal {
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
    fn scribble_on_index(&self, dice: &mut Dice) {
        for index in 0..VALUE_BUCKETS as u64 {
            let bucket = self.bucket(index);
            for cell in &bucket.cells {
                let old = cell.load(Relaxed);
                match dice.roll(8) {
                    0 if old != 0 => cell.store(old ^ 1 << dice.roll(64), Relaxed),
                    1 if old != 0 => cell.store(old.wrapping_add(dice.roll(64) << 4), Relaxed),
                    2 if index % 512 == 0 => cell.store(word(dice), Relaxed),
                    _ => {}
                }
            }
            if index % 4096 == 0 {
                bucket.version.store(dice.roll(1 << 32) as u32, Relaxed);
            }
        }
    }

    fn scribble_on_views(&self, dice: &mut Dice) {
        for index in 0..16 {
            let at = VIEWS_AT as u64 + index * size_of::<ViewPin>() as u64;
            let pin: &ViewPin = self.memory.at(at).unwrap();
            pin.seq.store(word(dice), Relaxed);
            pin.owner.store(dice.roll(1 << 32) as u32, Relaxed);
        }
        let header: &Header = self.memory.at(HEADER_AT as u64).unwrap();
        header.views_used.store(dice.roll(1 << 32) as u32, Relaxed);
        header.values_seq.store(word(dice), Relaxed);
    }

    /// Single bits, mostly of the heads of what is there.
    fn scribble_on_journal(&self, dice: &mut Dice) {
        for _ in 0..200 {
            let at = dice.roll(self.journal.len() as u64 / 64) * 64 / (1 << dice.roll(12));
            let (at, mut bytes) = (at & !63, [0; 64]);
            self.journal.read(at, &mut bytes).unwrap();
            bytes[dice.roll(64) as usize] ^= 1 << dice.roll(8);
            self.journal.store(at, &bytes).unwrap();
        }
    }
}

fn word(dice: &mut Dice) -> u64 {
    dice.roll(1 << 32) << 32 | dice.roll(1 << 32)
}

/// Whatever one does; the results do not matter.
fn use_it(pool: &Pool, dice: &mut Dice) -> holdfast::Result<()> {
    let keyspace = pool.keyspace_or_create("k")?;
    for _ in 0..300 {
        let key = [b'k', dice.roll(50) as u8];
        match dice.roll(8) {
            0..3 => keyspace.put(&key, &vec![7; dice.roll(6000) as usize], Durable)?,
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

fn vandalised(seed: u64, what: fn(&Vandal, &mut Dice)) {
    let begun = Instant::now();
    let mut dice = Dice(seed);
    let mut rig = Rig::new(64 << 20);
    for _ in 0..3 {
        let (pool, vandal) = (rig.open(), Vandal::new(&rig));
        let mut errors = 0;
        for _ in 0..6 {
            errors += u32::from(use_it(&pool, &mut dice).is_err());
            what(&vandal, &mut dice);
            if errors > 1 {
                break;
            }
        }
        drop((pool, vandal));
        // The next session: nothing of it is left but what is sound.
        rig.stop();
        rig.check();
        rig.start();
        let pool = rig.open();
        let keyspace = pool.keyspace_or_create("k").unwrap();
        keyspace.put(b"sound", b"yes", Durable).unwrap();
        assert_eq!(
            keyspace.get(b"sound").unwrap().as_deref(),
            Some(&b"yes"[..])
        );
        drop((keyspace, pool));
        rig.stop();
        rig.start();
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(60), "{took:?}");
}

#[test]
fn an_index_of_nonsense_harms_nobody() {
    vandalised(1, Vandal::scribble_on_index);
}

#[test]
fn pins_of_nonsense_harm_nobody() {
    vandalised(2, Vandal::scribble_on_views);
}

#[test]
fn a_journal_of_nonsense_harms_nobody() {
    vandalised(3, Vandal::scribble_on_journal);
}

/// A handle outlives its keyspace: what is put into it then goes nowhere, and harms nobody.
#[test]
fn a_keyspace_that_was_removed_ends_no_session() {
    let rig = Rig::new(64 << 20);
    let pool = rig.open();
    let gone = pool.keyspace_or_create("gone").unwrap();
    let other = pool.keyspace_or_create("other").unwrap();
    let mut a = attach(rig.dir.as_os_str().as_encoded_bytes(), None).unwrap();
    let segments = holdfast_client::Segments {
        session: memory_of(&mut a),
        meta: (a.meta.as_fd(), a.answer.meta_len),
        journal: (a.journal.as_fd(), a.answer.journal_len),
        data: (a.data.as_fd(), a.answer.data_len),
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
