//! What Python gives us.
//!
//! Invariant: bytes that somebody may change while we look at them are copied first.

use holdfast::{Durability, Expires};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use std::ops::Deref;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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

/// A time in nanoseconds since 1970.
#[pyclass(frozen, eq, hash, from_py_object, module = "holdfast._native")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct At {
    #[pyo3(get)]
    ns: i64,
}

#[pymethods]
impl At {
    #[new]
    fn new(ns: i64) -> At {
        At { ns }
    }

    fn __repr__(&self) -> String {
        format!("holdfast.At({})", self.ns)
    }
}

/// When a value expires: a number of seconds or a timedelta from now, a datetime with a time zone,
/// or an `At`.
pub struct Expiry(Expires);

impl Expiry {
    /// `None`: never.
    pub fn of(given: Option<Expiry>) -> Expires {
        given.map_or(Expires::Never, |given| given.0)
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Expiry {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Expiry> {
        if let Ok(at) = object.cast::<At>() {
            return Ok(Expiry(Expires::At(at.get().ns)));
        }
        if let Ok(seconds) = object.extract::<f64>() {
            let time = Duration::try_from_secs_f64(seconds);
            let time = time.map_err(|e| PyValueError::new_err(e.to_string()))?;
            return Ok(Expiry(Expires::after(time)));
        }
        if let Ok(time) = object.extract::<SystemTime>() {
            let time = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            let time = i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
            return Ok(Expiry(Expires::At(time)));
        }
        let time: Duration = object.extract()?;
        Ok(Expiry(Expires::after(time)))
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
