//! What is in a volume: the bytes of its file, or what the table in its file has.
//!
//! Invariants: requests are inside the volume and of whole sectors, which `mod` has checked; what
//! was trimmed or zeroed reads as zeroes.

use super::attribute::Properties;
use super::table::{self, Raw};
use super::{Extent, Written, Zeroes};
use crate::error::{Error, Result};
use crate::file::File;
use holdfast_btt::{Space, Table};
use holdfast_client::abi;

/// Zeroes are written so many bytes at a time, so that other requests come in between.
const ZEROES_AT_ONCE: u64 = 16 << 20;

pub(super) enum Content {
    Plain(File),
    Atomic(Table<Raw>),
}

impl Content {
    pub fn open(file: File, writes: bool, properties: Properties) -> Result<Content> {
        Ok(match properties.table {
            None => Content::Plain(file),
            Some(_) => Content::Atomic(table::open(file, writes, properties)?),
        })
    }

    #[inline]
    pub fn file(&self) -> &File {
        match self {
            Content::Plain(file) => file,
            Content::Atomic(table) => &table.device().0,
        }
    }

    /// Whether sectors are where their numbers say.
    pub fn is_plain(&self) -> bool {
        matches!(self, Content::Plain(_))
    }

    #[inline]
    pub fn read(&self, room: &mut [u8], offset: u64) -> Result<()> {
        match self {
            Content::Plain(file) => file.read_all_at(room, offset),
            Content::Atomic(table) => table.read(room, offset).map_err(table::of),
        }
    }

    #[inline]
    pub fn write(&self, bytes: &[u8], offset: u64, durable: Written) -> Result<()> {
        match (self, durable) {
            (Content::Plain(file), Written::AtFlush) => file.write_all_at(bytes, offset),
            (Content::Plain(file), Written::AtReturn) => file.write_all_durably_at(bytes, offset),
            // It is durable in any case.
            (Content::Atomic(table), _) => table.write(bytes, offset).map_err(table::of),
        }
    }

    pub fn zero(&self, offset: u64, len: u64, zeroes: Zeroes) -> Result<()> {
        let at_once = match zeroes {
            Zeroes::Hole => u64::MAX,
            Zeroes::Blocks => ZEROES_AT_ONCE,
        };
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let part = (end - at).min(at_once);
            self.zero_part(at, part, zeroes)?;
            at += part;
        }
        Ok(())
    }

    fn zero_part(&self, at: u64, len: u64, zeroes: Zeroes) -> Result<()> {
        let (mode, space) = match zeroes {
            Zeroes::Hole => (abi::FALLOC_FL_PUNCH_HOLE, Space::Given),
            Zeroes::Blocks => (abi::FALLOC_FL_ZERO_RANGE, Space::Kept),
        };
        match self {
            Content::Plain(file) => file.allocate(mode | abi::FALLOC_FL_KEEP_SIZE, at, len),
            Content::Atomic(table) => table.zero(at, len, space).map_err(table::of),
        }
    }

    /// What is at `offset` of a volume of `size` bytes.
    pub fn extent(&self, offset: u64, size: u64) -> Result<Extent> {
        match self {
            Content::Plain(file) => {
                let end = |found: Option<u64>| found.unwrap_or(size).min(size);
                let data = end(file.seek(offset, abi::SEEK_DATA)?);
                let hole = data > offset;
                let end = match hole {
                    true => data,
                    false => end(file.seek(offset, abi::SEEK_HOLE)?),
                };
                Ok(Extent { end, hole })
            }
            Content::Atomic(table) => {
                let extent = table.extent(offset).map_err(table::of)?;
                Ok(Extent {
                    end: extent.end.min(size),
                    hole: extent.hole,
                })
            }
        }
    }

    /// Where in the file the bytes at `offset` are.
    pub fn place(&self, offset: u64) -> Result<u64> {
        match self {
            Content::Plain(_) => Ok(offset),
            Content::Atomic(table) => {
                let place = table.place(offset).map_err(table::of)?;
                place.ok_or_else(|| Error::VolumeDamaged {
                    what: "its table is shorter than it".into(),
                })
            }
        }
    }
}
