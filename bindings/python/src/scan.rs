//! `Scan`: an iterator of pairs.
//!
//! Invariant: it shows the keyspace as it was when the scan was made.

use crate::error::Failure;
use crate::handle::{Close, Handle};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;

#[pyclass(frozen, module = "holdfast._native")]
pub struct Scan {
    pub scan: Arc<Handle<holdfast::Scan>>,
}

type Pair<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>);

#[pymethods]
impl Scan {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Pair<'py>>> {
        let pair = py.detach(|| {
            let next = |scan: &mut holdfast::Scan| scan.next().transpose().map_err(Failure::from);
            self.scan.with(next)
        })?;
        Ok(pair.map(|(key, value)| (PyBytes::new(py, &key), PyBytes::new(py, &value))))
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.scan.close());
    }
}
