//! `hf_snapshot_*`.
//!
//! Invariant: no lock is held while a function of the caller runs.

use crate::error::{Refusal, number, status};
use crate::foreign::{Argument, Name, Place, SnapshotFn, tell_snapshot};
use crate::pool::Source;
use crate::table::Handle;
use std::ffi::{CString, c_int};

/// Makes a snapshot.
#[unsafe(no_mangle)]
pub extern "C" fn hf_snapshot_create(pool: Handle<Source>, name: Name) -> c_int {
    status((|| {
        Ok(pool.get()?.present()?.snapshot_create(name.text()?)?)
    })())
}

/// The pool as it was.
#[unsafe(no_mangle)]
pub extern "C" fn hf_snapshot_open(
    pool: Handle<Source>,
    name: Name,
    mut out: Place<Handle<Source>>,
) -> c_int {
    status(out.put(|| {
        let source = pool.get()?;
        Ok(Source::View(source.present()?.snapshot(name.text()?)?))
    }))
}

/// Deletes a snapshot.
#[unsafe(no_mangle)]
pub extern "C" fn hf_snapshot_delete(pool: Handle<Source>, name: Name) -> c_int {
    status((|| {
        Ok(pool.get()?.present()?.snapshot_delete(name.text()?)?)
    })())
}

/// Calls a snapshot something else.
#[unsafe(no_mangle)]
pub extern "C" fn hf_snapshot_rename(pool: Handle<Source>, name: Name, new_name: Name) -> c_int {
    status((|| {
        let (name, new_name) = (name.text()?, new_name.text()?);
        Ok(pool.get()?.present()?.snapshot_rename(name, new_name)?)
    })())
}

/// Tells a function of each snapshot.
#[unsafe(no_mangle)]
pub extern "C" fn hf_snapshot_list(
    pool: Handle<Source>,
    function: SnapshotFn,
    arg: Argument,
) -> c_int {
    number((|| {
        for snapshot in pool.get()?.present()?.snapshot_list()? {
            let name = CString::new(snapshot.name).map_err(|_| Refusal::name())?;
            match tell_snapshot(function, arg, &name, snapshot.time_ns)? {
                0 => {}
                said => return Ok(said),
            }
        }
        Ok(0)
    })())
}
