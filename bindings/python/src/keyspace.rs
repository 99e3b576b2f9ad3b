//! `Keyspace`: keys and values of a pool or of a view.
//!
//! Invariant: a missing key is a KeyError where a mapping says so, else None or False.

use crate::args::{Bytes, Expiry, durability};
use crate::error::Failure;
use crate::handle::{Close, Handle};
use crate::lent::Lent;
use crate::pool::{Pool, Shared, Source};
use crate::scan::{Ahead, Scan};
use crate::stream::{Reader, Writer};
use holdfast::{Durability, Expires, ExpirySwap, ViewKeyspace};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ops::Bound as End;
use std::sync::Arc;

/// The keyspace itself, or what it was.
#[derive(Clone)]
pub enum Keys {
    Present(holdfast::Keyspace),
    View(Arc<ViewKeyspace>),
}

impl Keys {
    /// The keyspace itself, to change it.
    pub fn present(&self) -> Result<&holdfast::Keyspace, Failure> {
        match self {
            Keys::Present(keyspace) => Ok(keyspace),
            Keys::View(_) => Err(Failure::read_only()),
        }
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        Ok(match self {
            Keys::Present(keyspace) => keyspace.get(key)?,
            Keys::View(keyspace) => keyspace.get(key)?,
        })
    }

    fn size(&self, key: &[u8]) -> Result<Option<u64>, Failure> {
        Ok(match self {
            Keys::Present(keyspace) => keyspace.get_into(key, &mut [])?,
            Keys::View(keyspace) => keyspace.get_into(key, &mut [])?,
        })
    }
}

/// Whether a change was made, and the value that there is.
type Swapped<'py> = (bool, Option<Bound<'py, PyBytes>>);

fn swapped<'py>(py: Python<'py>, swap: holdfast::Swap) -> Swapped<'py> {
    let present = swap.present.map(|value| PyBytes::new(py, &value));
    (swap.done, present)
}

#[pyclass(subclass, frozen, module = "holdfast._native")]
pub struct Keyspace {
    pub shared: Arc<Shared>,
    pub keys: Arc<Handle<Keys>>,
    name: String,
    durability: Durability,
}

impl Keyspace {
    fn wanted(&self, name: Option<&str>) -> PyResult<Durability> {
        name.map_or(Ok(self.durability), durability)
    }

    fn find(&self, py: Python<'_>, key: &Bytes) -> PyResult<Option<Vec<u8>>> {
        Ok(py.detach(|| self.keys.get()?.get(key))?)
    }

    /// Whether a change was made, and when its key expires now.
    fn if_expires(
        &self,
        py: Python<'_>,
        change: impl FnOnce(&holdfast::Keyspace) -> holdfast::Result<ExpirySwap> + Send,
    ) -> PyResult<(bool, Option<i64>)> {
        let swap = py.detach(|| -> Result<_, Failure> {
            let keys = self.keys.get()?;
            Ok(change(keys.present()?)?)
        })?;
        Ok((swap.done, swap.present.and_then(Expires::time)))
    }

    fn scanned(&self, scan: holdfast::Scan, reverse: bool, expires: bool) -> Scan {
        let scan = if reverse { scan.backward() } else { scan };
        let scan = Handle::new("scan", Ahead::new(scan));
        self.shared.children.add(&scan);
        Scan { scan, expires }
    }
}

