//! Keyspaces as a whole, and changes that depend on a value, as `Client` has them.
//!
//! Invariant: each is one request, so what it depends on is looked at where the change is made.

use crate::base::error::{Error, Result};
use crate::base::types::Caller;
use crate::kv::{Durability, Expected, Present, Swapped, check_key};
use crate::served::Served;
use crate::served::channel::Ask;
use crate::served::keys::{by, durability_word};
use crate::served::scan::Scan;
use crate::served::wire::*;
use crate::values::Keyspace;
use alloc::vec::Vec;
use pmem::{ConstBuf, MutBuf};
use pool::layout::value::NEVER;

/// Keys that one request counts.
const COUNT_MAX: u64 = 1 << 16;

impl Served {
    /// Removes a keyspace and all its keys.
    pub fn kv_drop(&self, c: &Caller, name: &[u8]) -> Result<()> {
        let ask = Ask {
            texts: [name, &[]],
            ..by(c, &[])
        };
        self.tell(Op::KvRemove, &ask)
    }

    /// Gives a keyspace another name; `replace`: one that has it already is dropped.
    pub fn kv_rename(&self, c: &Caller, old: &[u8], new: &[u8], replace: bool) -> Result<()> {
        let ask = Ask {
            texts: [old, new],
            ..by(c, &[replace.into()])
        };
        self.tell(Op::KvRename, &ask)
    }

    /// Sets `key` to `value`, or erases it, if it is as `expected`.
    /// `TooBig`: one request cannot have both values.
    pub fn kv_swap(
        &self,
        c: &Caller,
        (keyspace, key): (Keyspace, &[u8]),
        expected: Expected<'_>,
        value: Option<(&[u8], i64)>,
        durability: Durability,
    ) -> Result<Swapped> {
        check_key(key)?;
        let (new, expires) = value.unwrap_or((&[], NEVER));
        let old = expected.value().flatten().unwrap_or_default();
        if key
            .len()
            .saturating_add(old.len())
            .saturating_add(new.len())
            > BUFFER
        {
            return Err(Error::TooBig);
        }
        let words = [
            keyspace.link.into(),
            durability_word(durability),
            has(expected, value.is_some()),
            old.len() as u64,
            expires as u64,
            expected.expiry().flatten().unwrap_or(NEVER) as u64,
        ];
        let ask = Ask {
            texts: [key, &[]],
            data: &[old, new].map(ConstBuf::from),
            ..by(c, &words)
        };
        let answered = self.ask(Op::KvSwap, &ask)?;
        let [_, _, found, len, rest, done, expires, ..] = answered.words;
        let expires = expires as i64;
        if done != 0 {
            return Ok(Swapped::Done);
        }
        if found == 0 {
            return Ok(Swapped::Other(None));
        }
        let len = usize::try_from(len).map_err(|_| Error::NoMemory)?;
        let mut value = Vec::new();
        let room = value.try_reserve_exact(len);
        room.map_err(|_| Error::NoMemory)?;
        value.resize(len, 0);
        match u32::try_from(rest).ok().filter(|rest| *rest != 0) {
            None => {
                answered.take(0, MutBuf::from(&mut value[..]))?;
            }
            Some(rest) => {
                drop(answered);
                self.take_rest(rest, &mut value)?;
            }
        }
        Ok(Swapped::Other(Some(Present { value, expires })))
    }
}

/// What a request has: an expected value 1, a new one 2, an expected expiry 4.
fn has(expected: Expected<'_>, is_put: bool) -> u64 {
    u64::from(matches!(expected.value(), Some(Some(_))))
        | u64::from(is_put) << 1
        | u64::from(expected.expiry().is_some()) << 2
}

impl Scan {
    /// How many keys there are from here on, of a scan that has not begun.
    pub fn count(&mut self, served: &Served, c: &Caller) -> Result<u64> {
        let mut all = 0;
        loop {
            let words = [self.name().into(), COUNT_MAX];
            let [_, _, count, is_all, ..] = served.ask(Op::ScanCount, &by(c, &words))?.words;
            all += count;
            if is_all != 0 {
                return Ok(all);
            }
        }
    }
}
