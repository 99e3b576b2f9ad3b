//! What values that are about to come count for.
//!
//! Invariants:
//!  * It is taken from the quotas of whoever pays for the keyspace before the record that has the
//!    values is written, so that no limit is exceeded, however many processes put at once.
//!  * What they replace is counted until the trees have them: the service takes it away then. Where
//!    there is no room for both, the old value counts as gone already, but only under the lock of
//!    its key's bucket: so nobody else can have it count as gone, too.

use super::commit::Changes;
use crate::base::error::{Error, Result};
use crate::session::Session;
use crate::session::quota::{self, Payers};
use crate::tables::inode_table::{self, LockedInode};
use crate::tables::value_index::Out;
use crate::values::{Keyspace, get};
use alloc::vec::Vec;
use pool::journal::Ops;
use pool::quota::Taken;

/// What the changes count for, by keyspace, as far as anybody pays for it.
pub(super) struct Bill(Vec<Line>);

struct Line {
    keyspace: u64,
    payers: Payers,
    new: Taken,
}

/// Has `work` make the changes once what they count for was taken, or, with a bill, take it itself
/// while it holds the buckets of all keys. Whether `work` made them; else all is given back.
#[inline]
pub(super) fn paying(
    s: &Session,
    changes: &mut Changes,
    work: &mut dyn FnMut(&mut Changes, Option<&Bill>) -> Result<bool>,
) -> Result<bool> {
    match quota::is_on(s) {
        true => paying_some(s, changes, work),
        false => work(changes, None),
    }
}

#[cold]
fn paying_some(
    s: &Session,
    changes: &mut Changes,
    work: &mut dyn FnMut(&mut Changes, Option<&Bill>) -> Result<bool>,
) -> Result<bool> {
    let bill = Bill::of(s, changes.keyspaces(), changes.ops())?;
    match bill.take(s) {
        Ok(()) => {
            let done = work(changes, None);
            bill.settle(s, &done);
            done
        }
        Err(Error::OverQuota) => work(changes, Some(&bill)),
        Err(e) => Err(e),
    }
}

impl Bill {
    /// Of the changes `ops` of these keyspaces.
    pub fn of(s: &Session, all: impl Iterator<Item = Keyspace>, ops: &[u8]) -> Result<Bill> {
        let mut lines = Vec::new();
        for keyspace in all {
            let payers = match keyspace.entry(s) {
                Some(dir) => Payers::of(dir.e),
                None => Payers::of(inode_table::get(s, keyspace.ino())?.e),
            };
            if quota::is_limited(s, payers) {
                lines.push(Line::new(keyspace.ino(), payers));
            }
        }
        Ok(Bill::of_lines(lines, ops))
    }

    /// Of changes of one keyspace, whose directory this is.
    pub fn of_one(s: &Session, dir: &LockedInode<'_>, ops: &[u8]) -> Bill {
        let payers = Payers::of(dir.e);
        let line = quota::is_on(s).then(|| Line::new(dir.ino, payers));
        Bill::of_lines(line.into_iter().collect(), ops)
    }

    fn of_lines(mut lines: Vec<Line>, ops: &[u8]) -> Bill {
        for op in Ops::new(ops).flatten() {
            if let Some(line) = lines.iter_mut().find(|line| line.keyspace == op.keyspace) {
                line.new = line.new.and(Taken::by_change(&op));
            }
        }
        lines.retain(|line| line.new != Taken::default());
        Bill(lines)
    }

    /// Takes it, all or nothing.
    fn take(&self, s: &Session) -> Result<()> {
        self.each(s, &mut |line| quota::take(s, line.payers, line.new))
    }

    /// As `take`, where what the changes replace is as good as gone. The caller holds the buckets
    /// of all keys.
    pub fn take_replacing(&self, s: &Session, ops: &[u8]) -> Result<()> {
        self.each(s, &mut |line| {
            let old = line.replaced(s, ops)?;
            quota::take_for(s, line.payers, line.new, old)
        })
    }

    fn each(&self, s: &Session, take: &mut dyn FnMut(&Line) -> Result<()>) -> Result<()> {
        for (i, line) in self.0.iter().enumerate() {
            if let Err(e) = take(line) {
                give_back(s, &self.0[..i]);
                return Err(e);
            }
        }
        Ok(())
    }

    /// Takes it whatever is left.
    pub fn take_anyway(&self, s: &Session) {
        for line in &self.0 {
            quota::take_anyway(s, line.payers, line.new);
        }
    }

    /// Gives it back unless the changes were made, or may have been.
    pub fn settle(&self, s: &Session, made: &Result<bool>) {
        if matches!(made, Ok(false) | Err(_)) && !is_unknown(made) {
            give_back(s, &self.0);
        }
    }
}

/// Whether the record may be there: then the service is to judge.
fn is_unknown(made: &Result<bool>) -> bool {
    matches!(made, Err(Error::ServiceGone | Error::Poisoned(_)))
}

fn give_back(s: &Session, lines: &[Line]) {
    for line in lines {
        quota::put_back(s, line.payers, line.new);
    }
}

impl Line {
    fn new(keyspace: u64, payers: Payers) -> Line {
        let new = Taken::default();
        Line {
            keyspace,
            payers,
            new,
        }
    }

    /// What the changes replace: what their keys have now, and what they put themselves, but for
    /// the last of each key.
    fn replaced(&self, s: &Session, ops: &[u8]) -> Result<Taken> {
        let mut puts: Vec<(&[u8], Taken)> = Ops::new(ops)
            .flatten()
            .filter(|op| op.keyspace == self.keyspace)
            .map(|op| (op.key, Taken::by_change(&op)))
            .filter(|(_, new)| *new != Taken::default())
            .collect();
        // Those of one key stay in their order.
        puts.sort_by_key(|(key, _)| *key);
        let mut taken = Taken::default();
        for same in puts.chunk_by(|a, b| a.0 == b.0) {
            let key = same[0].0;
            let mut out = Out::locate(&mut []);
            if let Some(len) = get::get_any(s, self.keyspace, key, &mut out)? {
                taken = taken.and(Taken::by_parts(key.len(), len, out.blocks.as_ref()));
            }
            for (_, passed_over) in &same[..same.len() - 1] {
                taken = taken.and(*passed_over);
            }
        }
        Ok(taken)
    }
}
