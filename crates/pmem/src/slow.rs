//! How much slower than this machine's memory a pool is to be, by name and by numbers.
//!
//! What always holds here: a setting that `parse` accepts is within its limits, and what `Display`
//! writes of it is parsed to the same again.

use alloc::format;
use alloc::string::String;
use core::fmt;

/// A setting that is not set.
const NOT_SET: u32 = 0;
/// Times are counted in thousandths.
pub(crate) const ONCE: u32 = 1000;
const FACTOR_MAX: u32 = 1_000_000;
const NANOSECONDS_MAX: u32 = 1_000_000_000;
const MEGABYTES_MAX: u32 = 1_000_000;

/// How one direction is slowed; 0 where it is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slower {
    /// Thousandths of the time that a copy takes. The other two are ignored then.
    pub factor: u32,
    /// Added to each copy, in nanoseconds.
    pub latency: u32,
    /// Of all processes together, in MB (10^6 bytes) per second.
    pub bandwidth: u32,
}

/// How much slower than memory the copies of a process are to and from a pool; the names are those
/// of PMBD (Chen, Mesnier, Hahn: "A Protected Block Device for Persistent Memory", MSST 2014).
///
/// ```
/// use holdfast_pmem::Slow;
/// assert_eq!(Slow::parse("aerie"), Slow::parse("wrlat=150,wrbw=4000"));
/// assert!(Slow::parse("rdsx=0.5").is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slow {
    pub(crate) read: Slower,
    pub(crate) write: Slower,
}

/// The media that have a name.
const PRESETS: [(&str, &str); 6] = [
    ("pcm", "rdsx=1.417,wrsx=16.667"),
    ("memristor", "rdsx=1.667,wrsx=1.667"),
    ("stt-ram", "rdsx=1,wrsx=1"),
    ("nand", "rdlat=25000,wrlat=500000"),
    ("aerie", "wrlat=150,wrbw=4000"),
    ("none", ""),
];

/// The settings: name, what it counts, the largest, and in which direction it is what.
const KEYS: [Key; 6] = [
    Key("rdsx", FACTORS, FACTOR_MAX, |slow| &mut slow.read.factor),
    Key("wrsx", FACTORS, FACTOR_MAX, |slow| &mut slow.write.factor),
    Key("rdlat", "nanoseconds", NANOSECONDS_MAX, |slow| {
        &mut slow.read.latency
    }),
    Key("wrlat", "nanoseconds", NANOSECONDS_MAX, |slow| {
        &mut slow.write.latency
    }),
    Key("rdbw", "MB/s", MEGABYTES_MAX, |slow| {
        &mut slow.read.bandwidth
    }),
    Key("wrbw", "MB/s", MEGABYTES_MAX, |slow| {
        &mut slow.write.bandwidth
    }),
];
const FACTORS: &str = "times";

struct Key(&'static str, &'static str, u32, fn(&mut Slow) -> &mut u32);

impl Key {
    /// What `text` says.
    fn value(&self, text: &str) -> Option<u32> {
        let Key(_, unit, max, _) = self;
        match *unit {
            FACTORS => thousandths(text).filter(|value| (ONCE..=max * ONCE).contains(value)),
            _ => digits(text).filter(|value| (1..=*max).contains(value)),
        }
    }

    fn range(&self) -> String {
        let Key(name, unit, max, _) = self;
        let decimals = match *unit {
            FACTORS => ", with at most three decimals",
            _ => "",
        };
        format!("{name} is a number of {unit} from 1 to {max}{decimals}")
    }
}

impl Slow {
    /// As fast as memory.
    pub const NONE: Slow = Slow {
        read: Slower {
            factor: NOT_SET,
            latency: NOT_SET,
            bandwidth: NOT_SET,
        },
        write: Slower {
            factor: NOT_SET,
            latency: NOT_SET,
            bandwidth: NOT_SET,
        },
    };

    /// What `text` says: the name of a medium, or settings like `rdsx=2,wrsx=8`.
    pub fn parse(text: &str) -> Result<Slow, BadSlow> {
        let named = PRESETS.iter().find(|(name, _)| *name == text);
        let settings = match named {
            Some((_, "")) => return Ok(Slow::NONE),
            Some((_, settings)) => settings,
            None => text,
        };
        let mut slow = Slow::NONE;
        for setting in settings.split(',') {
            let split = setting.split_once('=');
            let found = split.and_then(|(name, value)| {
                let key = KEYS.iter().find(|key| key.0 == name)?;
                Some((key, value))
            });
            let Some((key, value)) = found else {
                return Err(BadSlow(unknown(setting)));
            };
            let place = key.3(&mut slow);
            if *place != NOT_SET {
                return Err(BadSlow(format!("{} is there twice", key.0)));
            }
            *place = key
                .value(value)
                .ok_or_else(|| BadSlow(format!("{setting:?} is out of range: {}", key.range())))?;
        }
        Ok(slow)
    }

    /// Whether nothing is slowed.
    pub fn is_none(&self) -> bool {
        *self == Slow::NONE
    }

