//! `Pool`: a pool, or a view of one.
//!
//! Invariant: a view is a pool of which nothing can be changed.

use crate::error::Failure;
use crate::handle::{Children, Close, Handle};
use holdfast::QuotaOf;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

/// The pool itself, or what it was.
#[derive(Clone)]
pub enum Source {
    Present(holdfast::Pool),
    View(Arc<holdfast::View>),
}

impl Source {
    /// The pool itself, to change it.
    pub fn present(&self) -> Result<&holdfast::Pool, Failure> {
        match self {
            Source::Present(pool) => Ok(pool),
            Source::View(_) => Err(Failure::read_only()),
        }
    }
}

/// What a pool's descendants share.
pub struct Shared {
    pub source: Arc<Handle<Source>>,
    pub children: Children,
}

impl Shared {
    fn new(source: Source) -> Arc<Shared> {
        Arc::new(Shared {
            source: Handle::new("pool", source),
            children: Children::default(),
        })
    }
}

impl Close for Shared {
    fn close(&self) {
        self.children.close();
        self.source.close();
    }
}

#[pyclass(subclass, frozen, module = "holdfast._native")]
pub struct Pool {
    pub shared: Arc<Shared>,
}

#[pymethods]
impl Pool {
    #[new]
    fn new(py: Python<'_>, path: PathBuf, create: bool) -> PyResult<Pool> {
        let pool = py.detach(|| -> Result<_, Failure> {
            Ok(match create {
                true => holdfast::Pool::open_or_create(path)?,
                false => holdfast::Pool::open(path)?,
            })
        })?;
        Ok(Pool {
            shared: Shared::new(Source::Present(pool)),
        })
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| match self.shared.source.get()? {
            Source::Present(pool) => Ok::<_, Failure>(pool.sync()?),
            Source::View(_) => Ok(()),
        })?)
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.shared.close());
    }

    #[getter]
    fn closed(&self) -> bool {
        self.shared.source.is_closed()
    }

    fn keyspaces(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(py.detach(|| {
            Ok::<_, Failure>(match self.shared.source.get()? {
                Source::Present(pool) => pool.keyspaces()?,
                Source::View(view) => view.keyspaces()?,
            })
        })?)
    }

    /// Removes a keyspace and all its keys.
    fn drop_keyspace(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        Ok(py.detach(|| {
            let source = self.shared.source.get()?;
            Ok::<_, Failure>(source.present()?.keyspace_drop(name)?)
        })?)
    }

    /// Gives a keyspace another name; with `replace`, drops one that has it.
    #[pyo3(signature = (name, new, *, replace=false))]
    fn rename_keyspace(
        &self,
        py: Python<'_>,
        name: &str,
        new: &str,
        replace: bool,
    ) -> PyResult<()> {
        Ok(py.detach(|| {
            let source = self.shared.source.get()?;
            Ok::<_, Failure>(source.present()?.keyspace_rename(name, new, replace)?)
        })?)
    }

    fn create_snapshot(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        Ok(py.detach(|| {
            let source = self.shared.source.get()?;
            Ok::<_, Failure>(source.present()?.snapshot_create(name)?)
        })?)
    }

    /// Makes room for so many bytes of data, more than there is, while the pool is in use.
    fn grow(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        Ok(py.detach(|| {
            let source = self.shared.source.get()?;
            Ok::<_, Failure>(source.present()?.grow(size)?)
        })?)
    }

    /// Limits what a user, a directory with all below it, or a keyspace may take; what limits there
    /// were goes.
    #[pyo3(signature = (*, user=None, directory=None, keyspace=None, bytes=None, files=None))]
    fn set_quota(
        &self,
        py: Python<'_>,
        user: Option<u32>,
        directory: Option<PathBuf>,
        keyspace: Option<String>,
        bytes: Option<u64>,
        files: Option<u64>,
    ) -> PyResult<()> {
        let of = quota_of(user, directory, keyspace)?;
        Ok(py.detach(|| {
            let source = self.shared.source.get()?;
            Ok::<_, Failure>(source.present()?.quota_set(&of, bytes, files)?)
        })?)
    }

    /// Takes the quota of a user, directory or keyspace away.
    #[pyo3(signature = (*, user=None, directory=None, keyspace=None))]
    fn remove_quota(
        &self,
        py: Python<'_>,
        user: Option<u32>,
        directory: Option<PathBuf>,
        keyspace: Option<String>,
    ) -> PyResult<()> {
        let of = quota_of(user, directory, keyspace)?;
        Ok(py.detach(|| {
            let source = self.shared.source.get()?;
            Ok::<_, Failure>(source.present()?.quota_remove(&of)?)
        })?)
    }

    /// Kind, name, limits of bytes and files, what is taken of them, and whether all counts.
    fn quota_rows(&self, py: Python<'_>) -> PyResult<Vec<QuotaRow>> {
        let row = |q: holdfast::Quota| {
            let name = OsString::from_vec(q.of.name());
            let (bytes, files) = (q.bytes_taken, q.files_taken);
            (
                q.of.kind(),
                name,
                q.bytes,
                q.files,
                bytes,
                files,
                q.complete,
            )
        };
        Ok(py.detach(|| {
            let source = self.shared.source.get()?;
            let quotas = source.present()?.quotas()?.into_iter();
            Ok::<_, Failure>(quotas.map(row).collect())
        })?)
    }

    /// Calls a snapshot that is not in use something else.
    fn rename_snapshot(&self, py: Python<'_>, name: &str, new: &str) -> PyResult<()> {
        Ok(py.detach(|| {
            let source = self.shared.source.get()?;
            Ok::<_, Failure>(source.present()?.snapshot_rename(name, new)?)
        })?)
    }

    fn delete_snapshot(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        Ok(py.detach(|| {
            let source = self.shared.source.get()?;
            Ok::<_, Failure>(source.present()?.snapshot_delete(name)?)
        })?)
    }

    /// Names and times in nanoseconds since 1970, oldest first.
    fn snapshot_times(&self, py: Python<'_>) -> PyResult<Vec<(String, i64)>> {
        Ok(py.detach(|| {
            let source = self.shared.source.get()?;
            let snapshots = source.present()?.snapshot_list()?.into_iter();
            Ok::<_, Failure>(snapshots.map(|s| (s.name, s.time_ns)).collect())
        })?)
    }
}

