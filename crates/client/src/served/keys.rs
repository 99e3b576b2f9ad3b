//! Keys and values, as `Client` has them.
//!
//! Invariant: a keyspace's `link` is how the proxy names it to this process, and to no other.

use crate::base::error::{Error, Result};
use crate::base::types::{Caller, OfdLink};
use crate::kv::{Durability, Times};
use crate::served::Served;
use crate::served::channel::Ask;
use crate::served::life::args;
use crate::served::wire::*;
use crate::values::Keyspace;
use alloc::vec;
use pmem::MutBuf;

/// A moment that stays as it is, until `drop_kept`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View(pub(super) u32);

/// `Durability` as a word.
pub(super) fn durability_word(durability: Durability) -> u64 {
    match durability {
        Durability::Durable => 0,
        Durability::Ordered => 1,
        Durability::Volatile => 2,
    }
}

/// A request by `c` with these arguments.
pub(super) fn by<'a>(c: &'a Caller<'a>, words: &[u64]) -> Ask<'a> {
    Ask {
        caller: Some(c),
        ..args(words)
    }
}

impl Served {
    /// The keyspace of this name; `create`: makes it if need be.
    pub fn keyspace(&self, c: &Caller, name: &[u8], create: bool) -> Result<Keyspace> {
        let ask = Ask {
            texts: [name, &[]],
            ..by(c, &[create.into()])
        };
        let words = self.ask(Op::KvOpen, &ask)?.words;
        Ok(Keyspace::new(words[3], words[2] as u32))
    }

    /// Shows the names of all keyspaces to `each`.
    pub fn keyspaces(&self, c: &Caller, each: &mut dyn FnMut(&[u8])) -> Result<()> {
        let mut seen = 0;
        loop {
            let answered = self.ask(Op::KvList, &by(c, &[seen]))?;
            let mut names = vec![0; answered.len()];
            answered.take(0, MutBuf::from(&mut names[..]))?;
            let is_all = answered.words[3] != 0;
            drop(answered);
            // A name has no NUL; each ends with one.
            for name in names.split(|byte| *byte == 0).filter(|n| !n.is_empty()) {
                each(name);
                seen += 1;
            }
            if is_all || names.is_empty() {
                return Ok(());
            }
        }
    }

    /// Copies the value of `key`, in `view` or as it is now, to the start of `out`, as much as
    /// there is room for; its length.
    pub fn kv_get(
        &self,
        c: &Caller,
        keyspace: Keyspace,
        view: Option<View>,
        key: &[u8],
        out: &mut [u8],
    ) -> Result<Option<u64>> {
        if key.is_empty() || key.len() > pool::layout::value::USER_KEY_MAX {
            return Ok(None);
        }
        let view = view.map_or(0, |view| view.0.into());
        let ask = Ask {
            texts: [key, &[]],
            ..by(c, &[keyspace.link.into(), view, out.len() as u64])
        };
        let answered = self.ask(Op::KvGet, &ask)?;
        let [_, _, found, len, rest, ..] = answered.words;
        if found == 0 {
            return Ok(None);
        }
        match u32::try_from(rest).ok().filter(|rest| *rest != 0) {
            None => {
                answered.take(0, MutBuf::from(&mut *out))?;
            }
            Some(rest) => {
                drop(answered);
                let kept = out.len().min(usize::try_from(len).unwrap_or(usize::MAX));
                self.take_rest(rest, &mut out[..kept])?;
            }
        }
        Ok(Some(len))
    }

    /// The length of the value of `key`, and its times.
    pub fn kv_find(
        &self,
        c: &Caller,
        keyspace: Keyspace,
        view: Option<View>,
        key: &[u8],
    ) -> Result<Option<Times>> {
        if key.is_empty() || key.len() > pool::layout::value::USER_KEY_MAX {
            return Ok(None);
        }
        let view = view.map_or(0, |view| view.0.into());
        let ask = Ask {
            texts: [key, &[]],
            ..by(c, &[keyspace.link.into(), view, 0])
        };
        let [_, _, found, len, _, mtime, expires, ..] = self.ask(Op::KvGet, &ask)?.words;
        let (mtime, expires) = (mtime as i64, expires as i64);
        Ok((found != 0).then_some(Times {
            len,
            mtime,
            expires,
        }))
    }

    /// Fills `out` with a value that the proxy keeps, which it forgets.
    pub(super) fn take_rest(&self, rest: u32, out: &mut [u8]) -> Result<()> {
        let taken = self.copy_rest(rest, out);
        self.drop_kept(rest);
        taken
    }

    fn copy_rest(&self, rest: u32, out: &mut [u8]) -> Result<()> {
        let mut at = 0;
        while at < out.len() {
            let answered = self.ask(Op::KvRest, &args(&[rest.into(), at as u64]))?;
            match answered.take(0, MutBuf::from(&mut out[at..]))? {
                0 => return Err(Error::Invalid),
                got => at += got,
            }
        }
        Ok(())
    }

    /// The proxy forgets what it keeps for us under this name. Its errors are nobody's.
    pub(super) fn drop_kept(&self, kept: u32) {
        let _ = self.tell(Op::KvDrop, &args(&[kept.into()]));
    }

    /// Makes a file that has no name yet the value of `key`, which must be a legal name.
    pub fn kv_name(
        &self,
        c: &Caller,
        keyspace: Keyspace,
        key: &[u8],
        ofd: OfdLink,
        durability: Durability,
    ) -> Result<()> {
        let durable = durability_word(durability);
        let ask = Ask {
            texts: [key, &[]],
            ..by(c, &[keyspace.link.into(), ofd.raw().into(), durable])
        };
        self.tell(Op::KvName, &ask)
    }

    /// A view of the present; one that has all names of a keyspace's directory.
    pub fn view(&self, keyspace: Option<Keyspace>) -> Result<View> {
        let keyspace = keyspace.map_or(0, |keyspace| keyspace.link.into());
        let view = self.number(Op::ViewBegin, &args(&[keyspace]))?;
        u32::try_from(view).map(View).map_err(|_| Error::Invalid)
    }

    /// Ends a view.
    pub fn end_view(&self, view: View) {
        self.drop_kept(view.0);
    }
}
