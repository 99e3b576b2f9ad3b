//! Sizes as people write and read them: powers of 1024 by one letter.
//!
//! Invariants: what is a whole number of the largest unit below it is shown exactly, anything else
//! with one digit behind the point; in the form `{:#}`, for what somebody has typed, it is exact in
//! any case, in the largest unit of which it is a whole number.

use core::fmt;

/// Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

/// By how many times 1024 each stands for.
pub const SUFFIXES: &str = "BKMGTPE";

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut power = 0;
        let fits = |power: u32| match f.alternate() {
            true => self.0 > 0 && self.0.is_multiple_of(1 << (10 * power)),
            false => self.0 >> (10 * power) > 0,
        };
        while power < 6 && fits(power + 1) {
            power += 1;
        }
        let unit = 1u64 << (10 * power);
        let suffix = SUFFIXES.as_bytes()[power as usize] as char;
        match (power, self.0 % unit) {
            (0, _) => write!(f, "{}", self.0),
            (_, 0) => write!(f, "{}{suffix}", self.0 / unit),
            _ => write!(f, "{:.1}{suffix}", self.0 as f64 / unit as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn sizes_are_shown() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1 << 20, "1M"),
            (3 << 29, "1.5G"),
            (1 << 60, "1E"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn sizes_that_were_typed_are_shown_as_they_were() {
        for (bytes, text) in [
            (0, "0"),
            (3000, "3000"),
            (1536 << 20, "1536M"),
            (90_000 << 30, "90000G"),
            (4 << 30, "4G"),
        ] {
            assert_eq!(alloc::format!("{:#}", Bytes(bytes)), text);
        }
    }
}
