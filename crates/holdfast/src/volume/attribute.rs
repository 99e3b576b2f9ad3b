//! What makes a file a volume: an extended attribute, with what the volume's requests are like.
//!
//! Invariant: whoever may write to the file may have written anything there; what is not known is
//! an error.

use super::writing::VolumeWriting;
use crate::sector::Sector;
use holdfast_pmem::{Protection, Scheme};
use std::fmt;

/// The attribute's name.
pub(crate) const NAME: &[u8] = b"user.holdfast.volume";

/// The most bytes of one.
pub(crate) const ROOM: usize = 256;

/// The properties of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Properties {
    pub sector: Sector,
    /// Its bytes, if they are in a block translation table: then its sectors are atomic.
    pub table: Option<u64>,
    /// The table has checksums of its blocks.
    pub sums: bool,
    pub writing: VolumeWriting,
}

impl Properties {
    /// As the attribute says it: words `name=value` with a space between them.
    pub fn parse(text: &[u8]) -> Option<Properties> {
        let mut properties = Properties::default();
        for word in std::str::from_utf8(text).ok()?.split_whitespace() {
            match word.split_once('=')? {
                ("sector", value) => properties.sector = Sector::of(value.parse().ok()?)?,
                ("btt", value) => properties.table = Some(value.parse().ok()?),
                ("sums", "crc32c") => properties.sums = true,
                ("protect", value) => properties.writing.protection = Protection::named(value)?,
                ("persist", value) => properties.writing.scheme = Scheme::named(value)?,
                _ => return None,
            }
        }
        let size = properties.table.unwrap_or_default();
        let whole = size.is_multiple_of(properties.sector.bytes());
        let alone = properties.sums && properties.table.is_none();
        (whole && !alone).then_some(properties)
    }
}

impl fmt::Display for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sector={}", self.sector)?;
        if let Some(size) = self.table {
            write!(f, " btt={size}")?;
        }
        if self.sums {
            f.write_str(" sums=crc32c")?;
        }
        let VolumeWriting { protection, scheme } = self.writing;
        if protection != Protection::Auto {
            write!(f, " protect={}", protection.name())?;
        }
        if scheme != Scheme::Auto {
            write!(f, " persist={}", scheme.name())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_what_was_written() {
        let sectors = [Sector::Small, Sector::Large].into_iter();
        for (sector, table) in sectors.flat_map(|one| [(one, None), (one, Some(8192))]) {
            let properties = Properties {
                sector,
                table,
                sums: table.is_some(),
                ..Properties::default()
            };
            let text = properties.to_string();
            assert_eq!(Properties::parse(text.as_bytes()), Some(properties));
        }
        assert_eq!(Properties::parse(b""), Some(Properties::default()));
    }

    #[test]
    fn writing_is_kept_by_name() {
        for (protection, scheme) in Protection::ALL.into_iter().zip(Scheme::ALL) {
            let properties = Properties {
                writing: VolumeWriting { protection, scheme },
                ..Properties::default()
            };
            let text = properties.to_string();
            assert_eq!(Properties::parse(text.as_bytes()), Some(properties));
        }
        // What is not chosen is not written, so that every version reads it.
        assert_eq!(Properties::default().to_string(), "sector=512");
        let chosen = Properties::parse(b"persist=nt protect=fd").unwrap();
        assert_eq!(chosen.to_string(), "sector=512 protect=fd persist=nt");
    }

    #[test]
    fn anything_else_is_refused() {
        let cases: &[&[u8]] = &[
            b"sector=0",
            b"sector=1024",
            b"sector=-512",
            b"sector",
            b"=",
            b"color=red",
            b"protect=strong",
            b"protect=",
            b"persist=pt",
            b"sector=512 \xff",
            b"btt=-1",
            b"sums=crc32c",
            b"btt=512 sums=md5",
            b"sector=4096 btt=512",
        ];
        for text in cases {
            assert_eq!(Properties::parse(text), None, "{text:?}");
        }
    }
}
