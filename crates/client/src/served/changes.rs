//! Changes of keys and values, as `Client` has them.
//!
//! Invariants:
//!  * What was added to a batch is here, or with the proxy, which makes nothing of it before it is
//!    committed.
//!  * A batch of which the proxy could not keep a part is not committed.

use crate::base::error::{Error, Result};
use crate::base::types::Caller;
use crate::kv::{Changes, Durability, check_key};
use crate::served::Served;
use crate::served::channel::Ask;
use crate::served::keys::{by, durability_word};
use crate::served::life::args;
use crate::served::pairs::{CHANGE_HEAD, Change, Kind};
use crate::served::wire::*;
use crate::values::Keyspace;
use alloc::vec::Vec;
use core::mem::take;
use pmem::ConstBuf;
use pool::layout::value::{NEVER, USER_KEY_MAX};

/// Changes that will be made together.
#[derive(Default)]
pub struct Batch {
    /// Those that the proxy does not have yet.
    bytes: Vec<u8>,
    /// Under which name the proxy keeps the others; 0: it has none.
    kept: u32,
    count: usize,
    failed: Option<Error>,
}

/// Whether the changes are to be made, as an argument of a request.
const KEEP: u64 = 0;
const MAKE: u64 = 1;

impl Batch {
    /// How many changes there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// `key` is to have `value`.
fn put<'a>(keyspace: Keyspace, key: &'a [u8], value: &'a [u8]) -> Result<Change<'a>> {
    check_key(key)?;
    if value.len() as u64 > Changes::VALUE_MAX {
        return Err(Error::FileTooLarge);
    }
    let (kind, keyspace) = (Kind::Put, keyspace.link);
    Ok(Change {
        kind,
        keyspace,
        key,
        value,
    })
}

/// `key`, which may be missing, is to go.
fn erase(keyspace: Keyspace, key: &[u8]) -> Result<Change<'_>> {
    check_key(key)?;
    let (kind, keyspace) = (Kind::Erase, keyspace.link);
    Ok(Change {
        kind,
        keyspace,
        key,
        value: &[],
    })
}

impl Served {
    /// Sets `key` to `value`. A value for which the free blocks are in too many pieces is
    /// `FileTooLarge`.
    pub fn kv_put(
        &self,
        c: &Caller,
        keyspace: Keyspace,
        (key, value): (&[u8], &[u8]),
        durability: Durability,
    ) -> Result<()> {
        self.make_one(c, &put(keyspace, key, value)?, durability)
    }

    /// As `kv_put`; the value expires at `expires`, unless that is `NEVER`.
    pub fn kv_put_until(
        &self,
        c: &Caller,
        keyspace: Keyspace,
        pair: (&[u8], &[u8]),
        expires: i64,
        durability: Durability,
    ) -> Result<()> {
        let mut batch = Batch::default();
        match self.batch_put_until(&mut batch, keyspace, pair, expires) {
            Ok(()) => self.kv_commit(c, batch, durability),
            Err(e) => {
                self.kv_abort(batch);
                Err(e)
            }
        }
    }

    /// Removes `key`, which may be missing.
    pub fn kv_erase(
        &self,
        c: &Caller,
        keyspace: Keyspace,
        key: &[u8],
        durability: Durability,
    ) -> Result<()> {
        self.make_one(c, &erase(keyspace, key)?, durability)
    }

    fn make_one(&self, c: &Caller, change: &Change<'_>, durability: Durability) -> Result<()> {
        if change.len() > BUFFER {
            let mut batch = Batch::default();
            return match self.batch_add(&mut batch, change) {
                Ok(()) => self.kv_commit(c, batch, durability),
                Err(e) => {
                    self.kv_abort(batch);
                    Err(e)
                }
            };
        }
        let head = change.head();
        let data = [&head[..], change.key, change.value].map(ConstBuf::from);
        let ask = Ask {
            data: &data,
            ..by(c, &[0, MAKE, durability_word(durability)])
        };
        self.tell(Op::KvChange, &ask)
    }

    /// Adds to a batch: `key` is to have `value`.
    pub fn batch_put(
        &self,
        batch: &mut Batch,
        keyspace: Keyspace,
        key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        self.batch_add(batch, &put(keyspace, key, value)?)
    }

