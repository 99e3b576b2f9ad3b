//! Values that expire.
//!
//! Invariant: a time is nanoseconds since 1970, as the host's clock has it; 0 stands for none only
//! below this crate.

use crate::Durability;
use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::inner::Reach;
use crate::keyspace::{Keyspace, check};
use crate::kv;
use crate::whole::Swap;
use holdfast_client::Error as Client;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Whether a value expires, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expires {
    /// It stays.
    Never,
    /// At this time, in nanoseconds since 1970: from then on its key is not there.
    At(i64),
}

impl Expires {
    /// So long after now.
    pub fn after(time: Duration) -> Expires {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let at = now.unwrap_or_default().saturating_add(time).as_nanos();
        Expires::At(i64::try_from(at).unwrap_or(i64::MAX))
    }

    /// Nanoseconds since 1970; `None`: never.
    pub fn time(self) -> Option<i64> {
        match self {
            Expires::Never => None,
            Expires::At(time) => Some(time),
        }
    }

    /// As the client has it. What expired before 1970 has expired.
    pub(crate) fn word(self) -> i64 {
        match self {
            Expires::Never => kv::NEVER,
            Expires::At(time) => time.max(1),
        }
    }

    pub(crate) fn of_word(word: i64) -> Expires {
        match word {
            kv::NEVER => Expires::Never,
            time => Expires::At(time),
        }
    }
}

/// What became of a change that was to be made only if its key expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpirySwap {
    /// Whether the change was made.
    pub done: bool,
    /// When the key expires now; `None`: there is no such key.
    pub present: Option<Expires>,
}

impl From<Option<i64>> for Expires {
    fn from(time: Option<i64>) -> Expires {
        time.map_or(Expires::Never, Expires::At)
    }
}

/// A value that expires cannot be kept as a file.
pub(crate) fn too_large(error: Error) -> Error {
    match error {
        Error::Pool(Client::FileTooLarge) => Error::ExpiringTooLarge,
        error => error,
    }
}

impl Keyspace {
    /// As [`put`](Keyspace::put); the value expires. The next put of the key says anew whether it
    /// does.
    pub fn put_until(
        &self,
        key: &[u8],
        value: &[u8],
        expires: Expires,
        durability: Durability,
    ) -> Result<()> {
        if expires == Expires::Never {
            return self.put(key, value, durability);
        }
        check(key)?;
        let until = expires.word();
        let put = match self.pool.inner.reach()? {
            Reach::Mapped(client) => client
                .kv_put_until((self.id, key), value, until, durability)
                .map_err(Error::from),
            Reach::Served(served) => {
                served.put_until(self.named(), (key, value), until, durability)
            }
        };
        put.map_err(|e| self.gone(too_large(e)))
    }

    /// When the value of `key` expires; `None`: there is no such key.
    pub fn expires(&self, key: &[u8]) -> Result<Option<Expires>> {
        let found = match self.pool.inner.reach()? {
            Reach::Mapped(client) => client.kv_find(None, None, (self.id, key), &mut [])?,
            Reach::Served(served) => served.find(self.named(), None, key)?,
        };
        Ok(found.map(|found| Expires::of_word(found.expires)))
    }

    /// Says anew when the value of `key` expires; false: there is no such key. The value is put
    /// again, unless another one is put meanwhile, of which this is said then.
    pub fn expire(&self, key: &[u8], expires: Expires, durability: Durability) -> Result<bool> {
        if expires == Expires::Never {
            match self.expires(key)? {
                Some(Expires::At(_)) => {}
                found => return Ok(found.is_some()),
            }
        }
        let mut found = self.get(key)?;
        while let Some(value) = &found {
            let swap = self.put_if_until(key, Some(value), value, expires, durability)?;
            if swap.done {
                return Ok(true);
            }
            found = swap.present;
        }
        Ok(false)
    }

