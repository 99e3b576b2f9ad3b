//! What a virtio block device stands on.
//!
//! Invariant: a request that is refused changes nothing.

use holdfast::{Error, Result, Volume, Written, Zeroes};

/// A volume, or what tests have in its place.
pub trait Disk: Send + Sync {
    fn size(&self) -> u64;
    fn sector(&self) -> u64;
    fn writes(&self) -> bool;
    /// Says who it is to the guest.
    fn name(&self) -> &str;
    fn read(&self, room: &mut [u8], at: u64) -> Result<()>;
    fn write(&self, bytes: &[u8], at: u64, durable: Written) -> Result<()>;
    fn flush(&self) -> Result<()>;
    fn zero(&self, at: u64, len: u64, zeroes: Zeroes) -> Result<()>;
}

impl Disk for Volume {
    fn size(&self) -> u64 {
        self.size() & !(Disk::sector(self) - 1)
    }

    fn sector(&self) -> u64 {
        self.sector().bytes()
    }

    fn writes(&self) -> bool {
        self.writes()
    }

    fn name(&self) -> &str {
        self.name()
    }

    fn read(&self, room: &mut [u8], at: u64) -> Result<()> {
        said(self.read(room, at))
    }

    fn write(&self, bytes: &[u8], at: u64, durable: Written) -> Result<()> {
        said(self.write(bytes, at, durable))
    }

    fn flush(&self) -> Result<()> {
        said(self.flush())
    }

    fn zero(&self, at: u64, len: u64, zeroes: Zeroes) -> Result<()> {
        said(match zeroes {
            Zeroes::Hole => self.trim(at, len),
            Zeroes::Blocks => self.write_zeroes(at, len, zeroes),
        })
    }
}

/// The guest learns nothing of an error but that there was one.
fn said(done: Result<()>) -> Result<()> {
    done.inspect_err(|e: &Error| crate::failure::say_once(e))
}