#[pymethods]
impl Keyspace {
    #[new]
    fn new(
        py: Python<'_>,
        pool: PyRef<'_, Pool>,
        name: String,
        create: bool,
        durability: &str,
    ) -> PyResult<Keyspace> {
        let durability = crate::args::durability(durability)?;
        let shared = pool.shared.clone();
        let keys = py.detach(|| -> Result<_, Failure> {
            Ok(match (shared.source.get()?, create) {
                (Source::Present(pool), true) => Keys::Present(pool.keyspace_or_create(&name)?),
                (Source::Present(pool), false) => Keys::Present(pool.keyspace(&name)?),
                (Source::View(view), _) => Keys::View(Arc::new(view.keyspace(&name)?)),
            })
        })?;
        let keys = Handle::new("keyspace", keys);
        shared.children.add(&keys);
        Ok(Keyspace {
            shared,
            keys,
            name,
            durability,
        })
    }

    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.keys.close());
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: Bytes) -> PyResult<Bound<'py, PyBytes>> {
        match self.find(py, &key)? {
            Some(value) => Ok(PyBytes::new(py, &value)),
            None => Err(PyKeyError::new_err(PyBytes::new(py, &key).unbind())),
        }
    }

    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: Bytes,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let value = self.find(py, &key)?;
        Ok(value
            .map(|value| PyBytes::new(py, &value).into_any())
            .or(default))
    }

    /// The length of a value, or None.
    fn size(&self, py: Python<'_>, key: Bytes) -> PyResult<Option<u64>> {
        Ok(py.detach(|| self.keys.get()?.size(&key))?)
    }

    fn __contains__(&self, py: Python<'_>, key: Bytes) -> PyResult<bool> {
        Ok(self.size(py, key)?.is_some())
    }

    fn __setitem__(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<()> {
        self.put(py, key, value, None, None)
    }

    #[pyo3(signature = (key, value, durability=None, *, expires=None))]
    fn put(
        &self,
        py: Python<'_>,
        key: Bytes,
        value: Bytes,
        durability: Option<&str>,
        expires: Option<Expiry>,
    ) -> PyResult<()> {
        let (wanted, expires) = (self.wanted(durability)?, Expiry::of(expires));
        Ok(py.detach(|| {
            let keys = self.keys.get()?;
            Ok::<_, Failure>(keys.present()?.put_until(&key, &value, expires, wanted)?)
        })?)
    }

    /// Says anew when a key expires; False: there is no such key.
    #[pyo3(signature = (key, expires, durability=None))]
    fn expire(
        &self,
        py: Python<'_>,
        key: Bytes,
        expires: Option<Expiry>,
        durability: Option<&str>,
    ) -> PyResult<bool> {
        let (wanted, expires) = (self.wanted(durability)?, Expiry::of(expires));
        Ok(py.detach(|| {
            let keys = self.keys.get()?;
            Ok::<_, Failure>(keys.present()?.expire(&key, expires, wanted)?)
        })?)
    }

    /// When a key expires, in nanoseconds since 1970; None: never, or there is no such key.
    fn expires_ns(&self, py: Python<'_>, key: Bytes) -> PyResult<Option<i64>> {
        let found = py.detach(|| -> Result<_, Failure> {
            Ok(match self.keys.get()? {
                Keys::Present(keyspace) => keyspace.expires(&key)?,
                Keys::View(keyspace) => keyspace.expires(&key)?,
            })
        })?;
        Ok(match found {
            Some(Expires::At(time)) => Some(time),
            Some(Expires::Never) | None => None,
        })
    }

    /// When a value was put, in nanoseconds since 1970, or None.
    fn modified_ns(&self, py: Python<'_>, key: Bytes) -> PyResult<Option<i64>> {
        Ok(py.detach(|| -> Result<_, Failure> {
            Ok(match self.keys.get()? {
                Keys::Present(keyspace) => keyspace.modified_ns(&key)?,
                Keys::View(keyspace) => keyspace.modified_ns(&key)?,
            })
        })?)
    }

    /// Sets a key to a value if it has the expected one; None: if it has none.
    #[pyo3(signature = (key, expected, value, durability=None, *, expires=None))]
    fn put_if<'py>(
        &self,
        py: Python<'py>,
        key: Bytes,
        expected: Option<Bytes>,
        value: Bytes,
        durability: Option<&str>,
        expires: Option<Expiry>,
    ) -> PyResult<Swapped<'py>> {
        let (wanted, expires) = (self.wanted(durability)?, Expiry::of(expires));
        let swap = py.detach(|| -> Result<_, Failure> {
            let keys = self.keys.get()?;
            let keyspace = keys.present()?;
            Ok(keyspace.put_if_until(&key, expected.as_deref(), &value, expires, wanted)?)
        })?;
        Ok(swapped(py, swap))
    }

    /// Takes a key away if it has the expected value.
    #[pyo3(signature = (key, expected, durability=None))]
    fn erase_if<'py>(
        &self,
        py: Python<'py>,
        key: Bytes,
        expected: Bytes,
        durability: Option<&str>,
    ) -> PyResult<Swapped<'py>> {
        let wanted = self.wanted(durability)?;
        let swap = py.detach(|| -> Result<_, Failure> {
            let keys = self.keys.get()?;
            Ok(keys.present()?.erase_if(&key, &expected, wanted)?)
        })?;
        Ok(swapped(py, swap))
    }

    /// Sets a key to a value if it expires, at a time or at any; None as the time of now: never, or
    /// there is no such key.
    #[pyo3(signature = (key, at_ns, value, durability=None, *, expires=None))]
    fn put_if_expires(
        &self,
        py: Python<'_>,
        key: Bytes,
        at_ns: Option<i64>,
        value: Bytes,
        durability: Option<&str>,
        expires: Option<Expiry>,
    ) -> PyResult<(bool, Option<i64>)> {
        let (wanted, expires) = (self.wanted(durability)?, Expiry::of(expires));
        self.if_expires(py, |keyspace| {
            keyspace.put_if_expires(&key, at_ns, &value, expires, wanted)
        })
    }

    /// Takes a key away if it expires, as `put_if_expires`.
    #[pyo3(signature = (key, at_ns=None, durability=None))]
    fn erase_if_expires(
        &self,
        py: Python<'_>,
        key: Bytes,
        at_ns: Option<i64>,
        durability: Option<&str>,
    ) -> PyResult<(bool, Option<i64>)> {
        let wanted = self.wanted(durability)?;
        self.if_expires(py, |keyspace| {
            keyspace.erase_if_expires(&key, at_ns, wanted)
        })
    }

    /// Says anew when a key expires if it does, as `put_if_expires`.
    #[pyo3(signature = (key, at_ns, expires, durability=None))]
    fn expire_if(
        &self,
        py: Python<'_>,
        key: Bytes,
        at_ns: Option<i64>,
        expires: Option<Expiry>,
        durability: Option<&str>,
    ) -> PyResult<(bool, Option<i64>)> {
        let (wanted, expires) = (self.wanted(durability)?, Expiry::of(expires));
        self.if_expires(py, |keyspace| {
            keyspace.expire_if(&key, at_ns, expires, wanted)
        })
    }

    /// How many keys there are.
    fn count(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(py.detach(|| -> Result<_, Failure> {
            Ok(match self.keys.get()? {
                Keys::Present(keyspace) => keyspace.count()?,
                Keys::View(keyspace) => keyspace.count()?,
            })
        })?)
    }

    fn __delitem__(&self, py: Python<'_>, key: Bytes) -> PyResult<()> {
        let name = PyBytes::new(py, &key).unbind();
        match self.erase(py, key, None)? {
            true => Ok(()),
            false => Err(PyKeyError::new_err(name)),
        }
    }

    /// Takes a key away and says whether it was there.
    #[pyo3(signature = (key, durability=None))]
    fn erase(&self, py: Python<'_>, key: Bytes, durability: Option<&str>) -> PyResult<bool> {
        let wanted = self.wanted(durability)?;
        Ok(py.detach(|| {
            let keys = self.keys.get()?;
            Ok::<_, Failure>(keys.present()?.remove(&key, wanted)?)
        })?)
    }

    /// Takes all keys in [start, end) away.
    #[pyo3(signature = (start=None, end=None, durability=None))]
    fn erase_range(
        &self,
        py: Python<'_>,
        start: Option<Bytes>,
        end: Option<Bytes>,
        durability: Option<&str>,
    ) -> PyResult<()> {
        let wanted = self.wanted(durability)?;
        Ok(py.detach(|| {
            let keys = self.keys.get()?;
            let start = start.as_deref().unwrap_or(&[]);
            Ok::<_, Failure>(keys.present()?.erase_range(start, end.as_deref(), wanted)?)
        })?)
    }

    /// Pairs with keys in [start, end), in order; with `expires`, each with its time.
    #[pyo3(signature = (start=None, end=None, reverse=false, *, expires=false))]
    fn scan(
        &self,
        py: Python<'_>,
        start: Option<Bytes>,
        end: Option<Bytes>,
        reverse: bool,
        expires: bool,
    ) -> PyResult<Scan> {
        let scan = py.detach(|| -> Result<_, Failure> {
            let from = start.as_deref().map_or(End::Unbounded, End::Included);
            let to = end.as_deref().map_or(End::Unbounded, End::Excluded);
            Ok(match self.keys.get()? {
                Keys::Present(keyspace) => keyspace.scan(from, to)?,
                Keys::View(keyspace) => keyspace.scan(from, to)?,
            })
        })?;
        Ok(self.scanned(scan, reverse, expires))
    }

    /// Pairs whose keys begin so, in order; with `expires`, each with its time.
    #[pyo3(signature = (prefix, reverse=false, *, expires=false))]
    fn prefix(
        &self,
        py: Python<'_>,
        prefix: Bytes,
        reverse: bool,
        expires: bool,
    ) -> PyResult<Scan> {
        let scan = py.detach(|| -> Result<_, Failure> {
            Ok(match self.keys.get()? {
                Keys::Present(keyspace) => keyspace.prefix(&prefix)?,
                Keys::View(keyspace) => keyspace.prefix(&prefix)?,
            })
        })?;
        Ok(self.scanned(scan, reverse, expires))
    }

    /// A value of a view where it lies; None if there is no such key, or no view.
    fn lend(&self, py: Python<'_>, key: Bytes) -> PyResult<Option<Lent>> {
        let value = py.detach(|| -> Result<_, Failure> {
            Ok(match self.keys.get()? {
                Keys::Present(_) => None,
                Keys::View(keyspace) => keyspace.borrow(&key)?,
            })
        })?;
        Ok(value.map(|value| Lent { value }))
    }

    fn reader(&self, py: Python<'_>, key: Bytes) -> PyResult<Option<Reader>> {
        let reader = py.detach(|| -> Result<_, Failure> {
            Ok(match self.keys.get()? {
                Keys::Present(keyspace) => keyspace.reader(&key)?,
                Keys::View(keyspace) => keyspace.reader(&key)?,
            })
        })?;
        Ok(reader.map(|reader| {
            let reader = Handle::new("reader", reader);
            self.shared.children.add(&reader);
            Reader { reader }
        }))
    }

    #[pyo3(signature = (key, durability=None, *, expires=None))]
    fn writer(
        &self,
        py: Python<'_>,
        key: Bytes,
        durability: Option<&str>,
        expires: Option<Expiry>,
    ) -> PyResult<Writer> {
        let (durability, expires) = (self.wanted(durability)?, Expiry::of(expires));
        let writer = py.detach(|| -> Result<_, Failure> {
            let keys = self.keys.get()?;
            Ok(keys.present()?.writer_until(&key, expires)?)
        })?;
        let writer = Handle::new("writer", writer);
        self.shared.children.add(&writer);
        Ok(Writer { writer, durability })
    }
}