    /// As [`put_if`](Keyspace::put_if); the value expires.
    pub fn put_if_until(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        value: &[u8],
        expires: Expires,
        durability: Durability,
    ) -> Result<Swap> {
        let swapped = self.swap(key, expected, Some((value, expires.word())), durability);
        match expires {
            Expires::Never => swapped,
            Expires::At(_) => swapped.map_err(too_large),
        }
    }
}

/// Changes that depend on the expiry of a key alone. `at`: the time, in nanoseconds since 1970, at
/// which the key is to expire; `None`: it is to expire at some time. A key that does not expire is
/// not changed, nor one that is not there any more.
impl Keyspace {
    /// Sets `key` to `value` if it expires.
    pub fn put_if_expires(
        &self,
        key: &[u8],
        at: Option<i64>,
        value: &[u8],
        expires: Expires,
        durability: Durability,
    ) -> Result<ExpirySwap> {
        let put = self.swap_at(key, at, Some((value, expires)), durability);
        match expires {
            Expires::Never => put,
            Expires::At(_) => put.map_err(too_large),
        }
    }

    /// Removes `key` if it expires.
    pub fn erase_if_expires(
        &self,
        key: &[u8],
        at: Option<i64>,
        durability: Durability,
    ) -> Result<ExpirySwap> {
        self.swap_at(key, at, None, durability)
    }

    /// As [`expire`](Keyspace::expire), of a key that expires.
    pub fn expire_if(
        &self,
        key: &[u8],
        at: Option<i64>,
        expires: Expires,
        durability: Durability,
    ) -> Result<ExpirySwap> {
        let other = |present| ExpirySwap {
            done: false,
            present,
        };
        let is_then = |found: Option<Expires>| match found {
            Some(Expires::At(time)) => at.is_none_or(|at| at == time),
            Some(Expires::Never) | None => false,
        };
        let mut now = self.expires(key)?;
        let mut value = match is_then(now) {
            true => self.get(key)?,
            false => return Ok(other(now)),
        };
        while let Some(same) = &value {
            let expected = kv::Expected::Both(same, at.map(|at| Expires::At(at).word()));
            let new = Some((&same[..], expires.word()));
            let swapped = self.swap_as(key, expected, new, durability);
            match swapped.map_err(too_large)? {
                kv::Swapped::Done => {
                    let (done, present) = (true, Some(expires));
                    return Ok(ExpirySwap { done, present });
                }
                kv::Swapped::Other(None) => break,
                kv::Swapped::Other(Some(present)) => {
                    now = Some(Expires::of_word(present.expires));
                    if !is_then(now) {
                        return Ok(other(now));
                    }
                    // Another value of the same time was put meanwhile.
                    value = Some(present.value);
                }
            }
        }
        Ok(other(None))
    }

    fn swap_at(
        &self,
        key: &[u8],
        at: Option<i64>,
        new: Option<(&[u8], Expires)>,
        durability: Durability,
    ) -> Result<ExpirySwap> {
        let expected = kv::Expected::Expiry(at.map(|at| Expires::At(at).word()));
        let word = new.map(|(value, expires)| (value, expires.word()));
        Ok(match self.swap_as(key, expected, word, durability)? {
            kv::Swapped::Done => ExpirySwap {
                done: true,
                present: new.map(|(_, expires)| expires),
            },
            kv::Swapped::Other(present) => ExpirySwap {
                done: false,
                present: present.map(|present| Expires::of_word(present.expires)),
            },
        })
    }
}

impl Batch {
    /// As [`put`](Batch::put); the value expires.
    pub fn put_until(
        &mut self,
        keyspace: &Keyspace,
        key: &[u8],
        value: &[u8],
        expires: Expires,
    ) -> Result<()> {
        let put = self.put_word(keyspace, (key, value), expires.word());
        match expires {
            Expires::Never => put,
            Expires::At(_) => put.map_err(too_large),
        }
    }
}
