//! Restores of new pools that are interrupted, again and again: what comes of them in the end is
//! what one makes that is not.

use super::*;
use crate::chunk::tests::in_small_chunks;
use crate::mark::Mark;
use holdfast_pool::check::{Now, check_now};

/// A disk that loses what was not made durable: other bytes are there then.
struct Disk {
    cache: BTreeMap<u64, Vec<u8>>,
    durable: Region,
}

impl Disk {
    fn new() -> Disk {
        let durable = Region::in_memory(DATA as usize).unwrap();
        let cache = BTreeMap::new();
        Disk { cache, durable }
    }

    fn lose_power(&mut self) {
        for (at, bytes) in std::mem::take(&mut self.cache) {
            let garbage = vec![0xEE; bytes.len()];
            self.durable.write_nt(at, &garbage).unwrap();
        }
    }
}

impl Sink for Disk {
    fn write(&mut self, block: BlockAddr, bytes: &[u8]) -> io::Result<()> {
        self.cache.insert(block.offset(), bytes.to_vec());
        Ok(())
    }

    fn zero(&mut self, block: BlockAddr, blocks: u64, is_new: bool) -> io::Result<()> {
        match is_new {
            true => Ok(()),
            false => self.write(block, &vec![0; blocks as usize * BLOCK]),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        for (at, bytes) in std::mem::take(&mut self.cache) {
            self.durable.write_nt(at, &bytes).unwrap();
        }
        Ok(())
    }
}

struct Interrupted {
    pool: Pool,
    disk: Disk,
}

impl Interrupted {
    fn new(made: &Made) -> Interrupted {
        let Copy { pool, .. } = Copy::new(name_seed(made.pool.superblock().uuid));
        let disk = Disk::new();
        Interrupted { pool, disk }
    }

    /// Fills it, or goes on; commits after so many nodes or bytes.
    fn take(&mut self, stream: &[u8], limits: (usize, u64)) -> Result<Restored, Error> {
        let mut restorer = Restorer::begin(io::Cursor::new(stream.to_vec()))?;
        restorer.limits = limits;
        let mark = restorer.mark_in(&self.pool)?;
        let target = Target {
            pool: &mut self.pool,
            token: &WriteToken::for_offline_tool(),
            sink: &mut self.disk,
        };
        match mark {
            Some(mark) => restorer.fill_on(mark, target, &mut |_| {}),
            None => restorer.fill(target, &mut |_| {}),
        }
    }

    /// The machine starts again.
    fn lose_power(&mut self) {
        self.disk.lose_power();
        let mut bytes = vec![0; self.pool.meta().len()];
        self.pool.meta().read(0, &mut bytes).unwrap();
        let meta = Region::in_memory(bytes.len()).unwrap();
        meta.write_nt(0, &bytes).unwrap();
        self.pool = Pool::open(meta, &WriteToken::for_offline_tool()).unwrap();
    }

    fn model(&self, name: Option<&str>) -> Model {
        let found = |name: &str| snapshot::find(&self.pool.reader(), name.as_bytes()).unwrap();
        let state = match name {
            Some(name) => found(name).unwrap(),
            None => Snapshot::of(self.pool.superblock(), 0),
        };
        model_of(&self.pool, &self.disk.durable, &state)
    }

