//! What `--archive` keeps beside content.
//!
//! Invariants: nobody gets rights that the source did not give: where the owner cannot be kept, the
//! set-id bits are not either; times come last, as all else changes them.

use super::fault::{Fault, Result};
use super::node::{Meta, Node};
use rustix::io::Errno;

const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";
const SET_IDS: u32 = 0o6000;
const GROUP: u32 = 0o070;

/// Gives `to` what `from` has; which attributes it could not get. `inherits`: what is made there
/// begins with a list of its directory.
pub fn keep((from, meta): (&Node, &Meta), to: &Node, inherits: bool) -> Result<Vec<Fault>> {
    let mut mode = owner(meta, to, b"")?;
    let mut lost = Vec::new();
    for name in from.attributes()? {
        if !is_kept(&name) {
            continue;
        }
        // It may have gone meanwhile.
        let Some(value) = from.attribute(&name)? else {
            continue;
        };
        match to.set_attribute(&name, &value) {
            Err(e) if is_privileged(&name) && (e.is(Errno::PERM) || e.is(Errno::OPNOTSUPP)) => {}
            Err(e) => {
                // With a list, the group's bits say what anybody in it may have.
                if name == ACCESS_LIST {
                    mode &= !GROUP;
                }
                lost.push(e.about(&name));
            }
            Ok(()) => {}
        }
    }
    if inherits && from.attribute(ACCESS_LIST)?.is_none() {
        remove(to, ACCESS_LIST)?;
    }
    to.chmod(b"", mode)?;
    to.set_times(b"", meta.times)?;
    Ok(lost)
}

/// As `keep`, for what is not opened: links and special files.
pub fn keep_named(meta: &Meta, dir: &Node, name: &[u8], has_mode: bool) -> Result<()> {
    let mode = owner(meta, dir, name)?;
    if has_mode {
        dir.chmod(name, mode)?;
    }
    dir.set_times(name, meta.times)
}

/// A default list that a directory got from the one above it.
pub fn drop_default_list(from: &Node, to: &Node) -> Result<()> {
    match from.attribute(DEFAULT_LIST)? {
        Some(_) => Ok(()),
        None => remove(to, DEFAULT_LIST),
    }
}

/// Whether what is made in a directory begins with a list.
pub fn inherits(dir: &Node) -> bool {
    matches!(dir.attribute(DEFAULT_LIST), Ok(Some(_)))
}

fn remove(node: &Node, name: &[u8]) -> Result<()> {
    match node.attribute(name)? {
        Some(_) => node.remove_attribute(name),
        None => Ok(()),
    }
}

/// Makes it the owner's, as far as that is allowed; the mode that it may have then.
fn owner(meta: &Meta, to: &Node, name: &[u8]) -> Result<u32> {
    let now = match name {
        b"" => to.stat()?,
        name => to.stat_at(name, false)?,
    };
    if (now.uid, now.gid) == (meta.uid, meta.gid) {
        return Ok(meta.mode);
    }
    match to.chown(name, Some(meta.uid), Some(meta.gid)) {
        Err(e) if e.is(Errno::PERM) || e.is(Errno::INVAL) => {}
        done => return done.map(|()| meta.mode),
    }
    match to.chown(name, None, Some(meta.gid)) {
        Err(e) if !e.is(Errno::PERM) && !e.is(Errno::INVAL) => Err(e),
        _ => Ok(meta.mode & !SET_IDS),
    }
}

/// Those that mean the same elsewhere.
fn is_kept(name: &[u8]) -> bool {
    match name.starts_with(b"system.") {
        true => name == ACCESS_LIST || name == DEFAULT_LIST,
        false => true,
    }
}

/// Only root may set it, and what it says is the host's.
fn is_privileged(name: &[u8]) -> bool {
    name.starts_with(b"security.") || name.starts_with(b"trusted.")
}

/// As `keep`, for what has no more attributes than these.
pub fn keep_plain(meta: &Meta, to: &Node, inherits: bool) -> Result<()> {
    let mode = owner(meta, to, b"")?;
    if inherits {
        remove(to, ACCESS_LIST)?;
    }
    to.chmod(b"", mode)?;
    to.set_times(b"", meta.times)
}

/// Without `--archive`: a file that replaces another has its permissions, and its owner where that
/// is allowed.
pub fn stay(there: &Meta, to: &Node) -> Result<()> {
    let mode = owner(there, to, b"")?;
    to.chmod(b"", mode & 0o777)
}
