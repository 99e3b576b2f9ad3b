//! The unit in which volumes are read and written.
//!
//! Invariant: it is a power of two.

use std::fmt;

/// The unit in which a volume is read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sector {
    /// 512 bytes, which every program can use.
    #[default]
    Small,
    /// 4096 bytes.
    Large,
}

impl Sector {
    /// Its bytes.
    #[inline]
    pub fn bytes(self) -> u64 {
        match self {
            Sector::Small => 512,
            Sector::Large => 4096,
        }
    }

    /// The sector of so many bytes: 512 or 4096.
    pub fn of(bytes: u64) -> Option<Sector> {
        [Sector::Small, Sector::Large]
            .into_iter()
            .find(|sector| sector.bytes() == bytes)
    }
}

impl fmt::Display for Sector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}
