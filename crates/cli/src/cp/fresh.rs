//! New files, which get their names when they are complete.
//!
//! Invariant: whoever dies leaves a file whole under its name, or what was there before; beside it
//! at most one with a temporary name, if that was just to replace another one, or where the host's
//! file system has no files without names.

use super::fault::Result;
use super::node::Node;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A file without its name.
pub struct Fresh<'a> {
    dir: &'a Node,
    pub node: Node,
    /// The name that it has until then, if it needs one.
    temporary: Option<Vec<u8>>,
}

/// What became of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    Done,
    /// Somebody else has it, and is to keep it.
    Taken,
}

impl<'a> Fresh<'a> {
    pub fn make(dir: &'a Node, mode: u32) -> Result<Fresh<'a>> {
        let made = dir.open(b".", OFlags::TMPFILE | OFlags::RDWR, mode);
        let (node, temporary) = match made {
            Err(e)
                if [Errno::OPNOTSUPP, Errno::ISDIR, Errno::INVAL, Errno::NOENT]
                    .iter()
                    .any(|errno| e.is(*errno)) =>
            {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW;
                let mut node = None;
                let name = with_temporary(|name| {
                    node = Some(dir.open(name, flags, mode)?);
                    Ok(())
                })?;
                (node.ok_or(Errno::EXIST)?, Some(name))
            }
            made => (made?, None),
        };
        Ok(Fresh {
            dir,
            node,
            temporary,
        })
    }

    /// It is complete. `replace`: what has the name now loses it.
    pub fn publish(mut self, name: &[u8], replace: bool) -> Result<Named> {
        let dir = self.dir;
        if self.temporary.is_none() {
            match dir.name_file(&self.node, name) {
                Err(e) if e.is(Errno::EXIST) && replace => {}
                Err(e) if e.is(Errno::EXIST) => return Ok(Named::Taken),
                done => return done.map(|()| Named::Done),
            }
            let node = &self.node;
            self.temporary = Some(with_temporary(|name| dir.name_file(node, name))?);
        }
        let temporary = self.temporary.as_deref().unwrap_or_default();
        if !replace && dir.find(name)?.is_some() {
            return Ok(Named::Taken);
        }
        dir.rename(temporary, name)?;
        self.temporary = None;
        Ok(Named::Done)
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.temporary {
            let _ = self.dir.unlink(name);
        }
    }
}

/// Makes something of which `dir` has nothing without a name, finishes it, and gives it its name.
pub fn put(
    dir: &Node,
    name: &[u8],
    make: impl FnMut(&[u8]) -> Result<()>,
    finish: impl FnOnce(&[u8]) -> Result<()>,
) -> Result<()> {
    let temporary = with_temporary(make)?;
    let done = finish(&temporary).and_then(|()| dir.rename(&temporary, name));
    // A name of the same file stays when another one is renamed to it.
    let _ = dir.unlink(&temporary);
    done
}

/// Calls `make` with a name that nothing has.
fn with_temporary(mut make: impl FnMut(&[u8]) -> Result<()>) -> Result<Vec<u8>> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NEXT.fetch_add(1, Relaxed);
        let name = format!(".holdfast-cp.{}.{number}", std::process::id()).into_bytes();
        match make(&name) {
            Err(e) if e.is(Errno::EXIST) => {}
            made => return made.map(|()| name),
        }
    }
}