    /// What the independent check finds. These pools have no root directory, so it is something.
    fn findings(&self) -> Vec<String> {
        let now = Now {
            boot_id: [2; 16],
            is_file: false,
            is_restored: true,
        };
        let report = check_now(self.pool.meta(), DATA, None, Some(now));
        let mut all: Vec<String> = report
            .findings
            .iter()
            .map(|finding| finding.what.clone())
            .collect();
        all.sort();
        all
    }
}

const NAMES: [&str; 4] = ["s0", "s1", "s2", "s3"];

/// A stream of these snapshots, or of the present alone.
fn stream_of(made: &Made, dice: &mut Dice, names: &[&str]) -> Vec<u8> {
    let stream = made.stream(None, NONE, names);
    in_small_chunks(&stream, || 1 + dice.roll(20))
}

#[test]
fn a_restore_that_is_interrupted_goes_on_with_what_is_durable() {
    let (mut gone_on, mut again) = (0, 0);
    for seed in 1..7 {
        let (made, mut dice) = filled(seed, 4);
        let names = if seed % 4 == 0 { &[][..] } else { &NAMES };
        let whole = stream_of(&made, &mut dice, names);
        let mut straight = Interrupted::new(&made);
        let wanted = straight.take(&whole, (usize::MAX, u64::MAX)).unwrap();
        let mut copy = Interrupted::new(&made);
        let done = loop {
            let limits = (1 + dice.roll(8) as usize, 1 + dice.roll(4 * MIB));
            let before = Mark::of(&copy.pool).unwrap().map(|mark| mark.done.progress);
            let mut bad = whole.clone();
            let at = dice.roll(bad.len() as u64 * 9 / 8) as usize;
            match bad.get_mut(at) {
                None => break copy.take(&whole, limits).unwrap(),
                Some(_) if dice.roll(2) == 0 => bad.truncate(at),
                Some(byte) => *byte ^= 1 << dice.roll(8),
            }
            let error = copy.take(&bad, limits).unwrap_err();
            again += 1;
            let known = matches!(error, Error::Damaged { .. } | Error::Ends { .. });
            assert!(known || at < 40, "{error:?}");
            copy.lose_power();
            let after = Mark::of(&copy.pool).unwrap().map(|mark| mark.done.progress);
            let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
            assert!(after.entries >= before.entries && after.bytes >= before.bytes);
        };
        gone_on += u32::from(done.kept.entries > 0);
        let kept = done.kept;
        assert_eq!(done, Restored { kept, ..wanted }, "seed {seed}");
        assert!(copy.model(None) == straight.model(None), "seed {seed}");
        for name in names {
            assert!(
                copy.model(Some(name)) == straight.model(Some(name)),
                "{seed} {name}"
            );
        }
        assert_eq!(copy.findings(), straight.findings(), "seed {seed}");
    }
    assert!(gone_on > 4 && again > 20, "{gone_on} of {again}");
}

#[test]
fn what_another_stream_left_is_not_gone_on_with() {
    let (mut made, mut dice) = filled(5, 2);
    let first = stream_of(&made, &mut dice, &["s0", "s1"]);
    let mut copy = Interrupted::new(&made);
    copy.take(&first[..first.len() - 1], (1, 1)).unwrap_err();
    let mark = Mark::of(&copy.pool).unwrap().unwrap();
    assert!(mark.has_any());
    // Another time in its head.
    made.change(&mut dice);
    let other = made.stream(None, NONE, &["s0"]);
    let restorer = Restorer::begin(io::Cursor::new(other)).unwrap();
    assert_eq!(restorer.mark_in(&copy.pool).unwrap(), None);
    // The same beginning, and something else behind it.
    let chunks = chunks_of(&first);
    let mut mark = mark;
    mark.position.crc ^= 1;
    let restorer = Restorer::begin(io::Cursor::new(first.clone())).unwrap();
    let target = Target {
        pool: &mut copy.pool,
        token: &WriteToken::for_offline_tool(),
        sink: &mut copy.disk,
    };
    let error = restorer.fill_on(mark, target, &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::OtherStream { chunk } if (chunk as usize) < chunks.len()));
    copy.take(&first, (1, 1)).unwrap();
    assert!(copy.model(Some("s1")) == made.kept[1].1);
}

/// Zeroes are written where an interrupted restore may have left something else.
#[test]
fn zeroes_are_zeroes_where_something_else_was_written() {
    let (made, mut dice) = filled(3, 4);
    let whole = stream_of(&made, &mut dice, &NAMES);
    let mut copy = Interrupted::new(&made);
    copy.take(&whole[..whole.len() / 3], (2, MIB)).unwrap_err();
    copy.lose_power();
    let used = copy.pool.data_space();
    let mut at = 0;
    let mut free = Vec::new();
    while let Some(run) = used.next_free(at, DATA / BLOCK as u64) {
        free.push(run);
        at = run.end();
    }
    for run in free {
        let garbage = vec![0xAA; run.len as usize * BLOCK];
        copy.disk
            .durable
            .write_nt(run.start * BLOCK as u64, &garbage)
            .unwrap();
    }
    copy.take(&whole, (2, MIB)).unwrap();
    for (name, model) in &made.kept {
        assert!(copy.model(Some(name)) == *model, "{name}");
    }
}
