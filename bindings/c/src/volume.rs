//! `hf_volume_*`.
//!
//! Invariant: a request is checked against the volume before anything is changed.

use crate::error::{Refusal, count, number, status};
use crate::foreign::{Argument, Input, Name, Output, Place, VolumeFn, tell_volume};
use crate::pool::Source;
use crate::table::{Handle, kind};
use crate::{ATOMIC, CHECKSUM, DURABLE, READ_ONLY, flags};
use holdfast::{Integrity, Sector, Volume, VolumeShape, Written, Zeroes};
use std::ffi::{CString, c_int, c_uint};

kind!(Volume, 8, "volume");

/// Makes a volume.
#[unsafe(no_mangle)]
pub extern "C" fn hf_volume_create(
    pool: Handle<Source>,
    name: Name,
    size: u64,
    sector: c_uint,
) -> c_int {
    status((|| {
        let sector = sector_of(sector)?;
        let source = pool.get()?;
        Ok(source
            .present()?
            .volume_create(name.text()?, size, sector)?)
    })())
}

/// Makes a volume whose sectors are kept from something.
#[unsafe(no_mangle)]
pub extern "C" fn hf_volume_create_with(
    pool: Handle<Source>,
    name: Name,
    size: u64,
    sector: c_uint,
    given: c_uint,
) -> c_int {
    status((|| {
        let sector = sector_of(sector)?;
        let integrity = match flags(given, ATOMIC | CHECKSUM)? {
            0 => Integrity::Plain,
            ATOMIC => Integrity::Atomic,
            _ => Integrity::Checked,
        };
        let source = pool.get()?;
        let pool = source.present()?;
        let shape = VolumeShape {
            sector,
            integrity,
            ..VolumeShape::default()
        };
        Ok(pool.volume_create_with(name.text()?, size, shape)?)
    })())
}

fn sector_of(bytes: c_uint) -> Result<Sector, Refusal> {
    let unknown = Refusal::invalid("a sector has 512 or 4096 bytes");
    Sector::of(bytes.into()).ok_or(unknown)
}

/// Opens a volume.
#[unsafe(no_mangle)]
pub extern "C" fn hf_volume_open(
    pool: Handle<Source>,
    name: Name,
    given: c_uint,
    mut out: Place<Handle<Volume>>,
) -> c_int {
    status(out.put(|| {
        let reads = flags(given, READ_ONLY)? == READ_ONLY;
        let name = name.text()?;
        Ok(match (&*pool.get()?, reads) {
            (Source::Present(pool), false) => pool.volume(name)?,
            (Source::Present(pool), true) => pool.volume_to_read(name)?,
            (Source::View(view), true) => view.volume_to_read(name)?,
            (Source::View(_), false) => return Err(Refusal::read_only()),
        })
    }))
}

/// Closes a volume.
#[unsafe(no_mangle)]
pub extern "C" fn hf_volume_close(volume: Handle<Volume>) {
    drop(volume.close());
}

/// Its bytes.
#[unsafe(no_mangle)]
pub extern "C" fn hf_volume_size(volume: Handle<Volume>, mut out: Place<u64>) -> c_int {
    status((|| {
        out.check()?;
        out.store(volume.get()?.size());
        Ok(())
    })())
}

/// The bytes of its sectors.
#[unsafe(no_mangle)]
pub extern "C" fn hf_volume_sector(volume: Handle<Volume>) -> c_int {
    number((|| Ok(volume.get()?.sector().bytes() as c_int))())
}

/// Reads sectors.
#[unsafe(no_mangle)]
pub extern "C" fn hf_volume_read(
    volume: Handle<Volume>,
    mut buf: Output,
    len: usize,
    offset: u64,
) -> isize {
    count((|| {
        volume.get()?.read(buf.room(len)?, offset)?;
        Ok(len as u64)
    })())
}

/// Writes sectors.
#[unsafe(no_mangle)]
pub extern "C" fn hf_volume_write(
    volume: Handle<Volume>,
    buf: Input,
    len: usize,
    offset: u64,
    given: c_uint,
) -> isize {
    count((|| {
        let durable = match flags(given, DURABLE)? {
            0 => Written::AtFlush,
            _ => Written::AtReturn,
        };
        volume.get()?.write(buf.bytes(len)?, offset, durable)?;
        Ok(len as u64)
    })())
}

/// Makes what was written durable.
#[unsafe(no_mangle)]
pub extern "C" fn hf_volume_flush(volume: Handle<Volume>) -> c_int {
    status((|| Ok(volume.get()?.flush()?))())
}

/// Gives space back.
#[unsafe(no_mangle)]
pub extern "C" fn hf_volume_trim(volume: Handle<Volume>, offset: u64, len: u64) -> c_int {
    status((|| Ok(volume.get()?.trim(offset, len)?))())
}

/// Zeroes sectors that keep their space.
#[unsafe(no_mangle)]
pub extern "C" fn hf_volume_zero(volume: Handle<Volume>, offset: u64, len: u64) -> c_int {
    status((|| {
        Ok(volume.get()?.write_zeroes(offset, len, Zeroes::Blocks)?)
    })())
}

/// Gives a volume another size.
#[unsafe(no_mangle)]
pub extern "C" fn hf_volume_resize(pool: Handle<Source>, name: Name, size: u64) -> c_int {
    status((|| {
        Ok(pool.get()?.present()?.volume_resize(name.text()?, size)?)
    })())
}

/// Deletes a volume.
#[unsafe(no_mangle)]
pub extern "C" fn hf_volume_delete(pool: Handle<Source>, name: Name) -> c_int {
    status((|| {
        Ok(pool.get()?.present()?.volume_delete(name.text()?)?)
    })())
}

/// Tells a function of each volume.
#[unsafe(no_mangle)]
pub extern "C" fn hf_volume_list(pool: Handle<Source>, function: VolumeFn, arg: Argument) -> c_int {
    number((|| {
        for volume in pool.get()?.present()?.volumes()? {
            let name = CString::new(volume.name).map_err(|_| Refusal::name())?;
            let sizes = (volume.size, volume.allocated);
            match tell_volume(function, arg, &name, sizes)? {
                0 => {}
                said => return Ok(said),
            }
        }
        Ok(0)
    })())
}
