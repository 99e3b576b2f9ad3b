//! Going through keys in order, as `Client` has it: some pairs with each call.
//!
//! Invariant: the proxy keeps where a scan is; here is what it answered last.

use crate::base::error::{Error, Result};
use crate::base::types::Caller;
use crate::served::Served;
use crate::served::channel::Ask;
use crate::served::keys::{View, by};
use crate::served::pairs::{PAIR_HEAD, first_pair};
use crate::served::wire::*;
use crate::values::Keyspace;
use alloc::vec::Vec;
use core::ops::Range;
use pmem::MutBuf;
use pool::layout::value::{NEVER, USER_KEY_MAX};

/// Bytes that the first call of a scan asks for; each further one asks for four times as many.
const ROOM_MIN: usize = 16 * 1024;

/// The keys of a range, in order or backwards.
pub struct Scan {
    /// How the proxy names it.
    scan: u32,
    /// What it answered last, and where the next pair is in that.
    bytes: Vec<u8>,
    next: usize,
    room: usize,
    done: bool,
    /// Where the pair is to which the scan has come.
    key: Range<usize>,
    value: Range<usize>,
    expires: i64,
    /// Its value, if it came apart.
    large: Option<Vec<u8>>,
    /// How the proxy names the value of the last pair, which comes apart, and its length.
    apart: Option<(u32, u64)>,
}

impl Served {
    /// The keys of `keyspace` in `view`, from `from` on, below `to` (`None`: to the end).
    pub fn scan(
        &self,
        c: &Caller,
        (keyspace, view): (Keyspace, View),
        (from, to): (&[u8], Option<&[u8]>),
        backward: bool,
    ) -> Result<Scan> {
        // No key is longer.
        let bound = |key: &'_ [u8]| key.len().min(USER_KEY_MAX + 1);
        let (from, to) = (&from[..bound(from)], to.map(|to| &to[..bound(to)]));
        let words = [
            keyspace.link.into(),
            view.0.into(),
            backward.into(),
            to.is_some().into(),
        ];
        let ask = Ask {
            texts: [from, to.unwrap_or_default()],
            ..by(c, &words)
        };
        Ok(Scan {
            scan: self.number(Op::ScanBegin, &ask)? as u32,
            bytes: Vec::new(),
            next: 0,
            room: ROOM_MIN,
            done: false,
            key: 0..0,
            value: 0..0,
            expires: NEVER,
            large: None,
            apart: None,
        })
    }

    /// A scan is not needed any more.
    pub fn end_scan(&self, scan: &Scan) {
        if let Some((apart, _)) = scan.apart {
            self.drop_kept(apart);
        }
        self.drop_kept(scan.scan);
    }
}

impl Scan {
    /// How the proxy names it.
    pub(super) fn name(&self) -> u32 {
        self.scan
    }

    /// Goes to the next key; false at the end.
    pub fn advance(&mut self, served: &Served, c: &Caller) -> Result<bool> {
        self.large = None;
        while self.next >= self.bytes.len() {
            if self.done {
                return Ok(false);
            }
            self.ask(served, c)?;
        }
        let rest = self.bytes.get(self.next..).unwrap_or_default();
        let (key, value, expires) = first_pair(rest).ok_or(Error::Invalid)?;
        self.expires = expires;
        let at = self.next + PAIR_HEAD;
        self.key = at..at + key;
        self.value = at + key..at + key + value.unwrap_or(0);
        self.next = self.value.end;
        if value.is_none() {
            let (apart, len) = self.apart.take().ok_or(Error::Invalid)?;
            self.large = Some(fetch(served, apart, len)?);
        }
        Ok(true)
    }

    fn ask(&mut self, served: &Served, c: &Caller) -> Result<()> {
        let words = [self.scan.into(), self.room as u64];
        let answered = served.ask(Op::ScanNext, &by(c, &words))?;
        let [_, _, done, apart, len, ..] = answered.words;
        self.bytes.resize(answered.len(), 0);
        answered.take(0, MutBuf::from(&mut self.bytes[..]))?;
        self.next = 0;
        self.done = done != 0;
        self.apart = match u32::try_from(apart) {
            Ok(apart @ 1..) => Some((apart, len)),
            _ => None,
        };
        self.room = (self.room * 4).min(BUFFER);
        Ok(())
    }

    /// The key that the scan has come to.
    pub fn key(&self) -> &[u8] {
        self.bytes.get(self.key.clone()).unwrap_or_default()
    }

    /// When its value expires.
    pub fn expires(&self) -> i64 {
        self.expires
    }

    /// Its value.
    pub fn value(&self) -> &[u8] {
        match &self.large {
            Some(large) => large,
            None => self.bytes.get(self.value.clone()).unwrap_or_default(),
        }
    }
}

/// A value that came apart.
fn fetch(served: &Served, apart: u32, len: u64) -> Result<Vec<u8>> {
    let mut value = Vec::new();
    let len = usize::try_from(len).map_err(|_| Error::NoMemory)?;
    if value.try_reserve_exact(len).is_err() {
        served.drop_kept(apart);
        return Err(Error::NoMemory);
    }
    value.resize(len, 0);
    served.take_rest(apart, &mut value)?;
    Ok(value)
}
