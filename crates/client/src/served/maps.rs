//! Shared mappings, as `Client` has them: of files that are lent.
//!
//! Invariant: the pages of a mapping are those of one file of the kernel's, so what is cut off and
//! what the file grows by the kernel takes away and gives by itself. A pin's `inode` is the index
//! that the proxy has given.

use crate::base::error::{Error, Result};
use crate::base::types::*;
use crate::served::Served;
use crate::served::life::args;
use crate::served::wire::{Note, Op};
use rustix::fd::OwnedFd;

impl Served {
    /// A private mapping is a copy, which needs no pin.
    pub fn map_pin(&self, ofd: OfdLink, prot: u32, shared: bool) -> Result<MapPin> {
        if !shared {
            return Err(Error::NoDevice);
        }
        let ask = args(&[ofd.raw().into(), prot.into()]);
        let words = self.ask(Op::MapLend, &ask)?.words;
        Ok(MapPin {
            ino: words[3],
            inode: words[2] as u32,
        })
    }

    pub fn map_plan(
        &self,
        _pin: MapPin,
        offset: u64,
        len: u64,
        _shared: bool,
        each: &mut dyn FnMut(MapPiece) -> Result<()>,
    ) -> Result<()> {
        each(MapPiece::Lent { offset, len })
    }

    pub fn lent_file(&self, pin: MapPin, writes: bool) -> Result<OwnedFd> {
        self.alone(|| {
            self.tell(Op::MapFile, &args(&[pin.inode.into(), writes.into()]))?;
            match self.get()? {
                (Note::Object, [file]) => Ok(file),
                _ => Err(self.give_up()),
            }
        })
    }

    pub fn mapped_cuts(&self) -> u32 {
        0
    }

    /// Nobody tells those who are served.
    pub fn map_drops(&self) -> u32 {
        0
    }

    /// Only mappings of a pool's own pages have such pieces.
    pub fn map_inline(&self, _pin: MapPin, _out: &mut [u8; 4096]) -> Result<usize> {
        Err(Error::NoDevice)
    }

    /// The kernel knows it.
    pub fn map_size(&self, _pin: MapPin) -> Result<u64> {
        Err(Error::NoDevice)
    }

    pub fn map_repin(&self, pin: MapPin) -> Result<()> {
        self.tell(Op::MapMore, &args(&[pin.inode.into()]))
    }

    pub fn map_unpin(&self, pin: MapPin, written: bool) -> Result<()> {
        self.tell(Op::MapLess, &args(&[pin.inode.into(), written.into()]))
    }

    pub fn map_stored(&self, pin: MapPin) -> Result<()> {
        self.tell(Op::MapStored, &args(&[pin.inode.into()]))
    }

    pub fn msync(&self, pin: MapPin, offset: u64, len: u64) -> Result<()> {
        self.tell(Op::MapSync, &args(&[pin.inode.into(), offset, len]))
    }
}
