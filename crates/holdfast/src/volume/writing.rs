//! What a volume keeps of how it is written to.
//!
//! Invariant: it is a wish for those who serve the volume later; it changes nothing for those who
//! have it open.

use super::attribute::{NAME, Properties};
use super::manage;
use crate::error::Result;
use crate::pool::Pool;
use holdfast_pmem::{Protection, Scheme, Slow, Writing};
use std::path::Path;

/// How the processes that serve a volume are to write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeWriting {
    /// What keeps their stray stores from it.
    pub protection: Protection,
    /// How bytes get to the medium.
    pub scheme: Scheme,
}

impl Default for VolumeWriting {
    /// The best that the machine has, as the medium needs it.
    fn default() -> VolumeWriting {
        VolumeWriting {
            protection: Protection::Auto,
            scheme: Scheme::Auto,
        }
    }
}

impl VolumeWriting {
    /// An error for what cannot be together on any machine.
    pub fn check(&self) -> Result<()> {
        let writing = Writing {
            protection: self.protection,
            scheme: self.scheme,
        };
        let checked = writing.protected().map(drop);
        Ok(checked.map_err(holdfast_client::Error::Memory)?)
    }
}

impl Pool {
    /// Opens the pool in the directory `path` to serve its volume `name`, with the protection and
    /// the scheme that are given; for what is not, with what the volume keeps.
    pub fn open_to_serve(
        path: impl AsRef<Path>,
        name: &str,
        (protection, scheme): (Option<Protection>, Option<Scheme>),
        slow: impl Into<Option<Slow>>,
    ) -> Result<Pool> {
        let path = path.as_ref();
        // It keeps the service from ending meanwhile.
        let mut looking = None;
        let kept = match protection.is_some() && scheme.is_some() {
            true => VolumeWriting::default(),
            false => {
                let pool = looking.insert(Pool::open(path)?);
                pool.volume_to_read(name)?.writing()
            }
        };
        let options = Pool::options()
            .protection(protection.unwrap_or(kept.protection))
            .scheme(scheme.unwrap_or(kept.scheme))
            .slow(slow);
        options.open(path)
    }

    /// Keeps with the volume how those are to write to it who serve it from now on.
    pub fn volume_set_writing(&self, name: &str, writing: VolumeWriting) -> Result<()> {
        writing.check()?;
        let (file, properties) = manage::open(self, name, true)?;
        let properties = Properties {
            writing,
            ..properties
        };
        file.set_attribute(NAME, properties.to_string().as_bytes())?;
        self.sync()
    }
}
