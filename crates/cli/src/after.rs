//! Times from now on the command line.
//!
//! Invariant: a number has a unit, or is seconds.

use holdfast::Expires;
use std::time::Duration;

/// A time from now: a number and a unit, or `never`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct After(Option<Duration>);

impl After {
    /// As a time.
    pub fn expires(self) -> Expires {
        self.0.map_or(Expires::Never, Expires::after)
    }
}

impl std::str::FromStr for After {
    type Err = String;

    fn from_str(text: &str) -> Result<After, String> {
        if text == "never" {
            return Ok(After(None));
        }
        let digits = text.find(|c: char| !c.is_ascii_digit());
        let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
        let unit_ms = match unit {
            "ms" => 1,
            "" | "s" => 1000,
            "m" => 60 * 1000,
            "h" => 60 * 60 * 1000,
            "d" => 24 * 60 * 60 * 1000,
            _ => return Err("write a number and ms, s, m, h or d, or never".into()),
        };
        let ms = number.parse::<u64>().ok();
        let ms = ms.and_then(|n| n.checked_mul(unit_ms));
        ms.map(|ms| After(Some(Duration::from_millis(ms))))
            .ok_or("write a number and ms, s, m, h or d, or never".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_from_now_have_units() {
        let ms = |text: &str| {
            let after: After = text.parse().unwrap();
            after.0.map(|time| time.as_millis())
        };
        assert_eq!(
            (ms("1500ms"), ms("2"), ms("2s")),
            (Some(1500), Some(2000), Some(2000))
        );
        assert_eq!(
            (ms("3m"), ms("1h"), ms("1d")),
            (Some(180_000), Some(3_600_000), Some(86_400_000))
        );
        assert_eq!((ms("never"), ms("0s")), (None, Some(0)));
        for bad in [
            "",
            "s",
            "-1s",
            "1.5s",
            "1w",
            "1 s",
            "99999999999999999999s",
            "213503982335d",
        ] {
            assert!(bad.parse::<After>().is_err(), "{bad}");
        }
    }
}
