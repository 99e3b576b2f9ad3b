//! Values piece by piece.
//!
//! Invariants: a value that is not finished was never there, and one that is appears as a whole; a
//! reader goes on with the value that it found, whatever becomes of its key.

use crate::Durability;
use crate::error::Result;
use crate::keyspace::Keyspace;
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};

/// A value on its way in. It is held in memory until it is finished.
pub struct ValueWriter {
    keyspace: Keyspace,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl ValueWriter {
    pub(crate) fn new(keyspace: Keyspace, key: &[u8]) -> ValueWriter {
        let key = key.to_vec();
        ValueWriter {
            keyspace,
            key,
            value: Vec::new(),
        }
    }

    /// Makes what was written the value of its key.
    pub fn finish(self, durability: Durability) -> Result<()> {
        self.keyspace.put(&self.key, &self.value, durability)
    }
}

impl Write for ValueWriter {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        // A value that does not fit into memory is an error, and no reason to abort.
        let room = self.value.try_reserve(part.len());
        room.map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        self.value.extend_from_slice(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A value on its way out.
pub struct ValueReader {
    value: Cursor<Vec<u8>>,
}

impl ValueReader {
    pub(crate) fn new(value: Vec<u8>) -> ValueReader {
        ValueReader {
            value: Cursor::new(value),
        }
    }
}

impl Read for ValueReader {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.value.read(room)
    }
}

impl Seek for ValueReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.value.seek(to)
    }
}
