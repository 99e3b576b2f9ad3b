//! `holdfast map`.
//!
//! Invariant: no service is started for it; where none runs, no program keeps anything.

use crate::failure::{self, Failure};
use crate::session::{RunRecord, memory};
use holdfast_client::attach::{AttachError, attach};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `map drop`.
pub fn drop_kept(pool: &Path) -> Result<u8, Failure> {
    if !pool.exists() {
        return Err(holdfast_service::Error::Missing { path: pool.into() }.into());
    }
    match attach(pool.as_os_str().as_bytes(), None) {
        Ok(attachment) => RunRecord::existing(memory(&attachment)?, 0)?.drop_kept()?,
        Err(AttachError::NoService) => {}
        Err(e) => return Err(e.into()),
    }
    Ok(failure::OK)
}