    /// As `batch_put`; the value expires at `expires`, unless that is `NEVER`.
    pub fn batch_put_until(
        &self,
        batch: &mut Batch,
        keyspace: Keyspace,
        (key, value): (&[u8], &[u8]),
        expires: i64,
    ) -> Result<()> {
        let put = put(keyspace, key, value)?;
        if expires != NEVER {
            let until = Change {
                kind: Kind::Until,
                key: &[],
                value: &expires.to_le_bytes(),
                ..put
            };
            self.batch_add(batch, &until)?;
            batch.count -= 1;
        }
        let added = self.batch_add(batch, &put);
        // The time would be that of another put.
        added.inspect_err(|e| {
            if expires != NEVER {
                batch.failed = Some(e.clone());
            }
        })
    }

    /// Adds to a batch: `key`, which may be missing, is to go.
    pub fn batch_erase(&self, batch: &mut Batch, keyspace: Keyspace, key: &[u8]) -> Result<()> {
        self.batch_add(batch, &erase(keyspace, key)?)
    }

    /// Adds to a batch: all keys from `from` on are to go, to the end or up to, not including,
    /// `to`.
    pub fn batch_erase_range(
        &self,
        batch: &mut Batch,
        keyspace: Keyspace,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> Result<()> {
        if from.len().max(to.map_or(0, <[u8]>::len)) > USER_KEY_MAX {
            return Err(Error::NameTooLong);
        }
        if to.is_some_and(|to| to <= from) {
            return Ok(());
        }
        let (kind, keyspace) = (Kind::EraseRange, keyspace.link);
        let change = Change {
            kind,
            keyspace,
            key: from,
            value: to.unwrap_or_default(),
        };
        self.batch_add(batch, &change)
    }

    fn batch_add(&self, batch: &mut Batch, change: &Change<'_>) -> Result<()> {
        if batch.bytes.len() + change.len() > BUFFER {
            self.hand_over(batch)?;
        }
        if change.len() > BUFFER {
            self.hand_over_large(batch, change)?;
        } else {
            batch.bytes.extend_from_slice(&change.head());
            batch.bytes.extend_from_slice(change.key);
            batch.bytes.extend_from_slice(change.value);
        }
        batch.count += 1;
        Ok(())
    }

    /// The proxy gets what is here.
    fn hand_over(&self, batch: &mut Batch) -> Result<()> {
        if let Some(failed) = &batch.failed {
            return Err(failed.clone());
        }
        let bytes = take(&mut batch.bytes);
        if bytes.is_empty() {
            return Ok(());
        }
        let handed = self.keep(batch, &[ConstBuf::from(&bytes[..])]);
        handed.inspect_err(|e| batch.failed = Some(e.clone()))
    }

    fn keep(&self, batch: &mut Batch, data: &[ConstBuf<'_>]) -> Result<()> {
        let ask = Ask {
            data,
            ..args(&[batch.kept.into(), KEEP])
        };
        batch.kept = self.number(Op::KvChange, &ask)? as u32;
        Ok(())
    }

    /// A change that is larger than a buffer. If it fails, the batch is as before.
    fn hand_over_large(&self, batch: &mut Batch, change: &Change<'_>) -> Result<()> {
        let mut rest = change.value;
        while CHANGE_HEAD + change.key.len() + rest.len() > BUFFER {
            let (part, after) = rest.split_at(rest.len().min(BUFFER - CHANGE_HEAD));
            let (kind, key) = (Kind::Part, &[][..]);
            let part = Change {
                kind,
                key,
                value: part,
                ..*change
            };
            self.keep(batch, &[&part.head()[..], part.value].map(ConstBuf::from))?;
            rest = after;
        }
        let last = Change {
            value: rest,
            ..*change
        };
        let head = last.head();
        self.keep(
            batch,
            &[&head[..], last.key, last.value].map(ConstBuf::from),
        )
    }

    /// Makes all changes or none of them.
    pub fn kv_commit(&self, c: &Caller, batch: Batch, durability: Durability) -> Result<()> {
        if let Some(failed) = batch.failed.clone() {
            self.kv_abort(batch);
            return Err(failed);
        }
        if batch.is_empty() {
            return Ok(());
        }
        let words = [batch.kept.into(), MAKE, durability_word(durability)];
        let ask = Ask {
            data: &[ConstBuf::from(&batch.bytes[..])],
            ..by(c, &words)
        };
        self.tell(Op::KvChange, &ask)
    }

    /// Nothing is made of a batch.
    pub fn kv_abort(&self, batch: Batch) {
        if batch.kept != 0 {
            self.drop_kept(batch.kept);
        }
    }
}
