//! What `holdfast run --map` asks for: how mappings of the host's files are sped up.
//!
//! Invariants: a setting that `parse` accepts is within its limits, and what `Display` writes of it
//! is parsed to the same again; numbers that `of_numbers` accepts are within the same limits.

use alloc::format;
use alloc::string::String;
use core::fmt;

/// The settings of a run that was started with `--map`.
///
/// ```
/// use holdfast_client::MapSettings;
/// let settings = MapSettings::parse("cache=400M,entries=1000,idle=30s").unwrap();
/// assert_eq!(settings.cache, Some(400 << 20));
/// assert_eq!(MapSettings::parse(""), Ok(MapSettings::DEFAULT));
/// assert!(MapSettings::parse("entries=0").is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapSettings {
    /// Bytes of mappings that are kept for the next use; `None`: as the process finds right.
    pub cache: Option<u64>,
    /// How many mappings are kept.
    pub entries: u64,
    /// Milliseconds after which a kept mapping that nobody used again goes.
    pub idle_ms: u64,
    /// Bytes of the shortest mapping that is kept, and of the longest.
    pub min: u64,
    pub max: u64,
    /// From which use on a mapping is kept: 1 or 2.
    pub uses: u64,
    /// Who maps pages ahead of the program.
    pub ahead: Ahead,
    /// Bytes of the shortest mapping that pages are mapped ahead in.
    pub ahead_min: u64,
    /// Whether files in memory that are mapped again and again get huge pages.
    pub promote: bool,
}

/// Who maps pages ahead of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    Off,
    /// A thread beside the program.
    Async,
    /// The program's own call that maps, or gives advice: to compare with.
    Sync,
}

/// Numbers of one run's settings.
pub const MAP_NUMBERS: usize = 9;

const ENTRIES_MAX: u64 = 4096;
const IDLE_MAX: u64 = 24 * 3600 * 1000;
/// More bytes than the addresses of a program are.
const BYTES_MAX: u64 = 1 << 47;
const PAGE: u64 = 4096;

/// The settings: name, kind, and the least and the most that it can be.
struct Key(&'static str, Kind, u64, u64);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bytes,
    Count,
    Time,
    /// One of `AHEAD`.
    Word,
    /// One of `SWITCH`.
    Switch,
}

const KEYS: [Key; MAP_NUMBERS] = [
    Key("cache", Kind::Bytes, 0, BYTES_MAX),
    Key("entries", Kind::Count, 1, ENTRIES_MAX),
    Key("idle", Kind::Time, 1, IDLE_MAX),
    Key("min", Kind::Bytes, PAGE, BYTES_MAX),
    Key("max", Kind::Bytes, PAGE, BYTES_MAX),
    Key("uses", Kind::Count, 1, 2),
    Key("ahead", Kind::Word, 0, AHEAD.len() as u64 - 1),
    Key("ahead-min", Kind::Bytes, PAGE, BYTES_MAX),
    Key("promote", Kind::Switch, 0, 1),
];

const AHEAD: [(&str, Ahead); 3] = [
    ("off", Ahead::Off),
    ("async", Ahead::Async),
    ("sync", Ahead::Sync),
];

const SWITCH: [&str; 2] = ["off", "on"];

/// Suffixes and what they multiply with, the largest first.
const BYTES: [(&str, u64); 5] = [
    ("T", 1 << 40),
    ("G", 1 << 30),
    ("M", 1 << 20),
    ("K", 1 << 10),
    ("", 1),
];
const TIMES: [(&str, u64); 2] = [("ms", 1), ("s", 1000)];

impl Key {
    /// What `text` says.
    fn value(&self, text: &str) -> Option<u64> {
        if self.1 == Kind::Word {
            let at = AHEAD.iter().position(|(name, _)| *name == text)?;
            return Some(at as u64);
        }
        if self.1 == Kind::Switch {
            let at = SWITCH.iter().position(|name| *name == text)?;
            return Some(at as u64);
        }
        let end = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at_checked(end)?;
        let units: &[(&str, u64)] = match self.1 {
            Kind::Bytes => &BYTES,
            Kind::Count => &[("", 1)],
            Kind::Time | Kind::Word | Kind::Switch => &TIMES,
        };
        let times = units.iter().find(|(name, _)| *name == unit)?.1;
        let value = number.parse::<u64>().ok()?.checked_mul(times)?;
        (self.2..=self.3).contains(&value).then_some(value)
    }

