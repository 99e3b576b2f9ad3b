//! What makes a program a Holdfast program: the preloaded library and the session variable.
//!
//! Invariant: what the user preloads stays preloaded, behind our library.

use crate::failure::Failure;
use holdfast_client::env::{SessionEnv, VALUE_MAX, VARIABLE};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const LIBRARY: &str = "libholdfast_preload.so";

/// The library that belongs to this command: installed beside `bin`, or in the build's directory.
pub fn library() -> Result<PathBuf, Failure> {
    let program = std::env::current_exe().map_err(|e| Failure::io("the holdfast program", &e))?;
    let here = program.parent().unwrap_or(Path::new("/"));
    let places = [here.join("../lib").join(LIBRARY), here.join(LIBRARY)];
    let found = places.iter().find(|place| place.is_file());
    let found = found.and_then(|place| place.canonicalize().ok());
    let Some(found) = found else {
        let here = here.display();
        let what = format!("{LIBRARY}, which programs need, is neither in {here} nor in ../lib");
        let fix = "in the source tree: make install (cargo install brings the command alone)";
        return Err(Failure::new(what).fix(fix));
    };
    // The dynamic linker splits the list at both.
    if found
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .any(|b| b" :".contains(b))
    {
        let what = format!(
            "the path of {} has a space or a colon in it",
            found.display()
        );
        return Err(Failure::new(what).fix("install holdfast in a directory without them"));
    }
    Ok(found)
}

/// Makes a command one of the session that `env` tells of.
pub fn instrument(
    command: &mut Command,
    library: &Path,
    env: &SessionEnv<'_>,
) -> Result<(), Failure> {
    let mut value = [0; VALUE_MAX];
    let len = env
        .format(&mut value)
        .ok_or_else(|| Failure::new("a path is too long"))?;
    let before = std::env::var_os("LD_AUDIT");
    command
        .env("LD_AUDIT", preload(library, before.as_deref()))
        .env("GLIBC_TUNABLES", tunables())
        .env(VARIABLE, OsStr::from_bytes(&value[..len]));
    Ok(())
}

/// The new value of LD_AUDIT.
fn preload(library: &Path, before: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_os_string();
    for part in before
        .into_iter()
        .flat_map(|b| b.as_encoded_bytes().split(|b| b" :".contains(b)))
    {
        let part = String::from_utf8_lossy(part);
        if !part.is_empty() && !part.ends_with(LIBRARY) {
            value.push(":");
            value.push(&*part);
        }
    }
    value
}

/// Whether this process was started with the library in it.
pub fn is_preloaded() -> bool {
    let value = std::env::var_os("LD_AUDIT").unwrap_or_default();
    let mut parts = value.as_encoded_bytes().split(|b| b" :".contains(b));
    parts.any(|part| part.ends_with(LIBRARY.as_bytes()))
}

/// The new value of GLIBC_TUNABLES: with an auditor, the loader lays out thread-local storage
/// before it knows the program's libraries, so room is set aside for theirs (glibc's own reserve
/// is too small for libjemalloc, and rustc's library has 23 KiB). It is taken from every thread's
/// stack: with more, programs that make threads with 32 KiB (node, for one) would be refused them.
fn tunables() -> OsString {
    const ROOM: &str = "glibc.rtld.optional_static_tls=24576";
    match std::env::var_os("GLIBC_TUNABLES") {
        Some(before) if before.to_string_lossy().contains("optional_static_tls") => before,
        Some(mut before) if !before.is_empty() => {
            before.push(":");
            before.push(ROOM);
            before
        }
        _ => ROOM.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_preloads_are_kept_and_our_own_comes_once() {
        let ours = Path::new("/x/lib/libholdfast_preload.so");
        let value = |before: Option<&str>| preload(ours, before.map(OsStr::new));
        assert_eq!(value(None), ours.as_os_str());
        assert_eq!(
            value(Some("a.so b.so")),
            "/x/lib/libholdfast_preload.so:a.so:b.so"
        );
        assert_eq!(value(Some("/old/libholdfast_preload.so")), ours.as_os_str());
    }
}
