//! Where the programs are that a benchmark starts.
//!
//! Invariant: `holdfast bench` says which `holdfast` it is; otherwise `holdfast` is looked for
//! beside this program, and where an installed one is.

use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

/// The variable in which `holdfast bench` says where it is.
pub const VARIABLE: &str = "HOLDFAST_PROGRAM";

/// This very program.
pub fn own() -> Result<PathBuf> {
    std::env::current_exe().map_err(Error::io("find this program"))
}

/// The program that maps files, beside this one.
pub fn mapper() -> Result<PathBuf> {
    let mapper = own()?.with_file_name("holdfast-bench-mapper");
    match mapper.exists() {
        true => Ok(mapper),
        false => {
            let what = format!("there is no {}", mapper.display());
            Err(Error::Missing(what, "holdfast bench".into()))
        }
    }
}

/// The `holdfast` that is measured.
pub fn holdfast() -> Result<PathBuf> {
    if let Some(said) = std::env::var_os(VARIABLE) {
        return Ok(said.into());
    }
    let own = own()?;
    let dir = own.parent().unwrap_or(Path::new("/"));
    let places = [dir.join("holdfast"), dir.join("../../bin/holdfast")];
    let found = places.into_iter().find(|place| place.exists());
    found.ok_or_else(|| {
        let what = format!("there is no holdfast beside {}", own.display());
        Error::Missing(what, "holdfast bench".into())
    })
}