    fn range(&self) -> String {
        let Key(name, kind, least, most) = self;
        match kind {
            Kind::Bytes if *least == 0 => format!("{name} is a size such as 400M, or 0 for none"),
            Kind::Bytes => format!("{name} is a size such as 64K, of a page or more"),
            Kind::Count => format!("{name} is a number from {least} to {most}"),
            Kind::Time => format!("{name} is a time such as 30s or 500ms, of 24 h at most"),
            Kind::Word => format!("{name} is off, async or sync"),
            Kind::Switch => format!("{name} is on or off"),
        }
    }

    fn write(&self, value: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = AHEAD.get(value as usize).map_or("", |(name, _)| name);
        let (unit, times) = match self.1 {
            Kind::Word => return write!(f, "{}={word}", self.0),
            Kind::Switch => return write!(f, "{}={}", self.0, SWITCH[usize::from(value != 0)]),
            Kind::Bytes => *BYTES
                .iter()
                .find(|(_, times)| value.is_multiple_of(*times) && value >= *times)
                .unwrap_or(&("", 1)),
            Kind::Count => ("", 1),
            Kind::Time if value.is_multiple_of(1000) => ("s", 1000),
            Kind::Time => ("ms", 1),
        };
        write!(f, "{}={}{unit}", self.0, value / times)
    }
}

impl MapSettings {
    /// Those of `--map` alone.
    pub const DEFAULT: MapSettings = MapSettings {
        cache: None,
        entries: 1024,
        idle_ms: 30_000,
        min: 64 << 10,
        max: 64 << 20,
        uses: 2,
        ahead: Ahead::Async,
        ahead_min: 8 << 20,
        promote: true,
    };

    /// What `text` says: settings like `cache=400M,idle=30s`, or nothing.
    pub fn parse(text: &str) -> Result<MapSettings, BadMapSettings> {
        let mut values = [None; MAP_NUMBERS];
        for setting in text.split(',').filter(|_| !text.is_empty()) {
            let split = setting.split_once('=');
            let found = split.and_then(|(name, value)| {
                let at = KEYS.iter().position(|key| key.0 == name)?;
                Some((at, value))
            });
            let Some((at, value)) = found else {
                return Err(BadMapSettings(unknown(setting)));
            };
            let key = &KEYS[at];
            if values[at].is_some() {
                return Err(BadMapSettings(format!("{} is there twice", key.0)));
            }
            let value = key.value(value).ok_or_else(|| {
                BadMapSettings(format!("{setting:?} is out of range: {}", key.range()))
            })?;
            values[at] = Some(value);
        }
        let settings = MapSettings::of_values(values);
        match settings.min <= settings.max {
            true => Ok(settings),
            false => Err(BadMapSettings(
                "min is larger than max: no mapping would be kept".into(),
            )),
        }
    }

    fn of_values(values: [Option<u64>; MAP_NUMBERS]) -> MapSettings {
        let [
            cache,
            entries,
            idle_ms,
            min,
            max,
            uses,
            ahead,
            ahead_min,
            promote,
        ] = values;
        let default = MapSettings::DEFAULT;
        MapSettings {
            cache,
            entries: entries.unwrap_or(default.entries),
            idle_ms: idle_ms.unwrap_or(default.idle_ms),
            min: min.unwrap_or(default.min),
            max: max.unwrap_or(default.max),
            uses: uses.unwrap_or(default.uses),
            ahead: ahead.map_or(default.ahead, |at| AHEAD[at as usize].1),
            ahead_min: ahead_min.unwrap_or(default.ahead_min),
            promote: promote.map_or(default.promote, |on| on != 0),
        }
    }

    fn values(&self) -> [Option<u64>; MAP_NUMBERS] {
        [
            self.cache,
            Some(self.entries),
            Some(self.idle_ms),
            Some(self.min),
            Some(self.max),
            Some(self.uses),
            Some(self.ahead as u64),
            Some(self.ahead_min),
            Some(self.promote.into()),
        ]
    }

    /// All settings, for `of_numbers` in another process. Without `--map` all are 0.
    pub fn numbers(settings: Option<MapSettings>) -> [u64; MAP_NUMBERS] {
        match settings {
            None => [0; MAP_NUMBERS],
            Some(settings) => settings.values().map(|value| value.map_or(0, |n| n + 1)),
        }
    }

