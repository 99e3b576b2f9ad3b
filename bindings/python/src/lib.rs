//! `holdfast._native`: the crate `holdfast` for Python; `python/holdfast` makes mappings, files
//! and context managers of it.
//!
//! Invariants: no lock is held while the interpreter is attached, and the interpreter is not
//! attached while the pool works, so threads never wait for each other in a circle; whatever was
//! made of a pool is closed with it.

mod args;
mod batch;
mod error;
mod handle;
mod keyspace;
mod lent;
mod pool;
mod scan;
mod stream;

use pyo3::prelude::*;
use std::path::PathBuf;

/// The program that serves pools, where the package knows it.
#[pyfunction]
fn set_program(path: PathBuf) {
    holdfast::use_program(path);
}

#[pymodule(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    error::register(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(set_program, module)?)?;
    module.add_class::<pool::Pool>()?;
    module.add_class::<pool::View>()?;
    module.add_class::<keyspace::Keyspace>()?;
    module.add_class::<args::At>()?;
    module.add_class::<batch::Batch>()?;
    module.add_class::<scan::Scan>()?;
    module.add_class::<lent::Lent>()?;
    module.add_class::<stream::Reader>()?;
    module.add_class::<stream::Writer>()
}
