//! What a program sees of a pool.
//!
//! Invariant: nothing is changed, and nothing is left open.

use crate::judge::{Seen, View};
use crate::stack::{ME, ROOT};
use crate::values;
use holdfast_client::{Client, DirentFormat, abi};
use holdfast_pmem::MutBuf;

/// Everything below the root.
pub fn view(c: &Client) -> Result<View, String> {
    let mut view = View::new();
    let mut todo = vec![String::new()];
    let keyspaces = values::names(c)?;
    values::look(c, &ME, &mut view)?;
    while let Some(dir) = todo.pop() {
        if keyspaces.contains(&dir) {
            continue;
        }
        for name in names(c, &dir).map_err(|e| format!("list {dir:?}: {e}"))? {
            let path = if dir.is_empty() {
                name
            } else {
                format!("{dir}/{name}")
            };
            let seen = see(c, &path).map_err(|e| format!("see {path:?}: {e}"))?;
            if seen.mode >> 12 == 4 {
                todo.push(path.clone());
            }
            view.insert(path, seen);
        }
    }
    Ok(view)
}

fn names(c: &Client, dir: &str) -> holdfast_client::Result<Vec<String>> {
    let path = if dir.is_empty() { "." } else { dir };
    let file = c.open(&ME, ROOT, path.as_bytes(), abi::O_DIRECTORY, 0, 0)?;
    let mut names = Vec::new();
    let mut out = vec![0; 4096];
    loop {
        let n = c.getdents(file, MutBuf::from(&mut out[..]), DirentFormat::Linux64)?;
        let mut at = 0;
        while at < n {
            let len = u16::from_le_bytes([out[at + 16], out[at + 17]]) as usize;
            let name = out[at + 19..at + len].split(|b| *b == 0).next().unwrap();
            names.push(String::from_utf8_lossy(name).into_owned());
            at += len;
        }
        if n == 0 {
            break;
        }
    }
    c.release(file)?;
    names.retain(|name| name != "." && name != "..");
    Ok(names)
}

/// One object.
pub fn see(c: &Client, path: &str) -> holdfast_client::Result<Seen> {
    let path = path.as_bytes();
    let stat = c.stat(&ME, ROOT, path, abi::AT_SYMLINK_NOFOLLOW)?;
    let mut bytes = vec![0xee; stat.size as usize + 1];
    let n = match stat.mode >> 12 {
        0o12 => c.readlink(&ME, ROOT, path, MutBuf::from(&mut bytes[..]))?,
        0o10 => {
            let file = c.open(&ME, ROOT, path, abi::O_RDONLY, 0, 0)?;
            let n = c.pread(file, MutBuf::from(&mut bytes[..]), 0)?;
            c.release(file)?;
            n
        }
        _ => 0,
    };
    bytes.truncate(n);
    Ok(Seen {
        mode: stat.mode,
        links: stat.nlink,
        uid: stat.uid,
        size: stat.size,
        bytes,
        until: 0,
    })
}
