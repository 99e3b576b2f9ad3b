//! `hf_quota_*`.
//!
//! Invariant: no lock is held while a function of the caller runs.

use crate::error::{Refusal, number, status};
use crate::foreign::{Argument, Name, QuotaFn, Text, tell_quota};
use crate::pool::Source;
use crate::table::Handle;
use holdfast::QuotaOf;
use std::ffi::{CString, c_int, c_uint};

/// What the numbers of kinds stand for, from 1.
const KINDS: [&str; 3] = ["user", "directory", "keyspace"];

/// A quota as C has it: `hf_quota`.
#[repr(C)]
pub struct Quota {
    kind: c_uint,
    complete: c_int,
    name: Text,
    bytes: u64,
    files: u64,
    bytes_taken: u64,
    files_taken: u64,
}

fn named(kind: c_uint, name: &Name) -> Result<QuotaOf, Refusal> {
    let name = name.bytes().ok_or(Refusal::invalid("a name is NULL"))?;
    let kind = (kind as usize).checked_sub(1).and_then(|n| KINDS.get(n));
    let kind = kind.ok_or(Refusal::invalid("there is no such kind of quota"))?;
    QuotaOf::named(kind, name).ok_or(Refusal::invalid("the name of a user is a number"))
}

/// Limits what may be taken.
#[unsafe(no_mangle)]
pub extern "C" fn hf_quota_set(
    pool: Handle<Source>,
    kind: c_uint,
    name: Name,
    bytes: u64,
    files: u64,
) -> c_int {
    status((|| {
        let limit = |n| Some(n).filter(|n| *n != 0);
        let (of, source) = (named(kind, &name)?, pool.get()?);
        let pool = source.present()?;
        Ok(pool.quota_set(&of, limit(bytes), limit(files))?)
    })())
}

/// Takes a quota away.
#[unsafe(no_mangle)]
pub extern "C" fn hf_quota_remove(pool: Handle<Source>, kind: c_uint, name: Name) -> c_int {
    status((|| {
        let of = named(kind, &name)?;
        Ok(pool.get()?.present()?.quota_remove(&of)?)
    })())
}

/// Tells a function of each quota.
#[unsafe(no_mangle)]
pub extern "C" fn hf_quota_list(pool: Handle<Source>, function: QuotaFn, arg: Argument) -> c_int {
    number((|| {
        for quota in pool.get()?.present()?.quotas()? {
            let kind = KINDS.iter().position(|kind| *kind == quota.of.kind());
            let name = CString::new(quota.of.name()).map_err(|_| Refusal::name())?;
            let shown = Quota {
                kind: kind.map_or(0, |n| n as c_uint + 1),
                complete: quota.complete.into(),
                name: Text::or_null(Some(&name)),
                bytes: quota.bytes.unwrap_or(0),
                files: quota.files.unwrap_or(0),
                bytes_taken: quota.bytes_taken,
                files_taken: quota.files_taken,
            };
            match tell_quota(function, arg, &shown)? {
                0 => {}
                said => return Ok(said),
            }
        }
        Ok(0)
    })())
}
