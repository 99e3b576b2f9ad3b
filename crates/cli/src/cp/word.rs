//! What the words of the command line name.
//!
//! Invariant: a word means the same whatever is at the path in the pool: only where the pool's
//! directory ends is looked up, and that only to find which colon ends it.

use crate::default_pool;
use crate::failure::{self, Failure};
use holdfast_pool::segment::META;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What a word names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// Standard input or output.
    Stream,
    Host(Vec<u8>),
    /// A path from the root of a pool.
    Pool {
        pool: PathBuf,
        path: Vec<u8>,
    },
}

/// Reads a word.
pub fn parse(word: &OsStr) -> Result<Word, Failure> {
    let bytes = word.as_bytes();
    if bytes.is_empty() {
        return Err(Failure::new("a path is empty").code(failure::USAGE));
    }
    if bytes == b"-" {
        return Ok(Word::Stream);
    }
    let colons = || bytes.iter().enumerate().filter(|(_, byte)| **byte == b':');
    let Some((first, _)) = colons().next() else {
        return Ok(Word::Host(bytes.into()));
    };
    if is_marked(&bytes[..first]) {
        return Ok(Word::Host(bytes.into()));
    }
    let pool_before = |at: usize| -> Result<PathBuf, Failure> {
        match &bytes[..at] {
            b"@" => default_pool::own(),
            pool => Ok(Path::new(OsStr::from_bytes(pool)).into()),
        }
    };
    for (at, _) in colons() {
        let pool = pool_before(at)?;
        if pool.join(META).exists() {
            let path = bytes[at + 1..].into();
            return Ok(Word::Pool { pool, path });
        }
    }
    let missing = holdfast_service::Error::Missing {
        path: pool_before(first)?,
    };
    let slash = if bytes[0] == b'/' { "/./" } else { "./" };
    let host = String::from_utf8_lossy(bytes);
    let fix = format!(
        "name the directory of a pool before the colon, or write {slash}{} for a file of the host",
        host.trim_start_matches('/')
    );
    Err(Failure::new(missing.to_string()).fix(fix))
}

/// A component `.` with something behind it says that the whole word is a path of the host.
fn is_marked(before_colon: &[u8]) -> bool {
    before_colon.starts_with(b"./") || before_colon.windows(3).any(|part| part == b"/./")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_are_told_from_the_host() {
        let dir = std::env::temp_dir().join(format!("holdfast-cp-word-{}", std::process::id()));
        let pool = dir.join("a:b");
        std::fs::create_dir_all(&pool).unwrap();
        std::fs::write(pool.join(META), "").unwrap();
        let read = |word: &str| parse(OsStr::new(word));
        let host = |word: &str| Ok(Word::Host(word.as_bytes().into()));
        let base = pool.display();
        for (word, path) in [("", ""), ("/", "/"), ("x:y", "x:y"), ("/d/e", "/d/e")] {
            let (pool, path) = (pool.clone(), path.as_bytes().into());
            let found = read(&format!("{base}:{word}"));
            assert_eq!(found, Ok(Word::Pool { pool, path }), "{word}");
        }
        assert_eq!(read("-"), Ok(Word::Stream));
        for word in ["x", "/etc/hosts", "./a:b", "/./a:b", "/x/./a:b", "./-"] {
            assert_eq!(read(word), host(word));
        }
        for word in ["", "no-pool:/x", "/no/pool:x", "/no/pool:/./x"] {
            assert!(read(word).is_err(), "{word}");
        }
        let said = read("/no/pool:x").unwrap_err().to_string();
        assert!(said.contains("write /./no/pool:x for"), "{said}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
