//! `Scan`: an iterator of pairs.
//!
//! Invariants: it shows the keyspace as it was when the scan was made. Pairs are read ahead, more
//! and more of them, so that the interpreter is let go once for many; a failure comes behind the
//! pairs that were read before it.

use crate::error::Failure;
use crate::handle::{Close, Handle};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::sync::Arc;

/// What is read ahead at most.
const PAIRS: usize = 128;
const BYTES: usize = 64 << 10;

#[pyclass(frozen, module = "holdfast._native")]
pub struct Scan {
    pub scan: Arc<Handle<Ahead>>,
    /// Whether each pair comes with its time.
    pub expires: bool,
}

/// A scan, and what it found that nobody has asked for yet.
pub struct Ahead {
    scan: holdfast::Scan,
    /// Keys and values, one behind the other.
    bytes: Vec<u8>,
    /// Where each key and its value end, and when it expires.
    ends: Vec<(usize, usize, Option<i64>)>,
    /// How many pairs were handed out, and where they end.
    taken: usize,
    at: usize,
    failed: Option<Failure>,
}

impl Ahead {
    pub fn new(scan: holdfast::Scan) -> Ahead {
        Ahead {
            scan,
            bytes: Vec::new(),
            ends: Vec::new(),
            taken: 0,
            at: 0,
            failed: None,
        }
    }

    /// The next pair, if it was read.
    fn take(&mut self) -> Option<(&[u8], &[u8], Option<i64>)> {
        let (key_end, end, expires) = *self.ends.get(self.taken)?;
        let (key, value) = (&self.bytes[self.at..key_end], &self.bytes[key_end..end]);
        (self.taken, self.at) = (self.taken + 1, end);
        Some((key, value, expires))
    }

    /// Reads twice as many as the last time; whether there are any.
    fn fill(&mut self) -> Result<bool, Failure> {
        // Another thread was here first.
        if self.taken < self.ends.len() {
            return Ok(true);
        }
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        let wanted = (2 * self.ends.len()).clamp(1, PAIRS);
        self.bytes.clear();
        self.ends.clear();
        (self.taken, self.at) = (0, 0);
        while self.ends.len() < wanted && self.bytes.len() < BYTES {
            let (key, value) = match self.scan.next_ref() {
                Ok(Some(pair)) => pair,
                Ok(None) => break,
                Err(e) if self.ends.is_empty() => return Err(e.into()),
                Err(e) => {
                    self.failed = Some(e.into());
                    break;
                }
            };
            self.bytes.extend_from_slice(key);
            let key_end = self.bytes.len();
            self.bytes.extend_from_slice(value);
            let end = self.bytes.len();
            self.ends.push((key_end, end, self.scan.expires().time()));
        }
        Ok(!self.ends.is_empty())
    }
}

#[pymethods]
impl Scan {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        // Making bytes runs no program of the interpreter's, which could come back here.
        let take = |ahead: &mut Ahead| {
            let bytes = |bytes: &[u8]| PyBytes::new(py, bytes);
            let pair = ahead.take().map(|(key, value, expires)| {
                let (key, value) = (bytes(key), bytes(value));
                match self.expires {
                    true => (key, value, expires).into_pyobject(py),
                    false => (key, value).into_pyobject(py),
                }
            });
            Ok(pair)
        };
        loop {
            let pair = self.scan.with(take)?.transpose()?;
            if pair.is_some() || !py.detach(|| self.scan.with(Ahead::fill))? {
                return Ok(pair);
            }
        }
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.scan.close());
    }
}
