//! Sizes as people write them.
//!
//! Invariants: `parse` of what `show` prints is the same size, up to rounding; suffixes are powers
//! of 1024.

use holdfast_pool::bytes::{Bytes, SUFFIXES};
use std::fmt;
use std::str::FromStr;

/// Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let bad = || format!("'{text}' is not a size such as 512M or 4G");
        let digits = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (number, suffix) = text.split_at(digits);
        let number: u64 = number.parse().map_err(|_| bad())?;
        let mut letters = suffix.chars();
        let power = match letters.next() {
            None => 0,
            Some(c) => SUFFIXES.find(c.to_ascii_uppercase()).ok_or_else(bad)?,
        };
        let rest = letters.as_str();
        let unit = rest.is_empty() || (power > 0 && ["iB", "ib", "i", "B", "b"].contains(&rest));
        let bytes = number.checked_mul(1u64 << (10 * power as u32));
        match bytes {
            Some(bytes) if unit => Ok(Size(bytes)),
            Some(_) => Err(bad()),
            None => Err(format!("'{text}' is larger than any pool can be")),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Bytes(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65536),
            ("64k", 65536),
            ("1M", 1 << 20),
            ("3GiB", 3 << 30),
            ("4Gi", 4 << 30),
            ("2T", 2 << 40),
            ("5B", 5),
            ("16MB", 16 << 20),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in [
            "",
            "G",
            "-1",
            "1.5G",
            "1X",
            "1GG",
            "16E",
            "99999999999999999999",
            "1 G",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
