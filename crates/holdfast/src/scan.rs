//! Going through keys in order.
//!
//! Invariant: a scan shows one moment, each key once, in one direction. For keys that are files it
//! shows the names of that moment, with the content that they have when the scan reaches them.

use crate::error::{Error, Result};
use crate::expiry::Expires;
use crate::keyspace::{Keyspace, whole};
use crate::kv::{self, Found};
use crate::view::{View, ViewOf};
use holdfast_client::{Client, served};
use std::ops::Bound;

/// The keys of a range and their values.
pub struct Scan {
    view: View,
    way: Way,
    keyspace: Keyspace,
    from: Vec<u8>,
    to: Option<Vec<u8>>,
    backward: bool,
    /// The value that `next_ref` lends, if it is not in the leaf.
    value: Vec<u8>,
}

enum Way {
    /// The tree is read here.
    Mapped(kv::Scan),
    /// The proxy reads it, from the first call on.
    Served(Option<served::Scan>),
}

/// The lowest key above `key`.
fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

impl Scan {
    pub(crate) fn new(
        view: View,
        keyspace: &Keyspace,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
    ) -> Scan {
        let from = match from {
            Bound::Included(key) => key.to_vec(),
            Bound::Excluded(key) => after(key),
            Bound::Unbounded => Vec::new(),
        };
        let to = match to {
            Bound::Included(key) => Some(after(key)),
            Bound::Excluded(key) => Some(key.to_vec()),
            Bound::Unbounded => None,
        };
        Scan::between(view, keyspace, from, to)
    }

    pub(crate) fn of_prefix(view: View, keyspace: &Keyspace, prefix: &[u8]) -> Scan {
        // The first key behind all that start with it: its last byte that can be raised is.
        let raised = prefix.iter().rposition(|byte| *byte < u8::MAX);
        let to = raised.map(|at| {
            let mut to = prefix[..=at].to_vec();
            to[at] += 1;
            to
        });
        Scan::between(view, keyspace, prefix.to_vec(), to)
    }

    fn between(view: View, keyspace: &Keyspace, from: Vec<u8>, to: Option<Vec<u8>>) -> Scan {
        let mut scan = Scan {
            view,
            way: Way::Served(None),
            keyspace: keyspace.clone(),
            from,
            to,
            backward: false,
            value: Vec::new(),
        };
        scan.begin();
        scan
    }

    /// The scan starts at its first key.
    fn begin(&mut self) {
        self.end();
        if !self.view.pinned.pool().inner.is_served() {
            let (from, to) = (&self.from, self.to.as_deref());
            self.way = Way::Mapped(kv::Scan::new(self.keyspace.id, from, to, self.backward));
        }
    }

    /// The proxy forgets it.
    fn end(&mut self) {
        if let Way::Served(scan) = &mut self.way
            && let Some(scan) = scan.take()
            && let Ok(ViewOf::Served(served, _)) = self.view.pinned.reach()
        {
            served.end_scan(&scan);
        }
    }

    /// The same keys from the last to the first. The scan starts again.
    #[must_use]
    pub fn backward(mut self) -> Scan {
        self.backward = true;
        self.begin();
        self
    }

    /// How many keys there are to come, without looking at their values.
    pub fn count_keys(mut self) -> Result<u64> {
        match (&mut self.way, self.view.pinned.reach()?) {
            (Way::Mapped(scan), ViewOf::Mapped(client, view)) => {
                Ok(client.kv_count(view, scan, u64::MAX)?.0)
            }
            (Way::Served(None), ViewOf::Served(served, view)) => {
                let range = (&self.from[..], self.to.as_deref());
                let mut scan = served.scan((self.keyspace.named(), view), range, self.backward)?;
                let counted = served.count(&mut scan);
                served.end_scan(&scan);
                counted
            }
            // The pairs that came with the last answer are here.
            (Way::Served(Some(_)), _) => {
                let mut count = 0;
                while self.next_ref()?.is_some() {
                    count += 1;
                }
                Ok(count)
            }
            _ => Err(Error::OtherProcess),
        }
    }

    /// When the value that `next` or `next_ref` gave last expires; a view shows also what has
    /// expired since.
    pub fn expires(&self) -> Expires {
        Expires::of_word(match &self.way {
            Way::Mapped(scan) => scan.expires(),
            Way::Served(scan) => scan.as_ref().map_or(kv::NEVER, served::Scan::expires),
        })
    }

    /// The next key and its value, which are valid until the next call; `None` at the end.
    pub fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        match (&mut self.way, self.view.pinned.reach()?) {
            (Way::Mapped(scan), ViewOf::Mapped(client, view)) => {
                next_mapped(scan, (client, view), &mut self.value)
            }
            (Way::Served(scan), ViewOf::Served(served, view)) => {
                let scan = match scan {
                    Some(scan) => scan,
                    none => {
                        let range = (&self.from[..], self.to.as_deref());
                        let keyspace = (self.keyspace.named(), view);
                        none.insert(served.scan(keyspace, range, self.backward)?)
                    }
                };
                let found = served.advance(scan)?;
                Ok(found.then(|| (scan.key(), scan.value())))
            }
            _ => Err(Error::OtherProcess),
        }
    }
}

fn next_mapped<'a>(
    scan: &'a mut kv::Scan,
    (client, view): (&Client, &kv::View),
    value: &'a mut Vec<u8>,
) -> Result<Option<(&'a [u8], &'a [u8])>> {
    let session = client.session();
    loop {
        match scan.advance(session, view)? {
            None => return Ok(None),
            Some(Found::Inline) => break,
            Some(Found::Blocks(blocks)) => {
                value.resize(blocks.len as usize, 0);
                kv::Scan::copy(session, view, &blocks, value)?;
                return Ok(Some((scan.key(), value)));
            }
            Some(Found::File(ino)) => {
                let key = scan.key();
                let found = whole(|out| Ok(scan.read(session, (key, ino), out, None)?))?;
                // It went since the scan began.
                let Some(found) = found else { continue };
                *value = found;
                return Ok(Some((scan.key(), value)));
            }
        }
    }
    Ok(Some((scan.key(), scan.value())))
}

impl Drop for Scan {
    fn drop(&mut self) {
        self.end();
    }
}

impl Iterator for Scan {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.next_ref() {
            Ok(Some((key, value))) => Some(Ok((key.to_vec(), value.to_vec()))),
            Ok(None) => None,
            Err(e) => Some(Err(e)),
        }
    }
}