/// A quota, as `holdfast.Quota` has it.
type QuotaRow = (
    &'static str,
    OsString,
    Option<u64>,
    Option<u64>,
    u64,
    u64,
    bool,
);

/// Whom a quota is for.
fn quota_of(
    user: Option<u32>,
    directory: Option<PathBuf>,
    keyspace: Option<String>,
) -> PyResult<QuotaOf> {
    match (user, directory, keyspace) {
        (Some(u32::MAX), ..) => Err(PyValueError::new_err("no user has this number")),
        (Some(uid), None, None) => Ok(QuotaOf::User(uid)),
        (None, Some(path), None) => Ok(QuotaOf::Directory(path.into_os_string().into_vec())),
        (None, None, Some(name)) => Ok(QuotaOf::Keyspace(name.into_bytes())),
        _ => Err(PyValueError::new_err(
            "a quota is for one user, one directory or one keyspace",
        )),
    }
}

/// A view of a pool.
#[pyclass(subclass, frozen, extends = Pool, module = "holdfast._native")]
pub struct View;

#[pymethods]
impl View {
    /// Of the present without a name, else of a snapshot.
    #[new]
    #[pyo3(signature = (pool, snapshot=None))]
    fn new(
        py: Python<'_>,
        pool: PyRef<'_, Pool>,
        snapshot: Option<&str>,
    ) -> PyResult<PyClassInitializer<View>> {
        let parent = pool.shared.clone();
        let view = py.detach(|| -> Result<_, Failure> {
            let source = parent.source.get()?;
            let pool = source.present()?;
            Ok(match snapshot {
                None => pool.read()?,
                Some(name) => pool.snapshot(name)?,
            })
        })?;
        let shared = Shared::new(Source::View(Arc::new(view)));
        parent.children.add(&shared);
        Ok(PyClassInitializer::from(Pool { shared }).add_subclass(View))
    }
}
