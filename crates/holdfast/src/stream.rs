//! Values piece by piece.
//!
//! Invariants: an unfinished value is never visible, and a finished one appears as a whole; a
//! reader keeps the value that it found, whatever happens to its key.

use crate::error::{Error, Result};
use crate::expiry::Expires;
use crate::file::File;
use crate::inner::Reach;
use crate::keyspace::Keyspace;
use crate::{Durability, kv};
use holdfast_client::abi;
use holdfast_pool::layout::is_legal_name;
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};

/// The most bytes of a value that are held in memory; a larger one becomes a file of the keyspace's
/// directory, as large as the pool allows.
const HELD: usize = 1 << 20;

/// Of such files.
const MODE: u32 = 0o644;

/// Writes a value piece by piece: in memory as long as it is small, then in a file that gets its
/// name when the value is finished.
pub struct ValueWriter {
    keyspace: Keyspace,
    key: Vec<u8>,
    value: Vec<u8>,
    file: Option<File>,
    expires: Expires,
}

impl ValueWriter {
    pub(crate) fn new(keyspace: Keyspace, key: &[u8], expires: Expires) -> ValueWriter {
        let key = key.to_vec();
        ValueWriter {
            keyspace,
            key,
            value: Vec::new(),
            file: None,
            expires,
        }
    }

    /// Sets the key to the value that was written.
    pub fn finish(self, durability: Durability) -> Result<()> {
        let Some(file) = &self.file else {
            let (key, value) = (&self.key, &self.value);
            return self
                .keyspace
                .put_until(key, value, self.expires, durability);
        };
        file.write_all(&self.value)?;
        let (keyspace, key, ofd) = (&self.keyspace, &self.key, file.ofd()?);
        match keyspace.pool.inner.reach()? {
            Reach::Mapped(client) => Ok(client.kv_name(keyspace.id, key, ofd, durability)?),
            Reach::Served(served) => served.name(keyspace.named(), key, ofd, durability),
        }
    }

    /// Puts what is in memory into the file.
    fn spill(&mut self) -> Result<()> {
        let value = std::mem::take(&mut self.value);
        self.spill_all(&value)
    }

    /// Appends `value` to the file, which is created if there is none.
    pub(crate) fn spill_all(&mut self, value: &[u8]) -> Result<()> {
        if self.file.is_none() {
            let flags = abi::O_TMPFILE_BIT | abi::O_DIRECTORY | abi::O_RDWR;
            let path = self.keyspace.name().as_bytes();
            self.file = Some(File::open(&self.keyspace.pool, path, flags, MODE)?);
        }
        match &self.file {
            Some(file) => file.write_all(value),
            None => Ok(()),
        }
    }
}

impl Write for ValueWriter {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        let len = (self.value.len() + part.len()) as u64;
        if self.expires != Expires::Never && len > kv::Changes::VALUE_MAX {
            return Err(Error::ExpiringTooLarge.into());
        }
        // A value that does not fit into memory is an error, and no reason to abort.
        let room = self.value.try_reserve(part.len());
        room.map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        self.value.extend_from_slice(part);
        // What expires or cannot be a name stays a value, with the limits of one.
        let may_spill = self.expires == Expires::Never && is_legal_name(&self.key);
        if self.value.len() > HELD && may_spill {
            self.spill()?;
        }
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads a value piece by piece.
pub struct ValueReader {
    from: From,
}

enum From {
    Memory(Cursor<Vec<u8>>),
    File { file: File, at: u64 },
}

impl ValueReader {
    pub(crate) fn new(value: Vec<u8>) -> ValueReader {
        ValueReader {
            from: From::Memory(Cursor::new(value)),
        }
    }

    /// The value of `key`; one that is too large for memory is read from its file.
    pub(crate) fn open(keyspace: &Keyspace, key: &[u8]) -> Result<Option<ValueReader>> {
        let Some(len) = keyspace.len_of(key)? else {
            return Ok(None);
        };
        if len <= kv::Changes::VALUE_MAX {
            return Ok(keyspace.get(key)?.map(ValueReader::new));
        }
        let Ok(name) = std::str::from_utf8(key) else {
            return Ok(keyspace.get(key)?.map(ValueReader::new));
        };
        let path = format!("{}/{name}", keyspace.name());
        match File::open(&keyspace.pool, path.as_bytes(), abi::O_RDONLY, 0) {
            Ok(file) => Ok(Some(ValueReader {
                from: From::File { file, at: 0 },
            })),
            Err(e) if e.is_missing() => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl Read for ValueReader {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let (file, at) = match &mut self.from {
            From::Memory(value) => return value.read(room),
            From::File { file, at } => (file, at),
        };
        let n = file.read_at(room, *at)?;
        *at += n as u64;
        Ok(n)
    }
}

impl Seek for ValueReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (file, at) = match &mut self.from {
            From::Memory(value) => return value.seek(to),
            From::File { file, at } => (file, at),
        };
        let place = match to {
            SeekFrom::Start(place) => i64::try_from(place).ok(),
            SeekFrom::Current(by) => i64::try_from(*at).ok().and_then(|at| at.checked_add(by)),
            SeekFrom::End(by) => i64::try_from(file.stat()?.size)
                .ok()
                .and_then(|size| size.checked_add(by)),
        };
        let place = place.and_then(|place| u64::try_from(place).ok());
        *at = place.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(*at)
    }
}
