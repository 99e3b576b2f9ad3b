//! The bytes of files.
//!
//! Invariant: holes stay holes; what is read of a file that others write to is what it had when
//! that part was read.

use super::Copier;
use super::fault::{Fault, Result};
use super::node::{Meta, Node};
use crate::failure::Failure;
use std::io::Read;

/// Bytes copied at a time, and by one call within a pool.
const PIECE: usize = 256 << 10;
const MOVED: usize = 8 << 20;
/// No file system has smaller holes.
const HOLE_MIN: u64 = 4096;

/// Both names, for what goes wrong on either side.
#[derive(Clone, Copy)]
pub struct Paths<'a> {
    pub from: &'a [u8],
    pub to: &'a [u8],
}

impl Paths<'_> {
    pub fn from<T>(&self, done: Result<T>) -> Result<T, Failure> {
        done.map_err(|e| e.of(self.from))
    }

    pub fn to<T>(&self, done: Result<T>) -> Result<T, Failure> {
        done.map_err(|e| e.of(self.to))
    }
}

impl Copier<'_> {
    /// All of `from`, which `meta` is about, into the empty file `to`.
    pub fn content(
        &mut self,
        (from, meta): (&Node, &Meta),
        to: &Node,
        paths: Paths<'_>,
    ) -> Result<(), Failure> {
        // Files that have no length and yet content, as those of /proc, are read to their end.
        if meta.size < HOLE_MIN || meta.blocks.saturating_mul(512) >= meta.size {
            return self.piece((from, to), 0, u64::MAX, paths).map(drop);
        }
        let mut at = 0;
        loop {
            let (begin, end) = match from.data_from(at) {
                Ok(Some(data)) => data,
                Ok(None) => break,
                Err(e) if at == 0 && e.is(rustix::io::Errno::INVAL) => (0, u64::MAX),
                Err(e) => return Err(e.of(paths.from)),
            };
            at = self.piece((from, to), begin, end, paths)?;
            if at < end {
                break;
            }
        }
        let size = paths.from(from.stat())?.size;
        paths.to(to.set_size(size.max(at)))
    }

    /// From `at` to `end` or the end of the file: how far that is.
    fn piece(
        &mut self,
        (from, to): (&Node, &Node),
        mut at: u64,
        end: u64,
        paths: Paths<'_>,
    ) -> Result<u64, Failure> {
        while at < end {
            let most = end - at;
            let len = most.min(MOVED as u64) as usize;
            let moved = match paths.to(to.copy_at(from, at, len))? {
                Some(moved) => moved,
                None => {
                    let len = most.min(PIECE as u64) as usize;
                    self.buffer.resize(PIECE, 0);
                    let n = paths.from(from.read_at(&mut self.buffer[..len], at))?;
                    paths.to(to.write_all_at(&self.buffer[..n], at))?;
                    n
                }
            };
            if moved == 0 {
                break;
            }
            at += moved as u64;
            self.count_bytes(moved);
        }
        Ok(at)
    }

    /// All that is to be read from a stream.
    pub fn stream(
        &mut self,
        from: &mut impl Read,
        mut put: impl FnMut(&[u8]) -> Result<(), Failure>,
        path: &[u8],
    ) -> Result<(), Failure> {
        let mut buffer = vec![0; PIECE];
        loop {
            let n = match from.read(&mut buffer) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                n => n.map_err(|e| Fault::from(e).of(path))?,
            };
            if n == 0 {
                return Ok(());
            }
            put(&buffer[..n])?;
            self.count_bytes(n);
        }
    }
}

/// A file as a stream.
pub struct Reader<'a> {
    file: &'a Node,
    at: u64,
}

impl Reader<'_> {
    pub fn new(file: &Node) -> Reader<'_> {
        Reader { file, at: 0 }
    }
}

impl Read for Reader<'_> {
    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        let read = match self.file {
            // Pipes are no place to read at a place.
            Node::Host(file) => rustix::io::read(file, &mut *room).map_err(std::io::Error::from),
            Node::Pool(_) => self
                .file
                .read_at(room, self.at)
                .map_err(|e| std::io::Error::from_raw_os_error(e.errno)),
        };
        let n = read?;
        self.at += n as u64;
        Ok(n)
    }
}
