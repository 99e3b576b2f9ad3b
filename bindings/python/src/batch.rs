//! `Batch`: changes that happen all or not at all.
//!
//! Invariant: a batch is given to the pool once.

use crate::args::{Bytes, Expiry, durability};
use crate::error::Failure;
use crate::handle::{Close, Handle};
use crate::keyspace::Keyspace;
use crate::pool::Pool;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;

#[pyclass(subclass, frozen, module = "holdfast._native")]
pub struct Batch {
    batch: Arc<Handle<holdfast::Batch>>,
    pool: Arc<crate::pool::Shared>,
    durability: holdfast::Durability,
}

impl Batch {
    fn change(
        &self,
        py: Python<'_>,
        keyspace: &Keyspace,
        make: impl FnOnce(&mut holdfast::Batch, &holdfast::Keyspace) -> holdfast::Result<()> + Send,
    ) -> PyResult<()> {
        if !Arc::ptr_eq(&self.pool, &keyspace.shared) {
            let why = "the keyspace is of another pool than the batch";
            return Err(PyValueError::new_err(why));
        }
        Ok(py.detach(|| {
            let keys = keyspace.keys.get()?;
            let keyspace = keys.present()?;
            self.batch.with(|batch| Ok(make(batch, keyspace)?))
        })?)
    }
}

#[pymethods]
impl Batch {
    #[new]
    fn new(py: Python<'_>, pool: PyRef<'_, Pool>, durability: &str) -> PyResult<Batch> {
        let durability = crate::args::durability(durability)?;
        let pool = pool.shared.clone();
        let batch = py.detach(|| {
            let source = pool.source.get()?;
            Ok::<_, Failure>(source.present()?.batch())
        })?;
        let batch = Handle::new("batch", batch);
        pool.children.add(&batch);
        Ok(Batch {
            batch,
            pool,
            durability,
        })
    }

    #[pyo3(signature = (keyspace, key, value, *, expires=None))]
    fn put(
        &self,
        py: Python<'_>,
        keyspace: PyRef<'_, Keyspace>,
        key: Bytes,
        value: Bytes,
        expires: Option<Expiry>,
    ) -> PyResult<()> {
        let (keyspace, expires): (&Keyspace, _) = (&keyspace, Expiry::of(expires));
        self.change(py, keyspace, |batch, keyspace| {
            batch.put_until(keyspace, &key, &value, expires)
        })
    }

    fn erase(&self, py: Python<'_>, keyspace: PyRef<'_, Keyspace>, key: Bytes) -> PyResult<()> {
        let keyspace: &Keyspace = &keyspace;
        self.change(py, keyspace, |batch, keyspace| batch.erase(keyspace, &key))
    }

    #[pyo3(signature = (keyspace, start=None, end=None))]
    fn erase_range(
        &self,
        py: Python<'_>,
        keyspace: PyRef<'_, Keyspace>,
        start: Option<Bytes>,
        end: Option<Bytes>,
    ) -> PyResult<()> {
        let keyspace: &Keyspace = &keyspace;
        self.change(py, keyspace, |batch, keyspace| {
            batch.erase_range(keyspace, start.as_deref().unwrap_or(&[]), end.as_deref())
        })
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.batch.with(|batch| Ok(batch.len()))?)
    }

    /// All of it, or nothing.
    #[pyo3(signature = (durability=None))]
    fn commit(&self, py: Python<'_>, durability: Option<&str>) -> PyResult<()> {
        let wanted = durability.map_or(Ok(self.durability), self::durability)?;
        Ok(py.detach(|| Ok::<_, Failure>(self.batch.finish()?.commit(wanted)?))?)
    }

    /// Nothing of it.
    fn abort(&self, py: Python<'_>) {
        py.detach(|| self.batch.close());
    }
}
