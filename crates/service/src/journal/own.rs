//! What the service changes by itself: state that a session left behind, objects without a name,
//! and the bytes of redo records.
//!
//! Invariant: its records are validated like any other; a refused one changes nothing.

use super::engine::Engine;
use super::held::Held;
use super::order::Next;
use crate::base::error::Result;
use holdfast_pool::apply::{Applier, Failure, PoolStore};
use holdfast_pool::format::LANES;
use holdfast_pool::journal::{self, Record};

impl Engine {
    /// Applies records that come from the service itself, in one commit; those that are refused
    /// change nothing and are counted.
    pub fn apply_own(&mut self, records: &[Record<'_>]) -> Result<usize> {
        if self.store.failed {
            return Ok(records.len());
        }
        let applied = [0; LANES];
        let mut store = PoolStore::begin(&mut self.store.pool, &self.store.token);
        let mut held = Held(&mut self.journal.granted);
        let mut applier = Applier::new(&mut store, &mut held, applied);
        let mut refused = 0;
        for (i, record) in records.iter().enumerate() {
            let header = journal::Header {
                seq: i as u64 + 1,
                len: 0,
                lane: 0,
            };
            match applier.apply(&header, record) {
                Ok(_) => {}
                Err(Failure::Rejected(_)) => refused += 1,
                // Only `divide_work` asks for it.
                Err(Failure::Later) => unreachable!(),
                Err(Failure::Store(error)) => {
                    drop(store);
                    return Err(self.store.fail(error));
                }
            }
        }
        let committed = store.commit(|sb| sb.clean = false);
        self.store.check(committed)?;
        Ok(refused)
    }

    /// Frees objects without a name that nobody can have open.
    pub fn free_orphans(&mut self) -> Result<u64> {
        let mut total = 0;
        while !self.store.failed {
            let mut store = PoolStore::begin(&mut self.store.pool, &self.store.token);
            let mut held = Held(&mut self.journal.granted);
            let freed = Applier::new(&mut store, &mut held, [0; LANES]).free_orphans(256);
            let freed = match freed {
                Ok(freed) => freed,
                Err(Failure::Rejected(_)) => break,
                // As above.
                Err(Failure::Later) => unreachable!(),
                Err(Failure::Store(error)) => {
                    drop(store);
                    return Err(self.store.fail(error));
                }
            };
            if freed == 0 {
                break;
            }
            total += freed as u64;
            let committed = store.commit(|sb| sb.clean = false);
            self.store.check(committed)?;
        }
        Ok(total)
    }

    /// Copies the bytes of the redo record that comes next into the blocks that the trees say.
    pub fn redo_next(&mut self) -> Result<()> {
        let Next::Record(entry) = self.journal.order.next() else {
            return Ok(());
        };
        let done = self.redo(&entry.bytes);
        self.journal.order.put_back(entry);
        done
    }

    fn redo(&mut self, bytes: &[u8]) -> Result<()> {
        let Ok((_, record)) = journal::decode(bytes) else {
            return Ok(());
        };
        let mut store = PoolStore::begin(&mut self.store.pool, &self.store.token);
        let mut held = Held(&mut self.journal.granted);
        let pieces = Applier::new(&mut store, &mut held, [0; LANES]).redo(&record);
        let Ok(pieces) = pieces else { return Ok(()) };
        for piece in pieces {
            let at = piece.block.offset() + piece.offset_in_block as u64;
            self.store.data.write_nt(at, piece.data)?;
            self.store.data.fence();
            self.store.data.sync(at, piece.data.len())?;
        }
        Ok(())
    }
}
