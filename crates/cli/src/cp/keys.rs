//! Keyspaces: their values are copied from one moment, and files become values in batches.
//!
//! Invariants: what is a value in one keyspace is one in the other, whatever its key; a key that is
//! no name of a file is never left out without a word.

use super::content::{Paths, Reader};
use super::fault::{Fault, Result};
use super::fresh::{Fresh, Named};
use super::node::{Kind, Meta, Node};
use super::tree::{Into, in_the_way, joined};
use super::{Copier, attributes};
use crate::failure::Failure;
use crate::kv::escape;
use holdfast::{Durability, Expires, Keyspace, Opened, is_value};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::io::Write;
use std::ops::Bound;

/// A batch is committed when it has so many bytes.
const BATCH_BYTES: usize = 64 << 10;
/// Larger values are not held in memory.
const WHOLE_MAX: u64 = 1 << 20;
/// Of a value that is a file.
const VALUE_MODE: u32 = 0o644;

/// A value, and when it expires.
type Value = (Vec<u8>, Expires);

/// A keyspace that gets values.
pub struct Sink {
    keyspace: Keyspace,
    pairs: Vec<(Vec<u8>, Value)>,
    bytes: usize,
}

impl Sink {
    pub fn new(keyspace: Keyspace) -> Sink {
        Sink {
            keyspace,
            pairs: Vec::new(),
            bytes: 0,
        }
    }

    fn commit(&self, dir: &Opened) -> holdfast::Result<()> {
        let mut batch = dir.pool().batch();
        for (key, (value, expires)) in &self.pairs {
            batch.put_until(&self.keyspace, key, value, *expires)?;
        }
        batch.commit(Durability::Volatile)
    }
}

impl Copier<'_> {
    fn put(&mut self, to: &mut Into, key: &[u8], value: Value) -> Result<(), Failure> {
        let Some(sink) = &mut to.sink else {
            return Ok(());
        };
        sink.bytes += key.len() + value.0.len();
        sink.pairs.push((key.into(), value));
        match sink.bytes >= BATCH_BYTES {
            true => self.flush(to),
            false => Ok(()),
        }
    }

    /// Puts what is still to be put.
    pub fn flush(&mut self, to: &mut Into) -> Result<(), Failure> {
        let (Some(sink), Node::Pool(dir)) = (&mut to.sink, &to.node) else {
            return Ok(());
        };
        if sink.pairs.is_empty() {
            return Ok(());
        }
        let together = sink.commit(dir);
        let bytes = std::mem::take(&mut sink.bytes);
        for (key, (value, expires)) in std::mem::take(&mut sink.pairs) {
            let len = value.len() as u64;
            // Those that can be put are, and the others are named.
            let put = match together {
                Ok(()) => Ok(()),
                Err(_) => {
                    let volatile = Durability::Volatile;
                    sink.keyspace.put_until(&key, &value, expires, volatile)
                }
            };
            match put {
                Ok(()) => {
                    self.done.values += 1;
                    self.done.bytes += len;
                }
                Err(e) => self.failed(Fault::from(e).of(&joined(&to.shown, &key))),
            }
        }
        self.count_bytes(0);
        debug_assert!(bytes > 0);
        Ok(())
    }

    /// A file becomes a value.
    pub fn file_to_value(
        &mut self,
        (file, meta): (&Node, &Meta),
        to: &mut Into,
        key: &[u8],
        paths: Paths<'_>,
    ) -> Result<(), Failure> {
        if meta.kind == Kind::File && meta.size <= WHOLE_MAX {
            let mut value = Vec::new();
            let mut read = 0;
            self.buffer.resize(WHOLE_MAX as usize + 1, 0);
            loop {
                let n = paths.from(file.read_at(&mut self.buffer, read))?;
                value.extend_from_slice(&self.buffer[..n]);
                read += n as u64;
                if n == 0 || read > WHOLE_MAX {
                    break;
                }
            }
            if read <= WHOLE_MAX {
                return self.put(to, key, (value, Expires::Never));
            }
        }
        self.stream_to_value(&mut Reader::new(file), to, key, paths)
    }

    /// What is read becomes a value, however much it is.
    pub fn stream_to_value(
        &mut self,
        from: &mut impl std::io::Read,
        to: &mut Into,
        key: &[u8],
        paths: Paths<'_>,
    ) -> Result<(), Failure> {
        self.flush(to)?;
        let Some(sink) = &to.sink else {
            return Ok(());
        };
        let mut writer = paths.to(sink.keyspace.writer(key).map_err(Fault::from))?;
        let put = |part: &[u8]| paths.to(writer.write_all(part).map_err(Fault::from));
        self.stream(from, put, paths.from)?;
        paths.to(writer.finish(Durability::Ordered).map_err(Fault::from))?;
        self.done.values += 1;
        Ok(())
    }

    /// Whether a key is there that is to stay.
    pub fn keeps_key(&self, to: &Into, key: &[u8]) -> Result<bool, Failure> {
        let Some(sink) = to.sink.as_ref().filter(|_| self.args.no_clobber) else {
            return Ok(false);
        };
        let there = sink.keyspace.len_of(key).map_err(Fault::from);
        Ok(there.map_err(|e| e.of(&joined(&to.shown, key)))?.is_some())
    }

    /// Copies the values of a keyspace; what else is in its directory, to be copied one by one.
    pub fn values_of(
        &mut self,
        keyspace: &Keyspace,
        (node, path): (&Node, &[u8]),
        to: &mut Into,
    ) -> Result<Vec<Vec<u8>>, Failure> {
        let here = |e: Fault| e.of(path);
        let entries = node.entries().map_err(here)?.into_iter();
        let others = entries.filter(|(ino, _)| !is_value(*ino));
        let others: BTreeSet<_> = others.map(|(_, name)| name).collect();
        // Files may be larger than memory: no scan is to meet these.
        let is_large = |name: &&Vec<u8>| {
            let found = node.find(name).ok().flatten();
            found.is_some_and(|meta| meta.kind == Kind::File && meta.size > WHOLE_MAX)
        };
        let large: Vec<_> = others.iter().filter(is_large).collect();
        let owner = node.stat().map_err(here)?;
        let mut odd = Odd::default();
        let mut range = Range {
            keyspace,
            after: Vec::new(),
            refusals: others.len(),
        };
        for end in large.iter().map(|name| Some(name.as_slice())).chain([None]) {
            let mut each = |key: &[u8], value| {
                if others.contains(key) {
                } else if to.sink.is_none() && !is_name(key) {
                    odd.add(key.into());
                } else {
                    let done = self.value((keyspace, &owner), (key, value), to);
                    done.unwrap_or_else(|failure| self.failed(failure));
                }
            };
            let scanned = range.scan(end, &mut each).map_err(here);
            // What is no value is still to be copied.
            scanned.unwrap_or_else(|failure| self.failed(failure));
            range.after = end.unwrap_or_default().into();
        }
        let said = odd.said(keyspace, path);
        said.unwrap_or_else(|failure| self.failed(failure));
        Ok(others.into_iter().collect())
    }

    fn value(
        &mut self,
        (keyspace, owner): (&Keyspace, &Meta),
        (key, value): (&[u8], Value),
        to: &mut Into,
    ) -> Result<(), Failure> {
        let shown = joined(&to.shown, key);
        let there = match &to.sink {
            Some(_) => self.keeps_key(to, key)?,
            None => {
                let there = to.node.find(key).map_err(|e| e.of(&shown))?;
                match there.map(|there| there.kind) {
                    Some(Kind::Directory) => {
                        return Err(in_the_way().of(&shown));
                    }
                    there => there.is_some() && self.args.no_clobber,
                }
            }
        };
        if there {
            self.done.skipped += 1;
            return Ok(());
        }
        match &to.sink {
            Some(_) => self.put(to, key, value),
            None => self
                .value_to_file((keyspace, owner), (key, &value.0), to)
                .map_err(|e| e.of(&shown)),
        }
    }

    fn value_to_file(
        &mut self,
        (keyspace, owner): (&Keyspace, &Meta),
        (key, value): (&[u8], &[u8]),
        to: &Into,
    ) -> Result<()> {
        let fresh = Fresh::make(&to.node, VALUE_MODE)?;
        fresh.node.write_all_at(value, 0)?;
        if self.args.archive {
            let time = keyspace.modified_ns(key)?;
            let times = time.map_or(owner.times, |time| [time, time]);
            let meta = Meta {
                kind: Kind::File,
                mode: VALUE_MODE,
                times,
                ..*owner
            };
            attributes::keep_plain(&meta, &fresh.node, to.inherits)?;
        }
        self.settle(&fresh.node)?;
        match fresh.publish(key, !self.args.no_clobber)? {
            Named::Done => self.done.files += 1,
            Named::Taken => self.done.skipped += 1,
        }
        self.count_bytes(value.len());
        Ok(())
    }
}

