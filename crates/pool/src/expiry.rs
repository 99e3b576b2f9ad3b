//! Removing what has expired from the trees themselves, in bounded steps.
//!
//! Invariants:
//!  * An entry of the index that belongs to no value is removed when its time has come: a range
//!    that was erased leaves such entries behind.
//!  * Values are removed here only while no session exists. In a session that is for clients to do,
//!    by records: a record that waits may depend on a value.
//!  * What is just as the newest snapshot has it stays so.
//!  * A step is one commit, and looks at a bounded number of entries.

use crate::apply::count;
use crate::error::Result;
use crate::layout::value::{self, INDEX, InBlocks, TreeKey};
use crate::layout::{ReadTrees, VALUES};
use crate::pool::{Pool, WriteToken};
use crate::snapshot;
use crate::space::Run;
use crate::tree::{Reader, VALUE_MAX};
use alloc::vec::Vec;
use core::ops::ControlFlow;

/// What a step found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// The time of the first entry of the index, as the step left it; `None`: there is none.
    pub first: Option<i64>,
    /// Entries that were removed.
    pub removed: usize,
    /// Values that have expired and are there still.
    pub values: usize,
}

/// An entry of the index that is due.
struct Entry {
    expires: i64,
    tree_key: Vec<u8>,
    /// The value as the tree has it, if it is the one that has expired.
    value: Option<Vec<u8>>,
}

impl Pool {
    /// When the first value expires; `None`: none ever does.
    pub fn first_expiry(&self) -> Result<Option<i64>> {
        let present = self.present();
        let reader = Reader::of_snapshot(&self.meta, &present);
        let mut first = Ok(None);
        each(&reader, &mut |key| {
            first = value::parse_in_index(key).map(|(expires, _)| Some(expires));
            false
        })?;
        Ok(first?)
    }

    /// Whether the values are just those of the newest snapshot: removing them frees nothing, and
    /// a stream that continues the snapshot goes on only where nothing has changed.
    pub fn keeps_all_values(&self) -> Result<bool> {
        let Some(newest) = self.newest else {
            return Ok(false);
        };
        let (present, tree) = (self.present(), usize::from(VALUES));
        let all = snapshot::list(&Reader::of_snapshot(&self.meta, &present))?;
        let kept = all.iter().find(|(_, kept)| kept.seq == newest.seq);
        Ok(kept.is_some_and(|(_, kept)| kept.roots[tree] == present.roots[tree]))
    }

    /// Looks at the first `most` entries of the index that are due at `now`. Removes those without
    /// a value, and those with it, and the values, if `values` says so.
    pub fn remove_expired(
        &mut self,
        token: &WriteToken,
        now: i64,
        most: usize,
        values: bool,
    ) -> Result<Due> {
        let mut due = Due::default();
        let found = self.due(now, most)?;
        let gone = |entry: &&Entry| values || entry.value.is_none();
        due.removed = found.iter().filter(gone).count();
        due.values = found.len() - due.removed;
        if due.removed > 0 {
            let (mut batch, mut erased) = (self.begin(token), 0);
            for entry in found.iter().filter(gone) {
                let index = TreeKey::in_index(entry.expires, &entry.tree_key);
                erased += u64::from(batch.erase(VALUES, index.as_slice())?);
                let Some(bytes) = &entry.value else { continue };
                batch.erase(VALUES, &entry.tree_key)?;
                let blocks = value::blocks_of(bytes)?;
                for run in blocks.iter().flat_map(InBlocks::runs) {
                    batch.drop_data(Run::of_data(run.block, run.len.into()), run.epoch)?;
                }
            }
            batch.commit(|superblock| {
                superblock.clean = false;
                let counted = &mut superblock.counts[count::INDEX];
                *counted = counted.saturating_sub(erased);
            })?;
        }
        due.first = self.first_expiry()?;
        Ok(due)
    }

    fn due(&self, now: i64, most: usize) -> Result<Vec<Entry>> {
        let present = self.present();
        let reader = Reader::of_snapshot(&self.meta, &present);
        let (mut found, mut bad) = (Vec::new(), None);
        each(&reader, &mut |key| match value::parse_in_index(key) {
            Ok((expires, tree_key)) if expires <= now && found.len() < most => {
                found.push(Entry {
                    expires,
                    tree_key: tree_key.to_vec(),
                    value: None,
                });
                true
            }
            Ok(_) => false,
            Err(e) => {
                bad = Some(e);
                false
            }
        })?;
        if let Some(bad) = bad {
            return Err(bad.into());
        }
        for entry in &mut found {
            let mut bytes = [0; VALUE_MAX];
            let len = ReadTrees::get(&reader, VALUES, &entry.tree_key, &mut bytes)?;
            let bytes = bytes.get(..len.unwrap_or(0)).unwrap_or_default();
            if !bytes.is_empty() && value::expiry_of(bytes) == entry.expires {
                entry.value = Some(bytes.to_vec());
            }
        }
        Ok(found)
    }
}

