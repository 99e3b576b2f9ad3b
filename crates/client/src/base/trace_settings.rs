//! What `holdfast run --trace` asks for: where calls are written down, and which.
//!
//! Invariants: numbers that `of_numbers` accepts are those that `numbers` made of some settings; a
//! filter names at least one call.

use super::calls::{KINDS, Kind, NUMBERS};
use alloc::format;
use alloc::string::String;
use core::fmt;

/// The settings of a run that was started with `--trace`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceSettings {
    /// The descriptor that lines are written to.
    pub fd: u32,
    /// Which calls are.
    pub filter: TraceFilter,
}

/// Numbers of one run's settings.
pub const TRACE_NUMBERS: usize = 2 + WORDS;

const WORDS: usize = NUMBERS / 64;
const FAILED: u64 = 1;
const REFUSED: u64 = 2;
const PASSED: u64 = 4;

/// Which calls are written down.
///
/// ```
/// use holdfast_client::TraceFilter;
/// let filter = TraceFilter::parse("openat,%desc,failed").unwrap();
/// assert!(filter.has(257) && filter.has(0) && !filter.has(82));
/// assert!(filter.only_failed());
/// assert!(TraceFilter::parse("!close").unwrap().has(82));
/// assert!(TraceFilter::parse("opne").is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceFilter {
    calls: [u64; WORDS],
    also: u64,
}

/// Why text is no filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadTraceFilter(String);

impl fmt::Display for BadTraceFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for BadTraceFilter {}

impl core::str::FromStr for TraceFilter {
    type Err = BadTraceFilter;

    fn from_str(text: &str) -> Result<TraceFilter, BadTraceFilter> {
        TraceFilter::parse(text)
    }
}

impl TraceFilter {
    /// All calls that Holdfast serves or refuses.
    pub const SERVED: TraceFilter = TraceFilter {
        calls: [u64::MAX; WORDS],
        also: 0,
    };

    /// Words with commas between them: names of calls, `%file` and `%desc`, all of which may have
    /// an exclamation mark before them, once: all others; `failed`, `refused`: only such calls;
    /// `passed`: also those that the kernel does.
    pub fn parse(text: &str) -> Result<TraceFilter, BadTraceFilter> {
        let (negated, words) = match text.strip_prefix('!') {
            Some(words) => (true, words),
            None => (false, text),
        };
        let mut filter = TraceFilter {
            calls: [0; WORDS],
            also: 0,
        };
        for word in words.split(',') {
            match word {
                "failed" => filter.also |= FAILED,
                "refused" => filter.also |= REFUSED,
                "passed" => filter.also |= PASSED,
                "%file" => filter.add(Kind::is_of_file),
                "%desc" => filter.add(Kind::is_of_descriptor),
                name => {
                    if !KINDS.iter().any(|kind| kind.name == name) {
                        let what = "is neither a call that Holdfast catches, %file, %desc, nor";
                        let text = format!("{name:?} {what} failed, refused or passed");
                        return Err(BadTraceFilter(text));
                    }
                    filter.add(|kind| kind.name == name);
                }
            }
        }
        if negated {
            filter.calls = filter.calls.map(|word| !word);
        } else if filter.calls == [0; WORDS] {
            filter.calls = TraceFilter::SERVED.calls;
        }
        Ok(filter)
    }

    fn add(&mut self, wanted: impl Fn(&Kind) -> bool) {
        for kind in KINDS.iter().filter(|kind| wanted(kind)) {
            let nr = usize::from(kind.nr);
            self.calls[nr / 64] |= 1 << (nr % 64);
        }
    }

    /// Whether calls with this number are wanted.
    pub fn has(&self, nr: usize) -> bool {
        let word = self.calls.get(nr / 64).copied().unwrap_or(0);
        word >> (nr % 64) & 1 != 0
    }

    /// Whether only those that fail are, or that are refused.
    pub fn only_failed(&self) -> bool {
        self.also & FAILED != 0
    }

    pub fn only_refused(&self) -> bool {
        self.also & REFUSED != 0
    }

    /// Whether those that the kernel does are, too.
    pub fn passed(&self) -> bool {
        self.also & PASSED != 0
    }
}

impl TraceSettings {
    /// As `HOLDFAST_SESSION` has them: all 0 without `--trace`.
    pub fn numbers(settings: Option<TraceSettings>) -> [u64; TRACE_NUMBERS] {
        let mut numbers = [0; TRACE_NUMBERS];
        if let Some(settings) = settings {
            numbers[0] = u64::from(settings.fd) + 1;
            numbers[1] = settings.filter.also;
            numbers[2..].copy_from_slice(&settings.filter.calls);
        }
        numbers
    }

    /// `None`: they are none that `numbers` makes.
    pub fn of_numbers(numbers: [u64; TRACE_NUMBERS]) -> Option<Option<TraceSettings>> {
        let [fd, also, calls @ ..] = numbers;
        if fd == 0 {
            return (numbers == [0; TRACE_NUMBERS]).then_some(None);
        }
        if also > FAILED | REFUSED | PASSED {
            return None;
        }
        Some(Some(TraceSettings {
            fd: u32::try_from(fd - 1).ok()?,
            filter: TraceFilter { calls, also },
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_say_which_calls_are_wanted() {
        let wanted = |text: &str, nr: usize| TraceFilter::parse(text).unwrap().has(nr);
        let (read, openat, rename) = (0, 257, 82);
        assert!(wanted("read", read) && !wanted("read", openat));
        assert!(!wanted("!read", read) && wanted("!read", openat));
        assert!(!wanted("!read,openat", openat) && wanted("!read,openat", rename));
        assert!(wanted("%file", rename) && wanted("%file", openat) && !wanted("%file", read));
        assert!(wanted("%desc", read) && wanted("%desc", openat) && !wanted("%desc", rename));
        assert!(wanted("passed", read) && wanted("failed,passed", rename));
        assert!(!wanted("read", 9999));
        let filter = TraceFilter::parse("rename,refused").unwrap();
        assert!(filter.only_refused() && !filter.only_failed() && !filter.passed());
        for bad in ["", "opne", "read,,write", "!", "%", "read!"] {
            assert!(TraceFilter::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn settings_come_back() {
        let filter = TraceFilter::parse("!mmap,failed").unwrap();
        let settings = Some(TraceSettings { fd: 0, filter });
        let numbers = TraceSettings::numbers(settings);
        assert_eq!(TraceSettings::of_numbers(numbers), Some(settings));
        let none = TraceSettings::numbers(None);
        assert_eq!(TraceSettings::of_numbers(none), Some(None));
        let mut bad = numbers;
        bad[0] = 0;
        assert_eq!(TraceSettings::of_numbers(bad), None);
        bad[0] = u64::MAX;
        assert_eq!(TraceSettings::of_numbers(bad), None);
        let mut bad = numbers;
        bad[1] = 8;
        assert_eq!(TraceSettings::of_numbers(bad), None);
    }
}
