//! Volumes whose sectors are atomic: the file has a block translation table.
//!
//! Invariant: a call that returns has made durable what a later call builds on, on every medium.

use crate::error::{Error, Result};
use crate::file::File;
use crate::sector::Sector;
use crate::volume::attribute::Properties;
use holdfast_btt::{BLOCKS_MAX, Device, Shape, Sum, Table, device_len};
use holdfast_client::abi;
use holdfast_pool::checksum::crc32c;
use holdfast_pool::layout::FILE_SIZE_MAX;
use std::hash::{BuildHasher, RandomState};

/// The file of a volume, as the device of its table.
pub(super) struct Raw(pub File);

impl Device for Raw {
    type Error = Error;

    fn size(&self) -> Result<u64> {
        Ok(self.0.stat()?.size)
    }

    fn read(&self, room: &mut [u8], at: u64) -> Result<()> {
        self.0.read_all_at(room, at)
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        self.0.write_all_at(bytes, at)
    }

    fn order(&self) -> Result<()> {
        self.0.sync()
    }

    fn reserve(&self, at: u64, len: u64) -> Result<()> {
        self.0.allocate(abi::FALLOC_FL_KEEP_SIZE, at, len)
    }

    fn punch(&self, at: u64, len: u64) -> Result<()> {
        let mode = abi::FALLOC_FL_PUNCH_HOLE | abi::FALLOC_FL_KEEP_SIZE;
        self.0.allocate(mode, at, len)
    }

    fn next_data(&self, at: u64) -> Result<Option<u64>> {
        self.0.seek(at, abi::SEEK_DATA)
    }
}

/// What a table of such a volume is like.
fn shape(properties: Properties) -> Shape {
    Shape {
        sector: properties.sector.bytes() as u32,
        sums: properties.sums,
    }
}

/// How checksums are made: CRC-32C.
fn sum(properties: Properties) -> Option<Sum> {
    properties.sums.then_some(|bytes| crc32c(bytes))
}

/// Bytes of the file of such a volume of `size` bytes, if a file can have so many.
pub(super) fn file_size(size: u64, properties: Properties) -> Option<u64> {
    let sectors = size / properties.sector.bytes();
    let len = || device_len(sectors, shape(properties));
    let len = (sectors <= BLOCKS_MAX).then(len);
    len.filter(|len| *len <= FILE_SIZE_MAX)
}

/// The most bytes of such a volume.
pub(super) fn size_max(sector: Sector) -> u64 {
    BLOCKS_MAX.saturating_mul(sector.bytes())
}

/// Makes the table of a new volume of `size` bytes.
pub(super) fn format(file: File, size: u64, properties: Properties) -> Result<File> {
    let raw = Raw(file);
    let sectors = size / properties.sector.bytes();
    Table::format(&raw, sectors, shape(properties), uuid()).map_err(of)?;
    Ok(raw.0)
}

/// The table of a volume.
pub(super) fn open(file: File, writes: bool, properties: Properties) -> Result<Table<Raw>> {
    let table = match writes {
        true => Table::to_write(Raw(file), sum(properties)),
        false => Table::to_read(Raw(file), sum(properties)),
    };
    let table = table.map_err(of)?;
    let known = table.sector() == properties.sector.bytes();
    match properties.table.is_some_and(|size| size <= table.size()) && known {
        true => Ok(table),
        false => Err(Error::VolumeDamaged {
            what: "the size of its table is not that of its attribute".into(),
        }),
    }
}

/// Gives the table room for `size` bytes.
pub(super) fn grow(table: &Table<Raw>, size: u64) -> Result<()> {
    let more = size.saturating_sub(table.size()) / table.sector();
    if more == 0 {
        return Ok(());
    }
    let len = table.device_len_with(more);
    if len > FILE_SIZE_MAX {
        let sector = Sector::of(table.sector()).unwrap_or_default();
        let most = size_max(sector);
        return Err(Error::VolumeSize { size, sector, most });
    }
    table.device().0.set_size(len)?;
    table.grow(more, uuid()).map_err(of)
}

/// A name that no other table has: random, as RFC 9562 has it in version 4.
fn uuid() -> [u8; 16] {
    let mut uuid = [0; 16];
    for half in uuid.chunks_exact_mut(8) {
        half.copy_from_slice(
            &RandomState::new()
                .hash_one(std::process::id())
                .to_le_bytes(),
        );
    }
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

pub(super) fn of(e: holdfast_btt::Error<Error>) -> Error {
    match e {
        // Requests are inside the volume, so the table is not all there.
        holdfast_btt::Error::Device(Error::BeyondEnd { .. }) => Error::VolumeDamaged {
            what: "somebody has cut its file".into(),
        },
        holdfast_btt::Error::Device(e) => e,
        e => Error::VolumeDamaged {
            what: e.to_string(),
        },
    }
}
