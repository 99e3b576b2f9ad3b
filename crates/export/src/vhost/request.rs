//! Requests of a virtio block device.
//!
//! Invariants: nothing of the guest's memory is used in place: it is copied once, then checked.
//! Whatever a chain of descriptors says, it ends in a status or stops the queue.

use super::device::{DISCARD_MAX, Device, RANGES_MAX, SECTOR, ZERO_MAX};
use super::disk::Disk;
use crate::bytes::{fit, with_room};
use holdfast::Zeroes;
use std::fmt;
use std::io::{Read, Write};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP,
    VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN,
    VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use virtio_queue::{DescriptorChain, Reader, Writer};
use vm_memory::GuestMemoryMmap;

/// So many bytes of a request are in memory of ours at once.
const PIECE: usize = 1 << 20;
const HEADER: usize = 16;
const RANGE: usize = 16;

/// Why a request failed, as the guest is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    Failed = VIRTIO_BLK_S_IOERR as isize,
    Unsupported = VIRTIO_BLK_S_UNSUPP as isize,
}

impl From<holdfast::Error> for Refused {
    fn from(_: holdfast::Error) -> Refused {
        Refused::Failed
    }
}

impl From<std::io::Error> for Refused {
    fn from(_: std::io::Error) -> Refused {
        Refused::Failed
    }
}

/// Why a queue cannot go on: there is nowhere to say it to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// Of a buffer.
    Address,
    NoStatus,
    /// Of the queue itself.
    Ring,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Broken::Address => "a request has a buffer outside of the guest's memory",
            Broken::NoStatus => "a request has no room for its status",
            Broken::Ring => "its rings make no sense",
        })
    }
}

/// Serves the request; how many bytes of its buffers were written.
pub fn serve<D: Disk>(
    device: &Device<D>,
    memory: &GuestMemoryMmap,
    chain: DescriptorChain<&GuestMemoryMmap>,
) -> Result<u32, Broken> {
    let mut input = chain.clone().reader(memory).map_err(|_| Broken::Address)?;
    let mut output = chain.writer(memory).map_err(|_| Broken::Address)?;
    let room = output.available_bytes();
    let data = room.checked_sub(1).ok_or(Broken::NoStatus)?;
    let mut status = output.split_at(data).map_err(|_| Broken::NoStatus)?;
    let answer = match answer(device, &mut input, &mut output) {
        Ok(()) => VIRTIO_BLK_S_OK as u8,
        Err(refused) => refused as u8,
    };
    status.write_all(&[answer]).map_err(|_| Broken::Address)?;
    u32::try_from(room).map_err(|_| Broken::Address)
}

fn answer<D: Disk>(
    device: &Device<D>,
    input: &mut Reader<'_>,
    output: &mut Writer<'_>,
) -> Result<(), Refused> {
    let mut header = [0; HEADER];
    input.read_exact(&mut header)?;
    let (kind, sector) = (le32(&header, 0), le64(&header, 8));
    match kind {
        VIRTIO_BLK_T_IN => read(&device.disk, sector, output),
        VIRTIO_BLK_T_OUT => write(device, sector, input),
        VIRTIO_BLK_T_FLUSH => Ok(device.disk.flush()?),
        VIRTIO_BLK_T_GET_ID => identify(&device.disk, output),
        VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES => zero(&device.disk, kind, input),
        _ => Err(Refused::Unsupported),
    }
}

fn read<D: Disk>(disk: &D, sector: u64, output: &mut Writer<'_>) -> Result<(), Refused> {
    let mut left = output.available_bytes();
    let mut at = within(disk, sector, left as u64)?;
    with_room(|room| {
        while left > 0 {
            let piece = fit(room, left.min(PIECE));
            disk.read(piece, at)?;
            output.write_all(piece)?;
            left -= piece.len();
            at += piece.len() as u64;
        }
        Ok(())
    })
}

fn write<D: Disk>(device: &Device<D>, sector: u64, input: &mut Reader<'_>) -> Result<(), Refused> {
    let mut left = input.available_bytes();
    let mut at = within(&device.disk, sector, left as u64)?;
    let durable = device.written();
    with_room(|room| {
        while left > 0 {
            let piece = fit(room, left.min(PIECE));
            input.read_exact(piece)?;
            device.disk.write(piece, at, durable)?;
            left -= piece.len();
            at += piece.len() as u64;
        }
        Ok(())
    })
}

/// The name of the disk, as far as there is room for it.
fn identify<D: Disk>(disk: &D, output: &mut Writer<'_>) -> Result<(), Refused> {
    let mut id = [0; VIRTIO_BLK_ID_BYTES as usize];
    for (to, from) in id.iter_mut().zip(disk.name().bytes()) {
        *to = from;
    }
    match output.available_bytes() < id.len() {
        true => Err(Refused::Failed),
        false => Ok(output.write_all(&id)?),
    }
}

/// Discards or zeroes ranges: all of them, or none where one of them cannot be.
fn zero<D: Disk>(disk: &D, kind: u32, input: &mut Reader<'_>) -> Result<(), Refused> {
    let len = input.available_bytes();
    if len == 0 || !len.is_multiple_of(RANGE) || len / RANGE > RANGES_MAX {
        return Err(Refused::Failed);
    }
    let mut bytes = vec![0; len];
    input.read_exact(&mut bytes)?;
    let ranges = bytes.chunks_exact(RANGE).map(|range| {
        let (sector, sectors, flags) = (le64(range, 0), le32(range, 8), le32(range, 12));
        let (most, zeroes) = match (kind, flags) {
            (VIRTIO_BLK_T_DISCARD, 0) => (DISCARD_MAX, Zeroes::Hole),
            (VIRTIO_BLK_T_WRITE_ZEROES, 0) => (ZERO_MAX, Zeroes::Blocks),
            (VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP) => {
                (ZERO_MAX, Zeroes::Hole)
            }
            _ => return Err(Refused::Unsupported),
        };
        if sectors > most {
            return Err(Refused::Failed);
        }
        let len = u64::from(sectors) * SECTOR;
        Ok((within(disk, sector, len)?, len, zeroes))
    });
    for (at, len, zeroes) in ranges.collect::<Result<Vec<_>, Refused>>()? {
        disk.zero(at, len, zeroes)?;
    }
    Ok(())
}

/// Where a range of whole sectors of the disk begins, in bytes.
fn within<D: Disk>(disk: &D, sector: u64, len: u64) -> Result<u64, Refused> {
    let at = sector.checked_mul(SECTOR).ok_or(Refused::Failed)?;
    let end = at.checked_add(len).ok_or(Refused::Failed)?;
    match end <= disk.size() && (at | len).is_multiple_of(disk.sector()) {
        true => Ok(at),
        false => Err(Refused::Failed),
    }
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    let part = bytes.get(at..).and_then(|part| part.first_chunk());
    part.map_or(0, |part| u32::from_le_bytes(*part))
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    let part = bytes.get(at..).and_then(|part| part.first_chunk());
    part.map_or(0, |part| u64::from_le_bytes(*part))
}
