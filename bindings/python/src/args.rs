//! What Python gives us.
//!
//! Invariant: bytes that somebody may change while we look at them are copied first.

use holdfast::Durability;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use std::ops::Deref;

/// `bytes` as they are, anything else that is like bytes as a copy.
pub enum Bytes {
    Python(PyBackedBytes),
    Copied(Vec<u8>),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Python(bytes) => bytes,
            Bytes::Copied(bytes) => bytes,
        }
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Bytes {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Bytes> {
        match object.cast::<PyBytes>() {
            Ok(bytes) => Ok(Bytes::Python(bytes.to_owned().into())),
            Err(_) => {
                let buffer = PyBuffer::<u8>::get(&object)?;
                Ok(Bytes::Copied(buffer.to_vec(object.py())?))
            }
        }
    }
}

/// How long a change is to last, by name.
pub fn durability(name: &str) -> PyResult<Durability> {
    match name {
        "durable" => Ok(Durability::Durable),
        "ordered" => Ok(Durability::Ordered),
        "volatile" => Ok(Durability::Volatile),
        _ => Err(PyValueError::new_err(format!(
            "durability is 'durable', 'ordered' or 'volatile', not '{name}'"
        ))),
    }
}
