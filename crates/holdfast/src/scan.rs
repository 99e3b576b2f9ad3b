//! Going through keys in order.
//!
//! Invariant: a scan shows one moment, each key once, in one direction. For keys that are files it
//! shows the names of that moment, with the content that they have when the scan reaches them.

use crate::error::Result;
use crate::keyspace::whole;
use crate::kv::{self, Found};
use crate::view::View;
use std::ops::Bound;

/// The keys of a range and their values.
pub struct Scan {
    view: View,
    scan: kv::Scan,
    keyspace: kv::Keyspace,
    from: Vec<u8>,
    to: Option<Vec<u8>>,
    /// The value that `next_ref` lends, if it is not in the leaf.
    value: Vec<u8>,
}

/// The lowest key above `key`.
fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

impl Scan {
    pub(crate) fn new(
        view: View,
        keyspace: kv::Keyspace,
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

    pub(crate) fn of_prefix(view: View, keyspace: kv::Keyspace, prefix: &[u8]) -> Scan {
        // The first key behind all that start with it: its last byte that can be raised is.
        let raised = prefix.iter().rposition(|byte| *byte < u8::MAX);
        let to = raised.map(|at| {
            let mut to = prefix[..=at].to_vec();
            to[at] += 1;
            to
        });
        Scan::between(view, keyspace, prefix.to_vec(), to)
    }

    fn between(view: View, keyspace: kv::Keyspace, from: Vec<u8>, to: Option<Vec<u8>>) -> Scan {
        let scan = kv::Scan::new(keyspace, &from, to.as_deref(), false);
        Scan {
            view,
            scan,
            keyspace,
            from,
            to,
            value: Vec::new(),
        }
    }

    /// The same keys from the last to the first. The scan starts again.
    #[must_use]
    pub fn backward(mut self) -> Scan {
        self.scan = kv::Scan::new(self.keyspace, &self.from, self.to.as_deref(), true);
        self
    }

    /// The next key and its value, which are valid until the next call; `None` at the end.
    pub fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        let pinned = &self.view.pinned;
        let session = pinned.pool().inner.client()?.session();
        let view = pinned.view()?;
        loop {
            match self.scan.advance(session, view)? {
                None => return Ok(None),
                Some(Found::Inline) => break,
                Some(Found::Blocks(blocks)) => {
                    self.value.resize(blocks.len as usize, 0);
                    kv::Scan::copy(session, view, &blocks, &mut self.value)?;
                    return Ok(Some((self.scan.key(), &self.value)));
                }
                Some(Found::File(ino)) => {
                    let (scan, key) = (&self.scan, self.scan.key());
                    let found = whole(|out| Ok(scan.read(session, key, ino, out)?))?;
                    // It went since the scan began.
                    let Some(found) = found else { continue };
                    self.value = found;
                    return Ok(Some((self.scan.key(), &self.value)));
                }
            }
        }
        Ok(Some((self.scan.key(), self.scan.value())))
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