/// Shows the keys of the index to `see`, until that says false.
fn each(reader: &Reader<'_>, see: &mut dyn FnMut(&[u8]) -> bool) -> Result<()> {
    let first = TreeKey::new(INDEX, &[]);
    let end = TreeKey::new(INDEX + 1, &[]);
    reader.scan(
        VALUES,
        first.as_slice(),
        Some(end.as_slice()),
        |key, _| match see(key) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        },
    )
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::apply::pool_tests::{DATA_LEN, assert_clean, new_pool};
    use crate::apply::values_tests::{KEYSPACE, stage};
    use crate::apply::{Applier, PoolStore};
    use crate::journal::{Change, Header, Op, Record};
    use crate::session::LANES;
    use holdfast_pmem::Region;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    struct Fixture {
        pool: Pool,
        grants: BTreeSet<u64>,
        seq: u64,
    }

    impl Fixture {
        fn new() -> Fixture {
            let meta = Region::in_memory(8 << 20).unwrap();
            let (mut pool, mut grants) = new_pool(meta, 3000);
            stage(&mut pool, &mut grants);
            let seq = 3;
            Fixture { pool, grants, seq }
        }

        fn apply(&mut self, ops: &[(&[u8], Change<'_>)]) {
            let mut bytes = Vec::new();
            for (key, change) in ops {
                let (keyspace, change) = (KEYSPACE, *change);
                Op {
                    keyspace,
                    key,
                    change,
                }
                .push(&mut bytes);
            }
            let mut store = PoolStore::begin(&mut self.pool, &WriteToken::for_service());
            let mut applier = Applier::new(&mut store, &mut self.grants, [self.seq; LANES]);
            self.seq += 1;
            let (seq, len, lane) = (self.seq, 64, 0);
            let record = Record::Batch {
                time: 5,
                ops: &bytes,
            };
            applier.apply(&Header { seq, len, lane }, &record).unwrap();
            applier.settle().unwrap();
            store.commit(|_| ()).unwrap();
            assert_clean(self.pool.meta());
        }

        fn index(&self) -> Vec<(i64, Vec<u8>)> {
            let present = self.pool.present();
            let reader = Reader::of_snapshot(self.pool.meta(), &present);
            let mut all = Vec::new();
            each(&reader, &mut |key| {
                let (expires, key) = value::parse_in_index(key).unwrap();
                all.push((expires, key[8..].to_vec()));
                true
            })
            .unwrap();
            let counted = self.pool.superblock().counts[count::INDEX];
            assert_eq!(counted, all.len() as u64);
            all
        }

        fn remove(&mut self, now: i64, most: usize, values: bool) -> Due {
            let token = WriteToken::for_service();
            let due = self.pool.remove_expired(&token, now, most, values).unwrap();
            assert_clean(self.pool.meta());
            due
        }
    }

    /// The index has the time of the newest value of each key, in the order of time.
    #[test]
    fn the_index_follows_every_change_of_a_key() {
        let mut f = Fixture::new();
        let all = [
            (&b"a"[..], Change::PutUntil(30, b"1")),
            (b"b", Change::PutUntil(20, b"1")),
            (b"c", Change::PutUntil(10, b"1")),
            (b"d", Change::Put(b"1")),
        ];
        f.apply(&all);
        let is = |f: &Fixture, want: &[(i64, &[u8])]| {
            let index = f.index();
            let index: Vec<_> = index.iter().map(|(at, key)| (*at, &key[..])).collect();
            assert_eq!(index, want);
        };
        is(&f, &[(10, b"c"), (20, b"b"), (30, b"a")]);
        f.apply(&[(b"a", Change::PutUntil(5, b"2")), (b"b", Change::Put(b"2"))]);
        is(&f, &[(5, b"a"), (10, b"c")]);
        f.apply(&[(b"a", Change::PutUntil(5, b"3")), (b"c", Change::Erase)]);
        is(&f, &[(5, b"a")]);
        // The last one of a record counts.
        f.apply(&[
            (b"a", Change::PutUntil(7, b"4")),
            (b"a", Change::Erase),
            (b"d", Change::PutUntil(8, b"4")),
            (b"d", Change::PutUntil(9, b"4")),
        ]);
        is(&f, &[(9, b"d")]);
        f.apply(&[(b"", Change::EraseRange(b""))]);
        is(&f, &[]);
        assert_eq!(f.pool.first_expiry().unwrap(), None);
    }

    /// The check knows the index by itself: a value that is not in it, and what cannot be in it.
    #[test]
    fn the_check_finds_what_is_wrong_with_the_index() {
        let said = |change: &dyn Fn(&mut crate::tree::Batch<'_>)| {
            let mut f = Fixture::new();
            f.apply(&[
                (b"a", Change::PutUntil(10, b"1")),
                (b"b", Change::Put(b"2")),
            ]);
            let mut batch = f.pool.begin(&WriteToken::for_service());
            change(&mut batch);
            batch.commit(|_| ()).unwrap();
            let found = crate::check::check(f.pool.meta(), DATA_LEN, None);
            let found = found.damage().map(|f| std::format!("{f}"));
            found.collect::<Vec<_>>().join("; ")
        };
        let tree_key = TreeKey::new(KEYSPACE, b"a");
        let index = TreeKey::in_index(10, tree_key.as_slice());
        let erased = said(&|batch| assert!(batch.erase(VALUES, index.as_slice()).unwrap()));
        assert!(
            erased.contains("the index of expiry lacks 1 of"),
            "{erased}"
        );
        let other = TreeKey::in_index(11, tree_key.as_slice());
        let more = said(&|batch| {
            let put = batch.put(VALUES, other.as_slice(), &value::in_index());
            assert!(!put.unwrap());
        });
        // An entry without a value is none of its business, but it is to be counted.
        assert!(more.starts_with("counter 4 is 1, found 2 "), "{more}");
        for (key, bytes) in [
            (&other.as_slice()[..24], &value::in_index()[..]),
            (other.as_slice(), b"\x01\0\0\0\0\0\0x"),
            (
                TreeKey::in_index(-1, tree_key.as_slice()).as_slice(),
                &value::in_index(),
            ),
            (
                TreeKey::in_index(11, &[0; 12]).as_slice(),
                &value::in_index(),
            ),
        ] {
            let wrong = said(&|batch| assert!(!batch.put(VALUES, key, bytes).unwrap()));
            assert!(
                wrong.contains("an entry of the index of expiry is impossible"),
                "{wrong}"
            );
        }
    }

    /// While there is a session, only what belongs to no value goes; else the values, too.
    #[test]
    fn what_is_due_goes_in_steps() {
        let mut f = Fixture::new();
        let keys: Vec<[u8; 4]> = (0..900u32).map(u32::to_be_bytes).collect();
        let put = |key| (key, Change::PutUntil(10, &[7; 100][..]));
        let all: Vec<_> = keys.iter().map(|key| put(&key[..])).collect();
        f.apply(&all);
        f.apply(&[(b"later", Change::PutUntil(11, b"x"))]);
        let none = f.remove(9, 100, true);
        assert_eq!((none.first, none.removed, none.values), (Some(10), 0, 0));
        let kept = f.remove(10, 100, false);
        assert_eq!((kept.first, kept.removed, kept.values), (Some(10), 0, 100));
        let some = f.remove(10, 100, true);
        assert_eq!((some.first, some.removed, some.values), (Some(10), 100, 0));
        // A whole subtree leaves, and leaves its entries in the index.
        f.apply(&[(b"\0", Change::EraseRange(b"\x01"))]);
        let left = f.index().len() - 1;
        assert!(left > 0, "the range left nothing behind");
        // A value that finds its entry there takes it along.
        f.apply(&[put(&keys[450][..])]);
        assert_eq!(
            f.index().len(),
            left + 1,
            "the key was in no subtree that left"
        );
        f.apply(&[(&keys[450][..], Change::Erase)]);
        let left = f.index().len() - 1;
        let rest = f.remove(10, 10_000, false);
        assert_eq!((rest.first, rest.removed, rest.values), (Some(11), left, 0));
        while f.pool.has_cut() {
            let token = WriteToken::for_service();
            f.pool.reclaim_some(&token, 100).unwrap();
        }
        let last = f.remove(i64::MAX, 10, true);
        assert_eq!((last.first, last.removed, last.values), (None, 1, 0));
    }
}
