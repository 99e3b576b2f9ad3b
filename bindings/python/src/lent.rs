//! `Lent`: a value of a view as a buffer, where it lies in the pool if it can be.
//!
//! Invariants: what is handed out is read-only, and stays mapped and pinned for as long as any
//! buffer of it exists; no reference to it is made here.

use crate::error::Failure;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;

#[pyclass(frozen, module = "holdfast._native")]
pub struct Lent {
    pub value: holdfast::Borrowed,
}

#[pymethods]
impl Lent {
    /// Whether all that was read of it up to now was the value.
    #[getter]
    fn intact(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(py.detach(|| Ok::<_, Failure>(self.value.is_intact()?))?)
    }

    /// Whether it lies in the pool, and is no copy.
    #[getter]
    fn zero_copy(&self) -> bool {
        self.value.is_zero_copy()
    }

    fn __len__(&self) -> usize {
        self.value.len()
    }

    /// The buffer.
    ///
    /// # Safety
    /// `view` is what the interpreter passes, as the buffer protocol says.
    unsafe fn __getbuffer__(
        this: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let value = &this.get().value;
        let len = ffi::Py_ssize_t::try_from(value.len())
            .map_err(|_| PyBufferError::new_err("the value is too long for a buffer"))?;
        let start = value.as_ptr().cast_mut().cast();
        // SAFETY: `view` is the interpreter's. The bytes are mapped for as long as `this` lives,
        // of which the buffer holds a reference; the 1 makes them read-only.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, this.as_ptr(), start, len, 1, flags) };
        match filled {
            0 => Ok(()),
            _ => Err(PyErr::fetch(this.py())),
        }
    }
}
