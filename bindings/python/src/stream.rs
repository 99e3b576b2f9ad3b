//! `Reader` and `Writer`: values piece by piece.
//!
//! Invariant: a value that is not finished was never there.

use crate::args::Bytes;
use crate::error::Failure;
use crate::handle::{Close, Handle};
use holdfast::{Durability, ValueReader, ValueWriter};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::Arc;

/// No more is read at once.
const PART_MAX: u64 = 1 << 24;

#[pyclass(frozen, module = "holdfast._native")]
pub struct Reader {
    pub reader: Arc<Handle<ValueReader>>,
}

#[pymethods]
impl Reader {
    /// The length of the value.
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(py.detach(|| {
            self.reader
                .with(|reader| Ok(reader.seek(SeekFrom::End(0))?))
        })?)
    }

    /// Bytes from an offset on; fewer than asked for at the end, or when it is very much.
    fn read_at<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        len: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let part = py.detach(|| {
            self.reader.with(|reader| {
                let mut part = Vec::new();
                reader.seek(SeekFrom::Start(offset))?;
                reader.take(len.min(PART_MAX)).read_to_end(&mut part)?;
                Ok::<_, Failure>(part)
            })
        })?;
        Ok(PyBytes::new(py, &part))
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.reader.close());
    }
}

#[pyclass(frozen, module = "holdfast._native")]
pub struct Writer {
    pub writer: Arc<Handle<ValueWriter>>,
    pub durability: Durability,
}

#[pymethods]
impl Writer {
    fn write(&self, py: Python<'_>, part: Bytes) -> PyResult<usize> {
        py.detach(|| self.writer.with(|writer| Ok(writer.write_all(&part)?)))?;
        Ok(part.len())
    }

    /// Makes what was written the value of the key.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| Ok::<_, Failure>(self.writer.finish()?.finish(self.durability)?))?)
    }

    /// Forgets what was written.
    fn abort(&self, py: Python<'_>) {
        py.detach(|| self.writer.close());
    }
}