/// Pairs of a keyspace that are to be copied.
struct Range<'a> {
    keyspace: &'a Keyspace,
    /// Those behind this key.
    after: Vec<u8>,
    /// How many files there are that may be closed to this user. They are copied by their names,
    /// and refused then.
    refusals: usize,
}

impl Range<'_> {
    /// Shows `each` all pairs before `end`. A view that is given up, because very much changes
    /// meanwhile, is followed by a later one.
    fn scan(&mut self, end: Option<&[u8]>, each: &mut dyn FnMut(&[u8], Value)) -> Result<()> {
        let until = end.map_or(Bound::Unbounded, Bound::Excluded);
        loop {
            let begin = self.after.clone();
            let from = match begin.is_empty() {
                true => Bound::Unbounded,
                false => Bound::Excluded(&begin[..]),
            };
            let mut pairs = self.keyspace.scan(from, until)?;
            let end = loop {
                match pairs.next().transpose().map_err(Fault::from) {
                    Ok(Some((key, value))) => {
                        each(&key, (value, pairs.expires()));
                        self.after = key;
                    }
                    Ok(None) => return Ok(()),
                    Err(e) if e.is(Errno::ACCESS) && self.refusals > 0 => self.refusals -= 1,
                    Err(e) => break e,
                }
            };
            if !end.is(Errno::STALE) || begin == self.after {
                return Err(end);
            }
        }
    }
}

/// Keys that are no names of files.
#[derive(Default)]
struct Odd {
    first: Option<Vec<u8>>,
    count: u64,
}

impl Odd {
    fn add(&mut self, key: Vec<u8>) {
        self.first.get_or_insert(key);
        self.count += 1;
    }

    fn said(self, keyspace: &Keyspace, shown: &[u8]) -> Result<(), Failure> {
        let Some(first) = self.first else {
            return Ok(());
        };
        let first = escape::short(&first);
        let what = match self.count {
            1 => format!("the key \"{first}\" is no name of a file and was not copied"),
            n => {
                format!("{n} keys, such as \"{first}\", are no names of files and were not copied")
            }
        };
        let fix = format!(
            "copy to a keyspace, or take all keys with holdfast kv POOL {} dump",
            keyspace.name()
        );
        Err(Fault::new(what).fix(fix).of(shown))
    }
}

fn is_name(key: &[u8]) -> bool {
    holdfast_pool::layout::is_legal_name(key)
}
