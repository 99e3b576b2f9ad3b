//! `hf_pool_*`, and the list of a pool's keyspaces.
//!
//! Invariant: a view is a pool of which nothing can be changed; every call says so by itself.

use crate::error::{Refusal, number, status};
use crate::foreign::{Argument, Name, NameFn, Place, tell_name};
use crate::table::{Handle, kind};
use holdfast::{Pool, View};
use std::ffi::{CString, OsStr, c_int, c_uint};
use std::os::unix::ffi::OsStrExt;

/// What a handle of a pool stands for.
pub enum Source {
    /// The pool itself.
    Present(Pool),
    /// What it was.
    View(View),
}
kind!(Source, 1, "pool");

impl Source {
    /// The pool itself, to change it.
    pub fn present(&self) -> Result<&Pool, Refusal> {
        match self {
            Source::Present(pool) => Ok(pool),
            Source::View(_) => Err(Refusal::read_only()),
        }
    }
}

/// Opens a pool.
#[unsafe(no_mangle)]
pub extern "C" fn hf_pool_open(path: Name, flags: c_uint, mut out: Place<Handle<Source>>) -> c_int {
    status(out.put(|| {
        let path = path.bytes().ok_or(Refusal::invalid("the path is NULL"))?;
        let path = OsStr::from_bytes(path);
        let pool = match crate::flags(flags, crate::CREATE)? {
            0 => Pool::open(path)?,
            _ => Pool::open_or_create(path)?,
        };
        Ok(Source::Present(pool))
    }))
}

/// Makes all earlier changes durable.
#[unsafe(no_mangle)]
pub extern "C" fn hf_pool_sync(pool: Handle<Source>) -> c_int {
    status((|| match &*pool.get()? {
        Source::Present(pool) => Ok(pool.sync()?),
        // What is looked at cannot be lost.
        Source::View(_) => Ok(()),
    })())
}

/// Makes room for so many bytes of data.
#[unsafe(no_mangle)]
pub extern "C" fn hf_pool_grow(pool: Handle<Source>, size: u64) -> c_int {
    status((|| Ok(pool.get()?.present()?.grow(size)?))())
}

/// Closes a pool.
#[unsafe(no_mangle)]
pub extern "C" fn hf_pool_close(pool: Handle<Source>) {
    drop(pool.close());
}

/// The pool as it is now.
#[unsafe(no_mangle)]
pub extern "C" fn hf_pool_view(pool: Handle<Source>, mut out: Place<Handle<Source>>) -> c_int {
    status(out.put(|| Ok(Source::View(pool.get()?.present()?.read()?))))
}

/// Tells a function the name of each keyspace.
#[unsafe(no_mangle)]
pub extern "C" fn hf_keyspace_list(pool: Handle<Source>, function: NameFn, arg: Argument) -> c_int {
    number((|| {
        let names = match &*pool.get()? {
            Source::Present(pool) => pool.keyspaces()?,
            Source::View(view) => view.keyspaces()?,
        };
        for name in names {
            let name = CString::new(name).map_err(|_| Refusal::name())?;
            match tell_name(function, arg, &name)? {
                0 => {}
                said => return Ok(said),
            }
        }
        Ok(0)
    })())
}
