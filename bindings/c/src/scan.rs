//! `hf_scan_*`.
//!
//! Invariant: the pair that a scan handed out last stays where it is until the next is asked for:
//! in the scan's own copy of a leaf, or beside it.

use crate::error::{Refusal, number, status};
use crate::foreign::{Input, Place, Start};
use crate::keyspace::{Keys, range};
use crate::table::{Handle, kind};
use crate::{REVERSE, flags};
use holdfast::Scan;
use std::ffi::{c_int, c_uint};
use std::ops::Bound;
use std::sync::{Mutex, PoisonError};

/// A scan on its way.
pub struct Way(pub Mutex<Scan>);
kind!(Way, 4, "scan");

impl Way {
    fn new(scan: Scan, given: c_uint) -> Result<Way, Refusal> {
        Ok(Way(Mutex::new(match flags(given, REVERSE)? {
            0 => scan,
            _ => scan.backward(),
        })))
    }
}

/// All pairs between two keys, in order.
#[unsafe(no_mangle)]
pub extern "C" fn hf_scan_open(
    keyspace: Handle<Keys>,
    from: Input,
    from_len: usize,
    to: Input,
    to_len: usize,
    out: Place<Handle<Way>>,
) -> c_int {
    hf_scan_open_flags(keyspace, from, from_len, to, to_len, 0, out)
}

/// All pairs between two keys, either way.
#[unsafe(no_mangle)]
pub extern "C" fn hf_scan_open_flags(
    keyspace: Handle<Keys>,
    from: Input,
    from_len: usize,
    to: Input,
    to_len: usize,
    given: c_uint,
    mut out: Place<Handle<Way>>,
) -> c_int {
    status(out.put(|| {
        flags(given, REVERSE)?;
        let keys = keyspace.get()?;
        let (from, to) = range(&from, from_len, &to, to_len)?;
        let from = from.map_or(Bound::Unbounded, Bound::Included);
        let to = to.map_or(Bound::Unbounded, Bound::Excluded);
        let scan = match &*keys {
            Keys::Present(keyspace, _) => keyspace.scan(from, to)?,
            Keys::View(keyspace) => keyspace.scan(from, to)?,
        };
        Way::new(scan, given)
    }))
}

/// All pairs whose keys begin so.
#[unsafe(no_mangle)]
pub extern "C" fn hf_scan_prefix(
    keyspace: Handle<Keys>,
    prefix: Input,
    prefix_len: usize,
    given: c_uint,
    mut out: Place<Handle<Way>>,
) -> c_int {
    status(out.put(|| {
        flags(given, REVERSE)?;
        let keys = keyspace.get()?;
        let prefix = prefix.bytes(prefix_len)?;
        let scan = match &*keys {
            Keys::Present(keyspace, _) => keyspace.prefix(prefix)?,
            Keys::View(keyspace) => keyspace.prefix(prefix)?,
        };
        Way::new(scan, given)
    }))
}

/// The next pair.
#[unsafe(no_mangle)]
pub extern "C" fn hf_scan_next(
    scan: Handle<Way>,
    mut key: Place<Start>,
    mut key_len: Place<usize>,
    mut val: Place<Start>,
    mut val_len: Place<usize>,
) -> c_int {
    number((|| {
        let way = scan.get()?;
        let mut scan = way.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((found, value)) = scan.next_ref()? else {
            return Ok(0);
        };
        key.store(Start::of(found));
        key_len.store(found.len());
        val.store(Start::of(value));
        val_len.store(value.len());
        Ok(1)
    })())
}

/// Ends a scan.
#[unsafe(no_mangle)]
pub extern "C" fn hf_scan_close(scan: Handle<Way>) {
    drop(scan.close());
}