    /// What `numbers` said. `None`: it could not say that.
    pub fn of_numbers(numbers: [u64; MAP_NUMBERS]) -> Option<Option<MapSettings>> {
        if numbers == [0; MAP_NUMBERS] {
            return Some(None);
        }
        let values = numbers.map(|number| number.checked_sub(1));
        for (i, (Key(_, _, least, most), value)) in KEYS.iter().zip(values).enumerate() {
            // The process chooses the first one if it is not there.
            let fits = value.map_or(i == 0, |value| (*least..=*most).contains(&value));
            if !fits {
                return None;
            }
        }
        let settings = MapSettings::of_values(values);
        (settings.min <= settings.max).then_some(Some(settings))
    }
}

fn unknown(word: &str) -> String {
    let keys = KEYS.map(|key| key.0).join(", ");
    format!("{word:?} is no setting, such as cache=400M, of {keys}")
}

impl fmt::Display for MapSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = KEYS.iter().zip(self.values());
        for (i, (key, value)) in values.filter_map(|(k, v)| Some((k, v?))).enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            key.write(value, f)?;
        }
        Ok(())
    }
}

/// A word that says of no mapping how it is sped up, and what would.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadMapSettings(String);

impl fmt::Display for BadMapSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for BadMapSettings {}

impl core::str::FromStr for MapSettings {
    type Err = BadMapSettings;

    fn from_str(text: &str) -> Result<MapSettings, BadMapSettings> {
        MapSettings::parse(text)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn what_is_written_is_read_again() {
        for text in [
            "",
            "cache=0",
            "cache=400M,entries=1000,idle=30s",
            "cache=5000,entries=4096,idle=1ms,min=4K,max=128T,uses=1",
            "idle=24000ms",
            "min=64M",
            "ahead=off",
            "ahead=sync,ahead-min=64K",
            "promote=off",
        ] {
            let settings = MapSettings::parse(text).unwrap();
            assert_eq!(MapSettings::parse(&settings.to_string()), Ok(settings));
            let numbers = MapSettings::numbers(Some(settings));
            assert_eq!(MapSettings::of_numbers(numbers), Some(Some(settings)));
        }
        let text = MapSettings::DEFAULT.to_string();
        let ahead = "uses=2,ahead=async,ahead-min=8M,promote=on";
        assert_eq!(
            text,
            format!("entries=1024,idle=30s,min=64K,max=64M,{ahead}")
        );
        let full = MapSettings::parse("max=1G,cache=1536K").unwrap();
        let text = full.to_string();
        let cache = "cache=1536K,entries=1024,idle=30s,min=64K,max=1G";
        assert_eq!(text, format!("{cache},{ahead}"));
        let off = MapSettings::numbers(None);
        assert_eq!(MapSettings::of_numbers(off), Some(None));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_does() {
        for word in ["x", "cache", ",", "cache=1,", "Cache=1", "behind=1", "=1"] {
            let why = MapSettings::parse(word).unwrap_err().to_string();
            assert!(
                why.contains("cache=400M") && why.contains("idle"),
                "{word}: {why}"
            );
        }
        for bad in [
            "cache=",
            "cache=-1",
            "cache=1P",
            "cache=129T",
            "cache=1m",
            "entries=0",
            "entries=4097",
            "entries=1K",
            "idle=30",
            "idle=0s",
            "idle=86401s",
            "idle=99999999999999999999s",
            "min=0",
            "max=4095",
            "uses=3",
            "ahead=",
            "ahead=1",
            "ahead=Off",
            "ahead-min=0",
            "promote=yes",
        ] {
            let why = MapSettings::parse(bad).unwrap_err().to_string();
            assert!(why.contains("out of range"), "{bad}: {why}");
        }
        let twice = MapSettings::parse("idle=1s,idle=1s").unwrap_err();
        assert_eq!(twice.to_string(), "idle is there twice");
        assert!(MapSettings::parse("min=2M,max=1M").is_err());
        for numbers in [
            [0, 1, 0, 0, 0, 0, 0, 0, 0],
            [1, 0, 2, 4097, 4097, 2, 1, 4097, 2],
            [1, 2, 2, 4098, 4097, 2, 1, 4097, 2],
            [1, 2, 2, 4097, 4097, 4, 1, 4097, 2],
            [1, 2, 2, 4097, 4097, 2, 4, 4097, 2],
            [1, 2, 2, 4097, 4097, 2, 0, 4097, 2],
            [1, 2, 2, 4097, 4097, 2, 1, 4096, 2],
            [1, 2, 2, 4097, 4097, 2, 1, 4097, 3],
            [1, 2, 2, 4097, 4097, 2, 1, 4097, 0],
        ] {
            assert_eq!(MapSettings::of_numbers(numbers), None, "{numbers:?}");
        }
    }
}