    /// All settings, for `of_numbers` in another process.
    pub fn numbers(mut self) -> [u32; 6] {
        KEYS.map(|key| *key.3(&mut self))
    }

    /// What `numbers` said. `None`: it could not say that.
    pub fn of_numbers(numbers: [u32; 6]) -> Option<Slow> {
        let mut slow = Slow::NONE;
        for (Key(_, unit, max, place), number) in KEYS.iter().zip(numbers) {
            let range = match *unit {
                FACTORS => ONCE..=max * ONCE,
                _ => 1..=*max,
            };
            if number != NOT_SET && !range.contains(&number) {
                return None;
            }
            *place(&mut slow) = number;
        }
        Some(slow)
    }
}

fn unknown(word: &str) -> String {
    let presets = PRESETS.map(|(name, _)| name).join(", ");
    let keys = KEYS.map(|key| key.0).join(", ");
    format!("{word:?} is neither one of {presets} nor a setting, such as wrsx=8, of {keys}")
}

fn digits(text: &str) -> Option<u32> {
    // The standard library would take a plus sign.
    let all = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| all)
}

/// `1.5` is 1500.
fn thousandths(text: &str) -> Option<u32> {
    let (whole, part) = match text.split_once('.') {
        None => (text, "0"),
        Some((whole, part)) if (1..=3).contains(&part.len()) => (whole, part),
        Some(_) => return None,
    };
    let unit = [100, 10, 1].get(part.len() - 1)?;
    digits(whole)?
        .checked_mul(ONCE)?
        .checked_add(digits(part)? * unit)
}

impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for (Key(name, unit, ..), number) in KEYS.iter().zip(self.numbers()) {
            if number == NOT_SET {
                continue;
            }
            let (whole, part) = (number / ONCE, number % ONCE);
            match *unit {
                FACTORS if part == 0 => write!(f, "{between}{name}={whole}")?,
                FACTORS => {
                    let part = format!("{part:03}");
                    let part = part.trim_end_matches('0');
                    write!(f, "{between}{name}={whole}.{part}")?;
                }
                _ => write!(f, "{between}{name}={number}")?,
            }
            between = ",";
        }
        match between {
            "" => f.write_str("none"),
            _ => Ok(()),
        }
    }
}

/// A word that says of no medium how slow it is, and what would.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSlow(String);

impl fmt::Display for BadSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for BadSlow {}

impl core::str::FromStr for Slow {
    type Err = BadSlow;

    fn from_str(text: &str) -> Result<Slow, BadSlow> {
        Slow::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn what_is_written_is_read_again() {
        let settings = "rdsx=1.5,wrsx=1000000,rdlat=1,wrlat=1000000000,rdbw=1000000,wrbw=1";
        for text in
            PRESETS
                .map(|(name, _)| name)
                .into_iter()
                .chain([settings, "wrbw=7", "rdsx=2.001"])
        {
            let slow = Slow::parse(text).unwrap();
            assert_eq!(Slow::parse(&slow.to_string()), Ok(slow), "{text}");
            assert_eq!(Slow::of_numbers(slow.numbers()), Some(slow), "{text}");
            assert_eq!(slow.is_none(), text == "none");
        }
        assert_eq!(Slow::parse(settings).unwrap().to_string(), settings);
        assert_eq!(Slow::parse("wrlat=150,wrbw=4000"), Slow::parse("aerie"));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_does() {
        for word in [
            "",
            "fast",
            "PCM",
            "pcm,wrsx=2",
            "rdsx",
            "speed=2",
            "rdsx=2,",
            "rdsx = 2",
        ] {
            let why = Slow::parse(word).unwrap_err().to_string();
            assert!(
                why.contains("stt-ram") && why.contains("wrbw"),
                "{word}: {why}"
            );
        }
        for value in [
            "0",
            "-1",
            "NaN",
            "inf",
            "",
            "+2",
            "1e3",
            "99999999999999999999",
        ] {
            for Key(name, ..) in KEYS {
                let why = Slow::parse(&format!("{name}={value}")).unwrap_err();
                assert!(
                    why.to_string().contains("from 1 to"),
                    "{name}={value}: {why}"
                );
            }
        }
        for bad in [
            "rdsx=0.999",
            "wrsx=1000000.001",
            "rdsx=1.0001",
            "rdsx=1.",
            "rdsx=.5",
            "wrsx=4294968",
            "rdlat=1.5",
            "wrlat=1000000001",
            "wrbw=1000001",
            "rdsx=1.+5",
        ] {
            assert!(Slow::parse(bad).is_err(), "{bad}");
        }
        let twice = Slow::parse("rdsx=2,rdsx=3").unwrap_err();
        assert_eq!(twice.to_string(), "rdsx is there twice");
        assert_eq!(Slow::of_numbers([999, 0, 0, 0, 0, 0]), None);
        assert_eq!(Slow::of_numbers([0, 0, 0, u32::MAX, 0, 0]), None);
    }
}
